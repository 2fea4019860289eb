"""Search for the graph of highest marginal likelihood (evidence), given the shared model.

If the whole system is small enough for a dense factor, graphs are compared by exact evidence minus their description
length: no edges, trees of single edges, clusters. With more tasks, edges are learned from posterior samples
(:mod:`ggmtl.evidence.sampled_edges`). Exact evidence is then computed for clusters and trees only, if at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from scipy.spatial.distance import pdist, squareform

from ggmtl.bilevel.level import GraphFit, Settings
from ggmtl.evidence.dense import EvidenceModel
from ggmtl.evidence.edge_steps import STEPS, EvidenceResult, learn_edges
from ggmtl.evidence.sampled_edges import (
    RENEWED,
    RESULT_TOL,
    ROUND_TOL,
    ROUNDS,
    Neighbours,
    Propose,
    learn_neighbours,
    solves_for,
)
from ggmtl.evidence.scaled_problem import ScaledProblem, order_of
from ggmtl.evidence.selection import (
    GraphChoice,
    choose_clusters,
    expected_distances,
    search_trees,
    strongest_edges,
)
from ggmtl.graph.candidates import KNN, CandidateEdges, Candidates, Complete
from ggmtl.graph.task_graph import relative_to_heaviest
from ggmtl.runtime.journal import Journal
from ggmtl.runtime.sizes import SIZES, Sizes
from ggmtl.solve.solvers import prepare
from ggmtl.statistics.least_squares import LeastSquares

# How graphs are found, in the order in which they are listed: half an edge, one and two edges per task, clusters,
# what trees have in common, and all candidates.
_SEARCHES = ("half", "one", "two", "clusters", "trees", "all")
_PER_TASK = {"half": 0.5, "one": 1.0, "two": 2.0}
# Steps end when one gains fewer nats than this times tol; 0.1 nats by default.
_NATS_PER_TOL = 1e4
# Largest number of times that the search for clusters is repeated.
_CLUSTER_SEARCHES = 4
# Sparser graphs where evidence is sampled, and the rounds that tune their strengths.
_SAMPLED, _TUNING_ROUNDS = ("one", "two"), 1
# Rounds that a graph which was learned from most of the rows takes to adapt to all of them.
WARM_ROUNDS = 3
# Edges with less leverage are not reported: the rest of the graph already connects their tasks.
_LEVERAGE = 0.2
# The strengths count as converged if |ln r̄| is below this.
_SETTLED = 0.05


def learn_by_evidence(
    loss: LeastSquares,
    settings: Settings,
    propose: Propose,
    hub: GraphFit,
    seed: int = 0,
    journal: Journal | None = None,
    start: GraphFit | None = None,
    skipped: frozenset[str] = frozenset(),
) -> list[GraphFit]:
    """One graph per kind of search, always in the same order, so that folds can be compared.

    A kind that finds no edge returns the hub. Fixed candidates are always in the
    last one that has edges. Where evidence is exact, trees say which edges are likely, and no graph has all candidates.
    Where it is sampled, the sparser graphs have one and two edges per task.

    Parameters
    ----------
    loss : LeastSquares
        The sums of the rows to learn from.
    settings : Settings
    propose : callable
        ``propose(models, edges=None, order=None)`` returns candidate edges for these models. `edges` are the previous
        ones, and `order` is the order of the tasks if it is not the usual one. With sampled evidence it is called again
        as the models improve.
    hub : GraphFit
        The best hub without edges.
    seed : int
        Seed of the samples.
    journal : Journal, optional
        Records the steps, so that an interrupted search can continue. Its note ``"graphs"`` is a function that returns
        the graph of the last step.
    start : GraphFit, optional
        The last graph of most of the rows of very many tasks, beside a hub of the same strength.
    skipped : frozenset of str
        Kinds of search that are left out.
    """
    journal = journal or Journal()
    nothing = GraphFit("graph", hub.edges, hub.edge_values, hub.coupling, hub.hub, hub.coefficients, hub.value)
    candidates = propose(hub.coefficients) if start is None else CandidateEdges(start.edges, start.edge_values < 0)
    if not len(candidates.edges):
        return _in_order({}, nothing)
    rule = settings.candidates
    # Rules that name single tasks need the original order.
    order = None if len(rule.must_link) or len(rule.forbid) else order_of(loss, candidates.edges, settings.sizes)
    problem = ScaledProblem.of(loss, settings, hub, order)
    any_pair = _any_pair(settings.candidates)
    if settings.sizes.compares_exactly(loss.n_tasks, loss.n_features):
        exact = _by_exact_evidence(problem, settings, candidates, nothing, any_pair, journal, skipped)
        return _in_order(exact, nothing)
    first = problem.first_neighbours(candidates) if start is None else problem.neighbours_of(start)
    rounds = min(settings.max_iter, ROUNDS if start is None else WARM_ROUNDS)
    renewed = (RENEWED if start is None else 1) if settings.candidates.uses_models else 0

    def propose_again(models: np.ndarray, edges: np.ndarray) -> CandidateEdges:
        return propose(models / problem.unit, edges, problem.order)

    dense, graphs = learn_by_samples(problem, first, propose_again, rounds, renewed, seed, journal)
    if not _may_have_clusters(loss, settings.sizes):
        return _in_order(graphs, nothing)
    outcome = {key: getattr(graphs["all"], key) for key in ("iterations", "status", "certificate", "history")}
    if "clusters" not in skipped:
        graphs["clusters"] = _chosen(problem, clusters_of_many(problem, dense, any_pair), outcome, nothing)
    if "trees" not in skipped and settings.sizes.averages_trees(loss.n_tasks, loss.n_features):
        trees = search_trees(problem.model(dense.edges, problem.hub), dense, problem.groups, fixed=dense.fixed)
        graphs["trees"] = _chosen(problem, trees, outcome, nothing)
    return _in_order(graphs, nothing)


def _in_order(found: Mapping[str, GraphFit], nothing: GraphFit) -> list[GraphFit]:
    """The graphs by their kind of search, the hub alone where there is none."""
    return [replace(found.get(search, nothing), search=search) for search in _SEARCHES]


def densest(graphs: Sequence[GraphFit]) -> GraphFit:
    """The last graph that has edges, or else the last."""
    return next((fit for fit in reversed(graphs) if len(fit.edges)), graphs[-1])


def _may_have_clusters(loss: LeastSquares, sizes: Sizes) -> bool:
    """Whether the problem is small enough for exact evidence of clusters; never on a GPU."""
    few = loss.n_tasks <= sizes.cluster_tasks and loss.n_tasks * loss.n_features**3 <= sizes.clusters
    return few and isinstance(loss, LeastSquares)


def _by_exact_evidence(
    problem: ScaledProblem,
    settings: Settings,
    candidates: CandidateEdges,
    nothing: GraphFit,
    any_pair: bool,
    journal: Journal,
    skipped: frozenset[str],
) -> dict[str, GraphFit]:
    groups, fixed = problem.groups, candidates.fixed
    model = problem.model(candidates.edges, problem.hub)
    journal.note("graphs", partial(_graph_so_far, journal, model, fixed, problem))
    learned = learn_edges(
        model.loss,
        model.edges,
        model.hub,
        groups=groups,
        ridge=model.ridge,
        tol=_NATS_PER_TOL * settings.tol,
        max_iter=min(settings.max_iter, STEPS),
        journal=journal,
    )
    outcome = _outcome(learned)
    trees = None if "trees" in skipped else search_trees(model, learned, groups, fixed=fixed)
    likely = learned.leverage if trees is None or trees.probabilities is None else trees.probabilities
    sizes = {name: min(max(1, int(share * model.loss.n_tasks)), len(model.edges)) for name, share in _PER_TASK.items()}
    sparser = {name: strongest_edges(model, learned, likely, size, groups) for name, size in sizes.items()}
    clusters = choose_clusters(
        model, expected_distances(model, learned.evidence), groups, fixed=fixed, any_pair=any_pair
    )
    as_fit = partial(_chosen, problem, outcome=outcome, nothing=nothing)
    last = as_fit(trees, supported=True if fixed.any() else None)
    found = {name: as_fit(choice, supported=False) for name, choice in sparser.items()}
    return found | {"clusters": as_fit(clusters), "trees": last}


def _chosen(
    problem: ScaledProblem,
    choice: GraphChoice | None,
    outcome: dict[str, Any],
    nothing: GraphFit,
    supported: bool | None = None,
) -> GraphFit:
    """A graph as a level, or the hub alone if there is no graph. `supported`, if given, overrides the evidence."""
    if choice is None or not choice.selected.any():
        return replace(nothing, **outcome)
    return problem.as_fit(
        choice.edges,
        choice.edge_values,
        choice.hub,
        choice.coefficients,
        value=nothing.value - choice.score,
        outcome=outcome,
        reported=choice.selected.astype(float),
        supported=choice.supported if supported is None else supported,
    )


def _outcome(learned: EvidenceResult) -> dict[str, Any]:
    """How the search ended, as fields of :class:`GraphFit`. The certificate is the gain of the last step in nats."""
    steps = np.diff(learned.history[-2:], prepend=0.0)
    return {
        "iterations": len(learned.history),
        "status": learned.status,
        "certificate": float(abs(steps[-1])) if len(steps) else 0.0,
        "history": learned.criterion(),
    }


def _graph_so_far(journal: Journal, model: EvidenceModel, fixed: np.ndarray, problem: ScaledProblem) -> list[GraphFit]:
    """The graph of the last step of an interrupted search, in a list; empty if there was no step."""
    learned = journal.noted("edges")
    if learned is None:
        return []
    values = np.where(fixed, np.maximum(learned.edge_values, np.median(learned.edge_values)), learned.edge_values)
    system = replace(model, hub=learned.hub).system(values)
    start = learned.evidence.coefficients
    coefficients = prepare(system).solve(model.loss.moment, start=start, tol=1e-9).require(1e-6).value
    shown = np.where(fixed | (learned.leverage > 0.1), np.maximum(learned.leverage, fixed), 0.0)
    outcome = _outcome(learned)
    fit = problem.as_fit(
        model.edges, values, learned.hub, coefficients, value=learned.evidence.value, outcome=outcome, reported=shown
    )
    return [fit]


def _any_pair(rule: Candidates) -> bool:
    """Whether clusters may join any two tasks.

    Nearest neighbours only limit the search. Other rules state which pairs may be linked.
    """
    return isinstance(rule, (KNN, Complete)) and not len(rule.forbid)


def learn_by_samples(
    problem: ScaledProblem,
    start: Neighbours,
    propose: Propose,
    rounds: int,
    renewed: int,
    seed: int,
    journal: Journal,
) -> tuple[Neighbours, dict[str, GraphFit]]:
    """The learned neighbours, and graphs by their kind of search, those neighbours as ``"all"``.

    Parameters
    ----------
    problem : ScaledProblem
    start : Neighbours
        The state at which the rounds start.
    propose : callable
        ``propose(models, edges)`` returns candidate edges for models in scaled units.
    rounds, renewed : int
        Number of rounds, and the number of first rounds after which new candidates are proposed.
    seed : int
        Seed of the samples.
    journal : Journal
    """
    inside = journal.inside("dense")
    journal.note("graphs", partial(_sampled_graph_so_far, problem, inside))
    # With very many tasks, only the chosen level gets accurate models: see `with_accurate_models`.
    tol = ROUND_TOL if problem.sizes.is_vast(problem.loss.n_tasks, problem.loss.n_features) else RESULT_TOL
    learn = partial(learn_neighbours, problem.loss, groups=problem.groups, seed=seed, tol=tol, sizes=problem.sizes)
    dense = learn(start, propose=propose, rounds=rounds, renewed=renewed, journal=inside)
    graphs = {"all": dense}
    for name in _SAMPLED:
        chosen = dense.strongest(max(1, int(_PER_TASK[name] * problem.loss.n_tasks)))
        graphs[name] = learn(chosen, rounds=min(rounds, _TUNING_ROUNDS), journal=journal.inside(f"sparser {name}"))
    return dense, {name: _neighbour_fit(problem, graph) for name, graph in graphs.items()}


def _neighbour_fit(problem: ScaledProblem, graph: Neighbours, status: str | None = None) -> GraphFit:
    """A graph of learned edge values as a level. Reported are required edges and those with enough leverage."""
    left = abs(float(np.log(graph.common_steps[-1]))) if graph.common_steps else 0.0
    outcome = {
        "iterations": len(graph.common_steps),
        "status": status or ("converged" if left < _SETTLED else "stopped"),
        "certificate": left,
        "history": graph.common_steps,
    }
    shown = graph.fixed | (graph.leverage > _LEVERAGE)
    leverage = np.where(shown, np.maximum(graph.leverage, graph.fixed), 0.0)
    # Relative to the heaviest edges of the two tasks, so that weights are comparable between tasks.
    reported = relative_to_heaviest(graph.edges, leverage, problem.loss.n_tasks)
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


def _sampled_graph_so_far(problem: ScaledProblem, journal: Journal) -> list[GraphFit]:
    """The graph of the last round of an interrupted search, in a list; empty if there was no round."""
    state = journal.resume("rounds")
    return [] if state is None else [_neighbour_fit(problem, Neighbours(**state), "interrupted")]


def with_accurate_models(fit: GraphFit, loss: LeastSquares, sizes: Sizes = SIZES) -> GraphFit:
    """The fit with its models solved to the accuracy of a result. Only needed for graphs of very many tasks."""
    if not sizes.is_vast(loss.n_tasks, loss.n_features) or not len(fit.edges):
        return fit
    if fit.columns is not None:
        own = with_accurate_models(fit.on_its_columns(), loss.of_columns(fit.columns), sizes)
        return own.on_columns(fit.columns, loss.n_features)
    problem = ScaledProblem.of_fit(fit.weighed(loss), fit, sizes)
    models = solves_for(problem.loss, sizes).models(problem.neighbours_of(fit))
    return fit.with_deviations(problem.models_of_design(models))


def clusters_of_many(problem: ScaledProblem, dense: Neighbours, any_pair: bool) -> GraphChoice | None:
    """The clusters of highest exact evidence; None if the hub alone has a higher one.

    The first search uses distances between the models of `dense`. Models fitted with clusters give better distances, so
    the search is repeated with them as long as the score rises.

    Parameters
    ----------
    problem : ScaledProblem
    dense : Neighbours
        The learned edges and models.
    any_pair : bool
        Whether clusters may join tasks without an edge in `dense`.
    """
    model = problem.model(dense.edges, problem.hub)
    best, models = None, dense.coefficients
    for _ in range(_CLUSTER_SEARCHES):
        distances = squareform(pdist(models, "sqeuclidean"))
        found = choose_clusters(model, distances, problem.groups, fixed=dense.fixed, any_pair=any_pair)
        if found is None or found.score <= (0.0 if best is None else best.score):
            break
        best, models = found, found.coefficients
    return best
