"""The linear system of the inner problem, and its preconditioners.

    A = blockdiag(G_i) + Σ_ij (d_i − d_j)(d_i − d_j)ᵀ ⊗ diag(w_ij) + (I − 11ᵀ/n) ⊗ diag(h) + diag(ρ)

with w_ij = e_ij Λ for the squared penalty. A is never formed: it is applied to arrays of shape (n, p) or, for many
right-hand sides, (n, p, r).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse
from scipy.linalg import cho_factor, cho_solve
from scipy.linalg.lapack import dpotrf, dpotri
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import splu

from ggmtl import kernels
from ggmtl.errors import SingularSystemError

# Up to this many tasks the graph-level matrix is inverted densely; above, smoothed aggregation solves it
# approximately (or, without pyamg, a sparse factor exactly: slower where the graph is no surface).
_DENSE_TASKS = 600
# Up to this ratio of coupling to data block-Jacobi alone takes at most 25 iterations to 1e-8 (on latent graphs of one
# to twenty dimensions), each a third to a seventh of the cost of a two-level iteration.
_WEAK_COUPLING = 5.0
# Tasks whose gram matrices have, on average, less than this share of their directions in use leave much of the
# system to the graph alone; a second smoothing step then pays for itself.
_FULL_RANK_SHARE = 0.5
# Two Jacobi steps before and after each coarse correction; their lengths, in units of 1/ρ(D⁻¹A), are the inverse
# Chebyshev nodes of [1/8, 1], the part of the spectrum that the coarse levels leave to smoothing. At equal cost
# they save a fifth of the iterations of two equal steps where weights span decades.
_STEP_LENGTHS = tuple(1.0 / (9 / 16 + 7 / 16 * np.cos(np.pi * np.array([1, 3]) / 4)))


@dataclass(frozen=True)
class Curvature:
    """The term − Σ_e c_e (b_e b_eᵀ) ⊗ (u_e u_eᵀ): directions u of shape (m, p), factors c of shape (m,)."""

    directions: np.ndarray
    factors: np.ndarray

    def blocks(self) -> np.ndarray:
        """c_e u_e u_eᵀ, shape (m, p, p)."""
        return np.einsum("m,mp,mq->mpq", self.factors, self.directions, self.directions)


@dataclass(frozen=True)
class TaskSystem:
    """The operator A.

    Parameters
    ----------
    gram : array of shape (n, p, p)
        G_i = X_iᵀX_i.
    edges : array of shape (m, 2)
        Pairs of tasks.
    edge_weights : array of shape (m,) or (m, p)
        Strength of each edge, or of each coordinate of each edge; multiplied by `coupling`.
    coupling : array of shape (p,)
        Λ.
    hub : array of shape (p,)
        h, the pull of every task to the common model; zeros for none.
    ridge : array that broadcasts to (n, p)
        ρ.
    curvature : Curvature, optional
        What the Hessian of the ℓ2 penalty has less than its majoriser.
    """

    gram: np.ndarray
    edges: np.ndarray
    edge_weights: np.ndarray
    coupling: np.ndarray
    hub: np.ndarray
    ridge: np.ndarray
    curvature: Curvature | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(n, p): tasks and coefficients per task."""
        return self.gram.shape[0], self.gram.shape[1]

    @cached_property
    def incidence(self) -> sparse.csr_array:
        """Row e of this (m, n) matrix is d_i − d_j."""
        m, n = len(self.edges), self.shape[0]
        data = np.tile([1.0, -1.0], m)
        return sparse.csr_array((data, self.edges.ravel(), np.arange(0, 2 * m + 1, 2)), shape=(m, n))

    @cached_property
    def laplacian(self) -> sparse.csr_array:
        """Σ_e w_e b_e b_eᵀ for one weight per edge, shape (n, n)."""
        return laplacian(self.edges, self.edge_weights, self.shape[0])

    @property
    def is_separable(self) -> bool:
        """Whether edges have one weight each and no curvature, so that the edge part of A is L ⊗ Λ."""
        return self.edge_weights.ndim == 1 and self.curvature is None

    @cached_property
    def operator(self) -> kernels.Operator:
        """A as the kernels take it; for a separable system."""
        n = self.shape[0]
        lists = kernels.neighbour_lists(self.edges, self.edge_weights, n)
        diagonal = self._degrees + self._diagonal_part
        return kernels.Operator(self.gram, diagonal, *lists, self.coupling, self.hub / n)

    def apply(self, values: np.ndarray) -> np.ndarray:
        """A · values for values of shape (n, p) or (n, p, r)."""
        if values.ndim == 2 and self.is_separable:
            return kernels.system_product(self.operator, values)
        stacked = values[..., None] if values.ndim == 2 else values
        out = np.matmul(self.gram, stacked)
        out += self._diagonal_part[..., None] * stacked
        if self.hub.any():
            out -= self.hub[:, None] * stacked.mean(axis=0)
        if len(self.edges):
            out += self._apply_edges(stacked)
        return out[..., 0] if values.ndim == 2 else out

    @cached_property
    def _diagonal_part(self) -> np.ndarray:
        return np.broadcast_to(self.hub + self.ridge, self.shape)

    def _apply_edges(self, values: np.ndarray) -> np.ndarray:
        n, p, r = values.shape
        flat = values.reshape(n, p * r)
        if self.edge_weights.ndim == 1:
            out = (self.laplacian @ flat).reshape(n, p, r) * self.coupling[:, None]
        else:
            difference = (self.incidence @ flat).reshape(-1, p, r)
            difference *= (self.edge_weights * self.coupling)[..., None]
            out = (self.incidence.T @ difference.reshape(-1, p * r)).reshape(n, p, r)
        if self.curvature is not None:
            difference = (self.incidence @ flat).reshape(-1, p, r)
            along = np.einsum("mp,mpr->mr", self.curvature.directions, difference) * self.curvature.factors[:, None]
            back = self.curvature.directions[:, :, None] * along[:, None, :]
            out -= (self.incidence.T @ back.reshape(-1, p * r)).reshape(n, p, r)
        return out

    def degrees(self) -> np.ndarray:
        """Σ_j w_ij of every task and coordinate, coupling included, shape (n, p)."""
        return self._degrees.copy()

    @cached_property
    def _degrees(self) -> np.ndarray:
        n, p = self.shape
        if self.edge_weights.ndim == 1:
            total = np.bincount(self.edges.ravel(), np.repeat(self.edge_weights, 2), n)
            return total[:, None] * self.coupling
        total = np.zeros((n, p))
        np.add.at(total, self.edges[:, 0], self.edge_weights)
        np.add.at(total, self.edges[:, 1], self.edge_weights)
        return total * self.coupling

    def block_diagonal(self) -> np.ndarray:
        """What graph, hub and ridge add to the diagonals of the G_i, shape (n, p)."""
        return self._degrees + (self.hub * (1.0 - 1.0 / self.shape[0]) + self.ridge)

    def diagonal_blocks(self) -> np.ndarray:
        """The p × p diagonal blocks of A, shape (n, p, p)."""
        blocks = self.gram.copy()
        index = np.arange(self.shape[1])
        blocks[:, index, index] += self.block_diagonal()
        if self.curvature is not None:
            outer = self.curvature.blocks()
            np.subtract.at(blocks, self.edges[:, 0], outer)
            np.subtract.at(blocks, self.edges[:, 1], outer)
        return blocks

    def dense(self) -> np.ndarray:
        """A as an (np, np) matrix; for small systems."""
        n, p = self.shape
        matrix = np.zeros((n, p, n, p))
        tasks, index = np.arange(n), np.arange(p)
        matrix[:, index, :, index] -= (self.hub / n)[:, None, None]
        matrix[tasks, :, tasks, :] += self.diagonal_blocks()
        matrix[tasks[:, None], index, tasks[:, None], index] += self.hub / n
        if len(self.edges):
            i, j = self.edges.T
            weights = self.edge_weights[:, None] if self.edge_weights.ndim == 1 else self.edge_weights
            block = np.zeros((len(self.edges), p, p))
            block[:, index, index] = weights * self.coupling
            if self.curvature is not None:
                block -= self.curvature.blocks()
            pairs = matrix.transpose(0, 2, 1, 3)
            # Not -=, which would count an edge given twice only once.
            np.subtract.at(pairs, (i, j), block)
            np.subtract.at(pairs, (j, i), block)
        return matrix.reshape(n * p, n * p)

    def without_curvature(self) -> TaskSystem:
        """The majoriser of this system."""
        return self if self.curvature is None else replace(self, curvature=None)

    def check_determined(self) -> None:
        """Refuse a singular A, naming the tasks.

        With positive Λ the null space of A consists of vectors that are constant on each connected component
        and in the null space of the component's summed gram matrix; so that sum is all there is to look at.
        """
        ridge = np.broadcast_to(self.ridge, self.shape)
        coupled = self.edge_weights > 0 if self.edge_weights.ndim == 1 else (self.edge_weights > 0).all(axis=1)
        if (ridge > 0).all() or not (self.coupling > 0).all():
            return
        n, p = self.shape
        if (self.hub > 0).all():
            component = np.zeros(n, dtype=np.int64)
        elif not self.hub.any():
            edges = self.edges[coupled]
            links = sparse.coo_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(n, n))
            component = connected_components(links, directed=False)[1]
        else:
            return
        total = np.zeros((component.max() + 1, p, p))
        np.add.at(total, component, self.gram)
        index = np.arange(p)
        sums = np.zeros((len(total), p))
        np.add.at(sums, component, ridge)
        total[:, index, index] += sums
        spectrum = np.linalg.eigvalsh(total)
        bad = np.flatnonzero(spectrum[:, 0] <= 1e-14 * np.maximum(spectrum[:, -1], np.finfo(float).tiny))
        if len(bad):
            members = np.flatnonzero(component == bad[0])
            shown = ", ".join(map(str, members[:5])) + (" …" if len(members) > 5 else "")
            raise SingularSystemError(
                f"The data do not determine the models: task(s) at position {shown} "
                f"({'linked to no other task' if len(members) == 1 else 'linked to one another'}) have "
                f"collinear or too few rows. Use a positive ridge, a hub, or link them to other tasks."
            )


