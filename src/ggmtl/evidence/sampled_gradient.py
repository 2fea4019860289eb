"""Gradient of the evidence of many tasks, with standard errors: posterior less prior expectations, by samples.

    ∂f/∂e_ij = ½ [ uᵀΛu/σ² + tr(Λ Var u) − Σ_k Λ_k R⁽ᵏ⁾_ij ] ,    u = w_i − w_j ,

and likewise for Λ and h. Samples of N(0, A⁻¹) give the variances under the posterior, samples of N(0, P_k⁻¹) those
under the prior, which are exact where there are few tasks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ggmtl.evidence.dense import EvidenceModel, prior_terms, strength_groups
from ggmtl.evidence.hub import chunks
from ggmtl.evidence.samples import posterior_noise
from ggmtl.solve.solvers import prepare
from ggmtl.solve.system import TaskSystem

# Up to this many tasks the n × n inverse of the prior gives exact gradients.
_EXACT_PRIOR_TASKS = 300
# Relative residual of the samples.
_SAMPLE_TOL = 1e-3


@dataclass(frozen=True)
class Estimate:
    """A number, or an array, known from samples.

    Parameters
    ----------
    value, standard_error : float or array
    """

    value: float | np.ndarray
    standard_error: float | np.ndarray


@dataclass(frozen=True)
class SampledGradient:
    """Derivatives of f from samples of the posterior and of the prior.

    Parameters
    ----------
    edges : Estimate
        ∂f/∂e, shape (m,).
    coupling, hub : Estimate
        ∂f/∂Λ and ∂f/∂h, shape (p,).
    strength : Estimate
        ∂f/∂ ln λ = Σ_k Λ_k ∂f/∂Λ_k, for all strengths of edges together.
    """

    edges: Estimate
    coupling: Estimate
    hub: Estimate
    strength: Estimate


def mean_over_samples(values: np.ndarray) -> Estimate:
    """Mean over the last axis, and its standard error."""
    return Estimate(values.mean(axis=-1), values.std(axis=-1, ddof=1) / np.sqrt(values.shape[-1]))


def sampled_gradient(
    model: EvidenceModel,
    edge_values: np.ndarray,
    coefficients: np.ndarray,
    noise: float,
    n_samples: int,
    random: np.random.Generator,
) -> SampledGradient:
    """Half the difference of posterior and prior expectations, each part with the spread of its samples."""
    system, n = model.system(edge_values), model.loss.n_tasks
    zeta = posterior_noise(system, n_samples, random)
    samples = prepare(system).solve(zeta, tol=_SAMPLE_TOL).require(2 * _SAMPLE_TOL).value
    posterior = _squares(model, edge_values, samples)
    models = _squares(model, edge_values, coefficients[..., None] / np.sqrt(noise), exact=True)
    if n <= _EXACT_PRIOR_TASKS:
        known = prior_terms(model, edge_values)
        coupling = edge_values @ known.resistance
        exact = (known.resistance @ model.coupling, coupling, known.trace, float(model.coupling @ coupling))
        prior = [Estimate(value, np.zeros(np.shape(value))) for value in exact]
    else:
        prior = _squares(model, edge_values, _prior_samples(model, edge_values, n_samples, random))
    parts = [
        Estimate(0.5 * (a.value + b.value - c.value), 0.5 * np.hypot(b.standard_error, c.standard_error))
        for a, b, c in zip(models, posterior, prior)
    ]
    return SampledGradient(*parts)


def _prior_samples(
    model: EvidenceModel, edge_values: np.ndarray, n_samples: int, random: np.random.Generator
) -> np.ndarray:
    """Samples of N(0, (Λ_k L + h_k I)⁻¹) for every coefficient, shape (n, p, n_samples)."""
    n, p = model.loss.moment.shape
    samples = np.empty((n, p, n_samples))
    for columns in strength_groups(model):
        coupling, hub = model.coupling[columns[:1]], np.array(model.hub[columns[0]])
        system = TaskSystem(np.zeros((n, 1, 1)), model.edges, edge_values, coupling, np.zeros(1), hub)
        zeta = posterior_noise(system, len(columns) * n_samples, random)
        solution = prepare(system).solve(zeta, tol=_SAMPLE_TOL).require(2 * _SAMPLE_TOL)
        samples[:, columns] = solution.value.reshape(n, len(columns), n_samples)
    return samples


def _squares(model: EvidenceModel, edge_values: np.ndarray, samples: np.ndarray, exact: bool = False) -> list[Estimate]:
    """uᵀΛu of every edge, Σ_ij e_ij u_k², Σ_i (w_i − w̄)_k² and Σ_ij e_ij uᵀΛu: means over samples, shape (n, p, S)."""
    _, p, number = samples.shape
    mean, error = np.empty(len(edge_values)), np.zeros(len(edge_values))
    coupling = np.zeros((p, number))
    for rows in chunks(len(edge_values), 4 * p * number):
        i, j = model.edges[rows].T
        square = np.square(samples[i] - samples[j])
        along = np.einsum("eks,k->es", square, model.coupling)
        mean[rows] = along.mean(axis=1)
        if not exact:
            error[rows] = mean_over_samples(along).standard_error
        coupling += np.einsum("e,eks->ks", edge_values[rows], square)
    hub = np.square(samples - samples.mean(axis=0)).sum(axis=0)
    sums = [coupling, hub, model.coupling @ coupling]
    if exact:
        return [Estimate(mean, error), *(Estimate(part[..., 0], np.zeros(part.shape[:-1])) for part in sums)]
    return [Estimate(mean, error), *(mean_over_samples(part) for part in sums)]
