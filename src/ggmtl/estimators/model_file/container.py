"""Plain data ↔ one compact file.

    magic (8) | version u32 | header length u32 | file size u64 | sha256 of what follows (32) | header | arrays

All numbers are little-endian. The header is JSON: plain data, and for every array its type, shape and place. Arrays are
stored byte plane by byte plane, compressed. Nothing in a file is ever executed; what is not declared is not read.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from ggmtl.errors import ModelFileError
from ggmtl.runtime.files import write_whole

MAGIC = b"\x89GGMTL\r\n"
VERSION = 1
_PREFIX = struct.Struct("<8sIIQ32s")
_MAX_HEADER = 1 << 26
# No zlib stream grows by more than this factor, so no declared size beyond it can be honest.
_MAX_GROWTH = 1100
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
    """Read plain data and arrays, or say what is wrong with the file."""
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


def _expand(entry: dict[str, Any], payload: memoryview) -> np.ndarray:
    kind, shape, offset, stored = entry["dtype"], entry["shape"], entry["offset"], entry["stored"]
    if kind not in _TYPES:
        raise ValueError(f"array type {kind!r} is unknown")
    numbers = [*shape, offset, stored]
    if len(shape) > 8 or any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError("sizes must be whole numbers")
    size = math.prod(shape) * np.dtype(kind).itemsize
    if offset + stored > len(payload) or size > _MAX_GROWTH * stored + 64:
        raise ValueError("an array does not fit into the file")
    decoder = zlib.decompressobj()
    plain = decoder.decompress(payload[offset : offset + stored], size + 1)
    if len(plain) != size or not decoder.eof or decoder.unused_data:
        raise ValueError("an array has not the size declared")
    planes = np.frombuffer(plain, np.uint8).reshape(np.dtype(kind).itemsize, -1)
    return np.ascontiguousarray(planes.T).reshape(-1).view(kind).reshape(shape)
