"""Sampled evidence: determinants by Lanczos against dense and sparse ones, honest errors, exact special cases."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse
from scipy.sparse.linalg import splu

from ggmtl import GGMTLRegressor, load_model
from ggmtl.bilevel.level import GraphFit
from ggmtl.datasets import make_clusters
from ggmtl.errors import InputError, ParameterError
from ggmtl.evidence import hub as hub_module
from ggmtl.evidence import level_value
from ggmtl.evidence.clusters import cluster_description
from ggmtl.evidence.dense import EvidenceModel
from ggmtl.evidence.hub import hub_evidence
from ggmtl.evidence.level_value import graph_evidence, level_evidence, sampled_evidence
from ggmtl.evidence.selection import list_description
from ggmtl.inference.uncertainty import check_evidence
from ggmtl.runtime.sizes import SIZES, Sizes
from ggmtl.statistics.least_squares import LeastSquares

RIDGE = 1e-6


def some_losses(n: int, p: int, random: np.random.Generator, most: int = 12) -> LeastSquares:
    """Few rows of every task, none of some; models around a common one."""
    counts = random.integers(0, most, n)
    models = random.standard_normal(p) + 0.5 * random.standard_normal((n, p))
    gram, moment, square = np.zeros((n, p, p)), np.zeros((n, p)), np.zeros(n)
    for i, count in enumerate(counts):
        X = random.standard_normal((count, p))
        y = X @ models[i] + random.standard_normal(count)
        gram[i], moment[i], square[i] = X.T @ X, X.T @ y, y @ y
    return LeastSquares(gram, moment, square, counts.astype(float))


def some_edges(n: int, m: int, random: np.random.Generator) -> np.ndarray:
    pairs = np.stack(np.triu_indices(n, 1), axis=1)
    return pairs[np.sort(random.choice(len(pairs), m, replace=False))]


def dense_evidence(loss: LeastSquares, edges, values, coupling, hub, ridge: float = RIDGE) -> float:
    """f by its definition: Kronecker products and determinants."""
    n, p = loss.moment.shape
    incidence = np.zeros((len(edges), n))
    incidence[np.arange(len(edges)), edges[:, 0]], incidence[np.arange(len(edges)), edges[:, 1]] = 1, -1
    graph, centring = incidence.T @ np.diag(values) @ incidence, np.eye(n) - 1.0 / n
    A = np.kron(graph, np.diag(coupling)) + np.kron(centring, np.diag(hub)) + ridge * np.eye(n * p)
    for i in range(n):
        A[i * p : (i + 1) * p, i * p : (i + 1) * p] += loss.gram[i]
    right = loss.moment.ravel()
    Q = loss.target_square.sum() - right @ np.linalg.solve(A, right)
    # On the complement of 1, where P_k is positive definite: with 11ᵀ/n added, its determinant is that of P_k₊.
    log_prior = sum(np.linalg.slogdet(c * graph + h * centring + 1.0 / n)[1] for c, h in zip(coupling, hub))
    return 0.5 * ((loss.count.sum() - p) * np.log(Q) + np.linalg.slogdet(A)[1] - log_prior)


def exact_value(model: EvidenceModel, values: np.ndarray) -> float:
    return dense_evidence(model.loss, model.edges, values, model.coupling, model.hub)


@pytest.fixture
def problem():
    random = np.random.default_rng(5)
    loss, edges = some_losses(40, 4, random), some_edges(40, 100, random)
    model = EvidenceModel(loss, edges, np.array([1.0, 2.0, 0.3, 1.0]), np.array([0.5, 0.1, 0.5, 0.5]), RIDGE)
    return model, random.exponential(2.0, len(edges))


@pytest.fixture(params=["factor", "lanczos"])
def prior_by(request):
    """Sizes with which determinants of the prior come from a sparse factor, or from Lanczos whatever the size."""
    return Sizes(factor_speed=-1.0) if request.param == "lanczos" else SIZES


# ---------------------------------------------------------------------- value


@pytest.mark.parametrize(("n", "p", "m"), [(30, 5, 29), (45, 3, 200), (60, 4, 90)])
def test_value_is_that_of_dense_determinants(n, p, m, prior_by):
    random = np.random.default_rng(n)
    loss, edges = some_losses(n, p, random), some_edges(n, m, random)
    model = EvidenceModel(loss, edges, random.exponential(1.0, p), random.exponential(1.0, p), RIDGE, prior_by)
    values = random.exponential(3.0, m)
    exact = exact_value(model, values)
    few, many = sampled_evidence(model, values), sampled_evidence(model, values, n_probes=2000, seed=1)
    assert abs(few.value - exact) < 4 * few.standard_error
    assert abs(many.value - exact) < 4 * many.standard_error
    assert many.standard_error < 0.06
    assert few.per_probe.mean() == pytest.approx(few.value, rel=1e-12)


def test_without_edges_nothing_is_left_to_chance(problem):
    model, values = problem
    exact = hub_evidence(model.loss, model.hub, RIDGE)
    for edges, none in ((model.edges, np.zeros(len(values))), (model.edges[:0], np.empty(0))):
        found = sampled_evidence(replace(model, edges=edges), none, n_probes=2)
        assert found.value == pytest.approx(exact.value, abs=1e-8)
        assert found.standard_error < 1e-8
        np.testing.assert_allclose(found.coefficients, exact.coefficients, atol=1e-5)


def test_a_tiny_hub_and_many_components_are_handled(prior_by):
    random = np.random.default_rng(0)
    loss, edges = some_losses(50, 3, random), some_edges(50, 60, random)
    edges = edges[(edges[:, 0] < 20) == (edges[:, 1] < 20)]
    model = EvidenceModel(loss, edges, np.ones(3), np.array([1e-6, 1e-6, 3.0]), RIDGE, prior_by)
    values = random.exponential(5.0, len(edges))
    found = sampled_evidence(model, values, n_probes=1000)
    assert abs(found.value - exact_value(model, values)) < 4 * found.standard_error
    assert found.standard_error < 0.2


def test_probes_taken_two_at_a_time_agree(problem):
    model, values = problem
    together = sampled_evidence(model, values, n_probes=201)
    apart = sampled_evidence(replace(model, sizes=Sizes(probes_together=0)), values, n_probes=201)
    assert len(apart.per_probe) == 201
    assert abs(apart.value - exact_value(model, values)) < 4 * apart.standard_error
    assert apart.value == pytest.approx(together.value, abs=0.1)


def test_known_models_need_no_solve(problem, monkeypatch):
    model, values = problem
    found = sampled_evidence(model, values)
    monkeypatch.setattr(level_value, "prepare", None)
    again = sampled_evidence(model, values, coefficients=found.coefficients)
    assert again.value == found.value
    assert again.noise == found.noise


def test_three_thousand_tasks_agree_with_sparse_factors(prior_by):
    random = np.random.default_rng(7)
    n, p = 3000, 2
    loss = some_losses(n, p, random)
    edges = np.unique(np.sort(np.c_[np.arange(n), (np.arange(n) + random.integers(1, 40, n)) % n], axis=1), axis=0)
    edges = np.unique(np.concatenate([edges, np.c_[np.arange(n - 1), np.arange(1, n)]]), axis=0)
    values, coupling, hub = random.exponential(5.0, len(edges)), np.array([1.0, 0.4]), np.array([0.3, 2.0])
    incidence = sparse.csr_array(
        (np.tile([1.0, -1.0], len(edges)), edges.ravel(), np.arange(0, 2 * len(edges) + 1, 2)), shape=(len(edges), n)
    )
    graph = incidence.T @ sparse.diags_array(values) @ incidence
    blocks = sparse.block_diag(list(loss.gram + np.diag(hub + RIDGE)))
    factor = splu(sparse.csc_array(blocks + sparse.kron(graph, np.diag(coupling))))
    # A = M − Uᵀ diag(h/n) U with U = 1 ⊗ I: one small determinant, one small correction of the solution.
    ones, right = np.kron(np.ones((n, 1)), np.eye(p)), loss.moment.ravel()
    solved = factor.solve(ones)
    small = np.diag(n / hub) - ones.T @ solved
    solution = factor.solve(right)
    solution += solved @ np.linalg.solve(small, ones.T @ solution)
    log_det = np.log(np.abs(factor.U.diagonal())).sum() + np.linalg.slogdet(small)[1] + np.log(hub / n).sum()
    log_prior = 0.0
    for c, h in zip(coupling, hub):
        own = splu(sparse.csc_array(c * graph + h * sparse.eye_array(n)))
        log_prior += np.log(np.abs(own.U.diagonal())).sum() - np.log(h)
    Q = loss.target_square.sum() - right @ solution
    exact = 0.5 * ((loss.count.sum() - p) * np.log(Q) + log_det - log_prior)
    model = EvidenceModel(loss, edges, coupling, hub, RIDGE, prior_by)
    found = sampled_evidence(model, values, n_probes=32)
    assert abs(found.value - exact) < 4 * found.standard_error
    assert found.standard_error < 2.0
    assert found.last_change < found.standard_error
    np.testing.assert_allclose(found.coefficients.ravel(), solution, atol=1e-4)


# ---------------------------------------------------------------------- errors


def test_standard_errors_are_honest(problem, prior_by):
    model, values = replace(problem[0], sizes=prior_by), problem[1]
    exact = exact_value(model, values)
    runs = [sampled_evidence(model, values, n_probes=24, seed=seed) for seed in range(50)]
    pulls = np.array([(run.value - exact) / run.standard_error for run in runs])
    # Fifty draws of a standard deviation of one: within three of their own standard errors.
    assert 0.7 < pulls.std() < 1.35
    assert abs(pulls.mean()) < 0.45


def test_the_quadratic_takes_most_of_the_noise_off(problem):
    # The same traces without it: the spread of εᵀ ln(Ã) ε is 2‖ln Ã‖² less its diagonal, from the dense matrix.
    model, values = problem
    n, p = model.loss.moment.shape
    A = model.system(values).dense()
    index = np.arange(n)
    factor = np.zeros_like(A).reshape(n, p, n, p)
    shift = model.system(values).degrees() + model.hub + RIDGE
    factor[index, :, index, :] = np.linalg.cholesky(model.loss.gram + shift[..., None] * np.eye(p))
    factor = factor.reshape(n * p, n * p)
    scaled = np.linalg.solve(factor, np.linalg.solve(factor, A).T)
    eigenvalues, vectors = np.linalg.eigh(scaled)
    logarithm = (vectors * np.log(eigenvalues)) @ vectors.T
    plain = 0.5 * np.sqrt(2 * ((logarithm**2).sum() - (np.diag(logarithm) ** 2).sum()))
    found = sampled_evidence(model, values, n_probes=400)
    assert found.standard_error * np.sqrt(400) < 0.4 * plain


# ---------------------------------------------------------------------- invariances


def test_relabelling_tasks_changes_nothing_but_the_probes(problem):
    model, values = problem
    order = np.random.default_rng(0).permutation(model.loss.n_tasks)
    place = np.argsort(order)
    relabelled = replace(model, loss=model.loss.of_tasks(order), edges=np.sort(place[model.edges], axis=1))
    a, b = sampled_evidence(model, values, n_probes=100), sampled_evidence(relabelled, values, n_probes=100)
    assert abs(a.value - b.value) < 4 * np.hypot(a.standard_error, b.standard_error)
    np.testing.assert_allclose(b.coefficients, a.coefficients[order], atol=1e-5)


def test_scaling_the_target_adds_a_known_constant(problem):
    model, values = problem
    loss = model.loss
    scaled = LeastSquares(loss.gram, 3.0 * loss.moment, 9.0 * loss.target_square, loss.count)
    before, after = sampled_evidence(model, values), sampled_evidence(replace(model, loss=scaled), values)
    constant = (loss.count.sum() - loss.n_features) * np.log(3.0)
    assert after.value - before.value == pytest.approx(constant, abs=1e-6)
    assert after.standard_error == pytest.approx(before.standard_error, rel=1e-6)


def test_the_seed_determines_everything(problem):
    model, values = problem
    a, b, c = (sampled_evidence(model, values, seed=seed) for seed in (3, 3, 4))
    assert a.value == b.value != c.value


# ---------------------------------------------------------------------- of a fit


def test_evidence_of_a_fit_is_on_the_scale_of_the_hub(problem):
    model, values = problem
    loss, precisions = model.loss, np.linspace(0.5, 2.0, model.loss.n_tasks)
    hub = hub_evidence(loss.weighted(precisions), model.hub)
    none = GraphFit("hub", model.edges[:0], np.empty(0), np.zeros(4), model.hub, hub.coefficients, hub.value)
    assert graph_evidence(loss, replace(none, precisions=precisions)).value == pytest.approx(hub.value, abs=1e-6)
    found = sampled_evidence(replace(model, ridge=hub_module.RIDGE), values, seed=2)
    graph = GraphFit("graph", model.edges, values, model.coupling, model.hub, found.coefficients, float("nan"))
    assert graph_evidence(loss, graph, seed=2).value == pytest.approx(found.value, rel=1e-12)


def test_too_few_probes_are_refused(problem):
    model, values = problem
    with pytest.raises(ParameterError, match="at least 2"):
        sampled_evidence(model, values, n_probes=1)


# ---------------------------------------------------------------------- of a fitted model


class Sampled(GGMTLRegressor):
    """Learns by sampled evidence whatever the number of tasks."""

    sizes = Sizes(exact_evidence=0)


def along_a_line(model: GGMTLRegressor) -> GGMTLRegressor:
    random = np.random.default_rng(0)
    models, X = np.cumsum(random.standard_normal((30, 2)), axis=0), random.standard_normal((180, 2))
    tasks = np.repeat(np.arange(30), 6)
    return model.fit(X, (X * models[tasks]).sum(axis=1) + random.standard_normal(180), tasks=tasks)


@pytest.fixture(scope="module")
def line():
    return along_a_line(GGMTLRegressor(blend=False))


def dense_value(model: GGMTLRegressor) -> float:
    fit, loss = model.state_.level, model.state_.folded().total
    return dense_evidence(fit.weighed(loss), fit.edges, fit.edge_values, fit.coupling, fit.hub, ridge=hub_module.RIDGE)


def test_evidence_of_a_small_graph_is_its_criterion_without_the_description(line):
    found, fit = line.evidence(), line.state_.level
    assert (fit.edge_values > 0).sum() == len(fit.edges) == 15
    assert found.standard_error == 0.0
    assert found.value == pytest.approx(-dense_value(line), abs=1e-6)
    assert found.value == pytest.approx(list_description(30, 15) - fit.value, abs=1e-6)
    hub = next(row["criterion"] for row in line.path_ if row["level"] == "hub")
    assert found.gain == pytest.approx(found.value + hub, abs=1e-6)
    assert found.gain > 10


def test_evidence_of_a_large_graph_is_that_of_dense_determinants(line):
    model = Sampled(validation=2, blend=False)
    model.sizes = Sizes(exact_evidence=0, clusters=0)
    found, more = along_a_line(model).evidence(), model.evidence(n_probes=200)
    assert np.isnan(model.state_.level.value)
    for estimate in (found, more):
        assert 0 < abs(estimate.value + dense_value(model)) < 4 * estimate.standard_error
        assert estimate.gain - estimate.value == pytest.approx(line.evidence().gain - line.evidence().value, abs=1e-6)
    assert more.standard_error < 0.5 * found.standard_error
    assert model.evidence() == found
    with pytest.raises(ParameterError, match="at least 2"):
        model.evidence(n_probes=1)


def test_evidence_of_clusters_is_exact_at_any_size():
    data = make_clusters(3, n_tasks=12, n_features=4, n_samples=10, noise=0.3, random_state=0)
    model = Sampled(validation=2).fit(data.X, data.y, tasks=data.tasks)
    found = model.evidence()
    assert len(model.state_.level.edges) == 18
    assert found.standard_error == 0.0
    assert found.value == pytest.approx(cluster_description(12, 3) - model.state_.level.value, abs=1e-6)
    assert found.value == pytest.approx(-dense_value(model), abs=1e-6)


def test_evidence_of_the_hub_is_its_criterion(line):
    model = deepcopy(line)
    model.state_ = replace(model.state_, family=replace(model.state_.family, weights={"hub": 1.0}, chosen="hub"))
    found = model.evidence()
    assert found.value == pytest.approx(-model.state_.level.value, abs=1e-6)
    assert (found.standard_error, found.gain) == (0.0, 0.0)


def test_evidence_follows_more_rows_and_leaves_out_tasks_added_later(line):
    model, before = deepcopy(line), line.evidence()
    random = np.random.default_rng(1)
    X = random.standard_normal((20, 2))
    model.partial_fit(X, X @ line.coef_[3] + random.standard_normal(20), tasks=np.full(20, 3), relearn=False)
    assert model.evidence().value == pytest.approx(-dense_value(model), abs=1e-6)
    after = model.evidence()
    assert abs(after.value - before.value) > 1
    model.add_task(40, X, X @ line.coef_[-1] + random.standard_normal(20))
    assert model.evidence().value == pytest.approx(after.value, abs=1e-9)


def test_sampled_evidence_of_a_small_graph_agrees_with_the_exact_one(line):
    model, exact = deepcopy(line), line.evidence()
    settings = replace(model.state_.settings, sizes=Sampled.sizes)
    model.state_ = replace(model.state_, settings=settings)
    found = model.evidence(n_probes=200)
    assert 0 < found.standard_error < 0.3
    assert abs(found.value - exact.value) < 4 * found.standard_error


def test_evidence_weighs_rows_as_the_fit_did(problem):
    model, values = problem
    precisions = np.linspace(0.5, 2.0, model.loss.n_tasks)
    graph = GraphFit("graph", model.edges, values, model.coupling, model.hub, np.zeros((40, 4)), float("nan"))
    weighed = level_evidence(replace(graph, precisions=precisions), model.loss, model.hub)
    plain = level_evidence(graph, model.loss.weighted(precisions), model.hub)
    assert weighed == plain
    assert plain.gain != level_evidence(graph, model.loss, model.hub).gain


def test_evidence_needs_the_statistics_of_the_rows(line, tmp_path):
    line.save(tmp_path / "without.ggmtl")
    with pytest.raises(InputError, match=r"evidence\(\) needs the statistics.*keep_statistics=True"):
        load_model(tmp_path / "without.ggmtl").evidence()
    line.save(tmp_path / "with.ggmtl", keep_statistics=True)
    found, before = load_model(tmp_path / "with.ggmtl").evidence(), line.evidence()
    assert found.value == pytest.approx(before.value, abs=1e-6)
    # The hub's strengths are learned again, to the tolerance of that search.
    assert found.gain == pytest.approx(before.gain, abs=1e-2)


@pytest.mark.parametrize(("level", "n_tasks"), [("pooled", 40), ("independent", 1)])
def test_levels_without_a_hub_have_no_evidence(level, n_tasks):
    random = np.random.default_rng(0)
    X, tasks = random.standard_normal((40, 2)), np.arange(40) % n_tasks
    model = GGMTLRegressor().fit(X, X[:, 0] + random.standard_normal(40), tasks=tasks)
    assert model.state_.level.name == level
    with pytest.raises(InputError, match=f"{level} level.*no evidence.*path_"):
        model.evidence()


def test_other_criteria_and_penalties_have_no_evidence(line):
    check_evidence(line.state_.family, "squared_l2")
    with pytest.raises(InputError, match="penalty='l1'"):
        check_evidence(line.state_.family, "l1")
    with pytest.raises(InputError, match="criterion='validation'"):
        check_evidence(replace(line.state_.family, criterion="validation"), "squared_l2")
    data = make_clusters(2, n_tasks=6, n_features=2, random_state=0)
    paper = GGMTLRegressor(hub=False, validation=0.2, edge_entropy=0.0).fit(data.X, data.y, tasks=data.tasks)
    with pytest.raises(InputError, match=r"hub=False instead\. Fit with these"):
        paper.evidence()
