"""A common model whose tasks depart from it in coefficients that go together.

    w_i ~ N(μ, σ²S) ,     y_i ~ N(X_i w_i, σ²)

Whoever starts high may grow slowly: S has correlations, where the hub has S = diag(h)⁻¹. The steps are those of the EM
algorithm for S, μ integrated out. With D_i = G_i + S⁻¹, K_i = D_i⁻¹G_i and M_i = S⁻¹K_i,

    μ = (ΣM_i)⁻¹ Σ S⁻¹D_i⁻¹ m_i ,     E = Σ_i [(w_i − μ)(w_i − μ)ᵀ/σ² + D_i⁻¹ + K_i (ΣM)⁻¹ K_iᵀ] ,
    S ← (E + ν diag(h)⁻¹)/(n + ν) ,

an inverse Wishart prior about the hub. A step from S to S⁺ goes on to S^½ (S^−½ S⁺ S^−½)^r S^½, as the steps of
:mod:`ggmtl.evidence.edge_steps` do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ggmtl.evidence.hub import misfit
from ggmtl.statistics.least_squares import LeastSquares

# As many rounds and such a power give the error of fifteen plain rounds on the panels of benchmarks/panels.py.
_ROUNDS, _POWER = 6, 1.7
# Variances are moved by at most this factor a round, and start within these bounds, in units of the rows of a task.
_SHRINKING, _BOUNDS = 1e-6, (1e-4, 1e4)


class Moments(NamedTuple):
    """Posterior moments of the models under given S: means, μ, D⁻¹, K and (ΣM)⁻¹."""

    models: np.ndarray
    common: np.ndarray
    inverse: np.ndarray
    kept: np.ndarray
    spread: np.ndarray

    def expected(self, apart: np.ndarray, noise: float) -> np.ndarray:
        """E, shape (p, p), for deviations w_i − μ of these means and σ² = `noise`."""
        square = apart.T @ apart / noise + self.inverse.sum(axis=0)
        square += np.einsum("nka,nla->kl", self.kept @ self.spread, self.kept)
        return square


def models_under(loss: LeastSquares, precision: np.ndarray) -> np.ndarray:
    """Models of all tasks, shape (n, p), where S⁻¹, shape (p, p), is known."""
    return moments_under(loss, precision).models


def correlated_models(
    loss: LeastSquares, hub: np.ndarray, free: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Models of all tasks, shape (n, p), and S⁻¹, shape (p, p), learned from the strengths of the hub on.

    Coefficients that are not `free` (all are by default) keep the strength of the hub, and go with no other.
    """

    def expected(precision: np.ndarray) -> np.ndarray:
        at = moments_under(loss, precision)
        apart = at.models - at.common
        quadratic = 2.0 * loss.value(at.models) + float(np.einsum("nk,nk->", apart @ precision, apart))
        return at.expected(apart, misfit(loss, quadratic)[1])

    precision = learn_precision(expected, loss.n_tasks, max(float(loss.count.mean()), 1.0), hub, free)
    return models_under(loss, precision), precision


def learn_precision(
    expected: Callable[[np.ndarray], np.ndarray], n: int, unit: float, hub: np.ndarray, free: np.ndarray | None = None
) -> np.ndarray:
    """S⁻¹, shape (p, p), by the steps above from the strengths of the hub on.

    Parameters
    ----------
    expected : callable
        E for S⁻¹.
    n : int
        Number of tasks.
    unit : float
        Rows of a task.
    hub : array of shape (p,)
    free : array of bool, shape (p,), optional
        Coefficients that are learned; the others keep the strength of the hub.
    """
    tied = np.arange(len(hub)) if free is None else np.flatnonzero(free)
    first = np.diag(1.0 / np.clip(hub[tied], _BOUNDS[0] * unit, _BOUNDS[1] * unit))
    covariance, weight = first, len(tied) + 1.0
    precision = np.diag(hub)
    precision[np.ix_(tied, tied)] = np.linalg.inv(covariance)
    for _ in range(_ROUNDS - 1):
        step = (expected(precision)[np.ix_(tied, tied)] + weight * first) / (n + weight)
        covariance = _lengthened(covariance, 0.5 * (step + step.T))
        precision[np.ix_(tied, tied)] = np.linalg.inv(covariance)
    return precision


def moments_under(loss: LeastSquares, precision: np.ndarray, common_ridge: np.ndarray | None = None) -> Moments:
    """Posterior moments; the common model has a flat prior, or a precision `common_ridge` of shape (p,)."""
    inverse = np.linalg.inv(loss.gram + precision)
    kept = np.eye(len(precision)) - inverse @ precision
    information = precision @ kept.sum(axis=0)
    if common_ridge is not None:
        information = information + np.diag(common_ridge)
    spread = np.linalg.pinv(0.5 * (information + information.T), hermitian=True)
    common = spread @ (precision @ np.einsum("nkl,nl->k", inverse, loss.moment))
    models = np.matmul(inverse, (loss.moment + precision @ common)[..., None])[..., 0]
    return Moments(models, common, inverse, kept, spread)


def _lengthened(covariance: np.ndarray, step: np.ndarray) -> np.ndarray:
    """The covariance moved to where the step leads, and on."""
    root = np.linalg.cholesky(covariance)
    back = np.linalg.inv(root)
    ratios, directions = np.linalg.eigh(back @ step @ back.T)
    towards = root @ (directions * np.maximum(ratios, _SHRINKING) ** (_POWER / 2.0))
    return towards @ towards.T
