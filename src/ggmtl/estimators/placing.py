"""Where the losses of a fit live: in NumPy arrays, or on the device that the parameter `device` names."""

from __future__ import annotations

from ggmtl.errors import require
from ggmtl.runtime.progress import logger
from ggmtl.runtime.sizes import SIZES, Sizes
from ggmtl.statistics.least_squares import FoldedLoss


def placed(folded: FoldedLoss, device: str, sizes: Sizes = SIZES) -> FoldedLoss:
    """The losses on the device, where there are so many tasks that it pays; as they are otherwise.

    Raises
    ------
    MissingExtraError, ParameterError
        Where torch is not installed, or there is no such device, whatever the number of tasks.
    """
    if device == "cpu":
        return folded
    require("torch", "gpu", f"device={device!r}")
    from ggmtl.evidence.gpu.loss import check_device, on_device

    there, part = check_device(device), folded.parts[0]
    if not sizes.is_large(part.n_tasks, part.n_features):
        logger.info("device=%r: %d tasks are few, and are fitted on the CPU", device, part.n_tasks)
        return folded
    return on_device(folded, there)
