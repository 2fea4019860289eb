"""Rows that have the sums of a task, for tasks with far fewer rows than coefficients.

G_i = R_iᵀR_i with R_i of r rows: where r is well below p, products, inverses and determinants of G_i plus a diagonal
cost O(r p²) by R_i (Woodbury) instead of O(p³).
"""

from __future__ import annotations

import numpy as np

from ggmtl.runtime.sizes import SIZES, Sizes

# r is at most this share of p.
_RANK_SHARE = 1 / 3
# Share of a diagonal entry that may be left after r steps: rounding.
_ROUNDING = 1e-14
_GLANCE = 4


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
