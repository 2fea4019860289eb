"""Evidence of the common model for losses that are not squared, by Laplace's approximation, with its exact gradient.

At the models V̂ that minimise J = Σωℓ + ½ Σ_k h_k Σ_i (w_i − μ)_k² + ½ Σ_k r_k μ_k² + ½ρ Σ_i ‖w_i‖², with the common
model μ at its minimum hΣw/(nh + r), and with A the Hessian of J there,

    f = J(V̂)/φ + ½ ln|A| − ½ Σ_k ln|P_k|₊

A depends on h through V̂, too. With c_i = ½ Σ_{r∈i} ω_r ℓ'''_r τ_r x_r, τ_r = x_rᵀ(A⁻¹)_ii x_r, and q = A⁻¹c,

    ∂f/∂h_k = (the gradient of squared loss at the working sums of V̂) − Σ_i q_ik ∂[h_k(w_i − μ)_k]/∂h_k .

Without the last term (PQL) strengths come out about twice too strong where tasks have few rows. A ridge r on the common
model keeps it finite where the rows of all tasks can be separated; zero is a flat prior.

The same q is the distance of the mode V̂ from the posterior mean, E V ≈ V̂ − q, to the next order of the approximation.
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
    """Rows under a loss that is not squared, as :func:`~ggmtl.evidence.hub_strengths.learn_hub` takes them.

    Parameters
    ----------
    rows : TaskRows
    loss : RowLoss
    start : array of shape (n, p), or Mode
        Models from which Newton's method starts.
    noise : float
        φ.
    common_ridge : array of shape (p,), optional
        r; zero by default.
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
        """The loss of some tasks."""
        start = self.start if isinstance(self.start, np.ndarray) else self.start.coefficients
        return replace(self, rows=self.rows.of_tasks(tasks), start=start[tasks])

    def near(self, start: np.ndarray | Mode) -> LaplaceLoss:
        """The same loss, whose optimum is sought from there on."""
        return replace(self, start=start)

    def sums(self) -> LeastSquares:
        """Working sums at the start."""
        return self.rows.working_sums(self.loss, self.start) if isinstance(self.start, np.ndarray) else self.start.sums

    def drawn(self) -> np.ndarray:
        """r, shape (p,)."""
        return np.zeros(self.n_features) if self.common_ridge is None else self.common_ridge


def hub_mode(loss: LaplaceLoss, hub: np.ndarray, ridge: float = RIDGE) -> Mode:
    """The models that minimise J beside a hub of these strengths; S⁻¹ of shape (p, p) stands for correlated ones."""
    drawn = loss.drawn()

    def penalty(models: np.ndarray) -> float:
        common = common_model(models, hub, drawn)
        apart = models - common
        spread = hub @ (apart**2).sum(axis=0) if hub.ndim == 1 else np.einsum("nk,nk->", apart @ hub, apart)
        return 0.5 * float(spread + drawn @ common**2 + ridge * (models**2).sum())

    def solve(sums: LeastSquares) -> np.ndarray:
        if hub.ndim == 1:
            return shrunk_models(sums, hub, ridge, loss.common_ridge)
        return moments_under(sums, hub, loss.common_ridge).models

    return newton(loss.rows, loss.loss, loss.start, solve, penalty, noise=loss.noise)


def common_model(models: np.ndarray, hub: np.ndarray, common_ridge: np.ndarray) -> np.ndarray:
    """μ = hΣw/(nh + r), shape (p,); S⁻¹ may stand for h."""
    if hub.ndim == 1:
        return hub * models.sum(axis=0) / (len(models) * hub + common_ridge)
    return np.linalg.solve(len(models) * hub + np.diag(common_ridge), hub @ models.sum(axis=0))


def learn_correlated(loss: LaplaceLoss, hub: np.ndarray, free: np.ndarray) -> np.ndarray:
    """S⁻¹ of deviations that are correlated, shape (p, p), from the strengths of the hub on.

    The steps are those of :mod:`ggmtl.evidence.correlated` at the models V̂, with the deviations of the posterior means
    V̂ − q: to first order in q, that is the last term of ∂f/∂h.
    """
    here = loss

    def expected(precision: np.ndarray) -> np.ndarray:
        nonlocal here
        square, mode = deviation_squares(here, precision)
        here = replace(here, start=mode)
        return square

    return learn_precision(expected, loss.n_tasks, max(float(loss.count.mean()), 1.0), hub, free)


