"""Numbers, counts and names as people write them."""

from __future__ import annotations

from typing import Any


def listing(names: list[Any], most: int = 8) -> str:
    """Names in a row; beyond `most`, how many more."""
    shown = ", ".join(one_line(name) for name in names[:most])
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


def figure(value: float) -> str:
    """Four significant digits, zeros too: '0.8120', '1992'."""
    return f"{value:#.4g}".rstrip(".")


def signed(share: float) -> str:
    """'+12 %', '−0.4 %'."""
    return f"{'+' if share >= 0 else '−'}{percent(abs(share))}"


def interval(gain: dict[str, float]) -> str:
    """'9–15 %'."""
    digits = 0 if abs(100.0 * gain.get("gain", gain["high"])) >= 9.5 else 1
    return f"{100.0 * gain['low']:.{digits}f}–{100.0 * gain['high']:.{digits}f} %"


def count(value: int, word: str) -> str:
    """'1 task', '2 tasks'."""
    return f"{value:,} {word}{'' if value == 1 else 's'}"
