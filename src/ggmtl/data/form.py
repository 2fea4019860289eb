"""How rows were given to ``fit`` and dealt into folds, so that later rows are read in the same way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ggmtl.data.frames import frame_library
from ggmtl.data.task_data import TaskData


@dataclass(frozen=True)
class InputForm:
    """The form of the training rows.

    Parameters
    ----------
    reads_tasks : bool
        Whether rows come with task labels, in a column or apart.
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
    """Whether a target has two dimensions; the target is not copied from its device."""
    return (y.ndim if hasattr(y, "ndim") else np.asarray(y).ndim) == 2
