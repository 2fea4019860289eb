"""Levels for other losses, and their average."""

from dataclasses import replace

import numpy as np
import pytest

from ggmtl.bilevel.level import Settings
from ggmtl.evidence.hub import hub_evidence
from ggmtl.evidence.laplace import LaplaceLoss, common_model, hub_mode, predicting_models
from ggmtl.fit.outcome_levels import graph_mode, hub_level, intercept_level
from ggmtl.fit.outcomes import moderated
from ggmtl.fit.predictor_average import (
    HeldOutRows,
    average_weights,
    block_importance,
    cross_fitted_predictor,
    slope_errors,
)
from ggmtl.fit.separate_outcomes import null_model, pooled_level, separate_level, separate_mode
from ggmtl.graph.candidates import as_candidates
from ggmtl.losses.rowwise import LOSSES
from ggmtl.losses.task_rows import sorted_rows

SLOPES = np.array([True, True, False])
SETTINGS = Settings("squared_l2", as_candidates("knn"), None, True, SLOPES)


def make_rows(name="logistic", n_tasks=8, n_rows=40, spread=0.5, seed=0):
    rng = np.random.default_rng(seed)
    task = np.repeat(np.arange(n_tasks), n_rows)
    design = np.column_stack([rng.standard_normal((len(task), 2)), np.ones(len(task))])
    eta = np.einsum("rp,rp->r", design, (np.array([1.0, -1.0, 0.3]) + spread * rng.standard_normal((n_tasks, 3)))[task])
    loss = LOSSES[name]
    draw = rng.poisson if name == "poisson" else lambda mean: rng.random(len(mean)) < mean
    return sorted_rows(design, draw(loss.mean(eta)).astype(float), task, n_tasks)[0], loss


@pytest.mark.parametrize("name", ["logistic", "poisson"])
def test_levels_are_at_their_optimum(name):
    """The gradient of loss and penalty is zero."""
    rows, loss = make_rows(name)
    pooled = pooled_level(rows, loss, SLOPES)
    level, mode = hub_level(rows, loss, SETTINGS, pooled)
    hub, models = level.fit.hub, mode.coefficients
    centred = models - common_model(models, hub, pooled.ridge)
    np.testing.assert_allclose(rows.gradient(loss, models) + hub * centred, 0.0, atol=1e-3)
    if name == "logistic":  # The models of a level of classes are posterior means; those of counts are the optimum.
        assert np.abs(level.fit.coefficients).mean() > np.abs(models).mean()
        return
    np.testing.assert_array_equal(level.fit.coefficients, models)
    alone = separate_level(rows, loss, SLOPES)
    pull = np.where(SLOPES, alone.ridge * alone.fit.coefficients, 0.0)
    gradient = rows.gradient(loss, alone.fit.coefficients)
    np.testing.assert_allclose((gradient + pull)[:, SLOPES], 0.0, atol=1e-2)


@pytest.mark.parametrize("name", ["logistic", "poisson"])
def test_common_slopes_and_intercepts_drawn_to_their_mean_by_the_evidence(name):
    """The same evidence, its slope along the intercepts' strength zero, and slopes that all tasks share."""
    rows, loss = make_rows(name, n_tasks=12, spread=0.7)
    pooled = pooled_level(rows, loss, SLOPES)
    hub, mode = hub_level(rows, loss, SETTINGS, pooled)
    level = intercept_level(LaplaceLoss(rows, loss, mode, 1.0, pooled.ridge), SETTINGS, hub.fit)
    models = level.fit.coefficients
    assert np.ptp(models[:, SLOPES], axis=0).max() < 1e-3
    assert np.ptp(models[:, 2]) > 0.5
    laplace = LaplaceLoss(rows, loss, models, 1.0, pooled.ridge)
    slope = hub_evidence(laplace, level.fit.hub).gradient[2] * level.fit.hub[2]
    assert abs(slope) < 1e-2
    if name == "logistic":
        return
    gradient = rows.gradient(loss, models)
    np.testing.assert_allclose(gradient[:, 2] + level.fit.hub[2] * (models - models.mean(axis=0))[:, 2], 0, atol=1e-3)
    pull = pooled.ridge * models.mean(axis=0)
    np.testing.assert_allclose((gradient.sum(axis=0) + pull)[SLOPES], 0.0, atol=1e-2)


