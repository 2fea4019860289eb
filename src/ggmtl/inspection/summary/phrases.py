"""Values in plain form: numbers, counts and names as people write them, settings as JSON, where a model comes from."""

from __future__ import annotations

import hashlib
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np


def listing(names: list[Any], most: int = 8) -> str:
    """Names in a row, those with a comma in quotes; beyond `most`, how many more."""
    shown = ", ".join(f'"{one_line(name)}"' if "," in str(name) else one_line(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def one_line(name: Any) -> str:
    """A name without control characters, so that it can steer neither terminal nor page."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in str(name))


def percent(share: float) -> str:
    """'12 %', '0.4 %'."""
    value = 100.0 * share
    return f"{value:.0f} %" if abs(value) >= 9.5 else f"{value:.1f} %"


def number(value: float | None) -> str:
    """Four significant digits; a dash for nothing."""
    return "–" if value is None else f"{value:.4g}"


def signed(share: float) -> str:
    """'+12 %', '−0.4 %'."""
    return f"{'+' if share >= 0 else '−'}{percent(abs(share))}"


def interval(low: float, high: float) -> str:
    """'95 % interval: 9.1 % to 15 %'."""
    return f"95 % interval: {percent(low)} to {percent(high)}"


def gain_interval(low: float, high: float) -> str:
    """'(95 % interval of the gain: −1.0 % to +12 %)'."""
    return f"(95 % interval of the gain: {signed(low)} to {signed(high)})"


def count(value: int, word: str) -> str:
    """'1 task', '2 tasks'."""
    return f"{value:,} {word}{'' if value == 1 else 's'}"


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
