"""The graph on a map, with coastlines and borders behind it.

The lines are those of ``outlines.npz`` (its origin: ``outlines-NOTICE.txt``); no map is fetched from anywhere.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ggmtl.errors import InputError
from ggmtl.plot.network import draw_tasks, given_points
from ggmtl.plot.style import axes_of, clusters_of, graph_of

# Degrees: on a smaller map the thinned lines would not lie on the coast that they show.
_FINEST = 1.5


def map(model_or_graph: Any, coordinates: Any, ax: Any = None, clusters: Any = None, outlines: bool = True) -> Any:
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
    outlines : bool
        Whether to draw coastlines, borders of countries and of the states of the USA.

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
    for line in outlines_within(*np.transpose([ax.get_xlim(), ax.get_ylim()])) if outlines else ():
        ax.plot(*line.T, color="0.72", linewidth=0.6, zorder=0.5, scalex=False, scaley=False)
    draw_tasks(ax, tasks, clusters, points, (3.0, 8.0), 2.0 if tasks.n_tasks <= 100 else 1.0, 7)
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


def outlines_within(low: np.ndarray, high: np.ndarray) -> list[np.ndarray]:
    """Coastlines and borders that touch a rectangle of longitudes and latitudes, each of shape (points, 2).

    Longitudes may go beyond ±180°, so that a map is in one piece across the date line. None on a map of less than
    1.5 degrees.
    """
    if np.max(np.subtract(high, low)) < _FINEST:
        return []
    found = []
    for turn in (-360.0, 0.0, 360.0):
        for line in _outlines():
            moved = line + np.array([turn, 0.0])
            inside = np.all((moved >= low) & (moved <= high), axis=1)
            if inside.any():
                # A point on either side, so that the line goes on to the edge.
                near = inside | np.append(inside[1:], False) | np.append(False, inside[:-1])
                pieces = np.split(np.arange(len(line)), np.flatnonzero(np.diff(near)) + 1)
                found += [moved[piece] for piece in pieces if near[piece[0]] and len(piece) > 1]
    return found


@cache
def _outlines() -> list[np.ndarray]:
    with np.load(Path(__file__).with_name("outlines.npz"), allow_pickle=False) as arrays:
        ends, steps = np.cumsum(arrays["length"].astype(np.int64)), arrays["step"].T.astype(np.int64)
    return [0.01 * np.cumsum(part, axis=0) for part in np.split(steps, ends[:-1])]
