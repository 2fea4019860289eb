"""Statistics are the sums they claim to be, they add up, and folds depend on nothing but the rows."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ggmtl.errors import InputError, InputTypeError, ParameterError
from ggmtl.evidence.hub import hub_evidence
from ggmtl.runtime.kernels import segment_cross_products
from ggmtl.statistics.least_squares import LeastSquares, sum_of
from ggmtl.statistics.scaling import Scaling
from ggmtl.statistics.task_statistics import TaskStatistics

SUMS = ("gram", "moment", "target_square", "feature_sum", "target_sum", "count")


def make_rows(seed=0, rows=90, d=3, n=5):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, d)) + 2.0, rng.normal(size=rows) - 1.0, rng.integers(n, size=rows)


def direct_sums(X, y, tasks, weight=None):
    """The definitions, task by task."""
    weight = np.ones(len(y)) if weight is None else weight
    out = {name: [] for name in SUMS}
    for task in np.unique(tasks):
        own = tasks == task
        A, b, w = X[own], y[own], weight[own]
        out["gram"].append(A.T @ (w[:, None] * A))
        out["moment"].append(A.T @ (w * b))
        out["target_square"].append(b @ (w * b))
        out["feature_sum"].append(w @ A)
        out["target_sum"].append(w @ b)
        out["count"].append(w.sum())
    return {name: np.array(values) for name, values in out.items()}


def assert_same(statistics, other, rtol=1e-11):
    for name in SUMS:
        left = getattr(statistics, name)
        right = other[name] if isinstance(other, dict) else getattr(other, name)
        np.testing.assert_allclose(left, right, rtol=rtol, atol=rtol * np.abs(right).max(initial=1.0))


# ---------------------------------------------------------------- sums


def test_sums_equal_direct_computation():
    X, y, tasks = make_rows()
    assert_same(TaskStatistics.from_arrays(X, y, tasks), direct_sums(X, y, tasks))


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_sums_equal_direct_computation_for_any_shape(data):
    rows, d = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 4))
    values = st.floats(-100, 100, width=32)
    X = data.draw(arrays(np.float64, (rows, d), elements=values))
    y = data.draw(arrays(np.float64, rows, elements=values))
    tasks = data.draw(arrays(np.int64, rows, elements=st.integers(0, 4)))
    folds = data.draw(arrays(np.int64, rows, elements=st.integers(0, 3)))
    statistics = TaskStatistics.from_arrays(X, y, tasks, folds=folds)
    expected = direct_sums(X, y, tasks)
    for name in SUMS:
        np.testing.assert_allclose(getattr(statistics, name), expected[name], rtol=1e-9, atol=1e-7)
    assert statistics.n_folds == folds.max() + 1
    np.testing.assert_array_equal(statistics.count, np.bincount(tasks)[np.unique(tasks)])


def test_segment_cross_products_equal_a_loop():
    rng = np.random.default_rng(1)
    rows, segment = rng.normal(size=(50, 4)), rng.integers(9, size=50)
    expected = [rows[segment == s].T @ rows[segment == s] for s in range(10)]
    np.testing.assert_allclose(segment_cross_products(rows, segment, 10), expected, atol=1e-13)


def test_splitting_rows_and_adding_changes_nothing():
    X, y, tasks = make_rows()
    whole = TaskStatistics.from_arrays(X, y, tasks)
    first, second = (TaskStatistics.from_arrays(X[s], y[s], tasks[s]) for s in (slice(40), slice(40, None)))
    assert_same(first + second, whole)
    assert_same(second + first, whole)


def test_subtraction_undoes_addition():
    X, y, tasks = make_rows()
    first, second = (TaskStatistics.from_arrays(X[s], y[s], tasks[s]) for s in (slice(60), slice(60, None)))
    assert_same((first + second) - second, first)


def test_adding_statistics_of_other_tasks_makes_the_union():
    X, y, tasks = make_rows(n=6)
    low, high = tasks < 4, tasks >= 2
    once = TaskStatistics.from_arrays(X[low], y[low], tasks[low])
    rest = tasks >= 4
    union = once + TaskStatistics.from_arrays(X[rest], y[rest], tasks[rest])
    assert union.task_names.tolist() == list(range(6))
    assert_same(union, direct_sums(X, y, tasks))
    overlap = once + TaskStatistics.from_arrays(X[high], y[high], tasks[high])
    np.testing.assert_array_equal(overlap.count[2:4], 2 * once.count[2:4])


def test_subtracting_an_unknown_task_is_refused():
    X, y, tasks = make_rows()
    statistics = TaskStatistics.from_arrays(X, y, tasks)
    with pytest.raises(InputError, match="Cannot subtract task"):
        statistics - TaskStatistics.from_arrays(X, y, tasks + 1)


def test_other_features_or_types_do_not_add():
    X, y, tasks = make_rows()
    statistics = TaskStatistics.from_arrays(X, y, tasks)
    with pytest.raises(InputError, match="different features"):
        statistics + TaskStatistics.from_arrays(X[:, :2], y, tasks)
    with pytest.raises(InputTypeError, match="Only TaskStatistics"):
        statistics + 1
    with pytest.raises(InputTypeError, match="Only TaskStatistics"):
        statistics - 1


def test_large_means_lose_no_digits():
    rng = np.random.default_rng(2)
    X, tasks = rng.integers(-8, 9, size=(200, 2)).astype(float), np.repeat(np.arange(4), 50)
    y = rng.integers(-8, 9, size=200).astype(float)
    near = TaskStatistics.from_arrays(X, y, tasks)
    far = TaskStatistics.from_arrays(X + 1e8, y - 1e8, tasks)
    halves = TaskStatistics.from_arrays(X[::2] + 1e8, y[::2] - 1e8, tasks[::2]) + TaskStatistics.from_arrays(
        X[1::2] + 1e8, y[1::2] - 1e8, tasks[1::2]
    )
    expected = Scaling.from_statistics(near, intercept=True, standardize=True)
    for statistics in (far, halves, (halves + far) - far):
        scaling = Scaling.from_statistics(statistics, intercept=True, standardize=True)
        np.testing.assert_allclose(scaling.scale, expected.scale, rtol=1e-9)
        np.testing.assert_allclose(
            scaling.design(statistics)[0].gram, expected.design(near)[0].gram, rtol=1e-7, atol=1e-6
        )
        np.testing.assert_allclose(
            scaling.design(statistics)[0].moment, expected.design(near)[0].moment, rtol=1e-7, atol=1e-6
        )


def test_weights_equal_repetition():
    X, y, tasks = make_rows()
    weight = np.random.default_rng(3).integers(0, 4, size=len(y))
    repeated = np.repeat(np.arange(len(y)), weight)
    weighted = TaskStatistics.from_arrays(X, y, tasks, sample_weight=weight)
    assert_same(weighted, TaskStatistics.from_arrays(X[repeated], y[repeated], tasks[repeated]))


def test_weights_equal_repetition_with_folds():
    X, y, tasks = make_rows()
    weight = np.random.default_rng(4).integers(0, 3, size=len(y))
    repeated = np.repeat(np.arange(len(y)), weight)
    weighted = TaskStatistics.from_arrays(X, y, tasks, sample_weight=weight, folds=3)
    other = TaskStatistics.from_arrays(X[repeated], y[repeated], tasks[repeated], folds=3)
    for k in range(3):
        assert_same(weighted.fold(k), other.fold(k))


@pytest.mark.parametrize("weight", [2.0, np.full((90, 1), 2.0)], ids=["scalar", "column"])
def test_weights_of_other_shapes_go_with_given_folds(weight):
    X, y, tasks = make_rows()
    statistics = TaskStatistics.from_arrays(X, y, tasks, sample_weight=weight, folds=np.arange(90) % 2)
    np.testing.assert_allclose(statistics.count, 2 * np.bincount(tasks), rtol=1e-14)


# ---------------------------------------------------------------- folds kept apart


def test_folds_sum_to_the_whole():
    X, y, tasks = make_rows()
    statistics = TaskStatistics.from_arrays(X, y, tasks, folds=4)
    whole = TaskStatistics.from_arrays(X, y, tasks)
    assert statistics.n_folds == 4
    assert whole.n_folds == 0
    assert_same(statistics, whole)
    assert_same(statistics.fold(0) + statistics.fold(1) + statistics.fold(2) + statistics.fold(3), whole)
    for k in range(4):
        assert_same(statistics.total() - statistics.fold(k), whole - statistics.fold(k))
    assert statistics.total().n_folds == 0


def test_given_folds_are_used():
    X, y, tasks = make_rows()
    folds = np.arange(len(y)) % 3
    statistics = TaskStatistics.from_arrays(X, y, tasks, folds=folds)
    own = folds == 1
    np.testing.assert_allclose(statistics.fold(1).count, np.bincount(tasks[own], minlength=5))


def test_statistics_with_equal_folds_add_fold_by_fold():
    X, y, tasks = make_rows()
    a = TaskStatistics.from_arrays(X[:50], y[:50], tasks[:50], folds=2)
    b = TaskStatistics.from_arrays(X[50:], y[50:], tasks[50:], folds=2)
    assert (a + b).n_folds == 2
    assert_same((a + b).fold(1), a.fold(1) + b.fold(1))
    assert (a + b.total()).n_folds == 0


@pytest.mark.parametrize("folds", [np.zeros(5, dtype=int), np.full(90, -1), np.full(90, 0.5)])
def test_folds_that_do_not_fit_are_refused(folds):
    with pytest.raises(ParameterError, match="folds must be whole numbers"):
        TaskStatistics.from_arrays(*make_rows(), folds=folds)


def test_a_fold_out_of_range_is_refused():
    with pytest.raises(ParameterError, match=r"fold must be in 0 … 1\. Got 2"):
        TaskStatistics.from_arrays(*make_rows(), folds=2).fold(2)


def test_taking_tasks_keeps_their_sums():
    statistics = TaskStatistics.from_arrays(*make_rows(), folds=2)
    taken = statistics.take(np.array([3, 1]))
    assert taken.task_names.tolist() == [3, 1]
    np.testing.assert_array_equal(taken.gram, statistics.gram[[3, 1]])
    assert taken.n_folds == 2


# ---------------------------------------------------------------- scaling


def test_scaled_columns_have_pooled_mean_zero_and_deviation_one():
    X, y, tasks = make_rows()
    statistics = TaskStatistics.from_arrays(X * [1, 10, 1e-3], y, tasks, folds=3)
    scaling = Scaling.from_statistics(statistics, intercept=True, standardize=True)
    loss = sum_of(scaling.design(statistics))
    total = loss.gram.sum(axis=0) / len(y)
    np.testing.assert_allclose(np.diag(total), 1.0, rtol=1e-12)
    np.testing.assert_allclose(total[-1, :-1], 0.0, atol=1e-13)
    np.testing.assert_allclose(loss.moment[:, -1].sum(), 0.0, atol=1e-11)
    np.testing.assert_allclose(loss.target_square.sum(), len(y), rtol=1e-12)


def test_scaled_statistics_are_those_of_scaled_rows():
    X, y, tasks = make_rows()
    statistics = TaskStatistics.from_arrays(X, y, tasks)
    for intercept in (True, False):
        scaling = Scaling.from_statistics(statistics, intercept, standardize=True)
        Z = scaling.design_rows(X)
        t = (y - scaling.target_center) / scaling.target_scale
        expected = direct_sums(Z, t, tasks)
        loss = scaling.design(statistics)[0]
        for name in ("gram", "moment", "target_square", "count"):
            np.testing.assert_allclose(getattr(loss, name), expected[name], rtol=1e-11, atol=1e-11)


def test_without_an_intercept_nothing_is_centred():
    X, y, tasks = make_rows()
    scaling = Scaling.from_statistics(TaskStatistics.from_arrays(X, y, tasks), intercept=False, standardize=True)
    assert not scaling.center.any()
    assert scaling.target_center == 0
    np.testing.assert_allclose(scaling.scale, np.sqrt((X**2).mean(axis=0)))


@pytest.mark.parametrize("constant", [0.0, 0.1, 1e9])
@pytest.mark.parametrize("intercept", [True, False])
def test_constant_columns_stay_finite(constant, intercept):
    X, y, tasks = make_rows()
    X[:, 1] = constant
    statistics = TaskStatistics.from_arrays(X, y, tasks)
    scaling = Scaling.from_statistics(statistics, intercept, standardize=True)
    assert (scaling.scale > 0).all()
    gram = scaling.design(statistics)[0].gram
    assert np.isfinite(gram).all()
    if intercept:
        assert scaling.scale[1] == 1
        np.testing.assert_allclose(gram[:, 1], 0.0, atol=1e-6)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("standardize", [True, False])
def test_user_units_give_the_same_predictions(intercept, standardize):
    X, y, tasks = make_rows()
    statistics = TaskStatistics.from_arrays(X, y, tasks)
    scaling = Scaling.from_statistics(statistics, intercept, standardize)
    coefficients = np.random.default_rng(10).normal(size=(5, 3 + intercept))
    slopes, intercepts = scaling.to_user_units(coefficients)
    scaled = np.einsum("rp,rp->r", scaling.design_rows(X), coefficients[tasks])
    expected = scaled * scaling.target_scale + scaling.target_center
    np.testing.assert_allclose(np.einsum("rd,rd->r", X, slopes[tasks]) + intercepts[tasks], expected, atol=1e-12)
    if not standardize:
        np.testing.assert_array_equal(scaling.scale, 1.0)


def test_least_squares_is_the_loss_of_the_rows():
    X, y, tasks = make_rows()
    loss = TaskStatistics.from_arrays(X, y, tasks).least_squares(intercept=True)
    assert isinstance(loss, LeastSquares)
    models = np.random.default_rng(11).normal(size=(5, 4))
    residual = np.einsum("rp,rp->r", np.column_stack([X, np.ones(len(y))]), models[tasks]) - y
    np.testing.assert_allclose(loss.value(models), 0.5 * residual @ residual, rtol=1e-12)
    np.testing.assert_allclose(loss.task_values(models), 0.5 * np.bincount(tasks, residual**2), rtol=1e-12)
    slope = np.column_stack([np.bincount(tasks, residual * column) for column in [*X.T, np.ones(len(y))]])
    np.testing.assert_allclose(loss.gradient(models), slope, atol=1e-11)


# ---------------------------------------------------------------- frames

FRAMES = {"pandas": "DataFrame", "polars": "DataFrame", "pyarrow": "table"}


@pytest.mark.parametrize("library", FRAMES)
def test_a_frame_gives_the_same_statistics_as_arrays(library):
    X, y, tasks = make_rows()
    weight = np.random.default_rng(12).integers(1, 4, size=len(y))
    columns = {"score": y, "a": X[:, 0], "school": tasks, "b": X[:, 1], "w": weight, "c": X[:, 2]}
    frame = getattr(pytest.importorskip(library), FRAMES[library])(columns)
    statistics = TaskStatistics.from_frame(frame, task="school", target="score", sample_weight="w")
    assert statistics.feature_names == ("a", "b", "c")
    assert_same(statistics, direct_sums(X, y, tasks, weight))
    chosen = TaskStatistics.from_frame(frame, task="school", target="score", features=["c", "a"], folds=2)
    assert chosen.feature_names == ("c", "a")
    assert chosen.n_folds == 2
    assert_same(chosen, direct_sums(X[:, [2, 0]], y, tasks))


@pytest.mark.parametrize(
    "wrong", [{"task": "schol"}, {"target": "scor"}, {"features": ["age "]}, {"sample_weight": "ww"}]
)
def test_a_misspelt_column_is_answered_with_the_right_one(wrong):
    frame = pytest.importorskip("pandas").DataFrame({"score": [1.0], "age": [2.0], "school": ["a"], "w": [1.0]})
    with pytest.raises(InputError, match=r"The table has no column .*Did you mean"):
        TaskStatistics.from_frame(frame, **({"task": "school", "target": "score"} | wrong))


@pytest.mark.parametrize("features", [["age", "score"], ["age", "age"], ["school", "age"]])
def test_features_are_different_columns_and_not_the_target(features):
    frame = pytest.importorskip("pandas").DataFrame({"score": [1.0], "age": [2.0], "school": ["a"]})
    with pytest.raises(InputError, match="features must be different columns"):
        TaskStatistics.from_frame(frame, task="school", target="score", features=features)


def test_sums_cannot_be_overwritten():
    statistics = TaskStatistics.from_arrays(*make_rows())
    with pytest.raises(ValueError, match="read-only"):
        statistics.gram[:] = 0.0


def test_sums_that_grow_in_place_forget_what_was_computed_from_fewer_rows():
    """500 tasks of 12 rows and 50 coefficients go by factors of their rows, which are kept."""
    random = np.random.default_rng(0)
    X = random.normal(size=(500, 14, 50))
    y = X[..., 0] + random.normal(size=(500, 14))

    def loss_of(rows):
        A, b = X[:, rows], y[:, rows]
        sums = np.einsum("nra,nrb->nab", A, A), np.einsum("nra,nr->na", A, b), (b**2).sum(axis=1)
        return LeastSquares(*sums, np.full(500, float(b.shape[1])))

    first = loss_of(slice(12))
    assert first.few_rows is not None
    grown = first.absorb(loss_of(slice(12, 14)))
    np.testing.assert_allclose(
        hub_evidence(grown, np.ones(50)).coefficients, hub_evidence(loss_of(slice(14)), np.ones(50)).coefficients
    )


def test_a_negative_count_names_its_task():
    statistics = TaskStatistics.from_arrays(np.ones((6, 1)), np.arange(6.0), ["a", "a", "b", "b", "b", "b"])
    cross = statistics.cross.copy()
    cross[:, 0, -2, -2], cross[:, 1, -2, -2] = -1e-17, -5.0
    with pytest.raises(InputError, match="-5 rows of task 'b'"):
        dataclasses.replace(statistics, cross=cross).check_counts()


def test_sums_of_other_numbers_of_folds_have_none_and_say_so():
    data = np.arange(12.0)[:, None], np.arange(12.0), np.repeat(["a", "b"], 6)
    parts = [TaskStatistics.from_arrays(*data, folds=np.arange(12) % k) for k in (2, 3)]
    with pytest.warns(UserWarning, match="2 and 3 folds"):
        assert not (parts[0] + parts[1]).has_folds
