"""The operator A against Kronecker products, and its preconditioners as symmetric maps."""

import functools
import importlib.util
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.linalg import block_diag

from ggmtl.errors import SingularSystemError
from ggmtl.runtime.sizes import SIZES, Sizes
from ggmtl.solve import preconditioners
from ggmtl.solve.preconditioners import (
    AggregationCycle,
    BlockJacobi,
    GraphLevel,
    TwoLevel,
    coupling_ratio,
    make_preconditioner,
    mean_rank_share,
)
from ggmtl.solve.system import Curvature, TaskSystem, laplacian

MANY = 640  # tasks beyond which the graph level is no longer inverted densely


def grams(rng, n, p, rows):
    X = rng.normal(size=(n, rows, p))
    return np.matmul(X.transpose(0, 2, 1), X)


def random_edges(rng, n, extra):
    """A random tree and some more pairs."""
    tree = [(int(rng.integers(k)), k) for k in range(1, n)]
    more = [tuple(sorted(rng.choice(n, 2, replace=False).tolist())) for _ in range(extra)]
    return np.array(sorted(set(tree + more)), dtype=np.int64).reshape(-1, 2)


def make(seed, *, n=9, p=3, rows=8, edges=None, weights=None, coupling=None, hub=None, ridge=1e-6, curved=False):
    """A system with what is not given filled in."""
    rng = np.random.default_rng(seed)
    edges = random_edges(rng, n, n) if edges is None else np.asarray(edges, dtype=np.int64).reshape(-1, 2)
    weights = np.ones(len(edges)) if weights is None else weights(rng, len(edges), p)
    coupling = np.full(p, 2.0) if coupling is None else np.asarray(coupling, dtype=float)
    hub = np.zeros(p) if hub is None else np.asarray(hub, dtype=float)
    parts = {}
    if curved:
        # The Hessian of the ℓ2 penalty: ½λe(I/s − uuᵀ/s³) with s² = ‖u‖² + ε².
        u = rng.normal(size=(len(edges), p))
        s = np.sqrt((u**2).sum(axis=1) + 0.01)
        parts = {"curvature": Curvature(u, 0.5 * coupling[0] * weights / s**3)}
        weights = 0.5 * weights / s
    return TaskSystem(grams(rng, n, p, rows), edges, weights, coupling, hub, np.atleast_2d(ridge), **parts)


def decades(rng, m, p):
    return 10.0 ** rng.uniform(-6, 0, size=m)


def per_coordinate(rng, m, p):
    return 10.0 ** rng.uniform(-3, 0, size=(m, p))


def ring(n, reach=3):
    i = np.repeat(np.arange(n), reach)
    pairs = np.column_stack([i, (i + np.tile(np.arange(1, reach + 1), n)) % n])
    return np.unique(np.sort(pairs, axis=1), axis=0)


