"""The family of models from pooled to densely linked, their honest errors, and the choice among them.

Everything that is learned is learned again without each fold and scored on it, so the errors include the search for
candidates, strengths and edges.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ggmtl.bilevel.level import GraphFit, Settings
from ggmtl.evidence.sampled_search import with_accurate_models
from ggmtl.fit.held_out import FoldErrors, Learner, cross_validate, errors_of, errors_on, fold_name, is_large
from ggmtl.fit.levels import learn_levels, learn_pooled
from ggmtl.fit.noise_choice import with_noise
from ggmtl.graph.task_graph import TaskGraph
from ggmtl.runtime.journal import Journal
from ggmtl.statistics.least_squares import FoldedLoss, single_rows

logger = logging.getLogger("ggmtl")

# Edges lighter than this, beside the heaviest edges of their two tasks, are not reported.
_REPORTED = 0.05


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
    journal: Journal | None = None,
) -> PathResult:
    """Learn every level on all rows, estimate its error without leaks, and choose.

    With a single hold-out the error of the outer problem is all there is (the paper's protocol); it is optimistic.

    Where there are very many tasks and evidence is the criterion, the losses of `folded` are used up: those of all rows
    take their place in memory.

    An interruption (Ctrl-C) ends the search: the levels there are so far compete by the folds done so far, and the one
    chosen has the status ``"interrupted"``. Before there is any level, the interruption is passed on.
    """
    journal = journal or Journal()
    learn: Learner = partial(
        learn_levels, settings=settings, task_names=task_names, criterion=criterion, choose_entropy=choose_entropy
    )
    free = not len(settings.candidates.must_link)
    if settings.hub and free and is_small(folded) and single_rows(folded.total):
        # A task that departs from the others cannot be told from a noisy row.
        learn = partial(learn_pooled, settings=settings)
    elif criterion == "evidence":
        learn = partial(learn, settings=with_noise(folded, settings, journal))
    logger.info("learning %d tasks by %s", len(task_names), criterion)
    inside, first, errors = journal.inside("levels"), None, None
    try:
        if criterion == "evidence" and not is_small(folded) and folded.scored:
            folded, first, errors = _first_fold(folded, learn, journal)
            logger.info("a fold held out is scored; learning from all rows")
        levels = journal.once("levels", lambda: tuple(learn(folded, progress=progress, journal=inside, start=first)))
    except KeyboardInterrupt:
        journal.save()
        levels = _levels_so_far(inside)
        if not levels:
            raise
        return _interrupted(levels, None, _last_graph(levels), criterion)
    # Validation needs folds of its own when one is set aside; evidence, and a task alone, need none.
    needed = 3 if criterion == "validation" and len(task_names) > 1 else 1
    whole = True
    try:
        if errors is None and len(folded.scored) >= needed:
            errors = cross_validate(folded, learn, n_jobs, journal)
    except KeyboardInterrupt:
        errors, whole = errors_of(folded, journal), False
    levels, errors = _with_edges(levels, errors)
    if errors is None and criterion == "validation":
        # One hold-out: the densest graph is the one with the lowest outer loss, and all that the paper would ask.
        chosen = _last_graph(levels)
    else:
        chosen = choose(levels, errors, linked=len(settings.candidates.must_link) > 0)
    if criterion == "evidence" and settings.penalty == "squared_l2":
        levels = (*levels[:chosen], with_accurate_models(levels[chosen], folded.total), *levels[chosen + 1 :])
    journal.save(finished=whole)
    return (PathResult if whole else _interrupted)(levels, errors, chosen, criterion)


def is_small(folded: FoldedLoss) -> bool:
    """Whether there are few enough tasks for every fold to be held out."""
    return not is_large(folded.parts[0].n_tasks, folded.parts[0].n_features)


def _with_edges(
    levels: Sequence[GraphFit], errors: FoldErrors | None
) -> tuple[tuple[GraphFit, ...], FoldErrors | None]:
    """All levels but graphs without an edge, which are the hub once more."""
    names = [fit.name for fit in levels]
    keep = [k for k, fit in enumerate(levels) if fit.name != "graph" or len(fit.edges) or "hub" not in names]
    return tuple(levels[k] for k in keep), errors and FoldErrors(errors.squared[keep], errors.count)


def _first_fold(
    folded: FoldedLoss, learn: Learner, journal: Journal
) -> tuple[FoldedLoss, tuple[GraphFit, ...], FoldErrors]:
    """All rows as one, the levels learned without one fold (where those of all rows start), and their errors on it.

    The matrices of very many tasks fill the memory: those of all rows take the place of `folded`, which is used up.
    """
    k = folded.scored[0]
    rest, held_out = folded.training(k), folded.parts[k]
    inside = journal.inside("first")
    levels = journal.once("first", lambda: tuple(learn(FoldedLoss((rest,)), journal=inside)))
    squared = journal.once(fold_name(1), lambda: errors_on(held_out, levels))
    errors = FoldErrors(squared[:, None], held_out.count[None])
    return FoldedLoss((rest.absorb(held_out),)), levels, errors


def _levels_so_far(journal: Journal) -> tuple[GraphFit, ...]:
    """Levels of a search that was interrupted, simplest first; none where it had none."""
    simple, graphs = journal.known("simple"), journal.noted("graphs")
    if simple is None:
        return ()
    return (*simple[:-1], *(graphs() if graphs else ()), simple[-1])


def _last_graph(levels: Sequence[GraphFit]) -> int:
    """The densest graph; where there is none, the hub or else the last level."""
    names = [fit.name for fit in levels]
    simple = names.index("hub") if "hub" in names else len(levels) - 1
    return max((k for k, name in enumerate(names) if name == "graph"), default=simple)


def _interrupted(levels: Sequence[GraphFit], errors: FoldErrors | None, chosen: int, criterion: str) -> PathResult:
    marked = tuple(replace(fit, status="interrupted") if k == chosen else fit for k, fit in enumerate(levels))
    return PathResult(marked, errors, chosen, criterion)


def choose(levels: Sequence[GraphFit], errors: FoldErrors | None, linked: bool = False) -> int:
    """The best simple model, unless a graph is worth more.

    The hub has pooled and independent models as its limits, so it is the simple model unless one of them is better by
    more than a paired standard error. A graph that its criterion supports with all comparisons counted needs no
    further vote: it is taken unless its error is more than a paired standard error above the lowest. Other graphs must
    beat the best simple model by more than that; of those within it of the best graph, the sparsest is taken.
    """
    if linked:
        # Edges that must be there rule out every level but the last graph, which has them.
        return _last_graph(levels)
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


def reported_graph(fit: GraphFit, task_names: np.ndarray, slopes: np.ndarray) -> TaskGraph:
    """The edges that matter to their tasks: as the criterion says, or by weights w_ij/√(max_i · max_j)."""
    if fit.reported_weights is not None:
        return TaskGraph(fit.edges, fit.reported_weights, task_names).threshold(0.0)
    weights = fit.edge_weights(slopes)
    present = weights > 0
    return TaskGraph(fit.edges[present], weights[present], task_names).normalized().threshold(_REPORTED)
