"""A whole default fit at a growing number of tasks, against a loop of scikit-learn's Ridge over the same tasks.

Tasks lie on a smooth surface: coefficients are sums of sines of a task's place in a square, which no method sees.
Every size runs in a process of its own: the rows are made, the loop and the fit are timed one after the other (the
compiled kernels are loaded before), and errors are taken on fresh rows against a noise of one. Beyond ``--loop`` tasks
the loop runs over that many and its time is scaled up. Peak memory is that of the whole process less what it holds
before the fit, over the bytes of the statistics (two parts: rows kept and rows held out).

Run with ``python benchmarks/scale.py``; ``--keep`` writes the result file; ``--sizes 1000000 --features 16 --rows 20``
is the largest case.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).parent / "results"
SIZES = (1_000, 4_000, 10_000, 32_000, 100_000, 256_000)
FRESH = 5


def smooth_models(n: int, d: int, random: np.random.Generator) -> np.ndarray:
    """Two sines of the place per coefficient."""
    place = random.uniform(size=(n, 2))
    models = np.zeros((n, d))
    for _ in range(2):
        frequency, phase = random.normal(scale=3.0, size=(d, 2)), random.uniform(0, 2 * np.pi, d)
        models += 0.5 * random.normal(size=d) * np.sin(place @ frequency.T + phase)
    return models


def rows_of(models: np.ndarray, rows: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """So many rows of every task, task after task."""
    n, d = models.shape
    tasks = np.repeat(np.arange(n), rows)
    X = random.standard_normal((n * rows, d))
    y = random.standard_normal(n * rows)
    for first in range(0, n, 10_000):
        part = slice(first * rows, min(first + 10_000, n) * rows)
        y[part] += np.einsum("rd,rd->r", X[part], models[tasks[part]])
    return X, y, tasks


def measure(n: int, d: int, rows: int, loop: int) -> dict:
    """Time of the loop and of the fit, memory and errors."""
    from sklearn.linear_model import Ridge

    from ggmtl import GGMTLRegressor, TaskStatistics

    random = np.random.default_rng(0)
    warm = smooth_models(1500, d, random)
    GGMTLRegressor().fit(*rows_of(warm, rows, random))
    models = smooth_models(n, d, random)
    X, y, tasks = rows_of(models, rows, random)
    new, target, owner = rows_of(models[: min(n, 20_000)], FRESH, random)
    ridge, some = [], min(n, loop)
    start = time.perf_counter()
    for i in range(some):
        part = slice(i * rows, (i + 1) * rows)
        ridge.append(Ridge().fit(X[part], y[part]))
    loop_time = (time.perf_counter() - start) * n / some
    known = owner < some
    alone = np.array([ridge[i].coef_ for i in owner[known]])
    bias = np.array([ridge[i].intercept_ for i in owner[known]])
    loop_error = root_mean_square(np.einsum("rd,rd->r", new[known], alone) + bias - target[known])
    held = peak_memory()
    start = time.perf_counter()
    if n <= 300_000:
        model = GGMTLRegressor().fit(X, y, tasks=tasks)
    else:
        # The rows themselves need not be held while the models are learned.
        held_out = (np.arange(len(y)) % rows < rows // 5).astype(np.int64)
        statistics = TaskStatistics.from_arrays(X, y, tasks, folds=1 - held_out)
        del X, y, tasks
        model = GGMTLRegressor().fit_statistics(statistics)
    fit_time = time.perf_counter() - start
    hub = next(row["error"] for row in model.path_ if row["level"] == "hub")
    return {
        "n": n,
        "d": d,
        "rows": rows,
        "loop": loop_time,
        "fit": fit_time,
        "looped": some,
        "memory": peak_memory() - held,
        "peak": peak_memory(),
        "statistics": 2 * n * (d + 2) ** 2 * 8,
        "edges": model.graph_.n_edges,
        "loop_error": loop_error,
        "error": root_mean_square(model.predict(new, tasks=owner) - target),
        "validation": model.validation_error_,
        "hub": hub,
    }


def root_mean_square(values: np.ndarray) -> float:
    """√ mean of squares."""
    return float(np.sqrt(np.mean(values**2)))


def peak_memory() -> int:
    """Largest resident memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def bandwidth(n: int = 100_000, d: int = 30) -> dict:
    """Seconds of a step of conjugate gradients, and of reading the same bytes with as many threads."""
    from ggmtl.graph.candidates import KNN
    from ggmtl.runtime import kernels
    from ggmtl.runtime.machine import over_tasks
    from ggmtl.solve.preconditioners import BlockJacobi
    from ggmtl.solve.solvers import ConjugateGradient
    from ggmtl.solve.system import TaskSystem

    random = np.random.default_rng(0)
    X = random.standard_normal((n, d + 5, d))
    gram = np.matmul(X.transpose(0, 2, 1), X)
    del X
    place = random.uniform(size=(n, 2))
    edges = KNN(k=10).propose(place[np.lexsort(np.floor(place * 100).T)], np.arange(n)).edges
    system = TaskSystem(gram, edges, np.full(len(edges), 2.0), np.ones(d), np.full(d, 0.5), np.array(1e-6))
    solver = ConjugateGradient(system, BlockJacobi.of(system), max_iter=10)
    right = random.standard_normal((n, d))
    solver.solve(right, tol=1e-30)
    start = time.perf_counter()
    steps = solver.solve(right, tol=1e-30).iterations
    step = (time.perf_counter() - start) / (steps + 1)
    flat, inverse = gram.reshape(n, -1), solver.preconditioner.inverse.reshape(n, -1)
    start = time.perf_counter()
    for _ in range(5):
        over_tasks(lambda a, b: (flat[a:b].sum(), inverse[a:b].sum()), n, flat.size)
    read = (time.perf_counter() - start) / 5
    # Both matrices, the neighbours' vectors, and eleven passes over vectors, each read or written once.
    moved = 2 * gram.nbytes + 2 * len(edges) * d * 8 + 11 * right.nbytes
    return {
        "n": n,
        "d": d,
        "step": step,
        "moved": moved,
        "read": read,
        "bytes": 2 * gram.nbytes,
        "form": kernels.available()[0],
    }


