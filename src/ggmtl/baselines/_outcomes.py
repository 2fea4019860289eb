"""Shells of the baselines for counts and for classes; no algebra."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_is_fitted

from ggmtl.data.columns import is_list_of_pairs, join_pairs
from ggmtl.errors import InputError, ParameterError, check_choice
from ggmtl.estimators.base import LearnedModels, TaskEstimator, TaskRegressor, all_or_nothing
from ggmtl.estimators.classes import read_classes
from ggmtl.estimators.outcomes import OutcomeRows, checked_exposure, explained_deviance, read_outcomes, refuse
from ggmtl.kernels import one_blas_thread
from ggmtl.losses.rowwise import LOSSES


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
        mean = LOSSES["poisson"].mean(found)
        return mean if exposure is None else mean * checked_exposure(exposure, len(mean))

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
