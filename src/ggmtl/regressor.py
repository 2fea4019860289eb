"""GGMTLRegressor: the scikit-learn shell around the learned graph; no algebra."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from ggmtl.bilevel import EDGE_SOLVERS, Settings
from ggmtl.candidates import Candidates, as_candidates
from ggmtl.criteria import Sparsity
from ggmtl.errors import ParameterError, check_choice
from ggmtl.hypergradient import MODES
from ggmtl.inner import PENALTIES
from ggmtl.path import PathResult, fit_path
from ggmtl.shell import LearnedModels, TaskRegressor, logger, verbose_logging
from ggmtl.statistics import FoldedLoss, LeastSquares, TaskStatistics

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

    # ------------------------------------------------------------------ learning

    def _learn(self, folds: list[LeastSquares], statistics: TaskStatistics) -> LearnedModels:
        self._check_parameters()
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
            raise ParameterError('hypergradient="frozen" is for penalty="l2" and "l1"; the squared penalty has one form.')
        if self.criterion == "evidence":
            if not squared or not self.hub:
                raise ParameterError(
                    'criterion="evidence" needs penalty="squared_l2" and hub=True: only there is the marginal likelihood '
                    'in closed form and finite for every graph. Use criterion="validation".'
                )
            if not isinstance(self.coupling, str) or self.edge_entropy != "auto" or self.edge_l1 or self.edge_l2:
                raise ParameterError(
                    'criterion="evidence" learns every strength and chooses the sparsity itself: leave coupling and '
                    'edge_entropy at "auto" and edge_l1, edge_l2 at 0, or use criterion="validation".'
                )
        if self.edge_solver == "closed_form" and not (
            squared and self.edge_l1 > 0 and self.edge_l2 == 0 and self.edge_entropy == 0 and self.criterion != "evidence"
        ):
            raise ParameterError(
                'edge_solver="closed_form" is the paper\'s theorem for penalty="squared_l2", criterion="validation", '
                f"edge_l1 > 0, edge_l2 = 0, edge_entropy = 0. Got penalty={self.penalty!r}, edge_l1={self.edge_l1!r}, "
                f"edge_l2={self.edge_l2!r}, edge_entropy={self.edge_entropy!r} instead."
            )
        if not isinstance(self.coupling, str) and np.ndim(self.coupling) == 1 and not squared:
            raise ParameterError('One coupling per feature needs penalty="squared_l2". Give a single number instead.')

    # ------------------------------------------------------------------ results

    def _models(self, result: PathResult, settings: Settings) -> LearnedModels:
        fit = result.best
        weights = fit.edge_weights(settings.slopes)
        present = weights > 0
        unit = self._scaling.target_scale
        error = result.honest_error()
        attributes = {
            "edges_": fit.edges[present],
            "edge_weights_": weights[present],
            "coupling_": fit.coupling,
            "hub_strength_": fit.hub,
            "path_": result.table(unit, settings.slopes),
            "history_": list(fit.history),
            "n_iter_": max(fit.iterations, 1),
            "status_": fit.status,
            "converged_": fit.status in ("converged", "flat"),
            "validation_error_": None if error is None else float(np.sqrt(error)) * unit,
            "criterion_": result.criterion,
            "_path_result": result,
        }
        graph = result.reported_graph(self.tasks_, settings.slopes)
        common = fit.common_model() if self.hub else None
        return LearnedModels(fit.coefficients, graph, common, attributes)

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

