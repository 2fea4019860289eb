"""Systems with structure: tasks of far fewer rows than coefficients, and graphs of many small components.

With G_i = R_iᵀR_i and R_i of r rows, r well below p, products G v = Rᵀ(R v) take 2rp numbers per task instead of p².
So does the inverse of a diagonal block of A, whose graph, hub and ridge part D is diagonal (Woodbury):

    (RᵀR + D)⁻¹ = D⁻¹ − TᵀT,    T = C⁻¹ R D⁻¹,    C Cᵀ = I + R D⁻¹Rᵀ .

Without its hub A falls into the components of the graph, A = B − (1/n)(1 ⊗ H)(1ᵀ ⊗ I). With Y = B⁻¹(1 ⊗ I),

    A⁻¹ = B⁻¹ + YMYᵀ ,     M = (Σ_i (G_i + ρ)Y_i)⁻¹H ,

so that Cholesky factors of the components solve A. They are the reserve where conjugate gradients fail: pairs of tasks
with fewer rows than coefficients, tied a million times as hard as their rows, stall at a residual of 1e-4 and are
solved to rounding here (tests/solve/test_solvers.py). The exact trace behind σ² is taken component by component, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotrs
from scipy.sparse.csgraph import connected_components

from ggmtl.errors import SingularSystemError
from ggmtl.runtime import kernels
from ggmtl.solve.preconditioners import GraphLevel, TwoLevel
from ggmtl.solve.system import Solution, TaskSystem, relative_residual
from ggmtl.statistics.least_squares import few_rows

# Milliseconds to prepare and to solve twice to 1e-8, one thread, six neighbours in the plane, here and in general:
#     n, p, rows        weak coupling (0.1)     strong (100)
#     500, 200, 10      317 against 3,414       511 against 3,082
#     200, 500, 20      416 against 10,071      881 against 11,860
#     300, 200, 60      765 against 1,341       908 against 1,534
#     2,000, 50, 5      132 against 265         440 against 1,380
#     1,000, 40, 8      59 against 62           204 against 170
# Blocks of fewer numbers in all are solved in a few milliseconds in any way. Processor seconds of a default fit, with
# and without: 200 tasks, 200 features, 20 rows 13.9 and 17.3; 300, 100, 15: 5.5 and 6.5; 500, 60, 10: 2.6 and 3.0.
# Hub and ridge alone hold the directions that the rows leave open. Up to this ratio of graph to hub and ridge, B alone
# takes at most 60 steps, each a third of the cost of a cycle.
_WEAK_COUPLING = 20.0
# D⁻¹ − TᵀT cancels as many digits as G is larger than D.
_WORST_RATIO = 1e10


@dataclass(frozen=True)
class LowRankSystem(TaskSystem):
    """A with its data part applied by factors.

    Parameters
    ----------
    rows : array of shape (n, r, p)
        R.
    """

    rows: np.ndarray = field(kw_only=True)

    @property
    def stores_blocks(self) -> bool:
        """No: the data part is applied by its factors."""
        return False

    @classmethod
    def of(cls, system: TaskSystem, rows: np.ndarray) -> LowRankSystem:
        """The same system, and the factors of its blocks."""
        return cls(**{part.name: getattr(system, part.name) for part in fields(TaskSystem)}, rows=rows)

    def multiply_blocks(self, values: np.ndarray) -> np.ndarray:
        """G_i · values_i by the factors, for values of shape (n, p, r)."""
        return gram_product(self.rows, values)


@dataclass(frozen=True)
class LowRankJacobi:
    """B = D⁻¹ − TᵀT: the exact inverse of the diagonal blocks of A."""

    inverse_diagonal: np.ndarray
    rows: np.ndarray

    @classmethod
    def of(cls, system: TaskSystem, rows: np.ndarray) -> LowRankJacobi | None:
        """Factorise I + R D⁻¹Rᵀ; None where D is too small compared with the data for the formula to be accurate."""
        diagonal = system.block_diagonal()
        data = np.einsum("nrp,nrp->np", rows, rows)
        if (diagonal * _WORST_RATIO <= data.max(axis=1, keepdims=True)).any():
            return None
        scaled = rows / diagonal[:, None, :]
        inner = np.matmul(scaled, rows.transpose(0, 2, 1)) + np.eye(rows.shape[1])
        return cls(1.0 / diagonal, np.linalg.solve(np.linalg.cholesky(inner), scaled))

    def __call__(self, residual: np.ndarray) -> np.ndarray:
        """B · residual."""
        stacked = residual[..., None] if residual.ndim == 2 else residual
        out = self.inverse_diagonal[..., None] * stacked
        out -= gram_product(self.rows, stacked)
        return out[..., 0] if residual.ndim == 2 else out


def gram_product(rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """R_iᵀ(R_i values_i) for rows (n, r, p) and values (n, p, c)."""
    return np.matmul(rows.transpose(0, 2, 1), np.matmul(rows, values))


def few_rows_of(system: TaskSystem) -> np.ndarray | None:
    """The factors R of a system whose blocks are large and of low rank, shape (n, r, p); None for others."""
    if not system.stores_blocks or system.curvature is not None:
        return None
    return few_rows(system.gram, system.sizes)


def prepare_low_rank(system: TaskSystem) -> tuple[LowRankSystem, LowRankJacobi | TwoLevel] | None:
    """A by factors and its preconditioner, for conjugate gradients; None where some task has too large a rank."""
    rows = few_rows_of(system)
    smoother = None if rows is None else LowRankJacobi.of(system, rows)
    if rows is None or smoother is None:
        return None
    narrow = LowRankSystem.of(system, rows)
    if (system.degrees() <= 0.5 * _WEAK_COUPLING * (system.hub + system.ridge)).all():
        return narrow, smoother
    # One sweep, not two: here it took fewer than 1.4 times the cycles, and two thirds of the time.
    return narrow, TwoLevel(narrow, smoother, GraphLevel.of(system))  # pyright: ignore[reportArgumentType]


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
