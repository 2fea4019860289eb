"""Exact marginal likelihood of clusters of tasks with a hub, and the search for the best clusters.

A clique of s tasks whose edges have the value c/s is the same as shrinkage towards a cluster mean γ_C: eliminating γ_C
from Σ_i∈C c‖w_i − γ_C‖² leaves c(I − 11ᵀ/s). Each task is shrunk towards γ of its cluster with strength a = cΛ, and
towards the shared model μ with strength h. Let D_i = G_i + ρI + diag(a + h). Eliminating the tasks, then the cluster
means, then μ gives

    Γ_C = Σ_i∈C a D_i⁻¹ (G_i + ρI + h) ,   B_C = Σ_i∈C a D_i⁻¹ h ,   S = Σ_i h D_i⁻¹ (G_i + ρI + a) − Σ_C B_CᵀΓ_C⁻¹B_C
    ln|A|    = Σ_i ln|D_i| + Σ_C ln|Γ_C| + ln|S| − Σ_k [Σ_C ln(s_C a_k) + ln(n h_k)]
    ln|P_k|₊ = (n − K) ln(a_k + h_k) + (K − 1) ln h_k

in O(n p³) for n tasks in K clusters. No matrix is larger than p × p.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from scipy.special import gammaln, logsumexp

from ggmtl.evidence.edge_strength import StrengthEvidence, tune_strengths
from ggmtl.evidence.hub import RIDGE, misfit
from ggmtl.evidence.hub_sums import task_inverses
from ggmtl.statistics.least_squares import LeastSquares

# A cluster is reported as a clique. Clusterings with more edges per task than this are not tried; with 60 tasks or
# fewer, no clustering has so many.
_EDGES_PER_TASK = 30
# In a graph with edges, a hub weaker than this share of the best hub without edges has hardly any effect.
HUB_SHARE = 0.03
# Larger numbers of clusters are no longer tried once one is this many nats worse than the best.
_PATIENCE = 30.0
# Largest number of rounds in which tasks move to the cluster that explains them best.
_REASSIGNMENTS = 5


@dataclass(frozen=True)
class ClusterChoice:
    """Clusters of the tasks, with their strengths, evidence and models.

    Parameters
    ----------
    cluster : array of int, shape (n,)
        Cluster of every task.
    strength : float
        c; every edge of a cluster of s tasks has the value c/s.
    hub : array of shape (p,)
        h, the strengths of the hub when tasks are also shrunk towards their clusters.
    value : float
        f, the negative log evidence up to a constant.
    description : float
        −ln of the prior probability of this clustering, in nats.
    coefficients : array of shape (n, p)
        Models of the tasks.
    noise : float
        σ².
    multiplicity : float
        −ln of the approximate posterior probability of this clustering, in nats.
    """

    cluster: np.ndarray
    strength: float
    hub: np.ndarray
    value: float
    description: float
    coefficients: np.ndarray
    noise: float
    multiplicity: float = 0.0

    @property
    def total(self) -> float:
        """f plus the description, in nats; the best clustering minimises it."""
        return self.value + self.description

    def edges(self) -> tuple[np.ndarray, np.ndarray]:
        """All pairs of tasks in the same cluster, sorted, shape (m, 2), and their values c/s, shape (m,)."""
        members = np.split(np.argsort(self.cluster, kind="stable"), np.cumsum(np.bincount(self.cluster))[:-1])
        cliques = [np.stack([part[k] for k in np.triu_indices(len(part), 1)], axis=1) for part in members]
        edges = np.concatenate(cliques)
        edges = edges[np.lexsort((edges[:, 1], edges[:, 0]))]
        return edges, self.strength / np.bincount(self.cluster)[self.cluster[edges[:, 0]]]


def cluster_evidence(
    loss: LeastSquares,
    cluster: np.ndarray,
    strength: float,
    hub: np.ndarray,
    coupling: np.ndarray,
    ridge: float | np.ndarray = RIDGE,
) -> StrengthEvidence:
    """Value of f, its derivatives with respect to c and h, and the models of the tasks.

    Parameters
    ----------
    loss : LeastSquares
        Losses of the tasks.
    cluster : array of int, shape (n,)
        Clusters 0 … K − 1; none may be empty.
    strength : float
        c > 0.
    hub, coupling : arrays of shape (p,)
        h > 0 and Λ > 0.
    ridge : float or array of shape (p,)
        ρ, a tiny ridge that keeps directions without data determined.
    """
    n, p = loss.moment.shape
    size = np.bincount(cluster)
    a = strength * coupling
    inverse, log_det = task_inverses(loss.gram, a + hub + ridge)
    inverses = _sum_by(inverse, cluster)
    # Sums of D⁻¹(G + ρI). The equal I − D⁻¹(a + h) would lose all digits to cancellation where columns are collinear.
    informed = _sum_by(np.matmul(inverse, loss.gram) + ridge * inverse, cluster)
    mixed = a[:, None] * inverses * hub
    gamma = _symmetric(a[:, None] * informed + mixed)
    gamma_inverse = _symmetric(np.linalg.inv(gamma))
    follow = np.matmul(gamma_inverse, mixed)
    # h ΣD⁻¹a − BᵀΓ⁻¹B = BᵀΓ⁻¹(Γ − B); the right-hand side has no cancellation.
    pooled = hub[:, None] * informed.sum(axis=0) + np.einsum("cab,cad->bd", follow, a[:, None] * informed)
    pooled = _symmetric(pooled)
    pooled_inverse = _symmetric(np.linalg.inv(pooled))
    # Posterior means of γ (`centre`) and μ (`common`), and the models.
    alone = np.matmul(inverse, loss.moment[..., None])[..., 0]
    pull = np.matmul(gamma_inverse, (a * _sum_by(alone, cluster))[..., None])[..., 0]
    common = pooled_inverse @ (hub * alone.sum(axis=0) + np.einsum("cab,ca->b", mixed, pull))
    centre = pull + follow @ common
    coefficients = alone + np.matmul(inverse, (a * centre[cluster] + hub * common)[..., None])[..., 0]
    # Posterior variances of w − γ and w − μ. They add up the variance of w given γ and μ (D⁻¹), of γ given μ, and of
    # μ; the derivative of w with respect to μ is D⁻¹ `response`.
    response = np.diag(hub) + a[:, None] * follow
    by_common = np.matmul(response, pooled_inverse)
    middle = a[:, None] * gamma_inverse * a + np.matmul(by_common, np.swapaxes(response, 1, 2))
    spread = np.einsum("nkk->k", inverse)
    spread = spread + np.einsum("nka,nka->k", np.matmul(inverse, middle[cluster]), inverse)
    followed = np.matmul(follow, pooled_inverse)
    about_cluster = spread + np.einsum("c,ckk->k", size, gamma_inverse)
    about_cluster += np.einsum("c,cka,cka->k", size, followed, follow)
    about_cluster -= 2.0 * np.einsum("cka,cak->k", inverses, a[:, None] * gamma_inverse)
    about_cluster -= 2.0 * np.einsum("ckb,ckb->k", np.matmul(inverses, by_common), follow)
    about_hub = spread + n * np.diag(pooled_inverse) - 2.0 * np.einsum("cka,cak->k", inverses, by_common)
    within = ((coefficients - centre[cluster]) ** 2).sum(axis=0)
    about = ((coefficients - common) ** 2).sum(axis=0)
    quadratic = 2 * loss.value(coefficients) + a @ within + hub @ about + float((ridge * coefficients**2).sum())
    # This equals the quadratic form of A: γ and μ are at their minima given w.
    twice_misfit, noise = misfit(loss, quadratic)
    log_det += float(np.linalg.slogdet(gamma)[1].sum() + np.linalg.slogdet(pooled)[1])
    log_det -= p * np.log(size).sum() + len(size) * np.log(a).sum() + np.log(n * hub).sum()
    log_prior = (n - len(size)) * np.log(a + hub).sum() + (len(size) - 1) * np.log(hub).sum()
    value = 0.5 * (twice_misfit + log_det - log_prior)
    within_prior = (n - len(size)) / (a + hub)
    for_cluster = 0.5 * (within / noise + about_cluster - len(size) / a - within_prior)
    for_hub = 0.5 * (about / noise + about_hub - len(size) / hub - within_prior)
    return StrengthEvidence(float(value), float(coupling @ for_cluster), for_hub, coefficients, noise)


def search_clusters(
    loss: LeastSquares,
    distances: np.ndarray,
    coupling: np.ndarray,
    hub: np.ndarray,
    label: np.ndarray,
    *,
    together: np.ndarray,
    allowed: np.ndarray | None = None,
    ridge: float | np.ndarray = RIDGE,
) -> ClusterChoice | None:
    """Search for the clustering of lowest f + description; None if no clustering is allowed.

    The candidates are cuts of an average-linkage tree, few clusters first. The search stops when more clusters make the
    result much worse. Tasks of the best cut are then moved to the cluster that explains them best, as long as this
    improves the result.

    Parameters
    ----------
    loss : LeastSquares
    distances : array of shape (n, n)
        Expected squared distances between models.
    coupling, hub : arrays of shape (p,)
        Λ, and the hub strengths from which the search starts.
    label : array of int, shape (p,)
        Coefficients with the same label share a hub strength.
    together : array of shape (r, 2)
        Pairs that must share a cluster.
    allowed : array of shape (m, 2), optional
        The only pairs that may share a cluster; any pair by default.
    """
    strength, offset = 10.0 * float(np.median(hub)), HUB_SHARE * float(np.median(hub))

    def fitted(cluster: np.ndarray, strength: float, hub: np.ndarray) -> ClusterChoice:
        def evaluate(c: float, h: np.ndarray) -> StrengthEvidence:
            return cluster_evidence(loss, cluster, c, h, coupling, ridge)

        strength, hub, evidence = tune_strengths(evaluate, loss, strength, hub, label, offset)
        description = cluster_description(loss.n_tasks, int(cluster.max()) + 1)
        return ClusterChoice(cluster, strength, hub, evidence.value, description, evidence.coefficients, evidence.noise)

    best: ClusterChoice | None = None
    for cluster in _cuts(distances, together, allowed):
        choice = fitted(cluster, strength, hub)
        strength, hub = choice.strength, choice.hub
        if best is not None and choice.total > best.total + _PATIENCE:
            break
        if best is None or choice.total < best.total:
            best = choice
    if best is None or len(together) or allowed is not None:
        return best
    logs = _memberships(loss, best, coupling, ridge)
    for _ in range(_REASSIGNMENTS):
        cluster = np.unique(logs.argmax(axis=1), return_inverse=True)[1].reshape(-1)
        choice = fitted(cluster, best.strength, best.hub)
        if choice.total > best.total - 1e-6:
            break
        best, logs = choice, _memberships(loss, choice, coupling, ridge)
    chance = logs - logsumexp(logs, axis=1, keepdims=True)
    return replace(best, multiplicity=-float(chance[np.arange(len(chance)), best.cluster].sum()))


def _memberships(
    loss: LeastSquares, choice: ClusterChoice, coupling: np.ndarray, ridge: float | np.ndarray
) -> np.ndarray:
    """Log-likelihood of every task in every cluster, up to a constant per task, shape (n, K).

    With the model of task i integrated out, the log-likelihood of a cluster mean γ is −½(γᵀSγ − 2γᵀs)/σ², where
    S = a − a D⁻¹ a, s = a D⁻¹ m and D = G + diag(a). Directions that the rows of the task determine well have a large
    weight in it.
    """
    size = np.bincount(choice.cluster)
    centres = _sum_by(choice.coefficients, choice.cluster) / size[:, None]
    a = choice.strength * coupling
    inverse = task_inverses(loss.gram, a + ridge)[0]
    shrunk = np.diag(a) - a[:, None] * inverse * a
    linear = a * np.matmul(inverse, loss.moment[..., None])[..., 0]
    misfit = np.einsum("ck,nkl,cl->nc", centres, shrunk, centres, optimize=True) - 2.0 * linear @ centres.T
    return -0.5 * misfit / choice.noise


def cluster_description(n_tasks: int, n_clusters: int) -> float:
    """ln of the approximate number of ways to divide the tasks into this many clusters."""
    return float(n_tasks * np.log(n_clusters) - gammaln(n_clusters + 1))


def _cuts(distances: np.ndarray, together: np.ndarray, allowed: np.ndarray | None) -> Iterator[np.ndarray]:
    """Cuts of the tree that respect `together`, `allowed` and the limit on edges; those with few clusters first."""
    n = len(distances)
    if n < 3:
        return
    tree = linkage(squareform(distances, checks=False), "average")
    grid = np.unique(np.round(np.geomspace(2, max(n // 2, 2), 12)).astype(int))
    for number in np.union1d(grid, np.arange(2, min(8, n // 2) + 1)):
        cluster = np.unique(fcluster(tree, int(number), "maxclust"), return_inverse=True)[1].reshape(-1)
        size = np.bincount(cluster)
        n_edges = int((size * (size - 1) // 2).sum())
        fits = 0 < n_edges <= _EDGES_PER_TASK * n and (cluster[together[:, 0]] == cluster[together[:, 1]]).all()
        if fits and allowed is not None:
            fits = int((cluster[allowed[:, 0]] == cluster[allowed[:, 1]]).sum()) == n_edges
        if fits:
            yield cluster


def _sum_by(values: np.ndarray, cluster: np.ndarray) -> np.ndarray:
    """Sums of `values`, shape (n, …), over the tasks of each cluster, shape (K, …)."""
    order = np.argsort(cluster, kind="stable")
    return np.add.reduceat(values[order], np.searchsorted(cluster[order], np.arange(cluster.max() + 1)), axis=0)


def _symmetric(matrices: np.ndarray) -> np.ndarray:
    return 0.5 * (matrices + np.swapaxes(matrices, -1, -2))
