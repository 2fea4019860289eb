"""Noise, standard errors, effects and evidence of a fitted state. Each is computed once, at the first call."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ggmtl.bilevel.level import STRAIGHT, GraphFit, Settings, on_its_columns
from ggmtl.data.labels import locate_tasks
from ggmtl.errors import InputError
from ggmtl.evidence.level_value import LevelEvidence, level_evidence
from ggmtl.evidence.task_noise import task_precisions
from ggmtl.fit.family import Family
from ggmtl.fit.levels import hub_level, independent_level
from ggmtl.fit.state import FittedState
from ggmtl.inference.attachment import among
from ggmtl.inference.noise_variance import HeldOut
from ggmtl.inference.posterior import Posterior, noise_of, posterior_of
from ggmtl.inference.unseen import with_mean_doubt
from ggmtl.runtime.journal import logger, verbose_logging
from ggmtl.runtime.machine import one_blas_thread
from ggmtl.statistics.least_squares import FoldedLoss, LeastSquares


@one_blas_thread()
def noise_variance(state: FittedState, folded: FoldedLoss | None = None) -> float:
    """σ² in scaled units, from the tasks that were fitted together.

    `folded` are the scaled losses of the state, to save computing them again.
    """

    def compute() -> float:
        losses, fitted = folded or state.folded(), state.fitted_tasks
        held_out = _held_out_error(state, losses)
        return noise_of(among(state.level, fitted), losses.total.of_tasks(fitted), state.settings, held_out=held_out)

    return state.once("noise", compute)


def noise_ratios(state: FittedState, folded: FoldedLoss | None = None) -> np.ndarray | None:
    """σ_i²/σ² of every task; None where all tasks have the same noise.

    Under ``noise="auto"`` intervals follow the noise of the task even if its rows are not weighted by it.
    """
    fit, fitted = state.level, state.fitted_tasks
    if fit.precisions is not None:
        return 1.0 / fit.precisions

    def compute() -> np.ndarray | None:
        if state.settings.noise == "common":
            return None
        total = among(fit, fitted).weighed((folded or state.folded()).total.of_tasks(fitted))
        if total.n_tasks == 1 or state.settings.sizes.is_large(total.n_tasks, total.n_features):
            return None
        unit = max(float(total.count.mean()), 1.0)
        precisions = task_precisions(total, np.clip(fit.hub, 1e-6 * unit, 1e6 * unit))
        if precisions is None:
            return None
        found = _relative_to_mean(1.0 / precisions, total)
        # Tasks without rows, and tasks that were added later, get the mean noise of all tasks.
        ratios = np.ones(len(state.task_names))
        ratios[fitted] = np.where(total.count > 0, found, 1.0)
        return ratios

    return state.once("noise_ratios", compute)


def task_noise(state: FittedState) -> np.ndarray:
    """Standard deviation of every task's noise, in the units of the target, shape (n,)."""
    ratios = noise_ratios(state)
    own = np.ones(len(state.task_names)) if ratios is None else ratios
    return np.sqrt(noise_variance(state) * own) * state.scaling.target_scale


def posterior(state: FittedState) -> Posterior:
    """The joint posterior of all models."""
    return state.once("posterior", lambda: posterior_within(state).with_spread(deviations_of_levels(state)))


@one_blas_thread()
def posterior_within(state: FittedState) -> Posterior:
    """The posterior with the weighted mean of the levels' covariances, without the spread between levels."""

    def compute() -> Posterior:
        state.rows("return_std=True")
        folded = state.folded()
        return _within_levels(state, _posterior(state, folded), folded.total)

    return state.once("posterior within", compute)


def _within_levels(state: FittedState, main: Posterior, loss: LeastSquares) -> Posterior:
    """E Var(w | level) of the fitted tasks.

    The pooled level and separate models have covariances of their own. All other levels get that of the main one.
    """
    family, fitted, total = state.family, state.fitted_tasks, _of_fitted(state, loss)
    others = {
        name: weight
        for name, weight in family.weights.items()
        if name != family.main and family.levels[name].kind in ("pooled", "independent")
    }
    # A slice where it will do: blocks of many tasks are not copied then.
    rows = fitted if state.attached else slice(None)
    covariance = main.covariance.copy()
    covariance[rows] *= 1.0 - sum(others.values())
    for name, weight in others.items():
        fit = among(family.levels[name], fitted)
        narrow, own_rows, settings = on_its_columns(fit, total, state.settings)
        level = _with_ridge(narrow, own_rows, settings)
        ratios = noise_ratios(state)
        ratios = None if ratios is None else _relative_to_mean(ratios[fitted], total)
        own = posterior_of(level, own_rows, settings, ratios=ratios)
        if fit.columns is not None:
            own = own.on_columns(fit.columns, total.n_features)
        covariance[rows] += weight * own.noise / main.noise * own.covariance
    return replace(main, covariance=covariance)


