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
from ggmtl.graph.candidates import Coordinates
from ggmtl.graph.task_graph import TaskGraph, name_shape
from ggmtl.inference.uncertainty import noise_ratios, standard_errors
from ggmtl.inspection.differences import shares_of
from ggmtl.inspection.summary.coefficients import (
    coefficients_of,
    curves_of,
    redundant_features,
    sharing_of,
    task_map_of,
)
from ggmtl.inspection.summary.outcomes import common_errors, ratio_of, target_of, task_outcomes
from ggmtl.inspection.summary.phrases import fingerprint_of, plain, versions
from ggmtl.inspection.summary.verdict import AVERAGE, LEVEL_PLACES, average_verdict, best_simple, verdict_of
from ggmtl.losses.rowwise import LOSSES

# Above so many numbers, differences along edges and standard errors are left to the reader of the coefficients.
_MAX_DIFFERENCES = 200_000
# Held-out rows from which a task's gain is told, and rows by which it is shrunk towards the gain of all.
_FEWEST_ROWS, _PRIOR_ROWS = 5.0, 10.0


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
        ``redundant`` and all ``features``, ``settings``, ``fingerprint``, ``versions`` and counts; ``measure`` says
        what errors are, and ``target`` what there is to say of classes and counts. ``json.dumps`` takes it as it is.
    """
    levels, errors = _by_density(_levels(model), _fold_errors(model))
    graph = model.graph_
    clusters = clusters_of(graph)
    chosen = next((k for k, level in enumerate(levels) if level["chosen"]), None)
    rows = _rows(model)
    against = _reference_level(levels, errors, chosen)
    return {
        "method": type(model).__name__,
        "n_tasks": len(model.tasks_),
        "n_rows": None if rows is None else float(rows.sum()),
        "n_features": int(model.n_features_in_),
        "features": [*map(str, model.feature_names_), *(["intercept"] if model.fit_intercept else [])],
        "verdict": _verdict(model, levels, errors, chosen, rows),
        "measure": _measure(model),
        "target": target_of(model),
        "blend": dict(getattr(model, "blend_", None) or {}),
        "tasks": _tasks(model, graph, clusters, rows, errors, levels, chosen),
        "standard_errors": _standard_errors(model) if with_standard_errors else None,
        "gain_against": None if against is None or errors is None else levels[against]["name"],
        "graph": _graph(model, graph, clusters),
        "path": {"levels": levels, "chosen": chosen, "criterion": getattr(model, "criterion_", None)},
        "sharing": _with_ratios(model, sharing_of(model, rows)),
        "noise": _noise(model),
        "curves": curves_of(model),
        "bends": _bends(model),
        "known": _known(model),
        "redundant": redundant_features(model),
        "map": task_map_of(model, [*map(str, model.feature_names_), "intercept"]),
        "places": _places(model),
        "on_globe": _is_on_globe(model),
        "error": None if chosen is None else levels[chosen]["error"],
        "settings": {name: plain(value) for name, value in model.get_params(deep=False).items()},
        "outcome": {name: plain(getattr(model, f"{name}_", None)) for name in ("status", "n_iter", "converged")},
        "fingerprint": fingerprint_of(model),
        "versions": versions(),
    }


def _measure(model: Any) -> dict[str, str]:
    """What errors are: in a heading, and as in 'the held-out …'."""
    state = getattr(model, "state_", None)
    measure = LOSSES[getattr(model, "loss", "squared")].measure if state is None else state.measure
    return {"name": measure.name, "short": measure.short}


def _with_ratios(model: Any, sharing: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every coefficient of the shared model as a ratio of odds or rates, with its interval."""
    errors = common_errors(model)
    if errors is None:
        return sharing
    return [entry | {"ratio": ratio_of(entry["common"], float(error))} for entry, error in zip(sharing, errors)]


