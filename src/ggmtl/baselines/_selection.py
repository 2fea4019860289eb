"""Choose strengths by cross-validation, from the losses of the folds alone.

error(c) = Σ_k ‖y_k − X_k V_{−k}(c)‖² / Σ_k N_k ,     V_{−k}(c) fitted to all folds but k.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ggmtl.errors import ParameterError
from ggmtl.statistics.least_squares import LeastSquares, sum_of

# Candidates whose errors differ by less than this share count as equal, and the stronger is taken.
TIE = 1e-9


def select_by_paths(
    folds: Sequence[LeastSquares],
    grid: Sequence[Any],
    fit_path: Callable[[LeastSquares, Sequence[Any]], Iterable[np.ndarray]],
    scored: Iterable[int] | None = None,
) -> tuple[Any, np.ndarray]:
    """The candidate with the smallest held-out error, and the mean squared errors of all, in scaled units.

    Parameters
    ----------
    folds : list of LeastSquares
        Loss of every fold.
    grid : sequence
        Candidates, strongest regularisation first: the first wins a tie.
    fit_path : callable
        ``fit_path(loss, grid)`` yields the coefficients, shape (n, p), of every candidate in order.
    scored : iterable of int, optional
        Folds that are held out in turn; by default all. The others train every time.
    """
    errors = np.zeros(len(grid))
    rows = 0.0
    for k in range(len(folds)) if scored is None else scored:
        if not folds[k].count.any():
            continue
        rows += folds[k].count.sum()
        errors += [2.0 * folds[k].value(coefficients) for coefficients in fit_path(rest_of(folds, k), grid)]
    errors /= max(rows, np.finfo(float).tiny)
    # A candidate whose solver broke down has no finite error and must not win.
    errors = np.where(np.isfinite(errors), errors, np.inf)
    best = int(np.flatnonzero(errors <= errors.min() * (1.0 + TIE))[0])
    return grid[best], errors


def held_out_rmse(errors: np.ndarray | None, target_scale: float) -> float | None:
    """Root mean squared error of the chosen candidate in the user's units; None where nothing was held out."""
    return None if errors is None else float(np.sqrt(errors.min())) * target_scale


def rest_of(folds: Sequence[LeastSquares], k: int) -> LeastSquares:
    """Loss over all folds but `k`. A sum, not a difference, so that empty tasks stay exactly empty."""
    others = [fold for j, fold in enumerate(folds) if j != k]
    if others:
        return sum_of(others)
    only = folds[k]
    return LeastSquares(0.0 * only.gram, 0.0 * only.moment, 0.0 * only.target_square, 0.0 * only.count)


def check_strength(name: str, value: Any) -> float | None:
    """Read a strength: a finite number, not negative, or None for ``"auto"``."""
    if isinstance(value, str) and value == "auto":
        return None
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    number = float(value) if is_number else np.nan
    if not 0 <= number < np.inf:
        raise ParameterError(f'{name} must be a number not below 0 or "auto". Got {value!r} instead.')
    return number


def require_folds(estimator: str, names: str, n_folds: int) -> None:
    """Raise an error if a strength is ``"auto"`` but there are no folds to choose it on."""
    if n_folds == 0:
        raise ParameterError(
            f'{estimator} chooses {names}="auto" by cross-validation, but the rows have no folds. '
            "Give numbers, validation=5, or statistics with folds (TaskStatistics.from_arrays(..., folds=5))."
        )
