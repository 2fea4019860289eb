"""Estimators whose fit is one :class:`ggmtl.fit.state.FittedState`: they grow, answer questions and are saved."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ggmtl.data.columns import feature_position, read_grid
from ggmtl.data.frames import as_table
from ggmtl.data.labels import locate_tasks, task_position
from ggmtl.data.task_data import InputForm
from ggmtl.data.task_features import TaskFeatures, read_task_features
from ggmtl.errors import ParameterError
from ggmtl.estimators.base import LearnedModels, TaskEstimator, TaskRegressor, all_or_nothing
from ggmtl.estimators.growing import more_features, more_rows, one_more_task, read_more
from ggmtl.estimators.model_file import write_model
from ggmtl.estimators.outcomes import one_more_outcome, refuse
from ggmtl.estimators.tables import coefficient_columns, interval_columns, path_columns
from ggmtl.evidence.level_value import LevelEvidence
from ggmtl.fit.state import FittedState
from ggmtl.inference.growth import with_rows
from ggmtl.inference.uncertainty import effect_of, evidence_of, noise_ratios, posterior, task_noise
from ggmtl.inference.unseen import known_of, unseen_models, with_unseen
from ggmtl.inspection.summary.collect import summarize
from ggmtl.inspection.summary.words import describe, notebook_html
from ggmtl.kernels import one_blas_thread
from ggmtl.statistics.task_statistics import TaskStatistics


class StateEstimator(TaskEstimator):
    """Base of the estimators that hold a fitted state as ``state_``."""

    # A parameter of those that have another.
    loss: str = "squared"

    def _fitted_loss(self) -> str:
        """The loss that the models were fitted with, whatever the parameter is by now."""
        check_is_fitted(self, "coef_")
        return "squared" if self.state_.outcome is None else self.state_.outcome.loss

    def _show(self, state: FittedState) -> Self:
        """Hold a state, and have its models as the fitted attributes."""
        self._form, self.scaling_ = state.form, state.scaling
        self._set_names(state.task_names, state.feature_names)
        self._set_models(models_of(state))
        return self

    @all_or_nothing
    @one_blas_thread()
    def add_task(self, name: Any, X: Any = None, y: Any = None, *, exposure: Any = None, task_features: Any = None):
        """Attach a new task without refitting the others.

        Neighbours and their strength are chosen by the evidence of the task's own rows; without rows it gets the
        shared model. Rows may be as few as one.

        Parameters
        ----------
        name : str, int, …
            Label of the task, of the kind of the others.
        X, y : data frame or array of shape (rows, d), and array of shape (rows,), optional
            Its rows.
        exposure : array of shape (rows,), optional
            As in ``fit``, for counts.
        task_features : data frame, optional
            What is known about the task, as in ``fit``: one row of the table is enough. Without it, the task counts as
            an average one.

        Returns
        -------
        self
        """
        check_is_fitted(self, "coef_")
        if self.state_.outcome is None:
            if exposure is not None:
                raise ParameterError('exposure= is for loss="poisson". Got loss="squared" instead.')
            return self._show(one_more_task(self, name, X, y, task_features))
        if task_features is not None:
            raise ParameterError('task_features= is for GGMTLRegressor with loss="squared".')
        return self._show(one_more_outcome(self, name, X, y, exposure))

    def coefficients(self) -> Any:
        """All coefficients with their standard errors, in the units of the data, as a tidy table.

        The standard errors are those beside the graph and the strengths as they were learned. The doubt about these is
        left out, so intervals of two standard errors hold the truth a little less often than in 19 cases of 20.

        The columns are task, feature, coefficient and standard_error; the feature of an intercept is
        ``"(intercept)"``. The table is of the kind given to ``fit``, else of pandas or polars, whichever is
        installed, else a dict of arrays.
        """
        check_is_fitted(self, "coef_")
        return as_table(coefficient_columns(self), self._form.table_kind)

    def conf_int(self, level: float = 0.95) -> Any:
        """Intervals of all coefficients, in the units of the data, as a tidy table.

        The columns are task, feature, coefficient, low and high. The bounds lie as many standard errors of
        ``coefficients()`` from the coefficient as a normal distribution asks for.

        Parameters
        ----------
        level : float
            Share of the intervals that should hold the true value, between 0 and 1.
        """
        check_is_fitted(self, "coef_")
        return as_table(interval_columns(self, level), self._form.table_kind)

    def path_table(self) -> Any:
        """``path_`` as a table: one row per level, in the order in which they were considered."""
        check_is_fitted(self, "coef_")
        return as_table(path_columns(self.path_), self._form.table_kind)

    def effect(self, feature: str | int, grid: Any = None, task: Any = None) -> Any:
        """The effect of one feature at given values: a curve, or a straight line, with its standard error.

        Effects are in the units of the target, and zero on average over the training rows. The mean prediction for
        these and the effects of all features add up to a prediction.

        Parameters
        ----------
        feature : str or int
            Its name, or its position among the features.
        grid : array of shape (values,), optional
            Values of the feature; by default fifty over the range of the training rows, or two standard deviations
            around their mean where the effect is a straight line.
        task : optional
            Label of a task; by default the effect is that of the shared model, the mean of the tasks.

        Returns
        -------
        table with the columns feature, value, effect and standard_error
            Of the kind given to ``fit``, as in :meth:`coefficients`. Standard errors are NaN for a model that was saved
            without its statistics.

        Examples
        --------
        >>> import numpy as np
        >>> from ggmtl import GGMTLRegressor
        >>> rng = np.random.default_rng(0)
        >>> x, tasks = rng.uniform(0, 6, size=200), np.repeat(np.arange(10), 20)
        >>> model = GGMTLRegressor(effects="smooth").fit(x[:, None], np.sin(x), tasks=tasks)
        >>> table = model.effect("x0", [np.pi / 2, 3 * np.pi / 2])
        >>> np.round(np.diff(table["effect"]), 1).tolist()
        [-2.0]
        """
        check_is_fitted(self, "coef_")
        position = feature_position(feature, self.feature_names_)
        values = self.scaling_.default_grid(position) if grid is None else read_grid(grid)
        place = None if task is None else task_position(task, self.tasks_)
        effect, error = effect_of(self.state_, position, values, place)
        names = np.repeat(np.array(self.feature_names_[position], dtype=str), len(values))
        columns = {"feature": names, "value": values, "effect": effect, "standard_error": error}
        return as_table(columns, self._form.table_kind)

    def summary(self) -> str:
        """What was found, in words."""
        check_is_fitted(self, "coef_")
        return describe(summarize(self))

    def _html_repr(self) -> str:
        """What a notebook shows: once fitted, what was found, with scikit-learn's list of parameters below it."""
        parameters = super()._html_repr()
        if not hasattr(self, "state_"):
            return parameters
        return f"{notebook_html(summarize(self))}<details><summary>Parameters</summary>{parameters}</details>"

    def evidence(self, n_probes: int = 8) -> LevelEvidence:
        """Log evidence of the chosen level, in nats, and how much more it is than that of the hub alone.

        ln p(y) with the models integrated out: the more, the better. It is exact for the hub, for clusters, and up to
        640 coefficients in all; other graphs have it up to a standard error. Values compare between models of the
        same rows, scaling and noise: a constant of these is left out.

        ``criterion`` in ``path_`` is the negative, to which graphs add what it takes to describe them.

        Parameters
        ----------
        n_probes : int
            Random signs per coefficient where the evidence is sampled: four times as many halve the error.

        Returns
        -------
        LevelEvidence
            With ``value``, ``standard_error`` (of both, zero where exact) and ``gain`` (positive where edges pay).

        Examples
        --------
        >>> from ggmtl import GGMTLRegressor
        >>> from ggmtl.datasets import make_clusters
        >>> data = make_clusters(3, n_tasks=12, n_features=4, n_samples=10, noise=0.3, random_state=0)
        >>> found = GGMTLRegressor().fit(data.X, data.y, tasks=data.tasks).evidence()
        >>> found.standard_error, found.gain > 3
        (0.0, True)
        """
        check_is_fitted(self, "coef_")
        return evidence_of(self.state_, n_probes, int(self.random_state or 0))

    def save(self, path: str | Path, keep_statistics: bool = False) -> None:
        """Write the model to one small file that holds data only; :func:`ggmtl.load_model` reads it.

        Parameters
        ----------
        path : str or Path
        keep_statistics : bool
            Also store the statistics of the rows, which ``partial_fit``, standard deviations of predictions,
            explanations of edges and ``evidence`` need. For classes and counts these are the rows themselves.
        """
        check_is_fitted(self, "coef_")
        write_model(path, self.get_params(deep=False), self.state_, keep_statistics)


