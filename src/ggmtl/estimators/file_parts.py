"""Parts of a model file that only some models have, as plain data and arrays, and back.

What is known about the tasks, curves, the calibration of intervals, and the levels of classes and counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmtl.bilevel.level import GraphFit, TaskMeans
from ggmtl.data.task_features import TaskFeatures
from ggmtl.design.curves import Curves
from ggmtl.design.task_table import Category, KnownTasks, Number, Surface, Term
from ggmtl.estimators.file_format import decode, encode, round_mantissa
from ggmtl.fit.held_out import FoldErrors
from ggmtl.fit.outcome_levels import OutcomeLevel
from ggmtl.fit.outcomes import OutcomeFamily
from ggmtl.fit.state import FittedState
from ggmtl.inference.intervals import Calibration, calibration, typical_deviations
from ggmtl.losses.rowwise import LOSSES

Arrays = dict[str, np.ndarray]
_CALIBRATION = ("factor", "freedom", "deviation")
_FIT_ARRAYS = ("edges", "edge_values", "coupling", "hub", "coefficients")
_FIT_VALUES = ("name", "value", "iterations", "status", "certificate", "history", "supported")
_LOSSES = ("errors.squared", "errors.count", "average", "null")


def pack_known(known: KnownTasks, means: TaskMeans | None, arrays: Arrays) -> dict[str, Any]:
    """Plain data of the columns and of how they are read; numbers go into `arrays`."""
    columns = []
    for k, (name, values) in enumerate(known.features.columns.items()):
        if values.dtype.kind == "f":
            arrays[f"known.{k}"], found = values, None
        else:
            found, codes = np.unique(values, return_inverse=True)
            arrays[f"known.{k}"], found = codes.reshape(-1).astype(np.int32), found.tolist()
        columns.append([name, found])
    if means is not None:
        arrays |= {"known.effects": means.effects, "known.strength": means.strength}
    return {"columns": columns, "terms": [_pack_term(term, arrays) for term in known.terms]}


def _pack_term(term: Term, arrays: Arrays) -> dict[str, Any]:
    if isinstance(term, Number):
        square = None if term.square is None else list(term.square)
        return {"number": [term.name, term.center, term.scale, term.low, term.high], "square": square}
    if isinstance(term, Category):
        return {"category": term.name, "values": list(term.values), "shares": list(term.shares)}
    arrays |= {
        "surface.origin": term.origin,
        "surface.landmarks": term.landmarks,
        "surface.basis": term.basis,
        "surface.center": term.center,
    }
    return {"surface": list(term.columns), "sphere": term.sphere, "unit": term.unit, "scale": term.scale}


def unpack_known(content: dict[str, Any], arrays: Arrays, names: np.ndarray) -> tuple[KnownTasks, TaskMeans | None]:
    """The inverse of :func:`pack_known`; ``ValueError`` where the parts do not fit together."""
    columns = {}
    for k, (name, found) in enumerate(content["columns"]):
        values = arrays[f"known.{k}"]
        if values.shape != (len(names),):
            raise ValueError(f"column {name!r} of the task features has shape {values.shape}")
        columns[str(name)] = values.astype(np.float64) if found is None else np.array(found, dtype=str)[values]
    known = KnownTasks(
        TaskFeatures(names, columns), tuple(_unpack_term(term, columns, arrays) for term in content["terms"])
    )
    if "known.effects" not in arrays:
        return known, None
    effects, strength = arrays["known.effects"], arrays["known.strength"]
    width = known.values.shape[1]
    if effects.shape != strength.shape or len(effects) != width or not np.isfinite(effects).all():
        raise ValueError("the effects of the task features have another shape than the features")
    if not (strength > 0).all():
        raise ValueError("the strengths of the task features are not positive")
    return known, TaskMeans(effects, strength, known.values)


def _unpack_term(term: dict[str, Any], columns: dict[str, np.ndarray], arrays: Arrays) -> Term:
    if "number" in term:
        name, *numbers = term["number"]
        square = None if term["square"] is None else (float(term["square"][0]), float(term["square"][1]))
        center, scale, low, high = map(float, numbers)
        if columns[name].dtype.kind != "f" or not scale > 0:
            raise ValueError(f"column {name!r} of the task features holds no numbers")
        return Number(str(name), center, scale, low, high, square)
    if "category" in term:
        values, shares = tuple(map(str, term["values"])), tuple(map(float, term["shares"]))
        if columns[term["category"]].dtype.kind != "U" or len(values) != len(shares):
            raise ValueError(f"column {term['category']!r} of the task features holds no categories")
        return Category(str(term["category"]), values, shares)
    first, second = map(str, term["surface"])
    origin, landmarks, basis, center = (
        arrays[f"surface.{name}"] for name in ("origin", "landmarks", "basis", "center")
    )
    sphere, width = bool(term["sphere"]), 3 if term["sphere"] else 2
    fits = origin.shape == (width,) and landmarks.shape == (len(basis), width) and center.shape == basis.shape[1:]
    if not fits or columns[first].dtype.kind != "f" or columns[second].dtype.kind != "f":
        raise ValueError("the places of the task features do not fit together")
    return Surface((first, second), sphere, origin, float(term["unit"]), landmarks, basis, center, float(term["scale"]))


def pack_curves(curves: Curves) -> dict[str, np.ndarray]:
    """The arrays of curves, where there are any."""
    return {f"curves.{name}": value for name, value in vars(curves).items()} if curves.n_columns else {}


def unpack_curves(arrays: dict[str, np.ndarray], n_features: int) -> Curves:
    """The curves of these arrays, or an error that says why they are none."""
    if "curves.features" not in arrays:
        return Curves.none()
    curves = Curves(**{name: arrays[f"curves.{name}"] for name in vars(Curves.none())})
    for name, empty in vars(Curves.none()).items():
        shape, array = (len(curves.features), *empty.shape[1:]), getattr(curves, name)
        if array.shape != shape or not np.isfinite(array).all():
            raise ValueError(f"curves.{name} has shape {array.shape}, not {shape}, or is not finite")
    features = curves.features
    if features.dtype.kind != "i" or not ((features >= 0) & (features < n_features)).all():
        raise ValueError("a curve is that of no feature")
    if not (np.diff(curves.knots, axis=1) > 0).all():
        raise ValueError("the knots of a curve do not rise")
    return curves


def pack_intervals(state: FittedState) -> dict[str, np.ndarray]:
    """Three numbers per task; nothing where the model has no intervals."""
    if state.outcome is not None or (state.statistics is None and "calibration" not in state.given):
        return {}
    found = calibration(state)
    values = (found.factor, found.freedom, typical_deviations(state))
    return {f"interval.{name}": round_mantissa(value, bits=12) for name, value in zip(_CALIBRATION, values)}


def unpack_intervals(arrays: dict[str, np.ndarray], n: int) -> dict[str, Any]:
    """What the state is given; files of earlier versions have none."""
    if not {f"interval.{name}" for name in _CALIBRATION} & arrays.keys():
        return {}
    values = [arrays[f"interval.{name}"].astype(np.float64) for name in _CALIBRATION]
    for name, value, least in zip(_CALIBRATION, values, (0.0, 2.0, 0.0)):
        if value.shape != (n + 1,) or not (np.isfinite(value).all() and (value > least).all()):
            raise ValueError(f"interval.{name} is not what it can be")
    factor, freedom, deviation = values
    return {"calibration": Calibration(factor, freedom), "typical_deviations": deviation}


def pack_outcome(outcome: OutcomeFamily, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Plain data of the levels; their arrays are put among `arrays`."""
    for k, level in enumerate(outcome.levels.values()):
        arrays |= {f"level {k}.{name}": getattr(level.fit, name) for name in _FIT_ARRAYS}
        if level.fit.reported_weights is not None:
            arrays[f"level {k}.reported"] = level.fit.reported_weights
        arrays |= {f"level {k}.new_task": level.new_task, f"level {k}.ridge": level.ridge}
    rows, columns = np.triu_indices(outcome.new_task.shape[0])
    arrays["covariance"] = np.ascontiguousarray(outcome.covariance[:, rows, columns]).astype(np.float32)
    if outcome.errors is not None:
        held_out = (outcome.errors.squared, outcome.errors.count, outcome.average, outcome.null)
        # Sums over the folds are all that is shown.
        for name, values in zip(_LOSSES, held_out):
            if values is not None:
                arrays[f"outcome.{name}"] = values.sum(axis=-2, keepdims=True)
    return {
        "loss": outcome.loss,
        "dispersion": outcome.dispersion,
        "preferred": outcome.preferred,
        "weights": [[name, weight] for name, weight in outcome.weights.items()],
        "levels": [
            [name, {part: encode(getattr(level.fit, part), part) for part in _FIT_VALUES}]
            for name, level in outcome.levels.items()
        ],
    }


