"""Levels, their average and their held-out errors in a model file, and back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ggmtl.bilevel.level import GraphFit, TaskMeans
from ggmtl.estimators.file_arrays import Arrays, packed, under
from ggmtl.estimators.file_format import decode, encode, round_mantissa
from ggmtl.estimators.file_parts import FIT_VALUES, fit_values
from ggmtl.fit.average import Average
from ggmtl.fit.family import Family, by_name
from ggmtl.fit.held_out import FoldErrors
from ggmtl.graph.task_graph import TaskGraph
from ggmtl.losses.rowwise import LOSSES, SQUARED_ERROR, Measure

# Arrays of an averaged level, which has no links; its strengths are needed where more rows come.
_UNLINKED = ("coefficients", "hub", "precisions", "precision")


def pack_family(family: Family, arrays: Arrays, by_fold: bool) -> dict[str, Any]:
    """Plain data of a family; its arrays are added to `arrays`."""
    fit = family.best
    present = np.flatnonzero(fit.edge_values > 0)
    edges = np.sort(fit.edges[present], axis=1)
    order = np.lexsort((edges[:, 1], edges[:, 0]))
    arrays |= packed("", fit, ("coefficients", "coupling", "hub", "precisions"))
    arrays |= {"edges": edges[order].astype(np.int32), "edge_values": fit.edge_values[present][order]}
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


def _pack_average(family: Family, arrays: Arrays, by_fold: bool) -> None:
    """The averaged levels other than the main one, and the held-out errors of the average."""
    for name in family.weights:
        if name != family.main:
            arrays |= packed(f"level{family.position(name)}.", family.levels[name], _UNLINKED)
    if family.average is None:
        return
    squared = family.average.squared
    arrays["average.squared"] = squared if by_fold else round_mantissa(squared.sum(axis=0, keepdims=True))
    arrays |= {f"losses.{name}": values for name, values in family.average.losses.items()}
    arrays |= {f"fold_variance.{name}": np.array([value]) for name, value in family.average.fold_variance.items()}


def unpack_family(
    content: dict[str, Any],
    arrays: Arrays,
    graph: TaskGraph,
    means: TaskMeans | None,
    straight: np.ndarray,
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
    # Files of earlier versions name the levels of straight lines, which use all linear columns.
    used = content.get("columns", dict.fromkeys(content.get("straight", []), straight))
    for k, columns in used.items():
        levels[int(k)] = replace(levels[int(k)], columns=_columns(columns, width))
    for k in weights:
        levels[k] = levels[k] if k == main else _unpack_level(levels[k], under(f"level{k}.", arrays))
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
    losses = under("losses.", arrays)
    if not {"average", "pooled", "independent"} <= losses.keys():
        raise ValueError("the losses of the average are missing")
    variance = {name: float(values[0]) for name, values in under("fold_variance.", arrays).items()}
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
