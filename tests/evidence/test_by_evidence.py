"""Learning by evidence: what must be linked is, what may not be is not, clusters also among many tasks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ggmtl.bilevel.level import Settings
from ggmtl.evidence import scaled_problem as scaled
from ggmtl.evidence.dense import EvidenceModel
from ggmtl.evidence.sampled_edges import solves_for
from ggmtl.evidence.scaled_problem import ScaledProblem, near_in_memory
from ggmtl.evidence.search import densest, learn_by_evidence, with_accurate_models
from ggmtl.fit.levels import candidate_models, hub_level, learn_levels
from ggmtl.graph.candidates import KNN, Complete
from ggmtl.runtime.sizes import SIZES, Sizes
from ggmtl.statistics.least_squares import FoldedLoss, LeastSquares
from made import losses

SAMPLED = Sizes(exact_evidence=0, clusters=0)


def graphs_of(loss: LeastSquares, rule=None, sizes=SIZES):
    slopes = np.ones(loss.n_features, dtype=bool)
    settings = Settings("squared_l2", rule or KNN(), None, True, slopes, sizes=sizes)
    hub = hub_level(loss, settings)
    candidates = settings.candidates.propose(candidate_models(loss, settings, hub), np.arange(loss.n_tasks))
    return learn_by_evidence(loss, settings, lambda *_: candidates, hub)


def learn(loss: LeastSquares, rule=None, sizes=SIZES):
    return densest(graphs_of(loss, rule, sizes))


def reported(fit) -> set[tuple[int, int]]:
    return {tuple(edge) for edge in fit.edges[fit.reported_weights > 0].tolist()}


def clustered(n_tasks: int, n_clusters: int, n_features: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    member = np.arange(n_tasks) % n_clusters
    centres = random.standard_normal((n_clusters, n_features))
    return centres[member] + 0.1 * random.standard_normal((n_tasks, n_features)), member


def cliques(member: np.ndarray) -> set[tuple[int, int]]:
    i, j = np.triu_indices(len(member), 1)
    alike = member[i] == member[j]
    return set(zip(i[alike].tolist(), j[alike].tolist()))


@pytest.mark.parametrize("exact", [True, False])
def test_must_link_is_in_the_graph_and_reported(exact):
    loss = losses(np.random.default_rng(1).standard_normal((12, 6)), 30)
    fit = learn(loss, Complete(must_link=[(2, 9), (0, 5)]), sizes=SIZES if exact else SAMPLED)
    assert {(2, 9), (0, 5)} <= reported(fit)
    assert fit.supported
    assert (fit.edge_values[fit.reported_weights > 0] > 0).all()


def test_graphs_of_one_search_stand_in_one_place_however_evidence_is_computed():
    """So a fold whose evidence is sampled can be compared with all rows, whose evidence is exact."""
    loss = losses(np.random.default_rng(1).standard_normal((12, 6)), 30)
    ways = [graphs_of(loss, sizes=sizes) for sizes in (SIZES, SAMPLED, Sizes(exact_evidence=0))]
    assert len({tuple(fit.search for fit in graphs) for graphs in ways}) == 1


def test_every_reported_edge_takes_part_in_the_models():
    random = np.random.default_rng(0)
    loss = losses(np.cumsum(0.3 * random.standard_normal((12, 15)), axis=0), 30)
    fit = learn(loss)
    assert fit.supported
    assert len(reported(fit)) == len(fit.edges)
    assert (fit.edge_values > 0).all()


def test_forbidden_pairs_stay_out_of_clusters():
    models, member = clustered(12, 3, 8)
    assert reported(learn(losses(models, 40))) == cliques(member)
    assert (0, 3) not in reported(learn(losses(models, 40), Complete(forbid=[(0, 3)])))


def test_clusters_are_found_among_many_tasks_whatever_the_candidates():
    models, member = clustered(150, 10, 8)
    loss = losses(models, 40)
    assert loss.moment.size > SIZES.exact_evidence
    fit = next(fit for fit in graphs_of(loss, KNN(4)) if fit.search == "clusters")
    assert fit.supported
    assert reported(fit) == cliques(member)


def test_a_long_line_is_not_taken_for_clusters():
    random = np.random.default_rng(0)
    loss = losses(np.cumsum(0.3 * random.standard_normal((60, 10)), axis=0), 60)
    fit = learn(loss, KNN(6), sizes=Sizes(exact_evidence=200))
    found = reported(fit)
    true = {(k, k + 1) for k in range(59)}
    # Neither the cliques of clusters (F1 below 0.3) nor all neighbours (0.5).
    assert 2 * len(found & true) / (len(found) + len(true)) > 0.6


def test_models_of_the_sampled_graph_solve_its_system():
    loss = losses(np.random.default_rng(2).standard_normal((10, 4)), 15)
    fit = learn(loss, sizes=SAMPLED)
    gradient = np.einsum("nij,nj->ni", loss.gram, fit.coefficients) - loss.moment
    gradient += fit.hub * (fit.coefficients - fit.coefficients.mean(axis=0))
    for (i, j), value in zip(fit.edges, fit.edge_values):
        pull = value * fit.coupling * (fit.coefficients[i] - fit.coefficients[j])
        gradient[i] += pull
        gradient[j] -= pull
    assert np.abs(gradient).max() < 1e-5 * np.abs(loss.moment).max()


def smooth(n=400, d=6, seed=0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return np.sin(random.uniform(size=(n, 2)) @ random.normal(scale=3.0, size=(2, d)))


def test_neighbours_stand_near_one_another_in_memory():
    random = np.random.default_rng(0)
    places = random.uniform(size=(2000, 2))
    edges = KNN(k=6).propose(places, np.arange(2000)).edges
    order = near_in_memory(edges, 2000)
    assert sorted(order.tolist()) == list(range(2000))
    position = np.argsort(order)
    gap, before = (np.abs(np.diff(at[edges], axis=1)).mean() for at in (position, np.arange(2000)))
    assert gap < 0.2 * before


def test_an_order_of_the_tasks_changes_no_model():
    models = smooth()
    loss = losses(models, 9)
    settings = Settings("squared_l2", KNN(), None, True, np.arange(6) < 5)
    hub = hub_level(loss, settings)
    candidates = KNN(k=5).propose(models, np.arange(400))
    random = np.random.default_rng(1)
    plain = ScaledProblem.of(loss, settings, hub)
    mixed = ScaledProblem.of(loss, settings, hub, random.permutation(400))
    values = random.uniform(0.5, 2.0, len(candidates.edges))
    fits = []
    for problem in (plain, mixed):
        # The edges by name, so that each gets the value that is its own.
        state = problem.first_neighbours(candidates)
        names = np.arange(400) if problem.order is None else problem.order
        own = np.searchsorted(candidates.edges @ [400, 1], np.sort(names[state.edges], axis=1) @ [400, 1])
        state = replace(state, edge_values=values[own])
        found = solves_for(problem.loss).models(state)
        outcome = {"iterations": 1, "status": "converged", "certificate": 0.0, "history": ()}
        fits.append(problem.as_fit(state.edges, state.edge_values, state.hub, found, value=0.0, outcome=outcome,
                                   reported=state.edge_values))  # fmt: skip
    np.testing.assert_array_equal(fits[0].edges, fits[1].edges)
    np.testing.assert_allclose(fits[0].edge_values, fits[1].edge_values)
    np.testing.assert_allclose(fits[0].reported_weights, fits[1].reported_weights)
    np.testing.assert_allclose(fits[0].coefficients, fits[1].coefficients, atol=1e-4)
    # And back again.
    again = mixed.neighbours_of(fits[0])
    np.testing.assert_allclose(again.coefficients[np.argsort(mixed.order)], plain.neighbours_of(fits[0]).coefficients)


def test_a_fit_in_another_order_is_as_good():
    models = smooth()
    loss = losses(models, 9)
    settings = Settings("squared_l2", KNN(), None, True, np.ones(6, dtype=bool))
    hub = hub_level(loss, settings)
    errors = {}
    for numbers in (1 << 40, 0):
        ordered = replace(settings, sizes=replace(SAMPLED, ordered=numbers))
        graphs = learn_levels(FoldedLoss((loss,)), ordered, np.arange(400), "evidence", True)
        errors[numbers] = [np.linalg.norm(fit.coefficients - models) for fit in graphs.values()]
    np.testing.assert_allclose(errors[0], errors[1 << 40], rtol=0.05)
    assert errors[0][-2] < 0.95 * np.linalg.norm(hub.coefficients - models)


@pytest.mark.parametrize("shuffled", [False, True])
def test_the_chosen_level_of_very_many_tasks_gets_accurate_models(monkeypatch, shuffled):
    if not shuffled:
        monkeypatch.setattr(scaled, "order_of", lambda *_: None)
    loss = losses(smooth(), 9)
    sizes = replace(SAMPLED, ordered=0)
    settings = Settings("squared_l2", KNN(), None, True, np.arange(6) < 5, sizes=sizes)
    levels = learn_levels(FoldedLoss((loss,)), settings, np.arange(400), "evidence", True)
    rough = next(fit for fit in levels.values() if fit.search == "one")
    fine = with_accurate_models(rough, loss, sizes)
    model = EvidenceModel(loss, rough.edges, rough.coupling, rough.hub)
    exact = np.linalg.solve(model.system(rough.edge_values).dense(), loss.moment.ravel()).reshape(loss.moment.shape)
    gap, before = (np.linalg.norm(fit.coefficients - exact) / np.linalg.norm(exact) for fit in (fine, rough))
    assert gap < 1e-5
    assert gap < 0.1 * before
