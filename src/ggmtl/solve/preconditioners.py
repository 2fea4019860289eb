"""Preconditioners of the linear system: the tasks' own blocks, the graph alone, and both in one cycle."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse.linalg import splu

from ggmtl.errors import SingularSystemError
from ggmtl.runtime import kernels
from ggmtl.solve.system import TaskSystem, inverse_and_log_determinant, laplacian

# Factor by which a polynomial lowers the error. More accuracy does not pay, as the graph level is an approximation.
_POLYNOMIAL_ACCURACY = 0.2
# Up to this ratio of coupling to data block-Jacobi alone takes at most 25 iterations to 1e-8 (on latent graphs of one
# to twenty dimensions), each a third to a seventh of the cost of a two-level iteration.
_WEAK_COUPLING = 5.0
# If the data of a task determine, on average, less than this share of its coefficients, the graph determines much of
# the solution, and a second smoothing step pays for itself.
_FULL_RANK_SHARE = 0.5
# Two Jacobi steps before and after each coarse correction; their lengths, in units of 1/ρ(D⁻¹A), are the inverse
# Chebyshev nodes of [1/8, 1], the part of the spectrum that the coarse levels leave to smoothing. At equal cost
# they save a fifth of the iterations of two equal steps where weights span decades.
_STEP_LENGTHS = tuple(1.0 / (9 / 16 + 7 / 16 * np.cos(np.pi * np.array([1, 3]) / 4)))
# Coordinates whose strengths differ by about this factor at most share one matrix of the graph, which is an
# approximation in any case: that costs an iteration or two, and saves a matrix for almost every coordinate.
_ALIKE = 2.0

Preconditioner = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class BlockJacobi:
    """B: the exact inverse of the diagonal blocks of A."""

    inverse: np.ndarray

    @classmethod
    def of(cls, system: TaskSystem, dtype: Any = np.float64) -> BlockJacobi:
        """Invert the blocks by their Cholesky factors, so that the inverse is symmetric positive definite."""
        try:
            if system.curvature is None:
                return cls(kernels.inverse_blocks(system.gram, system.block_diagonal(), dtype)[0])
            return cls(kernels.inverse_blocks(system.diagonal_blocks(), np.zeros(system.shape))[0])
        except np.linalg.LinAlgError:
            system.check_determined()
            raise SingularSystemError(
                "A task's diagonal block is not positive definite to working accuracy. Use a larger ridge."
            ) from None

    def __call__(self, residual: np.ndarray) -> np.ndarray:
        """B · residual."""
        return kernels.block_product(self.inverse, residual)

    def inverts(self, system: TaskSystem, values: np.ndarray, tol: float) -> bool:
        """Whether D B values = values up to `tol`, where D are the diagonal blocks of A."""
        solved = self(values)
        gap = kernels.block_product(system.gram, solved) + system.block_diagonal() * solved - values
        return bool(np.linalg.norm(gap) <= tol * np.linalg.norm(values))

    def cycle(self, exact: bool) -> kernels.Cycle:
        """B as the kernels take it."""
        n, p = self.inverse.shape[:2]
        return kernels.Cycle(self.inverse, np.empty((0, n, n)), np.arange(p), np.zeros(1, np.int64), 1, exact)


@dataclass(frozen=True)
class GraphLevel:
    """C: solve with A's graph part after each G_i is replaced by its mean eigenvalue μ_i times the identity.

    Coordinates with about the same Λ_k and h_k (and edge weights) share one n × n matrix K = ΛL + diag(μ + h + ρ) with
    their means; the hub's −(h/n)11ᵀ is added back by the Sherman–Morrison formula.
    """

    groups: tuple[tuple[np.ndarray, Callable[[np.ndarray], np.ndarray], np.ndarray, float], ...]

    @classmethod
    def of(cls, system: TaskSystem) -> GraphLevel:
        """Factorise one matrix per group of coordinates."""
        n = system.shape[0]
        own = np.einsum("npp->np", system.gram) + system.ridge
        dense = n <= system.sizes.dense_graph
        groups, graph = [], _graph(system.laplacian, dense) if system.edge_weights.ndim == 1 else None
        for columns in _coordinate_groups(system, own.mean(axis=0)):
            k = columns[0]
            links = _graph(laplacian(system.edges, system.edge_weights[:, k], n), dense) if graph is None else graph
            shift = own[:, columns].mean(axis=1)
            shift = np.maximum(shift, 1e-12 * max(shift.max(), np.finfo(float).tiny))
            hub, coupling = float(system.hub[columns].mean()), float(system.coupling[columns].mean())
            solve = _graph_solver(links, coupling, shift + hub, system.sizes.polynomial_condition)
            # K1 = μ + h, hence 1 − (h/n) 1ᵀK⁻¹1 = (1/n) 1ᵀK⁻¹μ, which does not cancel.
            ones = solve(np.ones((n, 1)))[:, 0]
            gap = float(shift @ ones) / n
            groups.append((columns, solve, ones, hub / n / gap if hub > 0 else 0.0))
        return cls(tuple(groups))

    @cached_property
    def dense_inverses(self) -> np.ndarray | None:
        """C of every group as a matrix, the hub's part included, shape (groups, n, n); None on large graphs."""
        if not all(isinstance(solve, DenseInverse) for _, solve, _, _ in self.groups):
            return None
        return np.stack([solve.matrix + factor * np.outer(ones, ones) for _, solve, ones, factor in self.groups])

    def __call__(self, residual: np.ndarray) -> np.ndarray:
        """C · residual."""
        out = np.empty_like(residual)
        n = len(residual)
        for columns, solve, ones, factor in self.groups:
            part = residual[:, columns]
            flat = part.reshape(n, -1)
            value = solve(flat)
            if factor:
                value = value + factor * np.outer(ones, ones @ flat)
            out[:, columns] = value.reshape(part.shape)
        return out


