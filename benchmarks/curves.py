"""Curves for very many tasks: a fit with effects that bend, against a loop of Ridge over the same columns.

    python benchmarks/curves.py --sizes 10000 100000

Five features, each with three spline columns beside its line: 21 coefficients a task. Every task's effects are its own
amounts of a sine of every feature; errors are those on fresh rows, with a noise of one. Every fit runs in a process of
its own, with the loop in that of ``"smooth"``. Seconds are those of all processors. Peak memory is that of the fit,
beyond what the process holds before it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from sklearn.linear_model import Ridge

from ggmtl import GGMTLRegressor
from ggmtl.data.curves import Curves
from scale import peak_memory, root_mean_square

RESULTS = Path(__file__).parent / "results" / "curves.md"
FEATURES, FRESH, EFFECTS = 5, 3, ("linear", "smooth", "auto")


def rows_of(amounts: np.ndarray, rows: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """So many rows of every task: y = Σ_k a_ik sin(x_k) + b_ik x_k/2 + noise."""
    tasks = np.repeat(np.arange(len(amounts)), rows)
    X = random.uniform(-3.0, 3.0, size=(len(tasks), FEATURES))
    y = random.standard_normal(len(tasks))
    for k in range(FEATURES):
        y += amounts[tasks, k] * np.sin(X[:, k]) + 0.5 * amounts[tasks, FEATURES + k] * X[:, k]
    return X, y, tasks


def measure(n: int, rows: int, effects: str) -> dict:
    """Seconds, memory and error of one fit, and of the loop beside the smooth one."""
    random = np.random.default_rng(0)
    amounts = np.tile(random.normal(size=2 * FEATURES), (n, 1)) + 0.5 * random.normal(size=(n, 2 * FEATURES))
    # Compiled kernels are loaded before anything is timed.
    GGMTLRegressor(effects=effects).fit(*rows_of(amounts[:1500], rows, random))
    X, y, tasks = rows_of(amounts, rows, random)
    new, target, owner = rows_of(amounts[: min(n, 20_000)], FRESH, random)
    found = {}
    if effects == "smooth":
        start = time.process_time()
        curves = Curves.of_rows(X)
        known, models = np.column_stack([new, curves.columns(new)]), []
        for i in range(n):
            part = slice(i * rows, (i + 1) * rows)
            ridge = Ridge().fit(np.column_stack([X[part], curves.columns(X[part])]), y[part])
            models.append(np.append(ridge.coef_, ridge.intercept_))
        found["loop"] = time.process_time() - start
        chosen = np.array(models)[owner]
        found["loop_error"] = root_mean_square(np.einsum("rd,rd->r", known, chosen[:, :-1]) + chosen[:, -1] - target)
    held, start = peak_memory(), time.process_time()
    model = GGMTLRegressor(effects=effects).fit(X, y, tasks=tasks)
    found |= {"fit": time.process_time() - start, "memory": peak_memory() - held}
    return found | {"error": root_mean_square(model.predict(new, tasks=owner) - target)}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=(10_000, 100_000))
    parser.add_argument("--rows", type=int, default=20)
    parser.add_argument("--keep", action="store_true", help="write results/curves.md")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.child:
        print(json.dumps(measure(told.sizes[0], told.rows, told.child)))
        return
    head = ["tasks", "effects", "s, fit", "fit ÷ Ridge loop", "GB", "RMSE", "RMSE of the loop"]
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for n in told.sizes:
        found = {}
        for effects in EFFECTS:
            command = [sys.executable, __file__, "--sizes", str(n), "--rows", str(told.rows), "--child", effects]
            found[effects] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        loop = found["smooth"]
        for effects, r in found.items():
            shares = f"{r['fit']:.1f} | {r['fit'] / loop['loop']:.2f} | {r['memory'] / 1e9:.1f}"
            lines.append(f"| {n:,} | {effects} | {shares} | {r['error']:.3f} | {loop['loop_error']:.3f} |")
            print(lines[-1], flush=True)
    words = " ".join(__doc__.split("Five features")[1].replace("``", "`").split())
    threads = os.environ.get("OMP_NUM_THREADS") or str(os.cpu_count())
    text = [
        "# Curves for very many tasks",
        "",
        f"Five features{words} {told.rows} rows a task; threads: {threads}.",
        "",
        *lines,
    ]
    if told.keep:
        RESULTS.write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
