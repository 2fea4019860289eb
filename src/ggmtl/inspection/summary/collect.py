"""A fitted model as plain data.

Everything here comes from the fit itself; errors are those on held-out rows, so no rows are needed again.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from ggmtl.bilevel.level import STRAIGHT
from ggmtl.errors import InputError
from ggmtl.fit.held_out import FoldErrors, reported_graph
from ggmtl.fit.state import FittedState
from ggmtl.graph.candidates import Coordinates
from ggmtl.graph.task_graph import TaskGraph, name_shape
from ggmtl.inference.uncertainty import noise_ratios, standard_errors
from ggmtl.inspection.differences import shares_of
from ggmtl.inspection.levels import AVERAGE, Levels, task_gains
from ggmtl.inspection.summary.coefficients import (
    coefficients_of,
    curves_of,
    redundant_features,
    sharing_of,
    single_valued_features,
    task_map_of,
)
from ggmtl.inspection.summary.outcomes import common_errors, ratio_of, target_of, task_outcomes, without_contrast
from ggmtl.inspection.summary.phrases import fingerprint_of, plain, versions
from ggmtl.inspection.summary.verdict import verdict_of
from ggmtl.losses.rowwise import LOSSES

# Above so many numbers, standard errors are left to the reader of the coefficients.
_MOST_STANDARD_ERRORS = 200_000


def summarize(model: Any, with_standard_errors: bool = False) -> dict[str, Any]:
    """Everything worth knowing about a fitted model, as lists, dicts, text and numbers.

    Parameters
    ----------
    model : fitted regressor of this package
        What a method does not have (a path, errors without leaks, a hub) is None or empty.
    with_standard_errors : bool
        Whether to add those of all coefficients, which takes the posterior of all models.

    Returns
    -------
    dict
        ``verdict`` (text, kind, gain, low, high), ``tasks``, ``gain_against`` (the level that the gains of tasks are
        over), ``graph``, ``path``, ``sharing``, ``noise``, ``curves``, ``known``, ``map``, ``places``, ``on_globe``,
        ``redundant``, ``single_valued`` and all ``features``, ``settings``, ``fingerprint``, ``versions`` and counts;
        ``measure`` says what errors are, and ``target`` how well classes and counts are predicted. ``json.dumps`` takes
        it as it is.
    """
    state: FittedState | None = getattr(model, "state_", None)
    levels, graph = Levels.of(model), model.graph_
    clusters, rows, reference = clusters_of(graph), _rows(state, levels.errors), levels.reference()
    shown = _levels(model, levels)
    return {
        "method": type(model).__name__,
        "n_tasks": len(model.tasks_),
        "n_rows": None if rows is None else float(rows.sum()),
        "n_features": int(model.n_features_in_),
        "features": [*map(str, model.feature_names_), *(["intercept"] if model.fit_intercept else [])],
        "verdict": verdict_of(levels, graph, rows),
        "measure": _measure(model),
        "target": target_of(model),
        "blend": dict(getattr(model, "blend_", None) or {}),
        "tasks": _tasks(model, clusters, rows, levels),
        "standard_errors": _standard_errors(model) if with_standard_errors else None,
        "gain_against": None if reference is None else levels.names[reference],
        "graph": _graph(graph, clusters),
        "path": {"levels": shown, "chosen": levels.chosen, "criterion": getattr(model, "criterion_", None)},
        "sharing": _with_ratios(model, sharing_of(model, rows)),
        "noise": _noise(model),
        "curves": curves_of(model),
        "bends": _bends(state),
        "known": _known(state),
        "redundant": redundant_features(model),
        "single_valued": single_valued_features(model),
        "map": task_map_of(model, [*map(str, model.feature_names_), "intercept"]),
        "places": _places(model),
        "on_globe": _is_on_globe(model),
        "error": None if levels.chosen is None else shown[levels.chosen]["error"],
        "settings": {name: plain(value) for name, value in model.get_params(deep=False).items()},
        "outcome": {name: plain(getattr(model, f"{name}_", None)) for name in ("status", "n_iter", "converged")},
        "fingerprint": fingerprint_of(model),
        "versions": versions(),
    }


def clusters_of(graph: TaskGraph) -> np.ndarray:
    """Markov clusters; where the walk did not converge, they are still good enough to look at."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return graph.clusters()