@dataclass(frozen=True)
class TwoLevel:
    """The symmetric multiplicative cycle B, C, B: smooth (one or more times), correct on the graph, smooth.

    I − CA ≤ I in the A-inner product for any positive definite C, and block-Jacobi converges on A, so the cycle is
    positive definite whatever approximation stands behind C.
    """

    system: TaskSystem
    smoother: BlockJacobi
    graph_level: GraphLevel
    sweeps: int = 1

    @property
    def applications(self) -> int:
        """Products with A in one cycle."""
        return 2 * self.sweeps

    def cycle(self, exact: bool) -> kernels.Cycle | None:
        """The cycle as the kernels take it, or None where C is not a dense inverse."""
        levels = self.graph_level.dense_inverses
        if levels is None:
            return None
        columns = [group[0] for group in self.graph_level.groups]
        bounds = np.concatenate([[0], np.cumsum([len(group) for group in columns])])
        return kernels.Cycle(self.smoother.inverse, levels, np.concatenate(columns), bounds, self.sweeps, exact)

    def __call__(self, residual: np.ndarray) -> np.ndarray:
        """One cycle from a zero start."""
        value = self.smoother(residual)
        for _ in range(self.sweeps - 1):
            value += self.smoother(residual - self.system.apply(value))
        value += self.graph_level(residual - self.system.apply(value))
        for _ in range(self.sweeps):
            value += self.smoother(residual - self.system.apply(value))
        return value


def make_preconditioner(system: TaskSystem) -> Preconditioner:
    """Block-Jacobi where the coupling is weak compared with the data, the two-level cycle otherwise."""
    majoriser = system.without_curvature()
    smoother = BlockJacobi.of(majoriser)
    full_rank = mean_rank_share(system.gram) >= _FULL_RANK_SHARE
    if full_rank and coupling_ratio(majoriser) < _WEAK_COUPLING:
        return smoother
    return TwoLevel(majoriser, smoother, GraphLevel.of(majoriser), sweeps=1 if full_rank else 2)


def mean_rank_share(gram: np.ndarray) -> float:
    """Mean over tasks of (tr G)²/(p tr G²), the share of directions that the data of a task use."""
    trace = np.einsum("npp->n", gram)
    square = np.einsum("npq,npq->n", gram, gram)
    share = trace**2 / np.where(square > 0, square * gram.shape[-1], 1.0)
    return float(share.mean())


