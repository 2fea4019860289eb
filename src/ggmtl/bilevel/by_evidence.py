"""The graph of highest evidence beside a hub.

Coefficients are first scaled so that the hub draws all slopes alike: Λ_k ∝ h_k, which says that what is shared by all
is shared by neighbours too, in the same proportion. Where the whole system fits a dense factor, graphs compete by exact
evidence less the length of their description (hub alone, a list of edges, clusters). Beyond, clusters still have exact
evidence; they are taken where it prefers them to the hub and, on as many tasks as fit a dense factor, to a list of
edges. Else edge values follow from sampled evidence, and whether they pay is left to the honest errors.
"""

from __future__ import annotations

import numpy as np
from scipy.spatial.distance import pdist, squareform

from ggmtl.bilevel.fit import GraphFit, Settings
from ggmtl.candidates import KNN, CandidateEdges, Candidates, Complete
from ggmtl.criteria.evidence import (
    EvidenceModel,
    EvidenceResult,
    GraphChoice,
    SampledEvidence,
    choose_clusters,
    hub_evidence,
    learn_edges,
    ranked_list,
    select_graph,
)
from ggmtl.solvers import prepare
from ggmtl.statistics import LeastSquares

# Largest n·p for which graphs are compared by exact evidence.
EXACT_SIZE = 1000
# Clusters are sought among at most so many tasks, and where the matrices of all tasks have at most so many numbers.
CLUSTER_TASKS, _CLUSTER_NUMBERS = 2000, 1 << 23
# Nats by which a graph must beat the hub, its description paid, to be believed without a vote: odds of twenty to one.
_MARGIN = 3.0
# Edges per task of the sparser graphs along the path.
_PER_TASK = (0.5, 1.0, 2.0)
# Edges of less leverage tie nothing together that the rest of the graph does not.
_LEVERAGE = 0.1


def learn_by_evidence(
    loss: LeastSquares, settings: Settings, candidates: CandidateEdges, hub: GraphFit, seed: int = 0
) -> list[GraphFit]:
    """Graphs of rising density, the one of highest evidence last; fixed candidates are always in that one.

    Where evidence is exact, the sparser ones are the edges of largest leverage, half, one and two per task.

    Parameters
    ----------
    loss : LeastSquares
        All rows given.
    settings : Settings
    candidates : CandidateEdges
    hub : GraphFit
        The best hub without edges.
    seed : int
        Of the samples.
    """
    nothing = GraphFit("graph", hub.edges, hub.edge_values, hub.coupling, hub.hub, hub.coefficients, hub.value)
    if not len(candidates.edges):
        return [nothing]
    unit = np.where(settings.slopes, np.sqrt(hub.hub / _slope_strength(hub.hub, settings.slopes)), 1.0)
    scaled = LeastSquares(loss.gram / np.outer(unit, unit), loss.moment / unit, loss.target_square, loss.count)
    model = EvidenceModel(scaled, candidates.edges, np.ones(len(unit)), hub.hub / unit**2)
    groups, fixed, any_pair = np.where(settings.slopes, 0, 1), candidates.fixed, _any_pair(settings.candidates)
    if loss.moment.size <= EXACT_SIZE:
        learned = learn_edges(model.loss, model.edges, model.hub, groups=groups)
        choice = select_graph(model, learned, groups, fixed=fixed, any_pair=any_pair)
        sizes = [max(1, int(share * loss.n_tasks)) for share in _PER_TASK]
        sparser = [ranked_list(model, learned, min(size, len(model.edges)), groups) for size in sizes]
    else:
        sampled = SampledEvidence(seed=seed)
        learned = learn_edges(model.loss, model.edges, model.hub, groups=groups, tol=0.0, estimator=sampled)
        choice = _clusters_of_many(model, learned, groups, fixed, any_pair)
        sparser = []
    if choice is None:
        last = _free_edges(model, learned, fixed, unit)
    elif choice.kind == "hub":
        last = nothing
    else:
        last = _chosen(choice, learned, unit, hub, supported=choice.score > _MARGIN or bool(fixed.any()))
    return [*(_chosen(choice, learned, unit, hub) for choice in sparser), last]


