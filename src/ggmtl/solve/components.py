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
from ggmtl.solve.system import Solution, TaskSystem, edge_between, relative_residual

# How often a solution is improved by what it leaves over.
_ROUNDS = 2
# How many times a variance without the edge may be that with it: (I − Sw)⁻¹ makes rounding larger as much. Where it is
# more, the part is factorised without the edge.
_GROWTH = 1e6


def component_tasks(system: TaskSystem) -> list[np.ndarray]:
    """Positions of the tasks of every part of the graph, in rising order."""
    number, label = connected_components(system.laplacian, directed=False)
    return _grouped(label, number)


def component_systems(system: TaskSystem, parts: list[np.ndarray]) -> Iterator[TaskSystem]:
    """B of all parts, as :func:`parts_of` has them: the tasks of each are drawn to a common model that is held."""
    label, place = _labels(parts, system.shape[0])
    for tasks, inside in zip(parts, _grouped(label[system.edges[:, 0]], len(parts))):
        yield _part(system, tasks, place, inside)


def factor_of(system: TaskSystem) -> np.ndarray:
    """The lower Cholesky factor of a system, what is above its diagonal undefined."""
    # As LAPACK wants it, without a copy: A is symmetric.
    factor, failed = dpotrf(system.dense().T, lower=1, overwrite_a=1, clean=0)
    if failed:
        raise SingularSystemError(
            "The system of the models is singular to working accuracy. Use a larger ridge or weaker coupling."
        )
    return factor


def information(gram: np.ndarray, ridge: np.ndarray, answer: np.ndarray) -> np.ndarray:
    """Σ_i (G_i + ρ)Y_i of some tasks, shape (p, p)."""
    return (kernels.block_product(gram, answer) + ridge[..., None] * answer).sum(axis=0)


