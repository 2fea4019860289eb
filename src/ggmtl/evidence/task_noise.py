"""A noise variance for every task, shrunk towards the typical value of all tasks.

A task whose residuals have the variance s_i² with f_i degrees of freedom gets

    σ_i² = (f_0 s_0² + f_i s_i²)/(f_0 + f_i) ,

the estimate under a scaled inverse χ² prior. Its scale s_0² and weight f_0 are fitted to the mean and variance of
ln s_i² over tasks (Smyth 2004: with f degrees of freedom, ln s² has the sampling variance ψ'(f/2), for any σ²).
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import root_scalar
from scipy.special import polygamma, psi
from scipy.stats import chi2

from ggmtl.evidence.hub import hub_evidence
from ggmtl.statistics.least_squares import LeastSquares

# Variances and models depend on each other. After this many rounds both hardly change.
_ROUNDS = 4
# Tasks with fewer residual degrees of freedom are not used to compare variances.
_LEAST_FREEDOM = 1.0
# With fewer tasks than this, a distribution of variances cannot be estimated.
_LEAST_TASKS = 5
# Significance level of the test for unequal variances.
_LEVEL = 1e-3
# Bounds of the weight f_0 of the prior. With a smaller one, a task with few rows could get an extreme variance. Above
# the upper bound, all variances are equal.
_LOWEST, _HIGHEST = 0.5, 1e6


def task_precisions(loss: LeastSquares, hub: np.ndarray) -> np.ndarray | None:
    """Precision of every task's rows relative to the average row, σ²/σ_i², shape (n,).

    The mean over rows is one. None if the noise variances do not differ significantly.

    Parameters
    ----------
    loss : LeastSquares
        Losses of the tasks.
    hub : array of shape (p,)
        Strengths of the hub. Residuals are those of the models shrunk towards the shared model.
    """
    try:
        precisions = _precisions(loss, hub)
    except np.linalg.LinAlgError:
        # Singular systems up to rounding: the residuals would not be reliable.
        return None
    return None if precisions is None else precisions * (loss.count.sum() / float(precisions @ loss.count))


def noise_freedom(loss: LeastSquares, hub: np.ndarray, precisions: np.ndarray) -> tuple[np.ndarray, float]:
    """Degrees of freedom f_0 + f_i of the variance of every task, shape (n,), and f_0 of the prior alone.

    Given the rows, a new error of task i divided by σ_i has Student's t distribution with f_0 + f_i degrees of freedom.
    """
    residual, freedom = _residuals(loss, hub, precisions)
    if _are_rounding(residual, freedom, loss) or (freedom >= _LEAST_FREEDOM).sum() < _LEAST_TASKS:
        return np.full(len(freedom), np.inf), np.inf
    prior = _prior(residual, freedom)[0]
    return prior + freedom, prior


def _precisions(loss: LeastSquares, hub: np.ndarray) -> np.ndarray | None:
    """The precisions of :func:`task_precisions` before normalisation; None if they do not differ significantly."""
    # The deviations of the models have the variance σ²/h with the same σ² for all tasks, whatever their noise.
    noise, precisions = hub_evidence(loss, hub).noise, np.ones(loss.n_tasks)
    for step in range(_ROUNDS):
        residual, freedom = _residuals(loss, hub, precisions)
        if _are_rounding(residual, freedom, loss) or (step == 0 and not _differ(residual, freedom)):
            return None
        precisions = noise / _shrunken(residual, freedom)
    return precisions


def _residuals(loss: LeastSquares, hub: np.ndarray, precisions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sum of squared residuals ‖X_i w_i − y_i‖² and residual degrees of freedom of every task, both of shape (n,).

    The latter are N_i − tr(G_i D_i⁻¹) with D_i = G_i + diag(h)/precision_i.
    """
    models = hub_evidence(loss.weighted(precisions), hub).coefficients
    precision = hub / precisions[:, None]
    blocks = loss.gram + precision[:, :, None] * np.eye(loss.n_features)
    # tr(G D⁻¹) = p − tr(diag(h) D⁻¹)
    used = loss.n_features - np.einsum("nk,nkk->n", precision, np.linalg.inv(blocks))
    return 2.0 * loss.task_values(models), np.maximum(loss.count - used, 0.0)


def _are_rounding(residual: np.ndarray, freedom: np.ndarray, loss: LeastSquares) -> bool:
    """Whether the residuals of any task are rounding errors only, so that variances cannot be compared."""
    known = freedom >= _LEAST_FREEDOM
    rounding = 1e-10 * float(loss.target_square.sum()) / max(float(loss.count.sum()), 1.0)
    return bool((residual[known] <= rounding * freedom[known]).any())


def _differ(residual: np.ndarray, freedom: np.ndarray) -> bool:
    """Whether a χ² test finds that the variances of the tasks differ."""
    known = freedom >= _LEAST_FREEDOM
    if known.sum() < _LEAST_TASKS:
        return False
    logs, spread = _logs(residual[known], freedom[known])
    statistic = float(((logs - np.average(logs, weights=1.0 / spread)) ** 2 / spread).sum())
    return bool(chi2.sf(statistic, known.sum() - 1) < _LEVEL)


def _shrunken(residual: np.ndarray, freedom: np.ndarray) -> np.ndarray:
    """Shrunken variance σ_i² of every task, shape (n,)."""
    prior, scale = _prior(residual, freedom)
    return (prior * scale + residual) / (prior + freedom)


def _prior(residual: np.ndarray, freedom: np.ndarray) -> tuple[float, float]:
    """f_0 and s_0² of the scaled inverse χ² distribution of the tasks' variances."""
    known = freedom >= _LEAST_FREEDOM
    logs, spread = _logs(residual[known], freedom[known])
    weights = 1.0 / spread
    mean = np.average(logs, weights=weights)
    excess = np.average((logs - mean) ** 2 - spread, weights=weights)
    prior = _inverse_trigamma(excess)
    # E ln s² = ln s_0² − ψ(f_0/2) + ln(f_0/2), plus the terms in f_i that `_logs` has removed.
    return prior, float(np.exp(mean + psi(prior / 2.0) - np.log(prior / 2.0)))


def _logs(residual: np.ndarray, freedom: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """ln s² without its sampling bias, and its sampling variance, both of shape (n,)."""
    half = freedom / 2.0
    return np.log(residual / freedom) - psi(half) + np.log(half), polygamma(1, half)


def _inverse_trigamma(value: float) -> float:
    """The f_0 with ψ'(f_0/2) = value, clipped to its bounds."""

    def gap(log_weight: float) -> float:
        return float(polygamma(1, np.exp(log_weight) / 2.0)) - value

    low, high = np.log(_LOWEST), np.log(_HIGHEST)
    if gap(low) <= 0:
        return _LOWEST
    return _HIGHEST if gap(high) >= 0 else float(np.exp(root_scalar(gap, bracket=(low, high)).root))
