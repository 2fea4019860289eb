"""What the regressor does with rows: ``fit``, ``partial_fit``, ``predict`` and ``predict_interval``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.stats import norm
from sklearn.utils.validation import check_is_fitted

from ggmtl.data.curves import Curves
from ggmtl.data.labels import locate_tasks
from ggmtl.data.task_data import InputForm, TaskData
from ggmtl.data.task_features import TaskFeatures, read_task_features
from ggmtl.errors import InputError, check_choice, check_share
from ggmtl.estimators.base import TaskRegressor, all_or_nothing, checked_statistics
from ggmtl.estimators.learning import learn_state, more_features, more_rows, read_more
from ggmtl.estimators.outcomes import (
    check_loss_options,
    count_intervals,
    expected_counts,
    explained_deviance,
    learn_outcomes,
    outcome_predictor,
    refuse,
)
from ggmtl.estimators.parameters import criterion_used
from ggmtl.estimators.state_estimator import StateEstimator
from ggmtl.fit.lines_or_curves import CurveTrial
from ggmtl.inference.growth import with_rows
from ggmtl.inference.intervals import calibration, check_intervals, typical_deviations
from ggmtl.inference.uncertainty import noise_ratios, posterior, task_noise
from ggmtl.inference.unseen import known_of, unseen_models, with_unseen
from ggmtl.runtime.machine import one_blas_thread
from ggmtl.statistics.task_statistics import TaskStatistics


@dataclass(eq=False, repr=False, kw_only=True)
class StateRegressor(TaskRegressor, StateEstimator):
    """What :class:`ggmtl.GGMTLRegressor` does with rows; its parameters are described there."""

    noise: str = "auto"
    loss: str = "squared"

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
        task_features: Any = None,
    ):
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
            Weights of the rows. Whole numbers count rows; weights with fractions are divided by their mean.
        groups : array of shape (rows,), optional
            Rows of one group stay in one fold.
        exposure : array of shape (rows,), optional
            For ``loss="poisson"``: the time, population or expected cases to which counts are proportional.
        task_features : data frame, optional
            Descriptors of the tasks: one row per task, the task in the index or in the task column. The shared model
            becomes a function of these columns, with the amount of shrinkage estimated for each, and tasks that are
            near by longitude and latitude get similar models. Columns may hold numbers, truth values, dates or
            categories. The table may have tasks that are not in `X`; missing values are refused. For the squared loss.

        Returns
        -------
        self
        """
        check_choice("loss", self.loss, ("squared", "poisson"))
        check_loss_options(self.loss, exposure, task_features)
        if self.loss != "squared":
            return self._show(learn_outcomes(self, X, y, tasks, sample_weight, groups, exposure))
        known = self._read_known(task_features)
        data, folds, form = self._read_training(X, y, tasks, sample_weight, groups)
        curves = Curves.none() if self.effects == "linear" else Curves.of_rows(data.X, data.sample_weight)
        statistics = TaskStatistics.from_data(curves.expanded(data), folds)
        return self._show(learn_state(self, statistics, form, curves, known, self._curve_trial(data, folds)))

    @all_or_nothing
    def fit_statistics(self, statistics: TaskStatistics, *, task_features: Any = None):
        """Fit from sufficient statistics, without rows.

        Statistics without folds leave nothing to validate on: strengths are then chosen by evidence. `task_features`
        is as in ``fit``. Curves need their sums, which are collected with ``curves="auto"``.
        """
        if self.loss != "squared":
            refuse(self, "fit_statistics")
        statistics = checked_statistics(statistics)
        if self.effects == "linear":
            statistics = statistics.without_curves()
        elif statistics.curves is None:
            raise InputError(
                f"effects={self.effects!r} needs the sums of curves, which these statistics do not have. Collect them "
                'with curves="auto" (as in TaskStatistics.from_parquet), use fit, or use effects="linear".'
            )
        curves, plain = statistics.curves, replace(statistics, curves=None)
        return self._show(learn_state(self, plain, InputForm(), curves, self._read_known(task_features)))

    def _read_known(self, task_features: Any) -> TaskFeatures | None:
        return None if task_features is None else read_task_features(task_features, self.task)

    def _held_out(self, data: TaskData) -> Any:
        """`validation`; for very many tasks, a number of folds k becomes one hold-out of 1/k of the rows."""
        folds = self.validation
        is_number = isinstance(folds, (int, np.integer)) and not isinstance(folds, bool) and folds >= 2
        large = self.sizes.is_large(len(data.task_names), data.X.shape[1] + 1)
        if is_number and large and criterion_used(self) == "evidence":
            return 1.0 / folds
        return folds

    def _curve_trial(self, data: TaskData, folds: np.ndarray | None) -> CurveTrial | None:
        """Sums from which a fit of straight lines finds whether curves would help; None where it does not try."""
        if self.effects != "linear" or folds is None or not self.fit_intercept or criterion_used(self) != "evidence":
            return None
        return CurveTrial.of_rows(data, folds, self.sizes)

    @all_or_nothing
    @one_blas_thread()
    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        tasks: Any = None,
        forget: float = 1.0,
        *,
        sample_weight: Any = None,
        groups: Any = None,
        relearn: bool = True,
        task_features: Any = None,
    ):
        """Learn from more rows; the old ones are not needed, their statistics are.

        By default everything is learned again from the statistics of all rows: the result is that of
        ``fit_statistics(forget · old + new)``, at the cost of a fit. With ``relearn=False``, graph, strengths and
        scaling stay and only the models are updated, by one linear solve. The statistics are the same either way, so
        several calls with ``relearn=False`` and a last one with ``relearn=True`` give the result of one call with all
        rows, except for the folds: the rows of each call are dealt into folds separately. Of a row that is sent twice,
        one copy may then be held out while the other is learned from; ``groups`` keep such rows together. Rows in long
        form may have new tasks; with ``relearn=False`` they are attached as by ``add_task``.

        Parameters
        ----------
        X, y, tasks, sample_weight
            As in ``fit``.
        forget : float
            Weight of an old row relative to a new one, in (0, 1].
        groups : array of shape (rows,), optional
            Rows of one group stay in one fold, also together with earlier rows of the group.
        relearn : bool
            Whether to learn graph and strengths again; otherwise ``path_`` and ``validation_error_`` stay.
        task_features : data frame, optional
            Descriptors of new tasks, if ``fit`` was given ``task_features``.

        Returns
        -------
        self
        """
        if self.loss != "squared":
            refuse(self, "partial_fit")
        if not hasattr(self, "coef_"):
            return self.fit(X, y, tasks, sample_weight=sample_weight, groups=groups, task_features=task_features)
        known = more_features(self.state_, self._read_known(task_features))
        statistics, form = more_rows(self, read_more(self, X, y, tasks, sample_weight, groups), forget)
        if relearn:
            return self._show(learn_state(self, statistics, form, self.scaling_.curves, known))
        return self._show(replace(with_rows(self.state_, statistics, known), form=form))

    def predict(
        self,
        X: Any,
        tasks: Any = None,
        return_std: bool = False,
        *,
        unseen: str | None = None,
        exposure: Any = None,
        task_features: Any = None,
    ) -> Any:
        """Predict the target of rows.

        Parameters
        ----------
        X : data frame or array
            As in ``fit``.
        tasks : array of shape (rows,), optional
            Task labels, where they were given to ``fit`` in this way.
        return_std : bool
            Also return the standard deviation of a new observation about each prediction.
        unseen : {"error", "hub"}, optional
            What to do with tasks that were not in the training data; by default the parameter `unseen`. ``"hub"``
            predicts their rows with the shared model, and warns with their number and labels.
        exposure : array of shape (rows,), optional
            As in ``fit``; one by default.
        task_features : data frame, optional
            Descriptors of tasks that were not in the training data, as in ``fit``; their models are predicted from
            these. Other rows of the table are ignored.

        Returns
        -------
        array of shape (rows,), or (rows, n_tasks) where ``fit`` was given one task per column of y; with
        ``return_std`` a pair of such arrays
        """
        check_loss_options(self._fitted_loss(), exposure, task_features)
        if self._fitted_loss() == "poisson":
            return self._predict_counts(X, tasks, return_std, unseen, exposure)
        known = self._read_known(task_features)
        matrix, labels = self._read_rows(X, tasks)
        values = self._predict_rows(matrix, labels, unseen, task_features=known)
        if not return_std:
            return values
        return values, self._deviations(matrix, labels, known).reshape(values.shape)

    def predict_interval(
        self,
        X: Any,
        coverage: float = 0.9,
        tasks: Any = None,
        *,
        of: str = "target",
        task_features: Any = None,
        unseen: str | None = None,
        exposure: Any = None,
    ) -> np.ndarray:
        """Intervals that cover the targets of new rows with the given probability.

        Their length is proportional to the standard deviations of ``predict(..., return_std=True)``, calibrated on
        held-out rows: per task where there are enough of them, and with the tails that their errors have. A model that
        was saved without its statistics has one length per task.

        Parameters
        ----------
        X, tasks
            As in ``predict``.
        coverage : float
            Share of the new rows that should lie in their intervals, between 0 and 1.
        of : {"target", "mean"}
            What the intervals are for: targets of new rows, or their means (of counts: rates times the exposure),
            without noise. Intervals of means are not calibrated on held-out rows.
        task_features, unseen, exposure
            As in ``predict``. Tasks that were not in the training data have the mean calibration of all tasks.

        Returns
        -------
        array of shape (rows, 2), or (rows, n_tasks, 2) where ``fit`` was given one task per column of y
            Lower and upper bounds.

        Examples
        --------
        >>> from ggmtl import GGMTLRegressor
        >>> from ggmtl.datasets import make_clusters
        >>> data = make_clusters(2, n_tasks=10, n_features=3, n_samples=30, random_state=0)
        >>> model = GGMTLRegressor().fit(data.X, data.y, tasks=data.tasks)
        >>> low, high = model.predict_interval(data.test.X, 0.9, tasks=data.test.tasks).T
        >>> bool(0.86 < ((low < data.test.y) & (data.test.y < high)).mean() < 0.94)
        True
        """
        check_is_fitted(self, "coef_")
        check_share("coverage", coverage)
        check_choice("of", of, ("target", "mean"))
        check_loss_options(self._fitted_loss(), exposure, task_features)
        if self._fitted_loss() != "squared":
            return count_intervals(self, X, tasks, coverage, of, unseen, exposure)
        check_intervals(self.state_)
        known, state = self._read_known(task_features), self.state_
        matrix, labels = self._read_rows(X, tasks)
        values = self._predict_rows(matrix, labels, unseen, task_features=known)
        if of == "mean":
            reach = norm.ppf(0.5 + 0.5 * coverage) * self._deviations(matrix, labels, known, of_mean=True)
        else:
            position = self._positions(matrix, labels)
            if state.statistics is None:
                deviations = typical_deviations(state)[position] * self.scaling_.target_scale
            else:
                deviations = self._deviations(matrix, labels, known)
            # The calibration of tasks that were not in the training data is the last.
            reach = calibration(state).reach(coverage)[position] * deviations
        reach = reach.reshape(values.shape)
        return np.stack([values - reach, values + reach], axis=-1)

    def score(self, X: Any, y: Any, sample_weight: Any = None, tasks: Any = None, exposure: Any = None) -> float:
        """R² of the predictions over all rows; for counts D², the share of the deviance that is explained.

        The deviance to explain is that of one rate for all rows.
        """
        if self._fitted_loss() == "squared":
            return super().score(X, y, sample_weight, tasks)
        return explained_deviance(y, self.predict(X, tasks, exposure=exposure), sample_weight, exposure)

    def _predict_counts(self, X: Any, tasks: Any, return_std: bool, unseen: str | None, exposure: Any) -> Any:
        predictor, variance = outcome_predictor(self, X, tasks, unseen)
        mean = expected_counts(predictor, exposure)
        return (mean, np.sqrt(self.dispersion_ * mean + mean**2 * variance)) if return_std else mean

    def _deviations(
        self, matrix: np.ndarray, labels: np.ndarray | None, known: TaskFeatures | None, of_mean: bool = False
    ) -> np.ndarray:
        """Standard deviation of a new observation, or of the mean, about every prediction, in the target's units."""
        state, n, position = self.state_, len(self.tasks_), self._positions(matrix, labels)
        rows = self.scaling_.design_rows(matrix)
        rows = np.repeat(rows, n, axis=0) if labels is None else rows
        joint, ratios = posterior(state), noise_ratios(state)
        if known is not None and labels is not None and (position < 0).any():
            new, z = self._new_tasks(labels[position < 0], known)
            joint, ratios = with_unseen(state, joint, ratios, z)
            there = locate_tasks(new, labels) if len(new) else position
            position = np.where((position < 0) & (there >= 0), n + there, position)
        return joint.standard_deviations(rows, position, ratios, of_mean=of_mean) * self.scaling_.target_scale

    def _positions(self, matrix: np.ndarray, labels: np.ndarray | None) -> np.ndarray:
        """Position of the task of every prediction, −1 where it was not in the training data."""
        if labels is None:
            return np.tile(np.arange(len(self.tasks_)), len(matrix))
        return locate_tasks(self.tasks_, labels)

    def _new_tasks(self, labels: np.ndarray, features: TaskFeatures) -> tuple[np.ndarray, np.ndarray]:
        """Those of the labels that the table describes, and their columns z."""
        known = known_of(self.state_, "predict")
        names = np.unique(labels)
        names = names[locate_tasks(features.task_names, names) >= 0]
        return names, known.encode(known.features.same_columns(features.of_tasks(names)))

    def _models_of(
        self, labels: np.ndarray, unseen: str, task_features: TaskFeatures | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Slopes and intercept for every row; those of new tasks that the table describes follow from it."""
        if task_features is None:
            return super()._models_of(labels, unseen)
        is_new = locate_tasks(self.tasks_, labels) < 0
        names, z = self._new_tasks(labels[is_new], task_features)
        position = locate_tasks(names, labels) if len(names) else np.full(len(labels), -1)
        described = is_new & (position >= 0)
        models = unseen_models(self.state_, z)
        slopes, constants = self.scaling_.to_user_units(models)
        slopes = np.concatenate([slopes, self.scaling_.bends_in_user_units(models)], axis=1)
        coef, intercept = np.empty((len(labels), slopes.shape[1])), np.empty(len(labels))
        if not described.all():
            coef[~described], intercept[~described] = super()._models_of(labels[~described], unseen)
        coef[described], intercept[described] = slopes[position[described]], constants[position[described]]
        return coef, intercept

    @property
    def noise_(self) -> np.ndarray:
        """Standard deviation of every task's noise, in the units of the target, shape (n_tasks,)."""
        check_is_fitted(self, "coef_")
        if self.state_.outcome is not None:
            raise AttributeError("noise_ is available for squared loss only. dispersion_ is that of counts.")
        return task_noise(self.state_)
