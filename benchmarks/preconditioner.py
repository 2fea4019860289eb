"""Steps of conjugate gradients against the strength of the coupling, for four preconditioners.

Prints one table per graph: iterations to a relative residual of 1e-8 and, in brackets, products with A (those
inside the preconditioner included). B is block-Jacobi, C the graph-level solve, B + C their sum, and the
default is what the library chooses. Run with ``python benchmarks/preconditioner.py [n_tasks]``.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.spatial import cKDTree

from ggmtl.runtime.kernels import available
from ggmtl.solve.preconditioners import BlockJacobi, GraphLevel, make_preconditioner
from ggmtl.solve.solvers import ConjugateGradient
from ggmtl.solve.system import TaskSystem

RESULTS = Path(__file__).parent / "results" / "preconditioner.md"
STRENGTHS = 10.0 ** np.arange(-4, 7)
N_FEATURES, N_NEIGHBOURS, TOLERANCE, MAX_ITER, RIDGE = 20, 10, 1e-8, 400, 1e-6
BAR, CORNER_BAR = 25, 35


def neighbour_edges(points: np.ndarray, k: int) -> np.ndarray:
    """Edges of the symmetrised k-nearest-neighbour graph, shape (m, 2) with i < j."""
    _, near = cKDTree(points).query(points, k + 1)
    pairs = np.column_stack([np.repeat(np.arange(len(points)), k), near[:, 1:].ravel()])
    return np.unique(np.sort(pairs, axis=1), axis=0)


def make_case(n: int, latent: int, rows: int, decades: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Gram matrices, moments, edges and edge weights of smooth tasks on latent points."""
    rng = np.random.default_rng(latent * 1000 + rows * 10 + decades)
    points = rng.uniform(size=(n, latent))
    edges = neighbour_edges(points, N_NEIGHBOURS)
    models = np.sin(points @ rng.normal(size=(latent, N_FEATURES)) * 2.0)
    X = rng.normal(size=(n, rows, N_FEATURES))
    y = np.einsum("nrd,nd->nr", X, models) + rng.normal(size=(n, rows))
    weights = 10.0 ** rng.uniform(-decades, 0, size=len(edges)) if decades else np.ones(len(edges))
    return np.matmul(X.transpose(0, 2, 1), X), np.einsum("nrd,nr->nd", X, y), edges, weights


def preconditioners(system: TaskSystem) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
    """The four maps that are compared."""
    block, graph = BlockJacobi.of(system), GraphLevel.of(system)
    return {
        "B": block,
        "C": graph,
        "B + C": lambda residual: block(residual) + graph(residual),
        "default": make_preconditioner(system),
    }


def count(system: TaskSystem, right: np.ndarray, preconditioner: Callable) -> tuple[int, int, bool]:
    """Iterations, products with A, and whether the tolerance was reached."""
    solution = ConjugateGradient(system, preconditioner, max_iter=MAX_ITER).solve(right, tol=TOLERANCE)
    return solution.iterations, solution.applications, solution.status == "converged"


def measure(n: int, latent: int, rows: int, decades: int) -> dict[str, list[tuple[int, int, bool]]]:
    """Counts of every preconditioner for every strength."""
    gram, moment, edges, weights = make_case(n, latent, rows, decades)
    table: dict[str, list] = {}
    for strength in STRENGTHS:
        coupling, hub = np.full(N_FEATURES, strength), np.zeros(N_FEATURES)
        system = TaskSystem(gram, edges, weights, coupling, hub, np.full((1, 1), RIDGE))
        for name, preconditioner in preconditioners(system).items():
            table.setdefault(name, []).append(count(system, moment, preconditioner))
    return table


def render(table: dict[str, list[tuple[int, int, bool]]]) -> list[str]:
    """Markdown rows, one per preconditioner; the default's maximum in bold."""
    head = "| | " + " | ".join(f"1e{round(np.log10(s))}" for s in STRENGTHS) + " |"
    lines = [head, "| --- |" + " --- |" * len(STRENGTHS)]
    worst = max(iterations for iterations, _, _ in table["default"])
    for name, cells in table.items():
        shown = []
        for iterations, applications, reached in cells:
            cell = f"{iterations}{'' if reached else '+'} ({applications})"
            shown.append(f"**{cell}**" if name == "default" and iterations == worst else cell)
        lines.append(f"| {name} | " + " | ".join(shown) + " |")
    return lines


def main(n: int = 5000) -> None:
    start = time.perf_counter()
    lines = [
        "# Conjugate gradients: iterations (products with A)",
        "",
        f"{n:,} tasks, d = {N_FEATURES}, {N_NEIGHBOURS}-nearest-neighbour graph, ridge {RIDGE:g}, to a "
        f"relative residual of {TOLERANCE:g}, at most {MAX_ITER} iterations; a + marks those that "
        "did not get there. Columns: λ. Bold: the largest count of the default. "
        f"Threads: {os.environ.get('OPENBLAS_NUM_THREADS', 'all')} of {os.cpu_count()}; kernels: "
        f"{os.environ.get('GGMTL_KERNELS', available()[0])}. All counts are from one run.",
    ]
    verdicts = []
    for latent, rows, decades in itertools.product((2, 20), (2 * N_FEATURES, N_FEATURES // 3), (0, 6)):
        table = measure(n, latent, rows, decades)
        bar = CORNER_BAR if rows < N_FEATURES and decades else BAR
        cells = table["default"]
        worst = max(iterations for iterations, _, _ in cells)
        met = worst <= bar and all(reached for _, _, reached in cells)
        spread = f"weights over {decades} decades" if decades else "equal weights"
        title = f"{latent}-D points, N_i = {rows}, {spread}"
        lines += ["", f"## {title}", "", *render(table)]
        most = max(applications for _, applications, _ in cells)
        verdicts.append(f"| {title} | {worst} | {most} | {bar} | {'yes' if met else '**no**'} |")
    lines += ["", "## Largest counts of the default", ""]
    lines += [
        "| case | iterations | products with A | bar (iterations) | met |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [*verdicts, "", f"Measured in {time.perf_counter() - start:.0f} s."]
    text = "\n".join(lines) + "\n"
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
