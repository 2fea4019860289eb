"""Every solver on every operator: the solution of the Kronecker system, its accuracy truly reported."""

import dataclasses
import functools
from dataclasses import replace

import numpy as np
import pytest
from test_system import LARGE, OPERATORS, SMALL, grams, hide_pyamg, kronecker, make, reference

from ggmtl.errors import SingularSystemError, SolverError
from ggmtl.runtime.sizes import SIZES, Sizes
from ggmtl.solve.preconditioners import AggregationCycle, BlockJacobi, GraphLevel, TwoLevel, make_preconditioner
from ggmtl.solve.solvers import ConjugateGradient, Direct, prepare
from ggmtl.solve.structured import Factors
from ggmtl.solve.system import Solution, TaskSystem
from made import SOLVED


def block_jacobi(system):
    return ConjugateGradient(system, BlockJacobi.of(system.without_curvature()), max_iter=3000)


def two_level(system):
    above = system.without_curvature()
    return ConjugateGradient(system, TwoLevel(above, BlockJacobi.of(above), GraphLevel.of(above)))


SOLVERS = {
    "direct": Direct.of,
    "block-Jacobi": block_jacobi,
    "two level": two_level,
    "default": ConjugateGradient.of,
}
ITERATIVE = [name for name in SOLVERS if name != "direct"]


def right_hand_side(system, columns=(), seed=0):
    return np.random.default_rng(seed).normal(size=(*system.shape, *columns))


def true_residual(system, right, value):
    difference = right - (kronecker(system) @ value.ravel()).reshape(right.shape)
    return np.linalg.norm(difference) / np.linalg.norm(right)


@functools.cache
def reference_solution(operator):
    system = OPERATORS[operator]()
    right = right_hand_side(system)
    return np.linalg.solve(reference(operator), right.ravel()).reshape(right.shape)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_the_solution_is_that_of_the_kronecker_system(solver, operator):
    system = OPERATORS[operator]()
    matrix = reference(operator)
    right = right_hand_side(system)
    expected = reference_solution(operator)
    solution = SOLVERS[solver](system).solve(right, tol=1e-12)
    assert np.linalg.norm(solution.value - expected) < 1e-8 * np.linalg.norm(expected)
    # Backward stability is all that floating point can promise where the matrix is large.
    reach = np.linalg.norm(matrix, 1) * np.linalg.norm(solution.value) / np.linalg.norm(right)
    assert solution.residual < 1e-12 + 1e-14 * reach


@pytest.mark.parametrize("operator", LARGE)
def test_without_pyamg_the_solution_is_the_same(operator, monkeypatch):
    system = LARGE[operator]()
    right = right_hand_side(system)
    with_pyamg = two_level(system).solve(right, tol=1e-12)
    hide_pyamg(monkeypatch)
    prepared = two_level(system)
    assert not isinstance(prepared.preconditioner.graph_level.groups[0][1], AggregationCycle)
    without = prepared.solve(right, tol=1e-12)
    np.testing.assert_allclose(without.value, with_pyamg.value, atol=1e-8 * np.abs(with_pyamg.value).max())
    assert without.iterations <= with_pyamg.iterations


@pytest.mark.parametrize("operator", SMALL)
@pytest.mark.parametrize("solver", SOLVERS)
def test_the_residual_reported_is_the_true_one(solver, operator):
    system = SMALL[operator]()
    right = right_hand_side(system)
    solution = SOLVERS[solver](system).solve(right, tol=1e-4)
    expected = true_residual(system, right, solution.value)
    rounding = 1e-15 * np.linalg.norm(kronecker(system), 1) * np.linalg.norm(solution.value) / np.linalg.norm(right)
    assert solution.residual == pytest.approx(expected, rel=1e-6, abs=10 * rounding)
    assert solution.succeeded


