"""The tasks near a pair, and A on them alone while all others are held.

With N the tasks chosen and everything else held at zero,

    A_NN = blockdiag(G_i) + (L_NN + diag(Σ_{k∉N} e_ik)) ⊗ Λ + I ⊗ H + ρ ,     bᵀA_NN⁻¹b ≤ bᵀA⁻¹b ,

with equality, but for the common model, where no edge leaves N. What an edge changes dies out with the distance: of
what a task does, its neighbour k takes up the share λe/(λ Σe_k + μ_k), μ_k the mean curvature of its own rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from ggmtl import kernels
from ggmtl.inner import InnerProblem
from ggmtl.system import TaskSystem

# Numbers in the matrices of the tasks near a pair, and their number at least and at most.
_NUMBERS, _FEWEST, _MOST = 200_000, 100, 500


@dataclass(frozen=True)
class Near:
    """Some tasks and the edges among them.

    Parameters
    ----------
    tasks : array of shape (k,)
        Positions, in rising order.
    edges, index : arrays of shape (l, 2) and (l,)
        Edges among these tasks, by position among `tasks`, and their numbers among all edges.
    outside : array of shape (k,)
        Weight of the edges of every task to others.
    order : array of shape (k,)
        The same positions, nearest first.
    """

    tasks: np.ndarray
    edges: np.ndarray
    index: np.ndarray
    outside: np.ndarray
    order: np.ndarray

    @classmethod
    def of(cls, edges: np.ndarray, weights: np.ndarray, n: int, order: np.ndarray) -> Near:
        """The given tasks out of `n`."""
        tasks, place = np.sort(order), np.full(n, -1)
        place[tasks] = np.arange(len(tasks))
        ends = place[edges]
        inside = (ends >= 0).sum(axis=1)
        index, leaving = np.flatnonzero(inside == 2), np.flatnonzero(inside == 1)
        outside = np.bincount(ends[leaving].max(axis=1), weights[leaving], len(tasks))
        return cls(tasks, ends[index], index, outside, order)

    @property
    def is_closed(self) -> bool:
        """Whether no edge leaves these tasks."""
        return not self.outside.any()

    def system(self, system: TaskSystem) -> TaskSystem:
        """A on these tasks, for a separable system with the same edges; others and the common model are held."""
        held = system.hub + self.outside[:, None] * system.coupling
        return TaskSystem(
            system.gram[self.tasks],
            self.edges,
            system.edge_weights[self.index],
            system.coupling,
            np.zeros_like(system.hub),
            np.broadcast_to(system.ridge, system.shape)[self.tasks] + held,
        )

    def places(self, i: int, j: int) -> tuple[int, int]:
        """Where the tasks i and j are among these."""
        first, second = np.searchsorted(self.tasks, [i, j])
        return int(first), int(second)


@dataclass(frozen=True)
class Links:
    """The neighbours of every task by rows, and the share of what a task does that each of them takes up."""

    edges: np.ndarray
    values: np.ndarray
    start: np.ndarray
    neighbour: np.ndarray
    taken: np.ndarray

    @classmethod
    def of(cls, problem: InnerProblem, values: np.ndarray) -> Links:
        """Of the edges with these values."""
        n, p = problem.loss.moment.shape
        start, neighbour, weight = kernels.neighbour_lists(problem.edges, values, n)
        positive = problem.coupling[problem.coupling > 0]
        strength = float(np.exp(np.log(positive).mean())) if len(positive) else 0.0
        degree = strength * np.bincount(problem.edges.ravel(), np.repeat(values, 2), n)
        own = degree + np.einsum("npp->n", problem.loss.gram) / p
        share = strength * weight / np.maximum(own, np.finfo(float).tiny)[neighbour]
        return cls(problem.edges, values, start, neighbour, share)

    @property
    def n_tasks(self) -> int:
        """Number of tasks."""
        return len(self.start) - 1

    def near(self, i: int, j: int, size: int) -> Near:
        """The `size` tasks that take up the most of what i and j do; fewer where no more are tied to them."""
        heap, chosen = [(-1.0, i), (-1.0, j)], {}
        while heap and len(chosen) < size:
            share, task = heappop(heap)
            if task in chosen:
                continue
            chosen[task] = True
            row = slice(self.start[task], self.start[task + 1])
            for other, passed in zip(self.neighbour[row].tolist(), (share * self.taken[row]).tolist()):
                if other not in chosen:
                    heappush(heap, (passed, other))
        return Near.of(self.edges, self.values, self.n_tasks, np.fromiter(chosen, np.int64, len(chosen)))

    def nearest(self, near: Near, size: int) -> Near:
        """The first of the tasks near a pair."""
        return near if len(near.order) <= size else Near.of(self.edges, self.values, self.n_tasks, near.order[:size])


def near_size(p: int) -> int:
    """How many tasks of p coefficients are worth a look beside solves of all tasks."""
    return int(np.clip(_NUMBERS // p**2, _FEWEST, _MOST))
