"""Curves: the basis, and models that use it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.interpolate import make_lsq_spline
from sklearn.base import clone

from ggmtl import GGMTLRegressor, TaskStatistics, load_model
from ggmtl.data.curves import Curves
from ggmtl.errors import InputError, ParameterError
from ggmtl.inference.uncertainty import posterior


def bent_rows(seed: int = 0, n_tasks: int = 8, rows: int = 30) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One feature with a curve, one straight, one with two values."""
    rng = np.random.default_rng(seed)
    tasks = np.repeat(np.arange(n_tasks), rows)
    X = np.column_stack(
        [rng.uniform(2.0, 8.0, len(tasks)), rng.normal(size=len(tasks)), rng.integers(0, 2, len(tasks))]
    )
    level, slope = rng.normal(size=n_tasks)[tasks], 1.0 + 0.2 * rng.normal(size=n_tasks)[tasks]
    y = level + slope * np.sin(X[:, 0]) + 0.5 * X[:, 1] + X[:, 2] + 0.1 * rng.normal(size=len(tasks))
    return X, y, tasks


# ---------------------------------------------------------------------- the basis


def test_columns_have_no_mean_no_trend_and_unit_size():
    X = bent_rows()[0]
    columns = Curves.of_rows(X).columns(X)
    for k in (0, 1):
        own = columns[:, 3 * k : 3 * k + 3]
        line = np.column_stack([np.ones(len(X)), X[:, k]])
        np.testing.assert_allclose(line.T @ own / len(X), 0.0, atol=1e-12)
        np.testing.assert_allclose(own.T @ own / len(X), np.eye(3), atol=1e-12)


def test_columns_are_cubic_splines_with_the_knots():
    x = bent_rows()[0][:, :1]
    curves = Curves.of_rows(x)
    knots, order = curves.knots[0], np.argsort(x[:, 0])
    t = np.concatenate([[knots[0]] * 3, knots, [knots[-1]] * 3])
    columns = curves.columns(x)[order]
    refit = make_lsq_spline(x[order, 0], columns, t, k=3)
    np.testing.assert_allclose(refit(x[order, 0]), columns, atol=1e-10)


def test_few_values_have_no_curve():
    X = np.column_stack([np.arange(90) % 8, np.arange(90) % 9, np.arange(90) % 2]).astype(float)
    assert Curves.of_rows(X).features.tolist() == [1]


@pytest.mark.parametrize(
    "x", [np.r_[np.zeros(500), np.arange(1.0, 9.0)], np.random.default_rng(0).lognormal(0, 3, 400)]
)
def test_columns_exist_where_values_are_uneven(x):
    curves = Curves.of_rows(x[:, None])
    columns = curves.columns(x[:, None])
    assert np.isfinite(columns).all()
    np.testing.assert_allclose(columns.T @ columns / len(x), np.eye(3), atol=1e-8)


def test_columns_do_not_change_with_the_units():
    X = bent_rows()[0]
    units, origin = np.array([1e-3, 25.4, 2.0]), np.array([4.0, -300.0, 1.0])
    other = X * units + origin
    np.testing.assert_allclose(Curves.of_rows(other).columns(other), Curves.of_rows(X).columns(X), atol=1e-9)


def test_weights_equal_repetition():
    X = bent_rows()[0]
    weight = np.random.default_rng(1).integers(1, 4, len(X))
    weighted, repeated = Curves.of_rows(X, weight.astype(float)), Curves.of_rows(np.repeat(X, weight, axis=0))
    np.testing.assert_array_equal(weighted.knots, repeated.knots)
    np.testing.assert_allclose(weighted.columns(X), repeated.columns(X), atol=1e-12)


def test_columns_go_on_as_straight_lines():
    x = bent_rows()[0][:, :1]
    curves = Curves.of_rows(x)
    for end, step in ((x.min(), -1.0), (x.max(), 1.0)):
        at = curves.columns(np.array([[end], [end + step], [end + 2 * step], [end + 40 * step]]))
        np.testing.assert_allclose(at[2] - at[1], at[1] - at[0], atol=1e-10)
        np.testing.assert_allclose(at[3] - at[0], 40 * (at[1] - at[0]), rtol=1e-10)
        inside = curves.columns(np.array([[end - 1e-6 * step]]))[0]
        np.testing.assert_allclose((at[0] - inside) / 1e-6, at[1] - at[0], rtol=1e-4, atol=1e-4)


