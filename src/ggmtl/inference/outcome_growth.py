"""One more task for fitted classes or counts: a model on every level from its own rows, the others held fixed.

On the hub's level its prior is N(w̄, φH⁻¹), on the level of separate models the learned ridge, and on the graph's it is
linked by :func:`~ggmtl.inference.attachment.attach` on working sums at its own optimum. The weights stay. What is
approximate: the doubt about the common model and the neighbours is left out.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ggmtl.bilevel.level import Settings
from ggmtl.data.labels import join_labels
from ggmtl.fit.outcome_levels import OutcomeLevel, separate_mode
from ggmtl.fit.outcomes import OutcomeFamily
from ggmtl.fit.state import FittedState
from ggmtl.graph.task_graph import TaskGraph, beside_heaviest
from ggmtl.inference.attachment import AttachedTask, attach, insert_task
from ggmtl.losses.rowwise import LOSSES, RowLoss
from ggmtl.losses.task_rows import TaskRows

# Working sums and neighbours in turn: by then the models have long ceased to move.
_ROUNDS = 5


def with_outcome_task(state: FittedState, outcome: OutcomeFamily, label: np.ndarray, rows: TaskRows) -> FittedState:
    """The state with one more task; `rows` are its own, scaled, perhaps none."""
    labels = join_labels([state.task_names, label])
    position = int(np.searchsorted(labels[:-1], labels[-1]))
    names = np.insert(labels[:-1], position, labels[-1:])
    loss, fitted = LOSSES[outcome.loss], state.fitted_tasks
    attached = {
        name: _attached(level, fitted, rows, loss, state.settings, outcome.dispersion)
        for name, level in outcome.levels.items()
    }
    levels = {name: _inserted(level, attached[name], position) for name, level in outcome.levels.items()}
    own = np.sum([weight * attached[name].covariance for name, weight in outcome.weights.items()], axis=0)
    errors = outcome.errors
    if errors is not None:
        squared = np.insert(errors.squared, position, 0.0, axis=2)
        errors = replace(errors, squared=squared, count=np.insert(errors.count, position, 0.0, axis=1))
    average, null = (
        None if part is None else np.insert(part, position, 0.0, axis=1) for part in (outcome.average, outcome.null)
    )
    grown = replace(
        outcome,
        levels=levels,
        errors=errors,
        average=average,
        null=null,
        covariance=np.insert(outcome.covariance, position, own, axis=0),
    )
    T = state.scaling.user_map()
    deviation = np.sqrt(np.diag(T @ own @ T.T))
    given = dict(state.given)
    given["standard_errors"] = np.insert(given["standard_errors"], position, deviation, axis=0)
    fits = {name: level.fit for name, level in levels.items()}
    return replace(
        state,
        task_names=names,
        family=replace(state.family, levels=fits),
        graph=_graph(state.graph, attached.get("graph") if "graph" in outcome.weights else None, names, position),
        attached=(*state.attached, (label[0], own)),
        given=given,
        outcome=grown,
    )


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
    mode = separate_mode(rows, loss, centre[None], ridge, centre, dispersion)
    covariance = dispersion * np.linalg.inv(mode.sums.gram[0] + np.diag(ridge))
    found = AttachedTask(mode.coefficients[0], nobody, 0.0, fit.coupling, covariance)
    if not linked or not len(rows.task):
        return found
    known = replace(fit, coefficients=fit.coefficients[fitted])
    if len(fitted) < len(fit.coefficients):
        return found
    for _ in range(_ROUNDS):
        sums = rows.working_sums(loss, found.coefficients[None], dispersion)
        found = attach(known, sums, dispersion)
    return replace(found, covariance=dispersion * found.covariance)


def _inserted(level: OutcomeLevel, attached: AttachedTask, position: int) -> OutcomeLevel:
    """The level with the new task among its models; the covariances of all are kept by the family."""
    fit = level.fit
    if not (fit.edge_values > 0).any():
        fit = replace(fit, coefficients=np.insert(fit.coefficients, position, attached.coefficients, axis=0))
    else:
        fit = insert_task(fit, attached, position)
    return replace(level, fit=fit, covariance=level.covariance[:0])


def _graph(graph: TaskGraph, attached: AttachedTask | None, names: np.ndarray, position: int) -> TaskGraph:
    """The reported graph with the new task, and its edges where it has some."""
    edges = graph.edges + (graph.edges >= position)
    if attached is None or not len(attached.neighbours):
        return TaskGraph(edges, graph.weights, names)
    others = attached.neighbours + (attached.neighbours >= position)
    new = np.sort(np.column_stack([np.full(len(others), position), others]), axis=1)
    values = np.broadcast_to(attached.edge_value, (len(new),))
    weights = beside_heaviest(new, np.asarray(values, dtype=float), len(names))
    return TaskGraph(np.concatenate([edges, new]), np.append(graph.weights, weights), names)
