"""A fitted model as plain data and arrays, and back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ggmtl.bilevel.level import GraphFit
from ggmtl.design.scaling import Scaling
from ggmtl.errors import GGMTLError, ModelFileError
from ggmtl.estimators.model_file.container import read_file, write_file
from ggmtl.estimators.model_file.values import decode, encode, pack_labels, round_mantissa, unpack_labels
from ggmtl.fit.held_out import FoldErrors
from ggmtl.fit.path import PathResult
from ggmtl.graph.task_graph import TaskGraph
from ggmtl.statistics.task_statistics import TaskStatistics

_KIND = "GGMTLRegressor"
_FIT_VALUES = ("name", "value", "iterations", "status", "certificate", "history", "supported")


@dataclass(frozen=True)
class ModelState:
    """All that a fitted regressor is.

    Parameters
    ----------
    parameters : dict
        Of the constructor.
    facts : dict
        Plain data: the path's table, how the input is read, and the like.
    task_names : array of shape (n,)
    feature_names : tuple of str
    scaling : Scaling
    result : PathResult
        Levels other than the chosen one have a name and a criterion only; without statistics, errors are summed over
        folds.
    graph : TaskGraph
        The reported graph.
    noise : float
        σ² in scaled units.
    standard_errors : array of shape (n, p), optional
        In the units of the data.
    statistics : TaskStatistics, optional
    noise_ratios : array of shape (n,), optional
        σ_i²/σ² of every task where they differ; those behind the weights of the fit are not repeated.
    """

    parameters: dict[str, Any]
    facts: dict[str, Any]
    task_names: np.ndarray
    feature_names: tuple[str, ...]
    scaling: Scaling
    result: PathResult
    graph: TaskGraph
    noise: float
    standard_errors: np.ndarray | None = None
    statistics: TaskStatistics | None = None
    noise_ratios: np.ndarray | None = None


def write_model(path: str | Path, state: ModelState) -> None:
    """Write one file."""
    kind, arrays = pack_labels(state.task_names)
    content = {
        "kind": _KIND,
        "parameters": {name: encode(value, name) for name, value in state.parameters.items()},
        "facts": encode(state.facts, "facts"),
        "labels": kind,
        "features": list(state.feature_names),
        "target": [state.scaling.target_center, state.scaling.target_scale, state.scaling.intercept],
        "noise": state.noise,
        **_pack_result(state.result, arrays, by_fold=state.statistics is not None),
    }
    _pack_graph(state.graph, arrays)
    arrays |= {
        "center": state.scaling.center,
        "scale": state.scaling.scale,
    }
    if state.noise_ratios is not None and state.result.best.precisions is None:
        arrays["noise_ratios"] = state.noise_ratios
    if state.standard_errors is not None:
        arrays["standard_errors"] = round_mantissa(state.standard_errors, bits=8)
    if state.statistics is not None:
        upper = np.triu_indices(state.statistics.cross.shape[-1])
        arrays["cross"] = state.statistics.cross[:, :, upper[0], upper[1]]
        arrays["origin"] = state.statistics.origin
        content["has_folds"] = state.statistics.has_folds
    write_file(path, content, arrays)


def read_model(path: str | Path) -> ModelState:
    """Read one file, or say what is wrong with it."""
    content, arrays = read_file(path)
    if content.get("kind") != _KIND:
        raise ModelFileError(f"{path} holds no {_KIND}. Got {content.get('kind')!r} instead.")
    try:
        return _unpack(content, arrays)
    except (KeyError, TypeError, ValueError, IndexError, RecursionError, OverflowError, GGMTLError) as error:
        raise ModelFileError(f"{path} is damaged: its parts do not fit together ({error}).") from error


def _pack_result(result: PathResult, arrays: dict[str, np.ndarray], by_fold: bool) -> dict[str, Any]:
    fit = result.best
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
    if result.errors is not None:
        squared, count = result.errors.squared, result.errors.count
        if not by_fold:
            squared, count = squared.sum(axis=1, keepdims=True), count.sum(axis=0, keepdims=True)
        arrays["errors.squared"] = squared if by_fold else round_mantissa(squared)
        arrays["errors.count"] = count.astype(np.float32)
    return {
        "reported": fit.reported_weights is not None,
        "fit": {name: encode(getattr(fit, name), name) for name in _FIT_VALUES},
        "levels": [[level.name, encode(float(level.value), "value")] for level in result.levels],
        "chosen": result.chosen,
        "criterion": result.criterion,
    }


def _pack_graph(graph: TaskGraph, arrays: dict[str, np.ndarray]) -> None:
    """The reported graph: which edges of the fit it shows (both are sorted), or its own where it has others."""
    n = graph.n_tasks
    keys, shown = arrays["edges"].astype(np.int64) @ [n, 1], graph.edges @ [n, 1]
    arrays["graph.weights"] = graph.weights
    if np.isin(shown, keys).all():
        arrays["graph.shown"] = np.isin(keys, shown)
    else:
        arrays["graph.edges"] = graph.edges.astype(np.int32)


def _unpack(content: dict[str, Any], arrays: dict[str, np.ndarray]) -> ModelState:
    names = unpack_labels(content["labels"], arrays)
    features = tuple(str(name) for name in content["features"])
    center, scale, intercept = *_floats(content["target"][:2]), content["target"][2]
    width = len(features) + bool(intercept)
    _check_shape("labels", names, (len(names),))
    for name, shape in (
        ("coefficients", (len(names), width)),
        ("coupling", (width,)),
        ("hub", (width,)),
        ("center", (len(features),)),
        ("scale", (len(features),)),
    ):
        _check_shape(name, arrays[name], shape)
    errors = arrays.get("standard_errors")
    if errors is not None:
        _check_shape("standard_errors", errors, (len(names), width))
    for name in {"precisions", "noise_ratios"} & arrays.keys():
        _check_shape(name, arrays[name], (len(names),))
        if not (arrays[name] > 0).all():
            raise ValueError(f"{name} has an entry that is not positive")
    if len(names) > 1 and not (names[:-1] < names[1:]).all():
        raise ValueError("the task names are not sorted")
    parameters, facts = {k: decode(v) for k, v in content["parameters"].items()}, decode(content["facts"])
    if not isinstance(facts, dict):
        raise ValueError("the facts are no table")
    shown = arrays["edges"][arrays["graph.shown"]] if "graph.shown" in arrays else arrays["graph.edges"]
    graph = TaskGraph(shown, arrays["graph.weights"], names)
    return ModelState(
        parameters,
        facts,
        names,
        features,
        Scaling(arrays["center"], arrays["scale"], center, scale, bool(intercept)),
        _unpack_result(content, arrays, graph),
        graph,
        float(content["noise"]),
        None if errors is None else errors.astype(np.float64),
        _unpack_statistics(content, arrays, names, features) if "cross" in arrays else None,
        arrays.get("noise_ratios"),
    )


def _unpack_result(content: dict[str, Any], arrays: dict[str, np.ndarray], graph: TaskGraph) -> PathResult:
    n = graph.n_tasks
    edges = TaskGraph(arrays["edges"], arrays["edge_values"], np.arange(n))
    width = arrays["coefficients"].shape[1]
    values = {name: decode(content["fit"][name]) for name in _FIT_VALUES}
    best = GraphFit(
        edges=edges.edges,
        edge_values=edges.weights,
        coupling=arrays["coupling"],
        hub=arrays["hub"],
        coefficients=arrays["coefficients"],
        precisions=arrays.get("precisions"),
        reported_weights=_shown(edges, graph) if content["reported"] else None,
        **values,
    )
    chosen = content["chosen"]
    levels = [_name_only(str(name), decode(value), width) for name, value in content["levels"]]
    if type(chosen) is not int or not 0 <= chosen < len(levels):
        raise ValueError("no level is chosen")
    levels[chosen] = best
    errors = None
    if "errors.squared" in arrays:
        squared, count = arrays["errors.squared"].astype(float), arrays["errors.count"].astype(float)
        _check_shape("errors.count", count, (len(count), n))
        _check_shape("errors.squared", squared, (len(levels), len(count), n))
        errors = FoldErrors(squared, count)
    return PathResult(tuple(levels), errors, chosen, str(content["criterion"]))


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
