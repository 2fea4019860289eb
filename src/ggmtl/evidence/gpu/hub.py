"""Evidence of the strength of the hub on a torch device; formulas in :mod:`ggmtl.evidence.hub`.

With D_i = G_i + diag(h) + ρI, K_i = D_i⁻¹(G_i + ρI) and M_i = diag(h) K_i,

    f(h)    = ½(N − p) ln Q + ½ Σ_i ln|D_i| + ½ ln|Σ_i M_i| − ½ n Σ_k ln h_k − ½ p ln n
    ∂f/∂h_k = ½ Σ_i [ (w_i − μ)_k²/σ² + (D_i⁻¹)_kk + (K_i (ΣM)⁻¹ K_iᵀ)_kk ] − ½ n/h_k .
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ggmtl.errors import SingularSystemError
from ggmtl.solve.gpu.blocks import inverse_and_log_determinant, shifted
from ggmtl.solve.gpu.products import block_product, chunks
from ggmtl.solve.gpu.system import TensorLoss

# Share of the free device memory, and bytes on the CPU, up to which the tasks' matrices are kept between both passes.
_KEPT_SHARE, _KEPT_BYTES = 0.25, 1 << 29


@dataclass(frozen=True)
class TensorHubEvidence:
    """Fields as those of :class:`ggmtl.evidence.hub.HubEvidence`; arrays are tensors."""

    value: float
    gradient: Tensor
    expected_square: Tensor
    coefficients: Tensor
    common: Tensor
    noise: float


def hub_evidence(loss: TensorLoss, hub: Tensor, ridge: float = 1e-10) -> TensorHubEvidence:
    """Value and gradient of f(h) at h > 0, in the type of `hub` (float64 unless there is a reason) and summed in it."""
    n, p = loss.moment.shape
    ranges = list(chunks(n, 6 * p * p))
    keep = len(ranges) == 1 or _fits(n * p * p * hub.element_size(), hub.device)
    # 1. What every task says about the common model; Σ_i k kᵀ for each row k of the K_i.
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
    # The inverse that raises nothing: on some devices the other one refuses what the check at the end names better.
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
    """D_i⁻¹, K_i = D_i⁻¹(G_i + ρI) and Σ ln|D_i| of some tasks; scaled by h^½, so safe for any h."""
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
    expected = deviation / noise + variance
    return TensorHubEvidence(value, 0.5 * (expected - n / hub), expected, coefficients, common, noise)


def _fits(n_bytes: int, device: torch.device) -> bool:
    if device.type == "cuda":
        return n_bytes <= _KEPT_SHARE * torch.cuda.mem_get_info(device)[0]
    return n_bytes <= _KEPT_BYTES