def laplacian(edges: np.ndarray, weights: np.ndarray, n: int, shift: np.ndarray | float = 0.0) -> sparse.csr_array:
    """Σ_e w_e (d_i − d_j)(d_i − d_j)ᵀ + diag(shift), shape (n, n)."""
    i, j = edges.T
    degree = np.bincount(edges.ravel(), np.repeat(weights, 2), n) + shift
    nodes = np.arange(n)
    rows, columns = np.concatenate([i, j, nodes]), np.concatenate([j, i, nodes])
    return sparse.csr_array((np.concatenate([-weights, -weights, degree]), (rows, columns)), shape=(n, n))


Preconditioner = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class BlockJacobi:
    """B: the exact inverse of the diagonal blocks of A."""

    inverse: np.ndarray

    @classmethod
    def of(cls, system: TaskSystem) -> BlockJacobi:
        """Invert the blocks by their Cholesky factors, so that the inverse is symmetric positive definite."""
        try:
            if system.curvature is None:
                return cls(kernels.inverse_blocks(system.gram, system.block_diagonal()))
            return cls(kernels.inverse_blocks(system.diagonal_blocks(), np.zeros(system.shape)))
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

    Coordinates with the same Λ_k, h_k (and edge weights) share one n × n matrix
    K = Λ_k L + diag(μ + h_k + ρ); the hub's −(h_k/n)11ᵀ is added back by the Sherman–Morrison formula.
    """

    groups: tuple[tuple[np.ndarray, Callable[[np.ndarray], np.ndarray], np.ndarray, float], ...]

    @classmethod
    def of(cls, system: TaskSystem) -> GraphLevel:
        """Factorise one matrix per group of coordinates."""
        n, p = system.shape
        ridge = np.broadcast_to(system.ridge, (n, p))
        diagonal = np.einsum("npp->np", system.gram)
        groups = []
        for columns in _coordinate_groups(system):
            k = columns[0]
            weights = system.edge_weights if system.edge_weights.ndim == 1 else system.edge_weights[:, k]
            shift = (diagonal[:, columns] + ridge[:, columns]).mean(axis=1)
            shift = np.maximum(shift, 1e-12 * max(shift.max(), np.finfo(float).tiny))
            hub = system.hub[k]
            solve = _graph_solver(laplacian(system.edges, weights * system.coupling[k], n, shift + hub))
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
    """Block-Jacobi where the coupling is weak beside the data, the two-level cycle otherwise."""
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


def _coordinate_groups(system: TaskSystem) -> list[np.ndarray]:
    if system.edge_weights.ndim == 1 and np.ptp(system.coupling) == 0 and np.ptp(system.hub) == 0:
        return [np.arange(len(system.coupling))]
    keys = np.column_stack([system.coupling, system.hub])
    if system.edge_weights.ndim == 2:
        keys = np.arange(len(system.coupling))[:, None]
    _, label = np.unique(keys, axis=0, return_inverse=True)
    label = label.reshape(-1)
    return [np.flatnonzero(label == g) for g in range(label.max() + 1)]


def _graph_solver(matrix: sparse.csr_array) -> Callable[[np.ndarray], np.ndarray]:
    """A solver, exact or one multigrid cycle, for a sparse SPD M-matrix and many columns."""
    n = int(matrix.shape[0])  # pyright: ignore[reportOptionalSubscript]
    if n <= _DENSE_TASKS:
        return DenseInverse.of(matrix)
    if importlib.util.find_spec("pyamg") is not None:
        return AggregationCycle.of(matrix)
    factor = splu(sparse.csc_array(matrix), permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True})
    return lambda columns: factor.solve(np.ascontiguousarray(columns))


@dataclass(frozen=True)
class DenseInverse:
    """The inverse of a small matrix."""

    matrix: np.ndarray

    @classmethod
    def of(cls, matrix: sparse.csr_array) -> DenseInverse:
        """Invert by the Cholesky factor; LAPACK fills one triangle."""
        # The transpose of a symmetric matrix is the Fortran order that LAPACK works on in place.
        factor, failed = dpotrf(matrix.toarray().T, lower=1, clean=1, overwrite_a=1)
        if failed:
            raise SingularSystemError("The graph-level matrix is not positive definite. Use a larger ridge.")
        half = dpotri(factor, lower=1, overwrite_c=1)[0]
        inverse = half + half.T
        np.fill_diagonal(inverse, half.diagonal())
        return cls(np.ascontiguousarray(inverse))

    def __call__(self, columns: np.ndarray) -> np.ndarray:
        """The solution, shape like `columns`."""
        return self.matrix @ columns


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
        hierarchy = pyamg.smoothed_aggregation_solver(
            sparse.csr_matrix(matrix), strength=strength, smooth=smooth, max_coarse=200
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
    """One in place of zero: an empty aggregate is prolonged to nothing, so that any value will do."""
    return np.where(diagonal > 0, diagonal, 1.0)
