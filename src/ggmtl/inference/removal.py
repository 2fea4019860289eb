"""The models without one edge.

With w = eΛ, b = d_i − d_j and u = w_i − w_j, removing the edge (i, j) from A leaves A' = A − w·bbᵀ, and

    V' = V + A'⁻¹(b ⊗ wu) ,     S' = bᵀA'⁻¹b ,

where σ²S' is the covariance of w_i − w_j without the edge. V' is one solve with all tasks. S' needs one solve per
coefficient. With many tasks it is computed from the tasks near the edge, with the models of all others held fixed.

Measured in processor seconds (benchmarks/reading.py): with 30,000 tasks and 21 coefficients a fit takes 18 s, the first
explanation 2.8 s, most of it for the models without the held-out fold, and each later one 1.0 s. With up to 2,000 tasks
both take less than 0.5 s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ggmtl.bilevel.inner import InnerProblem, solve_inner
from ggmtl.bilevel.level import GraphFit, Settings, present_problem
from ggmtl.fit.levels import pooled_level
from ggmtl.fit.outcome_levels import beside_edges, graph_mode
from ggmtl.inference.posterior import embedded
from ggmtl.losses.rowwise import RowLoss
from ggmtl.losses.task_rows import FoldedRows, TaskRows
from ggmtl.runtime.machine import one_blas_thread
from ggmtl.solve.solvers import prepare
from ggmtl.solve.system import TaskSystem, edge_between
from ggmtl.statistics.least_squares import FoldedLoss, LeastSquares

# Relative residual of the models of some rows. Where tasks have fewer rows than coefficients, 1e-9 leaves errors of the
# predictions wrong by up to 7e-5; 1e-11 brings that to 1e-6. Penalties that are not squared reach less.
_MODEL_TOL, _ROBUST_TOL = 1e-11, 3e-8
# Relative residual of a change of the models: errors are then right to 1e-8.
_CHANGE_TOL = 1e-8
# The error of S' is the square of this residual.
_COVARIANCE_TOL = 1e-5


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
    ratios : array of shape (n,), optional
        σ_i²/σ² where tasks differ in noise and their rows have equal weights.
    """

    problem: InnerProblem
    values: np.ndarray
    models: np.ndarray
    ratios: np.ndarray | None = None

    @classmethod
    def of(cls, fit: GraphFit, loss: LeastSquares, settings: Settings) -> TrainedModels:
        """The fit's graph with the models of these rows."""
        problem, values = present_problem(fit, loss, settings)
        if not np.isfinite(fit.hub).all():
            models = pooled_level(problem.loss, settings).coefficients
        elif problem.penalty != "squared_l2":
            models = solve_inner(problem, values, fit.deviations, tol=_ROBUST_TOL).coefficients
        else:
            solver = prepare(problem.system(values))
            models = solver.solve(problem.loss.moment, fit.deviations, _MODEL_TOL).require(1e-6).value
        return cls(problem, values, models)

    def change(self, i: int, j: int) -> np.ndarray:
        """V' − V without the edge (i, j), shape (n, p)."""
        if not edge_between(self.problem.edges, i, j).any():
            return np.zeros_like(self.models)
        left = self._values_without(i, j)
        if self.problem.penalty != "squared_l2":
            return solve_inner(self.problem, left, self.models, tol=_ROBUST_TOL).coefficients - self.models
        weight = (self.values - left).sum() * self.problem.coupling
        right = np.zeros_like(self.models)
        right[i] = weight * (self.models[i] - self.models[j])
        right[j] = -right[i]
        return prepare(self.problem.system(left)).solve(right, tol=_CHANGE_TOL).require(1e-6).value

    def covariance_without(self, i: int, j: int, after: np.ndarray) -> np.ndarray:
        """S' of i < j, shape (p, p), given all models without their edge."""
        if not np.isfinite(self.problem.hub).all():
            # One model for all tasks: the two do not differ.
            return np.zeros((self.models.shape[1],) * 2)
        left, least = self._values_without(i, j), self.problem.sizes.near_tasks
        if self.problem.penalty == "squared_l2" and len(self.models) > least:
            near, part = near_tasks(self.problem.system(left), i, j, least)
            covariance = difference_covariance(part, *np.searchsorted(near, [i, j]).tolist())
        else:
            covariance = difference_covariance(self.problem.hessian(after, left), i, j)
        return covariance if self.ratios is None else covariance + self._own_noise(i, j, self.ratios)

    def _own_noise(self, i: int, j: int, ratios: np.ndarray) -> np.ndarray:
        """Σ_i (ratio_i − 1) D_i⁻¹G_iD_i⁻¹, to be added to S' where the rows of task i have variance ratio_i·σ².

        D_i are the diagonal blocks of A', an approximation to the inverses of the blocks of A'⁻¹.
        """
        pair = np.array([i, j])
        part = _held(self.problem.system(self._values_without(i, j)), pair)
        inverse = np.linalg.inv(part.diagonal_blocks())
        return np.tensordot(ratios[pair] - 1.0, inverse @ part.gram @ inverse, axes=1)

    def _values_without(self, i: int, j: int) -> np.ndarray:
        return np.where(edge_between(self.problem.edges, i, j), 0.0, self.values)


