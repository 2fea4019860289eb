"""Models of classes and counts without a common model: one for all tasks, every task alone, and the base rate.

Tasks of one class have no finite model of their own, so no intercept of a task is free.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ggmtl.bilevel.level import GraphFit
from ggmtl.errors import SingularSystemError
from ggmtl.evidence.hub_strengths import sample_of_tasks
from ggmtl.evidence.laplace import predicting_models
from ggmtl.losses.rowwise import RowLoss
from ggmtl.losses.task_rows import Mode, TaskRows, newton
from ggmtl.statistics.least_squares import LeastSquares

# Rounds in which ridges are learned, and the largest change of their logarithms that ends them.
_RIDGE_ROUNDS, _RIDGE_SETTLED = 30, 0.01
# Factor by which a step of a ridge is lengthened, and the largest change of its logarithm in one step.
_LONGEST, _WINDOW = 50.0, 3.0
# Bounds of learned ridges, in scaled units.
WEAKEST, STRONGEST = 1e-4, 1e8
# The intercept of a task alone has nothing to be shrunk to; this keeps it finite.
_BARELY = 1e-6


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
        Learned ridges; zeros for levels that are shrunk to the common model instead.
    """

    fit: GraphFit
    covariance: np.ndarray
    new_task: np.ndarray
    ridge: np.ndarray


def pooled_level(
    rows: TaskRows, loss: RowLoss, slopes: np.ndarray, dispersion: float = 1.0, start: OutcomeLevel | None = None
) -> OutcomeLevel:
    """One model for all tasks."""
    n = rows.n_tasks
    begin = start and replace(start, fit=replace(start.fit, coefficients=start.fit.coefficients[:1]))
    single = separate_level(rows.as_one_task(), loss, slopes, dispersion, begin)
    fit = without_edges("pooled", np.full(rows.n_features, np.inf), np.repeat(single.fit.coefficients, n, axis=0))
    block = single.covariance[0]
    return OutcomeLevel(fit, np.broadcast_to(block, (n, *block.shape)), block, single.ridge)


def separate_level(
    rows: TaskRows,
    loss: RowLoss,
    slopes: np.ndarray,
    dispersion: float = 1.0,
    start: OutcomeLevel | None = None,
    most: int | None = None,
) -> OutcomeLevel:
    """Every task alone: slopes shrunk to zero, intercepts to their mean; ridges by evidence.

    The ridges of more than `most` tasks are learned from so many of them. `start` is where the search begins.
    """
    n, p = rows.n_tasks, rows.n_features
    models = np.tile(null_model(rows, loss, slopes), (n, 1)) if start is None else start.fit.coefficients
    ridge = np.full(p, 1.0) if start is None else start.ridge
    chosen = None if most is None else sample_of_tasks(rows, most)  # pyright: ignore[reportArgumentType]
    few, near = (rows, models) if chosen is None else (rows.of_tasks(chosen), models[chosen])
    ridge, centre, mode = _learned_ridges(few, loss, slopes, few.at(loss, near, dispersion), ridge)
    mode = separate_mode(rows, loss, mode if chosen is None else models, ridge, centre, dispersion)
    inverse = np.linalg.inv(mode.sums.gram + np.diag(ridge))
    models = predicting_models(rows, loss, mode.coefficients, inverse, lambda c: np.einsum("npq,nq->np", inverse, c))
    fit = without_edges("independent", np.zeros(p), models)
    new_task = dispersion * np.diag(np.where(ridge > 10 * _BARELY, 1.0 / ridge, 0.0))
    return OutcomeLevel(fit, dispersion * inverse, new_task, ridge)


