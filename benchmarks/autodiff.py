"""One hyper-gradient by the closed form against automatic differentiation through the same inner problem.

Peers, all by torch in float64 on the same statistics:

- dense: the nd × nd matrix, ``torch.linalg.solve``, whose derivative torch takes by one adjoint solve;
- unrolled: conjugate gradients, differentiated through every step;
- unrolled, preconditioned: the same with our block-Jacobi preconditioner, a constant of the graph of operations, which
  favours it. This is the strongest peer, because it borrows the solver.

The unrolled ones get as many steps as their gradient needs for a relative error of 1e-6, known beforehand. Run with
``python benchmarks/autodiff.py [repeats]``; takes about ten minutes, half of them for the dense peer at 1,000 tasks.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from scipy.spatial import cKDTree
from threadpoolctl import threadpool_limits

from ggmtl.bilevel.inner import InnerProblem
from ggmtl.bilevel.problem import HoldOut
from ggmtl.runtime.kernels import available
from ggmtl.statistics.least_squares import LeastSquares

RESULTS = Path(__file__).parent / "results" / "autodiff.md"
N_FEATURES, N_NEIGHBOURS, TRAIN_ROWS, HELD_OUT_ROWS = 20, 10, 30, 8
BAR, ACCURACY, MEMORY = 20, 1e-6, 24 * 2**30
# Sizes at which memory is measured; the last two give the growth.
SIZES = {"closed form": (32_000, 64_000, 128_000), "unrolled": (8_000, 16_000, 32_000), "dense": (200, 300, 400)}


def make_loss(rng: np.random.Generator, models: np.ndarray, rows: int) -> LeastSquares:
    n, d = models.shape
    loss = LeastSquares(np.empty((n, d, d)), np.empty((n, d)), np.empty(n), np.full(n, float(rows)))
    for first in range(0, n, 5_000):
        part = slice(first, min(first + 5_000, n))
        X = rng.normal(size=(part.stop - first, rows, d))
        y = np.matmul(X, models[part, :, None])[..., 0] + rng.normal(size=X.shape[:2])
        loss.gram[part] = np.matmul(X.transpose(0, 2, 1), X)
        loss.moment[part] = np.matmul(y[:, None], X)[:, 0]
        loss.target_square[part] = (y**2).sum(axis=1)
    return loss


def make_problem(n: int, coupling: float) -> tuple[HoldOut, np.ndarray]:
    """Models that vary smoothly over a plane, the graph of near places, and edge values."""
    rng = np.random.default_rng(0)
    places = rng.uniform(size=(n, 2))
    models = np.sin(places @ (3.0 * rng.normal(size=(2, N_FEATURES))))
    _, near = cKDTree(places).query(places, N_NEIGHBOURS + 1)
    pairs = np.column_stack([np.repeat(np.arange(n), N_NEIGHBOURS), near[:, 1:].ravel()])
    edges = np.unique(np.sort(pairs, axis=1), axis=0)
    problem = InnerProblem(
        make_loss(rng, models, TRAIN_ROWS),
        edges,
        np.full(N_FEATURES, coupling),
        np.zeros(N_FEATURES),
        np.full((1, 1), 1e-6),
    )
    return HoldOut(problem, make_loss(rng, models, HELD_OUT_ROWS)), rng.uniform(0.05, 1.0, size=len(edges))


class Peer:
    """The outer loss as a function of the edge values, written in torch operations."""

    def __init__(self, criterion: HoldOut):
        problem = criterion.problem
        self.gram, self.moment = (torch.from_numpy(part) for part in (problem.loss.gram, problem.loss.moment))
        validation = criterion.validation
        self.validation = tuple(
            torch.from_numpy(part) for part in (validation.gram, validation.moment, validation.target_square)
        )
        self.i, self.j = torch.from_numpy(problem.edges).T.contiguous()
        self.coupling, self.ridge = float(problem.coupling[0]), float(problem.ridge[0, 0])

    def outer_loss(self, models: torch.Tensor) -> torch.Tensor:
        """Half the squared error on the rows held out."""
        gram, moment, square = self.validation
        quadratic = (torch.bmm(models.unsqueeze(1), gram).squeeze(1) * models).sum()
        return 0.5 * (quadratic - 2 * (moment * models).sum() + square.sum())

    def apply(self, weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """A · values, with the gram matrices as blocks and the edges one by one."""
        own = torch.bmm(values.unsqueeze(1), self.gram).squeeze(1) + self.ridge * values
        pull = weights.unsqueeze(1) * (values[self.i] - values[self.j])
        return own.index_add(0, self.i, pull).index_add(0, self.j, pull, alpha=-1)

    def unrolled(self, edge_values: torch.Tensor, steps: int, preconditioned: bool) -> torch.Tensor:
        """Outer loss after so many steps of conjugate gradients."""
        weights = self.coupling * edge_values
        inverse = self._inverse(weights.detach()) if preconditioned else None
        value, residual = torch.zeros_like(self.moment), self.moment
        direction, product = torch.zeros_like(residual), None
        for _ in range(steps):
            correction = residual if inverse is None else torch.bmm(residual.unsqueeze(1), inverse).squeeze(1)
            last, product = product, (residual * correction).sum()
            direction = correction if last is None else correction + (product / last) * direction
            image = self.apply(weights, direction)
            length = product / (direction * image).sum()
            value = value + length * direction
            residual = residual - length * image
        return self.outer_loss(value)

    def _inverse(self, weights: torch.Tensor) -> torch.Tensor:
        """Inverse diagonal blocks of A."""
        degree = torch.zeros(len(self.gram), dtype=torch.float64)
        degree.index_add_(0, self.i, weights).index_add_(0, self.j, weights)
        shift = torch.eye(self.gram.shape[1], dtype=torch.float64) * (degree + self.ridge)[:, None, None]
        return torch.cholesky_inverse(torch.linalg.cholesky(self.gram + shift))

    def dense(self, edge_values: torch.Tensor) -> torch.Tensor:
        """Outer loss by the assembled matrix."""
        n, d = self.moment.shape
        weights = self.coupling * edge_values
        half = torch.zeros((n, n), dtype=torch.float64).index_put((self.i, self.j), weights)
        adjacency = half + half.T
        graph = torch.diag(adjacency.sum(1) + self.ridge) - adjacency
        matrix = torch.kron(graph, torch.eye(d, dtype=torch.float64)) + torch.block_diag(*self.gram)
        return self.outer_loss(torch.linalg.solve(matrix, self.moment.reshape(-1)).view(n, d))


def differentiate(loss: Callable[[torch.Tensor], torch.Tensor], edge_values: np.ndarray) -> np.ndarray:
    """Gradient of a loss by automatic differentiation."""
    leaf = torch.from_numpy(edge_values).clone().requires_grad_()
    loss(leaf).backward()
    return leaf.grad.numpy()


def relative(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def steps_needed(peer: Peer, edge_values: np.ndarray, exact: np.ndarray, preconditioned: bool) -> int:
    """Steps after which the unrolled gradient is accurate."""
    steps = 4
    while True:
        gradient = differentiate(partial(peer.unrolled, steps=steps, preconditioned=preconditioned), edge_values)
        if relative(gradient, exact) <= ACCURACY:
            return steps
        steps += 4 if steps < 40 else steps // 5


def tolerance_needed(criterion: HoldOut, edge_values: np.ndarray, exact: np.ndarray) -> float:
    """The same for the closed form: the loosest of some tolerances."""
    tolerances = 10.0 ** np.arange(-5.0, -11.0, -0.5)
    return next(
        tol for tol in tolerances if relative(criterion.evaluate(edge_values, tol=tol).edges, exact) <= ACCURACY
    )


def seconds(function: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return statistics.median(times)


def compare_unrolled(n: int, coupling: float, preconditioned: bool, repeats: int) -> tuple[str, float]:
    criterion, edge_values = make_problem(n, coupling)
    exact = criterion.evaluate(edge_values, tol=1e-12).edges
    peer, tol = Peer(criterion), tolerance_needed(criterion, edge_values, exact)
    steps = steps_needed(peer, edge_values, exact, preconditioned)
    loss = partial(peer.unrolled, steps=steps, preconditioned=preconditioned)
    quick, slow = [], []
    # In turn, so that a busy machine slows both.
    for _ in range(repeats):
        slow.append(seconds(lambda: differentiate(loss, edge_values), 1))
        quick.append(seconds(lambda: criterion.evaluate(edge_values, tol=tol), 3))
    name = f"unrolled{', preconditioned' if preconditioned else ''}, {steps} steps"
    return row(name, n, coupling, statistics.median(quick), statistics.median(slow))


def compare_dense(n: int, coupling: float, repeats: int) -> tuple[str, float]:
    criterion, edge_values = make_problem(n, coupling)
    peer = Peer(criterion)
    exact = criterion.evaluate(edge_values, tol=1e-12).edges
    tol = tolerance_needed(criterion, edge_values, exact)
    found = []
    slow = seconds(lambda: found.append(differentiate(peer.dense, edge_values)), 1 if n > 100 else repeats)
    quick = seconds(lambda: criterion.evaluate(edge_values, tol=tol), 3 * repeats)
    return row(f"dense (gradients equal to {relative(found[0], exact):.0e})", n, coupling, quick, slow)


def row(name: str, n: int, coupling: float, quick: float, slow: float) -> tuple[str, float]:
    return (
        f"| {name} | {n:,} | {coupling:g} | {1e3 * quick:.1f} | {1e3 * slow:,.0f} | {slow / quick:.0f} |",
        slow / quick,
    )


def status_bytes(field: str) -> int:
    """An entry of this process's status: VmRSS is the memory it holds, VmHWM the most it held since it was started."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def measure_memory(method: str, n: int) -> int:
    """Peak resident bytes of one hyper-gradient, beyond those of an empty process with the same imports."""
    before = status_bytes("VmRSS")
    criterion, edge_values = make_problem(n, 1.0)
    if method == "closed form":
        criterion.evaluate(edge_values, tol=1e-8)
    else:
        peer = Peer(criterion)
        differentiate(
            peer.dense if method == "dense" else partial(peer.unrolled, steps=24, preconditioned=True), edge_values
        )
    return status_bytes("VmHWM") - before


