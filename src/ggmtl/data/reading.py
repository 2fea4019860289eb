"""Any input → :class:`~ggmtl.data.TaskData`; everything that users pass in is checked here.

After reading, features and targets are finite float64 arrays, every row has a task label, and weights are positive.
"""

from __future__ import annotations

import warnings
from hashlib import blake2b
from typing import Any

import narwhals.stable.v1 as nw
import numpy as np
from sklearn.exceptions import DataConversionWarning
from sklearn.utils.validation import column_or_1d

from ggmtl.data.columns import (
    counts_rows,
    float_array,
    forgotten_tasks,
    is_list_of_pairs,
    join_pairs,
    read_numbers,
    split_columns,
)
from ggmtl.data.frames import as_frame, from_tensor, is_missing, plain, series_to_numpy
from ggmtl.data.labels import read_labels
from ggmtl.data.task_data import TaskData
from ggmtl.errors import InputError, warn_user

SINGLE_TASK = 0
# Squares and products of the values must neither overflow nor underflow to zero.
LARGEST, SMALLEST = 1e153, 1e-152


def read_training(
    X: Any,
    y: Any = None,
    tasks: Any = None,
    *,
    task: str | int | None = None,
    sample_weight: Any = None,
    groups: Any = None,
    estimator: str = "GGMTLRegressor",
) -> TaskData:
    """Read what a user passed to ``fit``.

    `X` may be a long pandas, polars or pyarrow table or an array (with the task column named or numbered by
    `task`, or task labels in `tasks`), a list of ``(X_i, y_i)`` pairs, or, with a two-dimensional `y`, one
    matrix shared by all tasks.
    """
    X, y, tasks, sample_weight, groups = map(from_tensor, (X, y, tasks, sample_weight, groups))
    if is_list_of_pairs(X, y):
        X, y, tasks = join_pairs(X)
    if y is None:
        raise InputError(f"This {estimator} estimator requires y to be passed, but the target y is None")
    matrix, names, labels = split_columns(X, task, tasks)
    target = _target(y, len(matrix))
    if target.ndim == 2:
        if labels is not None:
            raise InputError(
                f"y must be one-dimensional when the tasks are given. Got shape {target.shape} together with "
                f"{'task=' + repr(task) if task is not None else 'tasks='}."
            )
        return _within_range(_one_task_per_column(matrix, target, names, y, sample_weight, groups))
    if labels is None:
        forgotten = forgotten_tasks(matrix, names)
        if forgotten is not None:
            warn_user(
                f"All rows are taken for one task, and column {forgotten!r} for a feature. If it says which task a row "
                f"belongs to, name it: {estimator}(task={forgotten!r})."
            )
        labels = np.full(len(matrix), SINGLE_TASK)
    _warn_of_target(matrix, names, target)
    _warn_of_row_numbers(matrix, names, labels)
    weight = _weights(sample_weight, len(matrix))
    group = None if groups is None else read_labels(groups, "groups", len(matrix))
    data = TaskData(matrix, target, labels, feature_names=names, sample_weight=weight, groups=group)
    return _within_range(_without_zero_weights(data))


def _warn_of_target(matrix: np.ndarray, names: tuple[str, ...] | None, target: np.ndarray) -> None:
    """Warn where a feature equals the target, as when a whole table is passed as X."""
    for k in np.flatnonzero(matrix[0] == target[0]):
        if names is not None and (matrix[:, k] == target).all() and (target != target[0]).any():
            warn_user(f"Column {names[k]!r} of X equals y in every row. Drop it from X, or the model only copies it.")


def _warn_of_row_numbers(matrix: np.ndarray, names: tuple[str, ...] | None, labels: np.ndarray) -> None:
    """Warn where a column of a table is the number of the row; in a single task it may be the time."""
    for k, name in enumerate(names or ()):
        if counts_rows(matrix[:, k]) and (labels != labels[0]).any():
            warn_user(
                f"Column {name!r} only counts the rows, from {matrix[:, k].min():.0f} to {matrix[:, k].max():,.0f}. "
                "Drop it from X unless the order of the rows means something."
            )


