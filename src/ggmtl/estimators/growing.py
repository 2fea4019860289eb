"""More rows, or one more task, for a fitted model: read and checked against its state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import narwhals.stable.v1 as nw
import numpy as np

from ggmtl.data.folds import deal_folds, deal_holdout, group_labels, seed_of
from ggmtl.data.frames import as_frame
from ggmtl.data.labels import locate_tasks, read_labels
from ggmtl.data.reading import read_training
from ggmtl.data.task_data import InputForm, TaskData
from ggmtl.data.task_features import TaskFeatures, read_task_features
from ggmtl.errors import InputError, ParameterError
from ggmtl.fit.state import FittedState
from ggmtl.inference.growth import with_task
from ggmtl.inference.unseen import known_of
from ggmtl.statistics.task_statistics import TaskStatistics


def more_rows(model: Any, data: TaskData, forget: float) -> tuple[TaskStatistics, InputForm]:
    """Statistics of all rows, the old ones with weight `forget`, and their form."""
    if not isinstance(forget, (int, float)) or not 0 < forget <= 1:
        raise ParameterError(f"forget must lie above 0 and at most at 1. Got {forget!r} instead.")
    old = model.state_.rows("partial_fit")
    new, form = collect(model, data, old)
    return replace(old, cross=forget * old.cross) + new, form


def more_features(state: FittedState, features: TaskFeatures | None) -> TaskFeatures | None:
    """Features of the tasks of a model and of new ones; None if it was fitted without task features."""
    known = state.settings.known
    if features is None:
        return None if known is None else known.features
    return known_of(state, "partial_fit").features.joined(features)


def one_more_task(model: Any, name: Any, X: Any, y: Any, task_features: Any = None) -> FittedState:
    """The state with one more task, and its rows among the statistics."""
    state = model.state_
    label = new_label(state, name)
    data = None if X is None or len(X) == 0 else read_one_task(model, label, X, y)
    if data is None:
        columns = state.feature_names + state.scaling.curves.names(state.feature_names)
        width = len(columns) + 2
        rows = TaskStatistics(np.zeros((1, 1, width, width)), np.zeros(width - 1), label, columns)
    else:
        rows = TaskStatistics.from_data(data)
    row = None
    if task_features is not None:
        known_of(state, "add_task")
        row = read_task_features(task_features, model.task).of_tasks(label)
    grown = with_task(state, label, state.scaling.design(rows)[0], row=row)
    old = state.statistics
    if old is None:
        return grown
    if data is None:
        more, form = replace(old, cross=np.zeros_like(old.cross[:, :1]), task_names=label), state.form
    else:
        more, form = collect(model, data, old)
    return replace(grown, statistics=old + more, form=form)


def read_more(model: Any, X: Any, y: Any, tasks: Any, sample_weight: Any, groups: Any) -> TaskData:
    """Rows of the same form as those of ``fit``."""
    if hasattr(model.validation, "split"):
        raise ParameterError(
            f"partial_fit cannot deal rows into the folds of {type(model.validation).__name__}, which must see all "
            "rows. Use validation= with a number of folds or a share, and groups= where rows belong together."
        )
    state = model.state_
    data = read_training(
        X, y, tasks, task=model.task, sample_weight=sample_weight, groups=groups, estimator=type(model).__name__
    )
    reads_tasks = state.form.reads_tasks
    if (model.task is not None or tasks is not None or y is None) != reads_tasks:
        how = "with tasks: give them here too, as tasks=." if reads_tasks else "without tasks."
        raise InputError(f"The model was fitted {how}")
    if not reads_tasks:
        _check_columns_of_target(state, data)
    if data.tasks.dtype.kind in "US" and state.task_names.dtype.kind not in "US":
        raise InputError(f"The task labels must be of the kind {state.task_names.dtype}, as in fit.")
    return state.expanded(data, type(model).__name__)


def collect(model: Any, data: TaskData, like: TaskStatistics) -> tuple[TaskStatistics, InputForm]:
    """Statistics of new rows, dealt into folds of their own, and the form; known groups stay in their folds."""
    form, seed = model.state_.form, seed_of(model.random_state)
    if not like.n_folds:
        return TaskStatistics.from_data(data), form
    if form.scored_from and not hasattr(model.validation, "split"):
        share = float(model.validation if model.validation < 1 else 1.0 / model.validation)
        folds = deal_holdout(data, share, seed).astype(np.int64)
    elif like.n_folds - form.scored_from > 1:
        folds = form.scored_from + deal_folds(data, like.n_folds - form.scored_from, seed)
    else:
        folds = np.zeros(len(data), dtype=np.int64)
    if data.groups is not None:
        known, groups = form.group_folds or {}, group_labels(data.groups)
        folds = np.array([known.get(group, fold) for group, fold in zip(groups, folds.tolist())])
        form = replace(form, group_folds=known | dict(zip(groups, folds.tolist())))
    part = TaskStatistics.from_data(data, folds)
    missing = like.n_folds - len(part.cross)
    return replace(part, cross=np.concatenate([part.cross, np.zeros((missing, *part.cross.shape[1:]))])), form


def _check_columns_of_target(state: FittedState, data: TaskData) -> None:
    """With one task per column, y must have the columns of ``fit``, and may have those of tasks added later."""
    given, known, n_targets = set(data.task_names.tolist()), state.task_names.tolist(), state.form.n_targets
    if given <= set(known) and len(given) >= (n_targets or 0):
        return
    wanted = f"the {n_targets or len(known)} columns" if state.form.target_is_matrix else "the one dimension"
    raise InputError(
        f"y must have {wanted} that it had in fit. Got {len(given)} column(s) instead: "
        f"{', '.join(map(repr, sorted(given, key=str)[:5]))}{' …' if len(given) > 5 else ''}."
    )


def new_label(state: FittedState, name: Any) -> np.ndarray:
    """The label of a new task, of the same kind as the others; an error if the task exists."""
    if not state.form.reads_tasks and not state.form.target_is_matrix:
        raise InputError("The model was fitted without tasks, so there is nothing to attach a task to.")
    label = read_labels([name], "name", 1)
    if (label.dtype.kind in "US") != (state.task_names.dtype.kind in "US"):
        raise InputError(
            f"name must be of the kind of the other labels ({state.task_names.dtype}). Got {name!r} instead."
        )
    if locate_tasks(state.task_names, label)[0] >= 0:
        raise InputError(f"Task {name!r} is already there. Use partial_fit to give it more rows.")
    return label


def read_one_task(model: Any, label: np.ndarray, X: Any, y: Any) -> TaskData:
    """Rows of one new task; if X has the task column, it must name this task."""
    state, frame = model.state_, as_frame(X, "X")
    task = model.task
    named = isinstance(frame, nw.DataFrame) and task in frame.columns
    numbered = isinstance(task, (int, np.integer)) and np.shape(X)[1:] == (len(state.feature_names) + 1,)
    if named or numbered:
        data = read_training(X, y, task=model.task, estimator=type(model).__name__)
        if (data.tasks != label[0]).any():
            raise InputError(f"add_task({label[0].item()!r}, …): column {task!r} of X names other tasks.")
    else:
        data = read_training(X, y, np.repeat(label, len(X)), estimator=type(model).__name__)
    return state.expanded(data, type(model).__name__)
