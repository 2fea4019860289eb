"""The inner problem: limits known in closed form, and independent minimisers of the same objective."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from scipy.linalg import block_diag
from scipy.optimize import minimize
from sklearn.linear_model import Ridge

from ggmtl.bilevel.inner import InnerProblem, solve_inner
from ggmtl.errors import ParameterError, SingularSystemError
from ggmtl.statistics.task_statistics import TaskStatistics
from made import SOLVED

ROBUST = ("l2", "l1")
EDGES = np.array([[0, 1], [1, 2], [0, 2], [2, 3], [4, 5], [5, 6]])  # task 7 stands alone
N, D = 8, 3


@dataclass(frozen=True)
class Rows:
    X: list
    y: list

    @property
    def statistics(self):
        tasks = np.repeat(np.arange(len(self.X)), [len(y) for y in self.y])
        return TaskStatistics.from_arrays(np.concatenate(self.X), np.concatenate(self.y), tasks)


def make_rows(seed=0, n=N, d=D, rows=10):
    rng = np.random.default_rng(seed)
    centre = rng.normal(size=d)
    X = [rng.normal(size=(rows, d)) for _ in range(n)]
    return Rows(X, [A @ (centre + 0.5 * rng.normal(size=d)) + 0.3 * rng.normal(size=rows) for A in X])


def make_problem(rows, *, edges=EDGES, coupling=1.0, hub=0.0, ridge=1e-3, penalty="squared_l2", smoothing=1e-2):
    loss = rows.statistics.least_squares()
    d = loss.n_features
    return InnerProblem(
        loss,
        edges,
        np.broadcast_to(np.asarray(coupling, dtype=float), (d,)).copy(),
        np.broadcast_to(np.asarray(hub, dtype=float), (d,)).copy(),
        np.full((1, 1), ridge),
        penalty,
        smoothing,
    )


def edge_values(seed=1):
    return np.random.default_rng(seed).uniform(0.1, 1.0, size=len(EDGES))


def objective_of_rows(flat, rows, problem, values):
    """Value and gradient of the inner problem, from the rows and the formulas of the module's docstring."""
    W = flat.reshape(len(rows.X), -1)
    residual = [X @ w - y for X, w, y in zip(rows.X, W, rows.y)]
    value = 0.5 * sum(r @ r for r in residual)
    slope = np.stack([X.T @ r for X, r in zip(rows.X, residual)])
    value += 0.5 * problem.ridge[0, 0] * (W**2).sum()
    slope = slope + problem.ridge[0, 0] * W
    deviation = W - W.mean(axis=0)
    value += 0.5 * (problem.hub * deviation**2).sum()
    slope = slope + problem.hub * deviation
    strength = problem.coupling
    for (i, j), e in zip(problem.edges, values):
        u = W[i] - W[j]
        if problem.penalty == "squared_l2":
            value += 0.5 * e * (strength * u**2).sum()
            pull = e * strength * u
        elif problem.penalty == "l2":
            s = np.sqrt(u @ u + problem.smoothing**2)
            value += 0.5 * strength[0] * e * s
            pull = 0.5 * strength[0] * e * u / s
        else:
            s = np.sqrt(u**2 + problem.smoothing**2)
            value += 0.5 * strength[0] * e * s.sum()
            pull = 0.5 * strength[0] * e * u / s
        slope[i] += pull
        slope[j] -= pull
    return value, slope.ravel()


# ---------------------------------------------------------------- limits


@pytest.mark.parametrize("penalty", ["squared_l2", "l2", "l1"])
def test_empty_graph_is_independent_ridge(penalty):
    rows = make_rows()
    for problem, values in (
        (make_problem(rows, edges=np.zeros((0, 2), dtype=int), ridge=0.7, penalty=penalty), np.zeros(0)),
        (make_problem(rows, ridge=0.7, penalty=penalty), np.zeros(len(EDGES))),
    ):
        models = solve_inner(problem, values).coefficients
        for X, y, model in zip(rows.X, rows.y, models):
            expected = Ridge(alpha=0.7, fit_intercept=False, solver="cholesky").fit(X, y).coef_
            np.testing.assert_allclose(model, expected, rtol=1e-9)


