"""The evidence of a fitted state, or why it has none."""

from __future__ import annotations

import numpy as np

from ggmtl.bilevel.level import STRAIGHT, GraphFit, on_its_columns
from ggmtl.errors import InputError
from ggmtl.evidence.level_value import LevelEvidence, level_evidence
from ggmtl.fit.family import Family
from ggmtl.fit.levels import hub_level
from ggmtl.fit.state import FittedState
from ggmtl.inference.attachment import among
from ggmtl.statistics.least_squares import LeastSquares


def evidence_of(state: FittedState, n_probes: int, seed: int) -> LevelEvidence:
    """Log evidence of the chosen level on all rows."""
    state.rows("evidence()")
    check_evidence(state.family, state.settings.penalty)
    # Tasks that were added later are not part of the model whose evidence this is.
    fitted = state.fitted_tasks
    loss, fit = state.folded().total.of_tasks(fitted), among(state.level, fitted)
    own, rows, _ = on_its_columns(fit, loss, state.settings)
    hub = own.hub if own.kind == "hub" else hub_alone(state, fit, loss)
    return level_evidence(own, rows, hub, n_probes=n_probes, seed=seed, sizes=state.settings.sizes)


def check_evidence(family: Family, penalty: str) -> None:
    """Refuse a level whose marginal likelihood is not known."""
    fit = family.best.on_its_columns()
    if fit.kind in ("pooled", "independent"):
        raise InputError(
            "evidence() is defined for tasks that are shrunk to a common model with finite strengths. Got the "
            f"{fit.name} level instead, which has no evidence. Compare it with the others by the errors in path_."
        )
    if not (fit.hub > 0).all() or (len(fit.edges) and (family.criterion != "evidence" or penalty != "squared_l2")):
        raise InputError(
            'evidence() of a graph needs criterion="evidence", penalty="squared_l2" and hub=True: only there is it '
            f"known. Got criterion={family.criterion!r}, penalty={penalty!r} and hub={bool((fit.hub > 0).all())} "
            "instead. Fit with these, or compare levels by the errors in path_."
        )


def hub_alone(state: FittedState, fit: GraphFit, loss: LeastSquares) -> np.ndarray:
    """Strengths of the hub without edges, of the columns that the fit uses.

    They are learned again where they were not kept, or from rows weighted otherwise.
    """
    name = "hub" if fit.means is None else "described"
    known = state.family.levels.get(name if fit.columns is None else f"{name}{STRAIGHT}")
    fit, loss, settings = on_its_columns(fit, loss, state.settings)
    if known is not None and (known.precisions is None) == (fit.precisions is None):
        hub = known.on_its_columns().hub
        if (hub > 0).all():
            return hub
    return hub_level(fit.weighed(loss), settings).hub