def _of_fitted(state: FittedState, loss: LeastSquares) -> LeastSquares:
    """The rows of the tasks that were fitted together."""
    return loss.of_tasks(state.fitted_tasks) if state.attached else loss


def _with_ridge(fit: GraphFit, rows: LeastSquares, settings: Settings) -> GraphFit:
    """Separate models with their ridge, learned again where a file or a model with more tasks lacks it."""
    if fit.kind != "independent" or fit.ridge is not None or fit.columns is not None:
        return fit
    return replace(fit, ridge=independent_level(rows, settings).ridge)


def _relative_to_mean(variance: np.ndarray, loss: LeastSquares) -> np.ndarray:
    """Variances of all tasks in units of their mean over rows."""
    return variance * (float(loss.count.sum()) / max(float(variance @ loss.count), np.finfo(float).tiny))


def standard_errors(state: FittedState) -> np.ndarray:
    """Standard error of every coefficient in the units of the data, the intercept last."""
    return state.once("standard_errors", lambda: posterior(state).standard_errors(state.scaling))


def _posterior(state: FittedState, folded: FoldedLoss) -> Posterior:
    fitted = state.fitted_tasks
    total = _of_fitted(state, folded.total)
    fit = _with_ridge(among(state.level, fitted), total, state.settings)
    with verbose_logging(int(state.settings.sizes.is_large(*fit.coefficients.shape))):
        logger.info("standard errors of %d tasks, once for this model", len(state.task_names))
        ratios = noise_ratios(state, folded) if fit.precisions is None else None
        own = None if ratios is None else ratios[fitted]
        joint = posterior_of(fit, total, state.settings, held_out=_held_out_error(state, folded), ratios=own)
    joint = with_mean_doubt(joint, fit, total)
    if not state.attached:
        return joint
    # A task that was added later has a covariance of its own, computed with the other models held fixed.
    pooled = not np.isfinite(fit.hub).all()
    blocks = np.empty((len(state.task_names), *joint.new_task.shape))
    blocks[fitted] = joint.covariance
    for label, covariance in state.attached:
        position = locate_tasks(state.task_names, np.array([label]))[0]
        blocks[position] = joint.new_task if pooled else covariance
    return replace(joint, covariance=blocks)


def deviations_of_levels(state: FittedState) -> list[tuple[float, np.ndarray]]:
    """Weight of every averaged level, and its deviation from the average, shape (n, p)."""
    family = state.family
    if len(family.weights) == 1:
        return []
    return [(weight, family.levels[name].coefficients - state.coefficients) for name, weight in family.weights.items()]


def _held_out_error(state: FittedState, folded: FoldedLoss) -> HeldOut | None:
    family = state.family
    if family.errors is None or not folded.scored:
        return None
    squared = family.errors.squared[family.position(family.main)].sum(axis=0)
    precisions = state.level.precisions
    weighted = squared.sum() if precisions is None else squared @ precisions
    return HeldOut(float(weighted / family.errors.count.sum()), 1.0 - 1.0 / len(folded.parts))


