"""A fitted model as plain data and arrays, and back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ggmtl.bilevel.level import GraphFit, TaskMeans
from ggmtl.data.task_data import InputForm
from ggmtl.design.scaling import Scaling
from ggmtl.errors import GGMTLError, ModelFileError
from ggmtl.estimators.file_format import (
    decode,
    encode,
    pack_labels,
    read_file,
    round_mantissa,
    unpack_labels,
    write_file,
)
from ggmtl.estimators.file_parts import (
    FIT_VALUES,
    check_numbers,
    fit_values,
    pack_curves,
    pack_intervals,
    pack_known,
    pack_outcome,
    pack_rows,
    path_rows,
    unpack_curves,
    unpack_intervals,
    unpack_known,
    unpack_outcome,
    unpack_rows,
)
from ggmtl.fit.average import Average
from ggmtl.fit.family import Family, by_name
from ggmtl.fit.held_out import FoldErrors
from ggmtl.fit.lines_or_curves import CurveGain
from ggmtl.fit.state import FittedState
from ggmtl.graph.task_graph import TaskGraph
from ggmtl.inference.uncertainty import noise_ratios, noise_variance, standard_errors
from ggmtl.losses.rowwise import LOSSES, SQUARED_ERROR, Measure
from ggmtl.statistics.task_statistics import TaskStatistics

# What the parts of a damaged file raise where they meet.
DAMAGED = (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError)
_KINDS = ("GGMTLRegressor", "GGMTLClassifier")
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
    kind, arrays = pack_labels(state.task_names)
    scaling = state.scaling
    content = {
        "kind": _KINDS[state.form.classes is not None],
        "parameters": {name: encode(value, name) for name, value in parameters.items() if name not in _OF_THE_SESSION},
        "facts": encode(_facts(state, keep_statistics) | (notes or {}), "facts"),
        "labels": kind,
        "features": list(state.feature_names),
        "target": [scaling.target_center, scaling.target_scale, scaling.intercept],
        "noise": noise_variance(state),
        **_pack_family(state.family, arrays, by_fold=keep_statistics),
    }
    if state.outcome is not None:
        content["outcome"] = pack_outcome(state, arrays)
        if keep_statistics:
            arrays |= pack_rows(state.rows_of_outcome(purpose))
    _pack_graph(state.graph, arrays)
    if len(state.settings.constant):
        arrays["constant"] = state.settings.constant
    if state.settings.known is not None:
        content["known"] = encode(pack_known(state.settings.known, state.level.means, arrays), "known")
    arrays |= {
        "center": scaling.center,
        "scale": scaling.scale,
        **pack_curves(scaling.curves),
        "standard_errors": round_mantissa(standard_errors(state), bits=8),
    }
    ratios = noise_ratios(state)
    if ratios is not None and state.level.precisions is None:
        arrays["noise_ratios"] = ratios
    if statistics is None:
        arrays |= pack_intervals(state)
    else:
        upper = np.triu_indices(statistics.cross.shape[-1])
        arrays["cross"] = statistics.cross[:, :, upper[0], upper[1]]
        arrays["origin"] = statistics.origin
        content["has_folds"] = statistics.has_folds
    write_file(path, content, arrays)


def _facts(state: FittedState, keep_statistics: bool) -> dict[str, Any]:
    """Plain data of a state, under the names that files have had from the start."""
    form, gain = state.form, state.curve_gain
    facts: dict[str, Any] = {
        "path_": state.path,
        "_reads_tasks": form.reads_tasks,
        "_target_is_matrix": form.target_is_matrix,
        "_scored_from": form.scored_from,
        "_table_kind": form.table_kind,
        "_attached": list(state.attached),
        "_named": form.named,
        "_curve_gain": None if gain is None else [gain.feature, gain.gain],
    }
    if form.classes is not None:
        facts["_classes"] = list(form.classes)
    # Only where more rows may come.
    later = {"_group_folds": form.group_folds, "_n_targets": form.n_targets} if keep_statistics else {}
    return facts | {name: value for name, value in later.items() if value}


def read_model(path: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters of the estimator and fields of its fitted state, or an error that says what is wrong."""
    content, arrays = read_file(path)
    if content.get("kind") not in _KINDS:
        raise ModelFileError(f"{path} holds no {' or '.join(_KINDS)}. Got {content.get('kind')!r} instead.")
    if "outcome" in content and "levels" in content["outcome"]:
        raise ModelFileError(
            f"{path} holds a model of classes or counts of an earlier version, which cannot be read. Fit it again."
        )
    try:
        return _unpack(content, arrays)
    except (*DAMAGED, RecursionError, GGMTLError) as error:
        raise ModelFileError(f"{path} is damaged: its parts do not fit together ({error}).") from error


