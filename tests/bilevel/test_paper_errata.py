"""Where the paper's text and its mathematics part ways, each statement with its computation."""

import numpy as np
import pytest
from scipy.linalg import block_diag

from ggmtl.bilevel.inner import InnerProblem, solve_inner
from ggmtl.bilevel.problem import ENTROPY_FLOOR, HoldOut, Sparsity
from ggmtl.graph import TaskGraph
from ggmtl.inspection import fuzzy_graph_scores
from ggmtl.statistics.least_squares import LeastSquares

N, D, ROWS, STRENGTH = 6, 3, 8, 2.0
EDGES = np.array([(i, j) for i in range(N) for j in range(i + 1, N)])
M = len(EDGES)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    models = rng.normal(size=D) + 0.7 * rng.normal(size=(N, D))
    parts = []
    for rows in (ROWS, 5):
        X = [rng.normal(size=(rows, D)) for _ in range(N)]
        parts.append((X, [A @ w + 0.5 * rng.normal(size=rows) for A, w in zip(X, models)]))
    return parts


@pytest.fixture(scope="module")
def edge_values():
    return np.random.default_rng(1).uniform(0.2, 0.9, size=M)


def least_squares(X, y):
    return LeastSquares(
        np.stack([A.T @ A for A in X]),
        np.stack([A.T @ b for A, b in zip(X, y)]),
        np.array([b @ b for b in y]),
        np.array([float(len(b)) for b in y]),
    )


def criterion(data, penalty="squared_l2", mode="exact", strength=STRENGTH, smoothing=1e-2):
    problem = InnerProblem(
        least_squares(*data[0]),
        EDGES,
        np.full(D, strength),
        np.zeros(D),
        np.zeros((1, 1)),
        penalty,
        smoothing,
    )
    return HoldOut(problem, least_squares(*data[1]), hypergradient=mode)


def incidence():
    return np.eye(N)[EDGES[:, 0]] - np.eye(N)[EDGES[:, 1]]


def paper_matrix(data, weights, strength):
    """A = λ L_e ⊗ I_d + XᵀX."""
    b = incidence()
    L = b.T @ (weights[:, None] * b)
    return strength * np.kron(L, np.eye(D)) + block_diag(*[A.T @ A for A in data[0][0]])


def paper_solution(data, weights, strength):
    right = np.concatenate([A.T @ y for A, y in zip(*data[0])])
    return np.linalg.solve(paper_matrix(data, weights, strength), right)


def paper_slope(data, V):
    """C = Xᵀ_val (X_val V − Y_val)."""
    return np.concatenate([A.T @ (A @ w - y) for A, w, y in zip(*[data[1][0], V.reshape(N, D), data[1][1]])])


def paper_hypergradient(data, weights, strength):
    """The loss part of Eq. hg, as an edge-wise product."""
    V = paper_solution(data, weights, strength)
    p = np.linalg.solve(paper_matrix(data, weights, strength), paper_slope(data, V))
    u, q = incidence() @ V.reshape(N, D), incidence() @ p.reshape(N, D)
    return -strength * (u * q).sum(axis=1)


def central(function, point, h=1e-4):
    units = np.eye(len(point))
    return np.array([
        (function(point - 2 * h * k) - 8 * function(point - h * k) + 8 * function(point + h * k)
         - function(point + 2 * h * k)) / (12 * h)
        for k in units
    ])  # fmt: skip


# ---------------------------------------------------------------- the update


def test_update_descends_with_a_minus_sign(data, edge_values):
    problem = criterion(data)
    start = problem.evaluate(edge_values)
    step = 1e-3 / np.abs(start.edges).max()
    assert problem.evaluate(edge_values - step * start.edges).value < start.value
    assert problem.evaluate(edge_values + step * start.edges).value > start.value


def test_update_needs_the_box_above_as_well(data):
    problem = criterion(data, strength=0.01)
    e = np.full(M, 0.9)
    for _ in range(20):
        gradient = problem.evaluate(e).edges
        e = np.maximum(e - gradient / np.abs(gradient).max(), 0.0)
    assert e.max() > 1.0


# ---------------------------------------------------------------- constants


