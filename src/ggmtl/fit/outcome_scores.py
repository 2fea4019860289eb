"""What held-out rows say of probabilities and rates beside their loss: calibration, ranking, sums of every task."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import norm

from ggmtl.losses.rowwise import RowLoss
from ggmtl.losses.task_rows import TaskRows

# Groups of the reliability plot, and the rows that each has at least.
_GROUPS, _FEWEST_ROWS = 10, 20
# Normal quantile of the intervals: 95 %.
_QUANTILE = float(norm.ppf(0.975))


@dataclass(frozen=True)
class OutcomeScores:
    """Predictions for rows that were held out, beside what was observed.

    Parameters
    ----------
    total, amount : arrays of shape (n,)
        Of all rows of every task: sum of the target, and what it is a share of (rows, or the exposure of counts).
    observed, expected, count : arrays of shape (n,)
        Of the held-out rows of every task: sum of the target, of its prediction, and number.
    groups : array of shape (groups, 4)
        Rows with like predictions, from low to high: mean prediction, mean target, and the 95 % interval of the latter.
    brier : float or None
        Mean squared distance of probability and class; None for counts.
    auc : float or None
        Chance that of two rows, one of each class, the right one has the higher probability; None for counts.
    task_auc : array of shape (n,)
        The same within every task; NaN where only one class was held out.
    """

    total: np.ndarray
    amount: np.ndarray
    observed: np.ndarray
    expected: np.ndarray
    count: np.ndarray
    groups: np.ndarray
    brier: float | None
    auc: float | None
    task_auc: np.ndarray

    @property
    def exposed(self) -> bool:
        """Whether rows have exposures that differ; True where no row was held out, so that it is not known."""
        seen = self.count > 0
        amount = self.amount[seen] / self.count[seen]
        return not seen.any() or bool(np.ptp(amount) > 1e-9 * amount.max())

    def at(self, tasks: np.ndarray) -> OutcomeScores:
        """The tasks in another order; a position of −1 stands for a task of which nothing is known."""
        names = ("total", "amount", "observed", "expected", "count", "task_auc")
        return replace(self, **{name: np.where(tasks < 0, 0.0, getattr(self, name)[tasks]) for name in names})


def score_outcomes(
    rows: TaskRows,
    loss: RowLoss,
    held_out: np.ndarray,
    predictor: np.ndarray,
    dispersion: float,
    folds: np.ndarray | None = None,
) -> OutcomeScores:
    """Compare the predictor η of the rows in `held_out`, a mask, with their target; `folds` are those of all rows.

    Within a task only rows of one fold are ranked. A row that is held out is missing among those that its prediction is
    learned from, so beside rows of other folds a task's positive rows would seem less probable than its negative ones.
    """
    part, n = rows.take(held_out), rows.n_tasks
    is_class = loss.name == "logistic"
    mean, exposure = loss.mean(predictor), np.ones_like(rows.target) if is_class else np.exp(rows.offset)
    brier = auc = None
    task_auc = np.full(n, np.nan)
    if is_class and held_out.any():
        brier = float(np.average((mean - part.target) ** 2, weights=part.weight))
        whole = ranking(predictor, part.target, part.weight, np.zeros(len(part.task), dtype=np.int64), 1)
        auc = float(whole[0]) if np.isfinite(whole[0]) else None
        task_auc = ranking(
            predictor, part.target, part.weight, part.task, n, None if folds is None else folds[held_out]
        )
    return OutcomeScores(
        np.bincount(rows.task, rows.weight * rows.target, n),
        np.bincount(rows.task, rows.weight * exposure, n),
        np.bincount(part.task, part.weight * part.target, n),
        np.bincount(part.task, part.weight * mean, n),
        part.count,
        _groups(part.target, mean, part.weight, is_class, dispersion),
        brier,
        auc,
        task_auc,
    )


def ranking(
    score: np.ndarray,
    target: np.ndarray,
    weight: np.ndarray,
    task: np.ndarray,
    n_tasks: int,
    fold: np.ndarray | None = None,
) -> np.ndarray:
    """Area under the ROC curve of every task, from the pairs of rows of one fold, shape (n,); NaN without such pairs.

    Rows of equal score count half.
    """
    n_folds = 1 if fold is None else int(fold.max(initial=0)) + 1
    task, n_groups = task * n_folds + (0 if fold is None else fold), n_tasks * n_folds
    order = np.lexsort((score, task))
    score, task = score[order], task[order]
    positive, negative = weight[order] * target[order], weight[order] * (1.0 - target[order])
    starts = np.flatnonzero(np.append(True, (np.diff(score) != 0) | (np.diff(task) != 0)))[: len(score)]
    if not len(starts):
        return np.full(n_tasks, np.nan)
    owner = task[starts]
    right, wrong = np.add.reduceat(positive, starts), np.add.reduceat(negative, starts)
    all_right, all_wrong = np.bincount(owner, right, n_groups), np.bincount(owner, wrong, n_groups)
    before = np.cumsum(wrong) - wrong - (np.cumsum(all_wrong) - all_wrong)[owner]
    area = np.bincount(owner, right * (before + 0.5 * wrong), n_groups).reshape(n_tasks, n_folds).sum(axis=1)
    pairs = (all_right * all_wrong).reshape(n_tasks, n_folds).sum(axis=1)
    return np.where(pairs > 0, area / np.where(pairs > 0, pairs, 1.0), np.nan)


def observed_interval(
    observed: np.ndarray, count: np.ndarray, is_class: bool, dispersion: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """95 % interval of sums of classes (Wilson's) or of counts (Byar's), of `count` rows each."""
    z = _QUANTILE
    if is_class:
        size = np.where(count > 0, count, 1.0)
        share = observed / size
        middle = (share + z**2 / (2.0 * size)) / (1.0 + z**2 / size)
        reach = z * np.sqrt(share * (1.0 - share) / size + (z / (2.0 * size)) ** 2) / (1.0 + z**2 / size)
        return np.maximum(middle - reach, 0.0) * count, np.minimum(middle + reach, 1.0) * count
    events = observed / dispersion
    some = np.maximum(events, np.finfo(float).tiny)
    low = np.maximum(1.0 - 1.0 / (9.0 * some) - z / (3.0 * np.sqrt(some)), 0.0) ** 3 * events
    high = (1.0 - 1.0 / (9.0 * (events + 1.0)) + z / (3.0 * np.sqrt(events + 1.0))) ** 3 * (events + 1.0)
    return dispersion * low, dispersion * high


def _groups(target: np.ndarray, mean: np.ndarray, weight: np.ndarray, is_class: bool, dispersion: float) -> np.ndarray:
    """Groups of rows with like predictions, of about equal weight; rows of equal prediction stay together."""
    number = min(_GROUPS, int(weight.sum() // _FEWEST_ROWS))
    if number < 1:
        return np.empty((0, 4))
    order = np.argsort(mean, kind="stable")
    place = np.cumsum(weight[order]) - 0.5 * weight[order]
    group = np.minimum((place * number / weight.sum()).astype(np.int64), number - 1)
    value = mean[order]
    same = np.append(False, value[1:] == value[:-1])
    group = group[np.maximum.accumulate(np.where(same, 0, np.arange(len(group))))]
    count, predicted, observed = (
        np.bincount(group, part, number)
        for part in (weight[order], weight[order] * value, weight[order] * target[order])
    )
    kept = count > 0
    count, predicted, observed = count[kept], predicted[kept], observed[kept]
    low, high = observed_interval(observed, count, is_class, dispersion)
    return np.column_stack([predicted, observed, low, high]) / count[:, None]
