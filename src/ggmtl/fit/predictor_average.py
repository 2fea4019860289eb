"""Average the levels by their loss on held-out rows, for losses that are not squared.

Every level gives a linear predictor per row, E of shape (levels, rows). The weights minimise

    Σ_r b_r ω_r ℓ(Σ_ℓ α_ℓ E_ℓr, y_r) + ½ Σ_ℓ s_ℓ α_ℓ      over α ≥ 0, Σ_ℓ α_ℓ = 1 ,

a convex problem. s_ℓ is the standard error, over tasks, of the slope of the first sum from the preferred level towards
level ℓ: a level takes weight from the preferred one only where held-out rows support it beyond that. Slopes of single
tasks are cut at twice their usual distance from the median. b_r counts rows less that no level explains, by task and
fold, under the Poisson loss, where they could outweigh all others. Rows whose task has no row in another fold are left
out: nothing was known about their task, whereas every task of the final model has rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ggmtl.fit.average import CAUTION, LEAST_WEIGHT, minimum_on_simplex
from ggmtl.losses.rowwise import RowLoss

# Multiples of what is usual that count in full.
_OUTLYING = 2.0


@dataclass(frozen=True)
class HeldOutRows:
    """Held-out rows and what every level, learned without their fold, predicts for them.

    Parameters
    ----------
    predictors : array of shape (levels, rows)
        E.
    target, weight : arrays of shape (rows,)
    task, fold : arrays of int, shape (rows,)
    n_tasks : int
    known : array of bool, shape (rows,)
        Whether the task of the row has rows in other folds, as every task has in the final model.
    """

    predictors: np.ndarray
    target: np.ndarray
    weight: np.ndarray
    task: np.ndarray
    fold: np.ndarray
    n_tasks: int
    known: np.ndarray

    def among(self, rows: np.ndarray) -> HeldOutRows:
        """Some of the rows."""
        return HeldOutRows(
            self.predictors[:, rows],
            self.target[rows],
            self.weight[rows],
            self.task[rows],
            self.fold[rows],
            self.n_tasks,
            self.known[rows],
        )


def average_weights(held_out: HeldOutRows, loss: RowLoss, preferred: int) -> np.ndarray:
    """α, shape (levels,)."""
    number = len(held_out.predictors)
    first = np.eye(number)[preferred]
    if number == 1:
        return first
    if held_out.known.any():
        held_out = held_out.among(held_out.known)
    held_out = replace(held_out, weight=held_out.weight * block_importance(held_out, loss))
    # In units of the preferred level's loss: the optimizer's steps suit values about one.
    reference = float(held_out.weight @ loss.value(held_out.predictors[preferred], held_out.target))
    total = max(reference, float(np.finfo(float).tiny) * float(held_out.weight.sum()))
    spread = CAUTION * slope_errors(held_out, loss, preferred) / total

    def objective(alpha: np.ndarray) -> tuple[float, np.ndarray]:
        predictor = alpha @ held_out.predictors
        value = float(held_out.weight @ loss.value(predictor, held_out.target)) / total
        residual = held_out.weight * (loss.mean(predictor) - held_out.target)
        return value + float(spread @ alpha), held_out.predictors @ residual / total + spread

    alpha = minimum_on_simplex(objective, first)
    alpha = np.where(alpha >= LEAST_WEIGHT, alpha, 0.0)
    return alpha / alpha.sum()


def block_importance(held_out: HeldOutRows, loss: RowLoss) -> np.ndarray:
    """b of every row: less than one where no level explains its task and fold.

    That is where the median level's root mean deviance is more than twice that of the median block.
    """
    if loss.name != "poisson":
        return np.ones(len(held_out.target))
    _, block = np.unique(np.column_stack([held_out.task, held_out.fold]), axis=0, return_inverse=True)
    block = block.reshape(-1)
    deviance = [held_out.weight * loss.value(part, held_out.target) for part in held_out.predictors]
    weight = np.bincount(block, held_out.weight)
    mean = np.median([np.bincount(block, part) for part in deviance], axis=0) / np.where(weight > 0, weight, 1.0)
    usual = float(np.median(mean[weight > 0])) if (weight > 0).any() else 0.0
    excess = np.sqrt(mean / max(usual, np.finfo(float).tiny))
    return np.minimum(1.0, _OUTLYING / np.maximum(excess, _OUTLYING / 2.0))[block]


def slope_errors(held_out: HeldOutRows, loss: RowLoss, preferred: int) -> np.ndarray:
    """s: standard errors over tasks of the slopes from the preferred level, shape (levels,)."""
    reference = held_out.predictors[preferred]
    residual = held_out.weight * (loss.mean(reference) - held_out.target)
    towards = (held_out.predictors - reference) * residual
    by_task = np.stack([np.bincount(held_out.task, part, held_out.n_tasks) for part in towards])
    middle = np.median(by_task, axis=1, keepdims=True)
    # 1.4826 times the median distance is the standard deviation of normal values.
    usual = 1.4826 * np.median(np.abs(by_task - middle), axis=1, keepdims=True)
    by_task = np.clip(by_task, middle - _OUTLYING * usual, middle + _OUTLYING * usual)
    centred = by_task - by_task.mean(axis=1, keepdims=True)
    return np.sqrt((centred**2).sum(axis=1) * held_out.n_tasks / max(held_out.n_tasks - 1, 1))


def cross_fitted_predictor(held_out: HeldOutRows, loss: RowLoss, preferred: int) -> np.ndarray:
    """The average's predictor of every row, its weights learned without the fold of the row.

    With one fold, the weights are learned without a fifth of the tasks.
    """
    several = len(np.unique(held_out.fold)) > 1
    part = held_out.fold if several else held_out.task % 5
    out = np.empty(len(held_out.target))
    for number in np.unique(part):
        inside = part == number
        rest = held_out.among(~inside)
        known = len(rest.target) > 0
        alpha = average_weights(rest, loss, preferred) if known else np.eye(len(held_out.predictors))[preferred]
        out[inside] = alpha @ held_out.predictors[:, inside]
    return out
