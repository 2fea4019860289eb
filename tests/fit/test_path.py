"""The family of levels: honest errors and the choice."""

from dataclasses import replace

import numpy as np
import pytest

from ggmtl import KNN, GGMTLRegressor, load_model
from ggmtl.baselines import HubRegressor, IndependentRegressor, PooledRegressor
from ggmtl.bilevel.level import GraphFit
from ggmtl.data.folds import deal_folds
from ggmtl.datasets import make_clusters, make_line
from ggmtl.fit.family import by_evidence, by_name, choose
from ggmtl.fit.held_out import FoldErrors
from ggmtl.fit.levels import hub_level, independent_level, learn_levels, pooled_level
from ggmtl.fit.path import _renamed, _without_repetitions
from ggmtl.statistics.least_squares import FoldedLoss
from ggmtl.statistics.scaling import Scaling
from ggmtl.statistics.task_statistics import TaskStatistics
from made import folded_of, settings_of


@pytest.fixture(scope="module")
def errors() -> FoldErrors:
    rng = np.random.default_rng(0)
    return FoldErrors(rng.uniform(1, 2, size=(3, 4, 5)), rng.integers(1, 9, size=(4, 5)).astype(float))


def fit_named(name: str, supported: bool = False) -> GraphFit:
    empty = np.empty(0)
    return GraphFit(name, np.empty((0, 2), int), empty, empty, empty, np.empty((2, 2)), 0.0, supported=supported)


def test_graphs_with_about_the_same_evidence_are_ranked_by_their_errors():
    graphs = {
        name: replace(fit_named(name, supported=name != "sparse"), value=value)
        for name, value in {
            "sparse": -99.0,
            "clusters": -20.0,
            "trees": -19.0,
            "worse": -5.0,
            "sampled": np.nan,
        }.items()
    }
    errors = {"sparse": 1.0, "clusters": 1.3, "trees": 1.2, "worse": 1.1, "sampled": 1.0}
    assert by_evidence(graphs) == ["clusters", "trees", "worse", "sampled"]
    assert by_evidence(graphs, errors) == ["trees", "clusters", "worse", "sampled"]


def test_mean_error_is_over_rows(errors):
    np.testing.assert_allclose(errors.mean(), errors.squared.sum(axis=(1, 2)) / errors.count.sum())
    np.testing.assert_allclose(errors.task_mean()[1, 2], errors.squared[1, :, 2].sum() / errors.count[:, 2].sum())


def test_standard_error_matches_the_spread_of_repeated_samples():
    rng = np.random.default_rng(1)
    estimates, claimed = [], []
    for _ in range(400):
        count = np.full((2, 60), 10.0)
        squared = rng.chisquare(10, size=(1, 2, 60)) * rng.uniform(0.5, 1.5, size=(1, 1, 60))
        sample = FoldErrors(squared, count)
        estimates.append(sample.mean()[0])
        claimed.append(sample.standard_error()[0])
    assert np.mean(claimed) == pytest.approx(np.std(estimates), rel=0.1)


def test_a_level_has_no_excess_over_itself(errors):
    excess, deviation = errors.excess(1)
    assert excess[1] == 0.0
    assert deviation[1] == 0.0


def test_a_graph_must_beat_the_best_simple_model_by_a_standard_error():
    count = np.ones((1, 50))
    noise = np.random.default_rng(0).normal(size=50)
    clearly_worse, alike, best = np.full(50, 5.0), 1.0 + 0.1 * noise**2, np.ones(50)
    errors = FoldErrors(np.stack([clearly_worse, alike, best])[:, None, :], count)
    levels = by_name([fit_named("pooled"), fit_named("hub"), fit_named("graph")])
    assert choose(levels, errors) == "graph"
    errors = FoldErrors(np.stack([clearly_worse, 1.0 + 0.1 * noise, best])[:, None, :], count)
    assert choose(levels, errors) == "hub"


def test_the_simple_model_is_the_hub_unless_another_is_clearly_better():
    count = np.ones((1, 50))
    noise = 0.1 * np.random.default_rng(0).normal(size=50)
    levels = by_name([fit_named("pooled"), fit_named("hub"), fit_named("graph")])
    for pooled, expected in ((0.999, "hub"), (1.01, "hub"), (0.5, "pooled")):
        squared = np.stack([np.full(50, pooled) + noise, np.ones(50), np.full(50, 3.0)])
        assert choose(levels, FoldErrors(squared[:, None, :], count)) == expected


def test_of_graphs_about_as_good_the_sparsest_is_chosen():
    count = np.ones((1, 50))
    noise = np.random.default_rng(0).normal(size=50)
    squared = np.stack([np.full(50, 9.0), np.full(50, 5.0), 1.0 + 0.1 * noise, np.ones(50)])
    levels = by_name([fit_named("hub"), fit_named("graph"), fit_named("graph"), fit_named("graph")])
    assert choose(levels, FoldErrors(squared[:, None, :], count)) == "graph 2"


