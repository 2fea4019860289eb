"""Statistics of the parts of a distributed table: made where the rows are, sent as bytes, added in a tree."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ggmtl.errors import InputError
from ggmtl.statistics.streaming.batches import ColumnPlan, StreamOptions
from ggmtl.statistics.streaming.single_pass import read_batches
from ggmtl.statistics.task_statistics import TaskStatistics

if TYPE_CHECKING:
    import pyarrow as pa

# Partial statistics added in one step of the tree.
FAN_IN = 8
# Rows of a worker's buffer at most: partitions are many and smaller than files.
_WORKER_BYTES = 2**24


def partial_statistics(
    batches: Iterable[tuple[str, pa.RecordBatch]], plan: ColumnPlan, options: StreamOptions
) -> TaskStatistics | None:
    """Statistics of the rows of one partition; None where it has no row."""
    rows = options.batch_rows or max(_WORKER_BYTES // (8 * (len(plan.feature_names) + 2)), 1024)
    return read_batches(batches, plan, replace(options, batch_rows=rows, progress=None))


def add_up(parts: Sequence[TaskStatistics | None]) -> TaskStatistics | None:
    """The sum of the statistics that are there."""
    total = None
    for part in parts:
        if part is not None:
            total = part if total is None else total + part
    return total


def or_no_rows(statistics: TaskStatistics | None, source: str) -> TaskStatistics:
    """Refuse a table without rows."""
    if statistics is None:
        raise InputError(f"{source} has no rows to collect statistics from.")
    return statistics


def to_bytes(statistics: TaskStatistics) -> bytes:
    """The arrays as an uncompressed ``.npz`` archive, without pickle."""
    buffer = io.BytesIO()
    np.savez(
        buffer,
        cross=statistics.cross,
        origin=statistics.origin,
        task_names=statistics.task_names,
        feature_names=np.array(statistics.feature_names, dtype=str),
        has_folds=np.array(statistics.has_folds),
    )
    return buffer.getvalue()


def from_bytes(content: bytes) -> TaskStatistics:
    """What `to_bytes` wrote."""
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        names: list[Any] = arrays["feature_names"].tolist()
        return TaskStatistics(
            arrays["cross"], arrays["origin"], arrays["task_names"], tuple(names), bool(arrays["has_folds"])
        )
