"""Folds within every task."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score, cross_validate

from ggmtl import GGMTLRegressor
from ggmtl.baselines import HubRegressor
from ggmtl.datasets import make_clusters
from ggmtl.errors import InputError, ParameterError
from ggmtl.model_selection import TaskKFold


@pytest.fixture(scope="module")
def clusters():
    return make_clusters(2, n_tasks=5, n_features=2, n_samples=7, random_state=0)


def folds_of(splitter, X, **given):
    fold = np.full(len(X), -1)
    for k, (train, test) in enumerate(splitter.split(X, **given)):
        np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), np.arange(len(X)))
        fold[test] = k
    return fold


@given(st.lists(st.integers(0, 6), min_size=12, max_size=60), st.integers(2, 4), st.integers(0, 3))
def test_folds_differ_by_one_row_in_every_task_and_overall(tasks, n_splits, seed):
    tasks = np.array(tasks)
    size = np.bincount(tasks, minlength=7)
    assert (size > 1).any()
    if size[size > 1].sum() < n_splits:
        return
    fold = folds_of(TaskKFold(n_splits, random_state=seed), tasks[:, None], groups=tasks)
    assert ((fold < 0) == (size[tasks] == 1)).all()
    for rows in [fold[tasks == t] for t in np.flatnonzero(size > 1)] + [fold[fold >= 0]]:
        assert np.ptp(np.bincount(rows, minlength=n_splits)) <= 1


def test_every_task_has_training_rows_in_every_split(clusters):
    for train, _ in TaskKFold(7).split(clusters.X, groups=clusters.tasks):
        assert set(clusters.tasks[train].tolist()) == set(clusters.task_names.tolist())


def test_a_task_with_one_row_is_always_trained_on():
    tasks = ["a"] * 4 + ["b"]
    assert folds_of(TaskKFold(2), np.zeros((5, 1)), groups=tasks)[4] == -1


def test_the_task_column_of_a_table_and_of_an_array_give_the_same_folds(clusters):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"task": clusters.tasks, "colour": "red", "x": clusters.X[:, 0]})
    expected = folds_of(TaskKFold(3), clusters.X, groups=clusters.tasks)
    np.testing.assert_array_equal(folds_of(TaskKFold(3, task="task"), frame), expected)
    np.testing.assert_array_equal(folds_of(TaskKFold(3, task=0), frame), expected)
    array = np.column_stack([clusters.X, clusters.tasks])
    np.testing.assert_array_equal(folds_of(TaskKFold(3, task=-1), array), expected)


def test_the_seed_decides_the_folds(clusters):
    first, again, other = (
        folds_of(TaskKFold(3, random_state=seed), clusters.X, groups=clusters.tasks) for seed in (None, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_groups_of_a_task_stay_together(clusters):
    visits = np.arange(len(clusters.tasks)) // 2 + 100 * clusters.tasks
    X = np.column_stack([clusters.tasks, clusters.X])
    fold = folds_of(TaskKFold(2, task=0), X, groups=visits)
    for visit in np.unique(visits):
        assert len(set(fold[visits == visit])) == 1


def test_a_group_of_several_tasks_is_refused():
    X = np.array([[0.0], [0.0], [1.0], [1.0]])
    with pytest.raises(InputError, match="groups: 'b' has rows of several tasks"):
        next(TaskKFold(2, task=0).split(X, groups=["a", "b", "b", "c"]))


def test_scikit_learns_tools_take_it(clusters):
    X = np.column_stack([clusters.tasks, clusters.X])
    cv = TaskKFold(3, task=0)
    search = GridSearchCV(HubRegressor(task=0), {"strength": [0.1, 10.0]}, cv=cv).fit(X, clusters.y)
    assert search.best_params_["strength"] in (0.1, 10.0)
    assert cross_val_predict(HubRegressor(task=0), X, clusters.y, cv=cv).shape == clusters.y.shape
    default = GGMTLRegressor(task=0, candidates="complete", validation=2)
    assert cross_val_score(default, X, clusters.y, cv=cv).shape == (3,)
    assert clone(GGMTLRegressor(validation=cv)).validation.n_splits == 3
    assert repr(cv) == "TaskKFold(n_splits=3, random_state=None, task=0)"


def test_routed_groups_reach_it_unasked(clusters):
    import sklearn

    X = np.column_stack([clusters.tasks, clusters.X])
    visits = np.arange(len(X)) // 2 + 100 * clusters.tasks
    with sklearn.config_context(enable_metadata_routing=True):
        scores = cross_validate(
            HubRegressor(task=0).set_fit_request(groups=True),
            X,
            clusters.y,
            cv=TaskKFold(2, task=0),
            params={"groups": visits},
        )
    assert np.isfinite(scores["test_score"]).all()


def test_what_cannot_be_split_says_why(clusters):
    with pytest.raises(InputError, match="must know the task of every row"):
        next(TaskKFold().split(clusters.X))
    with pytest.raises(InputError, match="n_splits=5 is too many: 2 of the folds would have no rows"):
        next(TaskKFold().split(np.zeros((4, 1)), groups=["a", "a", "a", "b"]))
    for wrong in (1, 2.0, True, None):
        with pytest.raises(ParameterError, match="n_splits must be a whole number of at least 2"):
            next(TaskKFold(wrong).split(clusters.X, groups=clusters.tasks))


def test_a_task_column_that_is_missing_is_named():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(InputError, match="no column 'school'"):
        next(TaskKFold(task="school").split(pandas.DataFrame({"a": [1.0, 2.0]})))
