"""Fit the family for losses that are not squared: levels on all rows, their held-out loss, and their average.

Sums of rows do not suffice: the rows stay, and every fold goes to an optimum of its own.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ggmtl.bilevel.level import Settings
from ggmtl.fit.average import COMPARED, Average, fold_variance
from ggmtl.fit.held_out import FoldErrors, each_fold
from ggmtl.fit.levels import CORRELATED
from ggmtl.fit.order import Order
from ggmtl.fit.outcome_levels import common_covariance, learn_outcome_levels, strengths_of_working_sums
from ggmtl.fit.outcome_scores import OutcomeScores, score_outcomes
from ggmtl.fit.predictor_average import HeldOutRows, average_weights, block_importance, cross_fitted_predictor
from ggmtl.fit.separate_outcomes import OutcomeLevel, null_model, pooled_level
from ggmtl.losses.rowwise import RowLoss
from ggmtl.losses.task_rows import FoldedRows, TaskRows, row_quadratics, sorted_rows
from ggmtl.runtime.journal import Journal

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
    *,
    n_jobs: int | None = None,
    journal: Journal | None = None,
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
    n_jobs : int, optional
        Workers that learn without a fold each.
    journal : Journal, optional
        What was learned before an interruption is taken from it.
    """
    journal = journal or Journal()
    order = Order.of([rows.working_sums(loss, np.zeros((rows.n_tasks, rows.n_features)))], settings)
    task = np.argsort(order.tasks)[rows.task]
    ordered, place = sorted_rows(
        rows.design[:, order.columns], rows.target, task, rows.n_tasks, rows.offset, rows.weight
    )
    kept = FoldedRows(ordered, None if folds is None else folds[place], first_scored)
    try:
        found = _fit_in_order(kept, loss, order.settings(settings), task_names[order.tasks], n_jobs, journal)
    except KeyboardInterrupt:
        journal.save()
        raise
    journal.save(finished=True)
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
    kept: FoldedRows,
    loss: RowLoss,
    settings: Settings,
    task_names: np.ndarray,
    n_jobs: int | None,
    journal: Journal,
) -> OutcomeFamily:
    """The family for rows in canonical order."""
    rows, scored = kept.rows, kept.scored
    if settings.sizes.is_large(rows.n_tasks, rows.n_features):
        scored = scored[:1]
    dispersion = journal.once("dispersion", lambda: _dispersion(kept, loss, settings, scored))
    logger.info("learning %d tasks under the %s loss", rows.n_tasks, loss.name)
    levels = journal.once("levels", lambda: learn_outcome_levels(rows, loss, settings, task_names, dispersion))
    preferred = next((name for name in ("graph", "hub") if name in levels), "independent")
    average = errors = base = None
    weights, seen, predictor = {preferred: 1.0}, np.zeros(len(rows.task), dtype=bool), np.empty(0)
    if kept.folds is not None and scored:
        seen = np.isin(kept.folds, scored)
        learn = partial(_without_fold, kept, loss, settings, task_names, levels, dispersion)
        results = each_fold(learn, scored, n_jobs, journal, steps=False)
        average, errors, base, predictor = _scored(
            *_joined(kept, scored, results), loss, settings.blend, list(levels), preferred, scored
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
        score_outcomes(rows, loss, seen, predictor, dispersion, kept.folds),
        preferred,
        loss.name,
        rows.limits() if loss.exponential else None,
    )


def _scored(
    held_out: HeldOutRows,
    null: np.ndarray,
    loss: RowLoss,
    blend: bool,
    names: list[str],
    preferred: str,
    scored: list[int],
) -> tuple[Average | None, FoldErrors, np.ndarray, np.ndarray]:
    """The average where there is one, errors of the levels, losses of the base rate, and η of the held-out rows."""
    n = held_out.n_tasks
    errors = FoldErrors(
        np.stack([_by_block(held_out, loss, part, scored) for part in held_out.predictors]),
        np.array([np.bincount(held_out.task, held_out.weight * (held_out.fold == k), n) for k in scored]),
        measure=loss.measure,
    )
    average, predictor = None, held_out.predictors[names.index(preferred)]
    shared = [preferred] if preferred == "graph" else [name for name in ("hub", CORRELATED) if name in names]
    place = min(map(names.index, shared or [preferred]), key=errors.mean().__getitem__)
    if blend and len(names) > 1:
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


