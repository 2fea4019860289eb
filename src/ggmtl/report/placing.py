"""Where the page draws each task: at its place on a map, near the tasks it is linked to, or near similar models."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import sparse
from scipy.spatial import cKDTree

from ggmtl.graph.task_graph import TaskGraph
from ggmtl.plot.geography import outlines_within
from ggmtl.plot.network import positions

# Above this many tasks, clusters are placed as discs, and their members inside them.
_MAX_PLACED_ONE_BY_ONE = 600
_GOLDEN_ANGLE = np.pi * (3.0 - np.sqrt(5.0))
# Height of a map that has one direction only, relative to other maps.
_STRIP = 0.4
# How often discs are pushed apart at most, and how many pushes that may be in all; the room between two.
_ROUNDS, _MOST_MOVES, _GAP = 300, 200_000, 0.4
# The first view of a map has the middle of the places and this share of its size around; far ones need a zoom if the
# whole would be so many times as large.
_MIDDLE, _AROUND, _FAR = (0.1, 0.9), 0.35, 1.3
# Outlines go on for this share of the extent of the places.
_BEYOND = 0.25


@dataclass(frozen=True)
class Placing:
    """Points of the tasks.

    Parameters
    ----------
    points : list of pairs
    by : {"places", "links", "models"}
        What they follow.
    frame : pair of corners
        Lower left and upper right of the first view.
    outlines : list of lists
        Coastlines and borders behind the tasks, each as x, y, x, y, …
    """

    points: list[list[float]]
    by: str
    frame: list[list[float]]
    outlines: list[list[float]] = field(default_factory=list)


def place_tasks(summary: dict[str, Any]) -> Placing:
    """On the map where places are known, else by links, else, where there are none, by the models."""
    edges = summary["graph"]["edges"]
    if summary["places"] is not None:
        return _on_a_map(np.array(summary["places"], dtype=float), summary["on_globe"])
    if not edges:
        return _whole(_by_models(summary), "models")
    listed = np.array(edges, dtype=float)
    weights = np.maximum(listed[:, 2], 1e-6)
    graph = TaskGraph(listed[:, :2].astype(np.int64), weights, np.arange(summary["n_tasks"]))
    if graph.n_tasks <= _MAX_PLACED_ONE_BY_ONE:
        return _whole(positions(graph), "links")
    return _whole(_by_clusters(graph, np.array([task["cluster"] for task in summary["tasks"]])), "links")


def _whole(points: np.ndarray, by: str) -> Placing:
    points = np.round(points, 3)
    return Placing(points.tolist(), by, [points.min(axis=0).tolist(), points.max(axis=0).tolist()])


def _on_a_map(places: np.ndarray, on_globe: bool) -> Placing:
    """Places about one unit apart, the corners of the first view, and on a globe the coastlines around the places.

    Longitudes are cut at their widest gap, and shrink with the cosine of the middle latitude.
    """
    points, wide = places.copy(), 1.0
    if (np.abs(points) <= (180.0, 90.0)).all():
        points[:, 0] = _unwrapped(points[:, 0])
        wide = max(np.cos(np.radians(np.median(points[:, 1]))), 0.1)
    shrunk = points * (wide, 1.0)
    low, high = shrunk.min(axis=0), shrunk.max(axis=0)
    middle = np.quantile(shrunk, _MIDDLE, axis=0)
    around = _AROUND * np.ptp(middle, axis=0).max()
    inner = np.maximum(middle[0] - around, low), np.minimum(middle[1] + around, high)
    if (high - low).max() > _FAR * (inner[1] - inner[0]).max():
        low, high = inner
    unit = 1.6 * np.sqrt(len(points)) / max((high - low).max(), 1e-9)
    lines = _outlines_around(points) if on_globe else []
    drawn = [np.round(line * (wide * unit, unit), 2 + (len(points) < 100)).ravel().tolist() for line in lines]
    frame = np.round([low * unit, high * unit], 3).tolist()
    return Placing(np.round(shrunk * unit, 3).tolist(), "places", frame, drawn)


def _outlines_around(points: np.ndarray) -> list[np.ndarray]:
    """Coastlines and borders about the places and a little beyond."""
    margin = _BEYOND * np.maximum(np.ptp(points, axis=0).max(), 1.0)
    return outlines_within(points.min(axis=0) - margin, points.max(axis=0) + margin)


def _unwrapped(longitude: np.ndarray) -> np.ndarray:
    """Longitudes in one piece, however they lie about the date line."""
    ordered = np.unique(longitude)
    gaps = np.diff(np.append(ordered, ordered[0] + 360.0))
    start = ordered[(gaps.argmax() + 1) % len(ordered)]
    return np.where(longitude < start, longitude + 360.0, longitude)


def _by_models(summary: dict[str, Any]) -> np.ndarray:
    """The map of the models, or a plain grid where they do not differ."""
    if summary["map"] is None:
        place = np.arange(summary["n_tasks"])
        side = int(np.ceil(np.sqrt(1.6 * len(place))))
        return np.column_stack([place % side, place // side]).astype(float)
    return _spread_evenly(np.array(summary["map"]["points"], dtype=float))


def _spread_evenly(points: np.ndarray) -> np.ndarray:
    """Half way from distances to ranks: outliers stay outside without pressing the rest together.

    Without a second direction, the points of a line stand a little above and below it, so that none hides another.
    """
    n = len(points)
    ranks = points.argsort(axis=0, kind="stable").argsort(axis=0) / max(n - 1, 1)
    span = np.ptp(points, axis=0)
    share = (points - points.min(axis=0)) / np.where(span > 0, span, 1.0)
    if span[1] == 0:
        ranks[:, 1] = share[:, 1] = _STRIP * ((_GOLDEN_ANGLE * ranks[:, 0] * (n - 1) / (2.0 * np.pi)) % 1.0)
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
