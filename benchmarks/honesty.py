"""Is ``validation_error_`` honest? Against the errors on fresh rows of the models behind it, and of the final model.

The default averages models by their errors on held-out rows and reports the error of the average, so the report could
be too good. Here the average without each fold, its weights learned without it, too, meets fresh rows of the same
tasks; the report should be within two standard errors of what it does there. The final model has all rows, and should
do a little better. Simulated tasks have a hundred times as many fresh rows. Panels (``panels.py``) have the half of
the rows that is not for training, whose own standard error is added. Run with
``python benchmarks/honesty.py [number of seeds] [first seed]``; the table goes to ``results/honesty.md``.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from sklearn.exceptions import ConvergenceWarning

from claims import average_on, family_shared, fit_with_folds
from ggmtl import TaskStatistics
from ggmtl.data.task_data import TaskData
from ggmtl.datasets import make_clusters, make_line, make_star, make_tree, split_rows
from panels import PANELS, TRAIN_SHARE, load_panel

RESULTS = Path(__file__).parent / "results" / "honesty.md"
FRESH = 100
SETS: dict[str, tuple[Callable[..., TaskData], int, dict[str, Any]]] = {
    "Line": (make_line, 20, {}),
    "Line, more rows": (make_line, 80, {}),
    "Clusters": (make_clusters, 15, {}),
    "Tree": (make_tree, 20, {}),
    "Star": (make_star, 40, {}),
    'Star, `penalty="l1"`': (make_star, 160, {"penalty": "l1"}),
}
SEEDS, FIRST_SEED = 10, 30


def report_and_truth(train: TaskData, fresh: TaskData, options: dict[str, Any]) -> tuple[float, float, float, float]:
    """Mean squared errors: reported, of the fold models on fresh rows, of the final model there; and a standard error.

    The standard error is that of the report and, where fresh rows are few, of the errors on them.
    """
    warnings.simplefilter("ignore", ConvergenceWarning)
    model, folds = fit_with_folds(train.X, train.y, train.tasks, **options)
    family = model.state_.family
    errors, names = family.errors, list(family.levels)
    (loss,) = model.scaling_.design(TaskStatistics.from_arrays(fresh.X, fresh.y, fresh.tasks))
    # Every fold model is asked for as often as it was asked in the report.
    share = errors.count / loss.count
    cross = np.array([loss.cross_products(models) for models in folds]) * share[:, :, None, None]
    if family.average is None:
        k = names.index(family.chosen)
        told = cross[:, :, k, k]
    else:
        used = [name for name in names if family.levels[name].kind != "graph" or name == family.linked]
        supported = family.linked and family.levels[family.linked].supported
        preferred = family.linked if supported else family_shared(family)
        told = average_on(cross, errors, [names.index(name) for name in used], used.index(preferred))
    rows, reported = errors.count.sum(), family.squared_errors()
    final = 2.0 * loss.task_values(family.coefficients) * share.sum(axis=0)
    error = spread(reported.sum(axis=0), errors.count.sum(axis=0))
    if loss.count.sum() < FRESH * rows:
        error = float(np.hypot(error, spread(told.sum(axis=0), errors.count.sum(axis=0))))
    unit = model.scaling_.target_scale**2
    return tuple(float(unit * value) for value in (reported.sum() / rows, told.sum() / rows, final.sum() / rows, error))


def spread(squared: np.ndarray, count: np.ndarray) -> float:
    """Standard error, over tasks, of a mean squared error."""
    rest = squared - squared.sum() / count.sum() * count
    return float(np.sqrt((rest**2).sum() * len(count) / max(len(count) - 1, 1)) / count.sum())


def jobs(seeds: range) -> Iterator[tuple[str, str, list[tuple[TaskData, TaskData, dict[str, Any]]]]]:
    """Title, rows per task, and the data of every seed."""
    for title, (make, n_samples, options) in SETS.items():
        made = [make(n_samples=n_samples, n_test=FRESH * n_samples, random_state=seed) for seed in seeds]
        yield title, str(n_samples), [(data, data.test, options) for data in made]
    for name in PANELS:
        data = load_panel(name)
        splits = [split_rows(data, TRAIN_SHARE, random_state=seed) for seed in seeds]
        rows = len(splits[0][0].y) / len(np.unique(data.tasks))
        yield name, f"{rows:.0f}", [(train, test, {}) for train, test in splits]


def render(title: str, rows: str, found: np.ndarray) -> str:
    """One Markdown row."""
    report, truth, final, error = found.T
    score = (report - truth) / error
    cells = [
        title,
        rows,
        *(f"{np.sqrt(values.mean()):.3g}" for values in (report, truth, final)),
        *(f"{np.sqrt(report / values).mean():.3f}" for values in (truth, final)),
        f"{score.mean():+.2f}",
        f"{np.abs(score).max():.1f}",
        f"{np.mean(np.abs(score) <= 2.0):.0%}",
    ]
    return "| " + " | ".join(cells) + " |"


def main(n_seeds: int = SEEDS, first_seed: int = FIRST_SEED) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    start, found = time.perf_counter(), []
    columns = ["set", "rows per task", "RMSE reported", "fold models", "final model", "reported / fold models"]
    columns += ["reported / final", "mean deviation", "largest", "within two"]
    lines = [
        "# Is the reported error honest?",
        "",
        f"Seeds {first_seed}–{first_seed + n_seeds - 1}. `validation_error_` against the error of the averages behind "
        f"it (everything learned without the fold) and of the final model, on {FRESH} × as many fresh rows of every "
        "task; on panels, on the half of the rows that is not for training. Deviations are from the fold models, in "
        "standard errors of the report (on panels, of the difference). Ratios are of root mean squares.",
        "",
        "| " + " | ".join(columns) + " |",
        "| --- |" + " --- |" * (len(columns) - 1),
    ]
    for title, rows, data in jobs(range(first_seed, first_seed + n_seeds)):
        found.append(np.array(Parallel(n_jobs=-1)(delayed(report_and_truth)(*each) for each in data)))
        lines.append(render(title, rows, found[-1]))
        print(lines[-1], flush=True)
        report, truth, final, error = np.concatenate(found).T
        share = np.mean(np.abs(report - truth) <= 2.0 * error)
        ratios = [np.sqrt(report / values).mean() for values in (truth, final)]
        closing = (
            f"Over all {len(report)} runs: {share:.0%} within two standard errors; reported over the fold models' "
            f"error {ratios[0]:.3f}, over the final model's {ratios[1]:.3f}."
        )
        spent = f"Measured in {time.perf_counter() - start:.0f} s."
        RESULTS.write_text("\n".join([*lines, "", closing, "", spent]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
