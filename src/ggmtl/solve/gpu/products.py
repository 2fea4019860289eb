"""Products on a torch device: blocks by task, weights by edge.

    blocks        out_i = B_i v_i
    neighbours    out_i = Σ_j w_ij v_j
    edges         t_ij  = (v_i − v_j) ∘ (p_i − p_j)

Values have shape (n, p) or, for many right-hand sides, (n, p, r). A product is computed in the type of its values;
blocks stored in another type are converted a part at a time, so that float32 storage can be summed in float64.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

# Numbers converted or gathered at a time.
CHUNK_NUMBERS = 1 << 27


def chunks(n: int, width: int) -> Iterator[slice]:
    """Ranges of `n` rows that hold `width` numbers each, none with more than a fixed number of numbers."""
    step = max(1, CHUNK_NUMBERS // max(width, 1))
    return (slice(first, min(first + step, n)) for first in range(0, n, step))


def block_product(blocks: Tensor, values: Tensor) -> Tensor:
    """blocks_i · values_i for symmetric blocks (n, p, p) and values (n, p) or (n, p, r), in the type of the values."""
    if blocks.dtype == values.dtype:
        return _multiply(blocks, values)
    out = torch.empty_like(values)
    for rows in chunks(len(blocks), blocks[:1].numel()):
        out[rows] = _multiply(blocks[rows].to(values.dtype), values[rows])
    return out


def _multiply(blocks: Tensor, values: Tensor) -> Tensor:
    if values.ndim == 3:
        return torch.bmm(blocks, values)
    # A row vector times a symmetric block is the same product: several times faster on the CPU, slower on CUDA.
    if values.is_cuda:
        return torch.bmm(blocks, values.unsqueeze(2)).squeeze(2)
    return torch.bmm(values.unsqueeze(1), blocks).squeeze(1)


@dataclass(frozen=True)
class TensorGraph:
    """Edges of n tasks, also listed by task, so that sums over neighbours have one order and need no atomics.

    Parameters
    ----------
    n : int
        Tasks.
    edges : tensor of int64, shape (m, 2)
    start : tensor of int32, shape (n + 1,)
        Task i owns entries start[i] … start[i + 1] − 1 of the next two.
    neighbour : tensor of int32, shape (2m,)
    position : tensor of int64, shape (2m,)
        The row of `edges` that each entry comes from.
    """

    n: int
    edges: Tensor
    start: Tensor
    neighbour: Tensor
    position: Tensor

    @classmethod
    def of(cls, edges: Tensor, n: int) -> TensorGraph:
        """List the edges by task."""
        edges = edges.to(torch.int64)
        m = len(edges)
        source, target = torch.cat([edges, edges.flip(1)]).unbind(1)
        order = torch.argsort(source, stable=True)
        narrow = torch.int32 if max(2 * m, n) < 2**31 else torch.int64
        start = group_starts(source, n).to(narrow)
        return cls(n, edges, start, target[order].to(narrow), order % max(m, 1))

    def adjacency(self, weights: Tensor) -> Tensor:
        """The symmetric matrix W of one weight per edge, in compressed rows."""
        return compressed_rows(self.start, self.neighbour, weights[self.position], self.n)


def compressed_rows(start: Tensor, column: Tensor, values: Tensor, n_columns: int) -> Tensor:
    """A sparse matrix whose row i has values[start[i]:start[i + 1]] in the columns of the same range."""
    with warnings.catch_warnings():
        # torch says once per process that compressed rows are in beta.
        warnings.simplefilter("ignore", UserWarning)
        size = (len(start) - 1, n_columns)
        return torch.sparse_csr_tensor(start, column, values, size=size, check_invariants=False)


def group_starts(labels: Tensor, n_groups: int) -> Tensor:
    """Where each group starts in an order sorted by label, and the end, shape (n_groups + 1,)."""
    start = torch.zeros(n_groups + 1, dtype=torch.int64, device=labels.device)
    start[1:] = torch.bincount(labels, minlength=n_groups).cumsum(0)
    return start


def row_sums(matrix: Tensor, values: Tensor) -> Tensor:
    """Σ_j w_ij v_j of every row i of a sparse matrix, for values (n, p) or (n, p, r)."""
    return (matrix @ values.reshape(len(values), -1)).reshape(-1, *values.shape[1:])


def edge_products(graph: TensorGraph, first: Tensor, second: Tensor, coupling: Tensor, weights: Tensor):
    """(v_i − v_j)ᵀ Λ (p_i − p_j) of every edge, shape (m,), and Σ_ij w_ij (v_i − v_j) ∘ (p_i − p_j), shape (p,)."""
    along = first.new_empty(len(graph.edges))
    total = torch.zeros_like(coupling)
    for rows in chunks(len(graph.edges), 4 * first.shape[1]):
        i, j = graph.edges[rows].unbind(1)
        product = (first[i] - first[j]).mul_(second[i] - second[j])
        along[rows] = product @ coupling
        total += weights[rows] @ product
    return along, total


def edge_distances(graph: TensorGraph, values: Tensor, coupling: Tensor | None = None) -> Tensor:
    """(v_i − v_j)ᵀ Λ (v_i − v_j) of every edge, shape (m,); Λ = I by default."""
    scaled = values if coupling is None else values * coupling.sqrt()
    out = values.new_empty(len(graph.edges))
    for rows in chunks(len(graph.edges), 3 * values.shape[1]):
        i, j = graph.edges[rows].unbind(1)
        out[rows] = (scaled[i] - scaled[j]).square_().sum(1)
    return out
