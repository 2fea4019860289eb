"""Systems of a special form: solved as the Kronecker system, and told from those that only look alike."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_system import decades, grams, hide_pyamg, kronecker, make, per_coordinate, random_edges, ring

from ggmtl import GGMTLRegressor
from ggmtl.errors import SolverError
from ggmtl.runtime.sizes import Sizes
from ggmtl.solve import low_rank, shared_design
from ggmtl.solve.preconditioners import BlockJacobi, TwoLevel
from ggmtl.solve.shared_design import IterativeGraph, SharedDesign, ShiftedAggregation, SpectralGraph
from ggmtl.solve.solvers import ConjugateGradient, Direct, prepare
from ggmtl.solve.system import TaskSystem, laplacian


def share(system, ridge=1e-6):
    """The same system, the design of the first task for all."""
    gram = np.repeat(system.gram[:1], len(system.gram), axis=0)
    return dataclasses.replace(system, gram=gram, ridge=np.atleast_2d(ridge))


SHARED = {
    "uniform": lambda: share(make(1)),
    "hub": lambda: share(make(2, hub=[3.0] * 3)),
    "hub per feature": lambda: share(make(3, hub=[0.0, 5.0, 1e3])),
    "coupling per feature": lambda: share(make(4, coupling=[1e-3, 2.0, 1e4], hub=[1.0, 0.0, 2.0])),
    "six decades": lambda: share(make(5, weights=decades, coupling=[100.0] * 3)),
    "disconnected": lambda: share(make(6, edges=[[0, 1], [1, 2], [3, 4], [6, 7], [6, 8]], coupling=[50.0] * 3)),
    "no edges": lambda: share(make(7, edges=[])),
    "no edges, hub": lambda: share(make(8, edges=[], hub=[50.0] * 3)),
    "strong": lambda: share(make(9, coupling=[1e4] * 3)),
    "few rows": lambda: share(make(10, rows=1, hub=[1.0] * 3), ridge=1e-2),
    "ridge per coefficient": lambda: share(make(11), ridge=[1.0, 0.0, 30.0]),
    "repeated edges": lambda: share(make(12, edges=[[0, 1], [0, 1], [1, 0], [2, 3]])),
    "two tasks": lambda: share(make(13, n=2, edges=[[0, 1]])),
    "one feature": lambda: share(make(14, p=1, coupling=[5.0])),
}
# Sizes with which shared designs of any size are solved in one way.
ANY_SIZE = {"shared_design": 2, "shared_design_width": 1, "spectral_condition": 0.0}
WAYS = {
    "spectral": {**ANY_SIZE, "spectral_tasks": 10**6, "jacobi_condition": np.inf},
    "diagonal": {**ANY_SIZE, "spectral_tasks": 0, "jacobi_condition": np.inf},
    "aggregates": {**ANY_SIZE, "spectral_tasks": 0, "jacobi_condition": 0.0},
}


@pytest.fixture(params=WAYS)
def way(request):
    return request.param


def sized(system, way):
    """The system, to be solved in one way whatever its size."""
    return dataclasses.replace(system, sizes=Sizes(**WAYS[way]))


def normal(system, *columns, seed=0):
    return np.random.default_rng(seed).normal(size=(*system.shape, *columns))


def dense_solution(system, right):
    flat = right.reshape(system.gram.shape[0] * system.gram.shape[1], -1)
    return np.linalg.solve(kronecker(system), flat).reshape(right.shape)


def close(value, expected, accuracy=1e-9):
    return np.linalg.norm(value - expected) <= accuracy * np.linalg.norm(expected)


def rounding(system, right, value):
    """What floating point leaves of a residual, ‖A‖ ‖V‖/‖R‖ times a few last bits."""
    return 1e-14 * np.linalg.norm(kronecker(system), 1) * np.linalg.norm(value) / np.linalg.norm(right)


def true_residual(system, right, value):
    flat = value.reshape(system.gram.shape[0] * system.gram.shape[1], -1)
    return np.linalg.norm(right - (kronecker(system) @ flat).reshape(right.shape)) / np.linalg.norm(right)


# ---------------------------------------------------------------- one design for all tasks


@pytest.mark.parametrize("name", SHARED)
def test_a_shared_design_is_solved_as_the_kronecker_system(name, way):
    system = sized(SHARED[name](), way)
    right = normal(system)
    assert shared_design.applies(system)
    prepared = SharedDesign.of(system)
    assert isinstance(prepared.graph, SpectralGraph if way == "spectral" else IterativeGraph)
    solution = prepared.solve(right, tol=1e-12)
    assert close(solution.value, dense_solution(system, right), 1e-8)
    assert true_residual(system, right, solution.value) < 1e-12 + rounding(system, right, solution.value)


@pytest.mark.parametrize("name", ["uniform", "hub per feature", "coupling per feature"])
def test_the_residual_reported_is_the_true_one(name, way):
    system = sized(SHARED[name](), way)
    right = normal(system)
    solution = shared_design.prepare(system).solve(right, tol=1e-4)
    expected = true_residual(system, right, solution.value)
    assert solution.residual == pytest.approx(expected, rel=1e-6, abs=rounding(system, right, solution.value))
    assert solution.residual <= 1e-4
    assert solution.succeeded


def test_many_right_hand_sides_of_any_scale_equal_one_by_one(way):
    system = sized(SHARED["hub per feature"](), way)
    prepared = shared_design.prepare(system)
    right = normal(system, 5) * [1.0, 1e8, 1e-8, 0.0, 1.0]
    together = prepared.solve(right, tol=1e-11)
    assert together.succeeded
    for column in range(5):
        alone = prepared.solve(right[..., column].copy(), tol=1e-11).value
        np.testing.assert_allclose(together.value[..., column], alone, atol=1e-7 * np.abs(alone).max(initial=0))


def test_a_warm_start_is_used_and_left_alone(way):
    system = sized(SHARED["six decades"](), way)
    right = normal(system)
    start = dense_solution(system, right)
    copy = start.copy()
    prepared = shared_design.prepare(system)
    at_solution = prepared.solve(right, start, tol=1e-8)
    assert at_solution.iterations == 0
    np.testing.assert_array_equal(at_solution.value, copy)
    nearby = prepared.solve(right, start * (1 + 1e-6), tol=1e-10)
    assert close(nearby.value, copy)
    assert nearby.iterations <= prepared.solve(right, tol=1e-10).iterations
    np.testing.assert_array_equal(start, copy)


@pytest.mark.parametrize("columns", [(), (3,)])
def test_a_zero_right_hand_side_has_the_zero_solution(way, columns):
    system = sized(SHARED["hub"](), way)
    solution = shared_design.prepare(system).solve(np.zeros((*system.shape, *columns)))
    assert not solution.value.any()
    assert solution.residual == 0
    assert solution.iterations == 0
    assert solution.succeeded


def test_nearly_collinear_features_are_solved_as_accurately_as_the_data_allow(way):
    rng = np.random.default_rng(0)
    n, p = 30, 6
    X = rng.normal(size=(40, p)) * np.logspace(0, -4, p) @ np.linalg.qr(rng.normal(size=(p, p)))[0]
    edges = random_edges(rng, n, 2 * n)
    gram = np.repeat((X.T @ X)[None], n, axis=0)
    system = TaskSystem(gram, edges, np.ones(len(edges)), np.ones(p), np.zeros(p), np.full((1, 1), 1e-9))
    system = sized(system, way)
    right = normal(system) @ gram[0]
    solution = shared_design.prepare(system).solve(right, tol=1e-9)
    assert solution.status == "converged"
    assert true_residual(system, right, solution.value) <= 1.1e-9
    assert close(solution.value, Direct.of(system).solve(right).value, 1e-4)


def test_a_tolerance_beyond_rounding_ends_as_stalled_and_is_refused_where_accuracy_is_required():
    system = sized(SHARED["strong"](), "diagonal")
    solution = shared_design.prepare(system).solve(normal(system), tol=1e-30)
    assert solution.status == "stalled"
    assert solution.residual < 1e-9
    with pytest.raises(SolverError, match="stalled"):
        solution.require(1e-30)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(2, 12),
    p=st.integers(1, 5),
    rows=st.integers(1, 8),
    extra=st.integers(0, 10),
    strength=st.floats(-4, 4),
    hub=st.booleans(),
    columns=st.sampled_from([(), (1,), (4,)]),
    way=st.sampled_from(sorted(WAYS)),
    seed=st.integers(0, 1000),
)
def test_shared_designs_of_any_shape(n, p, rows, extra, strength, hub, columns, way, seed):
    rng = np.random.default_rng(seed)
    edges = random_edges(rng, n, extra)
    edges = edges[rng.random(len(edges)) < 0.8]
    coupling = 10.0 ** (strength + rng.uniform(-1, 1, size=p))
    pull = 10.0 ** rng.uniform(-2, 2, size=p) if hub else None
    system = share(make(seed, n=n, p=p, rows=rows, edges=edges, weights=decades, coupling=coupling, hub=pull), 1e-2)
    right = normal(system, *columns)
    solution = SharedDesign.of(sized(system, way)).solve(right, tol=1e-11)
    assert true_residual(system, right, solution.value) < 1e-11 + rounding(system, right, solution.value)
    assert close(solution.value, dense_solution(system, right), 1e-7)


def test_aggregates_shifted_per_column_are_definite_maps_that_serve_every_shift():
    rng = np.random.default_rng(0)
    n, shifts = 640, np.array([1e-4, 1e-2, 1.0, 100.0])
    matrix = laplacian(ring(n), 10.0 ** rng.uniform(-2, 0, size=len(ring(n))), n)
    hierarchy = ShiftedAggregation.of(matrix, shifts[0])
    assert len(hierarchy.levels) >= 1
    for shift in shifts:
        cycle = hierarchy.at(np.full(n, shift))(np.eye(n))
        np.testing.assert_allclose(cycle, cycle.T, atol=1e-9 * np.abs(cycle).max())
        root = np.linalg.cholesky(matrix.toarray() + shift * np.eye(n))
        spectrum = np.linalg.eigvalsh(root.T @ cycle @ root)
        assert spectrum[0] > 0.1
        assert spectrum[-1] < 1.1


@pytest.mark.parametrize("strength", [1e-2, 1e1, 1e5])
def test_many_tasks_take_few_steps_whatever_the_coupling(strength):
    system = share(make(20, n=700, p=8, rows=20, edges=ring(700), coupling=[strength] * 8))
    prepared = prepare(system)
    right = normal(system)
    solution = prepared.solve(right, tol=1e-9)
    assert isinstance(prepared, SharedDesign)
    assert solution.succeeded
    assert solution.iterations <= 80
    general = ConjugateGradient.of(system).solve(right, tol=1e-11)
    np.testing.assert_allclose(solution.value, general.value, atol=1e-6 * np.abs(general.value).max())


def test_without_pyamg_strongly_coupled_tasks_go_the_general_way(monkeypatch):
    system = share(make(21, n=400, p=8, rows=20, edges=ring(400), coupling=[1e5] * 8))
    assert isinstance(prepare(system), SharedDesign)
    hide_pyamg(monkeypatch)
    assert isinstance(prepare(system), ConjugateGradient)


# ---------------------------------------------------------------- what is no shared design


def almost_equal(size):
    system = share(make(30))
    system.gram[7, 1, 1] *= 1 + size
    return system


REFUSED = {
    "designs of their own": lambda: make(31),
    "almost equal designs": lambda: almost_equal(1e-10),
    "ridge per task": lambda: share(make(32), ridge=np.linspace(1, 2, 9)[:, None]),
    "weights per coordinate": lambda: share(make(33, weights=per_coordinate)),
    "curvature": lambda: share(make(34, curved=True)),
    "a feature without coupling": lambda: share(make(35, coupling=[1.0, 0.0, 1.0])),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_shared_design_is_refused(name):
    assert not shared_design.applies(REFUSED[name]())


def test_designs_that_differ_by_rounding_are_the_same_and_one_block_may_stand_for_all():
    system = almost_equal(4e-16)
    assert shared_design.applies(system)
    assert shared_design.applies(dataclasses.replace(system, gram=np.broadcast_to(system.gram[0], (9, 3, 3))))


def test_a_singular_common_design_goes_the_general_way():
    # What no row and no ridge determines, the hub holds together but does not place.
    system = share(make(36, n=200, p=8, rows=3, hub=[1.0] * 8), ridge=0.0)
    assert SharedDesign.of(system) is None


def test_a_system_that_applies_something_else_is_refused():
    class Other(TaskSystem):
        stores_blocks = False

    system = share(make(37))
    other = Other(**{part.name: getattr(system, part.name) for part in dataclasses.fields(TaskSystem)})
    assert not shared_design.applies(other)
    assert not low_rank.applies(other)


# ---------------------------------------------------------------- few rows, many coefficients


SMALL_BLOCKS = Sizes(low_rank_width=1, low_rank_numbers=0)


def narrow(seed, *, n=9, p=16, rows=4, **options):
    system = make(seed, n=n, p=p, rows=rows, **{"coupling": [2.0] * p, "ridge": 1e-3} | options)
    return dataclasses.replace(system, sizes=SMALL_BLOCKS)


LOW_RANK = {
    "uniform": lambda: narrow(1),
    "hub": lambda: narrow(2, hub=[3.0] * 16),
    "hub per feature": lambda: narrow(3, hub=np.linspace(0, 5, 16)),
    "coupling per feature": lambda: narrow(4, coupling=np.logspace(-3, 3, 16)),
    "weights per coordinate": lambda: narrow(5, weights=per_coordinate),
    "disconnected": lambda: narrow(6, edges=[[0, 1], [1, 2], [3, 4], [6, 7], [6, 8]]),
    "no edges": lambda: narrow(7, edges=[]),
    "strong": lambda: narrow(8, coupling=[1e4] * 16),
    "ridge per task": lambda: narrow(9, ridge=np.linspace(1, 9, 9)[:, None]),
}


@pytest.mark.parametrize("columns", [(), (3,)])
@pytest.mark.parametrize("name", LOW_RANK)
def test_low_rank_systems_are_solved_as_the_kronecker_system(name, columns):
    system = LOW_RANK[name]()
    right = normal(system, *columns)
    prepared = ConjugateGradient(*low_rank.prepare(system))
    solution = prepared.solve(right, tol=1e-12)
    last_bits = rounding(system, right, solution.value)
    assert close(solution.value, dense_solution(system, right), 1e-8)
    assert true_residual(system, right, solution.value) < 1e-12 + last_bits
    again = prepared.solve(right, solution.value, tol=1e-8)
    assert again.iterations == 0
    loose = prepared.solve(right, tol=1e-4)
    if not columns:
        assert loose.residual == pytest.approx(true_residual(system, right, loose.value), rel=1e-6, abs=last_bits)


@pytest.mark.parametrize("name", LOW_RANK)
def test_factors_give_the_operator_and_the_inverse_of_its_blocks(name):
    system = LOW_RANK[name]()
    rows = low_rank.factor_rows(system.gram, 5)
    assert rows.shape == (9, 4, 16)
    np.testing.assert_allclose(np.matmul(rows.transpose(0, 2, 1), rows), system.gram, atol=1e-12)
    values = normal(system)
    np.testing.assert_allclose(low_rank.LowRankSystem.of(system, rows).apply(values), system.apply(values), rtol=1e-9)
    ours, general = low_rank.LowRankJacobi.of(system, rows), BlockJacobi.of(system)
    np.testing.assert_allclose(ours(values), general(values), atol=1e-9 * np.abs(general(values)).max())


def test_the_graph_level_is_added_where_coupling_is_strong():
    weak, strong = narrow(1, coupling=[0.1] * 16, hub=[1.0] * 16), narrow(1, coupling=[1e3] * 16, hub=[1.0] * 16)
    assert isinstance(low_rank.prepare(weak)[1], low_rank.LowRankJacobi)
    assert isinstance(low_rank.prepare(strong)[1], TwoLevel)


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(2, 8),
    p=st.integers(6, 20),
    share_of_rows=st.floats(0.05, 0.33),
    strength=st.floats(-3, 3),
    scales=st.floats(0, 4),
    columns=st.sampled_from([(), (2,)]),
    seed=st.integers(0, 1000),
)
def test_low_rank_systems_of_any_shape(n, p, share_of_rows, strength, scales, columns, seed):
    rng = np.random.default_rng(seed)
    most = max(1, int(share_of_rows * p))
    system = make(seed, n=n, p=p, rows=most, coupling=[10.0**strength] * p, hub=[1.0] * p, ridge=1e-1)
    # Units of the features, tasks of different ranks, and one without rows.
    unit = 10.0 ** rng.uniform(-scales, 0, size=p)
    gram = system.gram * np.multiply.outer(unit, unit)
    gram[0] = 0.0
    system = dataclasses.replace(system, gram=gram, sizes=SMALL_BLOCKS)
    right = normal(system, *columns)
    solution = ConjugateGradient(*low_rank.prepare(system)).solve(right, tol=1e-11)
    assert true_residual(system, right, solution.value) < 1e-11 + rounding(system, right, solution.value)
    assert close(solution.value, dense_solution(system, right), 1e-7)


def test_tasks_of_full_rank_are_refused_also_where_only_one_has_it():
    assert not low_rank.applies(narrow(40, rows=30))
    assert not low_rank.applies(narrow(41, rows=8))
    system = narrow(42)
    system.gram[5] = grams(np.random.default_rng(0), 1, 16, 30)[0]
    assert low_rank.prepare(system) is None


def test_curvature_and_a_diagonal_that_is_lost_beside_the_data_are_refused():
    assert not low_rank.applies(narrow(43, curved=True))
    assert low_rank.prepare(narrow(44, edges=[], ridge=1e-12)) is None


def test_prepare_takes_factors_where_blocks_are_large_and_of_low_rank():
    system = make(45, n=180, p=80, rows=6, coupling=[5.0] * 80, hub=[1.0] * 80)
    prepared = prepare(system)
    assert isinstance(prepared.system, low_rank.LowRankSystem)
    right = normal(system)
    solution, general = prepared.solve(right, tol=1e-10), prepare(system, "pcg").solve(right, tol=1e-10)
    assert solution.succeeded
    assert close(solution.value, general.value, 1e-7)
    assert type(prepare(make(46, n=180, p=80, rows=90)).system) is TaskSystem


# ---------------------------------------------------------------- a whole fit


def test_a_fit_with_one_column_per_task_is_the_same_with_and_without_the_special_way(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(24, 3))
    models = np.repeat(rng.normal(size=(4, 3)), 8, axis=0) + 0.1 * rng.normal(size=(32, 3))
    y = X @ models.T + 0.5 * rng.normal(size=(24, 32))
    used = []
    solve = SharedDesign.solve
    monkeypatch.setattr(
        SharedDesign, "solve", lambda self, *rest, **options: used.append(1) or solve(self, *rest, **options)
    )

    class Sized(GGMTLRegressor):
        pass

    def fit(**sizes):
        Sized.sizes = Sizes(**sizes)
        model = Sized(criterion="validation", coupling=1.0, edge_entropy=0.0, edge_l2=1.0, validation=3, random_state=0)
        # Whole rows in one fold: then tasks share their design in every fold.
        return model.fit(X, y, groups=np.arange(24))

    direct, iterative = fit(direct=10**6), fit(direct=0)
    assert not used
    special = fit(direct=0, **WAYS["spectral"])
    assert len(used) > 10
    # Conjugate gradients stop at a tolerance, eigenvectors and Cholesky factors at the last bits.
    for other, accuracy in ((direct, 1e-10), (iterative, 1e-4)):
        np.testing.assert_allclose(special.coef_, other.coef_, atol=accuracy)
        np.testing.assert_allclose(special.edge_weights_, other.edge_weights_, atol=accuracy)
        assert special.validation_error_ == pytest.approx(other.validation_error_, rel=accuracy)
