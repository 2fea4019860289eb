"""Every task's own noise: estimated, weighed, chosen only where it pays."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from scipy.special import polygamma

from ggmtl import GGMTLRegressor, load_model
from ggmtl.errors import ParameterError, SingularSystemError
from ggmtl.evidence.task_noise import _inverse_trigamma, _shrunken, task_precisions
from ggmtl.inspection import explain_edge
from made import sums_of


def noisy_tasks(n_tasks=40, rows=40, n_features=4, seed=0, low=0.4, high=4.0, spread=0.5):
    """Tasks about one model; odd ones are ten times as noisy. Also the standard deviations, and fresh rows."""
    random = np.random.default_rng(seed)
    models = random.normal(size=n_features) + spread * random.normal(size=(n_tasks, n_features))
    deviation = np.where(np.arange(n_tasks) % 2 == 1, high, low)

    def draw(size):
        X, tasks = random.normal(size=(n_tasks * size, n_features)), np.repeat(np.arange(n_tasks), size)
        return X, (X * models[tasks]).sum(axis=1) + deviation[tasks] * random.normal(size=len(X)), tasks

    return draw(rows), draw(200), deviation


@pytest.fixture(scope="module")
def fitted():
    (X, y, tasks), fresh, deviation = noisy_tasks()
    return GGMTLRegressor(random_state=0).fit(X, y, tasks=tasks), (X, y, tasks), fresh, deviation


def error(model, rows):
    X, y, tasks = rows
    return float(np.sqrt(np.mean((model.predict(X, tasks=tasks) - y) ** 2)))


def test_noise_that_differs_is_found_by_default(fitted):
    model, _, _, deviation = fitted
    assert np.abs(np.log(model.noise_ / deviation)).max() < 0.4
    assert np.abs(np.log(model.noise_ / deviation).mean()) < 0.05


def test_weighing_rows_by_their_noise_brings_models_nearer_to_the_truth(fitted):
    model, rows, fresh, deviation = fitted
    common = GGMTLRegressor(noise="common", random_state=0).fit(rows[0], rows[1], tasks=rows[2])
    assert np.ptp(common.noise_) == 0
    quiet = deviation[fresh[2]] < 1
    X, y, tasks = (part[quiet] for part in fresh)
    assert error(model, (X, y, tasks)) < 0.97 * error(common, (X, y, tasks))
    assert error(model, fresh) < error(common, fresh)


def test_intervals_are_as_wide_as_each_task_is_noisy(fitted):
    model, _, (X, y, tasks), deviation = fitted
    predicted, spread = model.predict(X, tasks=tasks, return_std=True)
    inside = np.abs(predicted - y) < 1.6449 * spread
    for noisy in (False, True):
        assert 0.87 < inside[(deviation[tasks] > 1) == noisy].mean() < 0.93


@pytest.mark.parametrize("seed", range(4))
def test_noise_that_is_the_same_for_all_is_left_alone(seed):
    (X, y, tasks), _, _ = noisy_tasks(n_tasks=20, seed=seed, low=1.0, high=1.0)
    # Weights of levels may count tasks by their held-out errors all the same.
    model = GGMTLRegressor(blend=False, random_state=0).fit(X, y, tasks=tasks)
    plain = GGMTLRegressor(blend=False, noise="common", random_state=0).fit(X, y, tasks=tasks)
    assert np.ptp(model.noise_) == 0
    np.testing.assert_array_equal(model.coef_, plain.coef_)


def test_models_minimise_the_loss_weighed_by_precision(fitted):
    """The gradient of ½Σ p_i‖X_i w_i − y_i‖² + ½Σ(w_i − w̄)ᵀH(w_i − w̄), from the rows themselves, is zero."""
    model, (X, y, tasks), _, _ = fitted
    fit, scaling = model.state_.level, model.scaling_
    assert fit.name == "hub"
    Z = np.column_stack([(X - scaling.center) / scaling.scale, np.ones(len(X))])
    target = (y - scaling.target_center) / scaling.target_scale
    W = fit.coefficients
    for k in range(len(W)):
        rows = tasks == k
        data = fit.precisions[k] * Z[rows].T @ (Z[rows] @ W[k] - target[rows])
        np.testing.assert_allclose(data + fit.hub * (W[k] - W.mean(axis=0)), 0.0, atol=1e-6 * np.abs(data).max() + 1e-6)


def test_units_of_the_target_do_not_matter(fitted):
    model, (X, y, tasks), _, _ = fitted
    other = GGMTLRegressor(random_state=0).fit(X, 1024.0 * y + 3.0, tasks=tasks)
    np.testing.assert_allclose(other.noise_, 1024.0 * model.noise_, rtol=1e-6)


def test_a_file_keeps_the_noise(fitted, tmp_path):
    model, _, (X, _, tasks), _ = fitted
    model.save(tmp_path / "model.ggmtl", keep_statistics=True)
    copy = load_model(tmp_path / "model.ggmtl")
    np.testing.assert_allclose(copy.noise_, model.noise_, rtol=1e-12)
    for one, other in zip(copy.predict(X, tasks, return_std=True), model.predict(X, tasks, return_std=True)):
        np.testing.assert_allclose(one, other, rtol=1e-9)


def test_more_rows_of_the_same_tasks_keep_the_weights(fitted):
    _, (X, y, tasks), _, _ = fitted
    half = np.arange(len(y)) % 2 == 0
    model = GGMTLRegressor(random_state=0).fit(X[half], y[half], tasks=tasks[half])
    precisions, alone = model.state_.level.precisions, model.coef_.copy()
    model.partial_fit(X[~half], y[~half], tasks=tasks[~half], relearn=False)
    np.testing.assert_array_equal(model.state_.level.precisions, precisions)
    assert np.abs(model.coef_ - alone).max() > 0
    model.add_task(99, X[:3], y[:3])
    assert len(model.noise_) == len(model.tasks_)
    assert np.isfinite(model.noise_).all()
    assert np.isfinite(model.predict(X[:1], tasks=[99], return_std=True)[1]).all()


def test_explanations_of_edges_solve_the_weighed_problem():
    """Without an edge, the models are those of a solve from scratch with the same weights."""
    random = np.random.default_rng(1)
    centres, deviation = 3 * random.normal(size=(3, 3)), np.where(np.arange(18) % 2 == 1, 3.0, 0.4)
    tasks = np.repeat(np.arange(18), 25)
    X = random.normal(size=(len(tasks), 3))
    y = (X * centres[tasks // 6]).sum(axis=1) + deviation[tasks] * random.normal(size=len(tasks))
    model = GGMTLRegressor(noise="per_task", random_state=0).fit(X, y, tasks=tasks)
    fit = model.state_.level
    assert fit.precisions is not None
    assert len(model.edges_)
    i, j = model.edges_[0]
    told = explain_edge(model, int(i), int(j))
    values = np.where((fit.edges == [i, j]).all(axis=1), 0.0, fit.edge_values)
    squared = {"with": 0.0, "without": 0.0}
    folded, rows = model.state_.folded(), 0.0
    for k in folded.scored:
        training, part = fit.weighed(folded.training(k)), folded.parts[k]
        for name, weights in (("with", fit.edge_values), ("without", values)):
            squared[name] += 2 * part.task_values(_dense_models(training, fit, weights, model.state_.settings)).sum()
        rows += part.count.sum()
    unit = model.scaling_.target_scale
    expected = {name: unit * np.sqrt(total / rows) for name, total in squared.items()}
    assert told.total_error == pytest.approx(expected["with"], rel=1e-6)
    assert told.total_error_without == pytest.approx(expected["without"], rel=1e-6)


def _dense_models(loss, fit, values, settings):
    n, p = loss.moment.shape
    A = np.zeros((n, p, n, p))
    ridge = settings.ridge_for(loss)
    for k in range(n):
        A[k, :, k] += loss.gram[k] + np.diag(fit.hub + ridge[k])
        A[k, :, :] -= np.einsum("ab,j->ajb", np.diag(fit.hub), np.full(n, 1.0 / n))
    for (i, j), e in zip(fit.edges, values):
        block = e * np.diag(fit.coupling)
        A[i, :, i] += block
        A[j, :, j] += block
        A[i, :, j] -= block
        A[j, :, i] -= block
    return np.linalg.solve(A.reshape(n * p, n * p), loss.moment.ravel()).reshape(n, p)


def test_the_prior_of_variances_is_recovered():
    """Variances drawn from a scaled inverse χ² of 6 degrees of freedom: shrunken ones beat the raw and the mean."""
    random = np.random.default_rng(0)
    true = 2.0 * 6.0 / random.chisquare(6.0, size=4000)
    freedom = np.full(4000, 8.0)
    residual = true * random.chisquare(8.0, size=4000)
    shrunken = _shrunken(residual, freedom)
    # With the true prior: (6·2 + residual)/(6 + 8).
    np.testing.assert_allclose(shrunken, (12.0 + residual) / 14.0, rtol=0.1)


@pytest.mark.parametrize("weight", [0.7, 3.0, 50.0, 1e4])
def test_inverse_trigamma(weight):
    assert _inverse_trigamma(float(polygamma(1, weight / 2))) == pytest.approx(weight, rel=1e-6)


def test_residuals_of_rounding_and_few_tasks_say_nothing():
    random = np.random.default_rng(0)
    X = random.normal(size=(8, 10, 2))
    y = X @ np.array([1.0, -1.0])
    exact = sums_of(X, y)
    assert task_precisions(exact, np.full(2, 0.1)) is None
    noisy = sums_of(X[:4], y[:4] + random.normal(size=(4, 10)) * np.array([1, 100, 1, 100])[:, None])
    assert task_precisions(noisy, np.full(2, 0.1)) is None


def test_precisions_average_to_one_over_rows():
    (X, y, _tasks), _, _ = noisy_tasks(n_tasks=12, rows=30)
    loss = sums_of(X.reshape(12, 30, -1), y.reshape(12, 30))
    precisions = task_precisions(loss, np.full(4, 1.0))
    assert precisions is not None
    assert precisions @ loss.count == pytest.approx(loss.count.sum())


@pytest.mark.parametrize(("options", "named"), [({"noise": "none"}, "noise"), ({"device": "cuda"}, "noise")])
def test_what_has_no_meaning_is_refused(options, named):
    (X, y, tasks), _, _ = noisy_tasks(n_tasks=6, rows=10)
    with pytest.raises(ParameterError, match=named):
        GGMTLRegressor(**({"noise": "per_task"} | options)).fit(X, y, tasks=tasks)


def test_without_a_common_model_noise_is_estimated_all_the_same():
    (X, y, tasks), _, deviation = noisy_tasks(n_tasks=10, rows=30)
    model = GGMTLRegressor(noise="per_task", hub=False, random_state=0).fit(X, y, tasks=tasks)
    assert np.corrcoef(np.log(model.noise_), np.log(deviation))[0, 1] > 0.9


def test_intervals_follow_the_noise_also_where_rows_are_not_weighed_by_it(fitted, tmp_path, monkeypatch):
    _, (X, y, tasks), (new, target, owner), deviation = fitted
    monkeypatch.setattr("ggmtl.fit.path._noise_differs", lambda *_: False)
    model = GGMTLRegressor(blend=False, random_state=0).fit(X, y, tasks=tasks)
    assert model.state_.level.precisions is None
    assert np.abs(np.log(model.noise_ / deviation)).max() < 0.6
    predicted, spread = model.predict(new, tasks=owner, return_std=True)
    inside = np.abs(predicted - target) < 1.6449 * spread
    for noisy in (False, True):
        assert 0.85 < inside[(deviation[owner] > 1) == noisy].mean() < 0.97
    assert "Prediction intervals are shorter for tasks with less noise." in model.summary()
    model.save(tmp_path / "model.ggmtl")
    np.testing.assert_allclose(load_model(tmp_path / "model.ggmtl").noise_, model.noise_, rtol=1e-12)
    before = model.noise_
    model.add_task(99, X[:3], y[:3])
    # All rows say how noisy tasks are; three more say little.
    np.testing.assert_allclose(model.noise_[:-1], before, rtol=5e-3)


@pytest.mark.parametrize("seed", range(1, 9))
def test_residuals_that_become_mere_rounding_say_nothing(seed, recwarn):
    """Weights that span twenty decades, two features nearly the same: no division by zero on the way."""
    rng, n = np.random.default_rng(seed), 20
    tasks = np.repeat(np.arange(n), 2 + seed % 5)
    X = rng.normal(size=(len(tasks), 3))
    y = (X * rng.normal(size=(n // 5, 3))[tasks // 5]).sum(axis=1) + 0.1 * rng.normal(size=len(tasks))
    X[:, 1] = X[:, 0] + 1e-4 * rng.normal(size=len(tasks))
    weight = (10.0 ** rng.uniform(-10, 10, n))[tasks]
    pairs = [(a, b) for a in range(n) for b in range(a + 1, n) if a // 5 == b // 5]
    with suppress(SingularSystemError):
        GGMTLRegressor(candidates=pairs, validation=2, noise="per_task").fit(X, y, tasks=tasks, sample_weight=weight)
    assert not [str(warning.message) for warning in recwarn if warning.category is RuntimeWarning]
