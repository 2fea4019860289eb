"""How often each edge is found again on resampled rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from joblib import delayed

from ggmtl.errors import ParameterError
from ggmtl.fit.held_out import as_they_come
from ggmtl.fit.state import state_of
from ggmtl.graph.task_graph import TaskGraph
from ggmtl.inspection.metrics import weights_on_all
from ggmtl.inspection.resampling import blocks_of, blocks_of_outcome, draw, plan_of, resample
from ggmtl.runtime.journal import logger, verbose_logging

if TYPE_CHECKING:
    from ggmtl.estimators.classifier import GGMTLClassifier
    from ggmtl.estimators.regressor import GGMTLRegressor

_INTERVAL = (5.0, 95.0)
# Seconds until the first line of progress, and between lines.
_FIRST, _PAUSE = 2.0, 5.0


@dataclass(frozen=True, repr=False)
class EdgeStability:
    """Selection frequency and weight of every edge over resampled rows.

    Parameters
    ----------
    task_names : array of shape (n,)
    edges : array of shape (m, 2)
        Edges selected in the fit or in any resample, as positions; most frequent first.
    frequency : array of shape (m,)
        Share of the resamples that select the edge.
    weight : array of shape (m,)
        Weight in the model's ``graph_``, zero where it has no such edge.
    low, high : arrays of shape (m,)
        5 % and 95 % points of the weight over resamples, zero where not selected.
    n_resamples : int

    Examples
    --------
    >>> from ggmtl import GGMTLRegressor
    >>> from ggmtl.datasets import make_clusters
    >>> data = make_clusters(3, n_tasks=12, n_features=4, random_state=0)
    >>> model = GGMTLRegressor().fit(data.X, data.y, tasks=data.tasks)
    >>> stability = edge_stability(model, data.X, data.y, n_resamples=3, tasks=data.tasks)
    >>> sorted(stability.table()[0])
    ['frequency', 'high', 'low', 'task_a', 'task_b', 'weight']
    """

    task_names: np.ndarray
    edges: np.ndarray
    frequency: np.ndarray
    weight: np.ndarray
    low: np.ndarray
    high: np.ndarray
    n_resamples: int

    def __repr__(self) -> str:
        return f"EdgeStability({len(self.task_names)} tasks, {len(self.edges)} edges, {self.n_resamples} resamples)"

    def table(self) -> list[dict[str, Any]]:
        """One row per edge, as plain data."""
        names = self.task_names.tolist()
        columns = (self.frequency, self.weight, self.low, self.high)
        return [
            {"task_a": names[i], "task_b": names[j], "frequency": f, "weight": w, "low": low, "high": high}
            for (i, j), f, w, low, high in zip(self.edges.tolist(), *(column.tolist() for column in columns))
        ]

    def graph(self, frequency: float = 0.8) -> TaskGraph:
        """The edges selected at least so often, weighted by their frequency."""
        keep = self.frequency >= frequency
        return TaskGraph(self.edges[keep], self.frequency[keep], self.task_names)

    def describe(self) -> str:
        """The result in words."""
        if not len(self.edges):
            return f"No edge was found in the fit nor in any of {self.n_resamples} resamples."
        fitted, n = self.weight > 0, self.n_resamples
        steady = self.frequency >= 0.8
        if not fitted.any():
            reason = "The model has no links: neither the evidence nor the held-out error supports any."
            share = f"at least 80 % of {n} resamples"
            if not steady.any():
                return f"{reason} No link was proposed in {share}."
            return f"{reason} The search for links is stable all the same: it proposes {steady.sum()} in {share}."
        return (
            f"{(steady & fitted).sum()} of the {fitted.sum()} links of the graph were found in at least 80 % of {n} "
            f"resamples; {(~fitted & (self.frequency >= 0.5)).sum()} other links in at least half."
        )


def edge_stability(
    model: GGMTLRegressor | GGMTLClassifier,
    X: Any = None,
    y: Any = None,
    n_resamples: int = 50,
    tasks: Any = None,
    n_jobs: int | None = None,
    verbose: int = 1,
    *,
    sample_weight: Any = None,
    groups: Any = None,
) -> EdgeStability:
    """Relearn the edges on resampled rows.

    Parameters
    ----------
    model : GGMTLRegressor or GGMTLClassifier
        Fitted.
    X, y, tasks, sample_weight, groups
        What it was fitted on; rows of one group are drawn together. Models of classes and counts keep their rows, so
        none is given for these; their graphs are learned again from working sums at the fitted models.
    n_resamples : int
        Bootstrap resamples.
    n_jobs : int, optional
        Processes.
    verbose : int
        1: how far it is, every few seconds, through the logger ``ggmtl`` (standard error, unless logging is set up).

    Examples
    --------
    >>> from ggmtl import GGMTLRegressor
    >>> from ggmtl.datasets import make_clusters
    >>> data = make_clusters(3, n_tasks=12, n_features=4, random_state=0)
    >>> model = GGMTLRegressor().fit(data.X, data.y, tasks=data.tasks)
    >>> stability = edge_stability(model, data.X, data.y, n_resamples=3, tasks=data.tasks)
    >>> stability.n_resamples, stability.graph(frequency=0.8).n_tasks
    (3, 12)
    """
    state = state_of(model, "edge_stability", any_loss=True)
    if np.ndim(n_resamples):
        raise ParameterError("n_resamples must be a whole number. Got an array instead: task labels go to tasks=.")
    if n_resamples != int(n_resamples) or n_resamples < 1:
        raise ParameterError(f"n_resamples must be a whole number of at least 1. Got {n_resamples!r} instead.")
    if state.outcome is None:
        blocks, seed = blocks_of(model, X, y, tasks, sample_weight, groups)
    else:
        if any(given is not None for given in (X, y, tasks, sample_weight, groups)):
            raise ParameterError("edge_stability uses the rows that a model of classes or counts keeps. Give none.")
        blocks, seed = blocks_of_outcome(model)
    plan = plan_of(model, blocks)
    random = np.random.default_rng(seed)
    weights = [draw(blocks, random) for _ in range(int(n_resamples))]
    with verbose_logging(verbose):
        found = _told([delayed(resample)(plan, blocks, weight) for weight in weights], n_jobs)
    return _collect(model, found)


def _told(jobs: list[Any], n_jobs: int | None) -> list[TaskGraph]:
    """The results of all jobs, with a line in the log every few seconds."""
    start, last, done = perf_counter(), perf_counter() - _PAUSE + _FIRST, []
    for result in as_they_come(jobs, n_jobs):
        done.append(result)
        if perf_counter() - last >= _PAUSE:
            last = perf_counter()
            logger.info("edge stability: %d of %d resamples, %.0f s", len(done), len(jobs), last - start)
    return done


def _collect(model: Any, found: Sequence[TaskGraph]) -> EdgeStability:
    edges, weights = weights_on_all(len(model.tasks_), model.graph_, *found)
    weight, weights = weights[0], weights[1:]
    frequency = (weights > 0).mean(axis=0)
    low, high = np.percentile(weights, _INTERVAL, axis=0)
    order = np.lexsort((-weight, -frequency))
    return EdgeStability(
        model.tasks_, edges[order], frequency[order], weight[order], low[order], high[order], len(found)
    )
