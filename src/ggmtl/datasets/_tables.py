"""Columns of a CSV file, arrays of an NPZ or MATLAB file; errors name file, column and row."""

from __future__ import annotations

import csv
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from scipy.io import loadmat
from scipy.io.matlab import MatReadError

from ggmtl.errors import InputError, did_you_mean


def read_csv(path: Path, required: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Columns of a comma-separated file with a header line, as arrays of strings."""
    with path.open(newline="", encoding="utf-8-sig") as stream:
        rows = [row for row in csv.reader(stream) if row]
    if len(rows) < 2:
        raise InputError(f"{path} must have a header line and at least one row. Got {len(rows)} lines instead.")
    header = [name.strip() for name in rows[0]]
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(header):
            raise InputError(f"{path}, line {number}: {len(header)} fields were expected. Got {len(row)} instead.")
    if len(set(header)) < len(header):
        raise InputError(f"{path} must have columns of different names. Got {', '.join(header)} instead.")
    _check_present(path, required, header, "column")
    return dict(zip(header, np.array(rows[1:]).T))


def read_npz(path: Path, required: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Arrays of an NPZ file; pickled objects are refused."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, BadZipFile, AttributeError, TypeError) as error:
        raise InputError(f"{path} must be an NPZ file of plain arrays ({error}).") from error
    _check_present(path, required, list(arrays), "array")
    return arrays


def read_mat(path: Path, required: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Variables of a MATLAB 5 file."""
    try:
        variables = loadmat(path)
    except (ValueError, TypeError, NotImplementedError, MatReadError) as error:
        raise InputError(f"{path} must be a MATLAB 5 file ({error}).") from error
    _check_present(path, required, [name for name in variables if not name.startswith("__")], "variable")
    return variables


def numbers(path: Path, columns: dict[str, np.ndarray], name: str) -> np.ndarray:
    """One column (or array) as finite float64 values."""
    try:
        values = np.asarray(columns[name]).astype(np.float64)
    except ValueError as error:
        raise InputError(f"{path}: {name!r} must be numeric ({error}).") from error
    bad = ~np.isfinite(values)
    if bad.any():
        where = tuple(int(k) for k in np.argwhere(bad)[0])
        raise InputError(
            f"{path}: {name!r} has {int(bad.sum())} missing or infinite values (first at {where}). "
            "Fill them or drop those rows."
        )
    return values


def _check_present(path: Path, required: tuple[str, ...], present: list[str], kind: str) -> None:
    for name in required:
        if name not in present:
            raise InputError(
                f"{path} has no {kind} {name!r}.{did_you_mean(name, present)} Needed: {', '.join(required)}. "
                f"Got {', '.join(present[:12])}{' …' if len(present) > 12 else ''} instead."
            )
