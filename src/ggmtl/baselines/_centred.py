"""Least squares with every task's intercept eliminated.

Minimising ‖y_i − X_i w_i − b_i‖² over b_i gives b_i = ȳ_i − x̄_iᵀ w_i, and leaves the same loss in the rows
centred about their task's mean. That is exact, so a penalty on slopes alone never needs the constant column.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ggmtl.statistics.least_squares import LeastSquares


@dataclass(frozen=True)
class CentredLoss:
    """Σ_i ‖y_i − X_i w_i − b_i‖² minimised over the intercepts, as a quadratic in the slopes.

    Parameters
    ----------
    gram, moment, target_square : arrays of shape (n, d, d), (n, d), (n,)
        X_iᵀX_i, X_iᵀy_i and y_iᵀy_i of the centred rows.
    count : array of shape (n,)
        Rows (sum of weights) of each task.
    feature_mean, target_mean : arrays of shape (n, d), (n,)
        x̄_i and ȳ_i; zero where there is no intercept.
    magnitude : array of shape (n,)
        Trace of X_iᵀX_i before centring: what rounding errors in `gram` are relative to.
    has_intercept : bool
        Whether coefficients carry an intercept.
    """

    gram: np.ndarray
    moment: np.ndarray
    target_square: np.ndarray
    count: np.ndarray
    feature_mean: np.ndarray
    target_mean: np.ndarray
    magnitude: np.ndarray
    has_intercept: bool

    @property
    def shape(self) -> tuple[int, int]:
        """Number of tasks and of slopes."""
        return self.moment.shape

    @property
    def degrees_of_freedom(self) -> np.ndarray:
        """Rows of each task less one for its intercept, shape (n,)."""
        return np.maximum(self.count - self.has_intercept, 0.0)

    def with_intercepts(self, slopes: np.ndarray) -> np.ndarray:
        """Append b_i = ȳ_i − x̄_iᵀ w_i, shape (n, p)."""
        if not self.has_intercept:
            return slopes
        intercept = self.target_mean - np.einsum("nd,nd->n", self.feature_mean, slopes)
        return np.column_stack([slopes, intercept])

    def averaged(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Gram, moment and target square divided by the rows of each task: the loss Σ_i (1/N_i)‖·‖²."""
        share = 1.0 / np.where(self.count > 0, self.count, 1.0)
        return self.gram * share[:, None, None], self.moment * share[:, None], self.target_square * share


def centre(loss: LeastSquares, intercept: bool) -> CentredLoss:
    """Eliminate the intercepts of a loss whose last column is the constant, if there is one."""
    n, p = loss.moment.shape
    d = p - 1 if intercept else p
    gram, moment = loss.gram[:, :d, :d], loss.moment[:, :d]
    magnitude = np.trace(gram, axis1=1, axis2=2)
    if not intercept:
        zero = np.zeros(n)
        return CentredLoss(gram, moment, loss.target_square, loss.count, np.zeros((n, d)), zero, magnitude, False)
    rows = np.where(loss.count > 0, loss.count, 1.0)
    feature_sum, target_sum = loss.gram[:, :d, d], loss.moment[:, d]
    mean, target_mean = feature_sum / rows[:, None], target_sum / rows
    return CentredLoss(
        gram - feature_sum[:, :, None] * mean[:, None, :],
        moment - mean * target_sum[:, None],
        np.maximum(loss.target_square - target_mean * target_sum, 0.0),
        loss.count,
        mean,
        target_mean,
        magnitude,
        True,
    )
