"""What the common model adds to the covariance of two tasks.

With B = A + (11ᵀ/n) ⊗ H, in which every task is drawn to a common model that is held, X = B⁻¹b and s = Σ_t X_t,

    bᵀA⁻¹b = bᵀX + sᵀCs ,     C = H(nH − H·1ᵀB⁻¹1·H)⁻¹H .
"""

from __future__ import annotations

from functools import cached_property
from typing import Protocol

import numpy as np

from ggmtl import kernels
from ggmtl.system import TaskSystem

# By how much of S' the bounds of the hub's part in it may differ; else up to so many solves, of this residual.
_HUB_GAP, _HUB_SOLVES, _HUB_TOL = 3e-7, 3, 1e-4


class Solver(Protocol):
    """Whatever solves A V = R."""

    system: TaskSystem

    def solve(self, right: np.ndarray, start: np.ndarray | None = None, tol: float = ...) -> np.ndarray:
        """The solution, shape (n, p)."""
        ...


class CommonAnswer:
    """C, shape (p, p), for a hub on all coordinates.

    Edges bring the inverse from that of Σ_i H D_i⁻¹(G_i + ρ), D = G + H + ρ, towards that of one model for all tasks.
    Where these bounds are too far apart, C e_k = H(e_k + mean of A⁻¹(1 ⊗ H e_k))/n.
    """

    def __init__(self, solver: Solver):
        self.solver, self.hub = solver, solver.system.hub
        self._known: dict[int, np.ndarray] = {}

    def within(self, reach: np.ndarray, scale: np.ndarray) -> np.ndarray | None:
        """sᵀCs for s of shape (p, p), to a small share of `scale`; None where that takes many solves."""
        try:
            low, high = self._bounds
        except np.linalg.LinAlgError:
            return None
        apart = len(reach) * np.diag(high - low) * (reach**2 / scale).max(axis=1)
        asked = np.flatnonzero(apart > _HUB_GAP)
        if len(asked) > _HUB_SOLVES:
            return None
        answer = 0.5 * (low + high)
        for k in asked:
            answer[k] = answer[:, k] = self._column(int(k))
        return reach.T @ answer @ reach

    @cached_property
    def _bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Below and above C."""
        system, total = self.solver.system, _own_blocks(self.solver.system).sum(axis=0)
        pulled = np.diag(len(system.gram) * self.hub)
        one = pulled @ np.linalg.solve(pulled + total, total)
        low, high = (np.linalg.solve(t, np.diag(self.hub)) for t in (0.5 * (one + one.T), _said_to_hub(system)[1]))
        return self.hub[:, None] * low, self.hub[:, None] * high

    def _column(self, k: int) -> np.ndarray:
        if k not in self._known:
            n, p = self.solver.system.shape
            right = np.zeros((n, p))
            right[:, k] = self.hub[k]
            answer = self.solver.solve(right, tol=_HUB_TOL).mean(axis=0)
            answer[k] += 1.0
            self._known[k] = self.hub * answer / n
        return self._known[k]


def covariance_beside_hub(system: TaskSystem, i: int, j: int) -> np.ndarray:
    """bᵀA⁻¹b without edges: D_i⁻¹ + D_j⁻¹ + t (Σ_k H D_k⁻¹(G_k + ρ))⁻¹ tᵀ, t = (D_i⁻¹ − D_j⁻¹)H, D = G + H + ρ."""
    blocks, said = _said_to_hub(system)
    reach = (blocks[i] - blocks[j]) * system.hub
    return blocks[i] + blocks[j] + reach @ np.linalg.solve(said, reach.T)


def _said_to_hub(system: TaskSystem) -> tuple[np.ndarray, np.ndarray]:
    """D_i⁻¹ of every task and Σ_i H D_i⁻¹(G_i + ρ), D = G + H + ρ: without edges."""
    own = _own_blocks(system)
    blocks = kernels.inverse_blocks(own, np.broadcast_to(system.hub, system.shape))[0]
    said = system.hub[:, None] * np.tensordot(blocks, own, axes=([0, 1], [0, 1]))
    return blocks, 0.5 * (said + said.T)


def _own_blocks(system: TaskSystem) -> np.ndarray:
    """G_i + ρ, shape (n, p, p)."""
    index, own = np.arange(len(system.hub)), system.gram.copy()
    own[:, index, index] += system.ridge
    return own
