"""What the models become when one edge is removed.

With w = eΛ, b = d_i − d_j and u = w_i − w_j, removing the edge (i, j) from A leaves A' = A − w·bbᵀ, and

    V' = V + A'⁻¹(b ⊗ wu) ,     S' = bᵀA'⁻¹b ,

where σ²S' is the covariance of w_i − w_j without the edge. Where the components of the graph are small, both have a
closed form (:mod:`ggmtl.solve.components`). Otherwise V' is one solve with all tasks. S' needs a solve for every
coefficient, so among many tasks it comes from the tasks near the edge, while the models of all others are held.

Measured with 21 coefficients on one thread: at 30,000 tasks a fit takes FIT s, the first explanation FIRST s.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ggmtl.bilevel.inner import InnerProblem, solve_inner
from ggmtl.bilevel.level import GraphFit, Settings, present_problem
from ggmtl.fit.levels import pooled_level
from ggmtl.kernels import one_blas_thread
from ggmtl.runtime.sizes import SIZES
from ggmtl.solve.components import Factors
from ggmtl.solve.solvers import prepare
from ggmtl.solve.system import TaskSystem, edge_between
from ggmtl.statistics.least_squares import FoldedLoss, LeastSquares

# Relative residual of the models of some rows. Where tasks have fewer rows than coefficients, 1e-9 leaves errors of the
# predictions wrong by up to 7e-5; 1e-11 brings that to 1e-6. Penalties that are not squared reach less.
_MODEL_TOL, _ROBUST_TOL = 1e-11, 3e-8
# Relative residual of a change of the models: errors are then right to 1e-8.
_CHANGE_TOL = 1e-8
# The error of S' is the square of this residual.
_COVARIANCE_TOL = 1e-3


@dataclass(frozen=True)
class TrainedModels:
    """The models of some rows, given the graph and its strengths.

    Parameters
    ----------
    problem : InnerProblem
        On these rows, with the edges of positive value only.
    values : array of shape (m,)
    models : array of shape (n, p)
        V.
    factors : Factors, optional
        Of the system of the models, where the components of its graph are small.
    near : int
        With more tasks than this, those near an edge are looked at first.
    """

    problem: InnerProblem
    values: np.ndarray
    models: np.ndarray
    factors: Factors | None = None
    near: int = SIZES.near_tasks

    @classmethod
    def of(
        cls, fit: GraphFit, loss: LeastSquares, settings: Settings, copies: int = 1, near: int = SIZES.near_tasks
    ) -> TrainedModels:
        """The fit's graph with the models of these rows; `copies` such factors are kept at the same time, 0: none."""
        problem, values = present_problem(fit, loss, settings)
        if not np.isfinite(fit.hub).all():
            return cls(problem, values, pooled_level(problem.loss, settings).coefficients, near=near)
        if problem.penalty != "squared_l2":
            models = solve_inner(problem, values, fit.coefficients, tol=_ROBUST_TOL).coefficients
            return cls(problem, values, models, near=near)
        system, right = problem.system(values), problem.loss.moment
        factors = Factors.of(system, copies) if copies else None
        if factors is not None:
            # As exact as rounding allows: next to heavy tasks, a small residual says little about light ones.
            return cls(problem, values, factors.solve(right, tol=0.0).value, factors, near)
        models = prepare(system).solve(right, fit.coefficients, _MODEL_TOL).require(1e-6).value
        return cls(problem, values, models, near=near)

    def change(self, i: int, j: int) -> np.ndarray:
        """V' − V without the edge (i, j), shape (n, p)."""
        edge = edge_between(self.problem.edges, i, j)
        if not edge.any():
            return np.zeros_like(self.models)
        left = np.where(edge, 0.0, self.values)
        if self.problem.penalty != "squared_l2":
            return solve_inner(self.problem, left, self.models, tol=_ROBUST_TOL).coefficients - self.models
        weight = self._weight(i, j)
        right = _pull(self.models, i, j, weight)
        if self.factors is not None:
            tol = _CHANGE_TOL * float(np.linalg.norm(right))
            found = self.factors.change(self.factors.pair(i, j), self.models, weight, tol)
            if found is not None:
                return found
        system, start = self.problem.system(left), None
        if len(right) > self.near:
            # A start from the tasks near the edge saves up to two thirds of the steps.
            near, part = near_tasks(system, i, j, self.near)
            start = np.zeros_like(right)
            start[near] = prepare(part).solve(right[near], tol=_CHANGE_TOL).require(1e-3).value
        return prepare(system).solve(right, start, _CHANGE_TOL).require(1e-6).value

    def pair_without(self, i: int, j: int) -> tuple[np.ndarray, np.ndarray]:
        """The models of i < j without their edge, shape (2, p), and S', shape (p, p)."""
        pair, weight = [i, j], self._weight(i, j)
        if not np.isfinite(self.problem.hub).all():
            # One model for all tasks: the two do not differ.
            return self.models[pair], np.zeros((self.models.shape[1],) * 2)
        if self.factors is not None:
            covariance = self.factors.covariance(self.factors.pair(i, j), weight)
            if covariance is not None:
                return self.models[pair] + self.change(i, j)[pair], covariance
        left = np.where(edge_between(self.problem.edges, i, j), 0.0, self.values)
        if self.problem.penalty == "squared_l2" and len(self.models) > self.near:
            near, part = near_tasks(self.problem.system(left), i, j, self.near)
            first, second = np.searchsorted(near, pair).tolist()
            right = _pull(self.models[near], first, second, weight)
            change = prepare(part).solve(right, tol=_CHANGE_TOL).require(1e-3).value
            return self.models[pair] + change[[first, second]], difference_covariance(part, first, second)
        after = self.models + self.change(i, j)
        return after[pair], difference_covariance(self.problem.hessian(after, left), i, j)

    def own_noise(self, i: int, j: int, ratios: np.ndarray) -> np.ndarray:
        """What S' lacks where the rows of task i vary by ratio_i·σ²: Σ_i (ratio_i − 1) D_i⁻¹G_iD_i⁻¹.

        D_i are the diagonal blocks of A': the models follow their own rows by D_i⁻¹, and a little more.
        """
        left, pair = np.where(edge_between(self.problem.edges, i, j), 0.0, self.values), np.array([i, j])
        part = _held(self.problem.system(left), pair)
        inverse = np.linalg.inv(part.diagonal_blocks())
        return np.tensordot(ratios[pair] - 1.0, inverse @ part.gram @ inverse, axes=1)

    def _weight(self, i: int, j: int) -> np.ndarray:
        return self.values[edge_between(self.problem.edges, i, j)].sum() * self.problem.coupling


