"""Plain forms of values and arrays in a model file, and which of them a fit can give.

Every array that is read is checked against a table of shapes and bounds before anything is made of it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Any

import numpy as np

from ggmtl.errors import ParameterError
from ggmtl.graph.candidates import KNN, Candidates, Complete, Coordinates, Pairs

_RULES = {rule.__name__: rule for rule in (KNN, Complete, Coordinates, Pairs)}
# Half the largest float32, since rounding may double a value's last power of two, and the smallest normal one.
_LARGEST_SINGLE, _SMALLEST_SINGLE = 1.7e38, 1.2e-38
Arrays = dict[str, np.ndarray]
# The squares of larger values overflow.
_LARGEST = 1e154
# Fields of a fit that are not arrays, and their types.
FIT_VALUES: dict[str, type] = {
    "name": str,
    "value": float,
    "iterations": int,
    "status": str,
    "certificate": float,
    "history": tuple,
    "supported": bool,
    "search": str,
}
_PATH = {"level", "n_edges", "n_components", "error", "standard_error", "criterion", "chosen"}
_LARGEST_WHOLE = 2**63 - 1


def encode(value: Any, name: str) -> Any:
    """A parameter as plain JSON; `name` is for the message that refuses what has no plain form."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return {"$time": [value.dtype.str, int(value.astype(np.int64))]}
    if isinstance(value, np.generic):
        return encode(value.item(), name)
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, (list, tuple)):
        items = [encode(item, name) for item in value]
        return items if isinstance(value, list) else {"$tuple": items}
    if isinstance(value, dict):
        return {"$dict": [[encode(key, name), encode(item, name)] for key, item in value.items()]}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufUMm":
        return {"$array": [encode(item, name) for item in value.ravel()], "shape": list(value.shape)}
    if isinstance(value, Candidates) and dataclasses.is_dataclass(value) and type(value).__name__ in _RULES:
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {"$rule": type(value).__name__, "fields": encode(fields, name)}
    raise ParameterError(
        f"{name} holds an object of type {type(value).__name__}, which a model file cannot store. Replace it by plain "
        f"values first, for example with set_params({name.split('.')[0]}=…)."
    )


def decode(value: Any) -> Any:
    """The inverse of :func:`encode`."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "$float" in value:
        return float(value["$float"])
    if "$tuple" in value:
        return tuple(decode(value["$tuple"]))
    if "$time" in value:
        kind, number = value["$time"]
        if kind[:3] not in ("<M8", "<m8"):
            raise ValueError(f"time type {kind!r} is unknown")
        return np.int64(number).view(kind)
    if "$dict" in value:
        return {decode(key): decode(item) for key, item in value["$dict"]}
    if "$array" in value:
        return np.array(decode(value["$array"])).reshape(value["shape"])
    if "$rule" in value:
        return _RULES[value["$rule"]](**decode(value["fields"]))
    raise ValueError("a value has an unknown form")


def pack_labels(labels: np.ndarray) -> tuple[str, dict[str, np.ndarray]]:
    """Task labels as arrays: text as UTF-8 with lengths, numbers as they are, times as whole numbers."""
    kind = labels.dtype.kind
    if kind == "U":
        parts = [label.encode("utf-8", "surrogatepass") for label in labels.tolist()]
        text = np.frombuffer(b"".join(parts), np.uint8)
        return "text", {"labels": text, "label_lengths": np.array([len(part) for part in parts], np.int32)}
    if kind in "mM":
        return labels.dtype.newbyteorder("<").str, {"labels": labels.astype(labels.dtype.newbyteorder("<")).view("<i8")}
    if kind in "biuf":
        return "numbers", {"labels": labels}
    raise ParameterError(
        f"Task labels of type {type(labels.flat[0]).__name__} cannot be stored. Use text, numbers or datetime64."
    )


def unpack_labels(kind: str, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The inverse of :func:`pack_labels`."""
    labels = arrays["labels"]
    if kind == "numbers":
        return labels
    if kind == "text":
        ends = np.cumsum(arrays["label_lengths"])
        if len(ends) == 0 or (arrays["label_lengths"] < 0).any() or ends[-1] != len(labels):
            raise ValueError("the task names have not the lengths declared")
        raw = labels.tobytes()
        starts = ends - arrays["label_lengths"]
        return np.array([raw[a:b].decode("utf-8", "surrogatepass") for a, b in zip(starts, ends)])
    if kind[:3] not in ("<M8", "<m8"):
        raise ValueError(f"task labels of kind {kind!r} are unknown")
    return labels.astype("<i8").view(kind)


