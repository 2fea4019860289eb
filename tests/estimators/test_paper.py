"""``GGMTLRegressor.paper``: the recipe of Algorithm 1 in one call."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from ggmtl import KNN, BilevelProblem, GGMTLRegressor
from ggmtl.datasets import make_line
from ggmtl.errors import ParameterError

BARE = {"fit_intercept": False, "standardize": False}


def fitted(n_tasks=8, **parameters) -> GGMTLRegressor:
    data = make_line(n_tasks=n_tasks, n_features=3, n_samples=30, random_state=0)
    return GGMTLRegressor.paper(k=3, random_state=0, **parameters).fit(data.X, data.y, tasks=data.tasks)


def test_it_is_an_unfitted_regressor_that_clone_keeps():
    model = GGMTLRegressor.paper("l2", coupling=2.0, k=4, step=0.05, task="unit", max_iter=7)
    assert not hasattr(model, "coef_")
    assert clone(model).get_params() == model.get_params()
    given = model.get_params()
    assert (given["penalty"], given["coupling"], given["candidates"], given["step"]) == ("l2", 2.0, KNN(4), 0.05)
    assert (given["hub"], given["blend"], given["validation"], given["noise"]) == (False, False, 0.2, "common")
    assert (given["task"], given["max_iter"]) == ("unit", 7)


def test_a_fifth_of_the_rows_is_held_out_once_and_there_is_no_common_model():
    model = fitted()
    rows = model.state_.statistics.cross[:, :, -2, -2]
    np.testing.assert_array_equal(rows, np.repeat([[24.0], [6.0]], 8, axis=1))
    assert not model.hub_strength_.any()
    assert not hasattr(model, "hub_coef_")
    assert [row["level"] for row in model.path_] == [model.state_.level.name]
    assert model.validation_error_ is None


@pytest.mark.parametrize("penalty", ["squared_l2", "l2"])
def test_a_given_step_is_algorithm_1_written_out(penalty):
    step, steps = 0.3, 6
    with pytest.warns(ConvergenceWarning, match="change step"):
        model = fitted(penalty=penalty, coupling=5.0, edge_l2=0.1, edge_l1=0.05, step=step, max_iter=steps, **BARE)
    level, folds = model.state_.level, model.state_.scaling.design(model.state_.statistics)
    unit = model.state_.scaling.target_scale
    statistics = model.state_.statistics.transformed(np.zeros(3), np.ones(3), 0.0, unit)
    problem = BilevelProblem(
        statistics.fold(0),
        statistics.fold(1),
        level.edges,
        5.0,
        penalty=penalty,
        edge_l2=0.1,
        edge_l1=0.05,
        edge_entropy=0.01,
        ridge=1e-3,
    )
    edges, history = np.full(len(level.edges), 0.5), []
    for _ in range(steps):
        value, gradient = problem.value_and_gradient(edges)
        history.append(value)
        edges = np.clip(edges - step * gradient, 0.0, 1.0)
    np.testing.assert_allclose(model.history_[:-1], history, rtol=1e-6)
    np.testing.assert_allclose(level.edge_values, edges, rtol=1e-4, atol=1e-6)
    # The models are refitted on all rows.
    gradient = sum(fold.gradient(level.coefficients) for fold in folds)
    assert np.abs(gradient).max() > 1e-3
    everything = BilevelProblem(statistics.fold(0) + statistics.fold(1), statistics.fold(1), level.edges, 5.0,
                                penalty=penalty, ridge=1e-3)  # fmt: skip
    np.testing.assert_allclose(level.coefficients, everything.solve(level.edge_values), rtol=1e-5, atol=1e-6)


def test_a_step_that_is_too_long_is_kept_and_the_fit_says_that_it_did_not_converge():
    with pytest.warns(ConvergenceWarning, match="stopped after max_iter=20"):
        model = fitted(coupling=5.0, edge_l2=0.1, edge_entropy=0.0, step=1000.0, max_iter=20)
    assert (np.diff(model.history_) > 0).any()
    assert not model.converged_


def test_without_a_given_step_the_outer_loss_falls_at_every_step_until_it_converges():
    model = fitted()
    assert model.converged_
    assert (np.diff(model.history_) <= 0).all()


@pytest.mark.parametrize("wrong", [{"step": 0.0}, {"step": -1.0}, {"step": "long"}, {"blend": "yes"}])
def test_wrong_values_are_refused(wrong):
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        fitted(**wrong)


def test_a_step_is_for_projected_gradient_only():
    with pytest.raises(ParameterError, match="projected_gradient"):
        GGMTLRegressor(step=0.1).fit(np.ones((4, 1)), np.arange(4.0))
