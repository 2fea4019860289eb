"""The levels of the family for losses that are not squared: each found by Newton's method on working sums.

    pooled        one model for all, its ridge learned
    common slopes the same slopes, and intercepts shrunk to their mean as strongly as Laplace's evidence says
    intercepts    for counts: partly shared slopes, and intercepts that are hardly shrunk to their mean
    hub           a shared model and deviations; strengths by the evidence of working sums (PQL), then by Laplace's
    correlated    the same with deviations that are correlated
    graph         the search for edges on the working sums of the hub's optimum, then Newton's method beside the edges
    independent   every task alone: slopes shrunk to zero and intercepts to their mean, as strongly as the evidence says

Tasks of one class have no finite model of their own, so no level leaves an intercept free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from ggmtl.bilevel.level import GraphFit, Settings
from ggmtl.evidence.hub import RIDGE
from ggmtl.evidence.hub_strengths import (
    HubStrength,
    learn_hub,
    learn_hub_by_feature,
    learn_hub_of_slopes,
    sample_of_tasks,
)
from ggmtl.evidence.laplace import (
    LaplaceLoss,
    hub_covariance,
    hub_mode,
    learn_correlated,
    predicting_models,
    solve_with_hub,
)
from ggmtl.evidence.search import learn_by_evidence
from ggmtl.evidence.selection import tied
from ggmtl.fit.levels import CORRELATED, covariance_root
from ggmtl.fit.separate_outcomes import OutcomeLevel, pooled_level, separate_level, without_edges
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
# The search for the strength of intercepts ends where a step gains less than so many nats.
_LITTLE = 1e-6
# Standard deviation, in logarithms, of rates that are hardly shrunk to their mean: most lie within a factor of fifty.
_WIDE = 2.0
# Strength that leaves nothing of a slope to its task, in units of the tasks' curvature.
_ALL_COMMON = 1e5


def learn_outcome_levels(
    rows: TaskRows,
    loss: RowLoss,
    settings: Settings,
    task_names: np.ndarray,
    dispersion: float = 1.0,
    *,
    graph: bool = True,
    start: Mapping[str, OutcomeLevel] | None = None,
) -> dict[str, OutcomeLevel]:
    """All levels on the given rows, simplest first; a graph only where the evidence supports it.

    `start` are the levels on other rows of the same tasks, from which every search begins.
    """
    start = start or {}
    most = settings.sizes.hub_sample
    alone = separate_level(rows, loss, settings.slopes, dispersion, start.get("independent"), most)
    if rows.n_tasks == 1 or not settings.hub:
        return {"independent": alone}
    pooled = pooled_level(rows, loss, settings.slopes, dispersion, start.get("pooled"))
    hub, mode = hub_level(rows, loss, settings, pooled, dispersion, start.get("hub", alone))
    levels, laplace = {"pooled": pooled}, LaplaceLoss(rows, loss, mode, dispersion, pooled.ridge)
    varied = settings.slopes.any() and not settings.slopes.all()
    if varied:
        levels[COMMON_SLOPES] = intercept_level(laplace, settings, hub.fit, start.get(COMMON_SLOPES))
    small = settings.blend and not settings.sizes.is_large(rows.n_tasks, rows.n_features)
    if varied and small and loss.exponential:
        levels["intercepts"] = separate_intercepts(laplace, settings, hub.fit)
    levels["hub"] = hub
    if small and rows.n_features > 1:
        levels[CORRELATED] = correlated_level(laplace, settings, hub.fit)
    if graph:
        linked = graph_level(rows, loss, settings, task_names, hub.fit, mode)
        levels |= {} if linked is None else {"graph": linked}
    return levels | {"independent": alone}


def hub_level(
    rows: TaskRows,
    loss: RowLoss,
    settings: Settings,
    pooled: OutcomeLevel,
    dispersion: float = 1.0,
    start: OutcomeLevel | None = None,
) -> tuple[OutcomeLevel, Mode]:
    """The level that shrinks every task to the common model, and its mode.

    Evidence chooses one strength per coefficient. The common model has the ridge of the one model for all. Strengths
    are learned from a sample of very many tasks. The search begins at the models of `start`, and at its strengths where
    it is a hub.
    """
    models = (pooled if start is None else start).fit.coefficients
    chosen = sample_of_tasks(rows, settings.sizes.hub_sample)  # pyright: ignore[reportArgumentType]
    few = rows if chosen is None else rows.of_tasks(chosen)
    first = None if start is None or start.fit.kind != "hub" else start.fit.hub
    mode = few.at(loss, models if chosen is None else models[chosen], dispersion)
    near, mode = strengths_of_working_sums(few, loss, settings, pooled, dispersion, mode, first)
    laplace = LaplaceLoss(few, loss, mode, dispersion, pooled.ridge)
    learned = learn_hub_by_feature(
        laplace,  # pyright: ignore[reportArgumentType]
        settings.slopes,
        near.hub if first is None else first,
        settings.sizes,
        shrinkage=near.shrinkage,
    )
    status, value = "converged" if learned.converged else "flat", learned.evidence.value
    begin = learned.evidence.start if chosen is None else models
    level, mode = _hub_at(LaplaceLoss(rows, loss, begin, dispersion, pooled.ridge), "hub", learned.hub, value)
    fit = replace(level.fit, iterations=learned.iterations, status=status, history=(value,))
    return replace(level, fit=fit), mode


def _hub_at(laplace: LaplaceLoss, name: str, hub: np.ndarray, value: float) -> tuple[OutcomeLevel, Mode]:
    """The level of a hub of these strengths (or of correlated deviations of precision `hub`), and its optimum."""
    mode, dispersion = hub_mode(laplace, hub), laplace.noise
    blocks, inverse, spread = hub_covariance(mode.sums.gram, hub, RIDGE, laplace.common_ridge)
    solve = partial(solve_with_hub, hub=hub, inverse=inverse, spread=spread)
    models = predicting_models(laplace.rows, laplace.loss, mode.coefficients, blocks, solve)
    deviations = np.diag(1.0 / hub) if hub.ndim == 1 else np.linalg.inv(hub)
    fit = without_edges(name, hub if hub.ndim == 1 else 1.0 / np.diag(deviations), models, value)
    if hub.ndim > 1:
        fit = replace(fit, precision=hub)
    return OutcomeLevel(fit, dispersion * blocks, dispersion * (spread + deviations), np.zeros(len(hub))), mode


def intercept_level(
    laplace: LaplaceLoss, settings: Settings, hub: GraphFit, start: OutcomeLevel | None = None
) -> OutcomeLevel:
    """Common slopes, and an intercept of every task; the search begins at the strength of the hub, or of `start`."""
    few, slopes = _sample(laplace, settings, start), settings.slopes
    unit = np.einsum("nkk->k", few.sums().gram).max() / few.n_tasks
    strength = np.where(slopes, _ALL_COMMON * max(float(unit), 1.0), hub.hub if start is None else start.fit.hub)
    groups = np.where(slopes, 0, 1)
    learned = learn_hub(few, groups, start=strength, held=slopes, nats=_LITTLE)  # pyright: ignore[reportArgumentType]
    few = few.near(learned.evidence.start)
    whole = few if few.n_tasks == laplace.n_tasks else laplace
    return _hub_at(whole, COMMON_SLOPES, learned.hub, learned.evidence.value)[0]


def _sample(laplace: LaplaceLoss, settings: Settings, start: OutcomeLevel | None) -> LaplaceLoss:
    """The tasks from which strengths are learned: some of very many. Their models are sought from `start` on."""
    near = laplace if start is None else laplace.near(start.fit.coefficients)
    chosen = sample_of_tasks(laplace, settings.sizes.hub_sample)  # pyright: ignore[reportArgumentType]
    return near if chosen is None else near.of_tasks(chosen)


def separate_intercepts(laplace: LaplaceLoss, settings: Settings, hub: GraphFit) -> OutcomeLevel:
    """Partly shared slopes, and rates that are hardly shrunk to their mean; the search begins at the hub."""
    strength = np.where(settings.slopes, hub.hub, np.minimum(hub.hub, laplace.noise / _WIDE**2))
    found = learn_hub_of_slopes(laplace, settings.varying, strength, settings.sizes, free=None)  # pyright: ignore[reportArgumentType]
    return _hub_at(laplace, "intercepts", found, float("nan"))[0]


def correlated_level(laplace: LaplaceLoss, settings: Settings, hub: GraphFit) -> OutcomeLevel:
    """The common model, and deviations that are correlated; `laplace` begins at the optimum of the hub."""
    free = settings.varying | ~settings.slopes
    return _hub_at(laplace, CORRELATED, learn_correlated(laplace, hub.hub, free), float("nan"))[0]


def strengths_of_working_sums(
    rows: TaskRows,
    loss: RowLoss,
    settings: Settings,
    pooled: OutcomeLevel,
    dispersion: float | None,
    mode: Mode,
    start: np.ndarray | None = None,
) -> tuple[HubStrength, Mode]:
    """Strengths of the hub by the evidence of working sums, in turn with the models; and the models.

    A dispersion of None is profiled along with the strengths: Q/(N − p), Q from Pearson's residuals. From the strengths
    `start` on, which suit nearly the same rows, one round suffices.
    """
    strengths = start
    for _ in range(_ROUNDS):
        sums = replace(mode.sums, noise=dispersion)
        learned = learn_hub_by_feature(sums, settings.slopes, strengths, settings.sizes)
        if start is not None:
            break
        before, strengths = strengths, learned.hub
        mode = hub_mode(LaplaceLoss(rows, loss, mode, common_ridge=pooled.ridge), strengths)
        if before is not None and np.abs(np.log(strengths / before)).max() < _SETTLED:
            break
    return learned, mode  # pyright: ignore[reportPossiblyUnboundVariable]


def graph_level(
    rows: TaskRows, loss: RowLoss, settings: Settings, task_names: np.ndarray, hub: GraphFit, mode: Mode
) -> OutcomeLevel | None:
    """The graph of highest evidence on the working sums of the hub's optimum; None where none is supported."""
    root = covariance_root(mode.sums)

    def propose(models: np.ndarray, near: np.ndarray | None = None, order: np.ndarray | None = None) -> CandidateEdges:
        names = task_names if order is None else task_names[order]
        return settings.candidates.propose(models @ root, names, near, search_for(mode.sums))

    graphs = learn_by_evidence(mode.sums, settings, propose, hub)
    supported = [fit for fit in graphs if fit.supported and not np.isnan(fit.value)]
    if not supported:
        return None
    # Clusters come before edges, and are simpler to read where the evidence is about the same.
    least = min(fit.value for fit in supported) + tied(len(hub.coefficients))
    found = next(fit for fit in supported if fit.value <= least)
    mode = graph_mode(rows, loss, found, hub.coefficients, mode.sums.noise or 1.0)
    covariance, new_task = _covariance_beside_edges(replace(found, coefficients=mode.coefficients), mode.sums)

    def solve(right: np.ndarray) -> np.ndarray:
        return prepare(beside_edges(found, mode.sums)).solve(right, tol=1e-6).require(1e-3).value

    models = predicting_models(rows, loss, mode.coefficients, covariance, solve)
    return OutcomeLevel(replace(found, coefficients=models), covariance, new_task, np.zeros(rows.n_features))


