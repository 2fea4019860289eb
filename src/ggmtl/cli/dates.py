"""Columns of dates → days since the first of the training rows."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

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
