"""The levels of the family for losses that are not squared: each found by Newton's method on working sums.

    pooled        one model for all, its ridge learned
    common slopes the same slopes, and intercepts drawn to their mean as strongly as Laplace's evidence says
    intercepts    for counts: partly shared slopes, and intercepts that are hardly drawn to their mean
    hub           a shared model and deviations; strengths by the evidence of working sums (PQL), then by Laplace's
    correlated    the same with deviations that are correlated
    graph         the search for edges on the working sums of the hub's optimum, then Newton's method beside the edges
    independent   every task alone: slopes drawn to zero and intercepts to their mean, as strongly as the evidence says

Tasks of one class have no finite model of their own, so no level leaves an intercept free.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ggmtl.bilevel.level import GraphFit, Settings
from ggmtl.evidence.hub import hub_evidence
from ggmtl.evidence.hub_strengths import learn_hub_by_feature, learn_hub_of_slopes, minimize_logs
from ggmtl.evidence.laplace import (
    LaplaceLoss,
    beside_hub,
    hub_covariance,
    hub_mode,
    learn_correlated,
    predicting_models,
)
from ggmtl.evidence.search import learn_by_evidence
from ggmtl.fit.levels import CORRELATED, covariance_root
from ggmtl.graph.candidates import CandidateEdges, search_for
from ggmtl.losses.rowwise import RowLoss
from ggmtl.losses.task_rows import Mode, TaskRows, newton
from ggmtl.solve.solvers import prepare
from ggmtl.solve.system import TaskSystem
from ggmtl.statistics.least_squares import LeastSquares

# The level at which tasks differ in their intercepts alone.
COMMON_SLOPES = "common slopes"
# Rounds of working sums and strengths, and the largest change of a log strength that ends them.
_ROUNDS, _SETTLED = 6, 0.1
# Rounds in which ridges are learned, and the largest change of their logarithms that ends them.
_RIDGE_ROUNDS, _RIDGE_SETTLED = 30, 0.01
# Bounds of learned ridges, in scaled units.
_WEAKEST, _STRONGEST = 1e-4, 1e8
# The intercept of a task alone has nothing to be drawn to; this keeps it finite.
_BARELY = 1e-6
# Counts vary at least as much as Poisson's.
_LEAST_DISPERSION = 1.0
_RIDGE = 1e-10
# The search for the strength of intercepts ends where a change by one of its logarithm gains less than so many nats.
_SETTLED_SLOPE = 0.01
# Standard deviation, in logarithms, of rates that are hardly drawn to their mean: most lie within a factor of fifty.
_WIDE = 2.0
# Strength that leaves nothing of a slope to its task, in units of the tasks' curvature.
_ALL_COMMON = 1e5


@dataclass(frozen=True)
class OutcomeLevel:
    """A level, and how certain its models are.

    Parameters
    ----------
    fit : GraphFit
    covariance : array of shape (n, p, p)
        Of every task's coefficients, beside graph and strengths as learned. A file does not keep it.
    new_task : array of shape (p, p)
        The same for a task without rows, predicted by the common model.
    ridge : array of shape (p,)
        Learned ridges; zeros for levels that are drawn to the common model instead.
    """

    fit: GraphFit
    covariance: np.ndarray
    new_task: np.ndarray
    ridge: np.ndarray


def learn_outcome_levels(
    rows: TaskRows,
    loss: RowLoss,
    settings: Settings,
    task_names: np.ndarray,
    dispersion: float = 1.0,
    *,
    graph: bool = True,
) -> dict[str, OutcomeLevel]:
    """All levels on the given rows, simplest first; a graph only where the evidence supports it."""
    alone = separate_level(rows, loss, settings.slopes, dispersion)
    if rows.n_tasks == 1 or not settings.hub:
        return {"independent": alone}
    pooled = pooled_level(rows, loss, settings.slopes, dispersion)
    hub, mode = hub_level(rows, loss, settings, pooled, dispersion)
    levels = {"pooled": pooled}
    varied = settings.slopes.any() and not settings.slopes.all()
    if varied:
        levels[COMMON_SLOPES] = intercept_level(rows, loss, settings.slopes, hub.fit, pooled, dispersion)
    small = settings.blend and not settings.sizes.is_large(rows.n_tasks, rows.n_features)
    if varied and small and loss.exponential:
        levels["intercepts"] = separate_intercepts(rows, loss, settings, hub.fit, pooled, dispersion)
    levels["hub"] = hub
    if small and rows.n_features > 1:
        levels[CORRELATED] = correlated_level(rows, loss, settings, hub.fit, pooled, dispersion)
    if graph:
        linked = graph_level(rows, loss, settings, task_names, hub.fit, mode)
        levels |= {} if linked is None else {"graph": linked}
    return levels | {"independent": alone}


def pooled_level(rows: TaskRows, loss: RowLoss, slopes: np.ndarray, dispersion: float = 1.0) -> OutcomeLevel:
    """One model for all tasks."""
    n = rows.n_tasks
    single = separate_level(rows.as_one_task(), loss, slopes, dispersion)
    fit = _without_edges("pooled", np.full(rows.n_features, np.inf), np.repeat(single.fit.coefficients, n, axis=0))
    block = single.covariance[0]
    return OutcomeLevel(fit, np.broadcast_to(block, (n, *block.shape)), block, single.ridge)


def hub_level(
    rows: TaskRows, loss: RowLoss, settings: Settings, pooled: OutcomeLevel, dispersion: float = 1.0
) -> tuple[OutcomeLevel, Mode]:
    """Every task drawn to the common model, each coordinate as strongly as the evidence says; and its optimum.

    The common model has the ridge of the one model for all.
    """
    first, models, _ = _strengths_of_working_sums(rows, loss, settings, pooled, dispersion)
    laplace = LaplaceLoss(rows, loss, models, dispersion, pooled.ridge)
    learned = learn_hub_by_feature(laplace, settings.slopes, first, settings.sizes)  # pyright: ignore[reportArgumentType]
    status = "converged" if learned.converged else "flat"
    level, mode = _hub_at(laplace, "hub", learned.hub, learned.evidence.value)
    fit = replace(level.fit, iterations=learned.iterations, status=status, history=(learned.evidence.value,))
    return replace(level, fit=fit), mode


def _hub_at(laplace: LaplaceLoss, name: str, hub: np.ndarray, value: float) -> tuple[OutcomeLevel, Mode]:
    """The level of a hub of these strengths (or of correlated deviations of precision `hub`), and its optimum."""
    mode, dispersion = hub_mode(laplace, hub), laplace.noise
    blocks, inverse, spread = hub_covariance(mode.sums.gram, hub, _RIDGE, laplace.common_ridge)
    solve = partial(beside_hub, hub=hub, inverse=inverse, spread=spread)
    models = predicting_models(laplace.rows, laplace.loss, mode.coefficients, blocks, solve)
    deviations = np.diag(1.0 / hub) if hub.ndim == 1 else np.linalg.inv(hub)
    fit = _without_edges(name, hub if hub.ndim == 1 else 1.0 / np.diag(deviations), models, value)
    if hub.ndim > 1:
        fit = replace(fit, precision=hub)
    return OutcomeLevel(fit, dispersion * blocks, dispersion * (spread + deviations), np.zeros(len(hub))), mode


def separate_intercepts(
    rows: TaskRows, loss: RowLoss, settings: Settings, hub: GraphFit, pooled: OutcomeLevel, dispersion: float = 1.0
) -> OutcomeLevel:
    """Partly shared slopes, and rates that are hardly drawn to their mean; the search begins at the hub."""
    laplace = LaplaceLoss(rows, loss, hub.coefficients, dispersion, pooled.ridge)
    strength = np.where(settings.slopes, hub.hub, np.minimum(hub.hub, dispersion / _WIDE**2))
    found = learn_hub_of_slopes(laplace, settings.varying, strength, settings.sizes, free=None)  # pyright: ignore[reportArgumentType]
    return _hub_at(laplace, "intercepts", found, float("nan"))[0]


def correlated_level(
    rows: TaskRows, loss: RowLoss, settings: Settings, hub: GraphFit, pooled: OutcomeLevel, dispersion: float = 1.0
) -> OutcomeLevel:
    """The common model, and deviations that are correlated."""
    laplace = LaplaceLoss(rows, loss, hub.coefficients, dispersion, pooled.ridge)
    free = settings.varying | ~settings.slopes
    return _hub_at(laplace, CORRELATED, learn_correlated(laplace, hub.hub, free), float("nan"))[0]


def intercept_level(
    rows: TaskRows, loss: RowLoss, slopes: np.ndarray, hub: GraphFit, pooled: OutcomeLevel, dispersion: float = 1.0
) -> OutcomeLevel:
    """Common slopes, and an intercept of every task; the search begins at the models and the strength of the hub."""
    unit = np.einsum("nkk->k", rows.working_sums(loss, hub.coefficients).gram).max() / rows.n_tasks
    column = np.flatnonzero(~slopes)
    strength = np.where(slopes, _ALL_COMMON * max(float(unit), 1.0), hub.hub)
    laplace = LaplaceLoss(rows, loss, hub.coefficients, dispersion, pooled.ridge)

    def objective(logs: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal laplace
        strength[column] = np.exp(logs)
        evidence = hub_evidence(laplace, strength)  # pyright: ignore[reportArgumentType]
        laplace = replace(laplace, start=evidence.coefficients)
        return evidence.value, evidence.gradient[column] * strength[column]

    first = np.log(np.clip(strength[column], _WEAKEST, _STRONGEST))
    bounds = np.log(_WEAKEST), np.log(_STRONGEST)
    found = minimize_logs(objective, first, bounds, max_iter=30, ftol=1e-8, gtol=_SETTLED_SLOPE)
    strength[column] = np.exp(found.x)
    return _hub_at(laplace, COMMON_SLOPES, strength, float(found.fun))[0]


def learned_dispersion(rows: TaskRows, loss: RowLoss, settings: Settings, pooled: OutcomeLevel) -> float:
    """φ, profiled along with the strengths of the hub on working sums: Q/(N − p), Q from Pearson's residuals."""
    return max(_strengths_of_working_sums(rows, loss, settings, pooled, None)[2], _LEAST_DISPERSION)