def literal_minimiser(data, e, strength):
    """argmin Σ‖X_i w_i − y_i‖² + ½ λ tr(VᵀL_eV), no halves on the squares: (2 XᵀX + λ L ⊗ I) V = 2 XᵀY."""
    both = 2 * block_diag(*[A.T @ A for A in data[0][0]])
    b = incidence()
    both += strength * np.kron(b.T @ (e[:, None] * b), np.eye(D))
    return np.linalg.solve(both, 2 * np.concatenate([A.T @ y for A, y in zip(*data[0])]))


def literal_outer(data, e, strength):
    """Σ‖X_i^val w_i − y_i^val‖² at the literal inner minimiser."""
    V = literal_minimiser(data, e, strength).reshape(N, D)
    return sum(((A @ w - y) ** 2).sum() for A, w, y in zip(data[1][0], V, data[1][1]))


def test_constants_of_the_printed_hypergradient_do_not_fit_the_printed_objectives(data, edge_values):
    slope = central(lambda e: literal_outer(data, e, STRENGTH), edge_values)
    printed = paper_hypergradient(data, edge_values, STRENGTH)
    assert np.linalg.norm(printed - slope) > 0.1 * np.linalg.norm(slope)
    # Its λ is our λ/2, its outer loss twice ours.
    mended = 2 * paper_hypergradient(data, edge_values, STRENGTH / 2)
    np.testing.assert_allclose(mended, slope, rtol=1e-7, atol=1e-9 * np.abs(slope).max())


