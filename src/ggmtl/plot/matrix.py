"""Matrices with tasks as rows: cells, frames around clusters, labels where they fit."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmtl.errors import require
from ggmtl.graph.task_graph import TaskGraph
from ggmtl.plot.style import cluster_styles, label_text

_MAX_CELLS = 250
_SMALLEST_FONT = 5.0


def adjacency_cells(tasks: TaskGraph, order: np.ndarray) -> np.ndarray:
    """Weights in the order given; of many tasks several share a cell, which holds the heaviest edge."""
    n_cells = min(tasks.n_tasks, _MAX_CELLS)
    place = np.empty(tasks.n_tasks, dtype=np.int64)
    place[order] = np.arange(tasks.n_tasks) * n_cells // max(tasks.n_tasks, 1)
    cells = np.zeros((max(n_cells, 1),) * 2)
    i, j = place[tasks.edges].T
    np.maximum.at(cells, (i, j), tasks.weights)
    return np.maximum(cells, cells.T)


def cluster_runs(ordered: np.ndarray) -> list[tuple[int, int, int]]:
    """(cluster, first row, number of rows) of every cluster of two or more, rows ordered by cluster."""
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    lengths = np.diff(np.append(starts, len(ordered)))
    return [(int(ordered[s]), int(s), int(k)) for s, k in zip(starts, lengths) if k > 1]


def frame_clusters(ax: Any, ordered: np.ndarray) -> None:
    """Draw a frame in the colour of the cluster around its block on the diagonal."""
    patches = require("matplotlib.patches", "plot", "ggmtl.plot")
    styles = cluster_styles(ordered)
    for number, start, length in cluster_runs(ordered):
        frame = patches.Rectangle((start - 0.5, start - 0.5), length, length)
        frame.set(fill=False, edgecolor=styles[number][0], linewidth=1.4)
        ax.add_patch(frame)


def mark_clusters(ax: Any, ordered: np.ndarray) -> None:
    """Draw a bar in the colour of the cluster along the left side of its rows."""
    patches = require("matplotlib.patches", "plot", "ggmtl.plot")
    styles = cluster_styles(ordered)
    for number, start, length in cluster_runs(ordered):
        bar = patches.Rectangle((0.0, start - 0.5), 0.012, length)
        bar.set(facecolor=styles[number][0], edgecolor="white", linewidth=0.5, transform=ax.get_yaxis_transform())
        ax.add_patch(bar)


def matrix_height(n_rows: int) -> float:
    """Height of a new figure in inches: up to 60 rows are tall enough for their names."""
    return float(np.clip(1.8 + 0.11 * n_rows, 4.8, 8.4)) if n_rows <= 60 else 4.8


def label_rows(ax: Any, names: np.ndarray, axes: list[Any]) -> None:
    """Write names along the axes if every one has room, else only say how many tasks there are."""
    size = ax.get_window_extent()
    room = min(size.height if axis is ax.yaxis else size.width for axis in axes) * 72 / ax.figure.dpi
    fontsize = min(9.0, 0.85 * room / max(len(names), 1))
    for axis in axes:
        if fontsize < _SMALLEST_FONT:
            axis.set_ticks([])
            axis.set_label_text(f"{len(names):,} tasks, ordered by cluster")
        else:
            _write_names(axis, names, fontsize, 90 if axis is ax.xaxis else 0)


def _write_names(axis: Any, names: np.ndarray, fontsize: float, rotation: float) -> None:
    axis.set_ticks(range(len(names)))
    texts = [label_text(name) for name in names]
    axis.set_ticklabels(texts, fontsize=fontsize, rotation=rotation, parse_math=False)
    axis.set_tick_params(length=0)
