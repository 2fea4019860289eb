"""GGMTLRegressor(loss="poisson"): exposure, dispersion, and what is refused."""

import numpy as np
import pytest
from sklearn.metrics import mean_poisson_deviance

from ggmtl import GGMTLRegressor, TaskStatistics, load_model
from ggmtl.errors import InputError, ParameterError
from ggmtl.inspection import explain_edge, transfer_report


def make_counts(dispersion=None, n_tasks=20, n_rows=30, seed=0):
    """Rates that differ between tasks by a factor of about two; gamma noise where there is a dispersion."""
    rng = np.random.default_rng(seed)
    tasks = np.repeat(np.arange(n_tasks), n_rows)
    X = rng.standard_normal((len(tasks), 2))
    models = np.array([0.5, -0.3]) + 0.2 * rng.standard_normal((n_tasks, 2))
    level = 1.0 + 0.7 * rng.standard_normal(n_tasks)
    exposure = rng.uniform(0.2, 5.0, len(tasks))
    mean = exposure * np.exp((X * models[tasks]).sum(axis=1) + level[tasks])
    if dispersion is not None:
        shape = mean / (dispersion - 1.0)
        mean = rng.gamma(shape, mean / shape)
    return X, rng.poisson(mean).astype(float), tasks, exposure


@pytest.fixture(scope="module")
def rows():
    return make_counts()


@pytest.fixture(scope="module")
def model(rows):
    X, y, tasks, exposure = rows
    return GGMTLRegressor(loss="poisson").fit(X, y, tasks=tasks, exposure=exposure)


def test_predictions_are_rates_times_the_exposure(model, rows):
    X, _, tasks, exposure = rows
    rate = np.exp((X * model.coef_[tasks]).sum(axis=1) + model.intercept_[tasks])
    np.testing.assert_allclose(model.predict(X, tasks=tasks), rate)
    np.testing.assert_allclose(model.predict(X, tasks=tasks, exposure=exposure), rate * exposure)
    _, deviation = model.predict(X, tasks=tasks, exposure=exposure, return_std=True)
    assert (deviation >= np.sqrt(rate * exposure)).all()


def test_a_value_far_outside_the_training_rows_counts_as_the_end_of_their_range(model, rows, tmp_path):
    """Half of the range is added at each end."""
    X = rows[0]
    low, high = X[:, 0].min(), X[:, 0].max()
    ends = low - 0.5 * (high - low), high + 0.5 * (high - low)
    at = np.array([[ends[0] - 30.0, 0.0], [ends[0], 0.0], [ends[1], 0.0], [ends[1] + 1e6, 0.0], [1.01 * high, 0.0]])
    model.save(tmp_path / "counts.ggmtl")
    for each in (model, load_model(tmp_path / "counts.ggmtl")):
        rate = each.predict(at, tasks=np.zeros(5, dtype=int))
        np.testing.assert_allclose(rate[[0, 3]], rate[[1, 2]], rtol=1e-12)
        np.testing.assert_allclose(rate[1:3], np.exp(at[1:3] @ each.coef_[0] + each.intercept_[0]), rtol=1e-9)
        np.testing.assert_allclose(rate[4], np.exp(at[4] @ each.coef_[0] + each.intercept_[0]), rtol=1e-12)
    assert np.isfinite(model.predict_interval(at, tasks=np.zeros(5, dtype=int))).all()


def test_coefficients_are_found(model):
    rng = np.random.default_rng(0)
    rng.standard_normal((600, 2))
    models = np.array([0.5, -0.3]) + 0.2 * rng.standard_normal((20, 2))
    assert np.abs(model.coef_ - models).mean() < 0.1
    assert model.dispersion_ == 1.0


def test_the_score_is_the_share_of_the_deviance_that_is_explained(model, rows):
    X, y, tasks, exposure = rows
    ours = mean_poisson_deviance(y, model.predict(X, tasks=tasks, exposure=exposure))
    null = mean_poisson_deviance(y, exposure * y.sum() / exposure.sum())
    np.testing.assert_allclose(model.score(X, y, tasks=tasks, exposure=exposure), 1 - ours / null)


def test_the_unit_of_the_exposure_moves_the_intercept_alone(model, rows):
    X, y, tasks, exposure = rows
    other = GGMTLRegressor(loss="poisson").fit(X, y, tasks=tasks, exposure=1000.0 * exposure)
    np.testing.assert_allclose(other.coef_, model.coef_, atol=1e-4)
    np.testing.assert_allclose(other.intercept_, model.intercept_ - np.log(1000.0), atol=1e-3)