def test_bends_have_neither_mean_nor_mean_slope():
    X = bent_rows()[0][:, :2]
    curves, step = Curves.of_rows(X), 1e-5
    np.testing.assert_allclose(curves.bends(X).mean(axis=0), 0.0, atol=1e-12)
    slope = (curves.bends(X + step) - curves.bends(X - step)).mean(axis=0) / (2 * step)
    np.testing.assert_allclose(slope, 0.0, atol=1e-5)


# ---------------------------------------------------------------------- models


@pytest.fixture(scope="module")
def fitted():
    X, y, tasks = bent_rows()
    return GGMTLRegressor(effects="smooth", random_state=0).fit(X, y, tasks=tasks), X, y, tasks


def test_curves_predict_what_lines_cannot(fitted):
    model, X, y, tasks = fitted
    new, truth, groups = bent_rows()
    assert model.validation_error_ < 0.15
    assert GGMTLRegressor(random_state=0).fit(X, y, tasks=tasks).validation_error_ > 0.5
    assert np.sqrt(np.mean((model.predict(new, tasks=groups) - truth) ** 2)) < 0.12


def test_coef_is_the_mean_slope_over_the_training_rows(fitted):
    model, X, _, _ = fitted
    for i, task in enumerate(model.tasks_):
        same = np.full(len(X), task)
        for k, step in enumerate((1e-5, 1e-5, 1.0)):
            move = step * (np.arange(3) == k)
            up, down = model.predict(X + move, tasks=same), model.predict(X - move, tasks=same)
            np.testing.assert_allclose((up - down).mean() / (2 * step), model.coef_[i, k], rtol=1e-4, atol=1e-5)
        expected = model.predict(X, tasks=same).mean() - model.coef_[i] @ X.mean(axis=0)
        np.testing.assert_allclose(model.intercept_[i], expected, rtol=1e-9)


def test_effects_and_the_mean_prediction_add_up_to_the_prediction(fitted):
    model, X, _, _ = fitted
    for task in model.tasks_[:3]:
        effects = [
            np.asarray(model.effect(name, X[:, k], task=task)["effect"]) for k, name in enumerate(("x0", "x1", 2))
        ]
        prediction = model.predict(X, tasks=np.full(len(X), task))
        np.testing.assert_allclose(np.sum(effects, axis=0) + prediction.mean(), prediction, rtol=1e-9)
        np.testing.assert_allclose([effect.mean() for effect in effects], 0.0, atol=1e-9)


def test_common_effect_is_the_mean_over_tasks(fitted):
    model, X, *_ = fitted
    each = [np.asarray(model.effect(0, X[:20, 0], task=task)["effect"]) for task in model.tasks_]
    common = model.effect("x0", X[:20, 0])
    np.testing.assert_allclose(np.asarray(common["effect"]), np.mean(each, axis=0), rtol=1e-9)
    assert (np.asarray(common["standard_error"]) > 0).all()


def test_standard_error_of_an_effect_is_that_of_its_prediction(fitted):
    """For one task, the variance of f(a) − f(b) from the joint posterior of two design rows."""
    model = fitted[0]

    joint = posterior(model.state_)
    grid = np.array([3.0, 5.0])
    rows = model.scaling_.effect_rows(0, grid) / model.scaling_.target_scale
    points = np.zeros((2, 3))
    points[:, 0] = grid
    design = model.scaling_.design_rows(points)
    np.testing.assert_allclose(rows[1] - rows[0], design[1] - design[0], atol=1e-12)
    shown = np.asarray(model.effect(0, grid, task=model.tasks_[2])["standard_error"])
    expected = np.sqrt(joint.noise * np.einsum("rp,pq,rq->r", rows, joint.covariance[2], rows))
    np.testing.assert_allclose(shown, expected * model.scaling_.target_scale, rtol=1e-9)


def test_results_do_not_change_with_the_units(fitted):
    model, X, y, tasks = fitted
    units = np.array([100.0, 0.01, 3.0])
    other = clone(model).fit(X * units + 7.0, 1000.0 * y - 5.0, tasks=tasks)
    np.testing.assert_allclose(other.coef_ * units / 1000.0, model.coef_, rtol=1e-4, atol=1e-6)
    grid = np.linspace(0.0, 10.0, 7)
    ours, theirs = model.effect(0, grid), other.effect(0, 100.0 * grid + 7.0)
    np.testing.assert_allclose(np.asarray(theirs["effect"]) / 1000.0, np.asarray(ours["effect"]), rtol=1e-4, atol=1e-5)


def test_without_features_of_many_values_smooth_is_linear():
    X, y, tasks = bent_rows()
    X = np.round(X[:, 1:])
    line, curve = (GGMTLRegressor(effects=e, random_state=0).fit(X, y, tasks=tasks) for e in ("linear", "smooth"))
    np.testing.assert_array_equal(line.coef_, curve.coef_)
    assert line.validation_error_ == curve.validation_error_


