"""Average the levels, with weights learned from their errors on held-out rows.

Every level is a linear model per task, and so is the average Σ_ℓ α_ℓ W^(ℓ). The weights α minimise

    Σ_i Σ_f b_if αᵀ M_if α + Σ_ℓ s_ℓ α_ℓ      over α ≥ 0, Σ_ℓ α_ℓ = 1 ,

A block is fold f of task i. M_if contains the sums of products of the errors of two levels on the rows of the block,
with everything learned without that fold.

- b_if = u_if/σ_i² makes tasks with different noise comparable. u_if is below one for blocks that no level explains.
- s_ℓ is half a standard error, over tasks, of the slope of the first sum from the preferred level r towards level ℓ. A
  level takes weight from the preferred one only if it lowers the held-out error by more than that.

The error of the average on a fold is measured with weights learned from the other folds. In a comparison with another
model, blocks are weighted by 1/σ_i², with σ_i² estimated from the other folds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import minimize
from scipy.stats import norm, t

from ggmtl.bilevel.level import STRAIGHT
from ggmtl.fit.held_out import FoldErrors
from ggmtl.losses.rowwise import SQUARED_ERROR, Measure

# Smaller weights are set to zero.
LEAST_WEIGHT = 0.01
# Levels with more than this many times the lowest squared error get no weight. Their weight would be below 0.01 for any
# correlation of the errors: at the best one, −1, a level with r times the error has the weight 1/(1 + r).
_FAR = 1e4
# The noise variance of a task is shrunk towards the geometric mean of all tasks, by a prior worth this many rows.
_PRIOR_ROWS = 4.0
# Blocks whose error is more than this many times what the noise of the task explains get a smaller weight, inversely
# proportional to the excess.
_OUTLYING = 2.0
# The noise variance of a task is at least this share of the mean of all tasks, so that data without noise do not give
# zero.
_LEAST_NOISE = 1e-9
# If only one fold is held out, weights are learned without each of this many groups of tasks.
_TASK_GROUPS = 5
# Standard errors by which a level must beat the preferred one. With zero, chance gives weights to levels that are no
# better than the shared model; with one or more, part of the gain on the panels of benchmarks/panels.py is lost.
CAUTION = 0.5
# Coverage of the intervals of gains.
_COVERAGE = 0.95
# Levels that the average is compared with.
COMPARED = ("pooled", "hub", "independent")


@dataclass(frozen=True)
class Interval:
    """An estimate and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Average:
    """Weights of the levels, and the error that their average has on held-out rows.

    Parameters
    ----------
    weights : dict of str to float
        They sum to one; levels without weight are left out.
    squared : array of shape (folds, n)
        Squared errors of the average on held-out rows, its weights learned without the fold.
    losses : dict of str to array of shape (n,)
        Squared errors divided by the noise variance of the task, which is estimated from the other folds. They are
        those of the average (``"average"``), of the average without the graph if there is one (``"unlinked"``), and of
        the levels with which the average is compared.
    fold_variance : dict of str to float
        Variance of the ratio of two errors by :func:`fold_variance`, for every model that the average is compared with.
        Empty in files of earlier versions.
    measure : Measure
        How a mean loss is reported.
    """

    weights: dict[str, float]
    squared: np.ndarray
    losses: dict[str, np.ndarray]
    fold_variance: Mapping[str, float] = field(default_factory=dict)
    measure: Measure = SQUARED_ERROR

    def gain_over(self, name: str) -> Interval:
        """Relative reduction of the held-out error by the average, compared with another model, with its interval."""
        least = self.fold_variance.get(name, 0.0)
        return relative_gain(self.losses["average"], self.losses[name], least, measure=self.measure)


def average_levels(
    errors: FoldErrors, names: Sequence[str], preferred: str, graph: str | None, *, equal_noise: bool = False
) -> Average:
    """Weights of the levels, learned from all folds, and the error of the average.

    Parameters
    ----------
    errors : FoldErrors
        With the products of errors.
    names : sequence of str
        Names of the levels in `errors`.
    preferred : str
        The level that the average is shrunk towards.
    graph : str, optional
        The level with links, if any. The average without it is measured, too.
    equal_noise : bool
        Whether rows of all tasks have the same weight.
    """
    reference = list(names).index(preferred)
    importance = block_importance(errors, equal_noise)
    weights = level_weights(errors, importance, reference)
    squared, precision = cross_fitted(errors, reference, equal_noise), precision_elsewhere(errors, equal_noise)
    compared = {"average": squared, **_compared(errors, names, precision)}
    if graph is not None:
        others = [k for k, name in enumerate(names) if name != graph]
        without = [names[k] for k in others]
        shared = next(name for name in (preferred, "described", "hub", *without) if name in without)
        compared["unlinked"] = cross_fitted(errors.among(others), without.index(shared), equal_noise)
    losses = {name: (precision * values).sum(axis=0) for name, values in compared.items()}
    variance = {
        name: fold_variance(precision * squared, precision * values)
        for name, values in compared.items()
        if name != "average"
    }
    used = {name: float(weight) for name, weight in zip(names, weights) if weight > 0}
    return Average(used, squared, losses, variance)


