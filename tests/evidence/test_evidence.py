"""Evidence: REML of the hub, exact derivatives, monotone steps, samples, graphs found and not found."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

from ggmtl.errors import ParameterError
from ggmtl.evidence.clusters import ClusterChoice, cluster_evidence
from ggmtl.evidence.dense import EvidenceModel, edge_evidence
from ggmtl.evidence.edge_steps import _step, learn_edges, spread_over_edges
from ggmtl.evidence.hub import hub_evidence
from ggmtl.evidence.hub_strengths import learn_hub, learn_hub_by_feature
from ggmtl.evidence.sampled_edges import Neighbours, learn_neighbours, solves_for
from ggmtl.evidence.sampling import sampled_prior_terms
from ggmtl.evidence.selection import choose_clusters, expected_distances, largest_expected_f1, search_trees
from ggmtl.statistics.least_squares import LeastSquares
from made import sums_of


def losses(models: np.ndarray, counts, seed: int = 0, noise: float = 1.0) -> LeastSquares:
    random = np.random.default_rng(seed)
    gram, moment, square = [], [], []
    for model, count in zip(models, np.broadcast_to(counts, len(models))):
        X = random.standard_normal((count, len(model)))
        y = X @ model + noise * random.standard_normal(count)
        gram.append(X.T @ X)
        moment.append(X.T @ y)
        square.append(y @ y)
    counts = np.broadcast_to(counts, len(models)).astype(float)
    return LeastSquares(np.array(gram), np.array(moment), np.array(square), counts)


def all_pairs(n: int) -> np.ndarray:
    return np.stack(np.triu_indices(n, 1), axis=1)


def direct_evidence(loss: LeastSquares, edges, values, coupling, hub, ridge: float) -> float:
    """f from its definition: Kronecker products, determinants from eigenvalues, Q by a solve."""
    n, p = loss.moment.shape
    incidence = np.zeros((len(edges), n))
    incidence[np.arange(len(edges)), edges[:, 0]], incidence[np.arange(len(edges)), edges[:, 1]] = 1, -1
    graph = incidence.T @ np.diag(values) @ incidence
    centring = np.eye(n) - np.ones((n, n)) / n
    A = np.kron(graph, np.diag(coupling)) + np.kron(centring, np.diag(hub)) + ridge * np.eye(n * p)
    for i in range(n):
        A[i * p : (i + 1) * p, i * p : (i + 1) * p] += loss.gram[i]
    right = loss.moment.ravel()
    Q = loss.target_square.sum() - right @ np.linalg.solve(A, right)
    log_prior = sum(np.log(np.linalg.eigvalsh(c * graph + h * centring)[1:]).sum() for c, h in zip(coupling, hub))
    return 0.5 * ((loss.count.sum() - p) * np.log(Q) + np.linalg.slogdet(A)[1] - log_prior)


@pytest.fixture
def small():
    random = np.random.default_rng(3)
    loss = losses(random.standard_normal((6, 3)), [12, 9, 2, 1, 0, 7], seed=4)
    edges = all_pairs(6)
    model = EvidenceModel(loss, edges, np.array([1.0, 2.0, 0.3]), np.array([0.5, 3.0, 0.5]), ridge=1e-6)
    return model, random.random(len(edges))


def central_differences(function, point: np.ndarray, step: float = 1e-5) -> np.ndarray:
    shifts = step * np.eye(len(point))
    return np.array([(function(point + s) - function(point - s)) / (2 * step) for s in shifts])


# ---------------------------------------------------------------------- hub


@pytest.mark.parametrize("counts", [[12, 9, 5], [4, 1, 0], [2, 2, 2, 2, 2]])
def test_hub_evidence_equals_determinants_and_its_gradient_central_differences(counts):
    random = np.random.default_rng(0)
    loss = losses(random.standard_normal((len(counts), 3)), counts)
    hub = np.array([0.3, 2.0, 40.0])
    found = hub_evidence(loss, hub, ridge=1e-6)
    direct = direct_evidence(loss, all_pairs(len(counts))[:1], np.zeros(1), np.ones(3), hub, 1e-6)
    assert found.value == pytest.approx(direct, rel=1e-9)
    numeric = central_differences(lambda h: hub_evidence(loss, h, ridge=1e-6).value, hub)
    np.testing.assert_allclose(found.gradient, numeric, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("noise", [None, 0.7])
def test_observed_curvature_is_that_of_central_differences_where_the_common_model_is_known(noise):
    random = np.random.default_rng(0)
    loss = replace(losses(random.standard_normal((7, 3)), [12, 9, 5, 1, 0, 4, 4]), noise=noise)
    hub, known = np.array([0.3, 2.0, 40.0]), np.full(3, 1e9)

    def slopes(logs):
        return hub_evidence(loss, np.exp(logs), 1e-6, known).gradient * np.exp(logs)

    numeric = central_differences(slopes, np.log(hub))
    np.testing.assert_allclose(hub_evidence(loss, hub, 1e-6, known).observed, numeric, rtol=1e-5, atol=1e-6)


def test_expected_curvature_is_the_mean_of_the_observed_one():
    random, hub = np.random.default_rng(0), np.array([0.5, 4.0])
    X = random.standard_normal((40, 6, 2))
    found = []
    for _ in range(300):
        models = random.standard_normal((40, 2)) / np.sqrt(hub)
        y = np.einsum("nrp,np->nr", X, models) + random.standard_normal((40, 6))
        sums = np.einsum("nra,nrb->nab", X, X), np.einsum("nra,nr->na", X, y), (y**2).sum(axis=1), np.full(40, 6.0)
        found.append(hub_evidence(LeastSquares(*sums), hub))
    mean = np.mean([one.observed for one in found], axis=0)
    np.testing.assert_allclose(mean, found[0].expected, rtol=0.1, atol=0.15)


def test_hub_evidence_is_safe_at_extreme_strengths():
    loss = losses(np.random.default_rng(0).standard_normal((5, 3)), [20, 10, 1, 0, 3])
    for hub in ([1e-8, 1e8, 1.0], [1e8] * 3, [1e-8] * 3):
        found = hub_evidence(loss, np.array(hub))
        assert np.isfinite(found.value)
        assert np.isfinite(found.gradient).all()


def test_learned_hub_is_the_reml_of_a_random_intercept_model():
    smf = pytest.importorskip("statsmodels.regression.mixed_linear_model")
    random = np.random.default_rng(1)
    groups = np.repeat(np.arange(15), random.integers(3, 9, 15))
    y = 2.0 + 1.5 * random.standard_normal(15)[groups] + random.standard_normal(len(groups))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference = smf.MixedLM(y, np.ones((len(y), 1)), groups).fit(reml=True)
    counts = np.bincount(groups).astype(float)
    sums = np.bincount(groups, y)
    loss = LeastSquares(counts[:, None, None], sums[:, None], np.bincount(groups, y**2), counts)
    learned = learn_hub(loss)
    assert learned.converged
    # precision of the random intercept in units of the noise, and the noise itself
    assert learned.hub[0] == pytest.approx(reference.scale / reference.cov_re[0, 0], rel=1e-3)
    assert learned.evidence.noise == pytest.approx(reference.scale, rel=1e-3)
    assert learned.evidence.common[0] == pytest.approx(reference.fe_params[0], rel=1e-4)


def test_learned_hub_is_stationary_and_finds_the_spread_from_any_start():
    random = np.random.default_rng(2)
    loss = losses(random.standard_normal(4) + 0.1 * random.standard_normal((30, 4)), 60)
    found = [learn_hub(loss, start=np.full(4, start)).hub[0] for start in (1e-3, 6.0, 1e5)]
    np.testing.assert_allclose(found, found[0], rtol=0.02)
    assert found[0] == pytest.approx(100.0, rel=0.4)  # noise 1 over spread 0.1²


def test_shrinkage_draws_strengths_of_many_groups_together():
    random = np.random.default_rng(5)
    loss = losses(random.standard_normal((8, 4)), 10)
    free, tied = (learn_hub(loss, np.arange(4), shrinkage=s).hub for s in (0.0, 1e4))
    shared = learn_hub(loss).hub
    assert np.ptp(np.log(tied)) < 0.01 < np.ptp(np.log(free))
    np.testing.assert_allclose(tied, shared, rtol=0.02)


# ---------------------------------------------------------------------- edges


def test_edge_evidence_equals_determinants(small):
    model, values = small
    direct = direct_evidence(model.loss, model.edges, values, model.coupling, model.hub, model.ridge)
    assert edge_evidence(model, values).value == pytest.approx(direct, rel=1e-9)


def test_edge_evidence_without_edges_is_that_of_the_hub(small):
    model, values = small
    alone, hub = edge_evidence(model, 0 * values), hub_evidence(model.loss, model.hub, model.ridge)
    assert alone.value == pytest.approx(hub.value, rel=1e-10)
    np.testing.assert_allclose(alone.hub_gradient, hub.gradient, rtol=1e-6)
    np.testing.assert_allclose(alone.coefficients, hub.coefficients, atol=1e-8)


def test_equal_edges_over_all_pairs_are_a_hub(small):
    model, values = small
    n = model.loss.n_tasks
    edges = edge_evidence(replace(model, coupling=np.ones(3)), np.full(len(values), 1.0 / n))
    assert edges.value == pytest.approx(hub_evidence(model.loss, model.hub + 1.0, model.ridge).value, rel=1e-10)


def test_gradients_match_central_differences(small):
    model, values = small
    found = edge_evidence(model, values)
    by_edge = central_differences(lambda e: edge_evidence(model, e).value, values)
    by_hub = central_differences(lambda h: edge_evidence(replace(model, hub=h), values).value, model.hub)
    np.testing.assert_allclose(found.edge_gradient, by_edge, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found.hub_gradient, by_hub, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("member", [[0, 0, 1, 1, 0, 2], [0, 0, 0, 0, 0, 0], [0, 1, 2, 3, 3, 4]])
def test_cluster_evidence_is_that_of_its_cliques(small, member):
    model, _ = small
    found = cluster_evidence(model.loss, np.array(member), 2.5, model.hub, model.coupling, model.ridge)
    edges, values = ClusterChoice(np.array(member), 2.5, model.hub, 0.0, 0.0, found.coefficients, found.noise).edges()
    dense = edge_evidence(replace(model, edges=edges), values)
    assert found.value == pytest.approx(dense.value, rel=1e-10)
    np.testing.assert_allclose(found.coefficients, dense.coefficients, atol=1e-8)
    assert found.strength_gradient == pytest.approx(dense.edge_gradient @ values / 2.5, rel=1e-6)
    np.testing.assert_allclose(found.hub_gradient, dense.hub_gradient, rtol=1e-6)


def test_derivatives_of_cluster_evidence_match_central_differences(small):
    model, _ = small
    member = np.array([0, 0, 1, 1, 0, 2])

    def value(point):
        return cluster_evidence(model.loss, member, point[0], point[1:], model.coupling, model.ridge).value

    point = np.append(1.7, model.hub)
    found = cluster_evidence(model.loss, member, 1.7, model.hub, model.coupling, model.ridge)
    np.testing.assert_allclose(
        np.append(found.strength_gradient, found.hub_gradient), central_differences(value, point), rtol=1e-5, atol=1e-7
    )


def test_evidence_needs_a_hub(small):
    model, _ = small
    with pytest.raises(ParameterError, match="must be positive"):
        replace(model, hub=np.zeros(3))


# ---------------------------------------------------------------------- learning


def test_plain_steps_never_raise_the_negative_log_evidence(small):
    model, values = small
    label = np.array([0, 0, 1])
    last = np.inf
    for _ in range(40):
        evidence = edge_evidence(model, values)
        assert evidence.value <= last + 1e-9
        last = evidence.value
        model, values = _step(model, values, evidence, label, 1.0)


def test_learning_gains_at_every_step_and_ends_stationary():
    random = np.random.default_rng(0)
    loss = losses(np.repeat(random.standard_normal((2, 4)), 4, axis=0), 15)
    edges, hub = all_pairs(8), learn_hub(loss).hub
    learned = learn_edges(loss, edges, hub, max_iter=400, tol=1e-4)
    assert learned.converged
    assert (np.diff(learned.history) >= -1e-9).all()
    pull = learned.evidence.edge_gradient * learned.edge_values
    assert np.abs(pull).max() < 0.02
    assert ((learned.leverage >= 0) & (learned.leverage <= 1)).all()


def test_leverages_sum_to_less_than_a_spanning_tree(small):
    model, _ = small
    learned = learn_edges(model.loss, model.edges, model.hub, max_iter=20)
    assert learned.leverage.sum() < model.loss.n_tasks - 1


def test_relabelling_tasks_changes_nothing():
    random = np.random.default_rng(1)
    loss = losses(random.standard_normal((7, 3)), 12)
    order = random.permutation(7)
    moved = LeastSquares(loss.gram[order], loss.moment[order], loss.target_square[order], loss.count[order])
    hub = learn_hub(loss).hub
    matrices = []
    for data in (loss, moved):
        learned, matrix = learn_edges(data, all_pairs(7), hub, max_iter=30), np.zeros((7, 7))
        matrix[tuple(all_pairs(7).T)] = learned.edge_values
        matrices.append(matrix + matrix.T)
    np.testing.assert_allclose(matrices[1], matrices[0][np.ix_(order, order)], rtol=1e-6, atol=1e-9)


# ---------------------------------------------------------------------- samples


def neighbours(model: EvidenceModel, values: np.ndarray) -> Neighbours:
    m, shape = len(values), model.loss.moment.shape
    return Neighbours(model.edges, values, np.zeros(m, dtype=bool), model.hub, np.zeros(m), np.zeros(shape))


def test_sampled_expectations_agree_with_exact_ones_within_their_errors(small):
    model, values = replace(small[0], coupling=np.ones(3), ridge=1e-10), small[1]
    exact = edge_evidence(model, values)
    rounds = [
        solves_for(model.loss).moments(neighbours(model, values), np.random.default_rng(seed)) for seed in range(400)
    ]
    found = np.array([moments.posterior for moments in rounds])
    error = found.std(axis=0, ddof=1) / np.sqrt(len(rounds))
    assert (np.abs(found.mean(axis=0) - exact.expectations.edge_posterior) / error).max() < 4.5
    spread = np.mean([moments.hub_posterior for moments in rounds], axis=0)
    np.testing.assert_allclose(spread, exact.expectations.hub_posterior, rtol=0.1)
    np.testing.assert_allclose(rounds[0].prior, exact.expectations.edge_prior, rtol=1e-9)
    np.testing.assert_allclose(solves_for(model.loss).models(neighbours(model, values)), exact.coefficients, atol=1e-5)


def test_sampled_resistances_agree_with_exact_ones(small):
    model, values = small
    resistance, trace = sampled_prior_terms(model, values, 20000, np.random.default_rng(0))
    exact = edge_evidence(model, values).expectations
    np.testing.assert_allclose(resistance, exact.edge_prior, rtol=0.06)
    np.testing.assert_allclose(trace, exact.hub_prior, rtol=0.06)


def test_learning_from_samples_finds_the_edges_that_exact_learning_finds():
    random = np.random.default_rng(0)
    loss = losses(np.repeat(random.standard_normal((3, 10)), 2, axis=0), 20)
    edges, hub, groups = all_pairs(6), learn_hub(loss).hub, np.zeros(10, dtype=int)
    exact = learn_edges(loss, edges, hub, max_iter=30)
    values, beside = spread_over_edges(hub, groups, len(edges), 6)
    start = neighbours(EvidenceModel(loss, edges, np.ones(10), beside), values)
    sampled = learn_neighbours(loss, start, groups, rounds=10)
    heaviest = [set(np.argsort(-result.leverage)[:3]) for result in (exact, sampled)]
    assert heaviest[0] == heaviest[1]


# ---------------------------------------------------------------------- which graph


def choose(loss: LeastSquares, **options):
    """Clusters, and edges that trees have in common."""
    edges, hub = all_pairs(loss.n_tasks), learn_hub(loss)
    learned = learn_edges(loss, edges, hub.hub)
    model, fixed = EvidenceModel(loss, edges, learned.coupling, hub.hub), np.zeros(len(edges), dtype=bool)
    clusters = choose_clusters(model, expected_distances(model, learned.evidence), fixed=fixed)
    trees = search_trees(model, learned, **options)
    assert clusters is not None
    assert trees is not None
    return clusters, trees


def test_well_separated_clusters_are_found():
    random = np.random.default_rng(0)
    member = np.arange(12) % 3
    loss = losses(random.standard_normal((3, 8))[member] + 0.1 * random.standard_normal((12, 8)), 40)
    (choice, trees), edges = choose(loss), all_pairs(12)
    assert choice.supported
    assert choice.score > trees.score
    np.testing.assert_array_equal(choice.edges, edges[member[edges[:, 0]] == member[edges[:, 1]]])


@pytest.mark.parametrize("seed", [0, 2])
def test_two_kinds_of_tasks_are_clusters_even_where_edges_explain_more(seed):
    """Tasks in two kinds, with deviations of their own: edges fit more of these, and say less."""
    random = np.random.default_rng(seed)
    member, kinds = np.arange(16) % 2, np.zeros((2, 5))
    kinds[:, :2] = [[-1.0, 1.0], [1.0, -1.0]]
    scale = np.array([0.2, 0.2, 0.5, 0.5, 0.5])
    loss, edges = losses(kinds[member] + scale * random.standard_normal((16, 5)), 15), all_pairs(16)
    choice, trees = choose(loss)
    assert choice.score > max(trees.score, 0.0)
    inside = member[edges[:, 0]] == member[edges[:, 1]]
    found = np.isin(edges @ [16, 1], choice.edges[choice.selected] @ [16, 1])
    assert 2 * (found & inside).sum() / (found.sum() + inside.sum()) > 0.8


def test_a_line_is_found():
    random = np.random.default_rng(0)
    loss = losses(np.cumsum(0.3 * random.standard_normal((12, 15)), axis=0), 150)
    clusters, choice = choose(loss)
    assert choice.supported
    assert choice.score > clusters.score
    line = choice.edges[:, 1] - choice.edges[:, 0] == 1
    assert choice.selected[line].all()
    # Which of three tasks at an end is the middle one may be an open question: then both answers are shown.
    assert choice.selected[~line].sum() <= 1


@pytest.mark.parametrize("spread", [0.0, 0.1, 1.0])
def test_tasks_alike_only_through_the_hub_get_no_edges(spread):
    random = np.random.default_rng(1)
    loss = losses(random.standard_normal(6) + spread * random.standard_normal((12, 6)), 30)
    assert not any(choice.supported for choice in choose(loss))


def test_edges_that_must_be_there_are_selected_even_between_strangers():
    random = np.random.default_rng(1)
    loss = losses(random.standard_normal((12, 6)), 30)
    fixed = (all_pairs(12) == [2, 9]).all(axis=1)
    assert not choose(loss)[1].supported
    choice = choose(loss, fixed=fixed)[1]
    assert choice.selected[fixed].all()
    assert (choice.edge_values[fixed] > 0).all()


def test_clusters_keep_to_the_pairs_that_are_allowed():
    random = np.random.default_rng(0)
    member = np.arange(12) % 3
    loss = losses(random.standard_normal((3, 8))[member] + 0.1 * random.standard_normal((12, 8)), 40)
    edges, hub = all_pairs(12), learn_hub(loss).hub
    edges = edges[~(edges == [0, 3]).all(axis=1)]
    model, learned = EvidenceModel(loss, edges, np.ones(8), hub), learn_edges(loss, edges, hub)
    distances, fixed = expected_distances(model, learned.evidence), np.zeros(len(edges), dtype=bool)
    choice = choose_clusters(model, distances, fixed=fixed, any_pair=False)
    assert choice is not None
    assert not (choice.edges[choice.selected] == [0, 3]).all(axis=1).any()


def test_expected_f1_takes_all_equal_scores_and_no_hopeless_ones():
    np.testing.assert_array_equal(largest_expected_f1(np.full(5, 0.3)), True)
    np.testing.assert_array_equal(largest_expected_f1(np.array([1.0, 0.01, 1.0, 0.02])), [True, False, True, False])


def _mixed_tasks(spread: np.ndarray, n: int = 60, rows: int = 20, seed: int = 0) -> LeastSquares:
    """Tasks whose slopes deviate from a common model with the given standard deviations."""
    rng = np.random.default_rng(seed)
    slopes = 1.0 + spread * rng.normal(size=(n, len(spread)))
    X = rng.normal(size=(n, rows, len(spread)))
    y = np.einsum("nrd,nd->nr", X, slopes) + rng.normal(size=(n, rows))
    return sums_of(X, y)


def test_strengths_by_feature_stay_together_where_the_data_do_not_distinguish_them():
    learned = learn_hub_by_feature(_mixed_tasks(np.full(6, 0.5)), np.ones(6, dtype=bool))
    assert np.ptp(np.log(learned.hub)) < 0.7


def test_strengths_by_feature_differ_where_the_data_distinguish_them():
    learned = learn_hub_by_feature(_mixed_tasks(np.array([2.0, 0.05, 2.0, 0.05, 2.0, 0.05])), np.ones(6, dtype=bool))
    strengths = np.log(learned.hub)
    assert strengths[1::2].min() - strengths[::2].max() > 2.0


def test_the_hyper_prior_leaves_the_intercept_alone():
    loss = _mixed_tasks(np.array([0.3, 0.3, 0.3, 3.0]))
    slopes = np.array([True, True, True, False])
    learned = learn_hub(loss, np.arange(4), shrinkage=1e6, under_prior=slopes)
    assert np.ptp(np.log(learned.hub[:3])) < 1e-2
    assert abs(np.log(learned.hub[3] / learned.hub[0])) > 2.0
