"""Summary → what the page's script draws: levels by name, the graphs of the slider, points of the tasks."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmtl.inspection.levels import is_simple, title_of
from ggmtl.inspection.summary.words import describe_graph, error_text, level_title
from ggmtl.report.placing import place_tasks

_DIGITS = 6


def page_data(summary: dict[str, Any]) -> dict[str, Any]:
    """The summary without what the script can work out, with the words that it shows and numbers cut to six digits."""
    placing = place_tasks(summary)
    kept = ("features", "tasks", "standard_errors", "sharing", "n_tasks", "target", "curves")
    against = summary["gain_against"]
    return _short(
        {
            **{key: summary[key] for key in kept},
            "levels": [_level(level) for level in summary["path"]["levels"]],
            "chosen": summary["path"]["chosen"],
            "error": summary["measure"]["short"],
            "stops": graphs_of(summary),
            "gain_against": None if against is None else title_of(against),
            "places": placing.points,
            "frame": placing.frame,
            "placed_by": placing.by,
            "outlines": placing.outlines,
            "axes": summary["map"]["axes"] if placing.by == "models" and summary["map"] else [],
        }
    )


def graphs_of(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """The graphs that the slider goes through, from sparse to dense, each once; one of them is the model's.

    Where several levels have the graph of the model, it is shown as the model's, since only that has support.
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
    error = summary["measure"]["short"]
    return f"On its own, its held-out {error} is {error_text(level)}; that of the model is {error_text(model)}."


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def _pairs(edges: list[list[float]]) -> tuple[tuple[float, float], ...]:
    return tuple(sorted((edge[0], edge[1]) for edge in edges))


def _level(level: dict[str, Any]) -> dict[str, Any]:
    kept = {name: level.get(name) for name in ("error", "standard_error", "weight", "chosen")}
    text = None if level.get("error") is None else error_text(level)
    return {"title": level_title(level), "text": text, "simple": is_simple(level["name"]), **kept}


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _short(entry) for key, entry in value.items()}
    return [_short(entry) for entry in value] if isinstance(value, list) else value
