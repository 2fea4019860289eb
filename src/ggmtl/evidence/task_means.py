"""A shared model that depends on task features, w_0 + B z_i, and the strengths with which B is shrunk to zero.

    w_i ~ N(w_0 + B z_i, σ² diag(1/h)) ,     B_kj ~ N(0, σ²/b_kj) ,     b_kj = a_k c_g(j) ,     flat on w_0

With D_i = G_i + diag(h) + ρI, M_i = diag(h) D_i⁻¹ (G_i + ρI) is the information of task i about its mean, and
r_i = diag(h) D_i⁻¹ m_i. Write z̃_i = (1, z_i), θ = (w_0, B) and

    S = Σ_i z̃_i z̃_iᵀ ⊗ M_i + diag(0, b) ,     S θ̂ = Σ_i z̃_i ⊗ r_i .

With N rows, p coefficients and the models and θ integrated out, the negative log evidence is

    f(h, b)   = ½(N − p) ln Q + ½ Σ_i ln|D_i| + ½ ln|S| − ½ n Σ_k ln h_k − ½ Σ_kj ln b_kj − ½ p ln n
    ∂f/∂b_kj  = ½ [ B̂_kj²/σ² + (S⁻¹)_kj,kj − 1/b_kj ]
    ∂f/∂h_k   = ½ [ Σ_i (w_i − w_0 − B z_i)_k²/σ² + (D_i⁻¹)_kk + (K_i C_i K_iᵀ)_kk − n/h_k ]

with K_i = I − D_i⁻¹ diag(h), C_i = (z̃_iᵀ ⊗ I) S⁻¹ (z̃_i ⊗ I) and σ² = Q/(N − p). Where the noise variance φ is known,
Q/2φ replaces the first term, and σ² = φ. Only the sums of each task's rows are needed. Without task features, f is that
of :mod:`ggmtl.evidence.hub`. As b → ∞, B tends to zero and f to that of the hub, so useless task features do not lower
the evidence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ggmtl.evidence.hub import RIDGE, misfit
from ggmtl.evidence.hub_strengths import minimize_logs, sample_of_tasks
from ggmtl.evidence.hub_sums import chunks, task_inverses
from ggmtl.statistics.least_squares import LeastSquares

# Precisions of two log-normal hyper-priors: of the factors a_k about one, and of h about a common multiple of the
# strengths learned without task features.
_SHARE_PRECISION, _HUB_PRECISION = 1.0, 2.0
# Bounds of the factors c, and the total with which they start. The unit of b is the number of tasks times h.
_WEAKEST, _STRONGEST = 1e-6, 1e4
_FIRST = 1.0
# The search ends when a step gains less than this many nats.
_NATS = 1e-3


@dataclass(frozen=True)
class MeanEvidence:
    """Evidence of a shared model with task features at given strengths, with its derivatives and the models.

    Parameters
    ----------
    value : float
        f, the negative log evidence up to a constant.
    hub_gradient : array of shape (p,)
        ∂f/∂h.
    effect_gradient : array of shape (q, p)
        ∂f/∂b.
    coefficients : array of shape (n, p)
        Models w_i of the tasks.
    common : array of shape (p,)
        w_0.
    effects : array of shape (q, p)
        B, transposed.
    covariance : array of shape ((1 + q)p, (1 + q)p)
        S⁻¹, the posterior covariance of (w_0, B) in units of σ². The index of the task feature varies slowest.
    noise : float
        σ².
    """

    value: float
    hub_gradient: np.ndarray
    effect_gradient: np.ndarray
    coefficients: np.ndarray
    common: np.ndarray
    effects: np.ndarray
    covariance: np.ndarray
    noise: float


def mean_evidence(
    loss: LeastSquares, known: np.ndarray, hub: np.ndarray, strength: np.ndarray, ridge: float = RIDGE
) -> MeanEvidence:
    """Exact f(h, b) with its gradient and the models, for any number of tasks.

    Parameters
    ----------
    loss : LeastSquares
    known : array of shape (n, q)
        z, the features of every task.
    hub : array of shape (p,)
        h > 0.
    strength : array of shape (q, p)
        b > 0.
    ridge : float
        ρ, a tiny ridge that keeps directions without data determined.
    """
    n, p = loss.moment.shape
    q = known.shape[1]
    normal, right, log_det = _normal_equations(loss, known, hub, ridge)
    covariance, determinant = _inverse(normal, strength)
    theta = (covariance @ right).reshape(1 + q, p)
    means = theta[0] + known @ theta[1:]
    coefficients, variance = _task_models(loss, known, hub, ridge, means, covariance)
    deviation = ((coefficients - means) ** 2).sum(axis=0)
    quadratic = 2 * loss.value(coefficients) + hub @ deviation + ridge * float((coefficients**2).sum())
    twice_misfit, noise = misfit(loss, quadratic + float((strength * theta[1:] ** 2).sum()))
    value = 0.5 * (
        twice_misfit + log_det + determinant - n * np.log(hub).sum() - np.log(strength).sum() - p * np.log(n)
    )
    spread = np.diag(covariance)[p:].reshape(q, p)
    return MeanEvidence(
        value=float(value),
        hub_gradient=0.5 * (deviation / noise + variance - n / hub),
        effect_gradient=0.5 * (theta[1:] ** 2 / noise + spread - 1.0 / strength),
        coefficients=coefficients,
        common=theta[0],
        effects=theta[1:],
        covariance=covariance,
        noise=noise,
    )


def effect_covariance(
    loss: LeastSquares, known: np.ndarray, hub: np.ndarray, strength: np.ndarray, ridge: float = RIDGE
) -> np.ndarray:
    """S⁻¹, the `covariance` of :class:`MeanEvidence`."""
    return _inverse(_normal_equations(loss, known, hub, ridge)[0], strength)[0]


def _inverse(normal: np.ndarray, strength: np.ndarray) -> tuple[np.ndarray, float]:
    """S⁻¹ and ln|S| from the normal equations and the strengths b."""
    prior = np.concatenate([np.zeros(strength.shape[1]), strength.ravel()])
    total = normal + np.diag(prior)
    # Scaled to a unit diagonal, because strengths differ by many orders of magnitude.
    unit = np.sqrt(np.diag(total))
    scaled = total / np.outer(unit, unit)
    determinant = np.linalg.slogdet(scaled)[1] + 2.0 * np.log(unit).sum()
    return np.linalg.inv(scaled) / np.outer(unit, unit), float(determinant)


def _normal_equations(
    loss: LeastSquares, known: np.ndarray, hub: np.ndarray, ridge: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """Σ z̃ z̃ᵀ ⊗ M_i, Σ z̃ ⊗ r_i and Σ ln|D_i|. The index of the task feature varies slowest."""
    (n, p), width = loss.moment.shape, known.shape[1] + 1
    total, right, log_det = np.zeros((width * width, p * p)), np.zeros((width, p)), 0.0
    for rows in chunks(n, width * width + p * p):
        inverse, part = task_inverses(loss.gram[rows], hub + ridge)
        log_det += part
        own = loss.gram[rows] + ridge * np.eye(p)
        information = hub[:, None] * np.matmul(inverse, own)
        z = _with_constant(known[rows])
        total += _squares(z).T @ information.reshape(len(z), -1)
        right += z.T @ (hub * np.matmul(inverse, loss.moment[rows, :, None])[..., 0])
    normal = total.reshape(width, width, p, p).transpose(0, 2, 1, 3).reshape(width * p, width * p)
    return 0.5 * (normal + normal.T), right.ravel(), log_det


def _task_models(
    loss: LeastSquares, known: np.ndarray, hub: np.ndarray, ridge: float, means: np.ndarray, covariance: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The models of the tasks, shape (n, p), and Σ_i [(D_i⁻¹)_kk + (K_i C_i K_iᵀ)_kk], shape (p,)."""
    (n, p), width = loss.moment.shape, known.shape[1] + 1
    blocks = covariance.reshape(width, p, width, p).transpose(0, 2, 1, 3).reshape(width * width, p * p)
    coefficients, variance = np.empty((n, p)), np.zeros(p)
    for rows in chunks(n, width * width + p * p):
        inverse, _ = task_inverses(loss.gram[rows], hub + ridge)
        coefficients[rows] = np.matmul(inverse, (loss.moment[rows] + hub * means[rows])[..., None])[..., 0]
        variance += np.einsum("nkk->k", inverse)
        mean_covariance = (_squares(_with_constant(known[rows])) @ blocks).reshape(-1, p, p)
        kept = np.eye(p) - inverse * hub
        variance += np.einsum("nkl,nlm,nkm->k", kept, mean_covariance, kept, optimize=True)
    return coefficients, variance


