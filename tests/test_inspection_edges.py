"""Explanations of edges where systems are iterated and parts of the graph stand alone, against dense algebra."""

from __future__ import annotations

import pickle
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest

from ggmtl import GGMTLRegressor, load_model
from ggmtl.bilevel.inner import InnerProblem, solve_inner
from ggmtl.bilevel.level import present_problem
from ggmtl.datasets import make_clusters
from ggmtl.inference.common_model import CommonModel
from ggmtl.inference.few_solves import FewSolves
from ggmtl.inference.nearby import Nearby
from ggmtl.inference.neighbourhood import Links
from ggmtl.inference.noise_variance import _estimated, noise_taken
from ggmtl.inference.removal import difference_covariance, without_edge
from ggmtl.inference.survey import FarAway, Overview
from ggmtl.inspection import explain_edge, transfer_report
from ggmtl.inspection.effects import effects_of
from ggmtl.inspection.transfer import Gain, _verdict
from ggmtl.solve.components import Factors
from ggmtl.statistics.least_squares import LeastSquares


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


def links_of(problem, values):
    return Links.of(problem.edges, values, problem.coupling, problem.loss.count)


def nearby_of(problem, values, i, j, size):
    """The tasks near i and j out of all."""
    links = links_of(problem, values)
    near = links.near(links.order(i, j), size)
    return Nearby(near, *near.places(i, j), near.part(problem.system(values)))


def overview_of(problem, values, scored):
    """As the fit leaves it, to full accuracy."""
    models = solve_inner(problem, values, tol=1e-13).coefficients
    far = FarAway.of(FewSolves(problem.system(values)), scored.gradient(models), scored.gram)
    return Overview(models, 2 * scored.value(models), float(scored.count.sum()), None, far)


def change_of(nearby, overview, scored):
    return nearby.change(overview, overview.far, scored.of_tasks(nearby.near.tasks))


def gained_of(nearby, change, overview, scored):
    return nearby.gained(change, overview, overview.far, scored.of_tasks(nearby.near.tasks))


@pytest.mark.parametrize("hub", [0.0, 0.5, 50.0])
def test_taking_out_an_edge_is_a_refit(hub, monkeypatch):
    problem, values = make_problem(hub=hub)
    rough = without_edge(problem, values, *problem.edges[0]).difference_covariance
    monkeypatch.setattr("ggmtl.inference.removal._COVARIANCE_TOL", 1e-4)
    for edge in (0, 50, 143):
        i, j = problem.edges[edge]
        left = np.where(np.arange(len(values)) == edge, 0.0, values)
        found = without_edge(problem, values, j, i)
        expected = solve_inner(problem, left, tol=1e-13).coefficients
        np.testing.assert_allclose(found.coefficients, expected, atol=1e-7)
        covariance = dense_covariance(problem.system(left), i, j)
        np.testing.assert_allclose(found.difference_covariance, covariance, rtol=1e-6, atol=1e-7)
        if edge == 0:
            np.testing.assert_allclose(np.diag(rough), np.diag(covariance), rtol=2e-3)


def test_column_by_column_is_the_same_covariance(monkeypatch):
    monkeypatch.setattr("ggmtl.inference.removal._KEPT_NUMBERS", 0)
    problem, values = make_problem()
    system = problem.system(values)
    found = difference_covariance(system, 0, 1)
    np.testing.assert_allclose(found, dense_covariance(system, 0, 1), rtol=1e-6, atol=1e-7)


HUBS = [0.0, np.array([0.0, 0.0, 0.0, 0.3, 80.0]), np.array([1e-6, 0.0, 5.0, 1e-6, 1e5])]