@pytest.mark.parametrize(("penalty", "strength"), [("squared_l2", 1e9), ("l2", 1e5), ("l1", 1e5)])
def test_infinite_coupling_pools_connected_tasks(penalty, strength):
    rows = make_rows()
    problem = make_problem(rows, coupling=strength, ridge=0.0, penalty=penalty)
    models = solve_inner(problem, np.ones(len(EDGES))).coefficients
    for component in ([0, 1, 2, 3], [4, 5, 6], [7]):
        X, y = (np.concatenate([part[i] for i in component]) for part in (rows.X, rows.y))
        pooled = np.linalg.lstsq(X, y, rcond=None)[0]
        # What is left is of order 1/strength, times ε for the penalties that are not squared.
        np.testing.assert_allclose(models[component], np.tile(pooled, (len(component), 1)), atol=1e-5)


def test_an_infinite_hub_pools_all_tasks():
    rows = make_rows()
    problem = make_problem(rows, hub=1e9, ridge=0.0)
    models = solve_inner(problem, edge_values()).coefficients
    pooled = np.linalg.lstsq(np.concatenate(rows.X), np.concatenate(rows.y), rcond=None)[0]
    np.testing.assert_allclose(models, np.tile(pooled, (N, 1)), atol=1e-6)


def test_a_hub_without_edges_shrinks_towards_the_mean():
    rows = make_rows()
    weak, strong = (solve_inner(make_problem(rows, hub=h), np.zeros(len(EDGES))).coefficients for h in (0.1, 100.0))
    assert np.ptp(strong, axis=0).max() < 0.3 * np.ptp(weak, axis=0).max()


@pytest.mark.parametrize("penalty", ["squared_l2", "l2", "l1"])
def test_a_hub_is_a_task_without_rows_joined_to_all(penalty):
    rows, values = make_rows(), edge_values()
    hub = np.array([0.5, 3.0, 20.0]) if penalty == "squared_l2" else np.full(3, 3.0)
    problem = make_problem(rows, hub=hub, penalty=penalty, coupling=2.0, ridge=1e-3)
    models = solve_inner(problem, values, tol=1e-12).coefficients
    # The same with the hub as a ninth node: its spokes weigh h, its gram matrix is zero.
    prepared = problem.majoriser(models, values).dense()
    spokes = np.zeros((N + 1, N + 1, D, D))
    for i in range(N):
        for a, b, sign in ((i, i, 1), (N, N, 1), (i, N, -1), (N, i, -1)):
            spokes[a, b] += sign * np.diag(hub)
    without_hub = prepared - np.kron(np.eye(N) - np.ones((N, N)) / N, np.diag(hub))
    explicit = spokes.transpose(0, 2, 1, 3).reshape((N + 1) * D, (N + 1) * D)
    explicit[: N * D, : N * D] += without_hub
    right = np.append(problem.loss.moment.ravel(), np.zeros(D))
    solution = np.linalg.solve(explicit, right).reshape(N + 1, D)
    np.testing.assert_allclose(models, solution[:N], atol=1e-8)
    np.testing.assert_allclose(models.mean(axis=0), solution[N], atol=1e-8)


# ---------------------------------------------------------------- squared penalty


@pytest.mark.parametrize("method", ["direct", "pcg"])
@pytest.mark.parametrize("rows_per_task", [10, 2])
@pytest.mark.parametrize("coupling", [0.01, 3.0, [0.1, 1.0, 100.0]])
def test_the_squared_penalty_is_one_kronecker_solve(coupling, rows_per_task, method):
    rows, values = make_rows(rows=rows_per_task), edge_values()
    problem = make_problem(rows, coupling=coupling)
    L = np.zeros((N, N))
    for (i, j), e in zip(EDGES, values):
        b = np.eye(N)[i] - np.eye(N)[j]
        L += e * np.outer(b, b)
    A = block_diag(*[X.T @ X for X in rows.X]) + np.kron(L, np.diag(problem.coupling)) + 1e-3 * np.eye(N * D)
    expected = np.linalg.solve(A, np.concatenate([X.T @ y for X, y in zip(rows.X, rows.y)])).reshape(N, D)
    solution = solve_inner(replace(problem, sizes=SOLVED[method]), values, tol=1e-13)
    np.testing.assert_allclose(solution.coefficients, expected, rtol=1e-7, atol=1e-9)
    assert solution.residual < 1e-11


def test_models_that_the_data_do_not_determine_are_refused():
    with pytest.raises(SingularSystemError, match="position 7"):
        solve_inner(make_problem(make_rows(rows=2), ridge=0.0), np.ones(len(EDGES)))


# ---------------------------------------------------------------- ℓ2 and ℓ1


