"""CSV files as people write them: commas, semicolons, tabs or bars between cells; 1,234.5 or 1.234,5 for a number.

The cells of a column show how it is written: 1,5 has a decimal comma, 2.5 a decimal point. Cells such as 1,234 could be
either. They are read by the option ``--decimal``, else like the other columns of the file, else as in training.
"""

from __future__ import annotations

import codecs
import csv
import gzip
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from ggmtl.errors import InputError, not_utf8_message

_WHOLE_NUMBER = r"^-?(0|[1-9][0-9]*)(\.0*)?$"
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# A comma comes last: in a file with semicolons it may be in every number.
_SEPARATORS = ("\t", ";", "|", ",")
# Records from which the separator is told.
_SAMPLE = 200
# Between groups of three digits: a space, two kinds of spaces that do not break, apostrophes.
_SPACES = " \u00a0\u202f'’"
_EITHER = "either"


@dataclass(frozen=True)
class Reading:
    """How cells of a CSV file are read.

    Parameters
    ----------
    decimal : {"point", "comma"}, optional
        What cells such as 1,234 mean where the file does not show it.
    missing : tuple of str, optional
        Cells that stand for a missing value; by default the empty cell, NA, NaN, null and the like.
    """

    decimal: str | None = None
    missing: tuple[str, ...] | None = None


AS_SHOWN = Reading()


@dataclass(frozen=True)
class CsvTable:
    """A table, and how its file was written.

    Parameters
    ----------
    table : pyarrow.Table
    separator : str
        Between cells.
    decimal : {"point", "comma"}
        Of its numbers.
    """

    table: pa.Table
    separator: str = ","
    decimal: str = "point"


def is_compressed(path: Path) -> bool:
    """Whether the name ends in .csv.gz."""
    # Arrow knows the ending in small letters only.
    return path.suffix == ".gz" and path.stem.lower().endswith(".csv")


def read_cells(path: Path, separator: str) -> list[list[str]] | None:
    """The cells of a CSV file as they are, its header first; None where a cell is too long."""
    with suppress(csv.Error), _open(path, "rt", newline="", encoding="utf-8-sig") as file:
        # A line without anything in it is no row.
        return [row for row in csv.reader(file, delimiter=separator) if row]
    return None


def read_csv(path: Path, labels: str | None, reading: Reading, remembered: str | None = None) -> CsvTable:
    """Read text in UTF-8; another encoding raises an error that names the column.

    Parameters
    ----------
    path : Path
    labels : str, optional
        Column that holds labels: whole numbers and text, never other numbers.
    reading : Reading
    remembered : {"point", "comma"}, optional
        Decimal mark of the training file.
    """
    with _open(path, "rb") as file:
        if file.readline().startswith(_UTF16):
            raise InputError(not_utf8_message(path))
    separator = _separator(path)
    kinds = {} if labels is None else {labels: pa.binary()}
    table = _read(path, separator, reading, kinds)
    known = table.column_names
    if len(set(known)) < len(known):
        return CsvTable(table)  # refused by whoever asked for the table
    table, decimal = _with_numbers(
        table,
        lambda names: _read(path, separator, reading, kinds | dict.fromkeys(names, pa.string())),
        labels,
        reading.decimal,
        remembered or ("point" if separator == "," else None),
    )
    return CsvTable(table, separator, decimal)


def _read(path: Path, separator: str, reading: Reading, kinds: Mapping[str, pa.DataType]) -> pa.Table:
    missing = {} if reading.missing is None else {"null_values": ["", *reading.missing]}
    convert = pyarrow.csv.ConvertOptions(column_types=dict(kinds), strings_can_be_null=True, **missing)
    parse = pyarrow.csv.ParseOptions(delimiter=separator)
    table = pyarrow.csv.read_csv(path, convert_options=convert, parse_options=parse)
    labels = next((name for name, kind in kinds.items() if kind == pa.binary()), None)
    try:
        # Names are decoded when they are first asked for; values that are not UTF-8 are taken for bytes.
        known = table.column_names
        if known.count(labels) == 1:
            table = table.set_column(known.index(labels), labels, _labels(table[labels]))
        found = zip(known, table.schema.types)
        encoded = [name for name, kind in found if pa.types.is_binary(kind) and known.count(name) == 1]
    except UnicodeDecodeError as error:
        raise InputError(not_utf8_message(path)) from error
    if encoded:
        raise InputError(not_utf8_message(path, encoded[0]))
    return table


def _open(path: Path, mode: str, **options: Any) -> Any:
    return gzip.open(path, mode, **options) if is_compressed(path) else path.open(mode, **options)


def _separator(path: Path) -> str:
    """The first separator that divides all of the first records into the same number of cells, two or more."""
    found = {separator: _widths(path, separator) for separator in _SEPARATORS}
    regular = [s for s, widths in found.items() if len(set(widths)) == 1 and widths[0] > 1]
    if regular:
        return regular[0]
    # Some line is faulty, so only the header counts.
    return max(reversed(_SEPARATORS), key=lambda separator: found[separator][:1])


