"""Where the page draws the tasks: near those they are linked to, or, without links, near alike models."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from scipy.spatial import cKDTree

from ggmtl.graph.task_graph import TaskGraph
from ggmtl.plot.layout import positions

# Above so many tasks, clusters are placed as discs, and their members inside them.
_MAX_PLACED_ONE_BY_ONE = 600
_GOLDEN_ANGLE = np.pi * (3.0 - np.sqrt(5.0))
# How often discs are pushed apart at most, and how many pushes that may be in all; the room between two.
_ROUNDS, _MOST_MOVES, _GAP = 300, 200_000, 0.4


def place_tasks(summary: dict[str, Any]) -> tuple[list[list[float]], bool]:
    """Points of the tasks, and whether they follow the models because there is no link to follow."""
    edges = summary["graph"]["edges"]
    if not edges:
        return np.round(_by_models(summary), 3).tolist(), True
    listed = np.array(edges, dtype=float)
    weights = np.maximum(listed[:, 2], 1e-6)
    graph = TaskGraph(listed[:, :2].astype(np.int64), weights, np.arange(summary["n_tasks"]))
    if graph.n_tasks <= _MAX_PLACED_ONE_BY_ONE:
        points = positions(graph)
    else:
        points = _by_clusters(graph, np.array([task["cluster"] for task in summary["tasks"]]))
    return np.round(points, 3).tolist(), False


def _by_models(summary: dict[str, Any]) -> np.ndarray:
    """The map of the models, or a plain grid where they do not differ."""
    if summary["map"] is None:
        place = np.arange(summary["n_tasks"])
        side = int(np.ceil(np.sqrt(1.6 * len(place))))
        return np.column_stack([place % side, place // side]).astype(float)
    return _spread_evenly(np.array(summary["map"]["points"], dtype=float))


def _spread_evenly(points: np.ndarray) -> np.ndarray:
    """Half way from distances to ranks: outliers stay outside without pressing the rest together."""
    n = len(points)
    ranks = points.argsort(axis=0, kind="stable").argsort(axis=0) / max(n - 1, 1)
    span = np.ptp(points, axis=0)
    share = (points - points.min(axis=0)) / np.where(span > 0, span, 1.0)
    return (0.5 * ranks + 0.5 * share) * np.sqrt(n) * np.array([1.6, 1.0])


def _by_clusters(graph: TaskGraph, clusters: np.ndarray) -> np.ndarray:
    """Clusters as discs pushed apart until none overlap; members on a sunflower inside."""
    sizes = np.bincount(clusters)
    radius = 0.62 * np.sqrt(sizes) + 0.35
    centres = _apart(_disc_starts(graph, clusters, sizes), radius)
    rank = np.empty(len(clusters), dtype=np.int64)
    for members in np.split(np.argsort(clusters, kind="stable"), np.cumsum(sizes)[:-1]):
        rank[members] = np.arange(len(members))
    distance = 0.62 * np.sqrt(rank + 0.5)
    angle = _GOLDEN_ANGLE * rank
    inside = distance[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])
    return centres[clusters] + np.where(sizes[clusters][:, None] > 1, inside, 0.0)


def _disc_starts(graph: TaskGraph, clusters: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """A sunflower of discs, linked ones drawn together by averaging with their neighbours."""
    n = len(sizes)
    place = np.arange(n)
    area = np.cumsum((0.62 * np.sqrt(sizes) + 0.35) ** 2)
    start = (
        1.3
        * np.sqrt(area)[:, None]
        * np.column_stack([1.4 * np.cos(_GOLDEN_ANGLE * place), np.sin(_GOLDEN_ANGLE * place)])
    )
    i, j = clusters[graph.edges].T
    between = sparse.csr_array(sparse.coo_array((graph.weights, (i, j)), shape=(n, n)))
    between = between + between.T
    total = np.asarray(between.sum(axis=1)).ravel()
    points = start.copy()
    for _ in range(30):
        mean = np.asarray(between @ points) / np.maximum(total, 1e-12)[:, None]
        points = np.where(total[:, None] > 0, 0.5 * start + 0.5 * mean, start)
    return points


def _apart(points: np.ndarray, radius: np.ndarray) -> np.ndarray:
    """Push overlapping discs apart, a little in each round; large ones move less."""
    points = points.copy()
    for _ in range(min(_ROUNDS, _MOST_MOVES // len(points))):
        i, j = _close_pairs(points, radius)
        offset = points[i] - points[j]
        distance = np.maximum(np.linalg.norm(offset, axis=1), 1e-6)
        overlap = np.maximum(radius[i] + radius[j] + _GAP - distance, 0.0)
        if overlap.max(initial=0.0) < 0.05:
            break
        push = (0.5 * overlap / distance / (radius[i] ** 2 + radius[j] ** 2))[:, None] * offset
        for axis in range(2):
            points[:, axis] += np.bincount(i, radius[j] ** 2 * push[:, axis], len(points))
            points[:, axis] -= np.bincount(j, radius[i] ** 2 * push[:, axis], len(points))
    return points


def _close_pairs(points: np.ndarray, radius: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of discs that may overlap, each once: every disc looks for those that are no larger."""
    near = cKDTree(points).query_ball_point(points, 2.0 * radius + _GAP)
    i, j = np.repeat(np.arange(len(points)), [len(found) for found in near]), np.concatenate(near).astype(np.int64)
    keep = (radius[j] < radius[i]) | ((radius[j] == radius[i]) & (j < i))
    return i[keep], j[keep]
