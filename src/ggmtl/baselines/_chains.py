"""How far Markov chains can be trusted: split R̂ and effective sample size.

    R̂ = √(((m − 1)/m · within + between)/within)        ESS = M / (1 + 2 Σ_t ρ_t)

over half-chains of m draws, M draws in all (Gelman and Rubin, 1992; Geyer's initial positive pairs, 1992).
"""

from __future__ import annotations

import numpy as np


def split_r_hat(draws: np.ndarray) -> np.ndarray:
    """Split R̂ of draws of shape (chains, draws, …); one where a quantity never moves."""
    halves = _halves(draws)
    m = halves.shape[1]
    within = halves.var(axis=1, ddof=1).mean(axis=0)
    between = halves.mean(axis=1).var(axis=0, ddof=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.sqrt(((m - 1) / m * within + between) / within)
    # Stuck chains that disagree have no spread within and all of it between.
    return np.where(within > 0, ratio, np.where(between > 0, np.inf, 1.0))


def effective_sample_size(draws: np.ndarray) -> np.ndarray:
    """Effective number of independent draws, of draws of shape (chains, draws, …)."""
    halves = _halves(draws)
    chains, m = halves.shape[:2]
    covariance = _autocovariance(halves).mean(axis=0)
    within = covariance[0] * m / (m - 1)
    total = covariance[0] + halves.mean(axis=1).var(axis=0, ddof=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = 1.0 - (within - covariance * m / (m - 1)) / total
    correlation[0] = 1.0
    pairs = correlation[0 : m - m % 2 : 2] + correlation[1 : m - m % 2 : 2]
    positive = np.cumprod(pairs > 0, axis=0)
    decreasing = np.minimum.accumulate(np.where(positive, pairs, 0.0), axis=0)
    length = np.maximum(2.0 * decreasing.sum(axis=0) - 1.0, 1.0 / np.log10(max(chains * m, 10)))
    return np.where(total > 0, chains * m / length, float(chains * m))


def _halves(draws: np.ndarray) -> np.ndarray:
    """Cut every chain in two, so that a drift shows as disagreement."""
    half = draws.shape[1] // 2
    return np.concatenate([draws[:, :half], draws[:, draws.shape[1] - half :]])


def _autocovariance(chains: np.ndarray) -> np.ndarray:
    """Autocovariance at lags 0 … m − 1 of every chain, shape (chains, m, …)."""
    m = chains.shape[1]
    spectrum = np.fft.rfft(chains - chains.mean(axis=1, keepdims=True), n=2 * m, axis=1)
    return np.fft.irfft(np.abs(spectrum) ** 2, n=2 * m, axis=1)[:, :m] / m
