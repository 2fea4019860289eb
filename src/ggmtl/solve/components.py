"""A by the connected components of its graph: one Cholesky factor per component.

Without its hub A falls into the components, A = B − (1/n)(1 ⊗ H)(1ᵀ ⊗ I). With Y = B⁻¹(1 ⊗ I),

    A⁻¹ = B⁻¹ + YMYᵀ ,     M = (Σ_i (G_i + ρ)Y_i)⁻¹H ,

so that Cholesky factors of the components solve A. They are the reserve where conjugate gradients fail: pairs of tasks
with fewer rows than coefficients, tied a million times as hard as their rows, stall at a residual of 1e-4 and are
solved to rounding here (tests/solve/test_solvers.py). The exact trace behind σ² is taken component by component, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotrs
from scipy.sparse.csgraph import connected_components

from ggmtl import kernels
from ggmtl.errors import SingularSystemError
from ggmtl.solve.system import Solution, TaskSystem, relative_residual

# How often a solution is improved by solving for its residual.
_ROUNDS = 2


def component_tasks(system: TaskSystem) -> list[np.ndarray]:
    """Positions of the tasks of every component of the graph, in rising order."""
    number, label = connected_components(system.laplacian, directed=False)
    return _grouped(label, number)


def component_systems(system: TaskSystem, components: list[np.ndarray]) -> Iterator[TaskSystem]:
    """B of every component in `components`, which :func:`component_tasks` gives; the common model is held."""
    n = system.shape[0]
    label, place = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    for number, tasks in enumerate(components):
        label[tasks], place[tasks] = number, np.arange(len(tasks))
    ridge = np.broadcast_to(system.ridge, system.shape) + system.hub
    no_hub = np.zeros_like(system.hub)
    for tasks, inside in zip(components, _grouped(label[system.edges[:, 0]], len(components))):
        edges, weights = place[system.edges[inside]], system.edge_weights[inside]
        yield TaskSystem(system.gram[tasks], edges, weights, system.coupling, no_hub, ridge[tasks], sizes=system.sizes)


def information(gram: np.ndarray, ridge: np.ndarray, answer: np.ndarray) -> np.ndarray:
    """Σ_i (G_i + ρ)Y_i for Y of shape (n, p, p) and ρ that broadcasts to (n, p), shape (p, p)."""
    ridge = np.broadcast_to(ridge, gram.shape[:2])
    return (kernels.block_product(gram, answer) + ridge[..., None] * answer).sum(axis=0)


@dataclass(frozen=True)
class Factors:
    """Cholesky factors of all components.

    Parameters
    ----------
    system : TaskSystem
    components : list of arrays
        Positions of the tasks of every component.
    factors : list of arrays
    answer : array of shape (n, p, p)
        Y.
    common : array of shape (p, p)
        M.
    """

    system: TaskSystem
    components: list[np.ndarray]
    factors: list[np.ndarray]
    answer: np.ndarray
    common: np.ndarray

    @classmethod
    def of(cls, system: TaskSystem) -> Factors | None:
        """Factorise a separable system.

        None without edges, where components are too large or too many, and where rounding leaves no factor.
        """
        n, p = system.shape
        if not len(system.edges):
            return None
        components = component_tasks(system)
        size = p * np.array([len(tasks) for tasks in components], dtype=float)
        sizes = system.sizes
        operations, numbers = (size**3 + sizes.component_overhead).sum(), (size**2).sum() + 2.0 * n * p**2
        if operations > sizes.component_work or numbers > sizes.component_numbers:
            return None
        answer = np.empty((n, p, p))
        try:
            factors = [_factor_of(own) for own in component_systems(system, components)]
            for tasks, factor in zip(components, factors):
                answer[tasks] = _solved(factor, np.tile(np.eye(p), (len(tasks), 1, 1)))
            common = np.linalg.solve(information(system.gram, system.ridge, answer), np.diag(system.hub))
        except (SingularSystemError, np.linalg.LinAlgError):
            return None
        return cls(system, components, factors, answer, 0.5 * (common + common.T))

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

    def _solve(self, right: np.ndarray) -> np.ndarray:
        own = np.empty_like(right)
        for tasks, factor in zip(self.components, self.factors):
            own[tasks] = _solved(factor, right[tasks])
        return own + self.answer @ (self.common @ own.sum(axis=0))


def _factor_of(system: TaskSystem) -> np.ndarray:
    """The lower Cholesky factor of a system; what is above its diagonal is undefined."""
    # As LAPACK wants it, without a copy: A is symmetric.
    factor, failed = dpotrf(system.dense().T, lower=1, overwrite_a=1, clean=0)
    if failed:
        raise SingularSystemError(
            "The system of the models is singular to working accuracy. Use a larger ridge or weaker coupling."
        )
    return factor


def _solved(factor: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The solution for right-hand sides of shape (k, p) or (k, p, r)."""
    return dpotrs(factor, right.reshape(len(factor), -1), lower=1)[0].reshape(right.shape)


def _grouped(label: np.ndarray, number: int) -> list[np.ndarray]:
    """Positions of the items with each of the labels 0, …, number − 1."""
    order = np.argsort(label, kind="stable")
    return np.split(order, np.cumsum(np.bincount(label, minlength=number))[:-1])
