"""The problem in coordinates in which the hub draws all slopes alike.

Λ_k ∝ h_k then reads Λ = 1: what is shared by all is shared by neighbours too, in the same proportion.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ggmtl.bilevel.fit import GraphFit, Settings
from ggmtl.candidates import CandidateEdges
from ggmtl.criteria.evidence import Neighbours, group_labels, spread_over_edges
from ggmtl.statistics import LeastSquares


@dataclass(frozen=True)
class ScaledProblem:
    """Losses and hub as functions of coefficients times `unit`.

    Parameters
    ----------
    loss : LeastSquares
    hub : array of shape (p,)
        Strengths of the best hub without edges.
    unit : array of shape (p,)
    groups : array of int, shape (p,)
        Zero for slopes, one for the intercept.
    """

    loss: LeastSquares
    hub: np.ndarray
    unit: np.ndarray
    groups: np.ndarray

    @classmethod
    def of(cls, loss: LeastSquares, settings: Settings, hub: GraphFit) -> ScaledProblem:
        """Scale by the hub's strengths relative to the geometric mean of the slopes'."""
        slopes = settings.slopes
        typical = float(np.exp(np.log(hub.hub[slopes]).mean())) if slopes.any() else 1.0
        unit = np.where(slopes, np.sqrt(hub.hub / typical), 1.0)
        # Exactly equal strengths: coordinates that share one share what is computed from it.
        return cls(loss.scaled(unit), np.where(slopes, typical, hub.hub), unit, np.where(slopes, 0, 1))

    def first_neighbours(self, candidates: CandidateEdges) -> Neighbours:
        """Equal edges that take over most of what the hub did to the slopes."""
        label = group_labels(self.groups, self.loss.n_features)
        values, hub = spread_over_edges(self.hub, label, len(candidates.edges), self.loss.n_tasks)
        models = np.zeros((self.loss.n_tasks, self.loss.n_features))
        return Neighbours(candidates.edges, values, candidates.fixed, hub, np.zeros(len(values)), models)

    def neighbours_of(self, fit: GraphFit) -> Neighbours:
        """What a fit with the same scaled hub has learned."""
        values = fit.edge_values * fit.coupling[0] / self.unit[0] ** 2
        fixed, leverage = np.zeros(len(values), dtype=bool), np.zeros(len(values))
        return Neighbours(fit.edges, values, fixed, fit.hub / self.unit**2, leverage, fit.coefficients * self.unit)

    def as_fit(
        self,
        edges: np.ndarray,
        values: np.ndarray,
        hub: np.ndarray,
        coefficients: np.ndarray,
        *,
        value: float,
        outcome: dict[str, Any],
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
            strongest * self.unit**2,
            hub * self.unit**2,
            coefficients / self.unit,
            value,
            reported_weights=reported[present],
            supported=supported,
            **outcome,
        )
