"""The levels of classes and counts as plain data and arrays, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmtl.bilevel.level import GraphFit
from ggmtl.estimators.file_format import decode, encode
from ggmtl.fit.held_out import FoldErrors
from ggmtl.fit.outcome_levels import OutcomeLevel
from ggmtl.fit.outcomes import OutcomeFamily
from ggmtl.losses.rowwise import LOSSES

_FIT_ARRAYS = ("edges", "edge_values", "coupling", "hub", "coefficients")
_FIT_VALUES = ("name", "value", "iterations", "status", "certificate", "history", "supported")
_LOSSES = ("errors.squared", "errors.count", "average", "null")


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
