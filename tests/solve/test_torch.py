"""The torch form computes what the CPU's form does, on every device there is."""

import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial import cKDTree

torch = pytest.importorskip("torch", reason="the torch form of the kernels needs torch")

from ggmtl.errors import InputError, SingularSystemError, SolverError  # noqa: E402
from ggmtl.evidence.gpu import kernels as device_kernels  # noqa: E402
from ggmtl.evidence.gpu.kernels import joined_pairs, nearest_neighbours  # noqa: E402
from ggmtl.evidence.hub import hub_evidence  # noqa: E402
from ggmtl.solve.gpu import multigrid, solver  # noqa: E402
from ggmtl.solve.gpu import system as gpu_system  # noqa: E402
from ggmtl.solve.gpu.solver import (  # noqa: E402
    Cycle,
    TensorSolver,
)
from ggmtl.solve.gpu.system import (  # noqa: E402  # noqa: E402
    TensorGraph,
    TensorLoss,
    TensorSystem,
    block_product,
    inverse_and_log_determinant,
    inverse_blocks,
    row_sums,
)
from ggmtl.solve.solvers import ConjugateGradient, Direct  # noqa: E402
from ggmtl.solve.system import TaskSystem  # noqa: E402
from made import sums_of  # noqa: E402

no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=no_gpu)])
def device(request):
    return torch.device(request.param)


def neighbour_graph(rng, n, k=6, dimension=2):
    places = rng.uniform(size=(n, dimension))
    _, near = cKDTree(places).query(places, k + 1)
    pairs = np.column_stack([np.repeat(np.arange(n), k), near[:, 1:].ravel()])
    return np.unique(np.sort(pairs, axis=1), axis=0)


def make_system(seed=0, n=60, p=5, rows=9, coupling=1.0, hub=0.0, decades=0.0, k=6):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, rows, p))
    edges = neighbour_graph(rng, n, k)
    weights = 10.0 ** rng.uniform(-decades, 0, size=len(edges))
    strengths = coupling * rng.uniform(0.5, 2.0, size=p)
    gram = np.matmul(X.transpose(0, 2, 1), X)
    return TaskSystem(gram, edges, weights, strengths, np.full(p, float(hub)), np.full((1, 1), 1e-3))


def on_device(system, device, gram_dtype=torch.float64):
    graph = TensorGraph.of(torch.as_tensor(system.edges).to(device), system.shape[0])
    parts = (system.edge_weights, system.coupling, system.hub, system.ridge)
    gram = torch.as_tensor(system.gram).to(device, gram_dtype)
    return TensorSystem(gram, graph, *(torch.as_tensor(part).to(device) for part in parts))


def relative(a, b):
    return np.linalg.norm(a.cpu().numpy() - b) / np.linalg.norm(b)


# ---------------------------------------------------------------- products


@pytest.mark.parametrize("columns", [(), (3,)])
@pytest.mark.parametrize("hub", [0.0, 4.0])
def test_system_product_is_that_of_the_cpu(device, columns, hub):
    system = make_system(hub=hub)
    values = np.random.default_rng(1).normal(size=(*system.shape, *columns))
    out = on_device(system, device).apply(torch.as_tensor(values).to(device))
    np.testing.assert_allclose(out.cpu().numpy(), system.apply(values), rtol=1e-12, atol=1e-11)


def test_float32_blocks_are_summed_in_float64(device, monkeypatch):
    monkeypatch.setattr(gpu_system, "CHUNK_NUMBERS", 100)
    system = make_system()
    values = np.random.default_rng(1).normal(size=system.shape)
    rounded = system.gram.astype(np.float32)
    out = block_product(torch.as_tensor(rounded).to(device), torch.as_tensor(values).to(device))
    np.testing.assert_allclose(
        out.cpu().numpy(), np.matmul(rounded.astype(float), values[..., None])[..., 0], rtol=1e-12
    )


def test_a_graph_without_edges_has_no_neighbours(device):
    graph = TensorGraph.of(torch.zeros((0, 2), dtype=torch.int64, device=device), 4)
    values = torch.ones((4, 2), device=device)
    assert not row_sums(graph.adjacency(torch.zeros(0, device=device)), values).any()


