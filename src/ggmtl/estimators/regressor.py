"""GGMTLRegressor: the scikit-learn shell around the fitted state; no algebra."""

from __future__ import annotations

import inspect
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from ggmtl.data.frames import as_table
from ggmtl.data.labels import locate_tasks
from ggmtl.data.task_data import TaskData
from ggmtl.errors import GGMTLError, ModelFileError, warn_user
from ggmtl.estimators.base import LearnedModels, TaskRegressor, all_or_nothing
from ggmtl.estimators.checkpoint import journal_of
from ggmtl.estimators.growing import more_rows, one_more_task, read_more
from ggmtl.estimators.model_file.state import read_model, write_model
from ggmtl.estimators.parameters import check_parameters, criterion_used, settings_of
from ggmtl.estimators.placing import placed
from ggmtl.evidence.level_value import LevelEvidence
from ggmtl.fit.family import Family, reported_graph
from ggmtl.fit.path import fit_path
from ggmtl.fit.state import FittedState
from ggmtl.graph.candidates import KNN, Candidates
from ggmtl.inference.growth import with_rows
from ggmtl.inference.model_evidence import evidence_of
from ggmtl.inference.uncertainty import noise_ratios, posterior, standard_errors, task_noise
from ggmtl.inspection.summary.collect import summarize
from ggmtl.inspection.summary.words import describe
from ggmtl.kernels import one_blas_thread
from ggmtl.runtime.memory import require_memory
from ggmtl.runtime.progress import logger, verbose_logging
from ggmtl.runtime.sizes import SIZES, Sizes
from ggmtl.statistics.least_squares import FoldedLoss, LeastSquares
from ggmtl.statistics.task_statistics import TaskStatistics


