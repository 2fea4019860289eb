"""What is known of all tasks, so that the tasks near an edge tell what it does to all.

Taking the edge (i, j) away changes the models by δ, A'δ = b ⊗ wu with u = w_i − w_j, or Aδ = b ⊗ f with
f = w(u + δ_i − δ_j). Of all that follows far away, two things matter: with g the gradient of the errors on the rows
scored, gᵀδ, by how much the errors of all tasks change, to first order; and m, the mean of δ over all tasks, what the
common model does. With z ≈ A⁻¹g and y_k ≈ A⁻¹(1 ⊗ e_k)/n, which need not be exact,

    gᵀδ = (z_i − z_j)ᵀf + (g − Az)ᵀδ ,     m_k = (y_ki − y_kj)ᵀf + ((1 ⊗ e_k)/n − Ay_k)ᵀδ .

Far away tasks only follow the common model: with Y = (y_1 … y_p) and M the mean of its Y_i they change by Y_i c,
(I/n + HM)c = Hm.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ggmtl import kernels
from ggmtl.bilevel.inner import solve_inner
from ggmtl.bilevel.level import GraphFit, Settings, present_problem
from ggmtl.fit.levels import pooled_level
from ggmtl.inference.common_model import CommonModel, pooled_blocks
from ggmtl.inference.few_solves import MODEL_TOL, ROBUST_TOL, FewSolves
from ggmtl.inference.neighbourhood import pays
from ggmtl.solve.components import Factors
from ggmtl.solve.system import TaskSystem
from ggmtl.statistics.least_squares import FoldedLoss, LeastSquares

# Relative residual of the models of all rows where others are scored: these only say which way coefficients move.
_ALL_ROWS_TOL = 1e-8
# And of z and y: what they leave over is accounted for where it matters.
_FAR_TOL = 3e-3
# A coordinate is worth a y where the bounds of what the common model does leave open more than this, per task and
# beside the mean curvature of tasks. Three of them there may always be, and more while they have so few numbers in all.
_FELT, _ALWAYS_FELT, _FELT_NUMBERS = 1e-8, 3, 300_000


@dataclass(frozen=True)
class FarAway:
    """What happens far away.

    Parameters
    ----------
    errors, errors_left : arrays of shape (n, p)
        z and g − Az.
    felt : array of shape (c,)
        Coordinates in which the common model is not known well enough without a y.
    common, common_left : arrays of shape (n, p, c)
        Y of these and what it leaves over.
    bounds : CommonModel
        What the common model does in all others at most.
    turned : array of shape (c, c)
        I/n + HM.
    left : array of shape (1 + c, c)
        Σ_i of what z and Y leave over, times Y_i.
    square : array of shape (c, c)
        Σ_i Y_iᵀG_iY_i with the matrices G_i of the rows scored.
    curvature : array of shape (p, p)
        Σ_i G_i.
    """

    errors: np.ndarray
    errors_left: np.ndarray
    felt: np.ndarray
    common: np.ndarray
    common_left: np.ndarray
    bounds: CommonModel
    turned: np.ndarray
    left: np.ndarray
    square: np.ndarray
    curvature: np.ndarray

    @classmethod
    def of(cls, solver: FewSolves, gradient: np.ndarray, gram: np.ndarray) -> FarAway | None:
        """Given the gradient and the matrices of the rows scored; None where the tasks leave the common model free."""
        system, bounds = solver.system, CommonModel.of(solver.system)
        if bounds is None:
            return None
        n, p = system.shape
        pooled = pooled_blocks(system)
        open_ = n * np.diag(bounds.high - bounds.low) / np.diag(pooled)
        felt = np.argsort(-open_)[: max(_ALWAYS_FELT, _FELT_NUMBERS // (n * p))]
        felt = np.sort(felt[open_[felt] > _FELT])
        # Neither edges nor the hub act on models that are all alike.
        alike = np.linalg.lstsq(pooled, np.column_stack([gradient.sum(axis=0), np.eye(p)[:, felt]]), rcond=None)[0]
        errors = solver.solve(gradient, np.tile(alike[:, 0], (n, 1)), _FAR_TOL)
        errors_left = gradient - system.apply(errors)
        common = common_left = np.zeros((n, p, 0))
        if len(felt):
            right = np.tile(np.eye(p)[:, felt] / n, (n, 1, 1))
            common = solver.solve(right, np.tile(alike[:, 1:], (n, 1, 1)), _FAR_TOL)
            common_left = right - system.apply(common)
        turned = np.eye(len(felt)) / n + system.hub[felt, None] * common.mean(axis=0)[felt]
        left = np.tensordot(np.dstack([errors_left, common_left]), common, axes=([0, 1], [0, 1]))
        square = np.tensordot(common, kernels.block_product(gram, common), axes=([0, 1], [0, 1]))
        curvature = gram.sum(axis=0)
        return cls(errors, errors_left, felt, common, common_left, bounds, turned, left, square, curvature)

    @property
    def leaves_open(self) -> bool:
        """Whether the common model is not known exactly in some coordinate."""
        return bool((np.delete(np.diag(self.bounds.high - self.bounds.low), self.felt) > 0).any())

    def follow(self, pull: np.ndarray) -> np.ndarray:
        """c of a common model that pulls all tasks by Hm, shape (p,)."""
        return np.linalg.solve(self.turned, pull[self.felt])

    def slopes(
        self, pair: np.ndarray, force: np.ndarray, c: np.ndarray, own: np.ndarray, tasks: np.ndarray
    ) -> np.ndarray:
        """gᵀδ and m in the coordinates felt, shape (1 + c,), given f, c, and δ of some tasks, shape (k, p)."""
        i, j = pair
        more = own - self.common[tasks] @ c
        across = np.column_stack([self.errors[i] - self.errors[j], self.common[i] - self.common[j]])
        left = np.dstack([self.errors_left[tasks], self.common_left[tasks]])
        return force @ across + np.tensordot(more, left, axes=([0, 1], [0, 1])) + self.left @ c

    def beyond(self, pull: np.ndarray, followed: np.ndarray, tasks: np.ndarray, gram: np.ndarray) -> tuple[float, bool]:
        """Σ_i ‖X_i δ_i‖² of all tasks but some, which follow a common model that pulls so, to a hundredth or so.

        And whether that is all of it, as where all coordinates are felt in which the common model pulls. Else the
        others are taken to follow as those tasks do, on average.
        """
        if np.isin(np.flatnonzero(pull), self.felt).all():
            c = self.follow(pull)
            own = self.common[tasks] @ c
            return float(c @ self.square @ c - (own * kernels.block_product(gram, own)).sum()), True
        others = self.curvature - gram.sum(axis=0)
        return float(np.einsum("np,pq,nq->", followed, others, followed)) / len(followed), False


@dataclass(frozen=True)
class Overview:
    """The models of some rows beside a learned graph, and their errors on other rows.

    Parameters
    ----------
    models : array of shape (n, p)
    error, rows : float
        Sum of squared errors over all tasks, and how many rows (weights) that is.
    factors : Factors, optional
        Of the system of the models, where the parts of the graph are small.
    far : FarAway, optional
        Of many tasks in larger parts. All tasks are looked at for every edge where there is neither.
    """

    models: np.ndarray
    error: float
    rows: float
    factors: Factors | None = None
    far: FarAway | None = None


@dataclass(frozen=True)
class Survey:
    """All rows; the training rows of every fold that is held out, by its number; the common model of all rows."""

    total: Overview
    folds: dict[int, Overview]
    common: CommonModel | None


def survey_of(fit: GraphFit, folded: FoldedLoss, settings: Settings) -> Survey:
    """Look over all tasks, the graph and strengths as they were learned."""
    copies = len(folded.scored) + 1
    folds = {k: _overview(fit, folded.training(k), folded.parts[k], settings, copies)[0] for k in folded.scored}
    total, system = _overview(fit, folded.total, None if folds else folded.total, settings, copies)
    if system is None or total.factors is not None or not pays(*system.shape):
        return Survey(total, folds, None)
    # Every fold has fewer rows.
    known = [fold.far.bounds for fold in folds.values() if fold.far is not None]
    return Survey(total, folds, CommonModel.of(system, known[0] if known else None))


def _overview(
    fit: GraphFit, training: LeastSquares, scored: LeastSquares | None, settings: Settings, copies: int
) -> tuple[Overview, TaskSystem | None]:
    """Of these rows, scored on others or not at all; with the system of their models for the squared penalty.

    It is one of so many that are kept.
    """
    tol = _ALL_ROWS_TOL if scored is None else MODEL_TOL
    solver = factors = None
    if not np.isfinite(fit.hub).all():
        models = pooled_level(fit.weighed(training), settings).coefficients
    else:
        problem, values = present_problem(fit, training, settings)
        if problem.penalty == "squared_l2":
            solver, right = FewSolves(problem.system(values)), problem.loss.moment
            factors = Factors.of(solver.system, copies)
            # Every task as well as rounding allows: beside heavy ones, a residual of all says nothing of light ones.
            start = fit.coefficients if factors is None else factors.solve(right, tol=0.0).value
            models = solver.solved(right, start, tol)
        else:
            models = solve_inner(problem, values, fit.coefficients, tol=max(tol, ROBUST_TOL)).coefficients
    system = None if solver is None else solver.system
    if scored is None:
        return Overview(models, 0.0, 0.0, factors), system
    gradient = scored.gradient(models)
    errors = ((gradient - scored.moment) * models).sum(axis=1) + scored.target_square
    far = None
    if solver is not None and factors is None and pays(*models.shape):
        far = FarAway.of(solver, gradient, scored.gram)
    return Overview(models, float(np.maximum(errors, 0.0).sum()), float(scored.count.sum()), factors, far), system
