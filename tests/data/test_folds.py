"""Folds are balanced, depend on the rows alone, and hold out together only what is one observation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss

from ggmtl import GGMTLRegressor
from ggmtl.baselines import PooledClassifier
from ggmtl.data.folds import deal_folds, deal_holdout, share_of_repetitions
from ggmtl.data.reading import read_training
from ggmtl.data.task_data import TaskData
from ggmtl.errors import ParameterError


def make_rows(seed=0, rows=90, d=3, n=5):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, d)) + 2.0, rng.normal(size=rows) - 1.0, rng.integers(n, size=rows)


def make_data(seed=0, rows=137, n=7, d=3, **other):
    X, y, tasks = make_rows(seed, rows, d, n)
    return TaskData(X, y, tasks, **other)


def test_folds_are_balanced_within_every_task():
    data = make_data()
    folds = deal_folds(data, 5)
    for task in range(7):
        sizes = np.bincount(folds[data.task_index == task], minlength=5)
        assert np.ptp(sizes) <= 1


def test_folds_do_not_depend_on_the_order_of_rows():
    data = make_data()
    order = np.random.default_rng(5).permutation(len(data))
    np.testing.assert_array_equal(deal_folds(data.take(order), 5), deal_folds(data, 5)[order])
    np.testing.assert_array_equal(deal_holdout(data.take(order), 0.3), deal_holdout(data, 0.3)[order])


def test_folds_do_not_depend_on_task_labels():
    data = make_data()
    renamed = np.array(["m", "z", "a", "q", "b", "y", "c"])[data.tasks]
    np.testing.assert_array_equal(deal_folds(TaskData(data.X, data.y, renamed), 5), deal_folds(data, 5))


def test_folds_do_not_depend_on_the_order_of_columns():
    data = make_data(d=6)
    other = TaskData(data.X[:, [3, 0, 5, 1, 4, 2]], data.y, data.tasks)
    np.testing.assert_array_equal(deal_folds(other, 5), deal_folds(data, 5))


def test_rows_that_swap_the_values_of_two_features_are_different_rows():
    X = np.random.default_rng(0).normal(size=(400, 2))
    data = TaskData(np.concatenate([X, X[:, ::-1]]), np.tile(X[:, 0], 2), np.arange(800) % 4)
    folds = deal_folds(data, 10)
    assert (folds[:400] == folds[400:]).mean() < 0.2


def test_folds_do_not_depend_on_units():
    data = make_data()
    other = TaskData(data.X * [2.54, 1e-6, 9 / 5] + [0, 0, 32], data.y * 1000 + 273.15, data.tasks)
    np.testing.assert_array_equal(deal_folds(other, 5), deal_folds(data, 5))


def test_equal_rows_share_a_fold():
    data = make_data()
    twice = data.take(np.concatenate([np.arange(len(data)), np.arange(len(data))]))
    folds = deal_folds(twice, 5)
    np.testing.assert_array_equal(folds[: len(data)], folds[len(data) :])


def test_the_seed_deals_anew():
    data = make_data()
    assert (deal_folds(data, 5, seed=1) != deal_folds(data, 5, seed=2)).mean() > 0.5


def test_tasks_of_one_row_are_spread_over_the_folds():
    X, y, _ = make_rows(rows=500)
    sizes = np.bincount(deal_folds(TaskData(X, y, np.arange(500)), 5), minlength=5)
    assert sizes.min() > 60
    assert sizes.max() < 140


@settings(deadline=None, max_examples=40)
@given(rows=st.integers(1, 60), n=st.integers(1, 8), k=st.integers(2, 7), seed=st.integers(0, 2**63))
def test_folds_are_balanced_for_any_shape(rows, n, k, seed):
    data = make_data(seed % 1000, rows, n)
    folds = deal_folds(data, k, seed)
    assert folds.min() >= 0
    assert folds.max() < k
    for task in range(len(data.task_names)):
        assert np.ptp(np.bincount(folds[data.task_index == task], minlength=k)) <= 1


def test_groups_within_tasks_stay_together_and_are_balanced():
    X, y, tasks = make_rows(rows=240, n=4)
    groups = tasks * 100 + np.random.default_rng(6).integers(11, size=240)
    data = TaskData(X, y, tasks, groups=groups)
    folds = deal_folds(data, 3)
    for group in np.unique(groups):
        assert len(set(folds[groups == group])) == 1
    for task in range(4):
        first_rows = np.unique(groups[tasks == task], return_index=True)[1]
        assert np.ptp(np.bincount(folds[tasks == task][first_rows], minlength=3)) <= 1


def test_groups_across_tasks_stay_together_and_are_balanced():
    X, y, tasks = make_rows(rows=240, n=4)
    groups = np.random.default_rng(7).integers(14, size=240)
    folds = deal_folds(TaskData(X, y, tasks, groups=groups), 4)
    per_group = [set(folds[groups == group]) for group in range(14)]
    assert all(len(used) == 1 for used in per_group)
    assert np.ptp(np.bincount([used.pop() for used in per_group], minlength=4)) <= 1


def test_groups_are_dealt_whatever_they_are_called():
    X, y, tasks = make_rows(rows=240, n=4)
    groups = np.random.default_rng(8).integers(14, size=240)
    renamed = np.random.default_rng(9).permutation(14)[groups]
    first, second = (deal_folds(TaskData(X, y, tasks, groups=g), 4) for g in (groups, renamed))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 0.9])
def test_a_holdout_takes_its_share_of_every_task_to_within_one_row(share):
    data = make_data(rows=300)
    held_out = deal_holdout(data, share)
    for task in range(7):
        own = data.task_index == task
        assert abs(held_out[own].sum() - share * own.sum()) < 1


def test_a_holdout_of_tiny_tasks_takes_its_share_on_the_whole():
    X, y, _ = make_rows(rows=2000)
    assert abs(deal_holdout(TaskData(X, y, np.arange(2000)), 0.2).mean() - 0.2) < 0.04


def test_folds_and_shares_out_of_range_are_refused():
    with pytest.raises(ParameterError, match="at least 2"):
        deal_folds(make_data(), 1)
    for share in (0.0, 1.0):
        with pytest.raises(ParameterError, match="between 0 and 1"):
            deal_holdout(make_data(), share)


def test_constant_columns_do_not_disturb_the_folds():
    data = make_data()
    wider = TaskData(np.column_stack([data.X, np.full(len(data), 0.1)]), data.y, data.tasks)
    rescaled = TaskData(np.column_stack([data.X, np.full(len(data), 0.3)]), data.y, data.tasks)
    np.testing.assert_array_equal(deal_folds(wider, 5), deal_folds(rescaled, 5))


# ---------------------------------------------------------------- discrete data


def make_yes_or_no(seed=0, n=10, rows=40):
    """One 0/1 feature, 0/1 target, the same model in every task; the best possible error is about 0.475."""
    rng = np.random.default_rng(seed)
    tasks = np.repeat(np.arange(n), rows)
    x = rng.integers(2, size=len(tasks)).astype(float)
    y = (rng.random(len(tasks)) < 0.3 + 0.3 * x).astype(float)
    return TaskData(x[:, None], y, tasks)


def make_ratings(seed, n=12, rows=60):
    """Ratings from 1 to 5 on ratings from 1 to 5, with slopes 0.5 ± 0.2."""
    rng = np.random.default_rng(seed)
    tasks = np.repeat(np.arange(n), rows)
    x = rng.integers(1, 6, size=len(tasks)).astype(float)
    level, slope = rng.normal(0.0, 0.3, size=n)[tasks], rng.normal(0.5, 0.2, size=n)[tasks]
    y = np.clip(np.rint(3.0 + level + slope * (x - 3.0) + 0.8 * rng.normal(size=len(tasks))), 1, 5)
    return TaskData(x[:, None], y, tasks)


def test_the_error_of_discrete_data_is_that_of_new_rows():
    data = make_yes_or_no()
    model = GGMTLRegressor().fit(data.X, data.y, tasks=data.tasks)
    assert model.validation_error_ == pytest.approx(0.48, abs=0.03)


def test_tasks_that_differ_in_discrete_data_get_models_of_their_own():
    for seed in range(3):
        data = make_ratings(seed)
        model = GGMTLRegressor().fit(data.X, data.y, tasks=data.tasks)
        assert np.ptp(model.coef_) > 0.1


def test_equal_rows_are_spread_over_the_folds_where_x_comes_with_several_y():
    data = make_yes_or_no()
    folds = deal_folds(data, 5)
    for task in range(10):
        own = data.task_index == task
        assert np.ptp(np.bincount(folds[own], minlength=5)) <= 1
        for x in (0.0, 1.0):
            for y in (0.0, 1.0):
                cell = own & (data.X[:, 0] == x) & (data.y == y)
                assert cell.sum() < 4 or len(set(folds[cell])) > 1


def test_pairs_of_equal_answers_are_held_out_as_pairs_of_unequal_ones_are():
    """Two answers of a person to each of six questions: a pair that agrees is no copy of a row."""
    rng = np.random.default_rng(0)
    tasks, x = np.repeat(np.arange(200), 12), np.tile(np.repeat(np.arange(6.0), 2), 200)
    y = (rng.random(len(x)) < np.repeat(rng.beta(0.7, 0.7, 200), 12)).astype(float)
    age = rng.normal(size=200)[tasks]
    first, second = deal_folds(TaskData(np.column_stack([x, age]), y, tasks), 5).reshape(-1, 2).T
    agree = y[::2] == y[1::2]
    assert abs((first == second)[agree].mean() - (first == second)[~agree].mean()) < 0.1
    assert (first == second).mean() < 0.25


def make_questionnaire(n=300, questions=6, seed=0):
    """A yes or no of every task to each of the same questions."""
    rng = np.random.default_rng(seed)
    x = np.tile(np.arange(float(questions)), n)
    y = (rng.random(len(x)) < np.repeat(rng.beta(0.7, 0.7, n), questions)).astype(float)
    return TaskData(x[:, None], y, np.repeat(np.arange(n), questions))


def test_equal_rows_of_many_tasks_are_spread_over_the_folds_of_classes():
    data = make_questionnaire(n=2000)
    folds = deal_folds(data, 5, discrete=True)
    for x in range(6):
        for y in range(2):
            cell = (data.X[:, 0] == x) & (data.y == y)
            assert np.bincount(folds[cell], minlength=5).max() < 0.26 * cell.sum()
    held_out = deal_holdout(data, 0.3, discrete=True)
    assert held_out[data.y == 1].mean() == pytest.approx(held_out[data.y == 0].mean(), abs=0.05)


def test_the_log_loss_of_one_model_is_that_of_new_rows_where_tasks_answer_the_same_questions():
    data, new = make_questionnaire(seed=0), make_questionnaire(n=3000, seed=1)
    model = PooledClassifier(ridge=1.0).fit(data.X, data.y, tasks=data.tasks)
    chosen = PooledClassifier().fit(data.X, data.y, tasks=data.tasks)
    fresh = log_loss(new.y, model.predict_proba(new.X, tasks=np.zeros(len(new), dtype=int)))
    assert chosen.validation_error_ == pytest.approx(fresh, abs=0.01)


def test_tasks_that_are_copies_share_their_folds():
    data = make_data()
    both = data.take(np.concatenate([np.arange(len(data)), np.arange(len(data))]))
    tasks = np.concatenate([data.tasks, data.tasks + 7])
    folds = deal_folds(TaskData(both.X, both.y, tasks), 5, discrete=True)
    np.testing.assert_array_equal(folds[: len(data)], folds[len(data) :])


def test_which_equal_row_is_held_out_is_left_to_chance():
    # Copies dealt out in turn would make every training part the image of what it is tested on.
    data = make_yes_or_no(rows=1000, n=1)
    cell = (data.X[:, 0] == 1.0) & (data.y == 1.0)
    sizes = np.bincount(deal_folds(data, 5)[cell], minlength=5)
    assert np.ptp(sizes) > 1


def test_only_within_the_task_does_another_y_tell_equal_rows_apart():
    data = make_data()
    twice = data.take(np.concatenate([np.arange(len(data)), np.arange(len(data))]))
    # The same x with another y, in a task of its own.
    X = np.concatenate([twice.X, data.X])
    y = np.concatenate([twice.y, data.y + 1.0])
    folds = deal_folds(TaskData(X, y, np.concatenate([twice.tasks, data.tasks + 7])), 5)
    np.testing.assert_array_equal(folds[: len(data)], folds[len(data) : 2 * len(data)])


@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize("grouped", [False, True])
def test_folds_of_discrete_data_do_not_depend_on_order_or_labels(grouped, discrete):
    data = make_yes_or_no()
    rng = np.random.default_rng(3)
    # Weights tell equal rows apart: their sums in every fold must not depend on the order either.
    weight = rng.integers(1, 4, size=len(data)).astype(float)
    groups = np.arange(len(data)) // 2 if grouped else None
    given = TaskData(data.X, data.y, data.tasks, sample_weight=weight, groups=groups)
    order = rng.permutation(len(data))
    names = rng.permutation(10)[data.tasks]
    other = TaskData(data.X, data.y, names, sample_weight=weight, groups=groups).take(order)

    def contents(rows, tasks):
        whole = np.column_stack([rows.X, rows.y, tasks, rows.sample_weight, deal_folds(rows, 5, discrete=discrete)])
        return whole[np.lexsort(whole.T)]

    np.testing.assert_array_equal(contents(other, data.tasks[order]), contents(given, data.tasks))


def test_equal_groups_are_dealt_one_by_one_in_discrete_data():
    data = make_yes_or_no(n=1, rows=120)
    groups = np.arange(120) // 3
    folds = deal_folds(TaskData(data.X, data.y, data.tasks, groups=groups), 4)
    assert all(len(set(folds[groups == group])) == 1 for group in range(40))
    assert np.ptp(np.bincount(folds[::3], minlength=4)) <= 1


def test_a_discrete_x_shared_by_all_tasks_is_held_out_row_by_row():
    rng = np.random.default_rng(0)
    X = rng.integers(2, size=(40, 1)).astype(float)
    data = read_training(X, (rng.random((40, 3)) < 0.3 + 0.3 * X).astype(float))
    folds = deal_folds(data, 5).reshape(3, 40)
    assert (folds == folds[0]).all()
    assert np.ptp(np.bincount(folds[0], minlength=5)) <= 1


def test_copies_of_rows_that_all_tasks_share_stay_together():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20, 2)), rng.normal(size=(20, 3))
    folds = deal_folds(read_training(np.tile(X, (2, 1)), np.tile(y, (2, 1))), 4).reshape(3, 2, 20)
    assert (folds == folds[0, 0]).all()


def test_repetitions_are_counted_within_tasks():
    tasks = np.array([0, 0, 0, 0, 1, 1, 2])
    x = np.array([1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0])
    y = np.array([0.0, 0.0, 1.0, 0.0, 5.0, 5.0, 7.0])
    assert share_of_repetitions(tasks, [x, y]) == pytest.approx(1 / 7)
