"""NumPy forms of the hot loops: the reference that every faster form is tested against."""

from __future__ import annotations

import numpy as np

_CHUNK = 1 << 22  # numbers gathered at a time, so that a copy of the rows is never needed whole


def segment_cross_products(rows: np.ndarray, segment: np.ndarray, n_segments: int) -> np.ndarray:
    """Σ z zᵀ over the rows z of each segment, shape (n_segments, q, q), for rows in any order.

    Segments of equal length are stacked, so that the work is a few batched matrix products whatever the
    number of segments.
    """
    width = rows.shape[1]
    out = np.zeros((n_segments, width, width))
    order = np.argsort(segment, kind="stable")
    length = np.bincount(segment, minlength=n_segments)
    start = np.concatenate([[0], np.cumsum(length)[:-1]])
    for size in np.unique(length[length > 0]):
        members = np.flatnonzero(length == size)
        per_chunk = max(1, _CHUNK // (size * width))
        for first in range(0, len(members), per_chunk):
            chunk = members[first : first + per_chunk]
            block = rows[order[start[chunk][:, None] + np.arange(size)]]
            out[chunk] = np.matmul(block.transpose(0, 2, 1), block)
    return out
