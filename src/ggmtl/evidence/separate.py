"""Learn the ridges of separate models: how strongly each task shrinks its slopes towards zero, from its own rows.

The intercept is fitted first, which leaves ν degrees of freedom. Each column is scaled by the geometric mean of its
standard deviation in the task and its typical one in all tasks, so a column that hardly varies in a task still gets a
ridge. The model y_i ~ N(1 b_i, σ_i²I + τ_i²X_iX_iᵀ) is ridge regression with strength κ = σ_i²/τ_i². Let λ be the
eigenvalues of XᵀX and a the components of Xᵀy along its eigenvectors. The negative log restricted likelihood and the
generalised cross-validation error are

    f(κ)   = ½ν ln Q(κ) + ½ Σ_k ln(1 + λ_k/κ) − ½ ln h(1 − h) ,   Q = yᵀy − Σ_k a_k²/(λ_k + κ) ,   h = κ/(κ + λ̄)
    GCV(κ) = ν (yᵀy − Σ_k a_k² (λ_k + 2κ)/(λ_k + κ)²) / (ν − Σ_k λ_k/(λ_k + κ))²

The last term of f is a weak prior, Beta(1.5, 1.5), on the share h of shrinkage: without it a task with fewer rows than
features could take its noise for zero. The likelihood assumes slopes of one size. Where they differ in size, it shrinks
the large ones too much. So cross-validation over all tasks decides between the ridges of lowest f and a ten-thousandth
of them. No ridge at all would let a task explode where its rows hardly vary along some direction.
"""

from __future__ import annotations

import numpy as np

from ggmtl.evidence.hub_sums import chunks
from ggmtl.statistics.least_squares import LeastSquares

# Values of κ that are tried, in multiples of the mean eigenvalue of a task.
_GRID = np.geomspace(1e-6, 1e6, 49)
# A variance within a task below this share of the mean variance counts as rounding error.
_NO_SPREAD = 1e-8
# Steps of the grid between a ridge and its weak form, a ten-thousandth of it. Where no ridge is best, a hundredth lifts
# the error by up to 3 % (AER/OECDGas). No ridge at all once missed a row by 49 standard deviations (curves of
# ggplot2/txhousing).
_WEAK = 16
# Degrees of freedom that a weak ridge must leave to be judged by its residuals.
_SPARE = 2.0


def separate_ridges(loss: LeastSquares, slopes: np.ndarray) -> np.ndarray:
    """Ridge of every task and coefficient, zero for intercepts, shape (n, p).

    Tasks with no row or one row get the median κ of the others.
    """
    n, p = loss.moment.shape
    gram, moment, square, freedom = without_intercept(loss, slopes)
    # Weights may add up to less than one row, and sums of squares of a constant column to less than nothing.
    rows = np.maximum(freedom, 0.0)
    variance = np.maximum(np.einsum("nkk->nk", gram), 0.0) / np.maximum(rows, 1.0)[:, None]
    mean = rows @ variance / max(float(rows.sum()), 1.0)
    unit = np.sqrt(np.maximum(variance, _NO_SPREAD * mean)) * np.sqrt(mean)
    unit = np.where(unit > 0, unit, 1.0)
    root = np.sqrt(unit)
    kappa, error = np.empty((2, n)), np.empty((2, n))
    for some in chunks(n, max(p * p, p * len(_GRID))):
        scale = root[some]
        scaled = gram[some] / (scale[:, :, None] * scale[:, None, :]), moment[some] / scale
        kappa[:, some], error[:, some] = _strengths(*scaled, square[some], freedom[some])
    known = np.isfinite(kappa[0])
    chosen = kappa[int(known.any() and _share_of_weak(error[:, known]) < 0.5)]
    chosen = np.where(known, chosen, np.median(chosen[known]) if known.any() else 1.0)
    ridges = np.zeros((n, p))
    ridges[:, slopes] = chosen[:, None] * unit
    return ridges


def _share_of_weak(error: np.ndarray) -> float:
    """Mean over tasks of e_weak/(e_full + e_weak); one where e_weak is infinite.

    Below ½ the weak ridge predicts better.
    """
    full, weak = error
    judged = np.isfinite(weak) & (full + weak > 0)
    share = np.where(np.isfinite(weak), 0.5, 1.0)
    share[judged] = weak[judged] / (full + weak)[judged]
    return float(share.mean())


def _strengths(
    gram: np.ndarray, moment: np.ndarray, square: np.ndarray, freedom: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """κ of lowest f and its weak form, NaN where rows do not tell, and their GCV errors; both of shape (2, n)."""
    spectrum, vectors = np.linalg.eigh(gram)
    spectrum = np.maximum(spectrum, 0.0)[:, :, None]
    along = (np.einsum("npk,np->nk", vectors, moment) ** 2)[:, :, None]
    unit = spectrum.mean(axis=(1, 2))
    known = (freedom >= 1.0) & (unit > 0) & (square > 0)
    kappa = np.where(known, unit, 1.0)[:, None] * _GRID
    shrunk = spectrum + kappa[:, None, :]
    least = 1e-14 * square[:, None] + np.finfo(float).tiny
    misfit = np.maximum(square[:, None] - (along / shrunk).sum(axis=1), least)
    residual = np.maximum(square[:, None] - (along * (shrunk + kappa[:, None, :]) / shrunk**2).sum(axis=1), least)
    spare = np.maximum(freedom[:, None] - (spectrum / shrunk).sum(axis=1), 0.0)
    share = _GRID / (1.0 + _GRID)
    criterion = (
        freedom[:, None] * np.log(misfit)
        + np.log1p(spectrum / kappa[:, None, :]).sum(axis=1)
        - np.log(share * (1.0 - share))
    )
    task, best = np.arange(len(kappa)), criterion.argmin(axis=1)
    both = task, np.stack([best, np.maximum(best - _WEAK, 0)])
    error = freedom * (residual / np.maximum(spare, _SPARE * _GRID[0]) ** 2)[both]
    error[1, spare[both][1] < _SPARE] = np.inf
    return np.where(known, kappa[both], np.nan), error


def without_intercept(loss: LeastSquares, slopes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """XᵀX, Xᵀy and yᵀy of every task after its intercept has been fitted, and its degrees of freedom."""
    free = np.flatnonzero(~slopes)
    if not len(free):
        return loss.gram, loss.moment, loss.target_square, loss.count
    column, used = int(free[0]), _positions(slopes)
    count = loss.gram[:, column, column]
    known = np.where(count > 0, count, 1.0)
    means, level = loss.gram[:, used, column] / known[:, None], loss.moment[:, column] / known
    gram = known[:, None, None] * means[:, :, None]
    gram = gram * means[:, None, :]
    np.subtract(loss.gram[:, used][:, :, used], gram, out=gram)
    moment = loss.moment[:, used] - known[:, None] * means * level[:, None]
    square = np.maximum(loss.target_square - known * level**2, 0.0)
    return gram, moment, square, loss.count - (count > 0)


def _positions(used: np.ndarray) -> np.ndarray | slice:
    """Where a mask is true; a slice, which copies nothing, where that is one range."""
    where = np.flatnonzero(used)
    one_range = len(where) > 0 and where[-1] - where[0] == len(where) - 1
    return slice(int(where[0]), int(where[-1]) + 1) if one_range else where
