"""What the models become when one edge is taken away.

With w = eΛ, b = d_i − d_j and u = w_i − w_j, taking the edge (i, j) out of A leaves A' = A − w·bbᵀ, and

    V' = V + A'⁻¹(b ⊗ wu) ,     S' = bᵀA'⁻¹b ,

σ²S' being the covariance of w_i − w_j without the edge. Each is a solve with a right-hand side at two tasks. It starts
from the answer of the tasks near them, and goes on with all tasks only as far as what is left over asks for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ggmtl import kernels
from ggmtl.inner import InnerProblem, solve_inner
from ggmtl.posterior.common_model import CommonAnswer, covariance_beside_hub
from ggmtl.posterior.neighbourhood import Links, Near, near_size
from ggmtl.preconditioners import BlockJacobi
from ggmtl.solvers import DIRECT_SIZE, ConjugateGradient, Direct, Prepared, prepare
from ggmtl.system import TaskSystem

# Relative residuals, of the models and of what an edge changes: errors are then right to far better than a millionth.
# S' has the square of its residual as its error.
MODEL_TOL, CHANGE_TOL, _COVARIANCE_TOL = 3e-8, 1e-7, 3e-4
# Beside the moments of the two tasks, what may be left over of a change that starts from the tasks near them: far from
# the two, or, where only the hub leads there, the same way in all tasks, which adds up.
LEFT_OVER, HUB_LEFT_OVER = 1e-5, 2e-6
# Whatever residual is small enough, this much is asked of all tasks, and of those near the two.
_LOOSEST, _START_TOL = 0.1, 1e-5
# A factor of so few tasks costs less than the solves of S' one by one.
_FACTOR_TASKS, _FACTOR_SIZE = 60, 2000
# Below this many coefficients the tasks near a pair are not worth looking for.
_NEAR_FROM = 5000
# So many of the tasks near a pair tell S', to some thousandths where there are more.
_COVARIANCE_TASKS = 128
# So many numbers of A⁻¹b are kept at once.
_KEPT_NUMBERS = 5_000_000
# Steps after which a preconditioner that knows the graph would have been the better choice.
_STEPS = 200


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


class FewSolves:
    """Solve A V = R for a few R: conjugate gradients that need next to no preparation.

    Block-Jacobi is ready after one pass over the tasks. Where it takes too many steps, the preconditioner that knows
    the graph takes over, then and from then on.
    """

    def __init__(self, system: TaskSystem, beside: FewSolves | None = None, changed: tuple[int, ...] = ()):
        self.system = system
        # What is known of a system that differs in the edges of the tasks `changed` only.
        self._beside, self._changed = beside, list(changed)
        self._slow = beside is not None and beside._slow

    def solve(self, right: np.ndarray, start: np.ndarray | None = None, tol: float = MODEL_TOL) -> np.ndarray:
        """The solution, shape (n, p)."""
        if not self._small and not self._slow:
            found = self._quick.solve(right, start, tol)
            if found.succeeded:
                return found.value
            self._slow, start = True, found.value
        return self._thorough.solve(right, start, tol).require(1e-6).value

    def without_edge(self, system: TaskSystem, i: int, j: int) -> FewSolves:
        """For A without the edge (i, j): the blocks of all other tasks stay."""
        return FewSolves(system, self, (i, j))

    @cached_property
    def common(self) -> CommonAnswer:
        """What the common model answers, the same with and without one edge to a share of 1/n."""
        return CommonAnswer(self) if self._beside is None else self._beside.common

    def alike(self, value: np.ndarray, rest: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """V + 1 ⊗ c, c = (Σ_i G_i + ρ)⁻¹ Σ_i R_i, and what it leaves over of R: what a hub makes all tasks do alike.

        Neither edges nor the hub act on 1 ⊗ c.
        """
        if not self.system.hub.any():
            return value, rest
        shift = np.broadcast_to(np.linalg.lstsq(self._pooled, rest.sum(axis=0), rcond=None)[0], value.shape)
        return value + shift, rest - self.system.apply(shift)

    @cached_property
    def _pooled(self) -> np.ndarray:
        ridge = np.broadcast_to(self.system.ridge, self.system.shape).sum(axis=0)
        return self.system.gram.sum(axis=0) + np.diag(ridge)

    @property
    def _small(self) -> bool:
        return self.system.gram[..., 0].size <= DIRECT_SIZE

    @cached_property
    def blocks(self) -> BlockJacobi:
        """The inverse of the diagonal blocks of A."""
        if self._beside is None:
            return BlockJacobi.of(self.system)
        inverse, own = self._beside.blocks.inverse.copy(), self.system.block_diagonal()[self._changed]
        inverse[self._changed] = kernels.inverse_blocks(self.system.gram[self._changed], own)[0]
        return BlockJacobi(inverse)

    @cached_property
    def _quick(self) -> ConjugateGradient:
        if not (self.system.hub > 0).all():
            self.system.check_determined()
        return ConjugateGradient(self.system, self.blocks, _STEPS)

    @cached_property
    def _thorough(self) -> Prepared:
        return prepare(self.system)


@dataclass(frozen=True)
class Around:
    """The tasks near a pair: those that a change starts from, and those that S' is taken from; None for all tasks."""

    change: Near | None = None
    covariance: Near | None = None


