"""Any table of tasks gives finite models that are no worse than the pooled mean, or an error that says why not."""

import warnings

import numpy as np
import pytest
from harness import assert_finite, attempt, fuzz
from hypothesis import strategies as st
from inputs import LAYOUTS, as_decimals, as_layout, tables

from ggmtl import KNN, Complete, Coordinates, GGMTLRegressor, TaskStatistics, baselines
from ggmtl.errors import UnseenTaskWarning

EVIDENCE = [{}, {"validation": None}, {"validation": 2}, {"validation": 0.3}, {"standardize": False}]
VALIDATION = [
    {"edge_entropy": 0.0, "coupling": 1.0},
    {"edge_entropy": 0.0, "coupling": 0.0},
    {"edge_entropy": 0.01, "hub": False},
    {"edge_entropy": 0.0, "coupling": 1.0, "penalty": "l2"},
    {"edge_entropy": 0.0, "coupling": 0.1, "penalty": "l1", "hypergradient": "frozen"},
    {"edge_entropy": 0.0, "edge_l1": 0.1, "coupling": 1.0, "edge_solver": "closed_form"},
    {"edge_entropy": 0.0, "coupling": 1.0, "edge_solver": "projected_gradient"},
    {"edge_l2": 0.1, "validation": 0.25},
    {"fit_intercept": False, "edge_entropy": 0.0},
    {"ridge": 0.0, "edge_entropy": 0.0, "hub": False},
    {"hub": False},
    {},
]


def check_models(model, table, scale=1.0):
    """Finite models and weights, and a training error not above that of the pooled mean.

    The pooled mean, with slopes of zero, is a point of every problem here at which all penalties vanish.
    """
    n = len(np.unique(table.tasks))
    predicted = model.predict(table.X, tasks=table.tasks)
    assert_finite(model.coef_, model.intercept_, predicted, model.graph_.weights)
    assert model.coef_.shape == (n, table.X.shape[1])
    assert model.graph_.n_tasks == n
    assert ((model.graph_.weights >= 0) & (model.graph_.weights <= 1)).all()
    unit = max(float(np.abs(table.y).max()), np.finfo(float).tiny)
    y, fitted = table.y / unit, predicted / unit
    weight = row_weights(model, table)
    centre = np.average(y, weights=weight) if model.fit_intercept else 0.0
    mean, found = weight @ (y - centre) ** 2, weight @ (fitted - y) ** 2
    assert found <= scale * mean * (1 + 1e-6) + 1e-9 * weight.sum()


def row_weights(model, table):
    """What every row counted in the fit: less where its task is noisy."""
    state = getattr(model, "state_", None)
    if state is None or state.level.precisions is None:
        return np.ones(len(table.y))
    return state.level.precisions[np.searchsorted(model.tasks_, table.tasks)]


@fuzz(ci=40, long=400, table=tables(), options=st.sampled_from(EVIDENCE))
def test_evidence(table, options):
    model = attempt(GGMTLRegressor(**options).fit, table.X, table.y, tasks=table.tasks)
    if model is not None:
        check_models(model, table)
        if model.validation_error_ is not None:
            assert model.validation_error_ >= 0


@fuzz(ci=40, long=400, table=tables(max_rows=6), options=st.sampled_from(VALIDATION))
def test_validation(table, options):
    options = {"validation": 3, "max_iter": 20} | options
    model = attempt(GGMTLRegressor(criterion="validation", **options).fit, table.X, table.y, tasks=table.tasks)
    if model is not None:
        check_models(model, table)


@fuzz(ci=20, long=250, table=tables(), rule=st.sampled_from(["complete", "none", "one", "forbidden", "places", "must"]))
def test_candidates_from_none_to_all(table, rule):
    names = np.unique(table.tasks).tolist()
    pairs = [(a, b) for k, a in enumerate(names) for b in names[k + 1 :]]
    candidates = {
        "complete": "complete",
        "none": [],
        "one": pairs[:1],
        "forbidden": Complete(forbid=pairs),
        "places": Coordinates(np.zeros((len(names), 2)), k=1),
        "must": KNN(k=1, must_link=pairs[-1:]),
    }[rule]
    fit = GGMTLRegressor(candidates=candidates, validation=None).fit
    model = attempt(fit, table.X, table.y, tasks=table.tasks)
    if model is not None:
        check_models(model, table)
        if rule in ("none", "forbidden"):
            assert model.graph_.n_edges == 0
        if rule == "must" and len(names) > 1:
            assert [len(names) - 2, len(names) - 1] in model.graph_.edges.tolist()


