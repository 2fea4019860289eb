"""Held-out error of every method on the same folds, and the verdict."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from time import perf_counter
from typing import Any

import numpy as np

from ggmtl import baselines
from ggmtl.cli.options import SLOW
from ggmtl.cli.workflow import Rows
from ggmtl.data.folds import deal_folds
from ggmtl.data.reading import read_training
from ggmtl.data.task_data import TaskData
from ggmtl.errors import GGMTLError, InputError, ParameterError, did_you_mean
from ggmtl.estimators.classifier import GGMTLClassifier
from ggmtl.estimators.regressor import GGMTLRegressor
from ggmtl.fit.held_out import FoldErrors
from ggmtl.inspection.levels import gain_over
from ggmtl.inspection.summary.phrases import gain_interval, percent
from ggmtl.losses.rowwise import LOSSES, SQUARED_ERROR, Measure, RowLoss
from ggmtl.reproduce.peers import BoostedTrees, GpBoost, ShellMethod

OWN = "GGMTL"
# Probabilities and counts that a method predicts are no nearer to zero: a sure mistake must not cost everything.
_LEAST_MEAN = 1e-10


@dataclass(frozen=True)
class Standing:
    """How a method did.

    Parameters
    ----------
    name : str
    error, standard_error : float
        Root mean square error, log-loss or deviance over all held-out rows; NaN where the method failed.
    seconds : float
    failure : str, optional
        Why it has no error.
    """

    name: str
    error: float
    standard_error: float
    seconds: float
    failure: str | None = None


@dataclass(frozen=True)
class Comparison:
    """All standings, best first, and the verdict."""

    standings: list[Standing]
    verdict: str
    n_unscored: int = 0
    measure: Measure = SQUARED_ERROR


def methods(loss: str = "squared") -> dict[str, Callable[[int | None], Any]]:
    """Every method by its short name, to be called with a seed: for numbers, two labels or counts ("poisson")."""
    end = "Classifier" if loss == "logistic" else "Regressor"
    names = [name for name in baselines.__all__ if name.endswith(end)]
    if loss == "poisson":
        names = [f"{name}{end}" for name in ("Hub", "Independent", "Pooled")]
    kinds: dict[str, Any] = {OWN: GGMTLClassifier if loss == "logistic" else GGMTLRegressor}
    kinds |= {name.removesuffix(end): getattr(baselines, name) for name in names}
    options = {"loss": loss} if loss == "poisson" else {}
    found: dict[str, Callable[[int | None], Any]] = {
        name: lambda seed, kind=kind: ShellMethod(kind(random_state=seed, **options), groups=True)
        for name, kind in kinds.items()
    }
    if loss != "squared":
        found["Trees"] = lambda seed: BoostedTrees(loss, seed)
        if find_spec("gpboost") is not None:
            found["GPBoost"] = lambda seed: GpBoost(loss, seed)
    return found


def choose_methods(names: list[str], loss: str = "squared") -> dict[str, Callable[[int | None], Any]]:
    """The methods named, in any case; those that are not slow by default."""
    known = methods(loss)
    lower = {name.lower(): name for name in known}
    if [name.lower() for name in names] == ["all"]:
        return known
    if not names:
        return {name: method for name, method in known.items() if name not in SLOW}
    for name in names:
        if name.lower() not in lower:
            raise ParameterError(
                f"--methods: there is no method {name!r}.{did_you_mean(name, known)} Known: all, {', '.join(known)}."
            )
    return {lower[name.lower()]: known[lower[name.lower()]] for name in names}


def skipped_note(names: list[str], loss: str = "squared") -> list[str]:
    """Which methods were not asked for and are left out because they are slow, and how to ask for them."""
    left_out = [] if names else [name for name in methods(loss) if name in SLOW]
    if not left_out:
        return []
    return [
        f"{', '.join(left_out[:-1])} and {left_out[-1]} are skipped, because they can take minutes. --methods all runs "
        "them, too."
    ]


def compare(
    rows: Rows,
    chosen: dict[str, Callable[[int | None], Any]],
    n_folds: int,
    seed: int | None = None,
    loss: str = "squared",
    progress: Callable[[str], Any] = lambda text: None,
    finished: Callable[[Standing], Any] = lambda standing: None,
) -> Comparison:
    """Cross-validate every method; each learns its own strengths on the training rows alone.

    `progress` is told what is being fitted, `finished` every standing as soon as it is known.
    """
    target = rows.target
    if loss == "logistic":
        classes, target = np.unique(target, return_inverse=True)
        if len(classes) != 2:
            raise InputError(f"--loss binary needs a target of two labels. Got {len(classes):,} different values.")
    data = read_training(rows.frame, target, task=rows.task, groups=rows.groups, sample_weight=rows.weights)
    folds = deal_folds(data, n_folds, seed or 0, discrete=loss != "squared")
    # Rows of weight zero have been left out.
    kept = rows.weights > 0 if rows.weights is not None else slice(None)
    exposure = None if rows.exposure is None else rows.exposure[kept]
    split = _Split(data, folds, n_folds, _scored(data.task_index, folds, n_folds), LOSSES[loss], exposure)
    if not split.scored.any():
        raise InputError("No task has rows in two folds, so nothing can be compared. Give tasks more rows.")
    standings, squared = [], {}
    for place, (name, method) in enumerate(chosen.items()):
        label = f"{name} ({place + 1} of {len(chosen)} methods)"
        standing, errors = _standing(
            name, method, split, seed, lambda k, label=label: progress(f"{label}, fold {k} of {n_folds}")
        )
        finished(standing)
        standings.append(standing)
        if errors is not None:
            squared[name] = errors
    standings.sort(key=lambda entry: (np.isnan(entry.error), entry.error))
    verdict = _verdict(squared, split.count, split.loss.measure)
    if len(data.task_names) == 1:
        verdict = f"There is one task, so nothing can be shared. {verdict}"
    return Comparison(standings, verdict, int((~split.scored).sum()), split.loss.measure)


@dataclass(frozen=True)
class _Split:
    """The rows, the fold of each, which are scored and how, and the exposure of counts."""

    data: TaskData
    folds: np.ndarray
    n_folds: int
    scored: np.ndarray
    loss: RowLoss
    exposure: np.ndarray | None = None

    def part(self, rows: np.ndarray) -> tuple[Any, ...]:
        """Some rows, and their exposure where there is one."""
        known = () if self.exposure is None else (self.exposure[rows],)
        return self.data.take(rows), *known

    def losses(self, rows: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """Losses of some rows, for the means that are predicted for them."""
        if self.loss.name == "logistic":
            mean = np.clip(mean, _LEAST_MEAN, 1.0 - _LEAST_MEAN)
        elif self.loss.name == "poisson":
            mean = np.maximum(mean, _LEAST_MEAN)
        return self.loss.measure.unit * self.loss.value(self.loss.link(mean), self.data.y[rows])

    def per_task(self, values: np.ndarray) -> np.ndarray:
        """Weighted sums over the scored rows of every fold and task, shape (folds, n)."""
        out, rows = np.zeros((self.n_folds, len(self.data.task_names))), self.scored
        weight = np.ones(len(rows)) if self.data.sample_weight is None else self.data.sample_weight
        np.add.at(out, (self.folds[rows], self.data.task_index[rows]), (weight * values)[rows])
        return out

    @property
    def count(self) -> np.ndarray:
        """Number (weight) of the scored rows of every fold and task."""
        return self.per_task(np.ones(len(self.data)))


def _scored(task: np.ndarray, folds: np.ndarray, n_folds: int) -> np.ndarray:
    """Rows whose task has other rows to learn from: no method can be asked about a task never seen."""
    total = np.bincount(task)
    inside = np.zeros((n_folds, len(total)), dtype=np.int64)
    np.add.at(inside, (folds, task), 1)
    return inside[folds, task] < total[task]


def _standing(
    name: str, method: Callable[[int | None], Any], split: _Split, seed: int | None, progress: Callable[[int], Any]
) -> tuple[Standing, np.ndarray | None]:
    start, losses = perf_counter(), np.full(len(split.data), np.nan)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for k in range(split.n_folds):
                rest, test = split.folds != k, (split.folds == k) & split.scored
                progress(k + 1)
                if test.any():
                    fitted = method(seed).fit(*split.part(rest))
                    if getattr(getattr(fitted, "estimator", None), "status_", None) == "interrupted":
                        # The fit has hidden Ctrl-C, which was meant for the comparison.
                        raise KeyboardInterrupt
                    losses[test] = split.losses(test, fitted.predict(*split.part(test)))
    except (GGMTLError, np.linalg.LinAlgError) as error:
        return Standing(name, np.nan, np.nan, perf_counter() - start, str(error)), None
    squared = split.per_task(losses)
    errors = FoldErrors(squared[None], split.count, measure=split.loss.measure)
    error, deviation = float(errors.error()[0]), float(errors.error_deviation()[0])
    return Standing(name, error, deviation, perf_counter() - start), squared


def _verdict(squared: dict[str, np.ndarray], count: np.ndarray, measure: Measure = SQUARED_ERROR) -> str:
    """Compare GGMTL with the best other method; without it, the best method with the second best."""
    if not squared:
        return "No method could be fitted; the table says why."
    if len(squared) == 1:
        return f"Only {next(iter(squared))} has an error, so there is nothing to compare it with."
    ranked = sorted(squared, key=lambda name: float(squared[name].sum()))
    first = OWN if OWN in squared else ranked[0]
    names = [first, *(name for name in ranked if name != first)]
    errors = FoldErrors(np.stack([squared[name] for name in names]), count, measure=measure)
    if not errors.mean()[1] > 0:
        return f"{names[1]} makes no error at all on held-out rows."
    gain, error = gain_over(errors, 0, 1), measure.short
    span = gain_interval(gain.low, gain.high)
    if gain.low > 0:
        return f"{first} has the lowest {error}: {percent(gain.share)} below {names[1]}, the best of the others {span}."
    if gain.high < 0:
        return f"{names[1]} has a lower {error} than {first}, which is {percent(-gain.share)} above {span}."
    return f"It is not clear whether {first} or {names[1]}, the best of the others, predicts better {span}."
