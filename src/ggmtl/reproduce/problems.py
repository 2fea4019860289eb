"""The data sets of the tables: a name and the number of a run → training and test rows.

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
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np

from ggmtl.data.task_data import TaskData
from ggmtl.datasets.generators import make_line, make_star, make_tree
from ggmtl.datasets.parkinson import load_parkinson
from ggmtl.datasets.rdatasets import load_exam, load_hsb82
from ggmtl.datasets.school import load_school
from ggmtl.datasets.splits import split_rows
from ggmtl.datasets.surveys import load_computer, load_sales
from ggmtl.datasets.tmy3 import load_tmy3
from ggmtl.errors import InputError, ParameterError

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
