"""Any input → :class:`TaskData`; the only judge of what users pass in.

Everything below this module may take for granted that features and targets are finite float64 arrays, that
every row has a task label, and that weights are positive.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import narwhals.stable.v1 as nw
import numpy as np
from sklearn.exceptions import DataConversionWarning
from sklearn.utils.validation import check_array, column_or_1d

from ggmtl.errors import InputError, InputTypeError, did_you_mean

if TYPE_CHECKING:
    from ggmtl.graph import TaskGraph

SINGLE_TASK = 0
# Models are made from squares and products of the values, which must neither overflow nor vanish.
LARGEST, SMALLEST = 1e153, 1e-152
_UNSEEN_REMEDY = 'Use unseen="hub" to predict them with the common model, or add_task() to attach them.'


@dataclass(frozen=True)
class TaskData:
    """Rows of many regression tasks, in long form.

    Parameters
    ----------
    X : array of shape (rows, d)
        Features, one row per observation, without the task column.
    y : array of shape (rows,)
        Target.
    tasks : array of shape (rows,)
        Label of the task that each row belongs to.
    feature_names : sequence of str, optional
        Names of the columns of `X`; ``x0, x1, …`` when the input had none.
    sample_weight, groups : array of shape (rows,), optional
        Positive weights; labels of rows that must stay in one fold.
    graph : TaskGraph, optional
        The true relations, where they are known.
    coefficients : array of shape (n, d), optional
        The true models, where they are known.
    coordinates : array of shape (n, 2), optional
        Longitude and latitude of each task.
    test : TaskData, optional
        Rows set aside for testing, where the set comes with such a split.
    notes : tuple of str
        What a reader should know about these data, such as faulty readings.

    Examples
    --------
    >>> data = TaskData(X=[[1.0], [2.0], [3.0]], y=[1.0, 2.0, 3.5], tasks=["b", "a", "b"])
    >>> data.task_names.tolist(), data.task_index.tolist()
    (['a', 'b'], [1, 0, 1])
    """

    X: np.ndarray
    y: np.ndarray
    tasks: np.ndarray
    feature_names: tuple[str, ...] | None = None
    sample_weight: np.ndarray | None = None
    groups: np.ndarray | None = None
    graph: TaskGraph | None = None
    coefficients: np.ndarray | None = None
    coordinates: np.ndarray | None = None
    test: TaskData | None = None
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self):
        X = np.ascontiguousarray(self.X, dtype=np.float64)
        y = np.asarray(self.y, dtype=np.float64)
        tasks = np.asarray(self.tasks)
        if X.ndim != 2 or y.shape != (len(X),) or tasks.shape != (len(X),):
            raise InputError(
                f"X must have shape (rows, d), y and tasks shape (rows,). "
                f"Got {X.shape}, {y.shape} and {tasks.shape} instead."
            )
        object.__setattr__(self, "X", X)
        object.__setattr__(self, "y", y)
        object.__setattr__(self, "tasks", tasks)

    @cached_property
    def _coding(self) -> tuple[np.ndarray, np.ndarray]:
        names, index = np.unique(self.tasks, return_inverse=True)
        return names, index.reshape(-1)

    @property
    def task_names(self) -> np.ndarray:
        """Sorted task labels, shape (n,)."""
        return self._coding[0]

    @property
    def task_index(self) -> np.ndarray:
        """Position of each row's task in `task_names`, shape (rows,)."""
        return self._coding[1]

    @property
    def columns(self) -> tuple[str, ...]:
        """Feature names, made up as ``x0, x1, …`` where the input had none."""
        return self.feature_names or tuple(f"x{k}" for k in range(self.X.shape[1]))

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: np.ndarray) -> TaskData:
        """Return the given rows (a mask or positions) as data of their own."""
        return replace(
            self,
            X=self.X[rows],
            y=self.y[rows],
            tasks=self.tasks[rows],
            sample_weight=None if self.sample_weight is None else self.sample_weight[rows],
            groups=None if self.groups is None else self.groups[rows],
            test=None,
        )


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
    X, y, tasks, sample_weight, groups = map(_from_tensor, (X, y, tasks, sample_weight, groups))
    if _is_list_of_pairs(X, y):
        X, y, tasks = _join_pairs(X)
    if y is None:
        raise InputError(f"This {estimator} estimator requires y to be passed, but the target y is None")
    matrix, names, labels = _split_columns(X, task, tasks)
    target = _target(y, len(matrix))
    if target.ndim == 2:
        if labels is not None:
            raise InputError(
                f"y must be one-dimensional when the tasks are given. Got shape {target.shape} together with "
                f"{'task=' + repr(task) if task is not None else 'tasks='}."
            )
        return _within_range(_one_task_per_column(matrix, target, names, y, sample_weight, groups))
    if labels is None:
        labels = np.full(len(matrix), SINGLE_TASK)
    weight = _weights(sample_weight, len(matrix))
    group = None if groups is None else read_labels(groups, "groups", len(matrix))
    data = TaskData(matrix, target, labels, feature_names=names, sample_weight=weight, groups=group)
    return _within_range(_without_zero_weights(data))


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
    matrix, names, labels = _split_columns(_from_tensor(X), task, _from_tensor(tasks))
    if feature_names is not None and names is not None and names != feature_names:
        raise InputError(_other_names_message(names, feature_names))
    elif feature_names is not None and names is None:
        warnings.warn(
            f"X does not have valid feature names, but {estimator} was fitted with feature names", stacklevel=3
        )
    elif feature_names is None and names is not None:
        warnings.warn(f"X has feature names, but {estimator} was fitted without feature names", stacklevel=3)
    if matrix.shape[1] != n_features:
        raise InputError(
            f"X has {matrix.shape[1]} features, but {estimator} is expecting {n_features} features as input"
        )
    for column, largest in zip(feature_names or range(n_features), _largest(matrix)):
        check_range(column, float(largest), (0.0, LARGEST))
    return matrix, labels


