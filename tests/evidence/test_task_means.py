"""The common model as a function of descriptors: against dense REML, in its limits, and from sums only."""

import numpy as np
import pytest

from ggmtl.evidence.hub import RIDGE, hub_evidence
from ggmtl.evidence.task_means import effect_covariance, learn_means, mean_evidence
from ggmtl.statistics.least_squares import LeastSquares
from made import sums_of


def described_rows(n=12, rows=6, p=3, q=2, seed=0):
    """Rows of tasks whose models follow z, with deviations and noise."""
    random = np.random.default_rng(seed)
    z = random.standard_normal((n, q))
    z = (z - z.mean(axis=0)) / z.std(axis=0)
    models = 1.0 + z @ random.standard_normal((q, p)) + 0.3 * random.standard_normal((n, p))
    X = random.standard_normal((n, rows, p))
    return X, np.einsum("nrp,np->nr", X, models) + 0.5 * random.standard_normal((n, rows)), z


def dense_reml(X, y, z, hub, strength):
    """−ln of the restricted likelihood with σ² profiled, and the posterior of (w_0, B), all dense."""
    n, rows, p = X.shape
    blocks = np.zeros((n * rows, n * p))
    for i in range(n):
        blocks[i * rows : (i + 1) * rows, i * p : (i + 1) * p] = X[i]
    fixed = X.reshape(-1, p)
    random_part = np.einsum("nrp,nq->nrqp", X, z).reshape(n * rows, -1)
    tasks = np.eye(n * rows) + blocks @ np.diag(np.tile(1.0 / hub, n)) @ blocks.T
    V = tasks + random_part @ np.diag(1.0 / strength.ravel()) @ random_part.T
    inverse = np.linalg.inv(V)
    normal = fixed.T @ inverse @ fixed
    target = y.ravel()
    common = np.linalg.solve(normal, fixed.T @ inverse @ target)
    rest = target - fixed @ common
    quadratic = rest @ inverse @ rest
    value = (n * rows - p) * np.log(quadratic) + np.linalg.slogdet(V)[1] + np.linalg.slogdet(normal)[1]
    both = np.column_stack([fixed, random_part])
    precision = both.T @ np.linalg.solve(tasks, both) + np.diag(np.concatenate([np.zeros(p), strength.ravel()]))
    effects = np.linalg.solve(precision, both.T @ np.linalg.solve(tasks, target))
    return 0.5 * value, quadratic / (n * rows - p), effects, np.linalg.inv(precision)


def strengths(p, q, seed):
    random = np.random.default_rng(seed)
    return np.exp(random.normal(1.0, 1.0, p)), np.exp(random.normal(1.0, 1.0, (q, p)))


def test_evidence_and_posterior_are_those_of_dense_restricted_likelihood():
    X, y, z = described_rows()
    loss = sums_of(X, y)
    constant = None
    for seed in range(4):
        hub, strength = strengths(3, 2, seed)
        found = mean_evidence(loss, z, hub, strength, RIDGE)
        value, noise, effects, covariance = dense_reml(X, y, z, hub, strength)
        constant = found.value - value if constant is None else constant
        assert found.value - value == pytest.approx(constant, abs=1e-6)
        assert found.noise == pytest.approx(noise, rel=1e-7)
        np.testing.assert_allclose(np.concatenate([found.common, found.effects.ravel()]), effects, rtol=1e-6)
        np.testing.assert_allclose(found.covariance, covariance, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(effect_covariance(loss, z, hub, strength), found.covariance)


def test_gradients_match_central_differences():
    X, y, z = described_rows(seed=1)
    loss, (hub, strength) = sums_of(X, y), strengths(3, 2, 7)
    found = mean_evidence(loss, z, hub, strength, RIDGE)
    for k in range(3):
        step = np.zeros(3)
        step[k] = 1e-5 * hub[k]
        up, down = (mean_evidence(loss, z, hub + sign * step, strength, RIDGE).value for sign in (1, -1))
        assert (up - down) / (2 * step[k]) == pytest.approx(found.hub_gradient[k], rel=1e-5, abs=1e-7)
    for place in np.ndindex(strength.shape):
        step = np.zeros_like(strength)
        step[place] = 1e-5 * strength[place]
        up, down = (mean_evidence(loss, z, hub, strength + sign * step, RIDGE).value for sign in (1, -1))
        assert (up - down) / (2 * step[place]) == pytest.approx(found.effect_gradient[place], rel=1e-5, abs=1e-7)


def test_infinitely_strong_effects_leave_the_hub():
    X, y, z = described_rows(seed=2)
    loss, (hub, _) = sums_of(X, y), strengths(3, 2, 3)
    strength = np.full((2, 3), 1e9)
    found, plain = mean_evidence(loss, z, hub, strength, RIDGE), hub_evidence(loss, hub, RIDGE)
    assert found.value == pytest.approx(plain.value, abs=1e-4)
    np.testing.assert_allclose(found.coefficients, plain.coefficients, atol=1e-5)


def test_effects_are_recovered_where_tasks_follow_them_exactly():
    random = np.random.default_rng(3)
    z = random.standard_normal((60, 2))
    z = (z - z.mean(axis=0)) / z.std(axis=0)
    B = np.array([[1.0, -2.0, 0.5], [0.0, 3.0, 1.0]])
    X = random.standard_normal((60, 4, 3))
    y = np.einsum("nrp,np->nr", X, 2.0 + z @ B) + 1e-3 * random.standard_normal((60, 4))
    learned = learn_means(sums_of(X, y), z, np.arange(2), np.full(3, 1.0), most=1500)
    np.testing.assert_allclose(learned.evidence.effects, B, atol=5e-3)
    np.testing.assert_allclose(learned.evidence.common, 2.0, atol=5e-3)


def test_descriptors_of_pure_noise_shrink_to_nothing():
    X, y, z = described_rows(n=200, rows=8, seed=4)
    loss, noise = sums_of(X, y), np.random.default_rng(5).standard_normal((200, 5))
    both = np.column_stack([z, noise])
    learned = learn_means(loss, both, np.arange(7), np.full(3, 5.0), most=1500)
    told = learned.evidence.effects
    assert np.abs(told[2:]).max() < 0.1 * np.abs(told[:2]).max()
    plain = learn_means(loss, z, np.arange(2), np.full(3, 5.0), most=1500)
    change = np.abs(learned.evidence.coefficients - plain.evidence.coefficients).max()
    assert change < 0.1 * plain.evidence.coefficients.std()


def test_tasks_without_rows_and_collinear_descriptors_are_harmless():
    X, y, z = described_rows(n=20, seed=6)
    loss = sums_of(X, y)
    gram, moment, square, count = loss.gram.copy(), loss.moment.copy(), loss.target_square.copy(), loss.count.copy()
    for part in (gram, moment, square, count):
        part[3] = 0.0
    twice = np.column_stack([z, z[:, 0]])
    learned = learn_means(LeastSquares(gram, moment, square, count), twice, np.arange(3), np.full(3, 2.0), most=1500)
    mean = learned.evidence.common + twice[3] @ learned.evidence.effects
    np.testing.assert_allclose(learned.evidence.coefficients[3], mean, atol=1e-6)
