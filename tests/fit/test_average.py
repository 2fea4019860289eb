"""The average of levels: against scipy's other solvers, plain refits and known solutions."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggmtl import GGMTLRegressor, TaskGraph, TaskStatistics, load_model
from ggmtl.data.folds import deal_folds
from ggmtl.datasets import make_clusters
from ggmtl.fit.average import (
    LEAST_WEIGHT,
    average_levels,
    block_importance,
    cross_fitted,
    fold_variance,
    level_weights,
    relative_gain,
    simplex_minimum,
)
from ggmtl.fit.held_out import FoldErrors
from ggmtl.inspection import fuzzy_graph_scores, transfer_report
from ggmtl.inspection.summary.collect import summarize


def errors_of(residuals: np.ndarray) -> FoldErrors:
    """Products of errors of residuals of shape (levels, folds, n, rows)."""
    cross = np.einsum("afnr,bfnr->fnab", residuals, residuals)
    return FoldErrors.of_products(cross, np.full(residuals.shape[1:3], float(residuals.shape[3])))


def random_errors(seed: int, levels: int = 4, folds: int = 5, n: int = 12, rows: int = 6) -> FoldErrors:
    random = np.random.default_rng(seed)
    shared = random.normal(size=(1, folds, n, rows))
    return errors_of(shared + 0.5 * random.normal(size=(levels, folds, n, rows)))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 6))
def test_weights_minimise_the_quadratic_over_the_simplex(seed, number):
    random = np.random.default_rng(seed)
    root = random.normal(size=(number, number + 2))
    matrix, slope = root @ root.T, random.uniform(0, 1, number)
    found = simplex_minimum(matrix, slope, 0)
    assert found.min() >= 0
    assert found.sum() == pytest.approx(1.0)
    value = found @ matrix @ found + slope @ found
    others = random.dirichlet(np.full(number, 0.5), size=300)
    assert (value <= np.einsum("ka,ab,kb->k", others, matrix, others) + others @ slope + 1e-7).all()
    # Karush-Kuhn-Tucker: the gradient is the same on the support and not smaller elsewhere.
    gradient = 2 * matrix @ found + slope
    assert gradient.min() >= gradient @ found - 1e-4 * np.abs(gradient).max()


def test_the_preferred_level_keeps_all_weight_where_the_others_are_no_better():
    random = np.random.default_rng(0)
    noise = random.normal(size=(5, 30, 8))
    errors = errors_of(np.stack([noise, noise + 0.3 * random.normal(size=noise.shape)]))
    weights = level_weights(errors, block_importance(errors), 0)
    assert weights[0] > 0.95


def test_two_unrelated_levels_of_equal_error_share_the_weight():
    random = np.random.default_rng(1)
    errors = errors_of(random.normal(size=(2, 5, 400, 10)))
    np.testing.assert_allclose(level_weights(errors, block_importance(errors), 0), 0.5, atol=0.05)


def test_small_weights_are_dropped_and_the_rest_sum_to_one():
    for seed in range(20):
        errors = random_errors(seed)
        weights = level_weights(errors, block_importance(errors), 0)
        assert weights.sum() == pytest.approx(1.0)
        assert ((weights == 0) | (weights >= LEAST_WEIGHT)).all()


def test_importance_takes_out_the_units_of_every_task():
    errors = random_errors(2, n=40, rows=50)
    scale = np.geomspace(0.5, 2.0, 40)
    scaled = FoldErrors.of_products(errors.cross * scale[None, :, None, None] ** 2, errors.count)
    plain, other = (block_importance(e) * e.squared[0] for e in (errors, scaled))
    # A task's noise is shrunk by a few rows to that of all.
    np.testing.assert_allclose(other / plain, 1.0, rtol=0.1)
    assert np.ptp(block_importance(errors, equal_noise=True)) == 0


def test_a_block_that_no_level_explains_counts_less():
    errors = random_errors(3, n=40, rows=20)
    squared = errors.cross.copy()
    squared[2, 7] *= 400.0
    wild = FoldErrors.of_products(squared, errors.count)
    before, after = (block_importance(e) * e.squared.mean(axis=0) for e in (errors, wild))
    share = [weighed[2, 7] / weighed.sum() for weighed in (before, after)]
    # Its error is 400 times as large, its part in the sum hardly more than five times.
    assert share[1] < 6 * share[0]


def test_errors_of_the_average_are_those_of_weights_learned_without_the_fold():
    errors = random_errors(4)
    squared = cross_fitted(errors, 1)
    for fold in range(5):
        kept = np.arange(5) != fold
        rest = FoldErrors(errors.squared[:, kept], errors.count[kept], errors.cross[kept])
        weights = level_weights(rest, block_importance(rest), 1)
        np.testing.assert_allclose(squared[fold], np.einsum("a,nab,b->n", weights, errors.cross[fold], weights))


def test_with_one_fold_weights_are_learned_without_the_task():
    errors = random_errors(5, folds=1, n=50)
    before = cross_fitted(errors, 0)
    changed = errors.cross.copy()
    changed[0, 3] *= 7.0
    after = cross_fitted(FoldErrors.of_products(changed, errors.count), 0)
    # The task's own errors scale; its weights come from the others (their noise is shrunk to that of all).
    assert after[0, 3] == pytest.approx(7.0 * before[0, 3], rel=5e-3)


def test_renaming_levels_changes_no_weight():
    errors = random_errors(6)
    order = [2, 0, 3, 1]
    one = average_levels(errors, ["a", "b", "c", "d"], "b", None).weights
    other = average_levels(errors.among(order), [["a", "b", "c", "d"][k] for k in order], "b", None).weights
    assert one.keys() == other.keys()
    for name, weight in one.items():
        assert other[name] == pytest.approx(weight, abs=1e-5)


def test_the_interval_of_a_gain_covers_the_truth():
    """Errors of tasks are independent; one model has 0.9 times the squared error of the other."""
    inside = []
    for seed in range(400):
        random = np.random.default_rng(seed)
        common = random.chisquare(8, size=25)
        ours = 0.9 * (common + 0.3 * random.chisquare(8, size=25))
        theirs = common + 0.3 * random.chisquare(8, size=25)
        found = relative_gain(ours, theirs)
        inside.append(found.low <= 1 - np.sqrt(0.9) <= found.high)
    assert 0.91 < np.mean(inside) < 0.98


def test_heavy_tails_do_not_raise_gains():
    # The second model has errors of its own, independent of the noise: 1 − √(1/1.5) is the gain.
    random, found = np.random.default_rng(3), []
    for _ in range(200):
        noise = random.standard_t(3, size=(5, 30, 2)) / np.sqrt(3.0)
        errors = errors_of(np.stack([noise, noise + np.sqrt(0.5) * random.normal(size=noise.shape)]))
        average = average_levels(errors, ["hub", "pooled"], "hub", None)
        found.append(average.gain_over("pooled").value)
    assert np.mean(found) == pytest.approx(1.0 - np.sqrt(1.0 / 1.5), abs=0.02)


def test_the_interval_of_a_gain_covers_the_truth_of_the_very_models_that_were_fitted():
    """Separate means of tasks against a known one, in five folds; errors on new rows are known exactly."""
    n, folds, inside, narrow = 20, 5, [], []
    for seed in range(300):
        y = np.random.default_rng(seed).normal(size=(folds, n, 4))
        means = (y.sum(axis=(0, 2)) - y.sum(axis=2)) / (4 * (folds - 1))
        known, separate = (y**2).sum(axis=2), ((y - means[..., None]) ** 2).sum(axis=2)
        truth = 1.0 - np.sqrt(1.0 / (1.0 + (means**2).mean()))
        least = fold_variance(known, separate)
        found = [relative_gain(known.sum(axis=0), separate.sum(axis=0), value) for value in (0.0, least)]
        without, with_folds = (interval.low <= truth <= interval.high for interval in found)
        narrow.append(without)
        inside.append(with_folds)
    assert np.mean(narrow) < 0.85
    assert 0.92 < np.mean(inside) < 0.99


# ---------------------------------------------------------------------- whole fits


@pytest.fixture(scope="module")
def data():
    return make_clusters(3, n_tasks=15, n_features=4, n_samples=20, noise=0.8, random_state=0)


@pytest.fixture(scope="module")
def model(data):
    return GGMTLRegressor(random_state=0).fit(data.X, data.y, tasks=data.tasks)


def test_models_are_the_weighted_sum_of_the_levels(model):
    family = model.state_.family
    total = sum(weight * family.levels[name].coefficients for name, weight in family.weights.items())
    slopes, intercepts = model.scaling_.to_user_units(total)
    np.testing.assert_allclose(model.coef_, slopes)
    np.testing.assert_allclose(model.intercept_, intercepts)
    assert sum(model.blend_.values()) == pytest.approx(1.0)
    assert set(model.blend_) <= {row["level"] for row in model.path_}
    assert sum(row["weight"] for row in model.path_) == pytest.approx(1.0)


def test_one_error_is_told_everywhere(model):
    summary, report = summarize(model), transfer_report(model)
    assert summary["error"] == pytest.approx(model.validation_error_)
    assert report.total[report.levels.index("average")] == pytest.approx(model.validation_error_)
    assert summary["verdict"]["text"] == report.verdict
    assert summary["verdict"]["gain"] == pytest.approx(report.gain.share)


def test_products_of_errors_from_sums_are_those_of_rows(model, data):
    family, folds = model.state_.family, deal_folds(data, 5)
    parts = model.scaling_.design(TaskStatistics.from_data(data, folds))
    models = [level.coefficients for level in family.levels.values()]
    for k, part in enumerate(parts):
        found = part.cross_products(models)
        for task in range(15):
            rows = (folds == k) & (data.tasks == task)
            Z = model.scaling_.design_rows(data.X[rows])
            y = (data.y[rows] - model.scaling_.target_center) / model.scaling_.target_scale
            residuals = np.array([Z @ W[task] - y for W in models])
            np.testing.assert_allclose(found[task], residuals @ residuals.T, atol=1e-9)


def test_statistics_with_folds_give_the_average_of_the_rows(model, data):
    statistics = TaskStatistics.from_data(data, deal_folds(data, 5))
    again = GGMTLRegressor(random_state=0).fit_statistics(statistics)
    np.testing.assert_allclose(again.coef_, model.coef_)
    assert again.blend_ == pytest.approx(model.blend_)


def test_a_saved_model_keeps_its_average(model, data, tmp_path):
    for keep in (False, True):
        path = tmp_path / f"{keep}.ggmtl"
        model.save(path, keep_statistics=keep)
        copy = load_model(path)
        np.testing.assert_array_equal(copy.coef_, model.coef_)
        assert copy.blend_ == model.blend_
        assert copy.validation_error_ == pytest.approx(model.validation_error_, rel=1e-3)
        assert summarize(copy)["verdict"]["text"] == summarize(model)["verdict"]["text"]
    grown = load_model(path)
    rows = data.tasks == 0
    grown.add_task(99, data.X[rows], data.y[rows])
    family = grown.state_.family
    total = sum(weight * family.levels[name].coefficients for name, weight in family.weights.items())
    np.testing.assert_allclose(grown.coef_[-1], grown.scaling_.to_user_units(total)[0][-1])
    assert np.abs(grown.coef_[-1] - model.coef_[0]).max() < np.abs(model.coef_ - model.coef_[0]).max()


def test_rows_that_come_later_move_every_averaged_level(data):
    first = np.arange(len(data.y)) % 4 > 0
    model = GGMTLRegressor(random_state=0).fit(data.X[first], data.y[first], tasks=data.tasks[first])
    before = {name: model.state_.family.levels[name].coefficients.copy() for name in model.state_.family.weights}
    weights = dict(model.blend_)
    model.partial_fit(data.X[~first], data.y[~first], tasks=data.tasks[~first], relearn=False)
    assert model.blend_ == weights
    for name, coefficients in before.items():
        assert np.abs(model.state_.family.levels[name].coefficients - coefficients).max() > 1e-6


def test_support_is_the_share_of_folds_that_find_the_edge(model):
    graph = model.graph_
    assert graph.n_edges > 0
    names = model.state_.family.links
    found = [{tuple(edge) for edge in fold[model.state_.family.main].tolist()} for fold in names]
    for edge, support in zip(graph.edges.tolist(), graph.support):
        assert support == pytest.approx(np.mean([tuple(edge) in fold for fold in found]))
    strongest = graph.threshold(0.0)
    np.testing.assert_array_equal(strongest.support, graph.support[graph.weights > 0])


def test_too_few_folds_know_nothing_of_support(data):
    assert GGMTLRegressor(validation=2).fit(data.X, data.y, tasks=data.tasks).graph_.support is None


@pytest.mark.filterwarnings("ignore:The outer problem stopped")
@pytest.mark.parametrize(
    "options",
    [{"blend": False}, {"hub": False}, {"coupling": 1.0}, {"edge_entropy": 0.1}, {"validation": None}],
)
def test_where_nothing_is_averaged_one_level_has_all_weight(data, options):
    model = GGMTLRegressor(**{"max_iter": 5, **options}).fit(data.X, data.y, tasks=data.tasks)
    assert list(model.blend_.values()) == [1.0]


def test_the_average_is_no_worse_than_the_best_level_on_fresh_rows():
    """Over ten sets the mean error of the average is within a hundredth of that of the level that is best on each."""
    ratios = []
    for seed in range(10):
        data = make_clusters(3, n_tasks=12, n_features=3, n_samples=10, noise=1.0, random_state=seed)
        model = GGMTLRegressor(random_state=0).fit(data.X, data.y, tasks=data.tasks)
        state, rows = model.state_, data.test
        Z, of = state.scaling.design_rows(rows.X), np.searchsorted(model.tasks_, rows.tasks)
        y = (rows.y - state.scaling.target_center) / state.scaling.target_scale

        def error(models, Z=Z, of=of, y=y):
            return float(np.sqrt(np.mean((np.einsum("rp,rp->r", Z, models[of]) - y) ** 2)))

        best = min(error(level.coefficients) for level in state.family.levels.values())
        ratios.append(error(state.coefficients) / best)
    assert np.mean(ratios) < 1.03


def test_weights_do_not_jump_with_the_noise_of_a_task():
    """A little more weight on a task changes the weights of the levels a little."""
    errors = random_errors(7, n=40)
    weights = []
    for factor in np.linspace(1.0, 1.2, 5):
        cross = errors.cross.copy()
        cross[:, 0] *= factor
        changed = FoldErrors.of_products(cross, errors.count)
        weights.append(level_weights(changed, block_importance(changed), 0))
    assert max(np.abs(a - b).max() for a, b in pairwise(weights)) < 0.05


def test_clusters_with_support_give_way_to_links_that_predict_better():
    """A chain of 100 tasks: the evidence knows clusters of it, whose exact evidence is known, but not single links."""
    random = np.random.default_rng(0)
    models = np.cumsum(random.normal(size=(100, 10)), axis=0)
    X, tasks = random.normal(size=(1500, 10)), np.repeat(np.arange(100), 15)
    y = np.einsum("rd,rd->r", X, models[tasks]) + random.normal(size=1500)
    model = GGMTLRegressor(random_state=0).fit(X, y, tasks=tasks)
    chain = TaskGraph(np.column_stack([np.arange(99), np.arange(1, 100)]), np.ones(99), np.arange(100))
    assert fuzzy_graph_scores(chain, model.graph_).f1 > 0.55