SMALL = {
    "empty graph": lambda: make(0, edges=[]),
    "uniform": lambda: make(1),
    "weak": lambda: make(2, coupling=[1e-3] * 3),
    "strong": lambda: make(3, coupling=[1e4] * 3),
    "six decades": lambda: make(4, weights=decades, coupling=[100.0] * 3),
    "per feature": lambda: make(5, coupling=[0.1, 10.0, 10.0]),
    "per coordinate of each edge": lambda: make(6, weights=per_coordinate),
    "hub": lambda: make(7, hub=[3.0, 3.0, 3.0]),
    "hub per feature": lambda: make(8, hub=[0.0, 5.0, 1e3], coupling=[1.0, 2.0, 3.0]),
    "hub without edges": lambda: make(9, edges=[], hub=[50.0] * 3),
    "curvature": lambda: make(10, curved=True),
    "curvature and hub": lambda: make(11, curved=True, hub=[1.0] * 3, rows=2),
    "disconnected": lambda: make(12, edges=[[0, 1], [1, 2], [3, 4], [4, 5], [6, 7], [6, 8]], coupling=[50.0] * 3),
    "isolated tasks": lambda: make(13, edges=[[0, 1], [1, 2], [0, 2]]),
    "rank-deficient grams": lambda: make(14, rows=1, coupling=[20.0] * 3),
    "rank-deficient, six decades": lambda: make(15, rows=1, weights=decades, coupling=[1e3] * 3, ridge=1e-3),
    "ridge per coefficient": lambda: make(16, ridge=np.arange(27.0).reshape(9, 3), rows=2),
    "zero weights": lambda: make(17, weights=lambda rng, m, p: np.arange(m) % 2.0),
    "repeated edges": lambda: make(18, edges=[[0, 1], [0, 1], [1, 0], [2, 3]]),
    "one task": lambda: make(19, n=1, edges=[]),
    "one feature": lambda: make(20, p=1, coupling=[5.0]),
}
LARGE = {
    "many tasks": lambda: make(30, n=MANY, p=2, rows=4, edges=ring(MANY), coupling=[30.0] * 2),
    "many tasks, weak coupling": lambda: make(
        31, n=MANY, p=2, rows=1, edges=ring(MANY), coupling=[1e-4] * 2, ridge=1e-2
    ),
    "many tasks, six decades, hub": lambda: make(
        32, n=MANY, p=2, rows=1, edges=ring(MANY), weights=decades, coupling=[300.0, 30.0], hub=[1.0, 2.0]
    ),
    "many tasks, curvature": lambda: make(33, n=MANY, p=2, rows=1, edges=ring(MANY), coupling=[100.0] * 2, curved=True),
}
OPERATORS = SMALL | LARGE


def kronecker(system):
    """A from its definition: Σ over coordinates k, j of (E diag(weight) Eᵀ) ⊗ e_k e_jᵀ, and the rest."""
    n, p = system.shape
    E = np.zeros((n, len(system.edges)))
    for column, (i, j) in enumerate(system.edges):
        E[i, column], E[j, column] = 1.0, -1.0
    matrix = block_diag(*system.gram)
    matrix += np.kron(np.eye(n) - np.ones((n, n)) / n, np.diag(system.hub))
    matrix += np.diag(np.broadcast_to(system.ridge, (n, p)).ravel())
    for k in range(p):
        for j in range(p):
            unit = np.zeros((p, p))
            unit[k, j] = 1.0
            weight = np.zeros(len(system.edges))
            if k == j:
                own = system.edge_weights if system.edge_weights.ndim == 1 else system.edge_weights[:, k]
                weight = own * system.coupling[k]
            if system.curvature is not None:
                u = system.curvature.directions
                weight = weight - system.curvature.factors * u[:, k] * u[:, j]
            matrix += np.kron(E * weight @ E.T, unit)
    return matrix


@functools.cache
def reference(name):
    """The Kronecker matrix of a registered operator, computed once."""
    matrix = kronecker(OPERATORS[name]())
    matrix.flags.writeable = False
    return matrix


def as_matrix(apply, n, p, basis=None):
    """The map restricted to the span of the basis (all of space by default)."""
    basis = np.eye(n * p) if basis is None else basis
    image = apply(basis.reshape(n, p, -1)).reshape(n * p, -1)
    return basis.T @ image


def hide_pyamg(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "pyamg" else find(name, *a))


# ---------------------------------------------------------------- the operator


@pytest.mark.parametrize("name", OPERATORS)
def test_dense_equals_the_kronecker_matrix(name):
    system = OPERATORS[name]()
    expected = reference(name)
    np.testing.assert_allclose(system.dense(), expected, atol=1e-12 * np.abs(expected).max())


@pytest.mark.parametrize("name", OPERATORS)
def test_apply_equals_the_kronecker_matrix(name):
    system = OPERATORS[name]()
    n, p = system.shape
    matrix = reference(name)
    values = np.random.default_rng(0).normal(size=(n, p, 4))
    expected = (matrix @ values.reshape(n * p, 4)).reshape(n, p, 4)
    scale = np.abs(matrix).sum(axis=1).max()
    np.testing.assert_allclose(system.apply(values), expected, atol=1e-13 * scale)
    np.testing.assert_allclose(system.apply(values[..., 0]), expected[..., 0], atol=1e-13 * scale)


