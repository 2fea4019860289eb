"""The levels of a family by name, their held-out errors, and their average or the choice among them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ggmtl.bilevel.level import STRAIGHT, GraphFit
from ggmtl.evidence.selection import tied
from ggmtl.fit.average import Average, average_levels
from ggmtl.fit.held_out import FoldErrors, reported_graph
from ggmtl.graph.task_graph import TaskGraph

# With fewer folds than this, the support of edges is not reported.
_FEWEST_FOLDS = 3
# Links without support must predict better than a graph with support by so many paired standard errors and by this
# share of the mean squared error. With one standard error alone, sets of tasks in clusters lose their clusters for an
# error that is 1 to 2 % lower (160 tasks with 4 coefficients: F1 .52 → .30). For chains of 160 tasks with 11
# coefficients the error is 7 % lower, and F1 rises from .35 to .70.
_CLEARLY, _LARGE_GAIN = 2.0, 0.06


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
        Held-out errors of the levels, in the same order. None if there were too few folds for cross-validation.
    criterion : {"evidence", "validation"}
    chosen : str
        The best single level, by :func:`choose`.
    average : Average, optional
        Weights and held-out error of the average; None if the model is a single level.
    links : tuple of dict of str to array of shape (m, 2)
        For every fold held out, the edges that each level learned without it would report.
    """

    levels: dict[str, GraphFit]
    weights: dict[str, float]
    errors: FoldErrors | None
    criterion: str
    chosen: str
    average: Average | None = None
    links: tuple[dict[str, np.ndarray], ...] = ()

    @classmethod
    def choosing(cls, levels: Mapping[str, GraphFit], errors: FoldErrors | None, chosen: str, criterion: str) -> Family:
        """A family whose model is the single level `chosen`."""
        return cls(dict(levels), {chosen: 1.0}, errors, criterion, chosen)

    @property
    def main(self) -> str:
        """Name of the level whose graph and strengths are reported.

        The graph if it has a weight, else the shared model with the largest weight, else the hub. Without an average,
        the chosen level.
        """
        if self.average is None:
            return self.chosen
        if self.linked is not None:
            return self.linked
        shared = [name for name in _shared_levels(self.levels) if name in self.weights]
        return max(shared, key=self.weights.__getitem__, default="hub")

    @property
    def linked(self) -> str | None:
        """Name of the graph that has a weight, if any."""
        return next((name for name in self.weights if self.levels[name].kind == "graph"), None)

    @property
    def kept(self) -> set[str]:
        """Names of the levels with a weight, and of the level `main`."""
        return {*self.weights, self.main}

    @property
    def best(self) -> GraphFit:
        """The level `main`."""
        return self.levels[self.main]

    @property
    def coefficients(self) -> np.ndarray:
        """Models of the tasks: the average of the levels, shape (n, p)."""
        if len(self.weights) == 1:
            return self.levels[next(iter(self.weights))].coefficients
        return np.sum([weight * self.levels[name].coefficients for name, weight in self.weights.items()], axis=0)

    def graph(self, task_names: np.ndarray, slopes: np.ndarray) -> TaskGraph:
        """The reported graph. The support of an edge is the share of folds in which it was found again."""
        graph = reported_graph(self.best, task_names, slopes)
        if len(self.links) < _FEWEST_FOLDS:
            return graph
        n = len(task_names)
        found = [np.isin(graph.edges @ [n, 1], fold[self.main] @ [n, 1]) for fold in self.links if self.main in fold]
        support = np.sum(found, axis=0) / len(self.links) if found else np.zeros(graph.n_edges)
        return replace(graph, support=support)

    def position(self, name: str) -> int:
        """Position of a level in `errors`."""
        return list(self.levels).index(name)

    def with_best(self, fit: GraphFit) -> Family:
        """The same family with another fit of the level `main`."""
        return replace(self, levels=self.levels | {self.main: fit})

    def squared_errors(self) -> np.ndarray | None:
        """Squared errors of the model on held-out rows, shape (folds, n); None if they were not measured."""
        if self.average is not None:
            return self.average.squared
        return None if self.errors is None else self.errors.squared[self.position(self.chosen)]

    def all_errors(self) -> FoldErrors | None:
        """Held-out errors of the levels and, in last place, of their average if there is one."""
        if self.errors is None or self.average is None:
            return self.errors
        squared = self.average.squared
        if squared.shape != self.errors.count.shape:
            # A model file without statistics keeps only the sums over folds.
            squared = squared.sum(axis=0, keepdims=True)
        return replace(self.errors, squared=np.concatenate([self.errors.squared, squared[None]]), cross=None)

    def held_out_error(self) -> float | None:
        """Root mean square error, or mean loss, of the model on held-out rows; None if it was not measured."""
        squared = self.squared_errors()
        if squared is None or self.errors is None:
            return None
        return float(self.errors.measure.of(squared.sum() / self.errors.count.sum()))

    def table(self, unit: float, slopes: np.ndarray) -> list[dict[str, Any]]:
        """The table of the levels, one row each; errors are multiplied by `unit`."""
        names = np.arange(len(self.best.coefficients))
        mean = deviation = [None] * len(self.levels)
        if self.errors is not None:
            mean = (self.errors.error() * unit).tolist()
            deviation = (self.errors.error_deviation() * unit).tolist()
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
                    "weight": self.weights.get(name, 0.0),
                }
            )
        return rows