def _learned_ridges(
    rows: TaskRows, loss: RowLoss, slopes: np.ndarray, mode: Mode, ridge: np.ndarray
) -> tuple[np.ndarray, np.ndarray, Mode]:
    """Ridges, the mean intercept, and the models, from a mode and ridges on.

    A ridge ρ of k coefficients in n tasks is at the maximum of Laplace's evidence (the curvature held fixed) where
    ρΣ(w − mean)² = φγ, γ = nk − ρ tr(A⁻¹) being how many of them the data determine (MacKay). Ridges and models change
    in turn, a Newton step at a time.
    """
    n, dispersion = rows.n_tasks, mode.sums.noise or 1.0
    groups = [group for group in (np.flatnonzero(slopes), np.flatnonzero(~slopes)) if len(group)]
    slopes_only = np.where(slopes, 0.0, 1.0)
    if n == 1:
        groups = [group for group in groups if slopes[group[0]]]
        ridge = np.where(slopes, ridge, _BARELY)
    centre = slopes_only * mode.coefficients.mean(axis=0)
    secants = [_Secant() for _ in groups]
    for _ in range(_RIDGE_ROUNDS if groups else 0):
        mode = separate_mode(rows, loss, mode, ridge, centre, dispersion, max_steps=1)
        variance = np.einsum("nkk->k", np.linalg.inv(mode.sums.gram + np.diag(ridge)))
        if n > 1:
            centre = slopes_only * mode.coefficients.mean(axis=0)
        apart, changes = ((mode.coefficients - centre) ** 2).sum(axis=0), []
        before, ridge = ridge, ridge.copy()
        for group, secant in zip(groups, secants):
            determined = max(n * len(group) - float(before[group] @ variance[group]), 1e-3)
            square = max(float(apart[group].sum()), 1e-12)
            here = float(np.log(before[group[0]]))
            there = float(np.log(np.clip(dispersion * determined / square, WEAKEST, STRONGEST)))
            changes.append(abs(there - here))
            ridge[group] = np.clip(np.exp(secant.step(here, there)), WEAKEST, STRONGEST)
        if mode.converged and max(changes) < _RIDGE_SETTLED:
            break
    return ridge, centre, mode


class _Secant:
    """Steps towards x = g(x), lengthened by what the last two show of the slope of g."""

    def __init__(self) -> None:
        self.last: tuple[float, float] | None = None

    def step(self, here: float, there: float) -> float:
        """The next x, where g(here) = there."""
        change, factor = there - here, 1.0
        if self.last is not None and abs(here - self.last[0]) > 1e-12:
            slope = (change - self.last[1]) / (here - self.last[0])
            factor = float(np.clip(-1.0 / slope, 0.5, _LONGEST)) if slope < 0 else _LONGEST
        self.last = here, change
        return here + float(np.clip(factor * change, -_WINDOW, _WINDOW))


def separate_mode(
    rows: TaskRows,
    loss: RowLoss,
    start: np.ndarray | Mode,
    ridge: np.ndarray,
    centre: np.ndarray,
    dispersion: float = 1.0,
    **options: int,
) -> Mode:
    """The models that minimise the loss plus ½ Σ_i (w_i − centre)ᵀR(w_i − centre); `ridge` is R, or its diagonal."""
    pull = np.diag(ridge) if ridge.ndim == 1 else ridge

    def solve(sums: LeastSquares) -> np.ndarray:
        right = sums.moment + centre @ pull
        try:
            return np.linalg.solve(sums.gram + pull, right[..., None])[..., 0]
        except np.linalg.LinAlgError:
            raise SingularSystemError(
                "The rows of a task do not determine its model, and nothing shrinks it. Give more rows or a ridge."
            ) from None

    def penalty(models: np.ndarray) -> float:
        apart = models - centre
        return 0.5 * float(np.einsum("nk,nk->", apart @ pull, apart))

    return newton(rows, loss, start, solve, penalty, noise=dispersion, **options)


def null_model(rows: TaskRows, loss: RowLoss, slopes: np.ndarray) -> np.ndarray:
    """The intercept alone, shape (p,): slopes of zero, and the base rate of all rows beside their offsets."""
    model = np.zeros(rows.n_features)
    if slopes.all():
        return model
    column = np.flatnonzero(~slopes)
    only = replace(rows.as_one_task(), design=rows.design[:, column])
    # Nearly the solution, and finite where no row, or every row, has an event.
    events = rows.weight @ rows.target + 0.5
    amount = rows.weight @ np.exp(rows.offset) if loss.exponential else rows.weight.sum() + 1.0
    start = np.full((1, len(column)), loss.link(events / amount))
    found = newton(
        only,
        loss,
        start,
        lambda sums: sums.moment / (sums.gram[:, 0] + _BARELY),
        lambda models: 0.5 * _BARELY * float((models**2).sum()),
    )
    model[column] = found.coefficients[0]
    return model


def without_edges(name: str, hub: np.ndarray, coefficients: np.ndarray, value: float = float("nan")) -> GraphFit:
    """A fit of that name without edges."""
    nothing = np.zeros(coefficients.shape[1])
    return GraphFit(name, np.empty((0, 2), dtype=np.int64), np.empty(0), nothing, hub, coefficients, value)
