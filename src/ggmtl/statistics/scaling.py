"""From the units of the data to those of the models, and back, from sums of rows alone."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ggmtl.data.curves import Curves
from ggmtl.errors import InputError
from ggmtl.statistics.least_squares import LeastSquares, least_squares, sum_over_tasks
from ggmtl.statistics.task_statistics import TaskStatistics

# Scale of a constant column: its rounding noise then vanishes.
_VANISHING = 1e30
# Noise of this size is negligible compared with the ridge.
_HARMLESS = 1e-10
# Share of a column's variation that rounding may leave within tasks.
_WITHIN = 1e-12


@dataclass(frozen=True)
class Scaling:
    """Centre and scale of the columns, and whether a constant column is appended.

    Models are fitted to z = ((x − center)/scale, 1) and (y − target_center)/target_scale. The columns are the features,
    and after them those of their curves. In the units of the data a model is its mean slopes, an intercept, and the
    coefficients of its curves (see :mod:`ggmtl.data.curves`).
    """

    center: np.ndarray
    scale: np.ndarray
    target_center: float
    target_scale: float
    intercept: bool
    curves: Curves = field(default_factory=Curves.none)

    @classmethod
    def from_statistics(
        cls, statistics: TaskStatistics, intercept: bool, standardize: bool, curves: Curves | None = None
    ) -> Scaling:
        """Pooled mean and standard deviation of every column; no centring without an intercept."""
        statistics.check_counts()
        sums = sum_over_tasks(statistics.cross[:, :, -2].sum(axis=0))
        count = sums[-2]
        if not count > 0:
            raise InputError("The statistics have no rows: there is nothing to learn from.")
        squares = sum_over_tasks(np.einsum("fnkk->nk", statistics.cross))
        shift, square = np.delete(sums, -2) / count, np.delete(squares, -2) / count
        center = statistics.origin + shift
        if intercept:
            spread = np.sqrt(np.maximum(square - shift**2, 0.0))
        else:
            spread = np.sqrt(np.maximum(square - shift**2, 0.0) + center**2)
            center = np.zeros_like(center)
        # A column whose spread is rounding noise compared with its mean is constant: it is not scaled.
        spread[spread <= 1e-11 * np.abs(statistics.origin + shift)] = 0.0
        scale = np.where(spread > 0, spread, 1.0)
        features = scale[:-1] if standardize else np.ones(len(scale) - 1)
        # Such noise that remains after centring is scaled to zero: its slope would be large and meaningless.
        noisy = ((spread == 0) & (np.sqrt(square) > _HARMLESS))[:-1]
        features[noisy] = _VANISHING * np.maximum(np.abs(center[:-1][noisy]), 1.0)
        curves = Curves.none() if curves is None else curves
        return cls(center[:-1], features, float(center[-1]), float(scale[-1]), intercept, curves)

    @property
    def n_features(self) -> int:
        """Number of features of the data."""
        return len(self.scale) - self.curves.n_columns

    @property
    def is_linear(self) -> np.ndarray:
        """Which coefficients are those of features and of the constant column, and not of curves, shape (p,)."""
        linear = np.arange(len(self.scale)) < self.n_features
        return np.append(linear, True) if self.intercept else linear

    def constant_within_tasks(self, statistics: TaskStatistics) -> np.ndarray:
        """Which columns differ between tasks and in no task, shape (p,); never the intercept.

        Where most tasks have a single row, every column would be constant, so none is marked.
        """
        width = len(self.scale)
        sums, square = statistics.cross[:, :, :, -2].sum(axis=0), np.einsum("fnkk->nk", statistics.cross)
        count, sums, square = sums[:, -2], sums[:, :width], square[:, :width]
        out = np.zeros(width + self.intercept, dtype=bool)
        known = count > 0
        if known.sum() < 2 or 2 * (count > 1.0 + 1e-9).sum() < known.sum():
            return out
        within = (square - sums**2 / np.where(known, count, 1.0)[:, None]).sum(axis=0)
        total = square.sum(axis=0) - sums.sum(axis=0) ** 2 / count.sum()
        # As for the scale: a spread that is rounding noise compared with the mean counts as zero.
        mean = statistics.origin[:-1] + sums.sum(axis=0) / count.sum()
        varies = total > count.sum() * np.maximum(1e-11 * np.abs(mean), np.finfo(float).tiny ** 0.5) ** 2
        out[:width] = varies & (within <= _WITHIN * total)
        return out

    def design(self, statistics: TaskStatistics) -> list[LeastSquares]:
        """The squared loss of every fold in scaled units."""
        scaled = statistics.transformed(self.center, self.scale, self.target_center, self.target_scale)
        return [least_squares(cross, self.intercept) for cross in scaled.cross]

    def to_user_units(self, coefficients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean slopes (…, d) and intercepts (…,) in the units of the data."""
        slopes = coefficients[..., : len(self.scale)] * (self.target_scale / self.scale)
        # Not a matrix product: its rounding may depend on the position of a task among the others.
        intercept = self.target_center - np.einsum("...k,k->...", slopes, self.center)
        if self.intercept:
            intercept = intercept + coefficients[..., -1] * self.target_scale
        if not self.curves.n_columns:
            return slopes, intercept
        # The columns of a curve have mean zero, so the intercept compensates for their mean slope.
        added = slopes[..., self.n_features :] @ self.curves.mean_slopes(self.n_features)
        return slopes[..., : self.n_features] + added, intercept - added[..., self.curves.features] @ self.curves.means

    def user_map(self) -> np.ndarray:
        """The linear part T of :meth:`to_user_units`: (slopes, intercept) = T w and constants."""
        unit = self.target_scale / self.scale
        slopes = np.vstack([np.eye(self.n_features), self.curves.mean_slopes(self.n_features)]).T * unit
        if not self.intercept:
            return slopes
        constant = -unit * self.center
        constant[self.n_features :] -= self.curves.means @ slopes[self.curves.features, self.n_features :]
        return np.block([[slopes, np.zeros((len(slopes), 1))], [constant, np.array([self.target_scale])]])

    def bends_in_user_units(self, coefficients: np.ndarray) -> np.ndarray:
        """Coefficients of the curves, shape (…, columns of curves), in the units of the target."""
        chosen = slice(self.n_features, len(self.scale))
        return coefficients[..., chosen] * (self.target_scale / self.scale[chosen])

    def to_scaled_units(self, slopes: np.ndarray, intercept: np.ndarray) -> np.ndarray:
        """The inverse of :meth:`to_user_units` without curves: coefficients (…, d + 1)."""
        center, scale = self.center[: self.n_features], self.scale[: self.n_features]
        scaled = slopes * (scale / self.target_scale)
        if not self.intercept:
            return scaled
        constant = (intercept - self.target_center + slopes @ center) / self.target_scale
        return np.concatenate([scaled, constant[..., None]], axis=-1)

    def design_rows(self, X: np.ndarray) -> np.ndarray:
        """Scaled features and curves of new rows, with the constant column if there is one."""
        if self.curves.n_columns:
            X = np.concatenate([X, self.curves.columns(X)], axis=1)
        scaled = (X - self.center) / self.scale
        return np.column_stack([scaled, np.ones(len(X))]) if self.intercept else scaled

    def effect_rows(self, feature: int, values: np.ndarray) -> np.ndarray:
        """Rows r such that r·w is the effect of a feature in the units of the target, shape (values, p).

        It is zero on average over the training rows.
        """
        rows = np.zeros((len(values), len(self.scale) + self.intercept))
        rows[:, feature] = values - self._mean_of(feature)
        rows[:, self.n_features : len(self.scale)] = self.curves.column_of(feature, values)
        rows[:, : len(self.scale)] *= self.target_scale / self.scale
        return rows

    def default_grid(self, feature: int) -> np.ndarray:
        """Fifty values: the range of the training rows, or two deviations about the mean of a straight line."""
        here = np.flatnonzero(self.curves.features == feature)
        center, spread = self.center[feature], 2.0 * self.scale[feature]
        low, high = self.curves.knots[here[0], [0, -1]] if len(here) else (center - spread, center + spread)
        return np.linspace(low, high, 50)

    def _mean_of(self, feature: int) -> float:
        here = np.flatnonzero(self.curves.features == feature)
        return float(self.curves.means[here[0]] if len(here) else self.center[feature])