@dataclass(frozen=True)
class TrainedOutcomes:
    """The models of some rows of classes or counts, given the graph and its strengths.

    Their covariance is that of the working sums at the models, as if the curvature stayed as it is there.
    """

    fit: GraphFit
    rows: TaskRows
    loss: RowLoss
    dispersion: float
    settings: Settings
    models: np.ndarray

    @classmethod
    def of(cls, fit: GraphFit, rows: TaskRows, loss: RowLoss, dispersion: float, settings: Settings) -> TrainedOutcomes:
        """The fit's graph with the models of these rows."""
        models = fit.coefficients
        if np.isfinite(fit.hub).all():
            models = graph_mode(rows, loss, fit, models, dispersion).coefficients
        return cls(fit, rows, loss, dispersion, settings, models)

    def change(self, i: int, j: int) -> np.ndarray:
        """V' − V without the edge (i, j), shape (n, p)."""
        if not edge_between(self.fit.edges[self.fit.edge_values > 0], i, j).any():
            return np.zeros_like(self.models)
        left = self._fit_without(i, j)
        return graph_mode(self.rows, self.loss, left, self.models, self.dispersion).coefficients - self.models

    def covariance_without(self, i: int, j: int, after: np.ndarray) -> np.ndarray:
        """S' of i < j, shape (p, p), given all models without their edge."""
        if not np.isfinite(self.fit.hub).all():
            return np.zeros((after.shape[1],) * 2)
        left, least = self._fit_without(i, j), self.settings.sizes.near_tasks
        system = beside_edges(left, self.rows.working_sums(self.loss, after))
        if len(after) > least:
            near, part = near_tasks(system, i, j, least)
            return difference_covariance(part, *np.searchsorted(near, [i, j]).tolist())
        return difference_covariance(system, i, j)

    def _fit_without(self, i: int, j: int) -> GraphFit:
        gone = edge_between(self.fit.edges, i, j)
        return replace(self.fit, edge_values=np.where(gone, 0.0, self.fit.edge_values))


@dataclass(frozen=True)
class RowLosses:
    """Losses of held-out rows, in half the unit in which they are reported, as for squared errors."""

    rows: TaskRows
    loss: RowLoss

    @property
    def count(self) -> np.ndarray:
        """Sum of weights of every task, shape (n,)."""
        return self.rows.count

    def task_values(self, models: np.ndarray) -> np.ndarray:
        """Half the losses of every task, shape (n,)."""
        values = self.rows.weight * self.loss.value(self.rows.predictor(models), self.rows.target)
        return 0.5 * self.loss.measure.unit * np.bincount(self.rows.task, values, self.rows.n_tasks)


@dataclass(frozen=True)
class EdgeEffect:
    """Effect of an edge on models and errors, in scaled units.

    Parameters
    ----------
    before, after : arrays of shape (2, p)
        Models of the two tasks on all rows, with and without the edge.
    covariance : array of shape (p, p)
        Covariance of their difference without the edge, in units of σ².
    pair_errors, errors : arrays of shape (2,)
        Mean squared errors (mean losses) with and without the edge: of the two tasks, and of all.
    """

    before: np.ndarray
    after: np.ndarray
    covariance: np.ndarray
    pair_errors: np.ndarray
    errors: np.ndarray

    def on_columns(self, columns: np.ndarray, width: int) -> EdgeEffect:
        """The same with `width` columns, of which these are used."""
        models = np.zeros((2, 2, width))
        models[..., columns] = self.before, self.after
        covariance = embedded(self.covariance, columns, width)
        return replace(self, before=models[0], after=models[1], covariance=covariance)


