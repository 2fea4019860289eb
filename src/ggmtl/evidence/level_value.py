"""The evidence of a fitted level: exact for the hub, for clusters and for few tasks, sampled for other graphs.

    ln p(y) = −f + constant ,    gain = f(hub alone) − f(level) ,

f as in :mod:`ggmtl.evidence`, from the rows and the strengths of the level. Its own `value` is f without edges
only: graphs add to that what it takes to describe them, or have none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from ggmtl.bilevel.level import GraphFit
from ggmtl.evidence.clusters import cluster_evidence
from ggmtl.evidence.dense import EvidenceModel, edge_evidence
from ggmtl.evidence.hub import hub_evidence
from ggmtl.evidence.sampled_search import graph_evidence
from ggmtl.evidence.sampled_value import PROBES
from ggmtl.runtime.sizes import SIZES, Sizes
from ggmtl.statistics.least_squares import LeastSquares


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