def unpack_outcome(content: dict[str, Any], arrays: dict[str, np.ndarray], shape: tuple[int, int]) -> OutcomeFamily:
    """The levels that :func:`pack_outcome` put away; a ValueError where they do not fit together."""
    n, p = shape
    levels = {}
    for k, (name, values) in enumerate(content["levels"]):
        parts = {part: arrays[f"level {k}.{part}"] for part in _FIT_ARRAYS}
        _check(parts["coefficients"], (n, p))
        for part in ("coupling", "hub"):
            _check(parts[part], (p,))
        if len(parts["edges"]) and not (parts["edges"].min() >= 0 and parts["edges"].max() < n):
            raise ValueError("an edge has an end that is no task")
        fit = GraphFit(
            **parts,
            **{part: decode(values[part]) for part in _FIT_VALUES},
            reported_weights=arrays.get(f"level {k}.reported"),
        )
        new_task, ridge = arrays[f"level {k}.new_task"], arrays[f"level {k}.ridge"]
        _check(new_task, (p, p))
        _check(ridge, (p,))
        levels[str(name)] = OutcomeLevel(fit, np.empty((0, p, p)), new_task, ridge)
    weights = {str(name): float(weight) for name, weight in content["weights"]}
    dispersion = float(content["dispersion"])
    if not weights.keys() <= levels.keys() or content["preferred"] not in levels or content["loss"] not in LOSSES:
        raise ValueError("a level or a loss is not known")
    if not (dispersion > 0 and abs(sum(weights.values()) - 1.0) < 1e-6 and min(weights.values()) >= 0):
        raise ValueError("the dispersion or the weights of the levels are not what they can be")
    packed = arrays["covariance"].astype(np.float64)
    rows, columns = np.triu_indices(p)
    _check(packed, (n, len(rows)))
    covariance = np.empty((n, p, p))
    covariance[:, rows, columns] = packed
    covariance[:, columns, rows] = packed
    squared, count, average, null = (arrays.get(f"outcome.{name}") for name in _LOSSES)
    errors = None
    if squared is not None and count is not None:
        _check(squared, (len(levels), 1, n))
        errors = FoldErrors(squared, count)
    return OutcomeFamily(
        levels, weights, dispersion, errors, average, null, covariance, content["preferred"], content["loss"]
    )


def _check(array: np.ndarray, shape: tuple[int, ...]) -> None:
    if array.shape != shape or np.isnan(array).any():
        raise ValueError(f"an array of shape {array.shape} should have shape {shape} and no gap")