def test_a_supported_graph_is_chosen_unless_clearly_worse():
    count = np.ones((1, 50))
    levels = by_name([fit_named("hub"), fit_named("graph", supported=True)])
    noise = np.random.default_rng(0).normal(size=50)
    alike = np.stack([np.ones(50), 1.0 + noise])[:, None, :]
    worse = np.stack([np.ones(50), 2.0 + 0.1 * noise])[:, None, :]
    assert choose(levels, FoldErrors(alike, count)) == "graph"
    assert choose(levels, FoldErrors(worse, count)) == "hub"


def test_simple_levels_are_the_baselines():
    data = make_clusters(n_tasks=8, n_clusters=2, n_features=3, n_samples=15, random_state=0)
    folded = folded_of(data)
    settings = replace(settings_of(folded, hub=True), ridge=1e-9)
    arguments = {"X": data.X, "y": data.y, "tasks": data.tasks}
    scale = TaskStatistics.from_data(data)
    units = Scaling.from_statistics(scale, True, True)
    for level, baseline in (
        (pooled_level(folded.total, settings), PooledRegressor(ridge=0.0)),
        (independent_level(folded.total, replace(settings, hub=False)), IndependentRegressor(ridge=0.0)),
    ):
        slopes, intercepts = units.to_user_units(level.coefficients)
        model = baseline.fit(**arguments)
        np.testing.assert_allclose(slopes, model.coef_, atol=1e-6)
        np.testing.assert_allclose(intercepts, model.intercept_, atol=1e-6)
    hub = hub_level(folded.total, settings)
    same = HubRegressor(strength=1.0, intercept_strength=1.0).fit(**arguments)
    assert hub.coefficients.shape == (len(same.coef_), same.coef_.shape[1] + 1)


def test_validation_error_equals_relearning_without_each_fold():
    data = make_line(n_tasks=6, n_features=3, n_samples=20, random_state=0)
    model = GGMTLRegressor(validation=3, blend=False).fit(data.X, data.y, tasks=data.tasks)
    parts = model.scaling_.design(TaskStatistics.from_data(data, deal_folds(data, 3)))
    settings = settings_of(FoldedLoss(tuple(parts)), hub=True, coupling=None, candidates=KNN())
    total, rows = 0.0, 0.0
    for k in range(3):
        rest = FoldedLoss(tuple(part for j, part in enumerate(parts) if j != k))
        levels = learn_levels(rest, settings, model.tasks_, "evidence", True)
        total += 2.0 * parts[k].value(levels[model.state_.family.chosen].coefficients)
        rows += parts[k].count.sum()
    assert model.validation_error_ == pytest.approx(np.sqrt(total / rows) * model.scaling_.target_scale, rel=1e-6)


def test_clusters_are_found_and_independent_tasks_stay_alone():
    data = make_clusters(n_tasks=20, n_clusters=4, n_features=5, n_samples=30, random_state=0)
    found = GGMTLRegressor(validation=None).fit(data.X, data.y, tasks=data.tasks)
    assert {tuple(edge) for edge in found.graph_.edges} == {tuple(edge) for edge in data.graph.edges}
    rng = np.random.default_rng(0)
    slopes = rng.normal(size=(20, 5))
    X, tasks = rng.normal(size=(600, 5)), np.repeat(np.arange(20), 30)
    y = (X * slopes[tasks]).sum(axis=1) + rng.normal(size=600)
    alone = GGMTLRegressor(validation=None).fit(X, y, tasks=tasks)
    assert alone.graph_.n_edges == 0
    same = GGMTLRegressor(validation=None).fit(X, X @ slopes[0] + rng.normal(size=600), tasks=tasks)
    assert same.graph_.n_edges == 0


def test_path_lists_every_level_and_marks_one():
    data = make_line(n_tasks=6, n_features=3, n_samples=20, random_state=0)
    model = GGMTLRegressor(validation=3).fit(data.X, data.y, tasks=data.tasks)
    names = [row["level"] for row in model.path_]
    simple = ["pooled", "hub", "intercepts", "hub, correlated"]
    assert names == [*simple, *["graph"] * (len(names) - 5), "independent"]
    assert all(row["n_edges"] > 0 for row in model.path_ if row["level"] == "graph")
    assert [row["n_edges"] for row in model.path_[4:7]] == [3, 6, 12]
    assert sum(row["chosen"] for row in model.path_) == 1
    assert all(row["standard_error"] > 0 for row in model.path_)


def test_with_one_hold_out_the_graph_of_lowest_outer_loss_is_taken():
    data = make_line(n_tasks=6, n_features=3, n_samples=20, random_state=0)
    model = GGMTLRegressor(criterion="validation", hub=False, coupling=1.0, validation=0.25)
    model.fit(data.X, data.y, tasks=data.tasks)
    assert model.state_.family.best.name == "graph"
    assert model.validation_error_ is None


