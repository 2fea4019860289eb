"""Odd but legal input ends in a right answer or a clear error."""

import numpy as np
import pandas as pd
import pytest

from ggmtl import KNN, GGMTLRegressor
from ggmtl.errors import ParameterError
from ggmtl.inspection import edge_stability

SINGLE = {"criterion": "validation", "edge_entropy": 0.0, "coupling": 1.0}


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X, tasks = rng.normal(size=(60, 3)), np.repeat(np.arange(5), 12)
    models = np.repeat(rng.normal(size=(2, 3)), [2, 3], axis=0) + 0.1 * rng.normal(size=(5, 3))
    return X, (X * models[tasks]).sum(axis=1) + 0.5 * rng.normal(size=60) + 2.0, tasks


@pytest.mark.parametrize("value", [0.0, 3.0, -1e9])
def test_a_constant_target_is_predicted_as_it_is(rows, value):
    X, _, tasks = rows
    model = GGMTLRegressor().fit(X, np.full(60, value), tasks=tasks)
    np.testing.assert_allclose(model.predict(X, tasks=tasks), value)
    assert model.graph_.n_edges == 0


@pytest.mark.parametrize("options", [{}, SINGLE, SINGLE | {"hub": False}])
def test_edges_that_must_be_there_are_reported(rows, options):
    X, y, tasks = rows
    model = GGMTLRegressor(candidates=KNN(must_link=[(4, 0)]), **options).fit(X, y, tasks=tasks)
    assert [0, 4] in model.graph_.edges.tolist()


def test_a_ridge_of_ones_own_goes_with_validation_only(rows):
    X, y, tasks = rows
    with pytest.raises(ParameterError, match="ridge=1"):
        GGMTLRegressor(criterion="evidence", ridge=1.0).fit(X, y, tasks=tasks)
    model = GGMTLRegressor(ridge=1.0, coupling=1.0, edge_entropy=0.0).fit(X, y, tasks=tasks)
    assert model.criterion_ == "validation"


def test_no_ridge_and_too_few_rows(rows):
    X, y, _ = rows
    model = GGMTLRegressor(ridge=0).fit(X[:8], y[:8], tasks=np.arange(8))
    assert np.isfinite(model.coef_).all()


def test_all_rows_in_one_group_leave_nothing_to_validate_on(rows):
    X, y, tasks = rows
    assert GGMTLRegressor().fit(X, y, tasks=tasks, groups=np.zeros(60)).validation_error_ is None


def test_pairs_may_come_as_a_table_or_not_at_all(rows):
    X, y, tasks = rows
    table = pd.DataFrame({"a": [0, 1], "b": [1, 2]})
    given = GGMTLRegressor(candidates=table, **SINGLE).fit(X, y, tasks=tasks)
    assert {tuple(edge) for edge in given.edges_.tolist()} <= {(0, 1), (1, 2)}
    assert GGMTLRegressor(candidates=[]).fit(X, y, tasks=tasks).graph_.n_edges == 0


def test_no_steps_at_all_are_refused(rows):
    X, y, tasks = rows
    with pytest.raises(ParameterError, match="max_iter"):
        GGMTLRegressor(max_iter=0).fit(X, y, tasks=tasks)


def test_number_labels_that_come_back_as_text_are_known(rows):
    X, y, tasks = rows
    model = GGMTLRegressor(unseen="hub", validation=None).fit(X, y, tasks=tasks)
    mixed = np.array([*map(str, tasks[:-1]), "new"])
    np.testing.assert_allclose(model.predict(X, tasks=mixed)[:-1], model.predict(X, tasks=tasks)[:-1])
    assert model.predict(X, tasks=mixed)[-1] == pytest.approx(model.hub_intercept_ + X[-1] @ model.hub_coef_)


@pytest.mark.parametrize("n_tasks", [1, 2])
def test_stability_of_very_few_tasks(rows, n_tasks):
    X, y, tasks = (part[rows[2] < n_tasks] for part in rows)
    model = GGMTLRegressor().fit(X, y, tasks=tasks)
    assert len(edge_stability(model, X, y, tasks=tasks, n_resamples=3).edges) <= 1


@pytest.mark.parametrize(("name", "value"), [("device", "cuda"), ("checkpoint", "fit.ckpt")])
def test_what_is_not_there_yet_is_refused(rows, name, value):
    X, y, tasks = rows
    with pytest.raises(ParameterError, match=name):
        GGMTLRegressor(**{name: value}).fit(X, y, tasks=tasks)


def test_a_verbose_fit_tells_how_far_it_is(rows, caplog):
    X, y, tasks = rows
    with caplog.at_level("INFO", logger="ggmtl"):
        GGMTLRegressor(verbose=1, validation=3).fit(X, y, tasks=tasks)
    assert sum("without fold" in message for message in caplog.messages) == 3
