"""Pooled, separate and hub models under a loss that is not squared, and the shells of their estimators.

    min  Σωℓ + ½ρ Σ_i ‖w_i − (0, b)‖²                       separate: slopes drawn to 0, intercepts to the base rate b
    min  Σωℓ + ½ρ ‖w‖²                                     pooled: the intercept is free
    min  Σωℓ + ½h Σ_i ‖w_i − w_0‖² + ½h_b Σ_i (b_i − b_0)²  hub; w_0 has the ridge of the pooled model's evidence

No task's intercept is free, so that tasks with one class, or without events, have finite models. Strengths are those of
least held-out loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_is_fitted

from ggmtl.baselines._shared import least_of
from ggmtl.data.columns import is_list_of_pairs, join_pairs
from ggmtl.errors import InputError, ParameterError, check_choice
from ggmtl.estimators.base import LearnedModels, TaskEstimator, TaskRegressor, all_or_nothing
from ggmtl.estimators.outcomes import (
    OutcomeRows,
    expected_counts,
    explained_deviance,
    read_classes,
    read_outcomes,
    refuse,
)
from ggmtl.evidence.hub_strengths import learn_hub
from ggmtl.evidence.laplace import LaplaceLoss, common_model, hub_mode
from ggmtl.fit.separate_outcomes import null_model, pooled_level, separate_level, separate_mode
from ggmtl.graph.task_graph import TaskGraph
from ggmtl.losses.rowwise import LOSSES, RowLoss
from ggmtl.losses.task_rows import FoldedRows, TaskRows
from ggmtl.runtime.machine import one_blas_thread

# Strengths tried, in multiples of the mean number of rows of a task, strongest first. Those of the hub are tried a
# decade apart, and then half a decade from the best.
_RIDGES = tuple(10.0 ** np.arange(2.0, -5.5, -0.5))
_HUBS = tuple(10.0 ** np.arange(2.0, -5.0, -1.0))
_BARELY, _HALF = 1e-6, 10.0**0.5

FitPath = Callable[[TaskRows, Sequence[Any]], Iterable[np.ndarray]]


def separate_models(given: OutcomeRows, name: str, ridge: float | None) -> LearnedModels:
    """A model of every task, with one ridge for all; the best one where `ridge` is None."""
    chosen, models, error = _ridge_models(given, given.folded, name, ridge)
    return LearnedModels(models, TaskGraph.empty(given.task_names), attributes=_found(chosen, chosen, error))


def pooled_models(given: OutcomeRows, name: str, ridge: float | None) -> LearnedModels:
    """One model for all tasks."""
    one = replace(given.folded, rows=given.rows.as_one_task())
    chosen, model, error = _ridge_models(given, one, name, ridge)
    models = np.repeat(model, given.rows.n_tasks, axis=0)
    return LearnedModels(models, TaskGraph.empty(given.task_names), model[0], _found(chosen, chosen, error))


def hub_models(given: OutcomeRows, name: str, slope: float | None, intercept: float | None) -> LearnedModels:
    """A common model and deviations; strengths that are None are chosen."""
    rows, loss, slopes = given.rows, LOSSES[name], _slopes(given)
    if rows.n_tasks == 1:
        return pooled_models(given, name, None)
    intercept = intercept if given.scaling.intercept else 1.0
    drawn = pooled_level(rows, loss, slopes).ridge
    errors = None
    if slope is None or intercept is None:
        if given.folded.scored:
            (slope, intercept), errors = _choose_hub(given, loss, drawn, slope, intercept)
        else:
            start = np.repeat(null_model(rows, loss, slopes)[None], rows.n_tasks, axis=0)
            laplace = LaplaceLoss(rows, loss, start, common_ridge=drawn)
            learned = learn_hub(laplace, (~slopes).astype(np.int64)).hub  # pyright: ignore[reportArgumentType]
            slope, intercept = slope or float(learned[0]), intercept or float(learned[-1])
    strength = _strength(slopes, slope, intercept)
    models = next(iter(_hub_path(loss, slopes, drawn)(rows, [(slope, intercept)])))
    common = common_model(models, strength, drawn)
    return LearnedModels(models, TaskGraph.empty(given.task_names), common, _found(None, strength, errors))


def _found(ridge: float | None, strength: Any, error: float | None) -> dict[str, Any]:
    found = {"strength_": strength, "validation_error_": error}
    return found if ridge is None else found | {"ridge_": ridge}


def _slopes(given: OutcomeRows) -> np.ndarray:
    slopes = np.ones(given.rows.n_features, dtype=bool)
    slopes[-1] = not given.scaling.intercept
    return slopes


def _strength(slopes: np.ndarray, slope: float, intercept: float) -> np.ndarray:
    """One strength per coefficient, kept positive so that every model is determined."""
    return np.maximum(np.where(slopes, slope, intercept), 1e-8)


def _unit(rows: TaskRows) -> float:
    return max(float(rows.count.mean()), 1.0)


def _ridge_models(
    given: OutcomeRows, folded: FoldedRows, name: str, ridge: float | None
) -> tuple[float, np.ndarray, float | None]:
    """ρ, models of the tasks of these rows, and the mean held-out loss where ρ was chosen."""
    rows, loss, slopes = folded.rows, LOSSES[name], _slopes(given)

    def fit_path(part: TaskRows, grid: Sequence[float]) -> Iterable[np.ndarray]:
        centre = null_model(part, loss, slopes)
        models = np.repeat(centre[None], part.n_tasks, axis=0)
        for strength in grid:
            drawn = np.full(len(slopes), max(strength, _BARELY))
            if part.n_tasks == 1:
                drawn[~slopes] = _BARELY
            models = separate_mode(part, loss, models, drawn, centre).coefficients
            yield models

    if ridge is not None:
        return ridge, next(iter(fit_path(rows, [ridge]))), None
    if not folded.scored:
        learned = float(separate_level(rows, loss, slopes).ridge[0])
        return learned, next(iter(fit_path(rows, [learned]))), None
    best, error = select_on_rows(folded, loss, [_unit(rows) * value for value in _RIDGES], fit_path)
    return float(best), next(iter(fit_path(rows, [best]))), error


def _choose_hub(
    given: OutcomeRows, loss: RowLoss, drawn: np.ndarray, slope: float | None, intercept: float | None
) -> tuple[tuple[float, float], float]:
    """Strengths of least held-out loss, and that loss."""
    unit, fit_path = _unit(given.rows), _hub_path(loss, _slopes(given), drawn)
    coarse = [unit * value for value in _HUBS]
    grid = [(a, b) for a in ([slope] if slope else coarse) for b in ([intercept] if intercept else coarse)]
    best, _ = select_on_rows(given.folded, loss, grid, fit_path)
    near = [
        (a, b)
        for a in ([slope] if slope else [best[0] * _HALF, best[0], best[0] / _HALF])
        for b in ([intercept] if intercept else [best[1] * _HALF, best[1], best[1] / _HALF])
    ]
    return select_on_rows(given.folded, loss, near, fit_path)


def _hub_path(loss: RowLoss, slopes: np.ndarray, drawn: np.ndarray) -> FitPath:
    def fit_path(part: TaskRows, grid: Sequence[tuple[float, float]]) -> Iterable[np.ndarray]:
        models = np.repeat(null_model(part, loss, slopes)[None], part.n_tasks, axis=0)
        for slope, intercept in grid:
            laplace = LaplaceLoss(part, loss, models, common_ridge=drawn)
            models = hub_mode(laplace, _strength(slopes, slope, intercept)).coefficients
            yield models

    return fit_path


def select_on_rows(folded: FoldedRows, loss: RowLoss, grid: Sequence[Any], fit_path: FitPath) -> tuple[Any, float]:
    """The candidate of least loss on held-out rows, and that loss per row as it is told; the first wins a tie."""
    deviance, weight = np.zeros(len(grid)), 0.0
    for k in folded.scored:
        held_out, path = folded.part(k), fit_path(folded.training(k), grid)
        weight += float(held_out.weight.sum())
        deviance += [loss.measure.unit * held_out.value(loss, models) for models in path]
    best, deviance = least_of(deviance / weight)
    return grid[best], float(deviance[best])


class OutcomeEstimator(TaskEstimator):
    """Base of baselines that learn from sums under the squared loss, and from rows under others."""

    loss: str

    def _learn_rows(self, given: OutcomeRows) -> LearnedModels:
        """Models from rows, in scaled units."""
        raise NotImplementedError

    @one_blas_thread()
    def _fit_rows(self, X: Any, y: Any, tasks: Any, sample_weight: Any, groups: Any, exposure: Any = None):
        check_choice("unseen", self.unseen, ("error", "hub"))
        given = read_outcomes(self, X, y, tasks, sample_weight, groups, exposure)
        self._form, self.scaling_ = given.form, given.scaling
        self._set_names(given.task_names, given.features)
        self._set_models(self._learn_rows(given))
        return self


class CountRegressor(TaskRegressor, OutcomeEstimator):
    """Base of regressors for numbers and, with ``loss="poisson"``, for counts."""

    @all_or_nothing
    def fit(
        self,
        X: Any,
        y: Any = None,
        tasks: Any = None,
        *,
        sample_weight: Any = None,
        groups: Any = None,
        exposure: Any = None,
    ):
        """Fit every task's model.

        Parameters
        ----------
        X, y, tasks, sample_weight, groups, exposure
            As in :meth:`ggmtl.GGMTLRegressor.fit`.

        Returns
        -------
        self
        """
        check_choice("loss", self.loss, ("squared", "poisson"))
        if self.loss == "poisson":
            return self._fit_rows(X, y, tasks, sample_weight, groups, exposure)
        self._refuse_exposure(exposure)
        return super().fit(X, y, tasks, sample_weight=sample_weight, groups=groups)

    def fit_statistics(self, statistics: Any):
        """Fit from sufficient statistics, without rows; for the squared loss."""
        if self.loss != "squared":
            refuse(self, "fit_statistics")
        return super().fit_statistics(statistics)

    def predict(self, X: Any, tasks: Any = None, *, unseen: str | None = None, exposure: Any = None) -> np.ndarray:
        """Predict the target of rows; for counts the mean, times the exposure.

        Parameters
        ----------
        X, tasks, unseen, exposure
            As in :meth:`ggmtl.GGMTLRegressor.predict`.
        """
        found = super().predict(X, tasks, unseen=unseen)
        if self.loss != "poisson":
            self._refuse_exposure(exposure)
            return found
        return expected_counts(found, exposure)

    def score(self, X: Any, y: Any, sample_weight: Any = None, tasks: Any = None, exposure: Any = None) -> float:
        """R² of the predictions over all rows; for counts the share of the deviance that is explained."""
        if self.loss != "poisson":
            return super().score(X, y, sample_weight, tasks)
        return explained_deviance(y, self.predict(X, tasks, exposure=exposure), sample_weight, exposure)

    def _refuse_exposure(self, exposure: Any) -> None:
        if exposure is not None:
            raise ParameterError(f'exposure= is for loss="poisson". Got loss="{self.loss}" instead.')


class TwoClassClassifier(ClassifierMixin, OutcomeEstimator):
    """Base of classifiers for two classes."""

    loss: str = "logistic"

    @all_or_nothing
    def fit(self, X: Any, y: Any = None, tasks: Any = None, *, sample_weight: Any = None, groups: Any = None):
        """Fit every task's model.

        Parameters
        ----------
        X, y, tasks, sample_weight, groups
            As in :meth:`ggmtl.GGMTLClassifier.fit`; `y` has two classes.

        Returns
        -------
        self
        """
        if is_list_of_pairs(X, y):
            X, y, tasks = join_pairs(X)
        name = type(self).__name__
        classes, code = read_classes(y, sample_weight, name)
        if len(classes) > 2:
            raise InputError(
                f"Only binary classification is supported: {name} tells two classes apart. y has {len(classes)} "
                "classes. Fit sklearn.multiclass.OneVsRestClassifier around it, with the task in a column of X."
            )
        self._fit_rows(X, code.astype(np.float64), tasks, sample_weight, groups)
        self.classes_ = classes
        return self

    def fit_statistics(self, statistics: Any):
        """Refused: sums of rows do not determine models of classes."""
        refuse(self, "fit_statistics")

    def decision_function(self, X: Any, tasks: Any = None, *, unseen: str | None = None) -> np.ndarray:
        """Log odds of the second class, shape (rows,)."""
        check_is_fitted(self, "classes_")
        return super().predict(X, tasks, unseen=unseen)

    def predict_proba(self, X: Any, tasks: Any = None, *, unseen: str | None = None) -> np.ndarray:
        """Probability of every class, shape (rows, 2)."""
        second = LOSSES["logistic"].mean(self.decision_function(X, tasks, unseen=unseen))
        return np.column_stack([1.0 - second, second])

    def predict(self, X: Any, tasks: Any = None, *, unseen: str | None = None) -> np.ndarray:
        """The likeliest class of every row; `unseen` is as in :meth:`ggmtl.GGMTLClassifier.predict`."""
        second = self.decision_function(X, tasks, unseen=unseen) > 0
        return self.classes_[second.astype(np.int64)]

    def score(self, X: Any, y: Any, sample_weight: Any = None, tasks: Any = None) -> float:
        """Share of rows whose class is predicted."""
        return float(accuracy_score(y, self.predict(X, tasks), sample_weight=sample_weight))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags
