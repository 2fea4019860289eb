"""Nearest neighbours among models, sought on a torch device."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from ggmtl.candidates import Search, search_for
from ggmtl.device.loss import DeviceLoss, host
from ggmtl.kernels.on_torch import TensorGraph, nearest_in_neighbourhood, nearest_neighbours

# Beyond so many points, neighbours of neighbours are cheaper than all pairs by far.
EXACT_POINTS = 200_000


def search(points: np.ndarray, k: int, near: np.ndarray | None = None, *, device: torch.device | str) -> np.ndarray:
    """The `k` nearest of every point, shape (n, k): exact, or among neighbours of neighbours in the edges `near`.

    The latter only for very many points; a point itself stands where no other was found.
    """
    there = torch.as_tensor(points).to(device)
    # Distances are taken in float32, hence from the mean.
    centred = (there - there.mean(0)).float()
    if near is None or not len(near) or len(points) <= EXACT_POINTS:
        return host(nearest_neighbours(centred, k))
    graph = TensorGraph.of(torch.as_tensor(near).to(device), len(points))
    return host(nearest_in_neighbourhood(centred, graph, k))


@search_for.register(DeviceLoss)
def _(loss: DeviceLoss) -> Search:
    """The search on the device of the loss."""
    return partial(search, device=loss.moment.device)
