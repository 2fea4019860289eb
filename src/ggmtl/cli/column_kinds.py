"""What a column of a file holds: numbers, dates (→ days since the first of the training rows), text, or a mistake.

A column is judged before rows with missing values are dropped, so that row numbers are those of the file.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ggmtl.cli.csv_files import written_numbers
from ggmtl.errors import InputError

_DATE = (
    r"^(?P<a>\d{1,4})[-/.](?P<b>\d{1,2})[-/.](?P<c>\d{1,4})"
    r"(?:[ T](?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2}))?)?$"
)
# Where year, month and day stand.
_ORDERS = {"YYYY-MM-DD": "abc", "DD.MM.YYYY": "cba", "MM/DD/YYYY": "cab"}
_EPOCH = date(1970, 1, 1)
_PER_DAY = 86_400_000_000
# Below this share of dates, a column of text is no column of dates.
_MOSTLY_DATES = 0.9


@dataclass(frozen=True)
class Days:
    """How dates become numbers.

    Parameters
    ----------
    origin : str
        The day counted from, as 2024-01-31.
    order : {"YYYY-MM-DD", "DD.MM.YYYY", "MM/DD/YYYY"}, optional
        How dates are written in text, with any of the three separators; None where they came as dates.
    """

    origin: str
    order: str | None = None

    @classmethod
    def of(cls, column: pa.ChunkedArray, name: str) -> Days:
        """Read off the order of day, month and year, and the first date of training rows."""
        order = None if is_date(column.type) else _order(column, name)
        first = pc.min(_microseconds(column, order, name)).as_py() // _PER_DAY
        return cls((_EPOCH + timedelta(days=first)).isoformat(), order)

    @classmethod
    def from_plain(cls, value: Any) -> Days:
        """The inverse of `to_plain`; of damaged data, a KeyError, TypeError or ValueError."""
        if value["order"] not in (None, *_ORDERS):
            raise ValueError(value["order"])
        return cls(date.fromisoformat(value["days_since"]).isoformat(), value["order"])

    def to_plain(self) -> dict[str, Any]:
        """Plain data for the model file."""
        return {"days_since": self.origin, "order": self.order}

    def count(self, column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
        """Days since the origin, with fractions where there are times of day."""
        order = None if is_date(column.type) else self.order or _order(column, name)
        start = (date.fromisoformat(self.origin) - _EPOCH).days * _PER_DAY
        return pc.divide(pc.cast(pc.subtract(_microseconds(column, order, name), start), pa.float64()), float(_PER_DAY))


def is_date(kind: pa.DataType) -> bool:
    """Whether a type holds dates, with or without a time of day."""
    return pa.types.is_date(kind) or pa.types.is_timestamp(kind)


def seems_dates(column: pa.ChunkedArray) -> bool:
    """Whether nearly all cells of a text column look like dates."""
    cells = _cells(column)
    return len(cells) > 0 and pc.mean(pc.match_substring_regex(cells, _DATE)).as_py() >= _MOSTLY_DATES


def _cells(column: pa.ChunkedArray) -> pa.Array:
    """The distinct cells of a column of text, trimmed."""
    return pc.unique(pc.utf8_trim_whitespace(column.cast(pa.string()).drop_null()))


def _order(column: pa.ChunkedArray, name: str) -> str:
    """The one order in which all cells are dates."""
    cells = _cells(column)
    fits = [order for order in _ORDERS if _times(cells, order) is not None]
    if not fits:
        example, bad = cells[0].as_py(), _first_bad(cells)
        what = "but they are written in several ways" if bad is None else f"but {bad!r} is not one"
        raise InputError(
            f"Column {name!r} seems to hold dates, such as {example!r}, {what}. Write all of them as 2024-01-31, or "
            f"leave the column out with --exclude {name!r}."
        )
    # With points the day comes before the month wherever dates are written so.
    if len(fits) > 1 and "." not in cells[0].as_py():
        raise InputError(
            f"Column {name!r} has dates such as {cells[0].as_py()!r}, and none shows whether the day or the month "
            f"comes first. Write them as 2024-01-31, or leave the column out with --exclude {name!r}."
        )
    return fits[0]


def _first_bad(cells: pa.Array, orders: tuple[str, ...] = tuple(_ORDERS)) -> str | None:
    """The first cell that is a date in none of the orders."""
    return next(
        (cells[k].as_py() for k in range(len(cells)) if all(_times(cells.slice(k, 1), o) is None for o in orders)), None
    )


def _times(text: Any, order: str) -> Any:
    """Text as points in time; None where a cell is no date in this order."""
    found = pc.extract_regex(text, _DATE)
    if found.null_count > text.null_count:
        return None
    part = {name: pc.struct_field(found, name) for name in ("a", "b", "c", "hour", "minute", "second")}
    year, month, day = (part[letter] for letter in _ORDERS[order])
    if not pc.all(pc.equal(pc.utf8_length(year), 4)).as_py():
        return None
    dates = pc.binary_join_element_wise(year, _two(month), _two(day), "-")
    clock = pc.binary_join_element_wise(_two(part["hour"]), _two(part["minute"]), _two(part["second"]), ":")
    with suppress(pa.ArrowInvalid):
        return pc.cast(pc.binary_join_element_wise(dates, clock, " "), pa.timestamp("us"))
    return None


def _two(digits: Any) -> Any:
    """At least two digits; zeros where there are none."""
    return pc.utf8_lpad(digits, 2, "0")


def _microseconds(column: pa.ChunkedArray, order: str | None, name: str) -> Any:
    """Since 1970, as whole numbers."""
    times: Any = column
    if order is not None:
        text = pc.utf8_trim_whitespace(column.cast(pa.string()))
        times = _times(text, order)
        if times is None:
            bad = _first_bad(pc.unique(text), (order,))
            raise InputError(f"Column {name!r} must hold dates written {order}, as in training. Got {bad!r} instead.")
    zone = getattr(times.type, "tz", None)
    return pc.cast(pc.cast(times, pa.timestamp("us", tz=zone)), pa.int64())


# From this share of numbers on, the other cells of a text column are taken for mistakes.
_MOSTLY_NUMBERS = 0.9
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
    if not known or good < _MOSTLY_NUMBERS * known:
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
