"""What it costs to read a graph, and whether what is read is true.

Times are processor seconds, so that other work on the machine does not count; each price is measured in the same run as
the fit that it is compared with. Run with ``OMP_NUM_THREADS=1 python benchmarks/reading.py [resamples]``; the table
goes to ``results/reading.md``. School is left out where its file is not at hand (``GGMTL_DATA_HOME``), the page where
there is no browser (playwright and Chromium).
"""

from __future__ import annotations

import platform
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import roc_auc_score

from ggmtl import GGMTLRegressor
from ggmtl.bilevel.inner import solve_inner
from ggmtl.bilevel.level import present_problem
from ggmtl.data.task_data import TaskData
from ggmtl.datasets import load_school, make_clusters, make_line
from ggmtl.errors import GGMTLError
from ggmtl.inference.removal import EdgeRemovals
from ggmtl.inspection import EdgeExplanation, edge_stability, explain_edge, transfer_report
from ggmtl.inspection.summary.collect import summarize
from ggmtl.report import write_report
from scale import rows_of, smooth_models

RESULTS = Path(__file__).parent / "results" / "reading.md"
RESAMPLES = 50
SEEDS = range(5)


def measured(call: Callable[[], Any]) -> tuple[Any, float]:
    """A result and the processor seconds that it took."""
    start = time.process_time()
    result = call()
    return result, time.process_time() - start


def fit(data: TaskData, **parameters: Any) -> tuple[GGMTLRegressor, float]:
    """The default, as a user calls it, unless told otherwise."""
    return measured(lambda: GGMTLRegressor(**parameters).fit(data.X, data.y, tasks=data.tasks))


def pairs(model: GGMTLRegressor, most: int = 10) -> list[tuple[Any, Any]]:
    """Linked pairs of tasks, evenly among all; neighbours in the list of tasks where none are linked."""
    edges = model.graph_.edges
    if not len(edges):
        edges = np.column_stack([np.arange(most), np.arange(most) + 1])
    chosen = edges[np.unique(np.linspace(0, len(edges) - 1, most).astype(int))]
    return [(model.tasks_[i], model.tasks_[j]) for i, j in chosen]


def explanations(model: GGMTLRegressor, seconds: float) -> tuple[str, str]:
    """Seconds of one explanation, the first and the later ones, as a share of the fit; and how exact they are."""
    asked = pairs(model)
    first, cost = measured(lambda: explain_edge(model, *asked[0]))
    rest = measured(lambda: [explain_edge(model, *pair) for pair in asked[1:]])[1] / max(len(asked) - 1, 1)
    words = f"{len(model.tasks_):,} tasks, {model.graph_.n_edges:,} links; first {cost:.3f} s, then {rest:.3f} s each"
    share = f"{100 * cost / seconds:.2f} %, then {100 * rest / seconds:.2f} % of a fit ({seconds:.1f} s)"
    left = measured(lambda: prepared_again(model))[1]
    share += f"; prepared in {100 * left / seconds:.1f} %"
    # Refits of very many tasks take minutes.
    others = asked[3::3] if len(model.tasks_) <= 6000 else []
    worst = max(deviation(model, found) for found in [first, *(explain_edge(model, *pair) for pair in others)])
    return words, f"{share}; off a refit by {worst:.0e}"


def prepared_again(model: GGMTLRegressor) -> EdgeRemovals:
    """What the first explanation prepares, once more."""
    state = model.state_
    return EdgeRemovals.of(state.level, state.folded(), state.settings)


