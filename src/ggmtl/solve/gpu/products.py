"""Products and inverses on a torch device: blocks by task, weights by edge, and the memory that they take.

    blocks        out_i = B_i v_i ,  D_i⁻¹
    neighbours    out_i = Σ_j w_ij v_j
    edges         t_ij  = (v_i − v_j) ∘ (p_i − p_j)

Values have shape (n, p) or, for many right-hand sides, (n, p, r). A product is computed in the type of its values;
blocks stored in another type are converted a part at a time, so that float32 storage can be summed in float64.

Blocks are inverted by halves. With D = [[A, B], [Bᵀ, C]], R_A and R_S the inverse Cholesky factors of A and of
S = C − WᵀW, W = R_A B,

    R = [[R_A, 0], [−R_S Wᵀ R_A, R_S]],    D⁻¹ = RᵀR,    ln|D| = ln|A| + ln|S| .

This leaves batched matrix products, which run at the speed of the device's memory, and is as accurate as Cholesky.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ggmtl.errors import InputError, SingularSystemError


def free_bytes(device: torch.device) -> float:
    """Bytes that can still be taken on a device; unlimited on the CPU, where the system decides."""
    if device.type != "cuda":
        return float("inf")
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return float(torch.cuda.mem_get_info(device)[0] + unused)


def check_memory(needed: float, device: torch.device, purpose: str) -> None:
    """Refuse work that needs more bytes than are free."""
    have = free_bytes(device)
    if needed > have:
        raise InputError(
            f"{purpose} needs {needed / 1e9:.1f} GB on {device}, which has {have / 1e9:.1f} GB free. Keep the blocks "
            'in float32, use fewer tasks or features, or device="cpu".'
        )


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


# Blocks of at most this order are inverted entry by entry.
_SMALL = 4


def inverse_and_log_determinant(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """D⁻¹, shape (n, p, p), and ln|D|, shape (n,); the latter is not finite where D is not positive definite."""
    root, log_determinant = inverse_factor(blocks)
    return torch.bmm(root.mT, root), log_determinant


def inverse_factor(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """R, the lower triangular inverse of Cholesky's factor, and ln|D|."""
    p = blocks.shape[1]
    if p <= _SMALL:
        return _eliminate(blocks)
    half = p // 2
    corner, side, rest = blocks[:, :half, :half], blocks[:, :half, half:], blocks[:, half:, half:]
    first, log_first = inverse_factor(corner)
    ratio = torch.bmm(first, side)
    second, log_second = inverse_factor(torch.baddbmm(rest, ratio.mT, ratio, alpha=-1))
    root = blocks.new_zeros(blocks.shape)
    root[:, :half, :half] = first
    root[:, half:, half:] = second
    root[:, half:, :half] = torch.bmm(second, torch.bmm(ratio.mT, first)).neg_()
    return root, log_first + log_second


def inverse_blocks(gram: Tensor, diagonal: Tensor, *, store: torch.dtype | None = None) -> Tensor:
    """(G_i + diag(s_i))⁻¹, in the type of s or in that of `store` if every block is positive definite in it.

    Raises
    ------
    SingularSystemError
        Where a block is not positive definite to the working accuracy of the type of s.
    """
    out = torch.empty(gram.shape, dtype=store or diagonal.dtype, device=gram.device)
    for dtype in dict.fromkeys((out.dtype, diagonal.dtype)):
        if _invert(gram, diagonal, dtype, out):
            return out
    raise SingularSystemError(
        "A task's diagonal block is not positive definite to working accuracy. Use a larger ridge."
    )


def _invert(gram: Tensor, diagonal: Tensor, dtype: torch.dtype, out: Tensor) -> bool:
    """Fill `out` with the inverses computed in `dtype`; whether every block was positive definite in it."""
    definite = []
    for rows in chunks(len(gram), 2 * gram[:1].numel()):
        # With ones on its diagonal a block is as well conditioned as any scaling makes it, up to a factor of p.
        scale = (gram[rows].diagonal(dim1=1, dim2=2) + diagonal[rows]).rsqrt().to(dtype)
        blocks = gram[rows].to(dtype) * scale.unsqueeze(2) * scale.unsqueeze(1)
        blocks.diagonal(dim1=1, dim2=2).fill_(1.0)
        inverse, log_determinant = inverse_and_log_determinant(blocks)
        out[rows] = inverse.mul_(scale.unsqueeze(2)).mul_(scale.unsqueeze(1))
        definite.append(torch.isfinite(log_determinant).all())
    return not definite or bool(torch.stack(definite).all())


def shifted(blocks: Tensor, diagonal: Tensor) -> Tensor:
    """A copy of blocks + diag(s), in the type of s."""
    out = blocks.to(diagonal.dtype, copy=True)
    out.diagonal(dim1=1, dim2=2).add_(diagonal)
    return out


def _eliminate(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """R by elimination on [D, I], column by column."""
    n, p, _ = blocks.shape
    left = blocks.clone()
    root = torch.eye(p, dtype=blocks.dtype, device=blocks.device).repeat(n, 1, 1)
    log_determinant = blocks.new_zeros(n)
    for k in range(p):
        pivot = left[:, k, k]
        log_determinant += pivot.log()
        scale = pivot.rsqrt().unsqueeze(1)
        column = (left[:, k + 1 :, k] * scale).unsqueeze(2)
        root[:, k] *= scale
        root[:, k + 1 :] -= column * root[:, k].unsqueeze(1)
        left[:, k + 1 :, k + 1 :] -= column * column.mT
    return root, log_determinant
