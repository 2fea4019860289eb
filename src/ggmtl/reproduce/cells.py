"""Cells: one method on one split of one data set; their rows, and their kept results.

Names of the data sets:

line, tree, star               the text's generator: an X for each task, noise 1
line published, …              as in the published files: one shared X, no noise
parkinson r=0.3 [time] [visit] with the time of the test as a feature; whole visits held out
school r=0.2
tmy3 h=8 every=4               forecasts 8 hours ahead, every fourth hour a row; one given split
exam, hsb82, computer r=0.5    rows drawn per task
sales                          the later weeks, one given split
sales weeks r=0.5, tmy3 … weeks r=0.2
                               whole weeks of the year drawn at random, the same for all tasks. A row next to a week of
                               the other part may have values of that week among its features; no target is in both

Results are kept as lines of JSON, so that a stopped run continues where it stopped. A line is written with one call to
the operating system when its cell is done; a line cut short by a crash is ignored and the cell computed again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed

from ggmtl.data.task_data import TaskData
from ggmtl.datasets.generators import make_line, make_star, make_tree
from ggmtl.datasets.splits import split_rows
from ggmtl.datasets.studies import load_computer, load_exam, load_hsb82, load_parkinson, load_sales, load_school
from ggmtl.datasets.temperature import load_tmy3
from ggmtl.errors import InputError, ParameterError

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
        Processes; by default one per processor.
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
    score = f"RMSE {result['rmse']:.4g}" if "rmse" in result else "learned"
    return f"{score}, {result['seconds']:.1f} s"


GENERATORS = {"line": make_line, "tree": make_tree, "star": make_star}
LOADERS: dict[str, Callable[..., TaskData]] = {
    "school": load_school,
    "exam": load_exam,
    "hsb82": load_hsb82,
    "computer": load_computer,
}
# Sets whose test rows are given: further runs would repeat the first.
GIVEN_SPLIT = ("sales", "tmy3")
HOURS_PER_WEEK = 168


def load_problem(name: str, seed: int) -> tuple[TaskData, TaskData]:
    """Training and test rows of one run."""
    base, *words = name.split()
    options = dict(word.split("=") for word in words if "=" in word)
    if base in GENERATORS:
        return _with_test(GENERATORS[base](published="published" in words, random_state=seed))
    if base in GIVEN_SPLIT:
        horizon, every = int(options.get("h", 8)), int(options.get("every", 1))
        if is_given(name):
            return _with_test(_given(base, horizon, every))
        return split_rows(_by_week(base, horizon, every), float(options.get("r", 0.5)), random_state=seed, by="groups")
    if base != "parkinson" and base not in LOADERS:
        raise ParameterError(f"There is no problem {name!r}; its first word must be a data set's name.")
    return split_rows(
        _loaded(base, "time" in words),
        float(options.get("r", 0.5)),
        random_state=seed,
        by="groups" if "visit" in words else None,
    )


def is_given(name: str) -> bool:
    """Whether the test rows come with the set, so that all runs are the same."""
    base, *words = name.split()
    return base in GIVEN_SPLIT and "weeks" not in words


def is_published(name: str) -> bool:
    """Whether the problem is made like the paper's published files, whose models have no intercept."""
    return "published" in name.split()


def keeps_groups(name: str) -> bool:
    """Whether whole groups are held out, so that folds must keep them whole too."""
    return not {"visit", "weeks"}.isdisjoint(name.split())


@lru_cache(maxsize=2)
def _loaded(base: str, test_time: bool) -> TaskData:
    return load_parkinson(test_time) if base == "parkinson" else LOADERS[base]()


@lru_cache(maxsize=1)
def _given(base: str, horizon: int, every: int) -> TaskData:
    return load_sales() if base == "sales" else load_tmy3(109, horizon=horizon, every=every)


@lru_cache(maxsize=1)
def _by_week(base: str, horizon: int, every: int) -> TaskData:
    """All rows of a series, grouped by the week that they stand in."""
    train, test = _with_test(_given(base, horizon, every))
    number = np.concatenate([_position(train), _position(test) + len(train) // len(train.task_names)])
    joined = {name: np.concatenate([getattr(train, name), getattr(test, name)]) for name in ("X", "y", "tasks")}
    week = number if base == "sales" else number * every // HOURS_PER_WEEK
    return replace(train, **joined, groups=week, test=None)


def _position(data: TaskData) -> np.ndarray:
    """Position of every row among those of its task, for rows in the order of tasks and as many of each."""
    return np.arange(len(data)) % (len(data) // len(data.task_names))


def _with_test(data: TaskData) -> tuple[TaskData, TaskData]:
    if data.test is None:
        raise InputError("The data set must come with test rows, but has none.")
    return data, data.test