@pytest.mark.parametrize("events", [0, 1, 4, 9])
def test_probabilities_are_those_of_the_posterior(events):
    """One coefficient, so that its posterior can be summed on a grid."""
    n_rows, ridge, centre, loss = 9, np.array([0.3]), np.array([-0.5]), LOSSES["logistic"]
    target = (np.arange(n_rows) < events).astype(float)
    rows, _ = sorted_rows(np.ones((n_rows, 1)), target, np.zeros(n_rows, dtype=int), 1)
    mode = separate_mode(rows, loss, np.zeros((1, 1)), ridge, centre)
    block = 1.0 / (mode.sums.gram[0] + ridge)
    models = predicting_models(rows, loss, mode.coefficients, block[None], lambda c: c @ block)
    grid = np.linspace(-15, 15, 4001)
    log_density = -sum(loss.value(grid, y) for y in target) - 0.5 * ridge[0] * (grid - centre) ** 2
    density = np.exp(log_density - log_density.max())
    exact_mean, exact = (float(values @ density / density.sum()) for values in (grid, loss.mean(grid)))
    assert abs(models[0, 0] - exact_mean) < 0.4 * abs(mode.coefficients[0, 0] - exact_mean)
    ours, at_mode = (loss.mean(moderated(loss, w[0, 0], block[0, 0])) for w in (models, mode.coefficients))
    assert abs(ours - exact) < 0.5 * abs(at_mode - exact)


@pytest.mark.parametrize("name", ["logistic", "poisson"])
def test_where_the_search_for_strengths_begins_does_not_matter(name):
    """From the strengths of other rows of the same tasks, as folds begin."""
    rows, loss = make_rows(name, n_tasks=12)
    kept = rows.take(np.arange(len(rows.task)) % 4 > 0)
    before, _ = hub_level(rows, loss, SETTINGS, pooled_level(rows, loss, SLOPES))
    pooled = pooled_level(kept, loss, SLOPES)
    afresh, _ = hub_level(kept, loss, SETTINGS, pooled)
    again, _ = hub_level(kept, loss, SETTINGS, pooled, start=before)
    assert again.fit.value == pytest.approx(afresh.fit.value, abs=0.05)
    np.testing.assert_allclose(again.fit.coefficients, afresh.fit.coefficients, atol=0.02)
    alone, from_all = separate_level(kept, loss, SLOPES), separate_level(rows, loss, SLOPES)
    np.testing.assert_allclose(separate_level(kept, loss, SLOPES, start=from_all).ridge, alone.ridge, rtol=0.05)


def test_ridges_of_very_many_tasks_are_those_of_some():
    rows, loss = make_rows(n_tasks=300, n_rows=20)
    whole, sampled = separate_level(rows, loss, SLOPES), separate_level(rows, loss, SLOPES, most=150)
    np.testing.assert_allclose(sampled.ridge, whole.ridge, rtol=0.2)
    np.testing.assert_allclose(sampled.fit.coefficients, whole.fit.coefficients, atol=0.2)
    np.testing.assert_array_equal(separate_level(rows, loss, SLOPES, most=300).ridge, whole.ridge)


def test_tasks_that_are_alike_are_pooled_by_the_evidence():
    rows, loss = make_rows(spread=0.0, n_rows=100)
    pooled = pooled_level(rows, loss, SLOPES)
    hub = hub_level(rows, loss, SETTINGS, pooled)[0]
    np.testing.assert_allclose(hub.fit.coefficients, pooled.fit.coefficients, atol=0.25)
    apart = hub_level(*make_rows(spread=1.0, n_rows=100), SETTINGS, pooled)[0]
    assert (apart.fit.hub < 0.2 * hub.fit.hub).all()


def test_tasks_of_one_class_have_finite_models_on_every_level():
    rows, loss = make_rows()
    target = np.where(rows.task < 3, 1.0, rows.target)
    rows = type(rows)(rows.design, target, rows.offset, rows.weight, rows.task, rows.n_tasks)
    for level in (
        separate_level(rows, loss, SLOPES),
        hub_level(rows, loss, SETTINGS, pooled_level(rows, loss, SLOPES))[0],
    ):
        assert np.abs(level.fit.coefficients).max() < 10


def test_separable_rows_have_a_finite_model():
    design = np.column_stack([np.linspace(-1, 1, 20), np.ones(20)])
    rows, _ = sorted_rows(design, (design[:, 0] > 0).astype(float), np.zeros(20, dtype=int), 1)
    assert np.abs(separate_level(rows, LOSSES["logistic"], np.array([True, False])).fit.coefficients).max() < 100


def test_the_null_model_is_the_base_rate():
    rows, loss = make_rows("poisson")
    np.testing.assert_allclose(np.exp(null_model(rows, loss, SLOPES)[2]), rows.target.mean(), rtol=1e-5)


