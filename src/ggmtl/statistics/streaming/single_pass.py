"""Statistics of rows that are read once, batch by batch, and never held."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ggmtl.errors import InputError, warn_user
from ggmtl.statistics.accumulator import StatisticsBuilder
from ggmtl.statistics.streaming.batches import (
    ColumnPlan,
    RowReader,
    StreamOptions,
    choose_features,
    distinct_values,
    not_utf8_message,
    plan_columns,
    text_columns,
)
from ggmtl.statistics.streaming.sources import FileSource, StreamSource
from ggmtl.statistics.task_statistics import TaskStatistics

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("ggmtl")
# Seconds between two reports.
INTERVAL = 2.0
# Repeated rows that are no longer an accident.
_MANY_REPETITIONS = 0.1


@dataclass(frozen=True)
class StreamProgress:
    """How far a stream has been read."""

    rows: int
    tasks: int
    seconds: float
    source: str

    @property
    def rows_per_second(self) -> float:
        """Rows read per second so far."""
        return self.rows / max(self.seconds, 1e-9)


class _Reporter:
    """Log the progress, and tell a callable, every two seconds and at the end."""

    def __init__(self, progress: Callable[[StreamProgress], object] | None):
        self._progress = progress
        self._start = self._last = time.monotonic()

    def report(self, rows: int, tasks: int, source: str, is_end: bool = False) -> None:
        now = time.monotonic()
        if not is_end and now - self._last < INTERVAL:
            return
        self._last = now
        state = StreamProgress(rows, tasks, now - self._start, source)
        rate = f"{state.rows_per_second:,.0f} rows/s"
        logger.info("%s: %s rows of %s tasks read, %s", source, f"{rows:,}", f"{tasks:,}", rate)
        if self._progress is not None:
            self._progress(state)


def read_source(source: FileSource | StreamSource, options: StreamOptions) -> TaskStatistics:
    """Σ z zᵀ of every task and fold over all batches of a source."""
    try:
        features = choose_features(source.schema, options, source.name)
    except UnicodeDecodeError as error:
        raise InputError(not_utf8_message(source.name)) from error
    source.prepare(options, features)
    categories = options.categories or {}
    if isinstance(categories, str):
        columns = text_columns(source.schema, features)
        categories = _all_categories(source.batches(columns), columns)
    plan = plan_columns(source.schema, options, categories, source.name)
    statistics = read_batches(source.batches(plan.columns), plan, options, source.writes_labels)
    if statistics is None:
        raise InputError(f"{source.name} has no rows to collect statistics from.")
    return statistics


def read_batches(
    batches: Iterable[tuple[str, pa.RecordBatch]],
    plan: ColumnPlan,
    options: StreamOptions,
    numbers_in_text: bool = False,
) -> TaskStatistics | None:
    """Σ z zᵀ of every task and fold over the batches; None where there is no row."""
    builder = StatisticsBuilder(plan.feature_names, options.folds, options.batch_rows, numbers_in_text)
    reader = RowReader(plan, builder, options.drop_missing)
    reporter, source = _Reporter(options.progress), "stream"
    for source, batch in batches:
        reader.read(batch, source)
        reporter.report(reader.n_rows, builder.n_tasks, source)
    reporter.report(reader.n_rows, builder.n_tasks, source, is_end=True)
    if reader.n_dropped:
        counts = ", ".join(f"{column!r}: {count}" for column, count in reader.missing.items())
        logger.warning(
            "%d of %d rows were left out because of missing values (%s).", reader.n_dropped, reader.n_rows, counts
        )
    if not builder.n_rows:
        return None
    statistics = builder.statistics()
    if builder.repeated > _MANY_REPETITIONS:
        warn_user(
            f"About {builder.repeated:.0%} of the rows of {source} repeat another row of their task, and the same "
            "features also come with other targets, as in discrete data. A stream puts equal rows into one fold, so "
            "held-out errors will be too large. Fit from rows in memory (GGMTLRegressor.fit), or leave out folds=."
        )
    return statistics


def _all_categories(batches: Iterable[tuple[str, pa.RecordBatch]], columns: list[str]) -> dict[str, list[Any]]:
    """The sorted values of each column, found in a pass of its own."""
    found: dict[str, set] = {column: set() for column in columns}
    if columns:
        for source, batch in batches:
            distinct_values(batch, columns, found, source)
    return sorted_categories(found)


def sorted_categories(found: dict[str, set]) -> dict[str, list[Any]]:
    """The values found in each column, in order; a column without any is left to be refused as empty."""
    return {column: sorted(values) for column, values in found.items() if values}
