"""Estimators that hold a :class:`ggmtl.fit.state.FittedState`: questions about it, new tasks, and saving."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from scipy.stats import norm
from sklearn.utils.validation import check_is_fitted

from ggmtl.data.columns import feature_position, read_grid
from ggmtl.data.frames import as_table
from ggmtl.data.labels import task_position
from ggmtl.errors import ParameterError, check_share
from ggmtl.estimators.base import LearnedModels, TaskEstimator, all_or_nothing
from ggmtl.estimators.learning import one_more_task
from ggmtl.estimators.model_file import write_model
from ggmtl.estimators.outcomes import one_more_outcome
from ggmtl.evidence.level_value import LevelEvidence
from ggmtl.fit.state import FittedState
from ggmtl.graph.candidates import Candidates
from ggmtl.inference.uncertainty import effect_of, evidence_of, standard_errors
from ggmtl.inspection.summary.collect import summarize
from ggmtl.inspection.summary.words import describe, notebook_html
from ggmtl.runtime.machine import one_blas_thread
from ggmtl.runtime.sizes import SIZES, Sizes


@dataclass(eq=False, repr=False, kw_only=True)
class StateEstimator(TaskEstimator):
    """Base of the estimators that hold a fitted state as ``state_``, with the parameters that they share."""

    penalty: str = "squared_l2"
    criterion: str = "auto"
    coupling: str | float | np.ndarray = "auto"
    hub: bool = True
    edge_l2: float = 0.0
    edge_l1: float = 0.0
    edge_entropy: str | float = "auto"
    candidates: str | Candidates | np.ndarray = "knn"
    edge_solver: str = "quasi_newton"
    step: float | None = None
    hypergradient: str = "exact"
    blend: bool = True
    effects: str = "linear"
    ridge: float = 1e-6
    max_iter: int = 200
    tol: float = 1e-5
    checkpoint: str | Path | None = None
    device: str = "cpu"
    n_jobs: int | None = None
    verbose: int = 0

    # Sizes that decide between ways of computing, with what each way costs and finds. Not a parameter of the model.
    sizes: ClassVar[Sizes] = SIZES

    def _check_fitted(self, method: str) -> None:
        """Refuse a method of which nothing can be said yet."""
        check_is_fitted(self, "coef_")

    def _fitted_loss(self) -> str:
        """The loss that the models were fitted with; the parameter may have changed since."""
        check_is_fitted(self, "coef_")
        return "squared" if self.state_.outcome is None else self.state_.outcome.loss

    def _read_rows(self, X: Any, tasks: Any) -> tuple[np.ndarray, np.ndarray | None]:
        matrix, labels = super()._read_rows(X, tasks)
        state = getattr(self, "state_", None)
        if state is not None and state.outcome is not None and state.outcome.limits is not None:
            center, scale = self.scaling_.center, self.scaling_.scale
            low, high = (center + scale * end[: len(scale)] for end in state.outcome.limits)
            matrix = np.clip(matrix, low, high)
        return matrix, labels

    def _show(self, state: FittedState) -> Self:
        """Hold a state, and set the fitted attributes from it."""
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
            Features of the task, as in ``fit``; a table with its row is enough. Without it, the task counts as an
            average one.

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
        """All coefficients, for classes those of the log odds, and their standard errors, in the units of the data.

        The standard errors take the graph and the strengths as given. Their uncertainty is left out, so intervals of
        two standard errors cover the true value slightly less often than 95 % of the time.

        The columns are task, feature, coefficient and standard_error; the feature of an intercept is
        ``"(intercept)"``. The table is of the kind given to ``fit``, else of pandas or polars, whichever is
        installed, else a dict of arrays.
        """
        self._check_fitted("coefficients")
        return as_table(coefficient_columns(self), self._form.table_kind)

    def conf_int(self, level: float = 0.95) -> Any:
        """Intervals of all coefficients, in the units of the data, as a tidy table.

        The columns are task, feature, coefficient, low and high. The bounds lie as many standard errors of
        ``coefficients()`` from the coefficient as the quantiles of a normal distribution.

        Parameters
        ----------
        level : float
            Share of the intervals that should cover the true value, between 0 and 1.
        """
        self._check_fitted("conf_int")
        return as_table(interval_columns(self, level), self._form.table_kind)

    def path_table(self) -> Any:
        """``path_`` as a table: one row per level, in the order in which they were considered."""
        self._check_fitted("path_table")
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
        self._check_fitted("effect")
        position = feature_position(feature, self.feature_names_)
        values = self.scaling_.default_grid(position) if grid is None else read_grid(grid)
        place = None if task is None else task_position(task, self.tasks_)
        effect, error = effect_of(self.state_, position, values, place)
        names = np.repeat(np.array(self.feature_names_[position], dtype=str), len(values))
        columns = {"feature": names, "value": values, "effect": effect, "standard_error": error}
        return as_table(columns, self._form.table_kind)

    def summary(self) -> str:
        """What was found, in words."""
        self._check_fitted("summary")
        return describe(summarize(self))

    def _html_repr(self) -> str:
        """For notebooks: the findings of a fitted model, with scikit-learn's list of parameters below them."""
        parameters = super()._html_repr()
        if not hasattr(self, "state_"):
            return parameters
        return f"{notebook_html(summarize(self))}<details><summary>Parameters</summary>{parameters}</details>"

    def evidence(self, n_probes: int = 8) -> LevelEvidence:
        """Log evidence of the chosen level, in nats, and how much more it is than that of the hub alone.

        ln p(y) with the models integrated out; larger is better. It is exact for the hub, for clusters, and up to
        640 coefficients in all; for other graphs it has a standard error. Values compare between models of the
        same rows, scaling and noise: a constant of these is left out.

        ``criterion`` in ``path_`` is the negative, plus the description length of a graph.

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
        self._check_fitted("evidence")
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
        self._check_fitted("save")
        write_model(path, self.get_params(deep=False), self.state_, keep_statistics)


def models_of(state: FittedState) -> LearnedModels:
    """The models of a state, and the fitted attributes that show it."""
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


def coefficient_columns(model: Any) -> dict[str, np.ndarray]:
    """Task, feature, coefficient and standard error of every coefficient of a fitted model."""
    # As it was fitted: the parameter may have another value by now.
    intercept = model.state_.scaling.intercept
    names = [*model.feature_names_, *(["(intercept)"] if intercept else [])]
    values = np.column_stack([model.coef_, model.intercept_]) if intercept else model.coef_
    return {
        "task": np.repeat(model.tasks_, len(names)),
        "feature": np.tile(np.array(names, dtype=str), len(model.tasks_)),
        "coefficient": values.ravel(),
        "standard_error": standard_errors(model.state_).ravel(),
    }


def interval_columns(model: Any, level: float) -> dict[str, np.ndarray]:
    """Task, feature, coefficient and the bounds of its interval."""
    check_share("level", level)
    columns = coefficient_columns(model)
    reach, value = norm.ppf(0.5 + 0.5 * level) * columns.pop("standard_error"), columns["coefficient"]
    return columns | {"low": value - reach, "high": value + reach}


def path_columns(path: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """``path_`` by columns; a number that is not known, such as an error where nothing was held out, is NaN."""
    columns = {name: [row.get(name) for row in path] for name in dict.fromkeys(name for row in path for name in row)}
    numeric = {name for name, values in columns.items() if not any(isinstance(value, (str, bool)) for value in values)}
    return {
        name: np.array([np.nan if value is None and name in numeric else value for value in values])
        for name, values in columns.items()
    }
