"""Statistics of Dask and Spark data frames: made where the rows are, sent as bytes, added in a tree."""

from __future__ import annotations

import io
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from ggmtl.data.curves import DistinctValues
from ggmtl.errors import InputError, InputTypeError, require
from ggmtl.statistics.streaming.batches import (
    MOST_CATEGORIES,
    ColumnPlan,
    StreamOptions,
    choose_features,
    count_values,
    distinct_values,
    plan_columns,
    plan_curves,
    text_columns,
)
from ggmtl.statistics.streaming.sources import read_batches, sorted_categories
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


_DASK = "The Dask data frame"


def read_dask(frame: Any, options: StreamOptions) -> TaskStatistics:
    """Σ z zᵀ of every task and fold over all partitions; no row leaves its worker."""
    dask = require("dask", "dask", "TaskStatistics.from_dask")
    data_frames = require("dask.dataframe", "dask", "TaskStatistics.from_dask")
    if not isinstance(frame, data_frames.DataFrame):
        raise InputTypeError(f"from_dask takes a dask.dataframe.DataFrame. Got {type(frame).__name__} instead.")
    arrow = require("pyarrow", "dask", "TaskStatistics.from_dask")
    schema = arrow.Schema.from_pandas(frame._meta_nonempty, preserve_index=False)
    features = choose_features(schema, options, _DASK)
    categories = options.categories or {}
    if isinstance(categories, str):
        categories = _dask_categories(frame, text_columns(schema, features))
    plan = plan_columns(schema, options, categories, _DASK)
    partitions = list(enumerate(frame[plan.columns].to_delayed()))

    def count(plan: ColumnPlan) -> DistinctValues:
        parts = [dask.delayed(_dask_values)(part, number, plan, options) for number, part in partitions]
        return reduce(operator.add, dask.compute(*parts))

    plan = plan_curves(plan, options, count)
    parts = [dask.delayed(_dask_partial)(part, number, plan, options) for number, part in partitions]
    while len(parts) > 1:
        groups = [parts[first : first + FAN_IN] for first in range(0, len(parts), FAN_IN)]
        parts = [dask.delayed(add_up)(group) for group in groups]
    return or_no_rows(parts[0].compute(), _DASK)


def _dask_categories(frame: Any, columns: list[str]) -> dict[str, list[Any]]:
    """The sorted values of each text column, found in a pass of its own."""
    if not columns:
        return {}
    dask = require("dask", "dask", "TaskStatistics.from_dask")
    parts = frame[columns].to_delayed()
    found: dict[str, set] = {column: set() for column in columns}
    for part in dask.compute(*[dask.delayed(_distinct)(part, columns) for part in parts]):
        for column, values in part.items():
            found[column] |= values
    return sorted_categories(found)


def _record_batch(part: Any) -> Any:
    arrow = require("pyarrow", "dask", "TaskStatistics.from_dask")
    return arrow.RecordBatch.from_pandas(part, preserve_index=False)


def _distinct(part: Any, columns: list[str]) -> dict[str, set]:
    found: dict[str, set] = {}
    distinct_values(_record_batch(part), columns, found, _DASK)
    return found


def _dask_partial(part: Any, number: int, plan: ColumnPlan, options: StreamOptions) -> TaskStatistics | None:
    return partial_statistics([(f"Partition {number}", _record_batch(part))], plan, options)


def _dask_values(part: Any, number: int, plan: ColumnPlan, options: StreamOptions) -> DistinctValues:
    return count_values([(f"Partition {number}", _record_batch(part))], plan, options)


_SPARK = "The Spark data frame"
_SPARK_ROW = "statistics binary"
# Spark holds a binary value in one Java array, and Arrow in one buffer with 32-bit offsets.
_MOST_BYTES = 2**31 - 2**20


