"""Every form of a hot loop computes the same, and what its NumPy form says."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_info, threadpool_limits

from ggmtl import GGMTLRegressor
from ggmtl.datasets import make_clusters
from ggmtl.errors import ParameterError
from ggmtl.estimators import learning
from ggmtl.evidence.spanning_trees import Messages, link_probabilities
from ggmtl.inference.removal import TrainedModels
from ggmtl.inspection import explain_edge
from ggmtl.runtime import kernels, machine
from ggmtl.runtime.kernels import Cycle, Operator, reference
from ggmtl.runtime.kernels.segments import stable_order
from ggmtl.runtime.sizes import Sizes
from ggmtl.solve.preconditioners import BlockJacobi, GraphLevel, TwoLevel
from ggmtl.solve.solvers import ConjugateGradient
from ggmtl.solve.system import TaskSystem

FORMS = kernels.available()


@pytest.fixture(params=FORMS)
def form(request, monkeypatch):
    monkeypatch.setenv("GGMTL_KERNELS", request.param)
    return request.param


def make_system(seed, n=12, p=5, rows=9, hub=0.0, coupling=1.0, features_differ=False):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, rows, p))
    pairs = np.array([(i, j) for i in range(n) for j in range(i + 1, n)], dtype=np.int64).reshape(-1, 2)
    edges = pairs[rng.uniform(size=len(pairs)) < 0.4]
    strengths = np.full(p, coupling) * (np.repeat([1.0, 10.0], [p - p // 2, p // 2]) if features_differ else 1.0)
    gram = np.matmul(X.transpose(0, 2, 1), X)
    return TaskSystem(gram, edges, rng.uniform(size=len(edges)), strengths, np.full(p, hub), np.full((1, 1), 1e-3))


SYSTEMS = {
    "plain": lambda: make_system(0),
    "hub": lambda: make_system(1, hub=3.0),
    "two groups of features": lambda: make_system(2, hub=1.0, features_differ=True, coupling=5.0),
    "few rows": lambda: make_system(3, rows=2, coupling=30.0),
    "odd width": lambda: make_system(4, p=7),
    "one feature": lambda: make_system(5, p=1),
    "one task": lambda: make_system(6, n=1),
    "two tasks": lambda: make_system(7, n=2, p=3),
}


def cycles(system):
    block, graph = BlockJacobi.of(system), GraphLevel.of(system)
    return [
        preconditioner.cycle(exact)
        for preconditioner in (block, TwoLevel(system, block, graph), TwoLevel(system, block, graph, sweeps=2))
        for exact in (True, False)
    ]


# ---------------------------------------------------------------- each kernel against its definition


@settings(deadline=None, max_examples=30)
@given(n_rows=st.integers(0, 60), width=st.integers(1, 9), n_segments=st.integers(1, 12), seed=st.integers(0, 10**6))
def test_segment_cross_products_are_sums_of_outer_products(n_rows, width, n_segments, seed):
    rng = np.random.default_rng(seed)
    rows, segment = rng.normal(size=(n_rows, width)), rng.integers(n_segments, size=n_rows)
    expected = np.zeros((n_segments, width, width))
    for row, s in zip(rows, segment):
        expected[s] += np.outer(row, row)
    result = kernels.segment_cross_products(rows, segment, n_segments)
    np.testing.assert_allclose(result, expected, atol=1e-12)
    np.testing.assert_allclose(result, result.transpose(0, 2, 1), atol=1e-13)


def test_numbers_beyond_16_bits_are_sorted_and_equal_ones_stay_in_order():
    numbers = np.random.default_rng(0).integers(200_000, size=300_000)
    np.testing.assert_array_equal(stable_order(numbers), np.argsort(numbers, kind="stable"))


def test_segment_cross_products_take_any_layout_and_type():
    rng = np.random.default_rng(0)
    rows, segment = rng.normal(size=(40, 3)), rng.integers(4, size=40)
    expected = np.stack([rows[segment == s].T @ rows[segment == s] for s in range(4)])
    for given_rows in (np.asfortranarray(rows), np.repeat(rows, 2, axis=1)[:, ::2]):
        result = kernels.segment_cross_products(given_rows, segment.astype(np.int32), 4)
        np.testing.assert_allclose(result, expected, atol=1e-12)
    single = kernels.segment_cross_products(rows.astype(np.float32), segment, 4)
    assert single.dtype == np.float64
    np.testing.assert_allclose(single, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("p", [1, 2, 4, 5, 8, 19, 130])
def test_inverse_blocks_are_inverses_and_symmetric_positive_definite(form, p):
    rng = np.random.default_rng(p)
    X = rng.normal(size=(6, 3, p))
    gram, diagonal = np.matmul(X.transpose(0, 2, 1), X), rng.uniform(0.1, 1.0, size=(6, p))
    inverse, log_det = kernels.inverse_blocks(gram, diagonal)
    blocks = gram + np.eye(p) * diagonal[:, None, :]
    np.testing.assert_allclose(np.matmul(inverse, blocks), np.broadcast_to(np.eye(p), blocks.shape), atol=1e-11)
    np.testing.assert_allclose(inverse, inverse.transpose(0, 2, 1), atol=1e-15 * np.abs(inverse).max())
    assert np.linalg.eigvalsh(inverse).min() > 0
    np.testing.assert_allclose(log_det, np.linalg.slogdet(blocks)[1], rtol=1e-12)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan])
@pytest.mark.parametrize("p", [3, 130])
def test_a_block_that_is_not_positive_definite_is_refused(form, bad, p):
    gram = np.stack([np.eye(p)] * 4)
    gram[2, 1, 1] = bad
    with pytest.raises(np.linalg.LinAlgError):
        kernels.inverse_blocks(gram, np.zeros((4, p)))


@pytest.mark.parametrize("shape", [(5, 4), (5, 7), (5, 6, 3)])
def test_block_products_are_matrix_products(form, shape):
    rng = np.random.default_rng(0)
    blocks = rng.normal(size=(5, shape[1], shape[1]))
    blocks += blocks.transpose(0, 2, 1)
    values = rng.normal(size=shape)
    expected = np.stack([block @ value for block, value in zip(blocks, values)])
    np.testing.assert_allclose(kernels.block_product(blocks, values), expected, atol=1e-12)


def test_a_matrix_of_edges_holds_every_value_twice_and_keeps_an_edge_given_twice():
    edges = np.array([[0, 1], [0, 1], [2, 1], [3, 0]])
    weights = np.array([1.0, 2.0, 3.0, 4.0])
    found = kernels.symmetric_matrix(edges, weights, 5)
    expected = np.zeros((5, 5))
    for (i, j), w in zip(edges, weights):
        expected[i, j] += w
        expected[j, i] += w
    assert found.nnz == 2 * len(edges)
    np.testing.assert_array_equal(found.toarray(), expected)


@pytest.mark.parametrize("name", SYSTEMS)
def test_system_products_are_products_with_the_dense_matrix(form, name):
    system = SYSTEMS[name]()
    values = np.random.default_rng(0).normal(size=system.shape)
    expected = (system.dense() @ values.ravel()).reshape(values.shape)
    np.testing.assert_allclose(kernels.system_product(system.operator, values), expected, atol=1e-10)
    np.testing.assert_allclose(reference.system_product(system.operator, values), expected, atol=1e-10)


# ---------------------------------------------------------------- the fused solver


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_fused_cycle_is_the_preconditioner_and_its_residual(name):
    system = SYSTEMS[name]()
    values = np.random.default_rng(1).normal(size=system.shape)
    block, graph = BlockJacobi.of(system), GraphLevel.of(system)
    for preconditioner in (block, TwoLevel(system, block, graph), TwoLevel(system, block, graph, sweeps=2)):
        for exact in (True, False):
            result, left = reference.run_cycle(system.operator, preconditioner.cycle(exact), values)
            np.testing.assert_allclose(result, preconditioner(values), atol=1e-9 * np.abs(result).max())
            np.testing.assert_allclose(left, values - system.apply(result), atol=1e-9)


@pytest.mark.parametrize("name", SYSTEMS)
def test_all_forms_of_conjugate_gradients_take_the_same_steps(name, monkeypatch):
    system = SYSTEMS[name]()
    right = np.random.default_rng(2).normal(size=system.shape)
    for cycle in cycles(system):
        outcomes = []
        for kind in FORMS:
            monkeypatch.setenv("GGMTL_KERNELS", kind)
            value, residual = np.zeros(system.shape), right.copy()
            steps = kernels.conjugate_gradient(system.operator, cycle, value, residual, 1e-6, 500, 100)
            np.testing.assert_allclose(residual, right - system.apply(value), atol=1e-8)
            assert np.linalg.norm(residual) <= 1e-6
            outcomes.append((steps, value))
        for steps, value in outcomes[1:]:
            assert steps == outcomes[0][0]
            np.testing.assert_allclose(value, outcomes[0][1], atol=1e-8 * np.abs(value).max())


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_fused_solver_equals_the_general_one(form, name):
    system = SYSTEMS[name]()
    right = np.random.default_rng(3).normal(size=system.shape)
    for preconditioner in (BlockJacobi.of(system), TwoLevel(system, BlockJacobi.of(system), GraphLevel.of(system))):
        solver = ConjugateGradient(system, preconditioner)
        fused = solver.solve(right, tol=1e-9)
        # A trailing axis selects the general loop.
        general = solver.solve(right[..., None], tol=1e-9)
        assert abs(fused.iterations - general.iterations) <= 1
        np.testing.assert_allclose(fused.value, general.value[..., 0], atol=1e-6 * np.abs(fused.value).max())


def test_a_foreign_block_inverse_is_not_taken_for_exact(form):
    system, other = make_system(0), make_system(8, coupling=2.0)
    right = np.random.default_rng(4).normal(size=system.shape)
    assert BlockJacobi.of(system).inverts(system, right, 1e-10)
    assert not BlockJacobi.of(other).inverts(system, right, 1e-10)
    solution = ConjugateGradient(system, BlockJacobi.of(other)).solve(right, tol=1e-9)
    assert solution.succeeded
    np.testing.assert_allclose(system.apply(solution.value), right, atol=1e-8 * np.linalg.norm(right))


def test_limits_of_steps_and_patience_end_the_fused_solver(form):
    system = SYSTEMS["few rows"]()
    right = np.random.default_rng(5).normal(size=system.shape)
    cycle = BlockJacobi.of(system).cycle(True)
    value, residual = np.zeros(system.shape), right.copy()
    assert kernels.conjugate_gradient(system.operator, cycle, value, residual, 1e-9, 3, 100) == 3
    value, residual = np.zeros(system.shape), right.copy()
    steps = kernels.conjugate_gradient(system.operator, cycle, value, residual, 0.0, 10_000, 5)
    assert steps < 10_000


def test_read_only_input_is_taken_and_left_alone(form):
    system = SYSTEMS["hub"]()
    values = np.ones(system.shape)
    for array in (values, system.gram, system.edge_weights):
        array.flags.writeable = False
    kernels.system_product(system.operator, values)
    kernels.block_product(system.gram, values)
    assert values.flags.writeable is False
    mutable = np.ones(system.shape)
    kernels.block_product(system.gram, mutable)
    assert mutable.flags.writeable


# ---------------------------------------------------------------- the choice


def test_an_unknown_form_is_refused(monkeypatch):
    monkeypatch.setenv("GGMTL_KERNELS", "fortran")
    with pytest.raises(ParameterError, match="GGMTL_KERNELS must be one of 'numpy', 'numba'"):
        kernels.block_product(np.ones((1, 1, 1)), np.ones((1, 1)))


def test_importing_the_package_does_not_import_numba():
    code = "import sys, ggmtl, ggmtl.solve.solvers; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_numpy_is_always_available():
    assert "numpy" in kernels.available()
    assert Cycle is reference.Cycle
    assert Operator is reference.Operator


def test_the_nearest_in_a_neighbourhood_are_the_nearest_of_all_points_it_reaches(form):
    random = np.random.default_rng(3)
    points = random.normal(size=(60, 4))
    edges = np.unique(np.sort(random.integers(0, 60, (150, 2)), axis=1), axis=0)
    edges = edges[edges[:, 0] != edges[:, 1]]
    found = kernels.nearest_in_neighbourhood(points, edges, 5)
    linked = np.zeros((60, 60), dtype=bool)
    linked[tuple(edges.T)] = linked[tuple(edges.T[::-1])] = True
    reach = linked | (linked.astype(int) @ linked.astype(int) > 0)
    np.fill_diagonal(reach, False)
    distance = np.where(reach, np.square(points[:, None] - points[None]).sum(axis=2), np.inf)
    for i in range(60):
        expected = np.argsort(distance[i], kind="stable")[: min(5, reach[i].sum())]
        assert found[i].tolist() == [*expected.tolist(), *[i] * (5 - len(expected))]


@pytest.mark.parametrize("width", [1, 7, 64, 130])
def test_edge_noise_is_the_same_in_every_form_whatever_the_threads(monkeypatch, width):
    edges = make_system(0, n=40).edges
    edges = np.concatenate([edges, edges[:3]])  # Some given twice.
    weights = np.random.default_rng(1).uniform(size=len(edges))
    scale = np.random.default_rng(2).uniform(size=width)
    found = []
    for name, threads in [(name, threads) for name in FORMS for threads in "13"]:
        monkeypatch.setenv("GGMTL_KERNELS", name)
        monkeypatch.setenv("GGMTL_THREADS", threads)
        found.append(np.ones((40, width)))
        kernels.add_edge_noise(found[-1], edges, weights, scale, 7, Sizes(threads=0))
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], atol=1e-12)


def test_edge_noise_has_the_covariance_of_the_graph(form):
    system = make_system(0, n=8)
    width, scale = 60_000, 2.0
    noise = np.zeros((8, width))
    kernels.add_edge_noise(noise, system.edges, system.edge_weights, np.full(width, scale), 3)
    expected = scale**2 * system.laplacian.toarray()
    np.testing.assert_allclose(noise @ noise.T / width, expected, atol=6 * np.abs(expected).max() / width**0.5)
    # Signs of different columns, and of different seeds, are independent.
    other = np.zeros((8, width))
    kernels.add_edge_noise(other, system.edges, system.edge_weights, np.full(width, scale), 4)
    bound = 6 * np.abs(expected).max() / width**0.5
    assert np.abs(noise @ other.T / width).max() < bound
    assert np.abs(noise[:, 1:] @ noise[:, :-1].T / width).max() < bound


@pytest.mark.parametrize("threads", ["1", "2", "3"])
def test_shared_conjugate_gradients_solve_the_system(monkeypatch, threads):
    pytest.importorskip("numba")
    monkeypatch.setenv("GGMTL_THREADS", threads)
    random = np.random.default_rng(0)
    X = random.normal(size=(30, 8, 5))
    edges = np.column_stack([np.arange(29), np.arange(1, 30)])
    hub = np.full(5, 0.5)
    sizes, gram = Sizes(shared_passes=0, threads=0), np.matmul(X.transpose(0, 2, 1), X)
    system = TaskSystem(gram, edges, np.ones(29), np.ones(5), hub, np.array(1e-3), sizes=sizes)
    right = random.normal(size=(30, 5))
    solution = ConjugateGradient(system, BlockJacobi.of(system)).solve(right, tol=1e-10)
    assert solution.succeeded
    expected = np.linalg.solve(system.dense(), right.ravel()).reshape(30, 5)
    np.testing.assert_allclose(solution.value, expected, atol=1e-8)


def test_ranges_make_up_all_tasks_whatever_the_number_of_threads(monkeypatch):
    for threads in ("1", "2", "5"):
        monkeypatch.setenv("GGMTL_THREADS", threads)
        ranges = machine.over_tasks(lambda first, last: list(range(first, last)), 13, 1 << 30)
        assert [k for part in ranges for k in part] == list(range(13))


def blas_threads():
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def test_blas_runs_on_one_thread_within_fits_and_explanations(monkeypatch):
    """Threads of BLAS wait for one another on a busy machine; what was set is there again afterwards."""
    data = make_clusters(2, n_tasks=6, n_features=2, random_state=0)
    seen = []

    def watched(function):
        def call(*arguments, **options):
            seen.append(blas_threads())
            return function(*arguments, **options)

        return call

    monkeypatch.setattr(learning, "fit_path", watched(learning.fit_path))
    monkeypatch.setattr(TrainedModels, "change", watched(TrainedModels.change))
    with threadpool_limits(2, "blas"):
        if blas_threads() != {2}:
            pytest.skip("this BLAS has one thread only")
        model = GGMTLRegressor().fit(data.X, data.y, tasks=data.tasks)
        explain_edge(model, 0, 2)
        assert blas_threads() == {2}
    assert len(seen) > 1
    assert all(threads == {1} for threads in seen)


def test_calls_that_overlap_leave_blas_as_it_was():
    first, second = machine.one_blas_thread(), machine.one_blas_thread()
    with threadpool_limits(2, "blas"):
        before = blas_threads()
        first.__enter__()
        second.__enter__()
        assert blas_threads() == {1}
        first.__exit__(None, None, None)
        assert blas_threads() == {1}
        second.__exit__(None, None, None)
        assert blas_threads() == before


@pytest.mark.skipif("numba" not in FORMS, reason="needs the compiled kernels")
@given(st.integers(2, 25), st.integers(1, 4), st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_sweeps_over_trees_are_the_same_in_both_forms(n, p, seed):
    random = np.random.default_rng(seed)
    pairs = np.column_stack(np.triu_indices(n, 1))
    edges = pairs[random.uniform(size=len(pairs)) < 0.5]
    messages = Messages(random.uniform(1.0, 5.0, n), np.cumsum(random.standard_normal((n, p)), axis=0), 0.7)
    chances = []
    for name in ("numpy", "numba"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("GGMTL_KERNELS", name)
            likely = np.ones(len(edges))
            chances.append(link_probabilities(messages, edges, 2.0, 0.5, likely, links=200, seed=seed).between)
    np.testing.assert_allclose(*chances, atol=1e-8)


@pytest.mark.parametrize("form", FORMS, indirect=True)
def test_density_of_a_tree_is_that_of_its_matrix(form):
    random = np.random.default_rng(3)
    links = np.array([[0, 6], [1, 0], [2, 1], [3, 6], [4, 3], [5, 3]])
    weight, right, strengths = random.uniform(1.0, 2.0, 7), random.standard_normal((7, 3)), np.array([0.5, 2.0, 8.0])
    log_det, explained = kernels.tree_kernels().tree_densities(links, weight, right, strengths, 0.3)
    for k, strength in enumerate(strengths):
        matrix = np.diag(weight)
        for x, y in links:
            b = np.eye(7)[x] - np.eye(7)[y]
            matrix += (0.3 if 6 in (x, y) else strength) * np.outer(b, b)
        assert log_det[k] == pytest.approx(np.linalg.slogdet(matrix)[1])
        assert explained[k] == pytest.approx((right * np.linalg.solve(matrix, right)).sum())
