"""Sparsity terms of the outer problem (Eq. 2a): ½ξ‖e‖² + η‖e‖₁ + γH(e), H(e) = −Σ(e ln e − e)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ggmtl.errors import ParameterError

# The slope of H at zero is +∞. Below this floor H continues as a straight line, which is part of the problem.
ENTROPY_FLOOR = 1e-6


@dataclass(frozen=True)
class Sparsity:
    """The three terms, for e ≥ 0.

    Parameters
    ----------
    edge_l2, edge_l1, edge_entropy : float
        ξ, η, γ, none negative.

    Examples
    --------
    >>> value, gradient = Sparsity(edge_l1=2.0).value_and_gradient(np.array([0.5, 0.25]))
    >>> value, gradient.tolist()
    (1.5, [2.0, 2.0])
    """

    edge_l2: float = 0.0
    edge_l1: float = 0.0
    edge_entropy: float = 0.0

    def __post_init__(self):
        for name in ("edge_l2", "edge_l1", "edge_entropy"):
            value = getattr(self, name)
            if not np.isfinite(value) or value < 0:
                raise ParameterError(f"{name} must be finite and not negative. Got {value!r} instead.")

    def value_and_gradient(self, edge_values: np.ndarray) -> tuple[float, np.ndarray]:
        """Value and gradient, shape (m,)."""
        e = edge_values
        value = 0.5 * self.edge_l2 * float(e @ e) + self.edge_l1 * float(e.sum())
        gradient = self.edge_l2 * e + self.edge_l1
        if self.edge_entropy:
            floored = np.maximum(e, ENTROPY_FLOOR)
            logarithm = np.log(floored)
            entropy = -(floored * logarithm - floored) - logarithm * np.minimum(e - ENTROPY_FLOOR, 0.0)
            value += self.edge_entropy * float(entropy.sum())
            gradient = gradient - self.edge_entropy * logarithm
        return value, gradient
