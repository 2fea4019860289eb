"""A common model whose tasks depart from it at a scale of their own.

    w_i ~ N(μ, σ² s_i² diag(h)⁻¹) ,     y_i ~ N(X_i w_i, σ²)

Firms or countries that differ in size by decades have deviations that do so, too. The steps are those of the EM
algorithm for h and s, μ integrated out: with D_i = G_i + diag(h)/s_i², K_i = D_i⁻¹G_i and M_i = diag(h)/s_i² K_i,

    μ = (ΣM_i)⁻¹ Σ diag(h)/s_i² D_i⁻¹ m_i ,     E_ik = (w_i − μ)_k²/σ² + (D_i⁻¹)_kk + (K_i (ΣM)⁻¹ K_iᵀ)_kk ,
    s_i² = (Σ_k h_k E_ik + c)/(p + c) ,          h_k = n / Σ_i E_ik/s_i² .
"""

from __future__ import annotations

import numpy as np

from ggmtl.evidence.hub import misfit
from ggmtl.statistics.least_squares import LeastSquares

# A prior of one coefficient's weight that all scales are the same; few coefficients hardly tell them apart.
_PRIOR = 1.0
# A few steps from the strengths of the hub: the level is one of several in an average, and need not be an optimum.
_ROUNDS = 4


def own_scale_models(
    loss: LeastSquares, hub: np.ndarray, free: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Models of all tasks, shape (n, p), and the strengths h, shape (p,), from the hub's as a start.

    Coefficients that are not `free` (all are by default) keep the strength of the hub.
    """
    n, p = loss.moment.shape
    free = np.ones(p, dtype=bool) if free is None else free
    strength, scale = hub.copy(), np.ones(n)
    models = np.zeros((n, p))
    for _ in range(_ROUNDS):
        pull = strength / scale[:, None]
        inverse = np.linalg.inv(loss.gram + pull[:, :, None] * np.eye(p))
        kept = np.eye(p) - inverse * pull[:, None, :]
        information = np.einsum("nk,nkl->kl", pull, kept)
        spread = np.linalg.pinv(0.5 * (information + information.T), hermitian=True)
        common = spread @ (pull * np.einsum("nkl,nl->nk", inverse, loss.moment)).sum(axis=0)
        models = np.einsum("nkl,nl->nk", inverse, loss.moment + pull * common)
        deviation = (models - common) ** 2
        noise = misfit(loss, 2.0 * loss.value(models) + float((pull * deviation).sum()))[1]
        expected = deviation / noise + np.einsum("nkk->nk", inverse) + np.einsum("nka,ab,nkb->nk", kept, spread, kept)
        scale = (expected[:, free] @ strength[free] + _PRIOR) / (free.sum() + _PRIOR)
        scale /= np.exp(np.log(scale).mean())
        strength = np.where(free, n / (expected / scale[:, None]).sum(axis=0), hub)
    return models, strength
