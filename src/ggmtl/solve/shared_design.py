"""Tasks that share one design: G_i = G, so that A falls apart.

On models that are the same for all tasks A is G + ρ. On their complement

    A = I ⊗ M + L ⊗ Λ,    M = G + H + ρ,

and with M U = Λ U diag(μ), UᵀΛU = I, and V = Z Uᵀ it is p systems of one number per task:

    (μ_k I + L) z_k = (R U)_k .
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from ggmtl import kernels
from ggmtl.solve.shifted_laplacian import IterativeGraph, SpectralGraph, conditions
from ggmtl.solve.solution import Solution, norms
from ggmtl.solve.system import TaskSystem

# Sums over the same rows differ in their last bits where they are taken in another order.
_ROUNDING = 1e-14
# A few blocks tell tasks of different designs apart before all are read.
_GLANCE = 4
_WORST_CONDITION = 1e12
_MAX_ROUNDS = 20
# Milliseconds to prepare and to solve twice to 1e-8, one thread, six neighbours in the plane, here and in general:
#     n, p           weak coupling (0.1)    middle (10)           strong (10,000)
#     200, 10        2.1 against 2.9        4.2 against 5.9       3.9 against 6.3
#     2,000, 20      14 against 18          36 against 55         46 against 492
#     20,000, 20     155 against 238        326 against 943       616 against 8,998
# Of fewer tasks, or of few coefficients on graphs that the diagonal preconditions, neither way was faster.


def prepare(system: TaskSystem) -> SharedDesign | None:
    """The system made ready, or None where it has another form or the general way is as fast."""
    n, p = system.shape
    # One coefficient is a graph system as it stands, and rough solves of it are cheaper without a hierarchy.
    return SharedDesign.of(system) if n >= system.sizes.shared_design and p > 1 and applies(system) else None


def applies(system: TaskSystem) -> bool:
    """Whether all tasks have the same G and ρ (to rounding), one weight per edge, and every Λ_k > 0."""
    n = system.shape[0]
    # A subclass may apply something else.
    if type(system) is not TaskSystem or not system.is_separable or not (system.coupling > 0).all():
        return False
    ridge = np.atleast_2d(system.ridge)
    if len(ridge) > 1 and np.ptp(ridge, axis=0).any():
        return False
    if system.gram.strides[0] == 0:
        return True
    return _equal(system.gram[:: max(1, n // _GLANCE)]) and _equal(system.gram)


def _equal(gram: np.ndarray) -> bool:
    scale = np.sqrt(np.einsum("pp->p", gram[0]))
    bound = _ROUNDING * np.multiply.outer(scale, scale)
    # By parts that stay in the cache.
    step = max(1, (1 << 14) // bound.size)
    return all((np.abs(gram[i : i + step] - gram[0]) <= bound).all() for i in range(0, len(gram), step))


@dataclass(frozen=True)
class SharedDesign:
    """A made ready: a factor of G + ρ, the pairs (μ, U), and a solver of the graph's systems."""

    system: TaskSystem
    complement: np.ndarray
    common: tuple[np.ndarray, bool]
    shifts: np.ndarray
    vectors: np.ndarray
    graph: SpectralGraph | IterativeGraph

    @classmethod
    def of(cls, system: TaskSystem) -> SharedDesign | None:
        """Decompose; None where M or G + ρ is singular to working accuracy, or the graph is better left to others."""
        ridge = np.atleast_2d(system.ridge)[0]
        common = system.gram[0] + np.diag(np.broadcast_to(ridge, system.shape[1:]))
        root = np.sqrt(system.coupling)
        # Divided by √Λ from both sides the problem is an ordinary one, whatever the range of Λ.
        complement = common + np.diag(system.hub)
        shifts, vectors = np.linalg.eigh(complement / np.multiply.outer(root, root))
        if shifts[0] * _WORST_CONDITION <= shifts[-1]:
            return None
        try:
            factor = cho_factor(common, lower=True, check_finite=False)
        except np.linalg.LinAlgError:
            return None
        graph = _graph_solver(system, shifts)
        return None if graph is None else cls(system, complement, factor, shifts, vectors / root[:, None], graph)

    def solve(self, right: np.ndarray, start: np.ndarray | None = None, tol: float = 1e-10) -> Solution:
        """Solve A V = right from `start` until ‖R − A V‖ ≤ tol ‖R‖ for every right-hand side."""
        scale = norms(right)
        goal, scale = tol * scale, np.where(scale > 0, scale, 1.0)
        value = np.zeros_like(right) if start is None else start.copy()
        residual = right.copy() if start is None else right - self._apply(value)
        iterations, applications, best = 0, int(start is not None), np.inf
        # A solution of the small systems is one of A up to rounding, which further rounds take away.
        for _ in range(_MAX_ROUNDS):
            norm = norms(residual)
            farthest = float((norm / scale).max())
            if (norm <= goal).all() or farthest > 0.5 * best:
                status = "converged" if (norm <= goal).all() else "stalled"
                return Solution(value, iterations, farthest, status, applications)
            best = farthest
            correction, steps = self._inverse(residual, 0.5 * goal)
            value += correction
            residual = right - self._apply(value)
            iterations, applications = iterations + steps, applications + steps + 1
        return Solution(value, iterations, float((norms(residual) / scale).max()), "max_iter", applications)

    def _apply(self, values: np.ndarray) -> np.ndarray:
        """A · values, with one matrix product for all tasks, as their blocks are the same to rounding."""
        system, (n, p) = self.system, self.system.shape
        flat = values.reshape(n, -1)
        coupled = kernels.sparse_product(system.laplacian, flat).reshape(values.shape)
        part = (p,) + (1,) * (values.ndim - 2)
        out = np.einsum("np...,pq->nq...", values, self.complement, optimize=True)
        out += coupled * system.coupling.reshape(part)
        out -= system.hub.reshape(part) * values.mean(axis=0)
        return out

    def _inverse(self, right: np.ndarray, goal: np.ndarray) -> tuple[np.ndarray, int]:
        """A⁻¹ right up to a residual of `goal`, and the steps taken."""
        n, p = self.system.shape
        mean = right.mean(axis=0)
        common = cho_solve(self.common, mean, check_finite=False)
        rest = np.einsum("np...,pk->nk...", right - mean, self.vectors, optimize=True).reshape(n, -1)
        columns = rest.shape[1] // p
        # R = (R U) Uᵀ Λ, and √Λ U is orthogonal: this much of R U is `goal` of R.
        share = np.broadcast_to(goal, (p, *right.shape[2:])) / np.sqrt(p * self.system.coupling.max())
        found, steps = self.graph.solve(rest, np.repeat(self.shifts, columns), share.ravel())
        # Constants are dealt with above; rounding must not bring them back, where μ is small.
        found -= found.mean(axis=0)
        found = found.reshape(n, p, *right.shape[2:])
        return common + np.einsum("nk...,pk->np...", found, self.vectors, optimize=True), steps


def _graph_solver(system: TaskSystem, shifts: np.ndarray) -> SpectralGraph | IterativeGraph | None:
    (n, p), sizes = system.shape, system.sizes
    worst = conditions(system.laplacian, shifts).max()
    if n <= sizes.spectral_tasks and worst > sizes.spectral_condition:
        return SpectralGraph.of(system.laplacian)
    if worst > sizes.jacobi_condition:
        needed = importlib.util.find_spec("pyamg") is not None
    else:
        needed = p >= sizes.shared_design_width
    return IterativeGraph(system.laplacian, float(shifts[0]), sizes.jacobi_condition) if needed else None
