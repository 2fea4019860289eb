"""One fit, from scaled losses to the fitted state: memory, device, checkpoint, search, warnings."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from ggmtl.bilevel.level import GraphFit, Settings, TaskMeans
from ggmtl.bilevel.optimizers import Optimum
from ggmtl.data.curves import Curves
from ggmtl.data.task_data import InputForm
from ggmtl.data.task_features import TaskFeatures
from ggmtl.data.task_terms import KnownTasks
from ggmtl.errors import ParameterError, check_choice, require, warn_user
from ggmtl.estimators.base import determined_models
from ggmtl.estimators.file_format import encode, read_file, write_file
from ggmtl.estimators.parameters import check_parameters, criterion_used, settings_of
from ggmtl.fit.family import Family
from ggmtl.fit.held_out import FoldResult
from ggmtl.fit.lines_or_curves import CurveTrial
from ggmtl.fit.order import Order
from ggmtl.fit.path import fit_path
from ggmtl.fit.state import FittedState
from ggmtl.graph.candidates import CandidateEdges, Coordinates
from ggmtl.runtime.journal import Journal, logger, open_journal, sketch, verbose_logging
from ggmtl.runtime.kernels import one_blas_thread
from ggmtl.runtime.machine import require_memory
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
        journal = open_journal(model.checkpoint, mark, kinds, read_file, write_file)
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
        "version of ggmtl": _version(),
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


def _version() -> str:
    try:
        return version("ggmtl")
    except PackageNotFoundError:
        return "unknown"
