"""Rows of many regression tasks, in long form."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ggmtl.data.frames import frame_library
from ggmtl.data.labels import read_labels
from ggmtl.errors import InputError

if TYPE_CHECKING:
    from ggmtl.graph.task_graph import TaskGraph


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
    task_features : data frame, optional
        Descriptors of the tasks: one row per task, with a column ``task``.
    test : TaskData, optional
        Rows set aside for testing, where the set comes with such a split.
    notes : tuple of str
        Remarks about these data, such as faulty readings.

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
    task_features: Any = None
    test: TaskData | None = None
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self):
        X = np.ascontiguousarray(self.X, dtype=np.float64)
        y = np.asarray(self.y, dtype=np.float64)
        tasks = self.tasks if isinstance(self.tasks, np.ndarray) else read_labels(self.tasks, "tasks", len(self.tasks))
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
        # Long labels are kept as objects, one per row; an array of the distinct ones is small.
        return np.array(names.tolist()) if names.dtype == object else names, index.reshape(-1)

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


@dataclass(frozen=True)
class InputForm:
    """The form of the training rows.

    Parameters
    ----------
    reads_tasks : bool
        Whether rows come with task labels, in a column of X or as ``tasks=``.
    target_is_matrix : bool
        Whether y has one column per task.
    n_targets : int, optional
        Columns of y, where rows have no labels.
    named : bool
        Whether columns have names.
    table_kind : str, optional
        Library of the data frame.
    scored_from : int
        First fold that is held out; 1 where fold 0 has the rows that never are.
    group_folds : dict, optional
        Fold of every group of rows.
    classes : tuple, optional
        Labels of the target, sorted, where it holds classes.
    """

    reads_tasks: bool = True
    target_is_matrix: bool = False
    n_targets: int | None = None
    named: bool = True
    table_kind: str | None = None
    scored_from: int = 0
    group_folds: dict[Any, int] | None = None
    classes: tuple[Any, ...] | None = None

    @classmethod
    def of_rows(cls, X: Any, y: Any, tasks: Any, task: str | int | None, data: TaskData) -> InputForm:
        """The form of rows that were read as `data`."""
        reads_tasks = task is not None or tasks is not None or y is None
        return cls(
            reads_tasks=reads_tasks,
            target_is_matrix=y is not None and _is_matrix(y) and not reads_tasks,
            n_targets=None if reads_tasks else len(data.task_names),
            named=data.feature_names is not None,
            table_kind=frame_library(X),
        )


def _is_matrix(y: Any) -> bool:
    """Whether a target has two dimensions; a tensor on a GPU is not copied for this."""
    return (y.ndim if hasattr(y, "ndim") else np.asarray(y).ndim) == 2
