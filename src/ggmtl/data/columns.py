"""The features of a table or an array, their names, and the labels of their tasks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import narwhals.stable.v1 as nw
import numpy as np
from sklearn.utils.validation import check_array

from ggmtl.data.frames import as_frame, from_tensor, plain, series_to_numpy
from ggmtl.data.labels import read_labels
from ggmtl.errors import InputError, InputTypeError, did_you_mean


def split_columns(
    X: Any, task: str | int | None, tasks: Any
) -> tuple[np.ndarray, tuple[str, ...] | None, np.ndarray | None]:
    """Features, their names (None for arrays) and the task labels (None if there are none)."""
    if task is not None and tasks is not None:
        raise InputError(f"Give the tasks either as a column of X (task={task!r}) or as tasks=, not both.")
    frame = as_frame(X, "X")
    if isinstance(frame, nw.DataFrame):
        matrix, names, labels = _split_frame(frame, task, may_hold_tasks=task is None and tasks is None)
    else:
        matrix, labels = _split_array(X, task)
        names = None
    if tasks is not None:
        labels = read_labels(tasks, "tasks", len(matrix))
    return matrix, names, labels


def is_list_of_pairs(X: Any, y: Any) -> bool:
    """Whether these are ``[(X_1, y_1), (X_2, y_2), …]``."""
    return (
        y is None
        and isinstance(X, (list, tuple))
        and len(X) > 0
        and all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in X)
        and all(np.ndim(pair[0]) == 2 and np.ndim(pair[1]) == 1 for pair in X)
    )


def join_pairs(pairs: Sequence[tuple[Any, Any]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, targets and task numbers of such a list, row by row."""
    blocks = [np.asarray(from_tensor(X)) for X, _ in pairs]
    targets = [np.asarray(from_tensor(y)) for _, y in pairs]
    widths = {block.shape[1] for block in blocks}
    if len(widths) > 1:
        raise InputError(f"Every X_i must have the same number of columns. Got {sorted(widths)} instead.")
    for i, (block, target) in enumerate(zip(blocks, targets)):
        if len(block) != len(target):
            raise InputError(f"Task {i}: X_i has {len(block)} rows but y_i has {len(target)}.")
    labels = np.repeat(np.arange(len(blocks)), [len(target) for target in targets])
    return np.concatenate(blocks), np.concatenate(targets), labels


def float_array(values: Any, name: str, **options: Any) -> np.ndarray:
    """As scikit-learn reads an array of numbers; what cannot be read is refused by its name."""
    try:
        return check_array(values, dtype=np.float64, input_name=name, **options)  # pyright: ignore[reportArgumentType]
    except TypeError as error:
        raise InputTypeError(f"{name} must be an array of numbers. {error}") from error
    except ValueError as error:
        raise InputError(f"{name} must be an array of numbers. {error}") from error


def read_numbers(values: Any, name: str) -> np.ndarray:
    """Numbers such as weights from a table, a list or an array; missing and infinite values are kept."""
    given = np.atleast_1d(series_to_numpy(values, name))
    return float_array(given, name, ensure_2d=False, allow_nd=True, ensure_all_finite=False)


def _float_matrix(X: Any) -> np.ndarray:
    """Features of an array; values that are missing or infinite are refused with their column."""
    matrix = float_array(X, "X", ensure_all_finite=False)
    bad = ~np.isfinite(matrix)
    if bad.any():
        column = int(bad.any(axis=0).argmax())
        raise InputError(_not_finite_message(f"x{column}", matrix[:, column]))
    return matrix


def _not_finite_message(name: Any, values: np.ndarray) -> str:
    bad = ~np.isfinite(values)
    kind = "missing" if np.isnan(values[bad]).all() else "missing or infinite"
    return (
        f"Column {name!r} has {int(bad.sum())} {kind} values (first in row {int(bad.argmax())}): "
        "Input X contains NaN or infinity. Impute them or drop those rows."
    )


def read_task_column(X: Any, task: str | int) -> np.ndarray:
    """The labels in the task column of a table or an array, whatever its other columns hold."""
    frame = as_frame(X, "X")
    return _labels_in_frame(frame, task)[1] if isinstance(frame, nw.DataFrame) else _labels_in_array(X, task)


def _labels_in_frame(frame: nw.DataFrame, task: str | int) -> tuple[str, np.ndarray]:
    """Name of the task column, and its labels."""
    columns = list(frame.columns)
    if isinstance(task, (int, np.integer)) and task not in columns:
        if not -len(columns) <= task < len(columns):
            raise InputError(f"task={task} is out of range: X has {len(columns)} columns.")
        task = columns[task]
    if task not in columns:
        raise InputError(
            f"X has no column {task!r} to take the tasks from.{did_you_mean(task, columns)} "
            f"Its columns are {', '.join(repr(c) for c in columns[:12])}{' …' if len(columns) > 12 else ''}."
        )
    return task, read_labels(frame.get_column(task), str(task), len(frame))


