"""Fit the family for losses that are not squared: levels on all rows, their held-out loss, and their average.

Sums of rows do not suffice: the rows stay, and every fold goes to an optimum of its own.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np

from ggmtl.bilevel.level import Settings
from ggmtl.fit.average import COMPARED, Average, fold_variance
from ggmtl.fit.held_out import FoldErrors
from ggmtl.fit.levels import CORRELATED
from ggmtl.fit.order import Order
from ggmtl.fit.outcome_levels import common_covariance, hub_level, learn_outcome_levels, learned_dispersion
from ggmtl.fit.outcome_scores import OutcomeScores, score_outcomes
from ggmtl.fit.predictor_average import HeldOutRows, average_weights, block_importance, cross_fitted_predictor
from ggmtl.fit.separate_outcomes import OutcomeLevel, null_model, pooled_level
from ggmtl.losses.rowwise import RowLoss
from ggmtl.losses.task_rows import TaskRows, row_quadratics, sorted_rows

logger = logging.getLogger("ggmtl")

# Dispersion up to which counts are taken for Poisson's without asking held-out rows.
_NEGLIGIBLE_DISPERSION = 1.1


@dataclass(frozen=True)
class OutcomeFamily:
    """Every level fitted on all rows, its weight, and losses on held-out rows.

    Parameters
    ----------
    levels : dict of str to OutcomeLevel
        Simplest first.
    weights : dict of str to float
        They sum to one; levels without weight are left out.
    dispersion : float
        φ; one for classes.
    errors : FoldErrors or None
        Of the levels, everything learned without the fold; None where no fold is held out.
    average : Average, optional
        The error of the average, its weights learned without the fold; None where one level has all weight by choice.
    null : array of shape (n,), optional
        Losses of the base rate alone, over all folds.
    covariance : array of shape (n, p, p)
        Of every task's averaged model, at most: the mean of the levels' covariances.
    common : array of shape (p, p)
        The same of the mean model of all tasks.
    information : array of shape (p,)
        Mean over tasks of the diagonal of XᵀWX: how much a task's own rows say about each coefficient.
    scores : OutcomeScores
        Predictions for held-out rows beside what was observed.
    preferred : str
        The level that the evidence prefers.
    loss : str
        Name of the loss.
    limits : array of shape (2, p), optional
        Lowest and highest value of every column that predictions take as it is, for counts: beyond, the end counts.
    """

    levels: dict[str, OutcomeLevel]
    weights: dict[str, float]
    dispersion: float
    errors: FoldErrors | None
    average: Average | None
    null: np.ndarray | None
    covariance: np.ndarray
    common: np.ndarray
    information: np.ndarray
    scores: OutcomeScores
    preferred: str
    loss: str
    limits: np.ndarray | None = None

    @property
    def coefficients(self) -> np.ndarray:
        """The averaged models, shape (n, p)."""
        return np.sum([weight * self.levels[name].fit.coefficients for name, weight in self.weights.items()], axis=0)

    @property
    def new_task(self) -> np.ndarray:
        """The covariance for a task that was not seen, shape (p, p)."""
        return np.sum([weight * self.levels[name].new_task for name, weight in self.weights.items()], axis=0)


def fit_outcomes(
    rows: TaskRows,
    loss: RowLoss,
    settings: Settings,
    task_names: np.ndarray,
    folds: np.ndarray | None,
    first_scored: int = 0,
) -> OutcomeFamily:
    """Learn every level on all rows and without each fold, and average them.

    Parameters
    ----------
    rows : TaskRows
    loss : RowLoss
    settings : Settings
    task_names : array of shape (n,)
    folds : array of int, shape (rows,), optional
        Fold of every row; those below `first_scored` are never held out.
    """
    order = Order.of([rows.working_sums(loss, np.zeros((rows.n_tasks, rows.n_features)))], settings)
    task = np.argsort(order.tasks)[rows.task]
    ordered, place = sorted_rows(
        rows.design[:, order.columns], rows.target, task, rows.n_tasks, rows.offset, rows.weight
    )
    folds = None if folds is None else folds[place]
    found = _fit_in_order(ordered, loss, order.settings(settings), task_names[order.tasks], folds, first_scored)
    return _back(found, order)


def _back(family: OutcomeFamily, order: Order) -> OutcomeFamily:
    """A family that was learned in canonical order, in the user's order."""
    tasks, columns = np.argsort(order.tasks), np.argsort(order.columns)
    square = np.ix_(columns, columns)

    def level_back(level: OutcomeLevel) -> OutcomeLevel:
        covariance = level.covariance[np.ix_(tasks, columns, columns)]
        return OutcomeLevel(order.fit_back(level.fit), covariance, level.new_task[square], level.ridge[columns])

    return replace(
        family,
        levels={name: level_back(level) for name, level in family.levels.items()},
        errors=family.errors and order.errors_back(family.errors),
        average=family.average and order.average_back(family.average),
        null=None if family.null is None else family.null[tasks],
        covariance=family.covariance[np.ix_(tasks, columns, columns)],
        common=family.common[square],
        information=family.information[columns],
        scores=family.scores.at(tasks),
        limits=None if family.limits is None else family.limits[:, columns],
    )


