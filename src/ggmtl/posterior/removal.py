"""What the models become when one edge is taken away.

With w = eΛ, b = d_i − d_j and u = w_i − w_j, taking the edge (i, j) out of A leaves A' = A − w·bbᵀ, and

    V' = V + A'⁻¹(b ⊗ wu) ,     S' = bᵀA'⁻¹b ,

σ²S' being the covariance of w_i − w_j without the edge. Each is a solve with a right-hand side at two tasks. It starts
from the answer of their own part of the graph, which nothing but the hub ties to the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from ggmtl import kernels
from ggmtl.inner import InnerProblem, solve_inner
from ggmtl.preconditioners import BlockJacobi
from ggmtl.solvers import DIRECT_SIZE, ConjugateGradient, Direct, prepare
from ggmtl.system import TaskSystem

# Relative residuals, of the models and of what an edge changes: errors are then right to far better than a millionth.
# S' has the square of its residual as its error.
MODEL_TOL, CHANGE_TOL, _COVARIANCE_TOL = 1e-8, 1e-7, 3e-4
# A factor of so few tasks costs less than the solves of S' one by one.
_FACTOR_TASKS, _FACTOR_SIZE = 60, 2000
# Below this many coefficients a part of the graph is not worth looking for.
_PARTS_FROM = 5000
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

    def __init__(self, system: TaskSystem, blocks: BlockJacobi | None = None):
        self.system = system
        self._blocks = blocks
        self._slow = False

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
        if self._small or self._slow:
            return FewSolves(system)
        pair, inverse = [i, j], self.blocks.inverse.copy()
        inverse[pair] = kernels.inverse_blocks(system.gram[pair], system.block_diagonal()[pair])[0]
        return FewSolves(system, BlockJacobi(inverse))

    @property
    def _small(self) -> bool:
        return self.system.gram[..., 0].size <= DIRECT_SIZE

    @cached_property
    def blocks(self) -> BlockJacobi:
        """The inverse of the diagonal blocks of A."""
        return BlockJacobi.of(self.system) if self._blocks is None else self._blocks

    @cached_property
    def _quick(self) -> ConjugateGradient:
        if not (self.system.hub > 0).all():
            self.system.check_determined()
        return ConjugateGradient(self.system, self.blocks, _STEPS)

    @cached_property
    def _thorough(self) -> Direct | ConjugateGradient:
        return prepare(self.system)


def part_of(problem: InnerProblem, i: int) -> np.ndarray | None:
    """Positions of the tasks that edges tie to task i, directly or through others; None where that saves little."""
    n, (first, second) = len(problem.loss.moment), problem.edges.T
    if problem.loss.moment.size < _PARTS_FROM:
        return None
    links = coo_array((np.ones(len(first)), (first, second)), shape=(n, n))
    label = connected_components(links, directed=False)[1]
    part = np.flatnonzero(label == label[i])
    return part if 2 * len(part) <= n else None


def change_without_edge(
    problem: InnerProblem,
    values: np.ndarray,
    before: np.ndarray,
    i: int,
    j: int,
    part: np.ndarray | None = None,
    solver: FewSolves | None = None,
) -> np.ndarray:
    """V' − V of the squared penalty, shape (n, p).

    Given are the models V and, where they are known, the part of the graph that i and j are in and the solver of A.
    """
    edge = _edge(problem, i, j)
    pull = values[edge].sum() * problem.coupling * (before[i] - before[j])
    right = np.zeros_like(before)
    right[i], right[j] = pull, -pull
    system = problem.system(np.where(edge, 0.0, values))
    left = FewSolves(system) if solver is None else solver.without_edge(system, i, j)
    return left.solve(right, _start(system, right[..., None], part)[..., 0], CHANGE_TOL)


def without_edge(
    problem: InnerProblem,
    values: np.ndarray,
    i: int,
    j: int,
    before: np.ndarray | None = None,
    solver: FewSolves | None = None,
) -> WithoutEdge:
    """The models without the edge (i, j), exactly; the same models where there is no such edge.

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
    edge = _edge(problem, i, j)
    left = np.where(edge, 0.0, values)
    part = part_of(problem, i)
    if not edge.any():
        after = before
    elif problem.penalty == "squared_l2":
        after = before + change_without_edge(problem, values, before, i, j, part, solver)
    else:
        after = solve_inner(problem, left, before, tol=1e-11).coefficients
    system = problem.hessian(after, left)
    reduced = None if solver is None else solver.without_edge(system, i, j)
    return WithoutEdge(before, after, difference_covariance(system, i, j, part, reduced))


