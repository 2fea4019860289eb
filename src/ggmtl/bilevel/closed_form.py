"""Closed-form edges (Theorem 2, Eq. 11) as a trial step, corrected so that its fixed points are optima.

    M z = η1 ,     A(e) z = C          (ξ = γ = 0, η > 0; M as in ``closed_form_edges``)

The theorem's equation U e = v holds at every e, so it does not single out the optimum. A step is therefore accepted
only if F falls; the projected gradient decides about convergence.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import lsq_linear

from ggmtl.bilevel.objective import ValidationObjective
from ggmtl.bilevel.problem import Evaluation, HoldOut


def closed_form_edges(objective: ValidationObjective, x: np.ndarray) -> np.ndarray | None:
    """Edge values at which the hyper-gradient η − Mp would vanish.

    On the free edges, with M the map z ↦ (u_ijᵀΛ(z_i − z_j))_ij, a target adjoint z = p + M⁺(η1 − Mp) is the nearest
    to p with M z = η1. A(e)z = C is then linear in e and is solved by bounded least squares.
    """
    m, eta = objective.n_edges, objective.sparsity.edge_l1
    e = x[:m]
    parts = objective.evaluations(x)
    gradient = eta + sum(part.edges for part in parts)
    free = (e > 0) & (e < 1) | (e <= 0) & (gradient < 0) | (e >= 1) & (gradient > 0)
    if not free.any():
        return None
    systems = [
        _stationarity(hold_out, part, e, free, eta / len(parts)) for hold_out, part in zip(objective.hold_outs, parts)
    ]
    matrix = np.concatenate([left for left, _ in systems])
    right = np.concatenate([goal for _, goal in systems])
    solution = lsq_linear(matrix, right, bounds=(0.0, 1.0), method="bvls" if free.sum() < 200 else "trf")
    out = x.copy()
    out[:m][free] = solution.x
    return out


def _stationarity(
    hold_out: HoldOut, part: Evaluation, e: np.ndarray, free: np.ndarray, eta: float
) -> tuple[np.ndarray, np.ndarray]:
    """Left and right side of Σ_free e_ij Λ(z_i − z_j) = C − (A without the free edges) z, dense."""
    problem = hold_out.problem
    n, p = part.coefficients.shape
    i, j = problem.edges[free].T
    count = len(i)
    force = problem.force(problem.differences(part.coefficients))[free]
    M = np.zeros((count, n, p))
    M[np.arange(count), i], M[np.arange(count), j] = force, -force
    M = M.reshape(count, n * p)
    adjoint = part.adjoint.ravel()
    z = (adjoint + np.linalg.lstsq(M, eta - M @ adjoint, rcond=None)[0]).reshape(n, p)
    rest = problem.system(np.where(free, 0.0, e))
    right = hold_out.validation.gradient(part.coefficients) - rest.apply(z)
    pull = (z[i] - z[j]) * problem.coupling
    left = np.zeros((n, p, count))
    left[i, :, np.arange(count)] += pull
    left[j, :, np.arange(count)] -= pull
    return left.reshape(n * p, count), right.ravel()
