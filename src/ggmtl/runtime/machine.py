"""Threads and memory of the machine.

Loops over tasks are shared among threads: kernels, matrix products and sparse products release Python's lock. The
matrices of one task are small, so threads of BLAS inside them gain nothing, and wait for one another on a busy machine.

Memory is asked for before it is taken: a clear refusal, instead of a machine that swaps or a process that is killed.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any

from threadpoolctl import ThreadpoolController

from ggmtl.errors import MemoryShortageError
from ggmtl.runtime.sizes import SIZES


def number_of_threads() -> int:
    """``GGMTL_THREADS``, else ``OMP_NUM_THREADS``, else the cores that this process may use."""
    for variable in ("GGMTL_THREADS", "OMP_NUM_THREADS"):
        given = os.environ.get(variable, "")
        if given.isdigit() and int(given) > 0:
            return int(given)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def _blas() -> ThreadpoolController:
    # Looking for the libraries takes some milliseconds.
    return ThreadpoolController().select(user_api="blas")


class _Limit:
    """BLAS on one thread from the first caller's entry until the last one's leave: calls of several threads overlap."""

    def __init__(self):
        self._lock, self._inside, self._limit = threading.Lock(), 0, ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._limit.enter_context(_blas().limit(limits=1))
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._limit.close()


@functools.cache
def _limit(process: int) -> _Limit:
    # One per process: a child of a fork knows no callers yet.
    return _Limit()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """BLAS and LAPACK on one thread; also a decorator."""
    with _limit(os.getpid()):
        yield


@functools.cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    # One pool per process: threads do not survive a fork.
    return ThreadPoolExecutor(threads, thread_name_prefix="ggmtl")


def over_tasks(function: Callable[[int, int], Any], n: int, numbers: int, least: int = SIZES.threads) -> list[Any]:
    """``function(first, last)`` on consecutive ranges that make up 0 … n − 1, and what it returns, in order.

    Parameters
    ----------
    function : callable
    n : int
        Tasks.
    numbers : int
        Numbers that the whole loop reads.
    least : int
        With fewer numbers than this there is one range.
    """
    threads = number_of_threads() if numbers >= least else 1
    if threads == 1 or n < threads:
        return [function(0, n)]
    bounds = [n * k // threads for k in range(threads + 1)]
    waiting = [_pool(threads, os.getpid()).submit(function, *pair) for pair in pairwise(bounds[1:])]
    # The first range is this thread's own.
    return [function(0, bounds[1]), *(future.result() for future in waiting)]


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