def links_of(problem: InnerProblem, values: np.ndarray) -> Links | None:
    """The neighbours of every task; None where there are too few tasks for a look at some of them to pay."""
    worth = problem.penalty == "squared_l2" and problem.loss.moment.size >= _NEAR_FROM
    return Links.of(problem, values) if worth and len(problem.edges) else None


def around(links: Links | None, i: int, j: int, p: int) -> Around:
    """The tasks near i and j that save enough beside all tasks of p coefficients."""
    if links is None:
        return Around()
    near = links.near(i, j, near_size(p))
    few = links.nearest(near, _COVARIANCE_TASKS)
    change, covariance = (part if 2 * len(part.tasks) <= links.n_tasks else None for part in (near, few))
    return Around(change, covariance)


def change_without_edge(
    problem: InnerProblem,
    values: np.ndarray,
    before: np.ndarray,
    i: int,
    j: int,
    near: Near | None = None,
    solver: FewSolves | None = None,
    residual: float = 0.0,
) -> np.ndarray:
    """V' − V of the squared penalty, shape (n, p).

    Given are the models V and, where they are known, the tasks near i and j and the solver of A. Where there are such
    tasks, what is left over after them is little, and far from the two or nearly the same for every task: a norm of
    `residual` of that is small enough.
    """
    edge = _edge(problem, i, j)
    weight = values[edge].sum() * problem.coupling
    right = np.zeros_like(before)
    right[i] = weight * (before[i] - before[j])
    right[j] = -right[i]
    system = problem.system(np.where(edge, 0.0, values))
    size, tol, start = float(np.linalg.norm(right)), CHANGE_TOL, None
    if near is not None and size > 0:
        tol = min(max(tol, residual / size), _LOOSEST)
        start = np.zeros_like(right)
        own = FewSolves(near.system(system))
        start[near.tasks] = own.solve(right[near.tasks], tol=min(max(0.1 * tol, CHANGE_TOL), _START_TOL))
        if solver is not None:
            # A' is A but for the edge.
            rest, along = right - solver.system.apply(start), weight * (start[i] - start[j])
            rest[i] += along
            rest[j] -= along
            start, rest = solver.alike(start, rest)
            if np.linalg.norm(rest) <= tol * size:
                return start
    left = FewSolves(system) if solver is None else solver.without_edge(system, i, j)
    return left.solve(right, start, tol)


def without_edge(
    problem: InnerProblem,
    values: np.ndarray,
    i: int,
    j: int,
    before: np.ndarray | None = None,
    solver: FewSolves | None = None,
    near: Around | None = None,
    residual: float = 0.0,
) -> WithoutEdge:
    """The models without the edge (i, j); the same models where there is no such edge.

    Exact, but for S' of very many tasks that are all tied to one another: that is right to some thousandths.

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
    near : Around, optional
        The tasks near i and j, where they are known.
    residual : float
        As for :func:`change_without_edge`.
    """
    i, j = sorted((i, j))
    if before is None:
        before = solve_inner(problem, values, tol=1e-11).coefficients
    edge = _edge(problem, i, j)
    left = np.where(edge, 0.0, values)
    near = around(links_of(problem, values), i, j, before.shape[1]) if near is None else near
    if not edge.any():
        after = before
    elif problem.penalty == "squared_l2":
        after = before + change_without_edge(problem, values, before, i, j, near.change, solver, residual)
    else:
        after = solve_inner(problem, left, before, tol=1e-11).coefficients
    system = problem.hessian(after, left)
    reduced = None if solver is None else solver.without_edge(system, i, j)
    return WithoutEdge(before, after, difference_covariance(system, i, j, near.covariance, reduced))


