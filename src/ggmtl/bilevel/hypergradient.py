"""Hyper-gradient (Theorem 1, Eq. 10): derivatives of an outer loss with respect to edges, coupling and hub.

For an outer loss ℓ(V) and C = ∂ℓ/∂V, the adjoint p solves H p = C with H the inner problem's Hessian at V(e). With
u = w_i − w_j and q = p_i − p_j,

    ∂ℓ/∂e_ij = − φ_ijᵀ q              φ = Λu (squared ℓ2), ½λ u/s (ℓ2), ½λ (u_k/s_k)_k (ℓ1)
    ∂ℓ/∂Λ_kk = − Σ_ij e_ij (φ_k/Λ_k) q_k
    ∂ℓ/∂h_k  = − Σ_i (w_ik − w̄_k)(p_ik − p̄_k)

``exact`` uses H; ``frozen`` (the paper's recipe for ℓ2) uses the majoriser's A(e∘l) instead. The paper writes the first
line with Kronecker products; it is one dot product per edge.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ggmtl.bilevel.inner import InnerProblem, InnerSolution
from ggmtl.errors import check_choice
from ggmtl.solve.solvers import prepare

MODES = ("exact", "frozen")


@dataclass(frozen=True)
class HyperGradient:
    """Derivatives of the outer loss.

    Parameters
    ----------
    edges : array of shape (m,)
    coupling : array of shape (p,)
        One entry per coordinate; for a scalar λ take the sum.
    hub : array of shape (p,)
    adjoint : array of shape (n, p)
        p, a warm start for the next adjoint solve.
    """

    edges: np.ndarray
    coupling: np.ndarray
    hub: np.ndarray
    adjoint: np.ndarray


def hypergradient(
    problem: InnerProblem,
    edge_values: np.ndarray,
    solution: InnerSolution,
    outer_gradient: np.ndarray,
    *,
    mode: str = "exact",
    start: np.ndarray | None = None,
    tol: float = 1e-10,
) -> HyperGradient:
    """Derivatives of an outer loss whose gradient at the models is `outer_gradient`, shape (n, p)."""
    check_choice("hypergradient", mode, MODES)
    prepared = solution.prepared
    if mode == "exact" and problem.penalty != "squared_l2":
        prepared = prepare(problem.hessian(solution.coefficients, edge_values))
    adjoint = prepared.solve(outer_gradient, start, tol).require(1e-6).value
    q = problem.differences(adjoint)
    # The force of one unit of Λ, not force / Λ, which has no value at Λ = 0.
    unit = replace(problem, coupling=np.ones_like(problem.coupling))
    per_unit = unit.force(problem.differences(solution.coefficients)) * q
    return HyperGradient(
        edges=-np.einsum("mp,mp->m", solution.force, q),
        coupling=-(edge_values @ per_unit),
        hub=-_covariation(solution.coefficients, adjoint),
        adjoint=adjoint,
    )


def _covariation(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.einsum("np,np->p", a - a.mean(axis=0), b)
