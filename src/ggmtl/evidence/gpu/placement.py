"""Which device there is, and the losses of a fit on it."""

from __future__ import annotations

from typing import cast

import torch

from ggmtl.errors import ParameterError
from ggmtl.evidence.gpu.loss import DeviceLoss
from ggmtl.solve.gpu.memory import check_memory, free_bytes
from ggmtl.statistics.least_squares import FoldedLoss, LeastSquares

# Copies of the matrices that a fit holds beside its folds: of all rows, scaled; and, in float32, for the solver.
_COPIES, _SOLVER_COPIES = 2, 2
# Vectors of the size of all models with their samples, in float64.
_VECTORS = 80
# Share of the memory that float64 storage may plan with.
_SHARE = 0.8


def check_device(name: str) -> torch.device:
    """The CUDA device of this name, or an error that says what there is."""
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    device = torch.device(name)
    if (device.index or 0) >= found:
        there = "no CUDA device" if not found else "one CUDA device" if found == 1 else f"{found} CUDA devices"
        raise ParameterError(
            f"device={name!r} cannot be used: torch {torch.__version__} sees {there}. "
            + ('Use device="cpu", or a build of torch and a driver for the GPU.' if not found else 'Use device="cuda".')
        )
    return device


def on_device(folded: FoldedLoss, device: torch.device | str) -> FoldedLoss:
    """The losses of a fit of very many tasks on a device: one fold held out, and all other rows.

    Matrices are stored in float64 where all that the fit needs fits, and in float32 otherwise.
    """
    if folded.scored:
        k = folded.scored[0]
        folded = FoldedLoss((folded.training(k), folded.parts[k]), first_scored=1)
    dtype = _storage(folded, torch.device(device))
    parts = tuple(DeviceLoss.of(part, device, dtype) for part in folded.parts)
    return FoldedLoss(cast(tuple[LeastSquares, ...], parts), folded.first_scored)


def _storage(folded: FoldedLoss, device: torch.device) -> torch.dtype:
    n, p = folded.parts[0].n_tasks, folded.parts[0].n_features

    def needed(size: int) -> float:
        copies = size * (len(folded.parts) + _COPIES) + 4 * _SOLVER_COPIES
        return float(copies * n * p * p + 8 * _VECTORS * n * p)

    if needed(8) <= _SHARE * free_bytes(device):
        return torch.float64
    check_memory(needed(4), device, f"Fitting {n} tasks with {p} coefficients")
    return torch.float32