def round_mantissa(values: np.ndarray, bits: int = 12) -> np.ndarray:
    """float32 with few bits in the mantissa, which compresses well, for values that need little precision.

    Values outside the range of float32 stay as they are.
    """
    size = np.abs(values)[np.isfinite(values) & (np.asarray(values) != 0)]
    if size.max(initial=1.0) > _LARGEST_SINGLE or size.min(initial=1.0) < _SMALLEST_SINGLE:
        return np.asarray(values, dtype=np.float64)
    whole = np.asarray(values, dtype=np.float32).view(np.uint32)
    drop = np.uint32(23 - bits)
    half = np.uint32(1) << (drop - np.uint32(1))
    finite = np.isfinite(values)
    rounded = ((whole + half) >> drop) << drop
    return np.where(finite, rounded, whole).astype(np.uint32).view(np.float32)


def fit_values(plain: dict[str, Any]) -> dict[str, Any]:
    """Fields of a fit that are not arrays; a ValueError where one has another type. Old files have no `search`."""
    values = {name: decode(({"search": ""} | plain)[name]) for name in FIT_VALUES}
    wrong = [name for name, kind in FIT_VALUES.items() if not is_kind(values[name], kind)]
    if wrong or not all(is_kind(value, float) for value in values["history"]):
        raise ValueError(f"{(wrong or ['history'])[0]} of a fit is of another type than it can be")
    return values


def path_rows(rows: Any, n_levels: int) -> list[dict[str, Any]]:
    """The rows of ``path_``, or a ValueError. Those of earlier versions have no weight."""
    kinds = {"level": str, "chosen": bool}
    if not isinstance(rows, list) or len(rows) != n_levels:
        raise ValueError("path_ has another number of rows than there are levels")
    for row in rows:
        if not isinstance(row, dict) or not row.keys() >= _PATH or not row.keys() <= _PATH | {"weight"}:
            raise ValueError("path_ is no table of levels")
        for name, value in row.items():
            if not (is_kind(value, kinds.get(name, float)) or (value is None and name not in kinds)):
                raise ValueError(f"{name} of a level is {value!r}")
        if not all(is_kind(row[name], int) and row[name] >= 0 for name in ("n_edges", "n_components")):
            raise ValueError("path_ has a number of edges or components that is none")
    return rows


def is_kind(value: Any, kind: type) -> bool:
    """Whether a value is of a kind; whole numbers are numbers, and truth values are not."""
    kinds = (int, float) if kind is float else kind
    if isinstance(value, int) and abs(value) > _LARGEST_WHOLE:
        return False
    return isinstance(value, kinds) and (kind is bool or not isinstance(value, bool))


# ---------------------------------------------------------------------- arrays


@dataclasses.dataclass(frozen=True)
class ArrayRule:
    """What an array may be.

    Parameters
    ----------
    shape : str
        One word per dimension. A number is a length; equal letters are equal lengths, in all arrays of a file.
    kind : str
        Letters of NumPy's kinds of types.
    least, above, most : float
        Bounds of floating-point values: least ≤ value, above < value, |value| < most.
    also : callable, optional
        Which values are allowed beyond the bounds.
    """

    shape: str
    kind: str = "f"
    least: float = -np.inf
    above: float = -np.inf
    most: float = _LARGEST
    also: Callable[[np.ndarray], np.ndarray] | None = None


def _not_finite(values: np.ndarray) -> np.ndarray:
    return ~np.isfinite(values)