def difference_covariance(
    system: TaskSystem, i: int, j: int, part: np.ndarray | None = None, solver: FewSolves | None = None
) -> np.ndarray:
    """bᵀA⁻¹b with b = d_i − d_j, shape (p, p)."""
    n, p = system.shape
    if not len(system.edges) and (system.hub > 0).all():
        return _covariance_beside_hub(system, i, j)
    if system.is_separable and n * p * p > _KEPT_NUMBERS:
        return _covariance_by_columns(system, i, j, part)
    right = np.zeros((n, p, p))
    right[i], right[j] = np.eye(p), -np.eye(p)
    if n <= _FACTOR_TASKS and n * p <= _FACTOR_SIZE:
        response = Direct.of(system).solve(right).value
    elif system.is_separable:
        solver, start = solver or FewSolves(system), _start(system, right, part, 0.1 * _COVARIANCE_TOL)
        columns = [solver.solve(right[..., k].copy(), start[..., k].copy(), _COVARIANCE_TOL) for k in range(p)]
        response = np.stack(columns, axis=-1)
    else:
        response = prepare(system).solve(right, tol=_COVARIANCE_TOL).require(1e-2).value
    left_over = right - system.apply(response)
    # bᵀA⁻¹b = bᵀX + Xᵀ(b − AX) + O(‖b − AX‖²): what is left over of an inexact solution X, once more against X.
    covariance = response[i] - response[j] + np.tensordot(response, left_over, ([0, 1], [0, 1]))
    return 0.5 * (covariance + covariance.T)


def _covariance_by_columns(system: TaskSystem, i: int, j: int, part: np.ndarray | None) -> np.ndarray:
    """The same with one column of A⁻¹b in memory at a time."""
    covariance, solver = np.empty((system.shape[1],) * 2), FewSolves(system)
    for k in range(len(covariance)):
        right = np.zeros((*system.shape, 1))
        right[i, k], right[j, k] = 1.0, -1.0
        answer = solver.solve(right[..., 0], _start(system, right, part)[..., 0], CHANGE_TOL)
        covariance[:, k] = answer[i] - answer[j]
    return 0.5 * (covariance + covariance.T)


def _edge(problem: InnerProblem, i: int, j: int) -> np.ndarray:
    return (problem.edges == sorted((i, j))).all(axis=1)


def _start(system: TaskSystem, right: np.ndarray, part: np.ndarray | None, tol: float = CHANGE_TOL) -> np.ndarray:
    """Answers to right-hand sides within one part of the graph, shape (n, p, r); zero elsewhere, and without a part.

    What the part gives to the common model is left out: (h/n)·Σδ, which n makes small.
    """
    start = np.zeros_like(right)
    if part is None or not system.is_separable:
        return start
    own = within(system, part)
    if own.gram[..., 0].size <= DIRECT_SIZE:
        start[part] = Direct.of(own).solve(right[part]).value
        return start
    solver = FewSolves(own)
    for k in range(right.shape[-1]):
        start[part, :, k] = solver.solve(right[part, :, k].copy(), tol=tol)
    return start


def within(system: TaskSystem, part: np.ndarray) -> TaskSystem:
    """A of the tasks of one part of the graph, their common model held at zero."""
    place = np.full(system.shape[0], -1)
    place[part] = np.arange(len(part))
    inside = place[system.edges[:, 0]] >= 0
    return TaskSystem(
        system.gram[part],
        place[system.edges[inside]],
        system.edge_weights[inside],
        system.coupling,
        np.zeros_like(system.hub),
        np.broadcast_to(system.ridge, system.shape)[part] + system.hub,
    )


def _covariance_beside_hub(system: TaskSystem, i: int, j: int) -> np.ndarray:
    """The same without edges: D_i⁻¹ + D_j⁻¹ + t (Σ_k H D_k⁻¹(G_k + ρ))⁻¹ tᵀ, t = (D_i⁻¹ − D_j⁻¹)H, D = G + H + ρ."""
    index = np.arange(len(system.hub))
    own = system.gram.copy()
    own[:, index, index] += system.ridge
    blocks = kernels.inverse_blocks(own, np.broadcast_to(system.hub, system.shape))[0]
    said = system.hub[:, None] * np.tensordot(blocks, own, axes=([0, 1], [0, 1]))
    reach = (blocks[i] - blocks[j]) * system.hub
    return blocks[i] + blocks[j] + reach @ np.linalg.solve(0.5 * (said + said.T), reach.T)
