"""A by the parts of its graph; where these are small, what an edge does, in closed form.

Without its hub A falls into the parts, A = B − (1/n)(1 ⊗ H)(1ᵀ ⊗ I). With Y = B⁻¹(1 ⊗ I),

    A⁻¹ = B⁻¹ + YMYᵀ ,     M = (Σ_i (G_i + ρ)Y_i)⁻¹H ,

so that Cholesky factors of the parts solve A. Taking the edge (i, j) away is an update of rank p: with b = d_i − d_j,
S = bᵀA⁻¹b, w = eΛ and u = w_i − w_j,

    V' = V + A⁻¹b·w(I − Sw)⁻¹u ,     S' = (I − Sw)⁻¹S .
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotrs
from scipy.sparse.csgraph import connected_components

from ggmtl import kernels
from ggmtl.errors import SingularSystemError
from ggmtl.solution import Solution
from ggmtl.system import TaskSystem

# Factors are kept where they take so many operations at most, a part counting for some more than those of its factor.
_OPERATIONS, _PER_PART = 1e9, 3e5
# How often a solution is improved by what it leaves over.
_ROUNDS = 2
# How many times a variance without the edge may be that with it: (I − Sw)⁻¹ makes rounding larger as much.
_GROWTH = 1e6


def parts_of(system: TaskSystem) -> list[np.ndarray]:
    """Positions of the tasks of every part of the graph, in rising order."""
    number, label = connected_components(system.laplacian, directed=False)
    return _grouped(label, number)


def systems_of(system: TaskSystem, parts: list[np.ndarray]) -> Iterator[TaskSystem]:
    """B of every part: its tasks are drawn to a common model that is held."""
    label, place = _labels(parts, system.shape[0])
    held = np.broadcast_to(system.ridge + system.hub, system.shape)
    nothing = np.zeros_like(system.hub)
    for tasks, inside in zip(parts, _grouped(label[system.edges[:, 0]], len(parts))):
        edges, weights = place[system.edges[inside]], system.edge_weights[inside]
        yield TaskSystem(system.gram[tasks], edges, weights, system.coupling, nothing, held[tasks])


def factor_of(system: TaskSystem) -> np.ndarray:
    """The lower Cholesky factor of a system, what is above its diagonal undefined."""
    # As LAPACK wants it, without a copy: A is symmetric.
    factor, failed = dpotrf(system.dense().T, lower=1, overwrite_a=1, clean=0)
    if failed:
        raise SingularSystemError(
            "The system of the models is singular to working accuracy. Use a larger ridge or weaker coupling."
        )
    return factor


@dataclass(frozen=True)
class Factors:
    """Cholesky factors of all parts.

    Parameters
    ----------
    system : TaskSystem
    parts : list of arrays
        Positions of the tasks of every part.
    label, place : arrays of shape (n,)
        The part of every task, and where it is among the tasks of that.
    factors : list of arrays
    answer : array of shape (n, p, p)
        Y.
    common : array of shape (p, p)
        M.
    """

    system: TaskSystem
    parts: list[np.ndarray]
    label: np.ndarray
    place: np.ndarray
    factors: list[np.ndarray]
    answer: np.ndarray
    common: np.ndarray

    @classmethod
    def of(cls, system: TaskSystem) -> Factors | None:
        """Of a separable system; None without edges, where parts are too large or too many, or rounding leaves none."""
        n, p = system.shape
        if not len(system.edges):
            return None
        parts = parts_of(system)
        if sum((float(len(tasks)) * p) ** 3 + _PER_PART for tasks in parts) > _OPERATIONS:
            return None
        answer, ridge = np.empty((n, p, p)), np.broadcast_to(system.ridge, system.shape)
        try:
            factors = [factor_of(own) for own in systems_of(system, parts)]
            for tasks, factor in zip(parts, factors):
                answer[tasks] = _solved(factor, np.tile(np.eye(p), (len(tasks), 1, 1)))
            said = (kernels.block_product(system.gram, answer) + ridge[..., None] * answer).sum(axis=0)
            common = np.linalg.solve(said, np.diag(system.hub))
        except (SingularSystemError, np.linalg.LinAlgError):
            return None
        return cls(system, parts, *_labels(parts, n), factors, answer, 0.5 * (common + common.T))

    def solve(self, right: np.ndarray, start: np.ndarray | None = None, tol: float = 1e-10) -> Solution:
        """Solve A V = right to a relative residual of `tol`, or as well as rounding allows."""
        value = self._solve(right) if start is None else start
        scale, rounds = np.maximum(_norms(right), np.finfo(float).tiny), 0
        while True:
            left = right - self.system.apply(value)
            residual = float(np.max(_norms(left) / scale))
            if residual <= tol or rounds == _ROUNDS:
                return Solution(value, 0, residual, "direct" if residual <= tol else "stalled", rounds + 1)
            value, rounds = value + self._solve(left), rounds + 1

    def without_edge(
        self, models: np.ndarray, i: int, j: int, weight: np.ndarray, tol: float
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """V' − V and S', shapes (n, p) and (p, p), for an edge of weight w; None where rounding spoils them.

        `tol` is the residual that V' − V may have.
        """
        tasks, own = self._answer_to(i, j)
        first, second = np.searchsorted(tasks, [i, j])
        reach = own.sum(axis=0)
        covariance = own[first] - own[second] + reach.T @ self.common @ reach
        apart = models[i] - models[j]
        try:
            solved = np.linalg.solve(np.eye(len(weight)) - covariance * weight, np.column_stack([apart, covariance]))
        except np.linalg.LinAlgError:
            return None
        force, after = weight * solved[:, 0], solved[:, 1:]
        change = self.answer @ (self.common @ (reach @ force))
        change[tasks] += own @ force
        left = self.system.apply(change)
        pull = weight * (apart + change[i] - change[j])
        left[i] -= pull
        left[j] += pull
        growth = np.diag(after) / np.diag(covariance)
        if not (np.linalg.norm(left) <= tol and (growth > 0).all() and (growth <= _GROWTH).all()):
            return None
        return change, 0.5 * (after + after.T)

    def _solve(self, right: np.ndarray) -> np.ndarray:
        own = np.empty_like(right)
        for tasks, factor in zip(self.parts, self.factors):
            own[tasks] = _solved(factor, right[tasks])
        return own + self.answer @ (self.common @ own.sum(axis=0))

    def _answer_to(self, i: int, j: int) -> tuple[np.ndarray, np.ndarray]:
        """B⁻¹b on the tasks of the parts of i and j, shape (k, p, p), and these tasks in rising order."""
        tasks, answers = [], []
        for part in sorted({int(self.label[i]), int(self.label[j])}):
            members, p = self.parts[part], self.answer.shape[1]
            right = np.zeros((len(members), p, p))
            for task, sign in ((i, 1.0), (j, -1.0)):
                if self.label[task] == part:
                    right[self.place[task]] = sign * np.eye(p)
            tasks.append(members)
            answers.append(_solved(self.factors[part], right))
        order = np.argsort(np.concatenate(tasks), kind="stable")
        return np.concatenate(tasks)[order], np.concatenate(answers)[order]


def _solved(factor: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The solution for right-hand sides of shape (k, p) or (k, p, r)."""
    return dpotrs(factor, right.reshape(len(factor), -1), lower=1)[0].reshape(right.shape)


def _norms(values: np.ndarray) -> np.ndarray:
    """Of every right-hand side."""
    return np.sqrt((values**2).sum(axis=(0, 1)))


def _labels(parts: list[np.ndarray], n: int) -> tuple[np.ndarray, np.ndarray]:
    """The part of every task, and its place in it."""
    label, place = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    for number, tasks in enumerate(parts):
        label[tasks], place[tasks] = number, np.arange(len(tasks))
    return label, place


def _grouped(label: np.ndarray, number: int) -> list[np.ndarray]:
    """Positions with each of so many labels."""
    order = np.argsort(label, kind="stable")
    return np.split(order, np.cumsum(np.bincount(label, minlength=number))[:-1])