def read_labels(values: Any, name: str, n_rows: int) -> np.ndarray:
    """Read task (or group) labels: strings, integers, categories; one per row, none missing."""
    # Left to itself NumPy would turn 1 and NaN beside strings into the strings "1" and "nan".
    is_plain = isinstance(values, (list, tuple)) and not any(np.ndim(value) for value in values)
    labels = np.array(values, dtype=object) if is_plain else _series_to_numpy(values, name)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape != (n_rows,):
        raise InputError(f"{name} must have one label per row, shape ({n_rows},). Got shape {labels.shape} instead.")
    missing = _missing(labels)
    if missing.any():
        raise InputError(
            f"Column {name!r} has {int(missing.sum())} missing labels (first in row {int(missing.argmax())}). "
            "Drop those rows or give them a label of their own."
        )
    if labels.dtype == object:
        kinds = {type(label) for label in labels}
        if all(issubclass(kind, str) for kind in kinds):
            return labels.astype(str)
        if len(kinds) > 1 and any(issubclass(kind, str) for kind in kinds):
            raise InputTypeError(
                f"Column {name!r} mixes labels of type {', '.join(sorted(kind.__name__ for kind in kinds))}. "
                "Make them all strings or all numbers."
            )
        return np.array(labels.tolist())
    return labels


