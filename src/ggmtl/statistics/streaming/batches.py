"""Arrow record batches → float columns, task labels and weights; all checks of streamed rows are here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from ggmtl.data.columns import check_different
from ggmtl.data.curves import Curves, DistinctValues
from ggmtl.data.labels import read_labels
from ggmtl.data.reading import are_counts
from ggmtl.errors import InputError, InputTypeError, ParameterError, did_you_mean

MOST_CATEGORIES = 200


@dataclass(frozen=True)
class StreamOptions:
    """What to read and how: the keywords of ``from_parquet`` and the other constructors."""

    task: str
    target: str
    features: Iterable[str] | None = None
    sample_weight: str | None = None
    folds: int | None = None
    batch_rows: int | None = None
    categories: Mapping[str, Sequence[Any]] | str | None = None
    drop_missing: bool = False
    curves: Curves | str | None = None
    progress: Callable[[Any], object] | None = None

    def __post_init__(self):
        if isinstance(self.features, str):
            raise ParameterError(f"features must be a list of column names. Got the text {self.features!r} instead.")
        if self.features is not None:
            object.__setattr__(self, "features", tuple(self.features))
        if isinstance(self.categories, str) and self.categories != "auto":
            raise ParameterError(f'categories must be a dictionary, "auto" or None. Got {self.categories!r} instead.')
        if self.curves is not None and self.curves != "auto" and not isinstance(self.curves, Curves):
            raise ParameterError(f'curves must be "auto", the .curves of statistics, or None. Got {self.curves!r}.')


@dataclass(frozen=True)
class ColumnPlan:
    """Which columns make a row (x, y), its task and its weight.

    A column in `categories` becomes one 0/1 feature ``"column=value"`` for every category but the first, which is
    the one that the others are compared with.
    """

    task: str
    target: str
    features: tuple[str, ...]
    sample_weight: str | None
    categories: dict[str, tuple[Any, ...]]
    curves: Curves | None = None

    @property
    def columns(self) -> list[str]:
        """Every column that must be read, once each."""
        weight = [self.sample_weight] if self.sample_weight else []
        return list(dict.fromkeys([self.task, self.target, *weight, *self.features]))

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features of the statistics."""
        names: list[str] = []
        for column in self.features:
            values = self.categories.get(column)
            names += [column] if values is None else [f"{column}={value}" for value in values[1:]]
        return tuple(names)


def choose_features(schema: pa.Schema, options: StreamOptions, source: str) -> tuple[str, ...]:
    """The feature columns: those given, else all but task, target and weight. Unknown names are refused."""
    known, taken = list(schema.names), (options.task, options.target, options.sample_weight)
    chosen = tuple(options.features or ())
    if options.features is None:
        # pandas writes its row numbers under this name; they are not a feature.
        chosen = tuple(c for c in known if c not in taken and not c.startswith("__index_level_"))
    for column in [c for c in (*taken, *chosen) if c is not None]:
        if known.count(column) != 1:
            problem = f"has two columns {column!r}" if column in known else f"has no column {column!r}"
            raise InputError(f"{source} {problem}.{did_you_mean(column, [c for c in known if c != column])}")
    if len(set(chosen)) < len(chosen) or options.target in chosen:
        raise InputError(f"features must be different columns, none of them the target. Got {list(chosen)} instead.")
    if not chosen:
        raise InputError(f"{source} has no feature column besides {', '.join(repr(c) for c in taken if c)}.")
    return chosen


def plan_columns(
    schema: pa.Schema, options: StreamOptions, categories: Mapping[str, Sequence[Any]], source: str
) -> ColumnPlan:
    """Check the columns and their types, and fix the order of features and categories."""
    chosen = choose_features(schema, options, source)
    for column, values in categories.items():
        if column not in chosen:
            raise InputError(f"categories names {column!r}, which is not a feature.{did_you_mean(column, chosen)}")
        if len(set(values)) < len(values) or not len(values):
            raise InputError(f"categories[{column!r}] must be one or more different values. Got {list(values)!r}.")
    for column in chosen:
        if column not in categories:
            _check_numeric(column, schema.field(column).type, source, "features must be numeric")
    _check_numeric(options.target, schema.field(options.target).type, source, "the target must be numeric")
    fixed = {column: tuple(values) for column, values in categories.items()}
    plan = ColumnPlan(options.task, options.target, chosen, options.sample_weight, fixed)
    check_different(plan.feature_names)
    return plan