@pytest.mark.parametrize("name", SMALL)
def test_diagonal_blocks_are_those_of_the_matrix(name):
    system = SMALL[name]()
    n, p = system.shape
    blocks = kronecker(system).reshape(n, p, n, p)[np.arange(n), :, np.arange(n), :]
    np.testing.assert_allclose(system.diagonal_blocks(), blocks, atol=1e-12 * np.abs(blocks).max())


@settings(deadline=None, max_examples=40)
@given(
    n=st.integers(1, 7),
    p=st.integers(1, 4),
    rows=st.integers(0, 5),
    seed=st.integers(0, 10**6),
    hub=st.booleans(),
)
def test_dense_and_apply_agree_for_any_shape(n, p, rows, seed, hub):
    rng = np.random.default_rng(seed)
    pairs = np.array([(i, j) for i in range(n) for j in range(i + 1, n)], dtype=np.int64).reshape(-1, 2)
    edges = pairs[rng.uniform(size=len(pairs)) < 0.4]
    system = make(seed, n=n, p=p, rows=rows, edges=edges, hub=np.full(p, 2.0 * hub), coupling=rng.uniform(0, 3, p))
    matrix = kronecker(system)
    np.testing.assert_allclose(system.dense(), matrix, atol=1e-12)
    np.testing.assert_allclose(as_matrix(system.apply, n, p), matrix, atol=1e-12)


def test_the_laplacian_is_incidence_times_weights():
    system = SMALL["six decades"]()
    E = system.incidence.toarray()
    expected = E.T @ np.diag(system.edge_weights) @ E
    np.testing.assert_allclose(laplacian(system.edges, system.edge_weights, 9).toarray(), expected, atol=1e-15)
    np.testing.assert_allclose(system.degrees(), np.outer(np.diag(expected), system.coupling), rtol=1e-12)


def test_the_majoriser_lies_above_the_hessian():
    system = SMALL["curvature"]()
    gap = kronecker(system.without_curvature()) - kronecker(system)
    assert np.linalg.eigvalsh(gap).min() > -1e-12
    assert np.linalg.eigvalsh(kronecker(system)).min() > 0


# ---------------------------------------------------------------- preconditioners

PRECONDITIONERS = {
    "block-Jacobi": BlockJacobi.of,
    "graph level": GraphLevel.of,
    "two level": lambda system: TwoLevel(system, BlockJacobi.of(system), GraphLevel.of(system)),
    "two level, two sweeps": lambda system: TwoLevel(system, BlockJacobi.of(system), GraphLevel.of(system), sweeps=2),
    "default": make_preconditioner,
}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("kind", PRECONDITIONERS)
def test_preconditioners_are_symmetric_positive_definite(kind, name):
    system = OPERATORS[name]().without_curvature()
    n, p = system.shape
    basis = np.random.default_rng(1).normal(size=(n * p, 30)) if n == MANY else None
    matrix = as_matrix(PRECONDITIONERS[kind](system), n, p, basis)
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-8 * np.abs(matrix).max())
    # Scaled to a unit diagonal, so that rounding in large entries cannot hide a negative direction.
    diagonal = np.sqrt(np.diag(matrix))
    assert np.linalg.eigvalsh(0.5 * (matrix + matrix.T) / np.outer(diagonal, diagonal)).min() > 0


@pytest.mark.parametrize("kind", PRECONDITIONERS)
def test_preconditioners_take_many_columns_at_once(kind):
    for name in ("uniform", "hub per feature", "per coordinate of each edge"):
        system = SMALL[name]()
        precondition = PRECONDITIONERS[kind](system)
        values = np.random.default_rng(2).normal(size=(*system.shape, 3))
        together = precondition(values)
        for r in range(3):
            np.testing.assert_allclose(precondition(values[..., r].copy()), together[..., r], rtol=1e-10, atol=1e-13)