@fuzz(ci=10, long=150, table=tables(ordinary=True), seed=st.integers(0, 99), exponent=st.integers(-400, 400))
def test_units_and_row_order_change_nothing(table, seed, exponent):
    first = GGMTLRegressor(validation=None).fit(table.X, table.y, tasks=table.tasks)
    order = np.random.default_rng(seed).permutation(len(table))
    unit = 2.0**exponent
    again = GGMTLRegressor(validation=None).fit(table.X[order] / unit, unit * table.y[order], tasks=table.tasks[order])
    expected, got = first.predict(table.X, tasks=table.tasks), again.predict(table.X / unit, tasks=table.tasks) / unit
    np.testing.assert_allclose(got, expected, atol=1e-4 * np.abs(table.y).max(), rtol=1e-4)


@fuzz(ci=15, long=200, table=tables(scales=False), layout=st.sampled_from([*LAYOUTS, "decimal"]))
def test_layouts_and_types_change_nothing(table, layout):
    X = as_decimals(table.X) if layout == "decimal" else as_layout(table.X, layout)
    plain = np.asarray(X, dtype=np.float64)
    for_plain = attempt(GGMTLRegressor(validation=None).fit, plain, table.y, tasks=table.tasks)
    given = attempt(GGMTLRegressor(validation=None).fit, X, table.y, tasks=table.tasks)
    assert (for_plain is None) == (given is None)
    if given is not None:
        np.testing.assert_array_equal(given.coef_, for_plain.coef_)


@fuzz(
    ci=20,
    long=250,
    table=tables(),
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(["zeros", "wide", "tiny", "one", "negative", "nan", "short"]),
)
def test_weights(table, seed, kind):
    rng = np.random.default_rng(seed)
    weight = {
        "zeros": rng.integers(0, 2, len(table)).astype(float),
        "wide": 10.0 ** rng.uniform(-12, 12, len(table)),
        "tiny": np.full(len(table), 1e-250),
        "one": np.ones(len(table)),
        "negative": rng.normal(size=len(table)),
        "nan": np.where(rng.uniform(size=len(table)) < 0.5, np.nan, 1.0),
        "short": np.ones(len(table) - 1),
    }[kind]
    warnings.filterwarnings("ignore", "sample_weight has fractions")
    model = attempt(GGMTLRegressor(validation=None).fit, table.X, table.y, tasks=table.tasks, sample_weight=weight)
    if model is not None:
        assert_finite(model.coef_, model.intercept_)


@fuzz(
    ci=15,
    long=200,
    table=tables(),
    other=tables(),
    unseen=st.sampled_from(["error", "hub"]),
)
def test_prediction_of_foreign_rows(table, other, unseen):
    model = attempt(GGMTLRegressor(validation=None, unseen=unseen).fit, table.X, table.y, tasks=table.tasks)
    if model is None:
        return
    warnings.simplefilter("ignore", UnseenTaskWarning)
    with np.errstate(over="ignore"):
        predicted = attempt(model.predict, other.X, tasks=other.tasks)
    if predicted is not None:
        assert predicted.shape == (len(other),)
        assert not np.isnan(predicted).any()


@fuzz(ci=10, long=150, table=tables(scales=False), folds=st.sampled_from([None, 2, 3]))
def test_statistics_alone_give_the_same_models_as_rows(table, folds):
    statistics = TaskStatistics.from_arrays(table.X, table.y, table.tasks, folds=folds)
    without_rows = attempt(GGMTLRegressor().fit_statistics, statistics)
    with_rows = attempt(GGMTLRegressor(validation=folds).fit, table.X, table.y, tasks=table.tasks)
    assert (without_rows is None) == (with_rows is None)
    if with_rows is not None:
        np.testing.assert_allclose(without_rows.coef_, with_rows.coef_)


@fuzz(ci=12, long=60, n_tiny=st.integers(200, 800), seed=st.integers(0, 99), d=st.integers(1, 3))
def test_many_tiny_tasks_and_a_huge_one(n_tiny, seed, d):
    rng = np.random.default_rng(seed)
    tasks = np.r_[np.zeros(20_000, dtype=int), np.arange(n_tiny)]
    X = rng.normal(size=(len(tasks), d))
    y = X.sum(axis=1) + rng.normal(size=len(tasks))
    model = baselines.HubRegressor(validation=None).fit(X, y, tasks=tasks)
    assert_finite(model.coef_, model.intercept_)
    assert np.sqrt(np.mean((model.predict(X, tasks=tasks) - y) ** 2)) < 1.05