def test_a_graph_without_strength_is_the_hub():
    rows, loss = make_rows()
    hub, _ = hub_level(rows, loss, SETTINGS, pooled_level(rows, loss, SLOPES))
    mode = hub_mode(LaplaceLoss(rows, loss, np.zeros((8, 3))), hub.fit.hub)
    edges, values = np.array([[0, 1]]), np.array([1e-9])
    fit = type(hub.fit)("graph", edges, values, np.ones(3), hub.fit.hub, hub.fit.coefficients, 0.0)
    np.testing.assert_allclose(
        graph_mode(rows, loss, fit, np.zeros((8, 3)), 1.0).coefficients, mode.coefficients, atol=1e-4
    )


# ---------------------------------------------------------------------- the average


def held_out(predictors, target, n_tasks=10):
    number = len(target)
    task = np.arange(number) % n_tasks
    known = np.ones(number, dtype=bool)
    return HeldOutRows(np.array(predictors), target, np.ones(number), task, np.arange(number) % 3, n_tasks, known)


def test_a_level_that_is_much_better_gets_the_weight():
    rng = np.random.default_rng(0)
    eta = 2.0 * rng.standard_normal(900)
    target = (rng.random(900) < 1 / (1 + np.exp(-eta))).astype(float)
    rows = held_out([np.zeros(900), eta], target)
    np.testing.assert_allclose(average_weights(rows, LOSSES["logistic"], 0), [0, 1], atol=0.15)
    np.testing.assert_allclose(average_weights(rows, LOSSES["logistic"], 1), [0, 1], atol=1e-6)


def test_levels_that_differ_by_noise_alone_share_the_weight():
    rng = np.random.default_rng(0)
    target, noise = rng.poisson(2.0, 3000).astype(float), 0.3 * rng.standard_normal((2, 3000))
    rows = held_out(np.log(2.0) + noise, target)
    np.testing.assert_allclose(average_weights(rows, LOSSES["poisson"], 1), [0.5, 0.5], atol=0.1)


def test_rows_that_no_level_explains_count_less():
    target = np.full(300, 2.0)
    target[::10] = 60.0
    rows = held_out(np.full((2, 300), np.log(2.5)), target, n_tasks=10)
    importance = block_importance(rows, LOSSES["poisson"])
    assert (importance[rows.task == 0] < 0.5).all()
    assert (importance[rows.task != 0] == 1.0).all()


@pytest.mark.parametrize("name", ["logistic", "poisson", "squared"])
def test_the_weights_minimise_the_penalised_loss(name):
    """No other point of the simplex on a grid is better."""
    rng = np.random.default_rng(1)
    target = rng.integers(0, 2, 400).astype(float)
    rows, loss = held_out(rng.standard_normal((3, 400)) + target - 0.5, target), LOSSES[name]
    alpha = average_weights(rows, loss, 0)
    assert alpha.sum() == pytest.approx(1.0)
    slopes, importance = slope_errors(rows, loss, 0), block_importance(rows, loss)

    def objective(weights):
        return importance @ loss.value(weights @ rows.predictors, target) + 0.5 * slopes @ weights

    grid = [np.array([a, b, 1 - a - b]) for a in np.linspace(0, 1, 41) for b in np.linspace(0, 1 - a, 41)]
    assert objective(alpha) <= min(map(objective, grid)) + 0.05


def test_rows_of_tasks_that_nothing_is_known_of_do_not_count():
    rng = np.random.default_rng(2)
    target = rng.integers(0, 2, 400).astype(float)
    rows = held_out(rng.standard_normal((2, 400)) + target - 0.5, target)
    known = rows.task > 1
    inverted = replace(rows, target=np.where(known, target, 1.0 - target), known=known)
    weights = average_weights(replace(rows, known=known), LOSSES["logistic"], 0)
    np.testing.assert_array_equal(average_weights(inverted, LOSSES["logistic"], 0), weights)
    assert np.abs(average_weights(rows, LOSSES["logistic"], 0) - weights).max() > 1e-3


def test_the_cross_fitted_average_does_not_see_the_fold():
    rng = np.random.default_rng(0)
    target, predictors = rng.integers(0, 2, 90).astype(float), rng.standard_normal((2, 90))
    rows = held_out(predictors, target)
    first = cross_fitted_predictor(rows, LOSSES["logistic"], 0)
    inside = rows.fold == 0
    other = held_out(predictors, np.where(inside, 1 - target, target))
    np.testing.assert_allclose(cross_fitted_predictor(other, LOSSES["logistic"], 0)[inside], first[inside])
