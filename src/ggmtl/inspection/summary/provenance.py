"""Where a model comes from: data, versions, settings as plain values."""

from __future__ import annotations

import hashlib
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np


def fingerprint_of(model: Any) -> str | None:
    """SHA-256 of the statistics that the model was fitted to: equal data, equal fingerprint."""
    statistics = getattr(getattr(model, "state_", None), "statistics", None)
    if statistics is None:
        return getattr(model, "fingerprint_", None)
    digest = hashlib.sha256()
    for array in (statistics.cross, statistics.origin):
        digest.update(np.ascontiguousarray(array, dtype=np.float64).tobytes())
    digest.update("\x00".join(map(str, [*statistics.task_names.tolist(), *statistics.feature_names])).encode())
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Versions of Python, of this package and of those that compute."""
    found = {"python": platform.python_version()}
    for name in ("ggmtl", "numpy", "scipy", "scikit-learn"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def plain(value: Any) -> Any:
    """Numbers, text, lists and None only; what is not finite becomes None, other objects their text."""
    if isinstance(value, np.ndarray):
        return [plain(entry) for entry in value.tolist()]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    return str(value)
