"""Labels of tasks and positions of columns have no part in what is learned."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from ggmtl import KNN, Coordinates, GGMTLClassifier, GGMTLRegressor, TaskStatistics
from ggmtl.bilevel.level import GraphFit, Settings, TaskMeans
from ggmtl.datasets import make_clusters, make_line
from ggmtl.fit.order import Order
from ggmtl.graph.candidates import Complete
from ggmtl.statistics.least_squares import LeastSquares, sum_over_tasks

CLUSTERS = make_clusters(n_tasks=15, n_samples=15, n_features=5, random_state=0)
PLACES = np.random.default_rng(0).standard_normal((15, 2))
# Every fit is a function of what the tasks are called: parameters, and arguments of ``fit``.
FITS = {
    "clusters": lambda name: ({}, {}),
    "one_level": lambda name: ({"blend": False}, {}),
    "own_noise": lambda name: ({"noise": "per_task"}, {}),
    "links": lambda name: (
        {"candidates": KNN(3, must_link=[(name[0], name[3]), (name[7], name[2])], forbid=[(name[1], name[2])])},
        {},
    ),
    "places": lambda name: ({"candidates": Coordinates(dict(zip(name.tolist(), PLACES)), k=3)}, {}),
    "array_of_places": lambda name: ({"candidates": Coordinates(PLACES[np.argsort(name)], k=3)}, {}),
    "task_features": lambda name: (
        {"candidates": Coordinates(columns=("east", "north"), k=3)},
        {"task_features": pd.DataFrame(PLACES, index=name.tolist(), columns=["east", "north"])},
    ),
    "curves": lambda name: ({"effects": "auto"}, {}),
    "validation": lambda name: ({"criterion": "validation", "candidates": KNN(4), "max_iter": 5}, {}),
    "no_intercept": lambda name: ({"fit_intercept": False}, {}),
}


def in_order(graph, position):
    """Edges between the tasks' positions, sorted, with their weights."""
    edges = np.sort(position[graph.edges], axis=1)
    order = np.lexsort(edges.T[::-1])
    return edges[order], graph.weights[order]


@pytest.mark.parametrize("kind", FITS)
def test_renaming_tasks_changes_no_bit(kind):
    X, y, tasks = CLUSTERS.X, CLUSTERS.y, CLUSTERS.tasks
    new = np.random.default_rng(1).permutation(15)
    fitted = []
    for name in (np.arange(15), new):
        parameters, arguments = FITS[kind](name)
        fitted.append(GGMTLRegressor(random_state=0, **parameters).fit(X, y, tasks=name[tasks], **arguments))
    first, second = fitted
    np.testing.assert_array_equal(second.coef_[new], first.coef_)
    np.testing.assert_array_equal(second.intercept_[new], first.intercept_)
    np.testing.assert_array_equal(second.hub_coef_, first.hub_coef_)
    np.testing.assert_array_equal(second.predict(X, tasks=new[tasks]), first.predict(X, tasks=tasks))
    assert second.blend_ == first.blend_
    for mine, theirs in zip(in_order(second.graph_, np.argsort(new)), in_order(first.graph_, np.arange(15))):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("kind", FITS)
def test_permuting_columns_changes_predictions_by_rounding_and_no_edge(kind):
    X, y, tasks = CLUSTERS.X, CLUSTERS.y, CLUSTERS.tasks
    columns = np.array([3, 0, 4, 2, 1])
    parameters, arguments = FITS[kind](np.arange(15))
    first = GGMTLRegressor(random_state=0, **parameters).fit(X, y, tasks=tasks, **arguments)
    second = GGMTLRegressor(random_state=0, **parameters).fit(X[:, columns], y, tasks=tasks, **arguments)
    np.testing.assert_allclose(
        second.predict(X[:, columns], tasks=tasks), first.predict(X, tasks=tasks), rtol=0, atol=1e-9
    )
    np.testing.assert_allclose(second.coef_, first.coef_[:, columns], rtol=0, atol=1e-9)
    np.testing.assert_array_equal(second.graph_.edges, first.graph_.edges)


def test_statistics_are_fitted_whatever_the_tasks_are_called():
    data, new = CLUSTERS, np.random.default_rng(2).permutation(15)
    first, second = (
        GGMTLRegressor(random_state=0).fit_statistics(
            TaskStatistics.from_arrays(data.X, data.y, name[data.tasks], folds=5)
        )
        for name in (np.arange(15), new)
    )
    np.testing.assert_array_equal(second.coef_[new], first.coef_)
    np.testing.assert_array_equal(second.intercept_[new], first.intercept_)


def test_statistics_are_fitted_whatever_the_order_of_their_columns():
    data, columns = CLUSTERS, np.array([3, 0, 4, 2, 1])
    first, second = (
        GGMTLRegressor(random_state=0).fit_statistics(TaskStatistics.from_arrays(X, data.y, data.tasks, folds=5))
        for X in (data.X, data.X[:, columns])
    )
    np.testing.assert_allclose(second.coef_, first.coef_[:, columns], rtol=0, atol=1e-9)
    np.testing.assert_array_equal(second.graph_.edges, first.graph_.edges)


