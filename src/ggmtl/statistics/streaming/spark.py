"""Statistics of a Spark data frame: one binary row per partition, added in rounds on the executors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ggmtl.errors import InputError, InputTypeError, require
from ggmtl.statistics.streaming.batches import (
    MOST_CATEGORIES,
    ColumnPlan,
    StreamOptions,
    choose_features,
    plan_columns,
    text_columns,
)
from ggmtl.statistics.streaming.partials import FAN_IN, add_up, from_bytes, or_no_rows, partial_statistics, to_bytes
from ggmtl.statistics.task_statistics import TaskStatistics

if TYPE_CHECKING:
    import pyarrow as pa

_NAME = "The Spark data frame"
_SCHEMA = "statistics binary"
# Spark holds a binary value in one Java array, and Arrow in one buffer with 32-bit offsets.
_MOST_BYTES = 2**31 - 2**20


def read_spark(frame: Any, options: StreamOptions) -> TaskStatistics:
    """Σ z zᵀ of every task and fold over all partitions; only sums leave the executors."""
    require("pyspark", "spark", "TaskStatistics.from_spark")
    if not hasattr(frame, "mapInArrow"):
        raise InputTypeError(f"from_spark takes a Spark data frame. Got {type(frame).__name__} instead.")
    types = require("pyspark.sql.pandas.types", "spark", "TaskStatistics.from_spark")
    schema = types.to_arrow_schema(frame.schema)
    features = choose_features(schema, options, _NAME)
    categories = options.categories or {}
    if isinstance(categories, str):
        categories = _all_categories(frame, text_columns(schema, features))
    plan = plan_columns(schema, options, categories, _NAME)
    chosen = frame.select(*[f"`{column}`" for column in plan.columns])
    partials = chosen.mapInArrow(_partial(plan, options), _SCHEMA)
    n_parts = _partition_count(chosen)
    while n_parts > 1:
        n_parts = -(-n_parts // FAN_IN)
        partials = partials.repartition(n_parts).mapInArrow(_merge, _SCHEMA)
    return or_no_rows(add_up([from_bytes(bytes(row[0])) for row in partials.collect()]), _NAME)


def _partition_count(frame: Any) -> int:
    """Number of partitions; a guess where a Spark Connect session does not tell."""
    try:
        return frame.rdd.getNumPartitions()
    except Exception:  # Spark Connect has no RDDs and says so with an error class of its own
        return FAN_IN**2


def _all_categories(frame: Any, columns: list[str]) -> dict[str, list[Any]]:
    """The sorted values of each text column; Spark finds them."""
    found: dict[str, list[Any]] = {}
    for column in columns:
        rows = frame.select(f"`{column}`").dropna().distinct().limit(MOST_CATEGORIES + 1).collect()
        if len(rows) > MOST_CATEGORIES:
            raise InputError(
                f"{_NAME}: column {column!r} has more than {MOST_CATEGORIES} different values, too many for one 0/1 "
                "feature each. Leave it out of features=, or group its values and pass categories=."
            )
        if rows:
            found[column] = sorted(row[0] for row in rows)
    return found


def _partial(plan: ColumnPlan, options: StreamOptions) -> Callable[[Iterator[Any]], Iterator[Any]]:
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
    arrow = require("pyarrow", "spark", "TaskStatistics.from_spark")
    if statistics is None:
        return
    content = to_bytes(statistics)
    if len(content) > _MOST_BYTES:
        raise InputError(
            f"The statistics of {statistics.n_tasks} tasks take {len(content):,} bytes, more than the two gigabytes "
            "that a Spark row can hold. Use fewer folds or features, or split the tasks and join the statistics with +."
        )
    yield arrow.RecordBatch.from_arrays([arrow.array([content], type=arrow.binary())], names=["statistics"])
