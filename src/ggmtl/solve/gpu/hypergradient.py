"""Hyper-gradient of the validation criterion on a torch device.

With A V = XᵀY, C = X_valᵀ(X_val V − Y_val) and A p = C,

    ∂F/∂e_ij = −(w_i − w_j)ᵀ Λ (p_i − p_j),   ∂F/∂Λ_k = −Σ_ij e_ij u_k q_k,   ∂F/∂h_k = −Σ_i (w_ik − w̄_k) p_ik :

one solve, one adjoint solve with the same preconditioner, one pass over the edges.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ggmtl.solve.gpu.products import TensorGraph, edge_products
from ggmtl.solve.gpu.solver import TensorSolver
from ggmtl.solve.gpu.system import TensorLoss, TensorSystem


@dataclass(frozen=True)
class TensorEvaluation:
    """Fields as those of :class:`ggmtl.bilevel.Evaluation`, all tensors, and the iterations of both solves."""

    value: Tensor
    edges: Tensor
    coupling: Tensor
    hub: Tensor
    coefficients: Tensor
    task_values: Tensor
    adjoint: Tensor
    iterations: tuple[int, int]


def evaluate_hold_out(
    train: TensorLoss,
    validation: TensorLoss,
    graph: TensorGraph,
    edge_values: Tensor,
    coupling: Tensor,
    hub: Tensor,
    ridge: Tensor,
    *,
    warm: TensorEvaluation | None = None,
    tol: float = 1e-8,
    dtype: torch.dtype = torch.float32,
    levels: int | None = None,
) -> TensorEvaluation:
    """Outer loss and its derivatives for edges, coupling and hub; squared penalty.

    Parameters
    ----------
    train, validation : TensorLoss
        Rows of the inner and of the outer problem.
    graph : TensorGraph
        Candidate edges.
    edge_values, coupling, hub : float64 tensors of shape (m,), (p,), (p,)
        e, Λ and h.
    ridge : float64 tensor that broadcasts to (n, p)
        ρ.
    warm : TensorEvaluation, optional
        An evaluation nearby.
    tol : float
        Relative residual of both solves, in float64.
    dtype : torch.dtype
        Type of the conjugate-gradient iterations.
    levels : {1, 2}, optional
        Block-Jacobi alone, or with the graph level; by default as the coupling asks for.
    """
    solver = TensorSolver.of(TensorSystem(train.gram, graph, edge_values, coupling, hub, ridge), dtype, levels)
    models = solver.solve(train.moment, warm.coefficients if warm else None, tol).require(1e-6)
    slope = validation.gradient(models.value)
    adjoint = solver.solve(slope, warm.adjoint if warm else None, tol).require(1e-6)
    along, by_coordinate = edge_products(graph, models.value, adjoint.value, coupling, edge_values)
    task_values = validation.task_values(models.value, slope)
    return TensorEvaluation(
        value=task_values.sum(),
        edges=along.neg_(),
        coupling=-by_coordinate,
        hub=-((models.value - models.value.mean(0)) * adjoint.value).sum(0),
        coefficients=models.value,
        task_values=task_values,
        adjoint=adjoint.value,
        iterations=(models.iterations, adjoint.iterations),
    )