def test_constants_with_halves_are_exact(data, edge_values):
    problem = criterion(data)
    slope = central(lambda e: problem.evaluate(e).value, edge_values)
    printed = paper_hypergradient(data, edge_values, STRENGTH)
    np.testing.assert_allclose(problem.evaluate(edge_values).edges, printed, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(slope, printed, rtol=1e-6, atol=1e-8 * np.abs(slope).max())


def test_constants_of_the_energy_term_need_a_half(edge_values):
    xi = 0.7
    printed = xi * edge_values
    np.testing.assert_allclose(central(lambda e: xi * (e @ e), edge_values), 2 * printed, rtol=1e-8)
    np.testing.assert_allclose(
        central(lambda e: Sparsity(edge_l2=xi).value_and_gradient(e)[0], edge_values), printed, rtol=1e-8
    )


# ---------------------------------------------------------------- the Kronecker product


def printed_factors(V):
    B = np.hstack([np.outer(b, b) for b in incidence()])
    return B, np.kron(B.T, np.eye(D))


def test_edgewise_product_equals_the_kronecker_product(data, edge_values):
    V = paper_solution(data, edge_values, STRENGTH)
    c = np.random.default_rng(2).normal(size=N * D)
    _, right = printed_factors(V)
    kronecker = np.kron(np.eye(M), V[None, :]) @ right @ c
    edgewise = ((incidence() @ V.reshape(N, D)) * (incidence() @ c.reshape(N, D))).sum(axis=1)
    np.testing.assert_allclose(edgewise, kronecker, rtol=1e-10, atol=1e-12)


def test_kronecker_product_as_printed_pairs_the_wrong_entries(data, edge_values):
    # Bᵀ ⊗ I_d runs through edges first, Vᵀ ⊗ I_m through edges last: I_m ⊗ Vᵀ is meant.
    V = paper_solution(data, edge_values, STRENGTH)
    c = np.random.default_rng(2).normal(size=N * D)
    B, right = printed_factors(V)
    assert B.shape == (N, N * M)
    printed = np.kron(V[None, :], np.eye(M)) @ right @ c
    meant = np.kron(np.eye(M), V[None, :]) @ right @ c
    assert printed.shape == meant.shape
    assert np.linalg.norm(printed - meant) > 0.5 * np.linalg.norm(meant)


# ---------------------------------------------------------------- ℓ2


def l2_state(data, edge_values):
    problem = criterion(data, "l2").problem
    V = solve_inner(problem, edge_values, tol=1e-13).coefficients
    u = incidence() @ V
    return V, u, np.sqrt((u**2).sum(axis=1) + problem.smoothing**2)


def test_l2_recipe_drops_the_chain_factor(data, edge_values):
    _, _, s = l2_state(data, edge_values)
    factor = 0.5 / s
    recipe = paper_hypergradient(data, edge_values * factor, STRENGTH)
    frozen = criterion(data, "l2", "frozen").evaluate(edge_values, tol=1e-13).edges
    np.testing.assert_allclose(factor * recipe, frozen, rtol=1e-6, atol=1e-9)
    assert np.ptp(factor) > 0.1 * factor.mean()


def test_l2_frozen_gradient_is_not_the_gradient(data, edge_values):
    exact = criterion(data, "l2")
    slope = central(lambda e: exact.evaluate(e, tol=1e-13).value, edge_values, 1e-3)
    gradient = exact.evaluate(edge_values, tol=1e-13).edges
    frozen = criterion(data, "l2", "frozen").evaluate(edge_values, tol=1e-13).edges
    size = np.linalg.norm(slope)
    assert np.linalg.norm(gradient - slope) < 1e-6 * size
    assert np.linalg.norm(frozen - slope) > 0.02 * size


def test_l2_weights_divide_by_zero_where_tasks_fuse():
    u = np.zeros(D)
    with np.errstate(divide="ignore"):
        assert np.isinf(np.divide(0.5, np.linalg.norm(u)))
    assert np.isfinite(0.5 / np.sqrt(u @ u + 1e-3**2))


def majoriser(length, strength, e, u, epsilon):
    """½ λ e (l(‖u‖² + ε²) + 1/(4l))."""
    return 0.5 * strength * e * (length * (u @ u + epsilon**2) + 0.25 / length)


def test_majoriser_touches_from_above_with_its_constant_scaled_by_coupling_and_edge():
    rng = np.random.default_rng(3)
    for _ in range(20):
        u, e, strength, epsilon = rng.normal(size=D), rng.uniform(0.1, 1), rng.uniform(0.1, 5), 0.01
        s = np.sqrt(u @ u + epsilon**2)
        target = 0.5 * strength * e * s
        assert majoriser(0.5 / s, strength, e, u, epsilon) == pytest.approx(target, rel=1e-12)
        for length in 10.0 ** rng.uniform(-2, 2, size=20):
            assert majoriser(length, strength, e, u, epsilon) >= target * (1 - 1e-12)


def test_majoriser_as_printed_does_not_touch():
    u, e, strength = np.array([1.0, 2.0, -1.0]), 0.5, 1.0
    s = np.linalg.norm(u)
    length = 0.5 / s
    printed = 0.5 * strength * e * length * (u @ u) + 0.25 / length
    assert abs(printed - 0.5 * strength * e * s) > 0.1 * s
    # Nor is l = ½/s where the printed expression is smallest in l.
    other = 0.5 / (s * np.sqrt(0.5 * strength * e))
    assert 0.5 * strength * e * other * (u @ u) + 0.25 / other < printed


# ---------------------------------------------------------------- closed-form edges


def rigidity(V):
    """M = (I_m ⊗ Vᵀ)(Bᵀ ⊗ I_d): row e is u_e at task i and −u_e at task j, shape (m, nd)."""
    return np.kron(np.eye(M), V[None, :]) @ printed_factors(V)[1]


def test_closed_form_equation_holds_at_every_edge_vector(data):
    eta, rng = 0.3, np.random.default_rng(4)
    gram = block_diag(*[A.T @ A for A in data[0][0]])
    for _ in range(3):
        e = rng.uniform(0, 1, size=M)
        V = paper_solution(data, e, STRENGTH)
        C = paper_slope(data, V)
        u = STRENGTH / eta * np.linalg.solve(paper_matrix(data, e, STRENGTH), C)
        v = C / eta - gram @ u / STRENGTH
        b = incidence()
        U = np.stack([np.kron(np.outer(row, row), np.eye(D)) @ u for row in b], axis=1)
        np.testing.assert_allclose(U @ e, v, atol=1e-10 * np.abs(v).max())


def test_closed_form_matrix_has_no_inverse(data, edge_values):
    V = paper_solution(data, edge_values, STRENGTH)
    matrix = rigidity(V)
    assert matrix.shape == (M, N * D)
    rank = np.linalg.matrix_rank(matrix)
    assert rank <= N * D - D * (D + 1) // 2
    assert rank < M


def test_closed_form_minimum_norm_vector_is_another_one(data, edge_values):
    # With η chosen so that one edge is stationary, (λ/η)p and M⁺1 still differ.
    V = paper_solution(data, edge_values, STRENGTH)
    p = np.linalg.solve(paper_matrix(data, edge_values, STRENGTH), paper_slope(data, V))
    matrix = rigidity(V)
    eta = STRENGTH * (matrix @ p)[0]
    u = STRENGTH / eta * p
    shortest = np.linalg.pinv(matrix) @ np.ones(M)
    assert np.linalg.norm(u - shortest) > 0.1 * np.linalg.norm(shortest)
    # Rigid motions of the models lie in the null space: adding one leaves M u alone.
    shift = np.tile(np.array([1.0, 0.0, 0.0]), N)
    np.testing.assert_allclose(matrix @ (u + shift), matrix @ u, atol=1e-10 * np.abs(matrix @ u).max())


# ---------------------------------------------------------------- A is not diagonally dominant


def dominance(matrix):
    """Smallest of |a_ii| − Σ_j≠i |a_ij|."""
    size = np.abs(matrix)
    return (2 * np.diag(size) - size.sum(axis=1)).min()


def test_system_matrix_is_positive_definite_but_not_diagonally_dominant(data, edge_values):
    b = incidence()
    L = b.T @ (edge_values[:, None] * b)
    A = paper_matrix(data, edge_values, 0.01)
    assert dominance(L) > -1e-12
    assert dominance(A) < -1.0
    assert np.linalg.eigvalsh(A).min() > 0


# ---------------------------------------------------------------- entropy


def test_entropy_slope_grows_without_bound_towards_zero():
    slopes = [-np.log(e) for e in (1e-2, 1e-4, 1e-8)]
    assert np.all(np.diff(slopes) > 2)
    values = [Sparsity(edge_entropy=1.0).value_and_gradient(np.array([e]))[1][0] for e in (1e-2, 1e-4)]
    np.testing.assert_allclose(values, slopes[:2])


def test_entropy_makes_zero_a_local_minimum_and_the_floor_keeps_it_finite(data):
    problem, entropy = criterion(data), Sparsity(edge_entropy=30.0)
    zero = np.zeros(M)
    loss = problem.evaluate(zero)
    value, slope = entropy.value_and_gradient(zero)
    assert np.isfinite(value)
    np.testing.assert_allclose(slope, -30.0 * np.log(ENTROPY_FLOOR))
    assert (loss.edges + slope > 0).all()
    assert (loss.edges < 0).any()
    small = np.full(M, 1e-7)
    assert problem.evaluate(small).value + entropy.value_and_gradient(small)[0] > loss.value + value


def test_entropy_is_continuous_with_its_slope_at_the_floor():
    entropy = Sparsity(edge_entropy=1.0)
    below, above = (entropy.value_and_gradient(np.array([ENTROPY_FLOOR * f])) for f in (1 - 1e-9, 1 + 1e-9))
    assert below[0] == pytest.approx(above[0], rel=1e-7)
    assert below[1][0] == pytest.approx(above[1][0], rel=1e-7)
    first, second = (entropy.value_and_gradient(np.array([ENTROPY_FLOOR * f]))[0] for f in (0.25, 0.75))
    assert (second - first) / (0.5 * ENTROPY_FLOOR) == pytest.approx(-np.log(ENTROPY_FLOOR), rel=1e-9)


# ---------------------------------------------------------------- fuzzy scores and the calendar


def conjunction(a, b):
    return max(a + b - 1, 0)


def exclusive_or(a, b, disjunction):
    return conjunction(disjunction(a, b), 1 - conjunction(a, b))


def test_conorm_as_printed_makes_exclusive_or_of_one_and_zero_false():
    assert exclusive_or(1, 0, min) == 0
    assert exclusive_or(1, 0, lambda a, b: min(a + b, 1)) == 1
    assert exclusive_or(1, 1, lambda a, b: min(a + b, 1)) == 0
    assert exclusive_or(0, 0, lambda a, b: min(a + b, 1)) == 0


def test_equal_weighted_graphs_do_not_score_accuracy_one():
    assert exclusive_or(0.5, 0.5, lambda a, b: min(a + b, 1)) == 1
    half = TaskGraph.from_adjacency(0.5 * (np.ones((3, 3)) - np.eye(3)), np.arange(3))
    full = TaskGraph.from_adjacency(np.ones((3, 3)) - np.eye(3), np.arange(3))
    assert fuzzy_graph_scores(half, half).accuracy < 0.5
    assert fuzzy_graph_scores(full, full).accuracy == 1


def test_a_fifth_of_the_hours_is_ten_weeks():
    assert pytest.approx(10.4, abs=0.05) == 0.2 * 8759 / (24 * 7)
