"""Laplace's evidence of the common model, against a dense oracle and central differences."""

import numpy as np
import pytest
from scipy.optimize import minimize

from ggmtl.evidence.hub import hub_evidence
from ggmtl.evidence.hub_strengths import learn_hub
from ggmtl.evidence.laplace import LaplaceLoss, hub_covariance, hub_mode
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
    drawn = loss.drawn()
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
