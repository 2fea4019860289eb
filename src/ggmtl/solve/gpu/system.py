"""The linear system of the inner problem on a torch device, its products and its inverses.

    A = blockdiag(G_i) + L_w ⊗ diag(Λ) + (I − 11ᵀ/n) ⊗ diag(h) + ρ

as in :mod:`ggmtl.solve.system`, with one weight per edge. The block matrices may be held in float32 while everything
else, and the sums, are float64.

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
from dataclasses import dataclass, replace
from functools import cached_property

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

    def task_values(self, coefficients: Tensor) -> Tensor:
        """½‖X_i w_i − y_i‖² of every task, shape (n,)."""
        cross = ((self.gradient(coefficients) - self.moment) * coefficients).sum(1)
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
