"""Held-out error of every method on the same folds, and the verdict."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from time import perf_counter
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.model_selection import GridSearchCV

from ggmtl import baselines
from ggmtl.cli.workflow import Rows
from ggmtl.data.folds import deal_folds
from ggmtl.data.reading import read_training
from ggmtl.data.task_data import TaskData
from ggmtl.errors import GGMTLError, InputError, ParameterError, did_you_mean
from ggmtl.estimators.classifier import GGMTLClassifier
from ggmtl.estimators.regressor import GGMTLRegressor
from ggmtl.fit.held_out import FoldErrors
from ggmtl.inspection.summary.phrases import percent
from ggmtl.losses.rowwise import LOSSES, SQUARED_ERROR, Measure, RowLoss

OWN = "GGMTL"
# Probabilities and counts that a method predicts are no nearer to zero: a sure mistake must not cost everything.
_LEAST_MEAN = 1e-10
_QUANTILE = 1.96


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


def methods(loss: str = "squared") -> dict[str, Callable[..., Any]]:
    """Every method by its short name: for numbers, two labels ("logistic") or counts ("poisson")."""
    if loss == "squared":
        names = [name for name in baselines.__all__ if name.endswith("Regressor")]
        found = {name.removesuffix("Regressor"): getattr(baselines, name) for name in names}
        return {OWN: GGMTLRegressor, **found}
    end = "Classifier" if loss == "logistic" else "Regressor"
    kinds = {name: getattr(baselines, f"{name}{end}") for name in ("Hub", "Independent", "Pooled")}
    known = {OWN: GGMTLClassifier if loss == "logistic" else GGMTLRegressor, **kinds}
    if loss == "poisson":
        known = {name: partial(kind, loss=loss) for name, kind in known.items()}
    known["Trees"] = partial(BoostedTrees, loss=loss)
    if find_spec("gpboost") is not None:
        known["GPBoost"] = partial(MixedModel, loss=loss)
    return known


def choose_methods(names: list[str] | None, loss: str = "squared") -> dict[str, Callable[..., Any]]:
    """The methods named, in any case; all of them by default."""
    known = methods(loss)
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
    chosen: dict[str, Callable[..., Any]],
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
            raise InputError(f"--loss binary needs a target of two labels. Got {len(classes)} instead.")
    data = read_training(rows.frame, target, task=rows.task, groups=rows.groups, sample_weight=rows.weights)
    folds = deal_folds(data, n_folds, seed or 0)
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
    name: str, method: Callable[..., Any], split: _Split, seed: int | None, progress: Callable[[int], Any]
) -> tuple[Standing, np.ndarray | None]:
    start, data = perf_counter(), split.data
    losses = np.full(len(data), np.nan)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for k in range(split.n_folds):
                train, test = data.take(split.folds != k), (split.folds == k) & split.scored
                progress(k + 1)
                if test.any():
                    known = [{}, {}]
                    if split.exposure is not None:
                        known = [{"exposure": split.exposure[rows]} for rows in (split.folds != k, test)]
                    options = {"sample_weight": train.sample_weight, "groups": train.groups, **known[0]}
                    model = method(random_state=seed).fit(train.X, train.y, tasks=train.tasks, **options)
                    if getattr(model, "status_", None) == "interrupted":
                        # The fit has hidden Ctrl-C, which was meant for the comparison.
                        raise KeyboardInterrupt
                    ask = model.predict_proba if split.loss.name == "logistic" else model.predict
                    mean = ask(data.X[test], tasks=data.tasks[test], **known[1])
                    losses[test] = split.losses(test, mean[:, 1] if mean.ndim == 2 else mean)
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
    errors = FoldErrors(np.stack([squared[name] for name in names]), count)
    mean, best = errors.mean(), 1
    if not mean[best] > 0:
        return f"{names[best]} makes no error at all on held-out rows."
    excess, deviation = errors.excess(0)
    shares = (excess[best] + _QUANTILE * deviation[best] * np.array([0.0, -1.0, 1.0])) / mean[best]
    gain, low, high = measure.gain(1.0 - shares)
    error = measure.short
    span = f"(95 % interval of the gain: {_signed(low)} to {_signed(high)})"
    if low > 0:
        return f"{first} has the lowest {error}: {percent(gain)} below {names[best]}, the best of the others {span}."
    if high < 0:
        return f"{names[best]} has a lower {error} than {first}, which is {percent(-gain)} above {span}."
    return f"It is not clear whether {first} or {names[best]}, the best of the others, predicts better {span}."


def _signed(share: float) -> str:
    return f"{'+' if share >= 0 else '−'}{percent(abs(share))}"


# ---------------------------------------------------------------------- methods of other packages


class BoostedTrees:
    """scikit-learn's gradient boosting, with the task as a category; the size of the trees by cross-validation."""

    # Above so many tasks scikit-learn takes no categories, and trees know nothing of the tasks.
    _MOST_TASKS = 255

    def __init__(self, loss: str, random_state: int | None = None):
        self.loss, self.random_state = loss, random_state

    def fit(self, X, y, tasks, sample_weight=None, groups=None, exposure=None):
        """Learn from rows; `groups` are not used."""
        self._tasks = np.unique(tasks)
        number = X.shape[1] if len(self._tasks) <= self._MOST_TASKS else None
        options = {
            "categorical_features": None if number is None else [number],
            "learning_rate": 0.05,
            "max_iter": 150,
            "random_state": self.random_state or 0,
        }
        weight = np.ones(len(y)) if sample_weight is None else sample_weight
        if self.loss == "logistic":
            trees: Any = HistGradientBoostingClassifier(**options)
        else:
            trees = HistGradientBoostingRegressor(loss="poisson", **options)
            exposure = np.ones(len(y)) if exposure is None else exposure
            y, weight = y / exposure, weight * exposure
        search = GridSearchCV(trees, {"max_leaf_nodes": [4, 16]}, cv=3)
        self._trees = search.fit(self._columns(X, tasks), y, sample_weight=weight / weight.mean())
        return self

    def predict_proba(self, X, tasks):
        """Probability of both classes."""
        return self._trees.predict_proba(self._columns(X, tasks))

    def predict(self, X, tasks, exposure=None):
        """Expected counts."""
        return self._trees.predict(self._columns(X, tasks)) * (1.0 if exposure is None else exposure)

    def _columns(self, X, tasks):
        if len(self._tasks) > self._MOST_TASKS:
            return X
        return np.column_stack([X, np.searchsorted(self._tasks, tasks)])