def by_name(levels: Iterable[GraphFit]) -> dict[str, GraphFit]:
    """Levels under unique names: the second graph is called ``"graph 2"``."""
    named: dict[str, GraphFit] = {}
    for fit in levels:
        same = sum(other.name == fit.name for other in named.values())
        named[f"{fit.name} {same + 1}" if same else fit.name] = fit
    return named


def by_evidence(levels: Mapping[str, GraphFit], errors: Mapping[str, float] | None = None) -> list[str]:
    """Names of the graphs that the evidence supports, the best first; those whose evidence is not known come last.

    Graphs whose evidence is about equal to the best are sorted by held-out error, if it is known.
    """
    value = {name: np.nan_to_num(fit.value, nan=np.inf) for name, fit in levels.items() if fit.supported}
    ranked = sorted(value, key=value.__getitem__)
    if errors is None or not ranked:
        return ranked
    least = value[ranked[0]] + tied(len(levels[ranked[0]].coefficients))
    first = [name for name in ranked if value[name] <= least]
    return [*sorted(first, key=errors.__getitem__), *ranked[len(first) :]]


def shared_level(names: Iterable[str]) -> str | None:
    """Name of the shared model, preferably the one with task features; None if there is no shared model."""
    names = list(names)
    return next((name for name in ("described", "hub") if name in names), None)


def last_graph(levels: Mapping[str, GraphFit]) -> str:
    """Name of the densest graph; without a graph, of the shared model, or else of the last level."""
    simple = shared_level(levels) or list(levels)[-1]
    return ([name for name, fit in levels.items() if fit.name == "graph"] or [simple])[-1]


def averaged(
    levels: Mapping[str, GraphFit], errors: FoldErrors, chosen: str, criterion: str, *, equal_noise: bool
) -> Family:
    """The family whose model is an average of the levels, with at most one graph.

    A graph gets a weight only if its criterion supports it (corrected for the number of comparisons), or if leaving it
    out raises the held-out error and the 95 % interval of that change is above zero.
    """
    names = list(levels)
    mean = dict(zip(names, errors.mean().tolist()))
    shared = min(_shared_levels(levels), key=mean.__getitem__)
    simple = [name for name in names if levels[name].kind != "graph"]

    def over(used: list[str], preferred: str, linked: str | None) -> Average:
        kept = errors.among([names.index(name) for name in used])
        return average_levels(kept, used, preferred, linked, equal_noise=equal_noise)

    for graph in _best_graphs(levels, errors):
        supported = levels[graph].supported
        found = over([*simple, graph], graph if supported else shared, graph)
        if graph in found.weights and (supported or _worsens(found)):
            return Family(dict(levels), found.weights, errors, criterion, chosen, found)
    found = over(simple, shared, None)
    return Family(dict(levels), found.weights, errors, criterion, chosen, found)


