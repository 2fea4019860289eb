"""A shared model with correlated deviations of the coefficients.

    w_i ~ N(μ, σ²S) ,     y_i ~ N(X_i w_i, σ²)

The hub is the special case S = diag(h)⁻¹. Here S may have correlations: for example, tasks with a high intercept may
have a small slope. S is learned by the EM algorithm, with μ integrated out. With D_i = G_i + S⁻¹, K_i = D_i⁻¹G_i and
M_i = S⁻¹K_i, one step is

    μ = (ΣM_i)⁻¹ Σ S⁻¹D_i⁻¹ m_i ,     E = Σ_i [(w_i − μ)(w_i − μ)ᵀ/σ² + D_i⁻¹ + K_i (ΣM)⁻¹ K_iᵀ] ,
    S ← (E + ν diag(h)⁻¹)/(n + ν) ,

where ν is the weight of an inverse Wishart prior centred on the hub. Steps are over-relaxed, as in
:mod:`ggmtl.evidence.edge_steps`: a step from S to S⁺ is replaced by one to S^½ (S^−½ S⁺ S^−½)^r S^½ with r > 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ggmtl.evidence.hub import misfit
from ggmtl.statistics.least_squares import LeastSquares

# Number of covariances, counting the first, so that there is one EM step fewer; and the exponent r of a step. With
# r = 1.7 they reach the error of fifteen plain rounds on the panels of benchmarks/panels.py.
_ROUNDS, _POWER = 6, 1.7
# Least ratio of variances in a plain step, before the power r. The strengths from which the search starts are clipped
# to these bounds, in multiples of the mean number of rows of a task.
_SHRINKING, _BOUNDS = 1e-6, (1e-4, 1e4)


class Moments(NamedTuple):
    """Posterior moments of the models for a given S.

    `models`, shape (n, p), are the means w_i and `common`, shape (p,), is μ. `inverse` and `kept`, shape (n, p, p), are
    D_i⁻¹ and K_i. `spread`, shape (p, p), is (ΣM)⁻¹.
    """

    models: np.ndarray
    common: np.ndarray
    inverse: np.ndarray
    kept: np.ndarray
    spread: np.ndarray

    def expected(self, deviations: np.ndarray, noise: float) -> np.ndarray:
        """E, shape (p, p), for `deviations` w_i − μ of shape (n, p) and σ² = `noise`."""
        square = deviations.T @ deviations / noise + self.inverse.sum(axis=0)
        square += np.einsum("nka,nla->kl", self.kept @ self.spread, self.kept)
        return square


def models_under(loss: LeastSquares, precision: np.ndarray) -> np.ndarray:
    """Models of all tasks, shape (n, p), for a given precision S⁻¹ of shape (p, p)."""
    return moments_under(loss, precision).models


def correlated_models(
    loss: LeastSquares, hub: np.ndarray, free: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Models of all tasks, shape (n, p), and the learned precision S⁻¹, shape (p, p).

    The search starts at the strengths of the hub. Coefficients that are not `free` keep these strengths and are
    uncorrelated with all others; by default, all are free.
    """

    def expected(precision: np.ndarray) -> np.ndarray:
        moments = moments_under(loss, precision)
        deviations = moments.models - moments.common
        quadratic = 2.0 * loss.value(moments.models) + float(np.einsum("nk,nk->", deviations @ precision, deviations))
        return moments.expected(deviations, misfit(loss, quadratic)[1])

    precision = learn_precision(expected, loss.n_tasks, max(float(loss.count.mean()), 1.0), hub, free)
    return models_under(loss, precision), precision


def learn_precision(
    expected: Callable[[np.ndarray], np.ndarray], n: int, unit: float, hub: np.ndarray, free: np.ndarray | None = None
) -> np.ndarray:
    """The precision S⁻¹, shape (p, p), learned by EM steps from the strengths of the hub.

    Parameters
    ----------
    expected : callable
        The function S⁻¹ → E.
    n : int
        Number of tasks.
    unit : float
        Mean number of rows of a task.
    hub : array of shape (p,)
        h, from which the search starts.
    free : array of bool, shape (p,), optional
        Coefficients that are learned; the others keep the strength of the hub.
    """
    learned = np.arange(len(hub)) if free is None else np.flatnonzero(free)
    block = np.ix_(learned, learned)
    first = np.diag(1.0 / np.clip(hub[learned], _BOUNDS[0] * unit, _BOUNDS[1] * unit))
    covariance, weight = first, len(learned) + 1.0
    precision = np.diag(hub)
    precision[block] = np.linalg.inv(covariance)
    for _ in range(_ROUNDS - 1):
        step = (expected(precision)[block] + weight * first) / (n + weight)
        covariance = _over_relaxed(covariance, 0.5 * (step + step.T))
        precision[block] = np.linalg.inv(covariance)
    return precision


def moments_under(loss: LeastSquares, precision: np.ndarray, common_ridge: np.ndarray | None = None) -> Moments:
    """Posterior moments for a given precision S⁻¹ of shape (p, p).

    The prior of the shared model μ is flat, or normal about zero with the precision `common_ridge` of shape (p,).
    """
    inverse = np.linalg.inv(loss.gram + precision)
    kept = np.eye(len(precision)) - inverse @ precision
    information = precision @ kept.sum(axis=0)
    if common_ridge is not None:
        information = information + np.diag(common_ridge)
    spread = np.linalg.pinv(0.5 * (information + information.T), hermitian=True)
    common = spread @ (precision @ np.einsum("nkl,nl->k", inverse, loss.moment))
    models = np.matmul(inverse, (loss.moment + precision @ common)[..., None])[..., 0]
    return Moments(models, common, inverse, kept, spread)


def _over_relaxed(covariance: np.ndarray, step: np.ndarray) -> np.ndarray:
    """S^½ (S^−½ S⁺ S^−½)^r S^½ for S = `covariance` and S⁺ = `step`, both of shape (p, p)."""
    root = np.linalg.cholesky(covariance)
    back = np.linalg.inv(root)
    ratios, directions = np.linalg.eigh(back @ step @ back.T)
    towards = root @ (directions * np.maximum(ratios, _SHRINKING) ** (_POWER / 2.0))
    return towards @ towards.T
