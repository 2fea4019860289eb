"""What it costs to read a graph, and whether what is read is true.

Times are processor seconds, so that other work on the machine does not count; each price is measured in the same run as
the fit that it is compared with. Run with ``OMP_NUM_THREADS=1 python benchmarks/reading.py [resamples]``; the table
goes to ``results/reading.md``. School is left out where its file is not at hand (``GGMTL_DATA_HOME``).
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import roc_auc_score

from ggmtl import GGMTLRegressor
from ggmtl.datasets import load_school, make_clusters
from ggmtl.errors import GGMTLError
from ggmtl.inspection import edge_stability, explain_edge, transfer_report
from ggmtl.tasks import TaskData

RESULTS = Path(__file__).parent / "results" / "reading.md"
RESAMPLES = 50
SEEDS = range(5)


def measured(call: Callable[[], Any]) -> tuple[Any, float]:
    """A result and the processor seconds that it took."""
    start = time.process_time()
    result = call()
    return result, time.process_time() - start


def fit(data: TaskData) -> tuple[GGMTLRegressor, float]:
    """The default, as a user calls it."""
    return measured(lambda: GGMTLRegressor().fit(data.X, data.y, tasks=data.tasks))


def pairs(model: GGMTLRegressor, most: int = 10) -> list[tuple[Any, Any]]:
    """Linked pairs of tasks, evenly among all; neighbours in the list of tasks where none are linked."""
    edges = model.graph_.edges
    if not len(edges):
        edges = np.column_stack([np.arange(most), np.arange(most) + 1])
    chosen = edges[np.unique(np.linspace(0, len(edges) - 1, most).astype(int))]
    return [(model.tasks_[i], model.tasks_[j]) for i, j in chosen]


def price_of_explanations(model: GGMTLRegressor, seconds: float) -> tuple[str, str]:
    """Seconds of one explanation, the first included, as a share of the fit."""
    asked = pairs(model)
    first = measured(lambda: explain_edge(model, *asked[0]))[1]
    rest = measured(lambda: [explain_edge(model, *pair) for pair in asked[1:]])[1] / max(len(asked) - 1, 1)
    words = f"first {first:.3f} s, then {rest:.3f} s each"
    return words, f"{100 * first / seconds:.2f} %, {100 * rest / seconds:.2f} % of a fit ({seconds:.1f} s)"


def price_of_stability(model: GGMTLRegressor, data: TaskData, seconds: float, resamples: int) -> tuple[str, str]:
    """Seconds of all resamples, in fits."""
    found, cost = measured(lambda: edge_stability(model, data.X, data.y, resamples, tasks=data.tasks))
    return f"{cost:.1f} s, {found.describe()}", f"{cost / seconds:.1f} fits of {seconds:.1f} s"


def edges_ranked(resamples: int) -> tuple[str, str]:
    """AUC of the selection frequency over all pairs of tasks, true edges against the others, 40 rows per task."""
    scores = []
    for seed in SEEDS:
        data = make_clusters(n_tasks=20, n_clusters=4, n_features=5, n_samples=40, noise=1.0, random_state=seed)
        model, _ = fit(data)
        found = edge_stability(model, data.X, data.y, resamples, tasks=data.tasks)
        truth, frequency = data.graph.adjacency().toarray() > 0, np.zeros((20, 20))
        frequency[tuple(found.edges.T)] = found.frequency
        upper = np.triu_indices(20, 1)
        scores.append(roc_auc_score(truth[upper], np.maximum(frequency, frequency.T)[upper]))
    return f"{len(SEEDS)} sets of 20 tasks", f"AUC {np.mean(scores):.3f} (least {min(scores):.3f})"


def outlier_tasks(
    seed: int, clusters: int, n: int = 40, features: int = 3, rows: int = 15
) -> tuple[TaskData, set[int]]:
    """Clusters of tasks; one in twenty tasks has a model far from all others."""
    random = np.random.default_rng(seed)
    models = 1.5 * random.normal(size=(clusters, features))[np.arange(n) % clusters]
    models += 0.1 * random.normal(size=(n, features))
    odd = random.choice(n, n // 20, replace=False)
    models[odd] += 6.0 * random.choice([-1.0, 1.0], size=(len(odd), features))
    tasks = np.repeat(np.arange(n), rows)
    X = random.normal(size=(n * rows, features))
    return TaskData(X, (X * models[tasks]).sum(axis=1) + random.normal(size=n * rows), tasks), set(odd.tolist())


def outliers_flagged(clusters: int) -> tuple[str, str]:
    """Outlier tasks that the report flags (hurt by sharing, or unlike all others), and others that it flags too."""
    hits = others = number = 0
    for seed in SEEDS:
        data, odd = outlier_tasks(seed, clusters)
        report = transfer_report(fit(data)[0])
        flagged = set(report.hurt.tolist()) | set(report.unlike.tolist())
        hits, others, number = hits + len(odd & flagged), others + len(flagged - odd), number + len(odd)
    return f"{len(SEEDS)} sets of 40 tasks", f"{hits} of {number} flagged, {others} others flagged"


def verdicts(structured: bool) -> tuple[str, str]:
    """How many reports on clusters, or on tasks drawn independently of each other, say the right thing."""
    right = 0
    for seed in SEEDS:
        random = np.random.default_rng(seed)
        models = random.normal(size=(3 if structured else 20, 3))
        tasks = np.repeat(np.arange(20), 20)
        X = random.normal(size=(400, 3))
        y = (X * models[tasks % len(models)]).sum(axis=1) + random.normal(size=400)
        right += transfer_report(fit(TaskData(X, y, tasks))[0]).verdict.startswith("The graph") == structured
    return f"{len(SEEDS)} sets of 20 tasks", f"{right} of {len(SEEDS)} verdicts right"


def main(resamples: int = RESAMPLES) -> None:
    """Measure everything; every row is written as soon as it is known."""
    warnings.simplefilter("ignore", ConvergenceWarning)
    fit(make_clusters(2, n_tasks=6, n_features=2, random_state=0))  # compiles what is compiled at first use
    lines = [
        "# Reading the graph",
        "",
        "Processor seconds; each price and its fit in one run.",
        "",
        "| what | aim | seen | result |",
        "| --- | --- | --- | --- |",
    ]

    def add(what: str, aim: str, seen: str, result: str) -> None:
        lines.append(f"| {what} | {aim} | {seen} | {result} |")
        print(lines[-1], flush=True)
        RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")

    add("reports on clusters", "say so", *verdicts(structured=True))
    add("reports on independent tasks", "no structure", *verdicts(structured=False))
    add("5 % outliers about one model", "flagged", *outliers_flagged(1))
    add("5 % outliers among four clusters", "flagged", *outliers_flagged(4))
    add("edge_stability ranks true edges first", "AUC ≥ 0.9", *edges_ranked(min(resamples, 20)))
    clusters = make_clusters(n_tasks=50, random_state=0)
    model, seconds = fit(clusters)
    add("explain_edge, 50 tasks in clusters", "< 1 % of a fit", *price_of_explanations(model, seconds))
    try:
        school = load_school()
    except GGMTLError as error:
        print(f"School: {error}")
        return
    model, seconds = fit(school)
    add("explain_edge, School", "< 1 % of a fit", *price_of_explanations(model, seconds))
    add(f"edge_stability, School, {resamples}", "< 10 fits", *price_of_stability(model, school, seconds, resamples))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
