"""Whether tasks differ in their noise: told by their residuals, and decided by rows held out."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np

from ggmtl.bilevel.level import Settings
from ggmtl.evidence.task_noise import task_precisions
from ggmtl.fit.held_out import FoldErrors, fold_name, squared_errors
from ggmtl.fit.levels import simple_levels, weighed_hub
from ggmtl.runtime.journal import Journal
from ggmtl.runtime.sizes import SIZES, Sizes
from ggmtl.statistics.least_squares import FoldedLoss, LeastSquares

logger = logging.getLogger("ggmtl")


def with_noise(folded: FoldedLoss, settings: Settings, journal: Journal) -> Settings:
    """The settings with ``noise="auto"`` decided.

    Every task gets a variance of its own where residuals say that the variances differ, unless the common model then
    predicts rows held out worse by more than a paired standard error. Very many tasks share one variance: rows
    weighed by task would have to be held beside the rows themselves.
    """
    if settings.noise != "auto":
        return settings
    part = folded.parts[0]
    large = settings.sizes.is_large(part.n_tasks, part.n_features)
    asked = settings.hub and part.n_tasks > 1 and folded.scored and not large
    own = bool(asked) and journal.once("noise", lambda: _differs(folded, settings, journal))
    return replace(settings, noise="per_task" if own else "common", both_noises=settings.blend and bool(asked))


def noise_ratios(hub: np.ndarray, loss: LeastSquares, sizes: Sizes = SIZES) -> np.ndarray | None:
    """σ_i²/σ² of every task beside models drawn to the hub as given, shape (n,); None where all are alike."""
    if loss.n_tasks == 1 or sizes.is_large(loss.n_tasks, loss.n_features):
        return None
    unit = max(float(loss.count.mean()), 1.0)
    precisions = task_precisions(loss, np.clip(hub, 1e-6 * unit, 1e6 * unit))
    if precisions is None:
        return None
    variance = 1.0 / precisions
    return variance * (loss.count.sum() / float(variance @ loss.count))


def _differs(folded: FoldedLoss, settings: Settings, journal: Journal) -> bool:
    total = folded.total
    # Under the names where the learner of all rows, and of those without a fold, looks for them.
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
    """Squared errors on fold `k` of the hub learned without it, with common noise and with its own, shape (2, n)."""
    rest = folded.training(k)
    simple = journal.once("simple", lambda: simple_levels(rest, settings))
    weighed = journal.once("weighed", lambda: weighed_hub(rest, settings, simple["hub"]))
    return squared_errors(folded.parts[k], [simple["hub"], weighed])
