"""GGMTLRegressor: the scikit-learn shell around the learned graph; no algebra."""

from __future__ import annotations

import importlib.util
import inspect
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import narwhals.stable.v1 as nw
import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from ggmtl.bilevel import EDGE_SOLVERS, GraphFit, Settings
from ggmtl.candidates import Candidates, as_candidates
from ggmtl.criteria import Sparsity
from ggmtl.errors import GGMTLError, InputError, ModelFileError, ParameterError, check_choice
from ggmtl.graph import TaskGraph
from ggmtl.hypergradient import MODES
from ggmtl.inner import PENALTIES
from ggmtl.model_file import ModelState, read_model, write_model
from ggmtl.path import FoldErrors, PathResult, fit_path
from ggmtl.posterior import (
    AttachedTask,
    Posterior,
    attach,
    insert_task,
    noise_variance,
    posterior_of,
    user_units,
)
from ggmtl.shell import LearnedModels, TaskRegressor, logger, verbose_logging
from ggmtl.statistics import FoldedLoss, LeastSquares, TaskStatistics, deal_folds
from ggmtl.tasks import TaskData, locate_tasks, read_labels, read_training

CRITERIA = ("auto", "validation", "evidence")


class GGMTLRegressor(TaskRegressor):
    """Graph-guided multi-task regression: every task's linear model, and which tasks are alike.

    The models V minimise, given edge values e ∈ [0, 1],

        ½ Σ_i ‖X_i w_i − y_i‖² + ½ Σ_ij e_ij (w_i − w_j)ᵀ Λ (w_i − w_j) + ½ Σ_i (w_i − w_0)ᵀ H (w_i − w_0) + ½ρ Σ_i ‖w_i‖²

    (w_0 is the common model, the *hub*), and the graph e, with the strengths Λ and H where they are not given, minimises
    an outer criterion. X and y are scaled by pooled totals first, so units do not matter; all results are in the
    units of the data.

    Parameters
    ----------
    task : str or int, optional
        Name (or index) of the column of X that holds the task. Alternatively pass ``tasks=`` to ``fit``.
    penalty : {"squared_l2", "l2", "l1"}
        How differences between linked models are penalised: squared; by their length (robust to a wrong edge);
        coordinate by coordinate (tasks may share some coefficients only).
    criterion : {"auto", "validation", "evidence"}
        What a good graph is: one that predicts held-out rows (the paper), or one with the highest marginal
        likelihood. ``"auto"`` takes evidence wherever it is defined (squared penalty with a hub).
    coupling : "auto", float or array of shape (d + 1,)
        Λ: learned, one number, or one per feature with the intercept last.
    hub : bool
        Whether all tasks are also drawn to a common model. ``False`` is the paper.
    edge_l2, edge_l1 : float
        ξ and η, sparsity terms of the outer problem.
    edge_entropy : "auto" or float
        γ. ``"auto"`` chooses along a sparsity path.
    candidates : "knn", "complete", array of pairs, or KNN(), Complete(), Coordinates()
        Which edges may exist.
    validation : int, float or splitter
        Folds, one share of rows to hold out (the paper: 0.2), or a scikit-learn splitter.
    edge_solver : {"quasi_newton", "projected_gradient", "closed_form"}
        How the validation criterion is minimised.
    hypergradient : {"exact", "frozen"}
        For the penalties that are not squared.
    fit_intercept, standardize : bool
    ridge : float
        ρ, on slopes only.
    unseen : {"error", "hub"}
        What ``predict`` does with a task that was not in the training data.
    max_iter : int
        Outer steps.
    tol : float
        Outer tolerance: largest entry of the projected gradient, relative to the criterion.
    n_jobs : int, optional
        Processes for cross-validation.
    random_state : int, optional
        Seed of the folds.
    verbose : int
        1: progress through the logger ``ggmtl``.

    Attributes
    ----------
    coef_, intercept_ : arrays of shape (n_tasks, d) and (n_tasks,)
        Models, in the units of the data.
    tasks_ : array of shape (n_tasks,)
        Task labels, sorted.
    graph_ : TaskGraph
        The selected edges, with weights in [0, 1] that are comparable between tasks.
    edges_, edge_weights_ : arrays of shape (m, 2) and (m,)
        All edges of the final solve and their w = λe.
    coupling_, hub_strength_ : arrays of shape (d + 1,)
        Λ and H in scaled units, intercept last.
    hub_coef_, hub_intercept_ : array of shape (d,) and float
        The common model.
    path_ : list of dict
        One entry per level considered: name, edges, honest error, criterion, whether chosen.
    validation_error_ : float or None
        Root mean squared error on rows that the models had not seen, everything relearned without them.
    history_, n_iter_, converged_, status_
        How the outer problem ended.

    Examples
    --------
    >>> import numpy as np
    >>> from ggmtl import GGMTLRegressor
    >>> rng = np.random.default_rng(0)
    >>> X, tasks = rng.normal(size=(120, 2)), np.repeat(["a", "b", "c"], 40)
    >>> slope = np.repeat([1.0, 1.1, -2.0], 40)
    >>> y = slope * X[:, 0] + 0.1 * rng.normal(size=120)
    >>> model = GGMTLRegressor().fit(X, y, tasks=tasks)
    >>> model.coef_.shape
    (3, 2)
    """

    def __init__(
        self,
        task: str | int | None = None,
        *,
        penalty: str = "squared_l2",
        criterion: str = "auto",
        coupling: str | float | np.ndarray = "auto",
        hub: bool = True,
        edge_l2: float = 0.0,
        edge_l1: float = 0.0,
        edge_entropy: str | float = "auto",
        candidates: str | Candidates | np.ndarray = "knn",
        validation: Any = 5,
        edge_solver: str = "quasi_newton",
        hypergradient: str = "exact",
        fit_intercept: bool = True,
        standardize: bool = True,
        ridge: float = 1e-6,
        unseen: str = "error",
        max_iter: int = 200,
        tol: float = 1e-5,
        n_jobs: int | None = None,
        random_state: int | None = None,
        verbose: int = 0,
    ):
        self.task = task
        self.penalty = penalty
        self.criterion = criterion
        self.coupling = coupling
        self.hub = hub
        self.edge_l2 = edge_l2
        self.edge_l1 = edge_l1
        self.edge_entropy = edge_entropy
        self.candidates = candidates
        self.validation = validation
        self.edge_solver = edge_solver
        self.hypergradient = hypergradient
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.ridge = ridge
        self.unseen = unseen
        self.max_iter = max_iter
        self.tol = tol
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    # ------------------------------------------------------------------ fitting

    def fit(self, X: Any, y: Any = None, tasks: Any = None, *, sample_weight: Any = None, groups: Any = None):
        """Learn every task's model and the graph.

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
        self._table_kind = _table_kind(X)
        return super().fit(X, y, tasks, sample_weight=sample_weight, groups=groups)

    def partial_fit(
        self, X: Any, y: Any = None, tasks: Any = None, forget: float = 1.0, *, sample_weight: Any = None
    ):
        """Learn from more rows; the old ones are not needed, their statistics are.

        Everything is learned anew from the statistics of all rows, so the result is that of
        ``fit_statistics(forget · old + new)``. New tasks are welcome.

        Parameters
        ----------
        X, y, tasks, sample_weight
            As in ``fit``.
        forget : float
            What an old row counts beside a new one, in (0, 1].

        Returns
        -------
        self
        """
        if not hasattr(self, "coef_"):
            return self.fit(X, y, tasks, sample_weight=sample_weight)
        if not isinstance(forget, (int, float)) or not 0 < forget <= 1:
            raise ParameterError(f"forget must lie above 0 and at most at 1. Got {forget!r} instead.")
        old = self._kept_statistics("partial_fit")
        data = self._read_more(X, y, tasks, sample_weight)
        faded = replace(old, cross=forget * old.cross)
        return self._fit(faded + self._collect(data, old))

    def add_task(self, name: Any, X: Any = None, y: Any = None):
        """Attach a new task without refitting the others.

        Neighbours and their strength are chosen by the evidence of the task's own rows; without rows it gets the
        common model. Rows may be as few as one.

        Parameters
        ----------
        name : str, int, …
            Label of the task, of the kind of the others.
        X, y : data frame or array of shape (rows, d), and array of shape (rows,), optional
            Its rows.

        Returns
        -------
        self
        """
        check_is_fitted(self, "coef_")
        label = self._new_label(name)
        data = None if X is None or len(X) == 0 else self._read_task(label, X, y)
        if data is None:
            width = self.n_features_in_ + 2
            rows = TaskStatistics(
                np.zeros((1, 1, width, width)), np.zeros(width - 1), label, tuple(self.feature_names_)
            )
        else:
            rows = TaskStatistics.from_data(data)
        attached = attach(self._fit_used, self._scaling.design(rows)[0], self._noise_variance())
        self._insert(label, attached)
        if self._statistics is not None:
            empty = np.zeros_like(self._statistics.cross[:, :1])
            more = replace(self._statistics, cross=empty, task_names=label)
            self._statistics = self._statistics + (
                more if data is None else self._collect(data, self._statistics)
            )
        return self

    # ------------------------------------------------------------------ using

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
        deviation = self._posterior().standard_deviations(rows, position) * self._scaling.target_scale
        return values, deviation.reshape(np.shape(values))

    def coefficients(self) -> Any:
        """All coefficients with their standard errors, in the units of the data, as a tidy table.

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
        kind = self._table_kind or next(
            (k for k in ("pandas", "polars") if importlib.util.find_spec(k)), None
        )
        return columns if kind is None else nw.from_dict(columns, backend=kind).to_native()

    def summary(self) -> str:
        """What was found, in words."""
        check_is_fitted(self, "coef_")
        from ggmtl.summary import describe, summarize

        return describe(summarize(self))

    def save(self, path: str | Path, keep_statistics: bool = False) -> None:
        """Write the model to one small file that holds data only; :func:`ggmtl.load_model` reads it.

        Parameters
        ----------
        path : str or Path
        keep_statistics : bool
            Also store the statistics of the rows, which ``partial_fit``, standard deviations of predictions and
            explanations of edges need.
        """
        check_is_fitted(self, "coef_")
        statistics = self._kept_statistics("save(keep_statistics=True)") if keep_statistics else None
        write_model(
            path,
            ModelState(
                self.get_params(deep=False),
                {name: getattr(self, name, None) for name in _FACTS}
                | {"_named": hasattr(self, "feature_names_in_")},
                self.tasks_,
                tuple(self.feature_names_),
                self._scaling,
                self._path_result,
                self.graph_,
                self._noise_variance(),
                self._standard_errors_used(),
                statistics,
            ),
        )

    # ------------------------------------------------------------------ learning

    def _learn(self, folds: list[LeastSquares], statistics: TaskStatistics) -> LearnedModels:
        self._check_parameters()
        self._statistics, self._standard_errors, self._noise, self._posterior_kept = (
            statistics,
            None,
            None,
            None,
        )
        self._table_kind = getattr(self, "_table_kind", None)
        settings = self._settings(folds[0].n_features)
        folded = FoldedLoss(tuple(folds), self._scored_from)
        with verbose_logging(self.verbose):
            result = fit_path(
                folded,
                settings,
                self.tasks_,
                criterion=self._criterion_used(),
                choose_entropy=self.edge_entropy == "auto",
                n_jobs=self.n_jobs,
            )
        self._warn_unless_converged(result)
        return self._models(result, settings)

    def _settings(self, width: int) -> Settings:
        slopes = np.ones(width, dtype=bool)
        if self.fit_intercept:
            slopes[-1] = False
        entropy = 0.0 if self.edge_entropy == "auto" else _number("edge_entropy", self.edge_entropy)
        return Settings(
            penalty=self.penalty,
            candidates=as_candidates(self.candidates),
            coupling=self._coupling(width),
            hub=bool(self.hub),
            slopes=slopes,
            sparsity=Sparsity(_number("edge_l2", self.edge_l2), _number("edge_l1", self.edge_l1), entropy),
            edge_solver=self.edge_solver,
            hypergradient=self.hypergradient,
            ridge=_number("ridge", self.ridge),
            max_iter=int(_number("max_iter", self.max_iter)),
            tol=_number("tol", self.tol),
        )

    def _coupling(self, width: int) -> np.ndarray | None:
        if isinstance(self.coupling, str):
            check_choice("coupling", self.coupling, ("auto",))
            return None
        values = np.asarray(self.coupling, dtype=np.float64)
        if values.shape not in ((), (width,)):
            raise ParameterError(
                f"coupling must be 'auto', a number, or an array with one entry per feature"
                f"{' and the intercept last' if self.fit_intercept else ''}, shape ({width},). Got shape {values.shape}."
            )
        if not np.isfinite(values).all() or (values < 0).any():
            raise ParameterError("coupling must be finite and not negative.")
        return np.broadcast_to(values, (width,)).copy()

    def _criterion_used(self) -> str:
        if self.criterion != "auto":
            return self.criterion
        plain = (
            self.penalty == "squared_l2"
            and self.hub
            and isinstance(self.coupling, str)
            and self.edge_entropy == "auto"
            and self.edge_l1 == self.edge_l2 == 0
            and self.edge_solver == "quasi_newton"
        )
        return "evidence" if plain else "validation"

    def _check_parameters(self) -> None:
        check_choice("penalty", self.penalty, PENALTIES)
        check_choice("criterion", self.criterion, CRITERIA)
        check_choice("edge_solver", self.edge_solver, EDGE_SOLVERS)
        check_choice("hypergradient", self.hypergradient, MODES)
        if isinstance(self.edge_entropy, str):
            check_choice("edge_entropy", self.edge_entropy, ("auto",))
        squared = self.penalty == "squared_l2"
        if self.hypergradient == "frozen" and squared:
            raise ParameterError(
                'hypergradient="frozen" is for penalty="l2" and "l1"; the squared penalty has one form.'
            )
        if self.criterion == "evidence":
            if not squared or not self.hub:
                raise ParameterError(
                    'criterion="evidence" needs penalty="squared_l2" and hub=True: only there is the marginal likelihood '
                    'in closed form and finite for every graph. Use criterion="validation".'
                )
            if (
                not isinstance(self.coupling, str)
                or self.edge_entropy != "auto"
                or self.edge_l1
                or self.edge_l2
            ):
                raise ParameterError(
                    'criterion="evidence" learns every strength and chooses the sparsity itself: leave coupling and '
                    'edge_entropy at "auto" and edge_l1, edge_l2 at 0, or use criterion="validation".'
                )
        if self.edge_solver == "closed_form" and not (
            squared
            and self.edge_l1 > 0
            and self.edge_l2 == 0
            and self.edge_entropy == 0
            and self.criterion != "evidence"
        ):
            raise ParameterError(
                'edge_solver="closed_form" is the paper\'s theorem for penalty="squared_l2", criterion="validation", '
                f"edge_l1 > 0, edge_l2 = 0, edge_entropy = 0. Got penalty={self.penalty!r}, edge_l1={self.edge_l1!r}, "
                f"edge_l2={self.edge_l2!r}, edge_entropy={self.edge_entropy!r} instead."
            )
        if not isinstance(self.coupling, str) and np.ndim(self.coupling) == 1 and not squared:
            raise ParameterError(
                'One coupling per feature needs penalty="squared_l2". Give a single number instead.'
            )

    # ------------------------------------------------------------------ results

    def _models(self, result: PathResult, settings: Settings) -> LearnedModels:
        path = {"path_": result.table(self._scaling.target_scale, settings.slopes)}
        graph = result.reported_graph(self.tasks_, settings.slopes)
        return self._learned(result, settings, graph, path)

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
            "validation_error_": None
            if error is None
            else float(np.sqrt(error)) * self._scaling.target_scale,
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
            self._posterior_kept = posterior_of(self._fit_used, self._folded().total, self._settings_used)
        return self._posterior_kept

    def _noise_variance(self) -> float:
        if self._noise is None:
            self._noise = noise_variance(self._fit_used, self._folded().total, self._settings_used)
        return self._noise

    def _standard_errors_used(self) -> np.ndarray:
        if self._standard_errors is None:
            self._standard_errors = self._posterior().standard_errors(self._scaling)
        return self._standard_errors

    # ------------------------------------------------------------------ growing

    def _kept_statistics(self, purpose: str) -> TaskStatistics:
        check_is_fitted(self, "coef_")
        if self._statistics is None:
            raise InputError(
                f"{purpose} needs the statistics of the rows, but the model was saved without them. "
                "Save it with keep_statistics=True."
            )
        return self._statistics

    def _read_more(self, X: Any, y: Any, tasks: Any, sample_weight: Any) -> TaskData:
        data = read_training(
            X, y, tasks, task=self.task, sample_weight=sample_weight, estimator=type(self).__name__
        )
        if (self.task is not None or tasks is not None or y is None) != self._reads_tasks:
            raise InputError(
                "The model was fitted "
                + ("with tasks: give them here too, as tasks=." if self._reads_tasks else "without tasks.")
            )
        if data.tasks.dtype.kind in "US" and self.tasks_.dtype.kind not in "US":
            raise InputError(f"The task labels must be of the kind {self.tasks_.dtype}, as in fit.")
        return self._check_features(data)

    def _check_features(self, data: TaskData) -> TaskData:
        width = data.X.shape[1]
        if width != self.n_features_in_:
            raise InputError(
                f"X has {width} features, but {type(self).__name__} is expecting {self.n_features_in_} features as input"
            )
        known = tuple(self.feature_names_)
        if (
            data.feature_names is not None
            and hasattr(self, "feature_names_in_")
            and data.feature_names != known
        ):
            raise InputError(
                "The feature names should match those that were passed during fit.\n"
                f"Fitted: {list(known)}\nGiven: {list(data.feature_names)}"
            )
        return replace(data, feature_names=known)

    def _collect(self, data: TaskData, like: TaskStatistics) -> TaskStatistics:
        """Statistics of rows, dealt into folds by the rule that dealt the others."""
        if not like.n_folds:
            return TaskStatistics.from_data(data)
        if self._scored_from or hasattr(self.validation, "split"):
            folds = self._deal(data)
        else:
            folds = deal_folds(data, like.n_folds, 0 if self.random_state is None else int(self.random_state))
        part = TaskStatistics.from_data(data, np.asarray(folds))
        missing = like.n_folds - len(part.cross)
        if missing < 0:
            raise InputError(
                f"The splitter deals the new rows into more than the {like.n_folds} folds of the others."
            )
        return replace(part, cross=np.concatenate([part.cross, np.zeros((missing, *part.cross.shape[1:]))]))

    def _new_label(self, name: Any) -> np.ndarray:
        if not self._reads_tasks and not self._target_is_matrix:
            raise InputError("The model was fitted without tasks, so there is nothing to attach a task to.")
        label = read_labels([name], "name", 1)
        if (label.dtype.kind in "US") != (self.tasks_.dtype.kind in "US"):
            raise InputError(
                f"name must be of the kind of the other labels ({self.tasks_.dtype}). Got {name!r} instead."
            )
        if locate_tasks(self.tasks_, label)[0] >= 0:
            raise InputError(f"Task {name!r} is already there. Use partial_fit to give it more rows.")
        return label

    def _read_task(self, label: np.ndarray, X: Any, y: Any) -> TaskData:
        """Rows of one new task; a task column may be there, and must then name this task."""
        frame = nw.from_native(X, eager_only=True, pass_through=True)
        if isinstance(frame, nw.DataFrame) and self.task in frame.columns:
            data = read_training(X, y, task=self.task, estimator=type(self).__name__)
            if (data.tasks != label[0]).any():
                raise InputError(f"add_task({label[0]!r}, …): column {self.task!r} of X names other tasks.")
        else:
            data = read_training(X, y, np.repeat(label, len(X)), estimator=type(self).__name__)
        return self._check_features(data)

    def _insert(self, label: np.ndarray, attached: AttachedTask) -> None:
        """Take a task in at its place among the sorted labels."""
        position = int(np.searchsorted(self.tasks_, label[0]))
        old, result, graph = self._fit_used, self._path_result, self.graph_
        fit = insert_task(old, attached, position)
        levels = [replace(level, coefficients=level.coefficients[:0]) for level in result.levels]
        levels[result.chosen] = fit
        errors = result.errors and FoldErrors(
            np.insert(result.errors.squared, position, 0.0, axis=2),
            np.insert(result.errors.count, position, 0.0, axis=1),
        )
        names = np.concatenate([self.tasks_[:position], label, self.tasks_[position:]])
        new = slice(len(old.edges), None)
        heaviest = np.zeros(len(names))
        np.maximum.at(heaviest, fit.edges.ravel(), np.repeat(fit.edge_values, 2))
        weights = np.sqrt(attached.edge_value / heaviest[fit.edges[new].sum(axis=1) - position])
        grown = TaskGraph(
            np.concatenate([graph.edges + (graph.edges >= position), fit.edges[new]]),
            np.append(graph.weights, weights),
            names,
        )
        if self._standard_errors is not None:
            T = user_units(self._scaling)
            variance = self._noise_variance() * np.diag(T @ attached.covariance @ T.T)
            self._standard_errors = np.insert(self._standard_errors, position, np.sqrt(variance), axis=0)
        self._posterior_kept, self.tasks_ = None, names
        result = PathResult(tuple(levels), errors, result.chosen, result.criterion)
        self._set_models(self._learned(result, self._settings_used, grown, {"path_": self.path_}))

    def _restore(self, state: ModelState) -> GGMTLRegressor:
        """Become the model that a file describes."""
        for name in _FACTS:
            setattr(self, name, state.facts[name])
        self.tasks_, self.feature_names_, self._scaling = state.task_names, state.feature_names, state.scaling
        self.n_features_in_ = len(state.feature_names)
        if self._named:
            self.feature_names_in_ = np.array(state.feature_names, dtype=object)
        self._statistics, self._standard_errors = state.statistics, state.standard_errors
        self._noise, self._posterior_kept = state.noise, None
        self._check_parameters()
        settings = self._settings(state.result.best.coefficients.shape[1])
        self._set_models(self._learned(state.result, settings, state.graph, {"path_": self.path_}))
        return self

    def _warn_unless_converged(self, result: PathResult) -> None:
        fit = result.best
        if fit.status == "max_iter":
            warnings.warn(
                f"The outer problem stopped after max_iter={self.max_iter} steps with a projected gradient of "
                f"{fit.certificate:.1e} (tol={self.tol:g}). Increase max_iter or tol.",
                ConvergenceWarning,
                stacklevel=4,
            )
        logger.info("%s: %d steps, %s", result.criterion, fit.iterations, fit.status)


