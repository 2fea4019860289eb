"""Marginal likelihood of the shared model with deviations and no edges: REML with independent random coefficients.

f is the negative log marginal likelihood (evidence) up to a constant, as a function of the strengths h > 0. Without
edges, A = blockdiag(D_i) − 11ᵀ/n ⊗ diag(h) with D_i = G_i + diag(h) + ρI. Let K_i = D_i⁻¹(G_i + ρI). Then
M_i = diag(h) K_i is the information of task i about the shared model μ. With N rows and p coefficients,

    f(h)     = ½(N − p) ln Q + ½ Σ_i ln|D_i| + ½ ln|Σ_i M_i| − ½ n Σ_k ln h_k − ½ p ln n
    ∂f/∂h_k  = ½ Σ_i [ (w_i − μ)_k²/σ² + (D_i⁻¹)_kk + (K_i (ΣM)⁻¹ K_iᵀ)_kk ] − ½ n/h_k ,    σ² = Q/(N − p)

in O(n p³). Where the noise variance φ is known, ½Q/φ replaces ½(N − p) ln Q, and σ² = φ. Tasks may have no rows, or
fewer rows than coefficients. Second derivatives with respect to ln h cost little if the uncertainty of μ is neglected.
With d_i = w_i − μ, q = Σ_i d_i∘d_i and c = Σ_i (1 − h∘diag D_i⁻¹), they are

    observed   ½ (n + 2 h_k ∂f/∂h_k) δ_kl − ½ h_k h_l [ Σ_i (2 d_ik d_il/σ² + (D_i⁻¹)_kl) (D_i⁻¹)_kl + r_k r_l ]
    expected   ½ Σ_i (δ_kl − √(h_k h_l) (D_i⁻¹)_kl)² − ½ c_k c_l/(N − p) ,            r = q/(σ² √(N − p))

where r and the term with c are absent if σ² is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import numpy as np

from ggmtl.evidence.hub_sums import FirstSums, SecondSums, hub_tasks
from ggmtl.statistics.least_squares import LeastSquares

# ρ, a tiny ridge that keeps directions without data determined. Where columns are collinear in all tasks, as the
# indicators of all levels of several factors are, ρ is the only information about the shared model in some directions,
# so it must be far above rounding errors. With 1e-10, the evidence of School jumped by 35 nats between strengths that
# agreed to nine digits; with 1e-8, by 1e-4.
RIDGE = 1e-8


@dataclass(frozen=True)
class HubEvidence:
    """Evidence of the hub at given strengths h, with its derivatives and the models.

    Parameters
    ----------
    value : float
        f, the negative log evidence up to a constant, in nats.
    gradient : array of shape (p,)
        ∂f/∂h.
    coefficients : array of shape (n, p)
        Models of the tasks.
    common : array of shape (p,)
        μ, the shared model.
    noise : float
        σ².
    observed, expected : array of shape (p, p), optional
        Observed and expected second derivatives of f with respect to ln h. None on a GPU, where they are not computed.
    start : object, optional
        Start of the next evaluation, for :meth:`~ggmtl.statistics.least_squares.LeastSquares.near`. None for squared
        loss, which needs no iterations.
    """

    value: float
    gradient: np.ndarray
    coefficients: np.ndarray
    common: np.ndarray
    noise: float
    observed: np.ndarray | None = None
    expected: np.ndarray | None = None
    start: Any = None


def degrees_of_freedom(loss: LeastSquares) -> float:
    """N − p, at least one: the rows minus the coefficients of the shared model, whose prior is flat."""
    return max(float(loss.count.sum()) - loss.n_features, 1.0)


def misfit(loss: LeastSquares, quadratic: float) -> tuple[float, float]:
    """Twice the term of f that depends on Q, and σ².

    These are (N − p) ln Q and Q/(N − p), or Q/φ and φ if the noise variance φ is known. `quadratic` is Q.
    """
    if loss.noise is not None:
        return quadratic / loss.noise, loss.noise
    # Keep ln Q finite. A constant target is all zero after scaling; the floor is then in units of one.
    floor = 1e-14 * (float(loss.target_square.sum()) or 1.0) + np.finfo(float).tiny
    quadratic = max(quadratic, floor)
    freedom = degrees_of_freedom(loss)
    return float(freedom * np.log(quadratic)), quadratic / freedom


def evidence_with_common_model(value: float, loss: LeastSquares) -> float:
    """−ln p(y) from the `value` f, with the prior N(0, I) of the shared model instead of a flat one.

    Unlike f, it can be compared between losses with different columns. In scaled units, a coefficient of one is a large
    effect. The constants added to f depend on the number of coefficients p: ½(N − p)(1 + ln 2π − ln(N − p)), the
    prior density at zero, ½ p ln 2π, and ½ p ln n, because f is flat in √n μ.
    """
    freedom, constant = degrees_of_freedom(loss), np.log(2.0 * np.pi)
    scale = 1.0 + constant - np.log(freedom) if loss.noise is None else constant + np.log(loss.noise)
    return value + 0.5 * freedom * scale + 0.5 * loss.n_features * (constant + np.log(loss.n_tasks))


@singledispatch
def hub_evidence(
    loss: LeastSquares, hub: np.ndarray, ridge: float | np.ndarray = RIDGE, common_ridge: np.ndarray | None = None
) -> HubEvidence:
    """Exact f(h) with its gradient and the models, for strengths h > 0 of shape (p,) and any number of tasks.

    `ridge` is ρ. The prior of the shared model is flat, or normal about zero with the precision `common_ridge` of shape
    (p,). Losses on a GPU register their own implementation.
    """
    n, p = loss.moment.shape
    hub = np.asarray(hub, dtype=float)
    tasks = hub_tasks(loss, hub, ridge)
    first = tasks.first
    pooled, spread, common = _common_model(hub, first, common_ridge)
    second = tasks.second(common, spread)
    coefficients = second.coefficients
    deviation = ((coefficients - common) ** 2).sum(axis=0)
    quadratic = 2 * loss.value(coefficients) + hub @ deviation + float((ridge * coefficients**2).sum())
    if common_ridge is not None:
        quadratic += float(common_ridge @ common**2)
    twice_misfit, noise = misfit(loss, quadratic)
    expected = deviation / noise + first.inverses + second.mean_variance
    log_det = first.log_det + np.linalg.slogdet(pooled)[1]
    value = 0.5 * (twice_misfit + log_det - n * np.log(hub).sum() - p * np.log(n))
    gradient = 0.5 * (expected - n / hub)
    curvatures = _curvatures(loss, hub, gradient, first.inverses, second, deviation, noise)
    return HubEvidence(float(value), gradient, coefficients, common, noise, *curvatures)


def shrunk_models(
    loss: LeastSquares, hub: np.ndarray, ridge: float | np.ndarray = RIDGE, common_ridge: np.ndarray | None = None
) -> np.ndarray:
    """Only the models of :func:`hub_evidence`, shape (n, p), in about half of its time."""
    hub = np.asarray(hub, dtype=float)
    tasks = hub_tasks(loss, hub, ridge)
    return tasks.models(_common_model(hub, tasks.first, common_ridge)[2])


def _common_model(
    hub: np.ndarray, first: FirstSums, common_ridge: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Precision and covariance of μ, in units of σ², and μ itself."""
    pooled = 0.5 * (first.information + first.information.T)
    if common_ridge is not None:
        pooled += np.diag(common_ridge)
    spread = np.linalg.inv(pooled)
    return pooled, spread, spread @ (hub * first.right)


def _curvatures(
    loss: LeastSquares,
    hub: np.ndarray,
    gradient: np.ndarray,
    diagonal: np.ndarray,
    sums: SecondSums,
    deviation: np.ndarray,
    noise: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Observed and expected second derivatives of f with respect to ln h, both of shape (p, p)."""
    n, share = len(loss.moment), hub * deviation / noise
    observed = -(2.0 * sums.products / noise + sums.squares) + np.diag(n + 2.0 * hub * gradient)
    expected = sums.squares + np.diag(n - 2.0 * hub * diagonal)
    if loss.noise is None:
        freedom = degrees_of_freedom(loss)
        observed -= np.outer(share, share) / freedom
        expected -= np.outer(n - hub * diagonal, n - hub * diagonal) / freedom
    return 0.5 * observed, 0.5 * expected
