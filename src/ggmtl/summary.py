"""A fitted model as plain data, and as words: verdict, tasks, graph, path, what is shared.

Everything here comes from the fit itself; errors are those on held-out rows, so no rows are needed again.
"""

from __future__ import annotations

import hashlib
import platform
import warnings
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from ggmtl.graph import TaskGraph
from ggmtl.graph.shapes import name_shape
from ggmtl.path import FoldErrors, reported_graph

SIMPLE_LEVELS = ("pooled", "hub", "independent")
LEVEL_NAMES = {"pooled": "one model for all", "hub": "the common model", "independent": "separate models"}
# Normal quantile of the intervals given: 95 %.
_QUANTILE = 1.96
# Above so many numbers, the differences along edges are left to the reader of the coefficients.
_MAX_DIFFERENCES = 200_000
_SHARED, _PERSONAL = 0.8, 0.35


def summarize(model: Any) -> dict[str, Any]:
    """Everything worth knowing about a fitted model, as lists, dicts, text and numbers.

    Parameters
    ----------
    model : fitted regressor of this package
        What a method does not have (a path, errors without leaks, a hub) is None or empty.

    Returns
    -------
    dict
        ``verdict`` (text, kind, gain, low, high), ``tasks``, ``graph``, ``path``, ``sharing``, ``features``,
        ``settings``, ``fingerprint``, ``versions`` and counts; ``json.dumps`` takes it as it is.
    """
    levels = _levels(model)
    errors = _fold_errors(model)
    graph = model.graph_
    clusters = clusters_of(graph)
    chosen = next((k for k, level in enumerate(levels) if level["chosen"]), None)
    rows = _rows(model)
    return {
        "method": type(model).__name__,
        "n_tasks": len(model.tasks_),
        "n_rows": None if rows is None else float(rows.sum()),
        "n_features": int(model.n_features_in_),
        "features": [*map(str, model.feature_names_), *(["intercept"] if model.fit_intercept else [])],
        "verdict": _verdict(levels, errors, chosen, graph),
        "tasks": _tasks(model, graph, clusters, rows, errors, levels, chosen),
        "graph": _graph(model, graph, clusters),
        "path": {"levels": levels, "chosen": chosen, "criterion": getattr(model, "criterion_", None)},
        "sharing": _sharing(model, rows),
        "error": None if chosen is None else levels[chosen]["error"],
        "settings": {name: _plain(value) for name, value in model.get_params(deep=False).items()},
        "outcome": {name: _plain(getattr(model, f"{name}_", None)) for name in ("status", "n_iter", "converged")},
        "fingerprint": _fingerprint(model),
        "versions": _versions(),
    }


