"""The estimator: scikit-learn's conventions, invariances, growing, and what is refused."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, KFold, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

from ggmtl import GGMTLRegressor, TaskStatistics, load_model
from ggmtl.datasets import make_clusters
from ggmtl.errors import InputError, ParameterError, UnseenTaskWarning

FAST = {"criterion": "validation", "edge_entropy": 0.0, "coupling": 1.0, "validation": 0.25}
HUB = {"candidates": np.empty((0, 2)), "validation": None}


def make(seed=0, n=6, rows=12, d=2, noise=0.3):
    rng = np.random.default_rng(seed)
    W = rng.normal(size=(2, d))[np.arange(n) % 2] + 0.1 * rng.normal(size=(n, d))
    X, tasks = rng.normal(size=(n * rows, d)), np.repeat(np.arange(n), rows)
    y = (X * W[tasks]).sum(axis=1) + tasks + noise * rng.normal(size=n * rows)
    return X, y, tasks


def make_frame(backend, seed=0):
    module = pytest.importorskip(backend)
    X, y, tasks = make(seed)
    columns = {"age": X[:, 0], "school": [f"s{t}" for t in tasks], "score": X[:, 1]}
    return module.DataFrame(columns), y


@parametrize_with_checks([GGMTLRegressor(), GGMTLRegressor(**FAST, tol=1e-2), GGMTLRegressor(effects="auto")])
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


# ---------------------------------------------------------------------- with scikit-learn's tools


@pytest.mark.parametrize("backend", ["pandas", "polars"])
def test_search_cross_validation_and_pipelines_take_the_task_column(backend):
    frame, y = make_frame(backend)
    model = GGMTLRegressor(task="school", **HUB)
    grid = {"fit_intercept": [True, False]}
    search = GridSearchCV(model, grid, cv=KFold(3, shuffle=True, random_state=0)).fit(frame, y)
    assert search.best_params_["fit_intercept"]
    folds = KFold(3, shuffle=True, random_state=0)
    assert cross_val_score(model, frame, y, cv=folds, scoring="neg_root_mean_squared_error").mean() > -0.6
    assert cross_val_predict(model, frame, y, cv=folds).shape == y.shape
    piped = make_pipeline(FunctionTransformer(), model).fit(frame, y)
    np.testing.assert_allclose(piped.predict(frame), model.fit(frame, y).predict(frame))


@pytest.mark.parametrize("backend", ["pandas", "polars", "pyarrow"])
def test_the_table_of_coefficients_is_of_the_users_kind(backend):
    if backend == "pyarrow":
        arrow = pytest.importorskip("pyarrow")
        pandas_frame, y = make_frame("pandas")
        frame = arrow.Table.from_pandas(pandas_frame)
    else:
        frame, y = make_frame(backend)
    model = GGMTLRegressor(task="school", **HUB).fit(frame, y)
    table = model.coefficients()
    assert type(table).__module__.split(".")[0] == backend
    columns = table.to_pydict() if backend == "pyarrow" else table.to_dict()
    assert list(columns) == ["task", "feature", "coefficient", "standard_error"]
    assert len(table) == 18
    assert model.feature_names_in_.tolist() == ["age", "score"]


def test_array_input_gives_a_table_with_every_intercept():
    X, y, tasks = make()
    table = GGMTLRegressor(**HUB).fit(X, y, tasks=tasks).coefficients()
    assert (np.asarray(table["feature"]) == "(intercept)").sum() == 6
    assert np.isfinite(np.asarray(table["standard_error"])).all()
    without = GGMTLRegressor(**HUB, fit_intercept=False).fit(X, y, tasks=tasks).coefficients()
    assert "(intercept)" not in set(without["feature"])


def test_clones_and_pickles_predict_the_same():
    X, y, tasks = make()
    model = GGMTLRegressor(**FAST, random_state=3).fit(X, y, tasks=tasks)
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copy.predict(X, tasks=tasks), model.predict(X, tasks=tasks))
    again = clone(model).fit(X, y, tasks=tasks)
    np.testing.assert_array_equal(again.coef_, model.coef_)
    assert not hasattr(clone(model), "coef_")


def test_a_score_is_the_share_of_variance_explained():
    X, y, tasks = make()
    model = GGMTLRegressor(**HUB).fit(X, y, tasks=tasks)
    residual = y - model.predict(X, tasks=tasks)
    assert model.score(X, y, tasks=tasks) == pytest.approx(1 - (residual**2).sum() / ((y - y.mean()) ** 2).sum())


def test_methods_ask_for_fit_first():
    model = GGMTLRegressor()
    for call in (model.coefficients, model.summary, lambda: model.save("x"), lambda: model.add_task("a")):
        with pytest.raises(NotFittedError):
            call()


def test_a_summary_is_text():
    pytest.importorskip("ggmtl.inspection.summary")
    X, y, tasks = make()
    assert isinstance(GGMTLRegressor(**HUB).fit(X, y, tasks=tasks).summary(), str)


# ---------------------------------------------------------------------- invariances


def test_the_same_seed_gives_the_same_graph():
    X, y, tasks = make(1)
    fits = [GGMTLRegressor(**FAST, random_state=5).fit(X, y, tasks=tasks) for _ in range(2)]
    np.testing.assert_array_equal(fits[0].graph_.weights, fits[1].graph_.weights)
    np.testing.assert_array_equal(fits[0].coef_, fits[1].coef_)


@pytest.mark.parametrize("options", [FAST, {}], ids=["validation", "default"])
def test_units_do_not_matter(options):
    X, y, tasks = make(2)
    scale, shift = np.array([1000.0, 1e-3]), np.array([50.0, -2.0])
    plain = GGMTLRegressor(**options).fit(X, y, tasks=tasks)
    other = GGMTLRegressor(**options).fit(X * scale + shift, 20 * y - 7, tasks=tasks)
    predicted, deviation = plain.predict(X, tasks=tasks, return_std=True)
    there, deviation_there = other.predict(X * scale + shift, tasks=tasks, return_std=True)
    np.testing.assert_allclose(there, 20 * predicted - 7, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(deviation_there, 20 * deviation, rtol=1e-3)
    np.testing.assert_allclose(other.coef_, 20 * plain.coef_ / scale, rtol=1e-3, atol=1e-6)


def test_the_order_of_rows_does_not_matter():
    X, y, tasks = make(3)
    order = np.random.default_rng(0).permutation(len(y))
    one = GGMTLRegressor(**FAST).fit(X, y, tasks=tasks)
    two = GGMTLRegressor(**FAST).fit(X[order], y[order], tasks=tasks[order])
    np.testing.assert_allclose(one.coef_, two.coef_, rtol=1e-4, atol=1e-5)


def test_relabelling_tasks_changes_nothing():
    X, y, tasks = make(4)
    names = np.array(["f", "a", "e", "b", "d", "c"])
    one = GGMTLRegressor(**FAST).fit(X, y, tasks=tasks)
    two = GGMTLRegressor(**FAST).fit(X, y, tasks=names[tasks])
    np.testing.assert_allclose(two.coef_[np.argsort(np.argsort(names))], one.coef_, rtol=1e-4, atol=1e-5)


def test_weights_equal_repetition():
    X, y, tasks = make(5)
    weight = np.random.default_rng(1).integers(1, 4, len(y))
    weighted = GGMTLRegressor(**HUB).fit(X, y, tasks=tasks, sample_weight=weight)
    index = np.repeat(np.arange(len(y)), weight)
    repeated = GGMTLRegressor(**HUB).fit(X[index], y[index], tasks=tasks[index])
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, rtol=1e-6)


# ---------------------------------------------------------------------- unseen tasks


def test_unseen_tasks_are_refused_or_predicted_by_the_hub():
    X, y, tasks = make(6)
    model = GGMTLRegressor(**HUB).fit(X, y, tasks=tasks)
    with pytest.raises(InputError, match=r"tasks that the model was not fitted with: 99"):
        model.predict(X[:2], tasks=[0, 99])
    model.set_params(unseen="hub")
    with pytest.warns(UnseenTaskWarning, match="1 of 2 rows"):
        value, deviation = model.predict(X[:2], tasks=[0, 99], return_std=True)
    assert value[1] == pytest.approx(X[1] @ model.hub_coef_ + model.hub_intercept_)
    assert deviation[1] > deviation[0]


def test_one_task_per_column_of_y():
    X, y, tasks = make(7)
    shared = X[:12]
    targets = np.column_stack([y[tasks == t] for t in range(6)])
    model = GGMTLRegressor(**HUB).fit(shared, targets)
    value, deviation = model.predict(shared, return_std=True)
    assert value.shape == deviation.shape == (12, 6)
    long = GGMTLRegressor(**HUB).fit(np.tile(shared, (6, 1)), targets.T.ravel(), tasks=np.repeat(np.arange(6), 12))
    values, deviations = long.predict(np.tile(shared, (6, 1)), tasks=np.repeat(np.arange(6), 12), return_std=True)
    np.testing.assert_allclose(value.T.ravel(), values)
    np.testing.assert_allclose(deviation.T.ravel(), deviations)


# ---------------------------------------------------------------------- more rows


@pytest.mark.parametrize("options", [{}, HUB], ids=["folds", "no folds"])
def test_more_rows_give_the_fit_of_all_rows(options):
    X, y, tasks = make(8)
    first = np.arange(len(y)) % 3 > 0
    # Weights of the levels depend on the folds, which differ: new rows are dealt among themselves.
    options = {"candidates": np.empty((0, 2)), "validation": 4, "blend": False} | options
    grown = GGMTLRegressor(**options)
    grown.fit(X[first], y[first], tasks=tasks[first]).partial_fit(X[~first], y[~first], tasks=tasks[~first])
    whole = GGMTLRegressor(**options).fit(X, y, tasks=tasks)
    np.testing.assert_allclose(grown.coef_, whole.coef_, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(grown.intercept_, whole.intercept_, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(grown.predict(X, tasks=tasks), whole.predict(X, tasks=tasks), rtol=1e-6)


def test_more_rows_are_the_sum_of_statistics_with_a_graph_too():
    X, y, tasks = make(9)
    first = np.arange(len(y)) % 3 > 0
    options = {**FAST, "validation": 2, "candidates": [(0, 2), (1, 3), (0, 1)], "max_iter": 500}
    old = TaskStatistics.from_arrays(X[first], y[first], tasks[first], folds=2)
    new = TaskStatistics.from_arrays(X[~first], y[~first], tasks[~first], folds=2)
    grown = GGMTLRegressor(**options).fit(X[first], y[first], tasks=tasks[first])
    grown.partial_fit(X[~first], y[~first], tasks=tasks[~first])
    whole = GGMTLRegressor(**options).fit_statistics(replace(old + new, feature_names=("x0", "x1")))
    np.testing.assert_allclose(grown.coef_, whole.coef_, rtol=1e-6)
    np.testing.assert_allclose(grown.edge_weights_, whole.edge_weights_, rtol=1e-4)


def test_forgetting_weighs_old_rows_less():
    X, y, tasks = make(10)
    first = np.arange(len(y)) % 2 == 0
    grown = GGMTLRegressor(**HUB).fit(X[first], y[first], tasks=tasks[first], sample_weight=np.full(first.sum(), 4.0))
    grown.partial_fit(X[~first], y[~first], tasks=tasks[~first], forget=0.25)
    whole = GGMTLRegressor(**HUB).fit(X, y, tasks=tasks)
    np.testing.assert_allclose(grown.coef_, whole.coef_, rtol=1e-6)
    with pytest.raises(ParameterError, match="forget"):
        grown.partial_fit(X, y, tasks=tasks, forget=0.0)


def test_cheap_batches_and_a_last_relearning_end_where_one_fit_does():
    X, y, tasks = make(9, rows=20)
    options = {**FAST, "validation": None, "criterion": "auto", "coupling": "auto", "edge_entropy": "auto"}
    batch = np.arange(len(y)) % 10
    grown = GGMTLRegressor(**options).fit(X[batch == 0], y[batch == 0], tasks=tasks[batch == 0])
    for k in range(1, 10):
        grown.partial_fit(X[batch == k], y[batch == k], tasks=tasks[batch == k], relearn=k == 9)
    whole = GGMTLRegressor(**options).fit(X, y, tasks=tasks)
    np.testing.assert_allclose(grown.coef_, whole.coef_, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(grown.intercept_, whole.intercept_, rtol=1e-6, atol=1e-8)


def test_without_relearning_the_models_solve_the_system_of_all_rows():
    X, y, tasks = make(9)
    first = np.arange(len(y)) % 3 > 0
    model = GGMTLRegressor(**FAST).fit(X[first], y[first], tasks=tasks[first])
    hub, coupling, edges, weights = model.hub_strength_, model.coupling_, model.edges_, model.edge_weights_
    values, scaling = model.state_.level.edge_values[model.state_.level.edge_values > 0], model.scaling_
    model.partial_fit(X[~first], y[~first], tasks=tasks[~first], relearn=False)
    np.testing.assert_array_equal(model.edge_weights_, weights)
    Z = scaling.design_rows(X)
    target = (y - scaling.target_center) / scaling.target_scale
    A, right = np.zeros((6, 3, 6, 3)), np.zeros((6, 3))
    for t in range(6):
        A[t, :, t] += Z[tasks == t].T @ Z[tasks == t] + np.diag([1e-6, 1e-6, 0.0]) + np.diag(hub)
        right[t] = Z[tasks == t].T @ target[tasks == t]
        A[t, :, :] -= np.broadcast_to(np.diag(hub)[:, None, :] / 6, (3, 6, 3))
    for (i, j), e in zip(edges, values):
        for a, b, sign in ((i, i, 1), (j, j, 1), (i, j, -1), (j, i, -1)):
            A[a, :, b] += sign * e * np.diag(coupling)
    expected = np.linalg.solve(A.reshape(18, 18), right.ravel()).reshape(6, 3)
    np.testing.assert_allclose(model.state_.coefficients, expected, rtol=1e-6, atol=1e-8)


def test_without_relearning_new_tasks_are_attached_and_attached_ones_follow_their_rows():
    X, y, tasks = make(11, rows=20)
    old, late = tasks < 5, np.arange(len(y)) % 2 == 0
    model = GGMTLRegressor(**HUB).fit(X[old], y[old], tasks=tasks[old])
    other = GGMTLRegressor(**HUB).fit(X[old], y[old], tasks=tasks[old])
    model.partial_fit(X[~old & late], y[~old & late], tasks=tasks[~old & late], relearn=False)
    model.partial_fit(X[~old & ~late], y[~old & ~late], tasks=tasks[~old & ~late], relearn=False)
    other.add_task(5, X[~old], y[~old])
    np.testing.assert_allclose(model.coef_, other.coef_, rtol=1e-6)
    assert model.state_.statistics.count[-1] == 20
    _, deviation = model.predict(X, tasks=tasks, return_std=True)
    np.testing.assert_allclose(deviation, other.predict(X, tasks=tasks, return_std=True)[1], rtol=1e-6)


@pytest.mark.parametrize("kind", [np.int64, str, "datetime64[D]"])
def test_a_group_stays_in_its_fold_when_more_of_its_rows_come(kind, tmp_path):
    X, y, tasks = make(8)
    groups = (np.arange(len(y)) // 4).astype(kind)
    model = GGMTLRegressor(candidates=np.empty((0, 2)), validation=3).fit(X, y, tasks=tasks, groups=groups)
    before = model.state_.statistics.cross[..., -2, -2].copy()
    model.partial_fit(X[:4] + 0.1, y[:4], tasks=tasks[:4], groups=groups[:4], relearn=False)
    added = (model.state_.statistics.cross[..., -2, -2] - before).sum(axis=1)
    assert sorted(added) == [0, 0, 4]
    fold = int(np.argmax(added))
    model.save(tmp_path / "model", keep_statistics=True)
    model = load_model(tmp_path / "model")
    model.partial_fit(X[:2] + 0.2, y[:2], tasks=tasks[:2], groups=groups[:2], relearn=False)
    assert (model.state_.statistics.cross[fold, :, -2, -2] - before[fold]).sum() == 6


def test_more_rows_cannot_be_dealt_by_a_splitter():
    X, y, tasks = make(8)
    folds = KFold(3, shuffle=True, random_state=0)
    model = GGMTLRegressor(candidates=np.empty((0, 2)), validation=folds).fit(X, y, tasks=tasks)
    with pytest.raises(ParameterError, match="partial_fit cannot deal rows into the folds of KFold"):
        model.partial_fit(X[:4], y[:4], tasks=tasks[:4])
    model.add_task(9, X[:4], y[:4])
    assert model.state_.statistics.count[-1] == 4


def test_more_rows_may_bring_new_tasks_and_a_single_row():
    X, y, tasks = make(11)
    model = GGMTLRegressor(**FAST).fit(X, y, tasks=tasks)
    model.partial_fit(X[:1], y[:1], tasks=[17])
    assert model.tasks_.tolist() == [0, 1, 2, 3, 4, 5, 17]
    assert model.state_.statistics.count[-1] == 1
    fresh = GGMTLRegressor(**HUB).partial_fit(X, y, tasks=tasks)
    np.testing.assert_array_equal(fresh.coef_, GGMTLRegressor(**HUB).fit(X, y, tasks=tasks).coef_)


def test_more_rows_of_another_form_are_refused():
    X, y, tasks = make(12)
    model = GGMTLRegressor(**HUB).fit(X, y, tasks=tasks)
    with pytest.raises(InputError, match="expecting 2 features"):
        model.partial_fit(X[:, :1], y, tasks=tasks)
    with pytest.raises(InputError, match="with tasks"):
        model.partial_fit(X, y)
    with pytest.raises(InputError, match="kind"):
        model.partial_fit(X, y, tasks=[f"t{t}" for t in tasks])
    frame, target = make_frame("pandas")
    named = GGMTLRegressor(task="school", **HUB).fit(frame, target)
    with pytest.raises(InputError, match="feature names"):
        named.partial_fit(frame.rename(columns={"age": "height"}), target)


# ---------------------------------------------------------------------- a new task


@pytest.mark.parametrize("options", [FAST, HUB], ids=["graph", "hub"])
def test_a_new_task_leaves_the_others_alone(options):
    X, y, tasks = make(13)
    model = GGMTLRegressor(**options).fit(X, y, tasks=tasks)
    before, edges = model.coef_.copy(), model.graph_.n_edges
    rng = np.random.default_rng(0)
    few = rng.normal(size=(8, 2))
    assert model.add_task(-3, few, few @ before[1] + model.intercept_[1] + 0.1 * rng.normal(size=8)) is model
    assert model.tasks_.tolist() == [-3, 0, 1, 2, 3, 4, 5]
    np.testing.assert_array_equal(model.coef_[1:], before)
    assert model.graph_.n_edges >= edges
    assert model.graph_.task_names.tolist() == model.tasks_.tolist()
    assert len(model.coefficients()["coefficient"]) == 21
    value, deviation = model.predict(few, tasks=np.full(8, -3), return_std=True)
    assert np.isfinite(value).all()
    assert (deviation < 3.0).all()
    model.partial_fit(X[:6], y[:6], tasks=np.full(6, -3))
    assert model.state_.statistics.count[0] == 14


@pytest.mark.filterwarnings("ignore::ggmtl.errors.UnseenTaskWarning")
def test_a_new_task_without_rows_is_the_common_model():
    X, y, tasks = make(14)
    model = GGMTLRegressor(**HUB, unseen="hub").fit(X, y, tasks=tasks)
    expected, deviation = model.predict(X[:3], tasks=[50] * 3, return_std=True)
    model.add_task(50)
    value, attached = model.predict(X[:3], tasks=[50] * 3, return_std=True)
    np.testing.assert_allclose(value, expected)
    np.testing.assert_allclose(attached, deviation, rtol=0.2)


def test_a_new_task_with_many_rows_is_nearly_its_own_regression():
    X, y, tasks = make(15)
    model = GGMTLRegressor(**HUB).fit(X, y, tasks=tasks)
    rng = np.random.default_rng(1)
    many = rng.normal(size=(4000, 2))
    model.add_task(8, many, many @ [4.0, -3.0] + 2.0 + 0.1 * rng.normal(size=4000))
    np.testing.assert_allclose(model.coef_[-1], [4.0, -3.0], atol=0.02)


def test_names_that_exist_or_are_of_another_kind_are_refused():
    frame, y = make_frame("pandas")
    model = GGMTLRegressor(task="school", **HUB).fit(frame, y)
    with pytest.raises(InputError, match="already there"):
        model.add_task("s1", frame, y)
    with pytest.raises(InputError, match="kind of the other labels"):
        model.add_task(3, frame, y)
    with pytest.raises(InputError, match="names other tasks"):
        model.add_task("new", frame[:3], y[:3])
    model.add_task("a much longer name", frame[["age", "score"]][:3], y[:3])
    assert "a much longer name" in model.tasks_
    model.add_task("zz", frame[:3].assign(school="zz"), y[:3])
    X, y, _ = make(16)
    with pytest.raises(InputError, match="without tasks"):
        GGMTLRegressor().fit(X, y).add_task(1, X[:2], y[:2])


# ---------------------------------------------------------------------- how the outer problem ended


def clusters_of_tasks(n=12, rows=40, d=6):
    rng = np.random.default_rng(0)
    W = rng.normal(size=(3, d))[np.arange(n) % 3] + 0.1 * rng.normal(size=(n, d))
    X, tasks = rng.normal(size=(n * rows, d)), np.repeat(np.arange(n), rows)
    return X, (X * W[tasks]).sum(axis=1) + 0.5 * rng.normal(size=n * rows), tasks


def test_the_history_of_evidence_falls_and_counts_the_steps():
    X, y, tasks = clusters_of_tasks()
    model = GGMTLRegressor(validation=None).fit(X, y, tasks=tasks)
    assert model.graph_.n_edges
    assert len(model.history_) == model.n_iter_ + 1 > 3
    assert (np.diff(model.history_) < 0).all()
    assert model.status_ in ("converged", "stopped")
    assert model.converged_ == (model.status_ == "converged")


def test_evidence_heeds_max_iter_and_tol():
    X, y, tasks = clusters_of_tasks()
    with pytest.warns(ConvergenceWarning, match=r"after max_iter=2 steps with a last gain in log evidence of"):
        short = GGMTLRegressor(validation=None, max_iter=2).fit(X, y, tasks=tasks)
    assert (short.n_iter_, short.status_, short.converged_) == (2, "max_iter", False)
    rough = GGMTLRegressor(validation=None, tol=1.0).fit(X, y, tasks=tasks)
    assert (rough.n_iter_, rough.status_, rough.converged_) == (1, "converged", True)


def test_without_a_hub_no_task_is_shrunk_to_a_common_model():
    rng = np.random.default_rng(0)
    X, tasks = rng.normal(size=(60, 2)), np.repeat(np.arange(6), 10)
    y = X @ [1.0, -1.0] + rng.normal(size=60)
    model = GGMTLRegressor(hub=False, validation=3, max_iter=20, tol=1e-3).fit(X, y, tasks=tasks)
    np.testing.assert_array_equal(model.hub_strength_, np.zeros(3))
    assert "pooled" not in [row["level"] for row in model.path_]


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"penalty": "huber"}, "penalty must be one of"),
        ({"criterion": "aic"}, "criterion must be one of"),
        ({"edge_solver": "magic"}, "edge_solver must be one of"),
        ({"hypergradient": "none"}, "hypergradient must be one of"),
        ({"unseen": "zero"}, "unseen must be one of"),
        ({"coupling": "strong"}, "coupling must be one of"),
        ({"coupling": -1.0}, "coupling must be finite"),
        ({"coupling": np.ones(7)}, "one entry per feature"),
        ({"edge_entropy": "some"}, "edge_entropy must be one of"),
        ({"edge_l1": -1.0}, "edge_l1"),
        ({"edge_l2": np.nan}, "edge_l2"),
        ({"ridge": "small"}, "ridge must be a finite number"),
        ({"hypergradient": "frozen"}, "frozen"),
        ({"criterion": "evidence", "penalty": "l2"}, "needs penalty"),
        ({"criterion": "evidence", "hub": False}, "hub=True"),
        ({"criterion": "evidence", "coupling": 1.0}, "leave coupling"),
        ({"criterion": "evidence", "edge_l1": 1.0}, "edge_l1, edge_l2 at 0"),
        ({"edge_solver": "closed_form"}, "the paper's theorem"),
        ({"coupling": np.ones(3), "penalty": "l1"}, "single number"),
        ({"candidates": "all"}, "candidates must be"),
        ({"candidates": np.ones((2, 3))}, r"shape \(m, 2\)"),
        ({"candidates": [(0, 44)]}, "44"),
        ({"validation": 1}, "at least 2 folds"),
        ({"validation": "some"}, "validation must be"),
        ({"validation": None, "criterion": "validation"}, "needs rows to validate on"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refusals_give_the_reason(options, reason):
    X, y, tasks = make(17)
    with pytest.raises(ParameterError, match=reason):
        GGMTLRegressor(**options).fit(X, y, tasks=tasks)


def test_coefficients_are_those_of_the_fit_whatever_the_parameters_are_now():
    data = make_clusters(2, n_tasks=6, n_features=2, random_state=0)
    model = GGMTLRegressor().fit(data.X, data.y, tasks=data.tasks)
    before = len(model.coefficients()["coefficient"])
    assert len(model.set_params(fit_intercept=False).coefficients()["coefficient"]) == before == 18