def _compared(errors: FoldErrors, names: Sequence[str], precision: np.ndarray) -> dict[str, np.ndarray]:
    """Squared errors of the levels with which the average is compared, by name, each of shape (folds, n).

    Of a level with curves and one with straight lines, only the better one is used.
    """
    out = {}
    for kind in COMPARED:
        same = [errors.squared[k] for k, name in enumerate(names) if name.removesuffix(STRAIGHT) == kind]
        if same:
            out[kind] = min(same, key=lambda squared: float((precision * squared).sum()))
    return out


def block_importance(errors: FoldErrors, equal_noise: bool = False) -> np.ndarray:
    """Weight b of every block, shape (folds, n)."""
    typical, noise = np.median(errors.squared, axis=0), _noise_of_tasks(errors, equal_noise)
    if equal_noise:
        return np.full_like(typical, 1.0 / noise[0])
    excess = np.sqrt(typical / np.where(errors.count > 0, errors.count, 1.0) / noise)
    return np.minimum(1.0, _OUTLYING / np.maximum(excess, _OUTLYING / 2.0)) / noise


def precision_elsewhere(errors: FoldErrors, equal_noise: bool = False) -> np.ndarray:
    """1/σ_i² of every block, with σ_i² estimated from the other folds, shape (folds, n).

    These are the weights of blocks in a comparison of two models. Weights that depend on the errors of the block itself
    would favour the better model: if the noise of a block happens to be small, the difference of the two models is a
    large share of their errors there.
    """
    n_folds = len(errors.count)
    if n_folds == 1 or equal_noise:
        return block_importance(errors, equal_noise)
    return np.array([1.0 / _noise_of_tasks(errors.of_folds(np.arange(n_folds) != k), False) for k in range(n_folds)])


def _noise_of_tasks(errors: FoldErrors, equal_noise: bool) -> np.ndarray:
    """Error variance of every task under a typical level, shape (n,), shrunk to the geometric mean of all tasks."""
    square, count = np.median(errors.squared, axis=0).sum(axis=0), errors.count.sum(axis=0)
    mean = float(square.sum() / max(float(count.sum()), np.finfo(float).tiny))
    if equal_noise or not mean > 0:
        return np.full(len(count), mean if mean > 0 else 1.0)
    known, floor = count > 0, _LEAST_NOISE * mean
    own = np.maximum(square[known] / count[known], floor)
    usual = float(np.exp(np.average(np.log(own), weights=count[known] / (count[known] + _PRIOR_ROWS))))
    return np.maximum((_PRIOR_ROWS * usual + square) / (_PRIOR_ROWS + count), floor)


def level_weights(errors: FoldErrors, importance: np.ndarray, reference: int) -> np.ndarray:
    """Weights α of the levels, shape (levels,); `reference` is the position of the preferred level."""
    by_task = np.einsum("fn,fnlm->nlm", importance, errors.products())
    total = by_task.sum(axis=0)
    squares = np.diag(total)
    near = np.flatnonzero(squares <= _FAR * squares.min())
    near = near if reference in near else np.append(near, reference)
    slopes = 2.0 * (by_task[:, near, reference] - by_task[:, [reference], reference])
    number = len(slopes)
    caution = CAUTION * np.sqrt(((slopes - slopes.mean(axis=0)) ** 2).sum(axis=0) * number / max(number - 1, 1))
    found = simplex_minimum(total[np.ix_(near, near)], caution, int(np.flatnonzero(near == reference)[0]))
    weights = np.zeros(len(total))
    weights[near] = np.where(found >= LEAST_WEIGHT, found, 0.0)
    return weights / weights.sum()


def simplex_minimum(matrix: np.ndarray, slope: np.ndarray, start: int) -> np.ndarray:
    """The α that minimises αᵀMα + sᵀα over α ≥ 0, Σα = 1.

    The result is the vertex `start` if the solver finds nothing better.
    """
    number = len(matrix)
    unit = float(np.diag(matrix).min())
    first = np.eye(number)[start]
    if number == 1 or not unit > 0:
        return first
    scaled, tilt = matrix / unit, slope / unit

    def objective(alpha: np.ndarray) -> tuple[float, np.ndarray]:
        image = scaled @ alpha
        return float(alpha @ image + tilt @ alpha), 2.0 * image + tilt

    return minimum_on_simplex(objective, first)


