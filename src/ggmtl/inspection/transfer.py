"""Did sharing help, and which tasks? Errors of every task at every level, and of the average of the levels.

The gain of one level over another is the mean difference of squared errors at the same held-out rows; its interval
comes from the spread of the differences over tasks (for one task: over folds).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import t
from sklearn.base import clone

from ggmtl.bilevel.level import GraphFit
from ggmtl.errors import InputError
from ggmtl.fit.family import Family
from ggmtl.fit.held_out import FoldErrors, cross_validate
from ggmtl.fit.levels import pooled_level, simple_levels
from ggmtl.fit.state import state_of
from ggmtl.inspection.differences import unlike_others
from ggmtl.inspection.levels import Gain, Levels, gain_over, relative_gain
from ggmtl.inspection.summary.outcomes import without_contrast
from ggmtl.inspection.summary.phrases import listing, one_line
from ggmtl.inspection.summary.verdict import verdict_of
from ggmtl.inspection.summary.words import describe_gain, level_title
from ggmtl.losses.rowwise import SQUARED_ERROR
from ggmtl.runtime.machine import one_blas_thread
from ggmtl.statistics.least_squares import FoldedLoss

if TYPE_CHECKING:
    from ggmtl.estimators.regressor import GGMTLRegressor

# Standard errors of a clear loss; spreads (by the median deviation) of an outlier.
_CLEAR, _OUTLYING = 2.0, 3.5


@dataclass(frozen=True, repr=False)
class TransferReport:
    """Errors of every task at every level, on rows not seen.

    Parameters
    ----------
    tasks : array of shape (n,)
    levels : tuple of str
        Names of the columns of `errors`: "pooled", "hub", "intercepts", "independent" and the graph's.
    errors : array of shape (n, levels)
        Root mean squared errors, in the units of the target; NaN where no row of a task was held out.
    total : array of shape (levels,)
        Root mean squared errors over all rows.
    chosen : str
        The level that the model uses, or "average".
    gain : Gain
        That of the verdict. Of an average: what its links add, or, where it has none, of sharing against separate
        models. Of a single level: against the best other simple model.
    gain_over_alone : Gain
        Of the chosen level against separate models.
    task_gains : tuple of Gain
        Per task, the chosen level against a separate model. NaN where all rows of a task have one outcome: a separate
        model then predicts these rows perfectly, whatever it is worth.
    hurt : array of labels
        Tasks with a higher error than by themselves: by more than chance explains among all tasks, or by a clear
        amount that is also far from that of the other tasks.
    unlike : array of labels
        Tasks whose models are far from those of all others, so that sharing has nothing to offer them.
    verdict : str
        What was found, as in the summary of the model.
    detail : str
        The gain in a sentence, where the verdict does not have it.
    n_edges : tuple of int
        How many edges the graph of every level has.
    measure : str
        What errors are: "root mean square error", or the mean "log-loss" or "mean Poisson deviance".

    Examples
    --------
    >>> from ggmtl import GGMTLRegressor
    >>> from ggmtl.datasets import make_clusters
    >>> data = make_clusters(3, n_tasks=12, n_features=4, random_state=0)
    >>> model = GGMTLRegressor().fit(data.X, data.y, tasks=data.tasks)
    >>> report = transfer_report(model)
    >>> report.levels[:3], len(report.errors), report.errors.shape[1] == len(report.levels)
    (('pooled', 'intercepts', 'hub'), 12, True)
    """

    tasks: np.ndarray
    levels: tuple[str, ...]
    errors: np.ndarray
    total: np.ndarray
    chosen: str
    gain: Gain
    gain_over_alone: Gain
    task_gains: tuple[Gain, ...]
    hurt: np.ndarray
    unlike: np.ndarray
    verdict: str
    detail: str = ""
    n_edges: tuple[int, ...] = ()
    measure: str = SQUARED_ERROR.name

    def __repr__(self) -> str:
        return f"TransferReport({len(self.tasks)} tasks, chosen {self.chosen!r}, gain {100 * self.gain.share:.1f} %)"

    def describe(self) -> str:
        """The report in words."""
        lines = [self.verdict, *filter(None, [self.detail])]
        lines.append(f"{self.measure[0].upper()}{self.measure[1:]} on held-out rows:")
        for name, error, number in zip(self.levels, self.total, self.n_edges or [0] * len(self.levels)):
            kind = "graph" if name.startswith("graph") else name
            lines.append(f"  {level_title({'name': kind, 'n_edges': number})}: {error:.4g}")
        number = len(self.tasks)
        if len(self.hurt):
            lines.append(f"Sharing hurts {len(self.hurt)} of {number} tasks: {listing(self.hurt.tolist(), 10)}.")
        if len(self.unlike):
            lines.append(
                f"Unlike all others are {len(self.unlike)} of {number} tasks: {listing(self.unlike.tolist(), 10)}."
            )
        return "\n".join(map(one_line, lines))


@one_blas_thread()
def transfer_report(
    model: GGMTLRegressor,
    X: Any = None,
    y: Any = None,
    tasks: Any = None,
    *,
    sample_weight: Any = None,
    groups: Any = None,
    exposure: Any = None,
) -> TransferReport:
    """Compare every task alone, pooled, with the hub and with the graph.

    Parameters
    ----------
    model : GGMTLRegressor
        Fitted.
    X, y, tasks, sample_weight, groups, exposure : optional
        Rows, as in ``fit``, to cross-validate a copy of the model on; by default the errors of the model's own
        cross-validation, which need no rows.

    Examples
    --------
    >>> from ggmtl import GGMTLRegressor
    >>> from ggmtl.datasets import make_clusters
    >>> data = make_clusters(3, n_tasks=12, n_features=4, random_state=0)
    >>> model = GGMTLRegressor().fit(data.X, data.y, tasks=data.tasks)
    >>> report = transfer_report(model)
    >>> report.chosen, report.gain_over_alone.share > 0
    ('average', True)
    """
    rows = {"tasks": tasks, "sample_weight": sample_weight, "groups": groups}
    rows |= {} if exposure is None else {"exposure": exposure}
    state = getattr(model, "state_", None)
    if state is not None and state.settings.known is not None:
        rows["task_features"] = state.settings.known.features
    if X is not None:
        model = clone(model).fit(X, y, **rows)
    family = state_of(model, "transfer_report", any_loss=True).family
    if X is not None and family.errors is None:
        model = clone(model).set_params(validation=5).fit(X, y, **rows)
        family = model.state_.family
    if family.errors is None:
        raise InputError(
            "The model has no errors on held-out rows: it was fitted without folds, or with a single hold-out. "
            "Give X and y here, or fit with validation=5."
        )
    return _report(model, _levels(model, family))


def _levels(model: GGMTLRegressor, family: Family) -> Levels:
    """The levels with separate models among them; of a single task one level, as all are the same."""
    if len(model.tasks_) == 1:
        errors = None if family.errors is None else family.errors.among([0])
        return Levels(("independent",), ("independent",), (0,), errors, 0)
    if "pooled" in family.levels and "independent" in family.levels:
        return Levels.of(model)
    whole = _with_simple_levels(model, family)
    edges = [int(row["n_edges"]) for row in model.path_]
    # The levels that were put before the others have no edges.
    edges = [0] * (len(whole.levels) - len(edges)) + edges
    return Levels.of_family(whole, whole.errors, edges, model.graph_.n_edges)


def _report(model: GGMTLRegressor, levels: Levels) -> TransferReport:
    errors, chosen, alone = levels.errors, levels.chosen, levels.find("independent")
    if errors is None or chosen is None or alone is None:
        raise InputError("The errors on held-out rows lack a task that was added. Give X and y here.")
    verdict, unit = verdict_of(levels, model.graph_), model.scaling_.target_scale
    told = {"verdict": verdict, "measure": {"short": errors.measure.short}, "error": errors.error()[chosen]}
    gains, unjudged = _task_gains(errors, chosen, alone), without_contrast(model)
    over_alone = gain_over(errors, chosen, alone)
    if levels.average is not None:
        found = levels.average.gain_over("independent")
        over_alone = Gain(found.value, found.low, found.high)
    return TransferReport(
        model.tasks_,
        levels.keys,
        errors.task_error().T * unit,
        errors.error() * unit,
        levels.keys[chosen],
        Gain(*(verdict.get(name, 0.0) for name in ("gain", "low", "high"))),
        over_alone,
        tuple(Gain(np.nan, np.nan, np.nan) if skip else gain for gain, skip in zip(gains, unjudged)),
        model.tasks_[_hurt(errors, chosen, alone) & ~unjudged],
        model.tasks_[unlike_others(model)],
        verdict["text"],
        describe_gain(told),
        levels.n_edges,
        errors.measure.name,
    )


def _with_simple_levels(model: GGMTLRegressor, family: Family) -> Family:
    """Where only one graph was fitted: the simple models on the same folds, put before it."""
    model.state_.rows("transfer_report")
    settings = model.state_.settings

    def simple(folded: FoldedLoss) -> dict[str, GraphFit]:
        levels = simple_levels(folded.total, settings)
        return levels if settings.hub else {"pooled": pooled_level(folded.total, settings), **levels}

    folded = model.state_.folded()
    errors, known = cross_validate(folded, simple, settings.slopes).errors, family.errors
    if known is None:
        raise ValueError("The family has no errors on held-out rows.")
    joined = FoldErrors(np.concatenate([errors.squared, known.squared]), known.count)
    return replace(family, levels=simple(folded) | family.levels, errors=joined)


def _task_gains(errors: FoldErrors, level: int, reference: int) -> tuple[Gain, ...]:
    """Per task: gain with its interval, from the spread over folds."""
    difference = errors.squared[level] - errors.squared[reference]
    count = errors.count.sum(axis=0)
    rows = np.where(count > 0, count, np.nan)
    folds = (errors.count > 0).sum(axis=0)
    mean = difference.sum(axis=0) / rows
    centred = np.where(errors.count > 0, difference - mean * errors.count, 0.0)
    deviation = np.sqrt((centred**2).sum(axis=0) * folds / np.maximum(folds - 1, 1)) / rows
    if len(difference) == 1:
        # Errors summed over folds, as a small file keeps them, have no spread within a task. The spread between tasks
        # is used.
        deviation = np.nanstd(mean * np.sqrt(count)) / np.sqrt(rows)
    base = errors.task_mean()[reference]
    return tuple(relative_gain(errors, *map(float, each)) for each in zip(mean, deviation, base))


def _loss_scores(errors: FoldErrors, level: int, reference: int) -> np.ndarray:
    """t-scores of the mean over folds of ln(MSE/MSE_reference), shape (n,); NaN with fewer than three folds.

    Logarithms, because one bad row in a fold must not hide that all folds are worse.
    """
    seen = errors.count > 0
    floor = 1e-12 * errors.squared.mean() + np.finfo(float).tiny
    ratio = np.log((errors.squared[level] + floor) / (errors.squared[reference] + floor))
    folds = seen.sum(axis=0)
    number = np.where(folds >= 3, folds, np.nan)
    mean = np.where(seen, ratio, 0.0).sum(axis=0) / number
    variance = (np.where(seen, ratio - mean, 0.0) ** 2).sum(axis=0) / (number - 1)
    return mean / np.sqrt(variance / number + np.finfo(float).tiny)


def _hurt(errors: FoldErrors, level: int, reference: int) -> np.ndarray:
    """Which tasks do significantly worse than by themselves, shape (n,)."""
    scores = _loss_scores(errors, level, reference)
    known = np.isfinite(scores)
    freedom = max(len(errors.count) - 1, 1)
    by_chance = float(t.ppf(1.0 - 0.05 / max(int(known.sum()), 1), df=freedom))
    loss = errors.task_mean()[level] - errors.task_mean()[reference]
    if not known.any():
        return known
    middle = np.median(loss[known])
    width = 1.4826 * np.median(np.abs(loss[known] - middle))
    outlying = loss - middle > _OUTLYING * width
    return known & (loss > 0) & ((scores > by_chance) | ((scores > _CLEAR) & outlying))
