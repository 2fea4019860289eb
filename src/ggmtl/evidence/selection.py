"""Which graph to report: the hub alone, single edges, or clusters, by penalised evidence.

A graph S with one strength c for all its edges has few parameters, so graphs compare fairly by

    J(S) = min_{c,h} f(S, c, h) + description(S)

where the description counts, in nats, what it takes to say which graph: ln C(n(n−1)/2, |S|) for a list of
edges, n ln K − ln K! for K clusters, nothing for the hub. Edges are searched greedily, one flip at a time
(:mod:`ggmtl.evidence.edge_steps`). Which edges of such a list are shown follows from their probabilities, averaged
over many graphs that are about as good. Clusters are cuts of an average-linkage tree of the distances E(uᵀΛu).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import gammaln

from ggmtl.errors import SingularSystemError
from ggmtl.evidence.clusters import HUB_SHARE, ClusterChoice, search_clusters
from ggmtl.evidence.dense import EdgeEvidence, EvidenceModel, edge_evidence
from ggmtl.evidence.edge_steps import EvidenceResult, Flips
from ggmtl.evidence.elimination import SparseGraph, strength_evidence
from ggmtl.evidence.hub import hub_evidence
from ggmtl.evidence.hub_strengths import StrengthEvidence, group_labels, tune_strengths
from ggmtl.evidence.spanning_trees import average_over_trees

# Clusters are far shorter to describe than a list of edges, and would win by that alone where tasks lie on a
# line: they must also keep this share of the gain of a list that pays for its own description. Measured: 0.96 and
# more on clusters, 0.57–0.80 on lines and trees. By score alone, clusters win on lines of 20 tasks × 20 rows.
_CLUSTER_SHARE = 0.9
_ROUNDS, _MAX_FLIPS = 4, 2000


@dataclass(frozen=True)
class GraphChoice:
    """The graph that penalised evidence prefers.

    Parameters
    ----------
    kind : {"hub", "edges", "clusters"}
    edges : array of shape (m, 2)
        The candidates; for clusters, the pairs inside them.
    selected : array of bool, shape (m,)
        Its edges.
    edge_values : array of shape (m,)
        e: the common strength on the selected edges (over the size of the cluster, for clusters), else zero.
    hub : array of shape (p,)
        Strengths of the hub beside them.
    gain : float
        ln evidence over that of the hub alone.
    description : float
        Nats that the graph costs.
    coefficients : array of shape (n, p)
        Models.
    probabilities : array of shape (m,), optional
        Of the edges, where a list of edges was sought.
    """

    kind: str
    edges: np.ndarray
    selected: np.ndarray
    edge_values: np.ndarray
    hub: np.ndarray
    gain: float
    description: float
    coefficients: np.ndarray
    probabilities: np.ndarray | None = None

    @property
    def score(self) -> float:
        """Gain less description; that of a graph without edges is no gain of edges."""
        return self.gain - self.description if self.selected.any() else -np.inf


def select_graph(
    model: EvidenceModel,
    learned: EvidenceResult,
    groups: np.ndarray | None = None,
    *,
    fixed: np.ndarray | None = None,
    any_pair: bool = True,
) -> GraphChoice:
    """The better of the best list of edges and the best clusters; the hub where neither gains anything.

    Whether it is worth its description is for its `score` to say.

    Parameters
    ----------
    model : EvidenceModel
        Losses, candidate edges, coupling, and the hub that is best without edges.
    learned : EvidenceResult
        What :func:`~ggmtl.evidence.edge_steps.learn_edges` found: it says where to search.
    groups : array of int, shape (p,), optional
        Coefficients that share a hub strength.
    fixed : array of bool, shape (m,), optional
        Edges that must be selected.
    any_pair : bool
        Whether clusters may join tasks that are no candidate edge.
    """
    label = group_labels(groups, len(model.coupling))
    fixed = np.zeros(len(model.edges), dtype=bool) if fixed is None else fixed
    alone = hub_evidence(model.loss, model.hub, model.ridge)
    nothing = np.zeros(len(model.edges))
    hub = GraphChoice("hub", model.edges, nothing > 0, nothing, model.hub, 0.0, 0.0, alone.coefficients)
    if not len(model.edges):
        return hub
    distances = expected_distances(model, learned.evidence)
    clusters = choose_clusters(model, distances, label, alone.value, fixed=fixed, any_pair=any_pair)
    # Free edge values gain more than any list, so that there is nothing to search where clusters nearly reach them.
    free = alone.value - learned.evidence.value
    if clusters is not None and clusters.score > 0 and clusters.gain >= _CLUSTER_SHARE * free:
        return clusters
    best = _search_edges(model, learned, label, alone.value, fixed)
    if clusters is not None and clusters.score > 0 and (best.score <= 0 or clusters.gain >= _CLUSTER_SHARE * best.gain):
        return clusters
    if best.score <= 0 and fixed.any():
        return best
    if not best.selected.any() or best.gain <= 0:
        return hub
    return _with_likely_edges(model, best, learned.leverage, label, fixed)


def ranked_list(
    model: EvidenceModel,
    learned: EvidenceResult,
    size: int,
    groups: np.ndarray | None = None,
    *,
    probabilities: np.ndarray | None = None,
) -> GraphChoice:
    """The `size` likeliest edges, by leverage unless `probabilities` are given; one strength, tuned with the hub's."""
    label = group_labels(groups, len(model.coupling))
    selected = np.zeros(len(model.edges), dtype=bool)
    rank = learned.leverage if probabilities is None else probabilities
    selected[np.argsort(-rank, kind="stable")[:size]] = True
    state = replace(model, hub=np.maximum(learned.hub, HUB_SHARE * model.hub))
    first = float(np.median(learned.edge_values[selected]))
    state, strength, evidence = _tune(state, selected, first, label, HUB_SHARE * float(np.median(model.hub)))
    gain = hub_evidence(model.loss, model.hub, model.ridge).value - evidence.value
    description = list_description(model.loss.n_tasks, size)
    values = strength * selected
    return GraphChoice("edges", model.edges, selected, values, state.hub, gain, description, evidence.coefficients)


