"""The levels of a fit as readers see them: their names and order, held-out errors, and what one gains over another.

With D the difference of the mean squared errors of two levels and r = 1 − D/mse of the second, the gain is 1 − √r
(1 − r of log-loss or deviance). Its interval comes from the paired standard error of D.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ggmtl.bilevel.level import OTHER_NOISE, STRAIGHT
from ggmtl.fit.average import Average
from ggmtl.fit.family import Family
from ggmtl.fit.held_out import FoldErrors
from ggmtl.fit.levels import CORRELATED
from ggmtl.fit.outcome_levels import COMMON_SLOPES

AVERAGE = "average"
# Simple levels in the order of a table, before all graphs; separate models come after them, and the average last.
_BEFORE_GRAPHS = ("pooled", COMMON_SLOPES, "intercepts", "hub", CORRELATED, "described")
_TITLES = {
    "pooled": "one model for all",
    "hub": "shared model + own deviations",
    CORRELATED: "shared model + correlated deviations",
    "described": "shared model by task features + own deviations",
    COMMON_SLOPES: "common slopes + own intercepts",
    "intercepts": "separate intercepts + partly shared slopes",
    "graph": "linked tasks",
    "independent": "separate models",
    AVERAGE: "the average of all levels",
    "unlinked": "the same average without links",
}
# Two-sided 95 % of the normal distribution.
QUANTILE = 1.96
# Held-out rows that a task must have for its gain to be shown, and rows by which it is shrunk towards the gain of all.
_FEWEST_ROWS, _PRIOR_ROWS = 5.0, 10.0


def base_name(name: str) -> str:
    """The name of a level without its variant: ``"hub"`` of ``"hub, other noise, straight"``."""
    return name.removesuffix(STRAIGHT).removesuffix(OTHER_NOISE)


def is_simple(name: str) -> bool:
    """Whether a level is neither a graph nor the average."""
    return base_name(name) in (*_BEFORE_GRAPHS, "independent")


def title_of(name: str) -> str:
    """What a level is called in tables and sentences."""
    title = _TITLES.get(base_name(name), base_name(name))
    noise = ", other noise" if OTHER_NOISE in name else ""
    return f"{title}{noise}{', straight lines' if name.endswith(STRAIGHT) else ''}"


def kind_of(name: str) -> str:
    """What a level is called where the shares of the average are listed: its variants have one name."""
    base = base_name(name)
    return title_of("hub" if base == CORRELATED else base)


def _place(name: str, n_edges: int) -> tuple[int, bool, float]:
    """Key to sort by: simple levels, those of straight lines first; graphs from sparse to dense; separate models."""
    base, is_curved = base_name(name), not name.endswith(STRAIGHT)
    if base in _BEFORE_GRAPHS:
        return 0, is_curved, _BEFORE_GRAPHS.index(base) + 0.5 * (OTHER_NOISE in name)
    return (2, is_curved, 0.0) if base == "independent" else (1, True, float(n_edges))


@dataclass(frozen=True)
class Gain:
    """By what share the error of one level, or of one task, is lower than a reference, with the 95 % interval.

    Parameters
    ----------
    share, low, high : float
        Relative gain in root mean squared error (in mean log-loss or deviance); negative: the error is higher.
    """

    share: float
    low: float
    high: float


@dataclass(frozen=True)
class Levels:
    """The levels of a fit from simple to dense, the average last.

    Parameters
    ----------
    keys : tuple of str
        Names in the family, where several graphs are ``"graph"``, ``"graph 2"``, …
    names : tuple of str
        Names of the kinds of levels.
    n_edges : tuple of int
    errors : FoldErrors, optional
        On held-out rows, in the same order. None where they were not measured for all tasks.
    chosen : int, optional
        Position of the level that the model uses; None for methods without levels.
    average : Average, optional
        Where the model is an average of the levels.
    """

    keys: tuple[str, ...]
    names: tuple[str, ...]
    n_edges: tuple[int, ...]
    errors: FoldErrors | None
    chosen: int | None
    average: Average | None = None

    @classmethod
    def of(cls, model: Any) -> Levels:
        """The levels of a fitted model; none for methods that have no levels."""
        state = getattr(model, "state_", None)
        if state is None:
            return cls((), (), (), None, None)
        family, errors = state.family, state.family.all_errors()
        # After a task was attached, the errors of the others are no longer those of this model.
        if errors is not None and errors.count.shape[1] != len(model.tasks_):
            errors = None
        edges = [int(row["n_edges"]) for row in model.path_]
        return cls.of_family(family, errors, edges, model.graph_.n_edges)

    @classmethod
    def of_family(cls, family: Family, errors: FoldErrors | None, n_edges: list[int], n_reported: int) -> Levels:
        """The levels of a family in order, whose graphs have so many edges."""
        keys = list(family.levels)
        names = [family.levels[key].name for key in keys]
        order = sorted(range(len(keys)), key=lambda k: _place(names[k], n_edges[k]))
        average = None if errors is None else family.average
        if average is not None:
            keys, names, n_edges = [*keys, AVERAGE], [*names, AVERAGE], [*n_edges, n_reported]
            order.append(len(keys) - 1)
        chosen = keys.index(family.chosen if average is None else AVERAGE)
        keys, names = tuple(keys[k] for k in order), tuple(names[k] for k in order)
        known = errors and errors.among(order)
        return cls(keys, names, tuple(n_edges[k] for k in order), known, order.index(chosen), average)

    def find(self, key: str) -> int | None:
        """Position of a level; None where there is none of this name."""
        return self.keys.index(key) if key in self.keys else None

    def best_simple(self) -> int | None:
        """The simple level with the lowest error, other than the chosen one."""
        if self.errors is None:
            return None
        mean = self.errors.mean()
        simple = [k for k, name in enumerate(self.names) if is_simple(name) and k != self.chosen]
        return min(simple, key=mean.__getitem__, default=None)

    def reference(self) -> int | None:
        """The level that gains of tasks are over: separate models where levels are averaged, else the best simple."""
        if self.errors is None or self.average is None:
            return self.best_simple()
        mean = self.errors.mean()
        alone = [k for k, name in enumerate(self.names) if base_name(name) == "independent"]
        return min(alone, key=mean.__getitem__, default=None)


def gain_over(errors: FoldErrors, level: int, reference: int) -> Gain:
    """Gain of a level over another.

    Where the level was chosen by the same errors among many, the gain is a little too large.
    """
    excess, deviation = errors.excess(reference)
    return relative_gain(errors, float(excess[level]), float(deviation[level]), float(errors.mean()[reference]))


def relative_gain(errors: FoldErrors, excess: float, deviation: float, reference: float) -> Gain:
    """Gain for an excess of the mean loss over that of a reference, and the standard error of the excess."""
    if not reference > 0:
        return Gain(0.0, 0.0, 0.0)
    bounds = [excess, excess + QUANTILE * deviation, excess - QUANTILE * deviation]
    return Gain(*(float(errors.measure.gain(1.0 + bound / reference)) for bound in bounds))


def task_gains(errors: FoldErrors, level: int, reference: int) -> tuple[np.ndarray, np.ndarray]:
    """By what share the error of every task is lower than that of a reference level, and its standard error.

    The ratio of squared errors is shrunk towards that of all tasks, because few held-out rows say little. It is NaN
    where a task has too few of them to be ranked. The standard error is that of a ratio of sums over folds, shrunk as
    much; it is NaN with fewer than three folds.
    """
    rows = errors.count.sum(axis=0)
    ours, theirs = errors.squared[level].sum(axis=0), errors.squared[reference].sum(axis=0)
    total = float(theirs.sum())
    if not total > 0:
        return np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    folds = (errors.count > 0).sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        own = ours / theirs
        ratio = (rows * own + _PRIOR_ROWS * float(ours.sum()) / total) / (rows + _PRIOR_ROWS)
        left = errors.squared[level] - own * errors.squared[reference]
        spread = np.sqrt((left**2).sum(axis=0) * folds / np.where(folds > 2, folds - 1, np.nan)) / theirs
        spread *= rows / (rows + _PRIOR_ROWS)
        gain = errors.measure.gain(ratio)
        doubt = 0.5 * (errors.measure.gain(np.maximum(ratio - spread, 0.0)) - errors.measure.gain(ratio + spread))
    is_ranked = (rows >= _FEWEST_ROWS) & (theirs > 0)
    return np.where(is_ranked, gain, np.nan), np.where(is_ranked, doubt, np.nan)
