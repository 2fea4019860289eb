"""A million tasks on one CUDA device: kernels, neighbours, hyper-gradient, evidence of the hub, and a whole fit.

Needs Python, NumPy and torch; ggmtl itself need not be installed, but the whole fit needs what ggmtl does. Each section
stands alone: one that fails says why and the others go on. Run with ``python benchmarks/gpu.py [tasks] [device]
[sections]``, sections as in ``whole_fit,agreement`` and all by default; prints Markdown and saves it under
``benchmarks/results/gpu.md`` (or in the folder that the environment variable ``OUT`` names).
"""

from __future__ import annotations

import cProfile
import importlib
import importlib.util
import os
import pstats
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
N_FEATURES, N_NEIGHBOURS, TRAIN_ROWS, HELD_OUT_ROWS = 30, 10, 48, 12
# As in ggmtl.evidence.hub, which needs SciPy.
RIDGE = 1e-8
HYPERGRADIENT_BAR, FIT_BAR, FIT_AIM = 0.5, 60.0, 30.0
# Rows of a task in the whole fit, a fifth of them held out.
FIT_ROWS, FIT_HELD_OUT = 32, 8
SUBPROBLEM = 20_000
NARROW, WIDE = torch.float32, torch.float64


_FORMS = ("solve.gpu.solver", "solve.gpu.system", "evidence.gpu.kernels")


def load_kernels() -> SimpleNamespace:
    """The torch form of the kernels, also where the dependencies of ggmtl are missing."""
    if "ggmtl" not in sys.modules and importlib.util.find_spec("ggmtl") is None:
        sys.path.insert(0, str(ROOT / "src"))
    try:
        modules = [importlib.import_module(f"ggmtl.{name}") for name in _FORMS]
    except ImportError:
        # Empty parents with the right folders: their own files import what is not installed here.
        for name in [name for name in sys.modules if name.split(".")[0] == "ggmtl"]:
            del sys.modules[name]
        for name in ("ggmtl", "ggmtl.solve", "ggmtl.evidence", "ggmtl.evidence.gpu"):
            parent = ModuleType(name)
            parent.__path__ = [str(ROOT / "src" / name.replace(".", "/"))]
            sys.modules[name] = parent
        modules = [importlib.import_module(f"ggmtl.{name}") for name in _FORMS]
    return SimpleNamespace(**{name: value for module in modules for name, value in vars(module).items()})


kernels = load_kernels()


