"""The simple competitors for classes and counts: each against an independent solution of its problem."""

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression, PoissonRegressor
from sklearn.metrics import log_loss, mean_poisson_deviance
from sklearn.multiclass import OneVsRestClassifier
from sklearn.utils.estimator_checks import check_estimator

from ggmtl.baselines import (
    HubClassifier,
    HubRegressor,
    IndependentClassifier,
    IndependentRegressor,
    PooledClassifier,
    PooledRegressor,
)
from ggmtl.errors import InputError, ParameterError, UnavailableError, UnseenTaskWarning
from ggmtl.statistics.task_statistics import TaskStatistics

CLASSIFIERS = [IndependentClassifier, PooledClassifier, HubClassifier]
REGRESSORS = [IndependentRegressor, PooledRegressor, HubRegressor]


def make_rows(spread=0.7, n_tasks=10, n_rows=40, seed=0):
    rng = np.random.default_rng(seed)
    tasks = np.repeat(np.arange(n_tasks), n_rows)
    X = rng.standard_normal((len(tasks), 2))
    models = np.array([1.0, -0.5]) + spread * rng.standard_normal((n_tasks, 2))
    return X, (X * models[tasks]).sum(axis=1) + spread * rng.standard_normal(n_tasks)[tasks], tasks


@pytest.fixture(scope="module")
def classes():
    """The first task has one class only."""
    X, eta, tasks = make_rows()
    y = np.where(np.random.default_rng(1).random(len(eta)) < 1 / (1 + np.exp(-eta)), "yes", "no")
    y[tasks == 0] = "no"
    return X, y, tasks


@pytest.fixture(scope="module")
def counts():
    X, eta, tasks = make_rows(spread=0.3)
    rng = np.random.default_rng(1)
    exposure = rng.uniform(0.5, 4.0, len(eta))
    return X, rng.poisson(exposure * np.exp(0.5 * eta)).astype(float), tasks, exposure


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_classifiers_pass_scikit_learns_checks(kind):
    check_estimator(kind(), on_skip=None)


def test_the_pooled_classifier_is_one_logistic_regression(classes):
    X, y, tasks = classes
    model = PooledClassifier(ridge=3.0, standardize=False).fit(X, y, tasks=tasks)
    one = LogisticRegression(C=1 / 3.0, tol=1e-10, max_iter=1000).fit(X, y)
    np.testing.assert_allclose(model.coef_, np.tile(one.coef_, (10, 1)), atol=1e-4)
    np.testing.assert_allclose(model.predict_proba(X, tasks=tasks), one.predict_proba(X), atol=1e-4)


def test_counts_of_all_tasks_are_one_poisson_regression_of_rates(counts):
    X, y, tasks, exposure = counts
    model = PooledRegressor(ridge=2.0, standardize=False, loss="poisson").fit(X, y, tasks=tasks, exposure=exposure)
    alpha = 2.0 / exposure.sum()
    one = PoissonRegressor(alpha=alpha, tol=1e-10, max_iter=1000).fit(X, y / exposure, sample_weight=exposure)
    np.testing.assert_allclose(model.coef_[3], one.coef_, atol=1e-5)
    np.testing.assert_allclose(model.predict(X, tasks=tasks, exposure=exposure), exposure * one.predict(X), rtol=1e-4)
    assert 0 < model.score(X, y, tasks=tasks, exposure=exposure) < 1


def test_separate_models_minimise_loss_and_ridge(classes):
    """By a general optimiser, the intercept drawn to the log odds of all rows."""
    X, y, tasks = classes
    model = IndependentClassifier(ridge=1.5, standardize=False).fit(X, y, tasks=tasks)
    base = np.log((y == "yes").sum() / (y == "no").sum())
    for task in (0, 4):
        own, sign = X[tasks == task], np.where(y[tasks == task] == "yes", 1.0, -1.0)

        def objective(w, own=own, sign=sign):
            slope, intercept = w[:2], w[2]
            drawn = slope @ slope + (intercept + X.mean(axis=0) @ slope - base) ** 2
            return np.logaddexp(0.0, -sign * (own @ slope + intercept)).sum() + 0.75 * drawn

        best = minimize(objective, np.zeros(3), options={"gtol": 1e-8}).x
        np.testing.assert_allclose([*model.coef_[task], model.intercept_[task]], best, atol=1e-4)


