"""Deviations that go together: the EM steps against dense likelihoods, and what they gain."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from ggmtl.evidence.correlated import correlated_models, models_under
from ggmtl.evidence.hub import hub_evidence
from ggmtl.statistics.least_squares import LeastSquares

N_TASKS, N_ROWS = 40, 6


def sums(seed, correlation, n=N_TASKS, rows=N_ROWS):
    """Tasks whose intercept and slope depart together from common ones; their sums, models, rows and targets."""
    rng = np.random.default_rng(seed)
    spread = np.array([[1.0, correlation], [correlation, 1.0]])
    models = np.array([2.0, -1.0]) + rng.multivariate_normal(np.zeros(2), spread, n)
    X = np.dstack([rng.normal(size=(n, rows)), np.ones((n, rows))])
    y = np.einsum("nrk,nk->nr", X, models) + rng.normal(size=(n, rows))
    gram, moment = np.einsum("nrk,nrl->nkl", X, X), np.einsum("nrk,nr->nk", X, y)
    return LeastSquares(gram, moment, (y**2).sum(axis=1), np.full(n, float(rows))), models, X, y


def test_models_are_posterior_means_under_the_covariance_of_their_strengths():
    # Uncorrelated data and coefficients that may not vary: the hub with these strengths, to the last digit.
    loss, *_ = sums(0, 0.0)
    hub = np.array([3.0, 0.5])
    models, precision = correlated_models(loss, hub, np.zeros(2, dtype=bool))
    np.testing.assert_array_equal(precision, np.diag(hub))
    np.testing.assert_allclose(models, hub_evidence(loss, hub, 0.0).coefficients, rtol=1e-9)


@pytest.mark.parametrize("correlation", [-0.95, 0.9])
def test_correlated_deviations_are_estimated_better_than_by_the_hub(correlation):
    gained = []
    for seed in range(8):
        loss, models, *_ = sums(seed, correlation, rows=3)
        hub = np.ones(2)
        errors = [
            ((w - models) ** 2).mean() for w in (correlated_models(loss, hub)[0], hub_evidence(loss, hub).coefficients)
        ]
        gained.append(errors[0] / errors[1])
    assert np.mean(gained) < 0.93


def test_learned_variances_make_the_rows_likelier_than_those_of_the_start():
    loss, _, X, y = sums(3, 0.0)

    def log_density(variances):
        common = correlated_models(loss, 1.0 / variances)[0].mean(axis=0)
        cov = np.einsum("nrk,k,nsk->nrs", X, variances, X) + np.eye(N_ROWS)
        return sum(multivariate_normal(x @ common, c).logpdf(t) for x, c, t in zip(X, cov, y))

    start = np.array([20.0, 20.0])
    learned = np.diag(np.linalg.inv(correlated_models(loss, start)[1]))
    assert log_density(learned) > log_density(1.0 / start)
    np.testing.assert_allclose(learned, 1.0, rtol=0.6)


def test_order_of_tasks_and_columns_does_not_matter():
    loss, *_ = sums(5, 0.5)
    order = np.random.default_rng(0).permutation(N_TASKS)
    models = correlated_models(loss, np.ones(2))[0]
    turned = LeastSquares(
        loss.gram[order][:, ::-1, ::-1], loss.moment[order][:, ::-1], loss.target_square[order], loss.count[order]
    )
    np.testing.assert_allclose(correlated_models(turned, np.ones(2))[0][:, ::-1], models[order], atol=1e-9)


def test_models_under_a_known_covariance_are_those_of_generalised_least_squares():
    loss, _, X, y = sums(4, 0.8, n=6, rows=3)
    precision = np.linalg.inv(np.array([[2.0, 0.9], [0.9, 0.7]]))
    spread = np.linalg.inv(precision)
    inverses = [np.linalg.inv(x @ spread @ x.T + np.eye(3)) for x in X]
    common = np.linalg.solve(
        sum(x.T @ c @ x for x, c in zip(X, inverses)), sum(x.T @ c @ t for x, c, t in zip(X, inverses, y))
    )
    expected = [common + spread @ x.T @ c @ (t - x @ common) for x, c, t in zip(X, inverses, y)]
    np.testing.assert_allclose(models_under(loss, precision), expected, rtol=1e-9)
