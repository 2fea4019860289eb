"""Finding relations: single shared coefficients, and the probabilities of edges, against enumeration."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from scipy.special import gammaln
from scipy.stats import multivariate_normal

from ggmtl import GGMTLRegressor, load_model
from ggmtl.bilevel.level import Settings
from ggmtl.datasets import make_star
from ggmtl.evidence.hub import hub_evidence
from ggmtl.evidence.hub_strengths import learn_hub
from ggmtl.evidence.search_l1 import learn_by_coordinates, probability_of_sharing
from ggmtl.evidence.shared_coefficients import (
    HubPosterior,
    coefficient_origins,
    hub_posterior,
    marginal_evidence,
    shared_coefficients,
)
from ggmtl.evidence.spanning_trees import LinkProbabilities, Messages, link_probabilities, task_messages
from ggmtl.fit.levels import candidate_models, hub_level
from ggmtl.graph.candidates import KNN, Candidates, Complete
from ggmtl.inspection import shared_features
from ggmtl.statistics.least_squares import LeastSquares
from made import losses

CONCENTRATIONS = (100.0, 1.0, 0.1)


def star(seed: int, n_tasks: int = 9, width: int = 16) -> np.ndarray:
    """Task 0 takes two coefficients of each of the others, which are unrelated."""
    models = np.random.default_rng(seed).normal(1.0, 1.0, (n_tasks, width))
    models[0] = models[1 + np.arange(width) * (n_tasks - 1) // width, np.arange(width)]
    return models


def posterior_under_hub(loss: LeastSquares) -> HubPosterior:
    found = learn_hub(loss)
    return hub_posterior(loss, found.hub, found.evidence)


def settings_for(loss: LeastSquares, rule: Candidates | None = None) -> Settings:
    return Settings("l1", rule or KNN(), None, True, np.ones(loss.n_features, dtype=bool))


def learn(loss: LeastSquares, rule: Candidates | None = None):
    settings = settings_for(loss, rule)
    hub = hub_level(loss, settings)
    candidates = settings.candidates.propose(candidate_models(loss, settings, hub), np.arange(loss.n_tasks))
    (fit,) = learn_by_coordinates(loss, settings, lambda *_: candidates, hub)
    return fit


def reported(fit) -> set[tuple[int, int]]:
    return {tuple(edge) for edge in fit.edges[fit.reported_weights > 0].tolist()}


# ---------------------------------------------------------------------- shared coefficients


def urn(counts, weights) -> float:
    """ln probability of an ordered sequence with these counts under a Dirichlet prior."""
    counts, weights = np.asarray(counts, dtype=float), np.asarray(weights, dtype=float)
    total = gammaln(weights.sum()) - gammaln(weights.sum() + counts.sum())
    return float(total + (gammaln(weights + counts) - gammaln(weights)).sum())


def enumerated(posterior: HubPosterior, task: int, sources: np.ndarray) -> tuple[float, np.ndarray]:
    """ln evidence and probabilities of copies, from all origins of all coefficients and dense Gaussian integrals."""
    p, prior = len(posterior.prior_mean), np.diag(posterior.prior_variance)
    # The task's own rows, without the hub: precision and mean of its likelihood.
    precision = np.linalg.inv(posterior.covariance[task]) - np.linalg.inv(prior)
    noise = np.linalg.inv(precision)
    right = np.linalg.solve(posterior.covariance[task], posterior.mean[task])
    own = noise @ (right - np.linalg.solve(prior, posterior.prior_mean))
    fresh = multivariate_normal.logpdf(own, posterior.prior_mean, prior + noise)
    logs, copies, n_kinds = [], [], 3 if len(sources) else 2
    for origin in product(range(-2, len(sources)), repeat=p):
        location, spread = posterior.prior_mean.copy(), posterior.prior_variance.copy()
        for k, z in enumerate(origin):
            if z == -2:
                location[k], spread[k] = 0.0, 1e-6 * posterior.prior_variance[k]
            elif z >= 0:
                location[k], spread[k] = posterior.mean[sources[z], k], posterior.variance[sources[z], k]
        z = np.array(origin)
        kinds = [(z == -1).sum(), (z == -2).sum(), (z >= 0).sum()][:n_kinds]
        taken = [(z == j).sum() for j in range(len(sources))]
        chosen = [urn(taken, np.full(len(sources), c)) if len(sources) else 0.0 for c in CONCENTRATIONS]
        density = multivariate_normal.logpdf(own, location, np.diag(spread) + noise) - fresh
        logs.append(density + urn(kinds, np.ones(n_kinds)) + np.log(np.mean(np.exp(chosen))))
        copies.append([[float(z[k] == j) for k in range(p)] for j in range(len(sources))])
    weights = np.exp(np.array(logs) - max(logs))
    evidence = max(logs) + np.log(weights.sum())
    return float(evidence), np.einsum("z,zjk->jk", weights / weights.sum(), np.array(copies)) if len(sources) else None


def small_posterior() -> HubPosterior:
    random = np.random.default_rng(3)
    models = random.normal(1.0, 1.0, (3, 3))
    models[0, :2] = models[1, :2]
    return posterior_under_hub(losses(models, 25, seed=1))


def test_particles_agree_with_the_sum_over_all_origins():
    posterior, sources = small_posterior(), np.array([1, 2])
    found = coefficient_origins(posterior, 0, sources)
    evidence, copied = enumerated(posterior, 0, sources)
    without, _ = enumerated(posterior, 0, sources[:0])
    assert found.gain == pytest.approx(evidence - without, abs=0.1)
    np.testing.assert_allclose(found.copied, copied, atol=0.08)


def test_one_coefficient_needs_no_particles():
    posterior = small_posterior().columns(np.array([True, False, False]))
    found = coefficient_origins(posterior, 0, np.array([1]))
    evidence, _ = enumerated(posterior, 0, np.array([1]))
    without, _ = enumerated(posterior, 0, np.array([], dtype=int))
    assert found.gain == pytest.approx(evidence - without, abs=1e-8)


def test_a_source_that_says_nothing_leaves_the_evidence_as_it_was():
    posterior = small_posterior()
    wide = posterior.covariance.copy()
    wide[1] = np.diag(posterior.prior_variance)
    mean = posterior.mean.copy()
    mean[1] = posterior.prior_mean
    unknown = HubPosterior(mean, wide, posterior.prior_mean, posterior.prior_variance)
    assert abs(coefficient_origins(unknown, 0, np.array([1])).gain) < 0.7
    assert marginal_evidence(unknown, 1, np.array([], dtype=int)) == -np.inf


@pytest.mark.parametrize("seed", range(3))
def test_the_centre_of_a_star_is_found_by_what_it_shares(seed):
    found = shared_coefficients(posterior_under_hub(losses(star(seed), 300, seed)))
    assert found.score > 0
    centre = found.edges[:, 0] == 0
    assert centre.sum() == 8
    j, k = found.edges[centre, 1] - 1, np.arange(16) // 2
    owner = k[None, :] == j[:, None]
    assert found.shared[centre][owner].mean() > 5 * found.shared[centre][~owner].mean()
    assert found.probability[centre].mean() > 0.8


def test_independent_tasks_share_nothing():
    found = [
        shared_coefficients(
            posterior_under_hub(losses(np.random.default_rng(seed).normal(1.0, 1.0, (9, 16)), 150, seed))
        )
        for seed in range(5)
    ]
    assert sum(len(shared.edges) > 0 for shared in found) <= 1


def test_coefficients_that_are_zero_are_no_relation():
    for seed in range(3):
        random = np.random.default_rng(seed)
        models = random.standard_normal((9, 16)) * (random.uniform(size=(9, 16)) < 0.3)
        assert not len(shared_coefficients(posterior_under_hub(losses(models, 150, seed))).edges)


def test_only_allowed_pairs_share():
    allowed = np.zeros((9, 9), dtype=bool)
    allowed[0, 1:5] = allowed[1:5, 0] = True
    found = shared_coefficients(posterior_under_hub(losses(star(0), 600)), allowed)
    assert {tuple(edge) for edge in found.edges.tolist()} <= {(0, j) for j in range(1, 5)}


def test_nothing_is_sought_where_another_graph_promises_more():
    posterior = posterior_under_hub(losses(star(0), 300))
    assert shared_coefficients(posterior).score > 0
    assert shared_coefficients(posterior, rival=1e3).score == -np.inf


# ---------------------------------------------------------------------- graphs of the l1 penalty


def test_l1_reports_the_star_and_its_models_are_those_of_the_inner_problem():
    loss = losses(star(1), 300)
    fit = learn(loss)
    assert fit.supported
    assert reported(fit) <= {(0, j) for j in range(1, 9)}
    assert len(reported(fit)) >= 7
    settings = settings_for(loss)
    gradient = settings.problem(loss, fit.edges, fit.coupling, fit.hub).gradient(fit.coefficients, fit.edge_values)
    assert np.linalg.norm(gradient) < 1e-8 * np.linalg.norm(loss.moment)


def test_l1_reports_clusters_where_whole_models_are_near():
    random = np.random.default_rng(0)
    member = np.arange(12) % 3
    models = random.standard_normal((3, 6))[member] + 0.1 * random.standard_normal((12, 6))
    pairs = {(i, j) for i, j in combinations(range(12), 2) if member[i] == member[j]}
    assert reported(learn(losses(models, 40))) == pairs


def test_l1_keeps_to_what_must_and_may_be_linked():
    loss = losses(star(0), 300)
    assert (3, 5) in reported(learn(loss, Complete(must_link=[(3, 5)])))
    assert (0, 1) not in reported(learn(loss, Complete(forbid=[(0, 1)])))


def test_sharing_along_edges_is_estimated_per_coefficient():
    loss, settings = losses(star(1), 300), settings_for(losses(star(1), 300))
    chances = probability_of_sharing(loss, settings, hub_level(loss, settings).hub, np.array([[0, 1], [2, 3]]))
    assert chances.shape == (2, 16)
    assert chances[0, :2].min() > chances[0, 2:].mean()
    assert chances[1].mean() < 0.3


# ---------------------------------------------------------------------- probabilities of edges


def spanning_trees(n: int) -> list[tuple[tuple[int, int], ...]]:
    def joins(tree) -> bool:
        part = {0}
        for _ in tree:
            part |= {x for edge in tree for x in edge if set(edge) & part}
        return len(part) == n

    return [tree for tree in combinations(combinations(range(n), 2), n - 1) if joins(tree)]


def test_tree_averages_agree_with_the_sum_over_all_trees():
    random = np.random.default_rng(0)
    n, p, noise, hub = 4, 3, 0.5, 2.0
    location = np.cumsum(random.standard_normal((n, p)), axis=0)
    messages = Messages(random.uniform(2.0, 6.0, n), location, noise)
    edges = np.array(list(combinations(range(n), 2)))
    found = link_probabilities(messages, edges, 3.0, hub, np.ones(len(edges)), links=8000).between
    weight = np.append(messages.weight, 0.01 * messages.weight.mean())
    points = np.vstack([location - location.mean(axis=0), np.zeros(p)])
    logs, members = [], []
    for tree, c in product(spanning_trees(n + 1), 3.0 * 2.0 ** np.arange(-2.0, 4.5, 0.5)):
        matrix, volume = np.zeros((n + 1, n + 1)), 0.0
        for x, y in tree:
            b = np.eye(n + 1)[x] - np.eye(n + 1)[y]
            strength = hub if y == n else c
            matrix, volume = matrix + strength * np.outer(b, b), volume + np.log(strength)
        # Density of the points given the prior: the rest of the precision is that of the rows.
        system = matrix + np.diag(weight)
        right = weight[:, None] * points
        explained = (right * np.linalg.solve(system, right)).sum() / noise
        logs.append(0.5 * (p * (volume - np.linalg.slogdet(system)[1]) + explained))
        members.append([tuple(edge) in tree for edge in edges.tolist()])
    chances = np.exp(np.array(logs) - max(logs))
    np.testing.assert_allclose(found, chances / chances.sum() @ np.array(members, dtype=float), atol=0.04)


@pytest.mark.parametrize("seed", range(3))
def test_probability_of_the_likeliest_tree_follows_from_those_of_its_links(seed):
    """For p(T) ∝ Π λ, against all trees one by one."""
    n, weight = 5, np.exp(1.5 * np.random.default_rng(seed).standard_normal((6, 6)))
    trees = spanning_trees(n + 1)
    logs = np.array([sum(np.log(weight[x, y]) for x, y in tree) for tree in trees])
    chances = np.exp(logs - logs.max()) / np.exp(logs - logs.max()).sum()
    of_link = {link: sum(p for p, tree in zip(chances, trees) if link in tree) for link in combinations(range(6), 2)}
    edges = np.array(list(combinations(range(n), 2)))
    between, to_hub = [of_link[x, y] for x, y in edges.tolist()], [of_link[x, n] for x in range(n)]
    tree, multiplicity = LinkProbabilities(edges, np.array(between), np.array(to_hub)).likeliest_tree()
    best = trees[int(chances.argmax())]
    assert {tuple(edge) for edge in edges[tree].tolist()} == {link for link in best if n not in link}
    assert multiplicity == pytest.approx(-np.log(chances.max()), abs=0.02)


def test_messages_of_round_losses_are_their_least_squares():
    random = np.random.default_rng(1)
    solution, size = random.standard_normal((5, 3)), random.uniform(10.0, 50.0, 5)
    gram = size[:, None, None] * np.eye(3)
    loss = LeastSquares(gram, size[:, None] * solution, size * (solution**2).sum(axis=1) + 1.0, size)
    messages = task_messages(loss, random.standard_normal((5, 3)), 7.0, 1.0)
    np.testing.assert_allclose(messages.weight, size)
    np.testing.assert_allclose(messages.location, solution)


def test_tasks_on_a_line_are_linked_to_their_neighbours():
    random = np.random.default_rng(2)
    location = np.cumsum(random.standard_normal((8, 20)), axis=0) + 0.2 * random.standard_normal((8, 20))
    edges = np.array(list(combinations(range(8), 2)))
    found = link_probabilities(Messages(np.full(8, 25.0), location, 1.0), edges, 1.0, 0.1, np.zeros(len(edges)))
    chances = found.between
    near = edges[:, 1] - edges[:, 0] == 1
    assert chances[near].min() > 0.9
    assert chances[~near].max() < 0.1


def test_common_model_of_the_posterior_is_that_of_the_hub():
    loss = losses(star(0), 60)
    hub = np.full(16, 5.0)
    evidence = hub_evidence(loss, hub)
    posterior = hub_posterior(loss, hub, evidence)
    expected = np.linalg.inv(loss.gram[2] + np.diag(hub)) * evidence.noise
    np.testing.assert_allclose(posterior.covariance[2], expected, rtol=1e-6, atol=1e-10)
    right = loss.moment[2] + hub * evidence.common
    np.testing.assert_allclose(expected @ right / evidence.noise, posterior.mean[2], rtol=1e-6)


def test_shared_features_names_what_the_centre_of_a_star_copied(tmp_path):
    data = make_star(n_samples=160, random_state=0)
    model = GGMTLRegressor(penalty="l1").fit(data.X, data.y, tasks=data.tasks)
    table = shared_features(model)
    columns = {name: np.asarray(table[name]) for name in ("task", "other", "feature", "probability")}
    assert len(columns["task"]) == model.graph_.n_edges * model.n_features_in_
    likely = columns["probability"] > 0.5
    place = np.array([int(name.removeprefix("x")) for name in columns["feature"][likely]])
    gap = np.abs(data.coefficients[columns["task"][likely], place] - data.coefficients[columns["other"][likely], place])
    assert likely.any()
    assert (gap < 0.3).mean() > 0.7
    model.save(tmp_path / "model.ggmtl", keep_statistics=True)
    again = shared_features(load_model(tmp_path / "model.ggmtl"))
    np.testing.assert_allclose(again["probability"], columns["probability"], atol=1e-3)
