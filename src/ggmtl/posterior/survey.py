"""What is known of all tasks, so that the tasks near an edge tell what it does to all.

Taking the edge (i, j) away changes the models by δ, A'δ = b ⊗ wu with u = w_i − w_j. Of all that follows far away, two
things matter. With g the gradient of the errors on the rows scored, z = A⁻¹g and y_k = A⁻¹(1 ⊗ e_k)/n, they are

    gᵀδ = (z_i − z_j)ᵀ w (u + δ_i − δ_j) ,     the mean of δ_k over all tasks = (y_ki − y_kj)ᵀ w (u + δ_i − δ_j) ,

by how much the errors of all tasks change, to first order, and what the common model does; from δ at the two tasks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ggmtl.bilevel import GraphFit, Settings, present_problem
from ggmtl.inner import solve_inner
from ggmtl.posterior.common_model import CommonModel
from ggmtl.posterior.few_solves import MODEL_TOL, ROBUST_TOL, FewSolves
from ggmtl.posterior.neighbourhood import pays
from ggmtl.statistics import FoldedLoss, LeastSquares
from ggmtl.system import TaskSystem

# Relative residual of the models of all rows where others are scored: these only say which way coefficients move.
_ALL_ROWS_TOL = 1e-8
# And of z and y, per task, at most: what they tell of one edge is small beside the errors of all tasks.
_FAR_TOL, _MOST_FAR_TOL = 1e-8, 1e-5
# Beside the mean curvature of a task, the pull of a hub that is worth a y, and the most that there are of them.
_FELT, _MOST_FELT = 1e-3, 3


@dataclass(frozen=True)
class FarAway:
    """What happens far away.

    Parameters
    ----------
    errors : array of shape (n, p)
        z.
    felt : array of shape (c,)
        Coordinates in which the common model matters most.
    common : array of shape (c, n, p)
        y of these.
    bounds : CommonModel
        What it does in all others at most.
    curvature : array of shape (p, p)
        Σ_i of the matrices of the rows scored.
    """

    errors: np.ndarray
    felt: np.ndarray
    common: np.ndarray
    bounds: CommonModel
    curvature: np.ndarray

    @classmethod
    def of(cls, solver: FewSolves, gradient: np.ndarray, curvature: np.ndarray) -> FarAway | None:
        """None where the tasks leave the common model free."""
        system, bounds = solver.system, CommonModel.of(solver.system)
        if bounds is None:
            return None
        n, p = system.shape
        pooled = system.gram.sum(axis=0) + np.diag(np.broadcast_to(system.ridge, system.shape).sum(axis=0))
        pull = n * system.hub / np.diag(pooled)
        felt = np.argsort(-pull)[:_MOST_FELT]
        felt = np.sort(felt[pull[felt] > _FELT])
        # Neither edges nor the hub act on models that are all alike.
        alike = np.linalg.lstsq(pooled, np.column_stack([gradient.sum(axis=0), np.eye(p)[:, felt]]), rcond=None)[0]
        starts = np.broadcast_to(alike.T[:, None], (1 + len(felt), n, p))
        tol = min(_FAR_TOL * n, _MOST_FAR_TOL)
        errors = solver.solve(gradient, starts[0].copy(), tol)
        common = np.empty((len(felt), n, p))
        for row, k, start in zip(common, felt, starts[1:]):
            right = np.zeros((n, p))
            right[:, k] = 1.0 / n
            row[:] = solver.solve(right, start.copy(), tol)
        return cls(errors, felt, common, bounds, curvature)


@dataclass(frozen=True)
class Overview:
    """The models of some rows beside a learned graph, and their errors on other rows.

    Parameters
    ----------
    models : array of shape (n, p)
    error, rows : float
        Sum of squared errors over all tasks, and how many rows (weights) that is.
    far : FarAway, optional
        None where all tasks are looked at for every edge.
    """

    models: np.ndarray
    error: float
    rows: float
    far: FarAway | None


@dataclass(frozen=True)
class Survey:
    """All rows; the training rows of every fold that is held out, by its number; the common model of all rows."""

    total: Overview
    folds: dict[int, Overview]
    common: CommonModel | None


def survey_of(fit: GraphFit, folded: FoldedLoss, settings: Settings) -> Survey:
    """Look over all tasks, the graph and strengths as they were learned."""
    folds = {k: _overview(fit, folded.training(k), folded.parts[k], settings)[0] for k in folded.scored}
    total, system = _overview(fit, folded.total, None if folds else folded.total, settings)
    return Survey(total, folds, CommonModel.of(system) if system is not None and pays(*system.shape) else None)


def _overview(
    fit: GraphFit, training: LeastSquares, scored: LeastSquares | None, settings: Settings
) -> tuple[Overview, TaskSystem | None]:
    """Of these rows, scored on others or not at all; with the system of their models for the squared penalty."""
    tol = _ALL_ROWS_TOL if scored is None else MODEL_TOL
    solver = None
    if not np.isfinite(fit.hub).all():
        models = _one_model(fit.weighed(training), settings)
    else:
        problem, values = present_problem(fit, training, settings)
        if problem.penalty == "squared_l2":
            solver = FewSolves(problem.system(values))
            models = solver.solved(problem.loss.moment, fit.coefficients, tol)
        else:
            models = solve_inner(problem, values, fit.coefficients, tol=max(tol, ROBUST_TOL)).coefficients
    system = None if solver is None else solver.system
    if scored is None:
        return Overview(models, 0.0, 0.0, None), system
    gradient = scored.gradient(models)
    errors = ((gradient - scored.moment) * models).sum(axis=1) + scored.target_square
    far = None
    if solver is not None and pays(*models.shape):
        far = FarAway.of(solver, gradient, scored.gram.sum(axis=0))
    return Overview(models, float(np.maximum(errors, 0.0).sum()), float(scored.count.sum()), far), system


def _one_model(loss: LeastSquares, settings: Settings) -> np.ndarray:
    """The same model for every task, shape (n, p)."""
    ridge = np.diag(np.where(settings.slopes, settings.ridge, 0.0))
    gram, moment = loss.pooled()
    return np.tile(np.linalg.lstsq(gram + ridge, moment, rcond=None)[0], (loss.n_tasks, 1))
