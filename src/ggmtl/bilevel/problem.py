"""The bilevel problem (Eq. 2): edge values whose models predict held-out rows best.

    min_e  F(e) = ½ Σ_i ‖X_i^val w_i(e) − y_i^val‖² + ½ξ‖e‖² + η‖e‖₁ + γH(e)         (Eq. 2a, outer problem)
    V(e) = argmin_V of the inner problem (:mod:`ggmtl.bilevel.inner`)                 (Eq. 2b)

The halves make the paper's matrix A and its hyper-gradient exact: its λ is our λ/2, its outer loss is twice ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ggmtl.bilevel.hypergradient import HyperGradient, hypergradient
from ggmtl.bilevel.inner import DEFAULT_SMOOTHING, InnerProblem, solve_inner
from ggmtl.errors import InputError, ParameterError
from ggmtl.runtime.machine import one_blas_thread
from ggmtl.statistics.least_squares import LeastSquares
from ggmtl.statistics.task_statistics import TaskStatistics


@dataclass(frozen=True, kw_only=True)
class Evaluation(HyperGradient):
    """An outer loss with all its derivatives; solves at a nearby point start from its models and adjoint.

    Parameters
    ----------
    value : float
        Outer loss, sparsity terms not included.
    coefficients : array of shape (n, p)
        Models fitted on the training part.
    """

    value: float
    coefficients: np.ndarray


@dataclass(frozen=True)
class HoldOut:
    """One training part and the rows held out from it.

    Parameters
    ----------
    problem : InnerProblem
        Training part, penalty and strengths.
    validation : LeastSquares
        Rows held out.
    mask : array of bool, shape (m,), optional
        Edges that the training rows of this part propose; the others are zero here.
    hypergradient : {"exact", "frozen"}
    """

    problem: InnerProblem
    validation: LeastSquares
    mask: np.ndarray | None = None
    hypergradient: str = "exact"

    def evaluate(
        self,
        edge_values: np.ndarray,
        coupling: np.ndarray | None = None,
        hub: np.ndarray | None = None,
        *,
        warm: Evaluation | None = None,
        tol: float = 1e-10,
    ) -> Evaluation:
        """Value and derivatives at the edge values; strengths that are given replace those of the problem."""
        strengths = {"coupling": coupling, "hub": hub}
        problem = replace(self.problem, **{name: given for name, given in strengths.items() if given is not None})
        models, adjoint = (None, None) if warm is None else (warm.coefficients, warm.adjoint)
        visible = edge_values if self.mask is None else np.where(self.mask, edge_values, 0.0)
        solution = solve_inner(problem, visible, models, tol)
        slope = self.validation.gradient(solution.coefficients)
        found = hypergradient(problem, visible, solution, slope, mode=self.hypergradient, start=adjoint, tol=tol)
        if self.mask is not None:
            found = replace(found, edges=np.where(self.mask, found.edges, 0.0))
        value = self.validation.value(solution.coefficients)
        return Evaluation(**vars(found), value=value, coefficients=solution.coefficients)


def evaluate_folds(
    folds: Sequence[HoldOut],
    edge_values: np.ndarray,
    coupling: np.ndarray | None = None,
    hub: np.ndarray | None = None,
    *,
    warm: Sequence[Evaluation] | None = None,
    tol: float = 1e-10,
) -> list[Evaluation]:
    """Outer loss of every hold-out, without sparsity terms."""
    starts = warm or [None] * len(folds)
    return [fold.evaluate(edge_values, coupling, hub, warm=start, tol=tol) for fold, start in zip(folds, starts)]


@dataclass(frozen=True)
class OuterValue:
    """F(e) and its derivatives for edges, coupling and hub, of shape (m,), (p,), (p,)."""

    value: float
    edges: np.ndarray
    coupling: np.ndarray
    hub: np.ndarray


def outer_value(evaluations: Sequence[Evaluation], sparsity: Sparsity, edge_values: np.ndarray) -> OuterValue:
    """F(e): the losses of all hold-outs plus the sparsity terms."""
    value, slope = sparsity.value_and_gradient(edge_values)
    return OuterValue(
        value + sum(evaluation.value for evaluation in evaluations),
        slope + np.sum([evaluation.edges for evaluation in evaluations], axis=0),
        np.sum([evaluation.coupling for evaluation in evaluations], axis=0),
        np.sum([evaluation.hub for evaluation in evaluations], axis=0),
    )


class BilevelProblem:
    """The paper's bilevel program on given statistics: columns as given, no intercept, no scaling.

    Parameters
    ----------
    train, validation : TaskStatistics
        Rows of the inner and of the outer problem, with the same tasks and features.
    edges : array of shape (m, 2)
        Candidate edges, as positions in ``train.task_names``.
    coupling : float or array of shape (d,)
        λ, or one λ per feature.
    penalty : {"squared_l2", "l2", "l1"}
    edge_l2, edge_l1, edge_entropy : float
        ξ, η, γ.
    ridge : float
        ρ.
    hub_strength : float or array of shape (d,), optional
        Pull to the common model.
    hypergradient : {"exact", "frozen"}
    smoothing : float
        ε of the ℓ2 and ℓ1 penalties.
    tol : float
        Relative accuracy of the linear solves.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X, tasks = rng.normal(size=(40, 2)), np.repeat([0, 1], 20)
    >>> y = X @ [1.0, 2.0] + rng.normal(size=40)
    >>> stats = TaskStatistics.from_arrays(X, y, tasks, folds=2)
    >>> problem = BilevelProblem(stats.fold(0), stats.fold(1), [[0, 1]], coupling=1.0)
    >>> value, gradient = problem.value_and_gradient(np.array([0.5]))
    >>> gradient.shape
    (1,)
    """

    def __init__(
        self,
        train: TaskStatistics,
        validation: TaskStatistics,
        edges: np.ndarray,
        coupling: float | np.ndarray,
        *,
        penalty: str = "squared_l2",
        edge_l2: float = 0.0,
        edge_l1: float = 0.0,
        edge_entropy: float = 0.0,
        ridge: float = 1e-6,
        hub_strength: float | np.ndarray | None = None,
        hypergradient: str = "exact",
        smoothing: float = DEFAULT_SMOOTHING,
        tol: float = 1e-11,
    ):
        if not np.array_equal(train.task_names, validation.task_names):
            raise InputError("train and validation must have the same tasks.")
        if train.feature_names != validation.feature_names:
            raise InputError("train and validation must have the same features.")
        edges = np.asarray(edges, dtype=np.int64).reshape(-1, 2)
        if len(edges) and (edges.min() < 0 or edges.max() >= train.n_tasks or (edges[:, 0] == edges[:, 1]).any()):
            raise InputError(f"edges must join two different positions in 0 … {train.n_tasks - 1}.")
        width = (train.n_features,)
        problem = InnerProblem(
            train.least_squares(),
            edges,
            _strength("coupling", coupling, width),
            _strength("hub_strength", 0.0 if hub_strength is None else hub_strength, width),
            np.full((1, 1), float(ridge)),
            penalty,
            smoothing,
        )
        self.sparsity = Sparsity(edge_l2, edge_l1, edge_entropy)
        self.criterion = HoldOut(problem, validation.least_squares(), hypergradient=hypergradient)
        self.tol = tol

    @property
    def edges(self) -> np.ndarray:
        """Candidate edges, shape (m, 2)."""
        return self.criterion.problem.edges

    @one_blas_thread()
    def solve(self, edge_values: np.ndarray) -> np.ndarray:
        """Models V(e), shape (n, d)."""
        return solve_inner(self.criterion.problem, self._check(edge_values), tol=self.tol).coefficients

    @one_blas_thread()
    def evaluate(self, edge_values: np.ndarray) -> Evaluation:
        """Outer loss without sparsity terms, and its derivatives for edges, coupling and hub."""
        return self.criterion.evaluate(self._check(edge_values), tol=self.tol)

    def value_and_gradient(self, edge_values: np.ndarray) -> tuple[float, np.ndarray]:
        """F(e) and its gradient, shape (m,)."""
        outer = outer_value([self.evaluate(edge_values)], self.sparsity, self._check(edge_values))
        return outer.value, outer.edges

    def _check(self, edge_values: np.ndarray) -> np.ndarray:
        values = np.asarray(edge_values, dtype=np.float64)
        if values.shape != (len(self.edges),):
            raise InputError(f"e must have shape ({len(self.edges)},). Got {values.shape} instead.")
        if not np.isfinite(values).all() or (values < 0).any():
            raise InputError("Edge values must be finite and not negative.")
        return values


def _strength(name: str, value: float | np.ndarray, shape: tuple[int]) -> np.ndarray:
    values = np.asarray(value, dtype=np.float64)
    if values.shape not in ((), shape):
        raise ParameterError(f"{name} must be a number or an array of shape {shape}. Got shape {values.shape} instead.")
    if not np.isfinite(values).all() or (values < 0).any():
        raise ParameterError(f"{name} must be finite and not negative.")
    return np.broadcast_to(values, shape).copy()


# The slope of H at zero is +∞. Below this floor H continues as a straight line, which is part of the problem.
ENTROPY_FLOOR = 1e-6


@dataclass(frozen=True)
class Sparsity:
    """The three terms, for e ≥ 0.

    Parameters
    ----------
    edge_l2, edge_l1, edge_entropy : float
        ξ, η, γ, none negative.

    Examples
    --------
    >>> value, gradient = Sparsity(edge_l1=2.0).value_and_gradient(np.array([0.5, 0.25]))
    >>> value, gradient.tolist()
    (1.5, [2.0, 2.0])
    """

    edge_l2: float = 0.0
    edge_l1: float = 0.0
    edge_entropy: float = 0.0

    def __post_init__(self):
        for name in ("edge_l2", "edge_l1", "edge_entropy"):
            value = getattr(self, name)
            if not np.isfinite(value) or value < 0:
                raise ParameterError(f"{name} must be finite and not negative. Got {value!r} instead.")

    def value_and_gradient(self, edge_values: np.ndarray) -> tuple[float, np.ndarray]:
        """Value and gradient, shape (m,)."""
        e = edge_values
        value = 0.5 * self.edge_l2 * float(e @ e) + self.edge_l1 * float(e.sum())
        gradient = self.edge_l2 * e + self.edge_l1
        if self.edge_entropy:
            floored = np.maximum(e, ENTROPY_FLOOR)
            logarithm = np.log(floored)
            entropy = -(floored * logarithm - floored) - logarithm * np.minimum(e - ENTROPY_FLOOR, 0.0)
            value += self.edge_entropy * float(entropy.sum())
            gradient = gradient - self.edge_entropy * logarithm
        return value, gradient
