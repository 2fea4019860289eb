"""Tasks of few rows and many coefficients: solved as the Kronecker system, and told from those that only look alike."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_system import grams, kronecker, make, per_coordinate

from ggmtl.runtime.sizes import Sizes
from ggmtl.solve import structured
from ggmtl.solve.preconditioners import BlockJacobi, TwoLevel
from ggmtl.solve.solvers import ConjugateGradient, prepare
from ggmtl.solve.system import TaskSystem
from ggmtl.statistics.least_squares import factor_rows


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


def test_a_system_that_does_not_store_its_blocks_is_refused():
    class Other(TaskSystem):
        stores_blocks = False

    system = narrow(37)
    other = Other(**{part.name: getattr(system, part.name) for part in dataclasses.fields(TaskSystem)})
    assert structured.few_rows_of(system) is not None
    assert structured.few_rows_of(other) is None


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
    prepared = ConjugateGradient(*structured.prepare_low_rank(system))
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
    rows = factor_rows(system.gram, 5)
    assert rows.shape == (9, 4, 16)
    np.testing.assert_allclose(np.matmul(rows.transpose(0, 2, 1), rows), system.gram, atol=1e-12)
    values = normal(system)
    np.testing.assert_allclose(structured.LowRankSystem.of(system, rows).apply(values), system.apply(values), rtol=1e-9)
    ours, general = structured.LowRankJacobi.of(system, rows), BlockJacobi.of(system)
    np.testing.assert_allclose(ours(values), general(values), atol=1e-9 * np.abs(general(values)).max())


def test_the_graph_level_is_added_where_coupling_is_strong():
    weak, strong = narrow(1, coupling=[0.1] * 16, hub=[1.0] * 16), narrow(1, coupling=[1e3] * 16, hub=[1.0] * 16)
    assert isinstance(structured.prepare_low_rank(weak)[1], structured.LowRankJacobi)
    assert isinstance(structured.prepare_low_rank(strong)[1], TwoLevel)


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
    solution = ConjugateGradient(*structured.prepare_low_rank(system)).solve(right, tol=1e-11)
    assert true_residual(system, right, solution.value) < 1e-11 + rounding(system, right, solution.value)
    assert close(solution.value, dense_solution(system, right), 1e-7)


def test_tasks_of_full_rank_are_refused_also_where_only_one_has_it():
    assert structured.few_rows_of(narrow(40, rows=30)) is None
    assert structured.few_rows_of(narrow(41, rows=8)) is None
    system = narrow(42)
    system.gram[5] = grams(np.random.default_rng(0), 1, 16, 30)[0]
    assert structured.prepare_low_rank(system) is None


def test_curvature_and_a_diagonal_far_smaller_than_the_data_are_refused():
    assert structured.few_rows_of(narrow(43, curved=True)) is None
    assert structured.prepare_low_rank(narrow(44, edges=[], ridge=1e-12)) is None


def test_prepare_takes_factors_where_blocks_are_large_and_of_low_rank():
    system = make(45, n=180, p=80, rows=6, coupling=[5.0] * 80, hub=[1.0] * 80)
    prepared = prepare(system)
    assert isinstance(prepared.system, structured.LowRankSystem)
    right = normal(system)
    solution, general = prepared.solve(right, tol=1e-10), ConjugateGradient.of(system).solve(right, tol=1e-10)
    assert solution.succeeded
    assert close(solution.value, general.value, 1e-7)
    assert type(prepare(make(46, n=180, p=80, rows=90)).system) is TaskSystem
