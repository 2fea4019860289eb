"""Two kernels on torch tensors, without other dependencies: the evidence of the hub, and nearest neighbours.

With D_i = G_i + diag(h) + ρI, K_i = D_i⁻¹(G_i + ρI) and M_i = diag(h) K_i (see :mod:`ggmtl.evidence.hub`),

    f(h)    = ½(N − p) ln Q + ½ Σ_i ln|D_i| + ½ ln|Σ_i M_i| − ½ n Σ_k ln h_k − ½ p ln n
    ∂f/∂h_k = ½ Σ_i [ (w_i − μ)_k²/σ² + (D_i⁻¹)_kk + (K_i (ΣM)⁻¹ K_iᵀ)_kk ] − ½ n/h_k .

Nearest neighbours are exact up to a large number of points. Distances to all points are computed in tiles, and only the
nearest groups of points are ranked. With more points, only neighbours of neighbours are searched.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ggmtl.errors import SingularSystemError
from ggmtl.solve.gpu.system import TensorGraph, TensorLoss, block_product, chunks, inverse_and_log_determinant, shifted

# The matrices of the tasks are kept between the two passes if they need at most this share of the free GPU memory, or
# this many bytes on the CPU.
_KEPT_SHARE, _KEPT_BYTES = 0.25, 1 << 29


@dataclass(frozen=True)
class TensorHubEvidence:
    """The evidence of a hub; fields as in :class:`ggmtl.evidence.hub.HubEvidence`, with tensors for arrays."""

    value: float
    gradient: Tensor
    coefficients: Tensor
    common: Tensor
    noise: float


def tensor_hub_evidence(loss: TensorLoss, hub: Tensor, ridge: float) -> TensorHubEvidence:
    """Exact f(h) with its gradient and the models for h > 0; computed in the dtype of `hub`, usually float64."""
    n, p = loss.moment.shape
    ranges = list(chunks(n, 6 * p * p))
    keep = len(ranges) == 1 or _fits(n * p * p * hub.element_size(), hub.device)
    # 1. The information of every task about the shared model, and Σ_i k kᵀ for each row k of the K_i.
    pooled, right, log_det = hub.new_zeros(p, p), hub.new_zeros(p), hub.new_zeros(())
    variance, cross = hub.new_zeros(p), hub.new_zeros(p, p, p)
    kept = []
    for rows in ranges:
        inverse, shrink, chunk_log_det = _task_matrices(loss, rows, hub, ridge)
        log_det += chunk_log_det
        pooled += hub.unsqueeze(1) * shrink.sum(0)
        right += hub * block_product(inverse, loss.moment[rows].to(hub.dtype)).sum(0)
        variance += inverse.diagonal(dim1=1, dim2=2).sum(0)
        cross += torch.bmm(shrink.permute(1, 2, 0), shrink.permute(1, 0, 2))
        kept.append(inverse if keep else None)
    pooled = 0.5 * (pooled + pooled.T)
    # `inv_ex` does not raise. The check at the end has a clearer message than the error of `inv`.
    spread = torch.linalg.inv_ex(pooled).inverse
    common = spread @ right
    variance += (cross * spread).sum((1, 2))
    # 2. The models.
    coefficients = hub.new_empty(n, p)
    for rows, inverse in zip(ranges, kept):
        if inverse is None:
            inverse = _task_matrices(loss, rows, hub, ridge)[0]
        coefficients[rows] = block_product(inverse, loss.moment[rows].to(hub.dtype) + hub * common)
    return _assemble(loss, hub, ridge, coefficients, common, variance, log_det + torch.logdet(pooled))


def _task_matrices(loss: TensorLoss, rows: slice, hub: Tensor, ridge: float) -> tuple[Tensor, Tensor, Tensor]:
    """D_i⁻¹, K_i = D_i⁻¹(G_i + ρI) and Σ ln|D_i| of some tasks; scaled by h^½, so that any h is safe."""
    scale = torch.outer(hub, hub).rsqrt()
    data = shifted(loss.gram[rows], torch.full_like(hub, ridge))
    whitened = data * scale
    whitened.diagonal(dim1=1, dim2=2).add_(1.0)
    inverse, log_det = inverse_and_log_determinant(whitened)
    inverse *= scale
    return inverse, torch.bmm(inverse, data), log_det.sum() + len(data) * hub.log().sum()


def _assemble(
    loss: TensorLoss, hub: Tensor, ridge: float, coefficients: Tensor, common: Tensor, variance: Tensor, log_det: Tensor
) -> TensorHubEvidence:
    n, p = coefficients.shape
    freedom = max(float(loss.count.sum()) - p, 1.0)
    deviation = (coefficients - common).square().sum(0)
    penalty = (hub * deviation).sum() + ridge * coefficients.square().sum()
    quadratic = float(2 * loss.task_values(coefficients.to(loss.moment.dtype)).sum() + penalty)
    # Kept above rounding, as on the CPU.
    quadratic = max(quadratic, 1e-14 * (float(loss.target_square.sum()) or 1.0) + torch.finfo(torch.float64).tiny)
    noise = quadratic / freedom
    value = 0.5 * (freedom * math.log(quadratic) + float(log_det) - n * float(hub.log().sum()) - p * math.log(n))
    if not math.isfinite(value):
        raise SingularSystemError(
            f"The evidence of the hub is not finite at strengths {float(hub.min()):.3g} … {float(hub.max()):.3g}. "
            "Use positive strengths in scaled units, or a larger ridge."
        )
    gradient = 0.5 * (deviation / noise + variance - n / hub)
    return TensorHubEvidence(value, gradient, coefficients, common, noise)


def _fits(n_bytes: int, device: torch.device) -> bool:
    if device.type == "cuda":
        return n_bytes <= _KEPT_SHARE * torch.cuda.mem_get_info(device)[0]
    return n_bytes <= _KEPT_BYTES


# Number of distances held in memory at a time.
_TILE_NUMBERS = 1 << 30
# Points per group, and the number of groups that are ranked beyond k, because the distances of a tile are rounded.
_GROUP, _SPARE_GROUPS = 64, 4


def nearest_neighbours(points: Tensor, k: int, *, tile_numbers: int = _TILE_NUMBERS) -> Tensor:
    """The `k` nearest other rows of `points` (n, d) for each row, nearest first, shape (n, k)."""
    n = len(points)
    k = min(k, n - 1)
    # Centred, because cancellation grows with the distance from the origin.
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
    """The `k` nearest points among the neighbours of a point in a graph and their neighbours, shape (n, k).

    Only the 2k nearest neighbours of each point in the graph are used. Missing neighbours are filled with the point
    itself.
    """
    n, width = len(points), 2 * k
    table = _nearest_in_graph(points, graph, width)
    found = torch.empty((n, k), dtype=torch.int64, device=points.device)
    for rows in chunks(n, width * (width + 1)):
        own = torch.arange(rows.start, rows.stop, device=points.device).unsqueeze(1)
        near = table[rows]
        members = torch.cat([near, table[near].flatten(1)], dim=1).sort(dim=1).values
        # Points that were reached twice are kept once; the duplicates are replaced by the point itself.
        again = members[:, 1:] == members[:, :-1]
        members[:, 1:] = torch.where(again, own, members[:, 1:])
        found[rows] = _rank(points, rows.start, members, k)
    return found


def joined_pairs(nearest: Tensor) -> Tensor:
    """All pairs i < j of which one is in the other's row of `nearest`, shape (n, k); sorted, shape (m, 2)."""
    n = len(nearest)
    source = torch.arange(n, device=nearest.device).unsqueeze(1)
    key = torch.minimum(source, nearest) * n + torch.maximum(source, nearest)
    pairs = torch.unique(key[source != nearest])
    return torch.stack([pairs // n, pairs % n], dim=1)


def _nearest_in_graph(points: Tensor, graph: TensorGraph, width: int) -> Tensor:
    """The `width` nearest neighbours of each point in a graph, padded with the point itself, shape (n, width)."""
    start, neighbour = graph.start.long(), graph.neighbour.long()
    own = torch.arange(graph.n, device=points.device)
    owner = own.repeat_interleave(start.diff())
    distance = points.new_empty(len(neighbour))
    for rows in chunks(len(neighbour), 2 * points.shape[1]):
        distance[rows] = (points[neighbour[rows]] - points[owner[rows]]).square_().sum(1)
    # Sort by distance, then stably by owner.
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
    """The `count` groups with the smallest distance to each point, not sorted. Point j is in group j mod n_groups."""
    queries = torch.cat([points, points.new_ones(len(points), 1)], dim=1)
    smallest = (queries @ columns).view(len(points), -1, n_groups).amin(1)
    return smallest.topk(min(count, n_groups), largest=False, sorted=False).indices


def _rank(points: Tensor, first: int, members: Tensor, k: int) -> Tensor:
    """The k nearest points among the members of each row, without the point of the row itself, shape (rows, k)."""
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