def _widths(path: Path, separator: str) -> list[int]:
    def records() -> Iterator[list[str]]:
        with _open(path, "rt", newline="", encoding="utf-8-sig", errors="replace") as file:
            yield from csv.reader(file, delimiter=separator)

    with suppress(csv.Error):
        return [len(record) for record in islice(filter(None, records()), _SAMPLE)]
    return []


def _labels(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Whole numbers where no cell has a leading zero (1.0, as tables with gaps have it, is 1), else text, trimmed.

    The bytes themselves where they are no text.
    """
    try:
        text = pc.utf8_trim_whitespace(pc.cast(cells, pa.string()))
    except pa.ArrowInvalid:
        return cells
    if not pc.all(pc.match_substring_regex(text, _WHOLE_NUMBER)).as_py():
        return text
    with suppress(pa.ArrowInvalid):
        numbers = pc.cast(pc.replace_substring_regex(text, r"\.0*$", ""), pa.int64())
        # Two ways to write one number may be two labels.
        return numbers if len(pc.unique(numbers)) == len(pc.unique(text)) else text
    return text


# ---------------------------------------------------------------- numbers


def _pattern(mark: str) -> str:
    """Numbers with this decimal mark; the other one, spaces and apostrophes may stand between groups of digits."""
    mark, other = (r"\.", ",") if mark == "point" else (",", r"\.")
    whole = rf"(\d+|[1-9]\d{{0,2}}([{other}{_SPACES}]\d{{3}})+)"
    return rf"^[+-]?({whole}({mark}\d*)?|{mark}\d+)([eE][+-]?\d+)?$"


def written_numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Which cells of a text column are numbers, with a point or a comma."""
    text = pc.utf8_trim_whitespace(column)
    point, comma = (pc.match_substring_regex(text, _pattern(mark)) for mark in ("point", "comma"))
    return pc.or_(point, comma)


def _mark(column: pa.ChunkedArray) -> str | None:
    """Decimal mark that the cells of a text column show: point, comma, either, or None where they are no numbers."""
    text = pc.utf8_trim_whitespace(column.drop_null())
    fits = [mark for mark in ("point", "comma") if _all_match(text, _pattern(mark))]
    if len(fits) < 2:
        return fits[0] if fits else None
    return _EITHER if pc.any(pc.match_substring_regex(text, "[.,]")).as_py() else "point"


def _all_match(text: pa.ChunkedArray, pattern: str) -> bool:
    # The first cells of most text columns already show that it is no number.
    return all(
        len(part) > 0 and pc.all(pc.match_substring_regex(part, pattern)).as_py() for part in (text.slice(0, 100), text)
    )


def _converted(column: pa.ChunkedArray, mark: str) -> pa.ChunkedArray:
    """Text as whole numbers, or as floats."""
    groups = f"[{',' if mark == 'point' else '.'}{_SPACES}]"
    text = pc.replace_substring_regex(pc.utf8_trim_whitespace(column), groups, "")
    text = pc.replace_substring(pc.utf8_ltrim(text, "+"), ",", ".")
    with suppress(pa.ArrowInvalid):
        return pc.cast(text, pa.int64())
    return pc.cast(text, pa.float64())


def _with_numbers(
    table: pa.Table, read_as_text: Any, labels: str | None, chosen: str | None, otherwise: str | None
) -> tuple[pa.Table, str]:
    """The table with text columns of numbers as numbers, and the decimal mark of the file."""
    columns = {name: table[name] for name in table.column_names}
    text = {name: c for name, c in columns.items() if pa.types.is_string(c.type) and name != labels}
    marks = {name: mark for name, column in text.items() if (mark := _mark(column)) is not None}
    floats = [name for name, column in columns.items() if pa.types.is_floating(column.type)]
    may_have_commas = "comma" in marks.values() or "comma" in (chosen, otherwise)
    if floats and may_have_commas:
        # Arrow read 1.234 as a number with a point; the cells as text show whether it may be a thousand.
        cells = read_as_text(floats)
        text |= {name: cells[name] for name in floats}
        marks |= {name: _mark(cells[name]) or "point" for name in floats}
    shown = {mark for mark in marks.values() if mark != _EITHER}
    if floats and not may_have_commas:
        shown.add("point")
    decimal = chosen or (next(iter(shown)) if len(shown) == 1 else None) or otherwise
    for name, mark in marks.items():
        if mark == _EITHER:
            mark = decimal or _refuse(name, text[name])
        if name not in floats or mark == "comma":
            table = table.set_column(table.column_names.index(name), name, _converted(text[name], mark))
    return table, decimal or ("comma" if "comma" in shown else "point")


def _refuse(name: str, column: pa.ChunkedArray) -> str:
    cell = next(value for value in column.to_pylist() if value is not None and set(value) & set(".,"))
    raise InputError(
        f"Column {name!r} has numbers such as {cell!r}, which could have thousands or decimals. Say which with "
        "--decimal comma or --decimal point."
    )
