"""A fitted model that is fitted again, gets more rows or more tasks: all or nothing, whatever was asked before."""

import copy
import warnings

import numpy as np
import pytest

from ggmtl import GGMTLRegressor, TaskStatistics, load_model
from ggmtl.datasets import make_clusters
from ggmtl.errors import InputError, ParameterError
from ggmtl.estimators import learning
from ggmtl.inspection import edge_stability


@pytest.fixture(scope="module")
def data():
    return make_clusters(3, n_tasks=12, n_features=3, n_samples=15, random_state=0)


@pytest.fixture
def model(data):
    return GGMTLRegressor().fit(data.X, data.y, tasks=data.tasks)


def interrupted(*_, **__):
    raise KeyboardInterrupt


# ---------------------------------------------------------------- all or nothing


def test_a_fit_that_fails_leaves_the_model_before(data, model):
    before = model.predict(data.X, tasks=data.tasks)
    model.set_params(penalty="nope")
    with pytest.raises(ParameterError, match="penalty"):
        model.fit(data.X[:60], data.y[:60], tasks=data.tasks[:60] + 100)
    assert model.tasks_.tolist() == list(range(12))
    np.testing.assert_array_equal(model.predict(data.X, tasks=data.tasks), before)
    with pytest.raises(InputError, match="100"):
        model.predict(data.X[:60], tasks=data.tasks[:60] + 100)


def test_a_first_fit_that_fails_leaves_nothing(data):
    model = GGMTLRegressor(penalty="nope")
    with pytest.raises(ParameterError):
        model.fit(data.X, data.y, tasks=data.tasks)
    assert not hasattr(model, "tasks_")