def plan_curves(plan: ColumnPlan, options: StreamOptions, count: Callable[[], DistinctValues | None]) -> ColumnPlan:
    """The plan with the curves that are given, or those of the distinct values that `count` finds in a first pass."""
    if options.curves is None:
        return plan
    if isinstance(options.curves, Curves):
        if options.curves.features.max(initial=-1) >= len(plan.feature_names):
            raise InputError(
                f"curves= has curves of more features than the {len(plan.feature_names)} that are read: "
                f"{list(plan.feature_names)}. Read the features that the curves were made for, in the same order."
            )
        curves = options.curves
    else:
        values = count()
        curves = Curves.none() if values is None else Curves.of_values(values)
    check_different(plan.feature_names + curves.names(plan.feature_names))
    return replace(plan, curves=curves)


def text_columns(schema: pa.Schema, columns: Iterable[str]) -> list[str]:
    """Those of the columns that hold text, plain or dictionary-encoded."""
    return [column for column in columns if is_text(schema.field(column).type)]


# Called with columns, target, labels, codes and weights of a piece of rows, whose tasks are ``labels[codes]``.
TakesRows = Callable[[Sequence[np.ndarray], np.ndarray, np.ndarray, np.ndarray, np.ndarray | None], None]


class RowReader:
    """Turn record batches into rows, pass them on to `take`, and refuse or drop missing values."""

    def __init__(self, plan: ColumnPlan, take: TakesRows, drop_missing: bool = False):
        self.plan, self.take, self.drop_missing = plan, take, drop_missing
        self.missing: dict[str, int] = {}
        self.n_rows = self.n_dropped = 0
        self._source, self._row = "", 0

    def read(self, batch: pa.RecordBatch, source: str) -> None:
        """Add the rows of one batch; `source` (a file, a partition) is named in errors."""
        if source != self._source:
            self._source, self._row = source, 0
        if batch.num_rows:
            self._read(batch)
        self._row += batch.num_rows
        self.n_rows += batch.num_rows

    def _read(self, batch: pa.RecordBatch) -> None:
        plan = self.plan
        self._check_labels(batch.column(plan.task))
        keep = np.ones(batch.num_rows, dtype=bool)
        columns: list[np.ndarray] = []
        for name in plan.features:
            if name in plan.categories:
                columns += self._indicators(batch.column(name), name, keep)
            else:
                columns.append(self._floats(batch.column(name), name, keep))
        target = self._floats(batch.column(plan.target), plan.target, keep)
        weight = self._weights(batch, keep)
        tasks = plain_array(batch.column(plan.task))
        if not keep.all():
            columns, target = [column[keep] for column in columns], target[keep]
            weight = None if weight is None else weight[keep]
            tasks = tasks.filter(pa.array(keep))
        if len(target):
            self.take(columns, target, *_code_labels(tasks), weight)

    def _check_labels(self, labels: pa.Array) -> None:
        missing = _missing_mask(labels)
        if missing.any():
            raise InputError(
                f"{self._source}: column {self.plan.task!r} has {int(missing.sum())} missing task labels (first in row "
                f"{self._row + int(missing.argmax())}). Drop those rows or give them a label of their own."
            )

    def _floats(self, array: pa.Array, name: str, keep: np.ndarray) -> np.ndarray:
        values = _to_floats(array)
        # The sum is finite only if every value is, and checking it is far cheaper than checking every value.
        with np.errstate(over="ignore", invalid="ignore"):
            suspicious = not np.isfinite(values.sum())
        if suspicious:
            self._refuse_or_drop(~np.isfinite(values), name, keep)
        return values

    def _indicators(self, array: pa.Array, name: str, keep: np.ndarray) -> list[np.ndarray]:
        """One 0/1 column for every category but the first."""
        array, values = plain_array(array), self.plan.categories[name]
        if array.null_count:
            self._refuse_or_drop(_missing_mask(array), name, keep)
        codes = pc.index_in(array, pa.array(values, type=array.type)).fill_null(-1).to_numpy()
        unknown = (codes < 0) & ~_missing_mask(array)
        if unknown.any():
            row = int(unknown.argmax())
            raise InputError(
                f"{self._source}: column {name!r} has the value {array[row].as_py()!r} (row {self._row + row}), which "
                f'is not among its categories.{did_you_mean(array[row], values)} Add it to categories= or use "auto".'
            )
        return [(codes == k).astype(np.float64) for k in range(1, len(values))]

    def _weights(self, batch: pa.RecordBatch, keep: np.ndarray) -> np.ndarray | None:
        """The weights; a row of weight zero is a row that is not there."""
        name = self.plan.sample_weight
        if name is None:
            return None
        weight = self._floats(batch.column(name), name, keep)
        if (weight < 0).any():
            raise InputError(f"{self._source}: column {name!r} has a negative weight.")
        # A stream cannot divide weights by their mean, which is not known yet; missing values are checked elsewhere.
        known = weight[np.isfinite(weight)]
        if not are_counts(known):
            raise InputError(
                f"{self._source}: column {name!r} has the weight {float(known[known != np.floor(known)][0]):.6g}. "
                "Weights of a stream must be whole numbers, which count rows. For others, read the rows into memory."
            )
        keep &= weight != 0
        return weight

    def _refuse_or_drop(self, bad: np.ndarray, name: str, keep: np.ndarray) -> None:
        count = int(bad.sum())
        if count and not self.drop_missing:
            raise InputError(
                f"{self._source}: column {name!r} has {count} missing or infinite values in the rows up to "
                f"{self._row + len(bad)} (first in row {self._row + int(bad.argmax())}). Impute them, or pass "
                "drop_missing=True to leave such rows out."
            )
        if count:
            self.missing[name] = self.missing.get(name, 0) + count
            self.n_dropped += int((bad & keep).sum())
            keep &= ~bad


