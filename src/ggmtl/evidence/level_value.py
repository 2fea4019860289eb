"""The evidence of a fitted level: exact for the common model, for clusters and for few tasks, sampled otherwise.

    ln p(y) = −f + constant ,    f = ½(N − p) ln Q + ½ ln|A| − ½ Σ_k ln|P_k|₊ ,    gain = f(no edges) − f(level)

from the rows and the strengths of the level. Where f is sampled, Q is exact; each probe of the log-determinants gives
an estimate of f, and their spread gives the error of the mean. The `value` of a fitted graph is not f: it includes the
length of the description, or is not known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from ggmtl.bilevel.level import GraphFit
from ggmtl.errors import ParameterError
from ggmtl.evidence.clusters import cluster_evidence
from ggmtl.evidence.dense import EvidenceModel, edge_evidence, inner_quadratic
from ggmtl.evidence.hub import hub_evidence, misfit
from ggmtl.evidence.sampling import prior_log_determinants, system_log_determinants
from ggmtl.runtime.sizes import SIZES, Sizes
from ggmtl.solve.solvers import prepare
from ggmtl.statistics.least_squares import LeastSquares

# Random signs per coefficient.
PROBES = 8
# Relative residual of the models.
_MODEL_TOL = 1e-7


@dataclass(frozen=True)
class LevelEvidence:
    """Log evidence of a level, in nats: the more, the better.

    Parameters
    ----------
    value : float
        ln p(y), the models integrated out, up to a constant that no graph and no strength changes.
    standard_error : float
        Of `value` and `gain`; zero where both are exact.
    gain : float
        `value` less that of the best hub without edges: positive where the rows are more probable than under it.
    """

    value: float
    standard_error: float
    gain: float


def level_evidence(
    fit: GraphFit,
    loss: LeastSquares,
    hub: np.ndarray,
    *,
    n_probes: int = PROBES,
    seed: int = 0,
    sizes: Sizes = SIZES,
) -> LevelEvidence:
    """Log evidence of a level and its gain over the hub.

    Parameters
    ----------
    fit : GraphFit
        A hub, or a graph with the squared penalty beside it.
    loss : LeastSquares
        The rows.
    hub : array of shape (p,)
        Strengths of the best hub without edges.
    n_probes, seed : int
        Of the random signs, where the evidence is sampled.
    sizes : Sizes
        Up to which size it is exact.
    """
    weighed = fit.weighed(loss)
    alone = hub_evidence(weighed, hub).value
    value, error = _exact_value(fit, weighed, sizes), 0.0
    if value is None:
        found = graph_evidence(loss, fit, sizes, n_probes=n_probes, seed=seed)
        value, error = found.value, found.standard_error
    return LevelEvidence(-value, error, alone - value)


def _exact_value(fit: GraphFit, loss: LeastSquares, sizes: Sizes) -> float | None:
    """f where it is to be had: without edges, for few tasks, and for clusters; None for other graphs."""
    if not (fit.edge_values > 0).any():
        return hub_evidence(loss, fit.hub).value
    if loss.n_tasks * loss.n_features <= sizes.exact_evidence:
        return edge_evidence(EvidenceModel(loss, fit.edges, fit.coupling, fit.hub), fit.edge_values).value
    cluster, strength = _clusters(fit, loss.n_tasks)
    return None if cluster is None else cluster_evidence(loss, cluster, strength, fit.hub, fit.coupling).value


def _clusters(fit: GraphFit, n: int) -> tuple[np.ndarray | None, float]:
    """Cluster of every task, and c, where the graph is made of cliques of s tasks with edges of c/s; else None."""
    i, j = fit.edges.T
    graph = sparse.csr_array((fit.edge_values, (i, j)), shape=(n, n))
    cluster = connected_components(graph, directed=False)[1]
    size = np.bincount(cluster)
    strengths = fit.edge_values * size[cluster[i]]
    cliques = 2 * len(fit.edges) == (size * (size - 1)).sum()
    return (cluster if cliques and np.allclose(strengths, strengths[0], rtol=1e-9) else None), float(strengths[0])


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
    """

    value: float
    standard_error: float
    coefficients: np.ndarray
    noise: float
    per_probe: np.ndarray
    unsettled: float


def sampled_evidence(
    model: EvidenceModel,
    edge_values: np.ndarray,
    *,
    coefficients: np.ndarray | None = None,
    n_probes: int = PROBES,
    seed: int = 0,
) -> SampledEvidence:
    """Value of f in time proportional to tasks and edges.

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
    seed : int
        Of the signs.
    """
    if n_probes < 2:
        raise ParameterError(
            f"n_probes must be at least 2: the error is estimated from their spread. Got {n_probes!r} instead."
        )
    if coefficients is None:
        solver = prepare(model.system(edge_values))
        coefficients = solver.solve(model.loss.moment, tol=_MODEL_TOL).require(100 * _MODEL_TOL).value
    twice_misfit, noise = misfit(model.loss, inner_quadratic(model, edge_values, coefficients))
    signs = _byte_signs(np.random.default_rng([seed, 0]), (*model.loss.moment.shape, n_probes))
    system = system_log_determinants(model, edge_values, signs)
    prior = prior_log_determinants(model, edge_values, signs)
    values = 0.5 * (twice_misfit + system.values - prior.values)
    unsettled = 0.5 * float(np.hypot(system.unsettled, prior.unsettled))
    error = float(np.hypot(values.std(ddof=1) / np.sqrt(n_probes), unsettled))
    return SampledEvidence(float(values.mean()), error, coefficients, noise, values, unsettled)


def graph_evidence(loss: LeastSquares, fit: GraphFit, sizes: Sizes = SIZES, **options: int) -> SampledEvidence:
    """The sampled evidence of a learned graph, on the scale of the value of the hub's fit.

    Graphs of many tasks are learned without it (their `value` is NaN): the rounds need ratios of expectations only, and
    the value would add a tenth to their time.

    Parameters
    ----------
    loss : LeastSquares
        The rows that the fit was learned from.
    fit : GraphFit
        The hub, or a graph beside it.
    **options : int
        ``n_probes`` and ``seed`` of :func:`sampled_evidence`.
    """
    coupling = fit.coupling if len(fit.edges) else np.ones(loss.n_features)
    model = EvidenceModel(fit.weighed(loss), fit.edges, coupling, fit.hub, sizes=sizes)
    return sampled_evidence(model, fit.edge_values, coefficients=fit.deviations, **options)


def _byte_signs(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return 2.0 * random.integers(0, 2, shape, dtype=np.int8) - 1.0
