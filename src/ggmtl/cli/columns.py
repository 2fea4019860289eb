"""Columns of a file → features: numbers stay, dates become days, text one 0/1 column per category but the first.

A column is judged before rows with missing values are dropped, so that row numbers are those of the file. Columns that
are not what they seem, such as a count of the rows or numbers with a faulty cell, are refused with the remedy.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ggmtl.cli.csv_files import written_numbers
from ggmtl.cli.dates import Days, is_date, seems_dates
from ggmtl.data.columns import check_different
from ggmtl.errors import InputError, ModelFileError
from ggmtl.statistics.streaming.batches import is_text

# From this share of numbers on, the other cells of a text column are taken for mistakes.
_MOSTLY_NUMBERS = 0.9
# In fewer rows, distinct values say nothing.
_ENOUGH_ROWS = 10
# In so many rows of a single task, a count of the rows is a number of the row.
_MANY_ROWS = 100


def is_number(kind: pa.DataType) -> bool:
    """Whether a type holds numbers."""
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def check_column(column: pa.ChunkedArray, name: str, *, named: bool, n_tasks: int) -> None:
    """Refuse a feature that is not what it seems.

    Parameters
    ----------
    column : pyarrow.ChunkedArray
        All rows of the file.
    name : str
    named : bool
        Whether the user named this column in --features: a row number may then be meant.
    n_tasks : int
        Within one task, a feature such as the day may count the rows.
    """
    kind = column.type
    if pa.types.is_integer(kind):
        if not named and (n_tasks > 1 or len(column) >= _MANY_ROWS) and _counts_rows(column):
            raise InputError(
                f"Column {name!r} only counts the rows, from {pc.min(column).as_py():,} to {pc.max(column).as_py():,}. "
                f"Leave it out with --exclude {name!r}, or name it in --features."
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
    raise InputError(f"The target {name!r} must hold numbers. It holds {_kind(column)} instead.{remedy}")


def _kind(column: pa.ChunkedArray) -> str:
    """What a column holds, in words."""
    if not is_text(column.type):
        return str(column.type)
    values = column.drop_null()
    return f"text, such as {values[0].as_py()!r}," if len(values) else "nothing"


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
        f"{column[row].as_py()!r} instead{more}. {remedy} If it stands for a missing value, use "
        f"--na-values {column[row].as_py()!r} with --drop-missing."
    )


def _counts_rows(column: pa.ChunkedArray) -> bool:
    """Whether integers are 0, …, n − 1 or 1, …, n in any order."""
    values = column.drop_null()
    if len(values) < max(_ENOUGH_ROWS, len(column)):
        return False
    least, most = pc.min(values).as_py(), pc.max(values).as_py()
    return least in (0, 1) and most - least == len(values) - 1 and pc.count_distinct(values).as_py() == len(values)


MAX_CATEGORIES = 50
Form = tuple[str, ...] | Days | None


@dataclass(frozen=True)
class Encoding:
    """How the columns of a file became features.

    Parameters
    ----------
    target : str
        Name of the column that was learned.
    columns : tuple of (name, form)
        Categories of a text column, the first of which is the reference; how dates become days; None for numbers.
    decimal : {"point", "comma"}
        How numbers were written in the file.
    missing : tuple of str, optional
        Cells that stood for a missing value, where these were given.
    """

    target: str
    columns: tuple[tuple[str, Form], ...]
    decimal: str = "point"
    missing: tuple[str, ...] | None = None

    @classmethod
    def of(cls, table: pa.Table, features: list[str], target: str, categorical: Collection[str] = ()) -> Encoding:
        """Read off the types and categories of the columns; those in `categorical` are never numbers."""
        columns = tuple((name, _form(table[name], name, name in categorical)) for name in features)
        columns = tuple((name, form) for name, form in columns if not isinstance(form, tuple) or len(form) > 1)
        if not columns:
            raise InputError("No feature is left: every column has one value only. Give columns that vary.")
        encoding = cls(target, columns)
        check_different(encoding.feature_names)
        return encoding

    @classmethod
    def from_plain(cls, value: Any) -> Encoding:
        """The inverse of `to_plain`."""
        try:
            columns = tuple((str(name), _form_from_plain(form)) for name, form in value["columns"])
            decimal, missing = value.get("decimal", "point"), value.get("missing")
            if decimal not in ("point", "comma"):
                raise ValueError(decimal)
            return cls(str(value["target"]), columns, decimal, None if missing is None else tuple(map(str, missing)))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ModelFileError("The model file does not say how columns become features.") from error

    def to_plain(self) -> dict[str, Any]:
        """Plain data for the model file."""
        return {
            "target": self.target,
            "columns": [[name, _form_to_plain(form)] for name, form in self.columns],
            "decimal": self.decimal,
            "missing": None if self.missing is None else list(self.missing),
        }

    @property
    def source_columns(self) -> list[str]:
        """Columns that a file must have."""
        return [name for name, _ in self.columns]

    @property
    def feature_names(self) -> list[str]:
        """Names of the features, one for every category but the reference."""
        return [
            feature
            for name, form in self.columns
            for feature in ([f"{name}={category}" for category in form[1:]] if isinstance(form, tuple) else [name])
        ]

    def notes(self) -> list[str]:
        """What was done to categories and dates, in words."""
        out = []
        for name, form in self.columns:
            if isinstance(form, Days):
                out.append(f"{name}: dates, as days since {form.origin}")
            elif form is not None and len(form) == 2:
                out.append(f"{name}: two categories, 1 for {form[1]!r} and 0 for {form[0]!r}")
            elif form is not None:
                words = f"one 0/1 column for each but the reference, {form[0]!r}"
                out.append(f"{name}: {len(form)} categories, {words}")
        return out

    def features(self, table: pa.Table) -> dict[str, pa.ChunkedArray]:
        """Feature columns by name."""
        out: list[pa.ChunkedArray] = []
        for name, form in self.columns:
            if form is None:
                out.append(_numbers(table[name], name))
            elif isinstance(form, Days):
                out.append(_days(table[name], name, form))
            else:
                text = _text(table[name])
                _check_categories(text, name, form)
                out += [pc.cast(pc.equal(text, category), pa.float64()) for category in form[1:]]
        return dict(zip(self.feature_names, out))


def _form_to_plain(form: Form) -> Any:
    return form.to_plain() if isinstance(form, Days) else None if form is None else list(form)


def _form_from_plain(value: Any) -> Form:
    if isinstance(value, dict):
        return Days.from_plain(value)
    return None if value is None else tuple(map(str, value))


def _form(column: pa.ChunkedArray, name: str, wanted: bool) -> Form:
    """How a column becomes features; `wanted`: as categories."""
    kind = column.type
    if not wanted:
        if is_number(kind) or pa.types.is_boolean(kind):
            return None
        if is_date(kind) or (is_text(kind) and seems_dates(column)):
            return Days.of(column, name)
        if not is_text(kind):
            raise InputError(
                f"Column {name!r} holds {kind}, which is neither numbers, dates nor text. Convert it, or leave it out "
                f"with --exclude {name!r}."
            )
    found = sorted(pc.unique(_text(column)).to_pylist())
    if len(found) > MAX_CATEGORIES:
        raise InputError(
            f"Column {name!r} has {len(found):,} categories; at most {MAX_CATEGORIES} become features. Join rare ones "
            f"in the file, or leave it out with --exclude {name!r}."
        )
    return tuple(found)


def _days(column: pa.ChunkedArray, name: str, form: Days) -> pa.ChunkedArray:
    if not (is_date(column.type) or is_text(column.type)):
        raise InputError(f"Column {name!r} must hold dates, as in training. It holds {column.type} instead.")
    return form.count(column, name)


def _check_categories(text: pa.ChunkedArray, name: str, found: tuple[str, ...]) -> None:
    unknown = sorted(set(pc.unique(text).to_pylist()) - set(found))
    if unknown:
        raise InputError(
            f"Column {name!r} has the value {unknown[0]!r}, which the model has not seen. It knows "
            f"{', '.join(map(repr, found[:12]))}{' …' if len(found) > 12 else ''}."
        )


def _numbers(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    if not (is_number(column.type) or pa.types.is_boolean(column.type)):
        raise InputError(f"Column {name!r} must hold numbers, as in training. It holds {column.type} instead.")
    return pc.cast(column, pa.float64(), safe=False)


def _text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.cast(column, pa.string())
