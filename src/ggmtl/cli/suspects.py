"""Columns that are not what they seem: numbers with a bad cell, row numbers, names.

A column is judged before rows with missing values are dropped, so that row numbers are those of the file.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from ggmtl.cli.csv_files import written_numbers
from ggmtl.cli.dates import seems_dates
from ggmtl.errors import InputError

# From this share of numbers on, the other cells of a text column are taken for mistakes.
_MOSTLY = 0.9
# In fewer rows, distinct values say nothing.
_ENOUGH_ROWS = 10
# In so many rows of a single task, a count of the rows is a number of the row.
_MANY_ROWS = 100


def is_number(kind: pa.DataType) -> bool:
    """Whether a type holds numbers."""
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def is_text(kind: pa.DataType) -> bool:
    """Whether a type holds text, or categories that are text."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def check_column(column: pa.ChunkedArray, name: str, *, named: bool, n_tasks: int) -> None:
    """Refuse a feature that is not what it seems.

    Parameters
    ----------
    column : pyarrow.ChunkedArray
        All rows of the file.
    name : str
    named : bool
        Whether the user asked for this very column: a row number may then be meant.
    n_tasks : int
        Within one task, a feature such as the day may well count the rows.
    """
    kind = column.type
    if pa.types.is_integer(kind):
        if not named and (n_tasks > 1 or len(column) >= _MANY_ROWS) and _counts_rows(column):
            raise InputError(
                f"Column {name!r} only counts the rows, from {pc.min(column).as_py():,} to {pc.max(column).as_py():,}. "
                f"Leave it out with --exclude {name!r}, or ask for it with --features."
            )
        return
    if is_text(kind):
        _check_text(column.cast(pa.string()), name)


def check_numbers(column: pa.ChunkedArray, name: str) -> None:
    """Refuse text where training had numbers, with the cell to blame where few are."""
    if is_text(column.type):
        _refuse_bad_cell(column.cast(pa.string()), name, "Correct the cell, or leave it empty and use --drop-missing.")
        raise InputError(f"Column {name!r} must hold numbers, as in training. It holds text instead.")


def check_target(column: pa.ChunkedArray, name: str) -> None:
    """Refuse a target that does not hold numbers, with the cell to blame where few are."""
    if is_number(column.type):
        return
    if is_text(column.type):
        _refuse_bad_cell(column.cast(pa.string()), name, "Correct the cell, or leave it empty and use --drop-missing.")
    two = pc.count_distinct(column.drop_null()).as_py() == 2
    remedy = " It has two values: use --loss binary for the probability of the second." if two else ""
    raise InputError(f"The target {name!r} must hold numbers. It holds {column.type} instead.{remedy}")


def _check_text(column: pa.ChunkedArray, name: str) -> None:
    _refuse_bad_cell(column, name, f"Correct the cell, or take all values as categories with --categorical {name!r}.")
    values = column.drop_null()
    distinct = pc.count_distinct(values).as_py()
    if len(values) < _ENOUGH_ROWS:
        return
    if distinct == len(values) and not seems_dates(values):
        raise InputError(
            f"Column {name!r} holds text with {distinct:,} different values, one for every row: a name, not a feature. "
            f"Leave it out with --exclude {name!r}."
        )


def _refuse_bad_cell(column: pa.ChunkedArray, name: str, remedy: str) -> None:
    """Stop where nearly all cells are numbers: the first that is not, with its row."""
    fits = written_numbers(column)
    good, known = pc.sum(fits).as_py() or 0, len(column) - column.null_count
    if not known or good < _MOSTLY * known:
        return
    if good == known:
        raise InputError(
            f"Column {name!r} holds numbers as text, such as {column.drop_null()[0].as_py()!r}. Store them as numbers, "
            f"all written in the same way. {remedy}"
        )
    row = pc.index(fits, False).as_py()
    more = f" (and {known - good - 1:,} more cells)" if known - good > 1 else ""
    raise InputError(
        f"Column {name!r} must hold numbers, as {good:,} of its cells do. Row {row + 1:,} below the header has "
        f"{column[row].as_py()!r} instead{more}. {remedy}"
    )


def _counts_rows(column: pa.ChunkedArray) -> bool:
    """Whether integers are 0, …, n − 1 or 1, …, n in any order."""
    values = column.drop_null()
    if len(values) < max(_ENOUGH_ROWS, len(column)):
        return False
    least, most = pc.min(values).as_py(), pc.max(values).as_py()
    return least in (0, 1) and most - least == len(values) - 1 and pc.count_distinct(values).as_py() == len(values)