def _strengths_of_working_sums(
    rows: TaskRows, loss: RowLoss, settings: Settings, pooled: OutcomeLevel, dispersion: float | None
) -> tuple[np.ndarray, np.ndarray, float]:
    """Strengths of the hub by the evidence of working sums, in turn with the models; models; and φ."""
    strengths, noise, models = None, 1.0, pooled.fit.coefficients
    for _ in range(_ROUNDS):
        sums = rows.working_sums(loss, models, dispersion)
        learned = learn_hub_by_feature(sums, settings.slopes, strengths, settings.sizes)
        before, strengths, noise = strengths, learned.hub, learned.evidence.noise
        laplace = LaplaceLoss(rows, loss, models, common_ridge=pooled.ridge)
        models = hub_mode(laplace, strengths).coefficients
        if before is not None and np.abs(np.log(strengths / before)).max() < _SETTLED:
            break
    return np.asarray(strengths), models, noise


def graph_level(
    rows: TaskRows, loss: RowLoss, settings: Settings, task_names: np.ndarray, hub: GraphFit, mode: Mode
) -> OutcomeLevel | None:
    """The graph of highest evidence on the working sums of the hub's optimum; None where none is supported."""
    root = covariance_root(mode.sums)

    def propose(models: np.ndarray, near: np.ndarray | None = None, order: np.ndarray | None = None) -> CandidateEdges:
        names = task_names if order is None else task_names[order]
        return settings.candidates.propose(models @ root, names, near, search_for(mode.sums))

    found = learn_by_evidence(mode.sums, settings, propose, hub)[-1]
    if not found.supported or not (found.edge_values > 0).any():
        return None
    mode = graph_mode(rows, loss, found, hub.coefficients, mode.sums.noise or 1.0)
    covariance, new_task = _covariance_beside_edges(replace(found, coefficients=mode.coefficients), mode.sums)

    def solve(right: np.ndarray) -> np.ndarray:
        return prepare(beside_edges(found, mode.sums)).solve(right, tol=1e-6).require(1e-3).value

    models = predicting_models(rows, loss, mode.coefficients, covariance, solve)
    return OutcomeLevel(replace(found, coefficients=models), covariance, new_task, np.zeros(rows.n_features))


