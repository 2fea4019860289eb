"""One hyper-gradient against the dense solve of the same system, on a problem of School's size.

The dense side is what the formula says literally: assemble the nd × nd matrix, factorise it, solve for models
and adjoint, take the edge-wise products. Both sides run in the same process, in turn, on one thread, and are
measured in processor time. Run with ``python benchmarks/hypergradient.py [repeats]``.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.spatial import cKDTree
from threadpoolctl import threadpool_limits

from ggmtl.bilevel.inner import InnerProblem
from ggmtl.bilevel.problem import HoldOut
from ggmtl.runtime.kernels import available
from ggmtl.statistics.least_squares import LeastSquares

RESULTS = Path(__file__).parent / "results" / "hypergradient.md"
N_FEATURES, N_NEIGHBOURS, TOLERANCE = 28, 10, 1e-8
BAR, AIM = 50, 300
# Pupils of each of the 139 schools of the School set.
# fmt: off
ROWS = [
    *(200, 91, 95, 212, 40, 57, 47, 113, 160, 182, 215, 113, 25, 34, 110, 123, 103, 182, 107, 137),
    *(86, 45, 146, 201, 36, 67, 146, 68, 137, 251, 92, 189, 180, 103, 165, 119, 145, 73, 234, 105),
    *(140, 100, 129, 140, 35, 198, 175, 136, 176, 46, 91, 157, 50, 150, 184, 65, 154, 88, 76, 181),
    *(74, 168, 94, 131, 181, 48, 64, 175, 46, 62, 140, 249, 81, 116, 30, 22, 109, 57, 74, 81),
    *(150, 107, 60, 83, 92, 100, 116, 96, 130, 47, 60, 151, 55, 29, 163, 135, 90, 110, 179, 72),
    *(43, 155, 73, 159, 115, 107, 69, 83, 34, 129, 212, 51, 120, 38, 125, 157, 54, 128, 77, 39),
    *(42, 102, 39, 97, 96, 97, 185, 64, 112, 232, 31, 59, 238, 215, 151, 28, 79, 72, 23),
]
# fmt: on


def make_loss(rng: np.random.Generator, models: np.ndarray, rows: np.ndarray) -> LeastSquares:
    """Statistics of random rows of every task."""
    # One table of rows, as data come, cut into tasks.
    X = np.split(rng.normal(size=(rows.sum(), models.shape[1])), np.cumsum(rows)[:-1])
    y = [block @ model + rng.normal(size=len(block)) for block, model in zip(X, models)]
    return LeastSquares(
        np.stack([block.T @ block for block in X]),
        np.stack([block.T @ target for block, target in zip(X, y)]),
        np.array([target @ target for target in y]),
        rows.astype(float),
    )


def make_problem(coupling: float) -> tuple[HoldOut, np.ndarray]:
    """A hold-out problem (one fifth of every task held out) and edge values."""
    rng = np.random.default_rng(0)
    rows = np.array(ROWS)
    models = rng.normal(size=(len(rows), N_FEATURES))
    held_out = np.maximum(rows // 5, 1)
    _, near = cKDTree(models).query(models, N_NEIGHBOURS + 1)
    pairs = np.column_stack([np.repeat(np.arange(len(rows)), N_NEIGHBOURS), near[:, 1:].ravel()])
    edges = np.unique(np.sort(pairs, axis=1), axis=0)
    problem = InnerProblem(
        make_loss(rng, models, rows - held_out),
        edges,
        np.full(N_FEATURES, coupling),
        np.zeros(N_FEATURES),
        np.full((1, 1), 1e-6),
    )
    return HoldOut(problem, make_loss(rng, models, held_out)), rng.uniform(0.05, 1.0, size=len(edges))


def dense_gradient(criterion: HoldOut, edge_values: np.ndarray) -> tuple[float, np.ndarray]:
    """Value and edge gradient by an nd × nd Cholesky factor."""
    problem = criterion.problem
    n, d = problem.loss.moment.shape
    i, j = problem.edges.T
    matrix = np.zeros((n, d, n, d))
    tasks, index = np.arange(n), np.arange(d)
    matrix[tasks, :, tasks, :] = problem.loss.gram + problem.ridge[0, 0] * np.eye(d)
    adjacency = np.zeros((n, n))
    adjacency[i, j] = adjacency[j, i] = edge_values
    graph = np.diag(adjacency.sum(axis=0)) - adjacency
    matrix[:, index, :, index] += problem.coupling[:, None, None] * graph
    factor = cho_factor(matrix.reshape(n * d, n * d), lower=True, overwrite_a=True, check_finite=False)
    models = cho_solve(factor, problem.loss.moment.ravel(), check_finite=False).reshape(n, d)
    slope = criterion.validation.gradient(models)
    adjoint = cho_solve(factor, slope.ravel(), check_finite=False).reshape(n, d)
    difference = (models[i] - models[j]) * problem.coupling
    return criterion.validation.value(models), -np.einsum("md,md->m", difference, adjoint[i] - adjoint[j])


def seconds(function: Callable[[], object]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start


def compare(coupling: float, repeats: int) -> tuple[float, float, float]:
    """Median seconds of both sides, and the largest relative difference of the gradients."""
    criterion, edge_values = make_problem(coupling)
    fast = criterion.evaluate(edge_values, tol=TOLERANCE)
    _, gradient = dense_gradient(criterion, edge_values)
    difference = np.abs(fast.edges - gradient).max() / np.abs(gradient).max()
    quick, slow = [], []
    # Processor time is comparable only on one thread.
    with threadpool_limits(1):
        for _ in range(repeats):
            slow.append(seconds(lambda: dense_gradient(criterion, edge_values)))
            quick += [seconds(lambda: criterion.evaluate(edge_values, tol=TOLERANCE)) for _ in range(5)]
    return statistics.median(quick), statistics.median(slow), float(difference)


def main(repeats: int = 5) -> None:
    n = len(ROWS)
    n_edges = len(make_problem(1.0)[1])
    lines = [
        "# One hyper-gradient against the dense solve",
        "",
        f"{n} tasks with School's row counts (a fifth held out), d = {N_FEATURES}, nd = {n * N_FEATURES}, "
        f"{N_NEIGHBOURS}-nearest-neighbour graph of {n_edges} edges; squared penalty, tolerance "
        f"{TOLERANCE:g}, cold start. Medians of {repeats} dense and {5 * repeats} fast runs in one "
        f"process, in processor time; one thread of {os.cpu_count()}; kernels: "
        f"{os.environ.get('GGMTL_KERNELS', available()[0])}. All ratios are from one run.",
        "",
        "| λ | fast, ms | dense, ms | ratio | largest relative difference of the gradients |",
        "| --- | --- | --- | --- | --- |",
    ]
    ratios = []
    for coupling in (0.1, 1.0, 10.0, 100.0):
        quick, slow, difference = compare(coupling, repeats)
        ratios.append(slow / quick)
        lines.append(f"| {coupling:g} | {1e3 * quick:.2f} | {1e3 * slow:.0f} | {slow / quick:.0f} | {difference:.1e} |")
    verdict = "met" if min(ratios) >= BAR else "**not met**"
    lines += ["", f"Smallest ratio {min(ratios):.0f}; bar {BAR} {verdict}; aim {AIM}."]
    text = "\n".join(lines) + "\n"
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
