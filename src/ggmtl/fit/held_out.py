"""Errors on rows never seen: every level learned again without each fold, and scored there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
from joblib import Parallel, delayed, effective_n_jobs

from ggmtl.bilevel.level import GraphFit
from ggmtl.errors import ParameterError
from ggmtl.runtime.journal import Journal
from ggmtl.statistics.least_squares import FoldedLoss, LeastSquares

logger = logging.getLogger("ggmtl")
Learner = Callable[..., dict[str, GraphFit]]


@dataclass(frozen=True)
class FoldErrors:
    """Squared errors on rows never seen by the model that predicts them.

    Parameters
    ----------
    squared : array of shape (levels, folds, n)
        Sum of squared errors per level, fold and task.
    count : array of shape (folds, n)
        Rows behind each sum.
    """

    squared: np.ndarray
    count: np.ndarray

    def mean(self) -> np.ndarray:
        """Mean squared error over all rows, shape (levels,)."""
        return self.squared.sum(axis=(1, 2)) / self.count.sum()

    def standard_error(self) -> np.ndarray:
        """Standard error of `mean`, shape (levels,), from the spread over tasks."""
        return self._spread(self.squared - self.mean()[:, None, None] * self.count)

    def excess(self, level: int) -> tuple[np.ndarray, np.ndarray]:
        """Mean squared error of every level above that of `level`, and the paired standard error."""
        difference = self.squared - self.squared[level]
        mean = difference.sum(axis=(1, 2)) / self.count.sum()
        return mean, self._spread(difference - mean[:, None, None] * self.count)

    def task_mean(self) -> np.ndarray:
        """Mean squared error of every task over all folds, shape (levels, n); NaN where no row was held out."""
        count = self.count.sum(axis=0)
        return self.squared.sum(axis=1) / np.where(count > 0, count, np.nan)

    def _spread(self, centred: np.ndarray) -> np.ndarray:
        # Rows of a task share its model: with several tasks, tasks are the independent units; with one, folds are.
        units = centred.sum(axis=1) if centred.shape[2] > 1 else centred[:, :, 0]
        size = max(units.shape[1] - 1, 1)
        return np.sqrt((units**2).sum(axis=1) * units.shape[1] / size) / self.count.sum()


def cross_validate(
    folded: FoldedLoss, learn: Learner, n_jobs: int | None = None, journal: Journal | None = None
) -> FoldErrors:
    """Learn every level without each fold in turn, and score it there; folds in the journal are not done again."""
    kept = journal or Journal()
    missing = [k for k in folded.scored if kept.known(fold_name(k)) is None]
    workers: Any = n_jobs
    if effective_n_jobs(workers) == 1:
        for k in missing:
            inside = None if journal is None else journal.inside(fold_name(k))
            kept.once(fold_name(k), partial(_score, folded, learn, k, inside))
    else:
        jobs = [delayed(_score)(folded, learn, k) for k in missing]
        for squared, k in zip(as_they_come(jobs, n_jobs), missing):
            kept.once(fold_name(k), partial(np.asarray, squared))
    errors = errors_of(folded, kept)
    if errors is None:
        raise ParameterError("There is no fold that could be held out.")
    return errors


def as_they_come(jobs: list[Any], n_jobs: int | None) -> Iterable[Any]:
    """The results of joblib's jobs in order, each as soon as it is there where the backend can do that."""
    try:
        pool = Parallel(n_jobs=n_jobs, return_as="generator")
    except ValueError:
        pool = Parallel(n_jobs=n_jobs)
    return cast(Iterable[Any], pool(jobs))


def _score(folded: FoldedLoss, learn: Learner, k: int, journal: Journal | None = None) -> np.ndarray:
    """Squared errors on fold `k` of all levels learned without it, shape (levels, n)."""
    logger.info("learning again without fold %d of %d", k + 1, len(folded.parts))
    rest = folded.without(k)
    levels = learn(rest) if journal is None else learn(rest, journal=journal)
    return errors_on(folded.parts[k], levels.values())


def errors_on(part: LeastSquares, levels: Iterable[GraphFit]) -> np.ndarray:
    """Squared errors of every level and task, shape (levels, n)."""
    return np.array([2.0 * part.task_values(fit.coefficients) for fit in levels])


def fold_name(k: int) -> str:
    """Where a journal keeps the errors on a fold."""
    return f"fold {k}"


def errors_of(folded: FoldedLoss, journal: Journal) -> FoldErrors | None:
    """The errors of all folds in the journal, None where there are none."""
    done = [k for k in folded.scored if journal.known(fold_name(k)) is not None]
    if not done:
        return None
    squared = [journal.known(fold_name(k)) for k in done]
    return FoldErrors(np.stack(squared, axis=1), np.array([folded.parts[k].count for k in done]))