def _number(name: str, value: Any) -> float:
    if isinstance(value, (bool, str)) or not np.isscalar(value) or not np.isfinite(value) or value < 0:
        raise ParameterError(f"{name} must be a finite number, not negative. Got {value!r} instead.")
    return float(value)


# Plain data of a fitted model that a file keeps beside its arrays.
_FACTS = ("path_", "_reads_tasks", "_target_is_matrix", "_scored_from", "_table_kind", "_named")


def load_model(path: str | Path) -> GGMTLRegressor:
    """Read a model that :meth:`GGMTLRegressor.save` wrote.

    Nothing in the file is executed. A file that is damaged, truncated, foreign or too new raises
    :class:`ggmtl.errors.ModelFileError`.
    """
    state = read_model(path)
    known = inspect.signature(GGMTLRegressor).parameters
    unknown = [name for name in state.parameters if name not in known]
    if unknown:
        raise ModelFileError(
            f"{path} has a parameter that this version of ggmtl does not know: {unknown[0]!r}."
        )
    try:
        return GGMTLRegressor(**state.parameters)._restore(state)
    except (KeyError, TypeError, ValueError, IndexError, GGMTLError) as error:
        raise ModelFileError(f"{path} is damaged: its parts do not fit together ({error}).") from error


def _table_kind(X: Any) -> str | None:
    frame = nw.from_native(X, eager_only=True, pass_through=True)
    return frame.implementation.value if isinstance(frame, nw.DataFrame) else None
