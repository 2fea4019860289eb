"""Where record batches come from: Parquet and CSV files, Arrow streams, Dask and Spark data frames.

Rows on a cluster are reduced where they lie, partition by partition, and the results are added in a tree. Between
processes of Spark a result travels as arrays without pickle.
"""

from __future__ import annotations

import glob
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import types

from ggmtl.data.curves import Curves, DistinctValues
from ggmtl.errors import InputError, InputTypeError, ParameterError, not_utf8_message, require
from ggmtl.runtime.files import pack, unpack
from ggmtl.statistics.streaming.batches import Categories, StreamOptions, is_number, is_text
from ggmtl.statistics.task_statistics import TaskStatistics

T = TypeVar("T")
# A name (a file, a partition) for error messages, and rows.
NamedBatches = Iterator[tuple[str, pa.RecordBatch]]
SUFFIXES = {"parquet": (".parquet", ".parq", ".pq"), "csv": (".csv", ".csv.gz", ".csv.bz2", ".csv.zst")}
# Bytes, and rows at most, that are decoded at a time.
_READ_BYTES, _READ_ROWS = 2**24, 2**17
_PAGE_BYTES = 2**16


class BatchSource:
    """Where batches come from; :func:`ggmtl.statistics.streaming.passes.read_source` reads them."""

    # What error messages about all rows call the source.
    name: str
    # Columns and types.
    schema: pa.Schema
    # Whether task labels are text in which numbers may be written.
    writes_labels = False

    def prepare(self, options: StreamOptions, features: Sequence[str]) -> None:
        """Settle types before rows are read; refuse options that the source cannot support."""

    def batch_rows(self, n_features: int) -> int | None:
        """Rows summed at a time where the user gave no number; None for the default of the sums."""
        return None

    def batches(self, columns: Sequence[str]) -> NamedBatches:
        """A name (a file, a partition) and a batch of rows, until there are no more."""
        raise NotImplementedError

    def total(self, columns: Sequence[str], read: Callable[[NamedBatches], T]) -> T:
        """What `read` makes of all batches; sources in parts add up what it makes of each."""
        return read(self.batches(columns))


class FileSource(BatchSource):
    """Record batches of Parquet or CSV files, file after file, with ``key=value`` folders as columns.

    No row group is ever held as a whole: Parquet pages are decoded when their rows are read.
    """

    def __init__(self, path: Any, file_format: str):
        self._format = file_format
        self._files, self._base = find_files(path, file_format)
        self.name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else f"{self._files[0]} (and others)"
        self._data = self._open(None)
        # Those of the first file and of the folders' keys.
        self.schema = self._data.schema

    def prepare(self, options: StreamOptions, features: Sequence[str]) -> None:
        """Settle the types of columns that are written as text, in a CSV file or in the name of a folder.

        Numbers are read as float64, whatever the first lines look like. Task labels stay text, so that 007 is not 7.
        """
        schema = self.schema
        written = self._format == "csv" or options.task in self._folder_keys()
        self.writes_labels = written and options.task not in features
        if self.writes_labels and not types.is_binary(schema.field(options.task).type):
            schema = _with_type(schema, options.task, pa.string())
        if self._format == "csv":
            for column in (options.task, options.target, *features):
                # Text that is not UTF-8 is taken for bytes.
                if types.is_binary(schema.field(column).type):
                    raise InputError(not_utf8_message(self.name, column))
            for column in (*features, options.target, *([options.sample_weight] if options.sample_weight else [])):
                kind = schema.field(column).type
                if types.is_integer(kind) or types.is_null(kind):
                    schema = _with_type(schema, column, pa.float64())
        if schema != self.schema:
            self._data, self.schema = self._open(schema), schema

    def _folder_keys(self) -> set[str]:
        """Columns whose values are in the names of folders."""
        keys = (ds.get_partition_keys(part.partition_expression) for part in self._data.get_fragments())
        return set().union(*keys)

    def batches(self, columns: Sequence[str]) -> NamedBatches:
        """The name of a file and a batch of its rows, until there are no more."""
        for fragment in self._data.get_fragments():
            try:
                for batch in self._fragment_batches(fragment, list(columns)):
                    yield fragment.path, batch
            except (pa.ArrowException, OSError) as error:
                if _tells_of_encoding(error):
                    raise InputError(not_utf8_message(fragment.path)) from error
                raise InputError(f"{fragment.path} cannot be read: {error}") from error

    def _fragment_batches(self, fragment: Any, columns: list[str]) -> Iterator[pa.RecordBatch]:
        keys = ds.get_partition_keys(fragment.partition_expression)
        own = [column for column in columns if column not in keys]
        if self._format == "parquet" and own:
            return self._parquet_batches(fragment, columns, keys)
        return fragment.to_batches(
            schema=self.schema,
            columns=columns,
            batch_size=_rows_at_a_time(columns),
            batch_readahead=1,
            fragment_readahead=1,
        )

    def _parquet_batches(self, fragment: Any, columns: list[str], keys: dict) -> Iterator[pa.RecordBatch]:
        """The scanner of a data set would read whole row groups; a single file is read page by page."""
        with pq.ParquetFile(
            fragment.path, filesystem=fragment.filesystem, pre_buffer=False, buffer_size=_PAGE_BYTES
        ) as file:
            own = [column for column in columns if column not in keys and column in file.schema_arrow.names]
            for batch in file.iter_batches(_rows_at_a_time(columns), columns=own):
                constants = {c: pa.repeat(pa.scalar(keys.get(c)), len(batch)) for c in columns if c not in own}
                arrays = [batch.column(c) if c in own else constants[c] for c in columns]
                kinds = [self.schema.field(c).type for c in columns]
                yield pa.RecordBatch.from_arrays([_as_kind(a, k) for a, k in zip(arrays, kinds)], names=columns)

    def _open(self, schema: pa.Schema | None) -> Any:
        folders: Any = "hive"
        if schema is not None and self._folder_keys():
            keys = pa.schema([schema.field(key) for key in schema.names if key in self._folder_keys()])
            folders = ds.partitioning(keys, flavor="hive")
        try:
            return ds.dataset(
                self._files,
                schema=schema,
                format=self._file_format(),
                partitioning=folders,
                partition_base_dir=self._base,
            )
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{self.name} cannot be read: {error}") from error

    def _file_format(self) -> ds.FileFormat:
        if self._format == "parquet":
            return ds.ParquetFileFormat()
        return ds.CsvFileFormat(convert_options=pyarrow.csv.ConvertOptions(strings_can_be_null=True))


