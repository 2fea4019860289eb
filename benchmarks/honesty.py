"""Is ``validation_error_`` honest? Against the errors on fresh rows of the models behind it, and of the final model.

The default averages models by their errors on held-out rows and reports the error of the average, so the report could
be too good. Here the average without each fold, its weights learned without it, too, meets fresh rows of the same
tasks; the report should be within two standard errors of what it does there. The final model has all rows, and should
do a little better. Simulated tasks have a hundred times as many fresh rows. Panels (``panels.py``) have the half of
the rows that is not for training, whose own standard error is added. Run with
``python benchmarks/honesty.py [number of seeds] [first seed] [set, …]``; the table goes to ``results/honesty.md``.

Runs are kept in ``build/honesty.jsonl``, so that a benchmark that was stopped goes on where it was, and sets may have
different numbers of seeds: the page shows all runs in the file. Delete the file after a change of the package.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from claims import average_on, family_shared, fit_with_folds, kept
from ggmtl import TaskStatistics
from ggmtl.data.task_data import TaskData
from ggmtl.datasets import make_clusters, make_line, make_star, make_tree, split_rows
from panels import PANELS, TRAIN_SHARE, load_panel

RESULTS = Path(__file__).parent / "results" / "honesty.md"
CACHE = Path(__file__).parents[1] / "build" / "honesty.jsonl"
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


def report_and_truth(name: str, seed: int) -> dict[str, float]:
    """Mean squared errors of one fit: reported, and on fresh rows those of the fold models and of the final model.

    ``"fixed"`` is the error of the fold models averaged with the weights of the final model. ``"deviation"`` is the
    standard error of the report and, where fresh rows are few, of the errors on them.
    """
    warnings.simplefilter("ignore", ConvergenceWarning)
    train, fresh, options = data_of(name, seed)
    model, folds = fit_with_folds(train.X, train.y, train.tasks, **options)
    family = model.state_.family
    errors, names = family.errors, list(family.levels)
    (loss,) = model.scaling_.design(TaskStatistics.from_arrays(fresh.X, fresh.y, fresh.tasks))
    # Every fold model is asked for as often as it was asked in the report.
    share = errors.count / loss.count
    cross = np.array([loss.cross_products(models) for models in folds]) * share[:, :, None, None]
    weights = np.array([family.weights.get(name, 0.0) for name in names])
    fixed = told = np.einsum("l,fnlm,m->fn", weights, cross, weights)
    if family.average is not None:
        used = [name for name in names if family.levels[name].kind != "graph" or name == family.linked]
        supported = family.linked and family.levels[family.linked].supported
        preferred = family.linked if supported else family_shared(family)
        told = average_on(cross, errors, [names.index(name) for name in used], used.index(preferred))
    rows, reported = errors.count.sum(), family.squared_errors()
    final = 2.0 * loss.task_values(family.coefficients) * share.sum(axis=0)
    deviation = spread(reported.sum(axis=0), errors.count.sum(axis=0))
    if loss.count.sum() < FRESH * rows:
        deviation = float(np.hypot(deviation, spread(told.sum(axis=0), errors.count.sum(axis=0))))
    unit = model.scaling_.target_scale**2
    sums = {"reported": reported, "folds": told, "fixed": fixed, "final": final}
    found = {key: unit * float(values.sum()) / rows for key, values in sums.items()}
    return {**found, "deviation": unit * deviation, "rows": len(train.y) / len(np.unique(train.tasks))}


def data_of(name: str, seed: int) -> tuple[TaskData, TaskData, dict[str, Any]]:
    """Rows for training, fresh rows, and parameters."""
    if name in SETS:
        make, n_samples, options = SETS[name]
        data = make(n_samples=n_samples, n_test=FRESH * n_samples, random_state=seed)
        return data, data.test, options
    return *split_rows(load_panel(name), TRAIN_SHARE, random_state=seed), {}


def spread(squared: np.ndarray, count: np.ndarray) -> float:
    """Standard error, over tasks, of a mean squared error."""
    rest = squared - squared.sum() / count.sum() * count
    return float(np.sqrt((rest**2).sum() * len(count) / max(len(count) - 1, 1)) / count.sum())


def geometric(runs: Sequence[dict[str, float]], above: str, below: str) -> np.ndarray:
    """Mean ratio of two root mean squares and its factor of uncertainty (one standard error)."""
    logs = 0.5 * np.log([run[above] / run[below] for run in runs])
    return np.exp([logs.mean(), logs.std(ddof=1) / np.sqrt(len(logs)) if len(logs) > 1 else 0.0])


def deviations(runs: Sequence[dict[str, float]]) -> np.ndarray:
    """Of the report from the error of the fold models, in standard errors."""
    return np.array([(run["reported"] - run["folds"]) / run["deviation"] for run in runs])


def render(title: str, runs: Sequence[dict[str, float]]) -> str:
    """One Markdown row."""
    score = deviations(runs)
    cells = [
        title,
        f"{runs[0]['rows']:.0f}",
        str(len(runs)),
        *(f"{np.sqrt(np.mean([run[key] for run in runs])):.3g}" for key in ("reported", "folds", "final")),
        *(f"{geometric(runs, *pair)[0]:.3f}" for pair in PAIRS.values()),
        f"{score.mean():+.2f}",
        f"{np.abs(score).max():.1f}",
        f"{np.mean(np.abs(score) <= 2.0):.0%}",
    ]
    return "| " + " | ".join(cells) + " |"


# Columns of ratios, and the errors of which they are.
PAIRS = {
    "reported / fold models": ("reported", "folds"),
    "reported / final": ("reported", "final"),
    "by weights": ("folds", "fixed"),
    "by rows": ("fixed", "final"),
}
HEAD = f"""# Is the reported error honest?

