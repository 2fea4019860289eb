"""Held-out error of every method on the same folds, and the verdict."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from ggmtl import baselines
from ggmtl.cli.workflow import Rows
from ggmtl.data.folds import deal_folds
from ggmtl.data.reading import read_training
from ggmtl.data.task_data import TaskData
from ggmtl.errors import GGMTLError, InputError, ParameterError, did_you_mean
from ggmtl.estimators.regressor import GGMTLRegressor
from ggmtl.fit.held_out import FoldErrors
from ggmtl.inspection.summary.phrases import percent

OWN = "GGMTL"
_QUANTILE = 1.96


@dataclass(frozen=True)
class Standing:
    """How a method did.

    Parameters
    ----------
    name : str
    error, standard_error : float
        Root mean square error over all held-out rows; NaN where the method failed.
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


def methods() -> dict[str, type]:
    """Every method by its short name."""
    names = [name for name in baselines.__all__ if name.endswith("Regressor")]
    found = {name.removesuffix("Regressor"): getattr(baselines, name) for name in names}
    return {OWN: GGMTLRegressor, **found}


def choose_methods(names: list[str] | None) -> dict[str, type]:
    """The methods named, in any case; all of them by default."""
    known = methods()
    if not names:
        return known
    lower = {name.lower(): name for name in known}
    for name in names:
        if name.lower() not in lower:
            raise ParameterError(
                f"--methods: there is no method {name!r}.{did_you_mean(name, known)} Known: {', '.join(known)}."
            )
    return {lower[name.lower()]: known[lower[name.lower()]] for name in names}


def compare(
    rows: Rows,
    chosen: dict[str, type],
    n_folds: int,
    seed: int | None = None,
    progress: Callable[[str], Any] = lambda text: None,
    finished: Callable[[Standing], Any] = lambda standing: None,
) -> Comparison:
    """Cross-validate every method; each learns its own strengths on the training rows alone.

    `progress` is told what is being fitted, `finished` every standing as soon as it is known.
    """
    data = read_training(rows.frame, rows.target, task=rows.task, groups=rows.groups, sample_weight=rows.weights)
    folds = deal_folds(data, n_folds, seed or 0)
    split = _Split(data, folds, n_folds, _scored(data.task_index, folds, n_folds))
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
    verdict = _verdict(squared, split.count)
    if len(data.task_names) == 1:
        verdict = f"There is one task, so nothing can be shared. {verdict}"
    return Comparison(standings, verdict, int((~split.scored).sum()))


@dataclass(frozen=True)
class _Split:
    """The rows, the fold of each, and which are scored."""

    data: TaskData
    folds: np.ndarray
    n_folds: int
    scored: np.ndarray

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
    name: str, method: type, split: _Split, seed: int | None, progress: Callable[[int], Any]
) -> tuple[Standing, np.ndarray | None]:
    start, data = perf_counter(), split.data
    residual = np.full(len(data), np.nan)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for k in range(split.n_folds):
                train, test = data.take(split.folds != k), (split.folds == k) & split.scored
                progress(k + 1)
                if test.any():
                    model = method(random_state=seed).fit(
                        train.X, train.y, tasks=train.tasks, sample_weight=train.sample_weight, groups=train.groups
                    )
                    if getattr(model, "status_", None) == "interrupted":
                        # The fit has hidden Ctrl-C, which was meant for the comparison.
                        raise KeyboardInterrupt
                    residual[test] = model.predict(data.X[test], tasks=data.tasks[test]) - data.y[test]
    except (GGMTLError, np.linalg.LinAlgError) as error:
        return Standing(name, np.nan, np.nan, perf_counter() - start, str(error)), None
    squared = split.per_task(residual**2)
    errors = FoldErrors(squared[None], split.count)
    root = float(np.sqrt(errors.mean()[0]))
    deviation = float(errors.standard_error()[0]) / (2.0 * root) if root > 0 else 0.0
    return Standing(name, root, deviation, perf_counter() - start), squared


def _verdict(squared: dict[str, np.ndarray], count: np.ndarray) -> str:
    """Compare GGMTL with the best other method; without it, the best method with the second best."""
    if not squared:
        return "No method could be fitted; the table says why."
    if len(squared) == 1:
        return f"Only {next(iter(squared))} has an error, so there is nothing to compare it with."
    ranked = sorted(squared, key=lambda name: float(squared[name].sum()))
    first = OWN if OWN in squared else ranked[0]
    names = [first, *(name for name in ranked if name != first)]
    errors = FoldErrors(np.stack([squared[name] for name in names]), count)
    mean, best = errors.mean(), 1
    if not mean[best] > 0:
        return f"{names[best]} makes no error at all on held-out rows."
    excess, deviation = errors.excess(0)
    shares = (excess[best] + _QUANTILE * deviation[best] * np.array([0.0, -1.0, 1.0])) / mean[best]
    gain, low, high = 1.0 - np.sqrt(np.maximum(1.0 - shares, 0.0))
    span = f"(95 % interval of the gain: {_signed(low)} to {_signed(high)})"
    if low > 0:
        return f"{first} has the lowest error: {percent(gain)} below {names[best]}, the best of the others {span}."
    if high < 0:
        return f"{names[best]} has a lower error than {first}, which is {percent(-gain)} above {span}."
    return f"It is not clear whether {first} or {names[best]}, the best of the others, predicts better {span}."


def _signed(share: float) -> str:
    return f"{'+' if share >= 0 else '−'}{percent(abs(share))}"
