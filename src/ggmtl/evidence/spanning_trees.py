"""How likely every edge is: averages over all trees that join the tasks and the hub, the models integrated out.

The best list of edges is one of many that are about as good. A tree T over the n tasks and the hub links every task to
a task (strength c) or to the common model (strength h); so it may also leave tasks alone or fall into parts. Its prior
precision has the determinant Π_links s, whatever the tree. Where task i says w_i ~ N(ŵ_i, σ²/g_i) in each of p
coordinates, with A_T = diag(g) + Σ_links s (e_x − e_y)(e_x − e_y)ᵀ and b = g ŵ,

    p(T | data) ∝ Π_links s^{p/2} · |A_T|^{−p/2} · exp(½ Σ_k b_kᵀ A_T⁻¹ b_k / σ²) .

When a link is cut, joining the two parts by x–y instead multiplies this, with R = (e_x − e_y)ᵀA⁻¹(e_x − e_y) and
u = w_x − w_y of the cut tree, by

    [s/(1 + sR)]^{p/2} · exp(−½ s‖u‖²/(1 + sR)/σ²) :

a Gibbs step that weighs all pairs at once with n × n matrices only. The probabilities of an edge, given the rest of the
tree, average to its probability. The sweeps over links are in :mod:`ggmtl.runtime.kernels.trees`.

What it buys, measured on Line (benchmarks/recovery.py, seeds 30–34): F1 of the reported edges .44 against .32 without
averaging at 20 rows a task, .59 against .50 at 40, the same from 160 rows on; it takes 0.1–0.3 s of a fit of 2–3 s.
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
from ggmtl.solve.solvers import prepare
from ggmtl.statistics.least_squares import LeastSquares

# Links drawn: as seen from the models given, then from those of all likely edges.
_ROUNDS = (500, 1500)
# Share of the links drawn that only forgets the start.
_FORGET = 0.2
# Strengths c are drawn among these multiples of the first.
_STRENGTHS = 2.0 ** np.arange(-2.0, 4.5, 0.5)
# Rows, beside a task's, that the common model is worth by itself.
_HUB_SHARE = 0.01
# A task feels its neighbours with about this multiple of the strength of one link.
_NEIGHBOURS = 3.0


@dataclass(frozen=True)
class Messages:
    """What every task says about its model, the same in all coordinates: ŵ ~ N(w, σ²/g).

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


def average_over_trees(
    model: EvidenceModel, coefficients: np.ndarray, edge_values: np.ndarray, likely: np.ndarray, main: np.ndarray
) -> np.ndarray:
    """Probability of every edge of the model, the tasks seen from the given models, then from those of likely edges.

    Parameters
    ----------
    model : EvidenceModel
        Losses, the edges that are possible, and the hub beside edges.
    coefficients, edge_values : arrays of shape (n, p) and (m,)
        Models and edges of a good graph.
    likely : array of shape (m,)
        Scores of the edges: the first tree has the best of those above zero.
    main : array of bool, shape (p,)
        Coefficients that share one hub strength; the others are taken as known.
    """
    _, noise = misfit(model.loss, inner_quadratic(model, edge_values, coefficients))
    # All edges together are worth n links.
    strength, hub = float(edge_values.sum()) / len(coefficients), float(np.median(model.hub[main]))
    for links in _ROUNDS:
        messages = task_messages(_main_part(model.loss, coefficients, main), coefficients[:, main], strength, noise)
        likely = edge_probabilities(messages, model.edges, strength, hub, likely, links=links)
        system = model.system(strength * likely)
        coefficients = prepare(system).solve(model.loss.moment, start=coefficients, tol=1e-6).require(1e-3).value
    return likely


def task_messages(loss: LeastSquares, coefficients: np.ndarray, strength: float, noise: float) -> Messages:
    """The losses of the tasks as seen from models near `coefficients`, in a prior of precision τ ∝ `strength`.

    g has the shrinkage of G on average, g/(g + τ) = tr[G(G + τI)⁻¹]/p, and ŵ gives the same posterior mean.
    """
    p = coefficients.shape[1]
    prior = _NEIGHBOURS * strength
    inverse = np.linalg.inv(loss.gram + prior * np.eye(p))
    shrinkage = np.clip(1.0 - prior * np.einsum("nkk->n", inverse) / p, 1e-9, 1.0 - 1e-9)
    weight = prior * shrinkage / (1.0 - shrinkage)
    step = -np.matmul(inverse, loss.gradient(coefficients)[..., None])[..., 0]
    return Messages(weight, coefficients + step / shrinkage[:, None], noise)