def beside_edges(fit: GraphFit, sums: LeastSquares) -> TaskSystem:
    """A of these sums, with the edges and the hub of a fit."""
    present = fit.edge_values > 0
    return TaskSystem(
        sums.gram, fit.edges[present], fit.edge_values[present], fit.coupling, fit.hub, np.asarray(_RIDGE)
    )


def graph_mode(rows: TaskRows, loss: RowLoss, fit: GraphFit, start: np.ndarray, dispersion: float) -> Mode:
    """The models that minimise the loss beside the edges and the hub of a fit."""
    present = fit.edge_values > 0
    edges, values = fit.edges[present], fit.edge_values[present]

    def solve(sums: LeastSquares) -> np.ndarray:
        return prepare(beside_edges(fit, sums)).solve(sums.moment, tol=1e-9).require(1e-6).value

    def penalty(models: np.ndarray) -> float:
        apart = models[edges[:, 0]] - models[edges[:, 1]]
        spread = ((models - models.mean(axis=0)) ** 2).sum(axis=0)
        return 0.5 * float(values @ (apart**2 @ fit.coupling) + fit.hub @ spread + _RIDGE * (models**2).sum())

    return newton(rows, loss, start, solve, penalty, noise=dispersion)


def _covariance_beside_edges(fit: GraphFit, sums: LeastSquares) -> tuple[np.ndarray, np.ndarray]:
    """Of every task with its neighbours and the common model held fixed; and of a task never seen."""
    n, p = fit.coefficients.shape
    degree = np.bincount(fit.edges.ravel(), np.repeat(fit.edge_values, 2), n)
    precision = sums.gram + (degree[:, None] * fit.coupling + fit.hub + _RIDGE)[:, :, None] * np.eye(p)
    noise = sums.noise or 1.0
    return noise * np.linalg.inv(precision), np.diag(fit.coefficients.var(axis=0, ddof=1) + noise / degree.sum())


