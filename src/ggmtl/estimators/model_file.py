"""A fitted model as plain data and arrays, and back."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from ggmtl.bilevel.level import GraphFit, TaskMeans
from ggmtl.data.task_data import InputForm
from ggmtl.errors import GGMTLError, ModelFileError
from ggmtl.estimators import file_format as plain
from ggmtl.estimators import file_parts as parts
from ggmtl.estimators.file_format import Arrays
from ggmtl.fit.average import Average
from ggmtl.fit.family import Family, by_name
from ggmtl.fit.held_out import FoldErrors
from ggmtl.fit.lines_or_curves import CurveGain
from ggmtl.fit.state import FittedState
from ggmtl.graph.task_graph import TaskGraph
from ggmtl.inference.uncertainty import noise_ratios, noise_variance, standard_errors
from ggmtl.losses.rowwise import LOSSES, SQUARED_ERROR, Measure
from ggmtl.runtime.files import read_file, write_file
from ggmtl.statistics.scaling import Scaling
from ggmtl.statistics.task_statistics import TaskStatistics

# Errors that the parts of a damaged file raise when they are put together.
DAMAGED = (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError)
# Arrays of an averaged level, which has no links; its strengths are needed where more rows come.
_UNLINKED = ("coefficients", "hub", "precisions", "precision")
_KINDS = ("GGMTLRegressor", "GGMTLClassifier")
_FORM = tuple(field.name for field in fields(InputForm))
# Parameters of a machine or a session. A file neither keeps them nor sets them: they come back at their defaults.
_OF_THE_SESSION = ("checkpoint", "n_jobs", "device", "verbose")


def write_model(
    path: str | Path,
    parameters: dict[str, Any],
    state: FittedState,
    keep_statistics: bool = False,
    notes: dict[str, Any] | None = None,
) -> None:
    """Write one file: the parameters of the estimator, its fitted state, and plain notes for :func:`read_notes`."""
    purpose = "save(keep_statistics=True)"
    statistics = state.rows(purpose) if keep_statistics and state.outcome is None else None
    kind, arrays = plain.pack_labels(state.task_names)
    scaling = state.scaling
    content = {
        "kind": _KINDS[state.form.classes is not None],
        "parameters": {
            name: plain.encode(value, name) for name, value in parameters.items() if name not in _OF_THE_SESSION
        },
        "facts": plain.encode(_facts(state, keep_statistics) | (notes or {}), "facts"),
        "labels": kind,
        "features": list(state.feature_names),
        "target": [scaling.target_center, scaling.target_scale, scaling.intercept],
        "noise": noise_variance(state),
        **pack_family(state.family, arrays, by_fold=keep_statistics),
    }
    if state.outcome is not None:
        content["outcome"] = parts.pack_outcome(state, arrays)
        if keep_statistics:
            arrays |= parts.pack_rows(state.rows_of_outcome(purpose))
    _pack_graph(state.graph, arrays)
    if len(state.settings.constant):
        arrays["constant"] = state.settings.constant
    if state.settings.known is not None:
        content["known"] = plain.encode(parts.pack_known(state.settings.known, state.level.means, arrays), "known")
    arrays |= {
        "center": scaling.center,
        "scale": scaling.scale,
        **parts.pack_curves(scaling.curves),
        "standard_errors": plain.round_mantissa(standard_errors(state), bits=8),
    }
    ratios = noise_ratios(state)
    if ratios is not None and state.level.precisions is None:
        arrays["noise_ratios"] = ratios
    if statistics is None:
        arrays |= parts.pack_intervals(state)
    else:
        arrays |= {"cross": plain.upper(statistics.cross), "origin": statistics.origin}
        content["has_folds"] = statistics.has_folds
    write_file(path, content, arrays)


def _facts(state: FittedState, keep_statistics: bool) -> dict[str, Any]:
    """Plain data of a state, under the names that files have had from the start."""
    gain = state.curve_gain
    form = {name: getattr(state.form, name) for name in _FORM}
    if not keep_statistics:
        # Only where more rows may come.
        form |= {"group_folds": None, "n_targets": None}
    return {
        "path_": state.path,
        "_attached": list(state.attached),
        "_curve_gain": None if gain is None else [gain.feature, gain.gain],
        **{f"_{name}": value for name, value in form.items() if value is not None or name == "table_kind"},
    }


def read_model(path: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters of the estimator and fields of its fitted state, or an error that says what is wrong."""
    content, arrays = read_file(path)
    if content.get("kind") not in _KINDS:
        raise ModelFileError(f"{path} holds no {' or '.join(_KINDS)}. Got {content.get('kind')!r} instead.")
    if isinstance(content.get("outcome"), dict) and "levels" in content["outcome"]:
        raise ModelFileError(
            f"{path} holds a model of classes or counts of an earlier version, which cannot be read. Fit it again."
        )
    try:
        return _unpack(content, arrays)
    except (*DAMAGED, RecursionError, GGMTLError) as error:
        raise ModelFileError(f"{path} is damaged: its parts do not fit together ({error}).") from error


