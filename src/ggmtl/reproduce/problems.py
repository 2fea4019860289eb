"""The data sets of the tables: a name and the number of a run → training and test rows.

line, tree, star               the text's generator: an X for each task, noise 1
line published, …              as in the published files: one shared X, no noise
parkinson r=0.3 [time] [visit] with the time of the test as a feature; whole visits held out
school r=0.2
tmy3 h=8 every=4               forecasts 8 hours ahead, every fourth hour a row; one given split
exam, hsb82, computer r=0.5    rows drawn per task
sales                          the later weeks, one given split
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from ggmtl.datasets import (
    load_computer,
    load_exam,
    load_hsb82,
    load_parkinson,
    load_sales,
    load_school,
    load_tmy3,
    make_line,
    make_star,
    make_tree,
    split_rows,
)
from ggmtl.errors import InputError, ParameterError
from ggmtl.tasks import TaskData

GENERATORS = {"line": make_line, "tree": make_tree, "star": make_star}
LOADERS: dict[str, Callable[..., TaskData]] = {
    "school": load_school,
    "exam": load_exam,
    "hsb82": load_hsb82,
    "computer": load_computer,
}
# Sets whose test rows are given: further runs would repeat the first.
GIVEN_SPLIT = ("sales", "tmy3")


def load_problem(name: str, seed: int) -> tuple[TaskData, TaskData]:
    """Training and test rows of one run."""
    base, *words = name.split()
    options = dict(word.split("=") for word in words if "=" in word)
    if base in GENERATORS:
        return _with_test(GENERATORS[base](published="published" in words, random_state=seed))
    if base in GIVEN_SPLIT:
        return _with_test(_given(base, int(options.get("h", 8)), int(options.get("every", 1))))
    if base != "parkinson" and base not in LOADERS:
        raise ParameterError(f"There is no problem {name!r}; its first word must be a data set's name.")
    return split_rows(
        _loaded(base, "time" in words),
        float(options.get("r", 0.5)),
        random_state=seed,
        by="groups" if "visit" in words else None,
    )


def is_published(name: str) -> bool:
    """Whether the problem is made like the paper's published files, whose models have no intercept."""
    return "published" in name.split()


def keeps_groups(name: str) -> bool:
    """Whether whole groups are held out, so that folds must keep them whole too."""
    return "visit" in name.split()


@lru_cache(maxsize=2)
def _loaded(base: str, test_time: bool) -> TaskData:
    return load_parkinson(test_time) if base == "parkinson" else LOADERS[base]()


@lru_cache(maxsize=1)
def _given(base: str, horizon: int, every: int) -> TaskData:
    return load_sales() if base == "sales" else load_tmy3(109, horizon=horizon, every=every)


def _with_test(data: TaskData) -> tuple[TaskData, TaskData]:
    if data.test is None:
        raise InputError("The data set must come with test rows, but has none.")
    return data, data.test