def clusters_of(graph: TaskGraph) -> np.ndarray:
    """Markov clusters; a walk cut short still gives clusters good enough to look at."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return graph.clusters()


# ---------------------------------------------------------------------- path and verdict


def _levels(model: Any) -> list[dict[str, Any]]:
    """One entry per level of the path, with the edges that would be reported at it."""
    table = getattr(model, "path_", None) or []
    result = getattr(model, "_path_result", None)
    slopes = _slopes(model)
    levels = []
    for k, row in enumerate(table):
        # A level loaded from a file, or fitted before a task was attached, has not the models of all tasks.
        known = result is not None and len(result.levels[k].coefficients) == len(model.tasks_)
        if row["chosen"]:
            graph = model.graph_
        else:
            graph = reported_graph(result.levels[k], model.tasks_, slopes) if known else None
        level = {name: _plain(value) for name, value in row.items()}
        levels.append({**level, "name": str(row["level"]), **_level_graph(graph)})
    return levels


def _level_graph(graph: TaskGraph | None) -> dict[str, Any]:
    if graph is None:
        return {"edges": None, "clusters": None, "n_clusters": None, "shape": None}
    clusters = clusters_of(graph)
    return {
        "edges": _edge_list(graph),
        "clusters": clusters.tolist(),
        "n_clusters": int((np.bincount(clusters, minlength=1) > 1).sum()),
        "shape": name_shape(graph),
    }


def _verdict(
    levels: list[dict[str, Any]], errors: FoldErrors | None, chosen: int | None, graph: TaskGraph
) -> dict[str, Any]:
    """What was found, in a sentence; with the gain over the best simple level and its 95 % interval."""
    if graph.n_tasks == 1:
        return {"kind": "single", "text": "There is one task, so nothing can be shared."}
    if chosen is None:
        links = _count(graph.n_edges, "link") if graph.n_edges else "no links"
        return {"kind": "method", "text": f"The method has found {links} between {graph.n_tasks:,} tasks."}
    name = levels[chosen]["name"]
    if name == "hub":
        return {"kind": "hub", "text": "No structure found beyond the common model.", **_gain(levels, errors, chosen)}
    if name == "pooled":
        text = "One model serves all tasks: no task differs from the others beyond noise."
        return {"kind": "pooled", "text": text, **_gain(levels, errors, chosen)}
    if name == "independent":
        text = "Sharing does not help: every task is best served by its own rows."
        return {"kind": "independent", "text": text, **_gain(levels, errors, chosen)}
    return _graph_verdict(levels, errors, chosen, graph)


def _graph_verdict(levels, errors, chosen, graph) -> dict[str, Any]:
    gain = _gain(levels, errors, chosen)
    if graph.n_edges == 0:
        return {"kind": "empty", "text": "No structure found: the learned graph has no edges.", **gain}
    if not gain:
        text = f"{_count(graph.n_edges, 'link')} between {_count(graph.n_tasks, 'task')}."
        return {"kind": "unmeasured", "text": text}
    against = "the best simple model"
    if gain["low"] > 0:
        text = f"The graph lowers the error by {percent(gain['gain'])} ({_interval(gain)}) against {against}."
    elif gain["high"] < 0:
        loss = {"low": -gain["high"], "high": -gain["low"]}
        text = f"The graph raises the error by {percent(-gain['gain'])} ({_interval(loss)}) against {against}."
    else:
        text = f"The graph shows who is alike; the error is that of {against}."
    return {"kind": "graph", "text": text, **gain}


def _gain(levels: list[dict[str, Any]], errors: FoldErrors | None, chosen: int) -> dict[str, Any]:
    """Share by which the chosen level lowers the root mean square error of the best other simple level.

    With D the difference of the mean squared errors and r = 1 − D/mse_simple, the gain is 1 − √r; its interval
    comes from the paired standard error of D.
    """
    best = _best_simple(levels, errors, chosen)
    if errors is None or best is None:
        return {}
    excess, deviation = errors.excess(chosen)
    simple = errors.mean()[best]
    if not simple > 0:
        return {}
    shares = (excess[best] + _QUANTILE * deviation[best] * np.array([0.0, -1.0, 1.0])) / simple
    gain, low, high = (1.0 - np.sqrt(np.maximum(1.0 - shares, 0.0))).tolist()
    return {"gain": gain, "low": low, "high": high, "against": levels[best]["name"]}


def _best_simple(levels: list[dict[str, Any]], errors: FoldErrors | None, chosen: int) -> int | None:
    if errors is None:
        return None
    simple = [k for k, level in enumerate(levels) if level["name"] in SIMPLE_LEVELS and k != chosen]
    return min(simple, key=lambda k: errors.mean()[k], default=None)


# ---------------------------------------------------------------------- tasks and graph


def _tasks(model, graph, clusters, rows, errors, levels, chosen) -> list[dict[str, Any]]:
    coefficients = _coefficients(model)
    per_task = _task_errors(model, errors)
    gain = np.full(len(coefficients), np.nan)
    best = None if chosen is None else _best_simple(levels, errors, chosen)
    if per_task is not None and best is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            gain = 1.0 - per_task[chosen] / per_task[best]
    links = np.bincount(graph.edges.ravel(), minlength=graph.n_tasks)
    strength = graph.degrees()
    return [
        {
            "label": str(label),
            "rows": None if rows is None else float(rows[i]),
            "coefficients": _plain(coefficients[i]),
            "cluster": int(clusters[i]),
            "links": int(links[i]),
            "degree": float(strength[i]),
            "errors": None if per_task is None else _plain(per_task[:, i]),
            "gain": _plain(gain[i]),
        }
        for i, label in enumerate(model.tasks_.tolist())
    ]


def _graph(model: Any, graph: TaskGraph, clusters: np.ndarray) -> dict[str, Any]:
    sizes = np.bincount(clusters, minlength=1)
    return {
        "edges": _edge_list(graph),
        "differences": _differences(model, graph),
        "n_edges": graph.n_edges,
        "n_components": int(graph.components().max(initial=-1)) + 1,
        "n_clusters": int((sizes > 1).sum()),
        "n_alone": int((sizes == 1).sum()),
        "cluster_sizes": sizes[sizes > 1].tolist(),
        "shape": name_shape(graph),
    }


def _edge_list(graph: TaskGraph) -> list[list[float]]:
    weights = np.round(graph.weights, 4).tolist()
    return [[i, j, weight] for (i, j), weight in zip(graph.edges.tolist(), weights)]


def _differences(model: Any, graph: TaskGraph) -> list[list[float]] | None:
    """Why tasks are linked: w_i − w_j of every edge, in the user's units; None where that is too much to list."""
    coefficients = _coefficients(model)
    if graph.n_edges * coefficients.shape[1] > _MAX_DIFFERENCES:
        return None
    i, j = graph.edges.T
    return _plain(coefficients[i] - coefficients[j])