def deviation(model: GGMTLRegressor, found: EdgeExplanation) -> float:
    """The largest relative deviation of the errors, and of their change, from full refits with and without the edge."""
    if not np.isfinite(model.state_.level.hub).all():
        # One model for all tasks: no edge changes it.
        return abs(found.error_without - found.error) / found.error
    i, j = sorted(np.searchsorted(model.tasks_, np.array(found.tasks)))
    folded, unit = model.state_.folded(), model.scaling_.target_scale
    refits = []
    for drop in (False, True):
        total, count = np.zeros(len(model.tasks_)), np.zeros(len(model.tasks_))
        for k in folded.scored:
            problem, values = present_problem(model.state_.level, folded.training(k), model.state_.settings)
            edge = (problem.edges == [i, j]).all(axis=1) & drop
            models = solve_inner(problem, np.where(edge, 0.0, values), tol=1e-12).coefficients
            total, count = total + 2.0 * folded.parts[k].task_values(models), count + folded.parts[k].count
        pair = np.sqrt(total[[i, j]].sum() / count[[i, j]].sum())
        refits.append(unit * np.array([pair, np.sqrt(total.sum() / count.sum())]))
    kept, gone = refits
    seen = np.array([[found.error, found.total_error], [found.error_without, found.total_error_without]])
    apart = [seen[0] - kept, seen[1] - gone, (seen[1] - seen[0]) - (gone - kept)]
    return float(np.max(np.abs(apart) / kept))


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


def verdicts(draw: Callable[[int], TaskData]) -> tuple[str, str]:
    """How often links are said to help, found without a clear gain, or not reported."""
    kinds = [summarize(fit(draw(seed))[0])["verdict"]["kind"] for seed in SEEDS]
    said = Counter(
        {"graph": "links help", "links unclear": "links, unclear whether they help"}.get(k, "no links") for k in kinds
    )
    return f"{len(SEEDS)} sets of 20 tasks", "; ".join(
        f"{n} of {len(SEEDS)}: {words}" for words, n in said.most_common()
    )


def tasks_of(models: int) -> Callable[[int], TaskData]:
    """20 tasks of 20 rows that share so many models, drawn independently of each other; 20 is no structure."""

    def draw(seed: int) -> TaskData:
        random = np.random.default_rng(seed)
        coefficients = random.normal(size=(models, 3))
        tasks = np.repeat(np.arange(20), 20)
        X = random.normal(size=(400, 3))
        return TaskData(X, (X * coefficients[tasks % models]).sum(axis=1) + random.normal(size=400), tasks)

    return draw


def clusters(seed: int) -> TaskData:
    """The clusters of the recovery benchmark, fewer of them."""
    return make_clusters(4, n_tasks=20, n_features=5, n_samples=20, random_state=seed)


