"""The scikit-learn shell that every multi-task regressor of this package shares; no algebra.

A subclass says how models follow from the tasks' least-squares losses (:meth:`TaskRegressor._learn`); the shell
reads input, deals folds, scales, turns coefficients back into the user's units, and predicts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted

from ggmtl.data.folds import deal_folds, deal_holdout
from ggmtl.data.labels import locate_tasks, unknown_tasks_message
from ggmtl.data.reading import read_prediction, read_training
from ggmtl.data.task_data import TaskData
from ggmtl.design.scaling import Scaling
from ggmtl.errors import InputError, ParameterError, SingularSystemError, check_choice
from ggmtl.graph.task_graph import TaskGraph
from ggmtl.kernels import one_blas_thread
from ggmtl.statistics.least_squares import FoldedLoss, LeastSquares
from ggmtl.statistics.task_statistics import TaskStatistics

logger = logging.getLogger("ggmtl")

_Model = TypeVar("_Model")
_P = ParamSpec("_P")
_T = TypeVar("_T")


@contextmanager
def verbose_logging(verbose: int) -> Iterator[None]:
    """Show this package's log on standard error while a verbose call runs, unless the user has set up logging."""
    if not verbose or logger.hasHandlers():
        yield
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("[ggmtl] %(message)s"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if verbose == 1 else logging.DEBUG)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def all_or_nothing(method: Callable[Concatenate[_Model, _P], _T]) -> Callable[Concatenate[_Model, _P], _T]:
    """A method that leaves the estimator as it was where it raises or is interrupted."""

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


@dataclass(frozen=True)
class LearnedModels:
    """What a method returns to the shell, in scaled units.

    Parameters
    ----------
    coefficients : array of shape (n, p)
        Model of every task; the intercept last, if there is one.
    graph : TaskGraph
        Relations found; empty where the method has none.
    common : array of shape (p,), optional
        The model for a task never seen.
    attributes : dict
        Fitted attributes (names ending in an underscore) to set on the estimator as they are.
    """

    coefficients: np.ndarray
    graph: TaskGraph
    common: np.ndarray | None = None
    attributes: dict[str, Any] = field(default_factory=dict)