@pytest.mark.parametrize("p", [1, 2, 3, 4, 5, 7, 8, 17, 30, 33])
def test_inverse_and_determinant_of_blocks(device, p):
    rng = np.random.default_rng(p)
    # Condition numbers up to 1e8.
    Q = np.linalg.qr(rng.normal(size=(6, p, p)))[0]
    blocks = np.matmul(Q * 10.0 ** rng.uniform(-8, 0, size=(6, 1, p)), Q.transpose(0, 2, 1))
    blocks = 0.5 * (blocks + blocks.transpose(0, 2, 1))
    inverse, log_determinant = inverse_and_log_determinant(torch.as_tensor(blocks).to(device))
    # As near to the identity as the inverse by LU is.
    np.testing.assert_allclose(
        np.matmul(inverse.cpu().numpy(), blocks), np.broadcast_to(np.eye(p), (6, p, p)), atol=1e-7
    )
    np.testing.assert_allclose(log_determinant.cpu().numpy(), np.linalg.slogdet(blocks)[1], rtol=1e-8)


def test_inverse_blocks_are_symmetric_and_refuse_indefinite_ones(device, monkeypatch):
    monkeypatch.setattr(gpu_system, "CHUNK_NUMBERS", 500)
    system = make_system(p=6)
    gram, shift = torch.as_tensor(system.gram).to(device), torch.ones(system.shape, dtype=torch.float64, device=device)
    inverse = inverse_blocks(gram, shift)
    torch.testing.assert_close(inverse, inverse.mT, rtol=1e-14, atol=1e-16)
    np.testing.assert_allclose(inverse.cpu().numpy(), np.linalg.inv(system.gram + np.eye(6)), atol=1e-12)
    shift[17] = -1e3
    with pytest.raises(SingularSystemError, match="positive definite"):
        inverse_blocks(gram, shift)


# ---------------------------------------------------------------- multigrid


def test_every_node_has_an_aggregate_and_loners_share_one(device):
    rng = np.random.default_rng(0)
    edges = neighbour_graph(rng, 400)
    n = 450
    graph = TensorGraph.of(torch.as_tensor(edges).to(device), n)
    weights = torch.as_tensor(10.0 ** rng.uniform(-6, 0, size=len(edges))).to(device)
    degree = graph.adjacency(weights) @ torch.ones((n, 1), dtype=torch.float64, device=device)
    label, count = multigrid.aggregate_nodes(graph.edges, weights, degree[:, 0])
    assert set(label.tolist()) == set(range(count))
    assert len(set(label[400:].tolist())) == 1
    assert not torch.isin(label[:400], label[400:]).any()
    assert count < n / 2


def test_coarser_graphs_keep_the_total_weight_between_aggregates(device):
    system = on_device(make_system(n=900, p=1), device)
    fine, coarse = multigrid.build_levels(system.graph, system.weights)[:2]
    P = fine.members.to_dense().T
    product = P.T @ fine.adjacency.to_dense() @ P
    product.fill_diagonal_(0.0)
    torch.testing.assert_close(coarse.adjacency.to_dense(), product)
    torch.testing.assert_close(coarse.size, fine.members @ fine.size)


@pytest.mark.parametrize("decades", [0.0, 6.0])
@pytest.mark.parametrize("coupling", [1e-2, 1e2, 1e6])
def test_graph_level_is_symmetric_and_spectrally_near_the_inverse(coupling, decades):
    n = 900
    system = on_device(make_system(n=n, p=1, coupling=coupling, hub=3.0, decades=decades), torch.device("cpu"))
    cycle = multigrid.GraphMultigrid.of(system)
    assert len(cycle.levels) >= 2
    C = cycle(torch.eye(n, dtype=torch.float64).unsqueeze(1))[:, 0]
    torch.testing.assert_close(C, C.T, rtol=1e-7, atol=1e-9 * float(C.abs().max()))
    level = cycle.levels[0]
    eye = torch.eye(n, dtype=torch.float64).unsqueeze(1)
    K = -level.residual(torch.zeros_like(eye), eye)[:, 0]
    root = torch.linalg.cholesky(K)
    spectrum = torch.linalg.eigvalsh(root.T @ C @ root)
    assert float(spectrum[0]) > 0.05
    assert float(spectrum[-1]) < 2.0


