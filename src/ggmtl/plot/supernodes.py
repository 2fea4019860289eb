"""A graph too large to draw task by task: one disc for each cluster."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmtl.graph.markov import by_size
from ggmtl.graph.task_graph import TaskGraph
from ggmtl.plot.layout import positions
from ggmtl.plot.style import OKABE_ITO, draw_edges, headline, prepare, room, say_empty, scatter_tasks

_MAX_CLUSTERS = 60
_DARK = (OKABE_ITO[0], OKABE_ITO[2], OKABE_ITO[5])


def draw_clusters(ax: Any, tasks: TaskGraph, clusters: np.ndarray, layout: str | None) -> None:
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
    points = positions(heavy, layout)
    prepare(ax, points)
    diameter = room(ax, points, 17.0, 34.0) * np.sqrt(sizes[:shown] / sizes.max())
    draw_edges(ax, points, heavy.edges, heavy.weights, None, 4.0)
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