def deviation_squares(loss: LaplaceLoss, precision: np.ndarray) -> tuple[np.ndarray, Mode]:
    """E, shape (p, p), such that ∂f/∂S⁻¹ = ½(E − nS), and the optimum."""
    mode, drawn = hub_mode(loss, precision, 0.0), loss.drawn()
    models = mode.coefficients
    ahead = follow(loss, models, mode.sums.gram, precision, 0.0)
    apart, change = (each - common_model(each, precision, drawn) for each in (models, ahead))
    square = moments_under(mode.sums, precision, loss.common_ridge).expected(apart, loss.noise)
    return square - (apart.T @ change + change.T @ apart), mode


@hub_evidence.register
def _(loss: LaplaceLoss, hub: np.ndarray, ridge: float = RIDGE, common_ridge: np.ndarray | None = None) -> HubEvidence:
    """f and its gradient at the models that minimise J."""
    loss = loss if common_ridge is None else replace(loss, common_ridge=common_ridge)
    mode = hub_mode(loss, hub, ridge)
    at_mode = hub_evidence(mode.sums, hub, ridge, loss.common_ridge)
    # The quadratic touches J up to a constant.
    value = at_mode.value + (mode.loss - mode.sums.value(mode.coefficients)) / loss.noise
    models, drawn = mode.coefficients, loss.drawn()
    common = common_model(models, hub, drawn)
    # ∂[h(w − μ)]/∂h, μ being a function of h, too.
    towards = models - common - common * drawn / (len(models) * hub + drawn)
    correction = np.einsum("nk,nk->k", towards, follow(loss, models, mode.sums.gram, hub, ridge))
    return replace(
        at_mode,
        value=float(value),
        gradient=at_mode.gradient - correction,
        expected_square=at_mode.expected_square - 2.0 * correction,
        coefficients=models,
        start=mode,
    )


def follow(loss: LaplaceLoss, models: np.ndarray, gram: np.ndarray, hub: np.ndarray, ridge: float) -> np.ndarray:
    """q = A⁻¹c, shape (n, p): how ln|A| changes with the models."""
    blocks, inverse, spread = hub_covariance(gram, hub, ridge, loss.common_ridge)
    force = volume_slope(loss.rows, loss.loss, models, blocks)
    return beside_hub(force, hub, inverse, spread)


def beside_hub(right: np.ndarray, hub: np.ndarray, inverse: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """A⁻¹ times `right`, of shape (n, p), from D_i⁻¹ and S of :func:`hub_covariance`."""
    alone = np.matmul(inverse, right[..., None])[..., 0]
    common = spread @ _pull(hub, alone.sum(axis=0))
    return alone + np.matmul(inverse, _pull(hub, common)[..., None])[..., 0]


def _pull(hub: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Hv, where strengths of shape (p,) are the diagonal of H."""
    return hub * vector if hub.ndim == 1 else hub @ vector


def volume_slope(rows: TaskRows, loss: RowLoss, models: np.ndarray, blocks: np.ndarray) -> np.ndarray:
    """c, the slope of ½ ln|A| along the models, shape (n, p); `blocks` are (A⁻¹)_ii."""
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
    """The models that predict best: for classes the posterior mean V̂ − A⁻¹c, for counts the mode V̂.

    Probabilities are averaged over the doubt about η, whose centre is its mean; at the mode, which is nearer to zero,
    they would be drawn to one half twice. The mean of e^η is about e^η at the mode.

    Parameters
    ----------
    models : array of shape (n, p)
        V̂.
    blocks : array of shape (n, p, p)
        (A⁻¹)_ii.
    solve : callable
        A⁻¹c for c of shape (n, p).
    """
    if loss.name != "logistic":
        return models
    return models - solve(volume_slope(rows, loss, models, blocks))


def hub_covariance(
    gram: np.ndarray, hub: np.ndarray, ridge: float, common_ridge: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(A⁻¹)_ii and D_i⁻¹ of every task, and S, the covariance of the common model.

    (A⁻¹)_ii = D_i⁻¹ + D_i⁻¹HSHD_i⁻¹ with D_i = G_i + H + ρ and S⁻¹ = r + Σ_i HD_i⁻¹(G_i + ρ). H is diag(h),
    or a matrix of shape (p, p).
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