def _with_likely_edges(
    model: EvidenceModel, choice: GraphChoice, leverage: np.ndarray, label: np.ndarray, fixed: np.ndarray
) -> GraphChoice:
    """The list with the largest expected F1, strengths tuned to it; gain and description stay those of `choice`.

    With q the probabilities of the edges, averaged over the trees of tasks and hub, the K likeliest edges are taken
    that maximise the expected F1, 2 Σ_{top K} q / (K + Σ q): where the evidence is clear these are the selected edges,
    else others about as likely join them. Models predict no worse.
    """
    beside = replace(model, hub=np.maximum(choice.hub, HUB_SHARE * model.hub))
    likely = choice.selected * (1.0 + leverage)
    main = label == np.bincount(label).argmax()
    try:
        probabilities = average_over_trees(beside, choice.coefficients, choice.edge_values, likely, main)
    except SingularSystemError:
        # Targets without noise that rows do not determine: strengths span what a matrix can hold. The list stands.
        return choice
    choice = replace(choice, probabilities=probabilities)
    selected = fixed | largest_expected_f1(probabilities)
    if (selected == choice.selected).all():
        return choice
    strength = float(choice.edge_values.max())
    state, strength, evidence = _tune(beside, selected, strength, label, HUB_SHARE * float(np.median(model.hub)))
    return replace(
        choice,
        selected=selected,
        edge_values=strength * selected,
        hub=state.hub,
        coefficients=evidence.coefficients,
    )


def largest_expected_f1(score: np.ndarray) -> np.ndarray:
    """The set of edges with the largest expected F1 when `score` are the probabilities of the edges."""
    order = np.argsort(-score, kind="stable")
    expected = 2 * np.cumsum(score[order]) / (np.arange(1, len(score) + 1) + score.sum() + np.finfo(float).tiny)
    chosen = np.zeros(len(score), dtype=bool)
    chosen[order[: int(expected.argmax()) + 1]] = True
    return chosen


# ---------------------------------------------------------------------- lists of edges


def list_description(n_tasks: int, n_edges: float, n_fixed: int = 0) -> float:
    """ln of the number of graphs with so many edges, `n_fixed` of which are known."""
    total, chosen = 0.5 * n_tasks * (n_tasks - 1) - n_fixed, n_edges - n_fixed
    return float(gammaln(total + 1) - gammaln(chosen + 1) - gammaln(total - chosen + 1))


