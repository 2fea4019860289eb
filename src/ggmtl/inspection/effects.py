"""What one edge does to the models and to the errors, on all rows and without each fold.

The models beside the fitted graph are the same for every edge that is asked about: the fit, or else the first question,
surveys them once. Where the graph falls into small parts, what an edge changes is then known in closed form. Else it is
a matter of the tasks near the edge; where those do not tell it well enough, and where there are few tasks in all, it is
a solve of all tasks with a right-hand side at two.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np

from ggmtl.bilevel.inner import InnerProblem, solve_inner
from ggmtl.bilevel.level import present_problem
from ggmtl.estimators.base import logger, verbose_logging
from ggmtl.estimators.regressor import GGMTLRegressor
from ggmtl.evidence.scaled_problem import is_vast
from ggmtl.inference.few_solves import ROBUST_TOL, FewSolves
from ggmtl.inference.nearby import Change, Nearby
from ggmtl.inference.neighbourhood import Links, Near, few_size, near_size
from ggmtl.inference.removal import WithoutEdge, change_without_edge, residual_of_change, without_edge
from ggmtl.inference.survey import Overview
from ggmtl.kernels import one_blas_thread
from ggmtl.solve.components import Factors, Pair
from ggmtl.solve.system import edge_between
from ggmtl.statistics.least_squares import FoldedLoss, LeastSquares
from ggmtl.statistics.task_statistics import TaskStatistics

# Where the tasks near do not tell a variance, so many times as many are looked at next; and where they do not tell the
# errors, at least so many, or as many as what is in doubt, to this power, asks for. From this share of all tasks on it
# is as well to look at all.
_WIDER, _LEAST_WIDER, _WIDER_POWER, _MOST_NEAR = 3, 1.5, 0.4, 0.4


@dataclass(frozen=True)
class EdgeEffect:
    """What an edge does.

    Parameters
    ----------
    before, after : arrays of shape (2, p)
        Models of the two tasks on all rows, with and without the edge.
    covariance : array of shape (p, p)
        Covariance of their difference without the edge, in units of σ².
    pair_errors, errors : arrays of shape (2,)
        Mean squared errors with and without the edge: of the two tasks, and of all.
    """

    before: np.ndarray
    after: np.ndarray
    covariance: np.ndarray
    pair_errors: np.ndarray
    errors: np.ndarray


@dataclass(frozen=True)
class Squares:
    """Sums of squared errors with and without an edge, shape (2,), and their rows: of the two tasks, and of all."""

    pair: np.ndarray
    pair_rows: float
    everyone: np.ndarray
    rows: float


@dataclass(frozen=True)
class Part:
    """All tasks, on some rows; no problem where there is one model for all of them."""

    scored: LeastSquares
    overview: Overview
    problem: InnerProblem | None
    values: np.ndarray

    @cached_property
    def solver(self) -> FewSolves | None:
        """Of the system with all edges, for the squared penalty."""
        if self.problem is None or self.problem.penalty != "squared_l2":
            return None
        return FewSolves(self.problem.system(self.values))

    def squares(self, i: int, j: int, start: np.ndarray | None = None) -> Squares:
        """With and without the edge (i, j); its change may be known roughly."""
        models = (self.overview.models, self._without(i, j, start))
        both = np.array([2.0 * self.scored.task_values(each) for each in models])
        rows = float(self.scored.count[[i, j]].sum())
        return Squares(both[:, [i, j]].sum(axis=1), rows, both.sum(axis=1), self.overview.rows)

    def removal(self, i: int, j: int) -> WithoutEdge:
        """The models with and without the edge (i, j), and the covariance of w_i − w_j."""
        before = self.overview.models
        if self.problem is None:
            width = before.shape[1]
            return WithoutEdge(before, before, np.zeros((width, width)))
        if self.overview.factors is not None:
            pair, weight = self.overview.factors.pair(i, j), self._weight(self.problem, i, j)
            change = self._change(self.overview.factors, pair, weight, self.problem)
            covariance = self.overview.factors.covariance(pair, weight)
            if change is not None and covariance is not None:
                return WithoutEdge(before, before + change, covariance)
        return without_edge(self.problem, self.values, i, j, before, self.solver)

    def _without(self, i: int, j: int, start: np.ndarray | None) -> np.ndarray:
        before, problem = self.overview.models, self.problem
        if problem is None or not (edge := edge_between(problem.edges, i, j)).any():
            return before
        if (factors := self.overview.factors) is not None:
            change = self._change(factors, factors.pair(i, j), self._weight(problem, i, j), problem)
            if change is not None:
                return before + change
        if self.solver is None:
            return solve_inner(problem, np.where(edge, 0.0, self.values), before, tol=ROBUST_TOL).coefficients
        return before + change_without_edge(problem, self.values, before, i, j, self.solver, start)

    def _weight(self, problem: InnerProblem, i: int, j: int) -> np.ndarray:
        return self.values[edge_between(problem.edges, i, j)].sum() * problem.coupling

    def _change(self, factors: Factors, pair: Pair, weight: np.ndarray, problem: InnerProblem) -> np.ndarray | None:
        """V' − V in closed form; None where rounding spoils it."""
        models = self.overview.models
        size = np.sqrt(2.0) * float(np.linalg.norm(weight * (models[pair.i] - models[pair.j])))
        return factors.change(pair, models, weight, residual_of_change(size, problem.loss.moment))