class MixedModel:
    """gpboost's generalized linear mixed model, with random intercepts and slopes of the tasks."""

    def __init__(self, loss: str, random_state: int | None = None):
        self.loss, self.random_state = loss, random_state

    def fit(self, X, y, tasks, sample_weight=None, groups=None, exposure=None):
        """Learn from rows; `groups` are not used."""
        if sample_weight is not None:
            raise InputError("gpboost's mixed models take no weights.")
        self._center, self._scale = X.mean(axis=0), np.where(X.std(axis=0) > 0, X.std(axis=0), 1.0)
        columns = (X - self._center) / self._scale
        self._model = import_module("gpboost").GPModel(
            group_data=tasks,
            group_rand_coef_data=columns,
            ind_effect_group_rand_coef=[1] * X.shape[1],
            likelihood="bernoulli_logit" if self.loss == "logistic" else "poisson",
        )
        fixed = np.column_stack([np.ones(len(y)), columns])
        offset = None if exposure is None else np.log(exposure)
        self._model.fit(y=y, X=fixed, offset=offset, params={"trace": False})
        return self

    def predict(self, X, tasks, exposure=None):
        """Expected counts, or probabilities of the second class."""
        columns = (X - self._center) / self._scale
        known = {} if exposure is None else {"offset_pred": np.log(exposure)}
        return self._model.predict(
            group_data_pred=tasks,
            group_rand_coef_data_pred=columns,
            X_pred=np.column_stack([np.ones(len(X)), columns]),
            predict_response=True,
            **known,
        )["mu"]

    def predict_proba(self, X, tasks):
        """Probability of both classes."""
        second = self.predict(X, tasks)
        return np.column_stack([1.0 - second, second])
