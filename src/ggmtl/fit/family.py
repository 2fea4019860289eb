"""The levels of a family by name, their held-out errors, and the choice among them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ggmtl.bilevel.level import GraphFit
from ggmtl.fit.held_out import FoldErrors
from ggmtl.graph.task_graph import TaskGraph

# An edge is reported if its weight is at least this share of the heaviest weights at its two tasks.
_REPORTED = 0.05


@dataclass(frozen=True)
class Family:
    """Every level fitted on all rows, its weight in the model, and its held-out error.

    Parameters
    ----------
    levels : dict of str to GraphFit
        Simplest first. Several graphs are ``"graph"``, ``"graph 2"``, ….
    weights : dict of str to float
        Share of each level in the model; they sum to one. Levels without a share are left out.
    errors : FoldErrors or None
        Of the levels, in their order. None where there are too few folds to learn without one of them.
    criterion : {"evidence", "validation"}
    """

    levels: dict[str, GraphFit]
    weights: dict[str, float]
    errors: FoldErrors | None
    criterion: str

    @classmethod
    def choosing(cls, levels: Mapping[str, GraphFit], errors: FoldErrors | None, chosen: str, criterion: str) -> Family:
        """All weight on one level."""
        return cls(dict(levels), {chosen: 1.0}, errors, criterion)

    @property
    def chosen(self) -> str:
        """Name of the level with the largest weight."""
        return max(self.weights, key=lambda name: self.weights[name])

    @property
    def best(self) -> GraphFit:
        """The level with the largest weight."""
        return self.levels[self.chosen]

    def position(self, name: str) -> int:
        """Place of a level in `errors`."""
        return list(self.levels).index(name)

    def with_best(self, fit: GraphFit) -> Family:
        """The same family with another fit of the chosen level."""
        return replace(self, levels=self.levels | {self.chosen: fit})

    def held_out_error(self) -> float | None:
        """Mean squared error of the chosen level on held-out rows; None where it was not measured."""
        return None if self.errors is None else float(self.errors.mean()[self.position(self.chosen)])

    def table(self, unit: float, slopes: np.ndarray) -> list[dict[str, Any]]:
        """One row per level, errors in multiples of `unit`."""
        names = np.arange(len(self.best.coefficients))
        mean = deviation = [None] * len(self.levels)
        if self.errors is not None:
            root = np.sqrt(self.errors.mean())
            mean = (root * unit).tolist()
            # Delta method: the standard error of a root.
            deviation = (self.errors.standard_error() / (2.0 * np.where(root > 0, root, 1.0)) * unit).tolist()
        rows = []
        for k, (name, fit) in enumerate(self.levels.items()):
            graph = reported_graph(fit, names, slopes)
            rows.append(
                {
                    "level": fit.name,
                    "n_edges": graph.n_edges,
                    "n_components": int(graph.components().max(initial=-1)) + 1,
                    "error": mean[k],
                    "standard_error": deviation[k],
                    "criterion": fit.value,
                    "chosen": name == self.chosen,
                }
            )
        return rows


def by_name(levels: Iterable[GraphFit]) -> dict[str, GraphFit]:
    """Levels under names of their own: the second graph is ``"graph 2"``."""
    named: dict[str, GraphFit] = {}
    for fit in levels:
        same = sum(other.name == fit.name for other in named.values())
        named[f"{fit.name} {same + 1}" if same else fit.name] = fit
    return named


def shared_level(names: Iterable[str]) -> str | None:
    """Name of the common model with deviations, told by descriptors where there are any; None without one."""
    names = list(names)
    return next((name for name in ("described", "hub") if name in names), None)


def last_graph(levels: Mapping[str, GraphFit]) -> str:
    """The densest graph; where there is none, the hub or else the last level."""
    simple = shared_level(levels) or list(levels)[-1]
    return ([name for name, fit in levels.items() if fit.name == "graph"] or [simple])[-1]


def choose(levels: Mapping[str, GraphFit], errors: FoldErrors | None, linked: bool = False) -> str:
    """Name of the best simple level, unless a graph is worth more.

    The hub has pooled and independent models as its limits, so it is the simple model unless one of them is better by
    more than a paired standard error. A graph that its criterion supports, all comparisons counted, is taken unless
    its error is more than a paired standard error above the lowest. Other graphs must beat the best simple model by
    more than that. Of those within it of the best graph, the sparsest is taken.
    """
    names = list(levels)
    if linked:
        # Edges that must be there rule out every level but the last graph, which has them.
        return last_graph(levels)
    supported = [name for name in names if levels[name].supported]
    if errors is None:
        return supported[0] if supported else shared_level(names) or names[-1]
    mean = dict(zip(names, errors.mean().tolist()))
    graphs = [name for name in names if levels[name].name == "graph"]
    lowest = min(names, key=mean.__getitem__)
    for name in supported:
        if _is_as_good(errors, names, name, lowest):
            return name
    simple = _best_simple([name for name in names if name not in graphs], names, errors)
    if not graphs:
        return simple or lowest
    best = min(graphs, key=mean.__getitem__)
    if simple is not None and _is_as_good(errors, names, simple, best):
        return simple
    return next(name for name in graphs if _is_as_good(errors, names, name, best))


def _is_as_good(errors: FoldErrors, names: list[str], name: str, reference: str) -> bool:
    """Whether a level's error is at most a paired standard error above that of `reference`."""
    excess, deviation = errors.excess(names.index(reference))
    k = names.index(name)
    return bool(excess[k] <= deviation[k])


def _best_simple(simple: list[str], names: list[str], errors: FoldErrors) -> str | None:
    if not simple:
        return None
    mean = errors.mean()
    best = min(simple, key=lambda name: mean[names.index(name)])
    hub = shared_level(simple) or best
    return hub if _is_as_good(errors, names, hub, best) else best


def reported_graph(fit: GraphFit, task_names: np.ndarray, slopes: np.ndarray) -> TaskGraph:
    """The edges that matter to their tasks: as the criterion says, or by weights w_ij/√(max_i · max_j)."""
    if fit.reported_weights is not None:
        return TaskGraph(fit.edges, fit.reported_weights, task_names).threshold(0.0)
    weights = fit.edge_weights(slopes)
    present = weights > 0
    return TaskGraph(fit.edges[present], weights[present], task_names).normalized().threshold(_REPORTED)
