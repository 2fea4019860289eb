"""What a fit has done so far: in memory and, where wanted, in a file from which a killed fit goes on.

A journal has *parts*, computed once and kept whole, and *steps*, the latest state of each search in progress. The file
holds plain data and arrays, never code, and a fingerprint of the data and parameters that it belongs to.
``verbose_logging`` prints the package's log while a fit runs.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ggmtl.errors import ModelFileError, ParameterError, warn_user
from ggmtl.runtime.files import pack, read_file, unpack, write_file

logger = logging.getLogger("ggmtl")


@contextmanager
def verbose_logging(verbose: int) -> Iterator[None]:
    """Show this package's log on standard error while a verbose call runs, unless the user has set up logging."""
    if not verbose or logger.hasHandlers():
        yield
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("[ggmtl] %(message)s"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if verbose == 1 else logging.DEBUG)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


T = TypeVar("T")
State = dict[str, Any]

# Seconds between two writes, and the least ratio of all time to the time spent writing.
INTERVAL, _PATIENCE = 2.0, 10.0
_KIND = "checkpoint"
# No room on the disk, or none left to this user. Other failures are mistakes in the path and end the fit at once.
_FULL = (errno.ENOSPC, errno.EDQUOT)
# Sketches of the data that differ by less are of the same data, summed in another order.
_SAME = 1e-9


@dataclass
class _Store:
    """Parts and steps by name, and the file that they are written to."""

    parts: dict[str, Any] = field(default_factory=dict)
    steps: dict[str, State] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    write: Callable[[bool], None] | None = None
    pause: float = 0.0
    last: float = 0.0
    warned: bool = False

    def changed(self, force: bool = False, finished: bool = False) -> None:
        """Write the file if it is time to."""
        now = time.monotonic()
        if self.write is None or not (force or now - self.last >= self.pause):
            return
        try:
            self.write(finished)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            self._warn(error)
        self.last = time.monotonic()
        self.pause = max(INTERVAL, _PATIENCE * (self.last - now)) if INTERVAL > 0 else 0.0

    def _warn(self, error: OSError) -> None:
        """A fit is worth more than its record: it goes on, and the next write may find room."""
        if not self.warned:
            reason = f"{error.filename or 'the file'}: {error.strerror}"
            warn_user(
                f"The checkpoint cannot be written ({reason}). The fit goes on; its last record, if any, is kept."
            )
        self.warned = True

    def drop(self, prefix: str) -> None:
        for table in (self.parts, self.steps, self.notes):
            for key in [key for key in table if key.startswith(prefix)]:
                del table[key]


@dataclass(frozen=True)
class Journal:
    """A record of parts and steps under a prefix; by default a fresh one in memory.

    Examples
    --------
    >>> journal = Journal()
    >>> journal.once("answer", lambda: 42)
    42
    >>> journal.once("answer", lambda: 43)
    42
    """

    store: _Store = field(default_factory=_Store)
    prefix: str = ""

    def inside(self, name: str) -> Journal:
        """The journal of a piece of work with a name; it is dropped when the part of that name is kept."""
        return replace(self, prefix=f"{self.prefix}{name}/")

    def once(self, name: str, compute: Callable[[], T]) -> T:
        """The part of this name: from the journal, or computed now and kept."""
        key = self.prefix + name
        if key not in self.store.parts:
            value = compute()
            self.store.drop(key + "/")
            self.store.parts[key] = value
            self.store.changed()
        return self.store.parts[key]

    def known(self, name: str) -> Any:
        """The part of this name, None where it is not there."""
        return self.store.parts.get(self.prefix + name)

    def step(self, name: str, **state: Any) -> None:
        """Remember where a search is; written every few seconds."""
        self.store.steps[self.prefix + name] = state
        self.store.changed()

    def resume(self, name: str) -> State | None:
        """Where a search was, None where it has not begun."""
        return self.store.steps.get(self.prefix + name)

    def note(self, name: str, value: Any) -> None:
        """Remember, in memory only, the result to return when an interruption ends the fit."""
        self.store.notes[self.prefix + name] = value

    def noted(self, name: str) -> Any:
        """The value given to :meth:`note`, None where there is none."""
        return self.store.notes.get(self.prefix + name)

    def save(self, finished: bool = False) -> None:
        """Write the file now, if there is one; a `finished` one is read back at once by the same fit."""
        self.store.changed(force=True, finished=finished)


