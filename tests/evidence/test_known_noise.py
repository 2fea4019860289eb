"""Evidence where the noise is known: gradients by central differences, and the value against the dense formula."""

from dataclasses import replace

import numpy as np
import pytest

from ggmtl.evidence.clusters import cluster_evidence
from ggmtl.evidence.dense import EvidenceModel, edge_evidence
from ggmtl.evidence.hub import hub_evidence
from ggmtl.evidence.level_value import sampled_evidence
from ggmtl.statistics.least_squares import LeastSquares
from ggmtl.statistics.task_statistics import TaskStatistics

NOISES = [None, 1.0, 2.5]
EDGES = np.array([[0, 1], [1, 2], [2, 3], [0, 4]])
VALUES = np.array([0.5, 1.0, 2.0, 0.7])


def make_loss(noise, rows_per_task=6):
    rng = np.random.default_rng(0)
    X, tasks = rng.standard_normal((5 * rows_per_task, 3)), np.repeat(np.arange(5), rows_per_task)
    y = X[:, 0] + 0.5 * tasks * X[:, 1] + rng.standard_normal(len(X))
    statistics = TaskStatistics.from_arrays(X, y, tasks)
    return LeastSquares(statistics.gram, statistics.moment, statistics.target_square, statistics.count, noise)


def central(function, point, step=1e-5):
    out = np.empty_like(point)
    for k in range(len(point)):
        up, down = point.copy(), point.copy()
        up[k] += step
        down[k] -= step
        out[k] = (function(up) - function(down)) / (2 * step)
    return out


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("rows", [2, 6])
def test_gradients_match_central_differences(noise, rows):
    loss, hub = make_loss(noise, rows), np.array([0.5, 1.0, 2.0])
    found = hub_evidence(loss, hub)
    np.testing.assert_allclose(found.gradient, central(lambda h: hub_evidence(loss, h).value, hub), rtol=1e-6)

    model = EvidenceModel(loss, EDGES, np.array([1.0, 2.0, 0.5]), hub)
    evidence = edge_evidence(model, VALUES)
    by_edge = central(lambda e: edge_evidence(model, e).value, VALUES)
    by_hub = central(lambda h: edge_evidence(replace(model, hub=h), VALUES).value, hub)
    np.testing.assert_allclose(evidence.edge_gradient, by_edge, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(evidence.hub_gradient, by_hub, rtol=1e-6, atol=1e-8)

    cluster, coupling = np.array([0, 0, 1, 1, 1]), np.ones(3)
    told = cluster_evidence(loss, cluster, 1.5, hub, coupling)
    by_hub = central(lambda h: cluster_evidence(loss, cluster, 1.5, h, coupling).value, hub)
    by_strength = central(lambda c: cluster_evidence(loss, cluster, float(c[0]), hub, coupling).value, np.array([1.5]))
    np.testing.assert_allclose(told.hub_gradient, by_hub, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(told.strength_gradient, by_strength[0], rtol=1e-6)


@pytest.mark.parametrize("noise", [1.0, 2.5])
def test_known_noise_is_the_gaussian_likelihood_up_to_a_constant(noise):
    """Differences of f between strengths are those of −ln p(y) with the models integrated out."""
    loss, rng = make_loss(noise), np.random.default_rng(0)
    X = rng.standard_normal((30, 3))
    y = X[:, 0] + 0.5 * np.repeat(np.arange(5), 6) * X[:, 1] + rng.standard_normal(30)
    design = np.zeros((30, 15))
    for row, task in enumerate(np.repeat(np.arange(5), 6)):
        design[row, 3 * task : 3 * task + 3] = X[row]

    def minus_log(hub):
        # A flat prior on the common model is a very wide one.
        between = np.kron(np.eye(5), np.diag(noise / hub)) + np.kron(np.ones((5, 5)), 1e7 * np.eye(3))
        covariance = noise * np.eye(30) + design @ between @ design.T
        return 0.5 * (np.linalg.slogdet(covariance)[1] + y @ np.linalg.solve(covariance, y))

    weak, strong = np.array([0.5, 1.0, 2.0]), np.array([3.0, 1.0, 9.0])
    expected = minus_log(strong) - minus_log(weak)
    found = hub_evidence(loss, strong).value - hub_evidence(loss, weak).value
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_sampled_evidence_of_known_noise_is_the_exact_one():
    model = EvidenceModel(make_loss(1.0), EDGES, np.ones(3), np.ones(3))
    sampled = sampled_evidence(model, VALUES, n_probes=64)
    assert abs(sampled.value - edge_evidence(model, VALUES).value) < 4 * sampled.standard_error + 1e-6
    assert sampled.noise == 1.0
