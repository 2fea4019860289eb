"""Columns that are not what they seem: numbers with a bad cell, row numbers, dates, names.

A column is judged before rows with missing values are dropped, so that row numbers are those of the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ggmtl.errors import InputError

# From this share of numbers on, the other cells of a text column are taken for mistakes.
_MOSTLY = 0.9
# In fewer rows, distinct values say nothing.
_ENOUGH_ROWS = 10
# In so many rows of a single task, a count of the rows is a number of the row.
_MANY_ROWS = 100
_DATE = re.compile(r"\s*\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([ T].*)?$")


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
    if pa.types.is_temporal(kind):
        raise InputError(_date_message(name, f"holds {kind}"))
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
    raise InputError(f"The target {name!r} must hold numbers. It holds {column.type} instead.")


def _check_text(column: pa.ChunkedArray, name: str) -> None:
    _refuse_bad_cell(column, name, f"Correct the cell, or take all values as categories with --categorical {name!r}.")
    values = column.drop_null()
    distinct = pc.count_distinct(values).as_py()
    if len(values) < _ENOUGH_ROWS:
        return
    if distinct > len(values) // 2 and _share(values, lambda text: bool(_DATE.match(text))) >= _MOSTLY:
        raise InputError(_date_message(name, f"seems to hold dates, such as {values[0].as_py()!r}"))
    if distinct == len(values):
        raise InputError(
            f"Column {name!r} holds text with {distinct:,} different values, one for every row: a name, not a feature. "
            f"Leave it out with --exclude {name!r}."
        )


def _refuse_bad_cell(column: pa.ChunkedArray, name: str, remedy: str) -> None:
    """Stop where nearly all cells are numbers: the first that is not, with its row."""
    values = column.to_pylist()
    parsed = {value: _parses(value) for value in set(values) if value is not None}
    known = [value for value in values if value is not None]
    good = sum(parsed[value] for value in known)
    if not known or good < _MOSTLY * len(known):
        if known and np.mean([_parses(value.replace(",", ".", 1)) for value in known]) >= _MOSTLY:
            raise InputError(
                f"Column {name!r} holds numbers with a decimal comma, such as "
                f"{next(value for value in known if ',' in value)!r}. Write them with a point."
            )
        return
    bad = [k for k, value in enumerate(values) if value is not None and not parsed[value]]
    if not bad:
        raise InputError(f"Column {name!r} holds numbers stored as text. Store them as numbers. {remedy}")
    more = f" (and {len(bad) - 1:,} more cells)" if len(bad) > 1 else ""
    raise InputError(
        f"Column {name!r} must hold numbers, as {good:,} of its cells do. Row {bad[0] + 1:,} below the header has "
        f"{values[bad[0]]!r} instead{more}. {remedy}"
    )


def _parses(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _share(values: pa.ChunkedArray, test: Callable[[str], bool]) -> float:
    return float(np.mean([test(value) for value in values.to_pylist()]))


def _counts_rows(column: pa.ChunkedArray) -> bool:
    """Whether integers are 0, …, n − 1 or 1, …, n in any order."""
    values = column.drop_null()
    if len(values) < max(_ENOUGH_ROWS, len(column)):
        return False
    least, most = pc.min(values).as_py(), pc.max(values).as_py()
    return least in (0, 1) and most - least == len(values) - 1 and pc.count_distinct(values).as_py() == len(values)


def _date_message(name: str, what: str) -> str:
    return (
        f"Column {name!r} {what}. Make numbers of it (a year, a month, days since the first), or leave it out with "
        f"--exclude {name!r}."
    )
