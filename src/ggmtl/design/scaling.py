"""From the units of the data to those of the models, and back, without touching a row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ggmtl.errors import InputError
from ggmtl.statistics.least_squares import LeastSquares, least_squares
from ggmtl.statistics.task_statistics import TaskStatistics

# Beside the mean of a constant column, its rounding noise is nothing at this scale.
_VANISHING = 1e30
# Noise of this size is nothing beside the ridge as it is.
_HARMLESS = 1e-10


@dataclass(frozen=True)
class Scaling:
    """Centre and scale of the columns, and whether a constant column is appended.

    Models are fitted to z = ((x − center)/scale, 1) and (y − target_center)/target_scale.
    """

    center: np.ndarray
    scale: np.ndarray
    target_center: float
    target_scale: float
    intercept: bool

    @classmethod
    def from_statistics(cls, statistics: TaskStatistics, intercept: bool, standardize: bool) -> Scaling:
        """Pooled mean and standard deviation of every column; no centring without an intercept."""
        statistics.check_counts()
        pooled = statistics.cross.sum(axis=(0, 1))
        count = pooled[-2, -2]
        if not count > 0:
            raise InputError("The statistics have no rows: there is nothing to learn from.")
        shift = np.delete(pooled[-2], -2) / count
        square = np.delete(np.diag(pooled), -2) / count
        center = statistics.origin + shift
        if intercept:
            spread = np.sqrt(np.maximum(square - shift**2, 0.0))
        else:
            spread = np.sqrt(np.maximum(square - shift**2, 0.0) + center**2)
            center = np.zeros_like(center)
        # A column whose spread is rounding noise beside its mean is constant: leave it alone.
        spread[spread <= 1e-11 * np.abs(statistics.origin + shift)] = 0.0
        scale = np.where(spread > 0, spread, 1.0)
        features = scale[:-1] if standardize else np.ones(len(scale) - 1)
        # Where such noise is left after centring, make it vanish: a slope on it would be as large as it is wrong.
        noisy = ((spread == 0) & (np.sqrt(square) > _HARMLESS))[:-1]
        features[noisy] = _VANISHING * np.maximum(np.abs(center[:-1][noisy]), 1.0)
        return cls(center[:-1], features, float(center[-1]), float(scale[-1]), intercept)

    def design(self, statistics: TaskStatistics) -> list[LeastSquares]:
        """The squared loss of every fold in scaled units."""
        scaled = statistics.transformed(self.center, self.scale, self.target_center, self.target_scale)
        return [least_squares(cross, self.intercept) for cross in scaled.cross]

    def to_user_units(self, coefficients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Slopes (…, d) and intercepts (…,) in the units of the data."""
        slopes = coefficients[..., : len(self.scale)] * (self.target_scale / self.scale)
        intercept = self.target_center - slopes @ self.center
        if self.intercept:
            intercept = intercept + coefficients[..., -1] * self.target_scale
        return slopes, intercept

    def to_scaled_units(self, slopes: np.ndarray, intercept: np.ndarray) -> np.ndarray:
        """The inverse of :meth:`to_user_units`: coefficients (…, p)."""
        scaled = slopes * (self.scale / self.target_scale)
        if not self.intercept:
            return scaled
        constant = (intercept - self.target_center + slopes @ self.center) / self.target_scale
        return np.concatenate([scaled, constant[..., None]], axis=-1)

    def design_rows(self, X: np.ndarray) -> np.ndarray:
        """Scaled features of new rows, with the constant column if there is one."""
        scaled = (X - self.center) / self.scale
        return np.column_stack([scaled, np.ones(len(X))]) if self.intercept else scaled