def read_notes(path: str | Path) -> dict[str, Any]:
    """Plain data in a file that :func:`read_model` accepts, with the notes given to :func:`write_model`."""
    return decode(read_file(path)[0]["facts"])


def _pack_family(family: Family, arrays: dict[str, np.ndarray], by_fold: bool) -> dict[str, Any]:
    fit = family.best
    present = np.flatnonzero(fit.edge_values > 0)
    edges = np.sort(fit.edges[present], axis=1)
    order = np.lexsort((edges[:, 1], edges[:, 0]))
    arrays |= {
        "coefficients": fit.coefficients,
        "edges": edges[order].astype(np.int32),
        "edge_values": fit.edge_values[present][order],
        "coupling": fit.coupling,
        "hub": fit.hub,
    }
    if fit.precisions is not None:
        arrays["precisions"] = fit.precisions
    _pack_average(family, arrays, by_fold)
    if family.errors is not None:
        squared, count = family.errors.squared, family.errors.count
        if not by_fold:
            squared, count = squared.sum(axis=1, keepdims=True), count.sum(axis=0, keepdims=True)
        arrays["errors.squared"] = squared if by_fold else round_mantissa(squared)
        arrays["errors.count"] = count.astype(np.float32)
    return {
        "reported": fit.reported_weights is not None,
        "fit": {name: encode(getattr(fit, name), name) for name in FIT_VALUES},
        "levels": [[level.name, encode(float(level.value), "value")] for level in family.levels.values()],
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


def _pack_average(family: Family, arrays: dict[str, np.ndarray], by_fold: bool) -> None:
    """The averaged levels other than the main one, and the held-out errors of the average."""
    for name in family.weights:
        if name != family.main:
            _pack_level(f"level{family.position(name)}", family.levels[name], arrays)
    if family.average is None:
        return
    squared = family.average.squared
    arrays["average.squared"] = squared if by_fold else round_mantissa(squared.sum(axis=0, keepdims=True))
    arrays |= {f"losses.{name}": values for name, values in family.average.losses.items()}
    arrays |= {f"fold_variance.{name}": np.array([value]) for name, value in family.average.fold_variance.items()}


def _pack_level(prefix: str, fit: GraphFit, arrays: dict[str, np.ndarray]) -> None:
    """A level without links; its strengths follow more rows."""
    arrays |= {f"{prefix}.coefficients": fit.coefficients, f"{prefix}.hub": fit.hub}
    if fit.precisions is not None:
        arrays[f"{prefix}.precisions"] = fit.precisions


def _pack_graph(graph: TaskGraph, arrays: dict[str, np.ndarray]) -> None:
    """The reported graph: which edges of the fit it shows (both are sorted), or its own where it has others."""
    n = graph.n_tasks
    keys, shown = arrays["edges"].astype(np.int64) @ [n, 1], graph.edges @ [n, 1]
    arrays["graph.weights"] = graph.weights
    if graph.support is not None:
        arrays["graph.support"] = graph.support
    if np.isin(shown, keys).all():
        arrays["graph.shown"] = np.isin(keys, shown)
    else:
        arrays["graph.edges"] = graph.edges.astype(np.int32)


def _unpack(content: dict[str, Any], arrays: dict[str, np.ndarray]) -> tuple[dict[str, Any], dict[str, Any]]:
    names = unpack_labels(content["labels"], arrays)
    features = tuple(str(name) for name in content["features"])
    center, scale, intercept = *_floats(content["target"][:2]), content["target"][2]
    curves = unpack_curves(arrays, len(features))
    columns = features + curves.names(features)
    shown, width = len(features) + bool(intercept), len(columns) + bool(intercept)
    _check_shapes(arrays, names, width, len(columns), shown)
    errors = arrays.get("standard_errors")
    noise = float(content["noise"])
    _check_values(arrays, names, center, scale, noise)
    parameters = {k: decode(v) for k, v in content["parameters"].items() if k not in _OF_THE_SESSION}
    facts = decode(content["facts"])
    if not isinstance(facts, dict):
        raise ValueError("the facts are no table")
    edges = arrays["edges"][arrays["graph.shown"]] if "graph.shown" in arrays else arrays["graph.edges"]
    graph = TaskGraph(edges, arrays["graph.weights"], names, arrays.get("graph.support"))
    scaling = Scaling(arrays["center"], arrays["scale"], center, scale, bool(intercept), curves)
    known, means = unpack_known(decode(content["known"]), arrays, names) if "known" in content else (None, None)
    given = {
        "noise": noise,
        "standard_errors": None if errors is None else errors.astype(np.float64),
        "noise_ratios": arrays.get("noise_ratios"),
    }
    fields = {
        "task_names": names,
        "feature_names": features,
        "form": _form(facts),
        "scaling": scaling,
        "family": _unpack_family(content, arrays, graph, means, np.flatnonzero(scaling.is_linear)),
        "known": known,
        "constant": arrays.get("constant", np.zeros(0, dtype=bool)).astype(bool),
        "graph": graph,
        "path": path_rows(facts["path_"]),
        "statistics": _unpack_statistics(content, arrays, names, columns) if "cross" in arrays else None,
        "curve_gain": None if facts.get("_curve_gain") is None else CurveGain(*facts["_curve_gain"]),
        "attached": tuple((label, covariance) for label, covariance in facts["_attached"]),
        "given": {name: value for name, value in given.items() if value is not None or name == "noise_ratios"}
        | unpack_intervals(arrays, len(names)),
    }
    if "outcome" in content:
        fields["outcome"] = unpack_outcome(content["outcome"], arrays, fields["family"])
        fields["given"]["count"] = arrays["count"]
        _check_shape("count", arrays["count"], (len(names),))
        fields["outcome_rows"] = unpack_rows(arrays, len(names), width, fields["form"].scored_from)
    loss = fields["outcome"].loss if "outcome" in content else "squared"
    if (loss == "logistic") != (fields["form"].classes is not None):
        raise ValueError("a loss and labels of classes do not go together")
    return parameters, fields


def _check_shapes(arrays: dict[str, np.ndarray], names: np.ndarray, width: int, columns: int, shown: int) -> None:
    """Refuse arrays that do not belong to so many tasks, coefficients and columns."""
    n = len(names)
    _check_shape("labels", names, (n,))
    needed = {
        "coefficients": (n, width),
        "coupling": (width,),
        "hub": (width,),
        "center": (columns,),
        "scale": (columns,),
    }
    for name, shape in needed.items():
        _check_shape(name, arrays[name], shape)
        if arrays[name].dtype.kind != "f":
            raise ValueError(f"{name} holds no numbers")
    optional = {"standard_errors": (n, shown), "precisions": (n,), "noise_ratios": (n,), "constant": (width,)}
    for name, shape in optional.items():
        if name in arrays:
            _check_shape(name, arrays[name], shape)


def _check_values(arrays: dict[str, np.ndarray], names: np.ndarray, center: float, scale: float, noise: float) -> None:
    """Refuse numbers that no fit can have."""
    if not (np.isfinite([center, scale, noise]).all() and scale > 0 and noise >= 0):
        raise ValueError("the noise or the scale of the target is not a number that it can be")
    for name in {"scale", "precisions", "noise_ratios"} & arrays.keys():
        if not (arrays[name] > 0).all():
            raise ValueError(f"{name} has an entry that is not positive")
    for name in {"coupling", "hub", "standard_errors"} & arrays.keys():
        if (arrays[name] < 0).any():
            raise ValueError(f"{name} has a negative entry")
    check_numbers(arrays)
    if len(names) > 1 and not (names[:-1] < names[1:]).all():
        raise ValueError("the task names are not sorted")


def _form(facts: dict[str, Any]) -> InputForm:
    return InputForm(
        reads_tasks=facts["_reads_tasks"],
        target_is_matrix=facts["_target_is_matrix"],
        n_targets=facts.get("_n_targets"),
        named=facts["_named"],
        table_kind=facts["_table_kind"],
        scored_from=facts["_scored_from"],
        group_folds=facts.get("_group_folds"),
        classes=tuple(facts["_classes"]) if "_classes" in facts else None,
    )


def _unpack_family(
    content: dict[str, Any],
    arrays: dict[str, np.ndarray],
    graph: TaskGraph,
    means: TaskMeans | None,
    straight: np.ndarray,
) -> Family:
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
        **fit_values(content["fit"]),
    )
    levels = [_name_only(str(name), decode(value), width) for name, value in content["levels"]]
    chosen = _place(content["chosen"], len(levels))
    # Files of earlier versions have all weight on the level that was chosen.
    main = _place(content.get("main", chosen), len(levels))
    weights = {_place(int(k), len(levels)): float(v) for k, v in content.get("weights", {str(chosen): 1.0}).items()}
    if not weights or min(weights.values()) < 0 or abs(sum(weights.values()) - 1.0) > 1e-6:
        raise ValueError("the weights of the levels do not sum to one")
    if best.name != levels[main].name:
        raise ValueError("the models are those of another level")
    for k in weights:
        levels[k] = best if k == main else _unpack_level(levels[k], f"level{k}", arrays, (n, width))
        if levels[k].kind == "described":
            levels[k] = replace(levels[k], means=best.means)
    levels[main] = best
    # Files of earlier versions name the levels of straight lines, which use all linear columns.
    used = content.get("columns", dict.fromkeys(content.get("straight", []), straight))
    for k, columns in used.items():
        levels[int(k)] = replace(levels[int(k)], columns=_columns(columns, width))
    errors = None
    if "errors.squared" in arrays:
        squared, count = arrays["errors.squared"].astype(float), arrays["errors.count"].astype(float)
        _check_shape("errors.count", count, (len(count), n))
        _check_shape("errors.squared", squared, (len(levels), len(count), n))
        if not count.any():
            raise ValueError("no row was held out")
        errors = FoldErrors(squared, count, measure=measure)
    named = by_name(levels)
    names = list(named)
    shares = {names[k]: weight for k, weight in weights.items()}
    average = _unpack_average(shares, arrays, n, measure) if "average.squared" in arrays else None
    if average is not None and errors is not None and len(errors.count) not in (1, len(average.squared)):
        raise ValueError("the errors of the average and of its levels are those of other folds")
    return Family(named, shares, errors, str(content["criterion"]), names[chosen], average)


