"""Exact nearest neighbours by matrix products on a torch device.

For points x, the k nearest of x_i lie in at most k groups of points, and those are the k groups with the smallest
minimum of ‖x_j‖² − 2 x_iᵀx_j. So one matrix product and one minimum over groups per tile find the candidates, whose
distances are then computed from differences, free of cancellation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ggmtl.solve.gpu.products import TensorGraph, chunks

# Distances held at a time.
_TILE_NUMBERS = 1 << 30
# Points per group, and groups beyond k looked at, because the tile's distances are rounded.
_GROUP, _SPARE_GROUPS = 64, 4


def nearest_neighbours(points: Tensor, k: int, *, tile_numbers: int = _TILE_NUMBERS) -> Tensor:
    """The `k` nearest other rows of `points` (n, d) for each row, nearest first, shape (n, k)."""
    n = len(points)
    k = min(k, n - 1)
    # The mean is taken away because cancellation grows with the distance from the origin.
    centred = points - points.mean(0)
    n_groups = -(-n // _GROUP)
    columns = _padded_columns(centred, n_groups * _GROUP)
    found = torch.empty((n, k), dtype=torch.int64, device=points.device)
    step = max(1, tile_numbers // columns.shape[1])
    for first in range(0, n, step):
        rows = slice(first, min(first + step, n))
        groups = _nearest_groups(centred[rows], columns, n_groups, k + 1 + _SPARE_GROUPS)
        members = groups.unsqueeze(2) + n_groups * torch.arange(_GROUP, device=points.device)
        found[rows] = _rank(centred, first, members.flatten(1), k)
    return found


def nearest_in_neighbourhood(points: Tensor, graph: TensorGraph, k: int) -> Tensor:
    """The `k` nearest among the neighbours in a graph and their neighbours, shape (n, k).

    Of the neighbours that a point has in the graph, the 2k nearest count. Where no other is found, it is itself.
    """
    n, width = len(points), 2 * k
    table = _nearest_in_graph(points, graph, width)
    found = torch.empty((n, k), dtype=torch.int64, device=points.device)
    for rows in chunks(n, width * (width + 1)):
        own = torch.arange(rows.start, rows.stop, device=points.device).unsqueeze(1)
        near = table[rows]
        members = torch.cat([near, table[near].flatten(1)], dim=1).sort(dim=1).values
        # A point that was reached twice stands there once, and its other places are the point's own.
        again = members[:, 1:] == members[:, :-1]
        members[:, 1:] = torch.where(again, own, members[:, 1:])
        found[rows] = _rank(points, rows.start, members, k)
    return found


def neighbour_edges(points: Tensor, k: int, **options: int) -> Tensor:
    """Pairs (i, j), i < j, of which at least one is among the `k` nearest of the other; sorted, shape (m, 2)."""
    return joined_pairs(nearest_neighbours(points, k, **options))


def joined_pairs(nearest: Tensor) -> Tensor:
    """Every pair (i, j), i < j, of which one is in the other's row of `nearest` (n, k); sorted, shape (m, 2)."""
    n = len(nearest)
    source = torch.arange(n, device=nearest.device).unsqueeze(1)
    key = torch.minimum(source, nearest) * n + torch.maximum(source, nearest)
    pairs = torch.unique(key[source != nearest])
    return torch.stack([pairs // n, pairs % n], dim=1)


def _nearest_in_graph(points: Tensor, graph: TensorGraph, width: int) -> Tensor:
    """The `width` nearest neighbours that a point has in a graph, filled up with itself, shape (n, width)."""
    start, neighbour = graph.start.long(), graph.neighbour.long()
    own = torch.arange(graph.n, device=points.device)
    owner = own.repeat_interleave(start.diff())
    distance = points.new_empty(len(neighbour))
    for rows in chunks(len(neighbour), 2 * points.shape[1]):
        distance[rows] = (points[neighbour[rows]] - points[owner[rows]]).square_().sum(1)
    # Sorted by distance, then, without losing that order, by owner again.
    order = distance.argsort()
    order = order[owner[order].argsort(stable=True)]
    rank = torch.arange(len(order), device=points.device) - start[owner]
    table = own.unsqueeze(1).repeat(1, width)
    kept = rank < width
    table[owner[kept], rank[kept]] = neighbour[order[kept]]
    return table


def _padded_columns(points: Tensor, width: int) -> Tensor:
    """[−2x, ‖x‖²] as columns, with points at infinity for padding, shape (d + 1, width)."""
    n, d = points.shape
    columns = points.new_zeros(d + 1, width)
    columns[:d, :n] = -2.0 * points.T
    columns[d, :n] = points.square().sum(1)
    columns[d, n:] = torch.inf
    return columns


def _nearest_groups(points: Tensor, columns: Tensor, n_groups: int, count: int) -> Tensor:
    """The groups with the smallest distance to each point; point j is in group j mod n_groups."""
    queries = torch.cat([points, points.new_ones(len(points), 1)], dim=1)
    smallest = (queries @ columns).view(len(points), -1, n_groups).amin(1)
    return smallest.topk(min(count, n_groups), largest=False, sorted=False).indices


def _rank(points: Tensor, first: int, members: Tensor, k: int) -> Tensor:
    """The k nearest among the members of each row, the row itself left out."""
    out = torch.empty((len(members), k), dtype=torch.int64, device=points.device)
    step = max(1, (1 << 27) // (members.shape[1] * points.shape[1]))
    for begin in range(0, len(members), step):
        rows = slice(begin, min(begin + step, len(members)))
        candidates = members[rows]
        own = torch.arange(first + rows.start, first + rows.stop, device=points.device).unsqueeze(1)
        nearby = points[candidates.clamp(max=len(points) - 1)]
        distance = nearby.sub_(points[own]).square_().sum(2)
        distance.masked_fill_((candidates == own) | (candidates >= len(points)), torch.inf)
        best = distance.topk(k, largest=False, sorted=True).indices
        out[rows] = candidates.gather(1, best)
    return out
