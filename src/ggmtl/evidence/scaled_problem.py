"""The problem with scaled coefficients, so that the hub strengths of all slopes are equal.

In this scale, the assumption Λ_k ∝ h_k becomes Λ = 1: coefficients that are more alike in all tasks are also more alike
in linked tasks, in the same proportion.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import reverse_cuthill_mckee

from ggmtl.bilevel.level import GraphFit, Settings
from ggmtl.evidence.dense import EvidenceModel
from ggmtl.evidence.edge_steps import spread_over_edges
from ggmtl.evidence.hub import RIDGE
from ggmtl.evidence.hub_strengths import group_labels
from ggmtl.evidence.sampled_edges import Neighbours
from ggmtl.graph.candidates import CandidateEdges
from ggmtl.runtime.sizes import SIZES, Sizes
from ggmtl.statistics.least_squares import LeastSquares

# Smallest ρ in scaled units. A smaller one is no larger than rounding errors if columns are collinear. A larger one
# would shrink a coefficient that all tasks share, because its unit is a thousand times that of the others.
_LEAST_RIDGE = 1e-11


@dataclass(frozen=True)
class ScaledProblem:
    """Losses and hub as functions of scaled coefficients: those of the design times `unit`.

    Parameters
    ----------
    loss : LeastSquares
        The loss in scaled units, with the tasks in the order `order`.
    hub : array of shape (p,)
        Strengths of the best hub without edges, in scaled units.
    unit : array of shape (p,)
    groups : array of int, shape (p,)
        Zero for slopes, one for the intercept.
    order : array of int, shape (n,), optional
        The task at each position of `loss`; None if the order is unchanged.
    sizes : Sizes
        Problem sizes at which the algorithms change.
    """

    loss: LeastSquares
    hub: np.ndarray
    unit: np.ndarray
    groups: np.ndarray
    order: np.ndarray | None = None
    sizes: Sizes = SIZES

    @classmethod
    def of(
        cls, loss: LeastSquares, settings: Settings, hub: GraphFit, order: np.ndarray | None = None
    ) -> ScaledProblem:
        """Scale by the hub's strengths relative to the geometric mean of those of slopes that differ between tasks."""
        slopes, varying = settings.slopes, settings.varying
        typical = float(np.exp(np.log(hub.hub[varying]).mean())) if varying.any() else 1.0
        unit = np.where(slopes, np.sqrt(hub.hub / typical), 1.0)
        # Exactly equal strengths, so that prior terms are computed once for all slopes.
        strengths, groups = np.where(slopes, typical, hub.hub), np.where(slopes, 0, 1)
        return cls(_scaled(loss, unit, order), strengths, unit, groups, order, settings.sizes)

    @classmethod
    def of_fit(cls, loss: LeastSquares, fit: GraphFit, sizes: Sizes = SIZES) -> ScaledProblem:
        """Scale so that Λ = 1 for the edges of a fit. Very many tasks are ordered so that neighbours are close."""
        unit, order = np.sqrt(fit.coupling / fit.coupling.max()), order_of(loss, fit.edges, sizes)
        groups = np.zeros(len(unit), dtype=np.int64)
        return cls(_scaled(loss, unit, order), fit.hub / unit**2, unit, groups, order, sizes)

    def model(self, edges: np.ndarray, hub: np.ndarray) -> EvidenceModel:
        """The evidence model of these edges and hub strengths, with Λ = 1 and the ridge converted to scaled units."""
        ridge = np.maximum(RIDGE / self.unit**2, _LEAST_RIDGE)
        return EvidenceModel(self.loss, edges, np.ones(self.loss.n_features), hub, ridge, self.sizes)

    def first_neighbours(self, candidates: CandidateEdges) -> Neighbours:
        """The state at which the search starts: equal edge values, to which most of the hub's strength has moved."""
        label = group_labels(self.groups, self.loss.n_features)
        values, hub = spread_over_edges(self.hub, label, len(candidates.edges), self.loss.n_tasks)
        models = np.zeros((self.loss.n_tasks, self.loss.n_features))
        edges, place = self._reordered(candidates.edges)
        return Neighbours(edges, values, candidates.fixed[place], hub, np.zeros(len(values)), models)

    def neighbours_of(self, fit: GraphFit) -> Neighbours:
        """The edges, hub and models of a fit, in scaled units and in the order of `loss`."""
        values = fit.edge_values * fit.coupling[0] / self.unit[0] ** 2
        fixed, leverage = np.zeros(len(values), dtype=bool), np.zeros(len(values))
        edges, place = self._reordered(fit.edges)
        models = fit.deviations if self.order is None else fit.deviations[self.order]
        return Neighbours(edges, values[place], fixed, fit.hub / self.unit**2, leverage, models * self.unit)

    def models_of_design(self, coefficients: np.ndarray) -> np.ndarray:
        """Models in the units of the design and the original order of the tasks, shape (n, p)."""
        models = coefficients / self.unit
        if self.order is None:
            return models
        out = np.empty_like(models)
        out[self.order] = models
        return out

    def _reordered(self, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray | slice]:
        """Edges between positions of tasks in `loss`, sorted, and the position of each of them in `edges`."""
        if self.order is None:
            return edges, slice(None)
        position = np.empty_like(self.order)
        position[self.order] = np.arange(len(position))
        return in_order(position[edges])

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
        """A fit in the units of the design. λ is the strength of the strongest edge, and edge values are in [0, 1]."""
        present = np.flatnonzero(values > 1e-6 * values.max(initial=0.0))
        strongest = float(values.max(initial=0.0)) or 1.0
        edges = edges[present]
        if self.order is not None:
            edges, place = in_order(self.order[edges])
            present = present[place]
        return GraphFit(
            "graph",
            edges,
            values[present] / strongest,
            strongest * self.unit**2,
            hub * self.unit**2,
            self.models_of_design(coefficients),
            value,
            reported_weights=reported[present],
            supported=supported,
            **outcome,
        )


def _scaled(loss: LeastSquares, unit: np.ndarray, order: np.ndarray | None) -> LeastSquares:
    # A loss on a GPU cannot be reordered.
    return loss.scaled(unit) if order is None else loss.scaled(unit, order)


def order_of(loss: LeastSquares, edges: np.ndarray, sizes: Sizes = SIZES) -> np.ndarray | None:
    """An order of very many tasks in which neighbours are close; None for fewer tasks and for a loss on a GPU."""
    if not sizes.is_vast(loss.n_tasks, loss.n_features) or not isinstance(loss, LeastSquares):
        return None
    return near_in_memory(edges, loss.n_tasks)


def near_in_memory(edges: np.ndarray, n: int) -> np.ndarray:
    """An order of the tasks in which neighbours are close in memory, which makes products with the graph faster."""
    i, j = edges.T
    links = sparse.csr_matrix((np.ones(len(i), np.int8), (i, j)), shape=(n, n))
    return reverse_cuthill_mckee((links + links.T).tocsr(), symmetric_mode=True).astype(np.int64)


def in_order(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The edges, each with the smaller position first, sorted; and the position of each of them in `edges`."""
    edges = np.sort(edges, axis=1)
    place = np.lexsort(edges.T[::-1])
    return edges[place], place