@dataclass(frozen=True)
class EdgeRemovals:
    """The effects of removing single edges of a fit.

    Parameters
    ----------
    scored : list of (trained models, losses)
        Models without a fold and the losses of its rows; of all rows if no fold is held out.
    total : TrainedModels or TrainedOutcomes
        Models of all rows.
    held_out : bool
        Whether errors are those on held-out folds.
    means : array of shape (n, p) or (1, 1)
        Part of the models that task features predict. It stays as it is: an edge links deviations from it.
    columns, width : array of int and int
        Columns that the fit uses, and the number of all columns.
    """

    scored: Sequence[tuple[TrainedModels | TrainedOutcomes, LeastSquares | RowLosses]]
    total: TrainedModels | TrainedOutcomes
    held_out: bool
    means: np.ndarray
    columns: np.ndarray
    width: int

    @classmethod
    @one_blas_thread()
    def of(
        cls, fit: GraphFit, folded: FoldedLoss, settings: Settings, ratios: np.ndarray | None = None
    ) -> EdgeRemovals:
        """From the losses of all folds under squared loss; `ratios` are σ_i²/σ² where tasks differ in noise."""
        width = len(fit.hub)
        columns = np.arange(width) if fit.columns is None else fit.columns
        if fit.columns is not None:
            folded, settings, fit = folded.of_columns(columns), settings.of_columns(columns), fit.on_its_columns()
        means = np.zeros((1, 1)) if fit.means is None else fit.means.models
        if fit.means is not None:
            folded, fit = folded.shifted(means), fit.centred
        rows = [(folded.training(k), folded.parts[k]) for k in folded.scored] or [(folded.total, folded.total)]
        scored = [(TrainedModels.of(fit, training, settings), part) for training, part in rows]
        # Rows weighted by their noise have variance σ², and so have the residuals of one model for all tasks.
        unequal = settings.penalty == "squared_l2" and np.isfinite(fit.hub).all() and fit.precisions is None
        problem, values = present_problem(fit, folded.total, settings)
        total = TrainedModels(problem, values, fit.deviations, ratios if unequal else None)
        return cls(scored, total, bool(folded.scored), means, columns, width)

    @classmethod
    @one_blas_thread()
    def of_rows(
        cls, fit: GraphFit, kept: FoldedRows, loss: RowLoss, dispersion: float, settings: Settings
    ) -> EdgeRemovals:
        """From rows under another loss, whose models are solved again without the edge."""
        folds = kept.scored[:1] if settings.sizes.is_large(*fit.coefficients.shape) else kept.scored
        parts = [(kept.training(k), kept.part(k)) for k in folds] or [(kept.rows, kept.rows)]
        parts = [(rows, part.seen_from(rows, loss)) for rows, part in parts]
        scored = [
            (TrainedOutcomes.of(fit, rows, loss, dispersion, settings), RowLosses(part, loss)) for rows, part in parts
        ]
        total, width = TrainedOutcomes.of(fit, kept.rows, loss, dispersion, settings), len(fit.hub)
        return cls(scored, total, bool(folds), np.zeros((1, 1)), np.arange(width), width)

    @one_blas_thread()
    def of_edge(self, i: int, j: int) -> EdgeEffect:
        """The effect of the edge between the tasks at positions i < j, whether there is one or not."""
        squares, rows = np.zeros((2, 2)), np.zeros(2)
        for trained, scored in self.scored:
            models = (trained.models, trained.models + trained.change(i, j))
            for k, each in enumerate(models):
                of_task = 2.0 * scored.task_values(each)
                squares[:, k] += of_task[[i, j]].sum(), of_task.sum()
            rows += scored.count[[i, j]].sum(), scored.count.sum()
        after = self.total.models + self.total.change(i, j)
        covariance = self.total.covariance_without(i, j, after)
        pair, everyone = squares / np.where(rows > 0, rows, 1.0)[:, None]
        means = np.broadcast_to(self.means, after.shape)[[i, j]]
        models = self.total.models[[i, j]] + means, after[[i, j]] + means
        return EdgeEffect(*models, covariance, pair, everyone).on_columns(self.columns, self.width)


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


def near_tasks(system: TaskSystem, i: int, j: int, least: int) -> tuple[np.ndarray, TaskSystem]:
    """At least `least` tasks, within as few links of i or j as possible, and A restricted to them.

    If fewer are connected to the two, all of them. The models of other tasks and the common model are held fixed.
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
    """A on some tasks of a separable system, in rising order, with all others and the common model held fixed."""
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
