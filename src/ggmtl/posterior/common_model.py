"""What the common model adds to the covariance of two tasks.

With B = A + (11ᵀ/n) ⊗ H, in which every task is drawn to a common model that is held, X = B⁻¹b and s = Σ_t X_t,

    bᵀA⁻¹b = bᵀX + sᵀCs ,     C = H(nH − H·1ᵀB⁻¹1·H)⁻¹H .

Edges bring C from H(Σ_i H D_i⁻¹(G_i + ρ))⁻¹H, D = G + H + ρ, down towards what it is where all tasks have one model.
Between the two, C is known to a share of order 1/n of the whole.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ggmtl import kernels
from ggmtl.system import TaskSystem

# By how much of a variance the bounds of the common model's part in it may differ: a standard error is then right to
# some thousandths.
_GAP = 1e-2


@dataclass(frozen=True)
class CommonModel:
    """C of a hub on all coordinates lies between two matrices of shape (p, p); they are the same without edges."""

    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, system: TaskSystem) -> CommonModel | None:
        """Of all tasks; None where the hub leaves a coordinate free or the tasks leave the common model free."""
        if not (system.hub > 0).all():
            return None
        blocks = own_blocks(system)
        try:
            high = _answer(system.hub, _said_to_hub(system, blocks)[1])
            if not len(system.edges):
                return cls(high, high)
            total, pulled = blocks.sum(axis=0), np.diag(len(blocks) * system.hub)
            one = pulled @ np.linalg.solve(pulled + total, total)
            return cls(_answer(system.hub, 0.5 * (one + one.T)), high)
        except np.linalg.LinAlgError:
            return None

    def within(self, reach: np.ndarray, scale: np.ndarray) -> np.ndarray | None:
        """sᵀCs for s of shape (p, p); None where that is not known to a small share of `scale`."""
        low, high = (reach.T @ bound @ reach for bound in (self.low, self.high))
        return 0.5 * (low + high) if (np.diag(high - low) <= _GAP * scale).all() else None


def covariance_beside_hub(system: TaskSystem, i: int, j: int) -> np.ndarray:
    """bᵀA⁻¹b without edges: D_i⁻¹ + D_j⁻¹ + t (Σ_k H D_k⁻¹(G_k + ρ))⁻¹ tᵀ, t = (D_i⁻¹ − D_j⁻¹)H, D = G + H + ρ."""
    blocks, said = _said_to_hub(system, own_blocks(system))
    reach = (blocks[i] - blocks[j]) * system.hub
    return blocks[i] + blocks[j] + reach @ np.linalg.solve(said, reach.T)


def own_blocks(system: TaskSystem) -> np.ndarray:
    """G_i + ρ, shape (n, p, p)."""
    index, own = np.arange(len(system.hub)), system.gram.copy()
    own[:, index, index] += system.ridge
    return own


def _answer(hub: np.ndarray, said: np.ndarray) -> np.ndarray:
    return hub[:, None] * np.linalg.solve(said, np.diag(hub))


def _said_to_hub(system: TaskSystem, own: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """D_i⁻¹ of every task and Σ_i H D_i⁻¹(G_i + ρ), D = G + H + ρ: without edges."""
    blocks = kernels.inverse_blocks(own, np.broadcast_to(system.hub, system.shape))[0]
    said = system.hub[:, None] * np.tensordot(blocks, own, axes=([0, 1], [0, 1]))
    return blocks, 0.5 * (said + said.T)
