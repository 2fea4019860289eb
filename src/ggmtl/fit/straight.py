"""Straight lines beside curves: both are levels, learned from the same sums.

Levels with curves have the usual names. Those of straight lines, which use the columns of the features only, are
``"pooled, straight"``, ``"hub, straight"``, …. There is one list of graphs, on the columns for which the evidence of
the hub is better.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ggmtl.bilevel.level import STRAIGHT, GraphFit, Settings
from ggmtl.evidence.hub import evidence_with_common_model
from ggmtl.fit.family import by_name
from ggmtl.fit.levels import learn_levels, simple_levels
from ggmtl.runtime.journal import Journal
from ggmtl.statistics.least_squares import FoldedLoss


def learn_lines_and_curves(
    folded: FoldedLoss,
    settings: Settings,
    task_names: np.ndarray,
    criterion: str,
    choose_entropy: bool,
    journal: Journal | None = None,
    start: Mapping[str, GraphFit] | None = None,
) -> dict[str, GraphFit]:
    """All levels of straight lines and of curves on the given rows; `start` are those of most of the rows."""
    journal = journal or Journal()
    columns, width = np.flatnonzero(~settings.bends), folded.parts[0].n_features
    ways = {
        STRAIGHT: (folded.of_columns(columns), settings.of_columns(columns), journal.inside("straight")),
        "": (folded, replace(settings, lines=False), journal),
    }
    first = {end: _with_ending(start, end) for end in ways}
    linked = _better_evidence(ways, first, len(task_names))
    found = {
        end: learn_levels(
            *way[:2], task_names, criterion, choose_entropy, way[2], first[end], with_graphs_too=end == linked
        )
        for end, way in ways.items()
    }
    lines = {name: fit.on_columns(columns, width) for name, fit in found[STRAIGHT].items()}
    graphs = {name: fit for name, fit in lines.items() if fit.name == "graph"}
    named = {
        name + STRAIGHT: replace(fit, name=fit.name + STRAIGHT) for name, fit in lines.items() if name not in graphs
    }
    # Separate models stay last.
    curves = dict(found[""])
    last = {"independent": curves.pop("independent")} if "independent" in curves else {}
    return named | curves | graphs | last


def _with_ending(start: Mapping[str, GraphFit] | None, end: str) -> dict[str, GraphFit] | None:
    """The levels of `start` on the columns of one way, under their usual names."""
    if start is None:
        return None
    own = [fit.on_its_columns() for fit in start.values() if (fit.columns is None) == (not end)]
    return by_name(replace(fit, name=fit.name.removesuffix(end)) for fit in own)


def _better_evidence(
    ways: Mapping[str, tuple[FoldedLoss, Settings, Journal]],
    first: Mapping[str, Mapping[str, GraphFit] | None],
    n_tasks: int,
) -> str:
    """Lines or curves: whose hub has the better evidence. Where there is no hub, curves."""
    values = {}
    for end, (folded, settings, journal) in ways.items():
        if n_tasks == 1 or not settings.hub:
            return ""
        # Under the names where the learner of the levels looks for them.
        known = first[end]
        simple = journal.once("simple", lambda f=folded, s=settings, k=known: simple_levels(f.total, s, k))
        values[end] = evidence_with_common_model(simple["hub"].value, folded.total)
    return min(values, key=values.__getitem__)
