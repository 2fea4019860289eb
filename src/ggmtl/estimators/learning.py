"""The fitted state of an estimator: one fit (memory, device, checkpoint, search, warnings); more rows and tasks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import narwhals.stable.v1 as nw
import numpy as np
from sklearn.exceptions import ConvergenceWarning

from ggmtl import __version__
from ggmtl.bilevel.level import GraphFit, Settings, TaskMeans
from ggmtl.bilevel.optimizers import Optimum
from ggmtl.data.curves import Curves
from ggmtl.data.folds import deal_folds, deal_holdout, group_labels, seed_of
from ggmtl.data.frames import as_frame
from ggmtl.data.labels import locate_tasks, read_labels
from ggmtl.data.reading import read_training
from ggmtl.data.task_data import InputForm, TaskData
from ggmtl.data.task_features import TaskFeatures, read_task_features
from ggmtl.data.task_terms import KnownTasks
from ggmtl.errors import InputError, ParameterError, check_choice, require, warn_user
from ggmtl.estimators.base import determined_models
from ggmtl.estimators.file_format import encode
from ggmtl.estimators.parameters import check_parameters, criterion_used, settings_of
from ggmtl.fit.family import Family
from ggmtl.fit.held_out import FoldResult
from ggmtl.fit.lines_or_curves import CurveTrial
from ggmtl.fit.order import Order
from ggmtl.fit.path import fit_path
from ggmtl.fit.state import FittedState
from ggmtl.graph.candidates import CandidateEdges, Coordinates
from ggmtl.inference.growth import with_task
from ggmtl.inference.unseen import known_of
from ggmtl.runtime.journal import Journal, logger, open_journal, sketch, verbose_logging
from ggmtl.runtime.machine import one_blas_thread, require_memory
from ggmtl.runtime.sizes import SIZES, Sizes
from ggmtl.statistics.least_squares import FoldedLoss, LeastSquares
from ggmtl.statistics.scaling import Scaling
from ggmtl.statistics.task_statistics import TaskStatistics

# Parameters that do not change the result, or that are already reflected in the statistics.
_IRRELEVANT = ("task", "unseen", "checkpoint", "n_jobs", "verbose")


@one_blas_thread()
def learn_state(
    model: Any,
    statistics: TaskStatistics,
    form: InputForm,
    curves: Curves | None = None,
    task_features: TaskFeatures | None = None,
    trial: CurveTrial | None = None,
) -> FittedState:
    """The state of an estimator with these parameters, fitted to statistics that include the sums of `curves`."""
    check_choice("unseen", model.unseen, ("error", "hub"))
    check_parameters(model)
    scaling = Scaling.from_statistics(statistics, model.fit_intercept, model.standardize, curves)
    with determined_models(statistics.n_tasks):
        state = _searched(model, statistics, scaling, form, task_features)
    hub = state.family.levels.get("hub")
    if trial is not None and hub is not None:
        state = replace(state, curve_gain=trial.gain(hub, model.standardize, form.scored_from))
    return state


def _searched(
    model: Any, statistics: TaskStatistics, scaling: Scaling, form: InputForm, task_features: TaskFeatures | None
) -> FittedState:
    """Prepare memory, the order of tasks and columns, checkpoint and device; then search."""
    folds = scaling.design(statistics)
    _require_memory(folds[0].n_tasks, folds[0].n_features)
    settings = settings_of(model, folds[0].n_features, scaling.is_linear)
    if settings.hub and scaling.intercept:
        settings = replace(settings, constant=scaling.constant_within_tasks(statistics))
    order = Order.of(folds, settings)
    settings = with_known_tasks(settings, task_features, statistics.task_names, order.tasks, model)
    names, features = statistics.task_names, tuple(statistics.feature_names[: scaling.n_features])
    journal = Journal()
    if model.checkpoint is not None:
        kinds = (GraphFit, TaskMeans, Optimum, CandidateEdges, FoldResult)
        mark = fingerprint(model, names, features, folds, scaling, form.scored_from)
        if settings.known is not None:
            columns = settings.known.features.columns
            mark["task features"] = _digest([*columns, *(values.tolist() for values in columns.values())])
        journal = open_journal(model.checkpoint, mark, kinds)
    # One at a time, without keeping those in the user's order: the losses of very many tasks fill the memory.
    for k in range(len(folds)):
        folds[k] = order.loss(folds[k])
    folded = FoldedLoss(tuple(folds), form.scored_from)
    # The search may overwrite the losses, so no other reference to them is kept.
    folds.clear()
    with verbose_logging(model.verbose):
        family = fit_path(
            placed(folded, model.device, model.sizes),
            order.settings(settings),
            names[order.tasks],
            criterion=criterion_used(model),
            choose_entropy=model.edge_entropy == "auto",
            n_jobs=model.n_jobs,
            journal=journal,
        )
    family = order.family_back(family)
    if settings.known is not None and task_features is not None:
        settings = replace(settings, known=replace(settings.known, features=task_features.of_tasks(names)))
    _warn_unless_converged(model, family)
    graph = family.graph(names, settings.slopes)
    table = family.table(scaling.target_scale, settings.slopes)
    return FittedState(names, features, form, scaling, settings, family, graph, table, statistics)


def with_known_tasks(
    settings: Settings, features: TaskFeatures | None, task_names: np.ndarray, order: np.ndarray, model: Any
) -> Settings:
    """The settings with the features of these tasks, in the given order; an error where they cannot be used."""
    where = settings.candidates.columns if isinstance(settings.candidates, Coordinates) else None
    if features is None:
        if where is not None:
            raise ParameterError(f"Coordinates(columns={where!r}) needs fit(..., task_features=) with these columns.")
        return settings
    if not settings.hub:
        raise ParameterError("task_features describe the shared model, so they need hub=True.")
    if model.device != "cpu":
        raise ParameterError(f'task_features are used on the CPU only. Got device={model.device!r}; use device="cpu".')
    known = KnownTasks.of(features.of_tasks(task_names[order]), len(settings.slopes), where)
    candidates = settings.candidates
    if isinstance(candidates, Coordinates) and where is not None:
        candidates = candidates.at(replace(known, features=features.of_tasks(task_names)).places(where))
    return replace(settings, known=known, candidates=candidates)


def _warn_unless_converged(model: Any, family: Family) -> None:
    fit = family.best
    measure = "a last gain in log evidence" if family.criterion == "evidence" else "a projected gradient"
    reasons = {
        "max_iter": f"The outer problem stopped after max_iter={model.max_iter} steps with {measure} of "
        f"{fit.certificate:.1e} (tol={model.tol:g}). "
        + ("Increase max_iter or tol." if model.step is None else "Increase max_iter or tol, or change step."),
        "interrupted": "The fit was interrupted: the graph is the best found so far"
        + (", and fit continues from the checkpoint when it is called again." if model.checkpoint else "."),
    }
    if fit.status in reasons:
        warn_user(reasons[fit.status], ConvergenceWarning)
    logger.info("%s: %d steps, %s", family.criterion, fit.iterations, fit.status)


def _require_memory(n: int, p: int) -> None:
    """Memory for a fit on top of the folds: scaled losses, inverse blocks in float32, and some fifty vectors."""
    require_memory(
        8.0 * n * p * (1.5 * p + 50),
        f"the fit of {n:,} tasks with {p} coefficients each",
        "Use fewer features, fit groups of tasks separately, or use a machine with more memory.",
    )


def placed(folded: FoldedLoss, device: str, sizes: Sizes = SIZES) -> FoldedLoss:
    """The losses on the device if there are enough tasks for it to pay, else unchanged.

    Raises
    ------
    MissingExtraError, ParameterError
        If torch is not installed or the device does not exist, for any number of tasks.
    """
    if device == "cpu":
        return folded
    require("torch", "gpu", f"device={device!r}")
    from ggmtl.evidence.gpu.loss import check_device, on_device

    there, part = check_device(device), folded.parts[0]
    if not sizes.is_large(part.n_tasks, part.n_features):
        logger.info("device=%r: %d tasks are few, and are fitted on the CPU", device, part.n_tasks)
        return folded
    return on_device(folded, there)


def fingerprint(
    model: Any,
    tasks: np.ndarray,
    features: tuple[str, ...],
    folds: Sequence[LeastSquares],
    scaling: Scaling,
    scored_from: int,
) -> dict[str, Any]:
    """All that a fit depends on, under names for messages; `folds` are its losses in scaled units."""
    relevant = {name: value for name, value in model.get_params(deep=False).items() if name not in _IRRELEVANT}
    return {
        "version of ggmtl": __version__,
        **{name: _plain(name, value) for name, value in relevant.items()},
        "tasks": _digest(tasks.tolist()),
        "features": _digest(features),
        "folds": [len(folds), int(scored_from)],
        "means": np.append(scaling.center / scaling.scale, scaling.target_center),
        "rows": np.array([sketch(part) for fold in folds for part in (fold.gram, fold.moment, fold.target_square)]),
    }


def _plain(name: str, value: Any) -> Any:
    if hasattr(value, "split") and not isinstance(value, str):
        # The folds that a splitter dealt are in the statistics.
        return type(value).__name__
    try:
        return encode(value, name)
    except ParameterError:
        return repr(value)


def _digest(names: Any) -> str:
    return hashlib.sha256("\x00".join(map(str, names)).encode("utf-8", "surrogatepass")).hexdigest()


# ---------------------------------------------------------------------- more rows, one more task


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
    data = model._read_data(X, y, tasks, sample_weight, groups)
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
