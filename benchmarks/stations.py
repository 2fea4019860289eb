"""What knowing something about the tasks is worth: daily temperatures at 1,020 weather stations, a few days of each.

Every station has N days, drawn at random; the features are two annual harmonics, and the error is that of all other
days (root mean square of every station, mean over stations; about 4.13 °C is left by models of all days). Known are
longitude, latitude and elevation. Run with ``python benchmarks/stations.py [number of draws]``; the tables go to
``results/stations.md``.
"""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ggmtl import GGMTLRegressor
from ggmtl.baselines import IndependentRegressor
from ggmtl.datasets import load_stations
from ggmtl.graph.candidates import Coordinates
from ggmtl.inspection import explained_differences, task_rmse

RESULTS = Path(__file__).parent / "results" / "stations.md"
DAYS, DRAWS, N_NOISE, N_UNSEEN = (4, 8, 12, 24), 5, 5, 100


def table_of(data: Any, noise: int = 0) -> pd.DataFrame:
    """Longitude, latitude and elevation of every station, and columns of pure noise."""
    known = pd.DataFrame(data.task_features).set_index("task")[["longitude", "latitude", "elevation"]]
    random = np.random.default_rng(0)
    return known.assign(**{f"noise {k}": random.standard_normal(len(known)) for k in range(noise)})


def error(model: Any, data: Any, task_features: pd.DataFrame | None = None) -> tuple[float, float]:
    """Error of a fitted method on all other days, and processor seconds of the fit."""
    start = time.process_time()
    options = {} if task_features is None else {"task_features": task_features}
    model.fit(data.X, data.y, tasks=data.tasks, **options)
    seconds = time.process_time() - start
    test = data.test
    return task_rmse(test.y, model.predict(test.X, tasks=test.tasks), test.tasks), seconds


def known_stations(draws: int) -> list[str]:
    """Errors at the stations with days of their own."""
    methods = {
        "ridge per task": (IndependentRegressor, None),
        "default": (GGMTLRegressor, None),
        "places as candidates": (Coordinates, None),
        "`task_features`": (GGMTLRegressor, 0),
        f"and {N_NOISE} columns of noise": (GGMTLRegressor, N_NOISE),
    }
    lines = [
        f"| N | {' | '.join(methods)} | s, default | s, `task_features` |",
        "| --- " * (len(methods) + 3) + "|",
    ]
    for days in DAYS:
        found = {name: [] for name in methods}
        for draw in range(draws):
            data = load_stations(days, random_state=draw)
            for name, (method, noise) in methods.items():
                model = method() if method is not Coordinates else GGMTLRegressor(candidates=near_places(data))
                found[name].append(error(model, data, None if noise is None else table_of(data, noise)))
        mean = {name: np.mean(values, axis=0) for name, values in found.items()}
        cells = [f"{values[0]:.3f}" for values in mean.values()]
        seconds = [f"{mean[name][1]:.1f}" for name in ("default", "`task_features`")]
        lines.append(f"| {days} | {' | '.join(cells + seconds)} |")
        print(lines[-1], flush=True)
    return lines


def near_places(data: Any) -> Coordinates:
    """Links between near places and nothing else: what a graph alone makes of the places."""
    known = table_of(data)
    return Coordinates({name: (row.longitude, row.latitude) for name, row in known.iterrows()})


def unseen_stations(draws: int) -> list[str]:
    """Errors and coverage at stations without a day of their own."""
    lines = ["| N | common model | `task_features` | 90 % intervals cover |", "| --- | --- | --- | --- |"]
    for days in DAYS:
        found = []
        for draw in range(draws):
            data = load_stations(days, random_state=draw)
            unseen = np.random.default_rng(draw).choice(data.task_names, N_UNSEEN, replace=False)
            rest = data.take(~np.isin(data.tasks, unseen))
            test = data.test.take(np.isin(data.test.tasks, unseen))
            known = table_of(data)
            model = GGMTLRegressor(validation=None).fit(rest.X, rest.y, tasks=rest.tasks, task_features=known)
            told, spread = model.predict(test.X, test.tasks, return_std=True, task_features=known)
            common = model.predict(test.X, test.tasks, unseen="hub")
            covered = np.mean(np.abs(told - test.y) < 1.645 * spread)
            found.append((*(task_rmse(test.y, each, test.tasks) for each in (common, told)), covered))
        mean = np.mean(found, axis=0)
        lines.append(f"| {days} | {mean[0]:.3f} | {mean[1]:.3f} | {100 * mean[2]:.1f} % |")
        print(lines[-1], flush=True)
    return lines


def explained() -> list[str]:
    """What each descriptor explains of the differences between stations, with 12 days each."""
    data = load_stations(12)
    model = GGMTLRegressor(validation=None).fit(data.X, data.y, tasks=data.tasks, task_features=table_of(data))
    table = pd.DataFrame(explained_differences(model)).pivot(index="feature", columns="descriptor", values="share")
    lines = [f"| coefficient | {' | '.join(table.columns)} |", "| --- " * (len(table.columns) + 1) + "|"]
    for feature, row in table.iterrows():
        lines.append(f"| {feature} | {' | '.join(f'{100 * share:.0f} %' for share in row)} |")
    return lines


def main() -> None:
    """Print the tables and write them."""
    draws = int(sys.argv[1]) if len(sys.argv) > 1 else DRAWS
    warnings.simplefilter("ignore")
    text = [
        "# Weather stations",
        "",
        f"{' '.join(__doc__.split('Run with')[0].split())} Mean over {draws} draws.",
        "",
        "## Stations with days of their own",
        "",
        *known_stations(draws),
        "",
        f"## {N_UNSEEN} stations without any day",
        "",
        *unseen_stations(draws),
        "",
        "## What each descriptor explains of the differences between stations",
        "",
        *explained(),
    ]
    RESULTS.write_text("\n".join(text) + "\n", encoding="utf-8")
    print("\n".join(text))


if __name__ == "__main__":
    main()
