"""Cross-validation: every level is learned again without each fold, and scored on it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
from joblib import Parallel, delayed, effective_n_jobs

from ggmtl.bilevel.level import GraphFit
from ggmtl.errors import ParameterError
from ggmtl.graph.task_graph import TaskGraph
from ggmtl.losses.rowwise import SQUARED_ERROR, Measure
from ggmtl.runtime.journal import Journal
from ggmtl.statistics.least_squares import FoldedLoss, LeastSquares

logger = logging.getLogger("ggmtl")
Learner = Callable[..., dict[str, GraphFit]]

# An edge is reported if its weight is at least this share of the heaviest weights at its two tasks.
_REPORTED = 0.05


@dataclass(frozen=True)
class FoldErrors:
    """Squared errors, or other losses, on held-out rows.

    Parameters
    ----------
    squared : array of shape (levels, folds, n)
        Sum of squared errors, or of other losses, per level, fold and task.
    count : array of shape (folds, n)
        Number of rows in each sum.
    cross : array of shape (folds, n, levels, levels), optional
        Sums of products of the errors of two levels, from which the error of any average of levels follows. None in a
        model that was read from a file.
    measure : Measure
        How a mean loss is reported, such as the root of a mean square.
    """

    squared: np.ndarray
    count: np.ndarray
    cross: np.ndarray | None = None
    measure: Measure = SQUARED_ERROR

    @classmethod
    def of_products(cls, cross: np.ndarray, count: np.ndarray) -> FoldErrors:
        """The errors from their products, shape (folds, n, levels, levels), whose diagonals are the squared errors."""
        return cls(np.moveaxis(np.einsum("fnll->fnl", cross), -1, 0), count, cross)

    def products(self) -> np.ndarray:
        """The products of errors, `cross`; an error if the model was read from a file, which does not have them."""
        if self.cross is None:
            raise ValueError("The products of errors are not known: the model was read from a file.")
        return self.cross

    def among(self, levels: Sequence[int]) -> FoldErrors:
        """The errors of some levels, in the order given."""
        chosen = np.asarray(levels, dtype=np.int64)
        cross = None if self.cross is None else self.cross[:, :, chosen[:, None], chosen]
        return replace(self, squared=self.squared[chosen], cross=cross)

    def of_folds(self, chosen: np.ndarray) -> FoldErrors:
        """The errors on some folds, given as a mask or as positions."""
        cross = None if self.cross is None else self.cross[chosen]
        return replace(self, squared=self.squared[:, chosen], count=self.count[chosen], cross=cross)

    def with_task(self, position: int) -> FoldErrors:
        """The same errors with a further task at `position`, none of whose rows was held out."""
        cross = None if self.cross is None else np.insert(self.cross, position, 0.0, axis=1)
        squared, count = np.insert(self.squared, position, 0.0, axis=2), np.insert(self.count, position, 0.0, axis=1)
        return replace(self, squared=squared, count=count, cross=cross)

    def error(self) -> np.ndarray:
        """Root mean square error, or mean loss, over all rows, shape (levels,)."""
        return self.measure.of(self.mean())

    def error_deviation(self) -> np.ndarray:
        """Standard error of `error`, shape (levels,)."""
        return self.measure.deviation(self.mean(), self.standard_error())

    def task_error(self) -> np.ndarray:
        """Root mean square error, or mean loss, of every task, shape (levels, n); NaN if no row was held out."""
        return self.measure.of(self.task_mean())

    def mean(self) -> np.ndarray:
        """Mean squared error, or mean loss, over all rows, shape (levels,)."""
        return self.squared.sum(axis=(1, 2)) / self.count.sum()

    def standard_error(self) -> np.ndarray:
        """Standard error of `mean`, shape (levels,), from the spread over tasks."""
        return self._spread(self.squared - self.mean()[:, None, None] * self.count)

    def excess(self, level: int) -> tuple[np.ndarray, np.ndarray]:
        """Mean squared error of every level minus that of `level`, and its paired standard error, shape (levels,)."""
        difference = self.squared - self.squared[level]
        mean = difference.sum(axis=(1, 2)) / self.count.sum()
        return mean, self._spread(difference - mean[:, None, None] * self.count)

    def task_mean(self) -> np.ndarray:
        """Mean squared error of every task over all folds, shape (levels, n); NaN if no row was held out."""
        count = self.count.sum(axis=0)
        return self.squared.sum(axis=1) / np.where(count > 0, count, np.nan)

    def _spread(self, centred: np.ndarray) -> np.ndarray:
        # Rows of a task share its model: with several tasks, tasks are the independent units; with one, folds are.
        units = centred.sum(axis=1) if centred.shape[2] > 1 else centred[:, :, 0]
        size = max(units.shape[1] - 1, 1)
        return np.sqrt((units**2).sum(axis=1) * units.shape[1] / size) / self.count.sum()


@dataclass(frozen=True)
class FoldResult:
    """Errors and edges of the levels learned without one fold.

    Parameters
    ----------
    cross : array of shape (n, levels, levels)
        Sums of products of errors on the rows of the fold.
    links : dict of str to array of shape (m, 2)
        The edges that every level would report, by the name of the level; levels without edges are left out.
    """

    cross: np.ndarray
    links: dict[str, np.ndarray]


@dataclass(frozen=True)
class CrossValidation:
    """Errors of all levels on all held-out folds, and the edges learned without each of them."""

    errors: FoldErrors
    links: tuple[dict[str, np.ndarray], ...]

    @classmethod
    def of(cls, folded: FoldedLoss, results: Mapping[int, FoldResult]) -> CrossValidation:
        """The cross-validation from the results of the folds, by the number of the fold."""
        cross = np.stack([result.cross for result in results.values()])
        count = np.array([folded.parts[k].count for k in results])
        return cls(FoldErrors.of_products(cross, count), tuple(result.links for result in results.values()))


def cross_validate(
    folded: FoldedLoss,
    learn: Learner,
    slopes: np.ndarray,
    n_jobs: int | None = None,
    journal: Journal | None = None,
) -> CrossValidation:
    """Learn every level without each fold in turn, and score it on the fold. Results in the journal are reused."""
    kept = journal or Journal()
    each_fold(partial(_score, folded, learn, slopes), folded.scored, n_jobs, kept, steps=journal is not None)
    held_out = held_out_of(folded, kept)
    if held_out is None:
        raise ParameterError("There is no fold that could be held out.")
    return held_out


def each_fold(
    work: Callable[[int, Journal | None], Any],
    folds: Sequence[int],
    n_jobs: int | None,
    journal: Journal,
    *,
    steps: bool = True,
) -> list[Any]:
    """The result of every fold, on `n_jobs` workers. Results in the journal are reused.

    `work` is called with the number of a fold and a journal for its steps. The journal is None with several workers, or
    if `steps` is false.
    """
    missing = [k for k in folds if journal.known(fold_name(k)) is None]
    workers: Any = n_jobs
    if effective_n_jobs(workers) == 1:
        for k in missing:
            journal.once(fold_name(k), partial(work, k, journal.inside(fold_name(k)) if steps else None))
    else:
        for result, k in zip(as_they_come([delayed(work)(k, None) for k in missing], n_jobs), missing):
            journal.once(fold_name(k), lambda result=result: result)
    return [journal.known(fold_name(k)) for k in folds]


def as_they_come(jobs: list[Any], n_jobs: int | None) -> Iterable[Any]:
    """The results of joblib's jobs in order; each becomes available as soon as it is ready if the backend allows it."""
    try:
        pool = Parallel(n_jobs=n_jobs, return_as="generator")
    except ValueError:
        pool = Parallel(n_jobs=n_jobs)
    return cast(Iterable[Any], pool(jobs))


