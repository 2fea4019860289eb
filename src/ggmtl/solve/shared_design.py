"""Tasks that share one design: G_i = G, so that A separates into one system per eigenvector.

On models that are the same for all tasks A is G + ρ. On their complement

    A = I ⊗ M + L ⊗ Λ,    M = G + H + ρ,

and with M U = Λ U diag(μ), UᵀΛU = I, and V = Z Uᵀ it is p systems of one number per task:

    (μ_k I + L) z_k = (R U)_k .

These are solved for all columns at once: by the eigenvectors of L on small graphs, else by conjugate gradients with a
step length per column, preconditioned by the diagonal where the shift is large and by one hierarchy of aggregates,
shifted per column, elsewhere. One column of y per task, and panels with one design, are of this form.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse
from scipy.linalg import cho_factor, cho_solve, eigh

from ggmtl import kernels
from ggmtl.runtime.sizes import SIZES
from ggmtl.solve.preconditioners import STEP_LENGTHS, AggregationCycle, Preconditioner
from ggmtl.solve.system import Solution, TaskSystem, norms

_MAX_STEPS = 1000
_PATIENCE = 100


def conditions(laplacian: sparse.csr_array, shifts: np.ndarray) -> np.ndarray:
    """About (μ_k + 2 · largest degree)/μ_k, the condition number of every column, shape (q,)."""
    return 1.0 + 2.0 * laplacian.diagonal().max(initial=0.0) / shifts


@dataclass(frozen=True)
class SpectralGraph:
    """L = E diag(s) Eᵀ, for small graphs."""

    spectrum: np.ndarray
    vectors: np.ndarray

    @classmethod
    def of(cls, laplacian: sparse.csr_array) -> SpectralGraph:
        """Decompose."""
        spectrum, vectors = eigh(laplacian.toarray(), driver="evd", overwrite_a=True, check_finite=False)
        return cls(np.maximum(spectrum, 0.0), vectors)

    def solve(self, right: np.ndarray, shifts: np.ndarray, goal: np.ndarray) -> tuple[np.ndarray, int]:
        """Solution, shape (n, q), and no step; `goal` is not needed."""
        return self.vectors @ ((self.vectors.T @ right) / (self.spectrum[:, None] + shifts)), 0


@dataclass(frozen=True)
class IterativeGraph:
    """Conjugate gradients on all columns at once."""

    laplacian: sparse.csr_array
    lowest: float
    jacobi_condition: float = SIZES.jacobi_condition

    @cached_property
    def hierarchy(self) -> ShiftedAggregation:
        """The preconditioner of the hard columns, built when the first of them comes."""
        return ShiftedAggregation.of(self.laplacian, self.lowest)

    def solve(self, right: np.ndarray, shifts: np.ndarray, goal: np.ndarray) -> tuple[np.ndarray, int]:
        """Solution, shape (n, q), with ‖r_k − (μ_k + L) z_k‖ ≤ goal_k for shifts and goals (q,), and steps taken."""
        hard = conditions(self.laplacian, shifts) > self.jacobi_condition
        if not hard.any():
            return self._columns(right, shifts, goal, self._jacobi)
        value, steps = np.empty_like(right), 0
        for part, preconditioner in ((hard, self.hierarchy.at), (~hard, self._jacobi)):
            if part.any():
                value[:, part], taken = self._columns(right[:, part], shifts[part], goal[part], preconditioner)
                steps = max(steps, taken)
        return value, steps

    def _jacobi(self, shifts: np.ndarray) -> Preconditioner:
        inverse = 1.0 / (self.laplacian.diagonal()[:, None] + shifts)
        return lambda residual: inverse * residual

    def _columns(
        self,
        right: np.ndarray,
        shifts: np.ndarray,
        goal: np.ndarray,
        preconditioner: Callable[[np.ndarray], Preconditioner],
    ) -> tuple[np.ndarray, int]:
        out = np.zeros_like(right)
        active = np.flatnonzero(np.linalg.norm(right, axis=0) > goal)
        value, residual = np.zeros((len(right), len(active))), np.take(right, active, axis=1)
        direction, previous = np.zeros_like(value), np.ones(len(active))
        precondition = preconditioner(shifts[active])
        steps, best, since_best = 0, np.inf, 0
        while len(active) and steps < _MAX_STEPS and since_best < _PATIENCE:
            correction = precondition(residual)
            product = np.einsum("nq,nq->q", residual, correction)
            direction *= _ratio(product, previous)
            direction += correction
            image = kernels.sparse_product(self.laplacian, direction)
            image += np.multiply(shifts[active], direction, out=correction)
            alpha = _ratio(product, np.einsum("nq,nq->q", direction, image))
            value += np.multiply(alpha, direction, out=correction)
            residual -= np.multiply(alpha, image, out=image)
            previous, steps = product, steps + 1
            norm = np.sqrt(np.einsum("nq,nq->q", residual, residual))
            keep = norm > goal[active]
            farthest = (norm / np.maximum(goal[active], np.finfo(float).tiny)).max()
            best, since_best = (farthest, 0) if farthest < 0.99 * best else (best, since_best + 1)
            # Taking columns out costs a copy of all that stay; so few at a time are carried along.
            if 4 * keep.sum() <= 3 * len(active):
                out[:, active] = value
                active, best, since_best = active[keep], np.inf, 0
                # Not by an index, which would turn rows into columns in memory.
                value, residual, direction = (np.compress(keep, a, axis=1) for a in (value, residual, direction))
                previous, precondition = previous[keep], preconditioner(shifts[active])
        out[:, active] = value
        return out, steps


@dataclass(frozen=True)
class ShiftedAggregation:
    """One V-cycle for μ_k I + L with the very shift of every column.

    Aggregates are those of μ I + L for the smallest shift μ. On level l the matrix of column k is
    A_l + (μ_k − μ) M_l with M_l = PᵀM_{l−1}P, so one hierarchy serves all; on the coarsest level the eigenvectors of
    (A_l, M_l) do.
    """

    reference: float
    levels: tuple[tuple[sparse.csr_array, sparse.csr_array, sparse.csr_array, float], ...]
    spectrum: np.ndarray
    vectors: np.ndarray

    @classmethod
    def of(cls, laplacian: sparse.csr_array, reference: float) -> ShiftedAggregation:
        """Build the hierarchy."""
        n = len(laplacian.diagonal())
        identity = sparse.csr_array(sparse.eye_array(n))
        A, M = sparse.csr_array(laplacian + reference * identity), identity
        levels = []
        for fine, P, _ in AggregationCycle.of(A).levels:
            A = fine
            # Row sums of |A + cM| are at most the larger bound of the two times the diagonal, whatever c ≥ 0.
            levels.append((A, M, P, max(_bound(A), _bound(M))))
            A, M = sparse.csr_array(P.T @ A @ P), sparse.csr_array(P.T @ M @ P)
        coarse, mass = A.toarray(), M.toarray()
        for matrix in (coarse, mass):
            np.fill_diagonal(matrix, np.where(mass.diagonal() > 0, matrix.diagonal(), 1.0))
        return cls(reference, tuple(levels), *eigh(coarse, mass))

    def at(self, shifts: np.ndarray) -> Preconditioner:
        """A symmetric positive definite map per column that nearly solves (μ_k I + L) z_k = r_k."""
        offsets = np.maximum(shifts - self.reference, 0.0)
        inverses = [
            1.0 / (bound * (A.diagonal()[:, None] + offsets * M.diagonal()[:, None])) for A, M, _, bound in self.levels
        ]
        return lambda right: self._descend(0, right, offsets, inverses)

    def _descend(self, depth: int, right: np.ndarray, offsets: np.ndarray, inverses: list[np.ndarray]) -> np.ndarray:
        if depth == len(self.levels):
            return self.vectors @ ((self.vectors.T @ right) / (self.spectrum[:, None] + offsets))
        A, M, P, _ = self.levels[depth]

        def smoothed(length: float, value: np.ndarray) -> np.ndarray:
            step = rest(value)
            step *= inverses[depth]
            step *= length
            return step

        def rest(value: np.ndarray) -> np.ndarray:
            image = kernels.sparse_product(A, value)
            image += offsets * (value if depth == 0 else M @ value)
            return np.subtract(right, image, out=image)

        value = STEP_LENGTHS[0] * inverses[depth] * right
        for length in STEP_LENGTHS[1:]:
            value += smoothed(length, value)
        value += P @ self._descend(depth + 1, P.T @ rest(value), offsets, inverses)
        for length in reversed(STEP_LENGTHS):
            value += smoothed(length, value)
        return value


def _ratio(over: np.ndarray, under: np.ndarray) -> np.ndarray:
    """over/under; zero for columns that are solved to the last bit."""
    return np.divide(over, under, out=np.zeros_like(over), where=under > 0)


def _bound(matrix: sparse.csr_array) -> float:
    """‖D⁻¹A‖_∞, not below the spectral radius."""
    diagonal = matrix.diagonal()
    return float((abs(matrix).sum(axis=1) / np.where(diagonal > 0, diagonal, 1.0)).max())


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
    if not (system.stores_blocks and system.is_separable and (system.coupling > 0).all()):
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
