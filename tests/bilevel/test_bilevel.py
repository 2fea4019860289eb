"""The outer problem as a whole: Algorithm 1, the quasi-Newton default and the closed-form edges."""

import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from ggmtl import KNN, Complete, GGMTLRegressor
from ggmtl.baselines import HubRegressor
from ggmtl.bilevel.algorithm import learn_by_validation
from ggmtl.bilevel.inner import solve_inner
from ggmtl.bilevel.level import Settings, refit
from ggmtl.bilevel.problem import Sparsity
from ggmtl.datasets import make_clusters, make_line, make_star, make_tree
from ggmtl.errors import ParameterError
from ggmtl.fit.levels import candidate_models
from ggmtl.statistics.least_squares import FoldedLoss
from ggmtl.statistics.task_statistics import TaskStatistics
from made import folded_of, settings_of

GENERATORS = {"line": make_line, "tree": make_tree, "star": make_star}


def learn(folded: FoldedLoss, settings: Settings, hub_start=None, **options):
    names = np.arange(folded.total.n_tasks)
    start = np.zeros(folded.total.n_features) if hub_start is None else hub_start
    models = partial(candidate_models, settings=settings)
    return learn_by_validation(folded, settings, names, start, models, **options)


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize("penalty", ["squared_l2", "l2"])
@pytest.mark.parametrize("solver", ["projected_gradient", "quasi_newton"])
def test_algorithm_1_runs_with_the_papers_settings(name, published, penalty, solver):
    data = GENERATORS[name](random_state=0, published=published)
    model = GGMTLRegressor(
        penalty=penalty,
        criterion="validation",
        hub=False,
        coupling=1.0,
        edge_entropy=1e-3,
        candidates=KNN(k=10),
        validation=0.2,
        edge_solver=solver,
        max_iter=15,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(data.X, data.y, tasks=data.tasks)
    weights = model.edge_weights_ / model.coupling_[0]
    assert ((weights >= 0) & (weights <= 1)).all()
    assert (np.diff(model.history_) <= 1e-10 * abs(model.history_[0])).all()
    assert model.history_[-1] < model.history_[0]
    assert np.isfinite(model.predict(data.test.X, tasks=data.test.tasks)).all()


def test_closed_form_edges_reach_the_optimum_of_the_default_solver():
    folded = folded_of(make_line(n_tasks=8, n_features=4, n_samples=30, random_state=1))
    settings = settings_of(folded, sparsity=Sparsity(edge_l1=0.5), tol=1e-7, max_iter=500)
    (default,) = learn(folded, settings)
    (closed,) = learn(folded, replace(settings, edge_solver="closed_form"))
    assert closed.value == pytest.approx(default.value, rel=1e-4)
    assert (np.diff(closed.history) <= 0).all()


def test_a_trial_step_of_the_closed_form_is_taken():
    folded = folded_of(make_line(n_tasks=6, n_features=3, n_samples=30, random_state=0))
    settings = settings_of(folded, sparsity=Sparsity(edge_l1=0.05), max_iter=1, edge_solver="closed_form")
    (fit,) = learn(folded, settings)
    assert len(fit.history) >= 2
    assert fit.history[1] < fit.history[0]


def test_must_link_edges_stay_at_one():
    data = make_line(n_tasks=6, n_features=3, n_samples=20, random_state=0)
    folded = folded_of(data)
    settings = settings_of(folded, candidates=Complete(must_link=[(0, 5)]), sparsity=Sparsity(edge_l1=50.0))
    (fit,) = learn(folded, settings)
    linked = (fit.edges == [0, 5]).all(axis=1)
    assert fit.edge_values[linked].tolist() == [1.0]
    assert fit.edge_values[~linked].max() < 0.2


def test_heavy_l1_empties_the_graph_and_no_penalty_keeps_it():
    folded = folded_of(make_line(n_tasks=6, n_features=3, n_samples=20, random_state=0))
    (empty,) = learn(folded, settings_of(folded, sparsity=Sparsity(edge_l1=1e6)))
    (full,) = learn(folded, settings_of(folded))
    assert empty.edge_values.max() == 0.0
    assert full.edge_values.max() > 0.5


def test_refit_solves_the_inner_problem_on_all_rows():
    folded = folded_of(make_line(n_tasks=6, n_features=3, n_samples=20, random_state=0))
    settings = settings_of(folded)
    (fit,) = learn(folded, settings)
    problem = settings.problem(folded.total, fit.edges, fit.coupling, fit.hub)
    again = solve_inner(problem, fit.edge_values).coefficients
    np.testing.assert_allclose(fit.coefficients, again, rtol=1e-7, atol=1e-9)
    assert refit(fit, folded.total, settings).value == fit.value


def test_learned_strengths_lower_the_outer_loss():
    folded = folded_of(make_line(n_tasks=8, n_features=4, n_samples=20, random_state=2), folds=3)
    given = settings_of(folded, hub=True)
    hub = np.full(folded.total.n_features, 1.0)
    (fixed,) = learn(folded, replace(given, coupling=np.full(5, 1e-4), max_iter=1), hub)
    (learned,) = learn(folded, replace(given, coupling=None), hub)
    assert learned.value < fixed.value
    assert (learned.coupling > 0).all()
    assert (learned.hub > 0).all()


def test_entropy_levels_are_walked_from_dense_to_sparse():
    folded = folded_of(make_line(n_tasks=8, n_features=4, n_samples=20, random_state=2), folds=3)
    fits = learn(folded, settings_of(folded), entropies=(0.0, 0.1, 3.0))
    sizes = [(fit.edge_values > 1e-3).sum() for fit in fits]
    assert len(fits) == 3
    assert sizes[0] >= sizes[1] >= sizes[2]
    assert sizes[2] < sizes[0]


def test_statistics_without_folds_cannot_be_validated_on():
    data = make_line(n_tasks=4, n_features=3, n_samples=20, random_state=0)
    statistics = TaskStatistics.from_data(data)
    with pytest.raises(ParameterError, match="without folds"):
        GGMTLRegressor(criterion="validation").fit_statistics(statistics)


def test_hitting_max_iter_warns_with_the_remedy():
    data = make_line(n_tasks=6, n_features=5, n_samples=20, random_state=0)
    model = GGMTLRegressor(
        criterion="validation", hub=False, coupling=10.0, edge_entropy=0.0, validation=0.2, max_iter=1, tol=1e-12
    )
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        model.fit(data.X, data.y, tasks=data.tasks)
    assert model.status_ == "max_iter"
    assert not model.converged_


@pytest.mark.parametrize("seed", range(3))
def test_validation_ties_tasks_as_strongly_as_clusters_deserve(seed):
    """Candidates across clusters keep the strength of the uniform graph low; edges must not be held to that."""
    data = make_clusters(3, n_tasks=18, n_features=5, n_samples=15, random_state=seed)

    def off(model):
        return np.sqrt(np.mean((model.fit(data.X, data.y, tasks=data.tasks).coef_ - data.coefficients) ** 2))

    graph = GGMTLRegressor(criterion="validation", hub=False, edge_entropy=0.0, validation=3, max_iter=2000)
    assert off(graph) < 0.77 * off(HubRegressor())