def read_notes(path: str | Path) -> dict[str, Any]:
    """Plain data in a file that :func:`read_model` accepts, with the notes given to :func:`write_model`."""
    return plain.decode(read_file(path)[0]["facts"])


def _pack_graph(graph: TaskGraph, arrays: Arrays) -> None:
    """The reported graph: a mask of the edges of the fit (both are sorted), or edges of its own."""
    n = graph.n_tasks
    keys, shown = arrays["edges"].astype(np.int64) @ [n, 1], graph.edges @ [n, 1]
    arrays["graph.weights"] = graph.weights
    if graph.support is not None:
        arrays["graph.support"] = graph.support
    if np.isin(shown, keys).all():
        arrays["graph.shown"] = np.isin(keys, shown)
    else:
        arrays["graph.edges"] = graph.edges.astype(np.int32)


def _unpack_graph(arrays: Arrays, names: np.ndarray) -> TaskGraph:
    edges = arrays["edges"][arrays["graph.shown"]] if "graph.shown" in arrays else arrays["graph.edges"]
    return TaskGraph(edges, arrays["graph.weights"], names, arrays.get("graph.support"))


def _unpack(content: dict[str, Any], arrays: Arrays) -> tuple[dict[str, Any], dict[str, Any]]:
    names = plain.unpack_labels(content["labels"], arrays)
    features = tuple(str(name) for name in content["features"])
    center, scale, noise = (float(value) for value in (*content["target"][:2], content["noise"]))
    intercept = bool(content["target"][2])
    if names.ndim != 1 or not (names[:-1] < names[1:]).all():
        raise ValueError("the task names are not sorted")
    if not (np.isfinite([center, scale, noise]).all() and scale > 0 and noise >= 0):
        raise ValueError("the noise or the scale of the target is not a number that it can be")
    n_columns = len(features) + arrays.get("curves.slopes", np.empty(0)).size
    plain.check_arrays(arrays, _lengths(len(names), len(features), n_columns, intercept, len(content["levels"])))
    curves = parts.unpack_curves(arrays, len(features))
    columns = features + curves.names(features)
    parameters = {k: plain.decode(v) for k, v in content["parameters"].items() if k not in _OF_THE_SESSION}
    facts = plain.decode(content["facts"])
    if not isinstance(facts, dict):
        raise ValueError("the facts are no table")
    graph = _unpack_graph(arrays, names)
    scaling = Scaling(arrays["center"], arrays["scale"], center, scale, intercept, curves)
    known, means = (
        parts.unpack_known(plain.decode(content["known"]), arrays, names) if "known" in content else (None, None)
    )
    given = {"noise": noise, "noise_ratios": arrays.get("noise_ratios"), **parts.unpack_intervals(arrays)}
    if "standard_errors" in arrays:
        given["standard_errors"] = arrays["standard_errors"].astype(np.float64)
    state = {
        "task_names": names,
        "feature_names": features,
        "form": _form(facts),
        "scaling": scaling,
        "family": unpack_family(content, arrays, graph, means, np.flatnonzero(scaling.is_linear)),
        "known": known,
        "constant": arrays.get("constant", np.zeros(0, dtype=bool)).astype(bool),
        "graph": graph,
        "path": plain.path_rows(facts["path_"], len(content["levels"])),
        "statistics": _unpack_statistics(content, arrays, names, columns),
        "curve_gain": None if facts.get("_curve_gain") is None else CurveGain(*facts["_curve_gain"]),
        "attached": tuple((label, covariance) for label, covariance in facts["_attached"]),
        "given": given,
    }
    if "outcome" in content:
        state["outcome"] = parts.unpack_outcome(content["outcome"], arrays, state["family"])
        state["given"]["count"] = arrays["count"]
        state["outcome_rows"] = parts.unpack_rows(arrays, len(names), state["form"].scored_from)
    if len(state["attached"]) >= len(names):
        raise ValueError("no task was fitted: all were added later")
    loss = state["outcome"].loss if "outcome" in content else "squared"
    if (loss == "logistic") != (state["form"].classes is not None):
        raise ValueError("a loss and labels of classes do not go together")
    return parameters, state


