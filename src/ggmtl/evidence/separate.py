"""Separate models: ridge regression for every task, its strength by the restricted likelihood of its own rows.

With y_i ~ N(1 b_i, σ_i²I + τ_i²X_iX_iᵀ) and κ = σ_i²/τ_i², the model of a task is ridge regression of strength κ, and

    f(κ) = ½ν ln Q(κ) + ½ Σ_k ln(1 + λ_k/κ) − ½ ln h(1 − h) ,    Q = yᵀy − Σ_k a_k²/(λ_k + κ) ,    h = κ/(κ + s) .

λ are the eigenvalues of XᵀX and a the moments along its eigenvectors, after the intercept has been taken out, ν the
degrees of freedom and s the mean of λ. The last term is a weak prior, Beta(1.5, 1.5), on the share h of shrinkage:
without it a task with fewer rows than features could take its noise for zero.
"""

from __future__ import annotations

import numpy as np

from ggmtl.statistics.least_squares import LeastSquares

# Strengths tried, in multiples of the mean eigenvalue of a task.
_GRID = np.geomspace(1e-6, 1e6, 49)
# Numbers held at a time.
_CHUNK = 1 << 22


def ridge_strengths(loss: LeastSquares, slopes: np.ndarray) -> np.ndarray:
    """κ of every task, shape (n,); for tasks without rows, or of one row, the median of the others."""
    n, p = loss.moment.shape
    strengths = np.full(n, np.nan)
    step = max(1, _CHUNK // max(p * p, p * len(_GRID)))
    for first in range(0, n, step):
        rows = slice(first, min(first + step, n))
        part = LeastSquares(loss.gram[rows], loss.moment[rows], loss.target_square[rows], loss.count[rows])
        strengths[rows] = _strengths(part, slopes)
    known = np.isfinite(strengths)
    usual = float(np.median(strengths[known])) if known.any() else 1.0
    return np.where(known, strengths, usual)


def _strengths(loss: LeastSquares, slopes: np.ndarray) -> np.ndarray:
    gram, moment, square, freedom = _without_intercept(loss, slopes)
    spectrum, vectors = np.linalg.eigh(gram)
    spectrum = np.maximum(spectrum, 0.0)
    along = np.einsum("npk,np->nk", vectors, moment) ** 2
    unit = spectrum.mean(axis=1)
    known = (freedom >= 1.0) & (unit > 0) & (square > 0)
    unit = np.where(known, unit, 1.0)
    kappa = unit[:, None] * _GRID
    shrunk = spectrum[:, :, None] + kappa[:, None, :]
    misfit = square[:, None] - (along[:, :, None] / shrunk).sum(axis=1)
    misfit = np.maximum(misfit, 1e-14 * square[:, None] + np.finfo(float).tiny)
    share = _GRID / (1.0 + _GRID)
    criterion = (
        freedom[:, None] * np.log(misfit)
        + np.log1p(spectrum[:, :, None] / kappa[:, None, :]).sum(axis=1)
        - np.log(share * (1.0 - share))
    )
    best = kappa[np.arange(len(kappa)), criterion.argmin(axis=1)]
    return np.where(known, best, np.nan)


def _without_intercept(loss: LeastSquares, slopes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """XᵀX, Xᵀy and yᵀy of every task after its intercept has been fitted, and its degrees of freedom."""
    free = np.flatnonzero(~slopes)
    if not len(free):
        return loss.gram, loss.moment, loss.target_square, loss.count
    column = int(free[0])
    count = loss.gram[:, column, column]
    known = np.where(count > 0, count, 1.0)
    means, level = loss.gram[:, slopes, column] / known[:, None], loss.moment[:, column] / known
    gram = loss.gram[:, slopes][:, :, slopes] - known[:, None, None] * means[:, :, None] * means[:, None, :]
    moment = loss.moment[:, slopes] - known[:, None] * means * level[:, None]
    square = np.maximum(loss.target_square - known * level**2, 0.0)
    return gram, moment, square, loss.count - (count > 0)
