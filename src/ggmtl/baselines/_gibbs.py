"""Gibbs sampler of Bayesian multi-task structure learning, from sufficient statistics.

    y_i ~ N(X_i(w_i∘β) + b_i, 1/τ_i),   rows of W ~ N(0, Φ⁻¹),
    τ_i ~ Gamma(a, b),   β_k ~ Bernoulli(θ),   θ ~ Beta(1, 1)

with flat intercepts b_i integrated out (centred statistics, one degree of freedom less per task). Rows of W
whose feature is left out (β_k = 0) do not enter the likelihood: they are integrated out and held
as zeros. A sweep draws

1. every task's w_i, over the features in, given the others: precision τ_i G_i + Φ_ii I, linear term
   τ_i m_i − Σ_{j≠i} Φ_ij w_j;
2. every feature's (β_k, row k of W) jointly, β_k with the row integrated out, so that features come and go;
3. τ, θ and the relation Φ.

With scatter T = Σ_k w_k w_kᵀ of the d rows w_k of W (one entry per task), Φ has one of two priors:

    Wishart:           Φ ~ W(η, I/s)                     ⇒  Φ | W ~ W(η + d, (sI + T)⁻¹)
    graphical lasso:   p(Φ) ∝ exp(−λ Σ_{i<j} |Φ_ij| − (λ/2) tr Φ) on Φ ≻ 0;   block Gibbs of Wang (2012)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from ggmtl.baselines._shared import CentredLoss, invert

# Shape and rate of the Gamma prior of λ and of s where they are not given.
_SHAPE, _RATE = 1.0, 0.01


@dataclass(frozen=True)
class WishartRelation:
    """Φ with a Wishart prior of `degrees` η and inverse scale s.

    `inverse_scale` None: s has a Gamma(1, 0.01) prior and is drawn too, in `drawn_scale`.
    """

    precision: np.ndarray
    degrees: float
    inverse_scale: float | None
    drawn_scale: float = 1.0

    @classmethod
    def start(cls, n_tasks: int, degrees: float, inverse_scale: float | None) -> WishartRelation:
        """Begin at the mean of the prior."""
        scale = 1.0 if inverse_scale is None else inverse_scale
        return cls(degrees / scale * np.eye(n_tasks), degrees, inverse_scale, scale)

    def draw(self, scatter: np.ndarray, n_rows: int, rng: np.random.Generator) -> WishartRelation:
        """One Gibbs draw given T and the number of rows d."""
        n = len(scatter)
        scale = self.drawn_scale
        if self.inverse_scale is None:
            scale = _draw_scale(scale, scatter, self.degrees, n_rows, rng)
        precision = draw_wishart(self.degrees + n_rows, scatter + scale * np.eye(n), rng)
        return replace(self, precision=precision, drawn_scale=scale)

    def log_prior(self) -> float:
        """ln p(Φ, s) up to a constant."""
        n, s = len(self.precision), self.drawn_scale
        log_determinant, _ = invert(self.precision)
        value = 0.5 * (self.degrees - n - 1) * log_determinant - 0.5 * s * np.trace(self.precision)
        if self.inverse_scale is None:
            value += (0.5 * n * self.degrees + _SHAPE - 1.0) * np.log(s) - _RATE * s
        return float(value)


@dataclass(frozen=True)
class LassoRelation:
    """Φ with the prior of the Bayesian graphical lasso; λ ~ Gamma(1, 0.01) is drawn too."""

    precision: np.ndarray
    rate: float = 1.0

    @classmethod
    def start(cls, n_tasks: int) -> LassoRelation:
        """Begin at the identity."""
        return cls(np.eye(n_tasks))

    def draw(self, scatter: np.ndarray, n_rows: int, rng: np.random.Generator) -> LassoRelation:
        """One sweep over the columns of Φ, given T and the number of rows d."""
        n = len(scatter)
        shape = _SHAPE + 0.5 * n * (n + 1)
        rate = rng.gamma(shape) / (_RATE + 0.5 * np.abs(self.precision).sum())
        shrinkage = _draw_shrinkage(self.precision, rate, rng)
        precision = self.precision.copy()
        covariance = invert(precision)[1].copy()
        for column in range(n):
            _draw_column(column, precision, covariance, scatter, shrinkage, rate, n_rows, rng)
        return LassoRelation(precision, rate)

    def log_prior(self) -> float:
        """ln p(Φ, λ) up to a constant."""
        n = len(self.precision)
        power = _SHAPE - 1.0 + 0.5 * n * (n + 1)
        total = 0.5 * np.abs(self.precision).sum()
        return float(power * np.log(self.rate) - self.rate * (total + _RATE))


def _draw_scale(scale, scatter, degrees, n_rows, rng: np.random.Generator) -> float:
    """One slice step on ln s with Φ integrated out: p(s | W) ∝ p(s) s^{nη/2} |sI + T|^{−(η+d)/2}.

    Given Φ, s would hardly move, because all n(n + 1)/2 entries of Φ depend on it.
    """
    eigenvalues = np.maximum(np.linalg.eigvalsh(scatter), 0.0)
    power = _SHAPE + 0.5 * len(scatter) * degrees

    def log_density(x: float) -> float:
        return power * x - _RATE * np.exp(x) - 0.5 * (degrees + n_rows) * np.log(np.exp(x) + eigenvalues).sum()

    return float(np.exp(_slice_step(np.log(scale), log_density, rng)))


def _slice_step(x: float, log_density: Callable[[float], float], rng: np.random.Generator) -> float:
    """Slice sampling by stepping out and shrinking, first width one (Neal, 2003)."""
    level = log_density(x) + np.log(rng.uniform())
    left = x - rng.uniform()
    right = left + 1.0
    while log_density(left) > level:
        left -= 1.0
    while log_density(right) > level:
        right += 1.0
    while True:
        proposal = rng.uniform(left, right)
        if log_density(proposal) > level:
            return proposal
        left, right = (proposal, right) if proposal < x else (left, proposal)


def draw_wishart(degrees: float, inverse_scale: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Φ ~ W(ν, B⁻¹) by Bartlett's decomposition; B = LLᵀ gives Φ = L⁻ᵀ A Aᵀ L⁻¹."""
    n = len(inverse_scale)
    bartlett = np.tril(rng.standard_normal((n, n)), -1)
    bartlett[np.diag_indices(n)] = np.sqrt(2.0 * rng.gamma(0.5 * (degrees - np.arange(n))))
    root = solve_triangular(np.linalg.cholesky(inverse_scale), bartlett, lower=True, trans=1)
    return root @ root.T