def _dispersion(kept: FoldedRows, loss: RowLoss, settings: Settings, scored: list[int]) -> float:
    """φ beside the hub for counts, unless φ = 1 predicts held-out rows better by more than a paired standard error."""
    rows = kept.rows
    if loss.name != "poisson" or rows.n_tasks == 1:
        return 1.0
    pooled = pooled_level(rows, loss, settings.slopes)
    whole, _ = strengths_of_working_sums(rows, loss, settings, pooled, None, rows.at(loss, pooled.fit.coefficients))
    found = float(whole.evidence.noise)
    if found <= _NEGLIGIBLE_DISPERSION:
        return 1.0
    if not scored:
        return found
    excess = np.zeros(rows.n_tasks)
    for k in scored:
        rest = kept.training(k)
        part = kept.part(k).seen_from(rest, loss)
        own = pooled_level(rest, loss, settings.slopes, 1.0, pooled)
        start = rest.at(loss, own.fit.coefficients)
        # The dispersion that the rows of the other folds show.
        for sign, value in ((1.0, None), (-1.0, 1.0)):
            mode = strengths_of_working_sums(rest, loss, settings, own, value, start)[1]
            predictor = part.predictor(mode.coefficients)
            excess += sign * np.bincount(part.task, part.weight * loss.value(predictor, part.target), rows.n_tasks)
    deviation = float(np.sqrt(((excess - excess.mean()) ** 2).sum() * rows.n_tasks / (rows.n_tasks - 1)))
    logger.info("dispersion %.2f changes the held-out deviance by %.3g ± %.3g", found, 2 * excess.sum(), 2 * deviation)
    return found if excess.sum() <= deviation else 1.0


@dataclass(frozen=True)
class OutcomeFold:
    """What levels learned without a fold predict for its rows.

    Parameters
    ----------
    predictors : array of shape (levels, rows)
    null : array of shape (rows,)
        The predictor of the base rate.
    known : array of bool, shape (rows,)
        Whether the task of the row has rows in other folds.
    """

    predictors: np.ndarray
    null: np.ndarray
    known: np.ndarray


def _without_fold(
    kept: FoldedRows,
    loss: RowLoss,
    settings: Settings,
    task_names: np.ndarray,
    levels: dict[str, OutcomeLevel],
    dispersion: float,
    k: int,
    journal: Journal | None = None,
) -> OutcomeFold:
    """Learn the same levels without fold `k`, and predict its rows."""
    logger.info("learning again without fold %d", k + 1)
    rest = kept.training(k)
    part = kept.part(k).seen_from(rest, loss)
    own = learn_outcome_levels(rest, loss, settings, task_names, dispersion, graph="graph" in levels, start=levels)
    predictors = []
    for name in levels:
        # Where the rows of the other folds support no graph, the hub is what they would have given.
        level = own.get(name, own.get("hub", own["independent"]))
        variance = row_quadratics(part.design, level.covariance, part.task)
        predictors.append(moderated(loss, part.predictor(level.fit.coefficients), variance))
    null = part.design @ null_model(rest, loss, settings.slopes) + part.offset
    return OutcomeFold(np.stack(predictors), null, rest.count[part.task] > 0)


def _joined(kept: FoldedRows, scored: list[int], results: list[OutcomeFold]) -> tuple[HeldOutRows, np.ndarray]:
    """Predictions for all held-out rows, in the order of the rows, and the base rate's predictor of these rows."""
    rows, folds = kept.rows, np.zeros(0, dtype=np.int64) if kept.folds is None else kept.folds
    here = np.concatenate([np.flatnonzero(folds == k) for k in scored])
    order = np.argsort(here)
    used = here[order]
    predictors = np.concatenate([result.predictors for result in results], axis=1)[:, order]
    null, known = (np.concatenate([getattr(each, name) for each in results])[order] for name in ("null", "known"))
    held_out = HeldOutRows(
        predictors, rows.target[used], rows.weight[used], rows.task[used], folds[used], rows.n_tasks, known
    )
    return held_out, null


def _by_block(held_out: HeldOutRows, loss: RowLoss, predictor: np.ndarray, scored: list[int]) -> np.ndarray:
    """Losses per fold and task, in the unit of the loss's measure, shape (folds, n)."""
    value = loss.measure.unit * held_out.weight * loss.value(predictor, held_out.target)
    return np.array([np.bincount(held_out.task, value * (held_out.fold == k), held_out.n_tasks) for k in scored])