def coupling_ratio(system: TaskSystem) -> float:
    """Largest ratio, over tasks and coordinates, of the pull of the graph and hub to the data's own curvature."""
    n, p = system.shape
    own = np.einsum("npp->n", system.gram)[:, None] / p + np.broadcast_to(system.ridge, (n, p))
    pull = system.degrees() + system.hub
    return float((pull / np.maximum(own, np.finfo(float).tiny)).max(initial=0.0))


def _coordinate_groups(system: TaskSystem, own: np.ndarray) -> list[np.ndarray]:
    """Groups of coordinates with similar strengths, given the mean curvature of the tasks' losses, shape (p,)."""
    if system.edge_weights.ndim == 1 and np.ptp(system.coupling) == 0 and np.ptp(system.hub) == 0:
        return [np.arange(len(system.coupling))]
    if system.edge_weights.ndim == 2:
        return [np.array([k]) for k in range(len(system.coupling))]
    # Differences in the strength of edges do not matter where hub and data are much stronger.
    rest = system.hub + own
    pull = system.coupling * 2.0 * system.edge_weights.sum() / system.shape[0] + 0.1 * rest
    strengths = np.maximum(np.column_stack([pull, rest]), np.finfo(float).tiny)
    keys = np.round(np.log(strengths) / np.log(_ALIKE))
    _, label = np.unique(keys, axis=0, return_inverse=True)
    label = label.reshape(-1)
    return [np.flatnonzero(label == g) for g in range(label.max() + 1)]


def _graph(links: sparse.csr_array, dense: bool) -> sparse.csr_array | np.ndarray:
    return links.toarray() if dense else links


def _graph_solver(
    graph: sparse.csr_array | np.ndarray, coupling: float, shift: np.ndarray, polynomial_condition: float
) -> Callable[[np.ndarray], np.ndarray]:
    """A solver of λL + diag(shift) for many columns.

    A dense inverse for few tasks; else a polynomial where the matrix is well conditioned, one cycle of smoothed
    aggregation where it is not, or, without pyamg, a sparse factor, which is slower where the graph is no surface.
    """
    if isinstance(graph, np.ndarray):
        dense = coupling * graph
        dense.flat[:: len(graph) + 1] += shift
        return DenseInverse.of(dense)
    matrix = sparse.csr_array(coupling * graph + sparse.diags_array(shift))
    polynomial = Polynomial.of(matrix)
    if polynomial.condition <= polynomial_condition:
        return polynomial
    if importlib.util.find_spec("pyamg") is not None:
        return AggregationCycle.of(matrix)
    factor = splu(sparse.csc_array(matrix), permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True})
    return lambda columns: factor.solve(np.ascontiguousarray(columns))


@dataclass(frozen=True)
class DenseInverse:
    """The inverse of a small matrix."""

    matrix: np.ndarray

    @classmethod
    def of(cls, matrix: np.ndarray) -> DenseInverse:
        """Invert by the Cholesky factor."""
        return cls(np.ascontiguousarray(inverse_and_log_determinant(matrix)[0]))

    def __call__(self, columns: np.ndarray) -> np.ndarray:
        """The solution, shape like `columns`."""
        return self.matrix @ columns