def _draw_shrinkage(precision: np.ndarray, rate: float, rng: np.random.Generator) -> np.ndarray:
    """1/τ_ij ~ inverse Gaussian(λ/|Φ_ij|, λ²), symmetric; the diagonal is not used."""
    size = np.maximum(np.abs(precision), 1e-10)
    draws = draw_inverse_gaussian(rate / size, rate**2, rng)
    return np.tril(draws, -1) + np.tril(draws, -1).T


def draw_inverse_gaussian(mean: np.ndarray, scale: float, rng: np.random.Generator) -> np.ndarray:
    """Draw from IG(μ, λ): with a = μχ²/2λ, x = μ/(1 + a + √(a(a + 2))), or μ²/x with probability x/(μ + x).

    Older versions of ``Generator.wald`` subtract nearly equal numbers where μ is large relative to λ, and return values
    that are negative.
    """
    a = 0.5 * mean * rng.standard_normal(mean.shape) ** 2 / scale
    small = mean / (1.0 + a + np.sqrt(a * (a + 2.0)))
    return np.where(rng.uniform(size=mean.shape) * (mean + small) <= mean, small, mean * (mean / small))


def _draw_column(column, precision, covariance, scatter, shrinkage, rate, n_rows, rng) -> None:
    """Replace one row and column of Φ, and of its inverse, in place."""
    rest = np.delete(np.arange(len(precision)), column)
    cross = covariance[rest, column]
    inverse = covariance[np.ix_(rest, rest)] - np.outer(cross, cross) / covariance[column, column]
    diagonal = scatter[column, column] + rate
    excess = rng.gamma(0.5 * n_rows + 1.0) * 2.0 / diagonal
    factor = cho_factor(diagonal * inverse + np.diag(shrinkage[rest, column]), lower=True)
    noise = solve_triangular(factor[0], rng.standard_normal(len(rest)), lower=True, trans=1)
    entries = noise - cho_solve(factor, scatter[rest, column])
    pulled = inverse @ entries
    precision[rest, column] = precision[column, rest] = entries
    precision[column, column] = excess + entries @ pulled
    covariance[np.ix_(rest, rest)] = inverse + np.outer(pulled, pulled) / excess
    covariance[rest, column] = covariance[column, rest] = -pulled / excess
    covariance[column, column] = 1.0 / excess