def peak(method: str, n: int) -> int:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "memory", method, str(n)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def memory_row(method: str) -> str:
    """Peaks at growing sizes, and the size that fills the memory if they go on growing as between the last two."""
    sizes = SIZES[method]
    peaks = [peak(method, n) for n in sizes]
    power = 2.0 if method == "dense" else 1.0
    slope = (peaks[-1] - peaks[-2]) / (sizes[-1] ** power - sizes[-2] ** power)
    largest = (MEMORY / slope) ** (1 / power)
    digits = 10 ** max(int(np.log10(largest)) - 1, 0)
    shown = ", ".join(f"{p / 2**30:.2f} GiB at {n:,}" for n, p in zip(sizes, peaks))
    unit = f"{slope / 1024:.1f} KiB · n{'²' if power == 2 else ''}"
    return f"| {method} | {shown} | {unit} | {int(largest / digits) * digits:,} |"


def main(repeats: int = 5) -> None:
    torch.set_num_threads(1)
    lines = [
        "# One hyper-gradient: closed form against automatic differentiation",
        "",
        f"d = {N_FEATURES}, {N_NEIGHBOURS} neighbours, {TRAIN_ROWS} + {HELD_OUT_ROWS} rows per task, squared penalty, "
        f"cold start. Every method goes just far enough for a relative error of its edge gradient of {ACCURACY:g} "
        f"(the dense one is exact). One thread of {os.cpu_count()}, processor time, medians, in one run; torch "
        f"{torch.__version__}, our kernels: {os.environ.get('GGMTL_KERNELS', available()[0])}.",
        "",
        "| peer | tasks | λ | closed form, ms | autodiff, ms | ratio |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    ratios: dict[str, list[float]] = {"dense": [], "unrolled": [], "unrolled, preconditioned": []}

    def add(peer: str, compared: tuple[str, float]) -> None:
        lines.append(compared[0])
        print(compared[0], flush=True)
        ratios[peer].append(compared[1])

    with threadpool_limits(1):
        for coupling in (0.1, 1.0, 10.0, 100.0):
            add("unrolled, preconditioned", compare_unrolled(1_000, coupling, True, repeats))
            add("unrolled", compare_unrolled(1_000, coupling, False, repeats))
        add("dense", compare_dense(100, 1.0, repeats))
        add("dense", compare_dense(1_000, 1.0, repeats))
    # At 1,000 tasks; the first dense ratio is that of 100.
    smallest = {"dense": ratios["dense"][1], **{peer: min(ratios[peer]) for peer in list(ratios)[1:]}}
    verdicts = (f"{peer} {r:.0f} ({'met' if r >= BAR else '**not met**'})" for peer, r in smallest.items())
    lines += [
        "",
        f"Smallest ratio at 1,000 tasks, bar {BAR}: {'; '.join(verdicts)}.",
        "",
        "## Largest problem in 24 GiB",
        "",
        "Peak resident memory of one hyper-gradient at λ = 1 (statistics of both parts included, imports not), each in "
        "a process of its own; unrolled: 24 preconditioned steps. The last column continues the growth between the "
        "last two sizes, linear in n (dense: in n²), to 24 GiB: an estimate, not a run.",
        "",
        "| method | measured | growth | tasks in 24 GiB |",
        "| --- | --- | --- | --- |",
        *(memory_row(method) for method in SIZES),
    ]
    text = "\n".join(lines) + "\n"
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    if sys.argv[1:2] == ["memory"]:
        print(measure_memory(sys.argv[2], int(sys.argv[3])))
    else:
        main(*map(int, sys.argv[1:2]))
