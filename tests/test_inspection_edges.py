"""Explanations of edges where systems are iterated and parts of the graph stand alone, against dense algebra."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest

from ggmtl import GGMTLRegressor
from ggmtl.bilevel import present_problem
from ggmtl.datasets import make_clusters
from ggmtl.inner import InnerProblem, solve_inner
from ggmtl.inspection import explain_edge, transfer_report
from ggmtl.inspection.effects import effects_of
from ggmtl.inspection.transfer import Gain, _verdict
from ggmtl.posterior import without_edge
from ggmtl.posterior.neighbourhood import Links, Near
from ggmtl.posterior.noise import _estimated, noise_taken
from ggmtl.posterior.removal import (
    FewSolves,
    _covariance_within,
    around,
    change_without_edge,
    difference_covariance,
    links_of,
)
from ggmtl.statistics import LeastSquares


def make_problem(seed=0, groups=6, members=12, p=5, rows=8, hub=0.5):
    """A graph of several parts, each a ring with chords: too large for the direct solver."""
    rng = np.random.default_rng(seed)
    n = groups * members
    X = rng.normal(size=(n, rows, p))
    y = rng.normal(size=(n, rows))
    gram, moment = np.einsum("nrp,nrq->npq", X, X), np.einsum("nrp,nr->np", X, y)
    loss = LeastSquares(gram, moment, (y**2).sum(axis=1), np.full(n, float(rows)))
    inside = [(k, (k + step) % members) for k in range(members) for step in (1, 3)]
    edges = np.array([sorted((g * members + a, g * members + b)) for g in range(groups) for a, b in inside])
    problem = InnerProblem(loss, edges, rng.uniform(0.5, 3.0, p), np.full(p, 1.0) * hub, np.full(p, 1e-6))
    return problem, rng.uniform(0.2, 2.0, len(edges))


def dense_covariance(system, i, j):
    n, p = system.shape
    inverse = np.linalg.inv(system.dense()).reshape(n, p, n, p)
    return inverse[i, :, i] + inverse[j, :, j] - inverse[i, :, j] - inverse[j, :, i]


def second_part(problem, values):
    return Near.of(problem.edges, values, len(problem.loss.moment), np.arange(12, 24))


@pytest.mark.parametrize("hub", [0.0, 0.5, 50.0])
@pytest.mark.parametrize("by_parts", [False, True])
def test_taking_out_an_edge_is_a_refit_with_and_without_parts(hub, by_parts, monkeypatch):
    monkeypatch.setattr("ggmtl.posterior.removal._NEAR_FROM", 0 if by_parts else 10**9)
    problem, values = make_problem(hub=hub)
    assert (links_of(problem, values) is not None) == by_parts
    for edge in (0, 50, 143):
        i, j = problem.edges[edge]
        left = np.where(np.arange(len(values)) == edge, 0.0, values)
        found = without_edge(problem, values, j, i)
        expected = solve_inner(problem, left, tol=1e-13).coefficients
        np.testing.assert_allclose(found.coefficients, expected, atol=1e-7)
        covariance = dense_covariance(problem.system(left), i, j)
        np.testing.assert_allclose(found.difference_covariance, covariance, rtol=1e-6, atol=1e-7)


def test_column_by_column_is_the_same_covariance(monkeypatch):
    monkeypatch.setattr("ggmtl.posterior.removal._KEPT_NUMBERS", 0)
    problem, values = make_problem()
    system = problem.system(values)
    found = difference_covariance(system, 0, 1)
    np.testing.assert_allclose(found, dense_covariance(system, 0, 1), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("hub", [0.0, 0.5])
def test_a_change_that_starts_from_some_of_the_tasks_tied_to_a_pair_is_a_refit(hub):
    problem, values = make_problem(groups=1, members=60, hub=hub)
    links, edge, (i, j) = Links.of(problem, values), 7, problem.edges[7]
    left = np.where(np.arange(len(values)) == edge, 0.0, values)
    before = solve_inner(problem, values, tol=1e-13).coefficients
    near = links.near(i, j, 15)
    assert len(near.tasks) == 15
    assert not near.is_closed
    solver = FewSolves(problem.system(values))
    found = before + change_without_edge(problem, values, before, i, j, near, solver)
    np.testing.assert_allclose(found, solve_inner(problem, left, tol=1e-13).coefficients, atol=1e-7)


@pytest.mark.parametrize("hub", [0.0, 0.5])
def test_a_system_on_some_tasks_is_that_block_of_all_while_the_common_model_is_held(hub):
    problem, values = make_problem(groups=1, members=20, hub=hub)
    system = problem.system(values)
    (n, p), near = system.shape, Links.of(problem, values).near(3, 4, 7)
    whole = system.dense().reshape(n, p, n, p)
    whole[:, np.arange(p), :, np.arange(p)] += (system.hub / n)[:, None, None]
    block = whole[near.tasks][:, :, near.tasks].reshape(7 * p, 7 * p)
    np.testing.assert_allclose(near.system(system).dense(), block, atol=1e-12)


def test_the_covariance_of_the_nearest_tasks_grows_towards_that_of_all():
    problem, values = make_problem(groups=1, members=60, hub=0.0)
    system, links = problem.system(values), Links.of(problem, values)
    exact = dense_covariance(system, 0, 1)
    found = [difference_covariance(system, 0, 1, links.near(0, 1, size)) for size in (2, 6, 20, 40)]
    below = [np.diag(exact - covariance).max() for covariance in found]
    assert all(np.linalg.eigvalsh(exact - covariance).min() > -1e-6 * exact.max() for covariance in found)
    assert below == sorted(below, reverse=True)
    assert below[-1] < 1e-3 * np.diag(exact).min()


def test_two_parts_of_the_graph_have_the_covariance_of_all(monkeypatch):
    monkeypatch.setattr("ggmtl.posterior.removal._NEAR_FROM", 0)
    problem, values = make_problem()
    system = problem.system(values)
    near = around(links_of(problem, values), 3, 70, 5).covariance
    np.testing.assert_array_equal(near.tasks, [*range(12), *range(60, 72)])
    found = difference_covariance(system, 3, 70, near)
    np.testing.assert_allclose(found, dense_covariance(system, 3, 70), rtol=1e-6, atol=1e-7)


def test_beside_a_hub_without_edges_the_covariance_is_the_dense_one():
    problem, _ = make_problem()
    system = InnerProblem(
        problem.loss, problem.edges[:0], problem.coupling, np.array([0.1, 1.0, 5.0, 20.0, 2.0]), problem.ridge
    ).system(np.zeros(0))
    found = difference_covariance(system, 2, 40)
    np.testing.assert_allclose(found, dense_covariance(system, 2, 40), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("hub", [0.0, np.array([1e-4, 1e-5, 1e-4, 1e-5, 30.0]), np.array([1e-3, 2.0, 1e-4, 1e-3, 1e5])])
def test_one_part_of_the_graph_has_the_covariance_of_all(hub):
    problem, values = make_problem(hub=hub)
    system = problem.system(values)
    found = _covariance_within(system, 13, 15, second_part(problem, values), None)
    np.testing.assert_allclose(found, dense_covariance(system, 13, 15), rtol=1e-6, atol=1e-9)


def test_a_hub_that_counts_in_all_coordinates_is_left_to_the_solves_of_all_tasks():
    problem, values = make_problem(hub=1.0)
    assert _covariance_within(problem.system(values), 13, 15, second_part(problem, values), None) is None


def test_the_answer_of_the_common_model_lies_within_its_bounds():
    problem, values = make_problem(hub=np.array([0.1, 1.0, 5.0, 20.0, 2.0]))
    system = problem.system(values)
    n, p = system.shape
    held = system.dense().reshape(n, p, n, p)
    held[:, np.arange(p), :, np.arange(p)] += (system.hub / n)[:, None, None]
    summed = np.linalg.inv(held.reshape(n * p, n * p)).reshape(n, p, n, p).sum(axis=(0, 2))
    H = np.diag(system.hub)
    exact = H @ np.linalg.inv(n * H - H @ summed @ H) @ H
    common = FewSolves(system).common
    low, high = common._bounds
    assert np.linalg.eigvalsh(exact - low).min() > 0.0
    assert np.linalg.eigvalsh(high - exact).min() > 0.0
    for k in range(p):
        np.testing.assert_allclose(common._column(k), exact[k], rtol=1e-3, atol=1e-3 * exact.max())


def test_too_many_steps_hand_over_to_the_preconditioner_that_knows_the_graph(monkeypatch):
    monkeypatch.setattr("ggmtl.posterior.removal._STEPS", 2)
    problem, values = make_problem()
    solver = FewSolves(problem.system(values))
    for _ in range(2):
        found = solver.solve(problem.loss.moment, tol=1e-11)
        np.testing.assert_allclose(found, solve_inner(problem, values, tol=1e-13).coefficients, atol=1e-8)


@pytest.mark.parametrize("hub", [0.0, 0.5, 50.0])
def test_the_noise_that_models_take_up_is_the_trace(hub):
    problem, values = make_problem(hub=hub)
    system, gram = problem.system(values), problem.loss.gram
    n, p = system.shape
    inverse = np.linalg.inv(system.dense()).reshape(n, p, n, p)
    exact = np.einsum("ipiq,ipq->", inverse, gram)
    assert noise_taken(system, gram) == pytest.approx(exact, rel=1e-9)
    assert _estimated(system, gram) == pytest.approx(exact, rel=0.1)


@pytest.fixture(scope="module", params=["common", "per_task"])
def clusters(request):
    data = make_clusters(4, n_tasks=32, n_features=9, random_state=0)
    return GGMTLRegressor(noise=request.param).fit(data.X, data.y, tasks=data.tasks)


@pytest.mark.parametrize("by_parts", [False, True])
def test_errors_of_an_explanation_are_those_of_refits_to_a_millionth(clusters, by_parts, monkeypatch):
    monkeypatch.setattr("ggmtl.posterior.removal._NEAR_FROM", 0 if by_parts else 10**9)
    i, j = clusters.graph_.edges[3]
    # A copy has nothing prepared yet.
    model = deepcopy(clusters)
    found = explain_edge(model, model.tasks_[i], model.tasks_[j])
    assert (effects_of(model).around(i, j).change is not None) == by_parts
    folded, unit = clusters._folded(), clusters._scaling.target_scale
    for drop, pair, everyone in (
        (False, found.error, found.total_error),
        (True, found.error_without, found.total_error_without),
    ):
        total, count = 0.0, 0.0
        for k in folded.scored:
            problem, values = present_problem(clusters._fit_used, folded.training(k), clusters._settings_used)
            left = np.where((problem.edges == [i, j]).all(axis=1) & drop, 0.0, values)
            models = solve_inner(problem, left, tol=1e-12).coefficients
            total, count = total + 2 * folded.parts[k].task_values(models), count + folded.parts[k].count
        assert pair == pytest.approx(unit * np.sqrt(total[[i, j]].sum() / count[[i, j]].sum()), rel=1e-7)
        assert everyone == pytest.approx(unit * np.sqrt(total.sum() / count.sum()), rel=1e-7)


def test_noise_without_the_covariances_is_that_of_the_posterior(clusters):
    """tr(A⁻¹G) by parts of the graph against the blocks of the inverse of all of A."""
    folded, fit, settings = clusters._folded(), clusters._fit_used, clusters._settings_used
    problem, values = present_problem(fit, folded.total, settings)
    system = problem.system(values)
    inverse = np.linalg.inv(system.dense()).reshape(*system.shape, *system.shape)
    expected = np.einsum("ipiq,ipq->", inverse, folded.total.gram)
    assert noise_taken(system, folded.total.gram) == pytest.approx(expected, rel=1e-9)


def test_a_model_without_links_says_so():
    data = make_clusters(3, n_tasks=9, n_features=2, random_state=0)
    model = GGMTLRegressor(candidates=np.empty((0, 2))).fit(data.X, data.y, tasks=data.tasks)
    assert explain_edge(model, 0, 1).describe().startswith("0 and 1 are not linked: the model has no links")


def test_praise_only_where_the_whole_interval_is_a_gain(clusters):
    assert transfer_report(clusters).verdict.startswith("The graph lowers the error by")
    names, none = ("hub", "graph", "independent"), Gain(0.0, 0.0, 0.0)

    def said(gain):
        return _verdict(names, 1, 0, [1], gain, none, 2)

    assert "is not clear: by 1.0 % (-0.5 to 2.5 %)" in said(Gain(0.01, -0.005, 0.025))
    assert said(Gain(-0.02, -0.03, -0.01)).startswith("The graph raises the error by 2.0 % (1.0–3.0 %)")
