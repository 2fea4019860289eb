"""Standard errors, removing an edge and attaching a task, against dense algebra, full refits and simulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm

from ggmtl import GGMTLRegressor
from ggmtl.bilevel.inner import solve_inner
from ggmtl.bilevel.level import GraphFit, Settings, present_problem, refit
from ggmtl.fit.levels import independent_level
from ggmtl.graph.candidates import Complete
from ggmtl.inference.attachment import _NewTask, attach, follow, insert_task
from ggmtl.inference.posterior import noise_of, posterior_of
from ggmtl.inference.removal import TrainedModels
from ggmtl.inference.sampled_covariance import mean_covariance, sampled_blocks
from ggmtl.runtime.sizes import SIZES
from ggmtl.solve.solvers import ConjugateGradient, prepare
from ggmtl.statistics.least_squares import LeastSquares, few_rows
from made import sums_of

FAST = {"criterion": "validation", "edge_entropy": 0.0, "coupling": 1.0, "validation": 0.25}


def make_loss(rng, n, p, rows, spread=0.5):
    X = rng.normal(size=(n, rows, p))
    X[..., -1] = 1.0
    W = spread * rng.normal(size=(n, p))
    y = np.einsum("nrp,np->nr", X, W) + rng.normal(size=(n, rows))
    return sums_of(X, y), W


def make_fit(rng, loss, penalty="squared_l2", hub=1.0, degree=6.0):
    n, p = loss.moment.shape
    slopes = np.arange(p) < p - 1
    settings = Settings(penalty, Complete(), None, hub > 0, slopes)
    i, j = np.triu_indices(n, 1)
    keep = (rng.random(len(i)) < degree / n) | (j == i + 1)
    edges = np.column_stack([i[keep], j[keep]])
    values = 0.1 + rng.random(len(edges))
    fit = GraphFit("graph", edges, values, np.full(p, 2.0), np.full(p, float(hub)), np.empty(0), 0.0)
    return refit(fit, loss, settings), settings


def dense_inverse(fit, loss, settings):
    problem, values = present_problem(fit, loss, settings)
    n, p = loss.moment.shape
    return np.linalg.inv(problem.hessian(fit.coefficients, values).dense()).reshape(n, p, n, p)


# ---------------------------------------------------------------------- covariance


@pytest.mark.parametrize("penalty", ["squared_l2", "l2", "l1"])
@pytest.mark.parametrize("hub", [0.0, 1.5])
def test_covariance_blocks_are_those_of_the_dense_inverse(penalty, hub):
    rng = np.random.default_rng(0)
    loss, _ = make_loss(rng, 15, 4, 6)
    fit, settings = make_fit(rng, loss, penalty, hub)
    found = posterior_of(fit, loss, settings)
    assert found.exact
    np.testing.assert_allclose(found.covariance, np.einsum("ipiq->ipq", dense_inverse(fit, loss, settings)), atol=1e-12)


@pytest.mark.parametrize("hub", [[0.0, 0.0, 0.0], [0.3, 2.0, 1e5], [0.0, 1.0, 4.0]])
def test_without_edges_the_closed_form_is_the_dense_inverse(hub):
    rng = np.random.default_rng(1)
    loss, _ = make_loss(rng, 12, 3, 5)
    fit, settings = make_fit(rng, loss)
    fit = refit(replace(fit, edges=fit.edges[:0], edge_values=fit.edge_values[:0], hub=np.array(hub)), loss, settings)
    found = posterior_of(fit, loss, settings).covariance
    expected = np.einsum("ipiq->ipq", dense_inverse(fit, loss, settings))
    # Separate models have the variance of their slopes in the place of σ²/ρ.
    np.testing.assert_allclose(found, expected, rtol=1e-7 if any(hub) else 1e-5, atol=1e-10)


@pytest.mark.parametrize("penalty", ["squared_l2", "l2"])
def test_sampled_standard_errors_are_close_to_the_exact_ones(penalty):
    rng = np.random.default_rng(2)
    loss, _ = make_loss(rng, 25, 4, 6)
    fit, settings = make_fit(rng, loss, penalty)
    exact = posterior_of(fit, loss, settings).covariance
    problem, values = present_problem(fit, loss, settings)
    system = problem.hessian(fit.coefficients, values)
    sampled = sampled_blocks(system, prepare(system), 256, seed=0, accuracy=0.0)
    ratio = np.sqrt(np.einsum("npp->np", sampled) / np.einsum("npp->np", exact))
    assert np.abs(ratio - 1.0).max() < 0.06
    assert ratio.std() < 0.015


@pytest.mark.parametrize("degree", [2.0, 6.0, 20.0])
@pytest.mark.parametrize("penalty", ["squared_l2", "l2", "l1"])
def test_samples_give_standard_errors_to_five_percent_and_the_mean_to_a_percent(penalty, degree):
    rng = np.random.default_rng(7)
    loss, _ = make_loss(rng, 60, 5, 6)
    fit, settings = make_fit(rng, loss, penalty, hub=0.1, degree=degree)
    problem, values = present_problem(fit, loss, settings)
    system = problem.hessian(fit.coefficients, values)
    inverse = np.linalg.inv(system.dense()).reshape(60, 5, 60, 5)
    prepared = ConjugateGradient.of(system)
    sampled = sampled_blocks(system, prepared, 1000, seed=0)
    ratio = np.sqrt(np.einsum("npp->np", sampled) / np.einsum("ipip->ip", inverse))
    # Tasks share samples, so that the error itself is not exactly the one that was aimed at.
    assert np.sqrt(np.mean((ratio - 1.0) ** 2)) < 0.065
    mean = mean_covariance(system, prepared)
    np.testing.assert_allclose(mean, inverse.mean(axis=(0, 2)), atol=0.01 * np.abs(mean).max())


@pytest.mark.parametrize("kind", ["hub", "separate"])
@pytest.mark.parametrize("unequal", [False, True])
def test_tasks_of_few_rows_have_the_covariance_of_the_dense_inverse(monkeypatch, kind, unequal):
    rng = np.random.default_rng(8)
    loss, _ = make_loss(rng, 9, 60, 7)
    _, settings = make_fit(rng, loss)
    settings = replace(settings, ridge=1.0)
    if kind == "hub":
        fit = refit(
            GraphFit("hub", np.empty((0, 2), int), np.empty(0), np.zeros(60), rng.uniform(1, 50, 60), loss.moment, 0.0),
            loss,
            settings,
        )
    else:
        fit = independent_level(loss, settings)
    ratios = np.geomspace(0.2, 5.0, 9) if unequal else None
    assert few_rows(loss.gram, replace(SIZES, low_rank_numbers=0)) is not None
    dense = posterior_of(fit, loss, settings, ratios=ratios)
    used = []
    small = replace(SIZES, low_rank_numbers=0)
    monkeypatch.setattr(
        "ggmtl.inference.posterior.few_rows", lambda gram, _=None: used.append(1) or few_rows(gram, small)
    )
    monkeypatch.setattr("ggmtl.inference.noise_variance.few_rows", lambda gram: used.append(1) or few_rows(gram, small))
    found = posterior_of(fit, loss, settings, ratios=ratios)
    assert used
    for name in ("covariance", "common", "new_task"):
        expected = getattr(dense, name)
        np.testing.assert_allclose(getattr(found, name), expected, rtol=1e-9, atol=1e-11 * np.abs(expected).max())
    assert found.noise == pytest.approx(dense.noise, rel=1e-10)


def test_pooled_model_has_the_covariance_of_one_regression():
    rng = np.random.default_rng(3)
    loss, _ = make_loss(rng, 6, 3, 8)
    fit, settings = make_fit(rng, loss)
    pooled = np.linalg.solve(loss.gram.sum(axis=0), loss.moment.sum(axis=0))
    fit = replace(
        fit,
        edges=fit.edges[:0],
        edge_values=fit.edge_values[:0],
        hub=np.full(3, np.inf),
        coefficients=np.tile(pooled, (6, 1)),
    )
    found = posterior_of(fit, loss, settings)
    rows = loss.count.sum()
    np.testing.assert_allclose(found.covariance[4], np.linalg.inv(loss.gram.sum(axis=0)), rtol=1e-5)
    assert found.noise == pytest.approx(2 * loss.value(fit.coefficients) / (rows - 3))


def test_noise_of_separate_tasks_is_their_joint_residual_variance():
    rng = np.random.default_rng(4)
    loss, _ = make_loss(rng, 5, 3, 10)
    fit, settings = make_fit(rng, loss, hub=0.0)
    fit = refit(replace(fit, edges=fit.edges[:0], edge_values=fit.edge_values[:0]), loss, settings)
    expected = 2 * loss.value(fit.coefficients) / (50 - 15)
    assert posterior_of(fit, loss, settings).noise == pytest.approx(expected, rel=1e-5)


def test_separate_models_of_unequal_noise_have_the_covariance_of_ridge_regression():
    rng = np.random.default_rng(6)
    loss, _ = make_loss(rng, 8, 4, 7)
    _, settings = make_fit(rng, loss)
    fit, ratios = independent_level(loss, settings), np.geomspace(0.02, 20.0, 8)
    alike, found = (posterior_of(fit, loss, settings, ratios=each).covariance for each in (None, ratios))
    inverse = np.linalg.inv(loss.gram + fit.ridge[:, :, None] * np.eye(4))
    expected = alike + (ratios - 1.0)[:, None, None] * (inverse @ loss.gram @ inverse)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-12)
    assert np.linalg.eigvalsh(found).min() > 0


def test_standard_errors_of_one_task_without_ridge_are_those_of_least_squares():
    rng = np.random.default_rng(5)
    X = rng.normal(size=(40, 2)) * [3.0, 0.2] + [10.0, -4.0]
    y = 5.0 + X @ [1.0, -7.0] + rng.normal(size=40)
    model = GGMTLRegressor(ridge=0.0, hub=False).fit(X, y)
    design = np.column_stack([X, np.ones(40)])
    coefficients = np.linalg.lstsq(design, y, rcond=None)[0]
    noise = ((y - design @ coefficients) ** 2).sum() / (40 - 3)
    covariance = noise * np.linalg.inv(design.T @ design)
    table = model.coefficients()
    assert table["feature"].tolist() == ["x0", "x1", "(intercept)"]
    np.testing.assert_allclose(table["coefficient"], coefficients, rtol=1e-6)
    np.testing.assert_allclose(table["standard_error"], np.sqrt(np.diag(covariance)), rtol=1e-6)
    value, deviation = model.predict(X[:3], return_std=True)
    spread = np.einsum("rp,pq,rq->r", design[:3], covariance, design[:3])
    np.testing.assert_allclose(deviation, np.sqrt(noise + spread), rtol=1e-6)
    np.testing.assert_allclose(value, design[:3] @ coefficients, rtol=1e-6)


@pytest.mark.filterwarnings("ignore::ggmtl.errors.UnseenTaskWarning")
def test_ninety_percent_intervals_cover_about_ninety_percent():
    rng = np.random.default_rng(6)
    inside, known, covered = [], [], []
    for _ in range(4):
        n, rows = 60, 8
        W = np.array([1.0, -2.0, 0.5]) + 0.7 * rng.normal(size=(n, 3))
        X, tasks = rng.normal(size=(n * rows, 3)), np.repeat(np.arange(n), rows)
        y = (X * W[tasks]).sum(axis=1) + rng.normal(size=n * rows)
        model = GGMTLRegressor(candidates=np.empty((0, 2)), validation=None, unseen="hub").fit(X, y, tasks=tasks)
        fresh = rng.normal(size=(n * 5, 3))
        where = np.repeat(np.arange(n), 5)
        value, deviation = model.predict(fresh, tasks=where, return_std=True)
        target = (fresh * W[where]).sum(axis=1) + rng.normal(size=len(fresh))
        inside.append(np.abs(target - value) < norm.ppf(0.95) * deviation)
        table = model.coefficients()
        slopes = np.asarray(table["feature"]) != "(intercept)"
        table = {name: np.asarray(table[name])[slopes] for name in ("coefficient", "standard_error")}
        known.append(np.abs(table["coefficient"] - W.ravel()) < norm.ppf(0.95) * table["standard_error"])
        strangers = np.array([1.0, -2.0, 0.5]) + 0.7 * rng.normal(size=(300, 3))
        value, deviation = model.predict(fresh, tasks=np.arange(1000, 1300), return_std=True)
        target = (fresh * strangers).sum(axis=1) + rng.normal(size=300)
        covered.append(np.abs(target - value) < norm.ppf(0.95) * deviation)
    assert 0.85 < np.mean(inside) < 0.95
    assert 0.85 < np.mean(known) < 0.95
    assert 0.85 < np.mean(covered) < 0.95


def test_intervals_cover_although_the_graph_was_searched_for():
    inside = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        n, rows = 12, 10
        W = rng.normal(size=(3, 3))[np.arange(n) % 3] + 0.1 * rng.normal(size=(n, 3))
        X, tasks = rng.normal(size=(n * rows, 3)), np.repeat(np.arange(n), rows)
        y = (X * W[tasks]).sum(axis=1) + rng.normal(size=n * rows)
        model = GGMTLRegressor(**FAST | {"validation": 3, "tol": 1e-3}).fit(X, y, tasks=tasks)
        assert model.graph_.n_edges
        fresh, where = rng.normal(size=(n * 100, 3)), np.repeat(np.arange(n), 100)
        value, deviation = model.predict(fresh, tasks=where, return_std=True)
        target = (fresh * W[where]).sum(axis=1) + rng.normal(size=n * 100)
        inside.append(np.abs(target - value) < norm.ppf(0.95) * deviation)
    assert 0.85 < np.mean(inside) < 0.95


# ---------------------------------------------------------------------- removing an edge


@pytest.mark.parametrize("penalty", ["squared_l2", "l2"])
@pytest.mark.parametrize("hub", [0.0, 1.0])
def test_removing_an_edge_is_a_full_refit_without_it(penalty, hub):
    rng = np.random.default_rng(8)
    loss, _ = make_loss(rng, 12, 4, 5)
    fit, settings = make_fit(rng, loss, penalty, hub)
    problem, values = present_problem(fit, loss, settings)
    for edge in (0, 5, 11):
        i, j = problem.edges[edge]
        without = np.where(np.arange(len(values)) == edge, 0.0, values)
        expected = solve_inner(problem, without, tol=1e-13).coefficients
        trained = TrainedModels.of(fit, loss, settings)
        np.testing.assert_allclose(trained.models + trained.change(i, j), expected, atol=1e-7)
        inverse = np.linalg.inv(problem.hessian(expected, without).dense()).reshape(12, 4, 12, 4)
        difference = inverse[i, :, i] + inverse[j, :, j] - inverse[i, :, j] - inverse[j, :, i]
        np.testing.assert_allclose(trained.covariance_without(i, j, expected), difference, rtol=1e-6, atol=1e-10)


def test_removing_a_bridge_without_a_hub_is_exact_too():
    rng = np.random.default_rng(9)
    loss, _ = make_loss(rng, 4, 3, 2)
    fit, settings = make_fit(rng, loss, hub=0.0)
    edges = np.array([[0, 1], [1, 2], [2, 3]])
    fit = refit(replace(fit, edges=edges, edge_values=np.array([1.0, 100.0, 1.0])), loss, settings)
    problem, _ = present_problem(fit, loss, settings)
    trained = TrainedModels.of(fit, loss, settings)
    expected = np.linalg.solve(problem.system(np.array([1.0, 0.0, 1.0])).dense(), loss.moment.ravel())
    np.testing.assert_allclose((trained.models + trained.change(1, 2)).ravel(), expected, rtol=1e-6, atol=1e-7)


def test_a_pair_without_an_edge_keeps_its_models():
    rng = np.random.default_rng(10)
    loss, _ = make_loss(rng, 5, 3, 6)
    fit, settings = make_fit(rng, loss)
    edges = np.array([[0, 1]])
    fit = refit(replace(fit, edges=edges, edge_values=np.ones(1)), loss, settings)
    trained = TrainedModels.of(fit, loss, settings)
    assert not trained.change(2, 4).any()


# ---------------------------------------------------------------------- a new task


def new_rows(rng, w, rows, noise=0.5):
    X = rng.normal(size=(1, rows, len(w)))
    return X, np.einsum("nrp,p->nr", X, w) + noise * rng.normal(size=(1, rows))


def test_evidence_of_a_new_task_is_the_gaussian_density_of_its_rows():
    rng = np.random.default_rng(11)
    X, y = new_rows(rng, np.array([1.0, -1.0, 0.3]), 4)
    pull, noise = np.array([0.5, 2.0, 1.0]), 0.25
    task = _NewTask(X[0].T @ X[0], X[0].T @ y[0], float(y[0] @ y[0]), noise, pull, np.zeros(3))
    means = rng.normal(size=(5, 3))
    found = task.evidence(means, pull)
    covariance = noise * (np.eye(4) + X[0] / pull @ X[0].T)
    expected = np.array([multivariate_normal(X[0] @ mean, covariance).logpdf(y[0]) for mean in means])
    np.testing.assert_allclose(found - found[0], expected - expected[0], atol=1e-9)
    wider = task.evidence(means[:1], 3 * pull)[0]
    covariance = noise * (np.eye(4) + X[0] / (3 * pull) @ X[0].T)
    assert wider - found[0] == pytest.approx(
        multivariate_normal(X[0] @ means[0], covariance).logpdf(y[0]) - expected[0]
    )


def test_every_prior_has_the_evidence_of_its_own_precision():
    rng = np.random.default_rng(19)
    X, y = new_rows(rng, np.array([1.0, -1.0, 0.3]), 4)
    task = _NewTask(X[0].T @ X[0], X[0].T @ y[0], float(y[0] @ y[0]), 0.25, np.ones(3), np.zeros(3))
    means, precisions = rng.normal(size=(5, 3)), 0.1 + rng.random((5, 3))
    found = task.evidence(means, precisions)
    each = [task.evidence(mean[None], precision)[0] for mean, precision in zip(means, precisions)]
    np.testing.assert_allclose(found, each)
    np.testing.assert_allclose(task.misfit(means), ((y[0] - means @ X[0].T) ** 2).sum(axis=1))


def test_the_moments_of_a_mixture_are_those_of_its_samples():
    rng = np.random.default_rng(20)
    X, y = new_rows(rng, np.array([1.0, -1.0]), 3)
    task = _NewTask(X[0].T @ X[0], X[0].T @ y[0], float(y[0] @ y[0]), 0.5, np.ones(2), np.zeros(2))
    means, precisions, share = rng.normal(size=(2, 2)), np.array([[1.0, 2.0], [3.0, 0.5]]), np.array([0.3, 0.7])
    mean, covariance = task.mixture(means, precisions, share)
    parts = [task.posterior(m, p) for m, p in zip(means, precisions)]
    draws = [rng.multivariate_normal(m, 0.5 * c, size=int(200_000 * s)) for (m, c), s in zip(parts, share)]
    np.testing.assert_allclose(mean, np.concatenate(draws).mean(axis=0), atol=0.01)
    np.testing.assert_allclose(0.5 * covariance, np.cov(np.concatenate(draws).T), atol=0.01)


def clusters_fit(rng, size=5, p=4):
    """Three cliques of tasks with their models, and rows of a new task near the second."""
    member = np.repeat(np.arange(3), size)
    models = (2.0 * rng.normal(size=(3, p)))[member] + 0.1 * rng.normal(size=(3 * size, p))
    i, j = np.triu_indices(3 * size, 1)
    edges = np.column_stack([i, j])[member[i] == member[j]]
    ones, weak = np.ones(len(edges)), np.full(p, 0.02)
    return GraphFit("graph", edges, ones, np.full(p, 5.0), weak, models, 0.0), member


def test_a_new_member_joins_its_cluster_and_a_stranger_none():
    rng = np.random.default_rng(21)
    fit, member = clusters_fit(rng)
    truth = fit.coefficients[member == 1].mean(axis=0) + 0.1 * rng.normal(size=4)
    rows = sums_of(*new_rows(rng, truth, 5))
    joined = attach(fit, rows, 0.25)
    assert joined.neighbours.tolist() == np.flatnonzero(member == 1).tolist()
    assert np.linalg.norm(joined.coefficients - truth) < 0.5
    grown = insert_task(fit, joined, 15)
    assert len(grown.edges) == len(fit.edges) + 5
    stranger = attach(fit, sums_of(*new_rows(rng, np.array([9.0, -9.0, 9.0, 9.0]), 5)), 0.25)
    assert len(stranger.neighbours) == 0


def test_doubt_about_the_cluster_widens_the_interval():
    rng = np.random.default_rng(22)
    fit, member = clusters_fit(rng)
    clear = attach(fit, sums_of(*new_rows(rng, fit.coefficients[7], 20)), 0.25)
    # One row that two clusters predict alike leaves open which it is.
    apart = fit.coefficients[member == 0].mean(axis=0) - fit.coefficients[member == 1].mean(axis=0)
    x = np.linalg.svd(apart[None])[2][-1]
    row = x[None, None], np.array([[x @ fit.coefficients[7]]])
    torn = attach(fit, sums_of(*row), 0.25)
    assert apart @ torn.covariance @ apart > 20 * (apart @ clear.covariance @ apart)


def test_a_task_without_rows_gets_the_common_model():
    rng = np.random.default_rng(12)
    loss, _ = make_loss(rng, 6, 3, 8)
    fit, _ = make_fit(rng, loss)
    nothing = LeastSquares(np.zeros((1, 3, 3)), np.zeros((1, 3)), np.zeros(1), np.zeros(1))
    attached = attach(fit, nothing, 1.0)
    np.testing.assert_array_equal(attached.coefficients, fit.coefficients.mean(axis=0))
    assert len(attached.neighbours) == 0


def test_a_twin_is_found_and_a_stranger_is_left_to_the_hub():
    rng = np.random.default_rng(13)
    models = rng.normal(size=(3, 4))[np.repeat([0, 1, 2], 5)] * 3.0 + 0.05 * rng.normal(size=(15, 4))
    empty = np.empty((0, 2), dtype=np.int64)
    fit = GraphFit("hub", empty, np.empty(0), np.zeros(4), np.full(4, 0.03), models, 0.0)
    twin = attach(fit, sums_of(*new_rows(rng, models[7], 6)), 0.25)
    assert len(twin.neighbours)
    assert set(twin.neighbours) <= {5, 6, 7, 8, 9}
    alone = np.linalg.lstsq(*(part[0] for part in new_rows(rng, models[7], 6)), rcond=None)[0]
    assert np.linalg.norm(twin.coefficients - models[7]) < np.linalg.norm(alone - models[7])
    stranger = attach(fit, sums_of(*new_rows(rng, np.array([9.0, -9.0, 9.0, 9.0]), 6)), 0.25)
    assert len(stranger.neighbours) == 0


def test_one_row_moves_the_common_model_as_the_prior_allows():
    rng = np.random.default_rng(14)
    loss, _ = make_loss(rng, 8, 3, 20, spread=0.1)
    fit, settings = make_fit(rng, loss, hub=20.0)
    fit = refit(replace(fit, edges=fit.edges[:0], edge_values=fit.edge_values[:0]), loss, settings)
    X, y = new_rows(rng, np.zeros(3), 1)
    attached = attach(fit, sums_of(X, y), 1.0)
    common = fit.coefficients.mean(axis=0)
    gain = X[0, 0] / 20.0 / (1.0 + X[0, 0] @ X[0, 0] / 20.0)
    np.testing.assert_allclose(attached.coefficients, common + gain * (y[0, 0] - X[0, 0] @ common))


def test_models_follow_other_rows_as_a_fit_of_them_with_the_same_graph():
    rng = np.random.default_rng(16)
    loss, _ = make_loss(rng, 7, 3, 8)
    fit, settings = make_fit(rng, loss)
    other, _ = make_loss(rng, 7, 3, 8)
    followed, covariances = follow(fit, other, settings, [], 1.0)
    np.testing.assert_allclose(followed.coefficients, refit(fit, other, settings).coefficients)
    assert covariances == []


def test_an_attached_task_whose_rows_stay_stays_where_it_was():
    rng = np.random.default_rng(17)
    loss, _ = make_loss(rng, 6, 3, 20)
    fit, settings = make_fit(rng, loss)
    rows = sums_of(*new_rows(rng, fit.coefficients[2], 12))
    attached = attach(fit, rows, 0.3, settings.ridge_for(rows)[0])
    grown = insert_task(fit, attached, 6)
    sums = ("gram", "moment", "target_square", "count")
    both = LeastSquares(*(np.concatenate([getattr(part, name) for part in (loss, rows)]) for name in sums))
    followed, (covariance,) = follow(grown, both, settings, [6], 0.3)
    np.testing.assert_allclose(followed.coefficients, grown.coefficients, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(covariance, attached.covariance)


@pytest.mark.parametrize("edges", [True, False])
def test_the_noise_alone_is_that_of_the_posterior(edges):
    rng = np.random.default_rng(18)
    loss, _ = make_loss(rng, 6, 3, 9)
    fit, settings = make_fit(rng, loss)
    if not edges:
        fit = refit(replace(fit, edges=fit.edges[:0], edge_values=fit.edge_values[:0]), loss, settings)
    assert noise_of(fit, loss, settings) == pytest.approx(posterior_of(fit, loss, settings).noise, rel=1e-12)


def test_inserting_a_task_shifts_the_edges():
    rng = np.random.default_rng(15)
    loss, _ = make_loss(rng, 4, 3, 8)
    fit, _ = make_fit(rng, loss)
    fit = replace(fit, edges=np.array([[0, 1], [2, 3]]), edge_values=np.ones(2))
    attached = attach(fit, sums_of(*new_rows(rng, fit.coefficients[3], 30)), 0.1)
    attached = replace(attached, neighbours=np.array([0, 3]), edge_value=0.5)
    grown = insert_task(fit, attached, 2)
    assert grown.edges.tolist() == [[0, 1], [3, 4], [0, 2], [2, 4]]
    assert grown.edge_values.tolist() == [1.0, 1.0, 0.5, 0.5]
    np.testing.assert_array_equal(grown.coefficients[[0, 1, 3, 4]], fit.coefficients)