class GGMTLRegressor(TaskRegressor):
    """Graph-guided multi-task regression: every task's linear model, and which tasks are alike.

    The models V minimise, given edge values e ∈ [0, 1],

        ½ Σ_i ‖X_i w_i − y_i‖² + ½ Σ_ij e_ij (w_i − w_j)ᵀ Λ (w_i − w_j)
            + ½ Σ_i (w_i − w_0)ᵀ H (w_i − w_0) + ½ρ Σ_i ‖w_i‖²

    (w_0 is the common model, the *hub*), and the graph e, with the strengths Λ and H where they are not given,
    minimises an outer criterion. X and y are scaled by pooled totals first, so units do not matter; all results are in
    the units of the data.

    Parameters
    ----------
    task : str or int, optional
        Name (or index) of the column of X that holds the task. Alternatively pass ``tasks=`` to ``fit``.
    penalty : {"squared_l2", "l2", "l1"}
        How differences between linked models are penalised: squared; by their length (robust to a wrong edge);
        coordinate by coordinate (tasks may share some coefficients only).
    criterion : {"auto", "validation", "evidence"}
        What a good graph is: one that predicts held-out rows (the paper), or one with the highest marginal
        likelihood. ``"auto"`` takes evidence wherever it is defined (``"squared_l2"`` or ``"l1"`` with a hub) and may
        learn all strengths (coupling, edge terms and ridge at their defaults).
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
    validation : int, float, splitter or None
        Folds, one share of rows to hold out (the paper: 0.2), or a scikit-learn splitter. By evidence, very many tasks
        (n·(d + 1)² > 2¹⁸) hold out one of the folds only: their mean error is known well enough from it. None holds
        out nothing: there is no ``validation_error_``, and evidence is the only criterion.
    noise : {"auto", "common", "per_task"}
        Whether all tasks are equally noisy, or each has a variance of its own, drawn to the others', by which its rows
        are weighed. ``"auto"``, by evidence and for n·(d + 1)² ≤ 2¹⁸: where residuals say that variances differ and
        rows held out do not disagree.
    edge_solver : {"quasi_newton", "projected_gradient", "closed_form"}
        How the validation criterion is minimised.
    step : float, optional
        ν, the length of every step of ``edge_solver="projected_gradient"``, for the outer problem in scaled units. None
        chooses a length at every step such that the criterion falls.
    hypergradient : {"exact", "frozen"}
        For the penalties that are not squared.
    blend : bool
        Whether to average the levels (one model for all, a shared model with deviations, linked tasks, separate
        models) by their errors on held-out rows. ``False`` takes the best supported one.
    fit_intercept, standardize : bool
    ridge : float
        ρ, on the slopes of every level. Evidence learns the shrinkage itself and takes no more than the default.
    unseen : {"error", "hub"}
        What ``predict`` does with a task that was not in the training data.
    max_iter : int
        Outer steps at most. Evidence takes no more than 20 anyway (6 where it is sampled): later ones claim more
        certainty than there is.
    tol : float
        Outer tolerance: largest entry of the projected gradient, relative to the criterion. By evidence, steps end when
        one gains less than 10⁴ · `tol` nats, where the evidence is exact.
    checkpoint : str or Path, optional
        A file in which ``fit`` records what it has done, every few seconds. A fit that was killed goes on from there
        when it is started again with the same data and parameters; a finished one is read back at once.
    device : {"cpu", "cuda", "cuda:0", …}
        Where very many tasks are fitted by evidence: on the CPU, or on a GPU through torch. Few tasks are fitted on the
        CPU in any case, where they are faster. Results agree up to the noise of the samples that evidence draws.
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
        All edges of the final solve and their w = λe, λ the geometric mean of Λ over the slopes.
    coupling_, hub_strength_ : arrays of shape (d + 1,)
        Λ and H in scaled units, intercept last. An edge of weight w ties coefficient k by (w/λ) Λ_k.
    hub_coef_, hub_intercept_ : array of shape (d,) and float
        The common model.
    path_ : list of dict
        One entry per level considered: name, edges, honest error, criterion, whether chosen.
    validation_error_ : float or None
        Root mean squared error on rows that the models had not seen, everything relearned without them.
    noise_ : array of shape (n_tasks,)
        Standard deviation of every task's noise, in the units of the target.
    history_ : list of float
        The criterion after every outer step, the start first: the outer loss or the negative log evidence; one value
        for the hub. Where the evidence is sampled and its value not known, the factor by which the mean strength of the
        edges would have to change, after every step: it goes to one.
    status_ : {"converged", "flat", "stopped", "max_iter", "interrupted"}
        How the outer steps behind the chosen level ended. ``"flat"``: no further decrease can be told from rounding;
        ``"stopped"``: evidence took the steps that it takes by design; ``"interrupted"``: by Ctrl-C.
    n_iter_, converged_ : int and bool
        Outer steps, and whether they ended as ``"converged"`` or ``"flat"``.

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

    # Which way is taken for how many tasks. No parameter: results agree, only time and memory differ.
    sizes: ClassVar[Sizes] = SIZES

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
        noise: str = "auto",
        edge_solver: str = "quasi_newton",
        step: float | None = None,
        hypergradient: str = "exact",
        blend: bool = True,
        fit_intercept: bool = True,
        standardize: bool = True,
        ridge: float = 1e-6,
        unseen: str = "error",
        max_iter: int = 200,
        tol: float = 1e-5,
        checkpoint: str | Path | None = None,
        device: str = "cpu",
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
        self.noise = noise
        self.edge_solver = edge_solver
        self.step = step
        self.hypergradient = hypergradient
        self.blend = blend
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.ridge = ridge
        self.unseen = unseen
        self.max_iter = max_iter
        self.tol = tol
        self.checkpoint = checkpoint
        self.device = device
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    @classmethod
    def paper(
        cls,
        penalty: str = "squared_l2",
        coupling: float = 1.0,
        k: int = 10,
        edge_entropy: float = 0.01,
        edge_l1: float = 0.0,
        edge_l2: float = 0.0,
        step: float | None = None,
        max_iter: int = 200,
        **parameters: Any,
    ) -> Self:
        """Algorithm 1 as published in "Towards Interpretable Multi-Task Learning Using Bilevel Programming".

        Every task's ridge model is linked to the `k` nearest. A fifth of every task's rows is held out, and projected
        gradient lowers their error over the edge values. Then the models are refitted on all rows with these edges.
        There is no common model, and nothing is chosen by cross-validation: λ and the sparsity terms are given. The
        paper prints no values for them, so the defaults here are ours. ``fit`` warns (``ConvergenceWarning``) if
        `max_iter` steps were not enough.

        The paper's symbols, with halves on its squared terms, for which its gradient is exact:

        ======  =====================================================================================
        λ       `coupling`, and ``coupling_`` after a fit
        ξ, η    `edge_l2` and `edge_l1`
        γ       `edge_entropy`
        ν       `step`; None chooses it at every step such that the outer loss falls
        k       `k`, neighbours of every task among the candidate edges
        e       edge values in [0, 1]; ``edge_weights_`` are λe, ``graph_.weights`` are for display
        l       ½/‖w_i − w_j‖ of ``penalty="l2"``; inside :mod:`ggmtl.bilevel.inner`
        V       the models: ``coef_`` and ``intercept_``, in the units of the data
        B, E    incidence of the graph: ``edges_`` has one row (i, j) per edge
        A       matrix of the inner problem: :class:`ggmtl.solve.system.TaskSystem`
        ======  =====================================================================================

        Parameters
        ----------
        penalty : {"squared_l2", "l2"}
            The paper's two penalties.
        coupling, k, edge_entropy, edge_l1, edge_l2, step, max_iter
            λ, k, γ, η, ξ, ν, and the number of steps at most. Strengths are for scaled columns.
        **parameters
            Any other parameter of :class:`GGMTLRegressor`, such as ``task`` or ``random_state``.

        Returns
        -------
        GGMTLRegressor
            Not fitted.

        Examples
        --------
        >>> from ggmtl import GGMTLRegressor
        >>> from ggmtl.datasets import make_line
        >>> data = make_line(n_tasks=8, n_features=3, n_samples=30, random_state=0)
        >>> model = GGMTLRegressor.paper(k=3, random_state=0).fit(data.X, data.y, tasks=data.tasks)
        >>> model.converged_
        True
        """
        published = {
            "criterion": "validation",
            "hub": False,
            "blend": False,
            "validation": 0.2,
            "noise": "common",
            "edge_solver": "projected_gradient",
            # Without a common model, a column that is constant within a task leaves its model undetermined.
            "ridge": 1e-3,
        }
        given = {
            "penalty": penalty,
            "coupling": coupling,
            "candidates": KNN(k),
            "edge_entropy": edge_entropy,
            "edge_l1": edge_l1,
            "edge_l2": edge_l2,
            "step": step,
            "max_iter": max_iter,
        }
        return cls(**published | given | parameters)

    # ------------------------------------------------------------------ fitting

    def _held_out(self, data: TaskData) -> Any:
        """Very many tasks hold out one fold: their mean error is known well enough from it."""
        folds = self.validation
        is_number = isinstance(folds, (int, np.integer)) and not isinstance(folds, bool) and folds >= 2
        large = self.sizes.is_large(len(data.task_names), data.X.shape[1] + 1)
        if is_number and large and criterion_used(self) == "evidence":
            return 1.0 / folds
        return folds

    def _learn(self, folds: list[LeastSquares], statistics: TaskStatistics) -> LearnedModels:
        check_parameters(self)
        _require_memory(folds[0].n_tasks, folds[0].n_features)
        settings = settings_of(self, folds[0].n_features)
        journal = journal_of(self, folds, self.scaling_, self._form.scored_from)
        folded = FoldedLoss(tuple(folds), self._form.scored_from)
        # The search may use the losses up: no one else holds them any longer.
        folds.clear()
        with verbose_logging(self.verbose):
            family = fit_path(
                placed(folded, self.device, self.sizes),
                settings,
                statistics.task_names,
                criterion=criterion_used(self),
                choose_entropy=self.edge_entropy == "auto",
                n_jobs=self.n_jobs,
                journal=journal,
            )
        self._warn_unless_converged(family)
        state = FittedState(
            statistics.task_names,
            tuple(statistics.feature_names),
            self._form,
            self.scaling_,
            settings,
            family,
            reported_graph(family.best, statistics.task_names, settings.slopes),
            family.table(self.scaling_.target_scale, settings.slopes),
            statistics,
        )
        return _models_of(state)

    def _warn_unless_converged(self, family: Family) -> None:
        fit = family.best
        measure = "a last gain in log evidence" if family.criterion == "evidence" else "a projected gradient"
        reasons = {
            "max_iter": f"The outer problem stopped after max_iter={self.max_iter} steps with {measure} of "
            f"{fit.certificate:.1e} (tol={self.tol:g}). "
            + ("Increase max_iter or tol." if self.step is None else "Increase max_iter or tol, or change step."),
            "interrupted": "The fit was interrupted: this is the best graph so far"
            + (", and fit goes on from the checkpoint when it is called again." if self.checkpoint else "."),
        }
        if fit.status in reasons:
            warn_user(reasons[fit.status], ConvergenceWarning)
        logger.info("%s: %d steps, %s", family.criterion, fit.iterations, fit.status)

    def _become(self, state: FittedState) -> Self:
        """Show another state."""
        self._form, self.scaling_ = state.form, state.scaling
        self._set_names(state.task_names, state.feature_names)
        self._set_models(_models_of(state))
        return self

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

        Returns
        -------
        self
        """
        if not hasattr(self, "coef_"):
            return self.fit(X, y, tasks, sample_weight=sample_weight, groups=groups)
        statistics, form = more_rows(self, read_more(self, X, y, tasks, sample_weight, groups), forget)
        if relearn:
            return self._fit(statistics, form)
        return self._become(replace(with_rows(self.state_, statistics), form=form))

    @all_or_nothing
    @one_blas_thread()
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
        return self._become(one_more_task(self, name, X, y))

    # ------------------------------------------------------------------ after a fit

    def predict(self, X: Any, tasks: Any = None, return_std: bool = False, *, unseen: str | None = None) -> Any:
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
            predicts their rows with the common model, and warns with their number and labels.

        Returns
        -------
        array of shape (rows,), or (rows, n_tasks) where ``fit`` was given one task per column of y; with
        ``return_std`` a pair of such arrays
        """
        values = super().predict(X, tasks, unseen=unseen)
        if not return_std:
            return values
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            matrix, labels = self._read_rows(X, tasks)
        state, n = self.state_, len(self.tasks_)
        position = np.tile(np.arange(n), len(matrix)) if labels is None else locate_tasks(self.tasks_, labels)
        rows = self.scaling_.design_rows(matrix)
        rows = np.repeat(rows, n, axis=0) if labels is None else rows
        spread = posterior(state).standard_deviations(rows, position, noise_ratios(state))
        return values, (spread * self.scaling_.target_scale).reshape(np.shape(values))

    @property
    def noise_(self) -> np.ndarray:
        """Standard deviation of every task's noise, in the units of the target, shape (n_tasks,)."""
        check_is_fitted(self, "coef_")
        return task_noise(self.state_)

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
            "standard_error": standard_errors(self.state_).ravel(),
        }
        return as_table(columns, self._form.table_kind)

    def summary(self) -> str:
        """What was found, in words."""
        check_is_fitted(self, "coef_")
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
        check_is_fitted(self, "coef_")
        return evidence_of(self.state_, n_probes, int(self.random_state or 0))

    def save(self, path: str | Path, keep_statistics: bool = False) -> None:
        """Write the model to one small file that holds data only; :func:`ggmtl.load_model` reads it.

        Parameters
        ----------
        path : str or Path
        keep_statistics : bool
            Also store the statistics of the rows, which ``partial_fit``, standard deviations of predictions,
            explanations of edges and ``evidence`` need.
        """
        check_is_fitted(self, "coef_")
        write_model(path, self.get_params(deep=False), self.state_, keep_statistics)