def is_number(kind: pa.DataType) -> bool:
    """Whether a column of this type holds numbers or truth values, plain or dictionary-encoded."""
    if types.is_dictionary(kind):
        return is_number(kind.value_type)
    return any(is_a(kind) for is_a in (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal))


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds text, plain or dictionary-encoded."""
    if types.is_dictionary(kind):
        return is_text(kind.value_type)
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def _check_numeric(column: str, kind: pa.DataType, source: str, rule: str) -> None:
    if is_number(kind):
        return
    if types.is_null(kind):
        raise InputError(f"{source}: column {column!r} is empty. Leave it out.")
    remedy = "Turn it into numbers first, or leave it out of features=."
    if is_text(kind) and rule.startswith("features"):
        remedy = f'Pass categories="auto" or categories={{{column!r}: [...]}} for 0/1 features, or leave it out.'
    raise InputTypeError(f"{source}: column {column!r} is of type {kind}; {rule}. {remedy}")


def plain_array(array: pa.Array) -> pa.Array:
    """The values themselves, without a dictionary, of a type that every Arrow function takes."""
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array.cast(pa.large_string()) if is_text(array.type) else array


def _to_floats(array: pa.Array) -> np.ndarray:
    """Float64 values, NaN where there is none."""
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.type != pa.float64():
        array = array.cast(pa.float64(), safe=False)
    return array.to_numpy(zero_copy_only=False)


def _missing_mask(array: pa.Array) -> np.ndarray:
    """Nulls and NaNs."""
    if not array.null_count and not types.is_floating(array.type) and not types.is_dictionary(array.type):
        return np.zeros(len(array), dtype=bool)
    return pc.is_null(plain_array(array), nan_is_null=True).to_numpy(zero_copy_only=False)


def _code_labels(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Distinct labels (text as str, whole numbers as int64) and the position of each row's label among them."""
    encoded = array.dictionary_encode()
    labels = encoded.dictionary.to_numpy(zero_copy_only=False)
    if labels.dtype == object:
        labels = read_labels(labels, "task labels", len(labels))
    elif labels.dtype.kind in "iu" and labels.dtype != np.uint64:
        labels = labels.astype(np.int64)
    return labels, encoded.indices.to_numpy()


@dataclass(frozen=True)
class Categories:
    """The values found in each text column, in order."""

    found: dict[str, list[str]]

    def __add__(self, other: Categories) -> Categories:
        """The values of both."""
        return Categories({column: sorted({*values, *other.found[column]}) for column, values in self.found.items()})

    def checked(self, source: str) -> dict[str, list[str]]:
        """The values, refused where they are too many; a column without any is refused later, as empty."""
        for column, values in self.found.items():
            if len(values) > MOST_CATEGORIES:
                raise InputError(
                    f"{source}: column {column!r} has more than {MOST_CATEGORIES} different values, too many for one "
                    "0/1 feature each. Leave it out of features=, or group its values and pass categories=."
                )
        return {column: values for column, values in self.found.items() if values}