def in_process(arguments: list[str]) -> dict:
    """The answer of this script in a process of its own."""
    command = [sys.executable, __file__, *arguments, "--child"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def table(results: list[dict]) -> str:
    """Markdown."""
    lines = [
        "| tasks | d | rows each | fit ÷ Ridge loop | fit, min | memory of the fit ÷ statistics | peak GB | "
        "edges reported | RMSE: loop | hub (held out) | GGMTL | held out |",
        "| --- " * 12 + "|",
    ]
    for r in results:
        scaled = "" if r["looped"] == r["n"] else f" (loop over {r['looped']:,}, scaled)"
        lines.append(
            f"| {r['n']:,} | {r['d']} | {r['rows']} | {r['fit'] / r['loop']:.2f}{scaled} | "
            f"{r['fit'] / 60:.1f} | {r['memory'] / r['statistics']:.1f} | {r['peak'] / 1e9:.1f} | {r['edges']:,} | "
            f"{r['loop_error']:.3f} | {r['hub']:.3f} | {r['error']:.3f} | {r['validation']:.3f} |"
        )
    timed = [r for r in results if r["n"] >= 4_000]
    if len(timed) > 1:
        logs = np.log([[r["n"], r["fit"]] for r in timed])
        slope = np.polyfit(logs[:, 0], logs[:, 1], 1)[0]
        lines += ["", f"From {timed[0]['n']:,} tasks on, the time of the fit grows as n^{slope:.2f}."]
    return "\n".join(lines)


def main() -> None:
    """Measure and print; write where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--features", type=int, default=20)
    parser.add_argument("--rows", type=int, default=30)
    parser.add_argument("--loop", type=int, default=100_000)
    parser.add_argument(
        "--bandwidth", action="store_true", help="one step of conjugate gradients against reading memory"
    )
    parser.add_argument("--keep", metavar="NAME", help="write benchmarks/results/NAME.md")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.child:
        answer = bandwidth() if told.bandwidth else measure(told.sizes[0], told.features, told.rows, told.loop)
        print(json.dumps(answer))
        return
    common = ["--features", str(told.features), "--rows", str(told.rows), "--loop", str(told.loop)]
    results = []
    for n in told.sizes:
        results.append(in_process(["--sizes", str(n), *common]))
        print(table(results[-1:]).splitlines()[-1], flush=True)
    text = f"# Scale\n\n{__doc__.split('Run with')[0].strip()}\n\n{table(results)}\n" if results else "# Scale\n"
    if told.bandwidth:
        r = in_process(["--bandwidth"])
        share = (r["moved"] / r["step"]) / (r["bytes"] / r["read"])
        text += (
            f"\nOne step of conjugate gradients ({r['n']:,} tasks, d = {r['d']}, 10 neighbours, block-Jacobi, "
            f"{r['form']}) moves {r['moved'] / 1e9:.2f} GB at {share:.0%} of the rate at which the same threads "
            "read the matrices.\n"
        )
    threads = os.environ.get("GGMTL_THREADS") or os.environ.get("OMP_NUM_THREADS") or str(os.cpu_count())
    text += f"\nThreads: {threads}.\n"
    print(text)
    if told.keep:
        (RESULTS / f"{told.keep}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