def _split_frame(
    frame: nw.DataFrame, task: str | int | None, may_hold_tasks: bool
) -> tuple[np.ndarray, tuple[str, ...] | None, np.ndarray | None]:
    columns = list(frame.columns)
    labels = None
    if task is not None:
        name, labels = _labels_in_frame(frame, task)
        columns.remove(name)
        if not columns:
            raise InputError(f"X has no column besides the task column {name!r}. Add the columns of the features.")
    if not columns:
        raise InputError(f"0 feature(s) (shape=({len(frame)}, 0)) while a minimum of 1 is required.")
    if len(frame) == 0:
        raise InputError("Found array with 0 sample(s) while a minimum of 1 is required.")
    matrix = np.empty((len(frame), len(columns)))
    for k, column in enumerate(columns):
        matrix[:, k] = _numeric_column(frame.get_column(column), column, may_hold_tasks)
    named = all(isinstance(column, str) for column in columns)
    return matrix, tuple(columns) if named else None, labels


def _numeric_column(series: nw.Series, name: Any, may_be_tasks: bool) -> np.ndarray:
    is_boolean = series.dtype == nw.Boolean
    values = (series.cast(nw.Float64) if is_boolean else series).to_numpy()
    if not (series.dtype.is_numeric() or is_boolean):
        try:
            if values.dtype != object:
                raise ValueError
            values = values.astype(np.float64)
        except (TypeError, ValueError):
            if series.dtype == nw.String and len(series) >= _ENOUGH_ROWS and series.n_unique() == len(series):
                raise InputTypeError(
                    f"Column {name!r} holds text that is different in every row, such as {plain(values[0])!r}: a name, "
                    "not a feature. Drop it from X."
                ) from None
            hint = f" If it says which task a row belongs to, name it: task={name!r}." if may_be_tasks else ""
            remedy = "Encode it first, for example one 0/1 column per category, or drop it."
            if series.dtype in (nw.Date, nw.Datetime):
                remedy = "Turn dates into numbers, for example days since the first date, or drop the column."
            raise InputTypeError(
                f"Column {name!r} is of type {series.dtype} (its first value is {plain(values[0])!r}); features must "
                f"be numeric. {remedy}{hint}"
            ) from None
    values = values.astype(np.float64, copy=False)
    if not np.isfinite(values).all():
        raise InputError(_not_finite_message(name, values))
    return values


def counts_rows(values: np.ndarray) -> bool:
    """Whether values are 0, …, n − 1 or 1, …, n in any order, as the numbers of rows are."""
    if len(values) < _ENOUGH_ROWS or values.min() not in (0.0, 1.0):
        return False
    return bool((np.sort(values) == values.min() + np.arange(len(values))).all())


def _split_array(X: Any, task: str | int | None) -> tuple[np.ndarray, np.ndarray | None]:
    if task is None:
        return _float_matrix(X), None
    labels = _labels_in_array(X, task)
    rest = np.delete(np.asarray(X), int(task), axis=1)
    return _float_matrix(rest), labels


def _labels_in_array(X: Any, task: str | int) -> np.ndarray:
    if not isinstance(task, (int, np.integer)):
        raise InputError(
            f"task={task!r} names a column, but X is {type(X).__name__} without column names. "
            "Pass a data frame, the column's index, or tasks= instead."
        )
    array = np.asarray(X)
    if array.ndim != 2 or not -array.shape[1] <= task < array.shape[1]:
        raise InputError(f"task={task} is out of range for X of shape {array.shape}.")
    return read_labels(array[:, task], f"{task}", len(array))


def check_different(names: Sequence[str]) -> None:
    """Refuse two features of one name, such as a column ``"a=b"`` and the category b of a column ``"a"``."""
    for name, number in Counter(names).items():
        if number > 1:
            raise InputError(f"Two features would have the name {name!r}: rename a column, or leave one out.")


def feature_position(feature: str | int, names: Sequence[str]) -> int:
    """Position of a feature that is given by its name, or by its position."""
    if isinstance(feature, (int, np.integer)) and not isinstance(feature, bool) and feature not in names:
        if -len(names) <= feature < len(names):
            return int(feature) % len(names)
        raise InputError(f"feature={feature!r} is out of range: the model has {len(names)} features.")
    if feature not in names:
        raise InputError(f"There is no feature {feature!r} in the model.{did_you_mean(feature, names)}")
    return list(names).index(str(feature))


def read_grid(grid: Any) -> np.ndarray:
    """Values of a feature, as a flat array."""
    values = read_numbers(from_tensor(grid), "grid").reshape(-1)
    if not np.isfinite(values).all():
        raise InputError(f"grid must hold finite numbers. Got {values[~np.isfinite(values)][0]} instead.")
    return values


# In fewer rows, values that all differ say nothing.
_ENOUGH_ROWS = 10
# Names of columns that usually hold the task.
_TASK_NAME = re.compile(
    "(?<![a-z])(task|group|id|subject|person|patient|user|customer|household|school|class|store|shop|site|station|"
    "sensor|machine|device|country|state|county|city|region|firm|company|product|item|batch)(?![a-z])",
    re.IGNORECASE,
)
# With fewer rows per value, the column is more likely a number that happens to have such a name.
_ROWS_PER_TASK = 3


def forgotten_tasks(matrix: np.ndarray, names: tuple[str, ...] | None) -> str | None:
    """A column that is named like a task and has few whole numbers, each in several rows; None if there is none."""
    for k, name in enumerate(names or ()):
        if not _TASK_NAME.search(name) or not (matrix[:, k] == np.floor(matrix[:, k])).all():
            continue
        if 2 < len(np.unique(matrix[:, k])) <= len(matrix) / _ROWS_PER_TASK:
            return name
    return None
