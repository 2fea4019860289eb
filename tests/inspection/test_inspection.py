"""Explanations against full refits, transfer against plain cross-validation, stability on known graphs."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from joblib import parallel_config

from ggmtl import GGMTLRegressor, load_model
from ggmtl.bilevel.inner import solve_inner
from ggmtl.bilevel.level import present_problem, refit
from ggmtl.errors import InputError, ParameterError
from ggmtl.inference.uncertainty import noise_variance
from ggmtl.inspection import edge_stability, explain_edge, markov_clusters, transfer_report
from ggmtl.inspection.differences import unlike_others
from ggmtl.inspection.resampling import blocks_of, draw, weighted
from ggmtl.inspection.stability import EdgeStability

FAST = {"criterion": "validation", "edge_entropy": 0.0, "coupling": 1.0}
NAMES = np.array([f"t{i:02d}" for i in range(9)])


def make(rng, n=9, rows=16, noise=0.5):
    W = 2.0 * rng.normal(size=(3, 3))[np.arange(n) % 3]
    X, index = rng.normal(size=(n * rows, 3)), np.repeat(np.arange(n), rows)
    y = (X * W[index]).sum(axis=1) + noise * rng.normal(size=n * rows)
    return X, y, NAMES[index]


@pytest.fixture(scope="module")
def fitted():
    X, y, tasks = make(np.random.default_rng(0))
    return GGMTLRegressor(**FAST, validation=3, max_iter=60).fit(X * [1.0, 100.0, 0.01] + 5.0, 10 * y, tasks=tasks)


def heaviest(model):
    i, j = model.graph_.edges[model.graph_.weights.argmax()]
    return model.tasks_[i], model.tasks_[j], i, j


def held_out_errors(model, i, j, drop):
    """Squared errors of all tasks and rows, by solving every fold anew."""
    folded, fit = model.state_.folded(), model.state_.level
    total, count = 0.0, 0.0
    for k in folded.scored:
        problem, values = present_problem(fit, folded.training(k), model.state_.settings)
        edge = (problem.edges == [i, j]).all(axis=1)
        weights = np.where(edge, 0.0, values) if drop else values
        models = solve_inner(problem, weights, tol=1e-12).coefficients
        total = total + 2 * folded.parts[k].task_values(models)
        count = count + folded.parts[k].count
    return total, count


def test_held_out_error_without_an_edge_is_that_of_a_refit(fitted):
    a, b, i, j = heaviest(fitted)
    found = explain_edge(fitted, a, b)
    unit = fitted.scaling_.target_scale
    for drop, pair, everyone in (
        (False, found.error, found.total_error),
        (True, found.error_without, found.total_error_without),
    ):
        squared, count = held_out_errors(fitted, i, j, drop)
        assert pair == pytest.approx(unit * np.sqrt(squared[[i, j]].sum() / count[[i, j]].sum()), rel=1e-9)
        assert everyone == pytest.approx(unit * np.sqrt(squared.sum() / count.sum()), rel=1e-9)
    assert found.held_out
    assert found.linked


def test_how_coefficients_moved_is_the_difference_of_two_fits(fitted):
    a, b, i, j = heaviest(fitted)
    fit, total = fitted.state_.level, fitted.state_.folded().total
    keep = ~(fit.edges == [i, j]).all(axis=1)
    without = refit(
        replace(fit, edges=fit.edges[keep], edge_values=fit.edge_values[keep]), total, fitted.state_.settings
    )
    slopes, intercept = fitted.scaling_.to_user_units(without.coefficients)
    explained = explain_edge(fitted, b, a)
    assert explained.tasks == (b, a)
    for k, item in enumerate(explained.features[:-1]):
        assert item.coefficients == pytest.approx((fitted.coef_[j, k], fitted.coef_[i, k]))
        moved = (fitted.coef_[j, k] - slopes[j, k], fitted.coef_[i, k] - slopes[i, k])
        assert item.moved == pytest.approx(moved, rel=1e-4, abs=1e-7)
        assert item.difference == pytest.approx(slopes[j, k] - slopes[i, k], rel=1e-5)
    last = explained.features[-1]
    assert last.feature == "(intercept at the average row)"
    average = intercept + slopes @ fitted.state_.statistics.origin[:-1]
    assert last.difference == pytest.approx(average[j] - average[i], rel=1e-5)


def test_standard_error_of_a_difference_is_the_dense_one(fitted):
    a, b, i, j = heaviest(fitted)
    fit = fitted.state_.level
    problem, values = present_problem(fit, fitted.state_.folded().total, fitted.state_.settings)
    values = np.where((problem.edges == [i, j]).all(axis=1), 0.0, values)
    n, p = problem.loss.moment.shape
    inverse = np.linalg.inv(problem.system(values).dense()).reshape(n, p, n, p)
    block = inverse[i, :, i] + inverse[j, :, j] - inverse[i, :, j] - inverse[j, :, i]
    scale = fitted.scaling_.target_scale / fitted.scaling_.scale
    expected = scale * np.sqrt(noise_variance(fitted.state_) * np.diag(block)[:-1])
    found = [item.standard_error for item in explain_edge(fitted, a, b).features[:-1]]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_pair_without_an_edge_is_reported_as_not_linked(fitted):
    linked = {tuple(edge) for edge in fitted.state_.level.edges[fitted.state_.level.edge_values > 0].tolist()}
    i, j = next((i, j) for i in range(9) for j in range(i + 1, 9) if (i, j) not in linked)
    found = explain_edge(fitted, fitted.tasks_[i], fitted.tasks_[j])
    assert not found.linked
    assert found.weight == found.reported_weight == 0.0
    assert found.error == found.error_without
    assert "not linked" in found.describe()


def test_an_explanation_reads_as_a_sentence(fitted):
    a, b, *_ = heaviest(fitted)
    words = explain_edge(fitted, a, b).describe()
    assert words.startswith(f"{a} and {b} are linked")
    assert "held-out rows" in words


def test_unknown_and_equal_tasks_are_refused(fitted):
    with pytest.raises(InputError, match=r"no task 't0x'.*Did you mean"):
        explain_edge(fitted, "t0x", "t01")
    with pytest.raises(ParameterError, match="two different tasks"):
        explain_edge(fitted, "t01", "t01")


def test_explanations_work_for_hub_pooled_and_robust_models():
    X, y, tasks = make(np.random.default_rng(1))
    hub = GGMTLRegressor(candidates=np.empty((0, 2))).fit(X, y, tasks=tasks)
    assert not explain_edge(hub, "t00", "t03").linked
    rng = np.random.default_rng(2)
    same = GGMTLRegressor().fit(X, X @ [1.0, 2.0, 3.0] + rng.normal(size=len(X)), tasks=tasks)
    explain_edge(same, "t00", "t01")
    robust = GGMTLRegressor(**FAST, validation=0.25, penalty="l2", max_iter=20, tol=1e-2).fit(X, y, tasks=tasks)
    a, b, *_ = heaviest(robust)
    assert explain_edge(robust, a, b).linked


# ---------------------------------------------------------------------- transfer


def test_transfer_errors_are_those_of_plain_cross_validation(fitted):
    report = transfer_report(fitted)
    folded = fitted.state_.folded()
    squared, count = 0.0, 0.0
    for k in folded.scored:
        loss = folded.training(k)
        pooled = np.linalg.solve(loss.gram.sum(axis=0) + 1e-6 * np.diag([1, 1, 1, 0]), loss.moment.sum(axis=0))
        squared = squared + 2 * folded.parts[k].task_values(np.tile(pooled, (9, 1)))
        count = count + folded.parts[k].count
    k = report.levels.index("pooled")
    np.testing.assert_allclose(report.errors[:, k], np.sqrt(squared / count) * fitted.scaling_.target_scale)
    assert report.total[k] == pytest.approx(np.sqrt(squared.sum() / count.sum()) * fitted.scaling_.target_scale)
    simple = {"pooled", "hub", "hub, correlated", "intercepts", "independent"}
    assert set(report.levels) == {*simple, "graph"}
    assert report.chosen == "graph"


@pytest.fixture(scope="module")
def few_rows():
    X, y, tasks = make(np.random.default_rng(3), rows=8, noise=1.0)
    return GGMTLRegressor().fit(X, y, tasks=tasks)


def test_results_are_shown_in_one_line(fitted):
    a, b, *_ = heaviest(fitted)
    nothing = np.zeros(0)
    stability = EdgeStability(fitted.tasks_, np.zeros((0, 2), int), nothing, nothing, nothing, nothing, 7)
    shown = [explain_edge(fitted, a, b), transfer_report(fitted), fitted.state_.statistics, stability]
    for result in shown:
        text = repr(result)
        assert text.startswith(f"{type(result).__name__}(")
        assert "\n" not in text
        assert len(text) < 120
    assert repr(stability) == f"EdgeStability({len(fitted.tasks_)} tasks, 0 edges, 7 resamples)"


def test_clusters_with_few_rows_gain_from_the_graph(few_rows):
    report = transfer_report(few_rows)
    assert report.gain.low <= report.gain.share <= report.gain.high
    assert report.gain_over_alone.share > 0
    assert len(report.task_gains) == 9
    assert report.verdict in report.describe()


def test_equal_tasks_show_no_structure():
    rng = np.random.default_rng(4)
    X, tasks = rng.normal(size=(90, 3)), np.repeat(NAMES, 10)
    y = X @ [1.0, -1.0, 2.0] + rng.normal(size=90)
    report = transfer_report(GGMTLRegressor().fit(X, y, tasks=tasks))
    assert report.verdict.startswith("One model for all tasks predicts about as well")
    # A verdict without a number has it in the next line.
    assert "than that of separate models (95 % interval of the gain: " in report.describe()
    assert len(report.hurt) == 0


def test_a_task_that_sharing_hurts_is_flagged():
    rng = np.random.default_rng(5)
    n, rows = 30, 12
    names = np.array([f"t{i:02d}" for i in range(n)])
    W = np.tile([1.0, -1.0, 0.5], (n, 1))
    W[7] = [-9.0, 9.0, 8.0]
    noise = np.ones(n)
    noise[7] = 0.05
    X, index = rng.normal(size=(n * rows, 3)), np.repeat(np.arange(n), rows)
    y = (X * W[index]).sum(axis=1) + noise[index] * rng.normal(size=n * rows)
    model = GGMTLRegressor(criterion="validation", edge_entropy=0.0, coupling=1.0, max_iter=15, tol=1e-2)
    report = transfer_report(model, X, y, tasks=names[index])
    assert report.errors.shape == (n, len(report.levels))
    assert "t07" in report.hurt


def test_a_model_without_folds_is_refused_with_the_remedy():
    X, y, tasks = make(np.random.default_rng(6))
    model = GGMTLRegressor(candidates=np.empty((0, 2)), validation=None).fit(X, y, tasks=tasks)
    with pytest.raises(InputError, match="validation=5"):
        transfer_report(model)


def test_one_task_has_nothing_to_share():
    X, y, _ = make(np.random.default_rng(9))
    report = transfer_report(GGMTLRegressor().fit(X, y, tasks=np.repeat("a", len(X))))
    assert report.verdict == "There is one task, so nothing can be shared."
    assert report.levels == (report.chosen,) == ("independent",)
    assert report.gain.share == report.gain_over_alone.share == 0.0
    assert report.errors.shape == (1, 1)


def test_levels_are_ordered_from_simple_to_dense(few_rows):
    model, report = few_rows, transfer_report(few_rows)
    assert (*report.levels[:3], *report.levels[-2:]) == ("pooled", "intercepts", "hub", "independent", "average")
    k = report.levels.index(report.chosen)
    assert report.total[k] == pytest.approx(model.validation_error_)


def outliers(seed, n=40, share=0.05, rows=15):
    """Tasks near one model, and a few whose models are far off."""
    rng = np.random.default_rng(seed)
    W = rng.normal(size=3) + 0.1 * rng.normal(size=(n, 3))
    odd = np.sort(rng.choice(n, round(share * n), replace=False))
    W[odd] += 4.0 * rng.choice([-1.0, 1.0], size=(len(odd), 3))
    index = np.repeat(np.arange(n), rows)
    X = rng.normal(size=(n * rows, 3))
    return X, (X * W[index]).sum(axis=1) + rng.normal(size=n * rows), index, odd


def test_outlier_tasks_are_flagged_and_no_others():
    X, y, tasks, odd = outliers(0)
    report = transfer_report(GGMTLRegressor(candidates=np.empty((0, 2))).fit(X, y, tasks=tasks))
    assert report.unlike.tolist() == odd.tolist()
    assert "Unlike all others are 2 of 40 tasks" in report.describe()


def test_tasks_of_one_population_are_not_called_outliers():
    flagged = 0
    for seed in range(5):
        X, y, tasks, _ = outliers(seed, share=0.0)
        flagged += unlike_others(GGMTLRegressor(candidates=np.empty((0, 2))).fit(X, y, tasks=tasks)).sum()
    assert flagged <= 1


def test_outliers_of_a_loaded_model_are_the_same(tmp_path):
    X, y, tasks, odd = outliers(1)
    model = GGMTLRegressor(candidates=np.empty((0, 2))).fit(X, y, tasks=tasks)
    model.save(tmp_path / "m.ggmtl")
    assert np.flatnonzero(unlike_others(load_model(tmp_path / "m.ggmtl"))).tolist() == odd.tolist()


def test_unknown_whole_number_labels_are_answered_with_their_range():
    X, y, _ = make(np.random.default_rng(0))
    model = GGMTLRegressor(candidates=np.empty((0, 2))).fit(X, y, tasks=np.repeat(np.arange(9), 16))
    with pytest.raises(InputError, match=r"no task 17 in the model\. It has 9 tasks, from 0 to 8"):
        explain_edge(model, np.int64(17), 1)


# ---------------------------------------------------------------------- stability


def test_progress_of_a_long_run_is_logged(fitted, monkeypatch, caplog):
    monkeypatch.setattr("ggmtl.inspection.stability._FIRST", 0.0)
    X, y, tasks = make(np.random.default_rng(0))
    caplog.set_level("INFO", "ggmtl")
    edge_stability(fitted, X * [1.0, 100.0, 0.01] + 5.0, 10 * y, n_resamples=2, tasks=tasks)
    assert "edge stability: 1 of 2 resamples" in caplog.text


def test_explanations_follow_a_model_that_changes():
    X, y, tasks = make(np.random.default_rng(0))
    model = GGMTLRegressor(candidates=np.empty((0, 2))).fit(X, y, tasks=tasks)
    first = explain_edge(model, "t00", "t01").error
    model.fit(X, 2.0 * y, tasks=tasks)
    assert explain_edge(model, "t00", "t01").error == pytest.approx(2.0 * first, rel=1e-3)


def test_all_blocks_once_are_all_rows(fitted):
    X, y, tasks = make(np.random.default_rng(0))
    blocks, _ = blocks_of(fitted, X * [1.0, 100.0, 0.01] + 5.0, 10 * y, tasks)
    total = fitted.state_.folded().total
    once = weighted(blocks, np.ones((len(blocks), 9)))
    np.testing.assert_allclose(once.gram, total.gram, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(once.moment, total.moment, rtol=1e-9, atol=1e-9)
    drawn = draw(blocks, np.random.default_rng(0))
    filled = np.array([block.count > 0 for block in blocks])
    np.testing.assert_array_equal(drawn.sum(axis=0), filled.sum(axis=0))
    assert (drawn[~filled] == 0).all()


@pytest.mark.parametrize("criterion", ["validation", "evidence"])
def test_true_edges_are_found_again_and_again(criterion):
    X, y, tasks = make(np.random.default_rng(7), rows=30, noise=0.3)
    options = {**FAST, "validation": 3} if criterion == "validation" else {"criterion": criterion}
    model = GGMTLRegressor(**options).fit(X, y, tasks=tasks)
    found = edge_stability(model, X, y, n_resamples=8, tasks=tasks)
    same = found.edges[:, 0] % 3 == found.edges[:, 1] % 3
    assert found.frequency[same].mean() > 0.5
    assert found.frequency[same].mean() > (found.frequency[~same].mean() if (~same).any() else 0.0)
    assert (found.low <= found.high).all()
    assert found.n_resamples == 8
    assert len(found.table()) == len(found.edges)
    assert found.graph(0.5).n_edges == (found.frequency >= 0.5).sum()
    assert "resamples" in found.describe()


def test_stability_does_not_depend_on_the_number_of_processes():
    X, y, tasks = make(np.random.default_rng(8))
    model = GGMTLRegressor(**FAST, validation=0.25, random_state=3).fit(X, y, tasks=tasks)
    one = edge_stability(model, X, y, n_resamples=3, tasks=tasks)
    with parallel_config(backend="threading"):
        two = edge_stability(pickle.loads(pickle.dumps(model)), X, y, n_resamples=3, tasks=tasks, n_jobs=2)
    np.testing.assert_array_equal(one.edges, two.edges)
    np.testing.assert_allclose(one.frequency, two.frequency)


def test_a_backend_that_hands_over_all_results_at_once_will_do():
    X, y, tasks = make(np.random.default_rng(8))
    one = GGMTLRegressor(validation=2).fit(X, y, tasks=tasks)
    with parallel_config(backend="multiprocessing"):
        two = GGMTLRegressor(validation=2, n_jobs=2).fit(X, y, tasks=tasks)
    assert two.validation_error_ == pytest.approx(one.validation_error_, rel=1e-9)


def test_stability_refuses_other_tasks_and_no_resamples(fitted):
    X, y, tasks = make(np.random.default_rng(0))
    with pytest.raises(InputError, match="exactly the tasks"):
        edge_stability(fitted, X[:32], y[:32], tasks=tasks[:32])
    with pytest.raises(ParameterError, match="n_resamples"):
        edge_stability(fitted, X, y, tasks=tasks, n_resamples=0)


def test_markov_clusters_are_exported(fitted):
    assert len(markov_clusters(fitted.graph_)) == 9