@dataclass(frozen=True)
class Pair:
    """Two tasks beside all edges.

    Parameters
    ----------
    i, j : int
    tasks : array of shape (k,)
        Those in the parts of the two.
    response : array of shape (k, p, p)
        B⁻¹b on these.
    covariance : array of shape (p, p)
        S.
    """

    i: int
    j: int
    tasks: np.ndarray
    response: np.ndarray
    covariance: np.ndarray


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
    said, common : arrays of shape (p, p)
        Σ_i (G_i + ρ)Y_i and M.
    """

    system: TaskSystem
    parts: list[np.ndarray]
    label: np.ndarray
    place: np.ndarray
    factors: list[np.ndarray]
    answer: np.ndarray
    said: np.ndarray
    common: np.ndarray

    @classmethod
    def of(cls, system: TaskSystem, copies: int = 1) -> Factors | None:
        """Of a separable system, as one of so many that are kept.

        None without edges, where parts are too large or too many, and where rounding leaves no factor.
        """
        n, p = system.shape
        if not len(system.edges):
            return None
        parts = component_tasks(system)
        size = p * np.array([len(tasks) for tasks in parts], dtype=float)
        sizes = system.sizes
        operations, numbers = (size**3 + sizes.component_overhead).sum(), (size**2).sum() + 2.0 * n * p**2
        if copies * operations > sizes.component_work or copies * numbers > sizes.component_numbers:
            return None
        answer = np.empty((n, p, p))
        try:
            factors = [factor_of(own) for own in component_systems(system, parts)]
            for tasks, factor in zip(parts, factors):
                answer[tasks] = _answer(factor, len(tasks), p)
            said = information(system.gram, np.broadcast_to(system.ridge, system.shape), answer)
            common = _common(said, system.hub)
        except (SingularSystemError, np.linalg.LinAlgError):
            return None
        return cls(system, parts, *_labels(parts, n), factors, answer, said, common)

    def solve(self, right: np.ndarray, start: np.ndarray | None = None, tol: float = 1e-10) -> Solution:
        """Solve A V = right to a relative residual of `tol`, or as well as rounding allows."""
        value = self._solve(right) if start is None else start
        rounds = 0
        while True:
            left = right - self.system.apply(value)
            residual = relative_residual(left, right)
            if residual <= tol or rounds == _ROUNDS:
                return Solution(value, 0, residual, "direct" if residual <= tol else "stalled", rounds + 1)
            value, rounds = value + self._solve(left), rounds + 1

    def pair(self, i: int, j: int) -> Pair:
        """What is known of two tasks, linked or not."""
        (first, second), p = (int(self.label[task]) for task in (i, j)), self.answer.shape[1]
        if first == second:
            tasks, places = self.parts[first], (int(self.place[i]), int(self.place[j]))
            response = _solved(self.factors[first], _between(len(tasks), p, *places))
        else:
            tasks = np.concatenate([self.parts[first], self.parts[second]])
            places = (int(self.place[i]), len(self.parts[first]) + int(self.place[j]))
            sides = np.split(_between(len(tasks), p, *places), [len(self.parts[first])])
            response = np.concatenate([_solved(self.factors[k], side) for k, side in zip((first, second), sides)])
        return Pair(i, j, tasks, response, _covariance(response, *places, self.common))

    def change(self, pair: Pair, models: np.ndarray, weight: np.ndarray, tol: float) -> np.ndarray | None:
        """V' − V without an edge of weight w, shape (n, p); None where its residual is above `tol`."""
        i, j, apart = pair.i, pair.j, models[pair.i] - models[pair.j]
        try:
            force = weight * np.linalg.solve(np.eye(len(weight)) - pair.covariance * weight, apart)
        except np.linalg.LinAlgError:
            return None
        change = self.answer @ (self.common @ (pair.response.sum(axis=0) @ force))
        change[pair.tasks] += pair.response @ force
        left = self.system.apply(change)
        pull = weight * (apart + change[i] - change[j])
        left[i] -= pull
        left[j] += pull
        return change if np.linalg.norm(left) <= tol else None

    def covariance(self, pair: Pair, weight: np.ndarray) -> np.ndarray | None:
        """S' without an edge of weight w, shape (p, p); None where nothing else holds the two."""
        try:
            after = np.linalg.solve(np.eye(len(weight)) - pair.covariance * weight, pair.covariance)
            growth = np.diag(after) / np.diag(pair.covariance)
            if not ((growth > 0).all() and (growth <= _GROWTH).all()):
                after = self._covariance_afresh(pair.i, pair.j)
        except (SingularSystemError, np.linalg.LinAlgError):
            return None
        return 0.5 * (after + after.T)

    def _covariance_afresh(self, i: int, j: int) -> np.ndarray:
        """S' of an edge, from a factor of its part without it."""
        system, tasks, places = self.system, self.parts[self.label[i]], (int(self.place[i]), int(self.place[j]))
        inside = (self.label[system.edges[:, 0]] == self.label[i]) & ~edge_between(system.edges, i, j)
        own = _part(system, tasks, self.place, inside)
        factor, (k, p) = factor_of(own), own.shape
        answer, response = _answer(factor, k, p), _solved(factor, _between(k, p, *places))
        ridge = np.broadcast_to(system.ridge, system.shape)[tasks]
        said = self.said + information(own.gram, ridge, answer - self.answer[tasks])
        return _covariance(response, *places, _common(said, system.hub))

    def _solve(self, right: np.ndarray) -> np.ndarray:
        own = np.empty_like(right)
        for tasks, factor in zip(self.parts, self.factors):
            own[tasks] = _solved(factor, right[tasks])
        return own + self.answer @ (self.common @ own.sum(axis=0))


def _part(system: TaskSystem, tasks: np.ndarray, place: np.ndarray, inside: np.ndarray) -> TaskSystem:
    """B of the tasks of a part, given the places of all tasks in theirs and which edges are inside of it."""
    held = np.broadcast_to(system.ridge, system.shape)[tasks] + system.hub
    edges, weights = place[system.edges[inside]], system.edge_weights[inside]
    return TaskSystem(
        system.gram[tasks], edges, weights, system.coupling, np.zeros_like(system.hub), held, sizes=system.sizes
    )


def _covariance(response: np.ndarray, first: int, second: int, common: np.ndarray) -> np.ndarray:
    """bᵀA⁻¹b, given B⁻¹b and M."""
    reach = response.sum(axis=0)
    return response[first] - response[second] + reach.T @ common @ reach


def _solved(factor: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The solution for right-hand sides of shape (k, p) or (k, p, r)."""
    return dpotrs(factor, right.reshape(len(factor), -1), lower=1)[0].reshape(right.shape)


def _between(k: int, p: int, first: int, second: int) -> np.ndarray:
    """b ⊗ I among k tasks, shape (k, p, p)."""
    right = np.zeros((k, p, p))
    right[first], right[second] = np.eye(p), -np.eye(p)
    return right


def _answer(factor: np.ndarray, k: int, p: int) -> np.ndarray:
    """Y of the k tasks of a part."""
    return _solved(factor, np.tile(np.eye(p), (k, 1, 1)))


def _common(said: np.ndarray, hub: np.ndarray) -> np.ndarray:
    """M."""
    common = np.linalg.solve(said, np.diag(hub))
    return 0.5 * (common + common.T)


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
