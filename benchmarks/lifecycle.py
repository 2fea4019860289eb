"""What a model costs, and how good it stays, once it is fitted: new tasks, more rows, checkpoints.

    GGMTL_DATA_HOME=… python benchmarks/lifecycle.py --seeds 5

writes ``benchmarks/results/lifecycle.md``. For every seed a fifth of the tasks is set aside; the model is fitted to
three quarters of the rows of the others. Each task set aside then comes with five rows: once through ``add_task``, once
in a fit of everything. Both predict the rest of its rows. For ``partial_fit``, a tenth of the rows comes later. Ratios
of times are of one run, in processor seconds.
"""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import norm
from sklearn.exceptions import ConvergenceWarning

from ggmtl import GGMTLRegressor
from ggmtl.data.task_data import TaskData
from ggmtl.datasets import load_exam, load_school, make_clusters
from ggmtl.inference.uncertainty import noise_variance

SETS: dict[str, Callable[[], TaskData]] = {
    "exam": load_exam,
    "school": load_school,
    # Small enough that model and refit both learn by exact evidence, so that the refit is no straw man.
    "clusters (made)": lambda: make_clusters(5, n_tasks=60, n_features=8, n_samples=60, random_state=1),
}
FEW, HELD_OUT_TASKS, TRAINED_ROWS = 5, 0.2, 0.75
# Splits for which more rows are measured: there is little to tell beside the times.
SPLITS_OF_ROWS = 2
REACH = norm.ppf(0.95)
TARGET = Path(__file__).parent / "results" / "lifecycle.md"


@dataclass(frozen=True)
class Rows:
    """Row numbers of one split."""

    old_train: np.ndarray
    old_test: np.ndarray
    few: np.ndarray
    new_test: np.ndarray


def split(data: TaskData, seed: int) -> Rows:
    random = np.random.default_rng(seed)
    names = np.unique(data.tasks)
    new = random.permutation(names)[: round(HELD_OUT_TASKS * len(names))]
    order = random.permutation(len(data.y))
    is_new = np.isin(data.tasks[order], new)
    rank = np.empty(len(order), dtype=np.int64)
    for name in names:
        mine = np.flatnonzero(data.tasks[order] == name)
        rank[mine] = np.arange(len(mine))
    few = order[is_new & (rank < FEW)]
    old = order[~is_new]
    cut = round(TRAINED_ROWS * len(old))
    return Rows(old[:cut], old[cut:], few, order[is_new & (rank >= FEW)])


def fit(data: TaskData, rows: np.ndarray, **options: Any) -> tuple[GGMTLRegressor, float]:
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = GGMTLRegressor(random_state=0, **options).fit(data.X[rows], data.y[rows], tasks=data.tasks[rows])
    return model, time.process_time() - started


def task_rmse(data: TaskData, rows: np.ndarray, predicted: np.ndarray) -> float:
    square = (data.y[rows] - predicted) ** 2
    return float(np.mean([np.sqrt(square[data.tasks[rows] == name].mean()) for name in np.unique(data.tasks[rows])]))


def covered(data: TaskData, rows: np.ndarray, predicted: np.ndarray, deviation: np.ndarray) -> float:
    return float((np.abs(data.y[rows] - predicted) < REACH * deviation).mean())


def measure_new_tasks(data: TaskData, seed: int) -> dict[str, float]:
    """Errors, intervals and times of tasks that come later with a few rows."""
    rows = split(data, seed)
    model, _ = fit(data, rows.old_train)
    edges = float(model.graph_.n_edges)
    whole, refit_seconds = fit(data, np.concatenate([rows.old_train, rows.few]))
    started = time.process_time()
    noise_variance(model.state_)
    first_seconds = time.process_time() - started
    seconds = []
    for name in np.unique(data.tasks[rows.few]):
        mine = rows.few[data.tasks[rows.few] == name]
        started = time.process_time()
        model.add_task(name, data.X[mine], data.y[mine])
        seconds.append(time.process_time() - started)
    value, deviation = model.predict(data.X[rows.new_test], tasks=data.tasks[rows.new_test], return_std=True)
    again, again_deviation = whole.predict(data.X[rows.new_test], tasks=data.tasks[rows.new_test], return_std=True)
    seen, seen_deviation = model.predict(data.X[rows.old_test], tasks=data.tasks[rows.old_test], return_std=True)
    common = model.hub_coef_ @ data.X[rows.new_test].T + model.hub_intercept_
    return {
        "added": task_rmse(data, rows.new_test, value),
        "refit": task_rmse(data, rows.new_test, again),
        "common": task_rmse(data, rows.new_test, common),
        "new_cover": covered(data, rows.new_test, value, deviation),
        "refit_cover": covered(data, rows.new_test, again, again_deviation),
        "seen_cover": covered(data, rows.old_test, seen, seen_deviation),
        "add_seconds": float(np.mean(seconds)),
        "first_seconds": first_seconds,
        "refit_seconds": refit_seconds,
        "edges": edges,
    }