def effect_of(
    state: FittedState, feature: int, values: np.ndarray, position: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Effect and standard error at values of a feature, in the units of the target (of log odds or log rates).

    The effect is zero on average over the training rows, so a prediction is the mean prediction of these plus the sum
    of all effects. `position` is that of a task; None stands for the common model. Standard errors are NaN in a model
    that was saved without statistics.
    """
    rows = state.scaling.effect_rows(feature, values)
    model = state.common_model() if position is None else state.coefficients[position]
    if state.outcome is not None:
        covariance = state.outcome.common if position is None else state.outcome.covariance[position]
    elif state.statistics is None:
        return rows @ model, np.full(len(values), np.nan)
    else:
        joint = posterior(state)
        covariance = joint.noise * (joint.common if position is None else joint.covariance[position])
    variance = np.einsum("rp,pq,rq->r", rows, covariance, rows)
    return rows @ model, np.sqrt(np.maximum(variance, 0.0))


def own_range(state: FittedState, feature: int) -> np.ndarray | None:
    """Range of a feature in every task, its mean plus and minus two standard deviations, shape (n, 2).

    None without statistics; NaN for a task without rows.
    """
    moments = _moments(state)
    if moments is None:
        return None
    mean, covariance = (moment[..., feature] for moment in moments)
    spread = 2.0 * np.sqrt(np.maximum(covariance[:, feature], 0.0))
    unit, center = state.scaling.scale[feature], state.scaling.center[feature]
    return center + unit * np.column_stack([mean - spread, mean + spread])


def own_departure(state: FittedState, feature: int) -> np.ndarray:
    """Size of the difference between every task's effect and the common one, shape (n,), in the units of the target.

    It is the standard deviation of the difference over the task's own rows; without statistics, over the range of all
    rows.
    """
    scaling, moments = state.scaling, _moments(state)
    rows = scaling.effect_rows(feature, scaling.default_grid(feature))
    used = np.flatnonzero(rows.any(axis=0))
    deviations = (state.coefficients - state.common_model())[:, used]
    if moments is None:
        return (deviations @ rows[:, used].T).std(axis=1)
    own = np.einsum("nk,nkl,nl->n", deviations, moments[1][:, used[:, None], used], deviations)
    return scaling.target_scale * np.sqrt(np.maximum(np.nan_to_num(own), 0.0))


def _moments(state: FittedState) -> tuple[np.ndarray, np.ndarray] | None:
    """Mean and covariance of every task's scaled columns, shapes (n, q) and (n, q, q); NaN of a task without rows."""
    return None if state.statistics is None else state.once("moments", lambda: _moments_of_rows(state))


def _moments_of_rows(state: FittedState) -> tuple[np.ndarray, np.ndarray]:
    gram = state.folded().total.gram
    with np.errstate(divide="ignore", invalid="ignore"):
        moments = gram / gram[:, -1:, -1:]
    mean = moments[:, :-1, -1]
    return mean, moments[:, :-1, :-1] - mean[:, :, None] * mean[:, None, :]


def evidence_of(state: FittedState, n_probes: int, seed: int) -> LevelEvidence:
    """Log evidence of the chosen level on all rows."""
    state.rows("evidence()")
    check_evidence(state.family, state.settings.penalty)
    # Tasks that were added later are not part of the model whose evidence this is.
    fitted = state.fitted_tasks
    loss, fit = state.folded().total.of_tasks(fitted), among(state.level, fitted)
    own, rows, _ = on_its_columns(fit, loss, state.settings)
    hub = own.hub if own.kind == "hub" else hub_alone(state, fit, loss)
    return level_evidence(own, rows, hub, n_probes=n_probes, seed=seed, sizes=state.settings.sizes)


def check_evidence(family: Family, penalty: str) -> None:
    """Raise an error for a level whose marginal likelihood is not known."""
    fit = family.best.on_its_columns()
    if fit.kind in ("pooled", "independent"):
        raise InputError(
            "evidence() is defined for tasks that are shrunk to a common model with finite strengths. Got the "
            f"{fit.name} level instead, which has no evidence. Compare it with the others by the errors in path_."
        )
    if not (fit.hub > 0).all() or (len(fit.edges) and (family.criterion != "evidence" or penalty != "squared_l2")):
        raise InputError(
            'evidence() of a graph needs criterion="evidence", penalty="squared_l2" and hub=True: only there is it '
            f"known. Got criterion={family.criterion!r}, penalty={penalty!r} and hub={bool((fit.hub > 0).all())} "
            "instead. Fit with these, or compare levels by the errors in path_."
        )


def hub_alone(state: FittedState, fit: GraphFit, loss: LeastSquares) -> np.ndarray:
    """Strengths of the hub without edges, for the columns that the fit uses.

    They are learned again if they were not kept, or if the hub was learned with other row weights.
    """
    name = "hub" if fit.means is None else "described"
    known = state.family.levels.get(name if fit.columns is None else f"{name}{STRAIGHT}")
    fit, loss, settings = on_its_columns(fit, loss, state.settings)
    if known is not None and (known.precisions is None) == (fit.precisions is None):
        hub = known.on_its_columns().hub
        if (hub > 0).all():
            return hub
    return hub_level(fit.weighed(loss), settings).hub
