"""Posterior probability of every edge: averages over all spanning trees of the tasks and the hub.

Many sets of edges are usually about as good as the best one, so edge probabilities are averages over trees. A tree T
over the n tasks and the hub links every task to another task (strength c) or to the shared model (strength h). Without
the hub, its edges between tasks form a forest. The models are integrated out. The prior precision has the determinant
Π_links s for every tree. The likelihood of task i is approximated by N(ŵ_i; w_i, σ²/g_i) in each of p coefficients.
With A_T = diag(g) + Σ_links s (e_x − e_y)(e_x − e_y)ᵀ and b = g ŵ,

    p(T | data) ∝ Π_links s^{p/2} · |A_T|^{−p/2} · exp(½ Σ_k b_kᵀ A_T⁻¹ b_k / σ²) .

A Gibbs step removes one link and joins the two parts again by a link x–y. With R = (e_x − e_y)ᵀA⁻¹(e_x − e_y) and
u = w_x − w_y, both without the removed link, the new link multiplies the probability by

    [s/(1 + sR)]^{p/2} · exp(−½ s‖u‖²/(1 + sR)/σ²) .

This is computed for all pairs at once, with n × n matrices only. The probability of an edge is the mean of its
conditional probabilities given the rest of the tree. The sweeps over links are in :mod:`ggmtl.runtime.kernels.trees`.

The link probabilities q also give the evidence of all trees together. Among the distributions over trees with these
probabilities, the one of largest entropy is p(T) = Π_{l∈T} λ_l / Z. Z is the determinant of the Laplacian of λ without
the row of the hub, and λ_l R_l = q_l with the effective resistances R. For any one tree T,

    ln p(y) = ln p(y | T) − (n − 1) ln(n + 1) − ln p(T | y) ,

where the second term is the log prior: there are (n + 1)^(n−1) trees. With the likeliest tree this differs from
importance sampling by at most a tenth of −ln p(T | y) (lines, chains, clusters and land mines, 20 to 40 tasks).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import minimum_spanning_tree

from ggmtl.evidence.dense import EvidenceModel, inner_quadratic
from ggmtl.evidence.hub import misfit
from ggmtl.runtime import kernels
from ggmtl.runtime.kernels.trees import Density, Pairs
from ggmtl.statistics.least_squares import LeastSquares

# Share of the sweeps that are discarded as burn-in.
_BURN_IN = 0.2
# The strength c is sampled among these multiples of the starting value.
_STRENGTHS = 2.0 ** np.arange(-2.0, 4.5, 0.5)
# Weight g of the hub node, as a share of the mean weight of a task.
_HUB_SHARE = 0.01
# Prior precision of a task given its neighbours, as a multiple of the strength of one link.
_NEIGHBOURS = 3.0
# Link probabilities are clipped to [1e-6, 1 − 1e-6], and this many steps fit the weights λ to them.
_LEAST_CHANCE, _MATCHING = 1e-6, 30


@dataclass(frozen=True)
class Messages:
    """The approximate likelihood of every task's model w: ŵ ~ N(w, σ²/g), with the same g for all coefficients.

    Parameters
    ----------
    weight : array of shape (n,)
        g.
    location : array of shape (n, p)
        ŵ.
    noise : float
        σ².
    """

    weight: np.ndarray
    location: np.ndarray
    noise: float


@dataclass(frozen=True)
class LinkProbabilities:
    """Posterior probabilities of the links of a tree.

    Parameters
    ----------
    edges : array of shape (m, 2)
        Pairs of tasks that may be linked.
    between : array of shape (m,)
        Probabilities of these links.
    to_hub : array of shape (n,)
        Probability of a link between each task and the hub.
    """

    edges: np.ndarray
    between: np.ndarray
    to_hub: np.ndarray

    def likeliest_tree(self) -> tuple[np.ndarray, float]:
        """The edges of the most probable tree, a mask of shape (m,), and −ln of its posterior probability."""
        n = len(self.to_hub)
        links = np.vstack([self.edges, _hub_links(n)])
        weights, log_total = _weights_of_trees(links, np.append(self.between, self.to_hub), n + 1)
        chosen = _best_tree(links, weights, n + 1)
        tree = np.zeros(len(self.edges), dtype=bool)
        tree[chosen[chosen < len(tree)]] = True
        return tree, float(log_total - np.log(weights[chosen]).sum())


def log_number_of_trees(n_tasks: int) -> float:
    """ln of the number of trees over the tasks and the hub."""
    return (n_tasks - 1) * float(np.log(n_tasks + 1))


def average_over_trees(
    model: EvidenceModel,
    coefficients: np.ndarray,
    edge_values: np.ndarray,
    likely: np.ndarray,
    main: np.ndarray,
    links: int,
) -> LinkProbabilities:
    """Posterior probability of every link, with the likelihood of every task approximated at given models.

    Parameters
    ----------
    model : EvidenceModel
        Losses, possible edges, and the hub strengths for a model with edges.
    coefficients, edge_values : arrays of shape (n, p) and (m,)
        Models and edge values of a good graph.
    likely : array of shape (m,)
        Scores of the edges. The first tree is the one of highest score; edges of score zero are not in it.
    main : array of bool, shape (p,)
        Coefficients that share one hub strength. The others are held at the given models.
    links : int
        Number of Gibbs steps; each step samples one link.
    """
    _, noise = misfit(model.loss, inner_quadratic(model, edge_values, coefficients))
    # The n links of a tree get the total strength of all edges.
    strength, hub = float(edge_values.sum()) / len(coefficients), float(np.median(model.hub[main]))
    messages = task_messages(_main_part(model.loss, coefficients, main), coefficients[:, main], strength, noise)
    return link_probabilities(messages, model.edges, strength, hub, likely, links=links)


def task_messages(loss: LeastSquares, coefficients: np.ndarray, strength: float, noise: float) -> Messages:
    """Approximate the likelihood of every task by one with a scalar precision g.

    The approximation is made at `coefficients`, shape (n, p), and for a prior precision τ ∝ `strength`. g has the same
    mean shrinkage as G, g/(g + τ) = tr[G(G + τI)⁻¹]/p, and ŵ gives the same posterior mean.
    """
    p = coefficients.shape[1]
    prior = _NEIGHBOURS * strength
    inverse = np.linalg.inv(loss.gram + prior * np.eye(p))
    shrinkage = np.clip(1.0 - prior * np.einsum("nkk->n", inverse) / p, 1e-9, 1.0 - 1e-9)
    weight = prior * shrinkage / (1.0 - shrinkage)
    step = -np.matmul(inverse, loss.gradient(coefficients)[..., None])[..., 0]
    return Messages(weight, coefficients + step / shrinkage[:, None], noise)


def link_probabilities(
    messages: Messages,
    edges: np.ndarray,
    strength: float,
    hub: float,
    likely: np.ndarray,
    *,
    links: int = 1500,
    seed: int = 0,
) -> LinkProbabilities:
    """Posterior probability of every link, by Gibbs sampling of trees.

    Parameters
    ----------
    messages : Messages
    edges : array of shape (m, 2)
        Pairs that may be linked.
    strength, hub : float
        The starting value of c, and h.
    likely : array of shape (m,)
        Scores of the edges. The first tree is the one of highest score; edges of score zero are not in it.
    links : int
        Number of Gibbs steps; each step samples one link.
    seed : int
    """
    chain = _Chain(messages, edges, strength, hub, likely, seed)
    sweeps = max(links // len(messages.weight), 5)
    total, kept = np.zeros(len(chain.pairs.other)), 0
    for sweep in range(sweeps):
        found = chain.sweep()
        if sweep >= _BURN_IN * sweeps:
            total, kept = total + found, kept + 1
    size, n = chain.size, len(messages.weight)
    keys = np.repeat(np.arange(size), np.diff(chain.pairs.start)) * size + chain.pairs.other

    def mean(links: np.ndarray) -> np.ndarray:
        i, j = links.T
        both = total[np.searchsorted(keys, i * size + j)] + total[np.searchsorted(keys, j * size + i)]
        return np.clip(both / kept, 0.0, 1.0)

    return LinkProbabilities(edges, mean(edges), mean(_hub_links(n)))


def _main_part(loss: LeastSquares, coefficients: np.ndarray, main: np.ndarray) -> LeastSquares:
    """The loss as a function of the main coefficients, with the others held fixed; its constant is dropped."""
    rest = np.einsum("nab,nb->na", loss.gram[:, main][:, :, ~main], coefficients[:, ~main])
    gram = loss.gram[:, main][:, :, main]
    return LeastSquares(gram, loss.moment[:, main] - rest, loss.target_square, loss.count, loss.noise)


class _Chain:
    """A Markov chain over trees: the current tree and strength. Node n is the hub."""

    def __init__(
        self, messages: Messages, edges: np.ndarray, strength: float, hub: float, likely: np.ndarray, seed: int
    ):
        n, self.width = messages.location.shape
        self.size, self.noise, self.hub, self.strength = n + 1, messages.noise, hub, strength
        self.random = np.random.default_rng(seed)
        self.multiples = strength * _STRENGTHS
        self.weight = np.append(messages.weight, _HUB_SHARE * messages.weight.mean())
        centred = np.vstack([messages.location - messages.location.mean(axis=0), np.zeros(self.width)])
        self.right = self.weight[:, None] * centred
        self.pairs = _pairs_of(edges, n)
        self.links = _first_tree(edges, likely, n).astype(np.int64)
        self.kernels = kernels.tree_kernels()

    def sweep(self) -> np.ndarray:
        """Sample the strength and every link once.

        Returns the conditional probabilities of all pairs, summed over the steps, in the order of `pairs`.
        """
        self._draw_strength()
        inverse = np.linalg.inv(np.diag(self.weight) + self._laplacian())
        models = inverse @ self.right
        order, chances = self.random.permutation(len(self.links)), self.random.uniform(size=len(self.links))
        density = Density(self.strength, self.hub, self.noise)
        return self.kernels.sweep(self.links, inverse, models, self.pairs, density, order, chances)

    def _laplacian(self) -> np.ndarray:
        x, y = self.links.T
        matrix = np.zeros((self.size, self.size))
        matrix[x, y] = matrix[y, x] = -np.where((x == self.size - 1) | (y == self.size - 1), self.hub, self.strength)
        np.fill_diagonal(matrix, -matrix.sum(axis=1))
        return matrix

    def _draw_strength(self) -> None:
        """Sample c given the tree."""
        between = int((self.links < self.size - 1).all(axis=1).sum())
        log_det, explained = self.kernels.tree_densities(self.links, self.weight, self.right, self.multiples, self.hub)
        logs = 0.5 * (self.width * (between * np.log(self.multiples) - log_det) + explained / self.noise)
        weights = np.exp(logs - logs.max())
        self.strength = float(self.random.choice(self.multiples, p=weights / weights.sum()))


def _pairs_of(edges: np.ndarray, n: int) -> Pairs:
    """All possible links (the edges, and every task with the hub), as neighbour lists of the nodes."""
    to_hub = _hub_links(n)
    both = np.concatenate([edges, edges[:, ::-1], to_hub, to_hub[:, ::-1]])
    both = both[np.lexsort((both[:, 1], both[:, 0]))]
    start = np.append(0, np.cumsum(np.bincount(both[:, 0], minlength=n + 1)))
    return Pairs(start.astype(np.int64), np.ascontiguousarray(both[:, 1], dtype=np.int64))


def _hub_links(n: int) -> np.ndarray:
    return np.column_stack([np.arange(n), np.full(n, n)])


def _first_tree(edges: np.ndarray, likely: np.ndarray, n: int) -> np.ndarray:
    """The links of the tree of highest score, shape (n, 2); edges of score zero are replaced by links to the hub."""
    positive = likely > 0
    links = np.vstack([edges[positive], _hub_links(n)])
    return links[_best_tree(links, np.append(likely[positive], np.zeros(n)), n + 1)]


def _best_tree(links: np.ndarray, score: np.ndarray, size: int) -> np.ndarray:
    """Positions of the links of the maximum spanning tree for these scores."""
    order = np.argsort(-score, kind="stable")
    costs = np.arange(1.0, len(order) + 1.0)
    x, y = links[order].T.astype(np.int32)
    tree = minimum_spanning_tree(coo_array((costs, (x, y)), shape=(size, size)).tocsr())
    return order[np.sort(tree.data).astype(np.int64) - 1]


def _weights_of_trees(links: np.ndarray, chance: np.ndarray, size: int) -> tuple[np.ndarray, float]:
    """Weights λ for which trees with p(T) ∝ Π λ have these link probabilities, and ln of the sum of Π λ over all trees.

    They are found by the steps λ ← λ q/(λR). For any λ, p is a valid distribution, so convergence is not required.
    """
    chance = np.clip(chance, _LEAST_CHANCE, 1.0 - _LEAST_CHANCE)
    weights, (x, y) = chance / (1.0 - chance), links.T
    matrix = _grounded(links, weights, size)
    for _ in range(_MATCHING):
        inverse = np.zeros((size, size))
        inverse[:-1, :-1] = np.linalg.inv(matrix)
        resistance = inverse[x, x] + inverse[y, y] - 2.0 * inverse[x, y]
        weights = np.clip(chance / resistance, 1e-12, 1e12)
        matrix = _grounded(links, weights, size)
    return weights, float(np.linalg.slogdet(matrix)[1])


def _grounded(links: np.ndarray, weights: np.ndarray, size: int) -> np.ndarray:
    """The Laplacian of the weighted links without the row and column of the last node (the hub)."""
    matrix, (x, y) = np.zeros((size, size)), links.T
    matrix[x, y] = matrix[y, x] = -weights
    np.fill_diagonal(matrix, -matrix.sum(axis=1))
    return matrix[:-1, :-1]