def _coefficients(model: Any) -> np.ndarray:
    return np.column_stack([model.coef_, model.intercept_]) if model.fit_intercept else np.asarray(model.coef_)


def _fold_errors(model: Any) -> FoldErrors | None:
    errors = getattr(getattr(model, "_path_result", None), "errors", None)
    # After a task was attached, the errors of the others are no longer those of this model.
    return errors if errors is not None and errors.count.shape[1] == len(model.tasks_) else None


def _task_errors(model: Any, errors: FoldErrors | None) -> np.ndarray | None:
    """Root mean square error of every level and task, in the user's units."""
    return None if errors is None else np.sqrt(errors.task_mean()) * model._scaling.target_scale


def _statistics(model: Any) -> Any:
    return getattr(model, "_statistics", None)


def _rows(model: Any) -> np.ndarray | None:
    statistics, errors = _statistics(model), _fold_errors(model)
    if statistics is not None:
        return np.asarray(statistics.count, dtype=np.float64)
    # With a single hold-out, some rows are never scored, so the counts of the errors are not those of the data.
    return None if errors is None or getattr(model, "_scored_from", 0) else errors.count.sum(axis=0)


# ---------------------------------------------------------------------- what is shared


def _sharing(model: Any, rows: np.ndarray | None) -> list[dict[str, Any]]:
    """How far every coefficient is shared: pull of the others beside the pull of a typical task's own rows.

        share_k = (h_k + Λ_k · mean degree) / (h_k + Λ_k · mean degree + mean (X_iᵀX_i)_kk)
    """
    coefficients = _coefficients(model)
    names = [*map(str, model.feature_names_), *(["intercept"] if model.fit_intercept else [])]
    share = _shares(model, rows, coefficients.shape[1])
    common = getattr(model, "hub_coef_", None)
    common = coefficients.mean(axis=0) if common is None else np.append(common, model.hub_intercept_)[: len(names)]
    return [
        {
            "feature": name,
            "share": _plain(share[k]),
            "word": _sharing_word(share[k]),
            "common": float(common[k]),
            "spread": float(coefficients[:, k].std()),
            "hub": _plain(np.ravel(getattr(model, "hub_strength_", np.full(len(names), np.nan)))[k]),
            "coupling": _plain(np.ravel(getattr(model, "coupling_", np.full(len(names), np.nan)))[k]),
        }
        for k, name in enumerate(names)
    ]


