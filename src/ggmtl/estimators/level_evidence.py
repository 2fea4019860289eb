"""The evidence of a fitted model, or why it has none."""

from __future__ import annotations

import numpy as np

from ggmtl.bilevel.level import GraphFit, Settings
from ggmtl.errors import InputError
from ggmtl.evidence.level_value import LevelEvidence, level_evidence
from ggmtl.fit.levels import hub_level
from ggmtl.fit.path import PathResult
from ggmtl.statistics.least_squares import LeastSquares


def check_evidence(result: PathResult, penalty: str) -> None:
    """Refuse a level of which no marginal likelihood is known."""
    fit = result.best
    if fit.name in ("pooled", "independent"):
        raise InputError(
            f"evidence() is defined for tasks drawn to a common model by finite strengths. Got the {fit.name} level "
            "instead, which has no evidence. Compare it with the others by the errors in path_."
        )
    if not (fit.hub > 0).all() or (len(fit.edges) and (result.criterion != "evidence" or penalty != "squared_l2")):
        raise InputError(
            'evidence() of a graph needs criterion="evidence", penalty="squared_l2" and hub=True: only there is it '
            f"known. Got criterion={result.criterion!r}, penalty={penalty!r} and hub={bool((fit.hub > 0).all())} "
            "instead. Fit with these, or compare levels by the errors in path_."
        )


def evidence_used(
    result: PathResult, fit: GraphFit, loss: LeastSquares, settings: Settings, n_probes: int, seed: int
) -> LevelEvidence:
    """Log evidence of `fit`, the chosen level of `result`, on all rows."""
    hub = fit.hub if fit.name == "hub" else hub_alone(result, fit, loss, settings)
    return level_evidence(fit, loss, hub, n_probes=n_probes, seed=seed)


def hub_alone(result: PathResult, fit: GraphFit, loss: LeastSquares, settings: Settings) -> np.ndarray:
    """Strengths of the hub without edges; learned again where they were not kept, or from rows weighed otherwise."""
    known = next((level for level in result.levels if level.name == "hub"), None)
    if known is None or (known.hub <= 0).any() or (known.precisions is None) != (fit.precisions is None):
        return hub_level(fit.weighed(loss), settings).hub
    return known.hub
