"""Solves of A for a few right-hand sides, with next to no preparation."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ggmtl import kernels
from ggmtl.solve.preconditioners import BlockJacobi
from ggmtl.solve.solvers import DIRECT_SIZE, ConjugateGradient, Prepared, prepare
from ggmtl.solve.system import TaskSystem

# Relative residual of models: errors are then right to far better than a millionth, also where tasks have fewer rows
# than coefficients; and of models under penalties that are not squared.
MODEL_TOL, ROBUST_TOL = 1e-11, 3e-8
# Steps after which a preconditioner that knows the graph would have been the better choice.
_STEPS = 400


class FewSolves:
    """Solve A V = R for a few R by conjugate gradients.

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

    def solved(self, right: np.ndarray, start: np.ndarray, tol: float) -> np.ndarray:
        """The solution, which is `start` itself where that is good enough."""
        gap = float(np.linalg.norm(right - self.system.apply(start)))
        return start if gap <= tol * float(np.linalg.norm(right)) else self.solve(right, start, tol)

    def without_edge(self, system: TaskSystem, i: int, j: int) -> FewSolves:
        """For A without the edge (i, j): the blocks of all other tasks stay."""
        return FewSolves(system, self, (i, j))

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