def _columns(values: Any, width: int) -> np.ndarray:
    """Positions of some of so many columns, in rising order."""
    columns = np.asarray(values)
    if columns.dtype.kind not in "iu" or columns.ndim != 1 or not len(columns):
        raise ValueError("the columns of a level are no positions")
    if columns[0] < 0 or columns[-1] >= width or (np.diff(columns) <= 0).any():
        raise ValueError("the columns of a level are no positions in rising order")
    return columns.astype(np.int64)


def _place(value: Any, number: int) -> int:
    """The place of a level among so many."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < number:
        raise ValueError("no level is chosen")
    return value


def _unpack_level(level: GraphFit, prefix: str, arrays: dict[str, np.ndarray], shape: tuple[int, int]) -> GraphFit:
    coefficients, hub, precisions = (arrays.get(f"{prefix}.{name}") for name in ("coefficients", "hub", "precisions"))
    if coefficients is None or hub is None:
        raise ValueError(f"the models of a level with a weight ({level.name}) are missing")
    _check_shape(f"{prefix}.coefficients", coefficients, shape)
    _check_shape("hub", hub, shape[1:])
    if precisions is not None:
        _check_shape(f"{prefix}.precisions", precisions, shape[:1])
    return replace(level, coefficients=coefficients, hub=hub, precisions=precisions)


def _measure(content: dict[str, Any]) -> Measure:
    """How held-out losses are told; a ValueError for a file of classes or counts that cannot be read any more."""
    if "outcome" not in content:
        return SQUARED_ERROR
    if "levels" in content["outcome"]:
        raise ValueError("models of classes and counts are kept in another form since; fit it again")
    return LOSSES[content["outcome"]["loss"]].measure


def _unpack_average(
    weights: dict[str, float], arrays: dict[str, np.ndarray], n: int, measure: Measure = SQUARED_ERROR
) -> Average:
    squared = arrays["average.squared"].astype(float)
    _check_shape("average.squared", squared, (len(squared), n))
    losses = {name.removeprefix("losses."): values for name, values in arrays.items() if name.startswith("losses.")}
    for name, values in losses.items():
        _check_shape(f"losses.{name}", values, (n,))
    if not {"average", "pooled", "independent"} <= losses.keys():
        raise ValueError("the losses of the average are missing")
    variance = {name: values for name, values in arrays.items() if name.startswith("fold_variance.")}
    for name, values in variance.items():
        _check_shape(name, values, (1,))
    variance = {name.removeprefix("fold_variance."): float(values[0]) for name, values in variance.items()}
    return Average(weights, squared, losses, variance, measure)


def _shown(edges: TaskGraph, graph: TaskGraph) -> np.ndarray:
    """Weights of the reported graph on all edges of the fit, zero for those not reported."""
    n = graph.n_tasks
    keys, shown = edges.edges @ [n, 1], graph.edges @ [n, 1]
    out = np.zeros(len(keys))
    out[np.flatnonzero(np.isin(keys, shown))] = graph.weights[np.isin(shown, keys)]
    return out


def _name_only(name: str, value: float, width: int) -> GraphFit:
    """A level of which the models were not kept."""
    nothing = np.zeros(width)
    return GraphFit(name, np.empty((0, 2), np.int64), np.empty(0), nothing, nothing, np.empty((0, width)), float(value))


def _unpack_statistics(
    content: dict[str, Any], arrays: dict[str, np.ndarray], names: np.ndarray, features: tuple[str, ...]
) -> TaskStatistics:
    size = len(features) + 2
    packed = arrays["cross"]
    rows, columns = np.triu_indices(size)
    _check_shape("cross", packed, (len(packed), len(names), len(rows)))
    _check_shape("origin", arrays["origin"], (size - 1,))
    cross = np.empty((len(packed), len(names), size, size))
    cross[:, :, rows, columns] = packed
    cross[:, :, columns, rows] = packed
    return TaskStatistics(cross, arrays["origin"], names, features, bool(content["has_folds"]))


def _floats(values: list[Any]) -> list[float]:
    return [float(value) for value in values]


def _check_shape(name: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}, not {shape}")
    if array.dtype.kind == "f" and name not in ("hub", "standard_errors") and not np.isfinite(array).all():
        raise ValueError(f"{name} is not finite")
