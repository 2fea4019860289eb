"""What the pictures share: reading the model, colours and markers of clusters, labels that fit."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from scipy.spatial import cKDTree

from ggmtl.errors import InputError, InputTypeError, require
from ggmtl.graph.task_graph import TaskGraph
from ggmtl.inspection.summary.phrases import count

# Okabe and Ito (2008), distinguishable with every common colour blindness; black is left for text.
OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")
GREY = "#9A9A9A"
EDGE_COLOR = "#444444"
GAIN_COLOR, LOSS_COLOR = OKABE_ITO[0], OKABE_ITO[5]
MAX_TASKS = 500
_LABEL_LENGTH = 24
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]+")


def axes_of(ax: Any, size: tuple[float, float] = (6.4, 4.8)) -> Any:
    """The Axes given, or those of a new figure."""
    if ax is not None:
        return ax
    pyplot = require("matplotlib.pyplot", "plot", "ggmtl.plot")
    return pyplot.subplots(figsize=size, layout="constrained")[1]


def graph_of(model_or_graph: Any) -> TaskGraph:
    """The graph itself, or that of a fitted model."""
    found = getattr(model_or_graph, "graph_", model_or_graph)
    if not isinstance(found, TaskGraph):
        raise InputTypeError(
            "The first argument must be a TaskGraph or a fitted model with a graph_. "
            f"Got {type(model_or_graph).__name__} instead."
        )
    return found


def clusters_of(graph: TaskGraph, clusters: Any = None) -> np.ndarray:
    """Cluster numbers, shape (n,): those given, or the Markov clusters; 0 is the largest."""
    if clusters is None:
        return graph.clusters()
    clusters = np.asarray(clusters)
    if clusters.shape != (graph.n_tasks,):
        raise InputError(f"clusters must have shape ({graph.n_tasks},). Got {clusters.shape} instead.")
    return np.unique(clusters, return_inverse=True)[1]


def cluster_styles(clusters: np.ndarray) -> list[tuple[str, str]]:
    """(colour, marker) of every cluster: seven colours, again with other markers; single tasks are grey."""
    sizes = np.bincount(clusters)
    n_colors = len(OKABE_ITO)
    styles = []
    for number in range(len(sizes)):
        rank = int(np.sum(sizes[:number] > 1))
        if sizes[number] <= 1 or rank >= n_colors * len(MARKERS):
            styles.append((GREY, "o"))
        else:
            styles.append((OKABE_ITO[rank % n_colors], MARKERS[rank // n_colors]))
    return styles


def label_text(name: Any, length: int = _LABEL_LENGTH) -> str:
    """A task name on one line, cut to a readable length."""
    text = _CONTROL.sub(" ", str(name))
    return text if len(text) <= length else text[: length - 1] + "…"


def headline(tasks: TaskGraph, clusters: np.ndarray) -> str:
    """Number of tasks, links, clusters and tasks alone, in words."""
    links = count(tasks.n_edges, "link") if tasks.n_edges else "no links"
    parts = [count(tasks.n_tasks, "task"), links]
    if tasks.n_edges:
        sizes = np.bincount(clusters)
        parts.append(count(int((sizes > 1).sum()), "cluster"))
        alone = int((sizes == 1).sum())
        parts += [f"{alone:,} alone"] if alone else []
    return ", ".join(parts)


def say_empty(ax: Any) -> None:
    """Write in the middle why the picture is empty, so that it is not taken for an error."""
    ax.text(0.5, 0.5, "no links", transform=ax.transAxes, ha="center", va="center", color="0.4", fontsize=12)


def prepare(ax: Any, points: np.ndarray) -> None:
    """Set the limits around the points, with room for labels, and hide the frame."""
    low, high = (points.min(axis=0), points.max(axis=0)) if len(points) else (np.zeros(2), np.zeros(2))
    margin = 0.08 * max(np.ptp([low, high], axis=0).max(), 1.0) + 0.2
    box = np.array(ax.bbox.size)
    # As wide and as high as the Axes are, so that equal units leave no part of them empty.
    half = (np.ptp([low, high], axis=0) / 2 + margin).clip(min=1e-9)
    half = box * (half / box).max()
    ax.set_aspect("equal", adjustable="box")
    ax.set_xlim((low + high)[0] / 2 - half[0], (low + high)[0] / 2 + half[0])
    ax.set_ylim((low + high)[1] / 2 - half[1], (low + high)[1] / 2 + half[1])
    ax.set_axis_off()


def room(ax: Any, points: np.ndarray, smallest: float, largest: float) -> float:
    """Diameter of marks in typographic points, within bounds, at which nine of ten do not touch."""
    if len(points) < 2:
        return largest
    pixels = ax.transData.transform(points)
    nearest = cKDTree(pixels).query(pixels, 2)[0][:, 1] * 72 / ax.figure.dpi
    return float(np.clip(0.85 * np.quantile(nearest, 0.1), smallest, largest))


def scatter_tasks(ax: Any, points: np.ndarray, styles: list[tuple[str, str]], sizes: Any) -> None:
    """Draw points, one collection per (colour, marker)."""
    sizes = np.broadcast_to(sizes, len(points))
    for style in dict.fromkeys(styles):
        chosen = np.array([other == style for other in styles])
        color, marker = style
        ax.scatter(
            *points[chosen].T,
            s=sizes[chosen],
            c=color,
            marker=marker,
            edgecolors="white",
            linewidths=0.6,
            zorder=3,
        )


def draw_edges(ax: Any, points: np.ndarray, tasks: TaskGraph, width: float) -> None:
    """Draw edges: width grows with the weight, opacity with the support (with the weight where it is not known)."""
    lines = require("matplotlib.collections", "plot", "ggmtl.plot").LineCollection
    colors = require("matplotlib.colors", "plot", "ggmtl.plot").to_rgba_array
    share = tasks.weights / tasks.weights.max(initial=np.finfo(float).tiny)
    rgba = np.repeat(colors(EDGE_COLOR), tasks.n_edges, axis=0)
    rgba[:, 3] = 0.25 + 0.45 * share if tasks.support is None else 0.08 + 0.82 * tasks.support
    collection = lines(points[tasks.edges], linewidths=width * (0.25 + 0.75 * share), colors=rgba, zorder=1)
    ax.add_collection(collection, autolim=False)


def place_labels(ax: Any, points: np.ndarray, texts: Iterable[tuple[int, str]], radius: Any, fontsize: float) -> None:
    """Write labels next to their points, in the order given; leave out those that would touch a point or a label."""
    halo = [require("matplotlib.patheffects", "plot", "ggmtl.plot").withStroke(linewidth=2, foreground="white")]
    # A figure finds its layout when it is drawn; only then is the room known.
    getattr(ax.figure, "draw_without_rendering", ax.apply_aspect)()
    pixels = ax.transData.transform(points)
    radius = np.broadcast_to(radius, len(points)) * ax.figure.dpi / 72
    taken = np.column_stack([pixels - radius[:, None], pixels + radius[:, None]])
    for position, text in texts:
        gap = radius[position] * 72 / ax.figure.dpi + 1.5
        for dx, dy, horizontal, vertical in _SIDES:
            label = ax.annotate(
                text, points[position], (dx * gap, dy * gap), textcoords="offset points", fontsize=fontsize,
                ha=horizontal, va=vertical, zorder=5, parse_math=False, annotation_clip=False,
                path_effects=halo,
            )  # fmt: skip
            box = label.get_window_extent().extents
            if _is_free(box, taken, ax.bbox.extents):
                taken = np.vstack([taken, box])
                break
            label.remove()


# Where a label may stand: direction from the point, and the alignment that leads away from it.
_SIDES = (
    (0, 1, "center", "bottom"),
    (0, -1, "center", "top"),
    (0, 1, "left", "bottom"),
    (0, 1, "right", "bottom"),
    (0, -1, "left", "top"),
    (0, -1, "right", "top"),
    (1, 0, "left", "center"),
    (-1, 0, "right", "center"),
)


def _is_free(box: np.ndarray, taken: np.ndarray, frame: np.ndarray) -> bool:
    inside = (box[:2] >= frame[:2]).all() and (box[2:] <= frame[2:]).all()
    apart = (taken[:, :2] >= box[2:]).any(axis=1) | (taken[:, 2:] <= box[:2]).any(axis=1)
    return bool(inside and apart.all())
