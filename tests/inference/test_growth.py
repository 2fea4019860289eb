"""Tasks that come one after the other: what was fitted stays as it was."""

import copy

import numpy as np
import pytest

from ggmtl import GGMTLRegressor, load_model
from ggmtl.datasets import make_clusters

FITS = {
    "linked": {},
    "shared model alone": {"candidates": np.empty((0, 2))},
    "validation": {"criterion": "validation", "coupling": 1.0, "edge_entropy": 0.01},
}


@pytest.fixture(scope="module")
def data():
    return make_clusters(3, n_tasks=12, n_features=4, n_samples=20, random_state=0)


@pytest.fixture(scope="module", params=FITS)
def fitted(data, request):
    return GGMTLRegressor(random_state=0, **FITS[request.param]).fit(data.X, data.y, tasks=data.tasks)


def newcomers(model, count, rows=5, seed=1):
    """Rows of new tasks, each like one of those that were fitted."""
    random = np.random.default_rng(seed)
    tasks, like = np.repeat(100 + np.arange(count), rows), np.repeat(random.integers(12, size=count), rows)
    X = random.standard_normal((len(tasks), 4))
    y = np.einsum("rd,rd->r", X, model.coef_[like]) + model.intercept_[like] + random.standard_normal(len(tasks))
    return X, y, tasks


def grow_one_by_one(model, X, y, tasks):
    for label in np.unique(tasks):
        model.add_task(label, X[tasks == label], y[tasks == label])


def grow_at_once(model, X, y, tasks):
    model.partial_fit(X, y, tasks=tasks, relearn=False)


def grow_in_calls(model, X, y, tasks):
    for label in np.unique(tasks):
        model.partial_fit(X[tasks == label], y[tasks == label], tasks=tasks[tasks == label], relearn=False)


@pytest.mark.parametrize("grow", [grow_one_by_one, grow_at_once, grow_in_calls])
def test_new_tasks_change_neither_the_noise_nor_the_intervals_of_the_others(data, fitted, grow):
    model = copy.deepcopy(fitted)
    rows = data.X[:30], data.tasks[:30]
    noise, common = model.noise_, (model.hub_coef_.copy(), model.hub_intercept_)
    values, spread = model.predict(rows[0], tasks=rows[1], return_std=True)
    grow(model, *newcomers(fitted, 30))
    np.testing.assert_allclose(model.noise_[:12], noise, rtol=1e-9)
    assert model.noise_[12:].max() <= 1.5 * noise.max()
    after, wider = model.predict(rows[0], tasks=rows[1], return_std=True)
    np.testing.assert_allclose(after, values, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(wider, spread, rtol=1e-6)
    np.testing.assert_allclose(model.hub_coef_, common[0], rtol=1e-6)
    # The intercept may be next to nothing beside the targets, whose scale is that of its rounding.
    assert model.hub_intercept_ == pytest.approx(common[1], abs=1e-7)


def test_new_tasks_are_linked_to_fitted_tasks_only(fitted):
    model = copy.deepcopy(fitted)
    grow_one_by_one(model, *newcomers(fitted, 30))
    for edges in (model.edges_, model.graph_.edges):
        assert (edges.min(axis=1) < 12).all()
        assert len(edges) <= len(fitted.edges_) + 30 * 12


def test_the_order_in_which_tasks_come_does_not_matter(fitted):
    X, y, tasks = newcomers(fitted, 6)
    first, second = copy.deepcopy(fitted), copy.deepcopy(fitted)
    grow_one_by_one(first, X, y, tasks)
    for label in np.unique(tasks)[::-1]:
        second.add_task(label, X[tasks == label], y[tasks == label])
    np.testing.assert_allclose(first.coef_, second.coef_, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(
        first.coefficients()["standard_error"], second.coefficients()["standard_error"], rtol=1e-9
    )


def test_a_model_without_statistics_grows_in_the_same_way(fitted, tmp_path):
    fitted.save(tmp_path / "model.ggmtl")
    loaded, model = load_model(tmp_path / "model.ggmtl"), copy.deepcopy(fitted)
    for each in (loaded, model):
        grow_one_by_one(each, *newcomers(fitted, 10))
    np.testing.assert_allclose(loaded.coef_, model.coef_, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(loaded.noise_, model.noise_, rtol=1e-6)


def test_many_hundred_calls_end_as_they_began(fitted):
    model = copy.deepcopy(fitted)
    X, y, tasks = newcomers(fitted, 300, rows=2)
    grow_one_by_one(model, X, y, tasks)
    np.testing.assert_allclose(model.noise_[:12], fitted.noise_, rtol=1e-9)
    truth = np.einsum("rd,rd->r", X, model.coef_[12:][tasks - 100]) + model.intercept_[12:][tasks - 100]
    assert np.sqrt(np.mean((truth - y) ** 2)) < 2.0


def test_one_model_for_all_tasks_is_the_model_of_a_new_one_with_the_same_standard_errors(data):
    random = np.random.default_rng(0)
    y = data.X @ [1.0, -1.0, 2.0, 0.5] + random.standard_normal(len(data.X))
    model = GGMTLRegressor(blend=False, random_state=0).fit(data.X, y, tasks=data.tasks)
    assert not np.isfinite(model.hub_strength_).any()
    noise, errors = model.noise_[0], np.asarray(model.coefficients()["standard_error"])[:5]
    model.add_task(50, data.X[:5], y[:5] + 100.0)
    model.add_task(51, data.X[:5], y[:5] - 100.0)
    np.testing.assert_allclose(model.noise_, noise)
    np.testing.assert_allclose(
        np.asarray(model.coefficients()["standard_error"]).reshape(14, 5), errors[None].repeat(14, 0)
    )
    np.testing.assert_allclose(model.coef_[12:], model.coef_[:2], rtol=1e-12)
    model.partial_fit(data.X[:5], y[:5], tasks=data.tasks[:5], relearn=False)
    np.testing.assert_allclose(model.coef_[12:], model.coef_[:2], rtol=1e-12)
    assert model.noise_[0] == pytest.approx(noise, rel=0.1)


def test_evidence_is_that_of_the_fitted_tasks(data):
    model = GGMTLRegressor(random_state=0).fit(data.X, data.y, tasks=data.tasks)
    before = model.evidence()
    grow_one_by_one(model, *newcomers(model, 5))
    assert model.evidence().value == pytest.approx(before.value, rel=1e-9)