@pytest.mark.parametrize("penalty", ["squared_l2", *ROBUST])
def test_objective_and_gradient_are_those_of_the_rows(penalty):
    rows, values = make_rows(), edge_values()
    problem = make_problem(rows, penalty=penalty, hub=0.4, coupling=2.0)
    W = np.random.default_rng(2).normal(size=(N, D))
    value, slope = objective_of_rows(W.ravel(), rows, problem, values)
    assert problem.objective(W, values) == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(problem.gradient(W, values).ravel(), slope, atol=1e-10)


@pytest.mark.parametrize("penalty", ROBUST)
def test_the_hessian_is_the_derivative_of_the_gradient(penalty):
    rows, values = make_rows(), edge_values()
    problem = make_problem(rows, penalty=penalty, hub=0.4, coupling=2.0, smoothing=0.3)
    W = np.random.default_rng(3).normal(size=(N, D))
    step = 1e-5
    columns = [
        (problem.gradient(W + step * unit, values) - problem.gradient(W - step * unit, values)).ravel() / (2 * step)
        for unit in np.eye(N * D).reshape(-1, N, D)
    ]
    np.testing.assert_allclose(problem.hessian(W, values).dense(), np.array(columns).T, atol=1e-7)


@pytest.mark.parametrize("rows_per_task", [10, 2])
@pytest.mark.parametrize("strength", [0.1, 2.0, 30.0])
@pytest.mark.parametrize("penalty", ROBUST)
def test_the_robust_penalties_reach_the_minimum_that_scipy_finds(penalty, strength, rows_per_task):
    rows, values = make_rows(rows=rows_per_task), edge_values()
    problem = make_problem(rows, penalty=penalty, coupling=strength, hub=0.2, ridge=0.05)
    solution = solve_inner(problem, values, tol=1e-11)
    mine, slope = objective_of_rows(solution.coefficients.ravel(), rows, problem, values)
    assert np.linalg.norm(slope) < 1e-10 * np.linalg.norm(problem.loss.moment)
    other = minimize(
        objective_of_rows,
        np.zeros(N * D),
        args=(rows, problem, values),
        jac=True,
        method="BFGS",
        options={"gtol": 1e-8, "maxiter": 5000},
    )
    assert mine <= other.fun + 1e-10 * abs(other.fun)
    np.testing.assert_allclose(solution.coefficients.ravel(), other.x, atol=1e-5)


@dataclass(frozen=True)
class Recording(InnerProblem):
    """Remembers the objective wherever the Hessian is asked for: once per step, at the point reached."""

    values: list = field(default_factory=list)

    def hessian(self, coefficients, edge_values):
        self.values.append(self.objective(coefficients, edge_values))
        return super().hessian(coefficients, edge_values)


@pytest.mark.parametrize("smoothing", [1e-1, 1e-3, 1e-5])
@pytest.mark.parametrize("penalty", ROBUST)
def test_every_step_lowers_the_objective(penalty, smoothing):
    plain = make_problem(make_rows(), penalty=penalty, coupling=10.0, smoothing=smoothing)
    problem = Recording(**{name: getattr(plain, name) for name in InnerProblem.__dataclass_fields__})
    solution = solve_inner(problem, edge_values())
    assert solution.residual < 1e-6
    assert len(problem.values) == solution.iterations > 2
    assert (np.diff(problem.values) <= 1e-12 * abs(problem.values[0])).all()


@pytest.mark.parametrize("penalty", ROBUST)
def test_majorise_minimise_alone_lowers_the_objective(penalty):
    rows, values = make_rows(), edge_values()
    problem = make_problem(rows, penalty=penalty, coupling=5.0)
    W = np.zeros((N, D))
    objective = [problem.objective(W, values)]
    for _ in range(30):
        system = problem.majoriser(W, values)
        W = np.linalg.solve(system.dense(), problem.loss.moment.ravel()).reshape(N, D)
        objective.append(problem.objective(W, values))
    assert (np.diff(objective) <= 1e-12).all()
    assert objective[-1] == pytest.approx(
        problem.objective(solve_inner(problem, values).coefficients, values), rel=1e-4
    )


@pytest.mark.parametrize("penalty", ROBUST)
def test_smoothing_shifts_the_minimum_by_no_more_than_its_size(penalty):
    rows, values = make_rows(), edge_values()
    minima = []
    sizes = (1e-1, 1e-2, 1e-3, 1e-4)
    for smoothing in sizes:
        problem = make_problem(rows, penalty=penalty, coupling=5.0, smoothing=smoothing)
        minima.append(problem.objective(solve_inner(problem, values).coefficients, values))
    assert (np.diff(minima) < 0).all()
    # √(u² + ε²) − |u| ≤ ε for every edge (and coordinate).
    terms = values.sum() * (D if penalty == "l1" else 1)
    for k in range(3):
        assert minima[k] - minima[k + 1] <= 0.5 * 5.0 * terms * sizes[k]


