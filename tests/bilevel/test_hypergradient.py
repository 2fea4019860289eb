"""Hyper-gradients against central differences, against the paper's Kronecker formula, and between solvers."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.linalg import block_diag

from ggmtl.bilevel.hypergradient import hypergradient
from ggmtl.bilevel.inner import InnerProblem, solve_inner
from ggmtl.bilevel.problem import BilevelProblem, HoldOut, Sparsity, evaluate_folds
from ggmtl.errors import InputError, ParameterError
from ggmtl.solve.solvers import ConjugateGradient, prepare
from ggmtl.statistics.task_statistics import TaskStatistics
from made import SOLVED, sums_of

CONNECTED = np.array([[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [0, 5], [1, 4]])
DISCONNECTED = np.array([[0, 1], [1, 2], [0, 2], [3, 4], [4, 5]])
ISOLATED = np.array([[0, 1], [1, 2]])
CASES = {
    "N_i > d": (12, CONNECTED),
    "N_i < d": (2, CONNECTED),
    "disconnected": (9, DISCONNECTED),
    "isolated tasks": (9, ISOLATED),
    "N_i < d, isolated tasks": (2, ISOLATED),
}
PENALTIES = ("squared_l2", "l2", "l1")
N, D = 6, 4


def make_loss(rng, rows, models):
    X = rng.normal(size=(len(models), rows, models.shape[1]))
    y = np.einsum("nrd,nd->nr", X, models) + 0.5 * rng.normal(size=(len(models), rows))
    return sums_of(X, y)


def make(case, penalty="squared_l2", *, seed=0, coupling=None, hub=0.0, n=N, d=D, mode="exact", smoothing=0.05):
    """A hold-out criterion and edge values inside (0, 1)."""
    rows, edges = case
    rng = np.random.default_rng(seed)
    models = rng.normal(size=d) + 0.7 * rng.normal(size=(n, d))
    problem = InnerProblem(
        make_loss(rng, rows, models),
        edges,
        np.full(d, 1.5) if coupling is None else np.asarray(coupling, dtype=float),
        np.broadcast_to(np.asarray(hub, dtype=float), (d,)).copy(),
        np.full((1, 1), 0.02),
        penalty,
        smoothing,
    )
    criterion = HoldOut(problem, make_loss(rng, 7, models), hypergradient=mode)
    return criterion, rng.uniform(0.2, 0.9, size=len(edges))


def outer_loss(criterion, edge_values, **strengths):
    problem = replace(criterion.problem, **strengths)
    return criterion.validation.value(solve_inner(problem, edge_values, tol=1e-14).coefficients)


def differences(function, point, relative_step=2e-3):
    """Fourth-order central differences."""
    slope = np.empty_like(point)
    for k, value in enumerate(point):
        h = relative_step * max(abs(value), 0.1)
        f = [function(point + factor * h * np.eye(len(point))[k]) for factor in (-2, -1, 1, 2)]
        slope[k] = (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * h)
    return slope


def assert_close(actual, expected, accuracy=1e-6):
    assert np.abs(actual - expected).max() <= accuracy * np.abs(expected).max()


# ---------------------------------------------------------------- central differences


@pytest.mark.parametrize("hub", [0.0, 0.8])
@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("case", CASES)
def test_edge_gradient_matches_central_differences(case, penalty, hub):
    criterion, e = make(CASES[case], penalty, hub=hub)
    evaluation = criterion.evaluate(e, tol=1e-13)
    assert evaluation.value == pytest.approx(outer_loss(criterion, e), rel=1e-10)
    assert_close(evaluation.edges, differences(lambda x: outer_loss(criterion, x), e))


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("case", CASES)
def test_gradient_for_one_coupling_strength_matches_central_differences(case, penalty):
    criterion, e = make(CASES[case], penalty, hub=0.3)
    strength = np.array([1.5])

    def loss(x):
        return outer_loss(criterion, e, coupling=np.full(D, x[0]))

    evaluation = criterion.evaluate(e, tol=1e-13)
    assert_close(np.array([evaluation.coupling.sum()]), differences(loss, strength))


@pytest.mark.parametrize("case", CASES)
def test_gradient_for_coupling_per_feature_matches_central_differences(case):
    coupling = np.array([0.3, 1.0, 4.0, 12.0])
    criterion, e = make(CASES[case], coupling=coupling, hub=[0.1, 0.0, 2.0, 0.5])
    evaluation = criterion.evaluate(e, tol=1e-13)
    assert_close(evaluation.coupling, differences(lambda x: outer_loss(criterion, e, coupling=x), coupling))


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("case", CASES)
def test_hub_gradient_matches_central_differences(case, penalty):
    hub = np.array([0.4, 1.0, 2.0, 0.7])
    criterion, e = make(CASES[case], penalty, hub=hub)
    evaluation = criterion.evaluate(e, tol=1e-13)
    assert_close(evaluation.hub, differences(lambda x: outer_loss(criterion, e, hub=x), hub))


@pytest.mark.parametrize("penalty", PENALTIES)
def test_strengths_given_to_evaluate_replace_those_of_the_problem(penalty):
    criterion, e = make(CASES["N_i > d"], penalty)
    coupling, hub = np.full(D, 0.4), np.full(D, 0.9)
    other = HoldOut(replace(criterion.problem, coupling=coupling, hub=hub), criterion.validation)
    given, own = criterion.evaluate(e, coupling, hub), other.evaluate(e)
    np.testing.assert_array_equal(given.edges, own.edges)
    np.testing.assert_array_equal(given.hub, own.hub)


@pytest.mark.parametrize("penalty", PENALTIES)
def test_coupling_gradient_holds_at_zero_coupling(penalty):
    criterion, e = make(CASES["N_i > d"], penalty, coupling=np.zeros(D))
    h = 1e-3
    f = [outer_loss(criterion, e, coupling=np.full(D, k * h)) for k in range(5)]
    one_sided = (-25 * f[0] + 48 * f[1] - 36 * f[2] + 16 * f[3] - 3 * f[4]) / (12 * h)
    assert criterion.evaluate(e, tol=1e-13).coupling.sum() == pytest.approx(one_sided, rel=1e-5)


def test_edge_gradient_holds_at_the_boundary_of_the_box():
    criterion, e = make(CASES["N_i < d"])
    e = np.where(np.arange(len(e)) % 2, e, 0.0)
    gradient = criterion.evaluate(e, tol=1e-13).edges
    for k in np.flatnonzero(e == 0):
        h, unit = 2e-4, np.eye(len(e))[k]
        f = [outer_loss(criterion, e + step * h * unit) for step in range(5)]
        one_sided = (-25 * f[0] + 48 * f[1] - 36 * f[2] + 16 * f[3] - 3 * f[4]) / (12 * h)
        assert gradient[k] == pytest.approx(one_sided, rel=1e-5, abs=1e-7 * np.abs(gradient).max())


# ---------------------------------------------------------------- the paper's formula


def laplacian_matrix(edges, weights, n):
    b = np.eye(n)[edges[:, 0]] - np.eye(n)[edges[:, 1]]
    return b.T @ (weights[:, None] * b)


def kronecker_gradient(criterion, edge_weights, strength):
    """Theorem "hyper-gradient" of the paper with its matrices formed: (I_m ⊗ Vᵀ)(Bᵀ ⊗ I_d) A⁻¹ C."""
    problem, validation = criterion.problem, criterion.validation
    n, d = problem.loss.moment.shape
    m = len(problem.edges)
    columns = [np.eye(n)[i] - np.eye(n)[j] for i, j in problem.edges]
    B = np.hstack([np.outer(b, b) for b in columns])
    A = block_diag(*problem.loss.gram) + strength * np.kron(laplacian_matrix(problem.edges, edge_weights, n), np.eye(d))
    A += problem.ridge[0, 0] * np.eye(n * d)
    V = np.linalg.solve(A, problem.loss.moment.ravel())
    C = block_diag(*validation.gram) @ V - validation.moment.ravel()
    product = np.kron(np.eye(m), V[None, :]) @ np.kron(B.T, np.eye(d))
    return -strength * product @ np.linalg.solve(A.T, C)


@pytest.mark.parametrize("case", CASES)
def test_edge_gradient_equals_the_kronecker_formula(case):
    criterion, e = make(CASES[case])
    expected = kronecker_gradient(criterion, e, 1.5)
    np.testing.assert_allclose(criterion.evaluate(e, tol=1e-13).edges, expected, rtol=1e-8, atol=1e-12)


# ---------------------------------------------------------------- frozen


@pytest.mark.parametrize("penalty", ["l2", "l1"])
@pytest.mark.parametrize("case", CASES)
def test_frozen_is_the_gradient_of_the_problem_with_lengths_held_fixed(case, penalty):
    criterion, e = make(CASES[case], penalty, hub=0.3, mode="frozen")
    problem = criterion.problem
    models = solve_inner(problem, e, tol=1e-14).coefficients
    u = models[problem.edges[:, 0]] - models[problem.edges[:, 1]]
    square = (u**2).sum(axis=1, keepdims=True) if penalty == "l2" else u**2
    fixed = np.broadcast_to(0.5 / np.sqrt(square + problem.smoothing**2), u.shape)

    def quadratic_loss(x):
        matrix = problem.system(x[:, None] * fixed).dense()
        V = np.linalg.solve(matrix, problem.loss.moment.ravel()).reshape(N, D)
        return criterion.validation.value(V)

    assert_close(criterion.evaluate(e, tol=1e-13).edges, differences(quadratic_loss, e))


@pytest.mark.parametrize("penalty", ["l2", "l1"])
def test_frozen_differs_from_exact_except_where_the_penalty_is_squared(penalty):
    for kind, differs in ((penalty, True), ("squared_l2", False)):
        criterion, e = make(CASES["N_i > d"], kind)
        exact = criterion.evaluate(e).edges
        frozen = replace(criterion, hypergradient="frozen").evaluate(e).edges
        gap = np.linalg.norm(exact - frozen) / np.linalg.norm(exact)
        assert (gap > 0.01) == differs


def test_an_unknown_mode_is_refused():
    criterion, e = make(CASES["N_i > d"], mode="implicit")
    with pytest.raises(ParameterError, match="hypergradient must be one of 'exact', 'frozen'"):
        criterion.evaluate(e)


# ---------------------------------------------------------------- solvers


def large_case(rows, penalty="squared_l2", hub=0.0):
    rng = np.random.default_rng(7)
    n = 72
    pairs = np.sort(np.column_stack([np.repeat(np.arange(n), 4), rng.integers(n, size=4 * n)]), axis=1)
    edges = np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0)
    return make((rows, edges), penalty, seed=8, hub=hub, n=n, d=10)


@pytest.mark.parametrize("hub", [0.0, 2.0])
@pytest.mark.parametrize("rows", [20, 3])
@pytest.mark.parametrize("penalty", PENALTIES)
def test_iterative_and_direct_solvers_give_the_same_gradients(penalty, rows, hub):
    criterion, e = large_case(rows, penalty, hub)
    assert isinstance(prepare(criterion.problem.system(e)), ConjugateGradient)
    results = []
    for method in ("direct", "pcg"):
        problem = replace(criterion.problem, sizes=SOLVED[method])
        solution = solve_inner(problem, e, tol=1e-12)
        slope = criterion.validation.gradient(solution.coefficients)
        results.append(hypergradient(problem, e, solution, slope, tol=1e-12))
    for name in ("edges", "coupling", "hub", "adjoint"):
        assert_close(getattr(results[1], name), getattr(results[0], name), 1e-7)


def test_large_problems_equal_the_dense_formula():
    criterion, e = large_case(20)
    problem = criterion.problem
    dense = problem.system(e).dense()
    V = np.linalg.solve(dense, problem.loss.moment.ravel()).reshape(72, 10)
    p = np.linalg.solve(dense, criterion.validation.gradient(V).ravel()).reshape(72, 10)
    i, j = problem.edges.T
    expected = -1.5 * ((V[i] - V[j]) * (p[i] - p[j])).sum(axis=1)
    assert_close(criterion.evaluate(e).edges, expected, 1e-8)


@pytest.mark.parametrize("penalty", PENALTIES)
def test_a_warm_start_gives_the_same_gradient(penalty):
    criterion, e = large_case(20, penalty)
    cold = criterion.evaluate(e, tol=1e-11)
    nearby = criterion.evaluate(0.95 * e, tol=1e-11)
    warm = criterion.evaluate(e, warm=nearby, tol=1e-11)
    assert_close(warm.edges, cold.edges, 1e-7)


# ---------------------------------------------------------------- criteria


def make_folds(penalty="squared_l2"):
    rng = np.random.default_rng(9)
    X, tasks = rng.normal(size=(120, D)), np.repeat(np.arange(N), 20)
    y = np.einsum("rd,rd->r", X, rng.normal(size=(N, D))[tasks]) + rng.normal(size=120)
    statistics = TaskStatistics.from_arrays(X, y, tasks, folds=3)
    folds = []
    for k in range(3):
        problem = InnerProblem(
            (statistics.total() - statistics.fold(k)).least_squares(),
            CONNECTED,
            np.full(D, 1.5),
            np.full(D, 0.5),
            np.full((1, 1), 0.02),
            penalty,
            0.05,
        )
        mask = np.arange(len(CONNECTED)) % 3 != k
        folds.append(HoldOut(problem, statistics.fold(k).least_squares(), mask))
    return folds, rng.uniform(0.2, 0.9, size=len(CONNECTED))


@pytest.mark.parametrize("penalty", PENALTIES)
def test_the_fold_criterion_is_the_sum_over_masked_folds(penalty):
    folds, e = make_folds(penalty)

    def total(x):
        return sum(outer_loss(fold, np.where(fold.mask, x, 0.0)) for fold in folds)

    evaluations = evaluate_folds(folds, e, tol=1e-13)
    assert sum(one.value for one in evaluations) == pytest.approx(total(e), rel=1e-10)
    assert_close(sum(one.edges for one in evaluations), differences(total, e))
    again = evaluate_folds(folds, e, warm=evaluations)
    assert_close(again[2].edges, evaluations[2].edges, 1e-8)


def test_a_masked_edge_neither_acts_nor_has_a_slope():
    folds, e = make_folds()
    fold = folds[1]
    hidden = ~fold.mask
    changed = np.where(hidden, 0.01, e)
    first, second = fold.evaluate(e), fold.evaluate(changed)
    assert not first.edges[hidden].any()
    assert first.value == second.value
    np.testing.assert_array_equal(first.edges, second.edges)


@pytest.mark.parametrize("terms", [(0.7, 0, 0), (0, 0.3, 0), (0, 0, 0.2), (0.7, 0.3, 0.2)])
def test_sparsity_gradient_matches_central_differences(terms):
    sparsity = Sparsity(*terms)
    e = np.random.default_rng(10).uniform(0.1, 1.0, size=5)
    _, gradient = sparsity.value_and_gradient(e)
    assert_close(gradient, differences(lambda x: sparsity.value_and_gradient(x)[0], e), 1e-8)


def test_sparsity_terms_have_their_values():
    e = np.array([0.5, 1.0])
    assert Sparsity(edge_l2=2.0).value_and_gradient(e)[0] == pytest.approx(1.25)
    assert Sparsity(edge_l1=2.0).value_and_gradient(e)[0] == pytest.approx(3.0)
    entropy = -(0.5 * np.log(0.5) - 0.5) + 1.0
    assert Sparsity(edge_entropy=2.0).value_and_gradient(e)[0] == pytest.approx(2 * entropy)
    for bad in (-1.0, np.nan, np.inf):
        with pytest.raises(ParameterError, match="edge_l1 must be finite and not negative"):
            Sparsity(edge_l1=bad)


def statistics_pair(seed=11):
    rng = np.random.default_rng(seed)
    X, tasks = rng.normal(size=(90, 3)), np.repeat(["a", "b", "c"], 30)
    y = X @ [1.0, -1.0, 2.0] + rng.normal(size=90)
    statistics = TaskStatistics.from_arrays(X, y, tasks, folds=2)
    return statistics.fold(0), statistics.fold(1)


@pytest.mark.parametrize("penalty", PENALTIES)
def test_bilevel_problem_gradient_matches_central_differences(penalty):
    problem = BilevelProblem(
        *statistics_pair(),
        [[0, 1], [1, 2], [0, 2]],
        2.0,
        penalty=penalty,
        edge_l2=0.3,
        edge_l1=0.2,
        edge_entropy=0.1,
        hub_strength=0.4,
        smoothing=0.05,
        tol=1e-13,
    )
    e = np.array([0.3, 0.8, 0.5])
    value, gradient = problem.value_and_gradient(e)
    assert np.isscalar(value)
    assert_close(gradient, differences(lambda x: problem.value_and_gradient(x)[0], e))
    np.testing.assert_array_equal(problem.solve(e), problem.evaluate(e).coefficients)


def test_bilevel_problem_refuses_what_does_not_fit():
    train, validation = statistics_pair()
    with pytest.raises(InputError, match="same tasks"):
        BilevelProblem(train, validation.take(np.array([0, 1])), [[0, 1]], 1.0)
    for edges in ([[0, 3]], [[1, 1]], [[-1, 0]]):
        with pytest.raises(InputError, match="two different positions in 0 … 2"):
            BilevelProblem(train, validation, edges, 1.0)
    for coupling in (-1.0, np.inf, [1.0, 2.0]):
        with pytest.raises(ParameterError, match="coupling must be"):
            BilevelProblem(train, validation, [[0, 1]], coupling)
    problem = BilevelProblem(train, validation, [[0, 1]], 1.0)
    for e in ([0.5, 0.5], [-0.1], [np.nan]):
        with pytest.raises(InputError):
            problem.value_and_gradient(np.array(e))