# ---------------------------------------------------------------- solver

HARD = [
    {"coupling": 1e-3},
    {"coupling": 1.0, "hub": 2.0},
    {"coupling": 1e3, "hub": 2.0},
    {"coupling": 1e5, "decades": 6.0},
    {"coupling": 10.0, "rows": 2},
    {"coupling": 1e4, "rows": 2, "decades": 4.0, "hub": 1e3},
]


@pytest.mark.parametrize("case", HARD)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("levels", "most"), [(None, solver._TRIAL + 60), (2, 60)])
def test_solution_is_that_of_the_direct_solver(device, case, dtype, levels, most):
    system = make_system(n=400, **case)
    right = np.random.default_rng(1).normal(size=system.shape)
    exact = Direct.of(system).solve(right).value
    ready = TensorSolver.of(on_device(system, device), dtype, levels)
    solution = ready.solve(torch.as_tensor(right).to(device), tol=1e-10).require(1e-9)
    assert relative(solution.value, exact) < 1e-6
    assert solution.iterations <= most


@pytest.mark.parametrize("levels", [1, 2])
def test_many_right_hand_sides_are_solved_at_once(device, levels):
    system = make_system(coupling=5.0, hub=1.0, n=300)
    right = np.random.default_rng(1).normal(size=(*system.shape, 4))
    right[..., 2] *= 1e-8
    right[..., 3] = 0.0
    ready = TensorSolver.of(on_device(system, device), torch.float32, levels)
    value = ready.solve(torch.as_tensor(right).to(device), tol=1e-9).value.cpu().numpy()
    exact = Direct.of(system).solve(right).value
    for column in range(3):
        assert np.linalg.norm(value[..., column] - exact[..., column]) < 1e-6 * np.linalg.norm(exact[..., column])
    assert not value[..., 3].any()


def test_iterations_do_not_depend_on_the_coupling(device):
    counts = []
    for coupling in (1e-2, 1.0, 1e2, 1e4, 1e6):
        system = make_system(n=2000, p=3, coupling=coupling, hub=1.0)
        right = torch.as_tensor(np.random.default_rng(1).normal(size=system.shape)).to(device)
        there = on_device(system, device)
        counts.append(TensorSolver.of(there, levels=2).solve(right, tol=1e-8).require(1e-8).iterations)
    assert max(counts) <= 32


def test_block_jacobi_is_given_up_where_it_is_slow_and_only_there(device):
    counts = {}
    for coupling in (1.0, 1e4):
        system = make_system(n=2000, p=3, coupling=coupling, hub=1.0)
        right = np.random.default_rng(1).normal(size=system.shape)
        ready = TensorSolver.of(on_device(system, device))
        found = ready.solve(torch.as_tensor(right).to(device), tol=1e-8).require(1e-8)
        exact = ConjugateGradient.of(system).solve(right, tol=1e-11).require(1e-10)
        assert relative(found.value, exact.value) < 1e-5
        counts[coupling] = found.iterations
        assert (ready.cycle.graph_level is not None) == (coupling > 1)
    assert max(counts.values()) <= 24 + 32


def test_a_warm_start_at_the_solution_takes_no_step(device):
    system = make_system(coupling=5.0)
    right = torch.as_tensor(np.random.default_rng(1).normal(size=system.shape)).to(device)
    ready = TensorSolver.of(on_device(system, device))
    first = ready.solve(right, tol=1e-10)
    assert ready.solve(right, first.value, tol=1e-8).iterations == 0


