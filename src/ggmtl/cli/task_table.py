"""A file with one row per task → what is known about the tasks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ggmtl.cli.csv_files import AS_SHOWN, Reading
from ggmtl.cli.dates import Days, is_date, seems_dates
from ggmtl.cli.suspects import is_text
from ggmtl.cli.table_files import check_columns, read_table
from ggmtl.data.labels import locate_tasks
from ggmtl.data.task_features import TaskFeatures, read_task_features
from ggmtl.errors import InputError

# Text of which a larger share of the cells differ names tasks and does not describe them.
_NAMES = 0.9
_MOST_SHOWN = 5


@dataclass(frozen=True)
class TaskTable:
    """What a file tells about the tasks, and what a reader should know of it.

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
        return f"{len(absent):,} of {len(self.features.task_names):,} tasks of the task table have no rows: {shown}"


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
            f"{name}: left out of the task table, because nearly every task has a text of its own" for name in names
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