def separate_level(rows: TaskRows, loss: RowLoss, slopes: np.ndarray, dispersion: float = 1.0) -> OutcomeLevel:
    """Every task alone: slopes drawn to zero, intercepts to their mean; ridges by evidence.

    A ridge ρ of k coefficients in n tasks is at the maximum of Laplace's evidence (the curvature held fixed) where
    ρΣ(w − mean)² = φγ, γ = nk − ρ tr(A⁻¹) being how many of them the data determine (MacKay).
    """
    n, p = rows.n_tasks, rows.n_features
    groups = [group for group in (np.flatnonzero(slopes), np.flatnonzero(~slopes)) if len(group)]
    slopes_only = np.where(slopes, 0.0, 1.0)
    ridge = np.full(p, 1.0)
    if n == 1:
        groups = [group for group in groups if slopes[group[0]]]
        ridge = np.where(slopes, 1.0, _BARELY)
    centre, models = null_model(rows, loss, slopes), np.empty((n, p))
    models[:] = centre
    mode = separate_mode(rows, loss, models, ridge, centre, dispersion)
    inverse = np.linalg.inv(mode.sums.gram + np.diag(ridge))
    for _ in range(_RIDGE_ROUNDS if groups else 0):
        before, variance = ridge.copy(), np.einsum("nkk->k", inverse)
        apart = ((mode.coefficients - centre) ** 2).sum(axis=0)
        for group in groups:
            determined = max(n * len(group) - float(ridge[group] @ variance[group]), 1e-3)
            square = max(float(apart[group].sum()), 1e-12)
            ridge[group] = np.clip(dispersion * determined / square, _WEAKEST, _STRONGEST)
        if n > 1:
            centre = slopes_only * mode.coefficients.mean(axis=0)
        mode = separate_mode(rows, loss, mode.coefficients, ridge, centre, dispersion)
        inverse = np.linalg.inv(mode.sums.gram + np.diag(ridge))
        if np.abs(np.log(ridge / before)).max() < _RIDGE_SETTLED:
            break
    models = predicting_models(rows, loss, mode.coefficients, inverse, lambda c: np.einsum("npq,nq->np", inverse, c))
    fit = _without_edges("independent", np.zeros(p), models)
    new_task = dispersion * np.diag(np.where(ridge > 10 * _BARELY, 1.0 / ridge, 0.0))
    return OutcomeLevel(fit, dispersion * inverse, new_task, ridge)


