"""Where to put tasks on the plane: components one by one and packed, single tasks in rows below."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import linalg, sparse
from scipy.sparse.csgraph import shortest_path
from scipy.spatial.distance import cdist

from ggmtl.errors import InputError, check_choice, require
from ggmtl.graph.task_graph import TaskGraph

_STRESS_ROUNDS = 60
_GAP = 1.0


def positions(graph: TaskGraph, layout: Any = None) -> np.ndarray:
    """Points of the tasks, shape (n, 2), about one unit between neighbours.

    Parameters
    ----------
    graph : TaskGraph
        Edges of weight zero do not attract.
    layout : {"stress", "spring"}, mapping or array of shape (n, 2), optional
        A method for the components, or the points themselves; a mapping goes from task names to points.
    """
    if layout is None or isinstance(layout, str):
        if layout is not None:
            check_choice("layout", layout, ("stress", "spring"))
        return _pack(graph.threshold(0.0), layout)
    return given_points(graph, layout, "layout")


def given_points(graph: TaskGraph, given: Any, parameter: str) -> np.ndarray:
    """Points given by the user, as an array in the order of the tasks."""
    if hasattr(given, "keys"):
        missing = [name for name in graph.task_names.tolist() if name not in given]
        if missing:
            raise InputError(f"{parameter} must have a point for every task. It has none for {missing[0]!r}.")
        given = [given[name] for name in graph.task_names.tolist()]
    points = np.asarray(given, dtype=float)
    if points.shape != (graph.n_tasks, 2):
        raise InputError(f"{parameter} must have shape ({graph.n_tasks}, 2). Got {points.shape} instead.")
    if not np.isfinite(points).all():
        raise InputError(
            f"{parameter} must be finite. Task {graph.task_names[~np.isfinite(points).all(1)][0]!r} is not."
        )
    return points


def _pack(graph: TaskGraph, layout: str | None) -> np.ndarray:
    """Components as boxes on shelves, largest first; single tasks in rows below."""
    component = graph.components()
    sizes = np.bincount(component, minlength=1)
    order = np.lexsort((np.arange(len(sizes)), -sizes))
    groups = [np.flatnonzero(component == number) for number in order if sizes[number] > 1]
    boxes = [_component(graph, members, layout) for members in groups]
    corners, width, depth = _shelves([box.max(axis=0) for box in boxes])
    points = np.zeros((graph.n_tasks, 2))
    for members, box, corner in zip(groups, boxes, corners):
        points[members] = box + corner
    single = np.flatnonzero(sizes[component] == 1)
    points[single] = _rows(len(single), width, depth)
    return points


def _component(graph: TaskGraph, members: np.ndarray, layout: str | None) -> np.ndarray:
    """Points of one component: its longest direction lies flat, the corner is at (0, 0)."""
    inside = graph.adjacency()[members][:, members].tocoo()
    points = _spring(inside) if layout == "spring" else _stress(inside)
    return _flatten(points, inside)


def _spring(inside: Any) -> np.ndarray:
    networkx = require("networkx", "plot", "The spring layout")
    drawing = networkx.Graph()
    drawing.add_nodes_from(range(inside.shape[0]))
    share = np.sqrt(inside.data / inside.data.max())
    drawing.add_weighted_edges_from(zip(inside.row.tolist(), inside.col.tolist(), share.tolist()))
    found = networkx.spring_layout(drawing, seed=0, iterations=200)
    return np.array([found[node] for node in range(inside.shape[0])])


def _stress(inside: Any) -> np.ndarray:
    """Minimise Σ_{i<j} (‖x_i − x_j‖ − D_ij)²/D_ij², D the shortest paths (Kamada and Kawai's energy).

    Majorised (Gansner, Koren and North, 2005): x ← V⁺ B(x) x, from classical scaling, so nothing is random.
    """
    distance = shortest_path(_lengths(inside), directed=False)
    n = len(distance)
    off = ~np.eye(n, dtype=bool)
    weight = np.where(off, 1.0 / np.where(off, distance, 1.0) ** 2, 0.0)
    inverse = np.linalg.inv(np.diag(weight.sum(axis=1)) - weight + 1.0 / n) - 1.0 / n
    target = weight * distance
    points = _classical_scaling(distance)
    for _ in range(_STRESS_ROUNDS):
        pull = target / np.maximum(cdist(points, points), 1e-9)
        points = inverse @ (points * pull.sum(axis=1)[:, None] - pull @ points)
    return points


def _lengths(inside: Any) -> sparse.csr_array:
    """Lengths 1/√w of edges, w relative to the heaviest edges of both ends; at most three."""
    matrix = sparse.csr_array(inside)
    heaviest = matrix.max(axis=1).toarray().ravel()
    entries = matrix.tocoo()
    share = entries.data / np.sqrt(heaviest[entries.row]) / np.sqrt(heaviest[entries.col])
    length = np.clip(1.0 / np.sqrt(np.maximum(share, 1e-9)), 1.0, 3.0)
    return sparse.csr_array((length, (entries.row, entries.col)), shape=matrix.shape)


def _classical_scaling(distance: np.ndarray) -> np.ndarray:
    """Classical scaling to the plane; a small ripple separates tasks that would fall on one point."""
    squared = distance**2
    centred = -0.5 * (squared - squared.mean(axis=0) - squared.mean(axis=1)[:, None] + squared.mean())
    n = len(distance)
    values, vectors = linalg.eigh(centred, subset_by_index=[n - 2, n - 1])
    if len(values) < 2:
        # Of a clique, all of whose eigenvalues but one are the same, LAPACK may find none by number.
        values, vectors = (part[..., -2:] for part in np.linalg.eigh(centred))
    points = vectors * np.sqrt(np.maximum(values, 0.0))
    angle = 2.399963 * np.arange(len(points))
    return points + 0.05 * np.column_stack([np.cos(angle), np.sin(angle)])


def _flatten(points: np.ndarray, inside: Any) -> np.ndarray:
    """Turn the longest direction flat and scale: half of the edges are longer than one."""
    points = points - points.mean(axis=0)
    axes = np.linalg.svd(points, full_matrices=False)[2]
    # The sign of a singular vector is arbitrary; fixing it keeps pictures the same on every machine.
    axes = axes * np.where(axes[np.arange(2), np.abs(axes).argmax(axis=1)] < 0, -1.0, 1.0)[:, None]
    points = points @ axes.T
    length = np.median(np.linalg.norm(points[inside.row] - points[inside.col], axis=1))
    spread = np.sqrt(np.ptp(points[:, 0]) * max(np.ptp(points[:, 1]), 1e-9) / len(points))
    points = points / max(length, spread, 1e-9)
    return points - points.min(axis=0)


def _shelves(boxes: list[np.ndarray]) -> tuple[list[np.ndarray], float, float]:
    """Lower left corners of boxes set on shelves from the top down, the width and the lowest level."""
    if not boxes:
        return [], 0.0, 0.0
    padded = np.array(boxes) + _GAP
    limit = max(padded[:, 0].max(), 1.3 * np.sqrt(padded.prod(axis=1).sum()))
    corners, x, y, height = [], 0.0, 0.0, 0.0
    for width, tall in padded:
        if x > 0 and x + width > limit:
            x, y, height = 0.0, y - height, 0.0
        corners.append(np.array([x, y - tall + _GAP]))
        x, height = x + width, max(height, tall)
    return corners, float(limit), y - height


def _rows(number: int, width: float, top: float) -> np.ndarray:
    """Single tasks in rows as wide as the picture above them, or in a square when there is none."""
    per_row = max(int(width), int(np.ceil(np.sqrt(1.5 * number))), 1)
    place = np.arange(number)
    return np.column_stack([place % per_row, top - place // per_row]).astype(float)