@pytest.mark.parametrize("operator", ["uniform", "six decades", "hub per feature", "curvature", "many tasks"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_many_right_hand_sides_at_once_equal_one_by_one(solver, operator):
    system = OPERATORS[operator]()
    prepared = SOLVERS[solver](system)
    right = right_hand_side(system, (4,)) * [1.0, 1e8, 1e-8, 0.0]
    together = prepared.solve(right, tol=1e-11)
    assert together.succeeded
    for r in range(4):
        alone = prepared.solve(right[..., r].copy(), tol=1e-11)
        np.testing.assert_allclose(together.value[..., r], alone.value, atol=1e-7 * np.abs(alone.value).max(initial=0))


@pytest.mark.parametrize("operator", SMALL)
@pytest.mark.parametrize("solver", ITERATIVE)
def test_a_warm_start_at_the_solution_takes_no_iteration(solver, operator):
    system = SMALL[operator]()
    right = right_hand_side(system)
    start = Direct.of(system).solve(right).value
    copy = start.copy()
    solution = SOLVERS[solver](system).solve(right, start, tol=1e-8)
    assert solution.iterations == 0
    assert solution.status == "converged"
    np.testing.assert_array_equal(start, copy)
    np.testing.assert_array_equal(solution.value, copy)


@pytest.mark.parametrize("solver", ITERATIVE)
def test_a_warm_start_nearby_saves_iterations(solver):
    system = SMALL["six decades"]()
    right = right_hand_side(system)
    prepared = SOLVERS[solver](system)
    cold = prepared.solve(right, tol=1e-10)
    warm = prepared.solve(right, cold.value * (1 + 1e-6), tol=1e-10)
    assert warm.iterations < cold.iterations
    np.testing.assert_allclose(warm.value, cold.value, atol=1e-7 * np.abs(cold.value).max())


@pytest.mark.parametrize("columns", [(), (3,)])
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_zero_right_hand_side_has_the_zero_solution(solver, columns):
    system = SMALL["hub"]()
    solution = SOLVERS[solver](system).solve(np.zeros((*system.shape, *columns)))
    assert not solution.value.any()
    assert solution.iterations == 0
    assert solution.residual == 0
    assert solution.succeeded


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_right_hand_side_is_left_alone(solver):
    system = SMALL["uniform"]()
    right = right_hand_side(system)
    copy = right.copy()
    SOLVERS[solver](system).solve(right)
    np.testing.assert_array_equal(right, copy)


@pytest.mark.parametrize("strength", [1e-4, 1e-2, 1.0, 1e2, 1e4, 1e6])
def test_the_default_takes_few_iterations_whatever_the_coupling(strength):
    system = make(60, n=60, p=6, rows=12, coupling=[strength] * 6)
    solution = ConjugateGradient.of(system).solve(right_hand_side(system), tol=1e-8)
    assert solution.succeeded
    assert solution.iterations <= 25


@pytest.mark.parametrize("strength", [1e-2, 1.0, 1e6])
def test_many_tasks_are_solved_by_block_jacobi_on_trial_and_by_the_cycle_where_that_fails(strength):
    # Along a line, what is far apart is joined by many steps.
    line = np.column_stack([np.arange(899), np.arange(1, 900)])
    system = make(61, n=900, p=3, rows=12, coupling=[strength] * 3)
    system = dataclasses.replace(system, edges=line, edge_weights=np.ones(899))
    right = right_hand_side(system)
    solver = ConjugateGradient.of(system)
    found = solver.solve(right, tol=1e-9)
    exact = ConjugateGradient(system, make_preconditioner(system)).solve(right, tol=1e-11)
    assert isinstance(solver.preconditioner, BlockJacobi)
    assert found.succeeded
    np.testing.assert_allclose(found.value, exact.value, atol=1e-6 * np.abs(exact.value).max())
    assert solver.experience.trial_failed == (strength == 1e6)
    # Once it has failed, it is not tried again.
    again = solver.solve(right, tol=1e-9)
    assert again.iterations == found.iterations if strength < 1e6 else again.iterations <= 25


def test_many_right_hand_sides_are_solved_as_each_alone():
    system = make(62, n=700, p=4, rows=12, coupling=[0.5] * 4)
    right = np.random.default_rng(0).normal(size=(*system.shape, 3))
    together = ConjugateGradient.of(system).solve(right, start=0.1 * right, tol=1e-10)
    start = np.zeros((*system.shape, 1))
    ConjugateGradient.of(system).solve(right[..., :1], start=start, tol=1e-10)
    assert not start.any()
    for column in range(3):
        alone = ConjugateGradient.of(system).solve(right[..., column], tol=1e-10)
        np.testing.assert_allclose(together.value[..., column], alone.value, atol=1e-8)
    assert together.succeeded
    assert together.residual <= 1e-10


def test_of_many_right_hand_sides_some_solved_some_zero_and_some_hard_all_are_solved():
    """A coupling so strong that block-Jacobi alone gives up within its trial."""
    system = make(63, n=700, p=3, rows=12, coupling=[1e6] * 3)
    right = np.random.default_rng(0).normal(size=(*system.shape, 3))
    right[..., 1] = 0.0
    start = np.zeros_like(right)
    exact = Direct.of(system).solve(right).value
    start[..., 0] = exact[..., 0]
    found = ConjugateGradient.of(system).solve(right, start, tol=1e-9)
    assert found.succeeded
    assert not found.value[..., 1].any()
    np.testing.assert_allclose(found.value, exact, atol=1e-6 * np.abs(exact).max())


def test_applications_count_every_product_with_the_operator():
    system = SMALL["uniform"]()
    products = 0

    class Counting(type(system)):
        stores_blocks = False

        def apply(self, values):
            nonlocal products
            products += 1
            return super().apply(values)

    fields = {name: getattr(system, name) for name in system.__dataclass_fields__}
    counting = Counting(**fields)
    for sweeps in (1, 2):
        cycle = TwoLevel(counting, BlockJacobi.of(system), GraphLevel.of(system), sweeps)
        products = 0
        solution = ConjugateGradient(counting, cycle).solve(right_hand_side(system), np.ones(system.shape))
        assert solution.applications == products


# ---------------------------------------------------------------- what cannot be solved


@pytest.mark.parametrize("method", ["direct", "pcg"])
def test_a_singular_system_is_refused_naming_the_tasks(method):
    system = make(61, rows=5, edges=[[0, 1], [2, 6]], ridge=0.0)
    system.gram[[2, 6]] = grams(np.random.default_rng(0), 2, 3, 1)
    with pytest.raises(SingularSystemError, match=r"position 2, 6 .*Use a positive ridge, a hub, or link them"):
        prepare(replace(system, sizes=SOLVED[method]))


@pytest.mark.parametrize("method", ["direct", "pcg"])
def test_a_task_without_rows_and_links_is_refused(method):
    system = make(62, rows=5, edges=[[0, 1]], ridge=0.0)
    system.gram[7] = 0.0
    with pytest.raises(SingularSystemError, match="position 7"):
        prepare(replace(system, sizes=SOLVED[method]))


@pytest.mark.parametrize("method", ["direct", "pcg"])
def test_a_hub_for_some_features_only_may_still_leave_the_system_singular(method):
    system = make(63, rows=5, edges=[], hub=[1.0, 1.0, 0.0], ridge=0.0)
    system.gram[7] = 0.0
    with pytest.raises(SingularSystemError):
        prepare(replace(system, sizes=SOLVED[method]))


def test_small_systems_are_solved_directly_and_large_ones_iteratively():
    assert isinstance(prepare(SMALL["uniform"]()), Direct)
    assert isinstance(prepare(LARGE["many tasks"]()), ConjugateGradient)


def test_stopping_early_is_reported_and_refused_with_a_remedy():
    system = SMALL["six decades"]()
    solver = ConjugateGradient(system, BlockJacobi.of(system), max_iter=2)
    solution = solver.solve(right_hand_side(system), tol=1e-12)
    assert solution.status == "max_iter"
    assert not solution.succeeded
    assert solution.residual == pytest.approx(true_residual(system, right_hand_side(system), solution.value))
    with pytest.raises(SolverError, match=r"after 2 iterations \(max_iter\).*larger ridge"):
        solution.require(1e-8)
    assert solution.require(1.1 * solution.residual) is solution


def test_a_tolerance_beyond_rounding_ends_as_stalled():
    system = SMALL["strong"]()
    solution = ConjugateGradient.of(system).solve(right_hand_side(system), tol=1e-30)
    assert solution.status == "stalled"
    assert solution.residual < 1e-9
    assert isinstance(solution, Solution)


def test_a_residual_that_rises_for_dozens_of_steps_is_not_a_stall():
    # Nearly collinear features make the residual of block-Jacobi wander long before it falls.
    rng = np.random.default_rng(0)
    n, p = 200, 10
    X = rng.normal(size=(n, 20, p)) * np.logspace(0, -5, p) @ np.linalg.qr(rng.normal(size=(p, p)))[0]
    edges = np.array([(i, (i + reach) % n) for i in range(n) for reach in (1, 5, 17, 40)])
    weights = 10.0 ** rng.uniform(-6, 0, size=len(edges))
    gram = np.matmul(X.transpose(0, 2, 1), X)
    system = TaskSystem(gram, edges, weights, np.ones(p), np.zeros(p), np.full((1, 1), 1e-6))
    right = np.einsum("nrp,nr->np", X, rng.normal(size=(n, 20)))
    assert block_jacobi(system).solve(right, tol=1e-8).status == "converged"


@pytest.mark.parametrize("reserve", [Factors, Direct])
def test_where_steps_fail_factors_solve(reserve):
    """Pairs of tasks with fewer rows than coefficients: what no row tells, a ridge of a millionth must."""
    sizes = Sizes(component_work=0) if reserve is Direct else SIZES
    rng, n, p = np.random.default_rng(0), 80, 6
    X = rng.normal(size=(n, 2, p))
    gram, edges = np.einsum("nrp,nrq->npq", X, X), np.arange(n).reshape(-1, 2)
    weights, ridge = np.full(n // 2, 100.0), np.full(p, 1e-6)
    system = TaskSystem(gram, edges, weights, np.ones(p), np.zeros(p), ridge, sizes=sizes)
    prepared, right = ConjugateGradient.of(system), rng.normal(size=(n, p))
    assert dataclasses.replace(prepared, has_reserve=False).solve(right).residual > 1e-4
    found = prepared.solve(right)
    assert isinstance(prepared.reserve, reserve)
    assert found.residual < 1e-7
    exact = np.linalg.solve(system.dense(), right.ravel()).reshape(n, p)
    np.testing.assert_allclose(found.value, exact, rtol=1e-6, atol=1e-6 * np.abs(exact).max())
    # From then on steps are not tried again, also for several right-hand sides.
    several = prepared.solve(np.dstack([right, 2.0 * right]))
    assert several.iterations == 0
    np.testing.assert_allclose(several.value[..., 1], 2.0 * exact, rtol=1e-6, atol=1e-6 * np.abs(exact).max())