def difference_covariance(
    system: TaskSystem, i: int, j: int, near: Near | None = None, solver: FewSolves | None = None
) -> np.ndarray:
    """bᵀA⁻¹b with b = d_i − d_j, shape (p, p); given the tasks near i and j, from those alone."""
    n, p = system.shape
    if not len(system.edges) and (system.hub > 0).all():
        return covariance_beside_hub(system, i, j)
    inside = None if near is None else _covariance_within(system, i, j, near, solver)
    if inside is not None:
        return inside
    if system.is_separable and n * p * p > _KEPT_NUMBERS:
        return _covariance_by_columns(system, i, j)
    right = np.zeros((n, p, p))
    right[i], right[j] = np.eye(p), -np.eye(p)
    if n <= _FACTOR_TASKS and n * p <= _FACTOR_SIZE:
        response = Direct.of(system).solve(right).value
    elif system.is_separable:
        response = _by_columns(solver or FewSolves(system), right)
    else:
        response = prepare(system).solve(right, tol=_COVARIANCE_TOL).require(1e-2).value
    left_over = right - system.apply(response)
    # bᵀA⁻¹b = bᵀX + Xᵀ(b − AX) + O(‖b − AX‖²): what is left over of an inexact solution X, once more against X.
    covariance = response[i] - response[j] + np.tensordot(response, left_over, ([0, 1], [0, 1]))
    return 0.5 * (covariance + covariance.T)


def _covariance_within(system: TaskSystem, i: int, j: int, near: Near, solver: FewSolves | None) -> np.ndarray | None:
    """The same from the tasks near i and j, bᵀX + sᵀCs; None where C takes more solves than that saves.

    Where no edge leaves them, X is zero in all other tasks; the second term is of order 1/n, and C need not be known
    well. Where some do, what the others would add is left out, and so is the second term.
    """
    partly = system.hub.any() and not (system.hub > 0).all()
    if not system.is_separable or (partly and near.is_closed):
        return None
    own, p = near.system(system), system.shape[1]
    first, second = near.places(i, j)
    right = np.zeros((len(near.tasks), p, p))
    right[first], right[second] = np.eye(p), -np.eye(p)
    small = own.gram[..., 0].size <= DIRECT_SIZE
    response = Direct.of(own).solve(right).value if small else _by_columns(FewSolves(own), right)
    covariance = response[first] - response[second]
    covariance = covariance + np.tensordot(response, right - own.apply(response), ([0, 1], [0, 1]))
    if system.hub.any() and near.is_closed:
        common = (solver or FewSolves(system)).common.within(response.sum(axis=0), np.diag(covariance))
        if common is None:
            return None
        covariance = covariance + common
    return 0.5 * (covariance + covariance.T)


def _by_columns(solver: FewSolves, right: np.ndarray) -> np.ndarray:
    """A⁻¹ of many right-hand sides, shape (n, p, r), to the accuracy that S' needs."""
    columns = [solver.solve(right[..., k].copy(), tol=_COVARIANCE_TOL) for k in range(right.shape[-1])]
    return np.stack(columns, axis=-1)


def _covariance_by_columns(system: TaskSystem, i: int, j: int) -> np.ndarray:
    """The same with one column of A⁻¹b in memory at a time."""
    covariance, solver = np.empty((system.shape[1],) * 2), FewSolves(system)
    for k in range(len(covariance)):
        right = np.zeros(system.shape)
        right[i, k], right[j, k] = 1.0, -1.0
        answer = solver.solve(right, tol=CHANGE_TOL)
        covariance[:, k] = answer[i] - answer[j]
    return 0.5 * (covariance + covariance.T)


def _edge(problem: InnerProblem, i: int, j: int) -> np.ndarray:
    return (problem.edges == sorted((i, j))).all(axis=1)


def within(system: TaskSystem, part: np.ndarray) -> TaskSystem:
    """A of the tasks of one part of the graph, their common model held at zero."""
    return Near.of(system.edges, system.edge_weights, system.shape[0], part).system(system)
