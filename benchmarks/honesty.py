"""Is ``validation_error_`` honest? Against the error of the same fold models on a hundred times as many fresh rows.

The default chooses among models by their errors on held-out rows and reports the error of the one chosen, so the report
could be too good. Here the models that were learned without each fold, at the chosen level, meet fresh rows of the
same tasks; the report should be within two of its standard errors of what they do there. Run with
``python benchmarks/honesty.py [number of seeds] [first seed]``; the table goes to ``results/honesty.md``.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from ggmtl import GGMTLRegressor, TaskStatistics
from ggmtl.data.task_data import TaskData
from ggmtl.datasets import make_clusters, make_line, make_star, make_tree
from ggmtl.fit import path

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


def fit_with_folds(data: TaskData, options: dict[str, Any]) -> tuple[GGMTLRegressor, np.ndarray]:
    """A default fit, and the coefficients of the chosen level without each fold, shape (folds, n, p)."""
    learned: list[Any] = []

    def recording(*arguments: Any, **named: Any) -> Any:
        learned.append(learn(*arguments, **named))
        return learned[-1]

    learn = path.learn_levels
    with patch.object(path, "learn_levels", recording):
        model = GGMTLRegressor(**options).fit(data.X, data.y, tasks=data.tasks)
    whole, *folds = learned
    chosen = next(k for k, fit in enumerate(whole) if fit is model.state_.family.best)
    return model, np.array([levels[chosen].coefficients for levels in folds])


def report_and_truth(data: TaskData, options: dict[str, Any]) -> tuple[float, float, float]:
    """Reported mean squared error, the fold models' on fresh rows, and the report's standard error; in units of y²."""
    model, folds = fit_with_folds(data, options)
    errors, chosen = model.state_.family.errors, model.state_.family.chosen
    fresh = TaskStatistics.from_arrays(data.test.X, data.test.y, data.test.tasks)
    (loss,) = model.scaling_.design(fresh)
    # Every fold model is asked for as often as it was asked in the report.
    asked = errors.count / loss.count
    truth = sum((2.0 * loss.task_values(models) * share).sum() for models, share in zip(folds, asked))
    unit = model.scaling_.target_scale**2
    return (
        float(errors.mean()[chosen] * unit),
        float(truth / errors.count.sum() * unit),
        float(errors.standard_error()[chosen] * unit),
    )


def measure(make: Callable[..., TaskData], n_samples: int, options: dict[str, Any], seeds: range) -> np.ndarray:
    """Report, truth and standard error of every seed, shape (seeds, 3)."""
    rows = []
    for seed in seeds:
        data = make(n_samples=n_samples, n_test=FRESH * n_samples, random_state=seed)
        rows.append(report_and_truth(data, options))
    return np.array(rows)


def render(title: str, n_samples: int, found: np.ndarray) -> str:
    """One Markdown row."""
    report, truth, error = found.T
    score = (report - truth) / error
    cells = [
        title,
        str(n_samples),
        f"{np.sqrt(report.mean()):.3f}",
        f"{np.sqrt(truth.mean()):.3f}",
        f"{score.mean():+.2f}",
        f"{np.abs(score).max():.1f}",
        f"{np.mean(np.abs(score) <= 2.0):.0%}",
    ]
    return "| " + " | ".join(cells) + " |"


def main(n_seeds: int = SEEDS, first_seed: int = FIRST_SEED) -> None:
    warnings.simplefilter("ignore", ConvergenceWarning)
    RESULTS.parent.mkdir(exist_ok=True)
    start, found = time.perf_counter(), []
    lines = [
        "# Is the reported error honest?",
        "",
        f"Seeds {first_seed}–{first_seed + n_seeds - 1}. `validation_error_` against the error of the same models "
        "(learned without each fold, at the level that was chosen) on "
        f"{FRESH} × as many fresh rows of every task. "
        "Deviations are in standard errors of the report; selection among all levels is included.",
        "",
        "| set | rows per task | RMSE reported | RMSE on fresh rows | mean deviation | largest | within two |",
        "| --- |" + " --- |" * 6,
    ]
    for title, (make, n_samples, options) in SETS.items():
        found.append(measure(make, n_samples, options, range(first_seed, first_seed + n_seeds)))
        lines.append(render(title, n_samples, found[-1]))
        print(lines[-1], flush=True)
        report, truth, error = np.concatenate(found).T
        share = np.mean(np.abs(report - truth) <= 2.0 * error)
        closing = f"Over all {len(report)} runs: {share:.0%} within two standard errors."
        spent = f"Measured in {time.perf_counter() - start:.0f} s."
        RESULTS.write_text("\n".join([*lines, "", closing, "", spent]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
