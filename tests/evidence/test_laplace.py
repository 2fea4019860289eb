"""Laplace's evidence of the common model, against a dense oracle and central differences."""

import numpy as np
import pytest
from scipy.optimize import minimize

from ggmtl.evidence.hub import hub_evidence
from ggmtl.evidence.hub_strengths import learn_hub
from ggmtl.evidence.laplace import LaplaceLoss, deviation_squares, hub_covariance, hub_mode, learn_correlated
from ggmtl.losses.rowwise import LOSSES
from ggmtl.losses.task_rows import sorted_rows

RIDGES = [None, np.array([0.5, 3.0, 0.0])]


def make_loss(name, noise=1.0, n_tasks=6, n_rows=90, p=3, seed=0, ridge=None):
    """The first task has one class only, the last no rows."""
    rng = np.random.default_rng(seed)
    task = rng.integers(0, n_tasks - 1, n_rows)
    design = np.column_stack([rng.standard_normal((n_rows, p - 1)), np.ones(n_rows)])
    eta = np.einsum("rp,rp->r", design, 0.8 * rng.standard_normal((n_tasks, p))[task])
    loss = LOSSES[name]
    draw = rng.poisson if name == "poisson" else lambda mean: rng.random(n_rows) < mean
    target = draw(loss.mean(eta)).astype(float)
    if name == "logistic":
        target[task == 0] = 1.0
    return LaplaceLoss(sorted_rows(design, target, task, n_tasks)[0], loss, np.zeros((n_tasks, p)), noise, ridge)


def dense(loss, hub, ridge):
    """f by a general optimiser and a dense determinant."""
    n, p = loss.start.shape
    drawn = loss.common_precision()
    # The common model, with its own prior, at its minimum.
    prior = np.kron(np.eye(n), np.diag(hub)) - np.kron(np.ones((n, n)), np.diag(hub**2 / (n * hub + drawn)))
    prior += ridge * np.eye(n * p)

    def objective(flat):
        models = flat.reshape(n, p)
        slope = loss.rows.gradient(loss.loss, models).ravel() + prior @ flat
        return loss.rows.value(loss.loss, models) + 0.5 * flat @ prior @ flat, slope

    found = minimize(objective, np.zeros(n * p), jac=True, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-9})
    system = prior.reshape(n, p, n, p).copy()
    gram = loss.rows.working_sums(loss.loss, found.x.reshape(n, p)).gram
    system[np.arange(n), :, np.arange(n), :] += gram
    system = system.reshape(n * p, n * p)
    log_prior = (n * np.log(hub) - np.log(n * hub + drawn)).sum()
    return found.fun / loss.noise + 0.5 * (np.linalg.slogdet(system)[1] - log_prior), system


@pytest.mark.parametrize("name", ["logistic", "poisson"])
@pytest.mark.parametrize("noise", [1.0, 2.0])
@pytest.mark.parametrize("ridge", RIDGES)
def test_the_value_is_that_of_the_dense_formula(name, noise, ridge):
    loss, weak, strong = make_loss(name, noise, ridge=ridge), np.array([0.5, 1.0, 2.0]), np.array([4.0, 2.0, 8.0])
    expected = dense(loss, strong, 1e-6)[0] - dense(loss, weak, 1e-6)[0]
    found = hub_evidence(loss, strong, 1e-6).value - hub_evidence(loss, weak, 1e-6).value
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["logistic", "poisson"])
@pytest.mark.parametrize("noise", [1.0, 2.0])
@pytest.mark.parametrize("n_rows", [12, 90])
@pytest.mark.parametrize("ridge", RIDGES)
def test_the_gradient_matches_central_differences(name, noise, n_rows, ridge):
    loss, hub, step = make_loss(name, noise, n_rows=n_rows, ridge=ridge), np.array([0.7, 1.5, 3.0]), 1e-4
    expected = [
        (hub_evidence(loss, hub + step * unit, 1e-6).value - hub_evidence(loss, hub - step * unit, 1e-6).value)
        / (2 * step)
        for unit in np.eye(3)
    ]
    np.testing.assert_allclose(hub_evidence(loss, hub, 1e-6).gradient, expected, rtol=1e-5, atol=1e-6)


def test_without_the_third_derivative_the_gradient_is_another():
    loss, hub = make_loss("logistic"), np.array([0.7, 1.5, 3.0])
    at_mode = hub_evidence(hub_mode(loss, hub).sums, hub)
    assert np.abs(at_mode.gradient / hub_evidence(loss, hub).gradient - 1).max() > 0.01


def test_squared_loss_is_the_special_case():
    loss, hub = make_loss("poisson"), np.array([0.7, 1.5, 3.0])
    squared = LaplaceLoss(loss.rows, LOSSES["squared"], loss.start)
    found, exact = hub_evidence(squared, hub), hub_evidence(loss.rows.working_sums(LOSSES["squared"], loss.start), hub)
    np.testing.assert_allclose(found.value, exact.value, rtol=1e-10)
    np.testing.assert_allclose(found.gradient, exact.gradient, rtol=1e-8)
    np.testing.assert_allclose(found.coefficients, exact.coefficients, atol=1e-10)