def _shares(model: Any, rows: np.ndarray | None, width: int) -> np.ndarray:
    hub, coupling = getattr(model, "hub_strength_", None), getattr(model, "coupling_", None)
    own = _own_pull(model, rows, width)
    if hub is None or coupling is None or own is None:
        return np.full(width, np.nan)
    weights = np.asarray(model.edge_weights_)
    used = coupling[_slopes(model)] if _slopes(model).any() else coupling
    unit = np.exp(np.log(used[used > 0]).mean()) if (used > 0).any() else 1.0
    # Only the squared penalty's strengths are on the scale of XᵀX.
    linear = getattr(model, "penalty", "squared_l2") == "squared_l2"
    pull = hub + (coupling * 2.0 * weights.sum() / unit / len(model.tasks_) if linear else 0.0)
    with np.errstate(invalid="ignore"):
        share = pull / (pull + own)
    return np.where(np.isposinf(pull), 1.0, share)


def _own_pull(model: Any, rows: np.ndarray | None, width: int) -> np.ndarray | None:
    """Mean diagonal of XᵀX in scaled units; standardised columns have a mean square of one."""
    statistics = _statistics(model)
    if statistics is not None:
        grams = [np.einsum("npp->p", loss.gram) for loss in model._scaling.design(statistics)]
        return np.sum(grams, axis=0) / len(model.tasks_)
    return None if rows is None else np.full(width, rows.mean())


def _sharing_word(share: float) -> str | None:
    if not np.isfinite(share):
        return None
    return "shared" if share >= _SHARED else "personal" if share < _PERSONAL else "partly shared"


def _slopes(model: Any) -> np.ndarray:
    slopes = np.ones(model.n_features_in_ + bool(model.fit_intercept), dtype=bool)
    if model.fit_intercept:
        slopes[-1] = False
    return slopes


# ---------------------------------------------------------------------- words


def describe(summary: dict[str, Any]) -> str:
    """The summary for people: a few lines of text."""
    rows = "" if summary["n_rows"] is None else f", {summary['n_rows']:,.0f} rows"
    head = f"{summary['method']}: {_count(summary['n_tasks'], 'task')}{rows}, {_count(summary['n_features'], 'feature')}"
    lines = [head, summary["verdict"]["text"], *filter(None, [describe_gain(summary)]), *_describe_errors(summary)]
    lines += [f"Graph: {describe_graph(summary)}.", *sharing_lines(summary), *task_line(summary)]
    return "\n".join(lines)


def describe_graph(summary: dict[str, Any]) -> str:
    """Edges, clusters, tasks alone and the shape of the graph, in words."""
    graph = summary["graph"]
    if graph["n_edges"] == 0:
        return "no links"
    parts = [_count(graph["n_edges"], "link")]
    if graph["n_clusters"]:
        parts.append(_count(graph["n_clusters"], "cluster"))
    if graph["n_alone"]:
        parts.append(f"{_count(graph['n_alone'], 'task')} alone")
    text = ", ".join(parts)
    return f"{text}; its shape: {graph['shape']}" if graph["shape"] else text


def describe_gain(summary: dict[str, Any]) -> str:
    """The chosen level beside the best other simple one, in a sentence; empty where that is not known."""
    verdict = summary["verdict"]
    if verdict["kind"] == "unmeasured":
        return "Whether they lower the error was not measured: that takes three folds and the path of levels."
    if "gain" not in verdict:
        return ""
    against = LEVEL_NAMES[verdict["against"]]
    if verdict["kind"] == "graph" and not verdict["low"] <= 0 <= verdict["high"]:
        errors = {level["name"]: level["error"] for level in summary["path"]["levels"]}
        return (
            f"The best simple model is {against}: error {number(errors[verdict['against']])} on rows not seen, "
            f"against {number(summary['error'])} with the graph. The interval is 95 %."
        )
    change = "below" if verdict["gain"] >= 0 else "above"
    best = "best simple model" if verdict["kind"] == "graph" else "next best simple model"
    return (
        f"Its error on rows not seen is {percent(abs(verdict['gain']))} {change} that of the {best}, {against} "
        f"(95 % interval of the gain: {_signed(verdict['low'])} to {_signed(verdict['high'])})."
    )


