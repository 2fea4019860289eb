"""The competitors: each against an independent solution of its problem, and on tasks that form clusters."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy import optimize, stats
from sklearn.covariance import graphical_lasso
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from ggmtl.baselines import (
    BMSLRegressor,
    CCMTLRegressor,
    HubRegressor,
    IndependentRegressor,
    MSSLRegressor,
    MTRLRegressor,
    PooledRegressor,
)
from ggmtl.baselines._gibbs import (
    GibbsState,
    LassoRelation,
    WishartRelation,
    draw_inverse_gaussian,
    draw_noise,
    draw_wishart,
    run_chain,
    sweep,
)
from ggmtl.baselines._shared import (
    CentredLoss,
    apply_coupled,
    centre,
    covariance_to_graph,
    partial_correlation,
    select_by_paths,
    solve_coupled,
    sparse_precision,
)
from ggmtl.baselines.bmsl import effective_sample_size, split_r_hat
from ggmtl.baselines.mssl import learn_structure
from ggmtl.baselines.mtrl import learn_relationship
from ggmtl.errors import InputError, ParameterError
from ggmtl.statistics.least_squares import FoldedLoss, LeastSquares
from ggmtl.statistics.task_statistics import TaskStatistics


def random_rows(n=4, d=3, rows=6, seed=0, noise=0.5):
    rng = np.random.default_rng(seed)
    tasks = np.repeat(np.arange(n), rows)
    X = rng.normal(size=(n * rows, d)) + rng.normal(size=(n, d))[tasks]
    models = rng.normal(size=(n, d))
    y = np.einsum("rd,rd->r", X, models[tasks]) + tasks + noise * rng.normal(size=n * rows)
    return X, y, tasks


def centred_rows(**options) -> CentredLoss:
    X, y, tasks = random_rows(**options)
    return centre(TaskStatistics.from_arrays(X, y, tasks).least_squares(intercept=True), True)


def cluster_rows(n=50, clusters=5, d=10, rows=15, test_rows=60, seed=0):
    rng = np.random.default_rng(seed)
    label = np.arange(n) % clusters
    models = rng.normal(size=(clusters, d))[label] + 0.1 * rng.normal(size=(n, d))

    def draw(count):
        X = rng.normal(size=(n, count, d))
        y = np.einsum("nrd,nd->nr", X, models) + rng.normal(size=(n, count))
        return X.reshape(-1, d), y.ravel(), np.repeat(np.arange(n), count)

    return draw(rows), draw(test_rows), label


def task_mean_rmse(model, X, y, tasks):
    square = (model.predict(X, tasks=tasks) - y) ** 2
    return float(np.sqrt(np.bincount(tasks, square) / np.bincount(tasks)).mean())


# ---------------------------------------------------------------------- independent and pooled


def test_independent_models_are_ridge_regressions():
    X, y, tasks = random_rows()
    model = IndependentRegressor(ridge=2.0, standardize=False).fit(X, y, tasks=tasks)
    for i in range(4):
        one = Ridge(alpha=2.0).fit(X[tasks == i], y[tasks == i])
        np.testing.assert_allclose(model.coef_[i], one.coef_, atol=1e-10)
        np.testing.assert_allclose(model.intercept_[i], one.intercept_, atol=1e-10)


def test_standardising_is_a_ridge_on_scaled_columns():
    X, y, tasks = random_rows()
    scaled = StandardScaler().fit_transform(X)
    model = IndependentRegressor(ridge=2.0).fit(X, y, tasks=tasks)
    one = Ridge(alpha=2.0).fit(scaled[tasks == 1], y[tasks == 1])
    np.testing.assert_allclose(model.predict(X, tasks=tasks)[tasks == 1], one.predict(scaled[tasks == 1]), atol=1e-9)


def test_zero_ridge_is_minimum_norm_least_squares_even_with_one_row():
    X, y, tasks = random_rows(d=5, rows=3)
    X, y, tasks = X[2:], y[2:], tasks[2:]
    model = IndependentRegressor(ridge=0.0, standardize=False).fit(X, y, tasks=tasks)
    for i in range(4):
        one = LinearRegression().fit(X[tasks == i], y[tasks == i])
        np.testing.assert_allclose(model.coef_[i], one.coef_, atol=1e-8)
        np.testing.assert_allclose(model.intercept_[i], one.intercept_, atol=1e-8)


@pytest.mark.filterwarnings("ignore::ggmtl.errors.UnseenTaskWarning")
def test_pooled_model_is_one_ridge_regression_and_serves_unseen_tasks():
    X, y, tasks = random_rows()
    model = PooledRegressor(ridge=3.0, standardize=False, unseen="hub").fit(X, y, tasks=tasks)
    one = Ridge(alpha=3.0).fit(X, y)
    np.testing.assert_allclose(model.coef_, np.tile(one.coef_, (4, 1)), atol=1e-10)
    np.testing.assert_allclose(model.hub_coef_, one.coef_, atol=1e-10)
    np.testing.assert_allclose(model.predict(X, tasks=np.full(len(y), 99)), one.predict(X), atol=1e-9)
    with pytest.raises(InputError, match="no shared model"):
        IndependentRegressor(unseen="hub").fit(X, y, tasks=tasks).predict(X, tasks=tasks + 50)


def test_ridge_chosen_from_fold_statistics_equals_refitting_on_rows():
    X, y, tasks = random_rows(n=3, rows=12, noise=2.0)
    folds = np.random.default_rng(1).permutation(np.arange(36) % 4)
    grid = [100.0, 10.0, 1.0, 0.1]
    statistics = TaskStatistics.from_arrays(X, y, tasks, folds=folds)
    losses = [statistics.fold(k).least_squares(intercept=True) for k in range(4)]

    def fit(loss, ridge):
        return np.linalg.solve(loss.gram + ridge * np.diag([1.0, 1, 1, 0]), loss.moment[..., None])[..., 0]

    best, errors = select_by_paths(
        FoldedLoss(tuple(losses)), grid, lambda loss, path: (fit(loss, ridge) for ridge in path)
    )
    expected = np.zeros(4)
    for position, ridge in enumerate(grid):
        for k in range(4):
            for i in range(3):
                train, test = (tasks == i) & (folds != k), (tasks == i) & (folds == k)
                one = Ridge(alpha=ridge).fit(X[train], y[train])
                expected[position] += ((one.predict(X[test]) - y[test]) ** 2).sum() / 36
    np.testing.assert_allclose(errors, expected, rtol=1e-8)
    assert best == grid[int(expected.argmin())]


def test_equal_errors_choose_the_stronger_penalty():
    zero = LeastSquares(np.zeros((2, 1, 1)), np.zeros((2, 1)), np.ones(2), np.ones(2))
    best, _ = select_by_paths(FoldedLoss((zero, zero)), [5.0, 1.0, 0.1], lambda loss, path: np.zeros((3, 2, 1)))
    assert best == 5.0


@pytest.mark.parametrize("kind", [IndependentRegressor, PooledRegressor])
def test_ridge_without_folds_is_chosen_by_evidence(kind):
    X, y, tasks = random_rows(n=5, d=4, rows=10, noise=1.0)
    model = kind().fit_statistics(TaskStatistics.from_arrays(X, y, tasks))
    assert model.validation_error_ is None
    assert 0 < model.ridge_ < 1e3


@pytest.mark.parametrize("kind", [IndependentRegressor, PooledRegressor, MTRLRegressor])
def test_choices_do_not_change_with_units(kind):
    X, y, tasks = random_rows(n=4, d=2, rows=10, noise=1.0)
    one = kind().fit(X, y, tasks=tasks)
    other = kind().fit(X * [1000.0, 0.01], 50.0 * y + 7.0, tasks=tasks)
    np.testing.assert_allclose(other.strength_, one.strength_, rtol=1e-6)
    predictions = 50.0 * one.predict(X, tasks=tasks) + 7.0
    np.testing.assert_allclose(other.predict(X * [1000.0, 0.01], tasks=tasks), predictions, rtol=1e-4)


@pytest.mark.parametrize(
    "kind",
    [IndependentRegressor, PooledRegressor, HubRegressor, CCMTLRegressor, MTRLRegressor, MSSLRegressor],
)
def test_scikit_learn_conventions(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_estimator(kind())


def test_scikit_learn_conventions_of_the_sampler():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_estimator(BMSLRegressor(n_warmup=10, n_samples=20, random_state=0))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (IndependentRegressor(ridge=-1.0), "ridge must be"),
        (MTRLRegressor(strength="strong"), "strength must be"),
        (MSSLRegressor(sparsity=0.0), "sparsity must be above 0"),
        (BMSLRegressor(relation="tree"), "relation must be"),
        (BMSLRegressor(degrees=1.0), "degrees must be above"),
        (BMSLRegressor(n_chains=1), "n_chains must be"),
        (MTRLRegressor(validation=None), "validation=5"),
    ],
)
def test_refused_parameters_are_named(model, words):
    X, y, tasks = random_rows()
    with pytest.raises(ParameterError, match=words):
        model.fit(X, y, tasks=tasks)


# ---------------------------------------------------------------------- relationship learning


def test_coupled_system_is_solved_directly_and_by_conjugate_gradients(monkeypatch):
    rng = np.random.default_rng(0)
    root, other = rng.normal(size=(7, 3, 3)), rng.normal(size=(7, 9))
    blocks, coupling = root @ np.swapaxes(root, 1, 2), other @ other.T
    moments = rng.normal(size=(7, 3))
    dense = np.kron(coupling, np.eye(3))
    for i in range(7):
        dense[3 * i : 3 * i + 3, 3 * i : 3 * i + 3] += blocks[i]
    expected = np.linalg.solve(dense, moments.ravel()).reshape(7, 3)
    np.testing.assert_allclose(apply_coupled(blocks, coupling, expected), moments, atol=1e-9)
    np.testing.assert_allclose(solve_coupled(blocks, coupling, moments), expected, rtol=1e-8)
    monkeypatch.setattr("ggmtl.baselines._shared._DIRECT", 0)
    np.testing.assert_allclose(solve_coupled(blocks, coupling, moments, tol=1e-12), expected, rtol=1e-7)


def test_relationship_learning_reaches_the_minimum_of_the_joint_problem():
    X, y, tasks = random_rows(n=3, d=2, rows=5)
    loss = centre(TaskStatistics.from_arrays(X, y, tasks).least_squares(intercept=True), True)
    strength, ridge, smoothing = 0.3, 0.05, 1e-2

    def joint(v):
        """Over W, b and a factor of Ω, from the rows."""
        W, b, factor = v[:6].reshape(3, 2), v[6:9], v[9:].reshape(3, 3)
        omega = factor @ factor.T
        omega /= np.trace(omega)
        error = sum(((y[tasks == i] - X[tasks == i] @ W[i] - b[i]) ** 2).mean() for i in range(3))
        inner = W @ W.T + smoothing * np.eye(3)
        return error + ridge / 2 * (W**2).sum() + strength / 2 * np.trace(np.linalg.solve(omega, inner))

    start = np.r_[np.zeros(9), np.eye(3).ravel()]
    best = optimize.minimize(joint, start, method="BFGS", options={"gtol": 1e-7, "maxiter": 5000})
    fit = learn_relationship(loss, strength, ridge, smoothing, tol=1e-14, max_iter=5000)
    assert fit.history[-1] == pytest.approx(best.fun, rel=1e-6)
    np.testing.assert_allclose(fit.slopes, best.x[:6].reshape(3, 2), atol=2e-3)
    np.testing.assert_allclose(loss.with_intercepts(fit.slopes)[:, -1], best.x[6:9], atol=5e-3)


def test_relationship_objective_never_rises_and_covariance_has_trace_one():
    fit = learn_relationship(centred_rows(n=30, d=20, rows=10), 0.1, 0.01)
    assert (np.diff(fit.history) <= 1e-9 * fit.history[0]).all()
    assert np.trace(fit.relation) == pytest.approx(1.0)
    assert np.linalg.eigvalsh(fit.relation)[0] > 0


# ---------------------------------------------------------------------- structure learning


def precision_objective(omega, S, alpha):
    return np.vdot(S, omega) - np.linalg.slogdet(omega)[1] + alpha * np.abs(omega).sum()


@pytest.fixture
def covariance():
    rng = np.random.default_rng(2)
    W = rng.normal(size=(20, 2)) @ rng.normal(size=(2, 8)) + rng.normal(size=(20, 8))
    return W.T @ W / 20


def test_precision_step_equals_graphical_lasso_on_the_shifted_covariance(covariance):
    alpha = 0.3
    ours = sparse_precision(covariance, alpha, tol=1e-10, max_iter=2000)
    _, theirs = graphical_lasso(covariance + alpha * np.eye(8), alpha, tol=1e-10, enet_tol=1e-12, max_iter=1000)
    np.testing.assert_allclose(ours.precision, theirs, atol=1e-4)
    assert ours.gap < 1e-8
    np.testing.assert_array_equal(ours.precision == 0, np.abs(theirs) < 1e-9)


def test_precision_step_reaches_what_a_generic_solver_finds(covariance):
    S, alpha = covariance[:4, :4], 0.2

    def value(v):
        """Over ln of the diagonal and two non-negative halves of the rest, so that the problem is smooth."""
        omega = np.diag(np.exp(v[:4]))
        upper = np.triu_indices(4, 1)
        omega[upper] = v[4:10] - v[10:]
        omega = omega + np.triu(omega, 1).T
        log_determinant = np.linalg.slogdet(omega)[1]
        if np.linalg.eigvalsh(omega)[0] <= 0:
            return 1e10
        return np.vdot(S, omega) - log_determinant + alpha * (np.trace(omega) + 2 * v[4:].sum())

    bounds = [(None, None)] * 4 + [(0, None)] * 12
    best = optimize.minimize(value, np.r_[np.zeros(4), np.full(12, 0.01)], bounds=bounds, method="L-BFGS-B", tol=1e-13)
    ours = sparse_precision(S, alpha, tol=1e-10, max_iter=2000)
    assert precision_objective(ours.precision, S, alpha) == pytest.approx(best.fun, abs=1e-5)


def test_precision_step_survives_a_covariance_of_low_rank():
    W = np.random.default_rng(0).normal(size=(3, 30))
    S = W.T @ W / 3
    start = np.eye(30)
    values = [precision_objective(start, S, 0.02)]
    for _ in range(10):
        start = sparse_precision(S, 0.02, start, max_iter=10).precision
        values.append(precision_objective(start, S, 0.02))
    assert (np.diff(values) <= 1e-9).all()
    assert np.linalg.eigvalsh(start)[0] > 0


def test_without_a_penalised_diagonal_the_joint_problem_has_no_minimum():
    loss = centred_rows(n=3, d=2, rows=5)
    target = loss.averaged().target_square
    d, strength, sparsity = 2, 0.1, 0.01

    def joint(scale, penalise_diagonal):
        """At W = 0 and Ω = scale · I."""
        omega = scale * np.eye(3)
        off = np.abs(omega - np.diag(np.diag(omega))).sum()
        norm = off + (np.trace(omega) if penalise_diagonal else 0.0)
        return target.sum() - strength / 2 * d * np.linalg.slogdet(omega)[1] + sparsity * norm

    free = [joint(10.0**k, False) for k in range(0, 100, 10)]
    held = [joint(10.0**k, True) for k in range(0, 100, 10)]
    np.testing.assert_allclose(np.diff(free), -strength / 2 * d * 3 * np.log(1e10))
    assert held[-1] > 1e80


def test_structure_learning_is_stationary_and_its_objective_never_rises():
    loss = centred_rows(n=6, d=4, rows=9)
    strength, sparsity = 0.2, 0.02
    fit = learn_structure(loss, strength, sparsity, max_iter=3000, tol=1e-12, inner_steps=300)
    assert (np.diff(fit.history) <= 1e-10).all()
    mean = loss.averaged()
    fitted = np.matmul(mean.gram, fit.slopes[..., None])[..., 0]
    gradient = 2 * (fitted - mean.moment) + strength * fit.relation @ fit.slopes
    np.testing.assert_allclose(gradient, 0, atol=1e-6)
    alpha = 2 * sparsity / (strength * 4)
    again = sparse_precision(fit.slopes @ fit.slopes.T / 4, alpha, tol=1e-11, max_iter=3000)
    np.testing.assert_allclose(fit.relation, again.precision, rtol=1e-2, atol=1e-3)


# ---------------------------------------------------------------------- the sampler


def test_wishart_draws_have_the_right_mean_and_spread():
    rng = np.random.default_rng(0)
    B = np.array([[2.0, 0.5], [0.5, 1.0]])
    draws = np.array([draw_wishart(5.0, B, rng) for _ in range(4000)])
    expected = stats.wishart(5.0, np.linalg.inv(B))
    np.testing.assert_allclose(draws.mean(axis=0), expected.mean(), atol=0.15)
    np.testing.assert_allclose(draws.var(axis=0), expected.var(), rtol=0.15)


@pytest.mark.parametrize("mean", [0.1, 1.0, 30.0, 1e10])
def test_inverse_gaussian_draws_have_their_distribution(mean):
    draws = draw_inverse_gaussian(np.full(4000, mean), 2.0, np.random.default_rng(1))
    assert (draws > 0).all()
    # For a mean without bound, the inverse Gaussian is Lévy's distribution.
    known = stats.levy(scale=2.0) if mean > 1e6 else stats.invgauss(mean / 2.0, scale=2.0)
    assert stats.kstest(draws, known.cdf).pvalue > 0.01


def test_with_the_relation_held_fixed_the_posterior_mean_is_a_coupled_ridge():
    loss = centred_rows(n=3, d=2, rows=20, noise=1.0)
    # So many degrees of freedom that Φ cannot leave the mean of its prior, 4 I; and noise known just as well.
    degrees = 1e8
    relation = WishartRelation.start(3, degrees, degrees / 4.0)
    state = GibbsState(np.zeros((3, 2)), np.ones(2), np.ones(3), 0.5, relation)
    draws = run_chain(state, loss, (1e8, 1e8), 20, 3000, np.random.default_rng(0))
    expected = np.linalg.solve(loss.gram + 4.0 * np.eye(2), loss.moment[..., None])[..., 0]
    np.testing.assert_allclose(draws.slopes, expected, atol=0.02)
    np.testing.assert_allclose(draws.selected, 1.0)


def test_alternating_data_and_sweeps_leaves_the_prior_alone():
    """Geweke's joint test: drawing y given the state and the state given y keeps the prior's marginals."""
    rng = np.random.default_rng(3)
    n, d, rows = 3, 2, 5
    X = rng.normal(size=(n, rows, d))
    state = GibbsState(np.zeros((n, d)), np.ones(d), np.ones(n), 0.5, WishartRelation.start(n, 6.0, 2.0))
    tau, selected, inclusion, trace, square = [], [], [], [], []
    for _ in range(4000):
        noise = rng.normal(size=(n, rows)) / np.sqrt(state.noise_precision)[:, None]
        y = np.einsum("nrd,nd->nr", X, state.slopes) + noise
        cross = np.concatenate([X, np.ones((n, rows, 1))], axis=2)
        total = LeastSquares(
            np.swapaxes(cross, 1, 2) @ cross,
            np.einsum("nrd,nr->nd", cross, y),
            (y**2).sum(axis=1),
            np.full(n, float(rows)),
        )
        state = sweep(state, centre(total, True), (4.0, 4.0), rng)
        tau.append(state.noise_precision)
        selected.append(state.selected)
        inclusion.append(state.inclusion)
        trace.append(np.trace(state.relation.precision))
        square.append((state.slopes**2).sum())
    assert np.mean(tau) == pytest.approx(1.0, abs=0.04)
    assert np.var(tau) == pytest.approx(0.25, rel=0.15)
    assert np.mean(selected) == pytest.approx(0.5, abs=0.06)
    assert np.mean(inclusion) == pytest.approx(0.5, abs=0.04)
    assert np.var(inclusion) == pytest.approx(1 / 12, rel=0.15)
    assert np.mean(trace) == pytest.approx(3 * 6.0 / 2.0, rel=0.05)
    # E tr Φ⁻¹ = n s/(η − n − 1) for each of the features in, half of d on average.
    assert np.mean(square) == pytest.approx(3 * 2.0 / 2.0, rel=0.2)


def test_without_data_the_drawn_scale_keeps_its_prior():
    rng = np.random.default_rng(0)
    relation = WishartRelation.start(3, 4.0, None)
    scales = []
    for _ in range(6000):
        relation = relation.draw(np.zeros((3, 3)), 0, rng)
        scales.append(relation.drawn_scale)
    assert stats.kstest(scales[::6], stats.gamma(1.0, scale=100.0).cdf).pvalue > 0.01


def test_graphical_lasso_prior_gives_the_posterior_that_importance_sampling_gives():
    rng = np.random.default_rng(1)
    n, rows = 3, 60
    W = rng.normal(size=(rows, n)) @ np.array([[1.0, 0.4, 0.0], [0.0, 0.9, 0.0], [0.0, 0.0, 1.0]])
    scatter = W.T @ W
    # W(d + n + 1, (T + cI)⁻¹) has density |Φ|^{d/2} exp(−tr (T + cI)Φ/2); the prior has λ integrated out.
    proposals = np.array([draw_wishart(rows + n + 1, scatter + 3.5 * np.eye(n), rng) for _ in range(8000)])
    norm, trace = np.abs(proposals).sum(axis=(1, 2)), np.trace(proposals, axis1=1, axis2=2)
    weights = np.exp(0.5 * 3.5 * trace) * (0.01 + 0.5 * norm) ** -(1.0 + n * (n + 1) / 2)
    weights /= weights.sum()
    assert 1.0 / (weights**2).sum() > 2000
    expected = np.einsum("s,sij->ij", weights, proposals)
    relation, total = LassoRelation.start(n), np.zeros((n, n))
    for k in range(3200):
        relation = relation.draw(scatter, rows, rng)
        total += relation.precision / 3000 if k >= 200 else 0.0
    np.testing.assert_allclose(total, expected, atol=0.02)


def test_noise_is_drawn_from_its_conditional():
    loss = centred_rows(n=2, d=2, rows=8)
    rng = np.random.default_rng(0)
    draws = np.array([draw_noise(np.zeros((2, 2)), loss, (2.0, 1.0), rng) for _ in range(4000)])
    expected = (2.0 + 3.5) / (1.0 + 0.5 * loss.target_square)
    np.testing.assert_allclose(draws.mean(axis=0), expected, rtol=0.03)


def test_features_without_effect_are_left_out():
    rng = np.random.default_rng(0)
    X, tasks = rng.normal(size=(200, 4)), np.arange(200) % 5
    y = X[:, 0] * (1.0 + 0.1 * tasks) + 0.5 * rng.normal(size=200)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = BMSLRegressor(random_state=0).fit(X, y, tasks=tasks)
    assert model.inclusion_[0] > 0.99
    assert (model.inclusion_[1:] < 0.6).all()


@pytest.mark.parametrize("relation", ["wishart", "graphical_lasso"])
def test_sampler_is_reproducible_and_reports_how_it_mixed(relation):
    X, y, tasks = random_rows(rows=15)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        one, other = (
            BMSLRegressor(relation=relation, n_warmup=20, n_samples=40, random_state=4).fit(X, y, tasks=tasks)
            for _ in range(2)
        )
    np.testing.assert_array_equal(one.coef_, other.coef_)
    assert one.r_hat_["noise_precision"].shape == (4,)
    assert np.shape(one.effective_sample_size_["log_posterior"]) == ()


def test_chains_that_disagree_are_warned_of():
    X, y, tasks = cluster_rows(n=20, rows=12)[0]
    with pytest.warns(ConvergenceWarning, match="do not agree yet"):
        BMSLRegressor(n_warmup=0, n_samples=6, random_state=0).fit(X, y, tasks=tasks)


def test_diagnostics_know_independent_slow_and_disagreeing_chains():
    rng = np.random.default_rng(0)
    white = rng.normal(size=(4, 1000))
    slow = np.empty((4, 1000))
    slow[:, 0] = white[:, 0]
    for k in range(1, 1000):
        slow[:, k] = 0.9 * slow[:, k - 1] + np.sqrt(1 - 0.81) * white[:, k]
    assert split_r_hat(white) == pytest.approx(1.0, abs=0.01)
    assert effective_sample_size(white) == pytest.approx(4000, rel=0.15)
    # An autoregression of 0.9 has (1 − 0.9)/(1 + 0.9) effective draws per draw.
    assert effective_sample_size(slow) == pytest.approx(4000 / 19, rel=0.35)
    assert split_r_hat(white + 3.0 * np.arange(4)[:, None]) > 1.5


# ---------------------------------------------------------------------- graphs, and tasks in clusters


def test_graph_keeps_positive_entries_divided_by_the_largest():
    matrix = np.array([[9.0, 2.0, -1.0], [2.0, 9.0, 4.0], [-1.0, 4.0, 9.0]])
    graph = covariance_to_graph(matrix, ["a", "b", "c"])
    assert graph.edges.tolist() == [[0, 1], [1, 2]]
    assert graph.weights.tolist() == [0.5, 1.0]
    assert covariance_to_graph(-matrix, ["a", "b", "c"]).edges.tolist() == [[0, 2]]
    assert partial_correlation(matrix)[0, 1] == pytest.approx(-2 / 9)


@pytest.fixture(scope="module")
def clusters():
    train, test, label = cluster_rows()
    independent = IndependentRegressor().fit(train[0], train[1], tasks=train[2])
    return train, test, label, task_mean_rmse(independent, *test)


def test_pooling_tasks_of_different_clusters_is_worse_than_independent_models(clusters):
    train, test, _, independent = clusters
    assert task_mean_rmse(PooledRegressor().fit(train[0], train[1], tasks=train[2]), *test) > independent


@pytest.mark.parametrize(
    "model",
    [
        MTRLRegressor(ridge=0.001, validation=0.25),
        MSSLRegressor(strength=0.04, validation=0.25),
        BMSLRegressor(random_state=0),
    ],
    ids=["MTRL", "MSSL", "BMSL"],
)
def test_sharing_beats_independent_models_and_the_graph_shows_the_clusters(clusters, model):
    train, test, label, independent = clusters
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(train[0], train[1], tasks=train[2])
    assert task_mean_rmse(model, *test) < 0.95 * independent
    weights = model.graph_.adjacency().toarray()
    same = label[:, None] == label
    within = weights[same & ~np.eye(len(label), dtype=bool)].mean()
    assert within > 3 * weights[~same].mean()
