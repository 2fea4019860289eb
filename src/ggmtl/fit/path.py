"""Run a fit: learn every level on all rows, measure its held-out error, and average the levels or choose one.

Every level is learned again without each fold and scored on it. So the errors include the search for candidates,
strengths and edges. Tasks get separate noise variances if their residuals differ in variance and the held-out error
does not rise.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from ggmtl.bilevel.level import OTHER_NOISE, GraphFit, Settings
from ggmtl.evidence.search import with_accurate_models
from ggmtl.evidence.task_noise import task_precisions
from ggmtl.fit.family import Family, averaged, by_name, choose, last_graph
from ggmtl.fit.held_out import (
    CrossValidation,
    FoldErrors,
    Learner,
    cross_validate,
    fold_name,
    held_out_of,
    score_levels,
    squared_errors,
)
from ggmtl.fit.levels import learn_levels, learn_pooled, reweighted_hub, simple_levels, with_graphs
from ggmtl.fit.lines_or_curves import learn_lines_and_curves
from ggmtl.runtime.journal import Journal
from ggmtl.runtime.sizes import Sizes
from ggmtl.statistics.least_squares import FoldedLoss, single_rows

logger = logging.getLogger("ggmtl")


def decide_noise(folded: FoldedLoss, settings: Settings, journal: Journal) -> Settings:
    """Replace ``noise="auto"`` by ``"common"`` or ``"per_task"``.

    Every task gets a noise variance of its own if the residuals differ in variance, unless the shared model then has a
    held-out error that is higher by more than a paired standard error. Very many tasks share one variance, because
    reweighted sums would need as much memory again.
    """
    if settings.noise != "auto":
        return settings
    part = folded.parts[0]
    large = settings.sizes.is_large(part.n_tasks, part.n_features)
    possible = settings.hub and part.n_tasks > 1 and folded.scored and not large
    own = bool(possible) and journal.once("noise", lambda: _noise_differs(folded, settings, journal))
    return replace(settings, noise="per_task" if own else "common", both_noises=settings.blend and bool(possible))


def _noise_differs(folded: FoldedLoss, settings: Settings, journal: Journal) -> bool:
    """Whether tasks differ in noise, and separate variances do not raise the held-out error of the shared model."""
    total = folded.total
    # The journal keeps these levels under the names where learn_levels looks for them.
    simple = journal.inside("levels").once("simple", lambda: simple_levels(total, settings))
    if task_precisions(total, simple["hub"].hub) is None:
        return False
    squared = [_hub_errors(folded, k, settings, journal.inside(fold_name(k))) for k in folded.scored]
    errors = FoldErrors(np.stack(squared, axis=1), np.array([folded.parts[k].count for k in folded.scored]))
    excess, deviation = errors.excess(0)
    change = 100.0 / errors.mean()[0] * np.array([excess[1], deviation[1]])
    logger.info("a noise level for every task changes the squared error by %.2g ± %.2g %%", *change)
    return bool(excess[1] <= deviation[1])


def _hub_errors(folded: FoldedLoss, k: int, settings: Settings, journal: Journal) -> np.ndarray:
    """Squared errors on fold `k` of two shared models learned without it, shape (2, n).

    The first has one noise variance, the second one per task.
    """
    rest = folded.training(k)
    simple = journal.once("simple", lambda: simple_levels(rest, settings))
    reweighted = journal.once("weighed", lambda: reweighted_hub(rest, settings, simple["hub"]))
    return squared_errors(folded.parts[k], [simple["hub"], reweighted])


def fit_path(
    folded: FoldedLoss,
    settings: Settings,
    task_names: np.ndarray,
    *,
    criterion: str,
    choose_entropy: bool,
    n_jobs: int | None = None,
    journal: Journal | None = None,
) -> Family:
    """Learn every level on all rows, estimate its held-out error, and average the levels or choose one.

    With a single hold-out (the paper's protocol) the only error is that of the outer problem, which is optimistic.

    With very many tasks and the evidence criterion, the losses in `folded` are overwritten, to save memory.

    An interruption (Ctrl-C) ends the search. The levels learned so far are compared on the folds done so far, and the
    status is ``"interrupted"``. Before the first level is learned, the interruption is raised.
    """
    journal = journal or Journal()
    learn: Learner = partial(
        learn_lines_and_curves if settings.lines else learn_levels,
        settings=settings,
        task_names=task_names,
        criterion=criterion,
        choose_entropy=choose_entropy,
    )
    free = not len(settings.candidates.must_link)
    if settings.hub and free and is_small(folded, settings.sizes) and single_rows(folded.total):
        # With one row per task, a task that differs looks the same as a noisy row.
        learn = partial(learn_pooled, settings=settings)
    elif criterion == "evidence":
        learn = partial(learn, settings=decide_noise(folded, settings, journal))
    logger.info("learning %d tasks by %s", len(task_names), criterion)
    inside, first, validated = journal.inside("levels"), None, None
    try:
        if criterion == "evidence" and not is_small(folded, settings.sizes) and folded.scored:
            folded, first, validated = _first_fold(folded, learn, settings.slopes, journal)
            logger.info("a fold held out is scored; learning from all rows")
        levels = journal.once("levels", lambda: learn(folded, journal=inside, start=first))
    except KeyboardInterrupt:
        journal.save()
        levels = _levels_so_far(inside)
        if not levels:
            raise
        return _interrupted(Family.choosing(levels, None, last_graph(levels), criterion))
    # The validation criterion learns from one fold, and needs two more for cross-validation.
    needed, whole = 3 if criterion == "validation" and len(task_names) > 1 else 1, True
    try:
        if validated is None and len(folded.scored) >= needed:
            again = partial(learn, skipped=_skipped(levels))
            validated = cross_validate(folded, again, settings.slopes, n_jobs, journal)
    except KeyboardInterrupt:
        validated, whole = held_out_of(folded, journal), False
    family = _family(levels, validated, settings, criterion)
    if criterion == "evidence" and settings.penalty == "squared_l2":
        family = family.with_best(with_accurate_models(family.best, folded.total, settings.sizes))
    journal.save(finished=whole)
    return family if whole else _interrupted(family)


def _family(
    levels: Mapping[str, GraphFit], validated: CrossValidation | None, settings: Settings, criterion: str
) -> Family:
    """The average of the levels, or the single level that is chosen."""
    learned = levels
    levels, errors = _without_repetitions(learned, validated and validated.errors)
    must = len(settings.candidates.must_link) > 0
    if errors is None and criterion == "validation":
        # One hold-out, as in the paper: the densest graph has the lowest outer loss.
        chosen = last_graph(levels)
    else:
        chosen = choose(levels, errors, linked=must)
    # Given strengths, required links and a model without a hub leave one level.
    given = must or settings.coupling is not None or "hub" not in levels
    if errors is None or given or not settings.blend:
        family = Family.choosing(levels, errors, chosen, criterion)
    else:
        family = averaged(levels, errors, chosen, criterion, equal_noise=settings.noise == "common")
    return replace(family, links=_renamed(validated.links, learned, levels) if validated else ())


def _renamed(
    links: tuple[dict[str, np.ndarray], ...], learned: Mapping[str, GraphFit], kept: Mapping[str, GraphFit]
) -> tuple[dict[str, np.ndarray], ...]:
    """The folds' edges under the names of the kept levels: leaving out a graph renumbers the graphs after it."""
    old = {id(fit): name for name, fit in learned.items()}
    names = {old[id(fit)]: name for name, fit in kept.items()}
    return tuple({names[name]: edges for name, edges in fold.items() if name in names} for fold in links)


def is_small(folded: FoldedLoss, sizes: Sizes) -> bool:
    """Whether there are few enough tasks for every fold to be held out."""
    return not sizes.is_large(folded.parts[0].n_tasks, folded.parts[0].n_features)


def _skipped(levels: Mapping[str, GraphFit]) -> frozenset[str]:
    """Kinds of search that found no edge. Their graphs are no levels, so their held-out errors are not needed."""
    return frozenset(fit.search for fit in levels.values() if fit.name == "graph" and not len(fit.edges))


def _without_repetitions(
    levels: Mapping[str, GraphFit], errors: FoldErrors | None
) -> tuple[dict[str, GraphFit], FoldErrors | None]:
    """Drop levels that repeat another: graphs without an edge, and other noise models where noise does not differ."""
    if "hub" not in levels:
        return dict(levels), errors

    def repeats(name: str, fit: GraphFit) -> bool:
        if fit.kind == "graph":
            return not len(fit.edges)
        first = levels.get(name.replace(OTHER_NOISE, ""))
        return OTHER_NOISE in name and fit.precisions is None and first is not None and first.precisions is None

    keep = [k for k, (name, fit) in enumerate(levels.items()) if not repeats(name, fit)]
    fits = list(levels.values())
    return by_name(fits[k] for k in keep), errors and errors.among(keep)


def _first_fold(
    folded: FoldedLoss, learn: Learner, slopes: np.ndarray, journal: Journal
) -> tuple[FoldedLoss, dict[str, GraphFit], CrossValidation]:
    """The loss of all rows, the levels learned without the first fold, and their errors on it.

    The losses in `folded` are overwritten: with very many tasks, memory holds one copy only.
    """
    k = folded.scored[0]
    rest, held_out = folded.training(k), folded.parts[k]
    inside = journal.inside("first")
    levels = journal.once("first", lambda: learn(FoldedLoss((rest,)), journal=inside))
    result = journal.once(fold_name(1), lambda: score_levels(held_out, levels, slopes))
    validated = CrossValidation(FoldErrors.of_products(result.cross[None], held_out.count[None]), (result.links,))
    return FoldedLoss((rest.absorb(held_out),)), levels, validated


def _levels_so_far(journal: Journal) -> dict[str, GraphFit]:
    """Levels of a search that was interrupted, simplest first."""
    simple, graphs = journal.known("simple"), journal.noted("graphs")
    if simple is None:
        return {}
    described = journal.known("described")
    simple = simple if described is None else simple | {"described": described}
    return with_graphs(simple, graphs() if graphs else ())


def _interrupted(family: Family) -> Family:
    return family.with_best(replace(family.best, status="interrupted"))