@pytest.mark.parametrize("penalty", ROBUST)
def test_fused_tasks_have_finite_forces(penalty):
    rows = make_rows()
    twin = Rows([rows.X[0], rows.X[0], *rows.X[2:]], [rows.y[0], rows.y[0], *rows.y[2:]])
    problem = make_problem(twin, edges=np.array([[0, 1]]), penalty=penalty, coupling=5.0)
    solution = solve_inner(problem, np.ones(1))
    np.testing.assert_allclose(solution.coefficients[0], solution.coefficients[1], atol=1e-12)
    assert np.isfinite(solution.force).all()


def test_l1_fuses_coordinates_and_l2_whole_models():
    rng = np.random.default_rng(4)
    X = [rng.normal(size=(200, 3)) for _ in range(2)]
    truth = [np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 5.0])]
    rows = Rows(X, [A @ w + 0.1 * rng.normal(size=200) for A, w in zip(X, truth)])
    edges, values = np.array([[0, 1]]), np.ones(1)
    gaps = {}
    for penalty in ROBUST:
        problem = make_problem(rows, edges=edges, penalty=penalty, coupling=40.0, smoothing=1e-4)
        models = solve_inner(problem, values).coefficients
        gaps[penalty] = np.abs(models[0] - models[1])
    assert gaps["l1"][:2].max() < 1e-3
    assert gaps["l1"][2] > 1.0
    assert gaps["l2"][:2].max() > gaps["l1"][:2].max()


@pytest.mark.parametrize("penalty", ROBUST)
def test_a_warm_start_at_the_solution_takes_no_step(penalty):
    problem, values = make_problem(make_rows(), penalty=penalty), edge_values()
    cold = solve_inner(problem, values, tol=1e-9)
    warm = solve_inner(problem, values, cold.coefficients, tol=1e-8)
    assert warm.iterations == 0
    np.testing.assert_array_equal(warm.coefficients, cold.coefficients)


@pytest.mark.parametrize("penalty", ROBUST)
def test_iterative_and_direct_solvers_agree(penalty):
    problem, values = make_problem(make_rows(), penalty=penalty, coupling=3.0, hub=0.5), edge_values()
    direct, iterative = (solve_inner(replace(problem, sizes=SOLVED[m]), values).coefficients for m in ("direct", "pcg"))
    np.testing.assert_allclose(iterative, direct, atol=1e-7)


# ---------------------------------------------------------------- invariances


@pytest.mark.parametrize("penalty", ["squared_l2", *ROBUST])
def test_relabelling_tasks_changes_nothing(penalty):
    rows, values = make_rows(), edge_values()
    order = np.random.default_rng(5).permutation(N)
    position = np.argsort(order)
    shuffled = Rows([rows.X[i] for i in order], [rows.y[i] for i in order])
    models = solve_inner(make_problem(rows, penalty=penalty, hub=0.3), values, tol=1e-11).coefficients
    other = make_problem(shuffled, edges=position[EDGES][:, ::-1], penalty=penalty, hub=0.3)
    np.testing.assert_allclose(solve_inner(other, values, tol=1e-11).coefficients, models[order], atol=1e-8)


@pytest.mark.parametrize("penalty", ["squared_l2", *ROBUST])
def test_permuting_rows_changes_nothing(penalty):
    rows, values = make_rows(), edge_values()
    orders = [np.random.default_rng(i).permutation(len(y)) for i, y in enumerate(rows.y)]
    shuffled = Rows([X[o] for X, o in zip(rows.X, orders)], [y[o] for y, o in zip(rows.y, orders)])
    first, second = (
        solve_inner(make_problem(r, penalty=penalty), values, tol=1e-11).coefficients for r in (rows, shuffled)
    )
    np.testing.assert_allclose(second, first, atol=1e-8)


def test_parameters_that_do_not_fit_are_refused():
    with pytest.raises(ParameterError, match="penalty must be one of"):
        make_problem(make_rows(), penalty="huber")
    with pytest.raises(ParameterError, match=r'Per-feature coupling needs penalty="squared_l2"'):
        make_problem(make_rows(), coupling=[1.0, 2.0, 3.0], penalty="l2")