@pytest.mark.parametrize("hub", [*HUBS, 0.5])
@pytest.mark.parametrize("pair", [(13, 15), (13, 14), (13, 17), (3, 70)], ids=["chord", "ring", "no link", "no path"])
def test_factors_of_the_parts_tell_what_an_edge_does(hub, pair):
    """Linked or not, in one part of the graph or in two, against dense algebra and a refit."""
    problem, values = make_problem(hub=hub)
    system, right = problem.system(values), problem.loss.moment
    factors = Factors.of(system)
    models = factors.solve(right, np.zeros_like(right), 1e-13).value
    np.testing.assert_allclose(system.apply(models), right, atol=1e-12 * np.abs(right).max())
    edge = (problem.edges == pair).all(axis=1)
    weight, left = values[edge].sum() * problem.coupling, np.where(edge, 0.0, values)
    two = factors.pair(*pair)
    change, covariance = factors.change(two, models, weight, 1e-10), factors.covariance(two, weight)
    after = np.linalg.solve(problem.system(left).dense(), right.ravel()).reshape(right.shape)
    np.testing.assert_allclose(change, after - models, atol=1e-11)
    assert change.any() == edge.any()
    np.testing.assert_allclose(covariance, dense_covariance(problem.system(left), *pair), rtol=1e-9, atol=1e-12)


def test_an_edge_that_carries_a_task_without_rows_is_left_to_others():
    """Without it nothing tells that task's model: I − Sw is singular."""
    problem, _ = make_problem(groups=1, members=5, hub=0.0)
    for part in (problem.loss.gram, problem.loss.moment, problem.loss.target_square, problem.loss.count):
        part[4] = 0.0
    chain = np.array([[0, 1], [1, 2], [2, 3], [3, 4]])
    problem = InnerProblem(problem.loss, chain, problem.coupling, problem.hub, np.zeros(5))
    factors = Factors.of(problem.system(np.ones(4)))
    models = factors.solve(problem.loss.moment, tol=1e-13).value
    assert factors.covariance(factors.pair(3, 4), problem.coupling) is None
    assert factors.covariance(factors.pair(0, 1), problem.coupling) is not None
    assert factors.change(factors.pair(0, 1), models, problem.coupling, 1e-10) is not None
    assert Factors.of(replace(problem, edges=chain[:3]).system(np.ones(3))) is None


def test_no_factors_of_large_parts_of_very_many_or_of_none(monkeypatch):
    problem, values = make_problem()
    assert Factors.of(problem.system(values)) is not None
    assert Factors.of(problem.system(values)).system.shape == (72, 5)
    bare = InnerProblem(problem.loss, problem.edges[:0], problem.coupling, problem.hub, problem.ridge)
    assert Factors.of(bare.system(np.zeros(0))) is None
    monkeypatch.setattr("ggmtl.solve.components._OPERATIONS", 6 * 60.0**3)
    assert Factors.of(problem.system(values)) is None
    monkeypatch.setattr("ggmtl.solve.components._PER_PART", 0.0)
    assert Factors.of(problem.system(values)) is not None
    assert Factors.of(problem.system(values), 2) is None
    monkeypatch.undo()
    monkeypatch.setattr("ggmtl.solve.components._NUMBERS", 6 * 60.0**2)
    assert Factors.of(problem.system(values)) is None


@pytest.mark.parametrize("hub", [*HUBS, 0.5])
@pytest.mark.parametrize("edge", [30, 31])
def test_where_an_edge_is_all_that_is_known_its_part_is_factorised_without_it(hub, edge, monkeypatch):
    problem, values = make_problem(hub=hub)
    i, j = problem.edges[edge]
    left = np.where(np.arange(len(values)) == edge, 0.0, values)
    monkeypatch.setattr("ggmtl.solve.components._GROWTH", 0.0)
    factors = Factors.of(problem.system(values))
    found = factors.covariance(factors.pair(i, j), values[edge] * problem.coupling)
    np.testing.assert_allclose(found, dense_covariance(problem.system(left), i, j), rtol=1e-9, atol=1e-12)


def test_links_that_are_strong_beyond_measure_are_explained_in_closed_form():
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
        assert all("solver" not in part.__dict__ for part in effects_of(model)._parts.values())


