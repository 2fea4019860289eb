"""Inverses and determinants of many small symmetric positive definite blocks at once.

With D = [[A, B], [Bᵀ, C]], R_A and R_S the inverse Cholesky factors of A and of S = C − WᵀW, W = R_A B,

    R = [[R_A, 0], [−R_S Wᵀ R_A, R_S]],    D⁻¹ = RᵀR,    ln|D| = ln|A| + ln|S| ,

so that halving leaves batched matrix products, which a device runs at the speed of its memory, where its batched
factorisations work task by task. As accurate as Cholesky's factor, which the explicit inverse by halves is not.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ggmtl.errors import SingularSystemError
from ggmtl.solve.gpu.products import chunks

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
    """(G_i + diag(s_i))⁻¹, in the type of s or in that of `store`, if that will do for every block.

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
