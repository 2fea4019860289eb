"""Plain data and arrays ↔ one compact file, and the plain form of parameters and labels.

    magic (8) | version u32 | header length u32 | file size u64 | sha256 of what follows (32) | header | arrays

All numbers are little-endian. The header is JSON: plain data, and for every array its type, shape and place. Arrays are
stored byte plane by byte plane, compressed. Nothing in a file is executed; undeclared bytes are not read.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import struct
import zlib
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from ggmtl.errors import ModelFileError, ParameterError
from ggmtl.graph.candidates import KNN, Candidates, Complete, Coordinates, Pairs
from ggmtl.runtime.files import write_whole

MAGIC = b"\x89GGMTL\r\n"
VERSION = 1
_PREFIX = struct.Struct("<8sIIQ32s")
_MAX_HEADER = 1 << 26
# No zlib stream grows by more than this factor, so a larger declared size must be wrong.
_MAX_GROWTH = 1100
_RULES = {rule.__name__: rule for rule in (KNN, Complete, Coordinates, Pairs)}
# Half the largest float32, since rounding may double a value's last power of two, and the smallest normal one.
_LARGEST_SINGLE, _SMALLEST_SINGLE = 1.7e38, 1.2e-38
_TYPES = ("<f8", "<f4", "<i8", "<i4", "<i2", "|i1", "<u8", "<u4", "<u2", "|u1", "|b1")


def write_file(path: str | Path, content: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Write plain data and arrays; the file appears whole or not at all."""
    table, chunks, offset = {}, [], 0
    for name, array in arrays.items():
        stored = _compress(array)
        table[name] = {
            "dtype": _type_of(array),
            "shape": list(array.shape),
            "offset": offset,
            "stored": len(stored),
        }
        chunks.append(stored)
        offset += len(stored)
    header = json.dumps({"content": content, "arrays": table}, allow_nan=False, separators=(",", ":")).encode()
    if len(header) > _MAX_HEADER:
        raise ModelFileError(f"The header would take {len(header):,} bytes; at most {_MAX_HEADER:,} are allowed.")
    body = b"".join([header, *chunks])
    prefix = _PREFIX.pack(MAGIC, VERSION, len(header), _PREFIX.size + len(body), hashlib.sha256(body).digest())
    write_whole(path, prefix + body)


def read_file(path: str | Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read plain data and arrays, or raise an error that describes the damage."""
    try:
        raw = Path(path).read_bytes()
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror}.") from error
    header, payload = _split(raw, path)
    try:
        parsed = json.loads(header.decode("utf-8"), parse_constant=_refuse_constant)
        content, table = parsed["content"], parsed["arrays"]
        if not isinstance(content, dict) or not isinstance(table, dict):
            raise ValueError("its parts are not tables")
        _check_places(table, payload)
        return content, {str(name): _expand(entry, payload) for name, entry in table.items()}
    except (
        KeyError,
        TypeError,
        ValueError,
        OverflowError,
        RecursionError,
        zlib.error,
        MemoryError,
    ) as error:
        raise ModelFileError(f"{path} is damaged: its header does not describe its content ({error}).") from error


def _split(raw: bytes, path: str | Path) -> tuple[bytes, memoryview]:
    if raw[: len(MAGIC)] != MAGIC[: len(raw)] or not raw:
        raise ModelFileError(f"{path} is not a ggmtl model file.")
    if len(raw) < _PREFIX.size:
        raise ModelFileError(f"{path} is truncated: it has {len(raw)} bytes.")
    _, version, header_size, size, digest = _PREFIX.unpack_from(raw)
    if version > VERSION:
        raise ModelFileError(
            f"{path} was written in format {version}; this version of ggmtl reads up to {VERSION}. "
            "Upgrade with: pip install --upgrade ggmtl"
        )
    if len(raw) != size:
        kind = "truncated" if len(raw) < size else "longer than declared"
        raise ModelFileError(f"{path} is {kind}: {size:,} bytes were written and {len(raw):,} are there.")
    if header_size > min(_MAX_HEADER, size - _PREFIX.size):
        raise ModelFileError(f"{path} is damaged: it declares a header of {header_size:,} bytes.")
    body = memoryview(raw)[_PREFIX.size :]
    if version < 1 or hashlib.sha256(body).digest() != digest:
        raise ModelFileError(f"{path} is damaged: its checksum does not match. Save or copy the model again.")
    return bytes(body[:header_size]), body[header_size:]


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _type_of(array: np.ndarray) -> str:
    name = array.dtype.newbyteorder("<").str
    if name not in _TYPES:
        raise ModelFileError(f"Arrays of type {array.dtype} cannot be stored.")
    return name


def _compress(array: np.ndarray) -> bytes:
    plain = np.ascontiguousarray(array, dtype=_type_of(array))
    planes = plain.reshape(-1).view(np.uint8).reshape(-1, plain.dtype.itemsize).T
    return zlib.compress(np.ascontiguousarray(planes).tobytes(), 6)


def _check_places(table: dict[str, Any], payload: memoryview) -> None:
    """Refuse arrays that do not lie one after the other, or that no stream of their length can hold.

    So all arrays together take at most ``_MAX_GROWTH`` times the length of the file, and no byte is read twice.
    """
    for entry in table.values():
        if entry["dtype"] not in _TYPES:
            raise ValueError(f"array type {entry['dtype']!r} is unknown")
        numbers = [*entry["shape"], entry["offset"], entry["stored"]]
        whole = all(isinstance(number, int) and not isinstance(number, bool) and number >= 0 for number in numbers)
        if len(entry["shape"]) > 8 or not whole:
            raise ValueError("sizes must be whole numbers")
        if _size_of(entry) > _MAX_GROWTH * entry["stored"] + 64:
            raise ValueError("an array does not fit into the file")
    end = 0
    for entry in sorted(table.values(), key=lambda entry: entry["offset"]):
        if entry["offset"] != end:
            raise ValueError("arrays overlap, or leave gaps")
        end += entry["stored"]
    if end != len(payload):
        raise ValueError("the arrays do not fill the file")


def _size_of(entry: dict[str, Any]) -> int:
    """Bytes of an array in memory."""
    return math.prod(entry["shape"]) * np.dtype(entry["dtype"]).itemsize


def _expand(entry: dict[str, Any], payload: memoryview) -> np.ndarray:
    kind, shape, offset, stored = entry["dtype"], entry["shape"], entry["offset"], entry["stored"]
    size = _size_of(entry)
    decoder = zlib.decompressobj()
    plain = decoder.decompress(payload[offset : offset + stored], size + 1)
    if len(plain) != size or not decoder.eof or decoder.unused_data:
        raise ValueError("an array has not the size declared")
    planes = np.frombuffer(plain, np.uint8).reshape(np.dtype(kind).itemsize, -1)
    return np.ascontiguousarray(planes.T).reshape(-1).view(kind).reshape(shape)


# ---------------------------------------------------------------------- plain forms of values


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