def _search_edges(
    model: EvidenceModel, learned: EvidenceResult, label: np.ndarray, reference: float, fixed: np.ndarray
) -> GraphChoice:
    """Greedy flips from the n edges of largest leverage, strengths retuned between rounds."""
    n = model.loss.n_tasks
    selected = fixed.copy()
    selected[np.argsort(-learned.leverage, kind="stable")[:n]] = True
    strength = float(np.median(learned.edge_values[selected]))
    # Learned beside all candidates, the hub is far too weak beside n edges.
    state = replace(model, hub=np.maximum(learned.hub, HUB_SHARE * model.hub))
    offset = HUB_SHARE * float(np.median(model.hub))
    for _ in range(_ROUNDS):
        if selected.any():
            state, strength, _ = _tune(state, selected, strength, label, offset)
        flips = Flips(state, strength * selected, edge_evidence(state, strength * selected))
        flipped = _flip_greedily(flips, selected, strength, n, fixed)
        if (flipped == selected).all():
            break
        selected = flipped
    return GraphChoice(
        "edges",
        model.edges,
        selected,
        strength * selected,
        state.hub,
        reference - flips.value,
        list_description(n, int(selected.sum()), int(fixed.sum())),
        flips.coefficients,
    )


def _tune(
    model: EvidenceModel, selected: np.ndarray, strength: float, label: np.ndarray, offset: float
) -> tuple[EvidenceModel, float, StrengthEvidence]:
    """Minimise f over the strength of the selected edges and that of the hub; and f there."""
    n, p = model.loss.moment.shape
    part = replace(model, edges=model.edges[selected])
    graph = SparseGraph(part.edges, n, p)

    def evaluate(strength: float, hub: np.ndarray) -> StrengthEvidence:
        state = replace(part, hub=hub)
        found = strength_evidence(state, graph, strength)
        if found is not None:
            return found
        dense = edge_evidence(state, np.full(len(part.edges), strength))
        slope = float(dense.edge_gradient.sum())
        return StrengthEvidence(dense.value, slope, dense.hub_gradient, dense.coefficients, dense.noise)

    strength, hub, evidence = tune_strengths(evaluate, model.loss, strength, model.hub, label, offset)
    return replace(model, hub=hub), strength, evidence


def _flip_greedily(flips: Flips, selected: np.ndarray, strength: float, n_tasks: int, fixed: np.ndarray) -> np.ndarray:
    """Flip the edge that lowers f + description most, until none does; the edges that are then selected."""
    selected, n_fixed = selected.copy(), int(fixed.sum())
    for _ in range(_MAX_FLIPS):
        signed, size = np.where(selected, -strength, strength), int(selected.sum())
        here, less, more = (list_description(n_tasks, max(k, n_fixed), n_fixed) for k in (size, size - 1, size + 1))
        gains = flips.changes(signed)
        changes = gains + np.where(selected, less, more) - here
        changes[fixed] = np.inf
        best = int(changes.argmin())
        if changes[best] > -1e-6:
            break
        flips.flip(best, float(signed[best]), float(gains[best]))
        selected[best] = not selected[best]
    return selected


# ---------------------------------------------------------------------- clusters


def choose_clusters(
    model: EvidenceModel,
    distances: np.ndarray,
    label: np.ndarray,
    reference: float,
    *,
    fixed: np.ndarray,
    any_pair: bool = True,
) -> GraphChoice | None:
    """The best clusters as a graph, its gain over `reference`; None where no clusters are allowed."""
    found: ClusterChoice | None = search_clusters(
        model.loss,
        distances,
        model.coupling,
        model.hub,
        label,
        together=model.edges[fixed],
        allowed=None if any_pair else model.edges,
        ridge=model.ridge,
    )
    if found is None:
        return None
    edges, values = found.edges()
    gain = reference - found.value
    return GraphChoice("clusters", edges, values > 0, values, found.hub, gain, found.description, found.coefficients)


def expected_distances(model: EvidenceModel, evidence: EdgeEvidence) -> np.ndarray:
    """E(uᵀΛu)/σ² of all pairs, shape (n, n)."""
    scaled = evidence.coefficients * np.sqrt(model.coupling / evidence.noise)
    products = scaled @ scaled.T + np.einsum("ikjk,k->ij", evidence.covariance, model.coupling)
    square = np.diagonal(products)
    distances = np.maximum(square[:, None] + square - 2 * products, 0.0)
    np.fill_diagonal(distances, 0.0)
    return 0.5 * (distances + distances.T)