def read_prediction(
    X: Any,
    tasks: Any = None,
    *,
    task: str | int | None = None,
    feature_names: tuple[str, ...] | None = None,
    n_features: int,
    estimator: str = "GGMTLRegressor",
) -> tuple[np.ndarray, np.ndarray | None]:
    """Read what a user passed to ``predict``: the features, and the task labels if any were given."""
    matrix, names, labels = split_columns(from_tensor(X), task, from_tensor(tasks))
    if feature_names is not None and names is not None and names != feature_names:
        raise InputError(_other_names_message(names, feature_names))
    elif feature_names is not None and names is None:
        warn_user(f"X does not have valid feature names, but {estimator} was fitted with feature names")
    elif feature_names is None and names is not None:
        warn_user(f"X has feature names, but {estimator} was fitted without feature names")
    if matrix.shape[1] != n_features:
        raise InputError(
            f"X has {matrix.shape[1]} features, but {estimator} is expecting {n_features} features as input"
        )
    for column, largest in zip(feature_names or range(n_features), _largest(matrix)):
        check_range(column, float(largest), (0.0, LARGEST))
    return matrix, labels


def check_range(name: object, largest: float, bounds: tuple[float, float] = (SMALLEST, LARGEST)) -> None:
    """Refuse a column whose largest value has a square that overflows, or underflows to zero."""
    least, most = bounds
    if largest > most or 0 < largest < least:
        raise InputError(
            f"{'y' if name is None else f'Column {name!r}'} must have its largest absolute value between {least:.1g} "
            f"and {most:.1g}, or be zero: squares of the values are added up. Got {largest:.3g} instead. Use other "
            "units."
        )


def _other_names_message(names: tuple[str, ...], expected: tuple[str, ...]) -> str:
    """How the columns differ from those of the fit, in the wording of scikit-learn."""
    message = "The feature names should match those that were passed during fit.\n"
    unexpected = [name for name in names if name not in expected]
    absent = [name for name in expected if name not in names]
    for title, group in (("unseen at fit time", unexpected), ("seen at fit time, yet now missing", absent)):
        if group:
            message += f"Feature names {title}:\n" + "".join(f"- {name}\n" for name in group[:5])
            message += "- ...\n" if len(group) > 5 else ""
    if not unexpected and not absent:
        message += "Feature names must be in the same order as they were in fit.\n"
    shown = ", ".join(repr(name) for name in expected[:10])
    return f"{message}Pass the columns of fit in their order: {shown}{', …' if len(expected) > 10 else ''}.\n"


def _target(y: Any, n_rows: int) -> np.ndarray:
    if isinstance(y, str):
        raise InputError(
            f"y must be the target's values, not a name: pass df[{y!r}], and df without that column as X. "
            f"Got the text {y!r} instead."
        )
    values = series_to_numpy(y, "y")
    if values.dtype == object or values.dtype.kind in "US":
        values = _parsed_target(values)
    if np.iscomplexobj(values):
        raise InputError("Complex data not supported in y.")
    if values.dtype.kind in "mM":
        raise InputError(
            f"y must hold numbers. Got times ({values.dtype}) instead: subtract a date and divide by a unit."
        )
    if values.ndim not in (1, 2):
        raise InputError(f"y must have one or two dimensions. Got shape {values.shape} instead.")
    if len(values) != n_rows:
        raise InputError(f"Found input variables with inconsistent numbers of samples: [{n_rows}, {len(values)}]")
    values = values.astype(np.float64, copy=False)
    bad = ~np.isfinite(values)
    if bad.any():
        raise InputError(
            f"Input y contains NaN or infinity: the target has {int(bad.sum())} such values (first in row "
            f"{int(np.nonzero(bad)[0][0])}). Drop those rows."
        )
    return values


def _parsed_target(values: np.ndarray) -> np.ndarray:
    """Numbers held as objects or written as text; the first that is neither is named with its row."""
    try:
        return float_array(values, "y", ensure_2d=False)
    except (TypeError, ValueError) as error:
        bad = next((place for place, value in np.ndenumerate(values) if not _is_number(value)), None)
        if bad is None:
            raise
        raise InputError(
            f"y must hold numbers: the target has {plain(values[bad])!r} in row {bad[0]}. Correct or drop it."
        ) from error


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return is_missing(value)
    return True