def edge_probabilities(
    messages: Messages,
    edges: np.ndarray,
    strength: float,
    hub: float,
    likely: np.ndarray,
    *,
    links: int = 1500,
    seed: int = 0,
) -> np.ndarray:
    """Probability of every edge, shape (m,).

    Parameters
    ----------
    messages : Messages
    edges : array of shape (m, 2)
        Pairs that may be linked.
    strength, hub : float
        c to start from, and h.
    likely : array of shape (m,)
        Scores of the edges, zero for unlikely ones; the first tree has the best of them.
    links : int
        How many links are drawn, every one of a tree as often.
    seed : int
    """
    chain = _Chain(messages, edges, strength, hub, likely, seed)
    sweeps = max(links // len(messages.weight), 5)
    total, kept = np.zeros(len(chain.pairs.other)), 0
    for sweep in range(sweeps):
        found = chain.sweep()
        if sweep >= _FORGET * sweeps:
            total, kept = total + found, kept + 1
    size = chain.size
    keys, (i, j) = np.repeat(np.arange(size), np.diff(chain.pairs.start)) * size + chain.pairs.other, edges.T
    both = total[np.searchsorted(keys, i * size + j)] + total[np.searchsorted(keys, j * size + i)]
    return np.clip(both / kept, 0.0, 1.0)


def _main_part(loss: LeastSquares, coefficients: np.ndarray, main: np.ndarray) -> LeastSquares:
    """The loss as a function of the main coefficients, the others given; without its constant."""
    rest = np.einsum("nab,nb->na", loss.gram[:, main][:, :, ~main], coefficients[:, ~main])
    gram = loss.gram[:, main][:, :, main]
    return LeastSquares(gram, loss.moment[:, main] - rest, loss.target_square, loss.count, loss.noise)


class _Chain:
    """The present tree, its strength, and A⁻¹ and the models under it; node n is the hub."""

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
        self.links = np.array(_first_tree(edges, likely, n), dtype=np.int64)
        self.kernels = kernels.tree_kernels()

    def sweep(self) -> np.ndarray:
        """Draw the strength and every link anew; the probabilities of all pairs on the way, as in `pairs`."""
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
        """Draw c given the tree."""
        between = int((self.links < self.size - 1).all(axis=1).sum())
        log_det, explained = self.kernels.tree_densities(self.links, self.weight, self.right, self.multiples, self.hub)
        logs = 0.5 * (self.width * (between * np.log(self.multiples) - log_det) + explained / self.noise)
        weights = np.exp(logs - logs.max())
        self.strength = float(self.random.choice(self.multiples, p=weights / weights.sum()))


def _pairs_of(edges: np.ndarray, n: int) -> Pairs:
    """The edges, and every task with the hub, by rows."""
    to_hub = np.column_stack([np.arange(n), np.full(n, n)])
    both = np.concatenate([edges, edges[:, ::-1], to_hub, to_hub[:, ::-1]])
    both = both[np.lexsort((both[:, 1], both[:, 0]))]
    start = np.append(0, np.cumsum(np.bincount(both[:, 0], minlength=n + 1)))
    return Pairs(start.astype(np.int64), np.ascontiguousarray(both[:, 1], dtype=np.int64))


def _first_tree(edges: np.ndarray, likely: np.ndarray, n: int) -> list[tuple[int, int]]:
    """The tree of highest score, edges of score zero replaced by links to the hub."""
    positive = likely > 0
    # Costs must be positive, and those of the hub's links larger than any other.
    costs = 2.0 - likely[positive] / likely.max(initial=1e-300)
    rows = np.concatenate([edges[positive, 0], np.arange(n)]).astype(np.int32)
    columns = np.concatenate([edges[positive, 1], np.full(n, n)]).astype(np.int32)
    matrix = coo_array((np.append(costs, np.full(n, 3.0)), (rows, columns)), shape=(n + 1, n + 1))
    tree = minimum_spanning_tree(matrix.tocsr()).tocoo()
    return [(int(x), int(y)) for x, y in zip(tree.row, tree.col)]
