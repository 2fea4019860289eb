"""Draws of the tasks' precision Φ given the models, for two priors.

With scatter T = Σ_k w_k w_kᵀ of the d rows w_k ~ N(0, Φ⁻¹) of W (one entry per task):

    Wishart:           Φ ~ W(η, I/s)                     ⇒  Φ | W ~ W(η + d, (sI + T)⁻¹)
    graphical lasso:   p(Φ) ∝ exp(−λ Σ_{i<j} |Φ_ij| − (λ/2) tr Φ) on Φ ≻ 0;   block Gibbs of Wang (2012)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from ggmtl.baselines._sparse_precision import invert

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

    Given Φ, s would hardly move: Φ has n(n + 1)/2 entries that all remember it.
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

    Older versions of ``Generator.wald`` subtract nearly equal numbers where μ is large beside λ, and return values
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
