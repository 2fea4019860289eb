"""Evidence of the common model alone (REML with independent random coefficients).

With h > 0 and no edges, A = blockdiag(D_i) − 11ᵀ/n ⊗ diag(h), D_i = G_i + diag(h) + ρI. Write
K_i = D_i⁻¹(G_i + ρI) and M_i = diag(h) K_i, the information of task i about the common model μ. With N rows and p
coefficients,

    f(h)     = ½(N − p) ln Q + ½ Σ_i ln|D_i| + ½ ln|Σ_i M_i| − ½ n Σ_k ln h_k − ½ p ln n
    ∂f/∂h_k  = ½ Σ_i [ (w_i − μ)_k²/σ² + (D_i⁻¹)_kk + (K_i (ΣM)⁻¹ K_iᵀ)_kk ] − ½ n/h_k ,    σ² = Q/(N − p)

in O(n p³). Where the noise is known to be φ, ½Q/φ takes the place of ½(N − p) ln Q, and σ² = φ. Tasks may have no
rows, or fewer rows than coefficients. Second derivatives in ln h, but for the doubt about μ, cost next to nothing: with
d_i = w_i − μ, q = Σ_i d_i∘d_i and c = Σ_i (1 − h∘diag D_i⁻¹),

    observed   ½ (n + 2 h_k ∂f/∂h_k) δ_kl − ½ h_k h_l [ Σ_i (2 d_ik d_il/σ² + (D_i⁻¹)_kl) (D_i⁻¹)_kl + r_k r_l ]
    expected   ½ Σ_i (δ_kl − √(h_k h_l) (D_i⁻¹)_kl)² − ½ c_k c_l/(N − p) ,            r = q/(σ² √(N − p))

(r and the term in c only where σ² is estimated).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import numpy as np

from ggmtl.evidence.hub_sums import FirstSums, SecondSums, hub_tasks
from ggmtl.statistics.least_squares import LeastSquares

# ρ, which only determines what no row determines. Where columns are collinear in all tasks, as the indicators of all
# levels of several factors are, the information about the common model has no other part in some directions, and
# rounding must stay far below it: with 1e-10 the evidence of School jumped by 35 nats between strengths that agreed to
# nine digits, with 1e-8 by 1e-4.
RIDGE = 1e-8


@dataclass(frozen=True)
class HubEvidence:
    """Evidence of a hub's strengths.

    Parameters
    ----------
    value : float
        f.
    gradient : array of shape (p,)
        ∂f/∂h.
    expected_square : array of shape (p,)
        E Σ_i (w_i − μ)_k²/σ² under the posterior; n/expected_square is the EM step for h.
    coefficients : array of shape (n, p)
        Models.
    common : array of shape (p,)
        μ, the common model.
    noise : float
        σ².
    observed, expected : array of shape (p, p), optional
        Second derivatives of f in ln h; None where they are not known, as on a device.
    start : object
        From where :meth:`~ggmtl.statistics.least_squares.LeastSquares.near` goes on; None where one step suffices.
    """

    value: float
    gradient: np.ndarray
    expected_square: np.ndarray
    coefficients: np.ndarray
    common: np.ndarray
    noise: float
    observed: np.ndarray | None = None
    expected: np.ndarray | None = None
    start: Any = None


def degrees_of_freedom(loss: LeastSquares) -> float:
    """N − p: rows less the coefficients of the common model, on which the prior is flat; at least one."""
    return max(float(loss.count.sum()) - loss.n_features, 1.0)


def misfit(loss: LeastSquares, quadratic: float) -> tuple[float, float]:
    """Twice what Q adds to f, and σ²: (N − p) ln Q and Q/(N − p), or Q/φ and φ where the noise φ is known."""
    if loss.noise is not None:
        return quadratic / loss.noise, loss.noise
    # The target is in scaled units; one that is constant, and so all zero, still has a scale of one.
    floor = 1e-14 * (float(loss.target_square.sum()) or 1.0) + np.finfo(float).tiny
    quadratic = max(quadratic, floor)
    freedom = degrees_of_freedom(loss)
    return float(freedom * np.log(quadratic)), quadratic / freedom


def evidence_with_common_model(value: float, loss: LeastSquares) -> float:
    """−ln p(y) from f, for a common model ~ N(0, I) instead of a flat one: it compares losses of other columns, too.

    In scaled units one is a large effect. To f come the constants that depend on the number of coefficients p:
    ½(N − p)(1 + ln 2π − ln(N − p)), the density at zero, ½ p ln 2π, and ½ p ln n, because f is flat in √n μ.
    """
    freedom, constant = degrees_of_freedom(loss), np.log(2.0 * np.pi)
    scale = 1.0 + constant - np.log(freedom) if loss.noise is None else constant + np.log(loss.noise)
    return value + 0.5 * freedom * scale + 0.5 * loss.n_features * (constant + np.log(loss.n_tasks))


@singledispatch
def hub_evidence(
    loss: LeastSquares, hub: np.ndarray, ridge: float | np.ndarray = RIDGE, common_ridge: np.ndarray | None = None
) -> HubEvidence:
    """Value and gradient of f(h), exact at any number of tasks, for h > 0 of shape (p,).

    The ridge ρ only determines what no row determines. The common model has a flat prior, or a precision
    `common_ridge` of shape (p,) about zero. Losses on a device register their own form.
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
    expected = deviation / noise + first.inverses + second.doubt
    log_det = first.log_det + np.linalg.slogdet(pooled)[1]
    value = 0.5 * (twice_misfit + log_det - n * np.log(hub).sum() - p * np.log(n))
    gradient = 0.5 * (expected - n / hub)
    curvatures = _curvatures(loss, hub, gradient, first.inverses, second, deviation, noise)
    return HubEvidence(float(value), gradient, expected, coefficients, common, noise, *curvatures)


def shrunk_models(
    loss: LeastSquares, hub: np.ndarray, ridge: float | np.ndarray = RIDGE, common_ridge: np.ndarray | None = None
) -> np.ndarray:
    """The models of :func:`hub_evidence` alone, shape (n, p), in about half of its time."""
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
    """Observed and expected second derivatives in ln h from sums over tasks."""
    n, share = len(loss.moment), hub * deviation / noise
    observed = -(2.0 * sums.products / noise + sums.squares) + np.diag(n + 2.0 * hub * gradient)
    expected = sums.squares + np.diag(n - 2.0 * hub * diagonal)
    if loss.noise is None:
        freedom = degrees_of_freedom(loss)
        observed -= np.outer(share, share) / freedom
        expected -= np.outer(n - hub * diagonal, n - hub * diagonal) / freedom
    return 0.5 * observed, 0.5 * expected