def test_the_held_out_deviance_is_that_of_fresh_rows(model):
    X, y, tasks, exposure = make_counts(n_rows=200)
    # The models of both are drawn alike only for the same seed and number of rows, so the scale alone is compared.
    assert 0.5 < model.validation_error_ < 2.0
    assert model.predict(X, tasks=tasks, exposure=exposure).shape == y.shape


def test_dispersion_is_learned_where_counts_vary_more():
    X, y, tasks, exposure = make_counts(dispersion=4.0, n_rows=60)
    model = GGMTLRegressor(loss="poisson").fit(X, y, tasks=tasks, exposure=exposure)
    assert 3.0 < model.dispersion_ < 5.0
    assert "times that of Poisson counts" in model.summary()


def test_a_saved_model_predicts_the_same_and_grows(model, rows, tmp_path):
    X, y, tasks, _ = rows
    model.save(tmp_path / "counts.ggmtl")
    copy = load_model(tmp_path / "counts.ggmtl")
    np.testing.assert_array_equal(copy.predict(X, tasks=tasks), model.predict(X, tasks=tasks))
    copy.add_task(77, X[:5], y[:5])
    assert copy.predict(X[:2], tasks=[77, 77]).shape == (2,)


def test_exposure_and_counts_are_checked(rows):
    X, y, tasks, exposure = rows
    counts = GGMTLRegressor(loss="poisson")
    with pytest.raises(InputError, match="row 3"):
        counts.fit(X, np.where(np.arange(len(y)) == 3, -1.0, y), tasks=tasks)
    with pytest.raises(InputError, match="exposure must be positive"):
        counts.fit(X, y, tasks=tasks, exposure=exposure - exposure.min())
    with pytest.raises(InputError, match="one entry per row"):
        counts.fit(X, y, tasks=tasks, exposure=exposure[:5])
    with pytest.raises(ParameterError, match="poisson"):
        GGMTLRegressor().fit(X, y, tasks=tasks, exposure=exposure)
    with pytest.raises(ParameterError, match="loss"):
        GGMTLRegressor(loss="hinge").fit(X, y, tasks=tasks)


@pytest.mark.parametrize("unit", [1e-300, 1e-9, 1e9, 1e300])
def test_no_unit_of_the_exposure_is_too_large_or_too_small(model, rows, unit):
    X, y, tasks, exposure = rows
    other = GGMTLRegressor(loss="poisson").fit(X, y, tasks=tasks, exposure=unit * exposure)
    expected = model.predict(X, tasks=tasks, exposure=exposure)
    np.testing.assert_allclose(other.predict(X, tasks=tasks, exposure=unit * exposure), expected, rtol=1e-5)
    assert other.validation_error_ == pytest.approx(model.validation_error_, rel=1e-5)


def test_levels_are_weighed_by_rows_whatever_the_size_of_counts(rows):
    X, y, tasks, exposure = rows
    large = GGMTLRegressor(loss="poisson").fit(X, 1e9 * y, tasks=tasks, exposure=exposure)
    # The optimizer must not stop where it starts: a fifth of the weight shared by all levels.
    start = {0.8 + 0.2 / len(large.path_), 0.2 / len(large.path_)}
    assert not {round(weight, 6) for weight in large.blend_.values()} <= {round(each, 6) for each in start}
    assert large.score(X, 1e9 * y, tasks=tasks, exposure=exposure) > 0.8


def test_a_task_is_added_with_its_exposure(rows):
    X, y, tasks, exposure = rows
    old, new = tasks != 3, tasks == 3
    model = GGMTLRegressor(loss="poisson", validation=None).fit(
        X[old], y[old], tasks=tasks[old], exposure=exposure[old]
    )
    model.add_task(3, X[new], y[new], exposure=1e-9 * exposure[new])
    predicted = model.predict(X[new], tasks=tasks[new], exposure=1e-9 * exposure[new])
    assert predicted.sum() == pytest.approx(y[new].sum(), rel=0.1)
    with pytest.raises(ParameterError, match="exposure"):
        GGMTLRegressor(validation=None).fit(X, y, tasks=tasks).add_task(99, X[:3], y[:3], exposure=exposure[:3])


