"""The graph on a map."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmtl.errors import InputError
from ggmtl.plot.network import given_points, label_order
from ggmtl.plot.style import (
    axes_of,
    cluster_styles,
    clusters_of,
    draw_edges,
    graph_of,
    headline,
    label_text,
    place_labels,
    room,
    scatter_tasks,
)


def map(model_or_graph: Any, coordinates: Any, ax: Any = None, clusters: Any = None) -> Any:
    """Draw tasks at their longitude and latitude, coloured by cluster, and the edges between them.

    Parameters
    ----------
    model_or_graph : TaskGraph or fitted model
        What to draw.
    coordinates : array of shape (n, 2), or mapping from task names to pairs
        Longitude and latitude in degrees, in the order of the tasks.
    ax : matplotlib Axes, optional
        Where to draw; a new figure if missing.
    clusters : array of shape (n,), optional
        Cluster of each task; the Markov clusters if missing.

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> from ggmtl import TaskGraph, plot
    >>> tasks = TaskGraph([[0, 1], [1, 2]], [0.5, 1.0], ["a", "b", "c"])
    >>> plot.map(tasks, [[7.1, 50.7], [7.0, 50.9], [11.6, 48.1]]).get_xlabel()
    'longitude'
    """
    tasks = graph_of(model_or_graph)
    points = given_points(tasks, coordinates, "coordinates")
    if len(points) and np.abs(points[:, 1]).max() > 90:
        raise InputError("coordinates must be (longitude, latitude): a latitude is beyond ±90°. Are they swapped?")
    clusters = clusters_of(tasks, clusters)
    ax = axes_of(ax, (7.2, 4.8))
    _frame(ax, points)
    area = room(ax, points, 3.0, 8.0) ** 2
    draw_edges(ax, points, tasks.edges, tasks.weights, None, 2.0 if tasks.n_tasks <= 100 else 1.0)
    styles = cluster_styles(clusters)
    scatter_tasks(ax, points, [styles[number] for number in clusters], area)
    ax.set_title(headline(tasks, clusters), fontsize=10)
    texts = [(i, label_text(tasks.task_names[i])) for i in label_order(tasks, clusters)]
    place_labels(ax, points, texts, np.sqrt(area) / 2, 7)
    return ax


def _frame(ax: Any, points: np.ndarray) -> None:
    """Axes in degrees; a degree of longitude shrinks away from the equator, as it does on the ground."""
    low, high = (points.min(axis=0), points.max(axis=0)) if len(points) else (np.zeros(2), np.ones(2))
    margin = 0.06 * np.maximum(high - low, 0.1 * max((high - low).max(), 1.0))
    ax.set_xlim(low[0] - margin[0], high[0] + margin[0])
    ax.set_ylim(low[1] - margin[1], high[1] + margin[1])
    ax.set_aspect(1.0 / max(np.cos(np.radians((low[1] + high[1]) / 2)), 0.1), adjustable="box")
    ax.set_xlabel("longitude")
    ax.set_ylabel("latitude")
    ax.grid(color="0.92", linewidth=0.6)
    ax.set_axisbelow(True)