@pytest.mark.parametrize("hub", HUBS)
@pytest.mark.parametrize("drawn", [0, 1])
def test_one_part_of_the_graph_tells_the_change_and_the_errors_of_all(hub, drawn):
    """Against a refit of all tasks without the edge, scored on other rows."""
    problem, values = make_problem(hub=hub)
    scored = make_problem(seed=7 + drawn)[0].loss
    overview = overview_of(problem, values, scored)
    edge = 30
    i, j = problem.edges[edge]
    nearby = nearby_of(problem, values, i, j, 30)
    assert nearby.near.is_closed
    assert len(nearby.near.tasks) == 12
    change = change_of(nearby, overview, scored)
    after = solve_inner(problem, np.where(np.arange(len(values)) == edge, 0.0, values), tol=1e-13).coefficients
    expected = (after - overview.models)[nearby.near.tasks]
    np.testing.assert_allclose(change.models, expected, atol=1e-6 * np.abs(expected).max())
    gained = gained_of(nearby, change, overview, scored)
    assert gained == pytest.approx(2 * scored.value(after) - overview.error, rel=3e-4)


def test_more_tasks_tell_the_change_better_until_they_are_enough():
    problem, values = make_problem(groups=1, members=400, rows=12, hub=np.array([0.0, 0.0, 0.0, 0.0, 40.0]))
    overview = overview_of(problem, values, problem.loss)
    i, j = problem.edges[7]
    after = solve_inner(problem, np.where(np.arange(len(values)) == 7, 0.0, values), tol=1e-13).coefficients
    exact = (after - overview.models)[[i, j]]
    apart, enough = [], []
    for size in (4, 12, 40, 200):
        nearby = nearby_of(problem, values, i, j, size)
        assert not nearby.near.is_closed
        change = change_of(nearby, overview, problem.loss)
        apart.append(np.abs(change.models[[nearby.first, nearby.second]] - exact).max() / np.abs(exact).max())
        enough.append(change.is_enough)
    assert apart[0] > apart[1] > apart[2]
    assert (enough[0], enough[-1]) == (False, True)
    assert max(gap for gap, done in zip(apart, enough) if done) < 1e-5


@pytest.mark.parametrize(("rows", "strength"), [(12, 1.0), (12, 30.0), (4, 30.0)])
def test_the_doubt_about_the_errors_of_a_pair_covers_what_they_are_off_by(rows, strength, monkeypatch):
    """In a ring with chords that ties all tasks, also strongly, and for any number of them looked at."""
    monkeypatch.setattr("ggmtl.inference.nearby._DOUBT", 1.0)
    problem, values = make_problem(groups=1, members=300, rows=rows, hub=np.array([0.0, 0.0, 0.0, 0.0, 40.0]))
    scored, covered = make_problem(seed=7, groups=1, members=300)[0].loss, 0
    values = strength * values
    overview = overview_of(problem, values, scored)
    for edge in (7, 100, 333):
        pair = problem.edges[edge]
        after = solve_inner(problem, np.where(np.arange(len(values)) == edge, 0.0, values), tol=1e-13).coefficients
        exact = 2 * scored.task_values(after)[pair].sum()
        for size in (10, 30, 90):
            nearby = nearby_of(problem, values, *pair, size)
            change = change_of(nearby, overview, scored)
            models = overview.models.copy()
            models[nearby.near.tasks] += change.models
            off = abs(2 * scored.task_values(models)[pair].sum() - exact) / exact
            assert off <= change.doubt + 1e-7
            covered += off > 1e-6
    assert covered >= 3


@pytest.mark.parametrize("strength", [30.0, 1000.0])
def test_the_errors_of_all_tasks_are_in_doubt_also_where_the_pair_has_no_rows_scored(strength, monkeypatch):
    monkeypatch.setattr("ggmtl.inference.nearby._DOUBT", 1.0)
    hub = np.array([0.0, 0.0, 0.0, 0.0, 40.0])
    problem, values = make_problem(groups=1, members=300, rows=3, hub=hub)
    scored, values = make_problem(seed=7, groups=1, members=300)[0].loss, strength * values
    pair = problem.edges[100]
    for part in (scored.gram, scored.moment, scored.target_square, scored.count):
        part[pair] = 0.0
    overview = overview_of(problem, values, scored)
    after = solve_inner(problem, np.where(np.arange(len(values)) == 100, 0.0, values), tol=1e-13).coefficients
    off = []
    for size in (6, 20, 60):
        nearby = nearby_of(problem, values, *pair, size)
        change = change_of(nearby, overview, scored)
        gained = gained_of(nearby, change, overview, scored)
        off.append(abs(overview.error + gained - 2 * scored.value(after)) / overview.error)
        assert off[-1] <= change.doubt + 1e-8
    assert off[0] > 1e-7


