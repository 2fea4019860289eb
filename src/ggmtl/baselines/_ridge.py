"""Ridge regression of every task for a whole grid of penalties, from one eigendecomposition.

w_i(ρ) = argmin ½‖y_i − X_i w − b‖² + ½ρ‖w‖² = U_i (Λ_i + ρ)⁻¹ U_iᵀ m_i ,     G_i = U_i Λ_i U_iᵀ
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ggmtl.baselines._centred import CentredLoss, centre
from ggmtl.baselines._selection import FoldErrors, select_by_paths
from ggmtl.statistics.least_squares import LeastSquares, sum_of
from ggmtl.statistics.task_statistics import TaskStatistics

# Eigenvalues of a gram matrix below this share of its trace are rounding noise.
_NULL = 1e-13
_DECADES = np.linspace(3.0, -5.0, 17)


@dataclass(frozen=True)
class RidgeFactor:
    """Eigenvalues, eigenvectors and rotated moments of every task; `solve` then costs O(n d²)."""

    loss: CentredLoss
    eigenvalues: np.ndarray
    eigenvectors: np.ndarray
    rotated: np.ndarray

    @classmethod
    def of(cls, loss: CentredLoss) -> RidgeFactor:
        """Factorise the gram matrices."""
        eigenvalues, eigenvectors = np.linalg.eigh(loss.gram)
        null = eigenvalues <= _NULL * loss.magnitude[:, None]
        rotated = np.einsum("nkj,nk->nj", eigenvectors, loss.moment)
        return cls(loss, np.where(null, 0.0, eigenvalues), eigenvectors, np.where(null, 0.0, rotated))

    def solve(self, ridge: float) -> np.ndarray:
        """Coefficients with intercepts, shape (n, p); the minimum-norm solution for a ridge of zero."""
        shifted = self.eigenvalues + ridge
        scaled = self.rotated / np.where(shifted > 0, shifted, 1.0)
        return self.loss.with_intercepts(np.einsum("nkj,nj->nk", self.eigenvectors, scaled))

    def evidence(self, ridge: float) -> float:
        """−ln p(y), σ² profiled: ½ν ln Q + ½ Σ ln|I + G_i/ρ|, ν = rows less intercepts, Q = 2 · minimum."""
        explained = (self.rotated**2 / (self.eigenvalues + ridge)).sum()
        quadratic = max(self.loss.target_square.sum() - explained, np.finfo(float).tiny)
        freedom = self.loss.degrees_of_freedom.sum()
        return 0.5 * (freedom * np.log(quadratic) + np.log1p(self.eigenvalues / ridge).sum())


def ridge_grid(loss: LeastSquares, intercept: bool) -> list[float]:
    """Penalties around the mean curvature of a task, strongest first; free of units and of row counts."""
    reference = float(np.trace(centre(loss, intercept).gram, axis1=1, axis2=2).mean())
    reference /= max(loss.n_features - intercept, 1)
    return [(reference if reference > 0 else 1.0) * 10.0**power for power in _DECADES.tolist()]


def choose_ridge(
    folds: Sequence[LeastSquares], statistics: TaskStatistics, intercept: bool, scored: tuple[int, ...]
) -> tuple[float, FoldErrors | None]:
    """Ridge by cross-validation, or by evidence when the rows were not dealt into folds."""
    total = sum_of(folds)
    grid = ridge_grid(total, intercept)
    if statistics.n_folds == 0:
        factor = RidgeFactor.of(centre(total, intercept))
        return min(grid, key=factor.evidence), None

    def fit_path(loss: LeastSquares, path: Sequence[float]):
        factor = RidgeFactor.of(centre(loss, intercept))
        return (factor.solve(ridge) for ridge in path)

    return select_by_paths(folds, grid, fit_path, scored)
