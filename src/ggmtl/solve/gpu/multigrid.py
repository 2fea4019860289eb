"""Aggregation multigrid for the graph part of the system, all columns at once.

Column k of the graph level solves

    K_k = Λ_k L_w + diag(s_k) − (h_k/n) 11ᵀ ,      s_ik = μ_i + ρ_ik + h_k ,   μ_i = tr G_i / p .

The prolongation P is constant on disjoint aggregates, hence PᵀK_kP = Λ_k PᵀLP + diag(Pᵀs_k) − (h_k/n) (Pᵀ1)(Pᵀ1)ᵀ:
one hierarchy of graphs serves every Λ and h, and the hub is exact on every level because P reproduces constants.

Roots of aggregates are a maximal set of nodes no two of which are neighbours or neighbours of neighbours; every other
node joins its root, or the aggregate that its heaviest edge leads to. All steps are maxima and sums over sorted lists,
so that the result does not depend on the device or on the order of its threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ggmtl.solve.gpu.system import TensorGraph, TensorSystem, compressed_rows, group_starts, row_sums

# A graph of at most this many nodes is not coarsened.
_COARSEST = 256
_MAX_LEVELS = 12
# An edge is strong where w_ij ≥ θ √(degree_i degree_j); aggregates grow along strong edges.
_STRONG = 0.03
# Two roots are more than this many strong edges apart.
_ROOT_DISTANCE = 2
# Passes in which nodes without strong edges may join.
_JOINING_PASSES = 3
_CHOSEN = 2**62


@dataclass(frozen=True)
class GraphLevel:
    """A graph and, except for the coarsest, the aggregates of its nodes.

    Parameters
    ----------
    adjacency : sparse tensor of shape (n, n)
        W.
    degree, size : tensors of shape (n, 1)
        Row sums of W; and how many nodes of the finest graph a node stands for.
    aggregate : tensor of int64, shape (n,), optional
        Node of the next graph.
    members : sparse tensor of shape (n_next, n), optional
        Pᵀ.
    """

    adjacency: Tensor
    degree: Tensor
    size: Tensor
    aggregate: Tensor | None = None
    members: Tensor | None = None


def build_levels(graph: TensorGraph, weights: Tensor) -> tuple[GraphLevel, ...]:
    """Coarsen until the graph is small or no longer shrinks."""
    levels = []
    size = weights.new_ones(graph.n, 1)
    while True:
        adjacency = graph.adjacency(weights)
        degree = adjacency @ weights.new_ones(graph.n, 1)
        aggregate, n_next = None, graph.n
        if graph.n > _COARSEST and len(levels) < _MAX_LEVELS:
            aggregate, n_next = aggregate_nodes(graph.edges, weights, degree[:, 0])
        if aggregate is None or n_next > 0.8 * graph.n:
            return (*levels, GraphLevel(adjacency, degree, size))
        order = torch.argsort(aggregate, stable=True).to(graph.start.dtype)
        start = group_starts(aggregate, n_next).to(graph.start.dtype)
        members = compressed_rows(start, order, weights.new_ones(graph.n), graph.n)
        levels.append(GraphLevel(adjacency, degree, size, aggregate, members))
        graph, weights = _merge(graph.edges, weights, aggregate, n_next)
        size = members @ size


def aggregate_nodes(edges: Tensor, weights: Tensor, degree: Tensor) -> tuple[Tensor, int]:
    """The aggregate of every node, and how many there are; nodes without edges form one."""
    edges, weights = edges[weights > 0], weights[weights > 0]
    strong = weights >= _STRONG * (degree[edges[:, 0]] * degree[edges[:, 1]]).sqrt()
    roots = _roots(edges[strong], len(degree))
    label = torch.where(roots, roots.cumsum(0) - 1, -1)
    source, target = _both_ways(edges[strong])
    label = torch.maximum(label, _largest(label[target], source, len(degree), -1))
    label = _join_heaviest(label, edges, weights)
    count = int(label.max()) + 1
    return torch.where(label >= 0, label, count), count + int((label < 0).any())


def _roots(edges: Tensor, n: int) -> Tensor:
    """A maximal set of nodes with edges, pairwise more than the root distance apart."""
    source, target = _both_ways(edges)
    # Multiples of an odd number modulo 2³² never repeat, so this is a random-looking order without ties.
    priority = (torch.arange(n, device=edges.device) * 2654435761) % 2**32 + 1
    linked = torch.zeros(n, dtype=torch.bool, device=edges.device)
    linked[source] = True
    state = torch.where(linked, priority, 0)
    while bool(((state > 0) & (state < _CHOSEN)).any()):
        reach = state
        for _ in range(_ROOT_DISTANCE):
            reach = torch.maximum(reach, _largest(reach[target], source, n, 0))
        chosen = (reach == state) & (state > 0)
        state = torch.where(chosen, _CHOSEN, torch.where(reach == _CHOSEN, 0, state))
    return state == _CHOSEN


def _join_heaviest(label: Tensor, edges: Tensor, weights: Tensor) -> Tensor:
    """Nodes without an aggregate join that of their heaviest edge."""
    source, target = _both_ways(edges)
    heavy = weights.repeat(2)
    for _ in range(_JOINING_PASSES):
        usable = torch.where(label[target] >= 0, heavy, 0.0)
        best = _largest(usable, source, len(label), 0.0)
        offered = torch.where((usable > 0) & (usable == best[source]), label[target], -1)
        label = torch.where(label >= 0, label, _largest(offered, source, len(label), -1))
    return label


def _merge(edges: Tensor, weights: Tensor, aggregate: Tensor, n_next: int) -> tuple[TensorGraph, Tensor]:
    """Edges between aggregates, with summed weights."""
    ends = aggregate[edges].sort(dim=1).values
    between = (ends[:, 0] != ends[:, 1]) & (weights > 0)
    key, order = (ends[between, 0] * n_next + ends[between, 1]).sort(stable=True)
    pairs, count = torch.unique_consecutive(key, return_counts=True)
    total = torch.segment_reduce(weights[between][order], "sum", lengths=count) if len(pairs) else weights[:0]
    merged = torch.stack([pairs // n_next, pairs % n_next], dim=1)
    return TensorGraph.of(merged, n_next), total


def _both_ways(edges: Tensor) -> tuple[Tensor, Tensor]:
    source, target = torch.cat([edges, edges.flip(1)]).unbind(1)
    return source, target


def _largest(values: Tensor, index: Tensor, n: int, empty: float) -> Tensor:
    """The maximum of the values at each index, and `empty` where there is none."""
    return values.new_full((n,), empty).scatter_reduce(0, index, values, "amax")


# Jacobi step lengths, in units of 1/ρ(D⁻¹K): the inverse Chebyshev nodes of [1/8, 1], the part of the spectrum that
# coarser levels leave to smoothing.
_STEP_LENGTHS = tuple(1.0 / (9 / 16 + 7 / 16 * math.cos(math.pi * k / 4)) for k in (1, 3))
# Functions that are constant on aggregates are too stiff; coarser graphs are weakened to make up for it.
_SOFTENING = 1.5
# Coarse corrections of every level but the finest.
_VISITS = 2
# The coarsest graph is solved exactly up to this size, otherwise by this many smoothing rounds.
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