def test_infinitely_strong_hub_is_the_pooled_curve():
    from ggmtl.evidence.hub import hub_evidence
    from ggmtl.fit.levels import pooled_level

    X, y, tasks = bent_rows()
    state = GGMTLRegressor(effects="smooth", random_state=0).fit(X, y, tasks=tasks).state_
    loss = state.folded().total
    tied = hub_evidence(loss, np.full(loss.n_features, 1e9)).coefficients
    np.testing.assert_allclose(tied, pooled_level(loss, state.settings).coefficients, atol=1e-5)


def test_shown_strengths_are_those_of_lines_and_intercept(fitted):
    model = fitted[0]
    assert model.coef_.shape == (8, 3)
    assert model.hub_strength_.shape == model.coupling_.shape == (4,)
    assert model.state_.coefficients.shape == (8, 3 + 6 + 1)


def test_saved_curves_predict_the_same(fitted, tmp_path):
    model, X, _, tasks = fitted
    for keep in (False, True):
        model.save(tmp_path / "m.ggmtl", keep_statistics=keep)
        copy = load_model(tmp_path / "m.ggmtl")
        np.testing.assert_array_equal(copy.predict(X + 2.0, tasks=tasks), model.predict(X + 2.0, tasks=tasks))
        np.testing.assert_array_equal(copy.coef_, model.coef_)
    np.testing.assert_allclose(copy.predict(X, tasks, True)[1], model.predict(X, tasks, True)[1], rtol=1e-9)
    np.testing.assert_array_equal(copy.effect("x0", [3.0])["effect"], model.effect("x0", [3.0])["effect"])


def test_a_task_added_later_has_a_curve(fitted):
    model, X, y, tasks = fitted
    kept = tasks < 7
    grown = clone(model).fit(X[kept], y[kept], tasks=tasks[kept])
    grown.add_task(7, X[~kept][:6], y[~kept][:6])
    rest = X[~kept][6:], y[~kept][6:], tasks[~kept][6:]
    assert np.sqrt(np.mean((grown.predict(rest[0], tasks=rest[2]) - rest[1]) ** 2)) < 0.3
    grown.add_task(8)
    common = np.asarray(grown.effect("x0", [3.0, 6.0])["effect"])
    np.testing.assert_allclose(np.asarray(grown.effect("x0", [3.0, 6.0], task=8)["effect"]), common, rtol=1e-9)


def test_more_rows_are_learned_with_the_same_knots(fitted):
    model, X, y, tasks = fitted
    first = np.random.default_rng(0).random(len(X)) < 0.5
    grown = clone(model).fit(X[first], y[first], tasks=tasks[first])
    knots = grown.scaling_.curves.knots
    grown.partial_fit(X[~first], y[~first], tasks=tasks[~first], relearn=False)
    assert np.sqrt(np.mean((grown.predict(X, tasks=tasks) - y) ** 2)) < 0.15
    grown.partial_fit(X[~first], y[~first], tasks=tasks[~first])
    np.testing.assert_array_equal(grown.scaling_.curves.knots, knots)
    assert np.sqrt(np.mean((grown.predict(X, tasks=tasks) - y) ** 2)) < 0.15


def test_what_curves_do_not_go_with_is_refused():
    X, y, tasks = bent_rows()
    statistics = TaskStatistics.from_arrays(X, y, tasks)
    with pytest.raises(InputError, match="needs the sums of curves"):
        GGMTLRegressor(effects="smooth").fit_statistics(statistics)
    for given, message in (
        ({"effects": "cubic"}, "effects must be"),
        ({"effects": "smooth", "fit_intercept": False}, "fit_intercept"),
        ({"effects": "auto", "device": "cuda"}, "CPU"),
        ({"effects": "smooth", "loss": "poisson"}, "straight lines only"),
        ({"effects": "smooth", "coupling": [1.0, 1.0, 1.0, 1.0]}, "one coupling"),
    ):
        with pytest.raises(ParameterError, match=message):
            GGMTLRegressor(**given).fit(X, np.abs(y), tasks=tasks)


def test_an_effect_of_no_feature_or_task_is_refused(fitted):
    model = fitted[0]
    with pytest.raises(InputError, match="no feature 'x9'"):
        model.effect("x9")
    with pytest.raises(InputError, match="out of range"):
        model.effect(3)
    with pytest.raises(InputError, match="no task 77"):
        model.effect("x0", task=77)
    with pytest.raises(InputError, match="finite"):
        model.effect("x0", [np.nan])