def _describe_errors(summary: dict[str, Any]) -> list[str]:
    levels = [level for level in summary["path"]["levels"] if level.get("error") is not None]
    if not levels:
        return []
    lines = ["Root mean square error on rows not seen:"]
    for level in levels:
        mark = "  ← chosen" if level["chosen"] else ""
        lines.append(f"  {level_title(level):<30}{error_text(level)}{mark}")
    return lines


def error_text(level: dict[str, Any]) -> str:
    """Error ± standard error, with two digits of the latter."""
    error, deviation = level["error"], level["standard_error"]
    if not deviation or not np.isfinite(np.log10(deviation)):
        return number(error)
    digits = int(np.clip(1 - np.floor(np.log10(deviation)), 0, 12))
    return f"{error:.{digits}f} ± {deviation:.{digits}f}"


def level_title(level: dict[str, Any]) -> str:
    """'pooled', 'graph, 14 edges'."""
    if level["name"] in SIMPLE_LEVELS:
        return f"{level['name']} ({LEVEL_NAMES[level['name']]})"
    return f"{level['name']}, {_count(level['n_edges'], 'edge')}"


def sharing_lines(summary: dict[str, Any]) -> list[str]:
    """Which coefficients are shared, partly shared and personal: at most three lines."""
    lines = []
    for word in ("shared", "partly shared", "personal"):
        names = [entry["feature"] for entry in summary["sharing"] if entry["word"] == word]
        if names:
            lines.append(f"{word.capitalize()}: {_listing(names)}.")
    return lines


def task_line(summary: dict[str, Any]) -> list[str]:
    """How many tasks gain, and which most; no line where that is not known."""
    known = [task for task in summary["tasks"] if task["gain"] is not None]
    if not known:
        return []
    gaining = sum(task["gain"] > 0 for task in known)
    best = max(known, key=lambda task: task["gain"])
    return [
        f"{gaining:,} of {_count(len(known), 'task')} gain by it; most: {one_line(best['label'])} "
        f"({_signed(-best['gain'])} error)."
    ]


def _listing(names: list[str], most: int = 8) -> str:
    shown = ", ".join(one_line(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def one_line(name: Any) -> str:
    """A name without control characters, so that it can steer neither terminal nor page."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in str(name))


def percent(share: float) -> str:
    """'12 %', '0.4 %'."""
    value = 100.0 * share
    return f"{value:.0f} %" if abs(value) >= 9.5 else f"{value:.1f} %"


def number(value: float | None) -> str:
    """Four significant digits; a dash for nothing."""
    return "–" if value is None else f"{value:.4g}"


def _signed(share: float) -> str:
    return f"{'+' if share >= 0 else '−'}{percent(abs(share))}"


def _interval(gain: dict[str, float]) -> str:
    digits = 0 if abs(100.0 * gain["high"]) >= 9.5 else 1
    return f"{100.0 * gain['low']:.{digits}f}–{100.0 * gain['high']:.{digits}f} %"


def _count(value: int, word: str) -> str:
    return f"{value:,} {word}{'' if value == 1 else 's'}"


# ---------------------------------------------------------------------- provenance


def _fingerprint(model: Any) -> str | None:
    """SHA-256 of the statistics that the model was fitted to: equal data, equal fingerprint."""
    statistics = _statistics(model)
    if statistics is None:
        return getattr(model, "fingerprint_", None)
    digest = hashlib.sha256()
    for array in (statistics.cross, statistics.origin):
        digest.update(np.ascontiguousarray(array, dtype=np.float64).tobytes())
    digest.update("\x00".join(map(str, [*statistics.task_names.tolist(), *statistics.feature_names])).encode())
    return digest.hexdigest()


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("ggmtl", "numpy", "scipy", "scikit-learn"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _plain(value: Any) -> Any:
    """Numbers, text, lists and None only; what is not finite becomes None, other objects their text."""
    if isinstance(value, np.ndarray):
        return [_plain(entry) for entry in value.tolist()]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return str(value)