# n tasks, n+1 with one more that is new, d features, c columns (features and curves), p coefficients of a task, s of
# them shown to users, l levels, o = c + 1 and z = c + 2 columns of sums; "half_p" entries are those on and above the
# diagonal of a p × p matrix. All other letters take the length that the file gives them first.
_ARRAYS = {
    # The level whose graph is shown, and the averaged ones.
    "coefficients": ArrayRule("n p"),
    "coupling": ArrayRule("p", least=0),
    # An infinite strength of the shared model leaves no deviations: one model for all.
    "hub": ArrayRule("p", least=0, also=np.isposinf),
    "precisions": ArrayRule("n", above=0),
    "constant": ArrayRule("p", kind="bif"),
    "edges": ArrayRule("m 2", kind="i"),
    "edge_values": ArrayRule("m", least=0),
    "graph.shown": ArrayRule("m", kind="b"),
    "level[0-9]*.coefficients": ArrayRule("n p"),
    "level[0-9]*.hub": ArrayRule("p", least=0, also=np.isposinf),
    "level[0-9]*.precisions": ArrayRule("n", above=0),
    "level[0-9]*.precision": ArrayRule("p p"),
    # Held-out errors. Losses by level, and the variance of their gains between folds.
    "errors.squared": ArrayRule("l k n", least=0),
    "errors.count": ArrayRule("k n", least=0),
    "average.squared": ArrayRule("a n", least=0),
    "losses.*": ArrayRule("n", least=0),
    "fold_variance.*": ArrayRule("1", least=0),
    # Units, standard errors and intervals.
    "center": ArrayRule("c"),
    "scale": ArrayRule("c", above=0, most=np.inf),
    "standard_errors": ArrayRule("n s", least=0, also=_not_finite),
    "noise_ratios": ArrayRule("n", above=0),
    "interval.factor": ArrayRule("n+1", above=0),
    "interval.freedom": ArrayRule("n+1", above=2),
    "interval.deviation": ArrayRule("n+1", above=0),
    # Curves and task features.
    "curves.features": ArrayRule("f", kind="i"),
    "curves.knots": ArrayRule("f 4"),
    "curves.coefficients": ArrayRule("f 6 3"),
    "curves.slopes": ArrayRule("f 3"),
    "curves.means": ArrayRule("f"),
    "known.effects": ArrayRule("q p"),
    "known.strength": ArrayRule("q p", above=0),
    "known.[0-9]*": ArrayRule("n", kind="fi", also=np.isnan),
    "surface.origin": ArrayRule("w"),
    "surface.landmarks": ArrayRule("g w"),
    "surface.basis": ArrayRule("g h"),
    "surface.center": ArrayRule("h"),
    # Sums of rows.
    "cross": ArrayRule("x n half_z", most=np.inf),
    "origin": ArrayRule("o"),
    # Classes and counts, and their rows.
    "level [0-9]*.new_task": ArrayRule("p p"),
    "level [0-9]*.ridge": ArrayRule("p"),
    "covariance": ArrayRule("n half_p"),
    "common": ArrayRule("p p"),
    "information": ArrayRule("p"),
    "count": ArrayRule("n", kind="fi"),
    "null": ArrayRule("n", least=0),
    "limits": ArrayRule("2 p"),
    "scores.groups": ArrayRule("y 4", also=_not_finite),
    # A task whose held-out rows have one class has no AUC.
    "scores.*": ArrayRule("n", also=_not_finite),
    "rows.design": ArrayRule("r p"),
    "rows.task": ArrayRule("r", kind="i"),
    "rows.folds": ArrayRule("r", kind="i"),
    "rows.*": ArrayRule("r"),
}


def check_arrays(arrays: Arrays, lengths: Mapping[str, int]) -> None:
    """Refuse arrays of another shape or kind than the table has, and values that no fit can give."""
    known = dict(lengths)
    for name, array in arrays.items():
        rule = next((rule for pattern, rule in _ARRAYS.items() if fnmatchcase(name, pattern)), None)
        if rule is None:
            continue
        words = rule.shape.split()
        wanted = [int(word) if word.isdigit() else known.get(word, size) for word, size in zip(words, array.shape)]
        if array.ndim != len(words) or list(array.shape) != wanted:
            raise ValueError(f"{name} has shape {array.shape}, not {tuple(wanted)}")
        known |= {word: size for word, size in zip(words, array.shape) if not word.isdigit()}
        if array.dtype.kind not in rule.kind:
            raise ValueError(f"{name} holds values of type {array.dtype}")
        if array.dtype.kind == "f" and not _allowed(array, rule).all():
            raise ValueError(f"{name} has an entry that no fit can give")


def _allowed(array: np.ndarray, rule: ArrayRule) -> np.ndarray:
    values = array.astype(np.float64, copy=False)
    inside = (values >= rule.least) & (values > rule.above) & (np.abs(values) < rule.most)
    return inside if rule.also is None else inside | rule.also(values)


def packed(prefix: str, record: object, names: tuple[str, ...]) -> Arrays:
    """Fields of a record as arrays under a prefix; those that are None are left out."""
    values = {name: getattr(record, name) for name in names}
    return {f"{prefix}{name}": value for name, value in values.items() if value is not None}


def under(prefix: str, arrays: Arrays) -> Arrays:
    """The arrays whose names begin with the prefix, without it."""
    return {name.removeprefix(prefix): values for name, values in arrays.items() if name.startswith(prefix)}


def upper(matrices: np.ndarray) -> np.ndarray:
    """Entries on and above the diagonal of symmetric matrices, shape (…, half)."""
    rows, columns = np.triu_indices(matrices.shape[-1])
    return np.ascontiguousarray(matrices[..., rows, columns])


def symmetric(entries: np.ndarray, size: int) -> np.ndarray:
    """The inverse of :func:`upper`."""
    rows, columns = np.triu_indices(size)
    out = np.empty((*entries.shape[:-1], size, size))
    out[..., rows, columns] = out[..., columns, rows] = entries
    return out