def _score(
    folded: FoldedLoss, learn: Learner, slopes: np.ndarray, k: int, journal: Journal | None = None
) -> FoldResult:
    """Learn all levels without fold `k` and score them on it."""
    logger.info("learning again without fold %d of %d", k + 1, len(folded.parts))
    rest = folded.without(k)
    levels = learn(rest) if journal is None else learn(rest, journal=journal)
    return score_levels(folded.parts[k], levels, slopes)


def score_levels(part: LeastSquares, levels: Mapping[str, GraphFit], slopes: np.ndarray) -> FoldResult:
    """Errors on the held-out rows `part` of levels that were learned without them, and the edges of the levels."""
    names = np.arange(part.n_tasks)
    links = {name: reported_graph(fit, names, slopes).edges for name, fit in levels.items() if len(fit.edges)}
    return FoldResult(part.cross_products([fit.coefficients for fit in levels.values()]), links)


def squared_errors(part: LeastSquares, levels: Iterable[GraphFit]) -> np.ndarray:
    """Squared errors of every level and task, shape (levels, n)."""
    return np.array([2.0 * part.task_values(fit.coefficients) for fit in levels])


def fold_name(k: int) -> str:
    """Key of a fold's result in a journal."""
    return f"fold {k}"


def held_out_of(folded: FoldedLoss, journal: Journal) -> CrossValidation | None:
    """The results of all folds in the journal; None if there are none."""
    done = {k: journal.known(fold_name(k)) for k in folded.scored}
    done = {k: result for k, result in done.items() if result is not None}
    return CrossValidation.of(folded, done) if done else None


def reported_graph(fit: GraphFit, task_names: np.ndarray, slopes: np.ndarray) -> TaskGraph:
    """The graph of a level that is shown to users, without weak edges.

    Its weights are the `reported_weights` of the fit if it has any, otherwise w_ij/√(max_i · max_j).
    """
    if fit.reported_weights is not None:
        return TaskGraph(fit.edges, fit.reported_weights, task_names).threshold(0.0)
    weights = fit.edge_weights(slopes)
    present = weights > 0
    return TaskGraph(fit.edges[present], weights[present], task_names).normalized().threshold(_REPORTED)
