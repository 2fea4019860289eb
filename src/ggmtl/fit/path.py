"""Fit the family: every level on all rows, its held-out error, and their average or the choice among them.

Every level is learned again without each fold and scored on it. The errors so include the search for candidates,
strengths and edges.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from ggmtl.bilevel.level import GraphFit, Settings
from ggmtl.evidence.search import with_accurate_models
from ggmtl.fit.family import Family, blended, by_name, choose, last_graph
from ggmtl.fit.held_out import (
    CrossValidation,
    FoldErrors,
    Learner,
    cross_validate,
    fold_name,
    held_out_of,
    score_levels,
)
from ggmtl.fit.levels import OTHER_HUB, learn_levels, learn_pooled, with_graphs
from ggmtl.fit.noise_choice import with_noise
from ggmtl.fit.straight import learn_lines_and_curves
from ggmtl.runtime.journal import Journal
from ggmtl.runtime.sizes import Sizes
from ggmtl.statistics.least_squares import FoldedLoss, single_rows

logger = logging.getLogger("ggmtl")


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
    """Learn every level on all rows, estimate its error without leaks, and average the levels or choose one.

    With a single hold-out the error of the outer problem is all there is (the paper's protocol); it is optimistic.

    Where there are very many tasks and evidence is the criterion, the losses of `folded` are used up: those of all rows
    take their place in memory.

    An interruption (Ctrl-C) ends the search: the levels there are so far compete by the folds done so far, and the one
    chosen has the status ``"interrupted"``. Before there is any level, the interruption is passed on.
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
        # A task that departs from the others cannot be told from a noisy row.
        learn = partial(learn_pooled, settings=settings)
    elif criterion == "evidence":
        learn = partial(learn, settings=with_noise(folded, settings, journal))
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
    # Validation needs folds of its own when one is set aside; evidence, and a task alone, need none.
    needed = 3 if criterion == "validation" and len(task_names) > 1 else 1
    whole = True
    try:
        if validated is None and len(folded.scored) >= needed:
            validated = cross_validate(folded, learn, settings.slopes, n_jobs, journal)
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
    """The average of the levels, or the one chosen."""
    learned = levels
    levels, errors = _without_repetitions(learned, validated and validated.errors)
    must = len(settings.candidates.must_link) > 0
    if errors is None and criterion == "validation":
        # One hold-out: the densest graph is the one with the lowest outer loss, and all that the paper would ask.
        chosen = last_graph(levels)
    else:
        chosen = choose(levels, errors, linked=must)
    # Strengths that are given, links that must be there and a model without a hub ask for one level.
    given = must or settings.coupling is not None or "hub" not in levels
    if errors is None or given or not settings.blend:
        family = Family.choosing(levels, errors, chosen, criterion)
    else:
        family = blended(levels, errors, chosen, criterion, equal_noise=settings.noise == "common")
    return replace(family, links=_renamed(validated.links, learned, levels) if validated else ())


def _renamed(
    links: tuple[dict[str, np.ndarray], ...], learned: Mapping[str, GraphFit], kept: Mapping[str, GraphFit]
) -> tuple[dict[str, np.ndarray], ...]:
    """The folds' edges by the names of the levels kept: where one was left out, graphs after it have other numbers."""
    old = {id(fit): name for name, fit in learned.items()}
    names = {old[id(fit)]: name for name, fit in kept.items()}
    return tuple({names[name]: edges for name, edges in fold.items() if name in names} for fold in links)


def is_small(folded: FoldedLoss, sizes: Sizes) -> bool:
    """Whether there are few enough tasks for every fold to be held out."""
    return not sizes.is_large(folded.parts[0].n_tasks, folded.parts[0].n_features)


def _without_repetitions(
    levels: Mapping[str, GraphFit], errors: FoldErrors | None
) -> tuple[dict[str, GraphFit], FoldErrors | None]:
    """All levels but those that repeat the hub: graphs without an edge, and tasks that do not differ in noise."""
    if "hub" not in levels:
        return dict(levels), errors

    def repeats(name: str, fit: GraphFit) -> bool:
        if fit.kind == "graph":
            return not len(fit.edges)
        hub = levels.get(name.replace(OTHER_HUB, "hub"))
        return fit.kind == OTHER_HUB and fit.precisions is None and hub is not None and hub.precisions is None

    keep = [k for k, (name, fit) in enumerate(levels.items()) if not repeats(name, fit)]
    fits = list(levels.values())
    return by_name(fits[k] for k in keep), errors and errors.among(keep)


def _first_fold(
    folded: FoldedLoss, learn: Learner, slopes: np.ndarray, journal: Journal
) -> tuple[FoldedLoss, dict[str, GraphFit], CrossValidation]:
    """All rows as one, the levels learned without one fold (where those of all rows start), and their errors on it.

    The matrices of very many tasks fill the memory: those of all rows take the place of `folded`, which is used up.
    """
    k = folded.scored[0]
    rest, held_out = folded.training(k), folded.parts[k]
    inside = journal.inside("first")
    levels = journal.once("first", lambda: learn(FoldedLoss((rest,)), journal=inside))
    result = journal.once(fold_name(1), lambda: score_levels(held_out, levels, slopes))
    validated = CrossValidation(FoldErrors.of_products(result.cross[None], held_out.count[None]), (result.links,))
    return FoldedLoss((rest.absorb(held_out),)), levels, validated


def _levels_so_far(journal: Journal) -> dict[str, GraphFit]:
    """Levels of a search that was interrupted, simplest first; none where it had none."""
    simple, graphs = journal.known("simple"), journal.noted("graphs")
    if simple is None:
        return {}
    described = journal.known("described")
    simple = simple if described is None else simple | {"described": described}
    return with_graphs(simple, graphs() if graphs else ())


def _interrupted(family: Family) -> Family:
    return family.with_best(replace(family.best, status="interrupted"))
