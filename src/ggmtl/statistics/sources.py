"""Where record batches come from: Parquet and CSV files, and any object that streams Arrow data."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ggmtl.errors import InputError, InputTypeError, require
from ggmtl.statistics.columns import StreamOptions

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = {"parquet": (".parquet", ".parq", ".pq"), "csv": (".csv", ".csv.gz", ".csv.bz2", ".csv.zst")}
# Rows that the file readers decode at a time; small beside the builder's buffer.
_READ_ROWS = 2**15


class FileSource:
    """Record batches of Parquet or CSV files, file after file, with ``key=value`` folders as columns.

    Files are read with a buffered stream and one batch ahead, so that no row group need be in memory whole.
    """

    def __init__(self, path: Any, file_format: str):
        self._dataset = require("pyarrow.dataset", "cli", f"Reading {file_format} files")
        self._format = file_format
        self._name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else f"{len(list(path))} files"
        self._files, self._base = find_files(path, file_format)
        self._data = self._open(None)

    @property
    def name(self) -> str:
        """The path as given, for messages about all files."""
        return self._name

    @property
    def schema(self) -> pa.Schema:
        """Columns and types, those of the first file and of the folders' keys."""
        return self._data.schema

    def prepare(self, options: StreamOptions, features: Sequence[str]) -> None:
        """Read the numbers of a CSV file as float64, whatever its first lines look like."""
        if self._format != "csv":
            return
        arrow = require("pyarrow", "cli", "Reading CSV files")
        schema, types = self.schema, arrow.types
        for column in (*features, options.target, options.sample_weight):
            kind = schema.field(column).type if column in schema.names else None
            if column is not None and kind is not None and (types.is_integer(kind) or types.is_null(kind)):
                schema = schema.set(schema.get_field_index(column), arrow.field(column, arrow.float64()))
        self._data = self._open(schema)

    def batches(self, columns: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The name of a file and a batch of its rows, until there are no more."""
        arrow = require("pyarrow", "cli", f"Reading {self._format} files")
        for fragment in self._data.get_fragments():
            try:
                for batch in fragment.to_batches(
                    schema=self.schema,
                    columns=list(columns),
                    batch_size=_READ_ROWS,
                    batch_readahead=1,
                    fragment_readahead=1,
                    fragment_scan_options=self._scan_options(),
                ):
                    yield fragment.path, batch
            except (arrow.ArrowException, OSError) as error:
                raise InputError(f"{fragment.path} cannot be read: {error}") from error

    def _open(self, schema: pa.Schema | None) -> Any:
        arrow = require("pyarrow", "cli", f"Reading {self._format} files")
        try:
            return self._dataset.dataset(
                self._files,
                schema=schema,
                format=self._file_format(),
                partitioning="hive",
                partition_base_dir=self._base,
            )
        except (arrow.ArrowException, OSError) as error:
            raise InputError(f"{self._name} cannot be read: {error}") from error

    def _file_format(self) -> Any:
        if self._format == "parquet":
            return self._dataset.ParquetFileFormat()
        csv = require("pyarrow.csv", "cli", "Reading CSV files")
        return self._dataset.CsvFileFormat(convert_options=csv.ConvertOptions(strings_can_be_null=True))

    def _scan_options(self) -> Any:
        if self._format == "parquet":
            return self._dataset.ParquetFragmentScanOptions(use_buffered_stream=True, pre_buffer=False)
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
        self._is_fresh, self._once = True, isinstance(stream, arrow.RecordBatchReader)

    @property
    def schema(self) -> pa.Schema:
        """Columns and types."""
        return self._reader.schema

    def prepare(self, options: StreamOptions, features: Sequence[str]) -> None:
        """Nothing to do: the types of a stream are its own."""
        if options.categories == "auto" and self._once:
            raise InputError(
                'categories="auto" reads the rows twice, which a RecordBatchReader cannot. Pass the categories as a '
                "dictionary, or the table or relation that the reader came from."
            )

    def batches(self, columns: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The name of the stream and a batch of its rows, until there are no more."""
        arrow = require("pyarrow", "cli", "Reading Arrow streams")
        if not self._is_fresh:
            self._reader = arrow.RecordBatchReader.from_stream(self._stream)
        self._is_fresh = False
        try:
            for batch in self._reader:
                chosen = batch.select(list(columns))
                for first in range(0, batch.num_rows, _READ_ROWS):
                    yield self.name, chosen.slice(first, _READ_ROWS)
        except (arrow.ArrowException, OSError) as error:
            raise InputError(f"{self.name} cannot be read: {error}") from error


def find_files(path: Any, file_format: str) -> tuple[Any, str | None]:
    """The files behind a file name, folder, glob pattern or list of them, sorted, and the folder they lie in."""
    if not isinstance(path, (str, os.PathLike)):
        return [file for part in path for file in _list_files(os.fspath(part), file_format)], None
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
