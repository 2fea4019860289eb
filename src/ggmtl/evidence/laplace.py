"""Evidence of the common model for losses that are not squared, by Laplace's approximation, with its exact gradient.

At the models V̂ that minimise J = Σωℓ + ½ Σ_k h_k Σ_i (w_i − w̄)_k² + ½ρ Σ_i ‖w_i‖², A the Hessian of J there,

    f = J(V̂)/φ + ½ ln|A| − ½ Σ_k ln|P_k|₊

A depends on h through V̂, too. With c_i = ½ Σ_{r∈i} ω_r ℓ'''_r τ_r x_r, τ_r = x_rᵀ(A⁻¹)_ii x_r, and q = A⁻¹c,

    ∂f/∂h_k = (the gradient of squared loss at the working sums of V̂) − Σ_i (w_i − w̄)_k (q_i − q̄)_k .

Without the last term (PQL) strengths come out about twice too strong where tasks have few rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ggmtl.evidence.hub import HubEvidence, hub_evidence, information, task_inverses
from ggmtl.losses.newton import Mode, newton
from ggmtl.losses.rowwise import RowLoss
from ggmtl.losses.task_rows import TaskRows


@dataclass(frozen=True)
class LaplaceLoss:
    """Rows under a loss that is not squared, as :func:`~ggmtl.evidence.hub.learn_hub` takes them.

    Parameters
    ----------
    rows : TaskRows
    loss : RowLoss
    start : array of shape (n, p)
        Models from which Newton's method starts.
    noise : float
        φ.
    """

    rows: TaskRows
    loss: RowLoss
    start: np.ndarray
    noise: float = 1.0

    @property
    def n_tasks(self) -> int:
        """Number of tasks."""
        return self.rows.n_tasks

    @property
    def n_features(self) -> int:
        """Number of coefficients of a task."""
        return self.rows.n_features

    @property
    def count(self) -> np.ndarray:
        """Sum of weights of every task, shape (n,)."""
        return self.rows.count

    def of_tasks(self, tasks: np.ndarray) -> LaplaceLoss:
        """The loss of some tasks."""
        return replace(self, rows=self.rows.of_tasks(tasks), start=self.start[tasks])


def hub_mode(loss: LaplaceLoss, hub: np.ndarray, ridge: float = 1e-10) -> Mode:
    """The models that minimise J beside a hub of these strengths."""

    def penalty(models: np.ndarray) -> float:
        spread = ((models - models.mean(axis=0)) ** 2).sum(axis=0)
        return 0.5 * float(hub @ spread) + 0.5 * ridge * float((models**2).sum())

    def solve(sums) -> np.ndarray:
        return hub_evidence(sums, hub, ridge).coefficients

    return newton(loss.rows, loss.loss, loss.start, solve, penalty, noise=loss.noise)


@hub_evidence.register
def _(loss: LaplaceLoss, hub: np.ndarray, ridge: float = 1e-10) -> HubEvidence:
    """f and its gradient at the models that minimise J."""
    mode = hub_mode(loss, hub, ridge)
    at_mode = hub_evidence(mode.sums, hub, ridge)
    # The quadratic touches J up to a constant.
    value = at_mode.value + (mode.loss - mode.sums.value(mode.coefficients)) / loss.noise
    models = mode.coefficients
    moved = follow(loss, models, mode.sums.gram, hub, ridge)
    centred = models - models.mean(axis=0)
    correction = np.einsum("nk,nk->k", centred, moved - moved.mean(axis=0))
    return replace(
        at_mode,
        value=float(value),
        gradient=at_mode.gradient - correction,
        expected_square=at_mode.expected_square - 2.0 * correction,
        coefficients=models,
    )


def follow(
    loss: LaplaceLoss, models: np.ndarray, gram: np.ndarray, hub: np.ndarray, ridge: float = 1e-10
) -> np.ndarray:
    """q = A⁻¹c, shape (n, p): how ln|A| changes with the models."""
    blocks, inverse, spread = hub_covariance(gram, hub, ridge)
    rows = loss.rows
    leverage = np.einsum("rp,rpq,rq->r", rows.design, blocks[rows.task], rows.design, optimize=True)
    third = rows.weight * loss.loss.third(rows.predictor(models))
    force = rows.sums_by_task(0.5 * (third * leverage)[:, None] * rows.design)
    alone = np.matmul(inverse, force[..., None])[..., 0]
    common = spread @ (hub * alone.sum(axis=0))
    return alone + np.matmul(inverse, (hub * common)[..., None])[..., 0]


def hub_covariance(gram: np.ndarray, hub: np.ndarray, ridge: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(A⁻¹)_ii and D_i⁻¹ of every task, and (ΣM)⁻¹, the covariance of the common model.

    (A⁻¹)_ii = D_i⁻¹ + D_i⁻¹ H (ΣM)⁻¹ H D_i⁻¹ with D_i = G_i + H + ρ and M_i = H D_i⁻¹(G_i + ρ).
    """
    inverse, _ = task_inverses(gram, hub + ridge)
    pooled = information(gram, ridge, inverse) * hub
    spread = np.linalg.inv(0.5 * (pooled + pooled.T))
    reach = inverse * hub
    return inverse + reach @ spread @ reach.transpose(0, 2, 1), inverse, spread
