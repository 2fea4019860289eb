"""Features that are constant within every task: one coefficient for all, no reason for a link, marked in words."""

import numpy as np
import pytest

from ggmtl import GGMTLRegressor, TaskStatistics, load_model
from ggmtl.inspection.summary.collect import summarize

N_TASKS, N_ROWS = 24, 12


def rows(seed, effect=2.0, groups=1):
    """Tasks whose intercepts follow a feature z that is constant within each; with groups, two kinds of slopes."""
    rng = np.random.default_rng(seed)
    tasks = np.repeat(np.arange(N_TASKS), N_ROWS)
    z = rng.normal(size=N_TASKS)
    X = rng.normal(size=(len(tasks), 3))
    centre = np.array([[1.0, 0.5, -1.0], [-1.0, 1.5, 1.0]])[np.arange(N_TASKS) % groups]
    slopes, level = centre + 0.2 * rng.normal(size=(N_TASKS, 3)), 0.3 * rng.normal(size=N_TASKS)
    y = (X * slopes[tasks]).sum(axis=1) + level[tasks] + effect * z[tasks] + 0.5 * rng.normal(size=len(tasks))
    return np.insert(X, 1, z[tasks], axis=1), y, tasks, z


@pytest.fixture(scope="module")
def fitted():
    X, y, tasks, _ = rows(0)
    return GGMTLRegressor().fit(X, y, tasks=tasks)


def test_it_has_one_coefficient_which_is_the_effect_between_tasks(fitted):
    assert np.ptp(fitted.coef_[:, 1]) < 1e-12 * np.abs(fitted.coef_[:, 1]).max()
    assert np.ptp(fitted.coef_[:, 0]) > 0.1
    # Separate models leave the effect to their intercepts.
    shared = 1.0 - fitted.blend_.get("independent", 0.0)
    assert fitted.coef_[0, 1] / shared == pytest.approx(2.0, abs=0.25)


def test_it_is_found_from_sums_too_and_again_in_a_file(fitted, tmp_path):
    X, y, tasks, _ = rows(0)
    sums = GGMTLRegressor().fit_statistics(TaskStatistics.from_arrays(X, y, tasks, folds=np.arange(len(y)) % 5))
    assert sums.state_.settings.constant.tolist() == [False, True, False, False, False]
    fitted.save(tmp_path / "model.ggmtl")
    assert load_model(tmp_path / "model.ggmtl").state_.settings.constant.tolist() == [False, True, False, False, False]


def test_what_intercepts_follow_already_changes_no_other_slope():
    # z explains nothing: with it and without it the slopes are the same but for its one coefficient near zero.
    X, y, tasks, z = rows(1, effect=0.0)
    with_it = GGMTLRegressor(blend=False).fit(X, y, tasks=tasks)
    without = GGMTLRegressor(blend=False).fit(np.delete(X, 1, axis=1), y, tasks=tasks)
    np.testing.assert_allclose(np.delete(with_it.coef_, 1, axis=1), without.coef_, atol=0.02)
    np.testing.assert_allclose(with_it.intercept_ + with_it.coef_[0, 1] * z, without.intercept_, atol=0.05)


@pytest.mark.parametrize("seed", range(3))
def test_its_units_and_its_sign_change_no_prediction(seed):
    X, y, tasks, _ = rows(seed)
    other = X.copy()
    other[:, 1] = 40.0 - 1e3 * X[:, 1]
    # Rows are dealt into folds by their content.
    folds = np.arange(len(y)) % 5
    sums = [TaskStatistics.from_arrays(each, y, tasks, folds=folds) for each in (X, other)]
    models = [GGMTLRegressor().fit_statistics(each) for each in sums]
    told = [
        (each * model.coef_[tasks]).sum(axis=1) + model.intercept_[tasks] for each, model in zip((X, other), models)
    ]
    np.testing.assert_allclose(*told, atol=1e-5)


def test_it_neither_makes_nor_hides_clusters_of_slopes():
    X, y, tasks, _ = rows(2, effect=5.0, groups=2)
    graphs = [GGMTLRegressor().fit(each, y, tasks=tasks).graph_ for each in (X, np.delete(X, 1, axis=1))]
    for graph in graphs:
        assert graph.n_edges
        assert (graph.edges[:, 0] % 2 == graph.edges[:, 1] % 2).all()
    # Two values of a feature that is constant within tasks are no clusters.
    X, y, tasks, z = rows(3, effect=0.0)
    X[:, 1], kind = (z > 0)[tasks], 3.0 * (z > 0)
    assert GGMTLRegressor().fit(X, y + kind[tasks], tasks=tasks).graph_.n_edges == 0


def test_summary_and_page_mark_it(fitted):
    words = {entry["feature"]: entry["word"] for entry in summarize(fitted)["sharing"]}
    assert words["x1"] == "constant within tasks"
    assert "One coefficient for all tasks, because the feature is constant within every task: x1." in str(
        fitted.summary()
    )


def test_where_most_tasks_have_one_row_no_feature_is_told_to_be_constant():
    rng = np.random.default_rng(0)
    tasks = np.append(np.arange(20), 0)
    X, y = rng.normal(size=(21, 2)), rng.normal(size=21)
    assert not GGMTLRegressor().fit(X, y, tasks=tasks).state_.settings.constant.any()


def test_without_a_common_model_as_in_the_paper_nothing_is_shared():
    X, y, tasks, _ = rows(0)
    settings = GGMTLRegressor.paper(coupling=1.0, max_iter=20, tol=1.0).fit(X, y, tasks=tasks).state_.settings
    assert not len(settings.constant)
