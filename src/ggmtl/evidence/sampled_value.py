"""Evidence of a graph of many tasks, with its standard error, and how much better it is than another.

    f = ½(N − p) ln Q + ½ ln|A| − ½ Σ_k ln|P_k|₊

Q is exact; the determinants are estimated with random signs (:mod:`ggmtl.evidence.log_determinants`), each of which
gives an estimate of f: their spread tells the error of their mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ggmtl.errors import ParameterError
from ggmtl.evidence.dense import EvidenceModel, inner_quadratic
from ggmtl.evidence.hub import HubEvidence, degrees_of_freedom, profiled_noise
from ggmtl.evidence.log_determinants import prior_log_determinants, system_log_determinants
from ggmtl.evidence.sampled_gradient import Estimate, SampledGradient, mean_over_samples, sampled_gradient
from ggmtl.solve.solvers import prepare

# Random signs per coefficient for the value; samples for its gradient.
PROBES, SAMPLES = 8, 16
# Relative residual of the models.
_TOL = 1e-7


@dataclass(frozen=True)
class SampledEvidence:
    """Evidence of a graph, up to the error of the probes.

    Parameters
    ----------
    value, standard_error : float
        f, and the spread of its estimates over the root of their number, joined with `unsettled`.
    coefficients : array of shape (n, p)
        Models.
    noise : float
        σ².
    per_probe : array of shape (n_probes,)
        The estimates of f, whose mean is `value`.
    unsettled : float
        What the last steps of Lanczos still changed: far below the error, unless the steps allowed did not suffice.
    gradient : SampledGradient or None
        None where none was asked for.
    """

    value: float
    standard_error: float
    coefficients: np.ndarray
    noise: float
    per_probe: np.ndarray
    unsettled: float
    gradient: SampledGradient | None = None


def sampled_evidence(
    model: EvidenceModel,
    edge_values: np.ndarray,
    *,
    coefficients: np.ndarray | None = None,
    n_probes: int = PROBES,
    n_samples: int = 0,
    seed: int = 0,
) -> SampledEvidence:
    """Value of f in time proportional to tasks and edges, and its gradient if asked for.

    Parameters
    ----------
    model : EvidenceModel
        Losses, edges and strengths.
    edge_values : array of shape (m,)
        e ≥ 0.
    coefficients : array of shape (n, p), optional
        The models, where they are known; Q errs only in second order with them.
    n_probes : int
        Random signs per coefficient, two at least.
    n_samples : int
        Samples for the gradient, two at least (:data:`SAMPLES` will do); none, and no gradient, for zero.
    seed : int
        Of signs and samples.
    """
    if n_probes < 2 or n_samples == 1 or n_samples < 0:
        raise ParameterError(
            "n_probes and n_samples must be at least 2 (n_samples may be 0), else no spread tells the error. "
            f"Got n_probes={n_probes!r} and n_samples={n_samples!r} instead."
        )
    if coefficients is None:
        solver = prepare(model.system(edge_values))
        coefficients = solver.solve(model.loss.moment, tol=_TOL).require(100 * _TOL).value
    quadratic, noise = profiled_noise(model.loss, inner_quadratic(model, edge_values, coefficients))
    signs = _signs(np.random.default_rng([seed, 0]), (*model.loss.moment.shape, n_probes))
    system = system_log_determinants(model, edge_values, signs)
    prior = prior_log_determinants(model, edge_values, signs)
    values = 0.5 * (degrees_of_freedom(model.loss) * np.log(quadratic) + system.values - prior.values)
    unsettled = 0.5 * float(np.hypot(system.unsettled, prior.unsettled))
    gradient = None
    if n_samples:
        gradient = sampled_gradient(
            model, edge_values, coefficients, noise, n_samples, np.random.default_rng([seed, 1])
        )
    mean = mean_over_samples(values)
    error = float(np.hypot(mean.standard_error, unsettled))
    return SampledEvidence(float(mean.value), error, coefficients, noise, values, unsettled, gradient)


def evidence_gain(evidence: SampledEvidence, beside: SampledEvidence | HubEvidence) -> Estimate:
    """Nats by which a graph is better than another, or than the hub alone, whose evidence is exact.

    Two graphs are compared probe by probe, so ask for both with the same seed and number of probes: most of their
    errors are common, and cancel.
    """
    if isinstance(beside, HubEvidence):
        return Estimate(beside.value - evidence.value, evidence.standard_error)
    if len(beside.per_probe) != len(evidence.per_probe):
        raise ParameterError(
            "n_probes must be the same for two evidences to be compared. "
            f"Got {len(evidence.per_probe)} and {len(beside.per_probe)} instead."
        )
    gain = mean_over_samples(beside.per_probe - evidence.per_probe)
    return Estimate(float(gain.value), float(np.hypot(gain.standard_error, evidence.unsettled + beside.unsettled)))


def _signs(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return 2.0 * random.integers(0, 2, shape, dtype=np.int8) - 1.0