@dataclass(frozen=True)
class EdgeEffect:
    """What an edge does, in scaled units.

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


class EdgeRemovals:
    """The effects of removing single edges of a fit.

    Parameters
    ----------
    fit : GraphFit
    folded : FoldedLoss
        Errors are those on held-out folds, or on all rows where there are no folds.
    settings : Settings
    ratios : array of shape (n,), optional
        σ_i²/σ² where tasks differ in noise.
    source : optional
        Where the losses come from; only kept.
    closed_form : bool
        Whether to look for it.
    near : int
        As in :class:`TrainedModels`.
    """

    @one_blas_thread()
    def __init__(
        self,
        fit: GraphFit,
        folded: FoldedLoss,
        settings: Settings,
        ratios: np.ndarray | None = None,
        source: Any = None,
        *,
        closed_form: bool = True,
        near: int = SIZES.near_tasks,
    ):
        self.fit, self.source, self.held_out = fit, source, bool(folded.scored)
        copies = len(folded.scored) + 1 if closed_form else 0
        rows = [(folded.training(k), folded.parts[k]) for k in folded.scored] or [(folded.total, folded.total)]
        self._scored = [(TrainedModels.of(fit, training, settings, copies, near), scored) for training, scored in rows]
        problem, values = present_problem(fit, folded.total, settings)
        is_separable = problem.penalty == "squared_l2" and np.isfinite(fit.hub).all()
        factors = Factors.of(problem.system(values), copies) if is_separable and copies else None
        self._total = TrainedModels(problem, values, fit.coefficients, factors, near)
        # Rows that are weighted by their noise vary by σ², as does what one model for all tasks leaves.
        self._ratios = ratios if is_separable and fit.precisions is None else None

    @one_blas_thread()
    def of_edge(self, i: int, j: int) -> EdgeEffect:
        """The effect of the edge between the tasks at positions i < j, whether there is one or not."""
        squares, rows = np.zeros((2, 2)), np.zeros(2)
        for trained, scored in self._scored:
            models = (trained.models, trained.models + trained.change(i, j))
            for k, each in enumerate(models):
                of_task = 2.0 * scored.task_values(each)
                squares[:, k] += of_task[[i, j]].sum(), of_task.sum()
            rows += scored.count[[i, j]].sum(), scored.count.sum()
        after, covariance = self._total.pair_without(i, j)
        if self._ratios is not None:
            covariance = covariance + self._total.own_noise(i, j, self._ratios)
        pair, everyone = squares / np.where(rows > 0, rows, 1.0)[:, None]
        return EdgeEffect(self._total.models[[i, j]], after, covariance, pair, everyone)


def difference_covariance(system: TaskSystem, i: int, j: int) -> np.ndarray:
    """bᵀA⁻¹b with b = d_i − d_j, shape (p, p)."""
    n, p = system.shape
    right = np.zeros((n, p, p))
    right[i], right[j] = np.eye(p), -np.eye(p)
    response = prepare(system).solve(right, tol=_COVARIANCE_TOL).require(1e-2).value
    # bᵀA⁻¹b = bᵀX + Xᵀ(b − AX) + O(‖b − AX‖²) for an inexact X.
    residual = right - system.apply(response)
    covariance = response[i] - response[j] + np.tensordot(response, residual, ([0, 1], [0, 1]))
    return 0.5 * (covariance + covariance.T)


def near_tasks(system: TaskSystem, i: int, j: int, least: int = SIZES.near_tasks) -> tuple[np.ndarray, TaskSystem]:
    """The tasks within so many links of i or j that they are at least `least`, and A on these.

    They are all tasks that are connected to the two where those are fewer. All others and the common model are held.
    """
    tasks = np.array(sorted((i, j)))
    while len(tasks) < least:
        touched = np.isin(system.edges, tasks).any(axis=1)
        wider = np.union1d(tasks, system.edges[touched])
        if len(wider) == len(tasks):
            break
        tasks = wider
    return tasks, _held(system, tasks)


def _held(system: TaskSystem, tasks: np.ndarray) -> TaskSystem:
    """A on some tasks of a separable system, in rising order, while all others and the common model are held."""
    n, p = system.shape
    place = np.full(n, -1)
    place[tasks] = np.arange(len(tasks))
    ends = place[system.edges]
    inside, touched = (ends >= 0).all(axis=1), (ends >= 0).any(axis=1)
    leaving = touched & ~inside
    outside = np.bincount(ends[leaving].max(axis=1, initial=-1), system.edge_weights[leaving], len(tasks))
    ridge = np.broadcast_to(system.ridge, (n, p))[tasks] + system.hub + outside[:, None] * system.coupling
    weights = system.edge_weights[inside]
    return replace(
        system, gram=system.gram[tasks], edges=ends[inside], edge_weights=weights, hub=np.zeros(p), ridge=ridge
    )


def _pull(models: np.ndarray, i: int, j: int, weight: np.ndarray) -> np.ndarray:
    """b ⊗ wu, shape (n, p), for w of shape (p,)."""
    right = np.zeros_like(models)
    right[i] = weight * (models[i] - models[j])
    right[j] = -right[i]
    return right
