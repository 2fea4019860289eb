"""Columns → features: numbers stay, text becomes one 0/1 column per category but the first."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ggmtl.cli.suspects import is_number, is_text
from ggmtl.errors import InputError, ModelFileError
from ggmtl.statistics.streaming.batches import check_different

MAX_CATEGORIES = 50


@dataclass(frozen=True)
class Encoding:
    """How the columns of a file became features.

    Parameters
    ----------
    target : str
        Name of the column that was learned.
    columns : tuple of (name, categories)
        Categories of a text column, the first of which is the reference; None for numbers.
    """

    target: str
    columns: tuple[tuple[str, tuple[str, ...] | None], ...]

    @classmethod
    def of(cls, table: pa.Table, features: list[str], target: str, categorical: Collection[str] = ()) -> Encoding:
        """Read off the types and categories of the columns; those in `categorical` are never numbers."""
        columns = tuple((name, _categories(table[name], name, name in categorical)) for name in features)
        columns = tuple((name, found) for name, found in columns if found is None or len(found) > 1)
        if not columns:
            raise InputError("No feature is left: every column has one value only. Give columns that vary.")
        encoding = cls(target, columns)
        check_different(encoding.feature_names)
        return encoding

    @classmethod
    def from_plain(cls, value: Any) -> Encoding:
        """The inverse of `to_plain`."""
        try:
            columns = tuple(
                (str(name), None if found is None else tuple(map(str, found))) for name, found in value["columns"]
            )
            return cls(str(value["target"]), columns)
        except (KeyError, TypeError, ValueError) as error:
            raise ModelFileError("The model file does not say how columns become features.") from error

    def to_plain(self) -> dict[str, Any]:
        """Plain data for the model file."""
        return {
            "target": self.target,
            "columns": [[name, None if found is None else list(found)] for name, found in self.columns],
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
            for name, found in self.columns
            for feature in ([name] if found is None else [f"{name}={category}" for category in found[1:]])
        ]

    def notes(self) -> list[str]:
        """What was done to categories, in words."""
        return [
            f"{name}: categories, one 0/1 column for each of {len(found) - 1} categories; the reference is {found[0]!r}"
            for name, found in self.columns
            if found is not None
        ]

    def features(self, table: pa.Table) -> dict[str, pa.ChunkedArray]:
        """Feature columns by name."""
        out: list[pa.ChunkedArray] = []
        for name, found in self.columns:
            if found is None:
                out.append(_numbers(table[name], name))
                continue
            text = _text(table[name])
            _check_categories(text, name, found)
            out += [pc.cast(pc.equal(text, category), pa.float64()) for category in found[1:]]
        return dict(zip(self.feature_names, out))


def _categories(column: pa.ChunkedArray, name: str, wanted: bool) -> tuple[str, ...] | None:
    kind = column.type
    if not wanted:
        if is_number(kind) or pa.types.is_boolean(kind):
            return None
        if not is_text(kind):
            raise InputError(
                f"Column {name!r} holds {kind}, which is neither numbers nor text. Convert it, or leave it out "
                f"with --exclude {name!r}."
            )
    found = sorted(pc.unique(_text(column)).to_pylist())
    if len(found) > MAX_CATEGORIES:
        raise InputError(
            f"Column {name!r} has {len(found):,} categories; at most {MAX_CATEGORIES} become features. Join rare ones "
            f"in the file, or leave it out with --exclude {name!r}."
        )
    return tuple(found)


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
