"""Solve A V = R, directly or by preconditioned conjugate gradients.

Preparing (factorising, building a preconditioner) is separate from solving, because every system is solved at
least twice: for the models and for the adjoint.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.linalg.lapack import dpocon

from ggmtl.errors import SingularSystemError
from ggmtl.runtime import kernels
from ggmtl.solve import structured
from ggmtl.solve.preconditioners import BlockJacobi, Preconditioner, TwoLevel, make_preconditioner
from ggmtl.solve.structured import Factors
from ggmtl.solve.system import Experience, Solution, TaskSystem, norms, relative_residual

# Conjugate gradients lower the error at every step but not the residual, which may rise for dozens of steps
# before it falls. Only a longer standstill is due to rounding.
_PATIENCE = 100
# With many tasks a fused step of block-Jacobi costs a tenth of a two-level cycle and needs only the blocks. It is
# tried for this many steps before the cycle, which takes at most 25, takes over.
_TRIAL = 300
# Conjugate gradients reach this relative residual unless a system is nearly singular. Where they do not, Cholesky
# factors take over if they fit: of the components of the graph, or of the whole system.
_GOOD = 1e-6


@dataclass(frozen=True)
class Direct:
    """A dense Cholesky factor of A; for small systems."""

    system: TaskSystem
    factor: tuple[np.ndarray, bool]

    @classmethod
    def of(cls, system: TaskSystem) -> Direct:
        """Factorise; refuse a matrix that is singular to working accuracy."""
        matrix = system.dense()
        norm = np.abs(matrix).sum(axis=0).max(initial=0.0)
        try:
            factor = cho_factor(matrix, lower=True, overwrite_a=True, check_finite=False)
        except np.linalg.LinAlgError:
            factor = None
        if factor is None or dpocon(factor[0], norm, uplo="L")[0] < 4 * np.finfo(float).eps:
            system.check_determined()
            raise SingularSystemError(
                "The system of the models is singular to working accuracy. Use a larger ridge or weaker coupling."
            )
        return cls(system, factor)

    def solve(self, right: np.ndarray, start: np.ndarray | None = None, tol: float = 1e-10) -> Solution:
        """Solve A V = right; `start` and `tol` are not needed."""
        flat = right.reshape(right.shape[0] * right.shape[1], -1)
        value = cho_solve(self.factor, flat, check_finite=False).reshape(right.shape)
        return Solution(value, 0, relative_residual(right - self.system.apply(value), right), "direct", 1)


@dataclass(frozen=True)
class ConjugateGradient:
    """Preconditioned conjugate gradients for one or many right-hand sides at once."""

    system: TaskSystem
    preconditioner: Preconditioner
    max_iter: int = 1000
    trial: int | None = None
    has_reserve: bool = False
    experience: Experience = field(default_factory=Experience, compare=False)

    @classmethod
    def of(cls, system: TaskSystem) -> ConjugateGradient:
        """Build the default preconditioner: of many tasks block-Jacobi on trial."""
        if system.shape[0] <= system.sizes.dense_graph or not system.is_separable:
            return cls(system, make_preconditioner(system), has_reserve=True)
        # float32 takes half the memory and half the reading, and is accurate enough for the trial.
        narrow = kernels.is_shared(system.gram.size, system.sizes)
        blocks = BlockJacobi.of(system, np.float32 if narrow else np.float64)
        return cls(system, blocks, trial=_TRIAL, has_reserve=True)

    @cached_property
    def stronger(self) -> ConjugateGradient:
        """The solver that takes over when the trial of block-Jacobi fails."""
        return replace(
            self,
            preconditioner=make_preconditioner(self.system),
            trial=None,
            has_reserve=False,
            experience=Experience(),
        )

    def solve(self, right: np.ndarray, start: np.ndarray | None = None, tol: float = 1e-10) -> Solution:
        """Solve A V = right from `start` until ‖R − A V‖ ≤ tol ‖R‖ for every right-hand side."""
        if self.experience.steps_failed and self.reserve is not None:
            return self.reserve.solve(right, start, tol)
        found = self._steps(right, start, tol)
        if found.succeeded or found.residual <= _GOOD or not self.has_reserve or self.reserve is None:
            return found
        self.experience.steps_failed = True
        other = self.reserve.solve(right, tol=tol)
        return other if other.residual < found.residual else found

    @cached_property
    def reserve(self) -> Factors | Direct | None:
        """A factor for a system that steps do not solve; None where it would cost too much."""
        if not self.system.stores_blocks:
            return None
        if self.system.is_separable and (factors := Factors.of(self.system)) is not None:
            return factors
        with suppress(SingularSystemError):
            return Direct.of(self.system) if self.system.gram[..., 0].size <= self.system.sizes.fallback else None
        return None

    def _steps(self, right: np.ndarray, start: np.ndarray | None, tol: float) -> Solution:
        if right.ndim == 3 and right.shape[2] <= right.shape[1] and isinstance(self.preconditioner, BlockJacobi):
            return self._by_columns(right, start, tol)
        if self.trial is None:
            return self._solve(right, start, tol)
        if self.experience.trial_failed:
            return self.stronger.solve(right, start, tol)
        tried = replace(self, max_iter=min(self.trial, self.max_iter), trial=None)._solve(right, start, tol)
        if tried.succeeded or self.max_iter <= self.trial:
            return tried
        self.experience.trial_failed = True
        rest = self.stronger.solve(right, tried.value if tried.residual < 1 else start, tol)
        iterations, applications = tried.iterations + rest.iterations, tried.applications + rest.applications
        return replace(rest, iterations=iterations, applications=applications)

    def _by_columns(self, right: np.ndarray, start: np.ndarray | None, tol: float) -> Solution:
        """Solve one right-hand side after the other: the fused step takes only one, and is still faster."""
        # Small systems prepare the kernel once for all right-hand sides: it would cost much of the time.
        if not kernels.is_shared(self.system.gram.size, self.system.sizes) and not self.experience.trial_failed:
            together = self._columns_together(right, start, tol)
            if together.succeeded:
                return together
            start = together.value if together.residual < 1 else start
        value, found = np.empty_like(right), []
        for column in range(right.shape[2]):
            first = None if start is None else np.ascontiguousarray(start[..., column])
            one = self.solve(np.ascontiguousarray(right[..., column]), first, tol)
            value[..., column] = one.value
            found.append(replace(one, value=value))
        return max(found, key=lambda one: one.residual)

    def _columns_together(self, right: np.ndarray, start: np.ndarray | None, tol: float) -> Solution:
        """One round of the fused step for every right-hand side, with the true residual."""
        value = np.zeros_like(right) if start is None else start.copy()
        # The inverted blocks are checked on one right-hand side; the true residual is checked at the end.
        cycle = self._compiled_cycle(right.sum(axis=2), tol)
        if cycle is None:
            return Solution(value, 0, np.inf, "max_iter")
        residual = right.copy() if start is None else right - self.system.apply(start)
        values, residuals = (np.ascontiguousarray(np.moveaxis(each, 2, 0)) for each in (value, residual))
        goal = tol * norms(right)
        max_iter = self.max_iter if self.trial is None else min(self.trial, self.max_iter)
        steps = [
            kernels.conjugate_gradient(self.system.operator, cycle, each, left, float(least), max_iter, _PATIENCE)
            for each, left, least, norm in zip(values, residuals, goal, norms(residual))
            if norm > least
        ]
        value = np.ascontiguousarray(np.moveaxis(values, 0, 2))
        residual = right - self.system.apply(value)
        status = "converged" if (norms(residual) <= goal).all() else "max_iter"
        return Solution(value, max(steps, default=0), relative_residual(residual, right), status, sum(steps) + 1)

    def _solve(self, right: np.ndarray, start: np.ndarray | None, tol: float) -> Solution:
        goal = tol * norms(right)
        value = np.zeros_like(right) if start is None else start.copy()
        per_cycle = 1 + (self.preconditioner.applications if isinstance(self.preconditioner, TwoLevel) else 0)
        cycle = self._compiled_cycle(right, tol)
        iterations, applications, best = 0, 0, np.inf
        status = "max_iter"
        # Each round ends with the true residual; rounding makes the recursive one too small in hard cases.
        while True:
            residual = right - self.system.apply(value) if applications or start is not None else right.copy()
            applications += 1
            norm = norms(residual)
            if (norm <= goal).all():
                status = "converged"
                break
            if iterations >= self.max_iter:
                break
            if norm.max() > 0.5 * best:
                status = "stalled"
                break
            best = norm.max()
            remaining = self.max_iter - iterations
            if cycle is None:
                steps = self._round(value, residual, goal, remaining)
            else:
                arguments = (self.system.operator, cycle, value, residual, float(goal), remaining, _PATIENCE)
                steps = kernels.conjugate_gradient(*arguments, self.system.sizes)
            iterations += steps
            applications += steps * per_cycle
        return Solution(value, iterations, relative_residual(residual, right), status, applications)

    def _compiled_cycle(self, right: np.ndarray, tol: float) -> kernels.Cycle | None:
        """The preconditioner for the fused kernel, or None where the kernel does not apply.

        It takes one right-hand side, one weight per edge, and block-Jacobi or the two-level cycle of this very
        system with a dense graph level.
        """
        system, preconditioner = self.system, self.preconditioner
        if right.ndim != 2 or not system.stores_blocks or not system.is_separable:
            return None
        if isinstance(preconditioner, BlockJacobi):
            shared = kernels.is_shared(system.gram.size, system.sizes)
            return preconditioner.cycle(not shared and preconditioner.inverts(system, right, 0.1 * tol))
        if isinstance(preconditioner, TwoLevel) and preconditioner.system is system:
            return preconditioner.cycle(preconditioner.smoother.inverts(system, right, 0.1 * tol))
        return None

    def _round(self, value: np.ndarray, residual: np.ndarray, goal: np.ndarray, max_iter: int) -> int:
        """Run conjugate gradients in place; return the number of steps."""
        direction = np.zeros_like(value)
        previous = np.ones_like(goal)
        steps, best, since_best = 0, np.inf, 0
        while steps < max_iter:
            correction = self.preconditioner(residual)
            product = _dots(residual, correction)
            beta = np.where(previous > 0, product / np.where(previous > 0, previous, 1.0), 0.0)
            # In place, and freed as soon as possible: the vectors may fill much of the memory.
            direction *= beta
            direction += correction
            image = self.system.apply(direction)
            curvature = _dots(direction, image)
            alpha = np.where(curvature > 0, product / np.where(curvature > 0, curvature, 1.0), 0.0)
            value += np.multiply(alpha, direction, out=correction)
            residual -= np.multiply(alpha, image, out=image)
            del correction, image
            previous = product
            steps += 1
            norm = norms(residual)
            if (norm <= goal).all():
                break
            if norm.max() < 0.99 * best:
                best, since_best = norm.max(), 0
            else:
                since_best += 1
                if since_best >= _PATIENCE:
                    break
        return steps


Prepared = Direct | ConjugateGradient


def prepare(system: TaskSystem) -> Prepared:
    """Make a system ready in the cheapest way that its size and form allow."""
    n, p = system.shape
    if n * p <= system.sizes.direct:
        return Direct.of(system)
    system.check_determined()
    if (narrow := structured.prepare_low_rank(system)) is not None:
        return ConjugateGradient(*narrow)
    return ConjugateGradient.of(system)


def _dots(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.einsum("np...,np...->...", a, b)
