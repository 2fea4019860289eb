"""What one edge does to every model, on all rows and without each fold.

The models beside the fitted graph are the same for every edge that is asked about: they are solved once per model. What
an edge changes is, on all rows and on each fold, a solve with a right-hand side at two tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from ggmtl.bilevel import present_problem
from ggmtl.inner import InnerProblem, solve_inner
from ggmtl.posterior import WithoutEdge, without_edge
from ggmtl.posterior.removal import MODEL_TOL, FewSolves, change_without_edge
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
    before : array of shape (n, p)
        Models with all edges.
    solver : FewSolves, optional
        Of the system with all edges, for the squared penalty.
    """

    scored: LeastSquares
    problem: InnerProblem | None
    values: np.ndarray
    before: np.ndarray
    solver: FewSolves | None = None

    def without(self, i: int, j: int, part: np.ndarray | None) -> np.ndarray:
        """Models without the edge (i, j), given the part of the graph that it is in."""
        edge = self._edge(i, j)
        if self.problem is None or not edge.any():
            return self.before
        if self.problem.penalty == "squared_l2":
            return self.before + change_without_edge(self.problem, self.values, self.before, i, j, part, self.solver)
        return solve_inner(self.problem, np.where(edge, 0.0, self.values), self.before, tol=MODEL_TOL).coefficients

    def removal(self, i: int, j: int) -> WithoutEdge:
        """The same with the covariance of w_i − w_j."""
        if self.problem is None:
            width = self.before.shape[1]
            return WithoutEdge(self.before, self.before, np.zeros((width, width)))
        return without_edge(self.problem, self.values, i, j, self.before, self.solver)

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
    folds = tuple(_part(model, folded.training(k), folded.parts[k]) for k in folded.scored)
    # Where folds are scored, all rows only say which way the coefficients moved: the fit's own accuracy will do.
    total = _part(model, folded.total, folded.total, model._fit_used.coefficients, 1e-6 if folds else MODEL_TOL)
    _KNOWN[model] = Effects(model._statistics, model._path_result, total, folds)
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
        problem, values = present_problem(fit, training, settings)
        if problem.penalty == "squared_l2":
            solver = FewSolves(problem.system(values))
            before = _solved(solver, problem.loss.moment, fit.coefficients, tol)
            return Part(scored, problem, values, before, solver)
        before = solve_inner(problem, values, fit.coefficients, tol=tol).coefficients
        return Part(scored, problem, values, before)
    if pooled is None:
        ridge = np.diag(np.where(settings.slopes, settings.ridge, 0.0))
        gram, moment = fit.weighed(training).pooled()
        one = np.linalg.lstsq(gram + ridge, moment, rcond=None)[0]
        pooled = np.tile(one, (training.n_tasks, 1))
    return Part(scored, None, np.zeros(0), pooled)


def _solved(solver: FewSolves, moment: np.ndarray, known: np.ndarray, tol: float) -> np.ndarray:
    """The models, `known` itself where it is good enough."""
    gap = float(np.linalg.norm(moment - solver.system.apply(known)))
    return known if gap <= tol * float(np.linalg.norm(moment)) else solver.solve(moment, known, tol)