def locate_tasks(tasks: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Position of each label among the sorted tasks, −1 where it is not among them."""
    if _sort(tasks) != _sort(labels):
        # One label that is no number turns a whole column into text: numbers are then known by how they are written.
        written = tasks.astype(str)
        order = np.argsort(written)
        found = locate_tasks(written[order], labels.astype(str))
        return np.where(found >= 0, order[found], -1)
    position = np.minimum(np.searchsorted(tasks, labels), len(tasks) - 1)
    return np.where(tasks[position] == labels, position, -1)


def _sort(labels: np.ndarray) -> str:
    """What kind of labels these are: labels of one kind can be compared."""
    kind = labels.dtype.kind
    return "number" if kind in "biuf" else "text" if kind in "US" else kind


def unknown_tasks_message(unknown: Sequence[object], known: np.ndarray, remedy: str = _UNSEEN_REMEDY) -> str:
    """Say which tasks were never seen, and what can be done."""
    shown = ", ".join(repr(_plain(label)) for label in unknown[:5])
    more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
    return f"X has tasks that the model was not fitted with: {shown}{more}.{did_you_mean(unknown[0], known)} {remedy}"


def as_frame(values: Any, name: str, **options: Any) -> Any:
    """A table of any library as one kind of frame, and what is no table as it is; repeated columns are refused."""
    try:
        return nw.from_native(values, eager_only=True, pass_through=True, **options)
    except ValueError as error:
        columns = list(getattr(values, "column_names", getattr(values, "columns", ())))
        repeated = [column for column in columns if columns.count(column) > 1]
        if not repeated:
            raise
        raise InputError(
            f"{name} has {columns.count(repeated[0])} columns {_plain(repeated[0])!r}; names must differ. Rename or "
            "drop all but one."
        ) from error


def _from_tensor(values: Any) -> Any:
    """A torch tensor, on whatever device, as an array; anything else as it is."""
    if not (type(values).__module__.split(".")[0] == "torch" and hasattr(values, "detach")):
        return values
    here = values.detach().cpu()
    # NumPy has no counterpart of torch's shorter kinds of floats.
    return (here.double() if here.is_floating_point() else here).numpy()


def _plain(label: Any) -> Any:
    return label.item() if isinstance(label, np.generic) else label


def _is_list_of_pairs(X: Any, y: Any) -> bool:
    return (
        y is None
        and isinstance(X, (list, tuple))
        and len(X) > 0
        and all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in X)
        and all(np.ndim(pair[0]) == 2 and np.ndim(pair[1]) == 1 for pair in X)
    )


def _join_pairs(pairs: Sequence[tuple[Any, Any]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    blocks = [np.asarray(_from_tensor(X)) for X, _ in pairs]
    targets = [np.asarray(_from_tensor(y)) for _, y in pairs]
    widths = {block.shape[1] for block in blocks}
    if len(widths) > 1:
        raise InputError(f"Every X_i must have the same number of columns. Got {sorted(widths)} instead.")
    for i, (block, target) in enumerate(zip(blocks, targets)):
        if len(block) != len(target):
            raise InputError(f"Task {i}: X_i has {len(block)} rows but y_i has {len(target)}.")
    labels = np.repeat(np.arange(len(blocks)), [len(target) for target in targets])
    return np.concatenate(blocks), np.concatenate(targets), labels


def _split_columns(
    X: Any, task: str | int | None, tasks: Any
) -> tuple[np.ndarray, tuple[str, ...] | None, np.ndarray | None]:
    """Features, their names (None for arrays) and the task labels (None if there are none)."""
    if task is not None and tasks is not None:
        raise InputError(f"Give the tasks either as a column of X (task={task!r}) or as tasks=, not both.")
    frame = as_frame(X, "X")
    if isinstance(frame, nw.DataFrame):
        matrix, names, labels = _split_frame(frame, task)
    else:
        matrix, labels = _split_array(X, task)
        names = None
    if tasks is not None:
        labels = read_labels(tasks, "tasks", len(matrix))
    return matrix, names, labels


def _split_frame(
    frame: nw.DataFrame, task: str | int | None
) -> tuple[np.ndarray, tuple[str, ...] | None, np.ndarray | None]:
    columns = list(frame.columns)
    labels = None
    if task is not None:
        if isinstance(task, (int, np.integer)) and task not in columns:
            if not -len(columns) <= task < len(columns):
                raise InputError(f"task={task} is out of range: X has {len(columns)} columns.")
            task = columns[task]
        if task not in columns:
            raise InputError(
                f"X has no column {task!r} to take the tasks from.{did_you_mean(task, columns)} "
                f"Its columns are {', '.join(repr(c) for c in columns[:12])}{' …' if len(columns) > 12 else ''}."
            )
        labels = read_labels(frame.get_column(task), str(task), len(frame))
        columns.remove(task)
    if not columns:
        raise InputError(f"0 feature(s) (shape=({len(frame)}, 0)) while a minimum of 1 is required.")
    if len(frame) == 0:
        raise InputError("Found array with 0 sample(s) while a minimum of 1 is required.")
    matrix = np.empty((len(frame), len(columns)))
    for k, column in enumerate(columns):
        matrix[:, k] = _numeric_column(frame.get_column(column), column)
    named = all(isinstance(column, str) for column in columns)
    return matrix, tuple(columns) if named else None, labels


def _numeric_column(series: nw.Series, name: Any) -> np.ndarray:
    is_boolean = series.dtype == nw.Boolean
    values = (series.cast(nw.Float64) if is_boolean else series).to_numpy()
    if not (series.dtype.is_numeric() or is_boolean):
        try:
            if values.dtype != object:
                raise ValueError
            values = values.astype(np.float64)
        except (TypeError, ValueError):
            raise InputTypeError(
                f"Column {name!r} is of type {series.dtype} (its first value is {_plain(values[0])!r}); features must "
                "be numeric. Encode it first, for example one 0/1 column per category, or drop it."
            ) from None
    values = values.astype(np.float64, copy=False)
    bad = ~np.isfinite(values)
    if bad.any():
        kind = "missing" if np.isnan(values[bad]).all() else "missing or infinite"
        raise InputError(
            f"Column {name!r} has {int(bad.sum())} {kind} values (first in row {int(bad.argmax())}): "
            "Input X contains NaN or infinity. Impute them or drop those rows."
        )
    return values


def _float_array(values: Any, **options: Any) -> np.ndarray:
    return check_array(values, dtype=np.float64, **options)  # pyright: ignore[reportArgumentType]


def _split_array(X: Any, task: str | int | None) -> tuple[np.ndarray, np.ndarray | None]:
    if task is None:
        return _float_array(X, estimator="GGMTLRegressor", input_name="X"), None
    if not isinstance(task, (int, np.integer)):
        raise InputError(
            f"task={task!r} names a column, but X is {type(X).__name__} without column names. "
            "Pass a data frame, the column's index, or tasks= instead."
        )
    array = np.asarray(X)
    if array.ndim != 2 or not -array.shape[1] <= task < array.shape[1]:
        raise InputError(f"task={task} is out of range for X of shape {array.shape}.")
    labels = read_labels(array[:, task], f"{task}", len(array))
    rest = np.delete(array, task, axis=1)
    return _float_array(rest, estimator="GGMTLRegressor", input_name="X"), labels


def _other_names_message(names: tuple[str, ...], expected: tuple[str, ...]) -> str:
    """Say in scikit-learn's words how columns differ from the fitted ones."""
    message = "The feature names should match those that were passed during fit.\n"
    unexpected = [name for name in names if name not in expected]
    absent = [name for name in expected if name not in names]
    for title, group in (("unseen at fit time", unexpected), ("seen at fit time, yet now missing", absent)):
        if group:
            message += f"Feature names {title}:\n" + "".join(f"- {name}\n" for name in group[:5])
            message += "- ...\n" if len(group) > 5 else ""
    if not unexpected and not absent:
        message += "Feature names must be in the same order as they were in fit.\n"
    return message


def _target(y: Any, n_rows: int) -> np.ndarray:
    if isinstance(y, str):
        raise InputError(
            f"y must be the target's values, not a name: pass df[{y!r}], and df without that column as X. "
            f"Got the text {y!r} instead."
        )
    values = _series_to_numpy(y, "y")
    if values.dtype == object or values.dtype.kind in "US":
        values = _parsed_target(values)
    if np.iscomplexobj(values):
        raise InputError("Complex data not supported in y.")
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
        return _float_array(values, ensure_2d=False, input_name="y")
    except (TypeError, ValueError) as error:
        bad = next((place for place, value in np.ndenumerate(values) if not _is_number(value)), None)
        if bad is None:
            raise
        raise InputError(
            f"y must hold numbers: the target has {_plain(values[bad])!r} in row {bad[0]}. Correct or drop it."
        ) from error


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return _is_missing(value)
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
        group = np.unique(matrix, axis=0, return_inverse=True)[1].reshape(-1)
    data = TaskData(
        np.tile(matrix, (n_tasks, 1)),
        target.T.ravel(),
        np.repeat(labels, n_rows),
        feature_names=names,
        sample_weight=None if weight is None else np.tile(weight, n_tasks),
        groups=None if group is None else np.tile(group, n_tasks),
    )
    return _without_zero_weights(data)


def _without_zero_weights(data: TaskData) -> TaskData:
    """A row of weight zero is a row that is not there."""
    weight = data.sample_weight
    return data if weight is None or (weight > 0).all() else data.take(weight > 0)


def check_range(name: object, largest: float, bounds: tuple[float, float] = (SMALLEST, LARGEST)) -> None:
    """Refuse a column whose largest value has a square that overflows, or vanishes without being zero."""
    least, most = bounds
    if largest > most or 0 < largest < least:
        raise InputError(
            f"{'y' if name is None else f'Column {name!r}'} must have its largest absolute value between {least:.1g} "
            f"and {most:.1g}, or be zero: squares of the values are added up. Got {largest:.3g} instead. Use other "
            "units."
        )


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
        weight = column_or_1d(np.asarray(sample_weight, dtype=np.float64))
    if len(weight) != n_rows:
        raise InputError(f"sample_weight must have shape ({n_rows},). Got ({len(weight)},) instead.")
    if not np.isfinite(weight).all() or (weight < 0).any():
        raise InputError("sample_weight must be finite and not negative.")
    if not weight.any():
        raise InputError("sample_weight is zero for every row.")
    return weight


def _series_to_numpy(values: Any, name: str) -> np.ndarray:
    native = as_frame(values, name, allow_series=True)
    return native.to_numpy() if isinstance(native, (nw.Series, nw.DataFrame)) else np.asarray(values)


def _missing(labels: np.ndarray) -> np.ndarray:
    if labels.dtype.kind == "f":
        return np.isnan(labels)
    if labels.dtype.kind == "M":
        return np.isnat(labels)
    if labels.dtype == object:
        return np.array([_is_missing(label) for label in labels.ravel()], dtype=bool).reshape(labels.shape)
    return np.zeros(labels.shape, dtype=bool)


def _is_missing(label: Any) -> bool:
    try:
        return label is None or bool(label != label)
    except TypeError:  # pandas' NA is neither equal to itself nor different
        return True
