"""Learn levels with straight lines and levels with curves, and test whether a curve would lower the held-out error.

Levels with curves have the usual names. Those with straight lines use the columns of the features only and are called
``"pooled, straight"``, ``"hub, straight"``, …. Both are learned from the same sums. Graphs are learned once, with lines
or curves, whichever gives the hub the higher evidence.

A fit with straight lines tests for every feature whether a curve would lower the held-out error. The strengths of the
hub are kept, and one feature at a time gets the columns of its curve: the same curve for all tasks, or a curve per task
that is shrunk to the common one as strongly as the slopes are. Models are learned without each fold and scored on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import norm

from ggmtl.bilevel.level import STRAIGHT, GraphFit, Settings
from ggmtl.data.curves import N_COLUMNS, Curves
from ggmtl.data.task_data import TaskData
from ggmtl.evidence.hub import evidence_with_common_model, shrunk_models
from ggmtl.fit.family import by_name
from ggmtl.fit.held_out import FoldErrors
from ggmtl.fit.levels import learn_levels, simple_levels
from ggmtl.runtime.journal import Journal
from ggmtl.runtime.sizes import Sizes
from ggmtl.statistics.least_squares import FoldedLoss, LeastSquares
from ggmtl.statistics.scaling import Scaling
from ggmtl.statistics.task_statistics import TaskStatistics


def learn_lines_and_curves(
    folded: FoldedLoss,
    settings: Settings,
    task_names: np.ndarray,
    criterion: str,
    choose_entropy: bool,
    journal: Journal | None = None,
    start: Mapping[str, GraphFit] | None = None,
    skipped: frozenset[str] = frozenset(),
) -> dict[str, GraphFit]:
    """All levels with straight lines and with curves on the given rows.

    `start` and `skipped` are those of :func:`learn_levels`.
    """
    journal = journal or Journal()
    columns, width = np.flatnonzero(~settings.bends), folded.parts[0].n_features
    ways = {
        STRAIGHT: (folded.of_columns(columns), settings.of_columns(columns), journal.inside("straight")),
        "": (folded, replace(settings, lines=False), journal),
    }
    first = {end: _with_ending(start, end) for end in ways}
    linked = _better_evidence(ways, first, len(task_names))
    found = {
        end: learn_levels(*way[:2], task_names, criterion, choose_entropy, way[2], first[end], end == linked, skipped)
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
    """The levels of `start` with straight lines (`end` is not empty) or with curves, under their usual names."""
    if start is None:
        return None
    own = [fit.on_its_columns() for fit in start.values() if (fit.columns is None) == (not end)]
    return by_name(replace(fit, name=fit.name.removesuffix(end)) for fit in own)


def _better_evidence(
    ways: Mapping[str, tuple[FoldedLoss, Settings, Journal]],
    first: Mapping[str, Mapping[str, GraphFit] | None],
    n_tasks: int,
) -> str:
    """The name ending of lines or of curves, whichever gives the hub the higher evidence; curves without a hub."""
    values = {}
    for end, (folded, settings, journal) in ways.items():
        if n_tasks == 1 or not settings.hub:
            return ""
        # The journal keeps these levels under the names where learn_levels looks for them.
        known = first[end]
        simple = journal.once("simple", lambda f=folded, s=settings, k=known: simple_levels(f.total, s, k))
        values[end] = evidence_with_common_model(simple["hub"].value, folded.total)
    return min(values, key=values.__getitem__)


# Strength at which all tasks have the same curve, and the least strength, in multiples of the mean rows of a task.
_COMMON, _LOWEST = 1e5, 1e-6
# Largest number of multiplications for the sums: about a tenth of a second.
_MOST_WORK = 10**8
# Smaller gains are not reported.
_LEAST_GAIN = 0.01


@dataclass(frozen=True)
class CurveGain:
    """Reduction of the held-out error by the best curve.

    Parameters
    ----------
    feature : int
        Position of the feature whose curve lowers the held-out error most.
    gain : float
        Share by which it lowers the root mean square error on held-out rows.
    """

    feature: int
    gain: float


@dataclass(frozen=True)
class CurveTrial:
    """Sums of rows with the columns of curves, for a fit that has straight lines only.

    Parameters
    ----------
    curves : Curves
    statistics : TaskStatistics
        With the columns of the curves after the features, dealt into the folds of the fit.
    """

    curves: Curves
    statistics: TaskStatistics

    @classmethod
    def of_rows(cls, data: TaskData, folds: np.ndarray, sizes: Sizes) -> CurveTrial | None:
        """The sums; None if they would take long, or if no feature has enough distinct values."""
        n, width = len(data.task_names), (1 + N_COLUMNS) * data.X.shape[1] + 2
        if n == 1 or sizes.is_large(n, width) or len(data) * width**2 > _MOST_WORK:
            return None
        curves = Curves.of_rows(data.X, data.sample_weight)
        return cls(curves, TaskStatistics.from_data(curves.expanded(data), folds)) if curves.n_columns else None

    def gain(self, hub: GraphFit, standardize: bool, first_scored: int) -> CurveGain | None:
        """Reduction of the held-out error by a curve, compared with the hub with straight lines."""
        scaling = Scaling.from_statistics(self.statistics, True, standardize, self.curves)
        folded = FoldedLoss(tuple(scaling.design(self.statistics)), first_scored)
        return curve_gain(folded, self.curves.feature_of_column, hub)


def curve_gain(folded: FoldedLoss, owner: np.ndarray, hub: GraphFit) -> CurveGain | None:
    """The feature whose curve lowers the held-out error most; None if no gain is beyond chance.

    Parameters
    ----------
    folded : FoldedLoss
        Scaled losses with the columns of the curves after those of the features, the constant column last.
    owner : array of int, shape (columns of curves,)
        Feature of each of these columns.
    hub : GraphFit
        Of straight lines, without the columns of curves.
    """
    features = np.unique(owner)
    if not len(features) or len(folded.scored) < 2:
        return None
    # Every feature with one curve for all tasks, and with a curve per task.
    trials = [(feature, own) for feature in features.tolist() for own in (False, True)]
    squared = np.zeros((1 + len(trials), len(folded.scored), folded.total.n_tasks))
    for fold, k in enumerate(folded.scored):
        training, held_out = folded.training(k), folded.parts[k]
        if hub.precisions is not None:
            training = training.weighted(hub.precisions)
        unit = max(float(training.count.mean()), 1.0)
        strengths = np.clip(hub.hub, _LOWEST * unit, _COMMON * unit)
        squared[0, fold] = _errors(training, held_out, owner[:0], strengths, 0.0)
        for place, (feature, own) in enumerate(trials):
            tie = float(strengths[feature]) if own else _COMMON * unit
            squared[1 + place, fold] = _errors(training, held_out, np.flatnonzero(owner == feature), strengths, tie)
    errors = FoldErrors(squared, np.array([folded.parts[k].count for k in folded.scored]))
    return _largest(errors, np.array([feature for feature, _ in trials]))


def _errors(
    training: LeastSquares, held_out: LeastSquares, bent: np.ndarray, strengths: np.ndarray, tie: float
) -> np.ndarray:
    """Squared errors of every task on held-out rows; columns `bent` of curves are shrunk with strength `tie`."""
    n_lines = len(strengths) - 1
    columns = np.concatenate([np.arange(n_lines), n_lines + bent, [training.n_features - 1]])
    hub = np.insert(strengths, [n_lines] * len(bent), tie)
    models = shrunk_models(training.of_columns(columns), hub, _LOWEST)
    return 2.0 * held_out.of_columns(columns).task_values(models)


def _largest(errors: FoldErrors, features: np.ndarray) -> CurveGain | None:
    """The largest gain over straight lines, if its interval (Bonferroni over all trials) is above zero."""
    excess, deviation = errors.excess(0)
    best = int(np.argmin(excess))
    reach = float(norm.ppf(1.0 - 0.025 / len(features))) * deviation[best]
    if best == 0 or excess[best] + reach >= 0:
        return None
    gain = 1.0 - float(np.sqrt(max(1.0 + excess[best] / errors.mean()[0], 0.0)))
    return CurveGain(int(features[best - 1]), gain) if gain >= _LEAST_GAIN else None