def smooth_tasks(side: int = 20, features: int = 8, rows: int = 10) -> TaskData:
    """Tasks on a grid; coefficients are waves across it. The fit ties these loosely, and those of scale.py tightly."""
    random, place = np.random.default_rng(0), np.arange(side**2)
    places = np.column_stack([place // side, place % side]) / side
    waves = [np.sin(places @ random.normal(size=2) * 6 + random.uniform(0, 6)) for _ in range(features)]
    tasks = np.repeat(place, rows)
    X = random.normal(size=(len(tasks), features))
    return TaskData(X, (X * np.column_stack(waves)[tasks]).sum(axis=1) + random.normal(size=len(tasks)), tasks)


def pairs_of_tasks() -> TaskData:
    """Tasks that are alike two by two, with fewer rows than features: others and the hub must tell the rest."""
    random, tasks = np.random.default_rng(1), np.repeat(np.arange(600), 6)
    X, models = random.normal(size=(len(tasks), 10)), random.normal(size=(300, 10))
    return TaskData(X, (X * models[tasks // 2]).sum(axis=1) + 0.3 * random.normal(size=len(tasks)), tasks)


def page(model: GGMTLRegressor) -> tuple[str, str] | None:
    """Size of a page, and seconds until it is drawn."""
    browser_path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        browser_path = None
    if browser_path is None:
        return None
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        path, cost = measured(lambda: write_report(model, Path(folder) / "report.html"))
        browser = driver.chromium.launch(executable_path=browser_path, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page(viewport={"width": 1300, "height": 1000})
        start = time.perf_counter()
        tab.goto(path.as_uri())
        tab.wait_for_selector("body[data-ready]")
        opened = time.perf_counter() - start
        browser.close()
        size = path.stat().st_size / 1e6
    return f"{len(model.tasks_):,} tasks; written in {cost:.1f} s", f"{size:.2f} MB, open after {opened:.2f} s"


def main(resamples: int = RESAMPLES) -> None:
    """Measure everything; every row is written as soon as it is known."""
    warnings.simplefilter("ignore", ConvergenceWarning)
    # Compiles, or loads, what is compiled at first use.
    warm, _ = fit(make_clusters(5, n_tasks=30, n_features=9, random_state=0))
    explain_edge(warm, 0, 1)
    lines = [
        "# Reading the graph",
        "",
        f"Processor seconds ({platform.processor() or platform.machine()}, one thread); each price and its fit in one "
        "run. What prepares explanations is part of the first one; its "
        "share of a fit is given. Deviations from a refit are the largest of the errors of the pair and of all tasks, "
        "and of their change, as a share of the error, over four edges (one where there are more than 6,000 tasks).",
        "",
        "| what | aim | seen | result |",
        "| --- | --- | --- | --- |",
    ]
    began = time.perf_counter()

    def add(what: str, aim: str, seen: str, result: str) -> None:
        lines.append(f"| {what} | {aim} | {seen} | {result} |")
        print(f"{time.perf_counter() - began:4.0f} s {lines[-1]}", flush=True)
        RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")

    add("verdicts on clusters", "links help", *verdicts(clusters))
    add("verdicts on three models drawn at random", "links help", *verdicts(tasks_of(3)))
    add("verdicts on independent tasks", "no links", *verdicts(tasks_of(20)))
    add("5 % outliers about one model", "flagged", *outliers_flagged(1))
    add("5 % outliers among four clusters", "flagged", *outliers_flagged(4))
    add("edge_stability ranks true edges first", "AUC ≥ 0.9", *edges_ranked(min(resamples, 20)))
    price, wide = "< 0.5 s or 5 % of a fit, exact to 1e-6", {"n_features": 20, "n_samples": 30, "random_state": 0}
    wider = {"n_features": 60, "n_samples": 80, "random_state": 0}
    few = make_clusters(4, n_tasks=20, n_features=5, n_samples=20, random_state=0)
    add("explain_edge, few tasks", price, *explanations(*fit(few)))
    add("explain_edge, clusters", price, *explanations(*fit(make_clusters(n_tasks=50, random_state=0))))
    add("explain_edge, Line", price, *explanations(*fit(make_line(random_state=0))))
    add("explain_edge, many features", price, *explanations(*fit(make_clusters(3, n_tasks=30, **wider))))
    some = make_clusters(10, n_tasks=300, n_features=10, n_samples=15, random_state=0)
    add("explain_edge, a hundred tasks", price, *explanations(*fit(make_clusters(5, n_tasks=100, **wide))))
    add("explain_edge, some hundred tasks", price, *explanations(*fit(some)))
    add("explain_edge, tasks on a surface", price, *explanations(*fit(smooth_tasks())))
    many, seconds = fit(make_clusters(20, n_tasks=2000, n_features=10, random_state=0))
    add("explain_edge, many tasks", price, *explanations(many, seconds))
    shown = page(many)
    if shown is not None:
        add("page of many tasks", "< 3 s, < 15 MB", *shown)
    couples = fit(pairs_of_tasks(), candidates=np.arange(600).reshape(-1, 2))
    add("explain_edge, fewer rows than features", price, *explanations(*couples))
    surface = smooth_tasks(side=60, features=20, rows=30)
    add("explain_edge, many tasks on a surface", price, *explanations(*fit(surface)))
    random = np.random.default_rng(0)
    tied = TaskData(*rows_of(smooth_models(4000, 20, random), 30, random))
    add("explain_edge, many tasks tied tightly", price, *explanations(*fit(tied)))
    add("explain_edge, more tasks", price, *explanations(*fit(make_clusters(20, n_tasks=6000, **wide))))
    add("explain_edge, very many tasks", price, *explanations(*fit(make_clusters(100, n_tasks=30_000, **wide))))
    try:
        school = load_school()
    except GGMTLError as error:
        print(f"School: {error}")
    else:
        linked = fit(school, criterion="validation", edge_entropy=0.0, coupling=1.0, max_iter=20)
        add("explain_edge, School with links", price, *explanations(*linked))
        model, seconds = fit(school)
        add("explain_edge, School", price, *explanations(model, seconds))
        add(f"edge_stability, School, {resamples}", "< 10 fits", *price_of_stability(model, school, seconds, resamples))
    lines += ["", f"Measured in {time.perf_counter() - began:.0f} s."]
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
