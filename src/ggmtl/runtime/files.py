"""Files that appear whole or not at all, and the compact file of plain data and arrays.

    magic (8) | version u32 | header length u32 | file size u64 | sha256 of what follows (32) | header | arrays

All numbers are little-endian. The header is JSON: plain data, and for every array its type, shape and place. Arrays are
stored byte plane by byte plane, compressed. Nothing in a file is executed; undeclared bytes are not read.
"""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import json
import math
import os
import stat
import struct
import uuid
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ggmtl.errors import ModelFileError

MAGIC = b"\x89GGMTL\r\n"
VERSION = 1
_PREFIX = struct.Struct("<8sIIQ32s")
_MAX_HEADER = 1 << 26
# No zlib stream grows by more than this factor, so a larger declared size must be wrong.
_MAX_GROWTH = 1100
_TYPES = ("<f8", "<f4", "<i8", "<i4", "<i2", "|i1", "<u8", "<u4", "<u2", "|u1", "|b1")


def write_whole(path: str | Path, content: bytes) -> None:
    """Write a file at once: a reader sees the old content or the new, never a part.

    A link is followed, and a file that is there keeps its mode. Devices and pipes are refused.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        mode = target.stat().st_mode if target.exists() else None
        if mode is not None and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise OSError(errno.EINVAL, "Not a regular file")
        temporary.write_bytes(content)
        if mode is not None:
            temporary.chmod(stat.S_IMODE(mode))
        os.replace(temporary, target)
    except OSError as error:
        if error.errno is None:
            raise
        # The user asked for `path`; the name of the temporary file would mean nothing to them.
        raise type(error)(error.errno, error.strerror, str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_csv(path: str | Path, rows: Iterable[Sequence[Any]], separator: str = ",") -> None:
    """Write a CSV file at once. A carriage return alone ends a line for many readers, so such cells are quoted."""
    rows = list(rows)
    odd = any("\r" in str(cell) for row in rows for cell in row)
    text = io.StringIO(newline="")
    quoting = csv.QUOTE_ALL if odd else csv.QUOTE_MINIMAL
    csv.writer(text, delimiter=separator, lineterminator="\n", quoting=quoting).writerows(rows)
    write_whole(path, text.getvalue().encode("utf-8", errors="replace"))


def write_file(path: str | Path, content: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Write plain data and arrays; the file appears whole or not at all."""
    table, chunks, offset = {}, [], 0
    for name, array in arrays.items():
        stored = _compress(array)
        table[name] = {"dtype": _type_of(array), "shape": list(array.shape), "offset": offset, "stored": len(stored)}
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
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError, zlib.error, MemoryError) as error:
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


# ---------------------------------------------------------------------- records as plain data and arrays


def pack(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Plain data of records, with the arrays put aside; numbers that are not whole are arrays too, so that all fit."""
    if value is None or isinstance(value, (bool, str, int)):
        return value
    if isinstance(value, (float, np.generic, np.ndarray)):
        name = f"a{len(arrays)}"
        arrays[name] = np.asarray(value)
        return {"$array": name, "plain": not isinstance(value, np.ndarray)}
    if isinstance(value, (list, tuple)):
        if len(value) > 1 and all(type(item) is float for item in value):
            return {"$list": pack(np.array(value), arrays), "tuple": isinstance(value, tuple)}
        return {"$list": [pack(item, arrays) for item in value], "tuple": isinstance(value, tuple)}
    if isinstance(value, dict):
        return {"$dict": {str(key): pack(item, arrays) for key, item in value.items()}}
    if is_dataclass(value):
        content = {item.name: pack(getattr(value, item.name), arrays) for item in fields(value)}
        return {"$kind": type(value).__name__, "fields": content}
    raise ModelFileError(f"A file cannot hold an object of type {type(value).__name__}.")


def unpack(value: Any, arrays: dict[str, np.ndarray], kinds: Mapping[str, type]) -> Any:
    """The inverse of :func:`pack`; `kinds` are the classes that records may have, by name."""
    if not isinstance(value, dict):
        return value
    if "$array" in value:
        array = arrays[value["$array"]]
        return array.item() if value["plain"] else array
    if "$list" in value:
        items = value["$list"]
        if isinstance(items, dict):
            items = unpack(items, arrays, kinds).tolist()
        else:
            items = [unpack(item, arrays, kinds) for item in items]
        return tuple(items) if value["tuple"] else items
    if "$dict" in value:
        return {key: unpack(item, arrays, kinds) for key, item in value["$dict"].items()}
    if "$kind" in value:
        content = {key: unpack(item, arrays, kinds) for key, item in value["fields"].items()}
        return kinds[value["$kind"]](**content)
    raise ValueError("a value has an unknown form")
