"""What a solver of A V = R returns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ggmtl.errors import SolverError


def norms(values: np.ndarray) -> np.ndarray:
    """Of every right-hand side of shape (n, p), or (n, p, r) for r of them."""
    return np.sqrt(np.einsum("np...,np...->...", values, values))


def relative_residual(residual: np.ndarray, right: np.ndarray) -> float:
    """The largest ‖R − A V‖/‖R‖ over right-hand sides."""
    scale = norms(right)
    return float(np.max(norms(residual) / np.where(scale > 0, scale, 1.0)))


@dataclass(frozen=True)
class Solution:
    """What a solver returns.

    Parameters
    ----------
    value : array of shape (n, p) or (n, p, r)
        The solution.
    iterations : int
        Iterations taken; zero for the direct solver.
    residual : float
        Largest ‖R − A V‖/‖R‖ over right-hand sides, computed from the solution itself.
    status : str
        ``"direct"``, ``"converged"``, ``"stalled"`` or ``"max_iter"``.
    applications : int
        How often A was applied, preconditioner included; what the fused kernel saves is not deducted.
    """

    value: np.ndarray
    iterations: int
    residual: float
    status: str
    applications: int = 0

    @property
    def succeeded(self) -> bool:
        """Whether the tolerance was reached."""
        return self.status in ("direct", "converged")

    def require(self, accuracy: float) -> Solution:
        """Return self, or refuse a solution worse than `accuracy`."""
        if self.succeeded or self.residual <= accuracy:
            return self
        raise SolverError(
            f"The linear system was solved only to a relative residual of {self.residual:.1e} after "
            f"{self.iterations} iterations ({self.status}). The problem is badly conditioned: use a larger ridge, "
            "weaker coupling, or remove (nearly) collinear features."
        )