@fuzz(
    ci=12,
    long=150,
    table=tables(ordinary=True),
    seed=st.integers(0, 99),
    count=st.integers(2, 12),
    rows=st.integers(0, 4),
    at_once=st.booleans(),
)
def test_tasks_that_come_one_after_the_other_leave_the_fitted_ones_alone(table, seed, count, rows, at_once):
    model = attempt(GGMTLRegressor().fit, table.X, table.y, tasks=table.tasks)
    if model is None:
        return
    rng, known, n_edges = np.random.default_rng(seed), model.tasks_, len(model.edges_)
    before = model.predict(table.X, tasks=table.tasks, return_std=True)
    for k in range(count):
        X = rng.normal(size=(rows, table.X.shape[1]))
        label = f"zz{k}" if known.dtype.kind in "US" else known.max() + 1 + k
        if at_once and rows:
            model.partial_fit(X, rng.normal(size=rows), tasks=np.repeat(label, rows), relearn=False)
        else:
            model.add_task(label, X, rng.normal(size=rows))
    after = model.predict(table.X, tasks=table.tasks, return_std=True)
    unit = max(float(np.abs(table.y).max()), np.finfo(float).tiny)
    for old, new in zip(before, after):
        np.testing.assert_allclose(new / unit, old / unit, rtol=1e-5, atol=1e-6)
    assert_finite(model.coef_, model.noise_)
    assert len(model.edges_) <= n_edges + count * len(known)
    assert (model.edges_.min(axis=1, initial=0) < len(known)).all()


METHODS = {
    "IndependentRegressor": {},
    "PooledRegressor": {},
    "HubRegressor": {},
    "CCMTLRegressor": {"strength": 1.0},
    "MTRLRegressor": {"strength": 1.0, "ridge": 0.1},
    "MSSLRegressor": {"strength": 1.0, "sparsity": 0.1},
    "BMSLRegressor": {"n_warmup": 10, "n_samples": 10, "n_chains": 1, "random_state": 0},
}


@pytest.mark.parametrize("name", METHODS)
@fuzz(ci=12, long=120, table=tables(), folds=st.sampled_from([2, 3, None, 0.3]))
def test_baselines(name, table, folds):
    method = getattr(baselines, name)(validation=folds, **METHODS[name])
    model = attempt(method.fit, table.X, table.y, tasks=table.tasks)
    if model is not None:
        assert_finite(model.coef_, model.intercept_, model.predict(table.X, tasks=table.tasks), model.graph_.weights)


@pytest.mark.parametrize("name", METHODS)
@fuzz(ci=3, long=25, table=tables(max_tasks=4, max_rows=5, max_features=3))
def test_baselines_that_choose_their_own_strengths(name, table):
    options = METHODS[name] if name.startswith("BMSL") else {}
    model = attempt(getattr(baselines, name)(validation=2, **options).fit, table.X, table.y, tasks=table.tasks)
    if model is not None:
        assert_finite(model.coef_, model.intercept_, model.predict(table.X, tasks=table.tasks))


WRONG = {
    "penalty": ["l3", None, 2],
    "criterion": ["bayes", None],
    "coupling": ["auto ", -1.0, np.nan, np.inf, [1.0], [[1.0]], None, "x", [1.0, "a"]],
    "edge_l1": [-1, "a", None, np.nan],
    "edge_entropy": [-1.0, "none", None, [1]],
    "candidates": ["all", 3, None, [1, 2], [(0, 0)], [("a", "nowhere")], KNN(k=0), KNN(k=1.5), KNN(must_link=[(0, 9)])],
    "validation": [1, 0, -3, 1.5, "kfold", True, np.nan, [5], 0.0],
    "edge_solver": ["adam", None],
    "hypergradient": ["none", None],
    "ridge": [-1, np.inf, "a", None],
    "unseen": ["ignore", None],
    "max_iter": [0, -1, None, "a", 1.5],
    "tol": [-1, None, np.nan],
    "task": ["nowhere", 99, -99, 1.5, ["a"]],
    "random_state": [-1, 2**40, "a", 1.5],
    "hub": ["no", 0, 1, None],
    "n_jobs": ["many", 0],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
@fuzz(ci=2, long=6, table=tables(scales=False, max_rows=4))
def test_wrong_parameters_are_refused_or_harmless(name, value, table):
    tasks = {} if name == "task" else {"tasks": table.tasks}
    model = attempt(GGMTLRegressor(**{name: value}).fit, table.X, table.y, **tasks)
    if model is not None:
        assert_finite(model.coef_, model.intercept_)
