"""Preconditioned conjugate gradients on a torch device, in float32 with residuals in float64.

A round works in the narrow type on A·correction = residual; between rounds the solution and its true residual are
float64, so that rounding of the narrow type costs iterations, not accuracy. The search direction survives from round
to round. Norms stay on the device; the host looks at them every few steps only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import log

import torch
from torch import Tensor

from ggmtl.errors import SolverError
from ggmtl.solve.gpu.multigrid import GraphMultigrid
from ggmtl.solve.gpu.system import CHUNK_NUMBERS, TensorSystem, block_product, check_memory, inverse_blocks

# As on the CPU, block-Jacobi tries first: its step costs a fifth of a cycle's or less. After the first number of steps
# it is given up where it would need more than the second at the rate so far.
_FIRST_LOOK, _TRIAL = 24, 150
# Tasks whose data leave more than about half of their directions to the graph get a second sweep.
_FULL_RANK_SHARE = 0.5
# Steps between two checks of the norms, and steps without progress that end a round.
_STEPS_PER_CHECK = 4
_PATIENCE = 100
# Beyond this many unknowns a step takes far longer than a check of the norms, which may save steps.
_MANY_UNKNOWNS = 1 << 22
# A float32 round ends when it has gained this much; its recursive residual is not to be trusted further.
_NARROW_GAIN = 1e-4
# A direction is kept where the true residual is at most this multiple of the recursive one.
_TRUSTED = 1.1
# Arrays of the size of the solution that are alive at a time, in float64.
_VECTORS = 16
# The identity D B = I is used in place of a product with the blocks where it holds to this accuracy.
_EXACT_INVERSE = 1e-2


@dataclass(frozen=True)
class TensorSolution:
    """What the solver returns; fields as those of :class:`ggmtl.solve.solvers.Solution`, `value` a tensor."""

    value: Tensor
    iterations: int
    residual: float
    status: str

    def after(self, first: TensorSolution) -> TensorSolution:
        """This solution, continued from `first`, with the steps of both."""
        return replace(self, iterations=self.iterations + first.iterations)

    def require(self, accuracy: float) -> TensorSolution:
        """Return self, or refuse a solution worse than `accuracy`."""
        if self.status == "converged" or self.residual <= accuracy:
            return self
        raise SolverError(
            f"The linear system was solved only to a relative residual of {self.residual:.1e} after "
            f"{self.iterations} iterations ({self.status}). The problem is badly conditioned: use a larger ridge, "
            "weaker coupling, or remove (nearly) collinear features."
        )


@dataclass(frozen=True)
class Cycle:
    """The preconditioner M⁻¹: block-Jacobi B, or the symmetric cycle of sweeps of B, a graph level C, and sweeps.

    Parameters
    ----------
    system : TensorSystem
        A, in the type of the cycle.
    inverse : tensor of shape (n, p, p)
        B, the inverse of the diagonal blocks D of A.
    exact : bool
        Whether B inverts D so well that D B q may be taken for q.
    graph_level : GraphMultigrid, optional
        C.
    sweeps : int
        Sweeps before and after C.
    """

    system: TensorSystem
    inverse: Tensor
    exact: bool
    graph_level: GraphMultigrid | None = None
    sweeps: int = 1

    @classmethod
    def of(cls, system: TensorSystem, dtype: torch.dtype, levels: int = 1) -> Cycle:
        """Build for a system, to work in `dtype`: B alone, or both levels."""
        _check_room(system, dtype, levels)
        inverse = inverse_blocks(system.gram, system.diagonal, store=dtype)
        exact = _inverts(system, inverse)
        single = cls(system.cast(dtype, blocks=not exact), inverse, exact)
        return single if levels == 1 else single.with_graph_level(system)

    def with_graph_level(self, system: TensorSystem) -> Cycle:
        """The two levels of the same system, given in float64."""
        narrow = system.cast(self.inverse.dtype, blocks=True)
        sweeps = 1 if system.mean_rank_share() >= _FULL_RANK_SHARE else 2
        return replace(self, system=narrow, graph_level=GraphMultigrid.of(narrow), sweeps=sweeps)

    def __call__(self, residual: Tensor) -> tuple[Tensor, Tensor]:
        """z = M⁻¹q, and q − Az, which comes for free."""
        value, left = self._smooth(residual)
        if self.graph_level is None:
            return value, left
        for _ in range(self.sweeps - 1):
            step, left = self._smooth(left)
            value += step
        step = self.graph_level(left)
        value += step
        left = left - self.system.apply(step)
        for _ in range(self.sweeps):
            step, left = self._smooth(left)
            value += step
        return value, left

    def _smooth(self, residual: Tensor) -> tuple[Tensor, Tensor]:
        """z = Bq, and q − Az = (D − A)z."""
        value = block_product(self.inverse, residual)
        left = self.system.couple(value) if self.exact else residual - self.system.apply(value)
        return value, left


@dataclass
class _Search:
    """Direction d, its image Ad, and the last product rᵀM⁻¹r, kept from round to round."""

    direction: Tensor
    image: Tensor
    product: Tensor


@dataclass
class TensorSolver:
    """A system made ready for several right-hand sides, at once or in turn.

    It learns from them: once block-Jacobi has failed its trial, both levels solve this and all later right-hand sides.

    Parameters
    ----------
    system : TensorSystem
    cycle : Cycle
    max_iter : int
    on_trial : bool
        Whether `cycle` is block-Jacobi alone and may still be given up.
    wider : TensorSolver, optional
        The same with rounds in float64, once it was needed.
    """

    system: TensorSystem
    cycle: Cycle
    max_iter: int = 1000
    on_trial: bool = False
    wider: TensorSolver | None = None

    @classmethod
    def of(cls, system: TensorSystem, dtype: torch.dtype = torch.float32, levels: int | None = None) -> TensorSolver:
        """Prepare a float64 system (its blocks in any type) for rounds in `dtype`; by default one level on trial."""
        return cls(system, Cycle.of(system, dtype, levels or 1), on_trial=levels is None)

    def solve(self, right: Tensor, start: Tensor | None = None, tol: float = 1e-8) -> TensorSolution:
        """Solve A V = right until ‖right − A V‖ ≤ tol ‖right‖ for every right-hand side.

        Rounds in float32 that no longer gain are followed by rounds in float64.
        """
        solution = self._refine(right, start, tol)
        if solution.status == "given up":
            self.cycle, self.on_trial, self.wider = self.cycle.with_graph_level(self.system), False, None
            return self.solve(right, solution.value, tol).after(solution)
        if solution.status != "stalled" or self.cycle.system.dtype == torch.float64:
            return solution
        if self.wider is None:
            cycle = Cycle.of(self.system, torch.float64, 1 if self.cycle.graph_level is None else 2)
            self.wider = TensorSolver(self.system, cycle, self.max_iter)
        return self.wider._refine(right, solution.value, tol).after(solution)

    def _refine(self, right: Tensor, start: Tensor | None, tol: float) -> TensorSolution:
        """Rounds, each followed by the true residual."""
        scale = _norms(right)
        scale = torch.where(scale > 0, scale, 1.0)
        value = torch.zeros_like(right) if start is None else start.clone()
        gain = 0.0 if self.cycle.system.dtype == torch.float64 else _NARROW_GAIN
        search, iterations, best, promised, first = None, 0, float("inf"), 0.0, None
        while True:
            residual = (right - self.system.apply(value)) if iterations or start is not None else right.clone()
            norm = float(_norms(residual.div_(scale)).max())
            if norm <= tol or iterations >= self.max_iter or norm > 0.5 * best:
                status = "converged" if norm <= tol else "stalled" if norm > 0.5 * best else "max_iter"
                return TensorSolution(value, iterations, norm, status)
            best, first = norm, norm if first is None else first
            # Where the recursive residual had lost touch with the true one, so has the direction.
            search = search if norm <= _TRUSTED * promised else None
            goal = max(tol, gain * norm)
            slow = partial(_is_slow, iterations, log(first / tol), first) if self.on_trial else None
            correction, search, steps, promised = self._round(residual, search, goal, self.max_iter - iterations, slow)
            value.addcmul_(correction.to(value.dtype), scale)
            iterations += steps
            if slow is not None and promised > goal and slow(steps, promised):
                return TensorSolution(value, iterations, promised, "given up")

    def _round(
        self,
        residual: Tensor,
        search: _Search | None,
        goal: float,
        max_iter: int,
        slow: Callable[[int, float], bool] | None,
    ) -> tuple[Tensor, _Search, int, float]:
        """Conjugate gradients in the type of the cycle: the correction, the search, the steps, the recursive norm."""
        residual = residual.to(self.cycle.system.dtype)
        value = torch.zeros_like(residual)
        if search is None:
            search = _Search(torch.zeros_like(residual), torch.zeros_like(residual), _dots(residual, residual) * 0)
        steps, best, since_best = 0, float("inf"), 0
        per_check = 1 if residual.numel() > _MANY_UNKNOWNS else _STEPS_PER_CHECK
        while steps < max_iter:
            for _ in range(min(per_check, max_iter - steps)):
                _step(self.cycle, search, value, residual)
                steps += 1
            norm = float(_norms(residual).max())
            since_best = 0 if norm < 0.99 * best else since_best + per_check
            best = min(norm, best)
            if norm <= goal or since_best >= _PATIENCE or (slow is not None and slow(steps, norm)):
                break
        return value, search, steps, norm


def _is_slow(before: int, wanted: float, first: float, steps: int, norm: float) -> bool:
    """Whether the trial would take too many steps at the rate so far; `wanted` is the log of the reduction."""
    taken = before + steps
    return taken >= _FIRST_LOOK and taken * wanted > _TRIAL * log(max(first / norm, 1.0))


def _step(cycle: Cycle, search: _Search, value: Tensor, residual: Tensor) -> None:
    """One step in place: z = M⁻¹r, d ← z + βd, Ad ← Az + βAd, then the minimum of the energy along d."""
    correction, left = cycle(residual)
    product = _dots(residual, correction)
    beta = _ratio(product, search.product)
    torch.addcmul(correction, search.direction, beta, out=search.direction)
    torch.addcmul(residual, search.image, beta, out=search.image)
    search.image -= left
    search.product = product
    alpha = _ratio(product, _dots(search.direction, search.image))
    value.addcmul_(search.direction, alpha)
    residual.addcmul_(search.image, alpha, value=-1)


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """The quotient, and zero where the denominator is not positive, because that column is solved."""
    return torch.where(denominator > 0, numerator / denominator, 0.0)


def _dots(a: Tensor, b: Tensor) -> Tensor:
    """Inner products by right-hand side: a number, or shape (r,)."""
    return torch.dot(a.reshape(-1), b.reshape(-1)) if a.ndim == 2 else (a * b).sum((0, 1))


def _norms(a: Tensor) -> Tensor:
    return _dots(a, a).sqrt()


def _check_room(system: TensorSystem, dtype: torch.dtype, levels: int) -> None:
    """Refuse a system whose inverse blocks, vectors and temporary arrays would not fit on the device."""
    n, p = system.shape
    numbers = n * p * p
    copies = 1 + (levels == 2 and system.gram.dtype != dtype)
    # Inverting takes about six arrays of a part of the blocks.
    parts = 6 * min(CHUNK_NUMBERS // 2, numbers)
    needed = copies * torch.finfo(dtype).bits // 8 * numbers + 8 * (_VECTORS * n * p + parts)
    check_memory(needed, system.gram.device, f"Solving for {n} tasks with {p} coefficients")


def _inverts(system: TensorSystem, inverse: Tensor) -> bool:
    """Whether D B ≈ I on a vector of signs, which no smoothness can favour."""
    n, p = system.shape
    signs = (torch.arange(n * p, device=inverse.device) * 2654435761 // 2**16 % 2).view(n, p)
    probe = (2.0 * signs - 1.0).to(inverse.dtype)
    solved = block_product(inverse, probe).to(system.dtype)
    gap = block_product(system.gram, solved).addcmul_(system.diagonal, solved).sub_(probe)
    return bool(_norms(gap) <= _EXACT_INVERSE * (n * p) ** 0.5)
