"""Summary → page. Names are untrusted: JSON that cannot end its script, and set as text only."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from scipy.spatial import cKDTree

from ggmtl.errors import require
from ggmtl.graph.task_graph import TaskGraph
from ggmtl.inspection.summary.collect import summarize
from ggmtl.inspection.summary.words import describe_gain, describe_graph, describe_meaning, note_lines
from ggmtl.plot.layout import positions
from ggmtl.runtime.files import write_whole

# Escapes that JSON reads back and HTML cannot mistake for markup; the last two end a line in old scripts.
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_DIGITS = 6


def write_report(model: Any, path: str | Path, title: str | None = None) -> Path:
    """Write a self-contained HTML page about a fitted model.

    Parameters
    ----------
    model : fitted regressor of this package
    path : str or Path
        File to write; it appears whole or not at all.
    title : str, optional
        Heading of the page.

    Returns
    -------
    Path
        The file written.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from ggmtl.baselines import HubRegressor
    >>> from ggmtl.datasets import make_clusters
    >>> data = make_clusters(2, n_tasks=6, n_features=3, random_state=0)
    >>> model = HubRegressor().fit(data.X, data.y, tasks=data.tasks)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_report(model, Path(folder) / "report.html").name
    'report.html'
    """
    write_whole(path, render_report(summarize(model), title).encode("utf-8", errors="replace"))
    return Path(path)


def render_report(summary: dict[str, Any], title: str | None = None) -> str:
    """The page of a summary as text.

    Examples
    --------
    >>> from ggmtl.inspection.summary.collect import summarize
    >>> from ggmtl.baselines import HubRegressor
    >>> from ggmtl.datasets import make_clusters
    >>> data = make_clusters(2, n_tasks=6, n_features=3, random_state=0)
    >>> model = HubRegressor().fit(data.X, data.y, tasks=data.tasks)
    >>> "Six schools" in render_report(summarize(model), title="Six schools")
    True
    """
    jinja2 = require("jinja2", "report", "The report")
    folder = files("ggmtl.report")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = environment.from_string((folder / "page.html.jinja").read_text(encoding="utf-8"))
    markup = require("markupsafe", "report", "The report").Markup
    return template.render(
        title=title
        or (f"Which of the {summary['n_tasks']:,} tasks are alike" if summary["n_tasks"] > 1 else "One task"),
        summary=summary,
        # Percentages and ranges stay on one line.
        verdict=summary["verdict"]["text"].replace(" %", "\u00a0%").replace("–", "\u2060–\u2060"),
        meaning=describe_meaning(summary),
        detail=describe_gain(summary),
        graph_words=describe_graph(summary),
        notes=note_lines(summary),
        measured=any(level.get("error") is not None for level in summary["path"]["levels"]),
        outcome=_outcome(summary["outcome"]),
        style=markup((folder / "page.css").read_text(encoding="utf-8")),
        script=markup((folder / "page.js").read_text(encoding="utf-8")),
        data=markup(script_json(_payload(summary))),
    )


def script_json(value: Any) -> str:
    """JSON that is safe inside a script element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for letter, escape in _ESCAPES.items():
        text = text.replace(letter, escape)
    return text


def _outcome(outcome: dict[str, Any]) -> dict[str, Any]:
    """How the fit ended; a stop by design is no failure to converge."""
    known = {name: value for name, value in outcome.items() if value is not None}
    if known.get("status") != "stopped":
        return known
    words = "stopped: evidence took the steps that it takes by design"
    return {name: words if name == "status" else value for name, value in known.items() if name != "converged"}


def _payload(summary: dict[str, Any]) -> dict[str, Any]:
    """What the page's script draws: the summary without what it can work out, numbers cut to six digits."""
    places, by_models = place_tasks(summary)
    graph = {key: value for key, value in summary["graph"].items() if key not in ("differences", "edges")}
    kept = ("features", "tasks", "path", "sharing", "verdict", "n_tasks")
    payload = {key: summary[key] for key in kept}
    edges = summary["graph"]["edges"]
    axes = summary["map"]["axes"] if by_models and summary["map"] else []
    drawn = {"edges": edges, "places": places, "placed_by_models": by_models, "axes": axes}
    return _short({**payload, "graph": graph, **drawn})


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _short(entry) for key, entry in value.items()}
    return [_short(entry) for entry in value] if isinstance(value, list) else value


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