`validation_error_` against the error of the averages behind it (everything learned without the fold) and of the final
model, on {FRESH} × as many fresh rows of every task; on panels, on the half of the rows that is not for training.
Deviations are from the fold models, in standard errors of the report (on panels, of the difference).

Ratios are of root mean squares; means over seeds are geometric. On a panel the two halves could change places, which
turns the ratio of their errors upside down: the geometric mean of an honest report is one, while the arithmetic mean is
above one by the square of their spread. The final model is better than the fold models for two reasons. *By weights*:
the weights of the final model are learned from all folds. *By rows*: its levels are learned from all rows, not from
four fifths of them.
"""


def main(n_seeds: int = SEEDS, first_seed: int = FIRST_SEED, *sets: str) -> None:
    asked = [(name, seed) for seed in range(first_seed, first_seed + n_seeds) for name in sets or (*SETS, *PANELS)]
    kept(CACHE, asked, report_and_truth)
    found = {tuple(key): run for key, run in map(json.loads, CACHE.read_text().splitlines())}
    by_set = {name: [run for (other, _), run in found.items() if other == name] for name in (*SETS, *PANELS)}
    by_set = {name: runs for name, runs in by_set.items() if runs}
    columns = ["set", "rows per task", "seeds", "RMSE reported", "fold models", "final model", *PAIRS]
    columns += ["mean deviation", "largest", "within two"]
    lines = [HEAD, "| " + " | ".join(columns) + " |", "| --- |" + " --- |" * (len(columns) - 1)]
    lines += [render(name, runs) for name, runs in by_set.items()]
    runs = list(found.values())
    ratios = [geometric(runs, *PAIRS[name]) for name in ("reported / fold models", "reported / final")]
    folds, final = (f"{mean:.3f} (± {factor - 1.0:.1%})" for mean, factor in ratios)
    lines += [
        "",
        f"Over all {len(runs)} runs: {np.mean(np.abs(deviations(runs)) <= 2.0):.0%} within two standard errors; "
        f"reported over the fold models' error {folds}, over the final model's {final}.",
    ]
    print("\n".join(lines))
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), *sys.argv[3:])
