"""The name of a graph's shape, where it has one."""

from __future__ import annotations

import numpy as np

from ggmtl.graph.task_graph import TaskGraph

# A component with at least this share of all its possible edges is a dense group.
_DENSE = 0.6


def name_shape(graph: TaskGraph) -> str | None:
    """Name the shape of the linked tasks; tasks without an edge are left aside.

    Returns
    -------
    {"empty", "pair", "clique", "star", "line", "ring", "tree", "forest", "clusters"} or None
        ``"clusters"``: several components, each with most of its possible edges. None: no simple name.

    Examples
    --------
    >>> name_shape(TaskGraph([[0, 1], [1, 2], [2, 3]], [1, 1, 1], list("abcde")))
    'line'
    """
    graph = graph.threshold(0.0)
    if graph.n_edges == 0:
        return "empty"
    component = graph.components()
    linked = np.unique(graph.edges)
    sizes = np.bincount(component[linked])
    edges = np.bincount(component[graph.edges[:, 0]], minlength=len(sizes))[sizes > 0]
    sizes = sizes[sizes > 0]
    if len(sizes) == 1:
        return _name_connected(int(sizes[0]), int(edges[0]), np.bincount(graph.edges.ravel())[linked])
    if (edges >= _DENSE * sizes * (sizes - 1) / 2).all():
        return "clusters"
    return "forest" if (edges == sizes - 1).all() else None


def _name_connected(size: int, n_edges: int, neighbours: np.ndarray) -> str | None:
    """Name a connected graph of `size` tasks by its counts."""
    if size == 2:
        return "pair"
    if n_edges == size * (size - 1) // 2:
        return "clique"
    if n_edges == size - 1:
        if neighbours.max() <= 2:
            return "line"
        return "star" if neighbours.max() == size - 1 else "tree"
    return "ring" if n_edges == size and neighbours.max() == 2 else None
