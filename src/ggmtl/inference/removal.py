"""What the models become when one edge is taken away.

With w = eΛ, b = d_i − d_j and u = w_i − w_j, taking the edge (i, j) out of A leaves A' = A − w·bbᵀ, and

    V' = V + A'⁻¹(b ⊗ wu) ,     S' = bᵀA'⁻¹b ,

σ²S' being the covariance of w_i − w_j without the edge. Each is a solve with a right-hand side at two tasks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ggmtl.bilevel.inner import InnerProblem, solve_inner
from ggmtl.inference.common_model import covariance_beside_hub
from ggmtl.inference.few_solves import MODEL_TOL, FewSolves
from ggmtl.solve.solvers import Direct, prepare
from ggmtl.solve.system import TaskSystem, edge_between

# Relative residual of what an edge changes: errors are then right to far better than a millionth. Of a change that is
# small, less is asked: a residual below that of the models themselves tells nothing.
CHANGE_TOL, _SMALL_CHANGE_TOL = 1e-10, 1e-8
# S' has the square of its residual as its error: variances are then right to a few thousandths.
_COVARIANCE_TOL = 1e-2
# A factor of so few tasks costs less than the solves of S' one by one.
_FACTOR_TASKS, _FACTOR_SIZE = 60, 700
# So many numbers of A⁻¹b are kept at once.
_KEPT_NUMBERS = 5_000_000


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


def change_without_edge(
    problem: InnerProblem,
    values: np.ndarray,
    before: np.ndarray,
    i: int,
    j: int,
    solver: FewSolves | None = None,
    start: np.ndarray | None = None,
) -> np.ndarray:
    """V' − V of the squared penalty, shape (n, p).

    Given are the models V and, where there are any, the solver of A and a change to start from.
    """
    edge = edge_between(problem.edges, i, j)
    right = pull_of_edge(before, i, j, values[edge].sum() * problem.coupling)
    system = problem.system(np.where(edge, 0.0, values))
    left = FewSolves(system) if solver is None else solver.without_edge(system, i, j)
    size = max(float(np.linalg.norm(right)), np.finfo(float).tiny)
    return left.solve(right, start, residual_of_change(size, problem.loss.moment) / size)


def residual_of_change(size: float, moment: np.ndarray) -> float:
    """The residual that a change with a right-hand side of this size may have."""
    known = MODEL_TOL * float(np.linalg.norm(moment))
    return max(CHANGE_TOL * size, min(known, _SMALL_CHANGE_TOL * size))


def pull_of_edge(models: np.ndarray, i: int, j: int, weight: np.ndarray) -> np.ndarray:
    """b ⊗ wu, shape (n, p), for w of shape (p,)."""
    right = np.zeros_like(models)
    right[i] = weight * (models[i] - models[j])
    right[j] = -right[i]
    return right


def without_edge(
    problem: InnerProblem,
    values: np.ndarray,
    i: int,
    j: int,
    before: np.ndarray | None = None,
    solver: FewSolves | None = None,
) -> WithoutEdge:
    """The models without the edge (i, j); the same models where there is no such edge.

    Parameters
    ----------
    problem : InnerProblem
    values : array of shape (m,)
        Edge values.
    i, j : int
        Positions of two tasks.
    before : array of shape (n, p), optional
        The models with the edge, where they are known.
    solver : FewSolves, optional
        Of A with the edge, where there is one.
    """
    i, j = sorted((i, j))
    if before is None:
        before = solve_inner(problem, values, tol=1e-11).coefficients
    edge = edge_between(problem.edges, i, j)
    left = np.where(edge, 0.0, values)
    if not edge.any():
        after = before
    elif problem.penalty == "squared_l2":
        after = before + change_without_edge(problem, values, before, i, j, solver)
    else:
        after = solve_inner(problem, left, before, tol=1e-11).coefficients
    system = problem.hessian(after, left)
    reduced = None if solver is None else solver.without_edge(system, i, j)
    return WithoutEdge(before, after, difference_covariance(system, i, j, reduced))


def difference_covariance(system: TaskSystem, i: int, j: int, solver: FewSolves | None = None) -> np.ndarray:
    """bᵀA⁻¹b with b = d_i − d_j, shape (p, p)."""
    n, p = system.shape
    if not len(system.edges) and (system.hub > 0).all():
        return covariance_beside_hub(system, i, j)
    if system.is_separable and n * p * p > _KEPT_NUMBERS:
        return _covariance_by_columns(system, i, j)
    return covariance_of(*response_to_pair(system, i, j, solver), system, i, j)


def response_to_pair(
    system: TaskSystem, i: int, j: int, solver: FewSolves | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """A⁻¹(b ⊗ I), to the accuracy that S' needs, and b ⊗ I, shapes (n, p, p)."""
    n, p = system.shape
    right = np.zeros((n, p, p))
    right[i], right[j] = np.eye(p), -np.eye(p)
    if n <= _FACTOR_TASKS and n * p <= _FACTOR_SIZE:
        return Direct.of(system).solve(right).value, right
    if not system.is_separable:
        return prepare(system).solve(right, tol=_COVARIANCE_TOL).require(1e-2).value, right
    solver = solver or FewSolves(system)
    return solver.solve(right, tol=_COVARIANCE_TOL), right


def covariance_of(response: np.ndarray, right: np.ndarray, system: TaskSystem, i: int, j: int) -> np.ndarray:
    """bᵀA⁻¹b = bᵀX + Xᵀ(b − AX) + O(‖b − AX‖²): what is left over of an inexact X, once more against X."""
    left_over = right - system.apply(response)
    covariance = response[i] - response[j] + np.tensordot(response, left_over, ([0, 1], [0, 1]))
    return 0.5 * (covariance + covariance.T)


def _covariance_by_columns(system: TaskSystem, i: int, j: int) -> np.ndarray:
    """The same with one column of A⁻¹b in memory at a time."""
    covariance, solver = np.empty((system.shape[1],) * 2), FewSolves(system)
    for k in range(len(covariance)):
        right = np.zeros(system.shape)
        right[i, k], right[j, k] = 1.0, -1.0
        answer = solver.solve(right, tol=CHANGE_TOL)
        covariance[:, k] = answer[i] - answer[j]
    return 0.5 * (covariance + covariance.T)
