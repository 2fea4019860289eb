"""What a default fit costs and finds, from twenty tasks upwards, every size twice the one before.

Three made-up sets, 15 rows a task with noise 1:

- surface: coefficients are smooth functions of a task's place in a square, which no method sees; no true graph;
- clusters: ten tasks each, models N(0, I) plus 0.1 N(0, I); the true graph is made of cliques;
- chain: a random walk with steps N(0, I); the true graph is a path.

Processor seconds are medians over the seeds, one thread, after the compiled kernels have been loaded. "× before" is the
time over that of half as many tasks: it should lie between 1/1.2 and 2.6. "Error" is the root mean square of
x(ŵ − w) + b̂ for x ~ N(0, I), so that noise does not count. Last come, if asked for, the sizes where the graph
can be learned by exact and by sampled evidence, and how far the two agree.

Run with ``OMP_NUM_THREADS=1 python benchmarks/ladder.py``; ``--keep`` writes the result file.
``--features 3 --sets chain``
makes a part of the tables, ``--largest 100000`` longer ones.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ggmtl import GGMTLRegressor
from ggmtl.runtime.sizes import SIZES, Sizes

RESULTS = Path(__file__).parent / "results" / "ladder.md"
ROWS, CLUSTER, SMALLEST = 15, 10, 20
# Sizes up to this are fitted for every seed, larger ones once.
REPEATED = 1280
# Sizes of the comparison of both ways.
COMPARED = (20, 40, 80, 160)
EXACT = replace(SIZES, exact_evidence=1 << 30, exact_tasks=1 << 30)
SAMPLED = replace(SIZES, exact_evidence=0)


@dataclass(frozen=True)
class Truth:
    """Models of shape (n, d), and the true edges, if there are any."""

    models: np.ndarray
    edges: np.ndarray | None


def surface(n: int, d: int, random: np.random.Generator) -> Truth:
    """One sine of the place per coefficient."""
    place = random.uniform(size=(n, 2))
    waves, phases = random.normal(size=(d, 2)), random.uniform(0, 2 * np.pi, d)
    return Truth(np.sin(2 * np.pi * place @ waves.T + phases), None)


def clusters(n: int, d: int, random: np.random.Generator) -> Truth:
    """Ten tasks a cluster."""
    cluster = np.arange(n) // CLUSTER
    models = random.normal(size=(cluster[-1] + 1, d))[cluster] + 0.1 * random.normal(size=(n, d))
    pairs = np.column_stack(np.triu_indices(CLUSTER, 1))
    edges = (np.arange(0, n, CLUSTER)[:, None, None] + pairs).reshape(-1, 2)
    return Truth(models, edges[edges.max(axis=1) < n])


def chain(n: int, d: int, random: np.random.Generator) -> Truth:
    """A random walk."""
    return Truth(np.cumsum(random.normal(size=(n, d)), axis=0), np.column_stack([np.arange(n - 1), np.arange(1, n)]))


SETS: dict[str, Callable[[int, int, np.random.Generator], Truth]] = {
    "surface": surface,
    "clusters": clusters,
    "chain": chain,
}


@dataclass(frozen=True)
class Outcome:
    """One fit: processor seconds, edges per task, F1 (NaN without a true graph), error, and the edges as numbers."""

    seconds: float
    per_task: float
    f1: float
    error: float
    keys: np.ndarray


def measure(name: str, n: int, d: int, seed: int, sizes: Sizes = SIZES) -> Outcome:
    """Make a set and fit it."""
    random = np.random.default_rng(seed)
    truth = SETS[name](n, d, random)
    X, tasks = random.normal(size=(n * ROWS, d)), np.repeat(np.arange(n), ROWS)
    y = np.einsum("rd,rd->r", X, truth.models[tasks]) + random.normal(size=n * ROWS)
    model = GGMTLRegressor(random_state=0)
    model.sizes = sizes
    start = time.process_time()
    model.fit(X, y, tasks=tasks)
    seconds = time.process_time() - start
    error = np.sqrt((((model.coef_ - truth.models) ** 2).sum(axis=1) + model.intercept_**2).mean())
    keys = model.graph_.edges @ [n, 1]
    f1 = np.nan if truth.edges is None else agreement(keys, truth.edges @ [n, 1])
    return Outcome(seconds, len(keys) / n, f1, float(error), keys)


def agreement(first: np.ndarray, second: np.ndarray) -> float:
    """F1 of one set of edges with the other; one where both are empty."""
    total = len(first) + len(second)
    return 2.0 * len(np.intersect1d(first, second)) / total if total else 1.0


def ladder(name: str, d: int, largest: int, seeds: int) -> list[str]:
    """The table of one set and width."""
    lines = ["| tasks | s | × before | edges per task | F1 | error |", "| --- | --- | --- | --- | --- | --- |"]
    n, before = SMALLEST, np.nan
    while n <= largest:
        found = [measure(name, n, d, seed) for seed in range(seeds if n <= REPEATED else 1)]
        seconds = float(np.median([one.seconds for one in found]))
        mean = np.array([(one.per_task, one.f1, one.error) for one in found]).mean(axis=0)
        ratio = "" if np.isnan(before) else f"{seconds / before:.2f}"
        f1 = "–" if np.isnan(mean[1]) else f"{mean[1]:.2f}"
        lines.append(f"| {n:,} | {seconds:.2f} | {ratio} | {mean[0]:.2f} | {f1} | {mean[2]:.3f} |")
        print(name, d, lines[-1], flush=True)
        n, before = 2 * n, seconds
    return lines


def both_ways(d: int, seeds: int) -> list[str]:
    """Graphs of exact and of sampled evidence on the same rows."""
    lines = [
        "| set | tasks | s exact, sampled | edges per task | F1 with each other | F1 with the truth | error |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in SETS:
        for n in COMPARED:
            pairs = [[measure(name, n, d, seed, way) for way in (EXACT, SAMPLED)] for seed in range(seeds)]
            mean = np.array([[(o.seconds, o.per_task, o.f1, o.error) for o in pair] for pair in pairs]).mean(axis=0)
            same = np.mean([agreement(pair[0].keys, pair[1].keys) for pair in pairs])
            cells = [
                ", ".join("–" if np.isnan(x) else f"{x:.{k}f}" for x in column)
                for column, k in zip(mean.T, (2, 2, 2, 3))
            ]
            lines.append(f"| {name} | {n} | {cells[0]} | {cells[1]} | {same:.2f} | {cells[2]} | {cells[3]} |")
            print(d, lines[-1], flush=True)
    return lines


def _cell(value: float, digits: int) -> str:
    return "–" if np.isnan(value) else f"{value:.{digits}f}"


def main() -> None:
    """Print the tables, and keep them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="*", choices=SETS, default=list(SETS))
    parser.add_argument("--features", nargs="*", type=int, default=[3, 10, 30])
    parser.add_argument("--largest", type=int, default=20_480, help="a third as many from 30 features on")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--compare", nargs="*", type=int, default=[3, 10], help="features of the last tables")
    parser.add_argument("--keep", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for n in (30, 400):
        measure("chain", n, 3, 0)
    text = ["# From twenty tasks upwards", "", *__doc__.split("\n\nRun with")[0].splitlines()[2:], ""]
    for d in options.features:
        for name in options.sets:
            largest = options.largest // (1 if d < 30 else 3)
            text += [f"## {name}, {d} features", "", *ladder(name, d, largest, options.seeds), ""]
    for d in options.compare:
        text += [f"## Exact and sampled evidence, {d} features", "", *both_ways(d, options.seeds), ""]
    text += [f"Made by `python benchmarks/ladder.py {' '.join(sys.argv[1:])}`.", ""]
    if options.keep:
        RESULTS.write_text("\n".join(text))


if __name__ == "__main__":
    main()