def _chosen(
    choice: GraphChoice, learned: EvidenceResult, unit: np.ndarray, hub: GraphFit, supported: bool = False
) -> GraphFit:
    return _as_fit(
        choice.edges,
        choice.edge_values,
        choice.hub,
        choice.coefficients,
        unit,
        value=hub.value - choice.score,
        iterations=len(learned.history),
        reported=choice.selected.astype(float),
        supported=supported,
    )


def _slope_strength(hub: np.ndarray, slopes: np.ndarray) -> float:
    return float(np.exp(np.log(hub[slopes]).mean())) if slopes.any() else 1.0


def _any_pair(rule: Candidates) -> bool:
    """Whether clusters may join any two tasks: neighbours only say where to look, other rules say what may be."""
    return isinstance(rule, (KNN, Complete)) and not len(rule.forbid)


def _clusters_of_many(
    model: EvidenceModel, learned: EvidenceResult, groups: np.ndarray, fixed: np.ndarray, any_pair: bool
) -> GraphChoice | None:
    """The best clusters, where exact evidence prefers them to the hub and, on some of them, to a list of edges."""
    n, p = model.loss.moment.shape
    if n > CLUSTER_TASKS or n * p * p > _CLUSTER_NUMBERS:
        return None
    distances = squareform(pdist(learned.evidence.coefficients, "sqeuclidean"))
    alone = hub_evidence(model.loss, model.hub, model.ridge).value
    clusters = choose_clusters(model, distances, groups, alone, fixed=fixed, any_pair=any_pair)
    if clusters is None or clusters.score <= 0:
        return None
    tasks = _whole_components(clusters.edges, n, EXACT_SIZE // p)
    part = LeastSquares(*(field[tasks] for field in _fields(model.loss)))
    pairs = np.column_stack(np.triu_indices(len(tasks), 1))
    sub = EvidenceModel(part, pairs, model.coupling, model.hub)
    chosen = select_graph(sub, learn_edges(part, pairs, model.hub, groups=groups), groups)
    return clusters if chosen.kind == "clusters" else None


def _fields(loss: LeastSquares) -> tuple[np.ndarray, ...]:
    return loss.gram, loss.moment, loss.target_square, loss.count


def _whole_components(edges: np.ndarray, n: int, limit: int) -> np.ndarray:
    """At most `limit` tasks in as many whole clusters as that allows, small clusters first, no lone tasks."""
    first = np.arange(n)
    np.minimum.at(first, edges[:, 1], edges[:, 0])
    size = np.bincount(first, minlength=n)[first]
    order = np.lexsort((first, size))
    return np.sort(order[size[order] > 1][:limit])


def _free_edges(model: EvidenceModel, learned: EvidenceResult, fixed: np.ndarray, unit: np.ndarray) -> GraphFit:
    """Edge values as learned from samples; fixed edges at least as strong as the median."""
    values = np.where(fixed, np.maximum(learned.edge_values, np.median(learned.edge_values)), learned.edge_values)
    system = EvidenceModel(model.loss, model.edges, model.coupling, learned.hub).system(values)
    start = learned.evidence.coefficients
    coefficients = prepare(system).solve(model.loss.moment, start=start, tol=1e-9).require(1e-6).value
    return _as_fit(
        model.edges,
        values,
        learned.hub,
        coefficients,
        unit,
        value=float("nan"),
        iterations=len(learned.history),
        reported=np.where(fixed | (learned.leverage > _LEVERAGE), np.maximum(learned.leverage, fixed), 0.0),
        supported=bool(fixed.any()),
    )


def _as_fit(
    edges: np.ndarray,
    values: np.ndarray,
    hub: np.ndarray,
    coefficients: np.ndarray,
    unit: np.ndarray,
    *,
    value: float,
    iterations: int,
    reported: np.ndarray,
    supported: bool = False,
) -> GraphFit:
    """Back to the coordinates of the design, with λ the strength of the strongest edge."""
    present = values > 1e-6 * values.max(initial=0.0)
    strongest = float(values.max(initial=0.0)) or 1.0
    return GraphFit(
        "graph",
        edges[present],
        values[present] / strongest,
        strongest * unit**2,
        hub * unit**2,
        coefficients / unit,
        value,
        iterations,
        reported_weights=reported[present],
        supported=supported,
    )