def separate_mode(
    rows: TaskRows, loss: RowLoss, start: np.ndarray, ridge: np.ndarray, centre: np.ndarray, dispersion: float = 1.0
) -> Mode:
    """The models that minimise the loss plus ½ Σ_i (w_i − centre)ᵀR(w_i − centre); `ridge` is R, or its diagonal."""
    pull = np.diag(ridge) if ridge.ndim == 1 else ridge

    def solve(sums: LeastSquares) -> np.ndarray:
        right = sums.moment + centre @ pull
        return np.linalg.solve(sums.gram + pull, right[..., None])[..., 0]

    def penalty(models: np.ndarray) -> float:
        apart = models - centre
        return 0.5 * float(np.einsum("nk,nk->", apart @ pull, apart))

    return newton(rows, loss, start, solve, penalty, noise=dispersion)


def null_model(rows: TaskRows, loss: RowLoss, slopes: np.ndarray) -> np.ndarray:
    """The intercept alone, shape (p,): slopes of zero, and the base rate of all rows beside their offsets."""
    model = np.zeros(rows.n_features)
    if slopes.all():
        return model
    column = np.flatnonzero(~slopes)
    only = replace(rows.as_one_task(), design=rows.design[:, column])
    found = newton(
        only,
        loss,
        np.zeros((1, len(column))),
        lambda sums: sums.moment / (sums.gram[:, 0] + _BARELY),
        lambda models: 0.5 * _BARELY * float((models**2).sum()),
    )
    model[column] = found.coefficients[0]
    return model


def common_covariance(
    rows: TaskRows, loss: RowLoss, levels: dict[str, OutcomeLevel], weights: dict[str, float], dispersion: float
) -> np.ndarray:
    """Covariance of the mean model of all tasks, at most: the mean of the levels', shape (p, p).

    Beside a hub, Σ_ij (A⁻¹)_ij/n² with (A⁻¹)_ij = [i = j] D_i⁻¹ + D_i⁻¹HSHD_j⁻¹. A level with links has that of the
    hub.
    """
    parts = []
    for name, weight in weights.items():
        level = levels["hub"] if levels[name].fit.kind == "graph" else levels[name]
        hub, n = level.fit.hub, len(level.covariance)
        if not np.isfinite(hub).all():
            parts.append(weight * level.new_task)
        elif (hub > 0).all():
            gram = rows.working_sums(loss, level.fit.coefficients).gram
            pull = np.diag(hub) if level.fit.precision is None else level.fit.precision
            _, inverse, spread = hub_covariance(gram, pull, _RIDGE, levels["pooled"].ridge)
            alone = inverse.sum(axis=0)
            parts.append(weight * dispersion * (alone + (alone @ pull) @ spread @ (alone @ pull).T) / n**2)
        else:
            parts.append(weight * level.covariance.mean(axis=0) / n)
    return np.sum(parts, axis=0)


def _without_edges(name: str, hub: np.ndarray, coefficients: np.ndarray, value: float = float("nan")) -> GraphFit:
    nothing = np.zeros(coefficients.shape[1])
    return GraphFit(name, np.empty((0, 2), dtype=np.int64), np.empty(0), nothing, hub, coefficients, value)
