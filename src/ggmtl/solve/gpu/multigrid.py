"""Aggregation multigrid for the graph part of the system, all columns at once.

Column k of the graph level solves

    K_k = Λ_k L_w + diag(s_k) − (h_k/n) 11ᵀ ,      s_ik = μ_i + ρ_ik + h_k ,   μ_i = tr G_i / p .

The prolongation P is constant on disjoint aggregates, hence PᵀK_kP = Λ_k PᵀLP + diag(Pᵀs_k) − (h_k/n) (Pᵀ1)(Pᵀ1)ᵀ:
one hierarchy of graphs serves every Λ and h, and the hub is exact on every level because P reproduces constants.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ggmtl.solve.gpu.aggregation import GraphLevel, build_levels
from ggmtl.solve.gpu.products import row_sums
from ggmtl.solve.gpu.system import TensorSystem

# Jacobi step lengths, in units of 1/ρ(D⁻¹K): the inverse Chebyshev nodes of [1/8, 1], the part of the spectrum that
# coarser levels leave to smoothing.
_STEP_LENGTHS = tuple(1.0 / (9 / 16 + 7 / 16 * math.cos(math.pi * k / 4)) for k in (1, 3))
# Functions that are constant on aggregates are too stiff; coarser graphs are weakened to make up for it.
_SOFTENING = 1.5
# Coarse corrections of every level but the finest.
_VISITS = 2
# The coarsest graph is solved exactly up to this size, otherwise by so many smoothing rounds.
_DENSE, _BOTTOM_ROUNDS = 512, 4


@dataclass(frozen=True)
class ColumnLevel:
    """K of every column on one level.

    Parameters
    ----------
    graph : GraphLevel
    coupling, share : tensors of shape (p,)
        Λ, softened; and h/n.
    diagonal : tensor of shape (n, p)
        Λ degree + s.
    bound : tensor of shape (p,)
        ρ(D⁻¹K) at most.
    """

    graph: GraphLevel
    coupling: Tensor
    share: Tensor
    diagonal: Tensor
    bound: Tensor

    @classmethod
    def of(cls, graph: GraphLevel, coupling: Tensor, share: Tensor, shift: Tensor) -> ColumnLevel:
        """Collect the parts."""
        pull = graph.degree * coupling
        diagonal = pull + shift
        return cls(graph, coupling, share, diagonal, (1.0 + pull / diagonal).amax(0))

    def residual(self, right: Tensor, values: Tensor) -> Tensor:
        """right − K · values."""
        tail = (...,) + (None,) * (values.ndim - 2)
        size = self.graph.size.view(-1, *(1,) * (values.ndim - 1))
        out = row_sums(self.graph.adjacency, values).mul_(self.coupling[tail]).add_(right)
        out.addcmul_(self.diagonal[tail], values, value=-1)
        return out.addcmul_(size, (size * values).sum(0) * self.share[tail])

    def step(self, length: float, residual: Tensor) -> Tensor:
        """A Jacobi step."""
        tail = (...,) + (None,) * (residual.ndim - 2)
        return residual * (length / (self.bound * self.diagonal))[tail]

    def dense_inverses(self) -> Tensor:
        """K⁻¹ of every column, shape (p, n, n)."""
        size = self.graph.size.double()
        matrices = -self.coupling.double()[:, None, None] * self.graph.adjacency.to_dense().double()
        matrices -= self.share.double()[:, None, None] * (size @ size.T)
        matrices.diagonal(dim1=1, dim2=2).add_(self.diagonal.T)
        return torch.linalg.inv(matrices).to(self.diagonal.dtype)


@dataclass(frozen=True)
class GraphMultigrid:
    """C: one cycle over all levels, a symmetric positive definite map."""

    levels: tuple[ColumnLevel, ...]
    bottom: Tensor | None

    @classmethod
    def of(cls, system: TensorSystem) -> GraphMultigrid:
        """Coarsen the graph of a system, in the system's type."""
        share = system.hub / system.shape[0]
        shift = system.mean_eigenvalue() + system.ridge
        shift = shift.clamp(min=1e-12 * float(shift.max())) + system.hub
        coupling, levels = system.coupling, []
        for graph in build_levels(system.graph, system.weights):
            levels.append(ColumnLevel.of(graph, coupling, share, shift))
            coupling = coupling / _SOFTENING
            shift = shift if graph.members is None else row_sums(graph.members, shift)
        small = len(levels[-1].diagonal) <= _DENSE
        return cls(tuple(levels), levels[-1].dense_inverses() if small else None)

    def __call__(self, right: Tensor) -> Tensor:
        """C · right for values of shape (n, p) or (n, p, r)."""
        return self._descend(0, right)

    def _descend(self, depth: int, right: Tensor) -> Tensor:
        level = self.levels[depth]
        members, aggregate = level.graph.members, level.graph.aggregate
        if members is None or aggregate is None:
            return self._solve_bottom(level, right)
        # 1. Smooth from a zero start.
        value = level.step(_STEP_LENGTHS[0], right)
        for length in _STEP_LENGTHS[1:]:
            value += level.step(length, level.residual(right, value))
        # 2. Correct on the next level: once from the finest, more often below, where it is cheap.
        coarse = row_sums(members, level.residual(right, value))
        value += self._correct(depth + 1, coarse)[aggregate]
        # 3. Smooth in the opposite order.
        for length in reversed(_STEP_LENGTHS):
            value += level.step(length, level.residual(right, value))
        return value

    def _correct(self, depth: int, right: Tensor) -> Tensor:
        value = self._descend(depth, right)
        if depth < len(self.levels) - 1:
            for _ in range(_VISITS - 1):
                value += self._descend(depth, self.levels[depth].residual(right, value))
        return value

    def _solve_bottom(self, level: ColumnLevel, right: Tensor) -> Tensor:
        if self.bottom is not None:
            stacked = right.movedim(1, 0)
            flat = stacked.reshape(len(stacked), stacked.shape[1], -1)
            return torch.bmm(self.bottom, flat).reshape(stacked.shape).movedim(0, 1)
        value = torch.zeros_like(right)
        for _ in range(_BOTTOM_ROUNDS):
            for length in (*_STEP_LENGTHS, *reversed(_STEP_LENGTHS)):
                value += level.step(length, level.residual(right, value))
        return value
