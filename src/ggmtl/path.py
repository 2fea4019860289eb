"""The family of models from pooled to densely linked, their honest errors, and the choice among them.

Everything that is learned is learned again without each fold and scored on it, so the errors include the search for
candidates, strengths and edges.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from joblib import Parallel, delayed

from ggmtl.bilevel import GraphFit, Settings, learn_by_evidence, learn_by_validation
from ggmtl.criteria.evidence import learn_hub_by_feature
from ggmtl.graph import TaskGraph
from ggmtl.statistics import FoldedLoss, LeastSquares

logger = logging.getLogger("ggmtl")
Learner = Callable[[FoldedLoss], Sequence[GraphFit]]

# Levels of the entropy weight γ, in units of the outer loss per candidate edge.
ENTROPY_LEVELS = (0.0, 0.03, 0.1, 0.3)
# Edges lighter than this, beside the heaviest edges of their two tasks, are not reported.
_REPORTED = 0.05


@dataclass(frozen=True)
class FoldErrors:
    """Squared errors on rows never seen by the model that predicts them.

    Parameters
    ----------
    squared : array of shape (levels, folds, n)
        Sum of squared errors per level, fold and task.
    count : array of shape (folds, n)
        Rows behind each sum.
    """

    squared: np.ndarray
    count: np.ndarray

    def mean(self) -> np.ndarray:
        """Mean squared error over all rows, shape (levels,)."""
        return self.squared.sum(axis=(1, 2)) / self.count.sum()

    def standard_error(self) -> np.ndarray:
        """Standard error of `mean`, shape (levels,), from the spread over tasks."""
        return self._spread(self.squared - self.mean()[:, None, None] * self.count)

    def excess(self, level: int) -> tuple[np.ndarray, np.ndarray]:
        """Mean squared error of every level above that of `level`, and the paired standard error."""
        difference = self.squared - self.squared[level]
        mean = difference.sum(axis=(1, 2)) / self.count.sum()
        return mean, self._spread(difference - mean[:, None, None] * self.count)

    def task_mean(self) -> np.ndarray:
        """Mean squared error of every task over all folds, shape (levels, n); NaN where no row was held out."""
        count = self.count.sum(axis=0)
        return self.squared.sum(axis=1) / np.where(count > 0, count, np.nan)

    def _spread(self, centred: np.ndarray) -> np.ndarray:
        # Rows of a task share its model: with several tasks, tasks are the independent units; with one, folds are.
        units = centred.sum(axis=1) if centred.shape[2] > 1 else centred[:, :, 0]
        size = max(units.shape[1] - 1, 1)
        return np.sqrt((units**2).sum(axis=1) * units.shape[1] / size) / self.count.sum()


@dataclass(frozen=True)
class PathResult:
    """Every level fitted on all rows, its honest error, and the choice.

    Parameters
    ----------
    levels : tuple of GraphFit
        Simplest first.
    errors : FoldErrors or None
        None where there are too few folds to learn without one of them.
    chosen : int
    criterion : str
    """

    levels: tuple[GraphFit, ...]
    errors: FoldErrors | None
    chosen: int
    criterion: str

    @property
    def best(self) -> GraphFit:
        """The chosen level."""
        return self.levels[self.chosen]

    def honest_error(self) -> float | None:
        """Mean squared error of the chosen level on rows it had not seen; None where that is not known."""
        return None if self.errors is None else float(self.errors.mean()[self.chosen])

    def reported_graph(self, task_names: np.ndarray, slopes: np.ndarray) -> TaskGraph:
        """The edges of the chosen level that matter to their tasks, with comparable weights in [0, 1]."""
        return reported_graph(self.best, task_names, slopes)

    def table(self, unit: float, slopes: np.ndarray) -> list[dict[str, Any]]:
        """One row per level, errors in multiples of `unit`."""
        names = np.arange(len(self.levels[0].coefficients))
        mean = deviation = [None] * len(self.levels)
        if self.errors is not None:
            root = np.sqrt(self.errors.mean())
            mean = (root * unit).tolist()
            # Delta method: the standard error of a root.
            deviation = (self.errors.standard_error() / (2.0 * np.where(root > 0, root, 1.0)) * unit).tolist()
        rows = []
        for k, fit in enumerate(self.levels):
            graph = reported_graph(fit, names, slopes)
            rows.append(
                {
                    "level": fit.name,
                    "n_edges": graph.n_edges,
                    "n_components": int(graph.components().max(initial=-1)) + 1,
                    "error": mean[k],
                    "standard_error": deviation[k],
                    "criterion": fit.value,
                    "chosen": k == self.chosen,
                }
            )
        return rows


def fit_path(
    folded: FoldedLoss,
    settings: Settings,
    task_names: np.ndarray,
    *,
    criterion: str,
    choose_entropy: bool,
    n_jobs: int | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> PathResult:
    """Learn every level on all rows, estimate its error without leaks, and choose.

    With a single hold-out the error of the outer problem is all there is (the paper's protocol); it is optimistic.
    """
    learn = partial(
        learn_levels, settings=settings, task_names=task_names, criterion=criterion, choose_entropy=choose_entropy
    )
    logger.info("learning %d tasks by %s", len(task_names), criterion)
    levels = tuple(learn(folded, progress=progress))
    # Validation needs folds of its own when one is set aside; evidence, and a task alone, need none.
    needed = 3 if criterion == "validation" and len(task_names) > 1 else 1
    errors = cross_validate(folded, learn, n_jobs) if len(folded.scored) >= needed else None
    if errors is None and criterion == "validation":
        # One hold-out: the densest graph is the one with the lowest outer loss, and all that the paper would ask.
        chosen = max((k for k, fit in enumerate(levels) if fit.name == "graph"), default=len(levels) - 1)
    else:
        chosen = choose(levels, errors, linked=len(settings.candidates.must_link) > 0)
    return PathResult(levels, errors, chosen, criterion)


def cross_validate(folded: FoldedLoss, learn: Learner, n_jobs: int | None = None) -> FoldErrors:
    """Learn every level without each fold in turn, and score it there."""

    def score(k: int) -> np.ndarray:
        logger.info("learning again without fold %d of %d", k + 1, len(folded.parts))
        return np.array([2.0 * folded.parts[k].task_values(fit.coefficients) for fit in learn(folded.without(k))])

    squared: Any = Parallel(n_jobs=n_jobs)(delayed(score)(k) for k in folded.scored)
    return FoldErrors(np.stack(squared, axis=1), np.array([folded.parts[k].count for k in folded.scored]))


def choose(levels: Sequence[GraphFit], errors: FoldErrors | None, linked: bool = False) -> int:
    """The best simple model, unless a graph is worth more.

    The hub has pooled and independent models as its limits, so it is the simple model unless one of them is better by
    more than a paired standard error. A graph that its criterion supports with all comparisons counted needs no
    further vote: it is taken unless its error is more than a paired standard error above the lowest. Other graphs must
    beat the best simple model by more than that; of those within it of the best graph, the sparsest is taken.
    """
    if linked:
        # Edges that must be there rule out every level but the last graph, which has them.
        return max((k for k, fit in enumerate(levels) if fit.name == "graph"), default=len(levels) - 1)
    supported = [k for k, fit in enumerate(levels) if fit.supported]
    if errors is None:
        names = [fit.name for fit in levels]
        return supported[0] if supported else names.index("hub") if "hub" in names else len(levels) - 1
    mean = errors.mean()
    graphs = [k for k, fit in enumerate(levels) if fit.name == "graph"]
    simple = [k for k, fit in enumerate(levels) if fit.name != "graph"]
    excess, deviation = errors.excess(int(np.argmin(mean)))
    for k in supported:
        if excess[k] <= deviation[k]:
            return k
    best_simple = _best_simple(levels, errors, simple)
    if not graphs:
        return int(np.argmin(mean)) if best_simple is None else best_simple
    excess, deviation = errors.excess(min(graphs, key=lambda k: mean[k]))
    if best_simple is not None and excess[best_simple] <= deviation[best_simple]:
        return best_simple
    return next(k for k in graphs if excess[k] <= deviation[k])


def _best_simple(levels: Sequence[GraphFit], errors: FoldErrors, simple: Sequence[int]) -> int | None:
    if not simple:
        return None
    best = min(simple, key=lambda k: errors.mean()[k])
    hub = next((k for k in simple if levels[k].name == "hub"), best)
    excess, deviation = errors.excess(best)
    return hub if excess[hub] <= deviation[hub] else best


def learn_levels(
    folded: FoldedLoss,
    settings: Settings,
    task_names: np.ndarray,
    criterion: str,
    choose_entropy: bool,
    progress: Callable[[int, float], None] | None = None,
) -> list[GraphFit]:
    """All levels of the family on the given rows, simplest first."""
    total = folded.total
    if len(task_names) == 1:
        return [independent_level(total, settings)]
    hub = hub_level(total, settings) if settings.hub else None
    simple = [pooled_level(total, settings), *([hub] if hub else []), independent_level(total, settings)]
    if criterion == "evidence":
        candidates = settings.candidates.propose(candidate_models(total, settings, hub), task_names)
        return [*simple[:-1], *learn_by_evidence(total, settings, candidates, simple[1]), simple[-1]]
    graphs = learn_by_validation(
        folded,
        settings,
        task_names,
        np.zeros(total.n_features) if hub is None else hub.hub,
        partial(candidate_models, settings=settings),
        ENTROPY_LEVELS if choose_entropy else (),
        progress,
    )
    if not choose_entropy:
        return graphs
    return [*simple[:-1], *reversed(graphs), simple[-1]]


def pooled_level(loss: LeastSquares, settings: Settings) -> GraphFit:
    """One model for all tasks: an infinitely strong hub."""
    gram, moment = loss.gram.sum(axis=0), loss.moment.sum(axis=0)
    model = np.linalg.lstsq(gram + np.diag(np.where(settings.slopes, settings.ridge, 0.0)), moment, rcond=None)[0]
    coefficients = np.tile(model, (loss.n_tasks, 1))
    return _without_edges("pooled", loss, settings, np.full(len(model), np.inf), coefficients)


def independent_level(loss: LeastSquares, settings: Settings) -> GraphFit:
    """Every task alone, with the ridge."""
    ridge = settings.ridge_for(loss)
    blocks = loss.gram + ridge[:, :, None] * np.eye(loss.n_features)
    try:
        coefficients = np.linalg.solve(blocks, loss.moment[..., None])[..., 0]
    except np.linalg.LinAlgError:
        # Without a ridge a task may not determine its model: the shortest one then, as least squares would say.
        coefficients = np.matmul(np.linalg.pinv(blocks, hermitian=True), loss.moment[..., None])[..., 0]
    return _without_edges("independent", loss, settings, np.zeros(loss.n_features), coefficients)


def hub_level(loss: LeastSquares, settings: Settings) -> GraphFit:
    """Every task drawn to the common model, each coordinate as strongly as the evidence says."""
    learned = learn_hub_by_feature(loss, settings.slopes)
    return _without_edges("hub", loss, settings, learned.hub, learned.evidence.coefficients, learned.evidence.value)


def _without_edges(
    name: str,
    loss: LeastSquares,
    settings: Settings,
    hub: np.ndarray,
    coefficients: np.ndarray,
    value: float = float("nan"),
) -> GraphFit:
    width = loss.n_features
    coupling = np.zeros(width) if settings.coupling is None else settings.coupling
    return GraphFit(name, np.empty((0, 2), dtype=np.int64), np.empty(0), coupling, hub, coefficients, value)


def candidate_models(loss: LeastSquares, settings: Settings, fit: GraphFit | None = None) -> np.ndarray:
    """Models whose distances are distances between predictions: coefficients times a root of the pooled covariance."""
    if fit is None:
        fit = hub_level(loss, settings) if settings.hub else independent_level(loss, settings)
    pooled = loss.gram.sum(axis=0) / max(loss.count.sum(), 1.0)
    values, vectors = np.linalg.eigh(pooled)
    return fit.coefficients @ (vectors * np.sqrt(np.maximum(values, 0.0)))


def reported_graph(fit: GraphFit, task_names: np.ndarray, slopes: np.ndarray) -> TaskGraph:
    """The edges that matter to their tasks: as the criterion says, or by weights w_ij/√(max_i · max_j)."""
    if fit.reported_weights is not None:
        return TaskGraph(fit.edges, fit.reported_weights, task_names).threshold(0.0)
    weights = fit.edge_weights(slopes)
    present = weights > 0
    return TaskGraph(fit.edges[present], weights[present], task_names).normalized().threshold(_REPORTED)
