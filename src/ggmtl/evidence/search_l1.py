"""Graphs for the ℓ1 penalty: linked tasks are alike in all coefficients, or equal in a few of them.

Two kinds of graphs are compared by their evidence minus their description length, both with a hub. In the first, linked
tasks have similar models (:mod:`~ggmtl.evidence.search`). In the second, they share single coefficients and are
unrelated in the others (:mod:`~ggmtl.evidence.shared_coefficients`). The better graph gives the edges of the inner
problem

    ½ Σ_i ‖X_i w_i − y_i‖² + ½λ Σ_ij e_ij Σ_k |w_ik − w_jk| + hub ,

in which a task may share some coefficients with one neighbour and others with another.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ggmtl.bilevel.level import GraphFit, Settings, refit
from ggmtl.evidence.hub import hub_evidence
from ggmtl.evidence.sampled_edges import Propose
from ggmtl.evidence.search import densest, learn_by_evidence
from ggmtl.evidence.selection import largest_expected_f1
from ggmtl.evidence.shared_coefficients import (
    HubPosterior,
    SharedCoefficients,
    coefficient_origins,
    hub_posterior,
    shared_coefficients,
)
from ggmtl.graph.candidates import KNN, Complete
from ggmtl.runtime.journal import Journal
from ggmtl.statistics.least_squares import LeastSquares

# Total force of the edges of a task on a coefficient, in units of the force of noise on its estimate.
_PULL = 0.3


def learn_by_coordinates(
    loss: LeastSquares,
    settings: Settings,
    propose: Propose,
    hub: GraphFit,
    seed: int = 0,
    journal: Journal | None = None,
    start: GraphFit | None = None,
) -> list[GraphFit]:
    """The graph of highest evidence, with the models of the ℓ1 penalty, as a list of one level.

    The parameters are those of :func:`~ggmtl.evidence.search.learn_by_evidence`. Tasks that share a few coefficients
    may have very different models. So all pairs are candidates, unless the user restricts them.
    """
    graphs = learn_by_evidence(loss, replace(settings, penalty="squared_l2"), propose, hub, seed, journal, start)
    near = next((fit for fit in graphs if fit.supported), densest(graphs))
    if loss.n_tasks > settings.sizes.single_coefficients or len(settings.candidates.must_link):
        return [_with_l1(near, loss, settings)]
    # The value of a graph learned from samples is not known.
    rival = max(hub.value - near.value, 0.0) if np.isfinite(near.value) else 0.0
    posterior, allowed = _slopes_of(loss, settings, hub.hub), _allowed(settings, propose, hub)
    shared = shared_coefficients(posterior, allowed, seed, rival)
    chosen = _shared_graph(shared, loss, settings, hub) if shared.score > rival else _with_l1(near, loss, settings)
    return [chosen]


def probability_of_sharing(
    loss: LeastSquares, settings: Settings, hub: np.ndarray, edges: np.ndarray, seed: int = 0
) -> np.ndarray:
    """Probability that the two tasks of an edge share each coefficient, shape (m, p); zero for the intercept.

    `hub` are the strengths of the hub without edges, shape (p,). If the search finds that a task copies coefficients
    from several others, their probabilities are computed jointly. All other pairs are treated one at a time.
    """
    posterior = _slopes_of(loss, settings, hub)
    found = shared_coefficients(posterior, seed=seed)
    known = {(int(i), int(j)): row for (i, j), row in zip(found.edges, found.shared)}
    out = np.zeros((len(edges), loss.n_features))
    for number, (i, j) in enumerate(np.sort(edges, axis=1)):
        row = known.get((int(i), int(j)))
        out[number, settings.slopes] = (
            coefficient_origins(posterior, int(i), np.array([j]), seed).copied[0] if row is None else row
        )
    return out


def _slopes_of(loss: LeastSquares, settings: Settings, hub: np.ndarray) -> HubPosterior:
    return hub_posterior(loss, hub, hub_evidence(loss, hub)).columns(settings.slopes)


def _allowed(settings: Settings, propose: Propose, hub: GraphFit) -> np.ndarray | None:
    """Pairs of tasks that may share coefficients, a mask of shape (n, n); None if all may."""
    rule = settings.candidates
    if isinstance(rule, (KNN, Complete)) and not len(rule.forbid):
        return None
    n = len(hub.coefficients)
    allowed = np.zeros((n, n), dtype=bool)
    allowed[tuple(propose(hub.coefficients).edges.T)] = True
    return allowed | allowed.T


def _with_l1(fit: GraphFit, loss: LeastSquares, settings: Settings) -> GraphFit:
    """The same graph with an ℓ1 penalty that is about as strong as the squared penalty at the present differences.

    The majoriser ½λ/|u| of the ℓ1 penalty equals the squared weight Λ_k if λ = 2 Λ_k |u_k|. Shrinkage has already about
    halved the differences u between linked models. So λ is the mean of 4 Λ_k |u_k|.
    """
    present = fit.edge_values > 0
    if not present.any():
        return fit
    i, j = fit.edges[present].T
    weight = fit.edge_values[present] / fit.edge_values[present].sum()
    typical = np.sqrt(weight @ (fit.coefficients[i] - fit.coefficients[j]) ** 2)
    strength = 4.0 * float((fit.coupling * typical)[settings.slopes].mean()) if settings.slopes.any() else 0.0
    return refit(replace(fit, coupling=np.full(loss.n_features, strength)), loss, settings)


def _shared_graph(shared: SharedCoefficients, loss: LeastSquares, settings: Settings, hub: GraphFit) -> GraphFit:
    """The set of edges with the largest expected F1, and models shrunk towards each other along them.

    Most coefficients differ between linked tasks, so λ must be small. Noise separates the estimates of two equal
    coefficients with a force of about σ√(N/2). All edges of a task together get a share `_PULL` of that force: the
    largest share with which errors fell in every trial.
    """
    reported = largest_expected_f1(shared.probability)
    edges, values = shared.edges[reported], shared.probability[reported]
    degree = np.bincount(edges.ravel(), np.repeat(values, 2)).max()
    noise = hub_evidence(loss, hub.hub).noise
    strength = 2.0 * _PULL * np.sqrt(0.5 * noise * float(loss.count.mean())) / degree
    fit = GraphFit(
        "graph",
        edges,
        values / values.max(),
        np.full(loss.n_features, strength * values.max()),
        hub.hub,
        hub.coefficients,
        hub.value - shared.score,
        reported_weights=np.ones(len(edges)),
        supported=True,
    )
    return refit(fit, loss, settings)
