"""The tasks near a pair, and A on them alone while all others are held.

With N the tasks chosen and everything else held at zero,

    A_NN = blockdiag(G_i) + (L_NN + diag(Σ_{k∉N} e_ik)) ⊗ Λ + I ⊗ H + ρ ,     bᵀA_NN⁻¹b ≤ bᵀA⁻¹b ,

with equality, but for the common model, where no edge leaves N. What an edge changes dies out with the distance: of
what a task does, its neighbour k takes up the share λe/(λ Σe_k + N_k): its number of rows is the mean curvature of its
loss where features have a variance of one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from ggmtl import kernels
from ggmtl.solve.system import TaskSystem

# Numbers in the matrices of the tasks near a pair, and their number at least and at most: of all that are tied to the
# two, and of the nearest where those are more.
_TIED_NUMBERS, _MOST_TIED = 300_000, 700
_NUMBERS, _FEWEST, _MOST = 80_000, 100, 200
# The same of the few that are asked for S' first, which takes a solve for every coefficient.
_FEW_NUMBERS, _FEWEST_FEW, _MOST_FEW = 60_000, 16, 64
# From so many coefficients in all, the tasks near a pair are worth looking for.
_PAYS_FROM = 5000


@dataclass(frozen=True)
class Near:
    """Some tasks and the edges among them.

    Parameters
    ----------
    tasks : array of shape (k,)
        Positions, in rising order.
    edges, index : arrays of shape (l, 2) and (l,)
        Edges among these tasks, by position among `tasks`, and their numbers among all edges.
    leaving : array of shape (o, 2)
        Edges to others: the position among `tasks`, and that of the other among all.
    leaving_weights : array of shape (o,)
    """

    tasks: np.ndarray
    edges: np.ndarray
    index: np.ndarray
    leaving: np.ndarray
    leaving_weights: np.ndarray

    @classmethod
    def of(cls, edges: np.ndarray, weights: np.ndarray, n: int, tasks: np.ndarray) -> Near:
        """The given tasks out of `n`, in any order."""
        tasks, place = np.sort(tasks), np.full(n, -1)
        place[tasks] = np.arange(len(tasks))
        ends = place[edges]
        first, second = (ends >= 0).T
        index, out = np.flatnonzero(first & second), np.flatnonzero(first ^ second)
        other = np.where(ends[out, 0] < 0, edges[out, 0], edges[out, 1])
        leaving = np.column_stack([ends[out].max(axis=1), other])
        return cls(tasks, ends[index], index, leaving, weights[out])

    @property
    def is_closed(self) -> bool:
        """Whether no edge leaves these tasks."""
        return not self.leaving_weights.any()

    @cached_property
    def outside(self) -> np.ndarray:
        """Weight of the edges of every task to others, shape (k,)."""
        return np.bincount(self.leaving[:, 0], self.leaving_weights, len(self.tasks))

    def part(self, system: TaskSystem) -> TaskSystem:
        """The matrices and edges of these tasks out of a separable system of all."""
        ridge = np.broadcast_to(system.ridge, system.shape)[self.tasks]
        weights = system.edge_weights[self.index]
        return TaskSystem(system.gram[self.tasks], self.edges, weights, system.coupling, system.hub, ridge)

    def held(self, part: TaskSystem) -> TaskSystem:
        """A on these tasks, given their matrices and edges: all others and the common model are held."""
        held = part.hub + self.outside[:, None] * part.coupling
        return replace(part, hub=np.zeros_like(part.hub), ridge=np.broadcast_to(part.ridge, part.shape) + held)

    def passed_on(self, values: np.ndarray) -> np.ndarray:
        """Σ_k e_jk v_k for every task j outside with an edge into these tasks, given v of these, shape (k, p)."""
        return self._gather @ values

    def average(self, values: np.ndarray) -> np.ndarray:
        """Σ_k e_jk v_k / Σ_k e_jk of the same tasks j."""
        weight = np.asarray(self._gather.sum(axis=1)).reshape(-1, 1)
        return (self._gather @ values) / np.maximum(weight, np.finfo(float).tiny)

    @cached_property
    def _gather(self) -> csr_array:
        """e of the edges that leave, shape (tasks outside with such an edge, k)."""
        others, place = np.unique(self.leaving[:, 1], return_inverse=True)
        index = (place.reshape(-1), self.leaving[:, 0])
        return csr_array((self.leaving_weights, index), shape=(len(others), len(self.tasks)))

    def places(self, i: int, j: int) -> tuple[int, int]:
        """Where the tasks i and j are among these."""
        first, second = np.searchsorted(self.tasks, [i, j])
        return int(first), int(second)


@dataclass(frozen=True)
class Links:
    """The edges, and how far each task is from its neighbours: −log of the share of what it does that they take up."""

    edges: np.ndarray
    values: np.ndarray
    distances: csr_array
    n_tasks: int

    @classmethod
    def of(cls, edges: np.ndarray, values: np.ndarray, coupling: np.ndarray, rows: np.ndarray) -> Links:
        """Of the edges with these values, given the number of rows of every task, shape (n,)."""
        n = len(rows)
        start, neighbour, weight = kernels.neighbour_lists(edges, values, n)
        positive = coupling[coupling > 0]
        strength = float(np.exp(np.log(positive).mean())) if len(positive) else 0.0
        own = strength * np.bincount(edges.ravel(), np.repeat(values, 2), n) + rows
        share = strength * weight / np.maximum(own, np.finfo(float).tiny)[neighbour]
        # Distances must be positive: a task without rows may take up all that its only neighbour does.
        far = -np.log(np.clip(share, np.finfo(float).tiny, 1.0 - 1e-9))
        return cls(edges, values, csr_array((far, neighbour, start), shape=(n, n)), n)

    def order(self, i: int, j: int) -> np.ndarray:
        """The tasks tied to i or j, those that take up the most of what the two do first."""
        far = dijkstra(self.distances, indices=[i, j], min_only=True)
        return np.argsort(far, kind="stable")[: np.isfinite(far).sum()]

    def near(self, order: np.ndarray, size: int) -> Near:
        """The first tasks of an order."""
        return Near.of(self.edges, self.values, self.n_tasks, order[:size])


def pays(n: int, p: int) -> bool:
    """Whether a look at the tasks near a pair saves time beside one at all n tasks of p coefficients."""
    return n * p >= _PAYS_FROM


def near_size(p: int, tied: int) -> int:
    """How many tasks of p coefficients to look at first, out of so many that are tied to the two."""
    if tied <= np.clip(_TIED_NUMBERS // p**2, _FEWEST, _MOST_TIED):
        return tied
    return int(np.clip(_NUMBERS // p**2, _FEWEST, _MOST))


def few_size(p: int) -> int:
    """How many tasks of p coefficients to ask for S' first."""
    return int(np.clip(_FEW_NUMBERS // p**2, _FEWEST_FEW, _MOST_FEW))
