"""Straight lines and curves as levels of one family."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import ggmtl.fit.lines_or_curves as straight_module
from ggmtl import GGMTLRegressor, load_model
from ggmtl.bilevel.level import STRAIGHT
from ggmtl.errors import ParameterError
from ggmtl.evidence.hub import evidence_with_common_model, hub_evidence
from ggmtl.inspection import edge_stability, explain_edge
from ggmtl.runtime.sizes import Sizes
from ggmtl.statistics.least_squares import LeastSquares


def rows(bent: float, seed: int = 0, n_tasks: int = 10) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    tasks = np.repeat(np.arange(n_tasks), 24)
    X = np.column_stack([rng.uniform(0.0, 6.0, len(tasks)), rng.normal(size=len(tasks))])
    own = rng.normal(size=(2, n_tasks))[:, tasks]
    y = own[0] + (1.0 + 0.5 * own[1]) * X[:, 0] + bent * np.sin(X[:, 0]) + X[:, 1] + 0.3 * rng.normal(size=len(X))
    return X, y, tasks


@pytest.fixture(scope="module")
def straight():
    X, y, tasks = rows(bent=0.0)
    options = {"random_state": 0, "blend": False, "noise": "common"}
    both = GGMTLRegressor(effects="auto", **options).fit(X, y, tasks=tasks)
    return both, GGMTLRegressor(**options).fit(X, y, tasks=tasks), X, y, tasks


def test_straight_levels_are_those_of_the_linear_fit(straight):
    both, line, *_ = straight
    theirs = line.state_.family
    ours = both.state_.family
    for name in ("pooled", "hub", "intercepts", "independent"):
        fit, own = ours.levels[name + STRAIGHT], theirs.levels[name]
        np.testing.assert_allclose(fit.on_its_columns().coefficients, own.coefficients, atol=1e-8)
        np.testing.assert_array_equal(np.delete(fit.coefficients, fit.columns, axis=1), 0.0)
        error = ours.errors.squared[ours.position(name + STRAIGHT)]
        np.testing.assert_allclose(error, theirs.errors.squared[theirs.position(name)], rtol=1e-7)


def test_where_nothing_bends_the_model_is_the_linear_one(straight):
    both, line, X, _, tasks = straight
    # Graphs are of lines or of curves, and have one name; the other levels of lines have names of their own.
    assert both.state_.level.name.removesuffix(STRAIGHT) == line.state_.level.name
    assert both.state_.level.columns.tolist() == [0, 1, 8]
    np.testing.assert_allclose(both.coef_, line.coef_, atol=1e-8)
    np.testing.assert_allclose(both.hub_strength_, line.hub_strength_, rtol=1e-6)
    np.testing.assert_allclose(both.validation_error_, line.validation_error_, rtol=1e-8)
    ours, theirs = (model.predict(X + 1.0, tasks=tasks, return_std=True) for model in (both, line))
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    np.testing.assert_allclose(
        *(np.asarray(model.coefficients()["standard_error"]) for model in (both, line)), rtol=1e-6
    )
    assert both.evidence().value == pytest.approx(line.evidence().value, rel=1e-8)


def test_what_grows_grows_as_the_linear_one(straight, tmp_path):
    both, line, X, y, tasks = straight
    both.save(tmp_path / "m.ggmtl", keep_statistics=True)
    line.save(tmp_path / "l.ggmtl", keep_statistics=True)
    both, line = load_model(tmp_path / "m.ggmtl"), load_model(tmp_path / "l.ggmtl")
    assert both.state_.level.columns.tolist() == [0, 1, 8]
    for model in (both, line):
        model.add_task(77, X[:7], y[:7] + 1.0)
        model.partial_fit(X[::3], 1.1 * y[::3], tasks=tasks[::3], relearn=False)
    np.testing.assert_allclose(both.coef_, line.coef_, atol=1e-7)
    ours, theirs = (m.predict(X[:5], tasks=np.full(5, 77), return_std=True) for m in (both, line))
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_edges_are_explained_as_in_the_linear_one(straight):
    both, line, X, y, tasks = straight
    ours, theirs = (explain_edge(model, 1, 4) for model in (both, line))
    assert ours.error == pytest.approx(theirs.error, rel=1e-6)
    for one, other in zip(ours.features, theirs.features):
        assert one.feature == other.feature
        np.testing.assert_allclose(one.difference, other.difference, atol=1e-8)
        np.testing.assert_allclose(one.standard_error, other.standard_error, rtol=1e-5)
    assert edge_stability(both, X, y, tasks=tasks, n_resamples=2).n_resamples == 2


def test_where_effects_bend_curves_are_chosen():
    X, y, tasks = rows(bent=1.0)
    model = GGMTLRegressor(effects="auto", random_state=0).fit(X, y, tasks=tasks)
    line, curve = (clone(model).set_params(effects=e).fit(X, y, tasks=tasks) for e in ("linear", "smooth"))
    assert model.validation_error_ < 0.65 * line.validation_error_
    assert model.validation_error_ < 1.01 * curve.validation_error_
    assert model.path_[0]["level"] == "pooled" + STRAIGHT
    assert "straight" in model.summary()


def test_auto_without_features_of_many_values_is_linear():
    X, y, tasks = rows(bent=1.0)
    X = np.sign(X - X.mean(axis=0))
    one, other = (GGMTLRegressor(effects=e, random_state=0).fit(X, y, tasks=tasks) for e in ("linear", "auto"))
    np.testing.assert_array_equal(one.coef_, other.coef_)
    assert [row["level"] for row in one.path_] == [row["level"] for row in other.path_]


def test_one_level_cannot_be_weighed():
    X, y, tasks = rows(bent=1.0)
    with pytest.raises(ParameterError, match="leaves one level"):
        GGMTLRegressor(effects="auto", criterion="validation", edge_entropy=0.1).fit(X, y, tasks=tasks)


def test_sums_of_some_columns_are_those_of_the_rows_without_the_others():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(3, 8, 5)), rng.normal(size=(3, 8))

    def loss_of(X):
        gram, moment = np.einsum("nrp,nrq->npq", X, X), np.einsum("nrp,nr->np", X, y)
        return LeastSquares(gram, moment, (y**2).sum(axis=1), np.full(3, 8.0))

    chosen = np.array([0, 3, 4])
    ours, theirs = loss_of(X).of_columns(chosen), loss_of(X[:, :, chosen])
    np.testing.assert_allclose(ours.gram, theirs.gram)
    np.testing.assert_allclose(ours.moment, theirs.moment)


def test_evidence_with_a_common_model_is_the_dense_one():
    """−ln ∫ N(y; Xμ, σ²(I + Z H⁻¹ Zᵀ)) dμ and the density of N(0, I) at zero, σ² = Q/(N − p)."""
    rng = np.random.default_rng(0)
    n, r, p = 5, 6, 3
    X, y, hub = rng.normal(size=(n, r, p)), rng.normal(size=(n, r)), np.array([2.0, 0.7, 5.0])
    gram, moment = np.einsum("nrp,nrq->npq", X, X), np.einsum("nrp,nr->np", X, y)
    loss = LeastSquares(gram, moment, (y**2).sum(axis=1), np.full(n, float(r)))
    rows, target = X.reshape(-1, p), y.ravel()
    covariance = np.eye(n * r)
    for i in range(n):
        covariance[i * r : (i + 1) * r, i * r : (i + 1) * r] += (X[i] / hub) @ X[i].T
    inverse = np.linalg.inv(covariance)
    information = rows.T @ inverse @ rows
    mean = np.linalg.solve(information, rows.T @ inverse @ target)
    quadratic = float((target - rows @ mean) @ inverse @ (target - rows @ mean))
    freedom = n * r - p
    dense = 0.5 * (
        freedom * np.log(2 * np.pi * quadratic / freedom)
        + np.linalg.slogdet(covariance)[1]
        + np.linalg.slogdet(information)[1]
        + freedom
        + p * np.log(2 * np.pi)
    )
    value = hub_evidence(loss, hub, ridge=0.0).value
    assert evidence_with_common_model(value, loss) == pytest.approx(dense, rel=1e-9)


def test_what_is_known_about_tasks_goes_with_lines_and_curves():
    X, y, tasks = rows(bent=0.0, n_tasks=12)
    table = pd.DataFrame({"size": np.linspace(-1.0, 1.0, 14)}, index=np.arange(14))
    y = y + 3.0 * table["size"].to_numpy()[tasks]
    model = GGMTLRegressor(effects="auto", random_state=0).fit(X, y, tasks=tasks, task_features=table)
    assert "described" + STRAIGHT in {row["level"] for row in model.path_}
    values, spread = model.predict(X[:4], tasks=np.full(4, 13), task_features=table, return_std=True)
    assert np.isfinite(values).all()
    assert (spread > 0).all()


@pytest.mark.parametrize("told", [False, True])
def test_levels_have_the_same_order_whichever_has_the_graphs(told, monkeypatch):
    # Errors of folds are put together by position, and every fold decides on its own where to look for graphs.
    X, y, tasks = rows(bent=0.1, n_tasks=8)
    table = pd.DataFrame({"size": np.linspace(-1.0, 1.0, 8)}, index=np.arange(8))
    orders = []
    for way in ("", STRAIGHT):
        monkeypatch.setattr(straight_module, "_better_evidence", lambda *_, way=way: way)
        model = GGMTLRegressor(effects="auto", random_state=0).fit(
            X, y, tasks=tasks, **({"task_features": table} if told else {})
        )
        orders.append([row["level"] for row in model.path_ if "graph" not in row["level"]])
    assert orders[0] == orders[1]


@pytest.mark.parametrize("told", [False, True])
def test_very_many_tasks_have_lines_and_curves_too(told):
    # One fold is held out, and the levels of all rows start from those without it.
    class Large(GGMTLRegressor):
        sizes = Sizes(one_fold=0, exact_evidence=0)

    X, y, tasks = rows(bent=0.35, n_tasks=14)
    table = pd.DataFrame({"size": np.linspace(-1.0, 1.0, 14)}, index=np.arange(14))
    known = {"task_features": table} if told else {}
    large = Large(effects="auto", random_state=0).fit(X, y, tasks=tasks, **known)
    model = GGMTLRegressor(effects="auto", random_state=0).fit(X, y, tasks=tasks, **known)
    assert {row["level"] for row in large.path_} >= {"hub", "hub" + STRAIGHT, "independent", "independent" + STRAIGHT}
    ours, theirs = (np.asarray(each.effect("x0")["effect"]) for each in (large, model))
    assert np.abs(ours - theirs).max() < 0.1 * np.ptp(theirs)


def test_an_average_of_lines_and_curves_is_one_curve(tmp_path):
    X, y, tasks = rows(bent=0.35)
    model = GGMTLRegressor(effects="auto", random_state=0).fit(X, y, tasks=tasks)
    assert sum(model.blend_.values()) == pytest.approx(1.0)
    assert any(name.endswith(STRAIGHT) for name in model.blend_)
    assert any(not name.endswith(STRAIGHT) for name in model.blend_)
    same = np.full(len(X), 3)
    prediction = model.predict(X, tasks=same)
    effects = [np.asarray(model.effect(k, X[:, k], task=3)["effect"]) for k in (0, 1)]
    np.testing.assert_allclose(sum(effects) + prediction.mean(), prediction, rtol=1e-8)
    step = np.array([1e-5, 0.0])
    slope = (model.predict(X + step, tasks=same) - model.predict(X - step, tasks=same)).mean() / 2e-5
    assert model.coef_[3, 0] == pytest.approx(slope, rel=1e-4)
    assert model.hub_strength_.shape == (3,)
    model.save(tmp_path / "m.ggmtl", keep_statistics=True)
    copy = load_model(tmp_path / "m.ggmtl")
    np.testing.assert_array_equal(copy.predict(X, tasks=tasks), model.predict(X, tasks=tasks))
    for one in (model, copy):
        one.add_task(99, X[:6], y[:6])
        one.partial_fit(X[::4], y[::4], tasks=tasks[::4], relearn=False)
    new = np.full(5, 99)
    np.testing.assert_allclose(copy.predict(X[:5], tasks=new), model.predict(X[:5], tasks=new), rtol=1e-6)
    assert (model.predict(X[:5], tasks=new, return_std=True)[1] > 0).all()