def test_the_fitted_loss_counts_and_not_what_the_parameter_says_later(rows):
    X, y, tasks, _ = rows
    for first, then in (("poisson", "squared"), ("squared", "poisson")):
        model = GGMTLRegressor(loss=first, validation=None).fit(X, y, tasks=tasks)
        predicted, score = model.predict(X, tasks=tasks), model.score(X, y, tasks=tasks)
        model.set_params(loss=then)
        np.testing.assert_array_equal(model.predict(X, tasks=tasks), predicted)
        assert model.score(X, y, tasks=tasks) == score


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"exposure": ["much"]}, "exposure must be an array of numbers"),
        ({"exposure": [1e-200, 1e200]}, "vary"),
        ({"sample_weight": ["twice"]}, "sample_weight must be an array of numbers"),
    ],
)
def test_text_and_extremes_are_refused_by_name(rows, given, match):
    X, y, tasks, _ = rows
    given = {name: np.resize(values, len(y)) for name, values in given.items()}
    with pytest.raises(InputError, match=match):
        GGMTLRegressor(loss="poisson").fit(X, y, tasks=tasks, **given)


@pytest.mark.parametrize("unit", [1e-100, 1e100])
def test_counts_of_a_size_that_no_count_has_are_refused(rows, unit):
    X, y, tasks, _ = rows
    with pytest.raises(InputError, match="largest value"):
        GGMTLRegressor(loss="poisson").fit(X, unit * y, tasks=tasks)


def test_a_score_without_a_deviance_is_refused(model, rows):
    X, y, tasks, _ = rows
    for given in ({"y": 0 * y}, {"y": y, "sample_weight": 0 * y}):
        with pytest.raises(InputError, match="no deviance"):
            model.score(X, tasks=tasks, **given)


def test_rows_of_weight_zero_need_an_exposure_but_do_not_count(rows):
    X, y, tasks, exposure = rows
    weight = np.ones(len(y))
    weight[::7] = 0.0
    kept = weight > 0
    some = GGMTLRegressor(loss="poisson", validation=None).fit(
        X, y, tasks=tasks, exposure=exposure, sample_weight=weight
    )
    rest = GGMTLRegressor(loss="poisson", validation=None).fit(
        X[kept], y[kept], tasks=tasks[kept], exposure=exposure[kept]
    )
    np.testing.assert_allclose(some.coef_, rest.coef_)


def test_what_needs_sums_is_refused_with_the_reason(model, rows):
    X, y, tasks, _ = rows
    with pytest.raises(InputError, match="sums of the rows"):
        GGMTLRegressor(loss="poisson").fit_statistics(TaskStatistics.from_arrays(X, y, tasks))
    with pytest.raises(InputError, match="sums of the rows"):
        model.partial_fit(X, y, tasks=tasks)
    with pytest.raises(AttributeError, match="dispersion_"):
        _ = model.noise_


def test_intervals_hold_new_counts_and_true_rates():
    inside = {"target": [], "mean": []}
    for seed in range(6):
        X, y, tasks, exposure = make_counts(n_rows=200, seed=seed)
        train = np.arange(len(y)) % 200 < 30
        model = GGMTLRegressor(loss="poisson").fit(X[train], y[train], tasks=tasks[train], exposure=exposure[train])
        new, seen = ~train, {"tasks": tasks[~train], "exposure": exposure[~train]}
        low, high = model.predict_interval(X[new], 0.9, **seen).T
        inside["target"].append(((low <= y[new]) & (y[new] <= high)).mean())
        rng = np.random.default_rng(seed)
        rng.standard_normal((4000, 2))
        models, level = np.array([0.5, -0.3]) + 0.2 * rng.standard_normal((20, 2)), 1.0 + 0.7 * rng.standard_normal(20)
        truth = exposure[new] * np.exp((X[new] * models[tasks[new]]).sum(axis=1) + level[tasks[new]])
        low, high = model.predict_interval(X[new], 0.9, of="mean", **seen).T
        inside["mean"].append(((low < truth) & (truth < high)).mean())
    # Counts are whole numbers, so intervals of them hold a little more than asked for.
    assert 0.88 < np.mean(inside["target"]) < 0.97
    assert 0.84 < np.mean(inside["mean"]) < 0.95


def test_questions_are_answered_in_deviances(model):
    a, b = model.tasks_[:2]
    explanation = explain_edge(model, a, b)
    assert explanation.measure == "deviance"
    assert explanation.total_error == pytest.approx(model.validation_error_, rel=0.1)
    assert "Mean Poisson deviance on held-out rows" in transfer_report(model).describe()
    effect = model.effect(0, [0.0, 1.0])
    assert np.diff(effect["effect"])[0] == pytest.approx(model.hub_coef_[0])
    assert (np.asarray(effect["standard_error"]) > 0).all()
