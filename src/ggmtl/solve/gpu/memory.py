"""How much device memory there is, asked before much of it is taken."""

from __future__ import annotations

import torch

from ggmtl.errors import InputError


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
