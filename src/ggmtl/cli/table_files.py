"""Files ↔ tables: CSV and Parquet, columns by name, missing values counted; and tables with one row per task."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from ggmtl.cli.csv_files import AS_SHOWN, CsvTable, Reading, is_compressed, read_csv
from ggmtl.cli.dates import Days, is_date, seems_dates
from ggmtl.data.labels import locate_tasks
from ggmtl.data.task_features import TaskFeatures, read_task_features
from ggmtl.errors import InputError, ParameterError, did_you_mean, require
from ggmtl.runtime.files import write_whole
from ggmtl.statistics.streaming.batches import is_text

_PARQUET = (".parquet", ".pq")
_NOT_TABLES = (".xlsx", ".xls", ".ods", ".json", ".feather", ".rds", ".zip", ".gz")


def is_parquet(path: Path) -> bool:
    """Whether the name of a file says so; everything else is CSV."""
    return path.suffix.lower() in _PARQUET


def read_table(
    path: Path, labels: str | None = None, reading: Reading = AS_SHOWN, remembered: str | None = None
) -> CsvTable:
    """Read a CSV (also ``.csv.gz``) or Parquet file; empty cells are missing values.

    The column `labels` of a CSV file stays text where numbers would not give every cell back as it is: 01 is not 1.
    `remembered` is the decimal mark of the file that a model was trained on.
    """
    if path.suffix.lower() in _NOT_TABLES and not is_compressed(path):
        raise InputError(f"{path} must be a CSV or Parquet file. Save it as one of these.")
    try:
        if is_parquet(path):
            found = CsvTable(pyarrow.parquet.read_table(path))
        else:
            found = read_csv(path, labels, reading, remembered)
        known = found.table.column_names
    except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        reason = str(error)
        if "straddling" in reason:
            reason = "a cell or a line of it is too long. Is a quotation mark missing?"
        raise InputError(f"{path} cannot be read as {_kind(path)}: {reason}") from error
    repeated = [name for name in known if known.count(name) > 1]
    if repeated:
        raise InputError(f"{path} has more than one column {repeated[0]!r}; names must differ.")
    if found.table.num_rows == 0:
        raise InputError(f"{path} has no rows.")
    return found


def write_table(table: pa.Table, path: Path) -> None:
    """Write a CSV or Parquet file, whole or not at all."""
    buffer = io.BytesIO()
    if is_parquet(path):
        pyarrow.parquet.write_table(table, buffer)
    else:
        pyarrow.csv.write_csv(table, buffer)
    write_whole(path, buffer.getvalue())


def check_columns(table: pa.Table, columns: Sequence[str], path: Path) -> None:
    """Refuse a name that is not a column, with the nearest that is."""
    known = table.column_names
    for name in columns:
        if name not in known:
            near = did_you_mean(name, known)
            listing = "" if near else f" It has {', '.join(map(repr, known[:12]))}{' …' if len(known) > 12 else ''}."
            raise InputError(f"{path} has no column {name!r}.{near}{listing}")


def without_missing(table: pa.Table, drop: bool, remedy: str) -> tuple[pa.Table, int]:
    """The table without rows that miss a value, and how many were dropped; an error unless `drop`."""
    missing = {name: _is_missing(table[name]) for name in table.column_names}
    counts = {name: int(pc.sum(mask).as_py() or 0) for name, mask in missing.items()}
    counts = {name: number for name, number in counts.items() if number}
    if not counts:
        return table, 0
    if not drop:
        listing = ", ".join(f"{name!r}: {number:,}" for name, number in counts.items())
        raise InputError(
            f"Some rows miss values ({listing}). Drop those rows with --drop-missing, or {remedy}. If cells such as NA "
            "are values in this file, use --na-values."
        )
    any_missing = None
    for name in counts:
        any_missing = missing[name] if any_missing is None else pc.or_(any_missing, missing[name])
    kept = table.filter(pc.invert(any_missing))
    if kept.num_rows == 0:
        raise InputError(f"Every row misses a value, so none is left: {remedy}.")
    return kept, table.num_rows - kept.num_rows


def _is_missing(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.is_null(column, nan_is_null=pa.types.is_floating(column.type))


def _kind(path: Path) -> str:
    return "Parquet" if is_parquet(path) else "CSV"


TABLES = (".csv", ".parquet", ".pq")
MODELS = (".ggmtl",)
PAGES = (".html", ".htm")


def check_output(option: str, path: Path | None, suffixes: Sequence[str], inputs: Sequence[Path] = ()) -> None:
    """Refuse a file that cannot be written, or that must not be."""
    if path is None:
        return
    if path.is_dir():
        raise ParameterError(f"{option} must be a file. Got the folder {str(path)!r} instead.")
    if path.suffix.lower() not in suffixes:
        endings = " or ".join(suffixes[:2])
        raise ParameterError(f"{option} must end in {endings}. Got {str(path)!r} instead.")
    folder = path.parent
    if not folder.is_dir():
        raise ParameterError(
            f"{option} must be in a folder that exists. Got {str(path)!r} instead; make the folder {str(folder)!r} "
            "first."
        )
    if not os.access(folder, os.W_OK):
        raise ParameterError(f"{option} must be in a folder that you may write to. Got {str(path)!r} instead.")
    if any(_same(path, other) for other in inputs):
        raise ParameterError(f"{option} must not be a file that is read. Got {str(path)!r} for both.")


def check_page(option: str, path: Path | None) -> None:
    """The same for a page, which also needs its template engine."""
    if path is not None:
        check_output(option, path, PAGES)
        require("jinja2", "report", "The report")


def _same(path: Path, other: Path) -> bool:
    return path.exists() and other.exists() and os.path.samefile(path, other)


# Text of which a larger share of the cells differ names tasks and does not describe them.
_NAMES = 0.9
_MOST_SHOWN = 5


@dataclass(frozen=True)
class TaskTable:
    """What a file says about the tasks, and notes for the reader.

    Parameters
    ----------
    features : TaskFeatures
    notes : tuple of str
        Columns that were left out, in words.
    """

    features: TaskFeatures
    notes: tuple[str, ...] = ()

    def without_rows(self, tasks: np.ndarray) -> str | None:
        """Which tasks of the file have no rows, in words; None where all have some."""
        absent = self.features.task_names[locate_tasks(tasks, self.features.task_names) < 0].tolist()
        if not absent:
            return None
        shown = ", ".join(map(repr, absent[:_MOST_SHOWN])) + (" …" if len(absent) > _MOST_SHOWN else "")
        return f"{len(absent):,} of {len(self.features.task_names):,} tasks of the task table have no rows: {shown}."


def read_task_table(path: Path, task: str, reading: Reading = AS_SHOWN, wanted: list[str] | None = None) -> TaskTable:
    """Read the columns wanted, by default all that describe tasks; dates become days."""
    table = read_table(path, task, reading).table
    check_columns(table, [task, *(wanted or [])], path)
    chosen = [name for name in wanted or table.column_names if name != task]
    notes = []
    if wanted is None:
        names = [name for name in chosen if _only_names(table[name])]
        chosen = [name for name in chosen if name not in names]
        notes = [
            f"{name}: left out of the task table, because nearly every task has a text of its own." for name in names
        ]
    if not chosen:
        raise InputError(f"{path} has no column that describes tasks, besides {task!r}.")
    columns = {task: table[task]} | {name: _as_numbers(table[name], name) for name in chosen}
    return TaskTable(read_task_features(pa.table(columns), task), tuple(notes))


def _only_names(column: pa.ChunkedArray) -> bool:
    if not is_text(column.type) or seems_dates(column):
        return False
    return len(column) > 2 and len(pc.unique(column)) > _NAMES * len(column)


def _as_numbers(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Dates as days since 1970, other columns as they are; missing cells are left to be refused."""
    dates = is_date(column.type) or (is_text(column.type) and seems_dates(column))
    if not dates or column.null_count:
        return column
    return replace(Days.of(column, name), origin="1970-01-01").count(column, name)
