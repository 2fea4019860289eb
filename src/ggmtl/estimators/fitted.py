"""What a fitted model can do: predict with uncertainty, show its coefficients, go into a file."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Any, Self

import narwhals.stable.v1 as nw
import numpy as np
from sklearn.utils.validation import check_is_fitted

from ggmtl.bilevel.level import GraphFit, Settings, refit
from ggmtl.data.frames import as_frame
from ggmtl.data.labels import locate_tasks
from ggmtl.errors import InputError
from ggmtl.estimators.base import LearnedModels, TaskRegressor, logger, verbose_logging
from ggmtl.estimators.level_evidence import check_evidence, evidence_used
from ggmtl.estimators.model_file.state import ModelState, write_model
from ggmtl.estimators.parameters import check_parameters, settings_of
from ggmtl.evidence.level_value import LevelEvidence
from ggmtl.fit.held_out import is_large
from ggmtl.fit.noise_choice import noise_ratios
from ggmtl.fit.path import PathResult
from ggmtl.graph.task_graph import TaskGraph
from ggmtl.inference.noise_variance import HeldOut
from ggmtl.inference.posterior import Posterior, noise_of, posterior_of
from ggmtl.inference.survey import Survey, survey_of
from ggmtl.kernels import one_blas_thread
from ggmtl.statistics.least_squares import FoldedLoss
from ggmtl.statistics.task_statistics import TaskStatistics

# Plain data of a fitted model that a file keeps beside its arrays.
_FACTS = ("path_", "_reads_tasks", "_target_is_matrix", "_scored_from", "_table_kind", "_attached", "_named")
# Folds of the groups, by label, and columns of y: kept where more rows may come.
_GROUPS, _TARGETS = "_group_folds", "_n_targets"


class FittedModel(TaskRegressor):
    """Methods of a regressor whose models come from a :class:`~ggmtl.fit.path.PathResult`."""

    hub: bool
    _path_result: PathResult
    _settings_used: Settings
    _table_kind: str | None = None
    _group_folds: dict[Any, int] | None = None
    _n_targets: int | None = None
    _ratios: np.ndarray | None = None
    _ratios_known: bool = False
    _survey: Survey | None = None
    noise: str

    def predict(self, X: Any, tasks: Any = None, return_std: bool = False) -> Any:
        """Predict the target of rows.

        Parameters
        ----------
        X : data frame or array
            As in ``fit``.
        tasks : array of shape (rows,), optional
            Task labels, where they were given to ``fit`` in this way.
        return_std : bool
            Also return the standard deviation of a new observation about each prediction.

        Returns
        -------
        array of shape (rows,), or (rows, n_tasks) where ``fit`` was given one task per column of y; with
        ``return_std`` a pair of such arrays
        """
        values = super().predict(X, tasks)
        if not return_std:
            return values
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            matrix, labels = self._read_rows(X, tasks)
        n = len(self.tasks_)
        position = np.tile(np.arange(n), len(matrix)) if labels is None else locate_tasks(self.tasks_, labels)
        rows = self._scaling.design_rows(matrix)
        rows = np.repeat(rows, n, axis=0) if labels is None else rows
        spread = self._posterior().standard_deviations(rows, position, self._noise_ratios())
        deviation = spread * self._scaling.target_scale
        return values, deviation.reshape(np.shape(values))

    def coefficients(self) -> Any:
        """All coefficients with their standard errors, in the units of the data, as a tidy table.

        The standard errors are those beside the graph and the strengths as they were learned. The doubt about these is
        left out, so intervals of two standard errors hold the truth a little less often than in 19 cases of 20.

        The columns are task, feature, coefficient and standard_error; the feature of an intercept is
        ``"(intercept)"``. The table is of the kind given to ``fit``, else of pandas or polars, whichever is
        installed, else a dict of arrays.
        """
        check_is_fitted(self, "coef_")
        names = [*self.feature_names_, *(["(intercept)"] if self.fit_intercept else [])]
        values = np.column_stack([self.coef_, self.intercept_]) if self.fit_intercept else self.coef_
        columns = {
            "task": np.repeat(self.tasks_, len(names)),
            "feature": np.tile(np.array(names, dtype=str), len(self.tasks_)),
            "coefficient": values.ravel(),
            "standard_error": self._standard_errors_used().ravel(),
        }
        return self._table(columns)

    def _table(self, columns: dict[str, np.ndarray]) -> Any:
        """A table of the kind given to ``fit``, else of pandas or polars, whichever is installed, else the dict."""
        kind: Any = self._table_kind or next((k for k in ("pandas", "polars") if importlib.util.find_spec(k)), None)
        return columns if kind is None else nw.from_dict(columns, backend=kind).to_native()

    def summary(self) -> str:
        """What was found, in words."""
        check_is_fitted(self, "coef_")
        from ggmtl.inspection.summary.collect import summarize
        from ggmtl.inspection.summary.words import describe

        return describe(summarize(self))

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
        self._kept_statistics("evidence()")
        check_evidence(self._path_result, self._settings_used.penalty)
        loss, fit = self._folded().total, self._fit_used
        if self._attached:
            # Tasks that came later have models beside the others' fixed ones; f is that of all models together.
            fit = refit(fit, loss, self._settings_used)
        return evidence_used(self._path_result, fit, loss, self._settings_used, n_probes, int(self.random_state or 0))

    def save(self, path: str | Path, keep_statistics: bool = False) -> None:
        """Write the model to one small file that holds data only; :func:`ggmtl.load_model` reads it.

        Parameters
        ----------
        path : str or Path
        keep_statistics : bool
            Also store the statistics of the rows, which ``partial_fit``, standard deviations of predictions,
            explanations of edges and ``evidence`` need.
        """
        write_model(path, self._state(keep_statistics))

    def _state(self, keep_statistics: bool = False) -> ModelState:
        """What a file holds."""
        check_is_fitted(self, "coef_")
        return ModelState(
            self.get_params(deep=False),
            self._facts(keep_statistics),
            self.tasks_,
            tuple(self.feature_names_),
            self._scaling,
            self._path_result,
            self.graph_,
            self._noise_variance(),
            self._standard_errors_used(),
            self._kept_statistics("save(keep_statistics=True)") if keep_statistics else None,
            self._noise_ratios(),
        )

    def _facts(self, keep_statistics: bool) -> dict[str, Any]:
        facts = {name: getattr(self, name, None) for name in _FACTS} | {"_named": hasattr(self, "feature_names_in_")}
        for name in (_GROUPS, _TARGETS) if keep_statistics else ():
            facts |= {name: getattr(self, name)} if getattr(self, name) else {}
        return facts

    def __getstate__(self) -> dict[str, Any]:
        """All but what explanations would work out again: that may be larger than the model."""
        return {name: value for name, value in super().__getstate__().items() if name != "_survey"}

    # ------------------------------------------------------------------ from results to attributes

    def _learned(
        self, result: PathResult, settings: Settings, graph: TaskGraph, attributes: dict[str, Any]
    ) -> LearnedModels:
        fit = result.best
        weights = fit.edge_weights(settings.slopes)
        present = weights > 0
        error = result.honest_error()
        attributes = attributes | {
            "edges_": fit.edges[present],
            "edge_weights_": weights[present],
            "coupling_": fit.coupling,
            "hub_strength_": fit.hub,
            "history_": list(fit.history),
            "n_iter_": max(fit.iterations, 1),
            "status_": fit.status,
            "converged_": fit.status in ("converged", "flat"),
            "validation_error_": None if error is None else float(np.sqrt(error)) * self._scaling.target_scale,
            "criterion_": result.criterion,
            "_path_result": result,
            "_settings_used": settings,
        }
        return LearnedModels(fit.coefficients, graph, fit.common_model() if self.hub else None, attributes)

    @property
    def _fit_used(self) -> GraphFit:
        return self._path_result.best

    def _folded(self) -> FoldedLoss:
        """The scaled loss of every fold."""
        return FoldedLoss(tuple(self._scaling.design(self._kept_statistics("this"))), self._scored_from)

    def _posterior(self) -> Posterior:
        if self._posterior_kept is None:
            self._kept_statistics("return_std=True")
            folded, n = self._folded(), len(self.tasks_)
            held_out = self._error_held_out(folded)
            with verbose_logging(int(is_large(*self._coefficients.shape))):
                logger.info("standard errors of %d tasks, once for this model", n)
                joint = posterior_of(self._fit_used, folded.total, self._settings_used, held_out=held_out)
            ratios = self._noise_ratios()
            if ratios is not None and self._fit_used.precisions is None and np.isfinite(self._fit_used.hub).all():
                joint = joint.with_noise(folded.total.gram, ratios)
            # Tasks attached later were given a prior of their own, the others held fixed.
            for label, covariance in self._attached:
                joint.covariance[locate_tasks(self.tasks_, np.array([label]))[0]] = covariance
            self._posterior_kept = joint
        return self._posterior_kept

    def _error_held_out(self, folded: FoldedLoss) -> HeldOut | None:
        errors = self._path_result.errors
        if errors is None or not folded.scored:
            return None
        squared, precisions = errors.squared[self._path_result.chosen].sum(axis=0), self._fit_used.precisions
        weighed = squared.sum() if precisions is None else squared @ precisions
        return HeldOut(float(weighed / errors.count.sum()), 1.0 - 1.0 / len(folded.parts))

    @one_blas_thread()
    def _noise_variance(self, folded: FoldedLoss | None = None) -> float:
        """σ² in scaled units; `folded` are the scaled losses, where they are at hand."""
        if self._noise is None:
            folded = folded or self._folded()
            held_out = self._error_held_out(folded)
            self._noise = noise_of(self._fit_used, folded.total, self._settings_used, held_out=held_out)
        return self._noise

    @one_blas_thread()
    def _surveyed(self) -> tuple[Survey, float]:
        """What explanations need to know of all tasks, and σ²."""
        if self._survey is None or self._noise is None:
            folded = self._folded()
            self._survey = self._survey or survey_of(self._fit_used, folded, self._settings_used)
            self._noise_variance(folded)
            self._noise_ratios(folded)
        return self._survey, self._noise_variance()

    @property
    def noise_(self) -> np.ndarray:
        """Standard deviation of every task's noise, in the units of the target, shape (n_tasks,)."""
        check_is_fitted(self, "coef_")
        ratios = self._noise_ratios()
        own = np.ones(len(self.tasks_)) if ratios is None else ratios
        return np.sqrt(self._noise_variance() * own) * self._scaling.target_scale

    def _noise_ratios(self, folded: FoldedLoss | None = None) -> np.ndarray | None:
        """σ_i²/σ² of every task, None where all are one.

        Under ``noise="auto"`` tasks that differ in noise have intervals of their own also where their rows are not
        weighed by it.
        """
        fit = self._fit_used
        if fit.precisions is not None:
            return 1.0 / fit.precisions
        if not self._ratios_known:
            self._ratios, self._ratios_known = None, True
            if self.noise != "common":
                total = (folded or self._folded()).total
                found = noise_ratios(fit.hub, total)
                # A task without rows is as noisy as the mean of all.
                self._ratios = None if found is None else np.where(total.count > 0, found, 1.0)
        return self._ratios

    def _standard_errors_used(self) -> np.ndarray:
        if self._standard_errors is None:
            self._standard_errors = self._posterior().standard_errors(self._scaling)
        return self._standard_errors

    def _forget_derived(self) -> None:
        """Drop what follows from models and statistics that change."""
        self._standard_errors = self._noise = self._posterior_kept = self._survey = self._ratios = None
        self._ratios_known = False

    def _kept_statistics(self, purpose: str) -> TaskStatistics:
        check_is_fitted(self, "coef_")
        if self._statistics is None:
            raise InputError(
                f"{purpose} needs the statistics of the rows, but the model was saved without them. "
                "Save it with keep_statistics=True."
            )
        return self._statistics

    def _restore(self, state: ModelState) -> Self:
        """Become the model that a file describes."""
        for name in _FACTS:
            setattr(self, name, state.facts[name])
        self._group_folds, self._n_targets = state.facts.get(_GROUPS), state.facts.get(_TARGETS)
        self.tasks_, self.feature_names_, self._scaling = state.task_names, state.feature_names, state.scaling
        self.n_features_in_ = len(state.feature_names)
        if self._named:
            self.feature_names_in_ = np.array(state.feature_names, dtype=object)
        self._statistics, self._standard_errors = state.statistics, state.standard_errors
        self._noise, self._posterior_kept, self._survey = state.noise, None, None
        self._ratios, self._ratios_known = state.noise_ratios, True
        check_parameters(self)
        settings = settings_of(self, state.result.best.coefficients.shape[1])
        self._set_models(self._learned(state.result, settings, state.graph, {"path_": self.path_}))
        return self


def table_kind(X: Any) -> str | None:
    """The library of a data frame, None for anything else."""
    frame = as_frame(X, "X")
    return frame.implementation.value if isinstance(frame, nw.DataFrame) else None
