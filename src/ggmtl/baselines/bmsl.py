"""Bayesian multi-task structure learning: models, noise, features and relations by Gibbs sampling.

The chains are judged by split R̂ and the effective sample size, over half-chains of m draws, M draws in all
(Gelman and Rubin, 1992; Geyer, 1992):

    R̂ = √(((m − 1)/m · within + between)/within)        ESS = M / (1 + 2 Σ_t ρ_t)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from ggmtl.baselines._gibbs import ChainDraws, LassoRelation, WishartRelation, run_chain, start_state
from ggmtl.baselines._shared import CentredLoss, centre, check_strength, covariance_to_graph
from ggmtl.errors import ParameterError, check_choice, warn_user
from ggmtl.estimators.base import LearnedModels, TaskRegressor
from ggmtl.statistics.least_squares import LeastSquares, sum_of
from ggmtl.statistics.task_statistics import TaskStatistics

_TRUSTED_R_HAT = 1.1


@dataclass(eq=False, repr=False, kw_only=True)
class BMSLRegressor(TaskRegressor):
    """Bayesian multi-task structure learning:

        y_i ~ N(X_i(w_i∘β) + b_i, 1/τ_i),   rows of W (one per feature, over tasks) ~ N(0, Φ⁻¹),
        Φ ~ Wishart(η, I/s),   τ_i ~ Gamma(a, b),   β_k ~ Bernoulli(θ),   θ ~ Beta(1, 1);

    the models are the posterior means of w_i∘β, by Gibbs sampling. After Gonçalves, Von Zuben and Banerjee's
    structure learning in its Bayesian form (Gonçalves and others, 2019). Intercepts have a flat prior and are
    integrated out. Nothing needs to be tuned, so `validation` has no effect. Costs O(n³ d + n d³) per sweep.

    Parameters
    ----------
    task : str or int, optional
        Column of X that holds the task.
    relation : {"wishart", "graphical_lasso"}
        Prior of Φ: Wishart, or the Bayesian graphical lasso of Wang (2012) with its rate drawn too, which
        costs O(n⁴) per sweep.
    degrees : float, optional
        η > n − 1; the number of tasks unless given.
    inverse_scale : float or "auto"
        s, in units where features and target have spread one; 1.0 is the published prior, which holds the
        slopes of many tasks near zero. ``"auto"``: s ~ Gamma(1, 0.01) is drawn with the rest.
    noise_prior : pair of float
        a and b, the shape and rate of τ_i's prior.
    n_chains, n_warmup, n_samples : int
        Chains (at least 2), sweeps thrown away and sweeps kept per chain.
    validation, fit_intercept, standardize, unseen, random_state
        As in :class:`ggmtl.GGMTLRegressor`.

    Attributes
    ----------
    coef_, intercept_ : arrays of shape (n, d), (n,)
        Posterior means in the user's units.
    graph_ : TaskGraph
        Positive posterior-mean partial correlations −Φ_ij/√(Φ_iiΦ_jj), divided by the largest.
    inclusion_ : array of shape (d,)
        Posterior probability of β_k = 1.
    noise_precision_ : array of shape (n,)
        Posterior mean of τ_i, in scaled units.
    effective_sample_size_, r_hat_ : dict
        Diagnostics of ``"noise_precision"`` and ``"squared_norm"`` (‖w_i∘β‖²; one per task) and
        ``"log_posterior"``. An R̂ above 1.1 is warned of.

    Examples
    --------
    >>> from ggmtl.datasets import make_clusters
    >>> data = make_clusters(2, n_tasks=6, n_features=2, n_samples=10, random_state=0)
    >>> model = BMSLRegressor(n_warmup=100, n_samples=200, random_state=0).fit(data.X, data.y, tasks=data.tasks)
    >>> model.coef_.shape, model.inclusion_.shape
    ((6, 2), (2,))
    """

    relation: str = "wishart"
    degrees: float | None = None
    inverse_scale: float | str = "auto"
    noise_prior: tuple[float, float] = (0.1, 0.01)
    n_chains: int = 2
    n_warmup: int = 200
    n_samples: int = 300

    def _learn(self, folds: list[LeastSquares], statistics: TaskStatistics) -> LearnedModels:
        self._check()
        loss = centre(sum_of(folds), self.fit_intercept)
        chains = self._sample(loss)
        traces = {
            name: np.stack([getattr(chain, name) for chain in chains])
            for name in ("noise_precision", "squared_norm", "log_posterior")
        }
        r_hat = {name: split_r_hat(trace) for name, trace in traces.items()}
        _warn_of_mixing(r_hat, self.n_samples)
        attributes = {
            "inclusion_": np.mean([chain.selected for chain in chains], axis=0),
            "noise_precision_": traces["noise_precision"].mean(axis=(0, 1)),
            "r_hat_": r_hat,
            "effective_sample_size_": {name: effective_sample_size(trace) for name, trace in traces.items()},
        }
        slopes = np.mean([chain.slopes for chain in chains], axis=0)
        partial = np.mean([chain.partial_correlation for chain in chains], axis=0)
        graph = covariance_to_graph(partial, statistics.task_names)
        return LearnedModels(loss.with_intercepts(slopes), graph, attributes=attributes)

    def _sample(self, loss: CentredLoss) -> list[ChainDraws]:
        """Run the chains, each with its own stream of random numbers."""
        seeds = np.random.SeedSequence(self.random_state).spawn(self.n_chains)
        chains = []
        for seed in seeds:
            rng = np.random.default_rng(seed)
            state = start_state(loss, self._relation_at_start(loss.shape[0]), rng)
            chains.append(run_chain(state, loss, self.noise_prior, self.n_warmup, self.n_samples, rng))
        return chains

    def _relation_at_start(self, n_tasks: int) -> WishartRelation | LassoRelation:
        if self.relation == "graphical_lasso":
            return LassoRelation.start(n_tasks)
        degrees = float(n_tasks) if self.degrees is None else float(self.degrees)
        if degrees <= n_tasks - 1:
            raise ParameterError(
                f"degrees must be above {n_tasks - 1} (the tasks less one), or the prior is not proper. "
                f"Got {self.degrees!r} instead."
            )
        return WishartRelation.start(n_tasks, degrees, check_strength("inverse_scale", self.inverse_scale))

    def _check(self) -> None:
        check_choice("relation", self.relation, ("wishart", "graphical_lasso"))
        if self.inverse_scale != "auto" and check_strength("inverse_scale", self.inverse_scale) == 0:
            raise ParameterError("inverse_scale must be above 0, or the prior is not proper. Got 0 instead.")
        for name, least in (("n_chains", 2), ("n_warmup", 0), ("n_samples", 4)):
            value = getattr(self, name)
            if value != int(value) or value < least:
                raise ParameterError(f"{name} must be a whole number not below {least}. Got {value!r} instead.")
        if len(self.noise_prior) != 2 or min(self.noise_prior) <= 0:
            raise ParameterError(
                f"noise_prior must be two positive numbers (shape, rate). Got {self.noise_prior!r} instead."
            )


def _warn_of_mixing(r_hat: dict[str, np.ndarray], n_samples: int) -> None:
    largest = max(float(np.max(values)) for values in r_hat.values())
    if largest > _TRUSTED_R_HAT:
        worst = max(r_hat, key=lambda name: float(np.max(r_hat[name])))
        warn_user(
            f"BMSLRegressor: the chains do not agree yet (R-hat {largest:.2f} for {worst}). "
            f"Draw more with n_samples above {n_samples}, and a longer n_warmup.",
            ConvergenceWarning,
        )


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
