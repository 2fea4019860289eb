"""Task features: a table with one row per task → columns of numbers and of categories."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import narwhals.stable.v1 as nw
import numpy as np
from scipy.spatial.distance import cdist

from ggmtl.data.frames import as_frame, is_missing, plain
from ggmtl.data.labels import join_labels, locate_tasks, read_labels
from ggmtl.data.reading import check_range
from ggmtl.errors import InputError, InputTypeError, did_you_mean

_NUMBERS = (bool, int, float, Decimal, np.number, np.bool_)


@dataclass(frozen=True)
class TaskFeatures:
    """Features of some tasks.

    Parameters
    ----------
    task_names : array of shape (n,)
        Sorted labels.
    columns : dict of str to array of shape (n,)
        Numbers as float64, categories as text. NaN and the empty text are missing values, which only a task
        added later may have.
    """

    task_names: np.ndarray
    columns: Mapping[str, np.ndarray]

    def of_tasks(self, tasks: np.ndarray) -> TaskFeatures:
        """The rows of the given tasks, sorted; an error that names the tasks without a row."""
        position = locate_tasks(self.task_names, tasks)
        absent = tasks[position < 0].tolist()
        if absent:
            shown = ", ".join(map(repr, absent[:5])) + (f" and {len(absent) - 5} more" if len(absent) > 5 else "")
            near = did_you_mean(absent[0], self.task_names) if len(absent) == 1 else ""
            raise InputError(
                f"task_features has no row for {len(absent)} of {len(tasks)} tasks: {shown}.{near} Add their rows. "
                "Pass the whole table of tasks: do not select its rows together with those of X."
            )
        return TaskFeatures(tasks, {name: values[position] for name, values in self.columns.items()})

    def joined(self, other: TaskFeatures) -> TaskFeatures:
        """The rows of both tables; those of the other where a task is in both."""
        other, kept = self.same_columns(other), locate_tasks(other.task_names, self.task_names) < 0
        names = join_labels([self.task_names[kept], other.task_names])
        order = np.argsort(names, kind="stable")
        columns = {
            name: np.concatenate([values[kept], other.columns[name]])[order] for name, values in self.columns.items()
        }
        return TaskFeatures(names[order], columns)

    def with_task(self, label: np.ndarray, row: TaskFeatures | None) -> TaskFeatures:
        """The table with one more task, in sorted order; all its values are missing where there is no row."""
        if row is None:
            missing = {name: np.array([np.nan if v.dtype.kind == "f" else ""]) for name, v in self.columns.items()}
            row = TaskFeatures(label, missing)
        return self.joined(row)

    def same_columns(self, other: TaskFeatures) -> TaskFeatures:
        """The other table with the columns of this one; missing columns, and columns of another kind, are refused."""
        columns = {}
        for name, values in self.columns.items():
            if name not in other.columns:
                raise InputError(
                    f"task_features has no column {name!r}, which it had in fit.{did_you_mean(name, other.columns)}"
                )
            given = other.columns[name]
            if (given.dtype.kind == "f") != (values.dtype.kind == "f"):
                kind = "numbers" if values.dtype.kind == "f" else "categories (text)"
                raise InputTypeError(f"Column {name!r} of task_features must hold {kind}, as in fit.")
            columns[name] = given
        return TaskFeatures(other.task_names, columns)


def read_task_features(table: Any, task: str | int | None = None) -> TaskFeatures:
    """Read a data frame with one row per task.

    The task is in the column named `task` (or ``"task"``), else in the index of a pandas frame. Numbers and truth
    values are numbers, dates are days, text and categories are categories.
    """
    if isinstance(table, TaskFeatures):
        return table
    frame = as_frame(table, "task_features")
    if not isinstance(frame, nw.DataFrame):
        raise InputTypeError(
            "task_features must be a data frame with one row per task, the task in its index or in a column. "
            f"Got {type(table).__name__} instead."
        )
    labels, key = _labels(table, frame, task)
    names, first, count = np.unique(labels, return_index=True, return_counts=True)
    if (count > 1).any():
        twice = names[count > 1][0].item()
        raise InputError(f"task_features has {count.max()} rows for task {twice!r}. Keep one row per task.")
    given = {name: frame.get_column(name) for name in frame.columns if name != key}
    columns = {str(name): _column(series, str(name), labels)[first] for name, series in given.items()}
    if not columns:
        raise InputError("task_features has no column besides the task. Add columns that describe the tasks.")
    return TaskFeatures(names, columns)


def _labels(table: Any, frame: nw.DataFrame, task: str | int | None) -> tuple[np.ndarray, str | None]:
    """The task of every row, and the column that holds it (None for the index)."""
    if len(frame) == 0:
        raise InputError("task_features has no rows.")
    for key in (task, "task"):
        if isinstance(key, str) and key in frame.columns:
            return read_labels(frame.get_column(key), f"task_features[{key!r}]", len(frame)), key
    index = getattr(table, "index", None)
    if index is None or callable(index):
        named = f"{task!r}" if isinstance(task, str) else "'task'"
        raise InputError(f"task_features must have a column {named} that holds the task of every row.")
    return read_labels(list(index), "the index of task_features", len(frame)), None


def _column(series: nw.Series, name: str, labels: np.ndarray) -> np.ndarray:
    """Numbers as float64, categories as text; missing values are refused."""
    kind = series.dtype
    given = series.to_list()
    missing = np.array([is_missing(value) or (isinstance(value, str) and value == "") for value in given], dtype=bool)
    held = {type(value) for value, absent in zip(given, missing) if not absent}
    if kind.is_nested() or not all(issubclass(each, (str, date, timedelta, *_NUMBERS)) for each in held):
        names = ", ".join(sorted(each.__name__ for each in held))
        raise InputTypeError(
            f"Column {name!r} of task_features holds values of type {names}. Give numbers, dates or categories."
        )
    if kind.is_temporal() or all(issubclass(each, date) for each in held):
        dates = [np.datetime64("NaT") if absent else value for value, absent in zip(given, missing)]
        days = (series.to_numpy() if kind.is_temporal() else np.array(dates, dtype="datetime64[s]")).astype(
            "datetime64[s]"
        )
        missing, values = np.isnat(days), days.astype(np.float64) / 86_400.0
    elif kind.is_numeric() or all(issubclass(each, _NUMBERS) for each in held):
        values = np.array([np.nan if absent else float(v) for v, absent in zip(given, missing)], dtype=np.float64)
        missing = ~np.isfinite(values)
        if not missing.any():
            check_range(f"{name} of task_features", float(np.abs(values).max()))
    else:
        values = np.array([str(plain(value)) for value in given])
    if missing.any():
        example = labels[missing][0].item()
        raise InputError(
            f"Column {name!r} of task_features has {int(missing.sum())} missing or infinite values (first for task "
            f"{example!r}). Fill them in, or leave the column out."
        )
    return values


def on_sphere(longitude: np.ndarray, latitude: np.ndarray) -> np.ndarray:
    """Points of the unit sphere, shape (n, 3), from degrees."""
    longitude, latitude = np.radians(longitude), np.radians(latitude)
    level = np.cos(latitude)
    return np.column_stack([level * np.cos(longitude), level * np.sin(longitude), np.sin(latitude)])


def spread_out(points: np.ndarray, number: int) -> list[int]:
    """Greedy choice of points, each the farthest from those before it; the first is the nearest to zero."""
    chosen = [int((points**2).sum(axis=1).argmin())]
    distance = cdist(points, points[chosen]).ravel()
    while len(chosen) < number:
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, cdist(points, points[chosen[-1:]]).ravel())
    return chosen
