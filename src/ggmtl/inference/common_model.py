"""What the common model passes on from a few tasks to all.

With B = A + (11ᵀ/n) ⊗ H, in which every task is drawn to a common model that is held, and s the sum over tasks of what
B⁻¹ makes of a right-hand side, the common model pulls every task by Cs,

    C = H(nH − H·1ᵀB⁻¹1·H)⁻¹H ,     and     bᵀA⁻¹b = bᵀB⁻¹b + sᵀCs .

Edges bring C from H(Σ_i(H − HD_i⁻¹H))⁻¹H, D = G + H + ρ, down towards what it is where all tasks have one model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ggmtl import kernels
from ggmtl.solve.system import TaskSystem

# By how much of a variance the bounds of the common model's part in it may differ: a standard error is then right to
# a hundredth.
_GAP = 4e-2


@dataclass(frozen=True)
class CommonModel:
    """C lies between two matrices of shape (p, p); they are the same without edges."""

    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, system: TaskSystem, fewer: CommonModel | None = None) -> CommonModel | None:
        """Of all tasks; None where they leave the common model free.

        Rows that are added bring C down: where there are edges, the upper bound of `fewer` rows may serve, all else
        being the same.
        """
        n, hub = len(system.gram), system.hub
        if not hub.any():
            return cls(np.zeros((len(hub),) * 2), np.zeros((len(hub),) * 2))
        try:
            if fewer is not None and len(system.edges):
                high = fewer.high
            else:
                high = _answer(hub, _said_to_hub(system, own_blocks(system))[1])
            if not len(system.edges):
                return cls(high, high)
            pulled = np.diag(n * hub)
            one = pulled - pulled @ np.linalg.solve(pooled_blocks(system) + pulled, pulled)
            return cls(_answer(hub, one), high)
        except np.linalg.LinAlgError:
            return None

    @property
    def middle(self) -> np.ndarray:
        """Half way between."""
        return 0.5 * (self.low + self.high)

    def within(self, reach: np.ndarray, scale: np.ndarray) -> np.ndarray | None:
        """sᵀCs for s of shape (p, p); None where that is not known to a small share of `scale`."""
        low, high = (reach.T @ bound @ reach for bound in (self.low, self.high))
        return 0.5 * (low + high) if (np.diag(high - low) <= _GAP * scale).all() else None

    def doubt(self, reach: np.ndarray) -> np.ndarray:
        """How far Cs may be from that of the middle, for s of shape (p,): |e_kᵀΔs|² ≤ Δ_kk · sᵀΔs, Δ half the gap."""
        half = 0.5 * (self.high - self.low)
        return np.sqrt(np.maximum(np.diag(half) * (reach @ half @ reach), 0.0))


def covariance_beside_hub(system: TaskSystem, i: int, j: int) -> np.ndarray:
    """bᵀA⁻¹b without edges: D_i⁻¹ + D_j⁻¹ + t (Σ_k(H − HD_k⁻¹H))⁻¹ tᵀ, t = (D_i⁻¹ − D_j⁻¹)H, D = G + H + ρ."""
    blocks, said = _said_to_hub(system, own_blocks(system))
    reach = (blocks[i] - blocks[j]) * system.hub
    return blocks[i] + blocks[j] + reach @ np.linalg.solve(said, reach.T)


def own_blocks(system: TaskSystem) -> np.ndarray:
    """G_i + ρ, shape (n, p, p)."""
    index, own = np.arange(len(system.hub)), system.gram.copy()
    own[:, index, index] += system.ridge
    return own


def pooled_blocks(system: TaskSystem) -> np.ndarray:
    """Σ_i (G_i + ρ), shape (p, p)."""
    return system.gram.sum(axis=0) + np.diag(np.broadcast_to(system.ridge, system.shape).sum(axis=0))


def _answer(hub: np.ndarray, said: np.ndarray) -> np.ndarray:
    """H S⁻¹ H on the coordinates that the hub has, zero elsewhere."""
    has, answer = np.flatnonzero(hub > 0), np.zeros_like(said)
    answer[np.ix_(has, has)] = hub[has, None] * np.linalg.solve(said[np.ix_(has, has)], np.diag(hub[has]))
    return 0.5 * (answer + answer.T)


def _said_to_hub(system: TaskSystem, own: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """D_i⁻¹ of every task and Σ_i(H − HD_i⁻¹H) = Σ_i HD_i⁻¹(G_i + ρ), D = G + H + ρ: without edges."""
    blocks = kernels.inverse_blocks(own, np.broadcast_to(system.hub, system.shape))[0]
    said = system.hub[:, None] * np.tensordot(blocks, own, axes=([0, 1], [0, 1]))
    return blocks, 0.5 * (said + said.T)
