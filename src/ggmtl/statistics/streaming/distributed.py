"""Dask and Spark data frames: every partition is reduced where it lies, and the results are added in a tree.

Between processes of Spark a result travels as arrays without pickle.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ggmtl.data.curves import DistinctValues
from ggmtl.errors import InputError, InputTypeError, ParameterError, require
from ggmtl.statistics.streaming.batches import StreamOptions
from ggmtl.statistics.streaming.passes import Categories
from ggmtl.statistics.streaming.sources import BatchSource, NamedBatches
from ggmtl.statistics.task_statistics import TaskStatistics

# Results added in one step of the tree.
FAN_IN = 8
# Bytes of the buffer of rows of a worker: partitions are many, and smaller than files.
_WORKER_BYTES = 2**24
# Spark holds a binary value in one Java array, and Arrow in one buffer with 32-bit offsets.
_MOST_BYTES = 2**31 - 2**20
_SPARK_ROW = "result binary"
_KINDS = {kind.__name__: kind for kind in (TaskStatistics, DistinctValues, Categories)}


class _Cluster(BatchSource):
    """A data frame whose rows stay on the workers."""

    pages = ""

    def prepare(self, options: StreamOptions, features: Sequence[str]) -> None:
        """Refuse what only this process could do."""
        if options.progress is not None:
            raise ParameterError(f"progress= is for files and streams. {self.name} shows its progress on {self.pages}.")

    def batch_rows(self, n_features: int) -> int:
        """As many as fill the buffer of a worker."""
        return max(_WORKER_BYTES // (8 * (n_features + 2)), 1024)


class DaskSource(_Cluster):
    """The partitions of a Dask data frame."""

    name, pages = "The Dask data frame", "Dask's dashboard"

    def __init__(self, frame: Any):
        self._dask = require("dask", "dask", "TaskStatistics.from_dask")
        data_frames = require("dask.dataframe", "dask", "TaskStatistics.from_dask")
        if not isinstance(frame, data_frames.DataFrame):
            raise InputTypeError(f"from_dask takes a dask.dataframe.DataFrame. Got {type(frame).__name__} instead.")
        self._frame = frame
        self.schema = pa.Schema.from_pandas(frame._meta_nonempty, preserve_index=False)

    def total(self, columns: Sequence[str], read: Callable[[NamedBatches], Any]) -> Any:
        """The sum of what `read` makes of every partition, on its worker."""
        delayed, rows = self._dask.delayed, self._frame[list(columns)].to_delayed()
        parts = [delayed(_read_pandas)(part, number, read) for number, part in enumerate(rows)]
        while len(parts) > 1:
            parts = [delayed(add_up)(parts[first : first + FAN_IN]) for first in range(0, len(parts), FAN_IN)]
        return parts[0].compute()


def _read_pandas(part: Any, number: int, read: Callable[[NamedBatches], Any]) -> Any:
    return read(iter([(f"Partition {number}", pa.RecordBatch.from_pandas(part, preserve_index=False))]))


class SparkSource(_Cluster):
    """The partitions of a Spark data frame."""

    name, pages = "The Spark data frame", "Spark's pages"

    def __init__(self, frame: Any):
        require("pyspark", "spark", "TaskStatistics.from_spark")
        if not hasattr(frame, "mapInArrow"):
            raise InputTypeError(f"from_spark takes a Spark data frame. Got {type(frame).__name__} instead.")
        self._frame = frame
        types = require("pyspark.sql.pandas.types", "spark", "TaskStatistics.from_spark")
        self.schema = types.to_arrow_schema(frame.schema)

    def total(self, columns: Sequence[str], read: Callable[[NamedBatches], Any]) -> Any:
        """The sum of what `read` makes of every partition, on its executor."""

        def of_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return _as_row(read(("A partition", batch) for batch in batches))

        chosen = self._frame.select(*[f"`{column}`" for column in columns])
        parts, n_parts = chosen.mapInArrow(of_partition, _SPARK_ROW), _partition_count(chosen)
        while n_parts > 1:
            n_parts = -(-n_parts // FAN_IN)
            parts = parts.repartition(n_parts).mapInArrow(_merge, _SPARK_ROW)
        return add_up([from_bytes(bytes(row[0])) for row in parts.collect()])


def _partition_count(frame: Any) -> int:
    """Number of partitions; a guess where a Spark Connect session does not tell."""
    try:
        return frame.rdd.getNumPartitions()
    except Exception:  # Spark Connect has no RDDs and says so with an error class of its own
        return FAN_IN**2


def _merge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One row with the sum of all rows of a partition."""
    total = None
    for batch in batches:
        for value in batch.column(0):
            total = add_up([total, from_bytes(value.as_py())])
    return _as_row(total)


def _as_row(result: Any) -> Iterator[pa.RecordBatch]:
    if result is None:
        return
    content = to_bytes(result)
    if len(content) > _MOST_BYTES:
        raise InputError(
            f"The statistics of a part of the rows take {len(content):,} bytes, more than the two gigabytes that a "
            "Spark row can hold. Use fewer folds or features, or split the tasks and join the statistics with +."
        )
    yield pa.RecordBatch.from_arrays([pa.array([content], type=pa.binary())], names=["result"])


def add_up(parts: Sequence[Any]) -> Any:
    """The sum of the results that are there; None where there is none."""
    total = None
    for part in parts:
        if part is not None:
            total = part if total is None else total + part
    return total


def to_bytes(result: TaskStatistics | DistinctValues | Categories) -> bytes:
    """The arrays of a result as an uncompressed ``.npz`` archive, without pickle."""
    buffer = io.BytesIO()
    arrays: Any = result.as_arrays() | {"$kind": np.array(type(result).__name__)}
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def from_bytes(content: bytes) -> Any:
    """What `to_bytes` wrote."""
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        arrays = dict(archive)
    return _KINDS[str(arrays.pop("$kind"))].of_arrays(arrays)
