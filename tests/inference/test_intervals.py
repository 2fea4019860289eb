"""Prediction intervals: coverage by simulation, calibration by hand, invariances, files, unseen and added tasks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t

from ggmtl import GGMTLRegressor, TaskStatistics, load_model
from ggmtl.datasets import make_clusters
from ggmtl.errors import InputError, ParameterError, UnseenTaskWarning
from ggmtl.inference.intervals import _held_out_variance, _kappa, _variance_between, calibration
from ggmtl.inference.uncertainty import noise_variance, posterior_within


def simulated(seed, n=12, rows=20, spread=0.4, heavy=False, noise=None, p=3):
    """Rows, targets, tasks, and fresh rows of the same tasks."""
    rng = np.random.default_rng(seed)
    models = rng.normal(size=p + 1) + spread * rng.normal(size=(n, p + 1))
    scale = np.ones(n) if noise is None else noise

    def drawn(number):
        X, tasks = rng.normal(size=(n * number, p)), np.repeat(np.arange(n), number)
        error = rng.standard_t(3, len(X)) / np.sqrt(3.0) if heavy else rng.normal(size=len(X))
        return X, np.einsum("rp,rp->r", X, models[tasks, :-1]) + models[tasks, -1] + scale[tasks] * error, tasks

    return drawn(rows), drawn(50)


def fitted(data, **options):
    X, y, tasks = data
    return GGMTLRegressor(**options).fit(X, y, tasks=tasks)


def covered(model, fresh, coverage=0.9):
    X, y, tasks = fresh
    low, high = model.predict_interval(X, coverage, tasks=tasks).T
    return (low <= y) & (y <= high)


NOISES = np.repeat([0.3, 1.0, 3.0], 4)


@pytest.mark.parametrize(
    "options", [{}, {"heavy": True}, {"noise": NOISES}, {"spread": 1.0, "rows": 10}, {"spread": 0}]
)
def test_intervals_hold_as_many_new_rows_as_asked_for(options):
    found = []
    for seed in range(8):
        train, fresh = simulated(seed, **options)
        model = fitted(train)
        found.append([covered(model, fresh, level).mean() for level in (0.5, 0.9)])
    half, most = np.mean(found, axis=0)
    assert 0.87 < most < 0.93
    assert 0.45 < half < 0.60


def test_every_task_is_covered_where_their_noise_differs():
    shares = []
    for seed in range(4):
        train, fresh = simulated(seed, rows=60, noise=NOISES)
        shares.append(covered(fitted(train), fresh).reshape(12, -1).mean(axis=1))
    by_noise = np.mean(shares, axis=0).reshape(3, 4).mean(axis=1)
    assert ((by_noise > 0.86) & (by_noise < 0.94)).all()


def test_few_rows_leave_the_noise_of_a_task_uncertain():
    noise = np.exp(np.random.default_rng(1).uniform(-np.log(3.0), np.log(3.0), 30))
    shares, freedoms = [], []
    for seed in range(4):
        train, fresh = simulated(seed, n=30, rows=9, noise=noise)
        model = fitted(train)
        shares.append(covered(model, fresh).mean())
        freedoms.append(calibration(model.state_).freedom)
    assert 0.89 < np.mean(shares) < 0.93
    assert np.median(freedoms) < 15


def test_units_change_nothing():
    (X, y, tasks), (fresh, _, of) = simulated(0)
    first = fitted((X, y, tasks)).predict_interval(fresh, 0.8, tasks=of)
    scale, shift = np.array([1e-3, 20.0, 1.0]), np.array([5.0, -3.0, 0.0])
    other = fitted((X * scale + shift, 1e4 * y - 7.0, tasks)).predict_interval(fresh * scale + shift, 0.8, tasks=of)
    np.testing.assert_allclose((other + 7.0) / 1e4, first, rtol=1e-5, atol=1e-6)


def test_intervals_lie_about_predictions_and_grow_with_coverage():
    train, (X, _, tasks) = simulated(1)
    model = fitted(train)
    narrow, wide = model.predict_interval(X, 0.5, tasks=tasks), model.predict_interval(X, 0.99, tasks=tasks)
    np.testing.assert_allclose(narrow.mean(axis=1), model.predict(X, tasks=tasks))
    assert (wide[:, 0] < narrow[:, 0]).all()
    assert (narrow[:, 1] < wide[:, 1]).all()


def test_coverage_must_be_a_share():
    train, (X, _, tasks) = simulated(1)
    model = fitted(train)
    for wrong in (0.0, 1.0, 90):
        with pytest.raises(ParameterError, match="coverage must be between 0 and 1"):
            model.predict_interval(X, wrong, tasks=tasks)


# ---------------------------------------------------------------------- the calibration


def test_variance_of_held_out_rows_is_that_of_ridge_models_without_the_fold():
    # One task: the model without the fold is known in closed form.
    (X, y, _), _ = simulated(2, n=1, rows=40)
    model = GGMTLRegressor(validation=4).fit(X, y)
    state = model.state_
    joint, found = posterior_within(state), _held_out_variance(state)[0]
    precision = np.linalg.inv(joint.covariance[0])
    parts = state.folded().parts
    expected = [
        joint.noise * (part.count[0] + np.trace(np.linalg.inv(precision - part.gram[0]) @ part.gram[0]))
        for part in parts
    ]
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-6)


@pytest.mark.parametrize(("freedom", "expected"), [(np.inf, 2.0), (8.0, 3.5)])
def test_kurtosis_is_found_from_the_spread_of_folds(freedom, expected):
    rng = np.random.default_rng(0)
    errors = rng.standard_t(freedom, (5, 400, 8)) if np.isfinite(freedom) else rng.normal(size=(5, 400, 8))
    found = _kappa((errors**2).sum(axis=2), np.full((5, 400), 8.0))
    assert found == pytest.approx(expected, rel=0.15)


def test_variance_between_tasks_is_found_beyond_that_of_few_rows():
    rng = np.random.default_rng(0)
    true = np.exp(0.5 * rng.normal(size=2000))
    rows = rng.integers(5, 40, size=2000).astype(float)
    r = true * rng.chisquare(rows) / rows
    mean = np.average(r, weights=rows)
    expected = true.var() / true.mean() ** 2
    # Sampling variance is κc_i⁴/N_i, so it is larger for the mean of c_i⁴ than for c⁴.
    kappa = 2.0 * (true**2).mean() / true.mean() ** 2
    assert _variance_between(r / mean, rows, kappa) == pytest.approx(expected, rel=0.15)
    assert _variance_between(rng.chisquare(rows) / rows, rows, 2.0) < 0.02


def test_without_held_out_rows_intervals_are_those_of_the_posterior():
    (X, y, tasks), (fresh, _, of) = simulated(3)
    model = GGMTLRegressor().fit_statistics(TaskStatistics.from_arrays(X, y, tasks))
    fresh = pd.DataFrame(fresh, columns=model.feature_names_)
    low, high = model.predict_interval(fresh, tasks=of).T
    deviation = model.predict(fresh, of, return_std=True)[1]
    np.testing.assert_allclose(0.5 * (high - low), t.ppf(0.95, 1e6) * deviation, rtol=1e-5)


# ---------------------------------------------------------------------- files, unseen and added tasks, forms of input


def test_a_file_with_statistics_keeps_the_intervals(tmp_path):
    train, (X, _, tasks) = simulated(4)
    model = fitted(train)
    model.save(tmp_path / "m.ggmtl", keep_statistics=True)
    loaded = load_model(tmp_path / "m.ggmtl")
    expected = model.predict_interval(X, tasks=tasks)
    np.testing.assert_allclose(loaded.predict_interval(X, tasks=tasks), expected, rtol=1e-9, atol=1e-9)


def test_a_small_file_has_one_calibrated_length_per_task(tmp_path):
    shares = []
    for seed in range(4):
        train, fresh = simulated(seed)
        model = fitted(train)
        model.save(tmp_path / "m.ggmtl")
        loaded = load_model(tmp_path / "m.ggmtl")
        low, high = loaded.predict_interval(fresh[0], tasks=fresh[2]).T
        assert np.ptp((high - low).reshape(12, -1), axis=1).max() < 1e-9
        shares.append(covered(loaded, fresh).mean())
    assert 0.87 < np.mean(shares) < 0.94
    loaded.save(tmp_path / "again.ggmtl")
    again = load_model(tmp_path / "again.ggmtl").predict_interval(fresh[0], tasks=fresh[2])
    np.testing.assert_allclose(again, np.column_stack([low, high]), rtol=1e-3, atol=1e-3)
    with pytest.raises(InputError, match="return_std"):
        loaded.predict(fresh[0], fresh[2], return_std=True)


def test_a_task_added_to_a_model_has_the_calibration_of_unseen_ones(tmp_path):
    train, (X, y, _) = simulated(5)
    model = fitted(train)
    pooled = calibration(model.state_).factor[-1]
    model.add_task(99, X[:5], y[:5])
    assert calibration(model.state_).factor[-2:] == pytest.approx([pooled, pooled], rel=1e-6)
    model.save(tmp_path / "m.ggmtl")
    loaded = load_model(tmp_path / "m.ggmtl")
    loaded.add_task(100, X[:5], y[:5])
    low, high = loaded.predict_interval(X[:2], tasks=np.array([99, 100])).T
    assert (high > low).all()


def test_unseen_tasks_are_covered():
    shares = []
    for seed in range(8):
        (X, y, tasks), (fresh, target, of) = simulated(seed, n=40, rows=15)
        old, new = tasks < 30, of >= 30
        model = fitted((X[old], y[old], tasks[old]))
        with pytest.warns(UnseenTaskWarning):
            low, high = model.predict_interval(fresh[new], tasks=of[new], unseen="hub").T
        shares.append(((low <= target[new]) & (target[new] <= high)).mean())
    assert 0.85 < np.mean(shares) < 0.95
    with pytest.raises(InputError):
        model.predict_interval(fresh[new], tasks=of[new])


def test_unseen_tasks_in_a_table_have_intervals_about_their_predictions():
    rng = np.random.default_rng(0)
    height = rng.normal(size=30)
    tasks = np.repeat(np.arange(30), 12)
    X = rng.normal(size=(360, 2))
    y = X @ [1.0, -1.0] + 2.0 * height[tasks] + 0.5 * rng.normal(size=360)
    table = pd.DataFrame({"height": height}, index=np.arange(30))
    old = tasks < 25
    model = GGMTLRegressor().fit(X[old], y[old], tasks=tasks[old], task_features=table)
    low, high = model.predict_interval(X[~old], tasks=tasks[~old], task_features=table).T
    middle = model.predict(X[~old], tasks[~old], task_features=table)
    np.testing.assert_allclose(0.5 * (low + high), middle)
    assert ((low <= y[~old]) & (y[~old] <= high)).mean() > 0.75


def test_a_target_matrix_has_an_interval_for_every_column():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    Y = X @ rng.normal(size=(3, 5)) + rng.normal(size=(60, 5))
    model = GGMTLRegressor().fit(X, Y)
    found = model.predict_interval(X[:7])
    assert found.shape == (7, 5, 2)
    np.testing.assert_allclose(found.mean(axis=2), model.predict(X[:7]))
    low, high = np.moveaxis(model.predict_interval(X), 2, 0)
    assert 0.85 < ((low <= Y) & (high >= Y)).mean() < 0.97


def test_one_task_has_intervals():
    train, (X, y, _) = simulated(6, n=1, rows=60)
    model = GGMTLRegressor().fit(*train[:2])
    low, high = model.predict_interval(X).T
    assert 0.75 < ((low <= y) & (y <= high)).mean() <= 1.0
    assert noise_variance(model.state_) > 0


def test_targets_without_noise_have_intervals_of_no_length():
    (X, y, tasks), _ = simulated(7, noise=np.zeros(12))
    low, high = fitted((X, y, tasks)).predict_interval(X, tasks=tasks).T
    assert (high - low).max() < 1e-3 * y.std()


def test_the_mean_of_rows_lies_in_shorter_intervals():
    inside = []
    for seed in range(4):
        data = make_clusters(10, n_tasks=10, n_features=3, n_samples=20, random_state=seed)
        model = GGMTLRegressor(random_state=0).fit(data.X, data.y, tasks=data.tasks)
        low, high = model.predict_interval(data.test.X, 0.9, tasks=data.test.tasks, of="mean").T
        wide = np.diff(model.predict_interval(data.test.X, 0.9, tasks=data.test.tasks), axis=1)[:, 0]
        assert (high - low < wide).all()
        truth = (data.test.X * data.coefficients[data.test.tasks]).sum(axis=1)
        inside.append(((low < truth) & (truth < high)).mean())
    assert 0.84 < np.mean(inside) < 0.95


def test_levels_with_weight_bring_their_own_certainty():
    # E Var(w | level): with half of the weight on one model for all, half of the covariance is that of one model.
    rng = np.random.default_rng(4)
    tasks = np.repeat(np.arange(12), 8)
    X = rng.normal(size=(96, 2))
    model = GGMTLRegressor().fit(X, X @ [1.0, -1.0] + rng.normal(size=96), tasks=tasks)
    state = model.state_

    def within(weights):
        family = replace(state.family, weights=weights)
        return posterior_within(replace(state, family=family)).covariance

    alone, mixed, gram = within({"hub": 1.0}), within({"hub": 0.5, "pooled": 0.5}), state.folded().total
    residual = 2.0 * gram.value(state.family.levels["pooled"].coefficients) / (96 - 3)
    pooled = residual / noise_variance(state) * np.linalg.inv(gram.pooled()[0])
    np.testing.assert_allclose(mixed, 0.5 * alone + 0.5 * pooled, rtol=1e-6)


def test_one_task_without_noise_has_intervals(tmp_path):
    model = GGMTLRegressor().fit(np.array([[0.0], [1.0]]), [0.0, 0.0], tasks=["a", "a"])
    model.save(tmp_path / "m.ggmtl")
    for each in (model, load_model(tmp_path / "m.ggmtl")):
        assert np.isfinite(each.predict_interval([[0.0], [1.0]], tasks=["a", "a"])).all()
