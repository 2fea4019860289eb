"""Evidence of the common model alone: how strongly each coordinate is drawn to it.

Without edges, w_i = μ + δ_i with δ_ik ~ N(0, σ²/h_k): a mixed model with independent random coefficients, and the
evidence is its restricted likelihood. With B_i = G_i + H, H = diag(h),

    f = ½(N − p) ln Q + ½ Σ_i ln|B_i| + ½ ln|M| − ½ n Σ_k ln h_k + const,      M = Σ_i G_i B_i⁻¹ H  (information on μ)

so everything costs O(n p³), whatever n.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from ggmtl.statistics import LeastSquares

# Logarithms of the strengths are kept within this of the data's own curvature: beyond, a coordinate is
# shared, or free, to within rounding anyway.
_LOG_RANGE = 16.0


@dataclass(frozen=True)
class HubEvidence:
    """Evidence at given strengths.

    Parameters
    ----------
    value : float
        −ln evidence up to a constant (lower is better).
    gradient : array of shape (p,)
        For ln h.
    coefficients, common : arrays of shape (n, p) and (p,)
        Models and common model.
    noise_variance : float
        σ².
    """

    value: float
    gradient: np.ndarray
    coefficients: np.ndarray
    common: np.ndarray
    noise_variance: float


def hub_evidence(loss: LeastSquares, hub: np.ndarray, ridge: np.ndarray) -> HubEvidence:
    """Restricted likelihood of hub strengths `hub` > 0, shape (p,), exactly."""
    n, p = loss.n_tasks, loss.n_features
    index = np.arange(p)
    gram = loss.gram.copy()
    gram[:, index, index] += ridge
    blocks = gram.copy()
    blocks[:, index, index] += hub
    root = np.linalg.inv(np.linalg.cholesky(blocks))
    inverse = np.matmul(root.transpose(0, 2, 1), root)
    own = np.matmul(inverse, loss.moment[..., None])[..., 0]
    information = np.matmul(gram, inverse).sum(axis=0) * hub
    information = 0.5 * (information + information.T)
    common = np.linalg.solve(information, hub * own.sum(axis=0))
    coefficients = own + np.matmul(inverse, hub * common)
    freedom = max(loss.count.sum() - p, 1.0)
    residual = max(float(loss.target_square.sum() - (loss.moment * coefficients).sum()), np.finfo(float).tiny)
    variance = residual / freedom
    log_blocks = -2.0 * np.log(np.einsum("npp->np", root)).sum()
    value = 0.5 * (
        freedom * np.log(residual) + log_blocks + np.linalg.slogdet(information)[1] - n * np.log(hub).sum()
    )
    spread = ((coefficients - coefficients.mean(axis=0)) ** 2).sum(axis=0) / variance
    # A⁻¹ has blocks B_i⁻¹ + B_i⁻¹ H M⁻¹ H B_i⁻¹; what is needed is its trace less that of its mean over tasks.
    weighted = inverse * hub
    middle = np.linalg.inv(information)
    total, weighted_total = inverse.sum(axis=0), weighted.sum(axis=0)
    trace = np.diag(total) + np.einsum("nkp,pq,nkq->k", weighted, middle, weighted, optimize=True)
    mean = np.diag(total + weighted_total @ middle @ weighted_total.T) / n
    gradient = 0.5 * (hub * (spread + trace - mean) - (n - 1))
    return HubEvidence(value, gradient, coefficients, common, variance)


def learn_hub(loss: LeastSquares, groups: np.ndarray, ridge: np.ndarray, prior: float = 0.0) -> np.ndarray:
    """Strengths of highest evidence, shape (p,), one for each group of coordinates.

    Parameters
    ----------
    loss : LeastSquares
    groups : array of int, shape (p,)
        Coordinates of one group share a strength.
    ridge : array that broadcasts to (n, p)
    prior : float
        Precision of a normal prior that draws the logarithms of the slopes' strengths (all groups but the last
        coordinate's own) to their mean, so that many strengths lose little to few where the data say nothing.
    """
    if loss.n_tasks < 2:
        return np.zeros(loss.n_features)
    own = np.maximum(np.einsum("npp->p", loss.gram) / loss.n_tasks, 1e-8)
    center = np.array([np.log(own[groups == g]).mean() for g in range(groups.max() + 1)])

    def objective(logarithms: np.ndarray) -> tuple[float, np.ndarray]:
        evidence = hub_evidence(loss, np.exp(logarithms[groups]), ridge)
        gradient = np.bincount(groups, evidence.gradient, len(center))
        deviation = logarithms - logarithms.mean()
        return evidence.value + 0.5 * prior * float(deviation @ deviation), gradient + prior * deviation

    bounds = [(c - _LOG_RANGE, c + _LOG_RANGE) for c in center]
    result = minimize(objective, center, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 100, "ftol": 1e-9})
    return np.exp(result.x[groups])