@pytest.mark.parametrize("loss", ["logistic", "poisson"])
def test_classes_and_counts_depend_on_neither_labels_nor_positions(loss):
    data, new, columns = (
        make_clusters(n_tasks=10, n_samples=40, n_features=3, random_state=1),
        *(np.random.default_rng(2).permutation(k) for k in (10, 3)),
    )
    if loss == "logistic":
        model, y = GGMTLClassifier(random_state=0), (data.y > 0).astype(int)
    else:
        rate = np.exp(np.clip(data.y / data.y.std(), -2, 2))
        model, y = GGMTLRegressor(loss="poisson", random_state=0), np.random.default_rng(0).poisson(rate)
    first = clone(model).fit(data.X, y, tasks=data.tasks)
    second = clone(model).fit(data.X, y, tasks=new[data.tasks])
    np.testing.assert_array_equal(second.coef_[new], first.coef_)
    np.testing.assert_array_equal(second.intercept_[new], first.intercept_)
    third = clone(model).fit(data.X[:, columns], y, tasks=data.tasks)
    np.testing.assert_allclose(third.coef_, first.coef_[:, columns], rtol=0, atol=1e-7)
    np.testing.assert_array_equal(third.graph_.edges, first.graph_.edges)


def test_a_coupling_per_feature_follows_its_feature():
    data, columns = make_line(n_tasks=8, random_state=0), np.array([2, 0, 1])
    X, coupling = data.X[:, :3], np.array([0.3, 5.0, 0.01, 1.0])
    first = GGMTLRegressor(criterion="validation", coupling=coupling, max_iter=5).fit(X, data.y, tasks=data.tasks)
    moved = np.append(coupling[columns], coupling[3])
    second = GGMTLRegressor(criterion="validation", coupling=moved, max_iter=5).fit(
        X[:, columns], data.y, tasks=data.tasks
    )
    np.testing.assert_allclose(second.coef_, first.coef_[:, columns], rtol=0, atol=1e-9)
    np.testing.assert_allclose(second.coupling_, first.coupling_[[*columns, 3]])


def test_a_fit_comes_back_as_the_same_function_of_task_and_column():
    rng = np.random.default_rng(0)
    n, p = 6, 4
    rows = rng.standard_normal((n, 9, p))
    part = LeastSquares(
        rows.transpose(0, 2, 1) @ rows, rng.standard_normal((n, p)), rng.uniform(1, 2, n), np.full(n, 9.0)
    )
    order = Order.of([part], Settings("squared_l2", Complete(), None, True, np.array([True] * 3 + [False])))
    assert order.columns[-1] == 3
    models, edges = rng.standard_normal((n, p)), np.array([[0, 4], [1, 3], [2, 5]])
    fit = GraphFit(
        "graph",
        edges,
        np.array([0.1, 0.2, 0.3]),
        np.arange(4.0),
        np.arange(4.0, 8.0),
        models[np.ix_(order.tasks, order.columns)],
        0.0,
        reported_weights=np.array([1.0, 0.5, 0.2]),
        precisions=part.count * order.tasks,
        means=TaskMeans(
            np.ones((2, 1)) * order.columns, np.ones((2, 1)) * order.columns, np.ones((1, 2)) * order.tasks[:, None]
        ),
    )
    back = order.fit_back(fit)
    np.testing.assert_array_equal(back.coefficients, models)
    np.testing.assert_allclose(part.value(back.coefficients), order.loss(part).value(fit.coefficients))
    np.testing.assert_array_equal(back.hub[order.columns], fit.hub)
    np.testing.assert_array_equal(back.coupling[order.columns], fit.coupling)
    np.testing.assert_array_equal(back.precisions, 9.0 * np.arange(n))
    np.testing.assert_array_equal(back.means.models, 2.0 * np.outer(np.arange(n), np.arange(p)))
    there = np.sort(order.tasks[edges], axis=1).tolist()
    weight = {tuple(pair): value for pair, value in zip(there, fit.edge_values.tolist())}
    assert {tuple(pair): value for pair, value in zip(back.edges.tolist(), back.edge_values.tolist())} == weight
    assert (back.edges[:, 0] < back.edges[:, 1]).all()
    assert back.edges.tolist() == sorted(back.edges.tolist())


def test_tasks_of_equal_count_and_targets_are_told_apart_by_their_features():
    rng = np.random.default_rng(3)
    y, X = np.tile(rng.standard_normal(12), 5), rng.standard_normal((60, 2))
    tasks, new = np.repeat(np.arange(5), 12), np.array([4, 2, 0, 3, 1])
    first, second = (GGMTLRegressor(random_state=0).fit(X, y, tasks=name[tasks]) for name in (np.arange(5), new))
    np.testing.assert_array_equal(second.coef_[new], first.coef_)


def test_a_sum_over_tasks_is_the_same_in_every_order():
    rng = np.random.default_rng(4)
    values = rng.standard_normal((1000, 3)) * 10.0 ** rng.integers(-8, 8, (1000, 1))
    np.testing.assert_array_equal(sum_over_tasks(values[rng.permutation(1000)]), sum_over_tasks(values))
    np.testing.assert_allclose(sum_over_tasks(values), values.sum(axis=0))


def test_places_and_pairs_are_found_under_names_in_any_order():
    names, xy = np.array(["c", "a", "b"]), np.array([[0.0, 0.0], [5.0, 0.0], [6.0, 0.0]])
    # b and c are near each other; xy is in the order a, b, c.
    rule = Coordinates(xy, k=1, forbid=[("a", "b")])
    assert rule.propose(np.zeros((3, 1)), names).edges.tolist() == [[0, 2]]
    found = KNN(1, must_link=[("a", "c")]).propose(np.array([[0.0], [9.0], [0.1]]), names)
    assert found.edges[found.fixed].tolist() == [[0, 1]]
