"""The graph of highest evidence beside a hub.

Coefficients are first scaled so that the hub draws all slopes alike: Λ_k ∝ h_k, which says that what is shared by all
is shared by neighbours too, in the same proportion. Where the whole system fits a dense factor, graphs compete by exact
evidence less the length of their description (hub alone, a list of edges, clusters). Beyond, edge values follow from
sampled evidence, and whether they pay is left to the honest errors.
"""

from __future__ import annotations

import numpy as np

from ggmtl.bilevel.fit import GraphFit, Settings
from ggmtl.candidates import CandidateEdges
from ggmtl.criteria.evidence import EvidenceModel, SampledEvidence, learn_edges, report_weights, select_graph
from ggmtl.statistics import LeastSquares

# Largest n·p for which graphs are compared by exact evidence.
EXACT_SIZE = 800
_EXACT_STEPS, _SAMPLED_STEPS = 40, 30
# Edges of less leverage tie nothing together that the rest of the graph does not.
_LEVERAGE = 0.1


def learn_by_evidence(
    loss: LeastSquares, settings: Settings, candidates: CandidateEdges, hub: GraphFit, seed: int = 0
) -> GraphFit:
    """Edges and strengths of highest evidence, starting from the hub alone.

    Parameters
    ----------
    loss : LeastSquares
        All rows given.
    settings : Settings
    candidates : CandidateEdges
    hub : GraphFit
        The best hub without edges.
    seed : int
        Of the samples.
    """
    if not len(candidates.edges):
        return hub
    unit = np.where(settings.slopes, np.sqrt(hub.hub / _slope_strength(hub.hub, settings.slopes)), 1.0)
    scaled = LeastSquares(loss.gram / np.outer(unit, unit), loss.moment / unit, loss.target_square, loss.count)
    groups = np.where(settings.slopes, 0, 1)
    model = EvidenceModel(scaled, candidates.edges, np.ones(len(unit)), hub.hub / unit**2)
    if loss.n_tasks * loss.n_features <= EXACT_SIZE:
        return _select(model, groups, unit, hub)
    return _sample(model, groups, unit, seed)


def _slope_strength(hub: np.ndarray, slopes: np.ndarray) -> float:
    return float(np.exp(np.log(hub[slopes]).mean())) if slopes.any() else 1.0


def _select(model: EvidenceModel, groups: np.ndarray, unit: np.ndarray, hub: GraphFit) -> GraphFit:
    """The graph that exact evidence prefers; the hub itself where none is worth its description."""
    learned = learn_edges(model.loss, model.edges, model.hub, groups=groups, max_iter=_EXACT_STEPS)
    choice = select_graph(model, learned, groups)
    if choice.kind == "hub":
        return GraphFit("graph", hub.edges, hub.edge_values, hub.coupling, hub.hub, hub.coefficients, hub.value)
    reported = report_weights(choice, learned.early_leverage)
    return _as_fit(
        choice.edges,
        choice.edge_values,
        choice.hub,
        choice.coefficients,
        unit,
        value=hub.value - choice.gain + choice.description,
        iterations=len(learned.history),
        reported=reported,
        supported=True,
    )


def _sample(model: EvidenceModel, groups: np.ndarray, unit: np.ndarray, seed: int) -> GraphFit:
    """Edge values from sampled evidence."""
    learned = learn_edges(
        model.loss,
        model.edges,
        model.hub,
        groups=groups,
        max_iter=_SAMPLED_STEPS,
        tol=1.0,
        estimator=SampledEvidence(n_samples=16, seed=seed),
    )
    return _as_fit(
        model.edges,
        learned.edge_values,
        learned.hub,
        learned.evidence.coefficients,
        unit,
        value=float("nan"),
        iterations=len(learned.history),
        reported=np.where(learned.leverage > _LEVERAGE, learned.leverage, 0.0),
    )


def _as_fit(
    edges: np.ndarray,
    values: np.ndarray,
    hub: np.ndarray,
    coefficients: np.ndarray,
    unit: np.ndarray,
    *,
    value: float,
    iterations: int,
    reported: np.ndarray,
    supported: bool = False,
) -> GraphFit:
    """Back to the coordinates of the design, with λ the strength of the strongest edge."""
    present = values > 1e-6 * values.max(initial=0.0)
    strongest = float(values.max(initial=0.0)) or 1.0
    return GraphFit(
        "graph",
        edges[present],
        values[present] / strongest,
        strongest * unit**2,
        hub * unit**2,
        coefficients / unit,
        value,
        iterations,
        reported_weights=reported[present],
        supported=supported,
    )