def test_no_edge_is_no_change():
    problem, values = make_problem(hub=0.0)
    overview = overview_of(problem, values, problem.loss)
    nearby = nearby_of(problem, values, 0, 40, 30)
    change = change_of(nearby, overview, problem.loss)
    assert change.is_enough
    assert not change.models.any()
    assert gained_of(nearby, change, overview, problem.loss) == 0.0


def test_a_common_model_that_matters_in_many_coordinates_is_left_to_all_tasks(monkeypatch):
    """Where there are so many tasks that no more than three coordinates are looked at."""
    monkeypatch.setattr("ggmtl.inference.survey._FELT_NUMBERS", 0)
    problem, values = make_problem(hub=5.0)
    overview = overview_of(problem, values, problem.loss)
    assert len(overview.far.felt) == 3
    assert not change_of(nearby_of(problem, values, *problem.edges[0], 30), overview, problem.loss).is_enough


@pytest.mark.parametrize("hub", [0.05, 5.0, np.array([0.05, 0.2, 5.0, 40.0, 1e4])])
@pytest.mark.parametrize("rows", [3, 8])
def test_a_common_model_felt_in_all_coordinates_is_followed_by_all_tasks(hub, rows):
    """What others do, to first and second order, from rough answers: with fewer rows than coefficients, too."""
    problem, values = make_problem(groups=15, members=6, rows=rows, hub=hub)
    scored = make_problem(seed=7, groups=15, members=6, hub=hub)[0].loss
    overview = overview_of(problem, values, scored)
    assert len(overview.far.felt) == 5
    nearby = nearby_of(problem, values, *problem.edges[30], 30)
    change = change_of(nearby, overview, scored)
    assert change.is_enough
    after = solve_inner(problem, np.where(np.arange(len(values)) == 30, 0.0, values), tol=1e-13).coefficients
    expected = (after - overview.models)[nearby.near.tasks]
    np.testing.assert_allclose(change.models, expected, atol=1e-6 * np.abs(expected).max())
    exact = 2 * scored.value(after) - overview.error
    assert gained_of(nearby, change, overview, scored) == pytest.approx(exact, rel=1e-3, abs=1e-8 * overview.error)


@pytest.mark.parametrize("hub", [0.0, 0.5])
def test_a_system_on_some_tasks_is_that_block_of_all_while_the_common_model_is_held(hub):
    problem, values = make_problem(groups=1, members=20, hub=hub)
    system, links = problem.system(values), links_of(problem, values)
    (n, p), near = system.shape, links.near(links.order(3, 4), 7)
    whole = system.dense().reshape(n, p, n, p)
    whole[:, np.arange(p), :, np.arange(p)] += (system.hub / n)[:, None, None]
    block = whole[near.tasks][:, :, near.tasks].reshape(7 * p, 7 * p)
    np.testing.assert_allclose(near.held(near.part(system)).dense(), block, atol=1e-12)


def test_the_nearest_tasks_are_those_that_take_up_the_most():
    """A chain of tasks: near one end of it stand those a few links away, and no task of another part."""
    edges = np.array([[0, 1], [1, 2], [2, 3], [4, 5]])
    links = Links.of(edges, np.ones(4), np.ones(2), np.full(6, 2.0))
    np.testing.assert_array_equal(links.order(0, 1), [0, 1, 2, 3])
    np.testing.assert_array_equal(np.sort(links.order(0, 4)), [0, 1, 2, 3, 4, 5])
    near = links.near(links.order(0, 1), 3)
    np.testing.assert_array_equal(near.tasks, [0, 1, 2])
    np.testing.assert_array_equal(near.leaving, [[2, 3]])
    np.testing.assert_array_equal(near.passed_on(np.arange(6.0).reshape(3, 2)), [[4.0, 5.0]])


