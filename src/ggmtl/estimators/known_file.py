"""What is known about the tasks, as plain data and arrays of a model file, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmtl.bilevel.level import TaskMeans
from ggmtl.data.task_features import TaskFeatures
from ggmtl.design.task_table import Category, KnownTasks, Number, Surface, Term

Arrays = dict[str, np.ndarray]


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
