"""Memory is asked for before it is taken."""

from __future__ import annotations

import numpy as np
import pytest

from ggmtl import GGMTLRegressor, TaskStatistics
from ggmtl.errors import MemoryShortageError
from ggmtl.runtime import machine


@pytest.fixture
def little(monkeypatch):
    monkeypatch.setattr(machine, "_SMALL", 0)
    monkeypatch.setattr(machine, "available_memory", lambda: 30_000)


def rows(n_tasks: int, n_features: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    tasks = np.repeat(np.arange(n_tasks), 3)
    return random.normal(size=(len(tasks), n_features)), random.normal(size=len(tasks)), tasks


def test_statistics_that_do_not_fit_are_refused_with_need_have_and_remedy(little):
    with pytest.raises(MemoryShortageError, match=r"statistics of 40 tasks.*GB, and 0\.0 GB are available\. Use fewer"):
        TaskStatistics.from_arrays(*rows(40, 20))


def test_a_fit_that_does_not_fit_is_refused(little, monkeypatch):
    statistics = TaskStatistics.from_arrays(*rows(30, 4))
    with pytest.raises(MemoryShortageError, match="The fit of 30 tasks"):
        GGMTLRegressor().fit_statistics(statistics)


def test_what_the_system_says_is_a_positive_number_or_nothing():
    have = machine.available_memory()
    assert have is None or have > 0


def test_little_needs_are_not_questioned(monkeypatch):
    monkeypatch.setattr(machine, "available_memory", lambda: 0)
    machine.require_memory(1000.0, "a little", "Do nothing.")