def _one_task_per_column(matrix, target, names, y, sample_weight, groups) -> TaskData:
    n_rows, n_tasks = target.shape
    if n_tasks == 0:
        raise InputError("y has no column.")
    columns = as_frame(y, "y")
    labels = np.array(columns.columns) if isinstance(columns, nw.DataFrame) else np.arange(n_tasks)
    if len(set(labels.tolist())) < n_tasks:
        raise InputError("y has two columns of the same name; task labels must differ.")
    weight = _weights(sample_weight, n_rows)
    group = None if groups is None else read_labels(groups, "groups", n_rows)
    if group is None and n_tasks > 1:
        # A row is held out of all tasks at once, so that they have the same design in every fold.
        group = _groups_of_copies(matrix, target)
    data = TaskData(
        np.tile(matrix, (n_tasks, 1)),
        target.T.ravel(),
        np.repeat(labels, n_rows),
        feature_names=names,
        sample_weight=None if weight is None else np.tile(weight, n_tasks),
        groups=None if group is None else np.tile(group, n_tasks),
    )
    return _without_zero_weights(data)


def _groups_of_copies(matrix: np.ndarray, target: np.ndarray) -> np.ndarray:
    """A label for every row, shape (rows,).

    Rows with equal x and equal targets get one label, in every table, so that copies stay in one fold. If some x occurs
    with different targets, its rows are separate observations and get separate labels.
    """
    # Zero has two signs in floating point.
    both = np.column_stack([matrix, target]) + 0.0
    rows, place = np.unique(both[:, : matrix.shape[1]], axis=0, return_inverse=True)
    place = place.reshape(-1)
    label = np.array([_hash_bytes(row.tobytes()) for row in rows], dtype=np.int64)[place]
    order = np.lexsort(both.T)
    some = np.empty((len(rows), target.shape[1]))
    some[place] = target
    differs = np.bincount(place, weights=(target != some[place]).any(axis=1)) > 0
    varied = differs[place[order]]
    # The label depends on the whole table, because an equal row of a later table is another observation.
    table = blake2b(both[order].tobytes()).digest()
    for position in np.flatnonzero(varied):
        label[order[position]] = _hash_bytes(position.tobytes(), table)
    return label


def _hash_bytes(content: bytes, key: bytes = b"") -> int:
    return int.from_bytes(blake2b(content, digest_size=8, key=key).digest(), "little", signed=True)


def _without_zero_weights(data: TaskData) -> TaskData:
    """The rows without those of weight zero."""
    weight = data.sample_weight
    return data if weight is None or (weight > 0).all() else data.take(weight > 0)


def _largest(values: np.ndarray) -> np.ndarray:
    return np.maximum(values.max(axis=0), -values.min(axis=0))


def _within_range(data: TaskData) -> TaskData:
    weight = np.ones(len(data)) if data.sample_weight is None else data.sample_weight
    bounds = (SMALLEST / float(np.sqrt(weight.max())), LARGEST / float(np.sqrt(weight.sum())))
    check_range(None, float(_largest(data.y)), bounds)
    for column, largest in zip(data.columns, _largest(data.X).tolist()):
        check_range(column, largest, bounds)
    return data


def _weights(sample_weight: Any, n_rows: int) -> np.ndarray | None:
    if sample_weight is None:
        return None
    if np.asarray(sample_weight).ndim == 0:
        sample_weight = np.full(n_rows, float(sample_weight))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataConversionWarning)
        weight = column_or_1d(read_numbers(sample_weight, "sample_weight"))
    if len(weight) != n_rows:
        raise InputError(f"sample_weight must have shape ({n_rows},). Got ({len(weight)},) instead.")
    if not np.isfinite(weight).all() or (weight < 0).any():
        raise InputError("sample_weight must be finite and not negative.")
    if not weight.any():
        raise InputError("sample_weight is zero for every row.")
    return weight if are_counts(weight) else _with_mean_one(weight)


def are_counts(weight: np.ndarray) -> bool:
    """Whether weights say how many times each row was seen: whole numbers."""
    return bool((weight == np.floor(weight)).all())


def _with_mean_one(weight: np.ndarray) -> np.ndarray:
    """Weights that are not counts, divided by their mean: they compare rows, but do not count them."""
    mean = float(weight[weight > 0].mean())
    warn_user(
        f"sample_weight has fractions (such as {float(weight[weight != np.floor(weight)][0]):.6g}), so it cannot count "
        f"rows. It was divided by its mean, {mean:.3g}. Pass whole numbers if a weight of two means a row seen twice."
    )
    return weight / mean
