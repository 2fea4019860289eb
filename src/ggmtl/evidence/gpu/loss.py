"""The squared loss of every task on a GPU, the evidence of the hub for it, and the choice of the device.

The formulas are those of :mod:`ggmtl.evidence.hub`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from ggmtl.errors import ParameterError
from ggmtl.evidence.gpu.kernels import tensor_hub_evidence
from ggmtl.evidence.hub import RIDGE, HubEvidence, hub_evidence
from ggmtl.solve.gpu.system import (
    TensorLoss,
    block_product,
    check_memory,
    chunks,
    free_bytes,
    inverse_and_log_determinant,
    shifted,
)
from ggmtl.statistics.least_squares import FoldedLoss, LeastSquares


@dataclass(frozen=True)
class DeviceLoss:
    """½ Σ_i ‖X_i w_i − y_i‖² on a device; methods as in :class:`ggmtl.statistics.LeastSquares`, with NumPy arrays.

    Parameters
    ----------
    tensors : TensorLoss
        The matrices in float32 or float64, everything else in float64.
    """

    tensors: TensorLoss
    on_device: ClassVar[bool] = True

    @classmethod
    def of(cls, loss: LeastSquares, device: torch.device | str, dtype: torch.dtype = torch.float64) -> DeviceLoss:
        """Copy a loss to a device, its matrices in `dtype`."""
        return cls(TensorLoss.of(loss, device, dtype))

    @property
    def n_tasks(self) -> int:
        """Number of tasks."""
        return len(self.tensors.gram)

    @property
    def n_features(self) -> int:
        """Number of coefficients of a task."""
        return self.tensors.gram.shape[-1]

    @property
    def noise(self) -> None:
        """None: the noise variance is estimated. Losses whose noise is known are fitted on the CPU."""
        return None

    @property
    def moment(self) -> Tensor:
        """m, on the device, shape (n, p)."""
        return self.tensors.moment

    @cached_property
    def target_square(self) -> np.ndarray:
        """t, shape (n,)."""
        return host(self.tensors.target_square)

    @cached_property
    def count(self) -> np.ndarray:
        """Rows of each task, shape (n,)."""
        return host(self.tensors.count)

    @property
    def resolution(self) -> Tensor:
        """Size below which an eigenvalue of G_i may be a rounding error, shape (n,)."""
        gram = self.tensors.gram
        trace = gram.diagonal(dim1=1, dim2=2).sum(1, dtype=torch.float64)
        return 4.0 * torch.finfo(gram.dtype).eps * trace

    def there(self, values: np.ndarray) -> Tensor:
        """A float64 copy of an array on the device."""
        return torch.as_tensor(values).to(self.tensors.gram.device, torch.float64)

    def of_tasks(self, tasks: np.ndarray) -> LeastSquares:
        """The loss of some tasks, in NumPy arrays."""
        chosen = torch.as_tensor(tasks).to(self.tensors.gram.device)
        loss = self.tensors
        gram, moment = host(loss.gram[chosen].double()), host(loss.moment[chosen])
        return LeastSquares(gram, moment, host(loss.target_square[chosen]), host(loss.count[chosen]))

    def scaled(self, unit: np.ndarray) -> DeviceLoss:
        """The same loss as a function of coefficients times `unit`."""
        loss, scale = self.tensors, self.there(unit)
        gram = loss.gram / torch.outer(scale, scale).to(loss.gram.dtype)
        return DeviceLoss(TensorLoss(gram, loss.moment / scale, loss.target_square, loss.count))

    def pooled(self) -> tuple[np.ndarray, np.ndarray]:
        """Σ_i G_i and Σ_i m_i, shapes (p, p) and (p,)."""
        gram = self.tensors.gram
        total = gram.new_zeros(gram.shape[1:], dtype=torch.float64)
        for rows in chunks(len(gram), gram[:1].numel()):
            total += gram[rows].sum(0, dtype=torch.float64)
        return host(total), host(self.moment.sum(0))

    def alone(self, ridge: np.ndarray) -> np.ndarray:
        """Separate ridge models, shape (n, p), with ridges of shape (n, p); minimum-norm ones where not unique."""
        loss, shift = self.tensors, self.there(ridge)
        if loss.gram.dtype != torch.float64:
            shift += self.resolution.unsqueeze(1)
        models = torch.empty_like(loss.moment)
        for rows in chunks(self.n_tasks, 6 * self.n_features**2):
            blocks = shifted(loss.gram[rows], shift[rows])
            inverse, log_determinant = inverse_and_log_determinant(blocks)
            singular = ~torch.isfinite(log_determinant)
            if bool(singular.any()):
                inverse[singular] = torch.linalg.pinv(blocks[singular], hermitian=True)
            models[rows] = block_product(inverse, loss.moment[rows])
        return host(models)

    def joined(self, others: Sequence[DeviceLoss]) -> DeviceLoss:
        """The loss over these rows and those of the others."""
        names = ("gram", "moment", "target_square", "count")
        parts = [getattr(self.tensors, name).clone() for name in names]
        for loss in others:
            for part, name in zip(parts, names):
                part += getattr(loss.tensors, name)
        return DeviceLoss(TensorLoss(*parts))

    def absorb(self, other: DeviceLoss) -> DeviceLoss:
        """The loss over these rows and those of another; it overwrites this loss."""
        for name in ("gram", "moment", "target_square", "count"):
            getattr(self.tensors, name).add_(getattr(other.tensors, name))
        return DeviceLoss(self.tensors)

    def task_values(self, coefficients: np.ndarray) -> np.ndarray:
        """½‖X_i w_i − y_i‖² of every task, shape (n,)."""
        return host(self.tensors.task_values(self.there(coefficients)))

    def cross_products(self, models: Sequence[np.ndarray]) -> np.ndarray:
        """(X_i w_i − y_i)ᵀ(X_i w'_i − y_i) of every task and every pair of models, shape (n, models, models)."""
        there = [self.there(each) for each in models]
        out = torch.empty((self.n_tasks, len(there), len(there)), dtype=torch.float64, device=self.moment.device)
        for a, left in enumerate(there):
            image = self.tensors.gradient(left)
            level = self.tensors.target_square - (self.moment * left).sum(1)
            for b, right in enumerate(there[: a + 1]):
                out[:, a, b] = (image * right).sum(1) + level
                out[:, b, a] = out[:, a, b]
        out.diagonal(dim1=1, dim2=2).clamp_(min=0.0)
        return host(out)

    def value(self, coefficients: np.ndarray) -> float:
        """½ Σ_i ‖X_i w_i − y_i‖²."""
        return float(self.tensors.task_values(self.there(coefficients)).sum())


def host(values: Tensor) -> np.ndarray:
    """A copy of a tensor as a NumPy array."""
    return values.cpu().numpy()


@hub_evidence.register(DeviceLoss)
def _(loss: DeviceLoss, hub: np.ndarray, ridge: float = RIDGE) -> HubEvidence:
    """The evidence of a hub, computed on the device in float64."""
    found = tensor_hub_evidence(loss.tensors, loss.there(hub), ridge)
    gradient, coefficients, common = (host(each) for each in (found.gradient, found.coefficients, found.common))
    return HubEvidence(found.value, gradient, coefficients, common, found.noise)


# Copies of the tasks' matrices in a fit besides those of the folds: scaled ones, and those of the solver in float32.
_COPIES, _SOLVER_COPIES = 2, 2
# Number of float64 arrays of shape (n, p) in a fit, for models and samples.
_VECTORS = 80
# Matrices are stored in float64 if the fit then needs at most this share of the free memory.
_SHARE = 0.8


def check_device(name: str) -> torch.device:
    """The CUDA device of this name; an error that lists the available devices if there is none."""
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
    """Copy the losses of a fit of very many tasks to a device, as two parts: all rows but one fold, and that fold.

    Matrices are stored in float64 if the whole fit then fits in memory, and otherwise in float32.
    """
    if folded.scored:
        k = folded.scored[0]
        folded = FoldedLoss((folded.training(k), folded.parts[k]), first_scored=1)
    dtype = _storage(folded, torch.device(device))
    parts = tuple(DeviceLoss.of(part, device, dtype) for part in folded.parts)
    return FoldedLoss(cast(tuple[LeastSquares, ...], parts), folded.first_scored)


def _storage(folded: FoldedLoss, device: torch.device) -> torch.dtype:
    """The dtype in which the matrices are stored."""
    n, p = folded.parts[0].n_tasks, folded.parts[0].n_features

    def needed(size: int) -> float:
        copies = size * (len(folded.parts) + _COPIES) + 4 * _SOLVER_COPIES
        return float(copies * n * p * p + 8 * _VECTORS * n * p)

    if needed(8) <= _SHARE * free_bytes(device):
        return torch.float64
    check_memory(needed(4), device, f"Fitting {n} tasks with {p} coefficients")
    return torch.float32
