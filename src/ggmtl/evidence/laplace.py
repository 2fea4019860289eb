"""Evidence of the shared model for logistic and Poisson loss: Laplace's approximation, with its exact gradient.

The models V̂ (the mode) minimise J = Σωℓ + ½ Σ_k h_k Σ_i (w_i − μ)_k² + ½ Σ_k r_k μ_k² + ½ρ Σ_i ‖w_i‖², with the shared
model μ at its minimum hΣw/(nh + r). With A the Hessian of J at V̂,

    f = J(V̂)/φ + ½ ln|A| − ½ Σ_k ln|P_k|₊

A also depends on h through V̂. With c_i = ½ Σ_{r∈i} ω_r ℓ'''_r τ_r x_r, τ_r = x_rᵀ(A⁻¹)_ii x_r, and q = A⁻¹c,

    ∂f/∂h_k = (the gradient of squared loss at the working sums of V̂) − Σ_i q_ik ∂[h_k(w_i − μ)_k]/∂h_k .

Without the last term (PQL), strengths are about twice too large where tasks have few rows. A ridge r on the shared
model keeps it finite where the classes of all tasks can be separated perfectly; r = 0 is a flat prior.

The same q is, to first order, the mode minus the posterior mean: E V ≈ V̂ − q.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ggmtl.evidence.correlated import learn_precision, moments_under
from ggmtl.evidence.hub import RIDGE, HubEvidence, hub_evidence, shrunk_models
from ggmtl.evidence.hub_sums import block_information, task_inverses
from ggmtl.losses.rowwise import RowLoss
from ggmtl.losses.task_rows import Mode, TaskRows, newton, row_quadratics
from ggmtl.statistics.least_squares import LeastSquares


@dataclass(frozen=True)
class LaplaceLoss:
    """Rows with a logistic or Poisson loss, in the form that :func:`~ggmtl.evidence.hub_strengths.learn_hub` accepts.

    Parameters
    ----------
    rows : TaskRows
    loss : RowLoss
    start : array of shape (n, p), or Mode
        Models from which Newton's method starts.
    noise : float
        φ, the dispersion.
    common_ridge : array of shape (p,), optional
        r, the precision of the prior of the shared model; zero by default.
    """

    rows: TaskRows
    loss: RowLoss
    start: np.ndarray | Mode
    noise: float = 1.0
    common_ridge: np.ndarray | None = None
    on_device: ClassVar[bool] = False

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
        """The loss of the given tasks."""
        start = self.start if isinstance(self.start, np.ndarray) else self.start.coefficients
        return replace(self, rows=self.rows.of_tasks(tasks), start=start[tasks])

    def near(self, start: np.ndarray | Mode) -> LaplaceLoss:
        """The same loss, with Newton's method starting from these models."""
        return replace(self, start=start)

    def sums(self) -> LeastSquares:
        """Working sums (those of the quadratic approximation) at the start."""
        return self.rows.working_sums(self.loss, self.start) if isinstance(self.start, np.ndarray) else self.start.sums

    def common_precision(self) -> np.ndarray:
        """r, shape (p,)."""
        return np.zeros(self.n_features) if self.common_ridge is None else self.common_ridge


def hub_mode(loss: LaplaceLoss, hub: np.ndarray, ridge: float = RIDGE) -> Mode:
    """The models that minimise J. `hub` is h of shape (p,), or S⁻¹ of shape (p, p) for correlated deviations."""
    precision = loss.common_precision()

    def penalty(models: np.ndarray) -> float:
        common = common_model(models, hub, precision)
        deviations = models - common
        if hub.ndim == 1:
            spread = hub @ (deviations**2).sum(axis=0)
        else:
            spread = np.einsum("nk,nk->", deviations @ hub, deviations)
        return 0.5 * float(spread + precision @ common**2 + ridge * (models**2).sum())

    def solve(sums: LeastSquares) -> np.ndarray:
        if hub.ndim == 1:
            return shrunk_models(sums, hub, ridge, loss.common_ridge)
        return moments_under(sums, hub, loss.common_ridge).models

    return newton(loss.rows, loss.loss, loss.start, solve, penalty, noise=loss.noise)


def common_model(models: np.ndarray, hub: np.ndarray, common_ridge: np.ndarray) -> np.ndarray:
    """μ = hΣw/(nh + r), shape (p,); `hub` is h of shape (p,) or S⁻¹ of shape (p, p)."""
    if hub.ndim == 1:
        return hub * models.sum(axis=0) / (len(models) * hub + common_ridge)
    return np.linalg.solve(len(models) * hub + np.diag(common_ridge), hub @ models.sum(axis=0))


