"""Inner problem: the models V(e) for given edge values.

    squared_l2   ½ Σ_i ‖X_i w_i − y_i‖² + ½ Σ_ij e_ij uᵀΛu + hub + ridge      (Eq. 2b)   one linear solve
    l2           … + ½λ Σ_ij e_ij √(‖u‖² + ε²) …                             (Eq. 7)    majorise–minimise, then Newton
    l1           … + ½λ Σ_ij e_ij Σ_k √(u_k² + ε²) …                         (ours)     the same, per coordinate

with u = w_i − w_j. ε is part of the problem: it keeps every derivative finite where tasks fuse. The majoriser (Eq. 9)
of ½λ e s at s₀ is ½λ e (‖u‖² + ε² + s₀²)/(2 s₀), a quadratic with edge weight λ e l, l = ½/s₀ (Eq. 8).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ggmtl.errors import ParameterError, SolverError, check_choice
from ggmtl.runtime.sizes import SIZES, Sizes
from ggmtl.solve.solvers import Prepared, prepare
from ggmtl.solve.system import Curvature, TaskSystem
from ggmtl.statistics.least_squares import LeastSquares

PENALTIES = ("squared_l2", "l2", "l1")
DEFAULT_SMOOTHING = 1e-3
_MAX_STEPS = 200


@dataclass(frozen=True)
class InnerSolution:
    """Models of all tasks, and the quantities that the hyper-gradient reuses.

    Parameters
    ----------
    coefficients : array of shape (n, p)
        V(e).
    force : array of shape (m, p)
        ∂²(coupling)/∂e_ij ∂w_i: Λu, ½λ u/s or ½λ u_k/s_k.
    prepared : Direct or ConjugateGradient
        The system of the majoriser at the solution (for the squared penalty: A itself).
    iterations : int
        Linear solves taken.
    residual : float
        Norm of the inner gradient over the norm of XᵀY: the certificate.
    """

    coefficients: np.ndarray
    force: np.ndarray
    prepared: Prepared
    iterations: int
    residual: float


@dataclass(frozen=True)
class InnerProblem:
    """Loss, penalty and strengths: the inner problem without its edge values.

    Parameters
    ----------
    loss : LeastSquares
        Training rows.
    edges : array of shape (m, 2)
        Candidate edges.
    coupling : array of shape (p,)
        Λ; all entries equal for the penalties that are not squared.
    hub : array of shape (p,)
        Strength of the common model, zeros for none.
    ridge : array that broadcasts to (n, p)
        ρ.
    penalty : {"squared_l2", "l2", "l1"}
    smoothing : float
        ε.
    sizes : Sizes
        Numbers of unknowns that decide between solvers.
    """

    loss: LeastSquares
    edges: np.ndarray
    coupling: np.ndarray
    hub: np.ndarray
    ridge: np.ndarray
    penalty: str = "squared_l2"
    smoothing: float = DEFAULT_SMOOTHING
    sizes: Sizes = SIZES

    def __post_init__(self):
        check_choice("penalty", self.penalty, PENALTIES)
        if self.penalty != "squared_l2" and np.ptp(self.coupling) > 0:
            raise ParameterError(
                f'Per-feature coupling needs penalty="squared_l2": with penalty={self.penalty!r} the coupling must be '
                "one number."
            )

    def differences(self, coefficients: np.ndarray) -> np.ndarray:
        """u = w_i − w_j of every edge, shape (m, p)."""
        return coefficients[self.edges[:, 0]] - coefficients[self.edges[:, 1]]

    def lengths(self, differences: np.ndarray) -> np.ndarray:
        """s of every edge, shape (m, 1) for ℓ2, (m, p) for ℓ1."""
        square = differences**2
        if self.penalty == "l2":
            square = square.sum(axis=1, keepdims=True)
        return np.sqrt(square + self.smoothing**2)

    def force(self, differences: np.ndarray) -> np.ndarray:
        """Pull between the two tasks per unit of e_ij, shape (m, p)."""
        if self.penalty == "squared_l2":
            return differences * self.coupling
        return 0.5 * self.coupling * differences / self.lengths(differences)

    def objective(self, coefficients: np.ndarray, edge_values: np.ndarray) -> float:
        """Value of the inner problem."""
        u = self.differences(coefficients)
        if self.penalty == "squared_l2":
            coupling = 0.5 * edge_values @ (u**2 @ self.coupling)
        else:
            coupling = 0.5 * self.coupling[0] * edge_values @ self.lengths(u).sum(axis=1)
        return self.loss.value(coefficients) + float(coupling) + self._quadratic_rest(coefficients)

    def gradient(self, coefficients: np.ndarray, edge_values: np.ndarray) -> np.ndarray:
        """Gradient of the inner problem, shape (n, p)."""
        out = self.loss.gradient(coefficients)
        out += self.hub * (coefficients - coefficients.mean(axis=0)) + self.ridge * coefficients
        pull = edge_values[:, None] * self.force(self.differences(coefficients))
        np.add.at(out, self.edges[:, 0], pull)
        np.subtract.at(out, self.edges[:, 1], pull)
        return out

    def system(self, edge_weights: np.ndarray) -> TaskSystem:
        """A with the given weights in place of e."""
        return TaskSystem(
            self.loss.gram, self.edges, edge_weights, self.coupling, self.hub, self.ridge, sizes=self.sizes
        )

    def majoriser(self, coefficients: np.ndarray, edge_values: np.ndarray) -> TaskSystem:
        """The quadratic that touches the objective from above at `coefficients`."""
        if self.penalty == "squared_l2":
            return self.system(edge_values)
        weights = 0.5 * edge_values[:, None] / self.lengths(self.differences(coefficients))
        return self.system(weights[:, 0] if self.penalty == "l2" else weights)

    def hessian(self, coefficients: np.ndarray, edge_values: np.ndarray) -> TaskSystem:
        """Second derivative of the inner problem at `coefficients`."""
        if self.penalty == "squared_l2":
            return self.system(edge_values)
        u = self.differences(coefficients)
        s = self.lengths(u)
        if self.penalty == "l1":
            return self.system(0.5 * edge_values[:, None] * self.smoothing**2 / s**3)
        curvature = Curvature(u, 0.5 * self.coupling[0] * edge_values / s[:, 0] ** 3)
        return replace(self.system(0.5 * edge_values / s[:, 0]), curvature=curvature)

    def _quadratic_rest(self, coefficients: np.ndarray) -> float:
        spread = ((coefficients - coefficients.mean(axis=0)) ** 2).sum(axis=0)
        return 0.5 * float(self.hub @ spread + (self.ridge * coefficients**2).sum())


def solve_inner(
    problem: InnerProblem, edge_values: np.ndarray, start: np.ndarray | None = None, tol: float = 1e-10
) -> InnerSolution:
    """Solve the inner problem for given edge values, to a relative gradient norm of `tol`."""
    if problem.penalty == "squared_l2":
        prepared = prepare(problem.system(edge_values))
        solution = prepared.solve(problem.loss.moment, start, tol).require(1e-6)
        force = problem.force(problem.differences(solution.value))
        return InnerSolution(solution.value, force, prepared, 1, solution.residual)
    return _solve_robust(problem, edge_values, start, tol)


def _solve_robust(
    problem: InnerProblem, edge_values: np.ndarray, start: np.ndarray | None, tol: float
) -> InnerSolution:
    """Newton steps where they lower the objective, majorise–minimise steps otherwise."""
    scale = max(np.linalg.norm(problem.loss.moment), np.finfo(float).tiny)
    if start is None:
        start = prepare(problem.system(edge_values)).solve(problem.loss.moment).require(1e-6).value
    value, steps = start, 0
    while True:
        gradient = problem.gradient(value, edge_values)
        residual = float(np.linalg.norm(gradient) / scale)
        if residual <= tol or steps == _MAX_STEPS:
            break
        steps += 1
        objective = problem.objective(value, edge_values)
        candidate = _newton_step(problem, edge_values, value, gradient, residual)
        if candidate is None:
            majoriser = prepare(problem.majoriser(value, edge_values))
            candidate = majoriser.solve(problem.loss.moment, value, min(1e-2 * residual, 1e-4)).require(1e-4).value
            if problem.objective(candidate, edge_values) >= objective:
                break
        value = candidate
    if residual > max(tol, 1e-6):
        raise SolverError(
            f"The inner problem with penalty={problem.penalty!r} stopped at a relative gradient of {residual:.1e} "
            f"after {steps} steps. Use weaker coupling or a larger ridge."
        )
    prepared = prepare(problem.majoriser(value, edge_values))
    return InnerSolution(value, problem.force(problem.differences(value)), prepared, steps, residual)


def _newton_step(
    problem: InnerProblem, edge_values: np.ndarray, value: np.ndarray, gradient: np.ndarray, residual: float
) -> np.ndarray | None:
    """A damped Newton step that lowers the objective, or None if there is none."""
    objective = problem.objective(value, edge_values)
    rounding = 1e-13 * abs(objective)
    hessian = prepare(problem.hessian(value, edge_values))
    step = hessian.solve(-gradient, tol=min(0.1, residual)).value
    slope = float((gradient * step).sum())
    if slope >= 0:
        return None
    for length in (1.0, 0.5, 0.25):
        candidate = value + length * step
        lower = problem.objective(candidate, edge_values)
        if lower <= objective + 1e-4 * length * slope - rounding:
            return candidate
    # Near the minimum the decrease is below the rounding of the objective; the gradient still shows progress.
    candidate = value + step
    shrinks = np.linalg.norm(problem.gradient(candidate, edge_values)) < 0.5 * np.linalg.norm(gradient)
    return candidate if shrinks and abs(slope) < 1e4 * rounding else None
