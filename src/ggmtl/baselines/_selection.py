"""Choose strengths by cross-validation, from the losses of the folds alone.

error(c) = Σ_k ‖y_k − X_k V_{−k}(c)‖² / Σ_k N_k ,     V_{−k}(c) fitted to all folds but k.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ggmtl.errors import ParameterError
from ggmtl.statistics.least_squares import LeastSquares, sum_of

# Candidates whose errors differ by less than this share count as equal, and the stronger is taken.
_TIE = 1e-9


@dataclass(frozen=True)
class FoldErrors:
    """Mean squared error on held-out rows of every candidate, in scaled units.

    Parameters
    ----------
    candidates : tuple
        The grid, strongest first.
    errors : array of shape (candidates,)
        Squared error pooled over folds and tasks, per row.
    """

    candidates: tuple
    errors: np.ndarray

    @property
    def smallest(self) -> float:
        """Error of the candidate chosen."""
        return float(self.errors.min())


def select_by_folds(
    folds: Sequence[LeastSquares],
    grid: Sequence[Any],
    fit: Callable[[LeastSquares, Any], np.ndarray],
    scored: Iterable[int] | None = None,
) -> tuple[Any, FoldErrors]:
    """Return the candidate with the smallest held-out error, and the errors of all.

    Parameters
    ----------
    folds : list of LeastSquares
        Loss of every fold.
    grid : sequence
        Candidates, strongest regularisation first: the first wins a tie.
    fit : callable
        ``fit(loss, candidate)`` returns coefficients, shape (n, p).
    scored : iterable of int, optional
        Folds that are held out in turn; all unless told. The others train every time.
    """
    return select_by_paths(folds, grid, lambda loss, path: (fit(loss, candidate) for candidate in path), scored)


def select_by_paths(
    folds: Sequence[LeastSquares],
    grid: Sequence[Any],
    fit_path: Callable[[LeastSquares, Sequence[Any]], Iterable[np.ndarray]],
    scored: Iterable[int] | None = None,
) -> tuple[Any, FoldErrors]:
    """As `select_by_folds`, for a method that fits the whole grid in order, each from the one before."""
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
    best = int(np.flatnonzero(errors <= errors.min() * (1.0 + _TIE))[0])
    return grid[best], FoldErrors(tuple(grid), errors)


def rest_of(folds: Sequence[LeastSquares], k: int) -> LeastSquares:
    """The loss over all folds but `k`, added up, not subtracted, so that empty tasks stay exactly empty."""
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
    """Refuse ``"auto"`` where there is nothing to validate on."""
    if n_folds == 0:
        raise ParameterError(
            f'{estimator} chooses {names}="auto" by cross-validation, but the rows have no folds. '
            "Give numbers, validation=5, or statistics with folds (TaskStatistics.from_arrays(..., folds=5))."
        )