def test_a_hub_can_be_fitted_twice():
    data = make_line(n_tasks=4, n_features=3, n_samples=20, random_state=0)
    model = HubRegressor().fit(data.X, data.y, tasks=data.tasks)
    first = model.coef_
    np.testing.assert_array_equal(model.fit(data.X, data.y, tasks=data.tasks).coef_, first)


# ---------------------------------------------------------------------- tasks of one row


def test_where_no_task_has_two_rows_there_is_one_model_for_all():
    random = np.random.default_rng(0)
    X, tasks = random.normal(size=(60, 3)), np.arange(60)
    y = X @ [1.0, 2.0, 3.0] + random.normal(size=60)
    model = GGMTLRegressor(random_state=0).fit(X, y, tasks=tasks)
    assert [row["level"] for row in model.path_] == ["pooled"]
    assert 0.8 < model.noise_[0] < 1.25
    _, deviation = model.predict(X, tasks=tasks, return_std=True)
    assert (deviation > 0.8).all()


def test_separate_models_of_tasks_without_rows_know_nothing_of_rows_held_out():
    """A task whose only row is held out is predicted by the mean of the other rows, not by one that includes it."""
    random = np.random.default_rng(0)
    tasks = np.concatenate([np.arange(30), np.repeat([30, 31], 2)])
    X, y = random.normal(size=(34, 1)), random.normal(size=34)
    model = GGMTLRegressor(random_state=0, noise="common").fit(X, y, tasks=tasks)
    folded, settings = model.state_.folded(), model.state_.settings
    for k in folded.scored:
        rest = folded.training(k)
        models, empty = independent_level(rest, settings).coefficients, rest.count == 0
        assert empty.any()
        np.testing.assert_allclose(models[empty, 0], 0.0)
        np.testing.assert_allclose(models[empty, 1], rest.moment[:, 1].sum() / rest.count.sum(), rtol=1e-12)


def series_with_levels(n=60, rows=14, seed=0):
    """Targets that rise with a feature within a task, and whose intercepts undo most of that between tasks."""
    random = np.random.default_rng(seed)
    level = random.normal(scale=3.0, size=n)
    tasks = np.repeat(np.arange(n), rows)
    X = np.column_stack([level[tasks] + random.normal(size=n * rows), random.normal(size=n * rows)])
    y = X @ [0.3, 1.0] + 0.7 * level[tasks] + random.normal(size=n * rows)
    return X, y, tasks


def test_intercepts_that_go_with_the_features_are_left_to_their_tasks(tmp_path):
    X, y, tasks = series_with_levels()
    model = GGMTLRegressor(blend=False).fit(X, y, tasks=tasks)
    chosen = next(row for row in model.path_ if row["chosen"])
    assert chosen["level"] == "intercepts"
    np.testing.assert_allclose(model.coef_.mean(axis=0), [0.3, 1.0], atol=0.1)
    # Slopes are nearly one, intercepts those of the rows.
    assert model.coef_.std(axis=0).max() < 0.05
    own = np.array([(y - X @ model.coef_[i])[tasks == i].mean() for i in range(60)])
    np.testing.assert_allclose(model.intercept_, own, atol=1e-3)
    assert "separate intercepts + partly shared slopes" in str(model.summary())
    model.save(tmp_path / "m.ggmtl")
    copy = load_model(tmp_path / "m.ggmtl")
    np.testing.assert_array_equal(copy.predict(X[:9], tasks=tasks[:9]), model.predict(X[:9], tasks=tasks[:9]))
    _, deviation = model.predict(X[:9], tasks=tasks[:9], return_std=True)
    assert np.isfinite(deviation).all()
    model.add_task(99, X[:5] + np.array([10.0, 0.0]), y[:5] + 50.0)
    assert model.intercept_[-1] > 30.0


def test_other_intercepts_are_shrunk_to_a_common_one():
    random = np.random.default_rng(1)
    tasks = np.repeat(np.arange(40), 4)
    X = random.normal(size=(160, 2))
    y = X @ [1.0, -1.0] + 0.3 * random.normal(size=40)[tasks] + random.normal(size=160)
    model = GGMTLRegressor().fit(X, y, tasks=tasks)
    assert next(row for row in model.path_ if row["chosen"])["level"] in ("hub", "pooled")


def test_links_of_folds_follow_their_graph_where_an_empty_one_before_it_is_left_out():
    edges = np.array([[0, 1]])
    full = replace(fit_named("graph"), edges=edges, edge_values=np.ones(1))
    learned = by_name([fit_named("hub"), fit_named("graph"), full])
    kept, _ = _without_repetitions(learned, None)
    assert list(kept) == ["hub", "graph"]
    assert _renamed(({"graph 2": edges},), learned, kept) == ({"graph": edges},)
