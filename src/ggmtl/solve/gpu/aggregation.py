"""Coarser and coarser copies of a weighted graph, for multigrid.

Roots are a maximal set of nodes no two of which are neighbours or neighbours of neighbours; every other node joins its
root, or the aggregate that its heaviest edge leads to. All steps are maxima and sums over sorted lists, so that the
result does not depend on the device or on the order of its threads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ggmtl.solve.gpu.products import TensorGraph, compressed_rows, group_starts

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
    """A graph and, but for the coarsest, how its nodes are put together.

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
    # A multiple of an odd number modulo 2³² never repeats, and mixes the order that tasks came in.
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