class TaskRegressor(RegressorMixin, BaseEstimator):
    """Base class of the multi-task regressors.

    Subclasses have at least the parameters ``task``, ``fit_intercept``, ``standardize``, ``unseen``,
    ``validation`` and ``random_state``, and implement :meth:`_learn`.
    """

    task: str | int | None
    fit_intercept: bool
    standardize: bool
    unseen: str
    validation: Any
    random_state: int | None

    # ------------------------------------------------------------------ fitting

    @all_or_nothing
    def fit(self, X: Any, y: Any = None, tasks: Any = None, *, sample_weight: Any = None, groups: Any = None):
        """Fit every task's model.

        Parameters
        ----------
        X : data frame or array of shape (rows, columns)
            Features in long form, with the task column if `task` names one; or a list of pairs ``(X_i, y_i)``.
        y : array of shape (rows,) or (rows, n_tasks)
            Target; two-dimensional: one task per column, all with the same `X`.
        tasks : array of shape (rows,), optional
            Task labels, instead of a task column in `X`.
        sample_weight : array of shape (rows,), optional
            Weights of the rows; a weight of two counts a row twice.
        groups : array of shape (rows,), optional
            Rows of one group stay in one fold.

        Returns
        -------
        self
        """
        data = read_training(
            X, y, tasks, task=self.task, sample_weight=sample_weight, groups=groups, estimator=type(self).__name__
        )
        self._reads_tasks = self.task is not None or tasks is not None or y is None
        self._target_is_matrix = y is not None and _is_matrix(y) and not self._reads_tasks
        self._n_targets = None if self._reads_tasks else len(data.task_names)
        folds = self._deal(data)
        # Rows that are never held out are dealt into fold 0 by themselves; see `_deal`.
        self._scored_from = 1 if self._holds_out_some else 0
        statistics = TaskStatistics.from_data(data, folds)
        if data.feature_names is not None:
            self.feature_names_in_ = np.array(data.feature_names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return self._fit(statistics)

    @all_or_nothing
    def fit_statistics(self, statistics: TaskStatistics):
        """Fit from sufficient statistics, without rows.

        Statistics without folds leave nothing to validate on: strengths are then chosen by evidence.
        """
        if not isinstance(statistics, TaskStatistics):
            raise InputError(f"fit_statistics takes TaskStatistics. Got {type(statistics).__name__} instead.")
        self._reads_tasks, self._target_is_matrix, self._scored_from = True, False, 0
        self._n_targets = None
        self.feature_names_in_ = np.array(statistics.feature_names, dtype=object)
        return self._fit(statistics)

    @one_blas_thread()
    def _fit(self, statistics: TaskStatistics):
        check_choice("unseen", self.unseen, ("error", "hub"))
        self._scaling = Scaling.from_statistics(statistics, self.fit_intercept, self.standardize)
        self.tasks_ = statistics.task_names
        self.feature_names_ = statistics.feature_names
        self.n_features_in_ = statistics.n_features
        try:
            models = self._learn(self._scaling.design(statistics), statistics)
        except np.linalg.LinAlgError as error:
            raise SingularSystemError(
                f"The models of {statistics.n_tasks} tasks could not be computed: {error}. Leave out constant, "
                "duplicated or collinear columns, use a positive ridge, or weights of similar size."
            ) from error
        self._set_models(models)
        return self

    def _set_models(self, models: LearnedModels) -> None:
        self._coefficients = models.coefficients
        self.coef_, self.intercept_ = self._scaling.to_user_units(models.coefficients)
        self.graph_ = models.graph
        self._common = models.common
        for name in ("hub_coef_", "hub_intercept_"):
            vars(self).pop(name, None)
        if models.common is not None:
            slopes, intercept = self._scaling.to_user_units(models.common)
            self.hub_coef_, self.hub_intercept_ = slopes, float(intercept)
        for name, value in models.attributes.items():
            setattr(self, name, value)

    def _learn(self, folds: list[LeastSquares], statistics: TaskStatistics) -> LearnedModels:
        """Models from the loss of every fold (one entry when there are no folds), in scaled units."""
        raise NotImplementedError

    def _scored(self, folds: list[LeastSquares]) -> tuple[int, ...]:
        """Numbers of the folds that are held out in turn."""
        return FoldedLoss(tuple(folds), self._scored_from).scored

    def _deal(self, data: TaskData) -> np.ndarray | None:
        """Fold number of every row, as the parameter `validation` says; None for no folds.

        Where some rows are never held out (a single hold-out share, a splitter that leaves rows aside), those are
        fold 0, and `_holds_out_some` is set.
        """
        how = self._held_out(data)
        self._holds_out_some = False
        seed = 0 if self.random_state is None else self.random_state
        if not isinstance(seed, (int, np.integer)):
            raise ParameterError(f"random_state must be None or a whole number. Got {seed!r} instead.")
        if how is None:
            return None
        if hasattr(how, "split") and not isinstance(how, str):
            folds = _folds_of_splitter(how, data)
            self._holds_out_some = bool((folds < 0).any())
            return folds + 1 if self._holds_out_some else folds
        if isinstance(how, (bool, np.bool_)) or not isinstance(how, (int, float, np.integer, np.floating)):
            raise ParameterError(
                f"validation must be a number of folds, a share of rows to hold out or a splitter. Got {how!r} instead."
            )
        if 0 < how < 1:
            self._holds_out_some = True
            return deal_holdout(data, float(how), int(seed)).astype(np.int64)
        if not np.isfinite(how) or how != int(how) or how < 2:
            raise ParameterError(
                f"validation must be at least 2 folds or a share between 0 and 1. Got {how!r} instead."
            )
        return deal_folds(data, int(how), int(seed))

    def _held_out(self, data: TaskData) -> Any:
        """How rows are held out: the parameter `validation`, unless an estimator knows better."""
        return self.validation

    # ------------------------------------------------------------------ predicting

    def predict(self, X: Any, tasks: Any = None) -> np.ndarray:
        """Predict the target of rows.

        Parameters
        ----------
        X : data frame or array
            As in ``fit``.
        tasks : array of shape (rows,), optional
            Task labels, where they were given to ``fit`` in this way.

        Returns
        -------
        array of shape (rows,), or (rows, n_tasks) where ``fit`` was given one task per column of y
        """
        matrix, labels = self._read_rows(X, tasks)
        if labels is None:
            values = matrix @ self.coef_.T + self.intercept_
            return values if self._target_is_matrix else values[:, 0]
        coef, intercept = self._models_of(labels)
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
        if labels is None and self._reads_tasks:
            raise InputError(
                "The model was fitted with tasks: predict needs them too, as tasks= with one label per row "
                '(or name the column of X that holds them, e.g. GGMTLRegressor(task="school")).'
            )
        return matrix, labels

    def _models_of(self, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Slopes and intercept for every row."""
        position = locate_tasks(self.tasks_, labels)
        unknown = position < 0
        if not unknown.any():
            return self.coef_[position], self.intercept_[position]
        if self.unseen != "hub":
            raise InputError(unknown_tasks_message(np.unique(labels[unknown]).tolist(), self.tasks_))
        if self._common is None:
            raise InputError(f'{type(self).__name__} has no common model, so unseen="hub" cannot be used.')
        coef, intercept = self.coef_[position], self.intercept_[position]
        coef[unknown], intercept[unknown] = self.hub_coef_, self.hub_intercept_
        return coef, intercept

    def score(self, X: Any, y: Any, sample_weight: Any = None, tasks: Any = None) -> float:
        """R² of the predictions over all rows."""
        return float(r2_score(y, self.predict(X, tasks=tasks), sample_weight=sample_weight))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _is_matrix(y: Any) -> bool:
    """Whether a target has two dimensions, asked without copying it from where it is."""
    return (y.ndim if hasattr(y, "ndim") else np.asarray(y).ndim) == 2


def _splits(splitter: Any, data: TaskData) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Training and test rows of every split; what the splitter says against these rows is said again with a remedy."""
    try:
        yield from splitter.split(data.X, data.y, data.groups)
    except (TypeError, ValueError) as error:
        remedy = " Pass fit(..., groups=)." if data.groups is None and "group" in str(error) else ""
        raise ParameterError(
            f"validation: {type(splitter).__name__} cannot split these {len(data)} rows: {error}{remedy}"
        ) from error


def _folds_of_splitter(splitter: Any, data: TaskData) -> np.ndarray:
    """Number of the split whose test set each row is in, −1 for none."""
    fold = np.full(len(data), -1)
    for k, (train, test) in enumerate(_splits(splitter, data)):
        held_out = np.zeros(len(data), dtype=bool)
        held_out[test] = True
        if (fold[held_out] >= 0).any():
            raise ParameterError("validation: the splitter's test sets overlap; every row must be in at most one.")
        trained = np.zeros(len(data), dtype=bool)
        trained[train] = True
        if (trained == held_out).any():
            raise ParameterError(
                f"validation: {type(splitter).__name__} trains split {k} on {int(trained.sum())} rows and tests it on "
                f"{int(held_out.sum())} of {len(data)}; every row outside a test set must be trained on. For rows in "
                "time order use one hold-out, PredefinedSplit(np.where(is_late, 0, -1)), or KFold without shuffling."
            )
        fold[held_out] = k
    if fold.max() < 0:
        raise ParameterError("validation: the splitter gave no test rows.")
    return fold
