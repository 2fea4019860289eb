"""A fitted state with more rows or one more task; graph, strengths and scaling stay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ggmtl.bilevel.level import GraphFit
from ggmtl.data.labels import join_labels, locate_tasks
from ggmtl.data.task_features import TaskFeatures
from ggmtl.fit.family import Family
from ggmtl.fit.state import FittedState
from ggmtl.graph.task_graph import TaskGraph, beside_heaviest
from ggmtl.inference.attachment import (
    AttachedTask,
    among,
    attach,
    attach_alone,
    follow,
    follow_alone,
    insert_task,
)
from ggmtl.inference.intervals import intervals_with_task
from ggmtl.inference.uncertainty import noise_ratios, noise_variance, standard_errors
from ggmtl.inference.unseen import encode_row
from ggmtl.statistics.least_squares import FoldedLoss, LeastSquares
from ggmtl.statistics.task_statistics import TaskStatistics


def with_task(
    state: FittedState,
    label: np.ndarray,
    rows: LeastSquares,
    noise: float | None = None,
    row: TaskFeatures | None = None,
) -> FittedState:
    """The state with one more task, its model chosen by the evidence of its own rows; the others stay as they are.

    `row` is what is known about it. Where nothing is, it counts as an average task.

    It may be linked to tasks that were fitted, not to others that were added: the links of these are guesses from few
    rows, and σ² and the common model would drift with every guess. The statistics are not changed.
    """
    noise = noise_variance(state) if noise is None else noise
    fitted = state.fitted_tasks
    found = attach(among(state.level, fitted), rows, noise, state.settings.ridge_for(rows)[0], encode_row(state, row))
    family = state.family
    others = {
        name: attach_alone(among(family.levels[name], fitted), rows, noise, state.settings, encode_row(state, row))
        for name in family.weights
        if name != family.main
    }
    return _inserted(state, label, replace(found, neighbours=fitted[found.neighbours]), noise, others, row)


def with_rows(state: FittedState, statistics: TaskStatistics, features: TaskFeatures | None = None) -> FittedState:
    """The state with the models of these statistics; tasks that are new among them are attached."""
    noise = noise_variance(state)
    total = FoldedLoss(tuple(state.scaling.design(statistics))).total
    here = locate_tasks(statistics.task_names, state.task_names)
    labels = [label for label, _ in state.attached]
    positions = locate_tasks(state.task_names, np.array(labels)).tolist() if labels else []
    rows = total.of_tasks(here)
    family = state.family
    others = [name for name in family.weights if name != family.main]
    followed = {name: follow_alone(family.levels[name], rows, state.settings, positions, noise) for name in others}
    fit, covariances = follow(state.level, rows, state.settings, positions, noise)
    grown = replace(
        state,
        family=replace(family, levels=family.levels | followed).with_best(fit),
        attached=tuple(zip(labels, covariances)),
        statistics=replace(statistics, cross=statistics.cross[:, here], task_names=state.task_names),
        given={},
    )
    new = np.setdiff1d(np.arange(len(statistics.task_names)), here)
    noise = noise_variance(grown) if len(new) else noise
    for position in new:
        label = statistics.task_names[[position]]
        is_known = features is not None and locate_tasks(features.task_names, label)[0] >= 0
        row = features.of_tasks(label) if features is not None and is_known else None
        grown = with_task(grown, label, total.of_tasks(np.array([position])), noise, row)
    return replace(grown, statistics=statistics)


def _inserted(
    state: FittedState,
    label: np.ndarray,
    attached: AttachedTask,
    noise: float,
    others: dict[str, np.ndarray],
    row: TaskFeatures | None = None,
) -> FittedState:
    """The state with a task at its place among the sorted labels; `others` are its models at the other levels."""
    labels = join_labels([state.task_names, label])
    position = int(np.searchsorted(labels[:-1], labels[-1]))
    old, family, graph = state.level, state.family, state.graph
    fit = insert_task(old, attached, position, encode_row(state, row))
    names = np.concatenate([labels[:position], labels[-1:], labels[position:-1]])
    new = fit.edges[len(old.edges) :]
    weights = beside_heaviest(fit.edges, fit.edge_values, len(names))[len(old.edges) :]
    edges = np.concatenate([graph.edges + (graph.edges >= position), new])
    known = state.settings.known
    return replace(
        state,
        task_names=names,
        settings=replace(state.settings, known=None if known is None else known.with_task(label, row)),
        family=_with_place(family, position, others).with_best(fit),
        graph=TaskGraph(edges, np.append(graph.weights, weights), names),
        attached=(*state.attached, (label[0], attached.covariance)),
        # σ² is that of the fitted tasks, whose rows are the same.
        given={"noise": noise} if state.statistics is not None else _given(state, attached, position, noise),
    )


def _with_place(family: Family, position: int, models: dict[str, np.ndarray]) -> Family:
    """A family whose averaged levels have the new task's models; others know of its place but keep no models."""

    def placed(name: str, level: GraphFit) -> GraphFit:
        coefficients, precisions = level.coefficients[:0], None
        if name in models:
            coefficients = np.insert(level.coefficients, position, models[name], axis=0)
            precisions = None if level.precisions is None else np.insert(level.precisions, position, 1.0)
        edges = level.edges + (level.edges >= position)
        return replace(level, coefficients=coefficients, edges=edges, precisions=precisions, ridge=None)

    average = family.average and replace(
        family.average,
        squared=np.insert(family.average.squared, position, 0.0, axis=1),
        losses={name: np.insert(values, position, 0.0) for name, values in family.average.losses.items()},
    )
    return replace(
        family,
        levels={name: placed(name, level) for name, level in family.levels.items()},
        errors=family.errors and family.errors.with_task(position),
        average=average,
        links=(),
    )


def _given(state: FittedState, attached: AttachedTask, position: int, noise: float) -> dict[str, object]:
    """The uncertainties that a file brought for the others, and that of the new task."""
    T = state.scaling.user_map()
    known, ratios = standard_errors(state), noise_ratios(state)
    own = np.sqrt(noise * np.diag(T @ attached.covariance @ T.T))
    if not np.isfinite(state.level.hub).all():
        own = known[0]
    return {
        **intervals_with_task(state, position),
        "noise": noise,
        "standard_errors": np.insert(known, position, own, axis=0),
        # A few rows are not enough to estimate the noise of a task.
        "noise_ratios": None if ratios is None else np.insert(ratios, position, 1.0),
    }