def _fit_in_order(
    rows: TaskRows,
    loss: RowLoss,
    settings: Settings,
    task_names: np.ndarray,
    folds: np.ndarray | None,
    first_scored: int,
) -> OutcomeFamily:
    """The family for rows in canonical order."""
    scored = [] if folds is None else [k for k in np.unique(folds) if k >= first_scored and (folds != k).any()]
    if settings.sizes.is_large(rows.n_tasks, rows.n_features):
        scored = scored[:1]
    dispersion = _dispersion(rows, loss, settings, folds, scored)
    logger.info("learning %d tasks under the %s loss", rows.n_tasks, loss.name)
    levels = learn_outcome_levels(rows, loss, settings, task_names, dispersion)
    preferred = next((name for name in ("graph", "hub") if name in levels), "independent")
    average = errors = base = None
    weights, seen, predictor = {preferred: 1.0}, np.zeros(len(rows.task), dtype=bool), np.empty(0)
    if folds is not None and scored:
        seen = np.isin(folds, scored)
        average, errors, base, predictor = _scored(
            rows, loss, settings, task_names, folds, scored, levels, dispersion, preferred
        )
        weights = weights if average is None else average.weights
    models = np.sum([weight * levels[name].fit.coefficients for name, weight in weights.items()], axis=0)
    gram = rows.working_sums(loss, models).gram
    return OutcomeFamily(
        levels,
        weights,
        dispersion,
        errors,
        average,
        base,
        np.sum([weight * levels[name].covariance for name, weight in weights.items()], axis=0),
        common_covariance(rows, loss, levels, weights, dispersion),
        np.einsum("npp->np", gram).mean(axis=0),
        score_outcomes(rows, loss, seen, predictor, dispersion, folds),
        preferred,
        loss.name,
        rows.limits() if loss.exponential else None,
    )


def _scored(
    rows: TaskRows,
    loss: RowLoss,
    settings: Settings,
    task_names: np.ndarray,
    folds: np.ndarray,
    scored: list[int],
    levels: dict[str, OutcomeLevel],
    dispersion: float,
    preferred: str,
) -> tuple[Average | None, FoldErrors, np.ndarray, np.ndarray]:
    """The average where there is one, errors of the levels, losses of the base rate, and η of the held-out rows."""
    held_out, null = _held_out(rows, loss, settings, task_names, folds, scored, levels, dispersion)
    names = list(levels)
    errors = FoldErrors(
        np.stack([_by_block(held_out, loss, part, scored) for part in held_out.predictors]),
        np.array([np.bincount(held_out.task, held_out.weight * (held_out.fold == k), rows.n_tasks) for k in scored]),
        measure=loss.measure,
    )
    average, predictor = None, held_out.predictors[names.index(preferred)]
    shared = [preferred] if preferred == "graph" else [name for name in ("hub", CORRELATED) if name in names]
    place = min(map(names.index, shared or [preferred]), key=errors.mean().__getitem__)
    if settings.blend and len(names) > 1:
        predictor = cross_fitted_predictor(held_out, loss, place)
        average = _average(held_out, loss, names, place, predictor, errors, scored)
    return average, errors, _by_block(held_out, loss, null, scored).sum(axis=0), predictor


def _average(
    held_out: HeldOutRows,
    loss: RowLoss,
    names: list[str],
    preferred: int,
    predictor: np.ndarray,
    errors: FoldErrors,
    scored: list[int],
) -> Average:
    """Weights of the levels, and how the average compares with some of them; `predictor` is the average's."""
    alpha = average_weights(held_out, loss, preferred)
    weights = {name: float(weight) for name, weight in zip(names, alpha) if weight > 0}
    squared = _by_block(held_out, loss, predictor, scored)
    weighed = replace(held_out, weight=held_out.weight * block_importance(held_out, loss))
    parts = {"average": predictor, **{name: held_out.predictors[names.index(name)] for name in COMPARED}}
    if "graph" in names:
        kept = [k for k, name in enumerate(names) if name != "graph"]
        without = replace(held_out, predictors=held_out.predictors[kept])
        hub = [names[k] for k in kept].index("hub")
        parts["unlinked"] = cross_fitted_predictor(without, loss, hub)
    blocks = {name: _by_block(weighed, loss, part, scored) for name, part in parts.items()}
    losses = {name: block.sum(axis=0) for name, block in blocks.items()}
    variance = {name: fold_variance(blocks["average"], block) for name, block in blocks.items() if name != "average"}
    return Average(weights, squared, losses, variance, errors.measure)


