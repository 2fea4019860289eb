"""What one edge does to every model, on all rows and without each fold.

The models beside the fitted graph are the same for every edge that is asked about: they are solved once per model. What
an edge adds is a low-rank change of A on all rows, and a solve that starts from the fold's models on each fold.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from ggmtl.inner import InnerProblem, solve_inner
from ggmtl.posterior import WithoutEdge, present_problem, without_edge
from ggmtl.regressor import GGMTLRegressor
from ggmtl.solvers import prepare
from ggmtl.statistics import LeastSquares

# Relative residual of a solve: changes of an error are then right to far better than a millionth.
_TOL = 1e-10


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
    before : array of shape (n, p)
        Models with all edges.
    """

    scored: LeastSquares
    problem: InnerProblem | None
    values: np.ndarray
    before: np.ndarray

    def without(self, i: int, j: int) -> np.ndarray:
        """Models without the edge (i, j)."""
        edge = self._edge(i, j)
        if self.problem is None or not edge.any():
            return self.before
        return solve_inner(self.problem, np.where(edge, 0.0, self.values), self.before, tol=_TOL).coefficients

    def removal(self, i: int, j: int) -> WithoutEdge:
        """The same with the covariance of w_i − w_j."""
        width = self.before.shape[1]
        if self.problem is None:
            return WithoutEdge(self.before, self.before, np.zeros((width, width)))
        if self._edge(i, j).any():
            return without_edge(self.problem, self.values, i, j)
        right = np.zeros((*self.before.shape, width))
        right[i], right[j] = np.eye(width), -np.eye(width)
        response = prepare(self.problem.hessian(self.before, self.values)).solve(right, tol=_TOL).require(1e-6).value
        return WithoutEdge(self.before, self.before, response[i] - response[j])

    def _edge(self, i: int, j: int) -> np.ndarray:
        if self.problem is None:
            return np.zeros(0, dtype=bool)
        return (self.problem.edges == [i, j]).all(axis=1)


@dataclass(frozen=True)
class Effects:
    """All rows, and the training rows of every fold that is held out."""

    statistics: object
    result: object
    total: Part
    folds: tuple[Part, ...]


_KNOWN: WeakKeyDictionary[GGMTLRegressor, Effects] = WeakKeyDictionary()


def effects_of(model: GGMTLRegressor) -> Effects:
    """The parts of a model, solved at the first question and kept while the model lives and does not change."""
    known = _KNOWN.get(model)
    if known is not None and known.statistics is model._statistics and known.result is model._path_result:
        return known
    folded = model._folded()
    total = _part(model, folded.total, folded.total, pooled=model._fit_used.coefficients)
    folds = tuple(_part(model, folded.training(k), folded.parts[k]) for k in folded.scored)
    _KNOWN[model] = Effects(model._statistics, model._path_result, total, folds)
    return _KNOWN[model]


def _part(
    model: GGMTLRegressor, training: LeastSquares, scored: LeastSquares, pooled: np.ndarray | None = None
) -> Part:
    fit, settings = model._fit_used, model._settings_used
    if np.isfinite(fit.hub).all():
        problem, values = present_problem(fit, training, settings)
        before = solve_inner(problem, values, fit.coefficients, tol=_TOL).coefficients
        return Part(scored, problem, values, before)
    if pooled is None:
        ridge = np.diag(np.where(settings.slopes, settings.ridge, 0.0))
        one = np.linalg.lstsq(training.gram.sum(axis=0) + ridge, training.moment.sum(axis=0), rcond=None)[0]
        pooled = np.tile(one, (training.n_tasks, 1))
    return Part(scored, None, np.zeros(0), pooled)