def measure_more_rows(data: TaskData, seed: int) -> dict[str, float]:
    """Ten batches: the last of them learned from in three ways."""
    rows = split(data, seed)
    cut = round(0.9 * len(rows.old_train))
    early, late = rows.old_train[:cut], rows.old_train[cut:]
    more = (data.X[late], data.y[late], data.tasks[late])
    whole, fit_seconds = fit(data, rows.old_train)
    out = {"fit_seconds": fit_seconds, "fit": error_on_seen(whole, data, rows)}
    model, _ = fit(data, early)
    out["early"] = error_on_seen(model, data, rows)
    for name, relearn in (("follow", False), ("relearn", True)):
        grown = copy.deepcopy(model)
        started = time.process_time()
        grown.partial_fit(*more, relearn=relearn)
        out[f"{name}_seconds"] = time.process_time() - started
        out[name] = error_on_seen(grown, data, rows)
    return out


def error_on_seen(model: GGMTLRegressor, data: TaskData, rows: Rows) -> float:
    return task_rmse(data, rows.old_test, model.predict(data.X[rows.old_test], tasks=data.tasks[rows.old_test]))


def measure_checkpoint(data: TaskData) -> dict[str, float]:
    """What recording costs, and reading back."""
    rows = split(data, 0).old_train
    _, plain = fit(data, rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fit.ggmtl"
        _, recorded = fit(data, rows, checkpoint=path)
        _, again = fit(data, rows, checkpoint=path)
        size = path.stat().st_size
    return {"plain": plain, "recorded": recorded, "again": again, "kilobytes": size / 1e3}


def mean_of(runs: list[dict[str, float]]) -> dict[str, float]:
    return {key: float(np.mean([run[key] for run in runs])) for key in runs[0]}


def more_rows_table(results: dict[str, list[dict[str, float]]]) -> list[str]:
    lines = [
        "| data | error, nine batches | error, tenth with `relearn=False` | error, tenth relearned | error, one fit | "
        "seconds, `relearn=False` | seconds, relearned | seconds, one fit | share of time, `relearn=False` |",
        "| --- " * 9 + "|",
    ]
    for name, runs in results.items():
        mean = mean_of(runs)
        lines.append(
            f"| {name} | {mean['early']:.4f} | {mean['follow']:.4f} | {mean['relearn']:.4f} | {mean['fit']:.4f} | "
            f"{mean['follow_seconds']:.4f} | {mean['relearn_seconds']:.2f} | {mean['fit_seconds']:.2f} | "
            f"{100 * mean['follow_seconds'] / mean['fit_seconds']:.2f} % |"
        )
    return lines


def checkpoint_table(results: dict[str, dict[str, float]]) -> list[str]:
    lines = [
        "| data | seconds, fit | seconds, with a checkpoint | seconds, reading a finished one back | kB |",
        "| --- " * 5 + "|",
    ]
    for name, run in results.items():
        numbers = f"{run['plain']:.2f} | {run['recorded']:.2f} | {run['again']:.3f} | {run['kilobytes']:.0f}"
        lines.append(f"| {name} | {numbers} |")
    return lines


def new_task_table(results: dict[str, list[dict[str, float]]]) -> list[str]:
    lines = [
        "| data | edges | error, `add_task` | error, full refit | ratio | error, common model | seconds, `add_task` | "
        "seconds, the first | seconds, refit | share of time | 90 % intervals: new tasks | the same, refit | "
        "seen tasks |",
        "| --- " * 13 + "|",
    ]
    for name, runs in results.items():
        mean = mean_of(runs)
        ratio = [run["added"] / run["refit"] for run in runs]
        lines.append(
            f"| {name} | {mean['edges']:.1f} | {mean['added']:.4f} | {mean['refit']:.4f} | {np.mean(ratio):.4f} "
            f"({min(ratio):.4f} … {max(ratio):.4f}) | {mean['common']:.4f} | {mean['add_seconds']:.4f} | "
            f"{mean['first_seconds'] + mean['add_seconds']:.4f} | "
            f"{mean['refit_seconds']:.2f} | {100 * mean['add_seconds'] / mean['refit_seconds']:.2f} % | "
            f"{100 * mean['new_cover']:.1f} % | {100 * mean['refit_cover']:.1f} % | {100 * mean['seen_cover']:.1f} % |"
        )
    return lines


def verdicts(results: dict[str, list[dict[str, float]]]) -> list[str]:
    """Whether new tasks meet what was asked of them."""
    lines = []
    for name, runs in results.items():
        mean = mean_of(runs)
        ratio, share = mean["added"] / mean["refit"], mean["add_seconds"] / mean["refit_seconds"]
        first = (mean["first_seconds"] + mean["add_seconds"]) / mean["refit_seconds"]
        checks = {
            "error at most 2 % above a refit": ratio <= 1.02,
            "under 1 % of its time": share < 0.01,
            "the first call too": first < 0.01,
            "intervals of new tasks cover 85–95 %": 0.85 <= mean["new_cover"] <= 0.95,
            "those of seen tasks too": 0.85 <= mean["seen_cover"] <= 0.95,
        }
        lines.append(f"- {name}: " + "; ".join(f"{what}: {'met' if met else 'missed'}" for what, met in checks.items()))
    return lines


def page(
    seeds: int,
    tasks: dict[str, list[dict[str, float]]],
    rows: dict[str, list[dict[str, float]]],
    files: dict[str, dict[str, float]],
) -> str:
    lines = [
        "# A model's life after its fit",
        "",
        f"Made by `python benchmarks/lifecycle.py --seeds {seeds}`: means over {seeds} random splits. Errors are means "
        "over tasks of the root mean squared error on rows not seen; times are processor seconds of one run.",
        "",
        f"## New tasks with {FEW} rows each",
        "",
        "A fifth of the tasks is set aside; the model knows three quarters of the rows of the others. “ratio” is the "
        "error of `add_task` over that of a full refit, with its range over splits. “the first”: the first call also "
        "estimates the noise.",
        "",
        *new_task_table(tasks),
        "",
        *verdicts(tasks),
        "",
        "## More rows",
        "",
        f"A tenth of the rows comes late ({min(seeds, SPLITS_OF_ROWS)} splits). `relearn=False` keeps graph and "
        "strengths and solves for the models; relearning is a fit that needs no old rows, and its result is that of "
        "one fit up to the folds that rows are dealt into.",
        "",
        *more_rows_table(rows),
        "",
        "## Checkpoints",
        "",
        *checkpoint_table(files),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Growing and resuming fitted models.")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="", help="sets whose name starts with this")
    parser.add_argument("--output", type=Path, default=TARGET)
    chosen = parser.parse_args()
    tasks: dict[str, list[dict[str, float]]] = {}
    rows: dict[str, list[dict[str, float]]] = {}
    files: dict[str, dict[str, float]] = {}
    for name in (name for name in SETS if name.startswith(chosen.only)):
        data = SETS[name]()
        for seed in range(chosen.seeds):
            sys.stderr.write(f"{name}, split {seed}\n")
            tasks.setdefault(name, []).append(measure_new_tasks(data, seed))
            if seed < SPLITS_OF_ROWS:
                rows.setdefault(name, []).append(measure_more_rows(data, seed))
        files[name] = measure_checkpoint(data)
    text = page(chosen.seeds, tasks, rows, files)
    print(text)
    chosen.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