def clusters_of(graph: TaskGraph) -> np.ndarray:
    """Markov clusters; a walk cut short still gives clusters good enough to look at."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return graph.clusters()


def _known(model: Any) -> dict[str, Any] | None:
    """What each descriptor explains of the differences between tasks; None without descriptors."""
    state = getattr(model, "state_", None)
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


def _bends(model: Any) -> dict[str, Any] | None:
    """The feature whose curve would lower the held-out error, and by what share; None where none is known to."""
    gain = getattr(getattr(model, "state_", None), "curve_gain", None)
    return None if gain is None else {"feature": str(model.feature_names_[gain.feature]), "gain": float(gain.gain)}


def _noise(model: Any) -> dict[str, Any] | None:
    """The least and the most noisy task; None where all have the same noise."""
    state = getattr(model, "state_", None)
    if state is None or noise_ratios(state) is None:
        return None
    noise = model.noise_
    low, high = int(noise.argmin()), int(noise.argmax())
    labels = [plain(model.tasks_[k]) for k in (low, high)]
    return {
        "low": float(noise[low]),
        "high": float(noise[high]),
        "quietest": labels[0],
        "noisiest": labels[1],
        "weighed": state.level.precisions is not None,
    }


def _places(model: Any) -> list[list[float]] | None:
    """Where the tasks lie, by the rule for candidate edges or by what is known about them; None where not of all."""
    state, rule = getattr(model, "state_", None), getattr(model, "candidates", None)
    xy = rule.xy if isinstance(rule, Coordinates) else None
    known = None if state is None else state.settings.known
    if xy is None and known is not None and known.surface is not None:
        xy = np.column_stack([known.features.columns[name] for name in known.surface.columns])
    if isinstance(xy, dict):
        xy = [xy[task] for task in model.tasks_.tolist()] if set(model.tasks_.tolist()) <= set(xy) else None
    places = None if xy is None else np.asarray(xy, dtype=np.float64)
    is_whole = places is not None and places.shape == (len(model.tasks_), 2) and bool(np.isfinite(places).all())
    return places.tolist() if places is not None and is_whole else None


def _is_on_globe(model: Any) -> bool:
    """Whether places are known to be longitude and latitude, so that a map may show coastlines."""
    rule = getattr(model, "candidates", None)
    if isinstance(rule, Coordinates) and rule.xy is not None:
        return rule.degrees
    known = getattr(getattr(getattr(model, "state_", None), "settings", None), "known", None)
    return known is not None and known.surface is not None and known.surface.sphere


# ---------------------------------------------------------------------- path and verdict


def _levels(model: Any) -> list[dict[str, Any]]:
    """One entry per level of the path, with the edges that would be reported at it."""
    table = getattr(model, "path_", None) or []
    state = getattr(model, "state_", None)
    fits = [] if state is None else list(state.family.levels.values())
    levels = []
    for k, row in enumerate(table):
        # A level loaded from a file, or fitted before a task was attached, has not the models of all tasks.
        graph = model.graph_ if row["chosen"] and not _is_averaged(model) else None
        if graph is None and state is not None and len(fits[k].coefficients) == len(model.tasks_):
            graph = reported_graph(fits[k], model.tasks_, state.settings.slopes)
        level = {name: plain(value) for name, value in row.items()}
        levels.append({**level, "name": str(row["level"]), **_level_graph(graph)})
    if _is_averaged(model):
        levels = [{**level, "chosen": False} for level in levels]
        levels.append(_average_level(model))
    return levels


def _is_averaged(model: Any) -> bool:
    """Whether the errors of an average of levels are known for all tasks."""
    state = getattr(model, "state_", None)
    return state is not None and state.family.average is not None and _fold_errors(model) is not None


def _average_level(model: Any) -> dict[str, Any]:
    """The average of the levels, as one more of them."""
    errors = _fold_errors(model)
    if errors is None:
        raise ValueError("The errors of the average are not known.")
    unit = model.scaling_.target_scale
    return {
        "name": AVERAGE,
        "level": AVERAGE,
        "n_edges": model.graph_.n_edges,
        "n_components": int(model.graph_.components().max(initial=-1)) + 1,
        "error": float(errors.error()[-1]) * unit,
        "standard_error": float(errors.error_deviation()[-1]) * unit,
        "criterion": None,
        "chosen": True,
        "weight": 1.0,
        **_level_graph(model.graph_),
    }


def _verdict(model: Any, levels: list[dict[str, Any]], errors: FoldErrors | None, chosen: int | None, rows: Any) -> Any:
    """What was found; from the average of the levels where there is one."""
    if _is_averaged(model) and len(model.tasks_) > 1 and not (rows is not None and rows.max() <= 1.0):
        return average_verdict(model.state_.family, model.graph_)
    return verdict_of(levels, errors, chosen, model.graph_, rows)


def _by_density(
    levels: list[dict[str, Any]], errors: FoldErrors | None
) -> tuple[list[dict[str, Any]], FoldErrors | None]:
    """Levels as a reader expects them: simple ones, graphs from sparse to dense, separate models; errors alike."""
    order = sorted(range(len(levels)), key=lambda k: LEVEL_PLACES.get(levels[k]["name"], float(levels[k]["n_edges"])))
    known = errors and errors.among(order)
    return [levels[k] for k in order], known


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


def _tasks(model, graph, clusters, rows, errors, levels, chosen) -> list[dict[str, Any]]:
    coefficients = coefficients_of(model)
    per_task = _task_errors(model, errors)
    gain = doubt = np.full(len(coefficients), np.nan)
    reference = _reference_level(levels, errors, chosen)
    if errors is not None and chosen is not None and reference is not None:
        gain, doubt = task_gains(errors, chosen, reference)
    links = np.bincount(graph.edges.ravel(), minlength=graph.n_tasks)
    strength = graph.degrees()
    more = task_outcomes(model) or [{}] * len(coefficients)
    return [
        {
            "label": str(label),
            "rows": None if rows is None else float(rows[i]),
            "coefficients": plain(coefficients[i]),
            "cluster": int(clusters[i]),
            "links": int(links[i]),
            "degree": float(strength[i]),
            "errors": None if per_task is None else plain(per_task[:, i]),
            "gain": plain(gain[i]),
            "gain_error": plain(doubt[i]),
            **more[i],
        }
        for i, label in enumerate(model.tasks_.tolist())
    ]


def _reference_level(levels: list[dict[str, Any]], errors: FoldErrors | None, chosen: int | None) -> int | None:
    """What the gains of tasks are over: separate models where levels are averaged, else the best simple level."""
    if chosen is None or levels[chosen]["name"] != AVERAGE:
        return None if chosen is None else best_simple(levels, errors, chosen)
    return min(
        (k for k, level in enumerate(levels) if level["name"].removesuffix(STRAIGHT) == "independent"),
        key=lambda k: levels[k]["error"],
        default=None,
    )


def task_gains(errors: FoldErrors, level: int, reference: int) -> tuple[np.ndarray, np.ndarray]:
    """By what share the error of every task is lower than that of a reference level, and its standard error.

    The ratio of squared errors is shrunk towards that of all tasks: few held-out rows tell little. NaN where a task has
    too few of them to be ranked. The standard error is that of a ratio of sums over folds, shrunk as much; NaN with
    fewer than three folds.
    """
    rows = errors.count.sum(axis=0)
    ours, theirs = errors.squared[level].sum(axis=0), errors.squared[reference].sum(axis=0)
    total = float(theirs.sum())
    if not total > 0:
        return np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    folds = (errors.count > 0).sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        own = ours / theirs
        ratio = (rows * own + _PRIOR_ROWS * float(ours.sum()) / total) / (rows + _PRIOR_ROWS)
        left = errors.squared[level] - own * errors.squared[reference]
        spread = np.sqrt((left**2).sum(axis=0) * folds / np.where(folds > 2, folds - 1, np.nan)) / theirs
        spread *= rows / (rows + _PRIOR_ROWS)
        gain = errors.measure.gain(ratio)
        doubt = 0.5 * (errors.measure.gain(np.maximum(ratio - spread, 0.0)) - errors.measure.gain(ratio + spread))
    is_ranked = (rows >= _FEWEST_ROWS) & (theirs > 0)
    return np.where(is_ranked, gain, np.nan), np.where(is_ranked, doubt, np.nan)


def _standard_errors(model: Any) -> list[list[float]] | None:
    """Standard errors of all coefficients, the intercept last; None for methods that have none."""
    state = getattr(model, "state_", None)
    coefficients = coefficients_of(model)
    if state is None or coefficients.size > _MAX_DIFFERENCES:
        return None
    try:
        return plain(standard_errors(state)[:, : coefficients.shape[1]])
    except InputError:
        # A file of an earlier version may lack them.
        return None


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
        "support": None if graph.support is None else _supported(graph.support),
    }


def _supported(support: np.ndarray) -> int:
    """How many edges were found in at least four of five folds."""
    return int((support >= 0.8 - 1e-9).sum())


def _edge_list(graph: TaskGraph) -> list[list[float]]:
    """Two positions, the weight and, where it is known, the support of every edge."""
    columns = [graph.weights] if graph.support is None else [graph.weights, graph.support]
    values = np.round(np.column_stack(columns), 4).tolist()
    return [[i, j, *entry] for (i, j), entry in zip(graph.edges.tolist(), values)]


def _differences(model: Any, graph: TaskGraph) -> list[list[float]] | None:
    """Why tasks are linked: w_i − w_j of every edge, in the user's units; None where too many."""
    coefficients = coefficients_of(model)
    if graph.n_edges * coefficients.shape[1] > _MAX_DIFFERENCES:
        return None
    i, j = graph.edges.T
    return plain(coefficients[i] - coefficients[j])


def _fold_errors(model: Any) -> FoldErrors | None:
    state = getattr(model, "state_", None)
    errors = None if state is None else state.family.all_errors()
    # After a task was attached, the errors of the others are no longer those of this model.
    return errors if errors is not None and errors.count.shape[1] == len(model.tasks_) else None


def _task_errors(model: Any, errors: FoldErrors | None) -> np.ndarray | None:
    """Error of every level and task, in the user's units."""
    return None if errors is None else errors.task_error() * model.scaling_.target_scale


def _rows(model: Any) -> np.ndarray | None:
    state, errors = getattr(model, "state_", None), _fold_errors(model)
    if state is not None and state.statistics is not None:
        return np.asarray(state.statistics.count, dtype=np.float64)
    if state is not None and "count" in state.given:
        return np.asarray(state.given["count"], dtype=np.float64)
    # With a single hold-out, some rows are never scored, so the errors do not count them.
    return None if state is None or errors is None or state.form.scored_from else errors.count.sum(axis=0)