def learn_correlated(loss: LaplaceLoss, hub: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Learn the precision S⁻¹ of correlated deviations, shape (p, p), starting from the strengths of the hub.

    The steps are those of :mod:`ggmtl.evidence.correlated` at the models V̂. The deviations are those of the posterior
    means V̂ − q, which gives the last term of ∂f/∂h to first order in q.
    """
    current = loss

    def expected(precision: np.ndarray) -> np.ndarray:
        nonlocal current
        square, mode = deviation_squares(current, precision)
        current = replace(current, start=mode)
        return square

    return learn_precision(expected, loss.n_tasks, max(float(loss.count.mean()), 1.0), hub, free)


def deviation_squares(loss: LaplaceLoss, precision: np.ndarray) -> tuple[np.ndarray, Mode]:
    """E, shape (p, p), such that ∂f/∂S⁻¹ = ½(E − nS); and the mode V̂."""
    mode, ridge = hub_mode(loss, precision, 0.0), loss.common_precision()
    models = mode.coefficients
    shift = mode_minus_mean(loss, models, mode.sums.gram, precision, 0.0)
    deviations, change = (each - common_model(each, precision, ridge) for each in (models, shift))
    square = moments_under(mode.sums, precision, loss.common_ridge).expected(deviations, loss.noise)
    return square - (deviations.T @ change + change.T @ deviations), mode


@hub_evidence.register
def _(loss: LaplaceLoss, hub: np.ndarray, ridge: float = RIDGE, common_ridge: np.ndarray | None = None) -> HubEvidence:
    """f and its gradient by Laplace's approximation."""
    loss = loss if common_ridge is None else replace(loss, common_ridge=common_ridge)
    mode = hub_mode(loss, hub, ridge)
    at_mode = hub_evidence(mode.sums, hub, ridge, loss.common_ridge)
    # At the mode, the quadratic approximation differs from J by a constant.
    value = at_mode.value + (mode.loss - mode.sums.value(mode.coefficients)) / loss.noise
    models, precision = mode.coefficients, loss.common_precision()
    common = common_model(models, hub, precision)
    # ∂[h(w − μ)]/∂h, where μ is a function of h, too.
    towards = models - common - common * precision / (len(models) * hub + precision)
    correction = np.einsum("nk,nk->k", towards, mode_minus_mean(loss, models, mode.sums.gram, hub, ridge))
    return replace(
        at_mode,
        value=float(value),
        gradient=at_mode.gradient - correction,
        coefficients=models,
        start=mode,
    )


def mode_minus_mean(
    loss: LaplaceLoss, models: np.ndarray, gram: np.ndarray, hub: np.ndarray, ridge: float
) -> np.ndarray:
    """q = A⁻¹c, shape (n, p): the mode minus the posterior mean, to first order."""
    blocks, inverse, spread = hub_covariance(gram, hub, ridge, loss.common_ridge)
    gradient = log_determinant_gradient(loss.rows, loss.loss, models, blocks)
    return solve_with_hub(gradient, hub, inverse, spread)


def solve_with_hub(right: np.ndarray, hub: np.ndarray, inverse: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """A⁻¹ times `right`, shape (n, p), from D_i⁻¹ and S of :func:`hub_covariance`."""
    alone = np.matmul(inverse, right[..., None])[..., 0]
    common = spread @ _hub_times(hub, alone.sum(axis=0))
    return alone + np.matmul(inverse, _hub_times(hub, common)[..., None])[..., 0]


def _hub_times(hub: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Hv, where H is `hub` of shape (p, p), or diagonal with `hub` of shape (p,)."""
    return hub * vector if hub.ndim == 1 else hub @ vector


def log_determinant_gradient(rows: TaskRows, loss: RowLoss, models: np.ndarray, blocks: np.ndarray) -> np.ndarray:
    """c, the gradient of ½ ln|A| with respect to the models, shape (n, p); `blocks` are (A⁻¹)_ii."""
    leverage = row_quadratics(rows.design, blocks, rows.task)
    third = rows.weight * loss.third(rows.predictor(models))
    return rows.sums_by_task(0.5 * (third * leverage)[:, None] * rows.design)


def predicting_models(
    rows: TaskRows,
    loss: RowLoss,
    models: np.ndarray,
    blocks: np.ndarray,
    solve: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """The models used for prediction, shape (n, p): the posterior mean V̂ − A⁻¹c for classes, the mode V̂ for counts.

    Predicted probabilities are averages over the posterior of the linear predictor η, so η is centred at its posterior
    mean. The mode is nearer to zero: averaging about it would shrink probabilities towards one half twice. For counts,
    the posterior mean of e^η is about e^η at the mode.

    Parameters
    ----------
    rows : TaskRows
    loss : RowLoss
    models : array of shape (n, p)
        V̂.
    blocks : array of shape (n, p, p)
        (A⁻¹)_ii.
    solve : callable
        The function c → A⁻¹c for c of shape (n, p).
    """
    if loss.name != "logistic":
        return models
    return models - solve(log_determinant_gradient(rows, loss, models, blocks))


def hub_covariance(
    gram: np.ndarray, hub: np.ndarray, ridge: float, common_ridge: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(A⁻¹)_ii and D_i⁻¹ of every task, shape (n, p, p), and S, shape (p, p), the covariance of the shared model.

    (A⁻¹)_ii = D_i⁻¹ + D_i⁻¹HSHD_i⁻¹ with D_i = G_i + H + ρI and S⁻¹ = diag(r) + Σ_i HD_i⁻¹(G_i + ρI). H is `hub` of
    shape (p, p), or diagonal with `hub` of shape (p,).
    """
    if hub.ndim == 1:
        inverse, _ = task_inverses(gram, hub + ridge)
        pooled, reach = block_information(gram, ridge, inverse) * hub, inverse * hub
    else:
        inverse = np.linalg.inv(gram + hub + ridge * np.eye(len(hub)))
        pooled, reach = block_information(gram, ridge, inverse) @ hub, inverse @ hub
    if common_ridge is not None:
        pooled = pooled + np.diag(common_ridge)
    spread = np.linalg.inv(0.5 * (pooled + pooled.T))
    return inverse + reach @ spread @ reach.transpose(0, 2, 1), inverse, spread