class StateRegressor(TaskRegressor, StateEstimator):
    """Base of the regressors that hold a fitted state as ``state_``."""

    @all_or_nothing
    def fit(
        self,
        X: Any,
        y: Any = None,
        tasks: Any = None,
        *,
        sample_weight: Any = None,
        groups: Any = None,
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
            Weights of the rows; a weight of two counts a row twice.
        groups : array of shape (rows,), optional
            Rows of one group stay in one fold.
        task_features : data frame, optional
            What is known about the tasks: one row per task, the task in the index or in the task column. The common
            model becomes a function of these columns, each as strongly as the data say, and near tasks, by longitude
            and latitude, get near models. Numbers, truth values, dates and categories are understood. The table may
            have tasks that are not in `X`; missing values are refused.

        Returns
        -------
        self
        """
        known = self._read_known(task_features)
        statistics, form, curves, trial = self._collect(X, y, tasks, sample_weight, groups)
        asked = {} if trial is None else {"trial": trial}
        return self._fit(statistics, form, curves, **known, **asked)

    @all_or_nothing
    def fit_statistics(self, statistics: TaskStatistics, *, task_features: Any = None):
        """Fit from sufficient statistics, without rows.

        Statistics without folds leave nothing to validate on: strengths are then chosen by evidence. `task_features`
        is as in ``fit``.
        """
        curves, plain = self._checked(statistics).curves, replace(statistics, curves=None)
        return self._fit(plain, InputForm(), curves, **self._read_known(task_features))

    def _read_known(self, task_features: Any) -> dict[str, Any]:
        return {} if task_features is None else {"task_features": read_task_features(task_features, self.task)}

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

        By default everything is learned anew from the statistics of all rows, so the result is that of
        ``fit_statistics(forget · old + new)``, and costs a fit. With ``relearn=False`` graph, strengths and scaling
        stay, and only the models follow the rows: one linear solve. The statistics are the same either way, so that
        many cheap calls and a last one with ``relearn=True`` end where one call with all their rows does, but for the
        folds: the rows of a call are dealt among themselves. A row that is sent again may then be held out in one copy
        and learned from in the other; ``groups`` keep such rows together. New tasks are welcome in long form; with
        ``relearn=False`` they are attached as by ``add_task``.

        Parameters
        ----------
        X, y, tasks, sample_weight
            As in ``fit``.
        forget : float
            What an old row counts beside a new one, in (0, 1].
        groups : array of shape (rows,), optional
            Rows of one group stay in one fold, also those of groups that earlier rows were in.
        relearn : bool
            Whether to learn graph and strengths anew; ``path_`` and ``validation_error_`` are those of the last time.
        task_features : data frame, optional
            What is known about tasks that are new, where ``fit`` was given ``task_features``.

        Returns
        -------
        self
        """
        if self.loss != "squared":
            refuse(self, "partial_fit")
        if not hasattr(self, "coef_"):
            return self.fit(X, y, tasks, sample_weight=sample_weight, groups=groups, task_features=task_features)
        more = more_features(self.state_, self._read_known(task_features).get("task_features"))
        statistics, form = more_rows(self, read_more(self, X, y, tasks, sample_weight, groups), forget)
        if relearn:
            known = {} if more is None else {"task_features": more}
            return self._fit(statistics, form, self.scaling_.curves, **known)
        return self._show(replace(with_rows(self.state_, statistics, more), form=form))

    def predict(
        self,
        X: Any,
        tasks: Any = None,
        return_std: bool = False,
        *,
        unseen: str | None = None,
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
        task_features : data frame, optional
            What is known about tasks that were not in the training data, as in ``fit``. Their models follow from it.
            Rows of other tasks are not used.

        Returns
        -------
        array of shape (rows,), or (rows, n_tasks) where ``fit`` was given one task per column of y; with
        ``return_std`` a pair of such arrays
        """
        known = self._read_known(task_features)
        values = self._predict(X, tasks, unseen, **known)
        if not return_std:
            return values
        return values, self._deviations(X, tasks, known).reshape(np.shape(values))

    def _deviations(self, X: Any, tasks: Any, known: dict[str, Any], of_mean: bool = False) -> np.ndarray:
        """Standard deviation of a new observation, or of the mean, about every prediction, in the target's units."""
        matrix, labels, position = self._located(X, tasks)
        state, n = self.state_, len(self.tasks_)
        rows = self.scaling_.design_rows(matrix)
        rows = np.repeat(rows, n, axis=0) if labels is None else rows
        joint, ratios = posterior(state), noise_ratios(state)
        if known and labels is not None and (position < 0).any():
            new, z = self._new_tasks(labels[position < 0], known["task_features"])
            joint, ratios = with_unseen(state, joint, ratios, z)
            there = locate_tasks(new, labels) if len(new) else position
            position = np.where((position < 0) & (there >= 0), n + there, position)
        return joint.standard_deviations(rows, position, ratios, of_mean=of_mean) * self.scaling_.target_scale

    def _located(self, X: Any, tasks: Any) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        """Features and labels of rows, and the task of every prediction, −1 where unseen."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            matrix, labels = self._read_rows(X, tasks)
        every = np.tile(np.arange(len(self.tasks_)), len(matrix))
        return matrix, labels, every if labels is None else locate_tasks(self.tasks_, labels)

    def _new_tasks(self, labels: np.ndarray, features: TaskFeatures) -> tuple[np.ndarray, np.ndarray]:
        """Of these labels, those that the table knows, and their z."""
        known = known_of(self.state_, "predict")
        names = np.unique(labels)
        names = names[locate_tasks(features.task_names, names) >= 0]
        return names, known.encode(known.features.same_columns(features.of_tasks(names)))

    def _models_of(
        self, labels: np.ndarray, unseen: str, task_features: TaskFeatures | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Slopes and intercept for every row; of new tasks in the table, as it implies."""
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


def models_of(state: FittedState) -> LearnedModels:
    """The fitted attributes of a state."""
    fit, family = state.level, state.family
    linear = state.scaling.is_linear
    weights = fit.edge_weights(state.settings.slopes & linear)
    present, error = weights > 0, family.held_out_error()
    attributes = {
        "state_": state,
        "path_": state.path,
        "edges_": fit.edges[present],
        "edge_weights_": weights[present],
        "coupling_": fit.coupling[linear],
        "hub_strength_": fit.hub[linear],
        "history_": list(fit.history),
        "n_iter_": max(fit.iterations, 1),
        "status_": fit.status,
        "converged_": fit.status in ("converged", "flat"),
        "validation_error_": None if error is None else error * state.scaling.target_scale,
        "criterion_": family.criterion,
        "blend_": {family.levels[name].name: weight for name, weight in family.weights.items()},
    }
    if state.outcome is not None:
        attributes["dispersion_"] = state.outcome.dispersion
    common = state.common_model() if state.settings.hub else None
    return LearnedModels(state.coefficients, state.graph, common, attributes)