def test_a_hub_of_great_strength_is_one_model_and_a_weak_one_is_none(classes):
    X, y, tasks = classes
    strong = HubClassifier(strength=1e6, intercept_strength=1e6).fit(X, y, tasks=tasks)
    assert np.ptp(strong.coef_, axis=0).max() < 1e-2
    np.testing.assert_allclose(strong.hub_coef_, strong.coef_[0], atol=1e-3)
    weak = HubClassifier(strength=1e-2, intercept_strength=1e-2).fit(X, y, tasks=tasks)
    own = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(X[tasks == 3], y[tasks == 3])
    np.testing.assert_allclose(weak.coef_[3], own.coef_[0], atol=0.05)


def test_strengths_are_chosen_on_held_out_rows(classes, counts):
    X, y, tasks = classes
    hub = HubClassifier().fit(X, y, tasks=tasks)
    pooled, alone = PooledClassifier().fit(X, y, tasks=tasks), IndependentClassifier().fit(X, y, tasks=tasks)
    assert hub.validation_error_ < min(pooled.validation_error_, alone.validation_error_)
    # In the rows trained on the loss is smaller than in those held out.
    assert log_loss(y == "yes", hub.predict_proba(X, tasks=tasks)[:, 1]) < hub.validation_error_
    X, y, tasks, exposure = counts
    model = HubRegressor(loss="poisson").fit(X, y, tasks=tasks, exposure=exposure)
    found = mean_poisson_deviance(y, model.predict(X, tasks=tasks, exposure=exposure))
    assert found < model.validation_error_ < 1.5 * found


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_without_folds_strengths_come_from_the_evidence(kind, classes):
    X, y, tasks = classes
    model = kind(validation=None).fit(X, y, tasks=tasks)
    assert model.validation_error_ is None
    assert np.abs(model.coef_).max() < 10


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_one_task_is_one_logistic_regression(kind, classes):
    X, y, tasks = classes
    model = kind().fit(X[tasks == 3], y[tasks == 3])
    assert model.coef_.shape == (1, 2)
    assert (model.predict(X[tasks == 3]) == y[tasks == 3]).mean() > 0.7


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_a_column_may_hold_the_task(kind, classes):
    X, y, tasks = classes
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "shop": tasks})
    model = kind(task="shop").fit(frame, y)
    assert model.score(frame, y) > 0.6
    with pytest.raises(InputError, match="OneVsRestClassifier"):
        kind(task="shop").fit(frame, np.arange(len(y)) % 3)
    assert OneVsRestClassifier(kind(task="shop")).fit(frame, np.arange(len(y)) % 3).predict(frame).shape == (len(y),)


def test_the_common_model_predicts_for_tasks_never_seen(classes):
    X, y, tasks = classes
    model = HubClassifier(unseen="hub").fit(X, y, tasks=tasks)
    with pytest.warns(UnseenTaskWarning):
        found = model.decision_function(X[:2], tasks=[77, 78])
    np.testing.assert_allclose(found, X[:2] @ model.hub_coef_ + model.hub_intercept_)


@pytest.mark.parametrize("kind", REGRESSORS)
def test_exposure_and_statistics_are_refused_where_they_have_no_meaning(kind, counts):
    X, y, tasks, exposure = counts
    with pytest.raises(ParameterError, match="exposure"):
        kind().fit(X, y, tasks=tasks, exposure=exposure)
    with pytest.raises(UnavailableError, match="fit_statistics"):
        kind(loss="poisson").fit_statistics(TaskStatistics.from_arrays(X, y, tasks))
    with pytest.raises(ParameterError, match="loss"):
        kind(loss="huber").fit(X, y, tasks=tasks)
