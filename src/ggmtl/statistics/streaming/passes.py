"""The passes over a source of batches: values of text columns, distinct values for curves, and the sums themselves."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from ggmtl.data.curves import DistinctValues
from ggmtl.errors import InputError, not_utf8_message, warn_user
from ggmtl.statistics.accumulator import StatisticsBuilder
from ggmtl.statistics.streaming.batches import (
    MOST_CATEGORIES,
    Categories,
    ColumnPlan,
    RowReader,
    StreamOptions,
    choose_features,
    plain_array,
    plan_columns,
    plan_curves,
    text_columns,
)
from ggmtl.statistics.streaming.sources import BatchSource, NamedBatches
from ggmtl.statistics.task_statistics import TaskStatistics

logger = logging.getLogger("ggmtl")
# Seconds between two reports.
INTERVAL = 2.0
# A larger share of repeated rows is not an accident.
_MANY_REPETITIONS = 0.1


def read_source(source: BatchSource, options: StreamOptions) -> TaskStatistics:
    """Σ z zᵀ of every task and fold over all batches of a source."""
    try:
        features = choose_features(source.schema, options, source.name)
    except UnicodeDecodeError as error:
        raise InputError(not_utf8_message(source.name)) from error
    source.prepare(options, features)
    categories = options.categories or {}
    if isinstance(categories, str):
        columns = text_columns(source.schema, features)
        found = source.total(columns, partial(find_categories, columns=columns)) if columns else None
        categories = {} if found is None else found.checked(source.name)
    plan = plan_columns(source.schema, options, categories, source.name)
    count = partial(count_values, plan=plan, drop_missing=options.drop_missing)
    plan = plan_curves(plan, options, lambda: source.total(plan.columns, count))
    rows = source.batch_rows(len(plan.feature_names)) if options.batch_rows is None else options.batch_rows
    read = partial(sum_rows, plan=plan, options=replace(options, batch_rows=rows), numbers_in_text=source.writes_labels)
    statistics = source.total(plan.columns, read)
    if statistics is None:
        raise InputError(f"{source.name} has no rows to collect statistics from.")
    return statistics


# ---------------------------------------------------------------------- the sums


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
    """Log the progress, and pass it to a callable, every two seconds and at the end."""

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


def sum_rows(
    batches: NamedBatches, plan: ColumnPlan, options: StreamOptions, numbers_in_text: bool = False
) -> TaskStatistics | None:
    """Σ z zᵀ of every task and fold over the batches; None where there is no row."""
    builder = StatisticsBuilder(plan.feature_names, options.folds, options.batch_rows, numbers_in_text, plan.curves)
    reader = RowReader(plan, builder.add, options.drop_missing)
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


# ---------------------------------------------------------------------- passes before that of the sums


def count_values(batches: NamedBatches, plan: ColumnPlan, drop_missing: bool) -> DistinctValues:
    """Distinct values of every feature over the rows that are used."""
    values = DistinctValues.none(len(plan.feature_names))

    def count(columns, target, labels, codes, sample_weight) -> None:
        values.add(columns, sample_weight)

    reader = RowReader(plan, count, drop_missing)
    for source, batch in batches:
        reader.read(batch, source)
    return values


def find_categories(batches: NamedBatches, columns: list[str]) -> Categories:
    """The values of each column; reading ends where one has too many."""
    found: dict[str, set[str]] = {column: set() for column in columns}
    for _, batch in batches:
        for column, values in found.items():
            values.update(v for v in plain_array(batch.column(column)).unique().to_pylist() if v is not None)
        if max(map(len, found.values())) > MOST_CATEGORIES:
            break
    return Categories({column: sorted(values) for column, values in found.items()})
