"""Results of single cells, kept as lines of JSON, so that a stopped run continues where it stopped.

A cell is one method on one split of one data set. Its line is written with one call to the operating system when it is
done; a line cut short by a crash is ignored and the cell computed again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed

from ggmtl.errors import InputError

CACHE_NAME = "cells.jsonl"

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Cell:
    """What is computed once.

    Parameters
    ----------
    problem : str
        Name of a data set with its variant, such as ``"school r=0.2"``.
    seed : int
        Number of the run: split, generator and random method use it.
    method : str
        Name in :data:`ggmtl.reproduce.methods.METHODS`.
    protocol : {"paper", "honest"}
        How hyper-parameters are chosen; see :mod:`ggmtl.reproduce.methods`.
    quick : bool
        Smaller grids and fewer draws.
    """

    problem: str
    seed: int
    method: str
    protocol: str = "honest"
    quick: bool = False

    def __str__(self) -> str:
        return f"{self.problem}, run {self.seed}, {self.method} ({self.protocol})"


class CellCache:
    """Cells and their results in a file of JSON lines.

    Parameters
    ----------
    path : Path
        The file; made, with its folder, at the first result.

    Notes
    -----
    A result is a dict of plain data. One with an ``"error"`` is shown in tables but computed again by the next run.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._results: dict[Cell, dict[str, Any]] = {}
        for line in self._lines():
            self._results[Cell(**line["cell"])] = line["result"]

    def __len__(self) -> int:
        return len(self._results)

    def get(self, cell: Cell) -> dict[str, Any] | None:
        """The result of a cell, None where it was never computed."""
        return self._results.get(cell)

    def is_done(self, cell: Cell) -> bool:
        """Whether the cell has a result that is not a failure."""
        return "error" not in self._results.get(cell, {"error": ""})

    def put(self, cell: Cell, result: dict[str, Any]) -> None:
        """Append one line, whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # The newline comes first too: after a line cut short, it starts a new one.
        line = "\n" + json.dumps({"cell": asdict(cell), "result": result}, allow_nan=False) + "\n"
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)
        self._results[cell] = result

    def _lines(self) -> Iterable[dict[str, Any]]:
        if not self.path.exists():
            return
        for text in self.path.read_text(encoding="utf-8").split("\n"):
            try:
                line = json.loads(text) if text else None
            except json.JSONDecodeError:
                continue
            if line is None:
                continue
            if not isinstance(line, dict) or {"cell", "result"} - line.keys():
                raise InputError(f"{self.path} is not a cache of results: it has the line {text[:60]!r}.")
            yield line


def compute_missing(
    cache: CellCache,
    cells: Sequence[Cell],
    compute: Callable[[Cell], dict[str, Any]],
    progress: Progress | None = None,
    n_jobs: int | None = None,
) -> None:
    """Compute every cell that has no result yet, in processes, and store each as soon as it is done.

    Parameters
    ----------
    progress : callable, optional
        Called with (cells done, cells to do, text).
    n_jobs : int, optional
        Processes; as many as there are processors unless told.
    """
    missing = [cell for cell in dict.fromkeys(cells) if not cache.is_done(cell)]
    if progress and missing:
        progress(0, len(missing), f"{len(set(cells)) - len(missing)} cells are known already")
    jobs = min(n_jobs or os.cpu_count() or 1, max(len(missing), 1))
    results: Any = Parallel(n_jobs=jobs, return_as="generator_unordered")(
        delayed(_with_cell)(compute, cell) for cell in missing
    )
    for done, (cell, result) in enumerate(results, start=1):
        cache.put(cell, result)
        if progress:
            progress(done, len(missing), f"{cell}: {_outcome(result)}")


def _with_cell(compute: Callable[[Cell], dict[str, Any]], cell: Cell) -> tuple[Cell, dict[str, Any]]:
    return cell, compute(cell)


def _outcome(result: dict[str, Any]) -> str:
    if "error" in result:
        return f"no result ({result['error']})"
    said = f"RMSE {result['rmse']:.4g}" if "rmse" in result else "learned"
    return f"{said}, {result['seconds']:.1f} s"