def test_the_covariance_of_the_nearest_tasks_grows_towards_that_of_all(monkeypatch):
    problem, values = make_problem(groups=1, members=60, hub=0.0)
    exact = dense_covariance(problem.system(np.where(np.arange(len(values)) == 0, 0.0, values)), 0, 1)
    monkeypatch.setattr("ggmtl.inference.nearby._VARIANCE_DOUBT", 10.0)
    common = CommonModel.of(problem.system(values))
    found = [nearby_of(problem, values, 0, 1, size).covariance(common) for size in (2, 6, 20, 40)]
    below = [np.diag(exact - covariance).max() for covariance in found]
    assert all(np.linalg.eigvalsh(exact - covariance).min() > -1e-6 * exact.max() for covariance in found)
    assert below == sorted(below, reverse=True)
    assert below[-1] < 1e-3 * np.diag(exact).min()


def test_tasks_too_few_to_tell_a_variance_say_so():
    """Of tasks in a ring, two across it; their own and a few more do not tell how far apart they may be."""
    problem, values = make_problem(groups=1, members=60, rows=2, hub=0.0)
    common = CommonModel.of(problem.system(values))
    assert nearby_of(problem, values, 0, 30, 6).covariance(common) is None
    found = nearby_of(problem, values, 0, 30, 60).covariance(common)
    exact = dense_covariance(problem.system(values), 0, 30)
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-6 * exact.max())


