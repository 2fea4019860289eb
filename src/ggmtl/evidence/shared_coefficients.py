"""Evidence that a task shares single coefficients with others: w_ik = w_jk for some k, and no relation for the others.

Distances between whole models do not detect such relations. So every coefficient k of a task i has a latent origin z_k:

- fresh: drawn from the prior about the shared model, N(μ_k, σ²/h_k);
- zero;
- copied: equal to the coefficient of another task j, the source. Under the hub alone, its posterior is N(m_jk, v_jk).

Given the origins of the other coefficients, the posterior of w_k is N(m, c). Without the prior of coefficient k it
would be N(m°, v°) with 1/v° = 1/c − h_k/σ². A copy has the Bayes factor

    N(m_jk; m°, v° + v_jk) / N(μ_k; m°, v° + σ²/h_k) .

The shares of fresh, zero and copied coefficients have a uniform prior, and those of the sources a Dirichlet prior. Both
are integrated out (Pólya urns). A particle filter sums over all z, one coefficient after the other. Its mean weight is
an unbiased estimate of the evidence. The gain of the sources is the ratio to the evidence without sources.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln

from ggmtl.evidence.hub import RIDGE, HubEvidence
from ggmtl.evidence.hub_sums import task_inverses
from ggmtl.statistics.least_squares import LeastSquares

# Dirichlet weights per source; the particles use them in turn. They favour equal shares, any shares, and few sources.
_CONCENTRATIONS = np.array([100.0, 1.0, 0.1])
_PARTICLES = 300
# Memory limit: particles times squared coefficients. Models with many coefficients get fewer particles, at least 60.
_HELD_NUMBERS, _FEWEST = 1 << 22, 60
# Shares of copied coefficients over which the approximate (marginal) evidence is averaged.
_SHARES = np.linspace(0.05, 0.95, 10)
# Tasks are tried in order of their marginal evidence. The search ends after this many tasks in a row without a gain.
_PATIENCE = 3


@dataclass(frozen=True)
class HubPosterior:
    """Posterior N(m_i, C_i) and prior N(μ, diag(s²)) of the model of every task, under the hub alone.

    Parameters
    ----------
    mean, covariance : arrays of shape (n, p) and (n, p, p)
        m and C.
    prior_mean, prior_variance : arrays of shape (p,)
        μ and s² = σ²/h.
    """

    mean: np.ndarray
    covariance: np.ndarray
    prior_mean: np.ndarray
    prior_variance: np.ndarray

    @property
    def variance(self) -> np.ndarray:
        """v: the diagonals of C, shape (n, p)."""
        return np.einsum("nkk->nk", self.covariance)

    def columns(self, keep: np.ndarray) -> HubPosterior:
        """The distributions of some of the coefficients, given by a mask or by positions."""
        return HubPosterior(
            self.mean[:, keep],
            self.covariance[:, keep][:, :, keep],
            self.prior_mean[keep],
            self.prior_variance[keep],
        )


@dataclass(frozen=True)
class Origins:
    """Posterior probabilities of the origins of the coefficients of one task.

    Parameters
    ----------
    gain : float
        Log evidence minus that of the task without sources, in nats.
    copied : array of shape (sources, p)
        Probability that a coefficient is copied from a source.
    linked : array of shape (sources,)
        Probability that at least one coefficient is copied from a source.
    """

    gain: float
    copied: np.ndarray
    linked: np.ndarray


@dataclass(frozen=True)
class SharedCoefficients:
    """Pairs of tasks that share coefficients.

    Parameters
    ----------
    edges : array of shape (m, 2)
        Pairs i < j, sorted.
    probability : array of shape (m,)
        Probability that the pair shares at least one coefficient, given that one of the two copies from others.
    shared : array of shape (m, p)
        Probability that the pair shares a coefficient.
    gain : float
        Log evidence minus that of the hub alone, in nats.
    description : float
        −ln of the prior probability of the set of tasks that copy coefficients, in nats.
    """

    edges: np.ndarray
    probability: np.ndarray
    shared: np.ndarray
    gain: float
    description: float

    @property
    def score(self) -> float:
        """Gain minus description, in nats; minus infinity if no task copies coefficients."""
        return self.gain - self.description if len(self.edges) else -np.inf


def hub_posterior(loss: LeastSquares, hub: np.ndarray, evidence: HubEvidence, ridge: float = RIDGE) -> HubPosterior:
    """Posterior of every task under the hub; the uncertainty of the shared model is neglected."""
    data = loss.gram + ridge * np.eye(loss.n_features)
    inverse, _ = task_inverses(data, hub)
    variance = evidence.noise / hub
    return HubPosterior(evidence.coefficients, evidence.noise * inverse, evidence.common, variance)


def shared_coefficients(
    posterior: HubPosterior, allowed: np.ndarray | None = None, seed: int = 0, rival: float = 0.0
) -> SharedCoefficients:
    """Find the tasks that copy coefficients, and their sources, by greedy search.

    Tasks are tried in order of their marginal evidence. A task is accepted if its gain exceeds the growth of the
    description. Accepted tasks are no sources of later ones, because copies in a circle are not a valid model.

    Parameters
    ----------
    posterior : HubPosterior
        For the coefficients that may be shared.
    allowed : array of bool, shape (n, n), optional
        Which pairs may share coefficients; all by default.
    seed : int
        Seed of the particles.
    rival : float
        Gain of another graph in nats. If the marginal evidence is smaller in total, no search is made.
    """
    n = len(posterior.mean)
    allowed = ~np.eye(n, dtype=bool) if allowed is None else allowed & ~np.eye(n, dtype=bool)
    marginal = np.array([marginal_evidence(posterior, i, np.flatnonzero(allowed[i])) for i in range(n)])
    source, found, gain, failures = np.ones(n, dtype=bool), {}, 0.0, 0
    tried = np.flatnonzero(marginal > 0.0) if np.maximum(marginal, 0.0).sum() > rival else np.empty(0, dtype=np.int64)
    for i in tried[np.argsort(-marginal[tried], kind="stable")]:
        sources = np.flatnonzero(allowed[i] & source)
        if failures == _PATIENCE or not len(sources):
            break
        origins = coefficient_origins(posterior, int(i), sources, seed)
        if origins.gain > set_description(n, len(found) + 1) - set_description(n, len(found)):
            found[int(i)] = sources, origins
            source[i], gain, failures = False, gain + origins.gain, 0
        else:
            failures += 1
    return _as_pairs(found, posterior.mean.shape[1], gain, set_description(n, len(found)))


def marginal_evidence(posterior: HubPosterior, task: int, sources: np.ndarray) -> float:
    """Approximate log Bayes factor for copied coefficients of a task, in nats; minus infinity without sources.

    The logarithm of Π_k (1 − π + π B_k), averaged over shares π and over two hypotheses: one source, or all sources
    with equal shares. B_k is the Bayes factor of coefficient k (for all sources, its mean). The correlations between
    coefficients are neglected.
    """
    if not len(sources):
        return -np.inf
    gap = posterior.mean[task] - posterior.mean[sources]
    spread = posterior.variance[task] + posterior.variance[sources]
    factors = np.exp(0.5 * (np.log(2.0 * posterior.prior_variance / spread) - gap**2 / spread))
    options = np.vstack([factors.mean(axis=0), factors])
    logs = np.log1p(_SHARES[:, None, None] * (options - 1.0)).sum(axis=2)
    weights = np.append(0.5, np.full(len(sources), 0.5 / len(sources)))
    top = logs.max()
    return float(top + np.log(np.exp(logs - top).mean(axis=0) @ weights))


def coefficient_origins(posterior: HubPosterior, task: int, sources: np.ndarray, seed: int = 0) -> Origins:
    """Evidence and probabilities of the origins of all coefficients of one task, by a particle filter."""
    p = posterior.mean.shape[1]
    number = int(np.clip(_HELD_NUMBERS // (p * p), _FEWEST, _PARTICLES))
    values, variances = posterior.mean[sources], posterior.variance[sources]
    with_sources = _Filter(posterior, task, number, values, variances, seed).run()
    without = _Filter(posterior, task, number, values[:0], variances[:0], seed).run()
    weights, origin = with_sources.weights(), with_sources.origin
    copied = np.stack([weights @ (origin == j) for j in range(len(sources))])
    linked = np.array([weights @ (origin == j).any(axis=1) for j in range(len(sources))])
    return Origins(with_sources.evidence() - without.evidence(), copied, linked)


def set_description(n: int, size: int) -> float:
    """ln of the number of sets of `size` out of `n` tasks."""
    return float(gammaln(n + 1) - gammaln(size + 1) - gammaln(n - size + 1))


# ---------------------------------------------------------------------- the particle filter

_FRESH, _ZERO = -1, -2


class _Filter:
    """A particle filter over the origins of the coefficients of one task.

    Every particle has the origins sampled so far, and the posterior of the task's model given these.

    Parameters
    ----------
    posterior : HubPosterior
    task : int
        Position of the task.
    number : int
        Number of particles.
    values, variances : arrays of shape (sources, p)
        m_j and v_j of the sources.
    seed : int
    """

    def __init__(
        self,
        posterior: HubPosterior,
        task: int,
        number: int,
        values: np.ndarray,
        variances: np.ndarray,
        seed: int,
    ):
        p = posterior.mean.shape[1]
        self.random = np.random.default_rng([seed, task])
        self.prior_mean, self.prior_variance = posterior.prior_mean, posterior.prior_variance
        self.values, self.variances = values, variances
        self.mean = np.tile(posterior.mean[task], (number, 1))
        self.covariance = np.tile(posterior.covariance[task], (number, 1, 1))
        self.concentration = _CONCENTRATIONS[np.arange(number) % len(_CONCENTRATIONS)]
        self.taken = np.zeros((number, len(values)))
        self.zeros = np.zeros(number)
        self.origin = np.full((number, p), _FRESH)
        self.log_weights, self.log_evidence = np.zeros(number), 0.0

    def run(self) -> _Filter:
        """Sample the origins of all coefficients, in random order."""
        for step, k in enumerate(self.random.permutation(self.origin.shape[1])):
            self._extend(step, int(k))
            self._resample()
        return self

    def evidence(self) -> float:
        """ln of the mean weight of the particles: the log Bayes factor against fresh coefficients only."""
        top = self.log_weights.max()
        return self.log_evidence + float(top + np.log(np.exp(self.log_weights - top).mean()))

    def weights(self) -> np.ndarray:
        """Normalised weights of the particles, shape (particles,)."""
        weights = np.exp(self.log_weights - self.log_weights.max())
        return weights / weights.sum()

    def _extend(self, step: int, k: int) -> None:
        """Sample the origin of coefficient k in every particle, and condition the particle's model on it."""
        number = len(self.mean)
        location = np.concatenate([[self.prior_mean[k], 0.0], self.values[:, k]])
        # "Zero" has a standard deviation of a thousandth of the prior's, so that conditioning stays well defined.
        spread = np.concatenate([[1.0, 1e-6], np.zeros(len(self.values))]) * self.prior_variance[k]
        spread[2:] += self.variances[:, k]
        options = self._shares(step) * self._bayes_factors(k, location, spread)
        total = options.sum(axis=1)
        self.log_weights += np.log(total)
        draw = self.random.uniform(size=number) * total
        pick = np.minimum((np.cumsum(options, axis=1) < draw[:, None]).sum(axis=1), options.shape[1] - 1)
        self.origin[:, k] = np.where(pick > 1, pick - 2, np.where(pick == 1, _ZERO, _FRESH))
        self.zeros += pick == 1
        copied = np.flatnonzero(pick > 1)
        self.taken[copied, pick[copied] - 2] += 1.0
        self._condition(k, location[pick], spread[pick])

    def _shares(self, step: int) -> np.ndarray:
        """Prior probabilities of fresh, zero and each source, given the origins so far, shape (particles, options)."""
        n_sources, taken = self.taken.shape[1], self.taken.sum(axis=1)
        kinds = 2.0 + (n_sources > 0)
        fresh = step - taken - self.zeros
        shares = [(1.0 + fresh)[:, None], (1.0 + self.zeros)[:, None]]
        if n_sources:
            urn = self.concentration[:, None] + self.taken
            shares.append((1.0 + taken)[:, None] * urn / urn.sum(axis=1, keepdims=True))
        return np.hstack(shares) / (kinds + step)

    def _bayes_factors(self, k: int, location: np.ndarray, spread: np.ndarray) -> np.ndarray:
        """Bayes factors of w_k ~ N(location, spread) against the hub's prior, shape (particles, options)."""
        mean, prior, variance = self.prior_mean[k], self.prior_variance[k], self.covariance[:, k, k]
        # If the data contain no information on coefficient k, its precision without the prior is zero.
        known = np.maximum(1.0 / variance - 1.0 / prior, 1e-9 / prior)
        own = (self.mean[:, k] / variance - mean / prior) / known
        wide = 1.0 / known[:, None] + np.append(prior, spread)
        logs = -0.5 * (np.log(wide) + (np.append(mean, location) - own[:, None]) ** 2 / wide)
        return np.exp(logs[:, 1:] - logs[:, :1])

    def _condition(self, k: int, location: np.ndarray, spread: np.ndarray) -> None:
        """Replace the hub's prior of w_k by N(location, spread), by a rank-one update of mean and covariance."""
        prior = self.prior_variance[k]
        change = 1.0 / spread - 1.0 / prior
        pull = location / spread - self.prior_mean[k] / prior
        column = self.covariance[:, :, k].copy()
        shrink = 1.0 / (1.0 + change * column[:, k])
        self.mean += column * ((pull - change * self.mean[:, k]) * shrink)[:, None]
        self.covariance -= (change * shrink)[:, None, None] * column[:, :, None] * column[:, None, :]

    def _resample(self) -> None:
        """Systematic resampling if the effective sample size is below half the number of particles."""
        weights = self.weights()
        number = len(weights)
        if 1.0 / (weights @ weights) > 0.5 * number:
            return
        self.log_evidence, self.log_weights = self.evidence(), np.zeros(number)
        points = (np.arange(number) + self.random.uniform()) / number
        index = np.minimum(np.searchsorted(np.cumsum(weights), points), number - 1)
        for name in ("mean", "covariance", "concentration", "taken", "zeros", "origin"):
            setattr(self, name, getattr(self, name)[index])


def _as_pairs(
    found: dict[int, tuple[np.ndarray, Origins]], width: int, gain: float, description: float
) -> SharedCoefficients:
    """The result of the search as sorted pairs; `found` has the sources and origins of every task that copies."""
    if not found:
        return SharedCoefficients(np.empty((0, 2), dtype=np.int64), np.empty(0), np.empty((0, width)), 0.0, 0.0)
    pairs = np.concatenate([np.column_stack([np.full(len(s), i), s]) for i, (s, _) in found.items()])
    pairs.sort(axis=1)
    probability = np.concatenate([origins.linked for _, origins in found.values()])
    shared = np.concatenate([origins.copied for _, origins in found.values()])
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))
    return SharedCoefficients(pairs[order], probability[order], shared[order], gain, description)
