"""Statistics of a Dask data frame: one partial per partition, added in a tree on the workers."""

from __future__ import annotations

from typing import Any

from ggmtl.errors import InputTypeError, require
from ggmtl.statistics.streaming.batches import (
    ColumnPlan,
    StreamOptions,
    choose_features,
    distinct_values,
    plan_columns,
    text_columns,
)
from ggmtl.statistics.streaming.partials import FAN_IN, add_up, or_no_rows, partial_statistics
from ggmtl.statistics.streaming.single_pass import sorted_categories
from ggmtl.statistics.task_statistics import TaskStatistics

_NAME = "The Dask data frame"


def read_dask(frame: Any, options: StreamOptions) -> TaskStatistics:
    """Σ z zᵀ of every task and fold over all partitions; no row leaves its worker."""
    dask = require("dask", "dask", "TaskStatistics.from_dask")
    data_frames = require("dask.dataframe", "dask", "TaskStatistics.from_dask")
    if not isinstance(frame, data_frames.DataFrame):
        raise InputTypeError(f"from_dask takes a dask.dataframe.DataFrame. Got {type(frame).__name__} instead.")
    arrow = require("pyarrow", "dask", "TaskStatistics.from_dask")
    schema = arrow.Schema.from_pandas(frame._meta_nonempty, preserve_index=False)
    features = choose_features(schema, options, _NAME)
    categories = options.categories or {}
    if isinstance(categories, str):
        categories = _all_categories(frame, text_columns(schema, features))
    plan = plan_columns(schema, options, categories, _NAME)
    parts = [
        dask.delayed(_of_partition)(part, number, plan, options)
        for number, part in enumerate(frame[plan.columns].to_delayed())
    ]
    while len(parts) > 1:
        groups = [parts[first : first + FAN_IN] for first in range(0, len(parts), FAN_IN)]
        parts = [dask.delayed(add_up)(group) for group in groups]
    return or_no_rows(parts[0].compute(), _NAME)


def _all_categories(frame: Any, columns: list[str]) -> dict[str, list[Any]]:
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
    distinct_values(_record_batch(part), columns, found, _NAME)
    return found


def _of_partition(part: Any, number: int, plan: ColumnPlan, options: StreamOptions) -> TaskStatistics | None:
    return partial_statistics([(f"Partition {number}", _record_batch(part))], plan, options)