@dataclass(frozen=True)
class GibbsState:
    """One point of the chain; `slopes` are w_i∘β, rows being tasks."""

    slopes: np.ndarray
    selected: np.ndarray
    noise_precision: np.ndarray
    inclusion: float
    relation: WishartRelation | LassoRelation


@dataclass(frozen=True)
class ChainDraws:
    """Draws of one chain after warm-up: sums for means, and traces for diagnosis.

    Parameters
    ----------
    slopes, partial_correlation, selected : arrays of shape (n, d), (n, n), (d,)
        Posterior means.
    noise_precision, squared_norm, log_posterior : arrays of shape (draws, n), (draws, n), (draws,)
        τ_i, ‖w_i∘β‖² and the log posterior density, draw by draw.
    """

    slopes: np.ndarray
    partial_correlation: np.ndarray
    selected: np.ndarray
    noise_precision: np.ndarray
    squared_norm: np.ndarray
    log_posterior: np.ndarray


def start_state(loss: CentredLoss, relation: WishartRelation | LassoRelation, rng: np.random.Generator) -> GibbsState:
    """Start with all features in, and random slopes and noise, so that chains start at different points."""
    n, d = loss.shape
    spread = 1.0 / np.sqrt(max(d, 1))
    return GibbsState(spread * rng.standard_normal((n, d)), np.ones(d), rng.uniform(0.5, 2.0, size=n), 0.5, relation)


def sweep(
    state: GibbsState, loss: CentredLoss, noise_prior: tuple[float, float], rng: np.random.Generator
) -> GibbsState:
    """One full Gibbs sweep."""
    slopes = _draw_tasks(state, loss, rng)
    state = _draw_features(replace(state, slopes=slopes), loss, rng)
    noise_precision = draw_noise(state.slopes, loss, noise_prior, rng)
    kept, d = state.selected.sum(), len(state.selected)
    inclusion = float(rng.beta(1.0 + kept, 1.0 + d - kept))
    relation = state.relation.draw(state.slopes @ state.slopes.T, int(kept), rng)
    return replace(state, noise_precision=noise_precision, inclusion=inclusion, relation=relation)


def run_chain(
    state: GibbsState,
    loss: CentredLoss,
    noise_prior: tuple[float, float],
    n_warmup: int,
    n_samples: int,
    rng: np.random.Generator,
) -> ChainDraws:
    """Warm up, then collect draws."""
    for _ in range(n_warmup):
        state = sweep(state, loss, noise_prior, rng)
    n, d = loss.shape
    slopes, partial, selected = np.zeros((n, d)), np.zeros((n, n)), np.zeros(d)
    noise, norm, density = np.empty((n_samples, n)), np.empty((n_samples, n)), np.empty(n_samples)
    for k in range(n_samples):
        state = sweep(state, loss, noise_prior, rng)
        precision = state.relation.precision
        root = np.sqrt(np.diag(precision))
        slopes += state.slopes
        partial -= precision / np.outer(root, root)
        selected += state.selected
        noise[k], norm[k] = state.noise_precision, (state.slopes**2).sum(axis=1)
        density[k] = log_posterior(state, loss, noise_prior)
    return ChainDraws(slopes / n_samples, partial / n_samples, selected / n_samples, noise, norm, density)


