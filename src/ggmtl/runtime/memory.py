"""Ask for memory before it is taken: a clear refusal instead of a machine that swaps or a process that is killed."""

from __future__ import annotations

import os

from ggmtl.errors import MemoryShortageError

# Below this many bytes the system is not asked.
_SMALL = 1 << 28


def require_memory(need: float, purpose: str, remedy: str) -> None:
    """Refuse where `need` bytes are more than the system has left; say need, have and remedy.

    Parameters
    ----------
    need : float
        Bytes.
    purpose : str
        What they are for, as in "the statistics of 1,000 tasks".
    remedy : str
        A sentence.

    Examples
    --------
    >>> require_memory(1e3, "a thousand bytes", "Close a window.")
    """
    if need < _SMALL:
        return
    have = available_memory()
    if have is not None and need > have:
        raise MemoryShortageError(
            f"{purpose[:1].upper()}{purpose[1:]} would take about {need / 1e9:.1f} GB, and {have / 1e9:.1f} GB are "
            f"available. {remedy}"
        )


def available_memory() -> int | None:
    """Bytes that can be taken without swapping; None where the system does not say."""
    limit = _group_limit()
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            table = dict(line.split(":", 1) for line in lines)
        free = int(table["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        try:
            free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (AttributeError, OSError, ValueError):
            return limit
    return free if limit is None else min(free, limit)


def _group_limit() -> int | None:
    """What is left of the limit of a container, files that can be dropped not counted."""
    try:
        most, now, parts = (_read(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current", "stat"))
        droppable = next(line.split()[1] for line in parts.splitlines() if line.startswith("inactive_file "))
        return int(most) - int(now) + int(droppable)
    except (OSError, ValueError, StopIteration):
        return None


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()