def test_rows_of_an_interrupted_call_are_not_counted(data, monkeypatch):
    old = data.tasks < 12
    old[-20:] = False
    model = GGMTLRegressor().fit(data.X[old], data.y[old], tasks=data.tasks[old])
    with monkeypatch.context() as patch:
        patch.setattr(learning, "fit_path", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.partial_fit(data.X[~old], data.y[~old], tasks=data.tasks[~old])
    assert model.state_.statistics.count.sum() == old.sum()
    model.partial_fit(data.X[~old], data.y[~old], tasks=data.tasks[~old])
    assert model.state_.statistics.count.sum() == len(old)


def test_nothing_of_an_earlier_fit_stays(data, model):
    model.set_params(hub=False).fit(data.X, data.y, tasks=data.tasks, groups=np.arange(len(data.y)))
    assert not hasattr(model, "hub_coef_")
    assert not hasattr(model, "hub_intercept_")
    assert model.state_.form.group_folds
    model.fit_statistics(TaskStatistics.from_arrays(data.X, data.y, data.tasks, folds=5))
    assert model.state_.form.group_folds is None
    assert model.state_.form.table_kind is None


def test_warnings_name_the_line_of_the_user(data):
    with pytest.warns() as caught:
        GGMTLRegressor(hub=False, coupling=1.0, edge_entropy=0.1, max_iter=1).fit(data.X, data.y, tasks=data.tasks)
    assert {warning.filename for warning in caught} == {__file__}


# ---------------------------------------------------------------- more tasks


def noisy(random, sizes=(30, 30, 30, 30, 30, 30), noise=(0.2, 0.2, 0.2, 2.0, 2.0, 2.0)):
    tasks = np.repeat(np.arange(len(sizes)), sizes)
    X = random.standard_normal((len(tasks), 2))
    own = random.standard_normal((len(sizes), 2))
    y = (X * own[tasks]).sum(axis=1) + np.array(noise)[tasks] * random.standard_normal(len(tasks))
    return X, y, tasks


@pytest.mark.parametrize("criterion", ["auto", "validation"])
def test_what_was_asked_before_a_task_came_does_not_matter(criterion):
    random = np.random.default_rng(0)
    X, y, tasks = noisy(random)
    asked = GGMTLRegressor(criterion=criterion).fit(X, y, tasks=tasks)
    silent = copy.deepcopy(asked)
    asked.coefficients(), asked.noise_, asked.predict(X[:3], tasks=tasks[:3], return_std=True)
    for each in (asked, silent):
        each.add_task(9, X[:12], 3.0 * y[:12])
    table, other = asked.coefficients(), silent.coefficients()
    np.testing.assert_allclose(table["standard_error"], other["standard_error"], rtol=1e-12)
    np.testing.assert_allclose(asked.noise_, silent.noise_, rtol=1e-12)
    spread = asked.predict(np.zeros((7, 2)), tasks=asked.tasks_, return_std=True)[1]
    assert (spread >= 0.999 * asked.noise_).all()
    assert (spread < 1.6 * asked.noise_).all()


def test_edges_of_all_levels_follow_a_task_that_comes_between(data, model):
    def pairs():
        return [
            {tuple(pair) for pair in model.tasks_[level.edges].tolist()}
            for name, level in model.state_.family.levels.items()
            if name != model.state_.family.chosen
        ]

    before = pairs()
    assert any(before)
    model.add_task(-1, data.X[:5], data.y[:5])
    assert pairs() == before


def test_a_new_task_may_have_a_constant_feature(data):
    X = np.column_stack([data.X, np.ones(len(data.X))])
    model = GGMTLRegressor().fit(X, data.y, tasks=data.tasks)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.add_task(50, X[:4], data.y[:4])
    assert np.isfinite(model.coef_).all()


# ---------------------------------------------------------------- more rows, one task per column


@pytest.fixture(scope="module")
def columns():
    random = np.random.default_rng(1)
    X = random.standard_normal((60, 2))
    return X, X @ random.standard_normal((2, 3)) + 0.3 * random.standard_normal((60, 3))


def test_a_single_target_is_no_row_of_the_first_task(columns):
    X, Y = columns
    model = GGMTLRegressor().fit(X, Y)
    for wrong in (Y[:, 0], Y[:, :2], np.column_stack([Y, Y[:, 0]])):
        with pytest.raises(InputError, match="the 3 columns that it had in fit"):
            model.partial_fit(X, wrong)
    assert model.partial_fit(X, Y).state_.statistics.count.tolist() == [120.0] * 3
    with pytest.raises(InputError, match="the one dimension that it had in fit"):
        GGMTLRegressor().fit(X, Y[:, 0]).partial_fit(X, Y)


@pytest.mark.parametrize("label", [3, 9])
def test_columns_of_fit_stay_welcome_after_a_task_came(columns, tmp_path, label):
    X, Y = columns
    model = GGMTLRegressor().fit(X, Y)
    model.add_task(label, X[:5], Y[:5, 0])
    for _ in range(2):
        model.partial_fit(X, Y)
    model.save(tmp_path / "model.ggmtl", keep_statistics=True)
    loaded = load_model(tmp_path / "model.ggmtl").partial_fit(X, Y, relearn=False)
    assert loaded.state_.statistics.count.tolist() == [240.0, 240.0, 240.0, 5.0]
    with pytest.raises(InputError, match="the 3 columns"):
        loaded.partial_fit(X, Y[:, 0])


def test_a_task_without_rows_is_as_noisy_as_the_mean_of_all():
    X, y, tasks = noisy(np.random.default_rng(0))
    model = GGMTLRegressor(criterion="validation").fit(X, y, tasks=tasks)
    mean = np.sqrt(np.mean(model.noise_**2))
    assert model.add_task(9).noise_[-1] == pytest.approx(mean, rel=0.02)


def test_rows_of_a_matrix_that_come_again_stay_in_their_folds(columns):
    X, Y = columns
    model = GGMTLRegressor().fit(X, Y)
    before = model.state_.statistics.cross.copy()
    model.partial_fit(X[::-1], Y[::-1], relearn=False)
    np.testing.assert_allclose(model.state_.statistics.cross, 2.0 * before, rtol=1e-9, atol=1e-9)


# ---------------------------------------------------------------- stability takes what fit takes


def test_stability_takes_weights_and_groups(data, model):
    def frequency(rows=slice(None), **more):
        X, y, tasks = data.X[rows], data.y[rows], data.tasks[rows]
        found = edge_stability(model, X, y, n_resamples=3, tasks=tasks, verbose=0, **more)
        return dict(zip(map(tuple, found.edges.tolist()), found.frequency))

    some = np.arange(len(data.y)) % 3 > 0
    assert frequency(sample_weight=some.astype(float)) == frequency(some) != frequency()
    # One group for every task: its rows are always drawn together.
    together = edge_stability(model, data.X, data.y, 3, data.tasks, verbose=0, groups=data.tasks)
    assert (together.frequency % 1.0 == 0.0).all()


def test_task_labels_in_the_place_of_a_number_are_told_where_to_go(data, model):
    with pytest.raises(ParameterError, match="task labels go to tasks="):
        edge_stability(model, data.X, data.y, data.tasks)