@dataclass(frozen=True)
class Polynomial:
    """Chebyshev's iteration from zero with the Jacobi-scaled matrix: a fixed polynomial, needing no preparation.

    The residual polynomial is below one on all of (0, b], so the map is symmetric positive definite even where some
    eigenvalues are smaller than the bound `lowest`, which is meant for all but a few tasks.

    Parameters
    ----------
    matrix : sparse array of shape (n, n)
        K = Λ L + diag(s).
    inverse_diagonal : array of shape (n, 1)
    lowest, highest : float
        a and b, about the ends of the spectrum of D⁻¹K.
    """

    matrix: sparse.csr_array
    inverse_diagonal: np.ndarray
    lowest: float
    highest: float

    @classmethod
    def of(cls, matrix: sparse.csr_array) -> Polynomial:
        """Bound the spectrum by Gershgorin's discs; the lower end by those of all but a hundredth of the tasks."""
        diagonal = np.asarray(matrix.diagonal(), dtype=float)
        off_diagonal = abs(matrix).sum(axis=1) - np.abs(diagonal)
        share = np.maximum(diagonal - off_diagonal, 0.0) / diagonal
        highest = float((1.0 + off_diagonal / diagonal).max())
        return cls(matrix, 1.0 / diagonal[:, None], max(float(np.quantile(share, 0.01)), 1e-12), highest)

    @property
    def condition(self) -> float:
        """Condition number of the interval that the polynomial is made for."""
        return self.highest / self.lowest

    @property
    def degree(self) -> int:
        """Steps to the accuracy wanted, at least one, which is exact where K is diagonal."""
        if self.highest == self.lowest:
            return 1
        return max(1, int(np.ceil(0.5 * np.sqrt(self.condition) * np.log(2.0 / _POLYNOMIAL_ACCURACY))))

    def __call__(self, columns: np.ndarray) -> np.ndarray:
        """Approximate solution of K z = columns."""
        centre, radius = 0.5 * (self.highest + self.lowest), 0.5 * (self.highest - self.lowest)
        ratio = radius / (2.0 * centre)
        step = self.inverse_diagonal * columns / centre
        value, weight = step.copy(), 2.0 * ratio
        for _ in range(self.degree - 1):
            following = 1.0 / (1.0 / ratio - weight)
            # In place: the vectors are large, and memory bandwidth limits the speed.
            residual = kernels.sparse_product(self.matrix, value)
            np.subtract(columns, residual, out=residual)
            residual *= (2.0 * following / radius) * self.inverse_diagonal
            step *= following * weight
            step += residual
            value += step
            weight = following
        return value


@dataclass(frozen=True)
class AggregationCycle:
    """One V-cycle of smoothed aggregation on many columns at once.

    pyamg builds the hierarchy; its own cycle takes one column at a time, which would cost p times the memory
    traffic.
    """

    levels: tuple[tuple[sparse.csr_array, sparse.csr_array, tuple[np.ndarray, ...]], ...]
    coarsest: np.ndarray

    @classmethod
    def of(cls, matrix: sparse.csr_array) -> AggregationCycle:
        """Build the hierarchy."""
        import pyamg

        # The threshold keeps all edges of an even graph, and lets aggregates follow the heavy ones of an uneven one.
        strength: Any = ("symmetric", {"theta": 0.03})
        # Local weights need no eigenvalue estimate, which pyamg would start from NumPy's global random state.
        smooth: Any = ("jacobi", {"omega": 4.0 / 3.0, "weighting": "local"})
        # pyamg takes indices of 32 bits only; not every version of SciPy makes them so by itself.
        places = (matrix.indices.astype(np.int32), matrix.indptr.astype(np.int32))
        hierarchy = pyamg.smoothed_aggregation_solver(
            sparse.csr_matrix((matrix.data, *places), matrix.shape), strength=strength, smooth=smooth, max_coarse=200
        )
        levels = []
        for level in hierarchy.levels[:-1]:
            A = sparse.csr_array(level.A)
            # Jacobi steps with the safe bound ρ(D⁻¹A) ≤ ‖D⁻¹A‖_∞ instead of an eigenvalue estimate.
            diagonal = _filled(A.diagonal())[:, None]
            bound = (abs(A).sum(axis=1)[:, None] / diagonal).max()
            levels.append((A, sparse.csr_array(level.P), tuple(w / bound / diagonal for w in _STEP_LENGTHS)))
        bottom = hierarchy.levels[-1].A.toarray()
        np.fill_diagonal(bottom, _filled(bottom.diagonal()))
        return cls(tuple(levels), cho_solve(cho_factor(bottom), np.eye(len(bottom))))

    def __call__(self, columns: np.ndarray) -> np.ndarray:
        """Approximate solution of A z = columns, a symmetric positive definite map."""
        return self._descend(0, columns)

    def _descend(self, depth: int, right: np.ndarray) -> np.ndarray:
        if depth == len(self.levels):
            return self.coarsest @ right
        A, P, steps = self.levels[depth]
        value = steps[0] * right
        for step in steps[1:]:
            value += step * (right - A @ value)
        value += P @ self._descend(depth + 1, P.T @ (right - A @ value))
        for step in reversed(steps):
            value += step * (right - A @ value)
        return value


def _filled(diagonal: np.ndarray) -> np.ndarray:
    """Replace zeros by ones: an empty aggregate is prolonged to zero, so any value works."""
    return np.where(diagonal > 0, diagonal, 1.0)
