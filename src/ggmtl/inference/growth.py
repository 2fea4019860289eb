"""A fitted state with more rows or one more task. Graph, strengths, weights of the levels and scaling stay.

For classes and counts, the new task's model is learned from its own rows on every level, with the others held fixed.
Its prior is N(w̄, φH⁻¹) on the hub, the learned ridge on separate models, and on the graph it is linked by
:func:`~ggmtl.inference.attachment.attach` on working sums at its own optimum. Its covariance leaves out the uncertainty
of the common model and of the neighbours.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ggmtl.bilevel.level import GraphFit, Settings
from ggmtl.data.labels import join_labels, locate_tasks
from ggmtl.data.task_features import TaskFeatures
from ggmtl.evidence.laplace import predicting_models
from ggmtl.fit.family import Family
from ggmtl.fit.separate_outcomes import OutcomeLevel, separate_mode
from ggmtl.fit.state import FittedState, outcome_of
from ggmtl.graph.task_graph import TaskGraph, relative_to_heaviest
from ggmtl.inference.attachment import (
    AttachedTask,
    among,
    attach,
    attach_alone,
    follow,
    insert_task,
)
from ggmtl.inference.intervals import intervals_with_task
from ggmtl.inference.uncertainty import noise_ratios, noise_variance, standard_errors
from ggmtl.inference.unseen import encode_row
from ggmtl.losses.rowwise import LOSSES, RowLoss
from ggmtl.losses.task_rows import TaskRows
from ggmtl.statistics.least_squares import FoldedLoss, LeastSquares
from ggmtl.statistics.task_statistics import TaskStatistics

# Alternations between the working sums of a new task and its neighbours; more do not change its model.
_ROUNDS = 5


def with_task(
    state: FittedState,
    label: np.ndarray,
    rows: LeastSquares,
    noise: float | None = None,
    row: TaskFeatures | None = None,
) -> FittedState:
    """The state with one more task, whose model and links maximise the evidence of its own rows. The others stay.

    `row` has its task features; without them it counts as an average task. It is linked only to tasks that were fitted
    together, not to tasks that were added: their links are uncertain, and errors would accumulate. The statistics are
    not changed.
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
    """The state with the models of these statistics. New tasks among them are attached."""
    noise = noise_variance(state)
    total = FoldedLoss(tuple(state.scaling.design(statistics))).total
    here = locate_tasks(statistics.task_names, state.task_names)
    labels = [label for label, _ in state.attached]
    positions = locate_tasks(state.task_names, np.array(labels)).tolist() if labels else []
    rows = total.of_tasks(here)
    family = state.family
    others = [name for name in family.weights if name != family.main]
    same = rows, state.settings, positions, noise
    followed = {name: follow(family.levels[name], *same, linked=False)[0] for name in others}
    fit, covariances = follow(state.level, *same)
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
    """The state with a task inserted in sorted order of the labels; `others` are its models on the other levels."""
    labels = join_labels([state.task_names, label])
    position = int(np.searchsorted(labels[:-1], labels[-1]))
    old, family, graph = state.level, state.family, state.graph
    fit = insert_task(old, attached, position, encode_row(state, row))
    names = np.concatenate([labels[:position], labels[-1:], labels[position:-1]])
    new = fit.edges[len(old.edges) :]
    weights = relative_to_heaviest(fit.edges, fit.edge_values, len(names))[len(old.edges) :]
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
    """The family with one more task. Levels without weight lose their coefficients."""

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
    """The uncertainties that a file brought, with those of the new task."""
    T = state.scaling.user_map()
    known, ratios = standard_errors(state), noise_ratios(state)
    own = np.sqrt(noise * np.diag(T @ attached.covariance @ T.T))
    if not np.isfinite(state.level.hub).all():
        own = known[0]
    return {
        **intervals_with_task(state, position),
        "noise": noise,
        "standard_errors": np.insert(known, position, own, axis=0),
        # The new task gets the mean noise.
        "noise_ratios": None if ratios is None else np.insert(ratios, position, 1.0),
    }


def with_outcome_task(state: FittedState, label: np.ndarray, rows: TaskRows) -> FittedState:
    """The state of classes or counts with one more task; `rows` are its own, scaled, perhaps none."""
    outcome, family, fitted = outcome_of(state), state.family, state.fitted_tasks
    loss, levels = LOSSES[outcome.loss], outcome.levels
    found = {
        name: _attached(levels[name], fitted, rows, loss, state.settings, outcome.dispersion) for name in family.kept
    }
    others = {name: task.coefficients for name, task in found.items() if name != family.main}
    grown = _inserted(state, label, found[family.main], outcome.dispersion, others)
    position = int(locate_tasks(grown.task_names, label)[0])
    own = np.sum([weight * found[name].covariance for name, weight in family.weights.items()], axis=0)
    T = state.scaling.user_map()
    given = {
        "count": np.insert(state.given["count"], position, rows.count[0]),
        "standard_errors": np.insert(state.given["standard_errors"], position, np.sqrt(np.diag(T @ own @ T.T)), axis=0),
    }
    place = np.insert(np.arange(len(state.task_names)), position, -1)
    more = replace(
        outcome,
        levels={
            name: replace(levels[name], fit=grown.family.levels[name], covariance=levels[name].covariance[:0])
            for name in family.kept
        },
        errors=grown.family.errors,
        average=grown.family.average,
        null=None if outcome.null is None else np.insert(outcome.null, position, 0.0),
        covariance=np.insert(outcome.covariance, position, own, axis=0),
        scores=outcome.scores.at(place),
    )
    kept = state.outcome_rows and state.outcome_rows.with_task(position, rows)
    attached = (*state.attached, (label[0], own))
    return replace(grown, given={**state.given, **given}, outcome=more, outcome_rows=kept, attached=attached)


def _attached(
    level: OutcomeLevel, fitted: np.ndarray, rows: TaskRows, loss: RowLoss, settings: Settings, dispersion: float
) -> AttachedTask:
    """The new task's model on one level."""
    fit, nobody = level.fit, np.empty(0, dtype=np.int64)
    common = fit.coefficients[fitted].mean(axis=0)
    if not np.isfinite(fit.hub).all():
        return AttachedTask(common, nobody, 0.0, fit.coupling, level.new_task)
    linked = (fit.edge_values > 0).any()
    ridge, centre = fit.hub, common
    if not linked and not (fit.hub > 0).all():
        ridge, centre = level.ridge, np.where(settings.slopes, 0.0, common)
    if linked:
        variance = np.maximum(np.diag(level.new_task), np.finfo(float).tiny)
        ridge = np.maximum(fit.hub, dispersion / variance)
    pull = np.diag(ridge) if fit.precision is None else fit.precision
    mode = separate_mode(rows, loss, centre[None], pull, centre, dispersion)
    covariance = dispersion * np.linalg.inv(mode.sums.gram[0] + pull)
    models = predicting_models(rows, loss, mode.coefficients, covariance[None], lambda c: c @ covariance)
    found = AttachedTask(models[0], nobody, 0.0, fit.coupling, covariance)
    if not linked or not len(rows.task):
        return found
    known = replace(fit, coefficients=fit.coefficients[fitted])
    if len(fitted) < len(fit.coefficients):
        return found
    for _ in range(_ROUNDS):
        sums = rows.working_sums(loss, found.coefficients[None], dispersion)
        found = attach(known, sums, dispersion)
    return replace(found, covariance=dispersion * found.covariance)
