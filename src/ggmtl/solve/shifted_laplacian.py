"""Solve (μ_k I + L) z_k = r_k for many columns k, each with its own shift, on one graph.

spectral        L = E diag(s) Eᵀ once; every column and every later right-hand side is then two products
iterative       conjugate gradients on all columns at once, each with its own step lengths, preconditioned by the
                diagonal where the shift is large and by one hierarchy of aggregates, shifted per column, elsewhere
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse
from scipy.linalg import eigh

from ggmtl import kernels
from ggmtl.runtime.sizes import SIZES
from ggmtl.solve.preconditioners import AggregationCycle, Preconditioner

_STEPS = 1000
_PATIENCE = 100
# As in `AggregationCycle`: inverse Chebyshev nodes of [1/8, 1].
_STEP_LENGTHS = tuple(1.0 / (9 / 16 + 7 / 16 * np.cos(np.pi * np.array([1, 3]) / 4)))


def conditions(laplacian: sparse.csr_array, shifts: np.ndarray) -> np.ndarray:
    """About (μ_k + 2 · largest degree)/μ_k, the condition number of every column, shape (q,)."""
    return 1.0 + 2.0 * laplacian.diagonal().max(initial=0.0) / shifts


@dataclass(frozen=True)
class SpectralGraph:
    """L = E diag(s) Eᵀ, for small graphs."""

    spectrum: np.ndarray
    vectors: np.ndarray

    @classmethod
    def of(cls, laplacian: sparse.csr_array) -> SpectralGraph:
        """Decompose."""
        spectrum, vectors = eigh(laplacian.toarray(), driver="evd", overwrite_a=True, check_finite=False)
        return cls(np.maximum(spectrum, 0.0), vectors)

    def solve(self, right: np.ndarray, shifts: np.ndarray, goal: np.ndarray) -> tuple[np.ndarray, int]:
        """Solution, shape (n, q), and no step; `goal` is not needed."""
        return self.vectors @ ((self.vectors.T @ right) / (self.spectrum[:, None] + shifts)), 0


@dataclass(frozen=True)
class IterativeGraph:
    """Conjugate gradients on all columns at once."""

    laplacian: sparse.csr_array
    lowest: float
    jacobi_condition: float = SIZES.jacobi_condition

    @cached_property
    def hierarchy(self) -> ShiftedAggregation:
        """The preconditioner of the hard columns, built when the first of them comes."""
        return ShiftedAggregation.of(self.laplacian, self.lowest)

    def solve(self, right: np.ndarray, shifts: np.ndarray, goal: np.ndarray) -> tuple[np.ndarray, int]:
        """Solution, shape (n, q), with ‖r_k − (μ_k + L) z_k‖ ≤ goal_k for shifts and goals (q,), and steps taken."""
        hard = conditions(self.laplacian, shifts) > self.jacobi_condition
        if not hard.any():
            return self._columns(right, shifts, goal, self._jacobi)
        value, steps = np.empty_like(right), 0
        for part, preconditioner in ((hard, self.hierarchy.at), (~hard, self._jacobi)):
            if part.any():
                value[:, part], taken = self._columns(right[:, part], shifts[part], goal[part], preconditioner)
                steps = max(steps, taken)
        return value, steps

    def _jacobi(self, shifts: np.ndarray) -> Preconditioner:
        inverse = 1.0 / (self.laplacian.diagonal()[:, None] + shifts)
        return lambda residual: inverse * residual

    def _columns(
        self,
        right: np.ndarray,
        shifts: np.ndarray,
        goal: np.ndarray,
        preconditioner: Callable[[np.ndarray], Preconditioner],
    ) -> tuple[np.ndarray, int]:
        out = np.zeros_like(right)
        active = np.flatnonzero(np.linalg.norm(right, axis=0) > goal)
        value, residual = np.zeros((len(right), len(active))), np.take(right, active, axis=1)
        direction, previous = np.zeros_like(value), np.ones(len(active))
        precondition = preconditioner(shifts[active])
        steps, best, since_best = 0, np.inf, 0
        while len(active) and steps < _STEPS and since_best < _PATIENCE:
            correction = precondition(residual)
            product = np.einsum("nq,nq->q", residual, correction)
            direction *= _ratio(product, previous)
            direction += correction
            image = kernels.sparse_product(self.laplacian, direction)
            image += np.multiply(shifts[active], direction, out=correction)
            alpha = _ratio(product, np.einsum("nq,nq->q", direction, image))
            value += np.multiply(alpha, direction, out=correction)
            residual -= np.multiply(alpha, image, out=image)
            previous, steps = product, steps + 1
            norm = np.sqrt(np.einsum("nq,nq->q", residual, residual))
            keep = norm > goal[active]
            farthest = (norm / np.maximum(goal[active], np.finfo(float).tiny)).max()
            best, since_best = (farthest, 0) if farthest < 0.99 * best else (best, since_best + 1)
            # Taking columns out costs a copy of all that stay; so few at a time are carried along.
            if 4 * keep.sum() <= 3 * len(active):
                out[:, active] = value
                active, best, since_best = active[keep], np.inf, 0
                # Not by an index, which would turn rows into columns in memory.
                value, residual, direction = (np.compress(keep, a, axis=1) for a in (value, residual, direction))
                previous, precondition = previous[keep], preconditioner(shifts[active])
        out[:, active] = value
        return out, steps


@dataclass(frozen=True)
class ShiftedAggregation:
    """One V-cycle for μ_k I + L with the very shift of every column.

    Aggregates are those of μ I + L for the smallest shift μ. On level l the matrix of column k is
    A_l + (μ_k − μ) M_l with M_l = PᵀM_{l−1}P, so one hierarchy serves all; on the coarsest level the eigenvectors of
    (A_l, M_l) do.
    """

    reference: float
    levels: tuple[tuple[sparse.csr_array, sparse.csr_array, sparse.csr_array, float], ...]
    spectrum: np.ndarray
    vectors: np.ndarray

    @classmethod
    def of(cls, laplacian: sparse.csr_array, reference: float) -> ShiftedAggregation:
        """Build the hierarchy."""
        n = len(laplacian.diagonal())
        identity = sparse.csr_array(sparse.eye_array(n))
        A, M = sparse.csr_array(laplacian + reference * identity), identity
        levels = []
        for fine, P, _ in AggregationCycle.of(A).levels:
            A = fine
            # Row sums of |A + cM| are at most the larger bound of the two times the diagonal, whatever c ≥ 0.
            levels.append((A, M, P, max(_bound(A), _bound(M))))
            A, M = sparse.csr_array(P.T @ A @ P), sparse.csr_array(P.T @ M @ P)
        coarse, mass = A.toarray(), M.toarray()
        for matrix in (coarse, mass):
            np.fill_diagonal(matrix, np.where(mass.diagonal() > 0, matrix.diagonal(), 1.0))
        return cls(reference, tuple(levels), *eigh(coarse, mass))

    def at(self, shifts: np.ndarray) -> Preconditioner:
        """A symmetric positive definite map per column that nearly solves (μ_k I + L) z_k = r_k."""
        offsets = np.maximum(shifts - self.reference, 0.0)
        inverses = [
            1.0 / (bound * (A.diagonal()[:, None] + offsets * M.diagonal()[:, None])) for A, M, _, bound in self.levels
        ]
        return lambda right: self._descend(0, right, offsets, inverses)

    def _descend(self, depth: int, right: np.ndarray, offsets: np.ndarray, inverses: list[np.ndarray]) -> np.ndarray:
        if depth == len(self.levels):
            return self.vectors @ ((self.vectors.T @ right) / (self.spectrum[:, None] + offsets))
        A, M, P, _ = self.levels[depth]

        def smoothed(length: float, value: np.ndarray) -> np.ndarray:
            step = rest(value)
            step *= inverses[depth]
            step *= length
            return step

        def rest(value: np.ndarray) -> np.ndarray:
            image = kernels.sparse_product(A, value)
            image += offsets * (value if depth == 0 else M @ value)
            return np.subtract(right, image, out=image)

        value = _STEP_LENGTHS[0] * inverses[depth] * right
        for length in _STEP_LENGTHS[1:]:
            value += smoothed(length, value)
        value += P @ self._descend(depth + 1, P.T @ rest(value), offsets, inverses)
        for length in reversed(_STEP_LENGTHS):
            value += smoothed(length, value)
        return value


def _ratio(over: np.ndarray, under: np.ndarray) -> np.ndarray:
    """over/under; zero for columns that are solved to the last bit."""
    return np.divide(over, under, out=np.zeros_like(over), where=under > 0)


def _bound(matrix: sparse.csr_array) -> float:
    """‖D⁻¹A‖_∞, not below the spectral radius."""
    diagonal = matrix.diagonal()
    return float((abs(matrix).sum(axis=1) / np.where(diagonal > 0, diagonal, 1.0)).max())