class Bench:
    """What the sections share: device, size, data made once, lines of the report."""

    def __init__(self, n: int, device: str):
        self.n, self.device = n, torch.device(device)
        self.lines: list[str] = []
        self.bandwidth = float("nan")
        self.generator = torch.Generator(self.device).manual_seed(0)

    def say(self, *lines: str) -> None:
        """Print and keep."""
        self.lines += lines
        print(*lines, sep="\n", flush=True)

    def sync(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def seconds(self, function: Callable[[], object], repeats: int = 5) -> float:
        """Median of some runs after one that warms up."""
        function()
        times = []
        for _ in range(repeats):
            self.sync()
            start = time.perf_counter()
            function()
            self.sync()
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    def peak(self) -> str:
        """Largest memory since the last call, in GB."""
        if self.device.type != "cuda":
            return "not measured"
        peak = torch.cuda.max_memory_allocated() / 1e9
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return f"{peak:.1f} GB"

    def normal(self, *shape: int, dtype: torch.dtype = NARROW) -> Tensor:
        """Standard normal numbers."""
        return torch.randn(shape, generator=self.generator, device=self.device, dtype=dtype)


def main(n: int = 1_000_000, device: str = "", chosen: str = "") -> None:
    bench = Bench(n, device or ("cuda" if torch.cuda.is_available() else "cpu"))
    sections = (machine, block_kernels, inverse_kernels, graph_kernels, hub_section, neighbour_section, gradients)
    sections += (whole_fit, agreement)
    begin = time.perf_counter()
    bench.say("# One GPU, a million tasks", "")
    for section in sections:
        if chosen and section.__name__ not in ("machine", *chosen.split(",")):
            continue
        start = time.perf_counter()
        try:
            section(bench)
        except Exception:
            bench.say("", f"**{section.__name__} failed**", "", "```", traceback.format_exc(), "```")
        bench.say("", f"({section.__name__}: {time.perf_counter() - start:.1f} s, peak memory {bench.peak()})")
    bench.say("", f"Total {time.perf_counter() - begin:.0f} s.")
    folder = Path(os.environ.get("OUT") or ROOT / "benchmarks" / "results")
    folder.mkdir(exist_ok=True)
    (folder / "gpu.md").write_text("\n".join(bench.lines) + "\n", encoding="utf-8")


def machine(bench: Bench) -> None:
    """Name and streaming bandwidth."""
    name = torch.cuda.get_device_name() if bench.device.type == "cuda" else "CPU"
    source = torch.ones(min(1 << 29, 900 * bench.n), device=bench.device)
    target = torch.empty_like(source)
    bench.bandwidth = 2 * source.numel() * 4 / bench.seconds(lambda: target.copy_(source))
    bench.say(
        f"{name}, torch {torch.__version__}; n = {bench.n:,} tasks, d = {N_FEATURES}, {N_NEIGHBOURS} neighbours. "
        f"Streaming (copy): {bench.bandwidth / 1e9:.0f} GB/s. The floor of a kernel is what it must read and write, "
        "once, at that speed; medians of 5 runs after one.",
    )


def table(bench: Bench, title: str, rows: list[tuple[str, Callable[[], object], float]], repeats: int = 5) -> None:
    """Times beside the floor; a row that fails says so."""
    bench.say("", f"## {title}", "", "| kernel | ms | floor, ms | share of bandwidth |", "| --- | --- | --- | --- |")
    for name, function, n_bytes in rows:
        try:
            taken = bench.seconds(function, repeats)
        except Exception as error:
            bench.say(f"| {name} | failed: {type(error).__name__}: {str(error)[:80]} | | |")
            continue
        floor = n_bytes / bench.bandwidth
        bench.say(f"| {name} | {1e3 * taken:.2f} | {1e3 * floor:.2f} | {100 * floor / taken:.0f} % |")


def block_kernels(bench: Bench) -> None:
    n, d = bench.n, N_FEATURES
    blocks, values, many = bench.normal(n, d, d), bench.normal(n, d), bench.normal(n, d, 8)
    wide = values.to(WIDE)
    size = 4 * n * d
    rows = [
        ("block product, float32", lambda: kernels.block_product(blocks, values), size * (d + 2)),
        ("the same, block times column", lambda: torch.bmm(blocks, values.unsqueeze(2)), size * (d + 2)),
        ("the same, einsum", lambda: torch.einsum("nij,nj->ni", blocks, values), size * (d + 2)),
        ("block product, 8 columns", lambda: kernels.block_product(blocks, many), size * (d + 16)),
        ("float32 blocks summed in float64", lambda: kernels.block_product(blocks, wide), size * (d + 4)),
        ("inner product", lambda: torch.dot(values.view(-1), values.view(-1)), size),
        ("addcmul in place", lambda: values.addcmul_(values, values, value=0.0), 2 * size),
    ]
    table(bench, "Blocks", rows)


def make_blocks(bench: Bench, dtype: torch.dtype, n: int | None = None) -> Tensor:
    rows = bench.normal(1000, 2 * N_FEATURES, N_FEATURES, dtype=dtype)
    return torch.bmm(rows.mT, rows).repeat((n or bench.n) // 1000, 1, 1)


def inverse_kernels(bench: Bench) -> None:
    narrow, small = make_blocks(bench, NARROW), make_blocks(bench, NARROW, max(bench.n // 20, 1000))
    ones = torch.ones(narrow.shape[:2], device=bench.device)
    wide_ones = ones.to(WIDE)
    both = 8.0 * narrow.numel()
    products = importlib.import_module("ggmtl.solve.gpu.system")
    usual = products.CHUNK_NUMBERS

    def invert(shift: Tensor, power: int | None = None) -> None:
        products.CHUNK_NUMBERS = usual if power is None else 1 << power
        try:
            kernels.inverse_blocks(narrow, shift, store=NARROW)
        finally:
            products.CHUNK_NUMBERS = usual

    rows = [
        ("inverse in float32", lambda: invert(ones), both),
        ("inverse in float64, kept in float32", lambda: invert(wide_ones), both),
        *(
            (f"inverse in float64, parts of 2^{k} numbers", partial(invert, wide_ones, k), both)
            for k in (24, 26, 28, 29)
        ),
        ("torch.linalg.cholesky_ex, float32", lambda: torch.linalg.cholesky_ex(narrow), both),
        ("torch.linalg.inv_ex, n/20", lambda: torch.linalg.inv_ex(small), both / 20),
        ("torch.cholesky_inverse of the factor, n/20", lambda: torch.cholesky_inverse(small), both / 20),
    ]
    table(bench, "Block inverses", rows, repeats=3)


def smooth_models(bench: Bench, n: int | None = None) -> Tensor:
    """Models that vary smoothly over a plane, float32, shape (n, d)."""
    places = torch.rand((n or bench.n, 2), generator=bench.generator, device=bench.device)
    waves = 3.0 * bench.normal(2, N_FEATURES)
    return torch.sin(places @ waves + 6.0 * torch.rand(N_FEATURES, generator=bench.generator, device=bench.device))


def place_edges(bench: Bench) -> Tensor:
    """About 10 neighbours per task in scattered memory: a random relabelling of a lattice, shape (m, 2)."""
    n = bench.n
    label = torch.randperm(n, generator=bench.generator, device=bench.device)
    side = int(n**0.5)
    here = torch.arange(n, device=bench.device)
    shifts = (1, 2, side - 1, side, side + 1, 2 * side)
    return torch.cat([torch.stack([label[here[: n - s]], label[here[s:]]], 1) for s in shifts])


def graph_kernels(bench: Bench) -> None:
    n, d = bench.n, N_FEATURES
    graph = kernels.TensorGraph.of(place_edges(bench), n)
    m = len(graph.edges)
    weights, values = torch.rand(m, generator=bench.generator, device=bench.device), bench.normal(n, d)
    adjacency, wide, ones = graph.adjacency(weights), values.to(WIDE), torch.ones(d, device=bench.device)
    wide_adjacency, listed = graph.adjacency(weights.to(WIDE)), weights[graph.position]
    i, j = graph.edges.T.contiguous()
    coupling = weights.unsqueeze(1)

    def bag() -> Tensor:
        return torch.nn.functional.embedding_bag(
            graph.neighbour, values, graph.start, mode="sum", per_sample_weights=listed, include_last_offset=True
        )

    def scatter() -> Tensor:
        return torch.zeros_like(values).index_add_(0, i, coupling * values[j]).index_add_(0, j, coupling * values[i])

    lists = 8 * 2 * m + 4 * n
    gathered = lists + 4 * d * (2 * m + n)
    rows = [
        ("neighbour lists of edges", lambda: kernels.TensorGraph.of(graph.edges, n), 16 * m + lists),
        ("W · values, compressed rows (floor: every neighbour read)", lambda: adjacency @ values, gathered),
        ("the same (floor: every task read once)", lambda: adjacency @ values, lists + 8 * d * n),
        ("W · values, embedding_bag", bag, gathered),
        ("W · values, index_add", scatter, gathered),
        ("W · values, float64", lambda: wide_adjacency @ wide, lists + 8 * m + 8 * d * (2 * m + n)),
        ("edge reduction uᵀΛq", lambda: edge_products(graph, values, values, ones, weights), 16 * d * m),
    ]
    table(bench, f"Graph, m = {m:,} edges in random order", rows)
    same = torch.equal(adjacency @ values, adjacency @ values) and torch.equal(bag(), bag())
    gap = float((bag() - adjacency @ values).abs().max())
    bench.say("", f"Two runs equal bit by bit (rows and bag): {same}; largest difference between the two: {gap:.1e}.")


def make_loss(bench: Bench, models: Tensor, rows: int, dtype: torch.dtype = NARROW):
    """Statistics of random rows, a part of the tasks at a time."""
    n, d = models.shape
    loss = kernels.TensorLoss(
        torch.empty((n, d, d), dtype=dtype, device=bench.device),
        torch.empty((n, d), dtype=WIDE, device=bench.device),
        torch.empty(n, dtype=WIDE, device=bench.device),
        torch.full((n,), float(rows), dtype=WIDE, device=bench.device),
    )
    for first in range(0, n, 50_000):
        part = slice(first, min(first + 50_000, n))
        X = bench.normal(part.stop - first, rows, d, dtype=dtype)
        y = torch.bmm(X, models[part].to(dtype).unsqueeze(2)) + bench.normal(part.stop - first, rows, 1, dtype=dtype)
        loss.gram[part] = torch.bmm(X.mT, X)
        loss.moment[part] = torch.bmm(X.mT, y)[:, :, 0]
        loss.target_square[part] = y.square().sum((1, 2), dtype=WIDE)
    return loss


def hub_section(bench: Bench) -> None:
    loss = make_loss(bench, smooth_models(bench), TRAIN_ROWS)
    hub = torch.full((N_FEATURES,), 2.0, dtype=WIDE, device=bench.device)
    wide = bench.seconds(lambda: kernels.tensor_hub_evidence(loss, hub, RIDGE), 3)
    narrow = bench.seconds(lambda: kernels.tensor_hub_evidence(loss, hub.to(NARROW), RIDGE), 3)
    exact = kernels.tensor_hub_evidence(loss, hub, RIDGE)
    rough = kernels.tensor_hub_evidence(loss, hub.to(NARROW), RIDGE)
    # The gradient is half the difference of an expected square and n/h.
    expected = len(loss.gram) / hub + 2.0 * exact.gradient
    gap = float((rough.gradient - exact.gradient).abs().max() / expected.abs().max())
    bench.say(
        "",
        "## Evidence of the hub, value and gradient",
        "",
        f"{1e3 * wide:.0f} ms in float64 and {1e3 * narrow:.0f} ms in float32 (blocks kept in float32 in both); the "
        f"gradients differ by {gap:.1e} of their terms.",
    )


def neighbour_section(bench: Bench) -> None:
    points = smooth_models(bench) + 0.15 * bench.normal(bench.n, N_FEATURES)
    small = bench.seconds(lambda: kernels.nearest_neighbours(points[: bench.n // 10], N_NEIGHBOURS), 1)
    bench.sync()
    start = time.perf_counter()
    found = kernels.nearest_neighbours(points, N_NEIGHBOURS)
    bench.sync()
    taken = time.perf_counter() - start
    checked = torch.arange(0, bench.n, max(bench.n // 200, 1), device=bench.device)
    wide, wrong = points.to(WIDE), 0
    for chunk in checked.split(16):
        distance = torch.cdist(wide[chunk], wide, compute_mode="donot_use_mm_for_euclid_dist")
        true = distance.topk(N_NEIGHBOURS + 1, largest=False).values[:, 1:]
        mine = distance.gather(1, found[chunk])
        wrong += int((mine > true * (1 + 1e-6)).any(1).sum())
    bench.say(
        "",
        "## Nearest neighbours",
        "",
        f"{taken:.2f} s for {bench.n:,} points in {N_FEATURES} dimensions, float32 ({small:.3f} s for a tenth of "
        f"them). Of {len(checked)} points checked by brute force in float64, {wrong} have a neighbour farther than "
        "the true one.",
    )


def gradients(bench: Bench) -> None:
    """Hyper-gradients at full size, and equality with float64 on a subproblem."""
    models = smooth_models(bench)
    train, held_out = make_loss(bench, models, TRAIN_ROWS), make_loss(bench, models, HELD_OUT_ROWS)
    graph = kernels.TensorGraph.of(
        kernels.joined_pairs(kernels.nearest_neighbours(noisy(bench, models), N_NEIGHBOURS)), bench.n
    )
    m = len(graph.edges)
    values = 0.05 + 0.95 * torch.rand(m, generator=bench.generator, device=bench.device, dtype=WIDE)
    bench.say(
        "",
        f"## Hyper-gradient, m = {m:,} edges, {TRAIN_ROWS} + {HELD_OUT_ROWS} rows per task",
        "",
        "Float32 storage and iterations, float64 residuals to 1e-6 (the default asks for 1e-8, second figure); cold "
        "start, preconditioner included.",
        "",
        "| λ | levels | s at 1e-6 | s at 1e-8 | steps at 1e-8 | set-up, s | warm, s (steps) | bar 0.5 s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    )
    for strength, levels in (
        (0.1, None),
        (1.0, None),
        (1.0, 2),
        (10.0, None),
        (10.0, 2),
        (100.0, None),
        (100.0, 2),
        (1e4, None),
        (1e4, 2),
    ):
        try:
            bench.say(gradient_row(bench, train, held_out, graph, values, strength, levels))
        except Exception as error:
            bench.say(f"| {strength:g} | failed: {type(error).__name__}: {str(error)[:200]} |")
    for strength in (1.0, 100.0):
        accuracy(bench, strength)


def noisy(bench: Bench, models: Tensor) -> Tensor:
    return models + TRAIN_ROWS**-0.5 * bench.normal(*models.shape)


def strengths(bench: Bench, strength: float) -> tuple[Tensor, Tensor, Tensor]:
    """Λ, h and ρ."""
    full = torch.full((N_FEATURES,), strength, dtype=WIDE, device=bench.device)
    return full, torch.ones_like(full), torch.full((1, 1), 1e-6, dtype=WIDE, device=bench.device)


@dataclass(frozen=True)
class Gradient:
    """The hyper-gradient of the held-out loss: for edges, Λ and h, with both solutions and their steps."""

    edges: Tensor
    coupling: Tensor
    hub: Tensor
    coefficients: Tensor
    adjoint: Tensor
    iterations: tuple[int, int]


def evaluate_hold_out(
    train, held_out, graph, values, coupling, hub, ridge, *, warm=None, tol=1e-8, dtype=NARROW, levels=None
) -> Gradient:
    """One solve, one adjoint solve with the same preconditioner, and one pass over the edges."""
    system = kernels.TensorSystem(train.gram, graph, values, coupling, hub, ridge)
    solver = kernels.TensorSolver.of(system, dtype, levels)
    models = solver.solve(train.moment, warm.coefficients if warm else None, tol).require(1e-6)
    adjoint = solver.solve(held_out.gradient(models.value), warm.adjoint if warm else None, tol).require(1e-6)
    along, by_coordinate = edge_products(graph, models.value, adjoint.value, coupling, values)
    pull = -((models.value - models.value.mean(0)) * adjoint.value).sum(0)
    steps = (models.iterations, adjoint.iterations)
    return Gradient(along.neg_(), -by_coordinate, pull, models.value, adjoint.value, steps)


def edge_products(graph, first: Tensor, second: Tensor, coupling: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """(v_i − v_j)ᵀ Λ (p_i − p_j) of every edge, shape (m,), and Σ_ij w_ij (v_i − v_j) ∘ (p_i − p_j), shape (p,)."""
    along, total = first.new_empty(len(graph.edges)), torch.zeros_like(coupling)
    for rows in kernels.chunks(len(graph.edges), 4 * first.shape[1]):
        i, j = graph.edges[rows].unbind(1)
        product = (first[i] - first[j]).mul_(second[i] - second[j])
        along[rows] = product @ coupling
        total += weights[rows] @ product
    return along, total


def gradient_row(bench, train, held_out, graph, values, strength, levels) -> str:
    coupling, hub, ridge = strengths(bench, strength)

    def evaluate(tol: float, scale: float = 1.0, warm=None):
        parts = (train, held_out, graph, values * scale, coupling, hub, ridge)
        return evaluate_hold_out(*parts, tol=tol, levels=levels, warm=warm)

    def prepare():
        return kernels.TensorSolver.of(
            kernels.TensorSystem(train.gram, graph, values, coupling, hub, ridge), levels=levels
        )

    used = "B·C·B" if levels == 2 else "B, B·C·B where slow"
    set_up = bench.seconds(prepare, 2)
    rough, fine = bench.seconds(lambda: evaluate(1e-6), 3), bench.seconds(lambda: evaluate(1e-8), 3)
    cold = evaluate(1e-8)
    again = bench.seconds(lambda: evaluate(1e-6, 1.01, cold), 2)
    steps = " + ".join(map(str, cold.iterations))
    warm_steps = " + ".join(map(str, evaluate(1e-6, 1.01, cold).iterations))
    verdict = "met" if fine <= HYPERGRADIENT_BAR else "not met"
    times = f"{rough:.3f} | {fine:.3f} | {steps} | {set_up:.3f} | {again:.3f} ({warm_steps})"
    return f"| {strength:g} | {used} | {times} | {verdict} |"


def accuracy(bench: Bench, strength: float) -> None:
    """Float32 iterations against float64 throughout, on a subproblem in float64 and in float32 storage."""
    models = smooth_models(bench, min(SUBPROBLEM, bench.n))
    wide = [make_loss(bench, models, rows, WIDE) for rows in (TRAIN_ROWS, HELD_OUT_ROWS)]
    stored = [kernels.TensorLoss(loss.gram.to(NARROW), loss.moment, loss.target_square, loss.count) for loss in wide]
    graph = kernels.TensorGraph.of(
        kernels.joined_pairs(kernels.nearest_neighbours(noisy(bench, models), N_NEIGHBOURS)), len(models)
    )
    values = torch.rand(len(graph.edges), generator=bench.generator, device=bench.device, dtype=WIDE)
    rest = (graph, values, *strengths(bench, strength))
    exact = evaluate_hold_out(*wide, *rest, tol=1e-12, dtype=WIDE)
    bench.say("", f"{len(models):,} tasks, λ = {strength:g}, relative differences from float64 throughout:", "")
    for name, losses in (("float32 iterations", wide), ("float32 iterations and storage", stored)):
        found = evaluate_hold_out(*losses, *rest)
        gaps = [
            float((getattr(found, part) - getattr(exact, part)).norm() / getattr(exact, part).norm())
            for part in ("coefficients", "edges", "coupling", "hub")
        ]
        bench.say(f"- {name}: models {gaps[0]:.1e}, edge gradient {gaps[1]:.1e}, Λ {gaps[2]:.1e}, hub {gaps[3]:.1e}")


# What the time of a whole fit is told of: (file, function, words).
STAGES = (
    ("levels", "hub_level", "hub strengths and models"),
    ("loss", "alone", "every task alone"),
    ("edges", "find_pairs", "search of neighbours"),
    ("candidates", "propose", "candidates, the search included"),
    ("edges", "moments", "rounds: models, samples, expectations"),
    ("edges", "_models_and_samples", "… of which models and samples"),
    ("edges", "prior_moments", "… of which prior samples"),
    ("edges", "models", "models of the final edges"),
    ("sampled_edges", "_step", "new edge values (host)"),
    ("sampled_edges", "_with_candidates", "exchange of edges (host)"),
    ("sampled_edges", "strongest", "choice of the strongest edges (host)"),
    ("loss", "task_values", "held-out errors"),
    ("loss", "host", "copies to the host, waiting included"),
)


def fit_loss(bench: Bench, n: int, dtype: torch.dtype):
    """True models, and their rows as two losses on the device: most, and those held out."""
    from ggmtl.evidence.gpu.loss import DeviceLoss

    models = smooth_models(bench, n)
    parts = [DeviceLoss(make_loss(bench, models, rows, dtype)) for rows in (FIT_ROWS, FIT_HELD_OUT)]
    return models.double().cpu().numpy(), parts


def fit_settings():
    import numpy as np

    from ggmtl.bilevel.level import Settings
    from ggmtl.graph.candidates import KNN

    return Settings("squared_l2", KNN(N_NEIGHBOURS), None, True, np.ones(N_FEATURES, dtype=bool))


def fit(parts: list, n: int):
    """The default fit by evidence, as the regressor does it after scaling."""
    import numpy as np

    from ggmtl.fit.path import fit_path
    from ggmtl.statistics.least_squares import FoldedLoss

    folded = FoldedLoss(tuple(parts), first_scored=1)
    return fit_path(folded, fit_settings(), np.arange(n), criterion="evidence", choose_entropy=True)


def fresh_error(coefficients, models) -> float:
    """Root mean squared error on fresh rows: features and noise have variance one."""
    return float((1.0 + ((coefficients - models) ** 2).sum(axis=1).mean()) ** 0.5)


def whole_fit(bench: Bench) -> None:
    """The default fit of all tasks, everything but the making of the statistics."""
    fit(fit_loss(bench, min(bench.n, 2000), WIDE)[1], min(bench.n, 2000))  # Loads what is loaded once.
    bench.say(
        "",
        f"## Whole fit, {FIT_ROWS} + {FIT_HELD_OUT} rows per task",
        "",
        "| matrices in | s | bar 60 s, aim 30 s | chosen | edges | RMSE held out: hub, chosen | fresh rows, noise 1: "
        "hub, chosen | peak |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    )
    times = {}
    for name, dtype in (("float64", WIDE), ("float32", NARROW)):
        bench.peak()
        bench.generator.manual_seed(0)
        models, parts = fit_loss(bench, bench.n, dtype)
        bench.sync()
        profile, start = cProfile.Profile(), time.perf_counter()
        result = profile.runcall(fit, parts, bench.n)
        taken = time.perf_counter() - start
        del parts
        errors = result.errors.mean() ** 0.5
        verdict = "aim met" if taken <= FIT_AIM else "bar met" if taken <= FIT_BAR else "not met"
        verdict = verdict if bench.n >= 1_000_000 else "for a million"
        hub, best = (fresh_error(level.coefficients, models) for level in (result.levels[1], result.best))
        bench.say(
            f"| {name} | {taken:.1f} | {verdict} | {result.best.name} | {len(result.best.edges):,} | {errors[1]:.4f}, "
            f"{errors[result.chosen]:.4f} | {hub:.4f}, {best:.4f} | {bench.peak()} |"
        )
        times[name] = stage_times(profile)
    bench.say("", "| stage | " + " | ".join(f"s, {name} (calls)" for name in times) + " |", "| --- " * 3 + "|")
    for stage in STAGES:
        bench.say(f"| {stage[2]} | " + " | ".join(found[stage[2]] for found in times.values()) + " |")


def stage_times(profile: cProfile.Profile) -> dict[str, str]:
    """Seconds and calls of every stage."""
    found = {words: "0" for *_, words in STAGES}
    for (file, _, function), (_, calls, _, total, _) in pstats.Stats(profile).stats.items():
        for module, name, words in STAGES:
            if function == name and Path(file).stem == module:
                found[words] = f"{total:.2f} ({calls})"
    return found


def agreement(bench: Bench) -> None:
    """The same problem, smaller, in NumPy arrays and on the device."""
    from ggmtl.evidence.sampled_edges import solves_for
    from ggmtl.evidence.scaled_problem import ScaledProblem

    n = min(SUBPROBLEM, bench.n)
    models, there = fit_loss(bench, n, WIDE)
    here = [part.of_tasks(range_of(n)) for part in there]
    lines = []
    for name, parts in (("NumPy", here), ("device", there)):
        start = time.perf_counter()
        result = fit(parts, n)
        taken = time.perf_counter() - start
        error = fresh_error(result.best.coefficients, models)
        honest = result.honest_error() or float("nan")
        lines.append(f"| {name} | {taken:.1f} | {result.best.name} | {honest**0.5:.4f} | {error:.4f} |")
    graph, hub = result.levels[-2], result.levels[1]
    # The search has put all rows in the place of the first part.
    problems = [ScaledProblem.of(parts[0], fit_settings(), hub) for parts in (here, there)]
    # From zero: the models of the fit would be good enough to be returned as they are.
    state = problems[0].neighbours_of(graph)
    state = replace(state, coefficients=0.0 * state.coefficients)
    found = [solves_for(problem.loss).models(state) for problem in problems]
    gap = float(((found[1] - found[0]) ** 2).sum() ** 0.5 / (found[0] ** 2).sum() ** 0.5)
    bench.say(
        "",
        f"## The same in NumPy arrays and on the device, {n:,} tasks",
        "",
        "| where | s | chosen | RMSE held out | on fresh rows |",
        "| --- | --- | --- | --- | --- |",
        *lines,
        "",
        f"Models of one graph, {len(graph.edges):,} edges: relative difference {gap:.1e} (bar 1e-4: "
        f"{'met' if gap <= 1e-4 else 'not met'}).",
    )


def range_of(n: int):
    import numpy as np

    return np.arange(n)


if __name__ == "__main__":
    main(*(int(argument) if argument.isdigit() else argument for argument in sys.argv[1:4]))
