"""Default fits of tables with odd shapes: few rows and many features, very many tiny tasks, many features per task.

Every shape is fitted once, after small fits have loaded the compiled kernels, next to a loop of scikit-learn's `Ridge`
over the same tasks. A fit may take five times the loop or 5 s, whichever is more, and the first prediction with a
standard deviation 20 % of the fit. All times are processor seconds; ratios count.

Tasks have models that scatter about a common one, and noise of one. Run with ``python benchmarks/shapes.py``;
``--keep`` writes the result file. Takes about three minutes.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.linear_model import Ridge

from ggmtl import GGMTLRegressor

RESULTS = Path(__file__).parent / "results" / "shapes.md"
# Tasks, rows each, features.
SHAPES = ((50, 20, 300), (50, 400, 300), (2_000, 60, 40), (5_000, 20, 10), (50_000, 2, 10))
LOOPS, SECONDS, STANDARD_ERRORS = 5.0, 5.0, 0.2


@dataclass(frozen=True)
class Table:
    """Rows of tasks, task after task."""

    X: np.ndarray
    y: np.ndarray
    tasks: np.ndarray

    @classmethod
    def of(cls, n: int, rows: int, d: int) -> Table:
        """Models that scatter about a common one by half of its size."""
        random = np.random.default_rng(0)
        models = (random.normal(size=d) + 0.5 * random.normal(size=(n, d))) / np.sqrt(d)
        X, tasks = random.normal(size=(n * rows, d)), np.repeat(np.arange(n), rows)
        return cls(X, np.einsum("rd,rd->r", X, models[tasks]) + random.normal(size=n * rows), tasks)


def seconds(call: Callable[[], object]) -> float:
    """Processor seconds of one call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def row(n: int, rows: int, d: int) -> str:
    """One line of the table."""
    table, model = Table.of(n, rows, d), GGMTLRegressor(random_state=0)
    parts = [(table.X[k : k + rows], table.y[k : k + rows]) for k in range(0, n * rows, rows)]
    loop = seconds(lambda: [Ridge().fit(X, y) for X, y in parts])
    fit = seconds(lambda: model.fit(table.X, table.y, tasks=table.tasks))
    first = seconds(lambda: model.predict(table.X[:5], tasks=table.tasks[:5], return_std=True))
    within = "met" if fit <= max(LOOPS * loop, SECONDS) else "not met"
    errors_within = "met" if first <= STANDARD_ERRORS * fit else "not met"
    return (
        f"| {n:,} × {rows} × {d} | {loop:.2f} | {fit:.2f} | {fit / loop:.1f} | {within} | {first:.2f} | "
        f"{first / fit:.0%} | {errors_within} |"
    )


def main() -> None:
    """Measure and print; write where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help=f"write {RESULTS.name}")
    told = parser.parse_args()
    warnings.simplefilter("ignore")
    for n, d in ((60, 4), (2_000, 8)):
        table = Table.of(n, 20, d)
        GGMTLRegressor(random_state=0).fit(table.X, table.y, tasks=table.tasks)
    lines = [
        "# Odd shapes\n",
        __doc__.split("Run with")[0].strip() + "\n",
        "| tasks × rows × features | s, `Ridge` loop | s, fit | ÷ loop | bar | s, first `return_std` | ÷ fit | bar |",
        "| --- " * 8 + "|",
    ]
    print("\n".join(lines))
    for shape in SHAPES:
        lines.append(row(*shape))
        print(lines[-1], flush=True)
    if told.keep:
        RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