def test_beside_a_hub_without_edges_the_covariance_is_the_dense_one():
    problem, _ = make_problem()
    hub = np.array([0.1, 1.0, 5.0, 20.0, 2.0])
    bare = InnerProblem(problem.loss, problem.edges[:0], problem.coupling, hub, problem.ridge)
    system = bare.system(np.zeros(0))
    exact = dense_covariance(system, 2, 40)
    np.testing.assert_allclose(difference_covariance(system, 2, 40), exact, rtol=1e-9, atol=1e-12)
    nearby = nearby_of(bare, np.zeros(0), 2, 40, 30)
    np.testing.assert_array_equal(nearby.near.tasks, [2, 40])
    np.testing.assert_allclose(nearby.covariance(CommonModel.of(system)), exact, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("hub", [0.0, np.array([1e-4, 1e-5, 1e-4, 1e-5, 1e-3]), np.full(5, 1e-3)])
@pytest.mark.parametrize("pair", [(13, 15), (3, 70)])
def test_parts_of_the_graph_have_the_covariance_of_all(hub, pair):
    problem, values = make_problem(hub=hub)
    system = problem.system(values)
    left = np.where((problem.edges == pair).all(axis=1), 0.0, values)
    nearby = nearby_of(problem, values, *pair, 30)
    assert nearby.near.is_closed
    found = nearby.covariance(CommonModel.of(system))
    exact = dense_covariance(problem.system(left), *pair)
    # To half of what the bounds of the common model may differ by.
    np.testing.assert_allclose(np.diag(found), np.diag(exact), rtol=2e-2)


def test_the_part_of_a_common_model_in_a_variance_is_told_where_it_is_known():
    common = CommonModel(np.zeros((2, 2)), np.eye(2))
    assert common.within(np.eye(2), np.ones(2)) is None
    np.testing.assert_allclose(common.within(0.1 * np.eye(2), np.ones(2)), 0.005 * np.eye(2))
    np.testing.assert_allclose(common.doubt(np.array([0.0, 2.0])), [1.0, 1.0])


def test_the_answer_of_the_common_model_lies_within_its_bounds():
    problem, values = make_problem(hub=np.array([0.1, 1.0, 5.0, 20.0, 2.0]))
    system = problem.system(values)
    n, p = system.shape
    held = system.dense().reshape(n, p, n, p)
    held[:, np.arange(p), :, np.arange(p)] += (system.hub / n)[:, None, None]
    summed = np.linalg.inv(held.reshape(n * p, n * p)).reshape(n, p, n, p).sum(axis=(0, 2))
    H = np.diag(system.hub)
    exact = H @ np.linalg.inv(n * H - H @ summed @ H) @ H
    common = CommonModel.of(system)
    assert np.linalg.eigvalsh(exact - common.low).min() > 0.0
    assert np.linalg.eigvalsh(common.high - exact).min() > 0.0


def test_too_many_steps_hand_over_to_the_preconditioner_that_knows_the_graph(monkeypatch):
    monkeypatch.setattr("ggmtl.inference.few_solves._STEPS", 2)
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


def refits(model, i, j):
    """Root mean squared errors of the pair and of all tasks, with and without the edge, shape (2, 2)."""
    folded, unit, errors = model._folded(), model._scaling.target_scale, []
    for drop in (False, True):
        total, count = 0.0, 0.0
        for k in folded.scored:
            problem, values = present_problem(model._fit_used, folded.training(k), model._settings_used)
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


@pytest.mark.parametrize("size", [None, 0, 3, 500])
def test_errors_of_an_explanation_are_those_of_refits_to_a_millionth(clusters, size, monkeypatch):
    """In closed form (None), from all tasks (0), from three that more must join, from all that are tied to the two."""
    if size is not None:
        monkeypatch.setattr("ggmtl.solve.components._OPERATIONS", 0)
    monkeypatch.setattr("ggmtl.inference.neighbourhood._PAYS_FROM", 0 if size else 10**9)
    monkeypatch.setattr("ggmtl.inspection.effects.near_size", lambda p, tied: size)
    i, j = clusters.graph_.edges[3]
    model = deepcopy(clusters)
    model._survey = None
    found = explain_edge(model, model.tasks_[i], model.tasks_[j])
    assert size or effects_of(model)._parts
    assert all((part.overview.factors is None) == (size is not None) for part in effects_of(model)._parts.values())
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
def test_explanations_are_exact_where_rows_are_few_and_tasks_many(drawn, monkeypatch):
    """Where the rows of a task leave directions open, in which other tasks and the hub count for much."""
    X, y, tasks, pairs = few_rows(1, *drawn)
    model = GGMTLRegressor(candidates=pairs).fit(X, y, tasks=tasks)
    assert model._coefficients.size >= 5000
    # Some hundred small parts are worth factors, more are not.
    closed = model._survey.total.factors is not None
    assert closed == (len(model.tasks_) < 1000)
    monkeypatch.setattr("ggmtl.solve.components._OPERATIONS", 0)
    by_tasks_near, edges = deepcopy(model), model.graph_.edges
    by_tasks_near._survey = None
    for i, j in edges[np.linspace(0, len(edges) - 1, 3).astype(int)]:
        expected = refits(model, i, j)
        for each, rtol in ((model, 1e-8 if closed else 1e-6), (by_tasks_near, 1e-6)):
            np.testing.assert_allclose(seen(explain_edge(each, i, j)), expected, rtol=rtol)
    assert by_tasks_near._survey.total.factors is None


def test_explanations_are_exact_where_weights_and_numbers_of_rows_differ_widely(monkeypatch):
    """Tasks of one row, whose models only others tell: a rough look at them says too little of what is in doubt."""
    monkeypatch.setattr("ggmtl.solve.components._OPERATIONS", 0)
    X, y, tasks, pairs = few_rows(1, 700, 10, 8, 25, (0.2, 0.5, 1.5))
    weight = np.random.default_rng(2).uniform(0.01, 5.0, len(y))
    model = GGMTLRegressor(candidates=pairs).fit(X, y, tasks=tasks, sample_weight=weight)
    rows = np.bincount(tasks)[model.graph_.edges].min(axis=1)
    for i, j in model.graph_.edges[np.argsort(rows, kind="stable")[:3]]:
        np.testing.assert_allclose(seen(explain_edge(model, i, j)), refits(model, i, j), rtol=1e-6)


def test_tasks_near_an_edge_are_enough_where_rows_are(monkeypatch):
    """Exact without a solve of all tasks."""
    monkeypatch.setattr("ggmtl.solve.components._OPERATIONS", 0)
    X, y, tasks, pairs = few_rows(1, 600, 6, 8, 30, 0.3)
    model = GGMTLRegressor(candidates=pairs).fit(X, y, tasks=tasks)
    for i, j in model.graph_.edges[:40:20]:
        np.testing.assert_allclose(seen(explain_edge(model, i, j)), refits(model, i, j), rtol=1e-6)
    assert not effects_of(model)._parts


def test_data_without_noise_are_fitted_and_explained():
    rng = np.random.default_rng(0)
    tasks = np.repeat(np.arange(1500), 8)
    X = rng.normal(size=(len(tasks), 3))
    model = GGMTLRegressor().fit(X, X.sum(axis=1), tasks=tasks)
    np.testing.assert_allclose(model.coef_, 1.0, atol=1e-6)


def test_the_errors_of_a_pair_do_not_depend_on_the_size_of_weights():
    data = make_clusters(2, n_tasks=6, n_features=2, random_state=0)
    found = []
    for weight in (1.0, 1.0 / 384):
        model = GGMTLRegressor(candidates=np.array([[0, 2], [1, 3]]))
        model.fit(data.X, data.y, tasks=data.tasks, sample_weight=np.full(len(data), weight))
        found.append(explain_edge(model, 0, 2))
    for small in found:
        squares = (small.error**2, small.total_error**2)
        assert 0.1 < squares[0] / squares[1] < 10.0


def test_an_interruption_after_the_fit_does_not_undo_it(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("ggmtl.estimators.fitted.survey_of", interrupted)
    data = make_clusters(2, n_tasks=6, n_features=2, random_state=0)
    with pytest.warns(UserWarning, match="when the fit was done"):
        model = GGMTLRegressor().fit(data.X, data.y, tasks=data.tasks)
    assert model._survey is None
    assert model.status_ in ("converged", "flat")


def test_the_fit_leaves_what_explanations_ask_for_and_new_rows_undo_it(tmp_path):
    data = make_clusters(2, n_tasks=6, n_features=2, random_state=0)
    model = GGMTLRegressor().fit(data.X, data.y, tasks=data.tasks)
    kept = model._survey
    assert kept is not None
    assert model._surveyed()[0] is kept
    expected = explain_edge(model, 0, 2)
    model.save(tmp_path / "model.ggmtl", keep_statistics=True)
    found = explain_edge(load_model(tmp_path / "model.ggmtl"), 0, 2)
    assert found.error_without == pytest.approx(expected.error_without, rel=1e-9)
    assert found.features[0].standard_error == pytest.approx(expected.features[0].standard_error, rel=1e-9)
    copied = pickle.loads(pickle.dumps(model))
    assert copied._survey is None
    assert explain_edge(copied, 0, 2) == expected
    model.partial_fit(data.X[:9], data.y[:9], tasks=data.tasks[:9])
    assert model._survey is not kept
    refitted = GGMTLRegressor(candidates=np.empty((0, 2))).fit(data.X, data.y, tasks=data.tasks)
    assert explain_edge(model, 0, 2).error != expected.error
    assert explain_edge(refitted, 0, 2).error == explain_edge(refitted, 0, 2).error_without


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


def test_standard_errors_follow_the_noise_of_the_two_tasks():
    """Quiet tasks among noisy ones, their rows not weighed by it: as the models' own standard errors say."""
    random = np.random.default_rng(0)
    tasks = np.repeat(np.arange(12), 40)
    X, own = random.normal(size=(len(tasks), 2)), random.normal(size=(12, 2))
    noise = np.where(np.arange(12) < 4, 0.2, 2.0)
    y = (X * own[tasks]).sum(axis=1) + noise[tasks] * random.normal(size=len(tasks))
    model = GGMTLRegressor(criterion="validation", candidates=[(10, 11)], max_iter=3).fit(X, y, tasks=tasks)
    assert model._fit_used.precisions is None
    assert model._noise_ratios() is not None
    table = model.coefficients()
    for pair in [(0, 1), (2, 3), (4, 5), (0, 5)]:
        # Slopes are hardly drawn to the common model, so the two are next to independent.
        variance = sum(table["standard_error"][table["task"] == task].to_numpy()[:2] ** 2 for task in pair)
        found = [item.standard_error for item in explain_edge(model, *pair).features[:2]]
        np.testing.assert_allclose(found, np.sqrt(variance), rtol=0.1)