@dataclass(frozen=True)
class Question:
    """Two tasks, all that are tied to them in their order, and those near with their losses."""

    i: int
    j: int
    order: np.ndarray
    near: Near
    losses: FoldedLoss

    def rows(self, fold: int | None) -> tuple[LeastSquares, LeastSquares]:
        """The rows that the tasks near are fitted to without a fold, and those of the fold; without None, all rows."""
        if fold is None:
            return self.losses.total, self.losses.total
        return self.losses.training(fold), self.losses.parts[fold]


class Effects:
    """The effects of the edges of one fitted model; σ² in scaled units."""

    def __init__(self, model: GGMTLRegressor):
        self.statistics, self.result = model._kept_statistics("explain_edge"), model._path_result
        self._fit, self._settings = model._fit_used, model._settings_used
        self._scaling, self._scored_from = model._scaling, model._scored_from
        n, p = self._fit.coefficients.shape
        with verbose_logging(int(model._survey is None and is_vast(n, p))):
            logger.info("explaining edges: a look at all %d tasks, once for this model", n)
            self._survey, self.noise = model._surveyed()
        present = self._fit.edge_values > 0
        self._edges, self._values = self._fit.edges[present], self._fit.edge_values[present]
        self._parts: dict[int | None, Part] = {}
        # σ_i²/σ² where tasks differ in noise and their rows are not weighed by it.
        is_weighed = self._fit.precisions is not None or not np.isfinite(self._fit.hub).all()
        self._ratios = None if is_weighed else model._noise_ratios()

    @property
    def held_out(self) -> bool:
        """Whether errors are those of rows that the models have not seen."""
        return bool(self._survey.folds)

    @one_blas_thread()
    def of_edge(self, i: int, j: int) -> EdgeEffect:
        """Of the edge between the tasks at positions i < j, whether there is one or not."""
        question = self._question(i, j)
        if question is None:
            squares = [self._part(fold).squares(i, j) for fold in self._scored]
            pair = self._pair_among_all(i, j)
        else:
            squares = self._squares_nearby(question)
            pair = self._pair(question)
        pair_errors = np.sum([part.pair for part in squares], axis=0)
        errors = np.sum([part.everyone for part in squares], axis=0)
        pair_rows, rows = sum(part.pair_rows for part in squares), sum(part.rows for part in squares)
        before, after, covariance = pair
        covariance = covariance + self._own_noise(i, j)
        return EdgeEffect(before, after, covariance, pair_errors / (pair_rows or 1.0), errors / rows)

    @property
    def _scored(self) -> list[int | None]:
        """The folds whose errors are asked for; None, for all rows, where there are no folds."""
        return [*self._survey.folds] or [None]

    # ------------------------------------------------------------------ all tasks

    def _overview(self, fold: int | None) -> Overview:
        return self._survey.total if fold is None else self._survey.folds[fold]

    def _part(self, fold: int | None) -> Part:
        """All tasks on the rows outside a fold, or on all rows; prepared at the first question that needs it."""
        if fold not in self._parts:
            folded = self._losses
            training, scored = (folded.total,) * 2 if fold is None else (folded.training(fold), folded.parts[fold])
            several = np.isfinite(self._fit.hub).all()
            found = present_problem(self._fit, training, self._settings) if several else (None, np.zeros(0))
            self._parts[fold] = Part(scored, self._overview(fold), *found)
        return self._parts[fold]

    @cached_property
    def _losses(self) -> FoldedLoss:
        return self._folded(self.statistics)

    def _pair_among_all(self, i: int, j: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        removal = self._part(None).removal(i, j)
        return removal.before[[i, j]], removal.coefficients[[i, j]], removal.difference_covariance

    def _own_noise(self, i: int, j: int) -> np.ndarray | float:
        """What is to be added to S' where the rows of the two do not vary by σ²: Σ_i (σ_i²/σ² − 1) D_i⁻¹G_iD_i⁻¹.

        D_i are the diagonal blocks of A without the edge: the models follow their own rows by D_i⁻¹, and a little more.
        """
        if self._ratios is None or self._settings.penalty != "squared_l2":
            return 0.0
        near = self._links.near(np.array([i, j]), 2)
        loss = self._folded(self.statistics.take(near.tasks)).total
        inverse = np.linalg.inv(self._nearby(i, j, near, loss).without_edge.diagonal_blocks())
        return np.tensordot(self._ratios[near.tasks] - 1.0, inverse @ loss.gram @ inverse, axes=1)

    def _folded(self, statistics: TaskStatistics) -> FoldedLoss:
        return FoldedLoss(tuple(self._scaling.design(statistics)), self._scored_from)

    # ------------------------------------------------------------------ the tasks near

    def _question(self, i: int, j: int) -> Question | None:
        """None where all tasks answer it better."""
        if self._survey.common is None:
            return None
        order = self._links.order(i, j)
        return self._asked(i, j, order, near_size(self._fit.coefficients.shape[1], len(order)))

    def _asked(self, i: int, j: int, order: np.ndarray, size: int) -> Question:
        """About so many of the tasks tied to the two."""
        near = self._links.near(order, size)
        return Question(i, j, order, near, self._folded(self.statistics.take(near.tasks)))

    @cached_property
    def _links(self) -> Links:
        weights = 1.0 if self._fit.precisions is None else self._fit.precisions
        return Links.of(self._edges, self._values, self._fit.coupling, self.statistics.count * weights)

    def _nearby(self, i: int, j: int, near: Near, loss: LeastSquares) -> Nearby:
        """The system of some tasks near the two, given their loss."""
        fit = self._fit
        problem = self._settings.problem(fit.weighed(loss, near.tasks), near.edges, fit.coupling, fit.hub)
        part = problem.system(self._values[near.index])
        return Nearby(near, *near.places(i, j), part)

    def _squares_nearby(self, question: Question) -> list[Squares]:
        """The errors of every fold: from the tasks near, from more of them, or, where those will not do, from all."""
        found = []
        for fold in self._scored:
            change, squares = self._squares(question, fold)
            while squares is None and change is not None and (size := self._wider(question, change.doubt)):
                question = self._asked(question.i, question.j, question.order, size)
                change, squares = self._squares(question, fold)
            found.append(squares or self._squares_of_all(question, fold, change))
        return found

    def _squares_of_all(self, question: Question, fold: int | None, change: Change | None) -> Squares:
        """The errors from all tasks, given what those near say of the change."""
        part = self._part(fold)
        if change is None:
            return part.squares(question.i, question.j)
        start = np.tile(change.followed, (len(part.overview.models), 1))
        start[question.near.tasks] = change.models
        return part.squares(question.i, question.j, start)

    def _wider(self, question: Question, doubt: float) -> int:
        """How many tasks to look at next; none where it is as well to look at all."""
        if not np.isfinite(doubt) or question.near.is_closed:
            return 0
        size = int(max(doubt**_WIDER_POWER, _LEAST_WIDER) * len(question.near.tasks))
        return min(size, len(question.order)) if size <= _MOST_NEAR * len(self._fit.coefficients) else 0

    def _squares(self, question: Question, fold: int | None) -> tuple[Change | None, Squares | None]:
        """What the edge changes, and the errors where the tasks near tell them."""
        near, overview = question.near, self._overview(fold)
        if overview.far is None:
            return None, None
        training, scored = question.rows(fold)
        nearby, models = self._nearby(question.i, question.j, near, training), overview.models[near.tasks]
        change = nearby.change(overview, overview.far, scored)
        if not change.is_enough:
            return change, None
        pair = [nearby.first, nearby.second]
        both = np.array([2.0 * scored.task_values(each)[pair].sum() for each in (models, models + change.models)])
        everyone = overview.error + np.array([0.0, nearby.gained(change, overview, overview.far, scored)])
        return change, Squares(both, float(scored.count[pair].sum()), everyone, overview.rows)

    def _pair(self, question: Question) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Models of the two on all rows with and without the edge, and S'."""
        pair, models, common = [question.i, question.j], self._survey.total.models, self._survey.common
        near, size = question.near, few_size(self._fit.coefficients.shape[1])
        while common is not None:
            few = self._links.near(question.order, min(size, len(near.tasks)))
            loss = question.losses.total.of_tasks(np.searchsorted(near.tasks, few.tasks))
            covariance = self._nearby(question.i, question.j, few, loss).covariance(common)
            if covariance is not None:
                nearby = self._nearby(question.i, question.j, near, question.losses.total)
                moved = nearby.rough_change(models[near.tasks], common)[[nearby.first, nearby.second]]
                return models[pair], models[pair] + moved, covariance
            if len(few.tasks) == len(near.tasks):
                break
            size *= _WIDER
        return self._pair_among_all(question.i, question.j)


_KNOWN: WeakKeyDictionary[GGMTLRegressor, Effects] = WeakKeyDictionary()


def effects_of(model: GGMTLRegressor) -> Effects:
    """The effects of the edges of a model, prepared at the first question and kept while the model does not change."""
    known = _KNOWN.get(model)
    if known is None or known.statistics is not model._statistics or known.result is not model._path_result:
        known = _KNOWN[model] = Effects(model)
    return known
