"""Explanations of edges where systems are iterated and parts of the graph stand alone, against dense algebra."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from ggmtl import GGMTLRegressor, load_model
from ggmtl.baselines import HubRegressor
from ggmtl.bilevel.inner import InnerProblem, solve_inner
from ggmtl.bilevel.level import present_problem
from ggmtl.datasets import make_clusters
from ggmtl.errors import InputError
from ggmtl.inference.noise_variance import _estimated, noise_taken
from ggmtl.inference.removal import TrainedModels, difference_covariance, near_tasks
from ggmtl.inference.uncertainty import noise_ratios
from ggmtl.inspection import edge_stability, explain_edge, shared_features, transfer_report
from ggmtl.runtime.sizes import Sizes
from ggmtl.solve.structured import Factors
from made import sums_of

HUBS = [0.0, np.array([0.0, 0.0, 0.0, 0.3, 80.0]), np.array([1e-6, 0.0, 5.0, 1e-6, 1e5])]


def make_problem(seed=0, groups=6, members=12, p=5, rows=8, hub=0.5):
    """A graph of several parts, each a ring with chords: too large for the direct solver."""
    rng = np.random.default_rng(seed)
    n = groups * members
    X = rng.normal(size=(n, rows, p))
    y = rng.normal(size=(n, rows))
    loss = sums_of(X, y)
    inside = [(k, (k + step) % members) for k in range(members) for step in (1, 3)]
    edges = np.array([sorted((g * members + a, g * members + b)) for g in range(groups) for a, b in inside])
    problem = InnerProblem(loss, edges, rng.uniform(0.5, 3.0, p), np.full(p, 1.0) * hub, np.full(p, 1e-6))
    return problem, rng.uniform(0.2, 2.0, len(edges))


def dense_covariance(system, i, j):
    n, p = system.shape
    inverse = np.linalg.inv(system.dense()).reshape(n, p, n, p)
    return inverse[i, :, i] + inverse[j, :, j] - inverse[i, :, j] - inverse[j, :, i]


def trained(problem, values):
    return TrainedModels(problem, values, solve_inner(problem, values, tol=1e-13).coefficients)


def covariance_without(problem, values, i, j, near):
    models = trained(replace(problem, sizes=Sizes(near_tasks=near)), values)
    return models.covariance_without(i, j, models.models + models.change(i, j))


@pytest.mark.parametrize("hub", [*HUBS, 0.5, 50.0])
def test_removing_an_edge_is_a_refit(hub):
    problem, values = make_problem(hub=hub)
    models = trained(problem, values)
    for edge in (0, 50, 143):
        i, j = problem.edges[edge]
        left = np.where(np.arange(len(values)) == edge, 0.0, values)
        expected = solve_inner(problem, left, tol=1e-13).coefficients - models.models
        np.testing.assert_allclose(models.change(i, j), expected, atol=1e-7 * np.abs(expected).max())


@pytest.mark.parametrize("hub", [0.0, 0.5, 50.0])
def test_the_covariance_of_a_difference_is_the_dense_one(hub):
    problem, values = make_problem(hub=hub)
    system = problem.system(values)
    for pair in [(0, 1), (3, 70)]:
        exact = dense_covariance(system, *pair)
        np.testing.assert_allclose(difference_covariance(system, *pair), exact, rtol=1e-4, atol=1e-5 * exact.max())


def test_without_edges_the_covariance_is_the_dense_one():
    problem, _ = make_problem()
    hub = np.array([0.1, 1.0, 5.0, 20.0, 2.0])
    bare = InnerProblem(problem.loss, problem.edges[:0], problem.coupling, hub, problem.ridge)
    system = bare.system(np.zeros(0))
    exact = dense_covariance(system, 2, 40)
    np.testing.assert_allclose(difference_covariance(system, 2, 40), exact, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("hub", [*HUBS, 0.5])
@pytest.mark.parametrize("pair", [(13, 15), (13, 14), (13, 17), (3, 70)], ids=["chord", "ring", "no link", "no path"])
def test_models_and_covariance_without_an_edge_are_those_of_dense_algebra(hub, pair):
    """Linked or not, in one component of the graph or in two."""
    problem, values = make_problem(hub=hub)
    models = trained(problem, values)
    edge = (problem.edges == pair).all(axis=1)
    without = problem.system(np.where(edge, 0.0, values))
    after = np.linalg.solve(without.dense(), problem.loss.moment.ravel()).reshape(models.models.shape)
    change = models.change(*pair)
    np.testing.assert_allclose(change, after - models.models, atol=1e-8)
    assert change.any() == edge.any()
    found = models.covariance_without(*pair, models.models + change)
    np.testing.assert_allclose(found, dense_covariance(without, *pair), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("hub", [*HUBS, 0.5])
def test_factors_of_the_components_solve_the_system(hub):
    problem, values = make_problem(hub=hub)
    system, right = problem.system(values), problem.loss.moment
    found = Factors.of(system).solve(right, np.zeros_like(right), 1e-13).value
    np.testing.assert_allclose(system.apply(found), right, atol=1e-12 * np.abs(right).max())


def test_a_component_without_rows_has_no_factor():
    problem, _ = make_problem(groups=1, members=5, hub=0.0)
    for sums in (problem.loss.gram, problem.loss.moment, problem.loss.target_square, problem.loss.count):
        sums[4] = 0.0
    chain = np.array([[0, 1], [1, 2], [2, 3], [3, 4]])
    problem = InnerProblem(problem.loss, chain, problem.coupling, problem.hub, np.zeros(5))
    assert Factors.of(problem.system(np.ones(4))) is not None
    assert Factors.of(replace(problem, edges=chain[:3]).system(np.ones(3))) is None


def test_large_very_many_and_no_components_have_no_factors():
    problem, values = make_problem()
    assert Factors.of(problem.system(values)) is not None
    assert Factors.of(problem.system(values)).system.shape == (72, 5)
    bare = InnerProblem(problem.loss, problem.edges[:0], problem.coupling, problem.hub, problem.ridge)
    assert Factors.of(bare.system(np.zeros(0))) is None
    little_work = replace(problem, sizes=Sizes(component_work=6 * 60.0**3)).system(values)
    assert Factors.of(little_work) is None
    no_overhead = replace(little_work, sizes=replace(little_work.sizes, component_overhead=0.0))
    assert Factors.of(no_overhead) is not None
    assert Factors.of(replace(problem, sizes=Sizes(component_numbers=6 * 60.0**2)).system(values)) is None


def test_links_a_million_times_as_strong_as_the_rows_are_explained():
    """Tasks that are the same two by two: the evidence ties them a million times as hard as their rows do."""
    rng, n = np.random.default_rng(0), 60
    tasks = np.repeat(np.arange(n), 6)
    X, models = rng.normal(size=(len(tasks), 2)), rng.normal(size=(n, 2))
    models[1 : n // 2 : 2] = models[0 : n // 2 : 2]
    y = (X * models[tasks]).sum(axis=1) + 0.3 * rng.normal(size=len(tasks))
    model = GGMTLRegressor(candidates=np.arange(20).reshape(-1, 2), coupling=1e7, criterion="validation")
    model.fit(X, y, tasks=tasks)
    for i, j in model.graph_.edges[:3]:
        np.testing.assert_allclose(seen(explain_edge(model, i, j)), refits(model, i, j), rtol=1e-6)


@pytest.mark.parametrize("hub", [0.0, 0.5])
def test_the_system_of_near_tasks_is_a_block_of_the_system_while_the_common_model_is_held(hub):
    problem, values = make_problem(groups=1, members=20, hub=hub)
    system = problem.system(values)
    (n, p), (tasks, part) = system.shape, near_tasks(system, 3, 4, 7)
    assert 7 <= len(tasks) < n
    whole = system.dense().reshape(n, p, n, p)
    whole[:, np.arange(p), :, np.arange(p)] += (system.hub / n)[:, None, None]
    block = whole[tasks][:, :, tasks].reshape(len(tasks) * p, -1)
    np.testing.assert_allclose(part.dense(), block, atol=1e-12)


def test_near_tasks_are_those_a_few_links_away():
    problem, _ = make_problem(groups=1, members=6)
    chain = InnerProblem(problem.loss, np.array([[0, 1], [1, 2], [2, 3], [4, 5]]), np.ones(5), problem.hub, np.ones(5))
    system = chain.system(np.ones(4))
    for pair, least, expected in [((0, 1), 2, [0, 1]), ((0, 1), 3, [0, 1, 2]), ((1, 0), 6, [0, 1, 2, 3])]:
        np.testing.assert_array_equal(near_tasks(system, *pair, least)[0], expected)
    np.testing.assert_array_equal(near_tasks(system, 0, 4, 4)[0], [0, 1, 4, 5])


def test_more_near_tasks_give_the_covariance_better():
    """The covariance grows towards that of all tasks, because the models of the others are held."""
    problem, values = make_problem(groups=1, members=60, hub=0.0)
    left = np.where(np.arange(len(values)) == 0, 0.0, values)
    exact = dense_covariance(problem.system(left), 0, 1)
    below = []
    for near in (2, 6, 20, 40):
        covariance = covariance_without(problem, values, 0, 1, near)
        assert np.linalg.eigvalsh(exact - covariance).min() > -1e-6 * exact.max()
        below.append(np.diag(exact - covariance).max())
    assert below == sorted(below, reverse=True)
    assert below[-1] < 1e-3 * np.diag(exact).min()


def test_the_common_model_of_many_tasks_adds_little_to_the_covariance_of_a_component():
    """Its share falls with the number of tasks: here below a hundredth."""
    problem, values = make_problem(groups=30, members=12, hub=0.5)
    i, j = problem.edges[30]
    left = np.where(np.arange(len(values)) == 30, 0.0, values)
    found = covariance_without(problem, values, i, j, near=100)
    exact = difference_covariance(problem.system(left), i, j)
    np.testing.assert_allclose(np.diag(found), np.diag(exact), rtol=1e-2)
    assert (np.diag(found) <= np.diag(exact) * (1 + 1e-6)).all()


@pytest.mark.parametrize("hub", [0.0, 0.5, 50.0])
def test_the_noise_that_models_take_up_is_the_trace(hub):
    problem, values = make_problem(hub=hub)
    system, gram = problem.system(values), problem.loss.gram
    n, p = system.shape
    inverse = np.linalg.inv(system.dense()).reshape(n, p, n, p)
    exact = np.einsum("ipiq,ipq->", inverse, gram)
    assert noise_taken(system, gram) == pytest.approx(exact, rel=1e-9)
    assert _estimated(system, gram) == pytest.approx(exact, rel=0.1)


def refits(model, i, j):
    """Root mean squared errors of the pair and of all tasks, with and without the edge, shape (2, 2)."""
    folded, unit, errors = model.state_.folded(), model.scaling_.target_scale, []
    for drop in (False, True):
        total, count = 0.0, 0.0
        for k in folded.scored:
            problem, values = present_problem(model.state_.level, folded.training(k), model.state_.settings)
            left = np.where((problem.edges == [i, j]).all(axis=1) & drop, 0.0, values)
            models = solve_inner(problem, left, tol=1e-13).coefficients
            total, count = total + 2 * folded.parts[k].task_values(models), count + folded.parts[k].count
        errors.append([total[[i, j]].sum() / count[[i, j]].sum(), total.sum() / count.sum()])
    return unit * np.sqrt(errors)


def seen(found):
    """The same of an explanation."""
    return [[found.error, found.total_error], [found.error_without, found.total_error_without]]


@pytest.fixture(scope="module", params=["common", "per_task"])
def clusters(request):
    data = make_clusters(4, n_tasks=32, n_features=9, random_state=0)
    return GGMTLRegressor(noise=request.param).fit(data.X, data.y, tasks=data.tasks)


def test_errors_of_an_explanation_are_those_of_refits_to_a_millionth(clusters):
    i, j = clusters.graph_.edges[3]
    found = explain_edge(clusters, clusters.tasks_[i], clusters.tasks_[j])
    np.testing.assert_allclose(seen(found), refits(clusters, i, j), rtol=1e-7)


def few_rows(seed, n, size, d, rows, noise):
    """Tasks in clusters with so many rows each, fewer than coefficients or not, and edges within clusters."""
    rng = np.random.default_rng(seed)
    models = rng.normal(size=(n // size, d))[np.arange(n) // size]
    tasks = np.repeat(np.arange(n), rng.integers(1, rows, n) if isinstance(noise, tuple) else rows)
    X, scale = rng.normal(size=(len(tasks), d)), np.atleast_1d(noise)[tasks % np.size(noise)]
    y = (X * models[tasks]).sum(axis=1) + scale * rng.normal(size=len(tasks))
    pairs = [
        (a, b) for start in range(0, n, size) for a in range(start, start + size) for b in range(a + 1, start + size)
    ]
    return X, y, tasks, np.array(pairs)


@pytest.mark.parametrize(
    "drawn",
    [(600, 2, 10, 6, 0.3), (600, 2, 10, 6, 0.01), (700, 10, 8, 25, (0.2, 0.5, 1.5)), (1700, 2, 2, 3, 0.1)],
    ids=["few rows", "little noise", "all numbers of rows", "two features"],
)
def test_explanations_are_exact_where_rows_are_few_and_tasks_many(drawn):
    """Where the rows of a task leave directions open, in which other tasks and the hub count for much."""
    X, y, tasks, pairs = few_rows(1, *drawn)
    model = GGMTLRegressor(candidates=pairs).fit(X, y, tasks=tasks)
    edges = model.graph_.edges
    for i, j in edges[np.linspace(0, len(edges) - 1, 3).astype(int)]:
        np.testing.assert_allclose(seen(explain_edge(model, i, j)), refits(model, i, j), rtol=1e-6)


def test_explanations_are_exact_where_weights_and_numbers_of_rows_differ_widely():
    """Tasks of one row, whose models only others tell."""
    X, y, tasks, pairs = few_rows(1, 700, 10, 8, 25, (0.2, 0.5, 1.5))
    weight = np.rint(10.0 ** np.random.default_rng(2).uniform(0.0, 2.7, len(y)))
    model = GGMTLRegressor(candidates=pairs).fit(X, y, tasks=tasks, sample_weight=weight)
    rows = np.bincount(tasks)[model.graph_.edges].min(axis=1)
    for i, j in model.graph_.edges[np.argsort(rows, kind="stable")[:3]]:
        np.testing.assert_allclose(seen(explain_edge(model, i, j)), refits(model, i, j), rtol=1e-6)


def test_data_without_noise_are_fitted_and_explained():
    rng = np.random.default_rng(0)
    tasks = np.repeat(np.arange(1500), 8)
    X = rng.normal(size=(len(tasks), 3))
    model = GGMTLRegressor().fit(X, X.sum(axis=1), tasks=tasks)
    np.testing.assert_allclose(model.coef_, 1.0, atol=1e-6)


def test_the_errors_of_a_pair_do_not_depend_on_the_size_of_weights():
    data = make_clusters(2, n_tasks=6, n_features=2, random_state=0)
    found = []
    for weight in (1.0, 384.0):
        model = GGMTLRegressor(candidates=np.array([[0, 2], [1, 3]]))
        model.fit(data.X, data.y, tasks=data.tasks, sample_weight=np.full(len(data), weight))
        found.append(explain_edge(model, 0, 2))
    for small in found:
        squares = (small.error**2, small.total_error**2)
        assert 0.1 < squares[0] / squares[1] < 10.0


def test_explanations_follow_a_model_that_changes(tmp_path):
    data = make_clusters(2, n_tasks=6, n_features=2, random_state=0)
    model = GGMTLRegressor().fit(data.X, data.y, tasks=data.tasks)
    expected = explain_edge(model, 0, 2)
    assert explain_edge(model, 0, 2) == expected
    model.save(tmp_path / "model.ggmtl", keep_statistics=True)
    found = explain_edge(load_model(tmp_path / "model.ggmtl"), 0, 2)
    assert found.error_without == pytest.approx(expected.error_without, rel=1e-9)
    assert found.features[0].standard_error == pytest.approx(expected.features[0].standard_error, rel=1e-9)
    assert explain_edge(pickle.loads(pickle.dumps(model)), 0, 2) == expected
    model.partial_fit(data.X[:9], data.y[:9], tasks=data.tasks[:9])
    refitted = GGMTLRegressor(candidates=np.empty((0, 2))).fit(data.X, data.y, tasks=data.tasks)
    assert explain_edge(model, 0, 2).error != expected.error
    assert explain_edge(refitted, 0, 2).error == explain_edge(refitted, 0, 2).error_without


def test_a_model_without_a_learned_graph_is_refused_with_the_reason():
    data = make_clusters(2, n_tasks=6, n_features=2, random_state=0)
    hub = HubRegressor().fit(data.X, data.y, tasks=data.tasks)
    questions = {
        "explain_edge": lambda: explain_edge(hub, 0, 1),
        "transfer_report": lambda: transfer_report(hub),
        "edge_stability": lambda: edge_stability(hub, data.X, data.y, tasks=data.tasks),
        "shared_features": lambda: shared_features(hub),
    }
    for name, ask in questions.items():
        with pytest.raises(InputError, match=f"{name} needs a fitted GGMTLRegressor. Got HubRegressor"):
            ask()
    with pytest.raises(NotFittedError):
        explain_edge(GGMTLRegressor(), 0, 1)


def test_noise_without_the_covariances_is_that_of_the_posterior(clusters):
    """tr(A⁻¹G) by parts of the graph against the blocks of the inverse of all of A."""
    folded, fit, settings = clusters.state_.folded(), clusters.state_.level, clusters.state_.settings
    problem, values = present_problem(fit, folded.total, settings)
    system = problem.system(values)
    inverse = np.linalg.inv(system.dense()).reshape(*system.shape, *system.shape)
    expected = np.einsum("ipiq,ipq->", inverse, folded.total.gram)
    assert noise_taken(system, folded.total.gram) == pytest.approx(expected, rel=1e-9)


def test_a_model_without_links_says_so():
    data = make_clusters(3, n_tasks=9, n_features=2, random_state=0)
    model = GGMTLRegressor(candidates=np.empty((0, 2))).fit(data.X, data.y, tasks=data.tasks)
    assert explain_edge(model, 0, 1).describe().startswith("0 and 1 are not linked: the model has no links")


def test_the_report_says_what_the_summary_says(clusters):
    report = transfer_report(clusters)
    assert report.verdict.startswith("Links between tasks lower the held-out error by")
    assert report.verdict in clusters.summary()


def test_standard_errors_follow_the_noise_of_the_two_tasks():
    """Quiet tasks among noisy ones, their rows not weighed by it: as the models' own standard errors say."""
    random = np.random.default_rng(0)
    tasks = np.repeat(np.arange(12), 40)
    X, own = random.normal(size=(len(tasks), 2)), random.normal(size=(12, 2))
    noise = np.where(np.arange(12) < 4, 0.2, 2.0)
    y = (X * own[tasks]).sum(axis=1) + noise[tasks] * random.normal(size=len(tasks))
    # Standard errors of an average count all of its levels, those of an explanation the linked one alone.
    model = GGMTLRegressor(criterion="validation", candidates=[(10, 11)], max_iter=3, blend=False)
    model.fit(X, y, tasks=tasks)
    assert model.state_.level.precisions is None
    assert noise_ratios(model.state_) is not None
    table = model.coefficients()
    for pair in [(0, 1), (2, 3), (4, 5), (0, 5)]:
        # Slopes are hardly drawn to the common model, so the two are next to independent.
        variance = sum(table["standard_error"][table["task"] == task].to_numpy()[:2] ** 2 for task in pair)
        found = [item.standard_error for item in explain_edge(model, *pair).features[:2]]
        np.testing.assert_allclose(found, np.sqrt(variance), rtol=0.1)
