"""The evidence of a fitted level: exact for the shared model, for clusters and for few tasks, otherwise sampled.

    ln p(y) = −f + constant ,    f = ½(N − p) ln Q + ½ ln|A| − ½ Σ_k ln|P_k|₊ ,    gain = f(no edges) − f(level)

It is computed from the rows and the strengths of the level. Where f is sampled, Q is exact. Each random probe of the
log-determinants gives an estimate of f, and the spread of the estimates gives the standard error of their mean. The
`value` of a fitted graph is not f: it includes the description length of the graph, or is NaN.
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

# Number of random probe vectors for log-determinants.
PROBES = 8
# Relative residual to which the models are solved.
_MODEL_TOL = 1e-7


@dataclass(frozen=True)
class LevelEvidence:
    """Log evidence of a level, in nats. Larger is better.

    Parameters
    ----------
    value : float
        ln p(y) with the models integrated out, up to a constant that depends on neither graph nor strengths.
    standard_error : float
        Standard error of `value` and `gain`; zero where both are exact.
    gain : float
        `value` minus that of the best hub without edges. Positive if the level makes the rows more probable.
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
        A hub, or a hub with a graph under the squared penalty.
    loss : LeastSquares
        The sums of the rows.
    hub : array of shape (p,)
        Strengths of the best hub without edges.
    n_probes, seed : int
        Number and seed of the random probes, where the evidence is sampled.
    sizes : Sizes
        The largest problem for which the evidence is computed exactly.
    """
    weighed = fit.weighed(loss)
    alone = hub_evidence(weighed, hub).value
    value, error = _exact_value(fit, weighed, sizes), 0.0
    if value is None:
        found = graph_evidence(loss, fit, sizes, n_probes=n_probes, seed=seed)
        value, error = found.value, found.standard_error
    return LevelEvidence(-value, error, alone - value)


def _exact_value(fit: GraphFit, loss: LeastSquares, sizes: Sizes) -> float | None:
    """Exact f for a level without edges, for few tasks and for clusters; None for other graphs."""
    if not (fit.edge_values > 0).any():
        return hub_evidence(loss, fit.hub).value
    if loss.n_tasks * loss.n_features <= sizes.exact_evidence:
        return edge_evidence(EvidenceModel(loss, fit.edges, fit.coupling, fit.hub), fit.edge_values).value
    cluster, strength = _clusters(fit, loss.n_tasks)
    return None if cluster is None else cluster_evidence(loss, cluster, strength, fit.hub, fit.coupling).value


def _clusters(fit: GraphFit, n: int) -> tuple[np.ndarray | None, float]:
    """Cluster of every task, and the strength c, of a graph of clusters; the clusters are None for any other graph.

    In a graph of clusters, the components are cliques, and every edge in a clique of s tasks has the value c/s.
    """
    i, j = fit.edges.T
    graph = sparse.csr_array((fit.edge_values, (i, j)), shape=(n, n))
    cluster = connected_components(graph, directed=False)[1]
    size = np.bincount(cluster)
    strengths = fit.edge_values * size[cluster[i]]
    cliques = 2 * len(fit.edges) == (size * (size - 1)).sum()
    return (cluster if cliques and np.allclose(strengths, strengths[0], rtol=1e-9) else None), float(strengths[0])


@dataclass(frozen=True)
class SampledEvidence:
    """An estimate of f by random probes, with its standard error.

    Parameters
    ----------
    value : float
        The estimate of f: the mean over probes.
    standard_error : float
        Standard error of `value`: from the spread over probes, and from `last_change`.
    coefficients : array of shape (n, p)
        Models of the tasks.
    noise : float
        σ².
    per_probe : array of shape (n_probes,)
        The estimates of f, one per probe.
    last_change : float
        Change of `value` by the last Lanczos steps. It is far below the standard error unless the largest number of
        steps was reached.
    """

    value: float
    standard_error: float
    coefficients: np.ndarray
    noise: float
    per_probe: np.ndarray
    last_change: float


def sampled_evidence(
    model: EvidenceModel,
    edge_values: np.ndarray,
    *,
    coefficients: np.ndarray | None = None,
    n_probes: int = PROBES,
    seed: int = 0,
) -> SampledEvidence:
    """Estimate f in time proportional to the numbers of tasks and edges.

    Parameters
    ----------
    model : EvidenceModel
        Losses, edges and strengths.
    edge_values : array of shape (m,)
        e ≥ 0.
    coefficients : array of shape (n, p), optional
        The models, if they are known. Their errors change Q only to second order.
    n_probes : int
        Number of random probe vectors, at least two.
    seed : int
        Seed of the probes.
    """
    if n_probes < 2:
        raise ParameterError(
            "n_probes must be at least 2: the standard error is estimated from the spread over probes. "
            f"Got {n_probes!r} instead."
        )
    if coefficients is None:
        solver = prepare(model.system(edge_values))
        coefficients = solver.solve(model.loss.moment, tol=_MODEL_TOL).require(100 * _MODEL_TOL).value
    twice_misfit, noise = misfit(model.loss, inner_quadratic(model, edge_values, coefficients))
    signs = _byte_signs(np.random.default_rng([seed, 0]), (*model.loss.moment.shape, n_probes))
    system = system_log_determinants(model, edge_values, signs)
    prior = prior_log_determinants(model, edge_values, signs)
    values = 0.5 * (twice_misfit + system.values - prior.values)
    last_change = 0.5 * float(np.hypot(system.last_change, prior.last_change))
    error = float(np.hypot(values.std(ddof=1) / np.sqrt(n_probes), last_change))
    return SampledEvidence(float(values.mean()), error, coefficients, noise, values, last_change)


def graph_evidence(loss: LeastSquares, fit: GraphFit, sizes: Sizes = SIZES, **options: int) -> SampledEvidence:
    """The sampled evidence of a learned graph; its f can be compared with the `value` of the hub's fit.

    Graphs of many tasks are learned without computing f, and their `value` is NaN. The rounds need ratios of
    expectations only; f would add a tenth to their time.

    Parameters
    ----------
    loss : LeastSquares
        The sums of the rows that the fit was learned from.
    fit : GraphFit
        The hub, or a hub with a graph.
    **options : int
        ``n_probes`` and ``seed`` of :func:`sampled_evidence`.
    """
    coupling = fit.coupling if len(fit.edges) else np.ones(loss.n_features)
    model = EvidenceModel(fit.weighed(loss), fit.edges, coupling, fit.hub, sizes=sizes)
    return sampled_evidence(model, fit.edge_values, coefficients=fit.deviations, **options)


def _byte_signs(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Independent random signs, 1 or −1."""
    return 2.0 * random.integers(0, 2, shape, dtype=np.int8) - 1.0