def _with_constant(known: np.ndarray) -> np.ndarray:
    return np.column_stack([np.ones(len(known)), known])


def _squares(z: np.ndarray) -> np.ndarray:
    """z zᵀ of every task, flattened to shape (n, width²)."""
    return (z[:, :, None] * z[:, None, :]).reshape(len(z), -1)


@dataclass(frozen=True)
class LearnedMeans:
    """Learned strengths h, shape (p,), and b, shape (q, p), their evidence, and how the search ended."""

    hub: np.ndarray
    strength: np.ndarray
    evidence: MeanEvidence
    iterations: int
    converged: bool


def learn_means(
    loss: LeastSquares,
    known: np.ndarray,
    groups: np.ndarray,
    hub: np.ndarray,
    *,
    most: int,
    common: np.ndarray | None = None,
    ridge: float = RIDGE,
    max_iter: int = 100,
) -> LearnedMeans:
    """Minimise f over ln h, ln a and ln c by L-BFGS.

    Parameters
    ----------
    loss : LeastSquares
    known : array of shape (n, q)
        Task features: centred columns with a standard deviation of one.
    groups : array of int, shape (q,)
        Columns with the same label share c.
    hub : array of shape (p,)
        Strengths learned without task features, at which the search starts.
    most : int
        Largest number of tasks from which strengths are learned; B always uses all tasks.
    common : array of bool, shape (p,), optional
        Coefficients that are the same in all tasks, so that no task feature may change them.
    ridge : float
        ρ.
    max_iter : int
        Largest number of iterations.
    """
    free = np.ones(loss.n_features, dtype=bool) if common is None else ~common
    p, n_groups = loss.n_features, int(groups.max()) + 1
    chosen = sample_of_tasks(loss, most)
    sample, z = (loss, known) if chosen is None else (loss.of_tasks(chosen), known[chosen])
    unit = hub * sample.n_tasks
    start = np.log(hub)

    def unpacked(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        shares, sizes = x[p : 2 * p], x[2 * p :]
        return np.exp(start + x[:p]), shares, unit * np.exp(shares + sizes[groups][:, None])

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        h, shares, strength = unpacked(x)
        found = mean_evidence(sample, z, h, strength, ridge)
        slope = found.effect_gradient * strength
        centred = np.where(free, x[:p] - x[:p][free].mean(), 0.0)
        gradient = np.concatenate(
            [
                found.hub_gradient * h + _HUB_PRECISION * centred,
                slope.sum(axis=0) + _SHARE_PRECISION * shares,
                np.bincount(groups, slope.sum(axis=1), n_groups),
            ]
        )
        penalty = 0.5 * (_HUB_PRECISION * centred @ centred + _SHARE_PRECISION * shares @ shares)
        return found.value + float(penalty), gradient

    first = np.concatenate([np.zeros(2 * p), np.full(n_groups, np.log(_FIRST / z.shape[1]))])
    bounds = np.concatenate([np.tile([-7.0, 7.0], (2 * p, 1)), np.tile(np.log([_WEAKEST, _STRONGEST]), (n_groups, 1))])
    # Coefficients that are the same in all tasks keep their strengths, which are at the upper bound. The strengths n h
    # of their B are then so large that B is zero.
    bounds[: 2 * p][~np.tile(free, 2)] = 0.0
    search = minimize_logs(objective, first, bounds, max_iter=max_iter, ftol=_NATS / max(abs(objective(first)[0]), 1.0))
    h, _, strength = unpacked(search.x)
    return LearnedMeans(h, strength, mean_evidence(loss, known, h, strength, ridge), int(search.nit), search.success)
