"""Splitting rows within every task, for scikit-learn's ``cv=``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from sklearn.model_selection import BaseCrossValidator

from ggmtl.data.columns import read_task_column
from ggmtl.data.folds import seed_of
from ggmtl.data.frames import plain
from ggmtl.data.labels import read_labels
from ggmtl.errors import InputError, ParameterError

__all__ = ["TaskKFold"]


class TaskKFold(BaseCrossValidator):
    """K folds of the rows of every task, so that every task has training rows in every split.

    The rows of each task are shuffled and dealt to the folds in turn: the folds of a task differ by at most one row,
    and so do the folds as a whole.

    Parameters
    ----------
    n_splits : int, default 5
        Number of folds, at least 2.
    task : str or int, optional
        Column of X that holds the task, as in :class:`ggmtl.GGMTLRegressor`. Without it, pass the task of every row
        as ``groups``.
    random_state : int, optional
        Seed of the shuffling; None is 0. The same seed and rows give the same folds.

    Notes
    -----
    With `task`, ``groups`` are rows of a task that stay together, such as the visits of a patient: each group is held
    out as a whole. A task that cannot be divided, because it has one row (or one group), stays in the training part
    of every split. The test parts then do not cover all rows, and ``cross_val_predict`` raises an error.

    Examples
    --------
    >>> from sklearn.model_selection import cross_val_score
    >>> from ggmtl.baselines import HubRegressor
    >>> from ggmtl.datasets import make_clusters
    >>> data = make_clusters(2, n_tasks=6, n_features=3, n_samples=10, random_state=0)
    >>> X = np.column_stack([data.tasks, data.X])
    >>> cross_val_score(HubRegressor(task=0), X, data.y, cv=TaskKFold(5, task=0)).shape
    (5,)
    >>> train, test = next(TaskKFold(5).split(data.X, groups=data.tasks))
    >>> np.bincount(data.tasks[test]).tolist()
    [2, 2, 2, 2, 2, 2]
    """

    # scikit-learn then passes ``groups`` on by default, as it does for its own splitters by group.
    __metadata_request__split: ClassVar[dict[str, bool]] = {"groups": True}

    def __init__(self, n_splits: int = 5, *, task: str | int | None = None, random_state: int | None = None):
        self.n_splits = n_splits
        self.task = task
        self.random_state = random_state

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """Number of folds."""
        is_whole = isinstance(self.n_splits, (int, np.integer)) and not isinstance(self.n_splits, bool)
        if not is_whole or self.n_splits < 2:
            raise ParameterError(f"n_splits must be a whole number of at least 2. Got {self.n_splits!r} instead.")
        return int(self.n_splits)

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Positions of the training and test rows of every split.

        Parameters
        ----------
        X : data frame or array of shape (rows, columns)
            With the task column, if `task` names one.
        y : ignored
        groups : array of shape (rows,), optional
            The task of every row; where `task` names a column, groups of rows that stay together.
        """
        n_splits = self.get_n_splits()
        task, unit = self._tasks_and_units(X, groups)
        fold = _deal(task, unit, n_splits, seed_of(self.random_state))
        empty = n_splits - len(np.unique(fold[fold >= 0]))
        if empty:
            raise InputError(
                f"n_splits={n_splits} is too many: {empty} of the folds would have no rows. "
                "Use fewer folds; tasks with a single row (or group) are never held out."
            )
        for k in range(n_splits):
            yield np.flatnonzero(fold != k), np.flatnonzero(fold == k)

    def _tasks_and_units(self, X: Any, groups: Any) -> tuple[np.ndarray, np.ndarray]:
        """Number of every row's task, and of the unit that is held out as a whole: its group, else the row itself."""
        if self.task is None:
            if groups is None:
                raise InputError(
                    "TaskKFold must know the task of every row: name the column of X that holds it, TaskKFold(task=…), "
                    "or pass groups= with the task of every row."
                )
            task = _numbered(read_labels(groups, "groups", len(groups)))
            return task, np.arange(len(task))
        task = _numbered(read_task_column(X, self.task))
        if groups is None:
            return task, np.arange(len(task))
        unit = _numbered(read_labels(groups, "groups", len(task)))
        pairs = np.unique(np.stack([unit, task]), axis=1)
        spread = np.flatnonzero(np.bincount(pairs[0]) > 1)
        if len(spread):
            label = plain(np.asarray(groups)[np.argmax(unit == spread[0])])
            raise InputError(
                f"groups: {label!r} has rows of several tasks. TaskKFold splits within tasks, so a group must belong "
                "to one task; use GroupKFold to hold out groups across tasks."
            )
        return task, unit


def _numbered(labels: np.ndarray) -> np.ndarray:
    return np.unique(labels, return_inverse=True)[1].reshape(-1)


def _deal(task: np.ndarray, unit: np.ndarray, n_splits: int, seed: int) -> np.ndarray:
    """Fold of every row, −1 for rows of tasks with a single unit.

    The units of a task are dealt in random order, starting where the task before it ended.
    """
    _, first, number = np.unique(unit, return_index=True, return_inverse=True)
    task_of_unit = task[first]
    random = np.random.default_rng(seed).random(len(first))
    can_divide = np.bincount(task_of_unit)[task_of_unit] > 1
    order = np.lexsort((random, task_of_unit))
    order = order[can_divide[order]]
    fold = np.full(len(first), -1)
    fold[order] = np.arange(len(order)) % n_splits
    return fold[number.reshape(-1)]
