"""GGMTLRegressor: the scikit-learn shell around the learned graph; no algebra."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from ggmtl.bilevel.level import Settings
from ggmtl.data.task_data import TaskData
from ggmtl.errors import GGMTLError, ModelFileError, warn_user
from ggmtl.estimators.base import LearnedModels, TaskRegressor, all_or_nothing, logger, verbose_logging
from ggmtl.estimators.checkpoint import journal_of
from ggmtl.estimators.fitted import table_kind
from ggmtl.estimators.growing import GrowingModel
from ggmtl.estimators.model_file.state import read_model
from ggmtl.estimators.parameters import check_parameters, criterion_used, settings_of
from ggmtl.estimators.placing import placed
from ggmtl.fit.held_out import is_large
from ggmtl.fit.path import PathResult, fit_path
from ggmtl.graph.candidates import Candidates
from ggmtl.runtime.memory import require_memory
from ggmtl.statistics.least_squares import FoldedLoss, LeastSquares
from ggmtl.statistics.task_statistics import TaskStatistics


class GGMTLRegressor(GrowingModel):
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
    hypergradient : {"exact", "frozen"}
        For the penalties that are not squared.
    fit_intercept, standardize : bool
    ridge : float
        ρ, on slopes only.
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
        hypergradient: str = "exact",
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
        self.hypergradient = hypergradient
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

    @all_or_nothing
    def fit(self, X: Any, y: Any = None, tasks: Any = None, *, sample_weight: Any = None, groups: Any = None):
        """Learn every task's model and the graph."""
        self._table_kind = table_kind(X)
        return super().fit(X, y, tasks, sample_weight=sample_weight, groups=groups)

    @all_or_nothing
    def fit_statistics(self, statistics: TaskStatistics):
        """Fit from sufficient statistics, without rows."""
        self._table_kind = self._group_folds = None
        return super().fit_statistics(statistics)

    def _fit(self, statistics: TaskStatistics):
        super()._fit(statistics)
        if self.penalty == "squared_l2" and not is_large(*self._coefficients.shape):
            # What explanations ask for first is a tenth of such a fit at most. Where it cannot be had now, they will
            # say why.
            try:
                self._surveyed()
            except (GGMTLError, ArithmeticError, np.linalg.LinAlgError):
                pass
            except KeyboardInterrupt:
                # No interruption undoes a fit that is done.
                warn_user("Interrupted when the fit was done: only what explanations ask for was not prepared.")
        return self

    def _held_out(self, data: TaskData) -> Any:
        """One fold of very many tasks says all there is to know about their mean error, and is all that is kept."""
        folds = self.validation
        is_number = isinstance(folds, (int, np.integer)) and not isinstance(folds, bool) and folds >= 2
        if is_number and is_large(len(data.task_names), data.X.shape[1] + 1) and criterion_used(self) == "evidence":
            return 1.0 / folds
        return folds

    def _learn(self, folds: list[LeastSquares], statistics: TaskStatistics) -> LearnedModels:
        check_parameters(self)
        self._require_memory(folds)
        self._statistics = statistics
        self._forget_derived()
        self._attached = []
        settings, journal = settings_of(self, folds[0].n_features), journal_of(self, folds)
        with verbose_logging(self.verbose):
            result = fit_path(
                placed(self._given_up(folds), self.device),
                settings,
                self.tasks_,
                criterion=criterion_used(self),
                choose_entropy=self.edge_entropy == "auto",
                n_jobs=self.n_jobs,
                journal=journal,
            )
        self._warn_unless_converged(result)
        return self._models(result, settings)

    def _given_up(self, folds: list[LeastSquares]) -> FoldedLoss:
        """The folds for a search that may use them up: no one else holds them any longer."""
        folded = FoldedLoss(tuple(folds), self._scored_from)
        folds.clear()
        return folded

    def _require_memory(self, folds: list[LeastSquares]) -> None:
        """Beside the folds: the losses scaled, the inverse blocks in float32, and some fifty vectors."""
        n, p = folds[0].n_tasks, folds[0].n_features
        require_memory(
            8.0 * n * p * (1.5 * p + 50),
            f"the fit of {n:,} tasks with {p} coefficients each",
            "Use fewer features, fit groups of tasks apart, or use a machine with more memory.",
        )

    def _models(self, result: PathResult, settings: Settings) -> LearnedModels:
        path = {"path_": result.table(self._scaling.target_scale, settings.slopes)}
        graph = result.reported_graph(self.tasks_, settings.slopes)
        return self._learned(result, settings, graph, path)

    def _warn_unless_converged(self, result: PathResult) -> None:
        fit = result.best
        measure = "a last gain in log evidence" if result.criterion == "evidence" else "a projected gradient"
        reasons = {
            "max_iter": f"The outer problem stopped after max_iter={self.max_iter} steps with {measure} of "
            f"{fit.certificate:.1e} (tol={self.tol:g}). Increase max_iter or tol.",
            "interrupted": "The fit was interrupted: this is the best graph so far"
            + (", and fit goes on from the checkpoint when it is called again." if self.checkpoint else "."),
        }
        if fit.status in reasons:
            warn_user(reasons[fit.status], ConvergenceWarning)
        logger.info("%s: %d steps, %s", result.criterion, fit.iterations, fit.status)


# One text for all regressors.
GGMTLRegressor.fit.__doc__ = TaskRegressor.fit.__doc__
GGMTLRegressor.fit_statistics.__doc__ = TaskRegressor.fit_statistics.__doc__


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
    state = read_model(path)
    known = inspect.signature(GGMTLRegressor).parameters
    unknown = [name for name in state.parameters if name not in known]
    if unknown:
        raise ModelFileError(f"{path} has a parameter that this version of ggmtl does not know: {unknown[0]!r}.")
    try:
        return GGMTLRegressor(**state.parameters)._restore(state)
    except (KeyError, TypeError, ValueError, IndexError, GGMTLError) as error:
        raise ModelFileError(f"{path} is damaged: its parts do not fit together ({error}).") from error
