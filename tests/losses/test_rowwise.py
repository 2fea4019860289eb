"""Losses per row, against central differences and scikit-learn."""

import numpy as np
import pytest
from sklearn.metrics import log_loss, mean_poisson_deviance

from ggmtl.losses.rowwise import LOSSES

PREDICTORS = np.array([-3.0, -0.4, 0.0, 0.7, 2.5])
TARGETS = {
    "squared": np.array([1.0, -2.0, 0.3, 0.0, 4.0]),
    "logistic": np.array([1.0, 0.0, 1.0, 0.0, 1.0]),
    "poisson": np.array([0.0, 3.0, 1.0, 0.0, 9.0]),
}
STEP = 1e-5


@pytest.mark.parametrize("name", LOSSES)
def test_derivatives_match_central_differences(name):
    loss, target = LOSSES[name], TARGETS[name]
    up, down = PREDICTORS + STEP, PREDICTORS - STEP
    slope = (loss.value(up, target) - loss.value(down, target)) / (2 * STEP)
    np.testing.assert_allclose(loss.mean(PREDICTORS) - target, slope, atol=1e-8)
    np.testing.assert_allclose(loss.curvature(PREDICTORS), (loss.mean(up) - loss.mean(down)) / (2 * STEP), atol=1e-8)
    third = (loss.curvature(up) - loss.curvature(down)) / (2 * STEP)
    np.testing.assert_allclose(loss.third(PREDICTORS), third, atol=1e-8)


@pytest.mark.parametrize("name", LOSSES)
def test_link_and_mean_are_inverse(name):
    loss = LOSSES[name]
    np.testing.assert_allclose(loss.link(loss.mean(PREDICTORS)), PREDICTORS, atol=1e-12)


def test_values_are_half_the_deviance_of_scikit_learn():
    logistic, poisson = LOSSES["logistic"], LOSSES["poisson"]
    target = TARGETS["logistic"]
    expected = log_loss(target, logistic.mean(PREDICTORS))
    np.testing.assert_allclose(logistic.value(PREDICTORS, target).mean(), expected)
    target = TARGETS["poisson"]
    expected = 0.5 * mean_poisson_deviance(target, np.exp(PREDICTORS))
    np.testing.assert_allclose(poisson.value(PREDICTORS, target).mean(), expected)


@pytest.mark.parametrize("name", ["logistic", "poisson"])
def test_far_predictors_stay_finite(name):
    loss, far = LOSSES[name], np.array([-1e4, 1e4])
    for values in (loss.value(far, np.ones(2)), loss.mean(far), loss.curvature(far), loss.third(far)):
        assert np.isfinite(values).all()