def draw_noise(
    slopes: np.ndarray, loss: CentredLoss, noise_prior: tuple[float, float], rng: np.random.Generator
) -> np.ndarray:
    """τ_i ~ Gamma(a + ν_i/2, b + ‖residual‖²/2), ν_i = rows less one for the intercept."""
    shape, rate = noise_prior
    draws = rng.gamma(shape + 0.5 * loss.degrees_of_freedom)
    return np.maximum(draws, np.finfo(float).tiny) / (rate + 0.5 * loss.squares(slopes))


def log_posterior(state: GibbsState, loss: CentredLoss, noise_prior: tuple[float, float]) -> float:
    """ln p(W of the features in, β, τ, θ, Φ | y) up to a constant."""
    shape, rate = noise_prior
    tau, precision = state.noise_precision, state.relation.precision
    d, kept = len(state.selected), state.selected.sum()
    fit = (shape - 1.0 + 0.5 * loss.degrees_of_freedom) * np.log(tau)
    fit = fit - tau * (rate + 0.5 * loss.squares(state.slopes))
    log_determinant, _ = invert(precision)
    relation = 0.5 * (kept * log_determinant - np.vdot(state.slopes, precision @ state.slopes))
    inclusion = kept * np.log(state.inclusion) + (d - kept) * np.log1p(-state.inclusion)
    return float(fit.sum() + relation + inclusion + state.relation.log_prior())


def _draw_tasks(state: GibbsState, loss: CentredLoss, rng: np.random.Generator) -> np.ndarray:
    """Step 1. Factors do not depend on W, so all tasks are factorised at once."""
    precision, tau = state.relation.precision, state.noise_precision
    kept = np.flatnonzero(state.selected)
    matrices = tau[:, None, None] * loss.gram[:, kept[:, None], kept]
    matrices[:, np.arange(len(kept)), np.arange(len(kept))] += np.diag(precision)[:, None]
    inverse_factors = np.linalg.inv(np.linalg.cholesky(matrices))
    linear = tau[:, None] * loss.moment[:, kept]
    noise = rng.standard_normal(linear.shape)
    drawn = state.slopes[:, kept]
    for i, root in enumerate(inverse_factors):
        others = precision[i] @ drawn - precision[i, i] * drawn[i]
        drawn[i] = root.T @ (root @ (linear[i] - others) + noise[i])
    slopes = state.slopes.copy()
    slopes[:, kept] = drawn
    return slopes


def _draw_features(state: GibbsState, loss: CentredLoss, rng: np.random.Generator) -> GibbsState:
    """Step 2. For feature k: D = diag(τ_i G_i,kk), h_i = τ_i (m_ik − Σ_{l≠k} G_i,kl β_l w_il),

    ln odds(β_k) = ln θ/(1−θ) + ½ ln|Φ| − ½ ln|Φ + D| + ½ hᵀ(Φ + D)⁻¹h .
    """
    precision, tau = state.relation.precision, state.noise_precision
    n, d = loss.shape
    prior_log = 0.5 * invert(precision)[0]
    prior_odds = np.log(state.inclusion) - np.log1p(-state.inclusion)
    slopes, selected = state.slopes.copy(), state.selected.copy()
    for k in range(d):
        curvature = tau * loss.gram[:, k, k]
        explained = np.einsum("nl,nl->n", loss.gram[:, k], slopes) - loss.gram[:, k, k] * slopes[:, k]
        linear = tau * (loss.moment[:, k] - explained)
        factor = np.linalg.cholesky(precision + np.diag(curvature))
        white = solve_triangular(factor, linear, lower=True, check_finite=False)
        log_odds = prior_odds + prior_log - np.log(np.diag(factor)).sum() + 0.5 * white @ white
        selected[k] = float(np.log(rng.uniform()) < -np.logaddexp(0.0, -log_odds))
        slopes[:, k] = 0.0
        if selected[k]:
            white += rng.standard_normal(n)
            slopes[:, k] = solve_triangular(factor, white, lower=True, trans=1, check_finite=False)
    return replace(state, slopes=slopes, selected=selected)