def test_float32_that_cannot_go_on_is_followed_by_float64(device, monkeypatch):
    system = make_system(n=300, coupling=50.0)
    right = np.random.default_rng(1).normal(size=system.shape)
    ready = TensorSolver.of(on_device(system, device))
    # A preconditioner for another system: float32 rounds then gain nothing.
    monkeypatch.setattr(solver, "_PATIENCE", 4)
    wrong = Cycle.of(on_device(make_system(n=300, coupling=1e-6, seed=5), device), torch.float32, 1)
    broken = TensorSolver(ready.system, wrong)
    assert broken._refine(torch.as_tensor(right).to(device), None, 1e-9).status == "stalled"
    solution = broken.solve(torch.as_tensor(right).to(device), tol=1e-9)
    assert solution.status == "converged"
    assert relative(solution.value, Direct.of(system).solve(right).value) < 1e-6


def test_a_solution_that_is_not_accurate_is_refused(device):
    system = make_system(coupling=1e4)
    right = torch.as_tensor(np.random.default_rng(1).normal(size=system.shape)).to(device)
    ready = TensorSolver.of(on_device(system, device), levels=1)
    with pytest.raises(SolverError, match="larger ridge"):
        TensorSolver(ready.system, ready.cycle, max_iter=2).solve(right).require(1e-6)


def test_the_preconditioner_returns_what_it_leaves(device):
    system = make_system(n=400, coupling=50.0, hub=1.0)
    there = on_device(system, device)
    residual = torch.as_tensor(np.random.default_rng(1).normal(size=system.shape)).to(device)
    for levels in (1, 2):
        value, left = Cycle.of(there, torch.float64, levels)(residual)
        torch.testing.assert_close(left, residual - there.apply(value), rtol=1e-9, atol=1e-9)


def test_too_little_memory_is_refused_before_any_is_taken(device, monkeypatch):
    monkeypatch.setattr(gpu_system, "free_bytes", lambda _: 1e4)
    with pytest.raises(InputError, match=r"Solving for 60 tasks with 5 coefficients needs .* GB .* float32"):
        TensorSolver.of(on_device(make_system(), device))


def test_float32_storage_costs_only_its_rounding(device):
    system = make_system()
    right = np.random.default_rng(1).normal(size=system.shape)
    exact, there = ConjugateGradient.of(system).solve(right, tol=1e-12).value, on_device(system, device)
    stored = replace(there, gram=there.gram.float())
    found = TensorSolver.of(stored).solve(torch.as_tensor(right).to(device), tol=1e-10).require(1e-8)
    assert relative(found.value, exact) < 1e-5


def test_a_near_start_takes_fewer_steps(device):
    system = make_system()
    right = torch.as_tensor(np.random.default_rng(1).normal(size=system.shape)).to(device)
    solver = TensorSolver.of(on_device(system, device))
    cold = solver.solve(right, tol=1e-8)
    assert solver.solve(1.001 * right, cold.value, tol=1e-8).iterations < cold.iterations


# ---------------------------------------------------------------- neighbours


@pytest.mark.parametrize(("n", "d", "k"), [(2, 1, 1), (5, 2, 10), (70, 3, 5), (1000, 8, 10), (777, 30, 3)])
def test_neighbours_are_those_of_a_tree(device, n, d, k):
    points = np.random.default_rng(n).normal(size=(n, d)) + 100.0
    found = nearest_neighbours(torch.as_tensor(points).to(device), k, tile_numbers=1 << 16).cpu().numpy()
    k = min(k, n - 1)
    near = cKDTree(points).query(points, k + 1)[1]
    assert found.shape == (n, k)
    np.testing.assert_array_equal(found, near[:, 1:])


def test_neighbours_in_float32_are_as_near_as_the_true_ones(device):
    points = np.random.default_rng(0).normal(size=(3000, 6)) * 10.0 ** np.random.default_rng(1).uniform(
        -3, 0, (3000, 1)
    )
    found = nearest_neighbours(torch.as_tensor(points, dtype=torch.float32).to(device), 10).cpu().numpy()
    distance = np.linalg.norm(points[found] - points[:, None], axis=2)
    best = cKDTree(points).query(points, 11)[0][:, 1:]
    np.testing.assert_allclose(distance, best, rtol=1e-4)


def test_equal_points_are_neighbours_but_no_point_is_its_own(device):
    points = torch.zeros((130, 2), device=device)
    found = nearest_neighbours(points, 4)
    assert not (found == torch.arange(130, device=device).unsqueeze(1)).any()
    assert all(len(set(row)) == 4 for row in found.tolist())