def test_covariances_are_the_blocks_of_the_dense_inverse():
    loss, hub = make_loss("logistic"), np.array([0.7, 1.5, 3.0])
    blocks, _, _ = hub_covariance(hub_mode(loss, hub, 1e-6).sums.gram, hub, 1e-6)
    inverse = np.linalg.inv(dense(loss, hub, 1e-6)[1]).reshape(6, 3, 6, 3)
    np.testing.assert_allclose(blocks, np.einsum("ipiq->ipq", inverse), rtol=1e-4, atol=1e-5)


def test_strengths_are_found_where_rows_are_many():
    """Deviations of standard deviation ½ are drawn with h = 4."""
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(200), 60)
    design = np.column_stack([rng.standard_normal(len(task)), np.ones(len(task))])
    models = np.array([1.0, -0.5]) + 0.5 * rng.standard_normal((200, 2))
    mean = LOSSES["logistic"].mean(np.einsum("rp,rp->r", design, models[task]))
    rows, _ = sorted_rows(design, (rng.random(len(task)) < mean).astype(float), task, 200)
    found = learn_hub(LaplaceLoss(rows, LOSSES["logistic"], np.zeros((200, 2))), np.arange(2), nats=0.01)
    np.testing.assert_allclose(found.hub, 4.0, rtol=0.3)


@pytest.mark.parametrize("name", ["logistic", "poisson"])
@pytest.mark.parametrize("noise", [1.0, 2.0])
@pytest.mark.parametrize("ridge", RIDGES)
def test_the_gradient_for_correlated_deviations_matches_central_differences(name, noise, ridge):
    """∂f/∂S⁻¹ = ½(E − nS), against f from a general optimiser and dense determinants."""
    loss, rng = make_loss(name, noise, ridge=ridge), np.random.default_rng(1)
    root = rng.standard_normal((3, 3))
    precision, n = root @ root.T + np.eye(3), loss.n_tasks
    change = rng.standard_normal((3, 3))
    change = change + change.T
    square, mode = deviation_squares(loss, precision)
    slope = 0.5 * np.sum((square - n * np.linalg.inv(precision)) * change)
    above, below = (dense_correlated(loss, precision + step * change) for step in (1e-3, -1e-3))
    np.testing.assert_allclose((above[0] - below[0]) / 2e-3, slope, rtol=1e-4)
    np.testing.assert_allclose(mode.coefficients, 0.5 * (above[1] + below[1]), atol=1e-4)


def dense_correlated(loss, precision):
    """f up to a constant, and the models, where deviations have the precision `precision`."""
    n, p = loss.start.shape
    pooled = n * precision + np.diag(loss.common_precision())
    prior = np.kron(np.eye(n), precision)
    prior -= np.kron(np.ones((n, n)), precision @ np.linalg.solve(pooled, precision))

    def objective(flat):
        models = flat.reshape(n, p)
        value = loss.rows.value(loss.loss, models) + 0.5 * flat @ prior @ flat
        return value, loss.rows.gradient(loss.loss, models).ravel() + prior @ flat

    found = minimize(objective, np.zeros(n * p), jac=True, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-9})
    models = found.x.reshape(n, p)
    # With the common model among the unknowns, the determinant of the prior is that of the deviations.
    joint = np.zeros(((n + 1) * p, (n + 1) * p))
    joint[: n * p, : n * p] = np.kron(np.eye(n), precision)
    joint[n * p :, : n * p] = np.kron(np.ones((1, n)), -precision)
    joint[: n * p, n * p :] = joint[n * p :, : n * p].T
    joint[n * p :, n * p :] = pooled
    for i, gram in enumerate(loss.rows.working_sums(loss.loss, models).gram):
        joint[i * p : (i + 1) * p, i * p : (i + 1) * p] += gram
    log_det = np.linalg.slogdet(joint)[1] - n * np.linalg.slogdet(precision)[1]
    return found.fun / loss.noise + 0.5 * log_det, models


def test_correlations_of_deviations_are_found():
    rng, n = np.random.default_rng(0), 150
    task, covariance = np.repeat(np.arange(n), 40), np.array([[1.0, 0.7], [0.7, 1.0]])
    design = np.column_stack([rng.standard_normal(len(task)), np.ones(len(task))])
    eta = np.einsum("rp,rp->r", design, rng.multivariate_normal([0.5, 0.0], covariance, n)[task])
    for name, target in (
        ("poisson", rng.poisson(np.exp(eta))),
        ("logistic", rng.random(len(eta)) < 1.0 / (1.0 + np.exp(-eta))),
    ):
        loss = LaplaceLoss(sorted_rows(design, target.astype(float), task, n)[0], LOSSES[name], np.zeros((n, 2)))
        precision = learn_correlated(loss, learn_hub(loss, np.arange(2)).hub, np.ones(2, dtype=bool))
        np.testing.assert_allclose(np.linalg.inv(precision), covariance, atol=0.25)
