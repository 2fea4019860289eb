"""The linear system of the inner problem on a torch device.

    A = blockdiag(G_i) + L_w ⊗ diag(Λ) + (I − 11ᵀ/n) ⊗ diag(h) + ρ

as in :mod:`ggmtl.solve.system`, with one weight per edge. The block matrices may be held in float32 while everything
else, and the sums, are float64.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ggmtl.solve.gpu.products import TensorGraph, block_product, chunks, row_sums


@dataclass(frozen=True)
class TensorLoss:
    """½ Σ_i ‖X_i w_i − y_i‖² = ½ Σ_i (wᵢᵀ G_i wᵢ − 2 m_iᵀ wᵢ + t_i), with all parts on one device.

    Parameters
    ----------
    gram : tensor of shape (n, p, p)
        G, float64 or float32.
    moment : tensor of shape (n, p)
        m.
    target_square, count : tensors of shape (n,)
        t, and rows of each task.
    """

    gram: Tensor
    moment: Tensor
    target_square: Tensor
    count: Tensor

    @classmethod
    def of(cls, loss, device: torch.device | str = "cpu", gram_dtype: torch.dtype = torch.float64) -> TensorLoss:
        """Copy a loss with NumPy parts of the same names."""
        parts = (loss.moment, loss.target_square, loss.count)
        return cls(
            torch.as_tensor(loss.gram).to(device, gram_dtype),
            *(torch.as_tensor(part).to(device, torch.float64) for part in parts),
        )

    def gradient(self, coefficients: Tensor) -> Tensor:
        """X_iᵀ(X_i w_i − y_i) of every task, shape (n, p)."""
        return block_product(self.gram, coefficients).sub_(self.moment)

    def task_values(self, coefficients: Tensor, gradient: Tensor | None = None) -> Tensor:
        """½‖X_i w_i − y_i‖² of every task, shape (n,)."""
        gradient = self.gradient(coefficients) if gradient is None else gradient
        cross = ((gradient - self.moment) * coefficients).sum(1)
        return (0.5 * (cross + self.target_square)).clamp_(min=0.0)


@dataclass(frozen=True)
class TensorSystem:
    """The operator A.

    Parameters
    ----------
    gram : tensor of shape (n, p, p)
        G, in any floating type.
    graph : TensorGraph
    weights : tensor of shape (m,)
        w.
    coupling, hub : tensors of shape (p,)
        Λ and h.
    ridge : tensor that broadcasts to (n, p)
        ρ.
    """

    gram: Tensor
    graph: TensorGraph
    weights: Tensor
    coupling: Tensor
    hub: Tensor
    ridge: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """(n, p): tasks and coefficients per task."""
        return self.gram.shape[0], self.gram.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """Type of every part but the blocks, and of what :meth:`apply` takes and returns."""
        return self.weights.dtype

    def cast(self, dtype: torch.dtype, *, blocks: bool = False) -> TensorSystem:
        """The same system in another type, its blocks only if asked for."""
        parts = {name: getattr(self, name).to(dtype) for name in ("weights", "coupling", "hub", "ridge")}
        return replace(self, gram=self.gram.to(dtype) if blocks else self.gram, **parts)

    @cached_property
    def adjacency(self) -> Tensor:
        """W in compressed rows."""
        return self.graph.adjacency(self.weights)

    @cached_property
    def pull(self) -> Tensor:
        """Λ_k Σ_j w_ij + h_k, the strength of graph and hub on a coefficient, shape (n, p)."""
        degrees = self.adjacency @ self.weights.new_ones(self.shape[0], 1)
        return (degrees * self.coupling).add_(self.hub)

    @cached_property
    def diagonal(self) -> Tensor:
        """What graph, hub and ridge add to the diagonals of the G_i, shape (n, p)."""
        return self.pull + (self.ridge - self.hub / self.shape[0])

    def couple(self, values: Tensor) -> Tensor:
        """(D − A) · values, D the diagonal blocks of A: W ⊗ Λ + (11ᵀ − I)/n ⊗ diag(h)."""
        tail = (...,) + (None,) * (values.ndim - 2)
        coupling, share = self.coupling[tail], (self.hub / self.shape[0])[tail]
        out = row_sums(self.adjacency, values).mul_(coupling)
        out.addcmul_(values, share, value=-1)
        return out.add_(values.sum(0) * share)

    def apply(self, values: Tensor) -> Tensor:
        """A · values for values of shape (n, p) or (n, p, r)."""
        diagonal = self.diagonal.unsqueeze(2) if values.ndim == 3 else self.diagonal
        return block_product(self.gram, values).addcmul_(diagonal, values).sub_(self.couple(values))

    def mean_eigenvalue(self) -> Tensor:
        """tr G_i / p, shape (n, 1), in the type of the system."""
        trace = self.gram.diagonal(dim1=1, dim2=2).sum(1, keepdim=True, dtype=torch.float64)
        return (trace / self.shape[1]).to(self.dtype)

    def mean_rank_share(self) -> float:
        """Mean over tasks of (tr G)²/(p tr G²), the share of directions that the data of a task use."""
        n, p = self.shape
        square = torch.cat([self.gram[rows].square().sum((1, 2)) for rows in chunks(n, p * p)]).double()
        trace = p * self.mean_eigenvalue()[:, 0].double()
        return float((trace.square() / (p * square).clamp(min=torch.finfo(square.dtype).tiny)).mean())