def test_neighbour_edges_are_sorted_pairs(device):
    points = np.random.default_rng(0).normal(size=(200, 3))
    edges = joined_pairs(nearest_neighbours(torch.as_tensor(points).to(device), 5)).cpu().numpy()
    near = cKDTree(points).query(points, 6)[1][:, 1:]
    pairs = np.column_stack([np.repeat(np.arange(200), 5), near.ravel()])
    np.testing.assert_array_equal(edges, np.unique(np.sort(pairs, axis=1), axis=0))


# ---------------------------------------------------------------- evidence of the hub


def make_loss(n=80, p=4, rows=6):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, rows, p))
    y = np.einsum("nrp,np->nr", X, 1.0 + rng.normal(size=(n, p))) + rng.normal(size=(n, rows))
    X[:3], y[:3] = 0.0, 0.0
    return replace(sums_of(X, y), count=np.where(np.arange(n) < 3, 0.0, rows))


@pytest.mark.parametrize("strength", [1e-4, 1.0, 1e5])
@pytest.mark.parametrize("chunk", [1 << 26, 600])
def test_hub_evidence_is_that_of_the_cpu(device, strength, chunk, monkeypatch):
    monkeypatch.setattr(gpu_system, "CHUNK_NUMBERS", chunk)
    monkeypatch.setattr(device_kernels, "_fits", lambda *_: False)
    loss = make_loss()
    strengths = strength * np.array([1.0, 2.0, 0.5, 3.0])
    here = hub_evidence(loss, strengths, ridge=1e-8)
    there = device_kernels.tensor_hub_evidence(
        TensorLoss.of(loss, device), torch.as_tensor(strengths).to(device), ridge=1e-8
    )
    assert there.value == pytest.approx(here.value, rel=1e-9)
    assert there.noise == pytest.approx(here.noise, rel=1e-9)
    for name in ("coefficients", "common"):
        assert relative(getattr(there, name), getattr(here, name)) < 1e-7, name
    # The gradient is half the difference of the expected squared deviations and n/h.
    one, other = (
        loss.n_tasks / strengths + 2.0 * gradient for gradient in (here.gradient, there.gradient.cpu().numpy())
    )
    assert relative(torch.as_tensor(other), one) < 1e-7
    np.testing.assert_allclose(there.gradient.cpu().numpy() * strengths, here.gradient * strengths, atol=1e-7 * 80)


def test_a_hub_strength_of_zero_is_refused(device):
    strengths = torch.zeros(4, dtype=torch.float64, device=device)
    with pytest.raises(SingularSystemError, match="positive strengths"):
        device_kernels.tensor_hub_evidence(TensorLoss.of(make_loss(), device), strengths, 1e-8)


# ---------------------------------------------------------------- where only numpy and torch are installed


def test_the_torch_form_needs_numpy_and_torch_only():
    root = Path(__file__).parents[2]
    code = f"""
        import sys
        for name in ("scipy", "sklearn", "pandas", "narwhals", "numba"):
            sys.modules[name] = None
        sys.path.insert(0, {str(root / "benchmarks")!r})
        import gpu
        import torch
        points = torch.arange(12.0).reshape(6, 2)
        assert gpu.load_kernels().nearest_neighbours(points, 1).shape == (6, 1)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=120)


def test_cpu_solver_and_torch_solver_agree_on_a_graph_of_thousands():
    system = make_system(n=3000, p=4, coupling=30.0, hub=1.0, k=10)
    right = np.random.default_rng(1).normal(size=system.shape)
    here = ConjugateGradient.of(system).solve(right, tol=1e-11).value
    there = TensorSolver.of(on_device(system, torch.device("cpu"))).solve(torch.as_tensor(right), tol=1e-10)
    assert relative(there.value, here) < 1e-6


def test_neighbours_module_pads_with_points_at_infinity():
    columns = device_kernels._padded_columns(torch.ones((3, 2)), 5)
    assert torch.isinf(columns[2, 3:]).all()
