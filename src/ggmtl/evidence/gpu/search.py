"""Nearest neighbours among models, sought on a torch device."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from ggmtl.evidence.gpu.loss import DeviceLoss, host
from ggmtl.evidence.gpu.nearest import joined_pairs, nearest_in_neighbourhood, nearest_neighbours
from ggmtl.graph.candidates import Search, search_for
from ggmtl.runtime.sizes import SIZES, Sizes
from ggmtl.solve.gpu.products import TensorGraph


def search(
    points: np.ndarray,
    k: int,
    near: np.ndarray | None = None,
    *,
    device: torch.device | str,
    sizes: Sizes = SIZES,
) -> np.ndarray:
    """Pairs of which one is among the `k` nearest of the other: exact, or among neighbours of neighbours in `near`.

    The latter only for very many points. Every pair comes once, in order: sorting millions is work for the device.
    """
    there = torch.as_tensor(points).to(device)
    # Distances are taken in float32, hence from the mean.
    centred = (there - there.mean(0)).float()
    if near is None or not len(near) or len(points) <= sizes.exact_neighbours_gpu:
        return host(joined_pairs(nearest_neighbours(centred, k)))
    graph = TensorGraph.of(torch.as_tensor(near).to(device), len(points))
    return host(joined_pairs(nearest_in_neighbourhood(centred, graph, k)))


@search_for.register(DeviceLoss)
def _(loss: DeviceLoss) -> Search:
    """The search on the device of the loss."""
    return partial(search, device=loss.moment.device)