def _shared_levels(levels: Mapping[str, GraphFit]) -> list[str]:
    """Names of the shared models; only those with task features if there are any."""
    kinds = {name: fit.kind for name, fit in levels.items()}
    described = [name for name, kind in kinds.items() if kind == "described"]
    return described or [name for name, kind in kinds.items() if kind == "hub"]


def _worsens(average: Average) -> bool:
    """Whether leaving out the graph raises the held-out error, with a 95 % interval above zero."""
    return average.gain_over("unlinked").low > 0


def _best_graphs(levels: Mapping[str, GraphFit], errors: FoldErrors) -> list[str]:
    """Names of the graphs that the average may have, the one to try first in front; at most two.

    The first one is a graph that the evidence supports, in the order of :func:`by_evidence`, unless another predicts
    clearly better: then it is the sparsest that predicts as well as the best. In that case the second one is the best
    graph that the evidence supports.
    """
    names = list(levels)
    mean = dict(zip(names, errors.mean().tolist()))
    supported = by_evidence(levels, mean)
    ranked = [*supported, *(name for name in names if levels[name].kind == "graph" and name not in supported)]

    def first(graphs: list[str], keeps_support: bool) -> str:
        best = min(graphs, key=mean.__getitem__)

        def serves(name: str) -> bool:
            if not keeps_support or name not in supported:
                return _is_as_good(errors, names, name, best)
            about = mean[name] <= (1.0 + _LARGE_GAIN) * mean[best]
            return about or _is_as_good(errors, names, name, best, within=_CLEARLY)

        return next(filter(serves, graphs))

    found = [first(graphs, keeps) for graphs, keeps in ((ranked, True), (supported, False)) if graphs]
    return list(dict.fromkeys(found))


def choose(levels: Mapping[str, GraphFit], errors: FoldErrors | None, linked: bool = False) -> str:
    """Name of the best single level. Two levels are equally good if they differ by at most one paired standard error.

    1. A graph that its criterion supports (corrected for the number of comparisons), if it is as good as the level of
       lowest error.
    2. Otherwise the best simple level, if it is as good as the best graph. It is the hub unless another is better.
    3. Otherwise the sparsest graph that is as good as the best graph.

    With `linked`, always the densest graph, because only this one has all required edges.
    """
    names = list(levels)
    if linked:
        return last_graph(levels)
    if errors is None:
        return next(iter(by_evidence(levels)), shared_level(names) or names[-1])
    mean = dict(zip(names, errors.mean().tolist()))
    supported = by_evidence(levels, mean)
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


def _is_as_good(errors: FoldErrors, names: list[str], name: str, reference: str, within: float = 1.0) -> bool:
    """Whether a level's error is at most so many paired standard errors above that of `reference`."""
    excess, deviation = errors.excess(names.index(reference))
    k = names.index(name)
    return bool(excess[k] <= within * deviation[k])


def _best_simple(simple: list[str], names: list[str], errors: FoldErrors) -> str | None:
    """Name of the best level without edges: the shared model unless another is better by a paired standard error."""
    if not simple:
        return None
    mean = errors.mean()
    best = min(simple, key=lambda name: mean[names.index(name)])
    name = shared_level(simple)
    # The shared model with curves or the one with straight lines, whichever has the lower error.
    shared = [level for level in (name, f"{name}{STRAIGHT}") if level in simple]
    hub = min(shared, key=lambda level: mean[names.index(level)], default=best)
    return hub if _is_as_good(errors, names, hub, best) else best