def beside_edges(fit: GraphFit, sums: LeastSquares) -> TaskSystem:
    """A of these sums, with the edges and the hub of a fit."""
    present = fit.edge_values > 0
    return TaskSystem(sums.gram, fit.edges[present], fit.edge_values[present], fit.coupling, fit.hub, np.asarray(RIDGE))


def graph_mode(rows: TaskRows, loss: RowLoss, fit: GraphFit, start: np.ndarray, dispersion: float) -> Mode:
    """The models that minimise the loss beside the edges and the hub of a fit."""
    present = fit.edge_values > 0
    edges, values = fit.edges[present], fit.edge_values[present]

    def solve(sums: LeastSquares) -> np.ndarray:
        return prepare(beside_edges(fit, sums)).solve(sums.moment, tol=1e-9).require(1e-6).value

    def penalty(models: np.ndarray) -> float:
        apart = models[edges[:, 0]] - models[edges[:, 1]]
        spread = ((models - models.mean(axis=0)) ** 2).sum(axis=0)
        return 0.5 * float(values @ (apart**2 @ fit.coupling) + fit.hub @ spread + RIDGE * (models**2).sum())

    return newton(rows, loss, start, solve, penalty, noise=dispersion)


def _covariance_beside_edges(fit: GraphFit, sums: LeastSquares) -> tuple[np.ndarray, np.ndarray]:
    """Covariance of every task's model, given its neighbours and the common model, shape (n, p, p).

    Also that of a new task's model, shape (p, p).
    """
    n, p = fit.coefficients.shape
    degree = np.bincount(fit.edges.ravel(), np.repeat(fit.edge_values, 2), n)
    precision = sums.gram + (degree[:, None] * fit.coupling + fit.hub + RIDGE)[:, :, None] * np.eye(p)
    noise = sums.noise or 1.0
    return noise * np.linalg.inv(precision), np.diag(fit.coefficients.var(axis=0, ddof=1) + noise / degree.sum())


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
            _, inverse, spread = hub_covariance(gram, pull, RIDGE, levels["pooled"].ridge)
            alone = inverse.sum(axis=0)
            parts.append(weight * dispersion * (alone + (alone @ pull) @ spread @ (alone @ pull).T) / n**2)
        else:
            parts.append(weight * level.covariance.mean(axis=0) / n)
    return np.sum(parts, axis=0)
