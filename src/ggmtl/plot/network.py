"""The graph as a picture and as a matrix, and where its tasks lie: components packed one by one, single tasks below."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import linalg, sparse
from scipy.sparse.csgraph import shortest_path
from scipy.spatial.distance import cdist

from ggmtl.errors import InputError
from ggmtl.graph.markov import by_size
from ggmtl.graph.task_graph import TaskGraph
from ggmtl.plot.charts import adjacency_cells, frame_clusters, label_rows, matrix_height
from ggmtl.plot.style import (
    MAX_TASKS,
    OKABE_ITO,
    axes_of,
    cluster_styles,
    clusters_of,
    draw_edges,
    graph_of,
    headline,
    label_text,
    place_labels,
    prepare,
    room,
    say_empty,
    scatter_tasks,
)

_STRESS_ROUNDS = 60
_GAP = 1.0


def positions(graph: TaskGraph, layout: Any = None) -> np.ndarray:
    """Points of the tasks, shape (n, 2), about one unit between neighbours.

    Parameters
    ----------
    graph : TaskGraph
        Edges of weight zero do not attract.
    layout : mapping or array of shape (n, 2), optional
        The points themselves; a mapping goes from task names to points. By default components are placed one by one
        and packed.
    """
    return _pack(graph.threshold(0.0)) if layout is None else given_points(graph, layout, "layout")


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


def _pack(graph: TaskGraph) -> np.ndarray:
    """Components as boxes on shelves, largest first; single tasks in rows below."""
    component = graph.components()
    sizes = np.bincount(component, minlength=1)
    order = np.lexsort((np.arange(len(sizes)), -sizes))
    groups = [np.flatnonzero(component == number) for number in order if sizes[number] > 1]
    boxes = [_component(graph, members) for members in groups]
    corners, width, depth = _shelves([box.max(axis=0) for box in boxes])
    points = np.zeros((graph.n_tasks, 2))
    for members, box, corner in zip(groups, boxes, corners):
        points[members] = box + corner
    single = np.flatnonzero(sizes[component] == 1)
    points[single] = _rows(len(single), width, depth)
    return points


def _component(graph: TaskGraph, members: np.ndarray) -> np.ndarray:
    """Points of one component: its longest direction lies flat, the corner is at (0, 0)."""
    inside = graph.adjacency()[members][:, members].tocoo()
    return _flatten(_stress(inside), inside)


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


def graph(model_or_graph: Any, ax: Any = None, clusters: Any = None, layout: Any = None) -> Any:
    """Draw tasks as points, coloured by cluster, and edges as lines, as wide as their weight.

    Edges that few folds of the fit have found are drawn faintly, where that is known.

    More than 500 tasks are drawn as their clusters: a disc for each, its area the number of members, joined
    by the summed weights between them.

    Parameters
    ----------
    model_or_graph : TaskGraph or fitted model
        What to draw.
    ax : matplotlib Axes, optional
        Where to draw; a new figure if missing.
    clusters : array of shape (n,), optional
        Cluster of each task; the Markov clusters if missing.
    layout : mapping or array of shape (n, 2), optional
        Where to place the tasks. By default components are placed one by one and packed.

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> from ggmtl import TaskGraph, plot
    >>> tasks = TaskGraph([[0, 1], [1, 2]], [0.5, 1.0], ["a", "b", "c"])
    >>> plot.graph(tasks).get_title()
    '3 tasks, 2 links, 1 cluster'
    """
    tasks = graph_of(model_or_graph)
    clusters = clusters_of(tasks, clusters)
    ax = axes_of(ax)
    if tasks.n_tasks > MAX_TASKS and layout is None:
        draw_clusters(ax, tasks, clusters)
        return ax
    points, n = positions(tasks, layout), tasks.n_tasks
    prepare(ax, points)
    draw_tasks(ax, tasks, clusters, points, (3.5, 12.0), 3.0 if n <= 100 else 0.8, 9 if n <= 20 else 7)
    return ax


def adjacency(model_or_graph: Any, ax: Any = None, clusters: Any = None) -> Any:
    """Draw the matrix of weights, tasks ordered by cluster, a frame around every cluster.

    Of more than 250 tasks, several share a row; a cell then shows the heaviest of their edges.

    Examples
    --------
    >>> from ggmtl import TaskGraph, plot
    >>> tasks = TaskGraph([[0, 1], [1, 2]], [0.5, 1.0], ["a", "b", "c"])
    >>> plot.adjacency(tasks).get_title()
    '3 tasks, 2 links, 1 cluster'
    """
    tasks = graph_of(model_or_graph)
    clusters = clusters_of(tasks, clusters)
    height = matrix_height(tasks.n_tasks)
    ax = axes_of(ax, (height + 1.0, height))
    order = np.lexsort((np.arange(tasks.n_tasks), clusters))
    end = max(tasks.n_tasks, 1) - 0.5
    extent = (-0.5, end, end, -0.5)
    image = ax.imshow(
        adjacency_cells(tasks, order), extent=extent, cmap="Blues", interpolation="nearest",
        vmin=0, vmax=tasks.weights.max(initial=0) or 1,
    )  # fmt: skip
    frame_clusters(ax, clusters[order])
    label_rows(ax, tasks.task_names[order], [ax.yaxis, ax.xaxis])
    ax.set_title(headline(tasks, clusters), fontsize=10)
    if tasks.n_edges:
        ax.figure.colorbar(image, ax=ax, label="weight", shrink=0.8)
    else:
        say_empty(ax)
    return ax


def draw_tasks(
    ax: Any,
    tasks: TaskGraph,
    clusters: np.ndarray,
    points: np.ndarray,
    sizes: tuple[float, float],
    width: float,
    fontsize: float,
) -> None:
    """Draw tasks at their points with their edges and labels; marks have a diameter within `sizes`."""
    area = room(ax, points, *sizes) ** 2
    draw_edges(ax, points, tasks, width)
    styles = cluster_styles(clusters)
    scatter_tasks(ax, points, [styles[number] for number in clusters], area)
    ax.set_title(headline(tasks, clusters), fontsize=10)
    texts = [(i, label_text(tasks.task_names[i])) for i in label_order(tasks, clusters)]
    place_labels(ax, points, texts, np.sqrt(area) / 2, fontsize)


def label_order(tasks: TaskGraph, clusters: np.ndarray) -> list[int]:
    """Tasks to label, most important first: all of up to 100, else the best connected of each cluster."""
    by_degree = np.argsort(-tasks.degrees(), kind="stable")
    if tasks.n_tasks <= 100:
        return by_degree.tolist()
    sizes = np.bincount(clusters)
    first = by_degree[np.unique(clusters[by_degree], return_index=True)[1]]
    return [int(i) for i in first if sizes[clusters[i]] > 1][:20]


_MAX_CLUSTERS = 60
_DARK = (OKABE_ITO[0], OKABE_ITO[2], OKABE_ITO[5])


def draw_clusters(ax: Any, tasks: TaskGraph, clusters: np.ndarray) -> None:
    """Draw clusters as discs with their numbers of members, and the heaviest links between them.

    Tasks alone, the smallest clusters and light links are only counted.
    """
    clusters = by_size(clusters)
    sizes = np.bincount(clusters)
    n_groups = int((sizes > 1).sum())
    shown = min(n_groups, _MAX_CLUSTERS)
    ax.set_title(headline(tasks, clusters), fontsize=10)
    if shown == 0:
        say_empty(ax)
        ax.set_axis_off()
        return
    links = between(tasks, clusters, shown)
    heavy = heaviest_links(links)
    points = positions(heavy)
    prepare(ax, points)
    diameter = room(ax, points, 17.0, 34.0) * np.sqrt(sizes[:shown] / sizes.max())
    draw_edges(ax, points, heavy, 4.0)
    colors = [OKABE_ITO[number % len(OKABE_ITO)] for number in range(shown)]
    scatter_tasks(ax, points, [(color, "o") for color in colors], diameter**2)
    for point, size, width, color in zip(points, sizes, diameter, colors):
        text = ax.annotate(f"{size:,}", point, ha="center", va="center", zorder=5)
        text.set(fontsize=np.clip(0.42 * width, 6.5, 9.0), color="white" if color in _DARK else "black")
    note = _note(shown, n_groups, heavy.n_edges, links.n_edges)
    ax.text(0.5, 0.0, note, transform=ax.transAxes, ha="center", fontsize=8, color="0.35")


def between(tasks: TaskGraph, clusters: np.ndarray, shown: int) -> TaskGraph:
    """The graph of the first clusters: weights between two of them are summed."""
    pairs = np.sort(clusters[tasks.edges], axis=1)
    keep = (pairs[:, 0] < pairs[:, 1]) & (pairs[:, 1] < shown)
    unique, inverse = np.unique(pairs[keep], axis=0, return_inverse=True)
    return TaskGraph(unique, np.bincount(inverse.ravel(), tasks.weights[keep], len(unique)), np.arange(shown))


def heaviest_links(links: TaskGraph, per_end: int = 2) -> TaskGraph:
    """The links among the `per_end` heaviest of one of their ends: no joined cluster loses its last."""
    ends, link = links.edges.ravel(), np.repeat(np.arange(links.n_edges), 2)
    order = np.lexsort((link, -links.weights[link], ends))
    starts = np.searchsorted(ends[order], np.arange(links.n_tasks))
    rank = np.arange(len(order)) - starts[ends[order]]
    keep = np.unique(link[order[rank < per_end]])
    return TaskGraph(links.edges[keep], links.weights[keep], links.task_names)


def _note(shown: int, n_groups: int, drawn: int, n_links: int) -> str:
    parts = [f"the {shown} largest of {n_groups:,} clusters" if shown < n_groups else "one disc per cluster"]
    parts += [f"the {drawn} heaviest of {n_links:,} links"] if drawn < n_links else []
    return "; ".join([*parts, "numbers are members"])
