"""Parts of a model file that only some models have, as plain data and arrays, and back.

What is known about the tasks, curves, the calibration of intervals, and the levels of classes and counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmtl.bilevel.level import TaskMeans
from ggmtl.data.curves import Curves
from ggmtl.data.task_features import TaskFeatures
from ggmtl.data.task_terms import Category, KnownTasks, Number, Surface, Term
from ggmtl.estimators.file_format import decode, encode, round_mantissa
from ggmtl.fit.family import Family
from ggmtl.fit.outcome_levels import OutcomeLevel
from ggmtl.fit.outcome_scores import OutcomeScores
from ggmtl.fit.outcomes import OutcomeFamily
from ggmtl.fit.state import FittedState, outcome_of
from ggmtl.inference.intervals import Calibration, calibration, typical_deviations
from ggmtl.losses.task_rows import FoldedRows, TaskRows

Arrays = dict[str, np.ndarray]
_CALIBRATION = ("factor", "freedom", "deviation")
_ROWS = ("design", "target", "offset", "weight", "task")
_SCORES = ("total", "amount", "observed", "expected", "count", "groups", "task_auc")
# What a fit has besides arrays, and of which type it is.
FIT_VALUES: dict[str, type] = {
    "name": str,
    "value": float,
    "iterations": int,
    "status": str,
    "certificate": float,
    "history": tuple,
    "supported": bool,
}
_PATH = {"level", "n_edges", "n_components", "error", "standard_error", "criterion", "chosen"}
_LARGEST_WHOLE = 2**63 - 1
_SUMS = ("errors", "average", "null", "losses", "fold_variance")
# Labels are no measurements; scales and sums of squares may be larger than values whose squares are taken.
_ANY_SIZE, LARGEST_VALUE = ("labels", "scale", "cross"), 1e154


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


def fit_values(plain: dict[str, Any]) -> dict[str, Any]:
    """How the outer problem of a fit ended; a ValueError where these are not what they can be."""
    values = {name: decode(plain[name]) for name in FIT_VALUES}
    wrong = [name for name, kind in FIT_VALUES.items() if not _is_kind(values[name], kind)]
    if wrong or not all(_is_kind(value, float) for value in values["history"]):
        raise ValueError(f"{(wrong or ['history'])[0]} of a fit is of another type than it can be")
    return values


def path_rows(rows: Any) -> list[dict[str, Any]]:
    """The rows of ``path_``; a ValueError where they are none. Those of earlier versions have no weight."""
    kinds = {"level": str, "chosen": bool}
    for row in rows if isinstance(rows, list) else [None]:
        if not isinstance(row, dict) or not row.keys() >= _PATH or not row.keys() <= _PATH | {"weight"}:
            raise ValueError("path_ is no table of levels")
        for name, value in row.items():
            if not (_is_kind(value, kinds.get(name, float)) or (value is None and name not in kinds)):
                raise ValueError(f"{name} of a level is {value!r}")
        if not all(_is_kind(row[name], int) and row[name] >= 0 for name in ("n_edges", "n_components")):
            raise ValueError("path_ has a number of edges or components that is none")
    return rows


def _is_kind(value: Any, kind: type) -> bool:
    """Whether a value is of a kind; whole numbers are numbers, and truth values are not."""
    kinds = (int, float) if kind is float else kind
    if isinstance(value, int) and abs(value) > _LARGEST_WHOLE:
        return False
    return isinstance(value, kinds) and (kind is bool or not isinstance(value, bool))


def check_numbers(arrays: Arrays) -> None:
    """Refuse numbers whose squares overflow, and sums of squares that are negative."""
    for name, values in arrays.items():
        if name.removeprefix("outcome.").split(".")[0] in _SUMS and (values < 0).any():
            raise ValueError(f"{name} has an entry that is no sum of squares")
        if name in _ANY_SIZE or values.dtype != np.float64:
            continue
        # An infinite strength of the shared model leaves no deviations: one model for all.
        infinite = np.isposinf(values) if name.endswith("hub") else False
        # A task whose held-out rows have one class has no AUC.
        missing = np.isnan(values) if name.endswith("task_auc") else False
        if not ((np.abs(values) < LARGEST_VALUE) | infinite | missing).all():
            raise ValueError(f"{name} has an entry that is too large, or none")


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


def pack_outcome(state: FittedState, arrays: Arrays) -> dict[str, Any]:
    """What a model of classes or counts has beside its family, as plain data; arrays are put among `arrays`."""
    outcome = outcome_of(state)
    for k, name in enumerate(state.family.levels):
        if name in state.family.kept:
            level = outcome.levels[name]
            arrays |= {f"level {k}.new_task": level.new_task, f"level {k}.ridge": level.ridge}
    upper = np.triu_indices(len(outcome.common))
    arrays["covariance"] = np.ascontiguousarray(outcome.covariance[:, upper[0], upper[1]]).astype(np.float32)
    arrays |= {"common": outcome.common, "information": outcome.information, "count": state.given["count"]}
    arrays |= {f"scores.{name}": getattr(outcome.scores, name).astype(np.float32) for name in _SCORES}
    if outcome.null is not None:
        arrays["null"] = outcome.null
    facts = {name: encode(getattr(outcome.scores, name), name) for name in ("brier", "auc")}
    return {"loss": outcome.loss, "dispersion": outcome.dispersion, "preferred": outcome.preferred, "scores": facts}


def unpack_outcome(content: dict[str, Any], arrays: Arrays, family: Family) -> OutcomeFamily:
    """What :func:`pack_outcome` put away; a ValueError where it does not fit together."""
    n, p = family.best.coefficients.shape
    levels = {}
    for k, (name, fit) in enumerate(family.levels.items()):
        if name in family.kept:
            new_task, ridge = arrays[f"level {k}.new_task"], arrays[f"level {k}.ridge"]
            _check(new_task, (p, p))
            _check(ridge, (p,))
            levels[name] = OutcomeLevel(fit, np.empty((0, p, p)), new_task, ridge)
    dispersion = float(content["dispersion"])
    if content["preferred"] not in family.levels or not dispersion > 0:
        raise ValueError("the dispersion or the preferred level is not what it can be")
    upper, packed = np.triu_indices(p), arrays["covariance"].astype(np.float64)
    _check(packed, (n, len(upper[0])))
    covariance = np.empty((n, p, p))
    covariance[:, upper[0], upper[1]] = covariance[:, upper[1], upper[0]] = packed
    for name, shape in {"common": (p, p), "information": (p,), "count": (n,)}.items():
        _check(arrays[name], shape)
    for name in _SCORES:
        if arrays[f"scores.{name}"].shape != ((n,) if name != "groups" else (len(arrays["scores.groups"]), 4)):
            raise ValueError(f"scores.{name} is not what it can be")
    scores = OutcomeScores(
        **{name: arrays[f"scores.{name}"].astype(np.float64) for name in _SCORES},
        **{name: decode(content["scores"][name]) for name in ("brier", "auc")},
    )
    if scores.auc is not None and scores.brier is None:
        raise ValueError("a model of counts has no AUC")
    if "null" in arrays:
        _check(arrays["null"], (n,))
    return OutcomeFamily(
        levels,
        dict(family.weights),
        dispersion,
        family.errors,
        family.average,
        arrays.get("null"),
        covariance,
        arrays["common"],
        arrays["information"],
        scores,
        str(content["preferred"]),
        str(content["loss"]),
    )


def pack_rows(kept: FoldedRows) -> Arrays:
    """The rows of classes or counts."""
    arrays = {f"rows.{name}": getattr(kept.rows, name) for name in _ROWS}
    return arrays if kept.folds is None else arrays | {"rows.folds": kept.folds.astype(np.int32)}


def unpack_rows(arrays: Arrays, n: int, p: int, first_scored: int) -> FoldedRows | None:
    """What :func:`pack_rows` put away; None where the file has no rows."""
    if "rows.design" not in arrays:
        return None
    parts = {name: arrays[f"rows.{name}"] for name in _ROWS}
    number, task, folds = len(parts["design"]), parts["task"], arrays.get("rows.folds")
    _check(parts["design"], (number, p))
    for name in _ROWS[1:]:
        _check(parts[name], (number,))
    if folds is not None:
        _check(folds, (number,))
    if task.dtype.kind != "i" or (np.diff(task) < 0).any() or (number and not 0 <= task[0] <= task[-1] < n):
        raise ValueError("a row is that of no task")
    return FoldedRows(TaskRows(**parts, n_tasks=n), folds, first_scored)


def _check(array: np.ndarray, shape: tuple[int, ...]) -> None:
    if array.shape != shape or not np.isfinite(array).all():
        raise ValueError(f"an array of shape {array.shape} should have shape {shape} and finite entries")
