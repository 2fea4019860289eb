"""Which graph to report: the hub alone, single edges, or clusters, by penalised evidence.

A graph S with one strength c for all its edges has few parameters, so graphs compare fairly by

    J(S) = min_{c,h} f(S, c, h) + description(S)

where the description counts, in nats, what it takes to say which graph: ln C(n(n−1)/2, |S|) for a list of
edges, n ln K − ln K! for K clusters, nothing for the hub. Edges are searched greedily: flipping an edge by
δ = ±c changes f, with B = Λ^½ bᵀA⁻¹b Λ^½, by

    ½(N − p) ln(Q'/Q) + ½ ln|I + δB| − ½ Σ_k ln(1 + δ Λ_k R⁽ᵏ⁾) ,     Q' = Q + δ uᵀΛ^½ (I + δB)⁻¹ Λ^½u

exactly, for all edges at once. Clusters are cuts of an average-linkage tree of the distances E(uᵀΛu).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from scipy.special import gammaln

from ggmtl.criteria.evidence_edges import EdgeEvidence, EvidenceModel, edge_evidence, prior_terms
from ggmtl.criteria.evidence_hub import degrees_of_freedom, minimize_logs
from ggmtl.criteria.evidence_learning import EvidenceResult

# Clusters are far shorter to describe than a list of edges, and would win by that alone where tasks lie on a
# line: they must also keep this share of the list's gain. Measured: 0.96 and more on clusters, 0.57–0.80 on
# lines and trees.
_CLUSTER_SHARE = 0.9
# Strengths are sought between these multiples of the mean number of rows of a task.
_LOWEST, _HIGHEST = 1e-6, 1e3
_ROUNDS, _MAX_FLIPS = 4, 2000
# Nats below the best after which no further numbers of clusters are tried.
_PATIENCE = 30.0


@dataclass(frozen=True)
class GraphChoice:
    """The graph that penalised evidence prefers.

    Parameters
    ----------
    kind : {"hub", "edges", "clusters"}
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
    """

    kind: str
    selected: np.ndarray
    edge_values: np.ndarray
    hub: np.ndarray
    gain: float
    description: float
    coefficients: np.ndarray

    @property
    def confidence(self) -> float:
        """Share of the gain that the description leaves, in [0, 1]."""
        return float(np.clip(1.0 - self.description / self.gain, 0.0, 1.0)) if self.gain > 0 else 0.0


def select_graph(
    model: EvidenceModel,
    learned: EvidenceResult,
    groups: np.ndarray | None = None,
    hub_value: float | None = None,
) -> GraphChoice:
    """Compare the hub alone, the best list of edges and the best clusters.

    Parameters
    ----------
    model : EvidenceModel
        Losses, candidate edges, coupling, and the hub that is best without edges.
    learned : EvidenceResult
        What :func:`~ggmtl.criteria.evidence_learning.learn_edges` found: it says where to search.
    groups : array of int, shape (p,), optional
        Coefficients that share a hub strength.
    hub_value : float, optional
        f of the hub alone; computed if not given.
    """
    p = len(model.coupling)
    label = (
        np.zeros(p, dtype=np.int64)
        if groups is None
        else np.unique(groups, return_inverse=True)[1].reshape(-1)
    )
    nothing = np.zeros(len(model.edges))
    alone = edge_evidence(model, nothing)
    reference = alone.value if hub_value is None else hub_value
    hub = GraphChoice("hub", nothing > 0, nothing, model.hub, 0.0, 0.0, alone.coefficients)
    if not len(model.edges):
        return hub
    best_list = _search_edges(model, learned, label, reference)
    clusters = _search_clusters(model, learned, label, reference)
    scores = [c.gain - c.description if c.selected.any() else -np.inf for c in (best_list, clusters)]
    if max(scores) <= 0:
        return hub
    return clusters if clusters.gain >= _CLUSTER_SHARE * best_list.gain else best_list


def report_weights(choice: GraphChoice, early_leverage: np.ndarray) -> np.ndarray:
    """Weights in [0, 1] of the reported graph, shape (m,); zero for edges that are not reported.

    Clusters are reported as they are. For a list of edges, every candidate gets the score

        q = confidence² · [selected] + (1 − confidence²) · (early leverage)^½

    and the K edges of largest score are reported that maximise the expected F1, 2 Σ_{top K} q / (K + Σ q):
    where the evidence is clear these are the selected edges, else others about as likely join them.
    """
    if choice.kind != "edges":
        return choice.selected.astype(float)
    part = choice.confidence**2
    score = part * choice.selected + (1.0 - part) * np.sqrt(early_leverage)
    return largest_expected_f1(score).astype(float)


def report_leverages(learned: EvidenceResult, n_tasks: int) -> np.ndarray:
    """Weights in [0, 1] of the reported graph where graphs are too many or too large to compare, shape (m,).

    The leverages sum to an effective number of edges K. Nothing is reported unless the gain of learning
    exceeds ln C(n(n−1)/2, K); else the leverages, late and early mixed by confidence, stand for the selected edges.
    """
    description = list_description(n_tasks, float(learned.leverage.sum()))
    if learned.gain <= description:
        return np.zeros(len(learned.leverage))
    part = (1.0 - description / learned.gain) ** 2
    score = part * learned.leverage + (1.0 - part) * np.sqrt(learned.early_leverage)
    return largest_expected_f1(score).astype(float)


def largest_expected_f1(score: np.ndarray) -> np.ndarray:
    """The set of edges with the largest expected F1 when `score` are the probabilities of the edges."""
    order = np.argsort(-score, kind="stable")
    expected = (
        2 * np.cumsum(score[order]) / (np.arange(1, len(score) + 1) + score.sum() + np.finfo(float).tiny)
    )
    chosen = np.zeros(len(score), dtype=bool)
    chosen[order[: int(expected.argmax()) + 1]] = True
    return chosen


# ---------------------------------------------------------------------- lists of edges


def list_description(n_tasks: int, n_edges: float) -> float:
    """ln of the number of graphs with so many edges."""
    return _log_choose(0.5 * n_tasks * (n_tasks - 1), n_edges)


def flip_changes(
    model: EvidenceModel, edge_values: np.ndarray, evidence: EdgeEvidence, change: np.ndarray
) -> np.ndarray:
    """Change of f when the value of one edge at a time changes by `change`, exact, shape (m,)."""
    i, j = model.edges.T
    root = np.sqrt(model.coupling)
    covariance = evidence.exact_covariance()
    blocks = covariance[i, :, i, :] + covariance[j, :, j, :] - covariance[i, :, j, :] - covariance[j, :, i, :]
    matrix = np.eye(len(root)) + change[:, None, None] * blocks * np.outer(root, root)
    apart = (evidence.coefficients[i] - evidence.coefficients[j]) * root
    solved = np.linalg.solve(matrix, apart[..., None])[..., 0]
    freedom = degrees_of_freedom(model.loss)
    ratio = 1.0 + change * (apart * solved).sum(axis=1) / (evidence.noise * freedom)
    resistance = prior_terms(model, edge_values).resistance * model.coupling
    prior = np.log(np.maximum(1.0 + change[:, None] * resistance, np.finfo(float).tiny)).sum(axis=1)
    posterior = np.linalg.slogdet(matrix)[1]
    return 0.5 * (freedom * np.log(np.maximum(ratio, np.finfo(float).tiny)) + posterior - prior)


def _search_edges(
    model: EvidenceModel, learned: EvidenceResult, label: np.ndarray, reference: float
) -> GraphChoice:
    """Greedy flips from the n edges of largest leverage, strengths retuned between rounds."""
    n = model.loss.n_tasks
    selected = np.zeros(len(model.edges), dtype=bool)
    selected[np.argsort(-learned.leverage, kind="stable")[:n]] = True
    strength = float(np.median(learned.edge_values[selected]))
    state = replace(model, hub=np.maximum(learned.hub, 1e-5 * max(float(model.loss.count.mean()), 1.0)))
    for _ in range(_ROUNDS):
        if selected.any():
            state, strength = _tune(state, selected.astype(float), strength, label)
        flipped = _flip_greedily(state, selected, strength)
        if (flipped == selected).all():
            break
        selected = flipped
    return _choice(
        "edges", state, selected, strength * selected, reference, list_description(n, int(selected.sum()))
    )


def _flip_greedily(model: EvidenceModel, selected: np.ndarray, strength: float) -> np.ndarray:
    """Flip the edge that lowers f + description most, until none does."""
    selected, n = selected.copy(), model.loss.n_tasks
    for _ in range(_MAX_FLIPS):
        values = strength * selected
        evidence = edge_evidence(model, values)
        changes = flip_changes(model, values, evidence, np.where(selected, -strength, strength))
        size = int(selected.sum())
        here = list_description(n, size)
        changes += (
            np.where(selected, list_description(n, max(size - 1, 0)), list_description(n, size + 1)) - here
        )
        best = int(changes.argmin())
        if changes[best] > -1e-6:
            break
        selected[best] = not selected[best]
    return selected


# ---------------------------------------------------------------------- clusters


def cluster_description(n_tasks: int, n_clusters: int) -> float:
    """About ln of the number of ways to put tasks into clusters."""
    return float(n_tasks * np.log(n_clusters) - gammaln(n_clusters + 1))


def _search_clusters(
    model: EvidenceModel, learned: EvidenceResult, label: np.ndarray, reference: float
) -> GraphChoice:
    """The best cut of an average-linkage tree; the search ends when more clusters have long ceased to pay."""
    n = model.loss.n_tasks
    nothing = np.zeros(len(model.edges))
    best = GraphChoice(
        "clusters", nothing > 0, nothing, model.hub, -np.inf, 0.0, learned.evidence.coefficients
    )
    tree = linkage(squareform(_expected_distances(model, learned.evidence), checks=False), "average")
    state, strength = model, 10.0 * float(np.median(model.hub))
    for n_clusters in _cluster_numbers(n):
        pattern = _cluster_pattern(model.edges, fcluster(tree, n_clusters, "maxclust") - 1, n)
        if not pattern.any():
            break
        state, strength = _tune(state, pattern, strength, label)
        description = cluster_description(n, n_clusters)
        choice = _choice("clusters", state, pattern > 0, strength * pattern, reference, description)
        if choice.gain - choice.description < best.gain - best.description - _PATIENCE:
            break
        best = max(best, choice, key=lambda item: item.gain - item.description)
    return best


def _cluster_numbers(n: int) -> list[int]:
    grid = np.unique(np.round(np.geomspace(2, max(n // 2, 2), 12)).astype(int))
    return [int(k) for k in np.union1d(grid, np.arange(2, min(8, n // 2) + 1)) if k < n]


def _cluster_pattern(edges: np.ndarray, cluster: np.ndarray, n: int) -> np.ndarray:
    """1/size on the edges inside clusters (where all pairs are candidates), zero elsewhere."""
    inside = cluster[edges[:, 0]] == cluster[edges[:, 1]]
    degree = np.bincount(edges[inside].ravel(), minlength=n) + 1.0
    return np.where(inside, 1.0 / np.sqrt(degree[edges[:, 0]] * degree[edges[:, 1]]), 0.0)


def _expected_distances(model: EvidenceModel, evidence: EdgeEvidence) -> np.ndarray:
    """E(uᵀΛu)/σ² of all pairs, shape (n, n)."""
    scaled = evidence.coefficients * np.sqrt(model.coupling / evidence.noise)
    products = scaled @ scaled.T + np.einsum("ikjk,k->ij", evidence.exact_covariance(), model.coupling)
    square = np.diagonal(products)
    distances = np.maximum(square[:, None] + square - 2 * products, 0.0)
    np.fill_diagonal(distances, 0.0)
    return 0.5 * (distances + distances.T)


# ---------------------------------------------------------------------- strengths


def _tune(
    model: EvidenceModel, pattern: np.ndarray, strength: float, label: np.ndarray, max_iter: int = 12
) -> tuple[EvidenceModel, float]:
    """Minimise f(c · pattern, h) over c and the hub's strength in the main group of coefficients."""
    unit = max(float(model.loss.count.mean()), 1.0)
    main = label == np.bincount(label).argmax()
    present = pattern > 0
    part = replace(model, edges=model.edges[present])
    pattern = pattern[present]

    def objective(logs: np.ndarray) -> tuple[float, np.ndarray]:
        here = replace(part, hub=np.where(main, np.exp(logs[1]), part.hub))
        evidence = edge_evidence(here, np.exp(logs[0]) * pattern)
        edge_part = np.exp(logs[0]) * float(pattern @ evidence.edge_gradient)
        return evidence.value, np.array([edge_part, float((evidence.hub_gradient * here.hub)[main].sum())])

    bounds = np.log([[1e-3 * unit, _HIGHEST * unit], [_LOWEST * unit, _HIGHEST * unit]])
    first = np.log([strength, float(np.median(model.hub[main]))])
    found = minimize_logs(objective, first, bounds, max_iter=max_iter)
    return replace(model, hub=np.where(main, np.exp(found.x[1]), model.hub)), float(np.exp(found.x[0]))


def _choice(
    kind: str,
    model: EvidenceModel,
    selected: np.ndarray,
    values: np.ndarray,
    reference: float,
    description: float,
) -> GraphChoice:
    evidence = edge_evidence(model, values)
    gain = reference - evidence.value
    return GraphChoice(
        kind, selected, values, model.hub, float(gain), float(description), evidence.coefficients
    )


def _log_choose(total: float, chosen: float) -> float:
    return float(gammaln(total + 1) - gammaln(chosen + 1) - gammaln(total - chosen + 1))
