"""The squared loss of every task as a quadratic in its coefficients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from ggmtl.errors import ParameterError
from ggmtl.runtime.sizes import SIZES, Sizes

# r is at most this share of p.
_RANK_SHARE = 1 / 3
# Share of a diagonal entry that may be left after r steps: rounding.
_ROUNDING = 1e-14
# About this many tasks are looked at first: if one of them has too many rows, the others need not be factorised.
_GLANCE = 4


@dataclass(frozen=True)
class LeastSquares:
    """½ Σ_i ‖X_i w_i − y_i‖² = ½ Σ_i (wᵢᵀ G_i wᵢ − 2 m_iᵀ wᵢ + t_i), without the rows.

    Parameters
    ----------
    gram : array of shape (n, p, p)
        G_i = X_iᵀ X_i.
    moment : array of shape (n, p)
        m_i = X_iᵀ y_i.
    target_square : array of shape (n,)
        t_i = y_iᵀ y_i.
    count : array of shape (n,)
        Rows (sum of weights) of each task.
    noise : float, optional
        σ², where it is known (the dispersion φ of counts, one for classes); estimated along with the models where None.
    """

    gram: np.ndarray
    moment: np.ndarray
    target_square: np.ndarray
    count: np.ndarray
    noise: float | None = None
    on_device: ClassVar[bool] = False

    def near(self, start: Any) -> LeastSquares:
        """The same loss; its optimum takes one step from wherever a search starts."""
        return self

    @property
    def n_tasks(self) -> int:
        """Number of tasks."""
        return len(self.gram)

    @property
    def n_features(self) -> int:
        """Number of coefficients of a task."""
        return self.gram.shape[-1]

    @cached_property
    def few_rows(self) -> np.ndarray | None:
        """R_i with R_iᵀR_i = G_i, shape (n, r, p), where all tasks have far fewer rows than coefficients, else None."""
        return few_rows(self.gram)

    def of_tasks(self, tasks: np.ndarray) -> LeastSquares:
        """The loss of some tasks."""
        return LeastSquares(
            self.gram[tasks], self.moment[tasks], self.target_square[tasks], self.count[tasks], self.noise
        )

    def of_columns(self, columns: np.ndarray) -> LeastSquares:
        """The loss of models whose coefficients are zero but for these."""
        return replace(self, gram=self.gram[:, columns[:, None], columns], moment=self.moment[:, columns])

    def scaled(self, unit: np.ndarray, order: np.ndarray | None = None) -> LeastSquares:
        """The same loss as a function of coefficients times `unit`, its tasks in another order if one is given."""
        loss = self if order is None else self.of_tasks(order)
        # In place where the tasks have been copied already: these arrays may fill much of the memory.
        gram = np.divide(loss.gram, np.outer(unit, unit), out=None if order is None else loss.gram)
        return LeastSquares(gram, loss.moment / unit, loss.target_square, loss.count, loss.noise)

    def weighted(self, weights: np.ndarray) -> LeastSquares:
        """The loss with a weight for every task, shape (n,); rows count as before."""
        gram = weights[:, None, None] * self.gram
        return LeastSquares(gram, weights[:, None] * self.moment, weights * self.target_square, self.count, self.noise)

    def shifted(self, models: np.ndarray) -> LeastSquares:
        """The loss as a function of deviations from given models, shape (n, p)."""
        fitted = np.matmul(self.gram, models[..., None])[..., 0]
        square = self.target_square + np.einsum("np,np->n", fitted - 2.0 * self.moment, models)
        return replace(self, moment=self.moment - fitted, target_square=np.maximum(square, 0.0))

    def pooled(self) -> tuple[np.ndarray, np.ndarray]:
        """Σ_i G_i and Σ_i m_i, shapes (p, p) and (p,)."""
        return self.gram.sum(axis=0), self.moment.sum(axis=0)

    def alone(self, ridge: np.ndarray) -> np.ndarray:
        """The minimum of every task on its own rows, with ridges of shape (n, p); the shortest of several minima."""
        blocks = self.gram + ridge[:, :, None] * np.eye(self.n_features)
        try:
            return np.linalg.solve(blocks, self.moment[..., None])[..., 0]
        except np.linalg.LinAlgError:
            return np.matmul(np.linalg.pinv(blocks, hermitian=True), self.moment[..., None])[..., 0]

    def joined(self, others: Sequence[LeastSquares]) -> LeastSquares:
        """The loss over these rows and those of the others."""
        gram, moment = self.gram.copy(), self.moment.copy()
        target_square, count = self.target_square.copy(), self.count.copy()
        for loss in others:
            gram += loss.gram
            moment += loss.moment
            target_square += loss.target_square
            count += loss.count
        return LeastSquares(gram, moment, target_square, count, self.noise)

    def absorb(self, other: LeastSquares) -> LeastSquares:
        """The loss over these rows and those of another. Its arrays are those of this loss, which are overwritten."""
        for name in ("gram", "moment", "target_square", "count"):
            mine = getattr(self, name)
            mine += getattr(other, name)
        # A new object: what this one has computed from its arrays is no longer true.
        return replace(self)

    def gradient(self, coefficients: np.ndarray) -> np.ndarray:
        """X_iᵀ(X_i w_i − y_i) of every task, shape (n, p)."""
        return np.matmul(self.gram, coefficients[..., None])[..., 0] - self.moment

    def task_values(self, coefficients: np.ndarray) -> np.ndarray:
        """½‖X_i w_i − y_i‖² of every task, shape (n,)."""
        cross = np.einsum("np,np->n", self.gradient(coefficients) - self.moment, coefficients)
        return np.maximum(0.5 * (cross + self.target_square), 0.0)

    def cross_products(self, models: Sequence[np.ndarray]) -> np.ndarray:
        """(X_i w_i − y_i)ᵀ(X_i w'_i − y_i) of every task and every pair of models, shape (n, models, models)."""
        out = np.empty((self.n_tasks, len(models), len(models)))
        for a, left in enumerate(models):
            image = self.gradient(left)
            level = self.target_square - np.einsum("np,np->n", self.moment, left)
            for b, right in enumerate(models[: a + 1]):
                out[:, a, b] = out[:, b, a] = np.einsum("np,np->n", image, right) + level
        squares = np.einsum("nll->nl", out)
        np.maximum(squares, 0.0, out=squares)
        return out

    def value(self, coefficients: np.ndarray) -> float:
        """½ Σ_i ‖X_i w_i − y_i‖²."""
        return float(self.task_values(coefficients).sum())


def least_squares(cross: np.ndarray, intercept: bool) -> LeastSquares:
    """The loss that cross products of (x, 1, y) define, shape (n, d+2, d+2), with or without the constant column."""
    width = cross.shape[-1] - (1 if intercept else 2)
    return LeastSquares(
        cross[:, :width, :width].copy(),
        cross[:, :width, -1].copy(),
        cross[:, -1, -1].copy(),
        cross[:, -2, -2].copy(),
    )


def sum_of(losses: Iterable[LeastSquares]) -> LeastSquares:
    """The loss over the union of rows."""
    first, *rest = losses
    return first.joined(rest) if rest else first


def sum_over_tasks(values: np.ndarray) -> np.ndarray:
    """The sum of (n, k) numbers over the tasks, shape (k,), exactly the same for every order of the tasks."""
    return np.sort(values.T, axis=1).sum(axis=1)


def single_rows(loss: LeastSquares) -> bool:
    """Whether no task has two rows that differ: G_i = g zzᵀ, m_i = g y z and t_i = g y² for each."""
    if loss.n_features == 1:
        # Several rows whose targets are proportional to the feature look like one row; only their number differs.
        return float(loss.count.max(initial=0.0)) <= 1.0
    trace = np.einsum("nkk->n", loss.gram)
    # In units of each task, so that squares of squares do not overflow; a task without rows has no unit.
    unit = np.where(trace > 0, trace, 1.0)
    gram, moment = loss.gram / unit[:, None, None], loss.moment / np.sqrt(unit)[:, None]
    one = np.einsum("nkl,nkl->n", gram, gram) >= (1.0 - 1e-12) * (trace > 0)
    return bool((one & ((moment**2).sum(axis=1) >= (1.0 - 1e-12) * loss.target_square)).all())


@dataclass(frozen=True)
class FoldedLoss:
    """The loss of every fold, and which folds are held out in turn.

    Parameters
    ----------
    parts : tuple of LeastSquares
        One per fold.
    first_scored : int
        Folds before this one are in every training part and never held out.
    """

    parts: tuple[LeastSquares, ...]
    first_scored: int = 0

    @cached_property
    def total(self) -> LeastSquares:
        """The loss over all rows."""
        return sum_of(self.parts)

    @property
    def scored(self) -> tuple[int, ...]:
        """Numbers of the folds that can be held out: those with rows, where rows are left to train on."""
        rows = [float(part.count.sum()) for part in self.parts]
        return tuple(k for k in range(self.first_scored, len(rows)) if 0 < rows[k] < sum(rows))

    def training(self, k: int) -> LeastSquares:
        """The loss over the rows outside fold `k`."""
        return sum_of(part for j, part in enumerate(self.parts) if j != k)

    def weighted(self, weights: np.ndarray) -> FoldedLoss:
        """The same folds with a weight for the loss of every task, shape (n,)."""
        return FoldedLoss(tuple(part.weighted(weights) for part in self.parts), self.first_scored)

    def shifted(self, models: np.ndarray) -> FoldedLoss:
        """The same folds as functions of deviations from given models, shape (n, p)."""
        return FoldedLoss(tuple(part.shifted(models) for part in self.parts), self.first_scored)

    def of_columns(self, columns: np.ndarray) -> FoldedLoss:
        """The same folds, for models whose coefficients are zero but for these."""
        return FoldedLoss(tuple(part.of_columns(columns) for part in self.parts), self.first_scored)

    def without(self, k: int) -> FoldedLoss:
        """The folds other than `k`, kept separate."""
        if k not in self.scored:
            raise ParameterError(f"Fold {k} is not held out.")
        return FoldedLoss(self.parts[:k] + self.parts[k + 1 :], self.first_scored)


# ---------------------------------------------------------------------- tasks with far fewer rows than coefficients
#
# G_i = R_iᵀR_i with R_i of r rows: where r is well below p, products, inverses and determinants of G_i plus a diagonal
# cost O(r p²) by R_i (Woodbury) instead of O(p³).


def few_rows(gram: np.ndarray, sizes: Sizes = SIZES) -> np.ndarray | None:
    """R of shape (n, r, p); None where blocks are small or some task has too large a rank."""
    n, p = gram.shape[:2]
    if p < sizes.low_rank_width or gram.size < sizes.low_rank_numbers:
        return None
    few, most = gram[:: max(1, n // _GLANCE)], int(_RANK_SHARE * p)
    trace, square = np.einsum("npp->n", few), np.einsum("npq,npq->n", few, few)
    # The rank is at least (tr G)²/tr G², so most data of full rank are recognised without a factor.
    if (trace**2 > _RANK_SHARE * p * square).any() or factor_rows(few, most) is None:
        return None
    return factor_rows(gram, most)


def spectra(gram: np.ndarray, moment: np.ndarray, rows: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues of every G_i, rising, and squares of m_i along its eigenvectors, shapes (n, k).

    m_i must be in the span of G_i. With few rows R (else None) most eigenvalues are zero; these are left out.
    """
    if rows is None:
        spectrum, vectors = np.linalg.eigh(gram)
        return spectrum, np.einsum("npk,np->nk", vectors, moment) ** 2
    spectrum, vectors = np.linalg.eigh(rows @ rows.transpose(0, 2, 1))
    along = np.einsum("nrk,nr->nk", vectors, np.matmul(rows, moment[..., None])[..., 0]) ** 2
    spectrum = np.maximum(spectrum, 0.0)
    known = spectrum > _ROUNDING * gram.shape[1] * spectrum[:, -1:]
    return spectrum, np.where(known, along / np.where(known, spectrum, 1.0), 0.0)


def factor_rows(gram: np.ndarray, most: int) -> np.ndarray | None:
    """R of shape (n, r, p) with RᵀR = G to rounding, by Cholesky steps with pivots; None where r would exceed `most`.

    Each task takes its own pivots: in every step the coordinate of which the largest share is still unexplained.
    """
    n, p = gram.shape[:2]
    task, scale = np.arange(n), np.einsum("npp->np", gram)
    scale = np.where(scale > 0, scale, np.inf)
    left = np.einsum("npp->np", gram).copy()
    rows = np.zeros((n, 8, p))
    for step in range(most + 1):
        pivot = np.argmax(left / scale, axis=1)
        height = left[task, pivot]
        # A task that is fully factorised gets a row of zeros.
        going = height > _ROUNDING * p * scale[task, pivot]
        if not going.any():
            return np.ascontiguousarray(rows[:, : max(step, 1)])
        if step == most:
            return None
        if step == rows.shape[1]:
            rows = np.concatenate([rows, np.zeros_like(rows)], axis=1)
        known = rows[:, :step]
        row = gram[task, pivot] - np.matmul(known[task, :, pivot][:, None, :], known)[:, 0]
        row *= np.where(going, 1.0 / np.sqrt(np.where(going, height, 1.0)), 0.0)[:, None]
        rows[:, step] = row
        left -= row**2
        # Exactly explained, whatever rounding says; else it might be chosen again.
        left[task[going], pivot[going]] = 0.0
    return None
