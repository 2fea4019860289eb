"""The base class of all multi-task estimators of this package; no algebra.

It reads input, deals folds, scales, turns coefficients back into the user's units, and predicts. A subclass computes
models from the least-squares losses of the tasks (:meth:`TaskEstimator._learn`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import wraps
from typing import Any, ClassVar, Concatenate, ParamSpec, Self, TypeVar

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted

from ggmtl.data.folds import deal_rows, group_labels, seed_of
from ggmtl.data.labels import locate_tasks, unknown_tasks_message, unseen_message
from ggmtl.data.reading import read_prediction, read_training
from ggmtl.data.task_data import InputForm, TaskData
from ggmtl.errors import (
    InputError,
    SingularSystemError,
    UnknownParameterError,
    UnseenTaskWarning,
    check_choice,
    did_you_mean,
    warn_user,
)
from ggmtl.graph.task_graph import TaskGraph
from ggmtl.runtime.machine import one_blas_thread
from ggmtl.statistics.least_squares import FoldedLoss, LeastSquares
from ggmtl.statistics.scaling import Scaling
from ggmtl.statistics.task_statistics import TaskStatistics

_Model = TypeVar("_Model")
_P = ParamSpec("_P")
_T = TypeVar("_T")


def all_or_nothing(method: Callable[Concatenate[_Model, _P], _T]) -> Callable[Concatenate[_Model, _P], _T]:
    """Make a method leave the estimator unchanged where it raises or is interrupted."""

    @wraps(method)
    def whole(self: _Model, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        before = vars(self).copy()
        try:
            return method(self, *args, **kwargs)
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    return whole


@contextmanager
def determined_models(n_tasks: int) -> Iterator[None]:
    """Turn the failure of a linear solve into an error that says what to change."""
    try:
        yield
    except np.linalg.LinAlgError as error:
        raise SingularSystemError(
            f"The models of {n_tasks} tasks could not be computed: {error}. Leave out constant, duplicated or "
            "collinear columns, use a positive ridge, or weights of similar size."
        ) from error


def checked_statistics(statistics: Any) -> TaskStatistics:
    """What ``fit_statistics`` was given, if it is statistics."""
    if not isinstance(statistics, TaskStatistics):
        raise InputError(f"fit_statistics takes TaskStatistics. Got {type(statistics).__name__} instead.")
    return statistics


@dataclass(frozen=True)
class LearnedModels:
    """What :meth:`TaskEstimator._learn` returns, in scaled units.

    Parameters
    ----------
    coefficients : array of shape (n, p)
        Model of every task; the intercept last, if there is one.
    graph : TaskGraph
        Relations found; empty if the method learns none.
    common : array of shape (p,), optional
        The model for tasks without training rows.
    attributes : dict
        Fitted attributes (names ending in an underscore) to set on the estimator as they are.
    """

    coefficients: np.ndarray
    graph: TaskGraph
    common: np.ndarray | None = None
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False, repr=False)
class TaskEstimator(BaseEstimator):
    """Base class of the multi-task estimators.

    Parameters are fields of a dataclass, whose constructor scikit-learn reads them from. All but `task` are given by
    name. Subclasses add their own fields and implement :meth:`_learn`.
    """

    task: str | int | None = None
    _: KW_ONLY
    validation: Any = 5
    fit_intercept: bool = True
    standardize: bool = True
    unseen: str = "error"
    random_state: int | None = None

    # Parameters that other estimators have, and what to do instead.
    elsewhere: ClassVar[dict[str, str]] = {}

    def __new__(cls, *_values: Any, **parameters: Any) -> Self:
        """Refuse unknown parameters in the words of users; the constructor itself is made by `dataclass`."""
        known = cls._get_param_names()
        for name in parameters:
            if name not in known:
                remedy = cls.elsewhere.get(name) or did_you_mean(name, known) or f" It has {', '.join(known)}."
                raise UnknownParameterError(f"{cls.__name__} has no parameter {name!r}.{remedy}")
        return super().__new__(cls)

    # ------------------------------------------------------------------ fitting

    @all_or_nothing
    def fit(self, X: Any, y: Any = None, tasks: Any = None, *, sample_weight: Any = None, groups: Any = None):
        """Fit every task's model.

        Parameters
        ----------
        X, y, tasks, sample_weight, groups
            As in :meth:`ggmtl.GGMTLRegressor.fit`.

        Returns
        -------
        self
        """
        data, folds, form = self._read_training(X, y, tasks, sample_weight, groups)
        return self._fit(TaskStatistics.from_data(data, folds), form)

    def _read_training(
        self, X: Any, y: Any, tasks: Any, sample_weight: Any, groups: Any
    ) -> tuple[TaskData, np.ndarray | None, InputForm]:
        """Rows, the fold of each (None without folds), and the form in which they were given."""
        data = self._read_data(X, y, tasks, sample_weight, groups)
        folds, scored_from = deal_rows(data, self._held_out(data), seed_of(self.random_state))
        form = replace(InputForm.of_rows(X, y, tasks, self.task, data), scored_from=scored_from)
        if folds is not None and data.groups is not None:
            form = replace(form, group_folds=dict(zip(group_labels(data.groups), folds.tolist())))
        return data, folds, form

    def _read_data(self, X: Any, y: Any, tasks: Any, sample_weight: Any, groups: Any) -> TaskData:
        return read_training(
            X, y, tasks, task=self.task, sample_weight=sample_weight, groups=groups, estimator=type(self).__name__
        )

    def _held_out(self, data: TaskData) -> Any:
        """How rows are held out: the parameter `validation`, unless an estimator has a rule of its own."""
        return self.validation

    @all_or_nothing
    def fit_statistics(self, statistics: TaskStatistics):
        """Fit from sufficient statistics, without rows.

        Statistics without folds leave nothing to validate on: strengths are then chosen by evidence.
        """
        return self._fit(checked_statistics(statistics).without_curves(), InputForm())

    @one_blas_thread()
    def _fit(self, statistics: TaskStatistics, form: InputForm):
        check_choice("unseen", self.unseen, ("error", "hub"))
        self._form = form
        self.scaling_ = Scaling.from_statistics(statistics, self.fit_intercept, self.standardize)
        self._set_names(statistics.task_names, statistics.feature_names)
        with determined_models(statistics.n_tasks):
            self._set_models(self._learn(self.scaling_.design(statistics), statistics))
        return self

    def _set_names(self, tasks: np.ndarray, features: tuple[str, ...]) -> None:
        self.tasks_, self.feature_names_, self.n_features_in_ = tasks, features, len(features)
        vars(self).pop("feature_names_in_", None)
        if self._form.named:
            self.feature_names_in_ = np.array(features, dtype=object)

    def _set_models(self, models: LearnedModels) -> None:
        self.coef_, self.intercept_ = self.scaling_.to_user_units(models.coefficients)
        self.graph_ = models.graph
        for name in ("hub_coef_", "hub_intercept_"):
            vars(self).pop(name, None)
        bends = {"coef_": models.coefficients} | ({} if models.common is None else {"hub_coef_": models.common})
        curved = self.scaling_.curves.n_columns > 0
        self._bends = {name: self.scaling_.bends_in_user_units(each) for name, each in bends.items() if curved}
        if models.common is not None:
            slopes, intercept = self.scaling_.to_user_units(models.common)
            self.hub_coef_, self.hub_intercept_ = slopes, float(intercept)
        for name, value in models.attributes.items():
            setattr(self, name, value)

    def _learn(self, folds: list[LeastSquares], statistics: TaskStatistics) -> LearnedModels:
        """Models from the loss of every fold (one entry when there are no folds), in scaled units."""
        raise NotImplementedError

    def _folded(self, folds: list[LeastSquares]) -> FoldedLoss:
        """The losses with the information which folds are held out in turn."""
        return FoldedLoss(tuple(folds), self._form.scored_from)

    # ------------------------------------------------------------------ predicting

    def predict(self, X: Any, tasks: Any = None, *, unseen: str | None = None) -> np.ndarray:
        """Predict the target of rows.

        Parameters
        ----------
        X, tasks, unseen
            As in :meth:`ggmtl.GGMTLRegressor.predict`.

        Returns
        -------
        array of shape (rows,), or (rows, n_tasks) where ``fit`` was given one task per column of y
        """
        return self._predict_rows(*self._read_rows(X, tasks), unseen)

    def _predict_rows(
        self, matrix: np.ndarray, labels: np.ndarray | None, unseen: str | None, **options: Any
    ) -> np.ndarray:
        """Predictions for features and labels as :meth:`_read_rows` gives them; `options` are for `_models_of`."""
        if self.scaling_.curves.n_columns:
            matrix = np.concatenate([matrix, self.scaling_.curves.bends(matrix)], axis=1)
        if labels is None:
            values = matrix @ self._with_bends("coef_").T + self.intercept_
            return values if self._form.target_is_matrix else values[:, 0]
        coef, intercept = self._models_of(labels, self.unseen if unseen is None else unseen, **options)
        return np.einsum("rd,rd->r", matrix, coef) + intercept

    def _read_rows(self, X: Any, tasks: Any) -> tuple[np.ndarray, np.ndarray | None]:
        check_is_fitted(self, "coef_")
        names = getattr(self, "feature_names_in_", None)
        matrix, labels = read_prediction(
            X,
            tasks,
            task=self.task if tasks is None else None,
            feature_names=None if names is None else tuple(names),
            n_features=self.n_features_in_,
            estimator=type(self).__name__,
        )
        if labels is None and self._form.reads_tasks:
            raise InputError(
                "The model was fitted with tasks: predict needs them too, as tasks= with one label per row "
                '(or name the column of X that holds them, e.g. GGMTLRegressor(task="school")).'
            )
        return matrix, labels

    def _models_of(self, labels: np.ndarray, unseen: str) -> tuple[np.ndarray, np.ndarray]:
        """Slopes, followed by the coefficients of curves where there are any, and intercept for every row."""
        check_choice("unseen", unseen, ("error", "hub"))
        position = locate_tasks(self.tasks_, labels)
        unknown = position < 0
        coef, intercept = self._with_bends("coef_")[position], self.intercept_[position]
        if not unknown.any():
            return coef, intercept
        if unseen != "hub":
            raise InputError(unknown_tasks_message(np.unique(labels[unknown]).tolist(), self.tasks_))
        if not hasattr(self, "hub_coef_"):
            raise InputError(f'{type(self).__name__} has no shared model, so unseen="hub" cannot be used.')
        warn_user(unseen_message(labels, unknown, self.tasks_), UnseenTaskWarning)
        coef[unknown], intercept[unknown] = self._with_bends("hub_coef_"), self.hub_intercept_
        return coef, intercept

    def _with_bends(self, name: str) -> np.ndarray:
        """The slopes of that name, followed by the coefficients of curves where there are any."""
        slopes = getattr(self, name)
        return np.concatenate([slopes, self._bends[name]], axis=-1) if self._bends else slopes


class TaskRegressor(RegressorMixin, TaskEstimator):
    """Base class of the multi-task regressors."""

    def score(self, X: Any, y: Any, sample_weight: Any = None, tasks: Any = None) -> float:
        """R² of the predictions over all rows."""
        return float(r2_score(y, self.predict(X, tasks=tasks), sample_weight=sample_weight))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