def _measure(model: Any) -> dict[str, str]:
    """What errors are: in a heading, and as in 'the held-out …'."""
    state = getattr(model, "state_", None)
    measure = LOSSES[getattr(model, "loss", "squared")].measure if state is None else state.measure
    return {"name": measure.name, "short": measure.short}


def _rows(state: FittedState | None, errors: FoldErrors | None) -> np.ndarray | None:
    """Rows of every task, where they are known."""
    if state is None:
        return None
    if state.statistics is not None:
        return np.asarray(state.statistics.count, dtype=np.float64)
    if "count" in state.given:
        return np.asarray(state.given["count"], dtype=np.float64)
    # With a single hold-out, some rows are never scored, so the errors do not count them.
    return None if errors is None or state.form.scored_from else errors.count.sum(axis=0)


def _with_ratios(model: Any, sharing: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every coefficient of the shared model as a ratio of odds or rates, with its interval."""
    errors = common_errors(model)
    if errors is None:
        return sharing
    return [entry | {"ratio": ratio_of(entry["common"], float(error))} for entry, error in zip(sharing, errors)]


def _known(state: FittedState | None) -> dict[str, Any] | None:
    """What each descriptor explains of the differences between tasks; None without descriptors."""
    if state is None or state.settings.known is None:
        return None
    names, by_coefficient, overall = shares_of(state)
    return {
        "descriptors": [
            {"name": name, "share": float(share), "of_coefficients": plain(own)}
            for name, share, own in zip(names, overall, by_coefficient)
        ],
        "by_coefficient": plain(by_coefficient.sum(axis=0)),
    }


def _bends(state: FittedState | None) -> dict[str, Any] | None:
    """The feature whose curve would lower the held-out error, and by what share; None where none is known to."""
    if state is None or state.curve_gain is None:
        return None
    gain = state.curve_gain
    return {"feature": str(state.feature_names[gain.feature]), "gain": float(gain.gain)}


def _noise(model: Any) -> dict[str, Any] | None:
    """The tasks with the least and the most noise; None where all have the same noise."""
    state = getattr(model, "state_", None)
    if state is None or noise_ratios(state) is None:
        return None
    low, high = int(model.noise_.argmin()), int(model.noise_.argmax())
    return {
        "low": float(model.noise_[low]),
        "high": float(model.noise_[high]),
        "quietest": plain(model.tasks_[low]),
        "noisiest": plain(model.tasks_[high]),
        "weighed": state.level.precisions is not None,
    }


def _places(model: Any) -> list[list[float]] | None:
    """Where the tasks lie, by the rule for candidate edges or by their descriptors; None where one is missing."""
    state, rule = getattr(model, "state_", None), getattr(model, "candidates", None)
    xy = rule.xy if isinstance(rule, Coordinates) else None
    known = None if state is None else state.settings.known
    if xy is None and known is not None and known.surface is not None:
        xy = np.column_stack([known.features.columns[name] for name in known.surface.columns])
    if isinstance(xy, dict):
        xy = [xy[task] for task in model.tasks_.tolist()] if set(model.tasks_.tolist()) <= set(xy) else None
    if xy is None:
        return None
    places = np.asarray(xy, dtype=np.float64)
    is_whole = places.shape == (len(model.tasks_), 2) and bool(np.isfinite(places).all())
    return places.tolist() if is_whole else None


def _is_on_globe(model: Any) -> bool:
    """Whether places are known to be longitude and latitude, so that a map may show coastlines."""
    state, rule = getattr(model, "state_", None), getattr(model, "candidates", None)
    if isinstance(rule, Coordinates) and rule.xy is not None:
        return rule.degrees
    known = None if state is None else state.settings.known
    return known is not None and known.surface is not None and known.surface.sphere


def _standard_errors(model: Any) -> list[list[float]] | None:
    """Standard errors of all coefficients, the intercept last; None for methods that have none."""
    state, coefficients = getattr(model, "state_", None), coefficients_of(model)
    if state is None or coefficients.size > _MOST_STANDARD_ERRORS:
        return None
    try:
        return plain(standard_errors(state)[:, : coefficients.shape[1]])
    except InputError:
        # A file of an earlier version may lack them.
        return None


# ---------------------------------------------------------------------- levels, graph and tasks


def _levels(model: Any, levels: Levels) -> list[dict[str, Any]]:
    """One entry per level, with the edges that would be reported at it."""
    state = getattr(model, "state_", None)
    if state is None:
        return []
    rows = dict(zip(state.family.levels, model.path_))
    if levels.average is not None:
        rows[AVERAGE] = _average_row(model, levels)
    has_lines = any(name.endswith(STRAIGHT) for name in levels.names)
    shown = []
    for place, (key, name) in enumerate(zip(levels.keys, levels.names)):
        is_chosen = place == levels.chosen
        fit = state.family.levels.get(key)
        # A level loaded from a file, or fitted before a task was attached, has not the models of all tasks.
        graph = model.graph_ if is_chosen else None
        if graph is None and fit is not None and len(fit.coefficients) == len(model.tasks_):
            graph = reported_graph(fit, model.tasks_, state.settings.slopes)
        row = {entry: plain(value) for entry, value in rows[key].items()}
        curved = has_lines and not name.endswith(STRAIGHT) and name != AVERAGE
        shown.append({**row, "chosen": is_chosen, "name": name, "curved": curved, **_level_graph(graph)})
    return shown


def _average_row(model: Any, levels: Levels) -> dict[str, Any]:
    """The average of the levels, as one more row of the path."""
    if levels.errors is None:
        raise ValueError("The errors of the average are not known.")
    unit = model.scaling_.target_scale
    return {
        "n_edges": model.graph_.n_edges,
        "error": float(levels.errors.error()[-1]) * unit,
        "standard_error": float(levels.errors.error_deviation()[-1]) * unit,
        "weight": 1.0,
    }


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


def _graph(graph: TaskGraph, clusters: np.ndarray) -> dict[str, Any]:
    sizes = np.bincount(clusters, minlength=1)
    return {
        "edges": _edge_list(graph),
        "n_edges": graph.n_edges,
        "n_clusters": int((sizes > 1).sum()),
        "n_alone": int((sizes == 1).sum()),
        "shape": name_shape(graph),
        # Edges that were found in at least four of five folds.
        "support": None if graph.support is None else int((graph.support >= 0.8 - 1e-9).sum()),
    }


def _edge_list(graph: TaskGraph) -> list[list[float]]:
    """Two positions, the weight and, where it is known, the support of every edge."""
    columns = [graph.weights] if graph.support is None else [graph.weights, graph.support]
    values = np.round(np.column_stack(columns), 4).tolist()
    return [[i, j, *entry] for (i, j), entry in zip(graph.edges.tolist(), values)]


def _tasks(model: Any, clusters: np.ndarray, rows: np.ndarray | None, levels: Levels) -> list[dict[str, Any]]:
    coefficients, graph, errors = coefficients_of(model), model.graph_, levels.errors
    by_level, reference = None, levels.reference()
    gain = doubt = np.full(len(coefficients), np.nan)
    gains = np.zeros(len(coefficients), dtype=bool)
    if errors is not None:
        by_level = errors.task_error() * model.scaling_.target_scale
        if levels.chosen is not None and reference is not None:
            gain, doubt = task_gains(errors, levels.chosen, reference)
            gains = errors.squared[levels.chosen].sum(axis=0) < errors.squared[reference].sum(axis=0)
            gain = np.where(without_contrast(model), np.nan, gain)
    links, strength = np.bincount(graph.edges.ravel(), minlength=graph.n_tasks), graph.degrees()
    more = task_outcomes(model) or [{}] * len(coefficients)
    return [
        {
            "label": str(label),
            "rows": None if rows is None else float(rows[i]),
            "coefficients": plain(coefficients[i]),
            "cluster": int(clusters[i]),
            "links": int(links[i]),
            "degree": float(strength[i]),
            "errors": None if by_level is None else plain(by_level[:, i]),
            "gain": plain(gain[i]),
            "gains": bool(gains[i]),
            "gain_error": plain(doubt[i]),
            **more[i],
        }
        for i, label in enumerate(model.tasks_.tolist())
    ]