def open_journal(path: str | Path, fingerprint: Mapping[str, Any], kinds: Iterable[type]) -> Journal:
    """The journal in a file, or a new one that will be written there.

    Parameters
    ----------
    path : str or Path
    fingerprint : mapping
        What the fit is of: plain values, and arrays where rounding may differ. A file of an unfinished fit with another
        one is refused; a finished one is overwritten.
    kinds : iterable of dataclass types
        Classes that parts may have, besides plain values, arrays, lists and tuples.
    """
    store = _Store()
    if Path(path).exists():
        content, arrays = _read(path)
        different = _differences(content["fingerprint"], arrays, fingerprint)
        if not different:
            _restore(store, content, arrays, {kind.__name__: kind for kind in kinds}, path)
        elif not content.get("finished"):
            raise ParameterError(
                f"checkpoint {path} belongs to an unfinished fit with other {', '.join(different)}. Use the same data "
                "and parameters to go on with that fit, delete the file, or name another."
            )

    def save(finished: bool) -> None:
        arrays: dict[str, np.ndarray] = {}
        content = {
            "kind": _KIND,
            "finished": finished,
            "fingerprint": {key: pack(value, arrays) for key, value in fingerprint.items()},
            "parts": {key: pack(value, arrays) for key, value in store.parts.items()},
            "steps": {key: pack(value, arrays) for key, value in store.steps.items()},
        }
        write_file(path, content, arrays)

    store.write = save
    return Journal(store)


def sketch(table: np.ndarray) -> np.ndarray:
    """Two weighted sums of an array of shape (n, …), over the sum of the sizes of its entries; shape (2,).

    They tell data apart, but not the orders in which the same data were summed.
    """
    flat = table.reshape(len(table), -1)
    rows, columns = np.arange(1, len(flat) + 1), np.arange(1, flat.shape[1] + 1)
    sums = [(flat @ np.cos(a * columns)) @ np.cos(a * rows) for a in (np.sqrt(2.0), np.sqrt(3.0))]
    return np.array(sums) / max(float(np.abs(flat).sum()), np.finfo(float).tiny)


def _read(path: str | Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    try:
        content, arrays = read_file(path)
    except ModelFileError as error:
        raise ModelFileError(f"checkpoint: {error} Delete the file to start afresh, or name another.") from error
    if content.get("kind") != _KIND or not all(
        isinstance(content.get(k), dict) for k in ("fingerprint", "parts", "steps")
    ):
        raise ModelFileError(f"checkpoint: {path} is no checkpoint. Name another file.")
    return content, arrays


def _restore(
    store: _Store, content: dict[str, Any], arrays: dict[str, np.ndarray], kinds: Mapping[str, type], path: str | Path
) -> None:
    try:
        store.parts = {key: unpack(value, arrays, kinds) for key, value in content["parts"].items()}
        store.steps = {key: unpack(value, arrays, kinds) for key, value in content["steps"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelFileError(f"checkpoint {path} is damaged ({error}). Delete it to start afresh.") from error
    logger.info("going on from %s", path)


def _differences(kept: dict[str, Any], arrays: dict[str, np.ndarray], now: Mapping[str, Any]) -> list[str]:
    """What differs, in words."""
    then = {key: unpack(value, arrays, {}) for key, value in kept.items()}
    out = []
    for key in [*now, *(key for key in then if key not in now)]:
        if key not in then or key not in now:
            out.append(f"{key} (known to one of them only)")
        elif isinstance(now[key], np.ndarray):
            close = np.shape(then[key]) == now[key].shape and np.allclose(then[key], now[key], rtol=_SAME, atol=_SAME)
            if not close:
                out.append(key)
        elif then[key] != now[key]:
            long = max(len(str(then[key])), len(str(now[key]))) > 60
            out.append(key if long else f"{key} ({then[key]!r} then, {now[key]!r} now)")
    return out
