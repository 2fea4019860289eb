"""Graphs for more tasks than a dense factor allows: neighbours by sampled evidence, and clusters by exact evidence.

Whether the edges pay is left to the honest errors. Clusters have exact evidence at any size; where it prefers them to
the hub, they are a level of their own.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from scipy.spatial.distance import pdist, squareform

from ggmtl.bilevel.level import GraphFit
from ggmtl.evidence.dense import EvidenceModel
from ggmtl.evidence.hub import hub_evidence
from ggmtl.evidence.sampled_edges import RESULT_TOL, ROUND_TOL, Neighbours, Propose, learn_neighbours, solves_for
from ggmtl.evidence.sampled_value import SampledEvidence, sampled_evidence
from ggmtl.evidence.scaled_problem import ScaledProblem
from ggmtl.evidence.selection import GraphChoice, choose_clusters, largest_expected_f1
from ggmtl.evidence.spanning_trees import average_over_trees
from ggmtl.graph.task_graph import beside_heaviest
from ggmtl.runtime.journal import Journal
from ggmtl.runtime.sizes import SIZES, Sizes
from ggmtl.statistics.least_squares import LeastSquares

_CLUSTER_SEARCHES = 4
# Edges per task of the sparser graphs along the path, and the rounds that tune their strengths.
_PER_TASK, _TUNING_ROUNDS = (1.0, 2.0), 1
# Rounds that a graph which was learned from most of the rows takes to adapt to all of them.
WARM_ROUNDS = 3
# Share of the hub's strength that stays with it while edges are averaged over trees.
_BESIDE_TREES = 0.1
# Edges of less leverage tie nothing together that the rest of the graph does not.
_LEVERAGE = 0.2
# ln r̄ below which the strengths are as good as settled.
_SETTLED = 0.05


def learn_by_samples(
    problem: ScaledProblem,
    start: Neighbours,
    propose: Propose,
    rounds: int,
    renewed: int,
    seed: int,
    journal: Journal,
) -> tuple[Neighbours, list[GraphFit]]:
    """The learned neighbours, and graphs of rising density, those neighbours last.

    Parameters
    ----------
    problem : ScaledProblem
    start : Neighbours
        Where the rounds start.
    propose : callable
        ``propose(models, edges)``: candidates for better models, in scaled coordinates.
    rounds, renewed : int
        Rounds, and those of them after which candidates are proposed anew.
    """
    inside = journal.inside("dense")
    journal.note("graphs", partial(_graph_so_far, problem, inside))
    # Of very many tasks, only the level that is chosen gets accurate models: see `with_accurate_models`.
    tol = ROUND_TOL if problem.sizes.is_vast(problem.loss.n_tasks, problem.loss.n_features) else RESULT_TOL
    learn = partial(learn_neighbours, problem.loss, groups=problem.groups, seed=seed, tol=tol, sizes=problem.sizes)
    dense = learn(start, propose=propose, rounds=rounds, renewed=renewed, journal=inside)
    sparser = []
    for number, share in enumerate(_PER_TASK):
        chosen = dense.strongest(max(1, int(share * problem.loss.n_tasks)))
        sparser.append(learn(chosen, rounds=min(rounds, _TUNING_ROUNDS), journal=journal.inside(f"sparser {number}")))
    return dense, [
        *(_neighbour_fit(problem, graph) for graph in sparser),
        _neighbour_fit(problem, _shown(problem, dense)),
    ]


def _shown(problem: ScaledProblem, graph: Neighbours) -> Neighbours:
    """Few tasks: leverage only where an edge is likely enough, averaged over all trees, to be shown."""
    n = problem.loss.n_tasks
    if n > problem.sizes.tree_average or not len(graph.edges):
        return graph
    main = problem.groups == np.bincount(problem.groups).argmax()
    pairs = np.column_stack(np.triu_indices(n, 1))
    place = np.searchsorted(pairs @ [n, 1], np.sort(graph.edges, axis=1) @ [n, 1])
    values = np.bincount(place, graph.edge_values, len(pairs))
    hub = np.where(main, _BESIDE_TREES * problem.hub, problem.hub)
    model = problem.model(pairs, hub)
    likely = average_over_trees(model, graph.coefficients, values, values / values.max(), main)
    shown = largest_expected_f1(likely)[place]
    return replace(graph, leverage=np.where(shown, np.maximum(likely[place], 2 * _LEVERAGE), 0.0))


def _neighbour_fit(problem: ScaledProblem, graph: Neighbours, status: str | None = None) -> GraphFit:
    """Edge values as learned; reported are fixed edges, and those that the rest of the graph does not make idle."""
    left = abs(float(np.log(graph.common_steps[-1]))) if graph.common_steps else 0.0
    outcome = {
        "iterations": len(graph.common_steps),
        "status": status or ("converged" if left < _SETTLED else "stopped"),
        "certificate": left,
        "history": graph.common_steps,
    }
    told = graph.fixed | (graph.leverage > _LEVERAGE)
    leverage = np.where(told, np.maximum(graph.leverage, graph.fixed), 0.0)
    # Beside the heaviest edges of the two tasks, so that weights are comparable between tasks.
    reported = beside_heaviest(graph.edges, leverage, problem.loss.n_tasks)
    return problem.as_fit(
        graph.edges,
        graph.edge_values,
        graph.hub,
        graph.coefficients,
        value=float("nan"),
        outcome=outcome,
        reported=reported,
        supported=bool(graph.fixed.any()),
    )


def _graph_so_far(problem: ScaledProblem, journal: Journal) -> list[GraphFit]:
    """The graph of the last round, nothing where there was none."""
    state = journal.resume("rounds")
    return [] if state is None else [_neighbour_fit(problem, Neighbours(**state), "interrupted")]


def with_accurate_models(fit: GraphFit, loss: LeastSquares, sizes: Sizes = SIZES) -> GraphFit:
    """The fit with the models of its graph to the accuracy of a result, where there are very many tasks."""
    if not sizes.is_vast(loss.n_tasks, loss.n_features) or not len(fit.edges):
        return fit
    problem = ScaledProblem.beside(fit.weighed(loss), fit, sizes)
    models = solves_for(problem.loss, sizes).models(problem.neighbours_of(fit))
    return replace(fit, coefficients=problem.outside(models))


def graph_evidence(loss: LeastSquares, fit: GraphFit, sizes: Sizes = SIZES, **options: int) -> SampledEvidence:
    """The sampled evidence of a learned graph, on the scale of the value of the hub's fit.

    The rounds need no value, only ratios of expectations, and it would add a tenth to their time, so that graphs of
    many tasks are learned without (their `value` is NaN). Here it is for the asking.

    Parameters
    ----------
    loss : LeastSquares
        The rows that the fit was learned from.
    fit : GraphFit
        The hub, or a graph beside it.
    **options : int
        ``n_probes``, ``n_samples`` and ``seed`` of :func:`ggmtl.evidence.sampled_evidence`.
    """
    coupling = fit.coupling if len(fit.edges) else np.ones(loss.n_features)
    model = EvidenceModel(fit.weighed(loss), fit.edges, coupling, fit.hub, sizes=sizes)
    return sampled_evidence(model, fit.edge_values, coefficients=fit.coefficients, **options)


def clusters_of_many(problem: ScaledProblem, dense: Neighbours, any_pair: bool) -> GraphChoice | None:
    """The best clusters, where exact evidence prefers them to the hub.

    Models fitted in clusters say better which tasks are near, so the search is repeated from them while it pays.

    Parameters
    ----------
    problem : ScaledProblem
    dense : Neighbours
        Whose models say which tasks are near.
    any_pair : bool
        Whether clusters may join tasks that are no edge of `dense`.
    """
    loss = problem.loss
    model = problem.model(dense.edges, problem.hub)
    alone = hub_evidence(loss, problem.hub, model.ridge).value
    best, models = None, dense.coefficients
    for _ in range(_CLUSTER_SEARCHES):
        distances = squareform(pdist(models, "sqeuclidean"))
        found = choose_clusters(model, distances, problem.groups, alone, fixed=dense.fixed, any_pair=any_pair)
        if found is None or found.score <= (0.0 if best is None else best.score):
            break
        best, models = found, found.coefficients
    return best