class StreamSource(BatchSource):
    """Record batches of any object with ``__arrow_c_stream__``: a DuckDB relation, a Polars frame, a reader."""

    def __init__(self, stream: Any):
        if not hasattr(stream, "__arrow_c_stream__"):
            raise InputTypeError(
                "stream must offer __arrow_c_stream__, as a DuckDB relation, a Polars data frame or a pyarrow "
                f"RecordBatchReader or Table does. Got {type(stream).__name__} instead."
            )
        self.name = f"The {type(stream).__name__}"
        # A reader can be read once; all other objects give a new stream every time.
        self._stream = stream
        reader = pa.RecordBatchReader.from_stream(stream)
        self._reader: pa.RecordBatchReader | None = reader
        self._once = isinstance(stream, pa.RecordBatchReader)
        self.schema = reader.schema

    def prepare(self, options: StreamOptions, features: Sequence[str]) -> None:
        """Refuse options that need a second pass where there is none."""
        for name, remedy in (("categories", "a dictionary"), ("curves", "the .curves of other statistics")):
            if getattr(options, name) == "auto" and self._once:
                raise InputError(
                    f'{name}="auto" reads the rows twice, which a RecordBatchReader cannot. Pass the {name} as '
                    f"{remedy}, or the table or relation that the reader came from."
                )

    def batches(self, columns: Sequence[str]) -> NamedBatches:
        """The name of the stream and a batch of its rows, until there are no more."""
        reader, self._reader = self._reader or pa.RecordBatchReader.from_stream(self._stream), None
        try:
            for batch in reader:
                chosen, rows = batch.select(list(columns)), _rows_at_a_time(columns)
                for first in range(0, batch.num_rows, rows):
                    yield self.name, chosen.slice(first, rows)
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{self.name} cannot be read: {error}") from error


def _tells_of_encoding(error: Exception) -> bool:
    """Whether Arrow's error is about text that is not UTF-8, in rows after those that settled the types."""
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


# ---------------------------------------------------------------------- clusters

# Results added in one step of the tree.
FAN_IN = 8
# Bytes of the buffer of rows of a worker: partitions are many, and smaller than files.
_WORKER_BYTES = 2**24
# Spark holds a binary value in one Java array, and Arrow in one buffer with 32-bit offsets.
_MOST_BYTES = 2**31 - 2**20
_SPARK_ROW = "result binary"
_KINDS = {kind.__name__: kind for kind in (TaskStatistics, DistinctValues, Categories, Curves)}


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
    """The arrays of a result, and its plain data, as an uncompressed ``.npz`` archive, without pickle."""
    arrays: Any = {}
    content, buffer = json.dumps(pack(result, arrays)), io.BytesIO()
    np.savez(buffer, content=np.array(content), **arrays)
    return buffer.getvalue()


def from_bytes(content: bytes) -> Any:
    """What `to_bytes` wrote."""
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        arrays = dict(archive)
    return unpack(json.loads(str(arrays["content"])), arrays, _KINDS)
