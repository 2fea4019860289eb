"""Parameters and task labels as plain data, and back."""

from __future__ import annotations

import dataclasses
import math
from pathlib import PurePath
from typing import Any

import numpy as np

from ggmtl.errors import ParameterError
from ggmtl.graph.candidates import KNN, Candidates, Complete, Coordinates, Pairs

_RULES = {rule.__name__: rule for rule in (KNN, Complete, Coordinates, Pairs)}


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


# Half the largest float32, since rounding may double a value's last power of two, and the smallest normal one.
_LARGEST_SINGLE, _SMALLEST_SINGLE = 1.7e38, 1.2e-38


def round_mantissa(values: np.ndarray, bits: int = 12) -> np.ndarray:
    """float32 with few bits in the mantissa, which compress well; for values that are estimates anyway.

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