def read_spark(frame: Any, options: StreamOptions) -> TaskStatistics:
    """Σ z zᵀ of every task and fold over all partitions; only sums leave the executors."""
    require("pyspark", "spark", "TaskStatistics.from_spark")
    if not hasattr(frame, "mapInArrow"):
        raise InputTypeError(f"from_spark takes a Spark data frame. Got {type(frame).__name__} instead.")
    types = require("pyspark.sql.pandas.types", "spark", "TaskStatistics.from_spark")
    schema = types.to_arrow_schema(frame.schema)
    features = choose_features(schema, options, _SPARK)
    categories = options.categories or {}
    if isinstance(categories, str):
        categories = _spark_categories(frame, text_columns(schema, features))
    plan = plan_columns(schema, options, categories, _SPARK)
    chosen = frame.select(*[f"`{column}`" for column in plan.columns])
    plan = plan_curves(plan, options, lambda plan: _spark_values(chosen, plan, options))
    partials = chosen.mapInArrow(_spark_partial(plan, options), _SPARK_ROW)
    n_parts = _partition_count(chosen)
    while n_parts > 1:
        n_parts = -(-n_parts // FAN_IN)
        partials = partials.repartition(n_parts).mapInArrow(_merge, _SPARK_ROW)
    total = or_no_rows(add_up([from_bytes(bytes(row[0])) for row in partials.collect()]), _SPARK)
    return replace(total, curves=plan.curves)


def _spark_values(chosen: Any, plan: ColumnPlan, options: StreamOptions) -> DistinctValues:
    """Distinct values of every feature, counted on the executors."""

    def of_partition(batches: Iterator[Any]) -> Iterator[Any]:
        counted = count_values((("A partition", batch) for batch in batches), plan, options)
        buffer = io.BytesIO()
        arrays: Any = {f"{k} {part}": entry[part] for k, entry in enumerate(counted.found) for part in (0, 1)}
        np.savez(buffer, **arrays)
        return _binary_row(buffer.getvalue())

    total = DistinctValues(len(plan.feature_names))
    for row in chosen.mapInArrow(of_partition, _SPARK_ROW).collect():
        with np.load(io.BytesIO(bytes(row[0])), allow_pickle=False) as arrays:
            part = DistinctValues(len(plan.feature_names))
            part.found = [(arrays[f"{k} 0"], arrays[f"{k} 1"]) for k in range(len(part.found))]
        total = total + part
    return total


def _partition_count(frame: Any) -> int:
    """Number of partitions; a guess where a Spark Connect session does not tell."""
    try:
        return frame.rdd.getNumPartitions()
    except Exception:  # Spark Connect has no RDDs and says so with an error class of its own
        return FAN_IN**2


def _spark_categories(frame: Any, columns: list[str]) -> dict[str, list[Any]]:
    """The sorted values of each text column; Spark finds them."""
    found: dict[str, list[Any]] = {}
    for column in columns:
        rows = frame.select(f"`{column}`").dropna().distinct().limit(MOST_CATEGORIES + 1).collect()
        if len(rows) > MOST_CATEGORIES:
            raise InputError(
                f"{_SPARK}: column {column!r} has more than {MOST_CATEGORIES} different values, too many for one 0/1 "
                "feature each. Leave it out of features=, or group its values and pass categories=."
            )
        if rows:
            found[column] = sorted(row[0] for row in rows)
    return found


def _spark_partial(plan: ColumnPlan, options: StreamOptions) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def of_partition(batches: Iterator[Any]) -> Iterator[Any]:
        return _as_row(partial_statistics((("A partition", batch) for batch in batches), plan, options))

    return of_partition


def _merge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One row with the sum of all rows of a partition."""
    total = None
    for batch in batches:
        for value in batch.column(0):
            total = add_up([total, from_bytes(value.as_py())])
    return _as_row(total)


def _as_row(statistics: TaskStatistics | None) -> Iterator[pa.RecordBatch]:
    if statistics is None:
        return
    content = to_bytes(statistics)
    if len(content) > _MOST_BYTES:
        raise InputError(
            f"The statistics of {statistics.n_tasks} tasks take {len(content):,} bytes, more than the two gigabytes "
            "that a Spark row can hold. Use fewer folds or features, or split the tasks and join the statistics with +."
        )
    yield from _binary_row(content)


def _binary_row(content: bytes) -> Iterator[pa.RecordBatch]:
    arrow = require("pyarrow", "spark", "TaskStatistics.from_spark")
    yield arrow.RecordBatch.from_arrays([arrow.array([content], type=arrow.binary())], names=["statistics"])
