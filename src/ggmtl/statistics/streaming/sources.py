"""Where record batches come from (Parquet and CSV files, any object that streams Arrow data), and the pass over them.

Rows are read once, batch by batch, and never held.
"""

from __future__ import annotations

import glob
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ggmtl.errors import InputError, InputTypeError, require, warn_user
from ggmtl.statistics.accumulator import StatisticsBuilder
from ggmtl.statistics.streaming.batches import (
    ColumnPlan,
    RowReader,
    StreamOptions,
    choose_features,
    count_values,
    distinct_values,
    is_number,
    is_text,
    not_utf8_message,
    plan_columns,
    plan_curves,
    text_columns,
)
from ggmtl.statistics.task_statistics import TaskStatistics

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = {"parquet": (".parquet", ".parq", ".pq"), "csv": (".csv", ".csv.gz", ".csv.bz2", ".csv.zst")}
# Bytes, and rows at most, that are decoded at a time.
_READ_BYTES, _READ_ROWS = 2**24, 2**17
_PAGE_BYTES = 2**16


class FileSource:
    """Record batches of Parquet or CSV files, file after file, with ``key=value`` folders as columns.

    No row group is ever in memory whole: Parquet pages are decoded as their rows are asked for.
    """

    def __init__(self, path: Any, file_format: str):
        self._dataset = require("pyarrow.dataset", "cli", f"Reading {file_format} files")
        self._format = file_format
        self._files, self._base = find_files(path, file_format)
        self._name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else f"{self._files[0]} (and others)"
        self._data = self._open(None)
        # Whether task labels are read as the text that is written.
        self.writes_labels = False

    @property
    def name(self) -> str:
        """The path as given, for messages about all files."""
        return self._name

    @property
    def schema(self) -> pa.Schema:
        """Columns and types, those of the first file and of the folders' keys."""
        return self._data.schema

    def prepare(self, options: StreamOptions, features: Sequence[str]) -> None:
        """Settle the types of columns that are written as text, in a CSV file or in the name of a folder.

        Numbers are read as float64, whatever the first lines look like. Task labels stay text, so that 007 is not 7.
        """
        arrow = require("pyarrow", "cli", f"Reading {self._format} files")
        schema, types = self.schema, arrow.types
        written = self._format == "csv" or options.task in self._folder_keys()
        self.writes_labels = written and options.task not in features
        if self.writes_labels and not types.is_binary(schema.field(options.task).type):
            schema = _with_type(schema, options.task, arrow.string())
        for column in (options.task, options.target, *features) if self._format == "csv" else ():
            # Text that is not UTF-8 is taken for bytes.
            if types.is_binary(schema.field(column).type):
                raise InputError(not_utf8_message(self._name, column))
        for column in (*features, options.target, options.sample_weight) if self._format == "csv" else ():
            kind = schema.field(column).type if column in schema.names else None
            if column is not None and kind is not None and (types.is_integer(kind) or types.is_null(kind)):
                schema = _with_type(schema, column, arrow.float64())
        if schema != self.schema:
            self._data = self._open(schema)

    def _folder_keys(self) -> set[str]:
        """Columns whose values are in the names of folders."""
        keys = (self._dataset.get_partition_keys(part.partition_expression) for part in self._data.get_fragments())
        return set().union(*keys)

    def batches(self, columns: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The name of a file and a batch of its rows, until there are no more."""
        arrow = require("pyarrow", "cli", f"Reading {self._format} files")
        for fragment in self._data.get_fragments():
            try:
                for batch in self._fragment_batches(fragment, list(columns)):
                    yield fragment.path, batch
            except (arrow.ArrowException, OSError) as error:
                if _tells_of_encoding(error):
                    raise InputError(not_utf8_message(fragment.path)) from error
                raise InputError(f"{fragment.path} cannot be read: {error}") from error

    def _fragment_batches(self, fragment: Any, columns: list[str]) -> Iterator[pa.RecordBatch]:
        keys = self._dataset.get_partition_keys(fragment.partition_expression)
        own = [column for column in columns if column not in keys]
        if self._format == "parquet" and own:
            return self._parquet_batches(fragment, columns, keys)
        return fragment.to_batches(
            schema=self.schema,
            columns=columns,
            batch_size=_rows_at_a_time(columns),
            batch_readahead=1,
            fragment_readahead=1,
            fragment_scan_options=self._csv_options() if self._format == "csv" else None,
        )

    def _parquet_batches(self, fragment: Any, columns: list[str], keys: dict) -> Iterator[pa.RecordBatch]:
        """The scanner of a data set would read whole row groups; a single file is read page by page."""
        arrow = require("pyarrow", "cli", "Reading Parquet files")
        parquet = require("pyarrow.parquet", "cli", "Reading Parquet files")
        with parquet.ParquetFile(
            fragment.path, filesystem=fragment.filesystem, pre_buffer=False, buffer_size=_PAGE_BYTES
        ) as file:
            own = [column for column in columns if column not in keys and column in file.schema_arrow.names]
            for batch in file.iter_batches(_rows_at_a_time(columns), columns=own):
                constants = {c: arrow.repeat(arrow.scalar(keys.get(c)), len(batch)) for c in columns if c not in own}
                arrays = [batch.column(c) if c in own else constants[c] for c in columns]
                kinds = [self.schema.field(c).type for c in columns]
                yield arrow.RecordBatch.from_arrays([_as_kind(a, k) for a, k in zip(arrays, kinds)], names=columns)

    def _open(self, schema: pa.Schema | None) -> Any:
        arrow = require("pyarrow", "cli", f"Reading {self._format} files")
        folders: Any = "hive"
        if schema is not None and self._folder_keys():
            keys = arrow.schema([schema.field(key) for key in schema.names if key in self._folder_keys()])
            folders = self._dataset.partitioning(keys, flavor="hive")
        try:
            return self._dataset.dataset(
                self._files,
                schema=schema,
                format=self._file_format(),
                partitioning=folders,
                partition_base_dir=self._base,
            )
        except (arrow.ArrowException, OSError) as error:
            raise InputError(f"{self._name} cannot be read: {error}") from error

    def _file_format(self) -> Any:
        if self._format == "parquet":
            return self._dataset.ParquetFileFormat()
        csv = require("pyarrow.csv", "cli", "Reading CSV files")
        return self._dataset.CsvFileFormat(convert_options=csv.ConvertOptions(strings_can_be_null=True))

    def _csv_options(self) -> Any:
        csv = require("pyarrow.csv", "cli", "Reading CSV files")
        return self._dataset.CsvFragmentScanOptions(convert_options=csv.ConvertOptions(strings_can_be_null=True))


class StreamSource:
    """Record batches of any object with ``__arrow_c_stream__``: a DuckDB relation, a Polars frame, a reader."""

    def __init__(self, stream: Any):
        arrow = require("pyarrow", "cli", "Reading Arrow streams")
        if not hasattr(stream, "__arrow_c_stream__"):
            raise InputTypeError(
                "stream must offer __arrow_c_stream__, as a DuckDB relation, a Polars data frame or a pyarrow "
                f"RecordBatchReader or Table does. Got {type(stream).__name__} instead."
            )
        self.name = f"The {type(stream).__name__}"
        # A reader can be read once; everything else hands out a new stream every time it is asked.
        self._stream = stream
        self._reader = arrow.RecordBatchReader.from_stream(stream)
        self.writes_labels = False
        self._is_fresh, self._once = True, isinstance(stream, arrow.RecordBatchReader)

    @property
    def schema(self) -> pa.Schema:
        """Columns and types."""
        return self._reader.schema

    def prepare(self, options: StreamOptions, features: Sequence[str]) -> None:
        """Nothing to do: the types of a stream are its own."""
        for name, remedy in (("categories", "a dictionary"), ("curves", "the .curves of other statistics")):
            if getattr(options, name) == "auto" and self._once:
                raise InputError(
                    f'{name}="auto" reads the rows twice, which a RecordBatchReader cannot. Pass the {name} as '
                    f"{remedy}, or the table or relation that the reader came from."
                )

    def batches(self, columns: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The name of the stream and a batch of its rows, until there are no more."""
        arrow = require("pyarrow", "cli", "Reading Arrow streams")
        if not self._is_fresh:
            self._reader = arrow.RecordBatchReader.from_stream(self._stream)
        self._is_fresh = False
        try:
            for batch in self._reader:
                chosen, rows = batch.select(list(columns)), _rows_at_a_time(columns)
                for first in range(0, batch.num_rows, rows):
                    yield self.name, chosen.slice(first, rows)
        except (arrow.ArrowException, OSError) as error:
            raise InputError(f"{self.name} cannot be read: {error}") from error


def _tells_of_encoding(error: Exception) -> bool:
    """Whether Arrow's words are those for text that is not UTF-8, first met after the types were settled."""
    return "invalid utf8" in str(error).lower()


def _with_type(schema: pa.Schema, column: str, kind: pa.DataType) -> pa.Schema:
    return schema.set(schema.get_field_index(column), schema.field(column).with_type(kind))


def _as_kind(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The array in the type that the first file has, unless both are numbers or both are text."""
    alike = any(is_a(array.type) and is_a(kind) for is_a in (is_number, is_text))
    return array if alike else array.cast(kind)


def _rows_at_a_time(columns: Sequence[str]) -> int:
    return max(min(_READ_ROWS, _READ_BYTES // (8 * len(columns))), 1024)


def find_files(path: Any, file_format: str) -> tuple[Any, str | None]:
    """The files behind a file name, folder, glob pattern or list of them, sorted, and the folder they lie in."""
    if not isinstance(path, (str, os.PathLike)):
        files = [file for part in path for file in _list_files(os.fspath(part), file_format)]
        if not files:
            raise InputError(f"path must name at least one {file_format} file. Got an empty list instead.")
        return files, None
    text = os.fspath(path)
    if "://" in text:
        return text, None
    return _list_files(text, file_format), text if os.path.isdir(text) else None


def _list_files(text: str, file_format: str) -> list[str]:
    if os.path.isfile(text):
        return [text]
    if os.path.isdir(text):
        return _in_folder(Path(text), file_format)
    found = sorted(glob.glob(text, recursive=True))
    if not found:
        raise InputError(f"There is no file {text!r}. Give a {file_format} file, a folder of them, or a glob pattern.")
    return [file for part in found for file in _list_files(part, file_format)]


def _in_folder(folder: Path, file_format: str) -> list[str]:
    endings = SUFFIXES[file_format]
    files = sorted(str(file) for file in _visible_files(folder) if file.name.lower().endswith(endings))
    if not files:
        raise InputError(f"The folder {str(folder)!r} has no file that ends in {' or '.join(endings)}.")
    return files


def _visible_files(folder: Path) -> Iterable[Path]:
    """Files below the folder, without those that engines hide behind a dot or an underscore."""
    for file in folder.rglob("*"):
        hidden = any(part.startswith((".", "_")) for part in file.relative_to(folder).parts)
        if file.is_file() and not hidden:
            yield file


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
    plan = plan_curves(plan, options, lambda plan: count_values(source.batches(plan.columns), plan, options))
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
    builder = StatisticsBuilder(plan.feature_names, options.folds, options.batch_rows, numbers_in_text, plan.curves)
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
