"""Parts of a model file that only some models have, as plain data and arrays, and back.

What is known about the tasks, curves, the calibration of intervals, and the levels of classes and counts.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from ggmtl.bilevel.level import TaskMeans
from ggmtl.data.curves import Curves
from ggmtl.data.task_features import TaskFeatures
from ggmtl.data.task_terms import Category, KnownTasks, Number, Surface, Term
from ggmtl.estimators.file_format import Arrays, decode, encode, packed, round_mantissa, symmetric, under, upper
from ggmtl.fit.family import Family
from ggmtl.fit.outcome_scores import OutcomeScores
from ggmtl.fit.outcomes import OutcomeFamily
from ggmtl.fit.separate_outcomes import OutcomeLevel
from ggmtl.fit.state import FittedState, outcome_of
from ggmtl.inference.intervals import Calibration, calibration, typical_deviations
from ggmtl.losses.task_rows import FoldedRows, TaskRows

_CALIBRATION = ("factor", "freedom", "deviation")
_CURVES = tuple(field.name for field in fields(Curves))
_SURFACE = ("origin", "landmarks", "basis", "center")
_ROWS = ("design", "target", "offset", "weight", "task")
_SCORES = ("total", "amount", "observed", "expected", "count", "groups", "task_auc")


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
        arrays |= packed("known.", means, ("effects", "strength"))
    return {"columns": columns, "terms": [_pack_term(term, arrays) for term in known.terms]}


def _pack_term(term: Term, arrays: Arrays) -> dict[str, Any]:
    if isinstance(term, Number):
        square = None if term.square is None else list(term.square)
        return {"number": [term.name, term.center, term.scale, term.low, term.high], "square": square}
    if isinstance(term, Category):
        return {"category": term.name, "values": list(term.values), "shares": list(term.shares)}
    arrays |= packed("surface.", term, _SURFACE)
    return {"surface": list(term.columns), "sphere": term.sphere, "unit": term.unit, "scale": term.scale}


def unpack_known(content: dict[str, Any], arrays: Arrays, names: np.ndarray) -> tuple[KnownTasks, TaskMeans | None]:
    """The inverse of :func:`pack_known`; ``ValueError`` where the parts do not fit together."""
    columns = {}
    for k, (name, found) in enumerate(content["columns"]):
        values = arrays[f"known.{k}"]
        columns[str(name)] = values.astype(np.float64) if found is None else np.array(found, dtype=str)[values]
    known = KnownTasks(
        TaskFeatures(names, columns), tuple(_unpack_term(term, columns, arrays) for term in content["terms"])
    )
    if "known.effects" not in arrays:
        return known, None
    effects = arrays["known.effects"]
    if len(effects) != known.values.shape[1]:
        raise ValueError("the effects of the task features are those of other columns")
    return known, TaskMeans(effects, arrays["known.strength"], known.values)


def _unpack_term(term: dict[str, Any], columns: dict[str, np.ndarray], arrays: Arrays) -> Term:
    if "number" in term:
        name, *numbers = term["number"]
        _check_kind(name, columns, "f")
        square = None if term["square"] is None else (float(term["square"][0]), float(term["square"][1]))
        center, scale, low, high = map(float, numbers)
        if not scale > 0:
            raise ValueError(f"the scale of column {name!r} is not positive")
        return Number(str(name), center, scale, low, high, square)
    if "category" in term:
        _check_kind(term["category"], columns, "U")
        values, shares = tuple(map(str, term["values"])), tuple(map(float, term["shares"]))
        if len(values) != len(shares):
            raise ValueError(f"column {term['category']!r} has as many values as shares")
        return Category(str(term["category"]), values, shares)
    first, second = map(str, term["surface"])
    _check_kind(first, columns, "f")
    _check_kind(second, columns, "f")
    sphere, found = bool(term["sphere"]), {name: arrays[f"surface.{name}"] for name in _SURFACE}
    if len(found["origin"]) != (3 if sphere else 2):
        raise ValueError("the places of the task features are points of another space")
    return Surface((first, second), sphere, unit=float(term["unit"]), scale=float(term["scale"]), **found)


def _check_kind(name: str, columns: dict[str, np.ndarray], kind: str) -> None:
    if columns[name].dtype.kind != kind:
        raise ValueError(f"column {name!r} of the task features holds values of type {columns[name].dtype}")


def pack_curves(curves: Curves) -> Arrays:
    """The arrays of curves, where there are any."""
    return packed("curves.", curves, _CURVES) if curves.n_columns else {}


def unpack_curves(arrays: Arrays, n_features: int) -> Curves:
    """The curves of these arrays, or a ValueError that gives the reason."""
    found = under("curves.", arrays)
    if not found:
        return Curves.none()
    curves = Curves(**{name: found[name] for name in _CURVES})
    if not ((curves.features >= 0) & (curves.features < n_features)).all():
        raise ValueError("a curve is that of no feature")
    if not (np.diff(curves.knots, axis=1) > 0).all():
        raise ValueError("the knots of a curve do not rise")
    return curves


def pack_intervals(state: FittedState) -> Arrays:
    """Three numbers per task; nothing where the model has no intervals."""
    if state.outcome is not None or (state.statistics is None and "calibration" not in state.given):
        return {}
    found = calibration(state)
    values = (found.factor, found.freedom, typical_deviations(state))
    return {f"interval.{name}": round_mantissa(value, bits=12) for name, value in zip(_CALIBRATION, values)}


def unpack_intervals(arrays: Arrays) -> dict[str, Any]:
    """Calibration and typical deviations; files of earlier versions have none."""
    found = {name: values.astype(np.float64) for name, values in under("interval.", arrays).items()}
    if not found:
        return {}
    factor, freedom, deviation = (found[name] for name in _CALIBRATION)
    return {"calibration": Calibration(factor, freedom), "typical_deviations": deviation}


def pack_outcome(state: FittedState, arrays: Arrays) -> dict[str, Any]:
    """Plain data that only a model of classes or counts has; arrays are added to `arrays`."""
    outcome = outcome_of(state)
    for k, name in enumerate(state.family.levels):
        if name in state.family.kept:
            arrays |= packed(f"level {k}.", outcome.levels[name], ("new_task", "ridge"))
    arrays |= packed("", outcome, ("common", "information", "null", "limits"))
    arrays |= {"covariance": upper(outcome.covariance).astype(np.float32), "count": state.given["count"]}
    scores = packed("scores.", outcome.scores, _SCORES)
    arrays |= {name: values.astype(np.float32) for name, values in scores.items()}
    facts = {name: encode(getattr(outcome.scores, name), name) for name in ("brier", "auc")}
    return {"loss": outcome.loss, "dispersion": outcome.dispersion, "preferred": outcome.preferred, "scores": facts}


def unpack_outcome(content: dict[str, Any], arrays: Arrays, family: Family) -> OutcomeFamily:
    """The inverse of :func:`pack_outcome`; ``ValueError`` where the parts do not fit together."""
    p = family.best.coefficients.shape[1]
    levels = {
        name: OutcomeLevel(
            fit, np.empty((0, p, p)), **{part: arrays[f"level {k}.{part}"] for part in ("new_task", "ridge")}
        )
        for k, (name, fit) in enumerate(family.levels.items())
        if name in family.kept
    }
    dispersion = float(content["dispersion"])
    if content["preferred"] not in family.levels or not dispersion > 0:
        raise ValueError("the dispersion is not positive, or there is no preferred level")
    scores = OutcomeScores(
        **{name: arrays[f"scores.{name}"].astype(np.float64) for name in _SCORES},
        **{name: decode(content["scores"][name]) for name in ("brier", "auc")},
    )
    if scores.auc is not None and scores.brier is None:
        raise ValueError("a model of counts has no AUC")
    limits = arrays.get("limits")
    if limits is not None and (limits[0] > limits[1]).any():
        raise ValueError("the limits of a column do not rise")
    return OutcomeFamily(
        levels=levels,
        weights=dict(family.weights),
        dispersion=dispersion,
        errors=family.errors,
        average=family.average,
        null=arrays.get("null"),
        covariance=symmetric(arrays["covariance"], p),
        common=arrays["common"],
        information=arrays["information"],
        scores=scores,
        preferred=str(content["preferred"]),
        loss=str(content["loss"]),
        limits=limits,
    )


def pack_rows(kept: FoldedRows) -> Arrays:
    """The rows of classes or counts."""
    arrays = packed("rows.", kept.rows, _ROWS)
    return arrays if kept.folds is None else arrays | {"rows.folds": kept.folds.astype(np.int32)}


def unpack_rows(arrays: Arrays, n: int, first_scored: int) -> FoldedRows | None:
    """The inverse of :func:`pack_rows`; None where the file has no rows."""
    found = under("rows.", arrays)
    if not found:
        return None
    rows = TaskRows(**{name: found[name] for name in _ROWS}, n_tasks=n)
    if (np.diff(rows.task) < 0).any() or (len(rows.task) and not 0 <= rows.task[0] <= rows.task[-1] < n):
        raise ValueError("a row is that of no task")
    return FoldedRows(rows, found.get("folds"), first_scored)