def test_preconditioners_leave_their_argument_alone():
    system = SMALL["hub"]()
    values = np.ones(system.shape)
    for build in PRECONDITIONERS.values():
        build(system)(values)
    assert (values == 1).all()


def test_block_jacobi_is_exact_without_a_graph():
    system = SMALL["empty graph"]()
    matrix = as_matrix(BlockJacobi.of(system), *system.shape)
    np.testing.assert_allclose(matrix @ kronecker(system), np.eye(27), atol=1e-9)


@pytest.mark.parametrize("hub", [0.0, 4.0])
def test_the_graph_level_is_exact_where_grams_are_multiples_of_the_identity(hub):
    system = make(40, hub=[hub] * 3)
    own = np.random.default_rng(3).uniform(1, 2, size=9)
    system = TaskSystem(
        own[:, None, None] * np.eye(3),
        system.edges,
        system.edge_weights,
        system.coupling,
        system.hub,
        system.ridge,
    )
    matrix = as_matrix(GraphLevel.of(system), 9, 3)
    np.testing.assert_allclose(matrix @ kronecker(system), np.eye(27), atol=1e-10)


@pytest.mark.parametrize("name", LARGE)
def test_without_pyamg_the_graph_level_is_a_sparse_factor(name, monkeypatch):
    pytest.importorskip("pyamg")
    system = replace(LARGE[name]().without_curvature(), sizes=Sizes(polynomial_condition=0.0))
    n, p = system.shape
    approximate = GraphLevel.of(system)
    hide_pyamg(monkeypatch)
    exact = GraphLevel.of(system)
    assert isinstance(approximate.groups[0][1], AggregationCycle)
    assert not isinstance(exact.groups[0][1], AggregationCycle)
    # With grams μ_i I the graph level inverts A itself.
    mean = np.einsum("npp->n", system.gram) / p
    plain = TaskSystem(
        mean[:, None, None] * np.eye(p),
        system.edges,
        system.edge_weights,
        system.coupling,
        system.hub,
        system.ridge,
        sizes=system.sizes,
    )
    values = np.random.default_rng(4).normal(size=(n, p))
    if len(GraphLevel.of(plain).groups) == 1:
        np.testing.assert_allclose(exact(plain.apply(values)), values, atol=1e-7)
    np.testing.assert_allclose(GraphLevel.of(plain)(plain.apply(values)), values, atol=1e-7)


def test_one_aggregation_cycle_reduces_the_error():
    pytest.importorskip("pyamg")
    system = LARGE["many tasks"]()
    matrix = laplacian(system.edges, 30.0 * system.edge_weights, MANY) + 0.5 * np.eye(MANY)
    matrix = type(system.laplacian)(matrix)
    cycle = AggregationCycle.of(matrix)
    error = np.random.default_rng(5).normal(size=(MANY, 2))

    def energy(values):
        return np.sqrt((values * (matrix @ values)).sum())

    before = energy(error)
    for _ in range(10):
        error = error - cycle(matrix @ error)
    assert energy(error) < 0.05 * before


def test_an_aggregation_cycle_is_reproducible_and_leaves_the_global_random_state_alone():
    system = LARGE["many tasks"]()
    values = np.random.default_rng(8).normal(size=system.shape)
    before = np.random.get_state()[1:3]  # noqa: NPY002
    first, second = (GraphLevel.of(system)(values) for _ in range(2))
    after = np.random.get_state()[1:3]  # noqa: NPY002
    np.testing.assert_array_equal(first, second)
    assert before[1] == after[1]
    np.testing.assert_array_equal(before[0], after[0])