def _require_memory(n: int, p: int) -> None:
    """Memory for a fit on top of the folds: scaled losses, inverse blocks in float32, and some fifty vectors."""
    require_memory(
        8.0 * n * p * (1.5 * p + 50),
        f"the fit of {n:,} tasks with {p} coefficients each",
        "Use fewer features, fit groups of tasks apart, or use a machine with more memory.",
    )


def _models_of(state: FittedState) -> LearnedModels:
    """The fitted attributes of a state."""
    fit, family = state.level, state.family
    weights = fit.edge_weights(state.settings.slopes)
    present, error = weights > 0, family.held_out_error()
    attributes = {
        "state_": state,
        "path_": state.path,
        "edges_": fit.edges[present],
        "edge_weights_": weights[present],
        "coupling_": fit.coupling,
        "hub_strength_": fit.hub,
        "history_": list(fit.history),
        "n_iter_": max(fit.iterations, 1),
        "status_": fit.status,
        "converged_": fit.status in ("converged", "flat"),
        "validation_error_": None if error is None else float(np.sqrt(error)) * state.scaling.target_scale,
        "criterion_": family.criterion,
    }
    common = state.common_model() if state.settings.hub else None
    return LearnedModels(fit.coefficients, state.graph, common, attributes)


def load_model(path: str | Path) -> GGMTLRegressor:
    """Read a model that :meth:`GGMTLRegressor.save` wrote.

    Nothing in the file is executed. A file that is damaged, truncated, foreign or too new raises
    :class:`ggmtl.errors.ModelFileError`.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from ggmtl.datasets import make_clusters
    >>> data = make_clusters(2, n_tasks=6, n_features=2, random_state=0)
    >>> model = GGMTLRegressor().fit(data.X, data.y, tasks=data.tasks)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(Path(folder) / "model.ggmtl")
    ...     copy = load_model(Path(folder) / "model.ggmtl")
    >>> copy.tasks_.tolist(), bool((copy.coef_ == model.coef_).all())
    ([0, 1, 2, 3, 4, 5], True)
    """
    parameters, fields = read_model(path)
    known = inspect.signature(GGMTLRegressor).parameters
    unknown = [name for name in parameters if name not in known]
    if unknown:
        raise ModelFileError(f"{path} has a parameter that this version of ggmtl does not know: {unknown[0]!r}.")
    try:
        model = GGMTLRegressor(**parameters)
        check_parameters(model)
        width = fields["family"].best.coefficients.shape[1]
        return model._become(FittedState(settings=settings_of(model, width), **fields))
    except (KeyError, TypeError, ValueError, IndexError, GGMTLError) as error:
        raise ModelFileError(f"{path} is damaged: its parts do not fit together ({error}).") from error
