"""What the models become when one edge is taken away: a low-rank update of A."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ggmtl.inner import InnerProblem, solve_inner
from ggmtl.solvers import prepare

# Beyond this condition number the low-rank update would lose too many digits: solve afresh.
_UPDATE_CONDITION = 1e6


@dataclass(frozen=True)
class WithoutEdge:
    """The models when one edge is taken away.

    Parameters
    ----------
    before, coefficients : arrays of shape (n, p)
        Models with and without the edge.
    difference_covariance : array of shape (p, p)
        Covariance of w_i − w_j without the edge, in units of σ².
    """

    before: np.ndarray
    coefficients: np.ndarray
    difference_covariance: np.ndarray


def without_edge(problem: InnerProblem, values: np.ndarray, i: int, j: int) -> WithoutEdge:
    """The models without the edge (i, j), exactly; the same models where there is no such edge.

    Squared penalty: with w = eΛ, u = w_i − w_j, Z = A⁻¹(b⊗I) and S = bᵀZ, removing w·bbᵀ from A gives

        V' = V + Z (I − wS)⁻¹ w u ,     S' = S (I − wS)⁻¹ .

    The other penalties are solved again.
    """
    solution = solve_inner(problem, values, tol=1e-11)
    edge = np.flatnonzero((problem.edges == sorted((i, j))).all(axis=1))
    if not len(edge):
        _, S = _pair_response(problem, values, solution.coefficients, i, j)
        return WithoutEdge(solution.coefficients, solution.coefficients, S)
    if problem.penalty == "squared_l2":
        strength = values[edge[0]] * problem.coupling
        Z, S = _pair_response(problem, values, solution.coefficients, i, j)
        rest = np.eye(len(strength)) - strength[:, None] * S
        if np.linalg.cond(rest) < _UPDATE_CONDITION:
            u = solution.coefficients[i] - solution.coefficients[j]
            changed = solution.coefficients + Z @ np.linalg.solve(rest, strength * u)
            return WithoutEdge(solution.coefficients, changed, S @ np.linalg.inv(rest))
    left = np.where(np.arange(len(values)) == edge[0], 0.0, values)
    changed = solve_inner(problem, left, solution.coefficients, tol=1e-11).coefficients
    _, S = _pair_response(problem, left, changed, i, j)
    return WithoutEdge(solution.coefficients, changed, S)


def _pair_response(
    problem: InnerProblem, values: np.ndarray, coefficients: np.ndarray, i: int, j: int
) -> tuple[np.ndarray, np.ndarray]:
    """Z = A⁻¹(b⊗I), shape (n, p, p), and S = bᵀZ."""
    n, p = problem.loss.moment.shape
    right = np.zeros((n, p, p))
    right[i], right[j] = np.eye(p), -np.eye(p)
    Z = prepare(problem.hessian(coefficients, values)).solve(right, tol=1e-11).require(1e-6).value
    return Z, Z[i] - Z[j]
