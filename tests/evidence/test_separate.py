"""Ridges of separate models."""

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.stats import multivariate_normal

from ggmtl.evidence.separate import separate_ridges
from ggmtl.statistics.least_squares import LeastSquares

SLOPES = np.array([True, True, True, False])


def tasks_of(rng, n, rows, scale, noise=1.0):
    """Rows of every task with a constant column, and the sums of all tasks."""
    X = rng.normal(size=(n, rows, 3)) * scale
    y = (
        np.einsum("nrk,nk->nr", X, rng.normal(size=(n, 3)))
        + rng.normal(size=(n, 1))
        + noise * rng.normal(size=(n, rows))
    )
    A = np.concatenate([X, np.ones((n, rows, 1))], axis=2)
    count = np.full(n, float(rows))
    loss = LeastSquares(np.einsum("nrp,nrq->npq", A, A), np.einsum("nrp,nr->np", A, y), (y**2).sum(axis=1), count)
    return X, y, loss


def test_ridge_of_one_task_maximises_its_restricted_likelihood():
    X, y, loss = tasks_of(np.random.default_rng(0), 1, 6, 1.0, noise=3.0)
    X, y = X[0] - X[0].mean(axis=0), y[0] - y[0].mean()
    unit = np.sqrt((X**2).sum(axis=0) / 5)
    Z = X / unit
    # An orthonormal basis of what is left without the intercept.
    basis = np.linalg.qr(np.column_stack([np.ones(6), np.eye(6)[:, :5]]))[0][:, 1:]
    left, target = basis.T @ Z, basis.T @ y

    def negative(log_kappa):
        covariance = np.eye(5) + left @ left.T / np.exp(log_kappa)
        variance = target @ np.linalg.solve(covariance, target) / 5
        share = 1 / (1 + np.linalg.eigvalsh(Z.T @ Z).mean() / np.exp(log_kappa))
        likelihood = multivariate_normal(np.zeros(5), variance * covariance).logpdf(target)
        return -likelihood - 0.5 * np.log(share * (1 - share))

    best = np.exp(minimize_scalar(negative, bounds=(-10, 10), method="bounded").x)
    ridges = separate_ridges(loss, SLOPES)[0]
    # κ is taken from a grid of four steps a decade.
    assert np.abs(np.log(ridges[:3] / unit**2 / best)).max() < 0.5 * np.log(10) / 4 + 1e-6
    assert ridges[3] == 0


def test_many_rows_need_no_ridge_where_slopes_differ_in_size():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(20, 60, 3))
    y = X @ np.array([10.0, 0.1, 0.1]) + rng.normal(size=(20, 60))
    A = np.concatenate([X, np.ones((20, 60, 1))], axis=2)
    sums = np.einsum("nrp,nrq->npq", A, A), np.einsum("nrp,nr->np", A, y), (y**2).sum(axis=1)
    ridges = separate_ridges(LeastSquares(*sums, np.full(20, 60.0)), SLOPES)
    # Shrinkage of the large slope by no more than a small part of its standard error.
    assert (ridges[:, 0] * 10.0 / 60.0 < 0.25 / np.sqrt(60.0)).all()


def test_fewer_rows_than_features_have_a_ridge():
    ridges = separate_ridges(tasks_of(np.random.default_rng(2), 30, 3, 1.0)[2], SLOPES)
    assert (ridges[:, :3] > 1e-3).all()


def test_units_of_a_column_change_its_ridge_alone():
    plain = separate_ridges(tasks_of(np.random.default_rng(3), 8, 7, 1.0, noise=2.0)[2], SLOPES)
    X, y, _ = tasks_of(np.random.default_rng(3), 8, 7, 1.0, noise=2.0)
    unit = np.array([4.0, 1.0, 0.5, 1.0])
    A = np.concatenate([X, np.ones((8, 7, 1))], axis=2) * unit
    sums = np.einsum("nrp,nrq->npq", A, A), np.einsum("nrp,nr->np", A, y), (y**2).sum(axis=1)
    np.testing.assert_allclose(
        separate_ridges(LeastSquares(*sums, np.full(8, 7.0)), SLOPES), plain * unit**2, rtol=1e-9
    )


def test_a_direction_that_hardly_varies_in_a_task_is_held_by_its_ridge():
    rng = np.random.default_rng(4)
    X = rng.normal(size=(20, 60, 3))
    # In one task, the third column repeats the second but for a trace of noise.
    X[0, :, 2] = X[0, :, 1] + 1e-5 * rng.normal(size=60)
    y = X @ np.array([10.0, 0.1, 0.1]) + rng.normal(size=(20, 60))
    A = np.concatenate([X, np.ones((20, 60, 1))], axis=2)
    sums = np.einsum("nrp,nrq->npq", A, A), np.einsum("nrp,nr->np", A, y), (y**2).sum(axis=1)
    loss = LeastSquares(*sums, np.full(20, 60.0))
    models = loss.alone(separate_ridges(loss, SLOPES))
    assert np.abs(models[0, 1:3]).max() < 10.0 < np.abs(loss.alone(np.zeros((20, 4)))[0, 1:3]).max()
