"""Every size that decides which way a computation goes: one record, passed as an argument.

Smaller problems are solved exactly, larger ones approximately, or by another route to the same numbers. n is the
number of tasks, p the number of coefficients of a task (intercept included), m the number of edges.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """Thresholds, each with the measurement behind it. Times are those of one thread unless stated otherwise.

    Parameters
    ----------
    one_fold : int
        n p² above which one fold is held out instead of several, and above which a device pays. Above it one
        fold gives the mean error to about 1 %; five folds would take four times as long.
    exact_evidence, exact_tasks : int
        Largest n p, and largest n, for which graphs are compared by exact evidence, O((np)³) per step. With 20 to 40
        tasks its lists of edges have an F1 of .81 on chains of 11 coefficients, where samples have .48 to .76. With 70
        to 160 tasks both are as good (errors between 6 % less and 2 % more by samples, ``benchmarks/ladder.py``), and
        samples take a half to a fifth of the time: 0.6 s, as for 60 tasks.
    clusters, cluster_tasks : int
        Largest n p³, and largest n, for which clusters are a level of their own when evidence is sampled. Their
        evidence is exact and asked for about a hundred times, in O(n p³): half of the time at 1,280 tasks and p = 11.
        The distances between all models take n² numbers.
    tree_tasks, tree_coefficients : int
        Largest n, and largest n p, for which single edges are averaged over trees where evidence is sampled: a sweep
        over the links takes time as n³, and the strengths of the likeliest tree need dense factors. A tree of 31 tasks
        and 31 coefficients is then found with an F1 of .40 instead of .16 (``benchmarks/recovery.py``); School, with
        139 tasks and 28 coefficients, would take minutes.
    hub_sample : int
        With more tasks than this, the strengths of the common model are learned from a sample of this many: they
        describe the population, and 1,500 tasks give them to a few percent.
    single_coefficients : int
        Largest n for which the ℓ1 penalty looks for tasks that share single coefficients; it compares all pairs.
    ordered : int
        n p from which tasks are put in an order that follows the graph, because the models overflow the caches, and
        from which models are accurate only for the chosen level.
    exact_prior : int
        Largest n for which effective resistances come from an n × n inverse; samples are as fast above.
    samples_together : int
        Numbers in all samples of a round above which two are solved for at a time, to save memory.
    probes_together : int
        Numbers in all probes of a log-determinant above which two are taken at a time, to save memory.
    factor_speed : float
        A sparse factor of the prior is used while its products are at most this many times those of Lanczos, which
        wait for memory; measured.
    direct : int
        Largest n p that is solved by a dense Cholesky factor of A: it then costs about as much as one iterative solve.
    rough_first : int
        n p above which the outer problem of validation starts with rough solves. Smaller systems are solved directly,
        so that rough solves would not be cheaper.
    fallback : int
        Largest n p that is factorised after conjugate gradients have failed.
    component_work, component_overhead, component_numbers : float
        The components of the graph are factorised where conjugate gradients fail, if that takes at most this many
        operations, each component counting an overhead of its own, and at most this many numbers.
    dense_graph : int
        Largest n for which the graph level of the preconditioner is a dense inverse.
    polynomial_condition : float
        Condition number up to which a Chebyshev polynomial solves the graph level; smoothed aggregation above.
    low_rank_width, low_rank_numbers : int
        Least p, and least n p², from which tasks with few rows are solved by their factors. The table is in
        :mod:`ggmtl.solve.structured`.
    compiled : int
        Numbers read by a loop from which it is compiled. Below, NumPy takes about as long a call: 46 µs a step of
        conjugate gradients against 49 for 139 tasks of 28 coefficients, 346 against 181 for 1,000 of 11.
    lapack : int
        Coefficients of a task from which its block is inverted by LAPACK: 1.4 times as fast as the compiled loop at
        200, 1.7 times at 300, 2.7 times at 600, and half as fast at 40.
    threads : int
        Numbers read by a loop from which it is shared among threads: a thread takes about 20 µs to wake up.
    shared_passes : int
        n p² from which conjugate gradients share every pass over the tasks among threads.
    all_pairs : int
        Largest n for which all pairs are candidate edges by default.
    exact_neighbours, exact_neighbours_gpu : int
        Largest n for which nearest neighbours are exact, on the CPU and on a device; beyond, they are sought among
        neighbours of neighbours, in time proportional to n.
    exact_covariance : int
        Largest n p for which the posterior covariance is a dense inverse; sampled above.
    exact_component : int
        Largest component, times p, that is inverted for the trace behind σ²; random signs estimate it above.
    near_tasks : int
        With more tasks than this, the standard errors of an explained edge come from about this many tasks near it. Of
        3,600 to 30,000 tasks this leaves variances low by at most 0.2 %.
    """

    # fit
    one_fold: int = 1 << 18
    # evidence
    exact_evidence: int = 640
    exact_tasks: int = 60
    clusters: int = 1 << 23
    cluster_tasks: int = 5000
    tree_tasks: int = 200
    tree_coefficients: int = 1000
    hub_sample: int = 1500
    single_coefficients: int = 2000
    ordered: int = 1 << 18
    exact_prior: int = 300
    samples_together: int = 1 << 21
    probes_together: int = 1 << 22
    factor_speed: float = 32.0
    # solve
    direct: int = 250
    rough_first: int = 250
    fallback: int = 2000
    component_work: float = 6e9
    component_overhead: float = 3e6
    component_numbers: float = 9e6
    dense_graph: int = 600
    polynomial_condition: float = 200.0
    low_rank_width: int = 50
    low_rank_numbers: int = 1 << 20
    # kernels
    compiled: int = 1 << 17
    lapack: int = 128
    threads: int = 1 << 18
    shared_passes: int = 1 << 22
    # graph
    all_pairs: int = 60
    exact_neighbours: int = 3000
    exact_neighbours_gpu: int = 200_000
    # inference
    exact_covariance: int = 3000
    exact_component: int = 1000
    near_tasks: int = 300

    def is_large(self, n_tasks: int, n_features: int) -> bool:
        """Whether n p² is above `one_fold`.

        Then one fold is held out instead of several, a device may be used, and separate models get their ridges from a
        sample of tasks. Left out are: the test for unequal noise, also in intervals; levels with correlated deviations
        and, for counts, with separate intercepts; the comparison of lines with curves; bands around effects.
        """
        return n_tasks * n_features**2 > self.one_fold

    def compares_exactly(self, n_tasks: int, n_features: int) -> bool:
        """Whether graphs are compared by exact evidence; by samples otherwise."""
        return n_tasks <= self.exact_tasks and n_tasks * n_features <= self.exact_evidence

    def averages_trees(self, n_tasks: int, n_features: int) -> bool:
        """Whether links are averaged over trees where evidence is sampled."""
        return n_tasks <= self.tree_tasks and n_tasks * n_features <= self.tree_coefficients

    def is_vast(self, n_tasks: int, n_features: int) -> bool:
        """Whether the models of all tasks together overflow the caches."""
        return n_tasks * n_features >= self.ordered


SIZES = Sizes()
