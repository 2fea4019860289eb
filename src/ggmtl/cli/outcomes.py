"""Fits of classes and counts by the command line, and which options go with them."""

from __future__ import annotations

from pathlib import Path

import ggmtl
from ggmtl.cli.choices import Effects, Loss
from ggmtl.cli.workflow import Rows
from ggmtl.errors import InputError


def check_options(
    loss: Loss, exposure: str | None, effects: Effects, report: Path | None, task_table: Path | None
) -> None:
    """Refuse options that have no meaning for a loss, before anything is read."""
    if exposure is not None and loss is not Loss.poisson:
        raise InputError(f"--exposure is for --loss poisson. Got --loss {loss.value} instead.")
    if loss is Loss.squared:
        return
    if effects is not Effects.linear:
        raise InputError(f"--effects is for --loss squared. Got --loss {loss.value} with --effects {effects.value}.")
    if task_table is not None:
        raise InputError(f"--task-table is for --loss squared. Got --loss {loss.value} instead.")
    if report is not None:
        raise InputError(f"--report is for --loss squared. Got --loss {loss.value}: the summary is printed instead.")


def fit_outcomes(rows: Rows, loss: Loss, seed: int | None) -> ggmtl.GGMTLRegressor | ggmtl.GGMTLClassifier:
    """A fitted model of two labels or of counts."""
    if loss is Loss.poisson:
        model = ggmtl.GGMTLRegressor(task=rows.task, loss="poisson", random_state=seed)
        return model.fit(
            rows.frame, rows.target, exposure=rows.exposure, groups=rows.groups, sample_weight=rows.weights
        )
    classifier = ggmtl.GGMTLClassifier(task=rows.task, random_state=seed)
    classifier.fit(rows.frame, rows.target, groups=rows.groups, sample_weight=rows.weights)
    if len(classifier.classes_) > 2:
        raise InputError(f"--loss binary needs a target of two labels. Got {len(classifier.classes_)} instead.")
    return classifier
