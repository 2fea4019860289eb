"""Settings of a graph fit, its result, and the refit on all rows that ends Algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from ggmtl.bilevel.inner import DEFAULT_SMOOTHING, InnerProblem, solve_inner
from ggmtl.bilevel.problem import Sparsity
from ggmtl.data.task_terms import KnownTasks
from ggmtl.graph.candidates import Candidates
from ggmtl.runtime.sizes import SIZES, Sizes
from ggmtl.statistics.least_squares import LeastSquares

# Up to this size a ridge only settles directions that no row determines.
NEGLIGIBLE_RIDGE = 1e-6


@dataclass(frozen=True)
class Settings:
    """All parameters of a graph fit; strengths are for scaled columns.

    Parameters
    ----------
    penalty : {"squared_l2", "l2", "l1"}
    candidates : Candidates
    coupling : array of shape (p,), optional
        λ per coordinate; learned where None.
    hub : bool
        Whether there is a common model; its strength is learned.
    slopes : array of bool, shape (p,)
        Which coordinates are slopes (the other, if any, is the intercept, which is never ridged).
    sparsity : Sparsity
        ξ, η, γ.
    bends : array of bool, shape (p,)
        Which coordinates are columns of curves; of length zero without curves.
    constant : array of bool, shape (p,)
        Which columns are constant within every task, and so have one coefficient for all tasks: a coefficient of one
        task could not be distinguished from its intercept. Of length zero without such columns.
    lines : bool
        Whether straight lines are levels of their own where there are curves.
    noise : {"common", "per_task", "auto"}
        Whether all tasks have the same noise variance, or each its own, by whose inverse its rows are weighted.
        "auto" until the fit has decided.
    both_noises : bool
        Whether variants of the hub under the other noise assumption are levels, too.
    blend : bool
        Whether the levels are averaged by their held-out errors; otherwise the best supported one is taken.
    known : KnownTasks, optional
        Task features and the terms made of them.
    step : float, optional
        ν of projected gradient; chosen at every step where None.
    edge_solver, hypergradient, ridge, smoothing, max_iter, tol
        As in :class:`ggmtl.GGMTLRegressor`.
    sizes : Sizes
        Which way is taken for how many tasks.
    """

    penalty: str
    candidates: Candidates
    coupling: np.ndarray | None
    hub: bool
    slopes: np.ndarray
    sparsity: Sparsity = field(default_factory=Sparsity)
    edge_solver: str = "quasi_newton"
    hypergradient: str = "exact"
    ridge: float = 1e-6
    smoothing: float = DEFAULT_SMOOTHING
    max_iter: int = 200
    tol: float = 1e-5
    bends: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=bool))
    constant: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=bool))
    lines: bool = False
    noise: str = "common"
    both_noises: bool = False
    blend: bool = True
    step: float | None = None
    known: KnownTasks | None = None
    sizes: Sizes = SIZES

    def of_columns(self, columns: np.ndarray) -> Settings:
        """The settings for some columns only, without curves."""
        coupling = None if self.coupling is None else self.coupling[columns]
        constant = self.constant[columns] if len(self.constant) else self.constant
        return replace(
            self, slopes=self.slopes[columns], coupling=coupling, bends=self.bends[:0], constant=constant, lines=False
        )

    @property
    def varying(self) -> np.ndarray:
        """Which coordinates are slopes that may differ between tasks, shape (p,)."""
        return self.slopes & ~self.constant if len(self.constant) else self.slopes

    def ridge_for(self, loss: LeastSquares) -> np.ndarray:
        """ρ per task and coordinate. The intercept has none, unless the task has no rows."""
        ridge = np.where(self.slopes, self.ridge, 0.0)
        return np.where(loss.count[:, None] > 0, ridge, max(self.ridge, 1e-10))

    def problem(
        self,
        loss: LeastSquares,
        edges: np.ndarray,
        coupling: np.ndarray,
        hub: np.ndarray,
        ridge: np.ndarray | None = None,
    ) -> InnerProblem:
        """The inner problem on the given rows; `ridge` is ρ per task and coordinate where a level has its own."""
        ridge = self.ridge_for(loss) if ridge is None else ridge
        return InnerProblem(loss, edges, coupling, hub, ridge, self.penalty, self.smoothing, self.sizes)


# End of the name of a level of straight lines, where there are levels with curves, too.
STRAIGHT = ", straight"
# End of the name of a level with the other assumption about noise: a variance per task where others have one for all.
OTHER_NOISE = ", other noise"
# Fields of a fit whose last axis has one entry per column.
_BY_COLUMN = ("coupling", "hub", "coefficients")


@dataclass(frozen=True)
class TaskMeans:
    """The part of the models that task features explain: B z_i.

    Parameters
    ----------
    effects, strength : arrays of shape (q, p)
        Transpose of B, and the strengths b of its prior.
    known : array of shape (n, q)
        z of every task.
    """

    effects: np.ndarray
    strength: np.ndarray
    known: np.ndarray

    def on_columns(self, columns: np.ndarray, width: int) -> TaskMeans:
        """Coefficients padded with zeros to `width` columns."""
        wide = np.zeros((2, len(self.effects), width))
        wide[..., columns] = self.effects, self.strength
        return replace(self, effects=wide[0], strength=wide[1])

    def on_its_columns(self, columns: np.ndarray) -> TaskMeans:
        """Only the columns that the level uses."""
        return replace(self, effects=self.effects[:, columns], strength=self.strength[:, columns])

    @property
    def models(self) -> np.ndarray:
        """B z_i of every task, shape (n, p)."""
        return self.known @ self.effects

    def of_tasks(self, tasks: np.ndarray) -> TaskMeans:
        """Those of some tasks."""
        return replace(self, known=self.known[tasks])

    def with_task(self, position: int, known: np.ndarray) -> TaskMeans:
        """Those with one more task, of which z is given, shape (q,)."""
        return replace(self, known=np.insert(self.known, position, known, axis=0))


@dataclass(frozen=True)
class GraphFit:
    """A learned graph and the models it implies.

    Parameters
    ----------
    name : str
        Name of the level.
    edges, edge_values : arrays of shape (m, 2) and (m,)
        Candidate edges and e.
    coupling, hub : arrays of shape (p,)
        λ and hub strengths, per coordinate.
    coefficients : array of shape (n, p)
        Models refitted on all rows given.
    value : float
        Of a level learned by evidence: the negative log evidence up to a constant; a graph adds its description length.
        Of a graph learned by validation: the outer objective. NaN where neither was computed, as for graphs learned
        from samples.
    iterations, status, certificate, history
        How the outer problem ended.
    reported_weights : array of shape (m,), optional
        Weights in [0, 1] to report, zero for edges not reported; None: computed from `edge_values`.
    supported : bool
        Whether the criterion prefers this graph to none, corrected for multiple comparisons.
    precisions : array of shape (n,), optional
        σ²/σ_i², the weights of every task's rows; None if all are one.
    means : TaskMeans, optional
        The part explained by task features: hub and edges then tie deviations from B z_i.
    columns : array of int, optional
        Positions of the columns that the level uses, in rising order; the coefficients of all others are zero. None:
        it uses all.
    ridge : array of shape (n, p), optional
        ρ per task and coordinate where the level has learned its own; None: that of the settings.
    search : str
        How evidence found the graph: ``"half"``, ``"one"`` or ``"two"`` edges per task, ``"clusters"``, ``"trees"`` or
        ``"all"`` candidates; empty for other levels.
    precision : array of shape (p, p), optional
        S⁻¹, where deviations from the common model are N(0, σ²S) with correlated coefficients; None: diag(hub).
    """

    name: str
    edges: np.ndarray
    edge_values: np.ndarray
    coupling: np.ndarray
    hub: np.ndarray
    coefficients: np.ndarray
    value: float
    iterations: int = 0
    status: str = "converged"
    certificate: float = 0.0
    history: tuple[float, ...] = ()
    reported_weights: np.ndarray | None = None
    supported: bool = False
    precisions: np.ndarray | None = None
    means: TaskMeans | None = None
    ridge: np.ndarray | None = None
    columns: np.ndarray | None = None
    search: str = ""
    precision: np.ndarray | None = None

    @property
    def kind(self) -> str:
        """The name without the endings for straight lines and for the other noise."""
        return self.name.removesuffix(STRAIGHT).removesuffix(OTHER_NOISE)

    def on_columns(self, columns: np.ndarray, width: int) -> GraphFit:
        """Coefficients and strengths padded with zeros to `width` columns."""
        if self.columns is not None:
            return self.on_its_columns().on_columns(columns[self.columns], width)
        wide = {name: np.zeros((*np.shape(getattr(self, name))[:-1], width)) for name in _BY_COLUMN}
        for name, values in wide.items():
            values[..., columns] = getattr(self, name)
        # Infinite strengths stand for one model for all tasks.
        wide["hub"][:] = np.where(np.isinf(self.hub).all(), np.inf, wide["hub"])
        means = self.means and self.means.on_columns(columns, width)
        ridge = None
        if self.ridge is not None:
            ridge = np.zeros((len(self.ridge), width))
            ridge[:, columns] = self.ridge
        precision = None
        if self.precision is not None:
            precision = np.zeros((width, width))
            precision[np.ix_(columns, columns)] = self.precision
        return replace(self, columns=columns, means=means, ridge=ridge, precision=precision, **wide)

    def on_its_columns(self) -> GraphFit:
        """Only the columns that the level uses."""
        if self.columns is None:
            return self
        narrow = {name: getattr(self, name)[..., self.columns] for name in _BY_COLUMN}
        means = self.means and self.means.on_its_columns(self.columns)
        ridge = None if self.ridge is None else self.ridge[:, self.columns]
        precision = None if self.precision is None else self.precision[np.ix_(self.columns, self.columns)]
        return replace(self, columns=None, means=means, ridge=ridge, precision=precision, **narrow)

    def weighed(self, loss: LeastSquares) -> LeastSquares:
        """The loss of `deviations`, with rows weighted as in this fit."""
        if self.means is not None:
            loss = loss.shifted(self.means.models)
        return loss if self.precisions is None else loss.weighted(self.precisions)

    @property
    def deviations(self) -> np.ndarray:
        """What hub and edges tie: the models less their part explained by task features; shape (n, p)."""
        return self.coefficients if self.means is None else self.coefficients - self.means.models

    @property
    def centred(self) -> GraphFit:
        """The fit of the deviations alone."""
        return self if self.means is None else replace(self, coefficients=self.deviations, means=None)

    def with_deviations(self, deviations: np.ndarray) -> GraphFit:
        """The fit with other models, given without their part explained by task features."""
        models = deviations if self.means is None else deviations + self.means.models
        return replace(self, coefficients=models)

    def common_model(self) -> np.ndarray:
        """The hub's model w_0: the mean of the models less their part explained by task features."""
        return self.deviations.mean(axis=0)

    def edge_weights(self, slopes: np.ndarray) -> np.ndarray:
        """w = λe of every candidate edge; with several λ, their geometric mean over the slopes."""
        used = self.coupling[slopes] if slopes.any() else self.coupling
        positive = used[used > 0]
        return self.edge_values * (np.exp(np.log(positive).mean()) if len(positive) else 0.0)


def on_its_columns(fit: GraphFit, loss: LeastSquares, settings: Settings) -> tuple[GraphFit, LeastSquares, Settings]:
    """A fit, a loss and the settings for the columns that the fit uses."""
    if fit.columns is None:
        return fit, loss, settings
    return fit.on_its_columns(), loss.of_columns(fit.columns), settings.of_columns(fit.columns)


def present_problem(fit: GraphFit, loss: LeastSquares, settings: Settings) -> tuple[InnerProblem, np.ndarray]:
    """Inner problem of a fit's deviations on the given rows, with its edges of positive value, and these values."""
    present = fit.edge_values > 0
    problem = settings.problem(fit.weighed(loss), fit.edges[present], fit.coupling, fit.hub, fit.ridge)
    return problem, fit.edge_values[present]


def refit(fit: GraphFit, loss: LeastSquares, settings: Settings) -> GraphFit:
    """The same graph with models refitted on `loss`. Edges of value zero are left out of the solve."""
    problem, values = present_problem(fit, loss, settings)
    return fit.with_deviations(solve_inner(problem, values, tol=1e-10).coefficients)