def minimum_on_simplex(objective: Callable[[np.ndarray], tuple[float, np.ndarray]], first: np.ndarray) -> np.ndarray:
    """The α ≥ 0, Σα = 1, that minimises a convex function of values about one; the vertex `first` if none is better."""
    number = len(first)
    sums = {"type": "eq", "fun": lambda alpha: alpha.sum() - 1.0, "jac": lambda alpha: np.ones(number)}
    options = {"maxiter": 500, "ftol": 1e-13}
    # SLSQP may stop at once when it starts at a vertex.
    middle = 0.5 * first + 0.5 / number
    found = minimize(
        objective, middle, jac=True, method="SLSQP", bounds=[(0.0, 1.0)] * number, constraints=sums, options=options
    )
    alpha = np.clip(found.x, 0.0, 1.0)
    alpha /= alpha.sum()
    return alpha if objective(alpha)[0] <= objective(first)[0] else first


def cross_fitted(errors: FoldErrors, reference: int, equal_noise: bool = False) -> np.ndarray:
    """Squared errors of the average on every block, shape (folds, n), with weights learned without the block.

    With several folds, the weights for a fold are learned from the others. With one fold, the weights for a fifth of
    the tasks are learned from the other tasks.
    """
    n_folds, n_tasks = errors.count.shape
    cross = errors.products()
    out = np.zeros((n_folds, n_tasks))
    if n_folds > 1:
        for k in range(n_folds):
            rest = errors.of_folds(np.arange(n_folds) != k)
            out[k] = _squared(cross[k], level_weights(rest, block_importance(rest, equal_noise), reference))
        return out
    importance, group = block_importance(errors, equal_noise), np.arange(n_tasks) % _TASK_GROUPS
    for number in range(min(_TASK_GROUPS, n_tasks)):
        apart = group == number
        rest = FoldErrors(errors.squared[:, :, ~apart], errors.count[:, ~apart], cross[:, ~apart])
        weights = np.eye(len(errors.squared))[reference]
        if rest.count.any():
            weights = level_weights(rest, importance[:, ~apart], reference)
        out[0, apart] = _squared(cross[0, apart], weights)
    return out


def _squared(cross: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Squared errors of an average, shape (n,), from products of errors of shape (n, levels, levels)."""
    return np.maximum(np.einsum("l,nlm,m->n", weights, cross, weights), 0.0)


def fold_variance(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Variance of the ratio of two held-out errors for fixed true models, from losses of shape (folds, n).

    The held-out error on a fold contains products of the noise in the fold's rows with the noise in the rows of each
    other fold, from which the model was learned. The same products occur when the other fold is held out. So the
    variance of the sum over folds is twice the sum of the variances of the folds.

    The spread over tasks does not include this part: it measures how errors vary between tasks, not how far held-out
    errors are from the true errors of the fitted models.
    """
    total = float(theirs.sum())
    if len(ours) < 2 or not total > 0:
        return 0.0
    rest = ours - float(ours.sum()) / total * theirs
    return 2.0 * float((rest**2).sum()) / total**2


def relative_gain(
    ours: np.ndarray,
    theirs: np.ndarray,
    least_variance: float = 0.0,
    coverage: float = _COVERAGE,
    measure: Measure = SQUARED_ERROR,
) -> Interval:
    """Relative reduction of an error, 1 − √(E/E_ref) for squared errors, with an interval over tasks.

    The arguments are losses per task, shape (n,). Rows of one task share its model, so tasks are the independent units.
    The interval is that of a ratio of sums, by Student's t. Its variance is at least `least_variance`.
    """
    seen = (ours > 0) | (theirs > 0)
    ours, theirs, number = ours[seen], theirs[seen], int(seen.sum())
    total = float(theirs.sum())
    if number < 2 or not total > 0:
        return Interval(0.0, -np.inf, 1.0)
    ratio = float(ours.sum()) / total
    rest = ours - ratio * theirs
    variance = float((rest**2).sum()) * number / (number - 1) / total**2
    upper = 0.5 + 0.5 * coverage
    reach = max(
        float(t.ppf(upper, number - 1)) * float(np.sqrt(variance)),
        float(norm.ppf(upper)) * float(np.sqrt(least_variance)),
    )
    bounds = [ratio, ratio + reach, max(ratio - reach, 0.0)]
    return Interval(*(float(measure.gain(bound)) for bound in bounds))
