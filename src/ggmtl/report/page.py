"""Summary → page. Names are untrusted: JSON that cannot end its script, and set as text only."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from ggmtl.errors import require
from ggmtl.inspection.summary.collect import summarize
from ggmtl.inspection.summary.words import (
    cut_short,
    describe_blend,
    describe_gain,
    describe_graph,
    describe_meaning,
    note_lines,
)
from ggmtl.report.placing import place_tasks
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
        cut_short=cut_short(summary),
        meaning=describe_meaning(summary),
        detail=" ".join(filter(None, [describe_gain(summary), describe_blend(summary)])),
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
    placing = place_tasks(summary)
    graph = {key: value for key, value in summary["graph"].items() if key not in ("differences", "edges")}
    kept = ("features", "tasks", "path", "sharing", "verdict", "n_tasks")
    payload = {key: summary[key] for key in kept}
    edges = summary["graph"]["edges"]
    axes = summary["map"]["axes"] if placing.by == "models" and summary["map"] else []
    drawn = {"edges": edges, "places": placing.points, "frame": placing.frame, "placed_by": placing.by, "axes": axes}
    return _short({**payload, "graph": graph, **drawn})


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _short(entry) for key, entry in value.items()}
    return [_short(entry) for entry in value] if isinstance(value, list) else value