def moderated(loss: RowLoss, predictor: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """η/√(1 + πτ/8) for classes, whose mean over N(η, τ) is then about σ of it; η for other losses."""
    return predictor / np.sqrt(1.0 + np.pi * variance / 8.0) if loss.name == "logistic" else predictor


def _dispersion(
    rows: TaskRows, loss: RowLoss, settings: Settings, folds: np.ndarray | None, scored: list[int]
) -> float:
    """φ beside the hub for counts, unless φ = 1 predicts held-out rows better by more than a paired standard error."""
    if loss.name != "poisson" or rows.n_tasks == 1:
        return 1.0
    whole = pooled_level(rows, loss, settings.slopes)
    found = learned_dispersion(rows, loss, settings, whole)
    if found <= _NEGLIGIBLE_DISPERSION:
        return 1.0
    if folds is None or not scored:
        return found
    excess = np.zeros(rows.n_tasks)
    for k in scored:
        rest = rows.take(folds != k)
        part = rows.take(folds == k).seen_from(rest, loss)
        pooled = pooled_level(rest, loss, settings.slopes, 1.0, whole)
        # The dispersion that the rows of the other folds show.
        own = learned_dispersion(rest, loss, settings, pooled)
        for sign, value in ((1.0, own), (-1.0, 1.0)):
            predictor = part.predictor(hub_level(rest, loss, settings, pooled, value)[0].fit.coefficients)
            excess += sign * np.bincount(part.task, part.weight * loss.value(predictor, part.target), rows.n_tasks)
    deviation = float(np.sqrt(((excess - excess.mean()) ** 2).sum() * rows.n_tasks / (rows.n_tasks - 1)))
    logger.info("dispersion %.2f changes the held-out deviance by %.3g ± %.3g", found, 2 * excess.sum(), 2 * deviation)
    return found if excess.sum() <= deviation else 1.0


def _held_out(
    rows: TaskRows,
    loss: RowLoss,
    settings: Settings,
    task_names: np.ndarray,
    folds: np.ndarray,
    scored: list[int],
    levels: dict[str, OutcomeLevel],
    dispersion: float,
) -> tuple[HeldOutRows, np.ndarray]:
    """What every level predicts for rows it has not seen, and the base rate's predictor of these rows."""
    used = np.flatnonzero(np.isin(folds, scored))
    predictors, null = np.empty((len(levels), len(rows.task))), np.empty(len(rows.task))
    known = np.zeros(len(rows.task), dtype=bool)
    for k in scored:
        logger.info("learning again without fold %d of %d", k + 1, int(folds.max()) + 1)
        rest, here = rows.take(folds != k), np.flatnonzero(folds == k)
        part = rows.take(here).seen_from(rest, loss)
        own = learn_outcome_levels(rest, loss, settings, task_names, dispersion, graph="graph" in levels, start=levels)
        for place, name in enumerate(levels):
            # Where the rows of the other folds support no graph, the hub is what they would have given.
            level = own.get(name, own.get("hub", own["independent"]))
            variance = row_quadratics(part.design, level.covariance, part.task)
            predictors[place, here] = moderated(loss, part.predictor(level.fit.coefficients), variance)
        known[here] = rest.count[part.task] > 0
        base = null_model(rest, loss, settings.slopes)
        null[here] = part.design @ base + part.offset
    held_out = HeldOutRows(
        predictors[:, used],
        rows.target[used],
        rows.weight[used],
        rows.task[used],
        folds[used],
        rows.n_tasks,
        known[used],
    )
    return held_out, null[used]


def _by_block(held_out: HeldOutRows, loss: RowLoss, predictor: np.ndarray, scored: list[int]) -> np.ndarray:
    """Losses per fold and task, in the unit of the loss's measure, shape (folds, n)."""
    value = loss.measure.unit * held_out.weight * loss.value(predictor, held_out.target)
    return np.array([np.bincount(held_out.task, value * (held_out.fold == k), held_out.n_tasks) for k in scored])
