"""Sums of outer products over the rows of every segment, in NumPy: as fast as compiled."""

from __future__ import annotations

import numpy as np

from ggmtl.runtime.machine import over_tasks

# Numbers gathered at a time, few enough to stay in the processor's cache.
_CHUNK = 1 << 17


def segment_cross_products(rows: np.ndarray, segment: np.ndarray, n_segments: int) -> np.ndarray:
    """Σ z zᵀ over the rows z of each segment, shape (n_segments, q, q), for rows in any order.

    Segments of equal length are stacked, so that the work is a few batched matrix products whatever the
    number of segments.
    """
    rows = np.ascontiguousarray(rows, np.float64)
    width = rows.shape[1]
    out = np.zeros((n_segments, width, width))
    order, length = stable_order(segment), np.bincount(segment, minlength=n_segments)
    start = np.cumsum(length) - length
    stacks = []
    for size in np.unique(length[length > 0]):
        members = np.flatnonzero(length == size)
        together = max(1, _CHUNK // (size * width))
        stacks += [(members[first : first + together], np.arange(size)) for first in range(0, len(members), together)]

    def multiply(first: int, last: int) -> None:
        for members, places in stacks[first:last]:
            block = rows[order[start[members][:, None] + places]]
            out[members] = np.matmul(block.transpose(0, 2, 1), block)

    over_tasks(multiply, len(stacks), rows.size)
    return out


def stable_order(numbers: np.ndarray) -> np.ndarray:
    """The positions that sort whole numbers from zero to 2³²: numbers of 16 bits are sorted without comparisons."""
    order = np.argsort(numbers.astype(np.uint16), kind="stable")
    if len(numbers) and numbers.max() > np.iinfo(np.uint16).max:
        order = order[np.argsort((numbers[order] >> 16).astype(np.uint16), kind="stable")]
    return order