def test_the_threshold_between_dense_and_aggregated_graph_levels():
    assert SIZES.dense_graph < MANY
    small = GraphLevel.of(SMALL["uniform"]())
    assert not isinstance(small.groups[0][1], AggregationCycle)


def test_weak_coupling_needs_block_jacobi_alone():
    assert isinstance(make_preconditioner(SMALL["weak"]()), BlockJacobi)
    assert isinstance(make_preconditioner(SMALL["strong"]()), TwoLevel)
    assert coupling_ratio(SMALL["empty graph"]()) == 0


def test_the_rank_share_of_known_matrices():
    assert mean_rank_share(np.stack([np.eye(4)] * 3)) == pytest.approx(1.0)
    assert mean_rank_share(np.stack([np.diag([1.0, 0, 0, 0])] * 3)) == pytest.approx(0.25)
    assert mean_rank_share(np.zeros((2, 4, 4))) == 0.0


# ---------------------------------------------------------------- determined or not


def test_a_lone_task_with_too_few_rows_is_named():
    system = make(50, rows=5, edges=[[0, 1]], ridge=0.0)
    system.gram[4] = grams(np.random.default_rng(6), 1, 3, 2)[0]
    with pytest.raises(SingularSystemError, match=r"task\(s\) at position 4 \(linked to no other task\)"):
        system.check_determined()


def test_linked_tasks_with_too_few_rows_between_them_are_named():
    system = make(51, rows=5, edges=[[0, 1], [2, 6]], ridge=0.0)
    system.gram[[2, 6]] = grams(np.random.default_rng(7), 2, 3, 1)
    with pytest.raises(SingularSystemError, match=r"position 2, 6 \(linked to one another\)"):
        system.check_determined()


def test_an_edge_of_weight_zero_links_nothing():
    system = make(52, rows=5, edges=[[0, 4]], weights=lambda rng, m, p: np.zeros(m), ridge=0.0)
    system.gram[4] = 0.0
    with pytest.raises(SingularSystemError, match="position 4"):
        system.check_determined()


@pytest.mark.parametrize("remedy", [{"ridge": 1e-8}, {"hub": [1.0] * 3}, {"edges": [[3, 4]]}])
def test_each_remedy_of_the_message_determines_the_models(remedy):
    system = make(53, rows=5, **({"edges": [], "ridge": 0.0} | remedy))
    system.gram[4] = 0.0
    system.check_determined()
    assert np.linalg.eigvalsh(kronecker(system)).min() > 0


@pytest.mark.parametrize("condition", [1.5, 20.0, 150.0])
def test_the_polynomial_is_symmetric_positive_definite_and_nearly_the_inverse(condition):
    random = np.random.default_rng(0)
    edges = np.unique(np.sort(random.integers(0, 40, (120, 2)), axis=1), axis=0)
    edges = edges[edges[:, 0] != edges[:, 1]]
    weights = random.uniform(0.5, 2.0, len(edges))
    degree = np.bincount(edges.ravel(), np.repeat(weights, 2), 40)
    matrix = laplacian(edges, weights, 40, 2.0 * degree / condition + 0.01)
    polynomial = preconditioners.Polynomial.of(matrix)
    inverse = polynomial(np.eye(40))
    np.testing.assert_allclose(inverse, inverse.T, atol=1e-12 * np.abs(inverse).max())
    root = np.linalg.cholesky(matrix.toarray())
    spectrum = np.linalg.eigvalsh(root.T @ inverse @ root)
    assert spectrum.min() > 0
    assert np.abs(1.0 - spectrum).max() < 1.2 * preconditioners._POLYNOMIAL_ACCURACY


def test_a_polynomial_of_a_diagonal_matrix_is_its_inverse():
    matrix = sparse.csr_array(np.diag([2.0, 5.0, 0.1]))
    columns = np.arange(6.0).reshape(3, 2)
    found = preconditioners.Polynomial.of(matrix)(columns)
    np.testing.assert_allclose(found, columns / np.array([[2.0], [5.0], [0.1]]), rtol=1e-14)