def _lengths(n: int, d: int, c: int, intercept: bool, n_levels: int) -> dict[str, int]:
    """Lengths by the letters of the table in ``file_format``."""
    p, z = c + intercept, c + 2
    halves = {"half_p": p * (p + 1) // 2, "half_z": z * (z + 1) // 2}
    return {"n": n, "n+1": n + 1, "d": d, "c": c, "p": p, "s": d + intercept, "l": n_levels, "o": c + 1, **halves}


def _form(facts: dict[str, Any]) -> InputForm:
    given = {name: facts[f"_{name}"] for name in _FORM if f"_{name}" in facts}
    if "classes" in given:
        given["classes"] = tuple(given["classes"])
    form = InputForm(**given)
    if not plain.is_kind(form.scored_from, int) or form.scored_from < 0:
        raise ValueError(f"folds are held out from {form.scored_from!r} on")
    return form


def _unpack_statistics(
    content: dict[str, Any], arrays: Arrays, names: np.ndarray, columns: tuple[str, ...]
) -> TaskStatistics | None:
    if "cross" not in arrays:
        return None
    cross = plain.symmetric(arrays["cross"], len(columns) + 2)
    return TaskStatistics(cross, arrays["origin"], names, columns, bool(content["has_folds"]))


# ---------------------------------------------------------------------- levels, their average and held-out errors


def pack_family(family: Family, arrays: Arrays, by_fold: bool) -> dict[str, Any]:
    """Plain data of a family; its arrays are added to `arrays`."""
    fit = family.best
    present = np.flatnonzero(fit.edge_values > 0)
    edges = np.sort(fit.edges[present], axis=1)
    order = np.lexsort((edges[:, 1], edges[:, 0]))
    arrays |= plain.packed("", fit, ("coefficients", "coupling", "hub", "precisions"))
    arrays |= {"edges": edges[order].astype(np.int32), "edge_values": fit.edge_values[present][order]}
    _pack_average(family, arrays, by_fold)
    if family.errors is not None:
        squared, count = family.errors.squared, family.errors.count
        if not by_fold:
            squared, count = squared.sum(axis=1, keepdims=True), count.sum(axis=0, keepdims=True)
        arrays["errors.squared"] = squared if by_fold else plain.round_mantissa(squared)
        arrays["errors.count"] = count.astype(np.float32)
    return {
        "reported": fit.reported_weights is not None,
        "fit": {name: plain.encode(getattr(fit, name), name) for name in plain.FIT_VALUES},
        "levels": [[level.name, plain.encode(float(level.value), "value")] for level in family.levels.values()],
        "columns": {
            str(k): level.columns.tolist()
            for k, level in enumerate(family.levels.values())
            if level.columns is not None
        },
        "chosen": family.position(family.chosen),
        "main": family.position(family.main),
        "weights": {str(family.position(name)): weight for name, weight in family.weights.items()},
        "criterion": family.criterion,
    }


def _pack_average(family: Family, arrays: Arrays, by_fold: bool) -> None:
    """The averaged levels other than the main one, and the held-out errors of the average."""
    for name in family.weights:
        if name != family.main:
            arrays |= plain.packed(f"level{family.position(name)}.", family.levels[name], _UNLINKED)
    if family.average is None:
        return
    squared = family.average.squared
    arrays["average.squared"] = squared if by_fold else plain.round_mantissa(squared.sum(axis=0, keepdims=True))
    arrays |= {f"losses.{name}": values for name, values in family.average.losses.items()}
    arrays |= {f"fold_variance.{name}": np.array([value]) for name, value in family.average.fold_variance.items()}


def unpack_family(
    content: dict[str, Any], arrays: Arrays, graph: TaskGraph, means: TaskMeans | None, straight: np.ndarray
) -> Family:
    """The family of a file, or a ValueError where its parts do not fit together."""
    n, measure = graph.n_tasks, _measure(content)
    edges = TaskGraph(arrays["edges"], arrays["edge_values"], np.arange(n))
    width = arrays["coefficients"].shape[1]
    best = GraphFit(
        edges=edges.edges,
        edge_values=edges.weights,
        coupling=arrays["coupling"],
        hub=arrays["hub"],
        coefficients=arrays["coefficients"],
        precisions=arrays.get("precisions"),
        means=means,
        reported_weights=_shown(edges, graph) if content["reported"] else None,
        **plain.fit_values(content["fit"]),
    )
    levels = [_name_only(str(name), plain.decode(value), width) for name, value in content["levels"]]
    chosen = _place(content["chosen"], len(levels))
    # Files of earlier versions have all weight on the level that was chosen.
    main = _place(content.get("main", chosen), len(levels))
    weights = {_place(int(k), len(levels)): float(v) for k, v in content.get("weights", {str(chosen): 1.0}).items()}
    if not weights or min(weights.values()) < 0 or abs(sum(weights.values()) - 1.0) > 1e-6:
        raise ValueError("the weights of the levels do not sum to one")
    if best.name != levels[main].name:
        raise ValueError("the models are those of another level")
    # Files of earlier versions name the levels of straight lines, which use all linear columns.
    used = content.get("columns", dict.fromkeys(content.get("straight", []), straight))
    for k, columns in used.items():
        levels[int(k)] = replace(levels[int(k)], columns=_columns(columns, width))
    for k in weights:
        levels[k] = levels[k] if k == main else _unpack_level(levels[k], plain.under(f"level{k}.", arrays))
        if levels[k].kind == "described":
            levels[k] = replace(levels[k], means=best.means)
    levels[main] = replace(best, columns=levels[main].columns)
    errors = None
    if "errors.squared" in arrays:
        squared, count = arrays["errors.squared"].astype(float), arrays["errors.count"].astype(float)
        if not count.any():
            raise ValueError("no row was held out")
        errors = FoldErrors(squared, count, measure=measure)
    named = by_name(levels)
    names = list(named)
    shares = {names[k]: weight for k, weight in weights.items()}
    average = _unpack_average(shares, arrays, measure) if "average.squared" in arrays else None
    if average is not None and errors is not None and len(errors.count) not in (1, len(average.squared)):
        raise ValueError("the errors of the average and of its levels are those of other folds")
    return Family(named, shares, errors, str(content["criterion"]), names[chosen], average)


def _columns(values: Any, width: int) -> np.ndarray:
    """Positions below `width` in rising order; a ValueError for anything else."""
    columns = np.asarray(values)
    if columns.dtype.kind not in "iu" or columns.ndim != 1 or not len(columns):
        raise ValueError("the columns of a level are no positions")
    if columns[0] < 0 or columns[-1] >= width or (np.diff(columns) <= 0).any():
        raise ValueError("the columns of a level are no positions in rising order")
    return columns.astype(np.int64)


def _place(value: Any, number: int) -> int:
    """Position of a level, below `number`; a ValueError for anything else."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < number:
        raise ValueError("no level is chosen")
    return value


def _unpack_level(level: GraphFit, found: Arrays) -> GraphFit:
    precision = found.get("precision")
    if precision is not None:
        used = np.arange(len(precision)) if level.columns is None else level.columns
        if (np.linalg.eigvalsh(precision[np.ix_(used, used)]) <= 0).any():
            raise ValueError(f"the prior of {level.name} is no prior")
    return replace(
        level,
        coefficients=found["coefficients"],
        hub=found["hub"],
        precisions=found.get("precisions"),
        precision=precision,
    )


def _measure(content: dict[str, Any]) -> Measure:
    """The measure of held-out losses; a ValueError for files of classes or counts of an earlier version."""
    if "outcome" not in content:
        return SQUARED_ERROR
    if "levels" in content["outcome"]:
        raise ValueError("models of classes and counts are kept in another form since; fit it again")
    return LOSSES[content["outcome"]["loss"]].measure


def _unpack_average(weights: dict[str, float], arrays: Arrays, measure: Measure) -> Average:
    losses = plain.under("losses.", arrays)
    if not {"average", "pooled", "independent"} <= losses.keys():
        raise ValueError("the losses of the average are missing")
    variance = {name: float(values[0]) for name, values in plain.under("fold_variance.", arrays).items()}
    return Average(weights, arrays["average.squared"].astype(float), losses, variance, measure)


def _shown(edges: TaskGraph, graph: TaskGraph) -> np.ndarray:
    """Weights of the reported graph on all edges of the fit, zero for those not reported."""
    n = graph.n_tasks
    keys, shown = edges.edges @ [n, 1], graph.edges @ [n, 1]
    out = np.zeros(len(keys))
    out[np.flatnonzero(np.isin(keys, shown))] = graph.weights[np.isin(shown, keys)]
    return out


def _name_only(name: str, value: float, width: int) -> GraphFit:
    """A level whose models are not in the file."""
    nothing = np.zeros(width)
    return GraphFit(name, np.empty((0, 2), np.int64), np.empty(0), nothing, nothing, np.empty((0, width)), float(value))
