"""Summary → page, and what its script draws: levels by name, the graphs of the slider, points of the tasks.

Names are untrusted: they reach the page as JSON that cannot end its script, and are set as text only.
"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from ggmtl.errors import require
from ggmtl.inspection.summary.collect import summarize
from ggmtl.inspection.summary.verdict import LEVEL_NAMES, SIMPLE_LEVELS
from ggmtl.inspection.summary.words import (
    cut_short,
    describe_blend,
    describe_gain,
    describe_graph,
    describe_meaning,
    error_text,
    level_title,
    note_lines,
)
from ggmtl.report.placing import place_tasks
from ggmtl.runtime.files import write_whole

_DIGITS = 6


def page_data(summary: dict[str, Any]) -> dict[str, Any]:
    """The summary without what the script can work out, with the words that it shows and numbers cut to six digits."""
    placing = place_tasks(summary)
    kept = ("features", "tasks", "sharing", "n_tasks")
    against = summary["gain_against"]
    return _short(
        {
            **{key: summary[key] for key in kept},
            "levels": [_level(level) for level in summary["path"]["levels"]],
            "chosen": summary["path"]["chosen"],
            "stops": graphs_of(summary),
            "gain_against": None if against is None else LEVEL_NAMES.get(against, against),
            "places": placing.points,
            "frame": placing.frame,
            "placed_by": placing.by,
            "axes": summary["map"]["axes"] if placing.by == "models" and summary["map"] else [],
        }
    )


def graphs_of(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """The graphs that the slider goes through, from sparse to dense, each once; one of them is the model's.

    A graph that stands at several levels is shown as the model's where it is the model's, since only that has support.
    """
    levels, chosen = summary["path"]["levels"], summary["path"]["chosen"]
    own = summary["graph"]
    clusters = [task["cluster"] for task in summary["tasks"]]
    stops = [
        {"level": chosen, "chosen": True, "edges": own["edges"], "clusters": clusters, "words": own_words(summary)}
    ]
    shown = {_pairs(own["edges"])}
    for k, level in enumerate(levels):
        if level["edges"] and _pairs(level["edges"]) not in shown:
            shown.add(_pairs(level["edges"]))
            drawn = {"edges": level["edges"], "clusters": level["clusters"], "words": _tried_words(level, summary)}
            stops.append({"level": k, "chosen": False, **drawn})
    hub = next((k for k, level in enumerate(levels) if level["name"] == "hub"), None)
    if hub is not None and () not in shown:
        words = f"No links. {_error_words(levels[hub], summary)}"
        stops.append(
            {"level": hub, "chosen": False, "edges": [], "clusters": list(range(len(clusters))), "words": words}
        )
    return sorted(stops, key=lambda stop: len(stop["edges"]))


def own_words(summary: dict[str, Any]) -> str:
    """The model's graph in words."""
    if not summary["graph"]["n_edges"]:
        near = "Tasks near each other have similar models. " if summary["map"] and summary["places"] is None else ""
        return f"{near}No two tasks are linked."
    return f"{_sentence(describe_graph(summary))} Linked tasks learn from each other more than from the rest."


def _tried_words(level: dict[str, Any], summary: dict[str, Any]) -> str:
    sizes = np.bincount(level["clusters"], minlength=1)
    counts = {"n_clusters": level["n_clusters"], "n_alone": int((sizes == 1).sum())}
    words = describe_graph({"graph": {"n_edges": len(level["edges"]), "shape": level["shape"], **counts}})
    return f"{_sentence(words)} This graph was tried; the model has another. {_error_words(level, summary)}".strip()


def _error_words(level: dict[str, Any], summary: dict[str, Any]) -> str:
    if level["error"] is None or summary["error"] is None:
        return ""
    model = summary["path"]["levels"][summary["path"]["chosen"]]
    return f"Its held-out error alone is {error_text(level)}; the model's is {error_text(model)}."


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def _pairs(edges: list[list[float]]) -> tuple[tuple[float, float], ...]:
    return tuple(sorted((edge[0], edge[1]) for edge in edges))


def _level(level: dict[str, Any]) -> dict[str, Any]:
    kept = {name: level.get(name) for name in ("error", "standard_error", "weight", "chosen")}
    text = None if level.get("error") is None else error_text(level)
    return {"title": level_title(level), "text": text, "simple": level["name"] in SIMPLE_LEVELS, **kept}


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _short(entry) for key, entry in value.items()}
    return [_short(entry) for entry in value] if isinstance(value, list) else value


# Escapes that JSON reads back and HTML cannot mistake for markup; the last two end a line in old scripts.
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
# The parts of the script share one scope, in this order.
_SCRIPTS = ("tools", "state", "drawing", "panel", "choosing", "charts", "table", "downloads", "start")


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
        verdict=_unbroken(summary["verdict"]["text"]),
        cut_short=cut_short(summary),
        meaning=describe_meaning(summary),
        detail=" ".join(filter(None, [describe_gain(summary), describe_blend(summary)])),
        graph_words=own_words(summary),
        notes=note_lines(summary),
        measured=any(level.get("error") is not None for level in summary["path"]["levels"]),
        outcome=_outcome(summary["outcome"]),
        style=markup((folder / "page.css").read_text(encoding="utf-8")),
        script=markup(_script()),
        data=markup(script_json(page_data(summary))),
    )


def script_json(value: Any) -> str:
    """JSON that is safe inside a script element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for letter, escape in _ESCAPES.items():
        text = text.replace(letter, escape)
    return text


def _unbroken(text: str) -> str:
    """Percentages, ranges and hyphens stay on one line."""
    return text.replace(" %", "\u00a0%").replace("–", "\u2060–\u2060").replace("held-out", "held\u2011out")


def _outcome(outcome: dict[str, Any]) -> dict[str, Any]:
    """How the fit ended; a stop by design is no failure to converge."""
    known = {name: value for name, value in outcome.items() if value is not None}
    if known.get("status") != "stopped":
        return known
    words = "finished after its fixed number of steps"
    return {name: words if name == "status" else value for name, value in known.items() if name != "converged"}


def _script() -> str:
    """The parts of the script as one function, so that no name of theirs is seen outside."""
    folder = files("ggmtl.report") / "scripts"
    parts = [(folder / f"{name}.js").read_text(encoding="utf-8") for name in _SCRIPTS]
    return '"use strict";\n(() => {\n' + "\n".join(parts) + "})();\n"
