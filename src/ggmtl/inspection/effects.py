"""What one edge does to every model, on all rows and without each fold.

The models beside the fitted graph are the same for every edge that is asked about: they are solved once per model. What
an edge changes is, on all rows and on each fold, a solve with a right-hand side at two tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np

from ggmtl.bilevel import present_problem
from ggmtl.inner import InnerProblem, solve_inner
from ggmtl.posterior import WithoutEdge, without_edge
from ggmtl.posterior.neighbourhood import Links, Near
from ggmtl.posterior.removal import (
    HUB_LEFT_OVER,
    LEFT_OVER,
    MODEL_TOL,
    Around,
    FewSolves,
    around,
    change_without_edge,
    links_of,
)
from ggmtl.regressor import GGMTLRegressor
from ggmtl.statistics import LeastSquares


@dataclass(frozen=True)
class Part:
    """The models of some of the rows beside the fitted graph.

    Parameters
    ----------
    scored : LeastSquares
        Rows that the models are scored on.
    problem : InnerProblem, optional
        None where there is one model for all tasks: no edge can change it.
    values : array of shape (m,)
        Edge values of the problem.
    start : array of shape (n, p)
        Models to start from, or the models themselves where there is no problem.
    tol : float
        Relative residual of the models.
    """

    scored: LeastSquares
    problem: InnerProblem | None
    values: np.ndarray
    start: np.ndarray
    tol: float = MODEL_TOL

    @cached_property
    def solver(self) -> FewSolves | None:
        """Of the system with all edges, for the squared penalty."""
        if self.problem is None or self.problem.penalty != "squared_l2":
            return None
        return FewSolves(self.problem.system(self.values))

    @cached_property
    def before(self) -> np.ndarray:
        """Models with all edges, shape (n, p); those to start from where they are good enough."""
        if self.problem is None:
            return self.start
        if self.solver is None:
            return solve_inner(self.problem, self.values, self.start, tol=self.tol).coefficients
        moment = self.problem.loss.moment
        gap = float(np.linalg.norm(moment - self.solver.system.apply(self.start)))
        good = gap <= self.tol * float(np.linalg.norm(moment))
        return self.start if good else self.solver.solve(moment, self.start, self.tol)

    def without(self, i: int, j: int, near: Near | None) -> np.ndarray:
        """Models without the edge (i, j), given the tasks near it."""
        edge = self._edge(i, j)
        if self.problem is None or not edge.any():
            return self.before
        if self.problem.penalty == "squared_l2":
            known = (near, self.solver, self._residual(i, j, near))
            return self.before + change_without_edge(self.problem, self.values, self.before, i, j, *known)
        return solve_inner(self.problem, np.where(edge, 0.0, self.values), self.before, tol=MODEL_TOL).coefficients

    def removal(self, i: int, j: int, near: Around, scored: bool) -> WithoutEdge:
        """The same with the covariance of w_i − w_j; to a thousandth of the change where nothing is `scored` by it."""
        if self.problem is None:
            width = self.before.shape[1]
            return WithoutEdge(self.before, self.before, np.zeros((width, width)))
        residual = self._residual(i, j, near.change) if scored else np.inf
        return without_edge(self.problem, self.values, i, j, self.before, self.solver, near, residual)

    @cached_property
    def errors(self) -> np.ndarray:
        """Sum of squared errors of every task with all edges, shape (n,)."""
        return 2.0 * self.scored.task_values(self.before)

    def errors_of(self, models: np.ndarray) -> np.ndarray:
        """The same for other models, most of which may be as before."""
        moved = np.flatnonzero((models != self.before).any(axis=1))
        if 2 * len(moved) > len(models):
            return 2.0 * self.scored.task_values(models)
        errors = self.errors.copy()
        errors[moved] = 2.0 * self.scored.of_tasks(moved).task_values(models[moved])
        return errors

    def _residual(self, i: int, j: int, near: Near | None) -> float:
        """What may be left over of a change: as little as of the models, or beside the moments of the two tasks."""
        moment = np.zeros((0, 1)) if self.problem is None else self.problem.loss.moment
        share = HUB_LEFT_OVER if near is None or near.is_closed else LEFT_OVER
        return max(MODEL_TOL * float(np.linalg.norm(moment)), share * float(np.linalg.norm(moment[[i, j]])))

    def _edge(self, i: int, j: int) -> np.ndarray:
        if self.problem is None:
            return np.zeros(0, dtype=bool)
        return (self.problem.edges == [i, j]).all(axis=1)


@dataclass(frozen=True)
class Effects:
    """All rows, and the training rows of every fold that is held out; σ² in scaled units."""

    statistics: object
    result: object
    total: Part
    folds: tuple[Part, ...]
    noise: float

    def around(self, i: int, j: int) -> Around:
        """The tasks near i and j, where something is gained by looking at them alone."""
        return around(self._links, i, j, self.total.before.shape[1])

    @cached_property
    def _links(self) -> Links | None:
        return None if self.total.problem is None else links_of(self.total.problem, self.total.values)


_KNOWN: WeakKeyDictionary[GGMTLRegressor, Effects] = WeakKeyDictionary()


def effects_of(model: GGMTLRegressor) -> Effects:
    """The parts of a model, solved at the first question and kept while the model lives and does not change."""
    known = _KNOWN.get(model)
    if known is not None and known.statistics is model._statistics and known.result is model._path_result:
        return known
    folded = model._folded()
    folds = tuple(_part(model, folded.training(k), folded.parts[k]) for k in folded.scored)
    # Where folds are scored, all rows only say which way the coefficients moved: the fit's own accuracy will do.
    total = _part(model, folded.total, folded.total, model._fit_used.coefficients, 1e-5 if folds else MODEL_TOL)
    noise = model._noise_variance(folded)
    _KNOWN[model] = Effects(model._statistics, model._path_result, total, folds, noise)
    return _KNOWN[model]


def _part(
    model: GGMTLRegressor,
    training: LeastSquares,
    scored: LeastSquares,
    pooled: np.ndarray | None = None,
    tol: float = MODEL_TOL,
) -> Part:
    fit, settings = model._fit_used, model._settings_used
    if np.isfinite(fit.hub).all():
        return Part(scored, *present_problem(fit, training, settings), fit.coefficients, tol)
    if pooled is None:
        ridge = np.diag(np.where(settings.slopes, settings.ridge, 0.0))
        gram, moment = fit.weighed(training).pooled()
        one = np.linalg.lstsq(gram + ridge, moment, rcond=None)[0]
        pooled = np.tile(one, (training.n_tasks, 1))
    return Part(scored, None, np.zeros(0), pooled)
