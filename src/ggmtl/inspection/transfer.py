"""Did sharing help, and whom? Errors of every task alone, pooled, with the hub, with the graph, and of their average.

The gain of one level over another is the mean difference of squared errors at the same held-out rows; its interval
comes from the spread of the differences over tasks (for one task: over folds).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import t
from sklearn.base import clone

from ggmtl.bilevel.level import OTHER_NOISE, GraphFit
from ggmtl.errors import InputError
from ggmtl.fit.family import Family
from ggmtl.fit.held_out import FoldErrors, cross_validate
from ggmtl.fit.levels import CORRELATED, pooled_level, simple_levels
from ggmtl.fit.state import state_of
from ggmtl.inspection.differences import unlike_others
from ggmtl.inspection.summary.phrases import listing, one_line
from ggmtl.inspection.summary.verdict import AVERAGE, LEVEL_PLACES, SIMPLE_LEVELS, average_verdict
from ggmtl.inspection.summary.words import level_title
from ggmtl.losses.rowwise import SQUARED_ERROR, Measure
from ggmtl.runtime.kernels import one_blas_thread
from ggmtl.statistics.least_squares import FoldedLoss

if TYPE_CHECKING:
    from ggmtl.estimators.regressor import GGMTLRegressor

# Two-sided 95 % of the normal distribution.
_QUANTILE = 1.96
# Standard errors of a clear loss; spreads (by the median deviation) of an outlier.
_CLEAR, _OUTLYING = 2.0, 3.5
_WORDS = {
    "pooled": "one model for all tasks",
    "hub": "a shared model with own deviations",
    CORRELATED: "a shared model with own deviations",
    "described": "a shared model by task features, with own deviations",
    "intercepts": "partly shared slopes with an intercept for every task",
    "independent": "separate models",
}


@dataclass(frozen=True)
class Gain:
    """By what share the error of a task (or of all tasks) is lower than that of a reference.

    Parameters
    ----------
    share, low, high : float
        Relative gain in root mean squared error, and its 95 % interval; negative: the error is higher.
    """

    share: float
    low: float
    high: float


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
        Of the average: what its links add, or, where it has none, of sharing against separate models. Of a single
        level: against the best simple model (where that is chosen, of the best graph).
    gain_over_alone : Gain
        Of the chosen level against separate models.
    task_gains : tuple of Gain
        Per task, the chosen level against a separate model.
    hurt : array of labels
        Tasks that sharing hurts: their gain is more negative than chance explains among all tasks, or than its
        own interval and far from the gains of the other tasks.
    unlike : array of labels
        Tasks whose models are far from those of all others, so that sharing has nothing to give them.
    verdict : str
        One sentence.
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
    n_edges: tuple[int, ...] = ()
    measure: str = SQUARED_ERROR.name

    def __repr__(self) -> str:
        return f"TransferReport({len(self.tasks)} tasks, chosen {self.chosen!r}, gain {100 * self.gain.share:.1f} %)"

    def describe(self) -> str:
        """The report in words."""
        lines = [self.verdict]
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
    result = state_of(model, "transfer_report", any_loss=True).family
    if X is not None and result.errors is None:
        model = clone(model).set_params(validation=5).fit(X, y, **rows)
        result = model.state_.family
    errors = result.errors
    if errors is None:
        raise InputError(
            "The model has no errors on held-out rows: it was fitted without folds, or with a single hold-out. "
            "Give X and y here, or fit with validation=5."
        )
    if len(model.tasks_) == 1:
        return _single(model, errors)
    if "pooled" not in result.levels or "independent" not in result.levels:
        result, errors = _with_simple_levels(model, result, errors)
    result, errors, edges = _by_density(result, errors, model.path_)
    if result.average is not None:
        return _averaged(model, result, (*edges, model.graph_.n_edges))
    report = _report(model, errors, tuple(result.levels), result.position(result.chosen))
    return replace(report, n_edges=tuple(edges), measure=errors.measure.name)


def _averaged(model: GGMTLRegressor, result: Family, edges: tuple[int, ...]) -> TransferReport:
    """The average against its parts; the verdict is that of the summary."""
    errors = result.all_errors()
    if errors is None or result.average is None:
        raise InputError("The model has no errors on held-out rows. Give X and y here, or fit with validation=5.")
    verdict, over_alone = average_verdict(result, model.graph_), result.average.gain_over("independent")
    average, alone = len(errors.squared) - 1, result.position("independent")
    return TransferReport(
        model.tasks_,
        (*result.levels, AVERAGE),
        errors.task_error().T * model.scaling_.target_scale,
        errors.error() * model.scaling_.target_scale,
        AVERAGE,
        Gain(verdict["gain"], verdict["low"], verdict["high"]),
        Gain(over_alone.value, over_alone.low, over_alone.high),
        _task_gains(errors, average, alone),
        model.tasks_[_hurt(errors, average, alone)],
        model.tasks_[unlike_others(model)],
        verdict["text"],
        edges,
        errors.measure.name,
    )


def _single(model: GGMTLRegressor, errors: FoldErrors) -> TransferReport:
    """With one task every level is the same model."""
    none, unit = Gain(0.0, 0.0, 0.0), model.scaling_.target_scale
    total = errors.error()[:1] * unit
    verdict = "There is one task, so nothing can be shared."
    alone = ("independent",)
    return TransferReport(
        model.tasks_,
        alone,
        total[None],
        total,
        alone[0],
        none,
        none,
        (none,),
        model.tasks_[:0],
        model.tasks_[:0],
        verdict,
    )


def _by_density(
    result: Family, errors: FoldErrors, table: Sequence[dict[str, Any]]
) -> tuple[Family, FoldErrors, list[int]]:
    """Simple levels first, graphs from sparse to dense, separate models last; and how many edges each has."""
    # The table has it for a model from a file, too. Simple levels before it have no edges.
    edges = [0] * (len(result.levels) - len(table)) + [int(row["n_edges"]) for row in table]
    places = [LEVEL_PLACES.get(level.name, float(number)) for level, number in zip(result.levels.values(), edges)]
    order = sorted(range(len(places)), key=places.__getitem__)
    names = list(result.levels)
    levels = {names[k]: result.levels[names[k]] for k in order}
    ordered = errors.among(order)
    return replace(result, levels=levels, errors=ordered), ordered, [edges[k] for k in order]


def _with_simple_levels(model: GGMTLRegressor, result: Family, known: FoldErrors) -> tuple[Family, FoldErrors]:
    """Where only one graph was fitted: the simple models on the same folds, put before it."""
    model.state_.rows("transfer_report")
    settings = model.state_.settings

    def simple(folded: FoldedLoss) -> dict[str, GraphFit]:
        levels = simple_levels(folded.total, settings)
        return levels if settings.hub else {"pooled": pooled_level(folded.total, settings), **levels}

    folded = model.state_.folded()
    errors = cross_validate(folded, simple, settings.slopes).errors
    fits = simple(folded)
    joined = FoldErrors(np.concatenate([errors.squared, known.squared]), known.count)
    return replace(result, levels=fits | result.levels, errors=joined), joined


def _report(model: GGMTLRegressor, errors: FoldErrors, names: tuple[str, ...], chosen: int) -> TransferReport:
    unit, mean = model.scaling_.target_scale, errors.mean()
    simple = [k for k, name in enumerate(names) if name in SIMPLE_LEVELS]
    graphs = [k for k in range(len(names)) if k not in simple]
    reference = min(simple, key=lambda k: mean[k])
    alone = names.index("independent")
    candidate = chosen if chosen in graphs or not graphs else min(graphs, key=lambda k: mean[k])
    gain = _gain(errors, candidate, reference)
    hurt = model.tasks_[_hurt(errors, chosen, alone)]
    return TransferReport(
        model.tasks_,
        names,
        errors.task_error().T * unit,
        errors.error() * unit,
        names[chosen],
        gain,
        _gain(errors, chosen, alone),
        _task_gains(errors, chosen, alone),
        hurt,
        model.tasks_[unlike_others(model)],
        _verdict(names, chosen, reference, graphs, gain, _gain(errors, reference, alone), alone),
    )


def _gain(errors: FoldErrors, level: int, reference: int) -> Gain:
    """1 − √(MSE/MSE_reference), interval by the delta method from the paired standard error."""
    mean = errors.mean()
    excess, deviation = errors.excess(reference)
    return _relative(float(excess[level]), float(deviation[level]), float(mean[reference]), errors.measure)


def _relative(excess: float, deviation: float, reference: float, measure: Measure) -> Gain:
    if not reference > 0:
        return Gain(0.0, 0.0, 0.0)
    bounds = [excess, excess + _QUANTILE * deviation, excess - _QUANTILE * deviation]
    return Gain(*(float(measure.gain(1.0 + bound / reference)) for bound in bounds))


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
    return tuple(_relative(float(m), float(s), float(b), errors.measure) for m, s, b in zip(mean, deviation, base))


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


def _verdict(
    names: tuple[str, ...], chosen: int, reference: int, graphs: list[int], gain: Gain, over_alone: Gain, alone: int
) -> str:
    name = names[reference].replace(OTHER_NOISE, "")
    simple = f"against the best simple model ({_WORDS[name]})"
    if chosen in graphs and gain.low > 0:
        return f"The graph lowers the error by {_percent(gain)} {simple}."
    if chosen in graphs and gain.high < 0:
        loss = Gain(-gain.share, -gain.high, -gain.low)
        return f"The graph raises the error by {_percent(loss)} {simple}."
    if chosen in graphs:
        return (
            f"The graph suggests which tasks are alike, but whether it lowers the error is not clear: by "
            f"{100 * gain.share:.1f} % ({100 * gain.low:.1f} to {100 * gain.high:.1f} %) {simple}."
        )
    if names[chosen] == "independent":
        return "Separate models predict best."
    common = "partly shared slopes" if names[chosen] == "intercepts" else "the shared model"
    found = f"No links between tasks were found beyond {common}"
    if over_alone.low > 0:
        return f"{found}, which lowers the error by {_percent(over_alone)} against separate models."
    return f"{found}."


def _percent(gain: Gain) -> str:
    return f"{100 * gain.share:.1f} % ({100 * gain.low:.1f}–{100 * gain.high:.1f} %)"
