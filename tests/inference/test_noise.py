"""σ² and intervals where rows are few, and with a ridge."""

import numpy as np
import pytest

from ggmtl import GGMTLRegressor
from ggmtl.bilevel.level import Settings
from ggmtl.datasets import make_clusters
from ggmtl.fit.levels import independent_level
from ggmtl.graph.candidates import Complete
from ggmtl.inference.posterior import noise_of, posterior_of
from ggmtl.statistics.least_squares import FoldedLoss
from ggmtl.statistics.scaling import Scaling
from ggmtl.statistics.task_statistics import TaskStatistics


def unrelated(seed, n_tasks=8, rows=10, d=20, noise=1.0):
    """Rows of tasks that have nothing in common, their models, and a new row for each."""
    random = np.random.default_rng(seed)
    models, tasks = random.standard_normal((n_tasks, d)), np.repeat(np.arange(n_tasks), rows)
    X = random.standard_normal((len(tasks), d))
    y = np.einsum("rd,rd->r", X, models[tasks]) + noise * random.standard_normal(len(tasks))
    new = random.standard_normal((20 * n_tasks, d))
    of = np.tile(np.arange(n_tasks), 20)
    target = np.einsum("rd,rd->r", new, models[of]) + noise * random.standard_normal(len(of))
    return X, y, tasks, models, new, of, target


def separate_fit(X, y, tasks, ridge=1e-6):
    """Separate models in the units of the data, with all that a posterior needs."""
    statistics = TaskStatistics.from_arrays(X, y, tasks)
    scaling = Scaling.from_statistics(statistics, True, False)
    loss = FoldedLoss(tuple(scaling.design(statistics))).total
    slopes = np.arange(loss.n_features) < loss.n_features - 1
    settings = Settings("squared_l2", Complete(), None, False, slopes, ridge=ridge)
    return independent_level(loss, settings), loss, settings, scaling


@pytest.mark.parametrize(("rows", "d"), [(10, 20), (6, 20), (20, 20), (10, 9), (22, 20)])
def test_intervals_of_separate_models_hold_at_any_number_of_rows(rows, d):
    inside, noises, ratios = [], [], []
    for seed in range(12):
        X, y, tasks, models, new, of, target = unrelated(seed, rows=rows, d=d)
        fit, loss, settings, scaling = separate_fit(X, y, tasks)
        posterior = posterior_of(fit, loss, settings)
        slopes, intercepts = scaling.to_user_units(fit.coefficients)
        error = target - np.einsum("rd,rd->r", new, slopes[of]) - intercepts[of]
        deviation = scaling.target_scale * posterior.standard_deviations(scaling.design_rows(new), of)
        inside.append(np.abs(error) < 1.645 * deviation)
        ratios.append(np.abs(slopes - models) < 1.645 * posterior.standard_errors(scaling)[:, :-1])
        noises.append(scaling.target_scale * np.sqrt(posterior.noise))
        assert posterior.noise == pytest.approx(noise_of(fit, loss, settings), rel=1e-12)
    assert 0.83 < np.mean(inside) < 0.96
    assert 0.80 < np.mean(ratios) < 0.96
    assert 0.7 < np.median(noises) < 2.3
    assert min(noises) > 0.3


@pytest.mark.parametrize("seed", [2, 3])
def test_noise_and_deviations_of_more_features_than_rows(seed):
    X, y, tasks, _, new, of, target = unrelated(seed)
    model = GGMTLRegressor(blend=False, random_state=0).fit(X, y, tasks=tasks)
    assert model.state_.family.chosen == "independent"
    assert 0.5 < model.noise_[0] < 2.5
    values, deviation = model.predict(new, tasks=of, return_std=True)
    assert 0.8 < deviation.mean() / np.sqrt(np.mean((values - target) ** 2)) < 1.25


def test_with_rows_to_spare_the_noise_of_separate_models_is_that_of_least_squares_whatever_the_ridge():
    X, y, tasks, *_ = unrelated(1, rows=40, d=5)
    square = 0.0
    for task in range(8):
        Z = np.column_stack([X[tasks == task], np.ones(40)])
        square += np.linalg.lstsq(Z, y[tasks == task], rcond=None)[1][0]
    for ridge in (0.0, 1e-6, 10.0):
        fit, loss, settings, scaling = separate_fit(X, y, tasks, ridge)
        noise = scaling.target_scale**2 * noise_of(fit, loss, settings)
        assert noise == pytest.approx(square / (len(y) - 8 * 6), rel=1e-9)


def test_a_ridge_so_strong_that_nothing_is_left_leaves_the_variance_of_the_slopes():
    X, y, tasks, models, *_ = unrelated(2, rows=40, d=5)
    fit, loss, settings, scaling = separate_fit(X, y, tasks, ridge=1e9)
    errors = posterior_of(fit, loss, settings).standard_errors(scaling)[:, :-1]
    np.testing.assert_allclose(errors, np.sqrt(np.mean(models**2)), rtol=0.25)


# ---------------------------------------------------------------------- the ridge


@pytest.fixture(scope="module")
def data():
    return make_clusters(3, n_tasks=12, n_features=4, n_samples=20, random_state=0)


@pytest.mark.parametrize("options", [{}, {"candidates": np.empty((0, 2))}, {"edge_entropy": 0.01, "coupling": 1.0}])
def test_a_ridge_shrinks_the_slopes_of_every_level_and_the_noise_says_what_is_left(data, options):
    def fitted(ridge):
        model = GGMTLRegressor(criterion="validation", ridge=ridge, random_state=0, **options)
        return model.fit(data.X, data.y, tasks=data.tasks)

    free, weak, strong = fitted(1e-6), fitted(10.0), fitted(1e6)
    for name, level in strong.state_.family.levels.items():
        assert np.abs(level.coefficients[:, :-1]).max() < 1e-3
        assert name not in weak.state_.family.levels or (
            np.linalg.norm(weak.state_.family.levels[name].coefficients[:, :-1])
            < np.linalg.norm(free.state_.family.levels[name].coefficients[:, :-1])
        )
    assert strong.noise_[0] == pytest.approx(np.std(data.y), rel=0.1)
    strong.add_task(50, data.X[:5], data.y[:5])
    assert np.abs(strong.coef_[-1]).max() < 1e-3


def test_the_ridge_of_the_shared_model_is_that_of_the_inner_problem(data):
    model = GGMTLRegressor(criterion="validation", ridge=5.0, candidates=np.empty((0, 2)), random_state=0)
    state = model.fit(data.X, data.y, tasks=data.tasks).state_
    fit = next(level for level in state.family.levels.values() if np.isfinite(level.hub).all() and level.hub.all())
    problem = state.settings.problem(state.folded().total, fit.edges, fit.coupling, fit.hub)
    step = 1e-6 * np.random.default_rng(0).standard_normal(fit.coefficients.shape)
    change = problem.objective(fit.coefficients + step, np.empty(0)) - problem.objective(fit.coefficients, np.empty(0))
    assert 0.0 <= change < 1e-8
