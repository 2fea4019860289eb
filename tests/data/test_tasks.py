"""Every form of input becomes the same rows; what cannot be used is refused with its place and a remedy."""

import datetime

import numpy as np
import pytest

from ggmtl.data.labels import read_labels, unknown_tasks_message
from ggmtl.data.reading import read_prediction, read_training
from ggmtl.data.task_data import TaskData
from ggmtl.errors import InputError, InputTypeError

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")

LABELS = ["b", "a", "b", "c", "a", "b"]
X = np.arange(12.0).reshape(6, 2) ** 1.5
Y = np.array([1.0, -2.0, 0.5, 3.0, 4.0, 2.5])

FRAMES = {
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "pyarrow": pa.table,
}


def columns(labels=LABELS):
    return {"age": X[:, 0], "school": labels, "dose": X[:, 1]}


def assert_same_rows(data, labels=LABELS):
    np.testing.assert_array_equal(data.X, X)
    np.testing.assert_array_equal(data.y, Y)
    assert data.tasks.tolist() == list(labels)


# ---------------------------------------------------------------- forms of input


@pytest.mark.parametrize("library", FRAMES)
def test_a_data_frame_is_split_into_features_and_tasks(library):
    data = read_training(FRAMES[library](columns()), Y, task="school")
    assert_same_rows(data)
    assert data.columns == ("age", "dose")
    assert data.task_names.tolist() == ["a", "b", "c"]
    assert data.task_index.tolist() == [1, 0, 1, 2, 0, 1]


@pytest.mark.parametrize("library", FRAMES)
def test_the_task_column_of_a_frame_may_be_given_by_position(library):
    for position in (1, -2):
        assert_same_rows(read_training(FRAMES[library](columns()), Y, task=position))


@pytest.mark.parametrize("series", [pd.Series, pl.Series, pa.array, list, np.array, tuple])
def test_the_target_may_be_any_column(series):
    assert_same_rows(read_training(pd.DataFrame(columns()), series(Y), task="school"))


@pytest.mark.parametrize("series", [pd.Series, pl.Series, pa.array, list, np.array, tuple])
def test_tasks_may_be_any_column(series):
    assert_same_rows(read_training(X, Y, series(LABELS)))


def test_a_column_of_an_array_may_hold_the_tasks():
    numbers = np.array([2, 1, 2, 3, 1, 2])
    for position, array in ((0, np.column_stack([numbers, X])), (-1, np.column_stack([X, numbers]))):
        assert_same_rows(read_training(array, Y, task=position), numbers)


def test_a_column_of_an_object_array_may_hold_text_labels():
    array = np.column_stack([X.astype(object), np.array(LABELS, dtype=object)])
    assert_same_rows(read_training(array, Y, task=2))


def test_a_list_of_pairs_is_one_task_per_pair():
    data = read_training([(X[:4], Y[:4]), (X[4:], Y[4:])])
    assert_same_rows(data, [0, 0, 0, 0, 1, 1])


def test_pairs_of_different_shapes_are_refused():
    with pytest.raises(InputError, match="same number of columns"):
        read_training([(X, Y), (X[:, :1], Y)])
    with pytest.raises(InputError, match="Task 1: X_i has 6 rows but y_i has 5"):
        read_training([(X, Y), (X, Y[:5])])


def test_a_two_dimensional_target_is_one_task_per_column():
    data = read_training(X, np.column_stack([Y, -Y]))
    np.testing.assert_array_equal(data.X, np.vstack([X, X]))
    np.testing.assert_array_equal(data.y, np.concatenate([Y, -Y]))
    assert data.tasks.tolist() == [0] * 6 + [1] * 6


@pytest.mark.parametrize("library", FRAMES)
def test_columns_of_a_target_frame_name_the_tasks(library):
    data = read_training(X, FRAMES[library]({"north": Y, "south": 2 * Y}))
    assert data.task_names.tolist() == ["north", "south"]
    np.testing.assert_array_equal(data.y[data.tasks == "south"], 2 * Y)


def test_a_two_dimensional_target_with_tasks_is_refused():
    with pytest.raises(InputError, match="one-dimensional when the tasks are given"):
        read_training(X, np.column_stack([Y, Y]), LABELS)


def test_without_tasks_there_is_one():
    data = read_training(X, Y)
    assert data.task_names.tolist() == [0]


def test_column_and_tasks_at_once_are_refused():
    with pytest.raises(InputError, match="not both"):
        read_training(pd.DataFrame(columns()), Y, LABELS, task="school")


def test_boolean_features_count_as_zero_and_one():
    flags = {"flag": [True, False, True, True, False, False]}
    data = read_training(pd.DataFrame(columns() | flags), Y, task="school")
    assert data.X[:, -1].tolist() == [1, 0, 1, 1, 0, 0]


# ---------------------------------------------------------------- labels

DAYS = [datetime.datetime(2020, 1, day) for day in (2, 1, 2, 3, 1, 2)]


@pytest.mark.parametrize(
    "labels",
    [
        LABELS,
        [2, 1, 2, 3, 1, 2],
        [2.5, 1.0, 2.5, 3.0, 1.0, 2.5],
        [True, False, True, True, False, True],
        DAYS,
        [day.date() for day in DAYS],
    ],
    ids=["string", "integer", "float", "boolean", "datetime", "date"],
)
@pytest.mark.parametrize("library", FRAMES)
def test_labels_of_any_one_kind_are_kept_and_sorted(library, labels):
    data = read_training(FRAMES[library](columns(labels)), Y, task="school")
    distinct = sorted(set(labels))
    expected = [distinct.index(label) for label in labels]
    assert data.task_index.tolist() == expected
    assert len(data.task_names) == len(distinct)


@pytest.mark.parametrize("categorical", [pd.Categorical, lambda v: pl.Series(v, dtype=pl.Categorical)])
def test_categories_are_labels(categorical):
    assert read_labels(categorical(LABELS), "tasks", 6).tolist() == LABELS


def test_unused_categories_are_not_tasks():
    labels = pd.Categorical(LABELS, categories=["z", "c", "b", "a"])
    data = read_training(pd.DataFrame(columns(labels)), Y, task="school")
    assert data.task_names.tolist() == ["a", "b", "c"]


@pytest.mark.parametrize("as_input", [list, lambda v: np.array(v, dtype=object), lambda v: pd.Series(v, dtype=object)])
def test_labels_of_mixed_kinds_are_refused(as_input):
    with pytest.raises(InputTypeError, match=r"'tasks' mixes labels of type int, str.*all strings or all numbers"):
        read_training(X, Y, as_input(["b", 1, "b", "c", 1, "b"]))


@pytest.mark.parametrize(
    "labels",
    [
        ["b", None, "b", "c", None, "b"],
        ["b", float("nan"), "b", "c", float("nan"), "b"],
        np.array([1, np.nan, 1, 2, np.nan, 1]),
        np.array(["2020-01-01", "NaT", "2020-01-02", "2020-01-03", "NaT", "2020-01-01"], dtype="M8[D]"),
        pd.Series(["b", None, "b", "c", None, "b"]),
        pd.Series(["b", pd.NA, "b", "c", pd.NA, "b"], dtype="string"),
        pd.Series(["b", pd.NA, "b", "c", pd.NA, "b"], dtype=object),
        pd.Series([1, pd.NA, 1, 2, pd.NA, 1], dtype="Int64"),
        pd.Series(pd.Categorical(["b", None, "b", "c", None, "b"])),
        pl.Series(["b", None, "b", "c", None, "b"]),
        pl.Series([1, None, 1, 2, None, 1]),
        pa.array(["b", None, "b", "c", None, "b"]),
    ],
    ids=[
        "None in list", "NaN in list", "NaN", "NaT", "pandas text", "pandas string", "pandas object", "Int64",
        "category", "polars text", "polars integer", "pyarrow",
    ],
)  # fmt: skip
def test_missing_labels_are_refused_with_their_count(labels):
    with pytest.raises(InputError, match=r"'tasks' has 2 missing labels \(first in row 1\)"):
        read_training(X, Y, labels)


def test_missing_labels_of_a_task_column_are_refused_by_its_name():
    frame = pd.DataFrame(columns(["b", None, "b", "c", "a", "b"]))
    with pytest.raises(InputError, match="'school' has 1 missing labels"):
        read_training(frame, Y, task="school")


def test_a_wrong_number_of_labels_is_refused():
    with pytest.raises(InputError, match=r"one label per row, shape \(6,\)"):
        read_training(X, Y, LABELS[:5])


def test_a_misspelt_task_column_is_answered_with_the_right_one():
    with pytest.raises(InputError, match=r"no column 'shool'.*Did you mean 'school'\?.*'age', 'school', 'dose'"):
        read_training(pd.DataFrame(columns()), Y, task="shool")


def test_a_column_name_for_an_array_is_refused_with_a_remedy():
    with pytest.raises(InputError, match="Pass a data frame, the column's index, or tasks="):
        read_training(X, Y, task="school")


@pytest.mark.parametrize("position", [3, -4])
def test_a_task_position_out_of_range_is_refused(position):
    with pytest.raises(InputError, match="out of range"):
        read_training(np.column_stack([X, Y]), Y, task=position)
    with pytest.raises(InputError, match="out of range"):
        read_training(pd.DataFrame(columns()), Y, task=position)


def test_unknown_tasks_are_named_with_the_nearest_known_one():
    message = unknown_tasks_message(["Smithh"], np.array(["Smith", "Jones"]))
    assert "'Smithh'" in message
    assert "Did you mean 'Smith'?" in message
    assert 'unseen="hub"' in message


# ---------------------------------------------------------------- values


def spoilt(library, value):
    dose = X[:, 1].tolist()
    dose[2] = dose[4] = value
    return FRAMES[library](columns() | {"dose": dose})


@pytest.mark.parametrize("value", [None, float("nan")])
@pytest.mark.parametrize("library", FRAMES)
def test_missing_values_are_refused_naming_column_and_count(library, value):
    with pytest.raises(InputError, match=r"'dose' has 2 missing values \(first in row 2\)"):
        read_training(spoilt(library, value), Y, task="school")


@pytest.mark.parametrize("library", FRAMES)
def test_infinite_values_are_refused_naming_column_and_count(library):
    with pytest.raises(InputError, match="'dose' has 2 missing or infinite values"):
        read_training(spoilt(library, float("inf")), Y, task="school")


@pytest.mark.parametrize(
    "column",
    [
        pd.Series([1, 2, pd.NA, 4, 5, 6], dtype="Int64"),
        pd.Series([1.5, 2, pd.NA, 4, 5, 6], dtype="Float64"),
        pd.Series([True, False, pd.NA, True, True, False], dtype="boolean"),
        pd.Series([1.5, 1.0, np.nan, 4, 5, 6], dtype=object),
    ],
    ids=["Int64", "Float64", "boolean", "object"],
)
def test_missing_values_of_pandas_nullable_columns_are_refused(column):
    with pytest.raises(InputError, match=r"'dose' has 1 missing values \(first in row 2\)"):
        read_training(pd.DataFrame(columns() | {"dose": column}), Y, task="school")


@pytest.mark.parametrize("library", ["polars", "pyarrow"])
def test_missing_values_of_boolean_columns_are_refused(library):
    frame = FRAMES[library](columns() | {"dose": [True, False, None, True, True, False]})
    with pytest.raises(InputError, match=r"'dose' has 1 missing values \(first in row 2\)"):
        read_training(frame, Y, task="school")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_arrays_with_missing_or_infinite_values_are_refused(value):
    spoilt_X, spoilt_y = X.copy(), Y.copy()
    spoilt_X[1, 0] = spoilt_y[1] = value
    with pytest.raises(ValueError, match="X contains"):
        read_training(spoilt_X, Y)
    with pytest.raises(
        InputError, match=r"Input y contains NaN or infinity: the target has 1 such values \(first in row 1\)"
    ):
        read_training(X, spoilt_y)


@pytest.mark.parametrize("library", FRAMES)
def test_a_text_feature_is_refused_with_a_remedy(library):
    frame = FRAMES[library](columns() | {"colour": ["red", "blue", "red", "red", "blue", "red"]})
    with pytest.raises(InputTypeError, match=r"'colour' .*first value is 'red'.*Encode it first"):
        read_training(frame, Y, task="school")


def test_a_categorical_feature_is_refused_with_a_remedy():
    frame = pd.DataFrame(columns() | {"colour": pd.Categorical(["red", "blue"] * 3)})
    with pytest.raises(InputTypeError, match=r"'colour' .*Encode it first"):
        read_training(frame, Y, task="school")


def test_a_date_feature_is_refused_with_a_remedy():
    with pytest.raises(InputTypeError, match=r"'day' .*features must be numeric"):
        read_training(pd.DataFrame(columns() | {"day": DAYS}), Y, task="school")


@pytest.mark.parametrize("as_input", [np.array, list, pd.Series, lambda values: np.array(values, dtype=object)])
def test_a_text_target_is_refused_with_value_and_row(as_input):
    with pytest.raises(InputError, match=r"the target has '2\.5a' in row 3"):
        read_training(X, as_input(["1.5", "2", "3", "2.5a", "5", "b"]))


def test_the_name_of_a_column_is_no_target():
    with pytest.raises(InputError, match=r"not a name: pass df\['dose'\]"):
        read_training(pd.DataFrame(columns()), "dose", task="school")


@pytest.mark.parametrize("as_input", [lambda frame: frame, lambda frame: pa.Table.from_arrays(*_arrays(frame))])
def test_repeated_columns_are_refused_by_name(as_input):
    frame = as_input(pd.DataFrame(X, columns=["dose"] * X.shape[1]))
    with pytest.raises(InputError, match=r"X has \d columns 'dose'; names must differ"):
        read_training(frame, Y)
    with pytest.raises(InputError, match=r"y has \d columns 'dose'; names must differ"):
        read_training(X, frame)


def _arrays(frame):
    return [pa.array(column) for column in frame.to_numpy().T], list(frame.columns)


def test_numbers_held_as_objects_are_numbers():
    frame = pd.DataFrame(columns() | {"dose": pd.Series(X[:, 1].tolist(), dtype=object)})
    assert_same_rows(read_training(frame, Y, task="school"))


@pytest.mark.parametrize(
    ("X_bad", "y_bad", "message"),
    [
        (X, None, "requires y to be passed"),
        (X, Y[:5], "inconsistent numbers of samples"),
        (X, np.zeros((6, 0)), "y has no column"),
        (X, np.zeros((6, 1, 1)), "one or two dimensions"),
        (X, Y * 1j, "Complex data not supported"),
        (pd.DataFrame({"school": LABELS}), Y, "no column besides the task column 'school'"),
        (pd.DataFrame(columns()).iloc[:0], [], r"0 sample\(s\)"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(X_bad, y_bad, message):
    with pytest.raises(ValueError, match=message):
        read_training(X_bad, y_bad, task="school" if isinstance(X_bad, pd.DataFrame) else None)


def test_task_data_checks_its_shapes():
    with pytest.raises(InputError, match="y and tasks shape"):
        TaskData(X, Y[:5], LABELS)


# ---------------------------------------------------------------- weights and groups


@pytest.mark.parametrize("weight", [-1.0, np.nan, np.inf])
def test_weights_must_be_finite_and_not_negative(weight):
    with pytest.raises(InputError, match="sample_weight must be finite and not negative"):
        read_training(X, Y, LABELS, sample_weight=[1, 1, weight, 1, 1, 1])


def test_weights_of_the_wrong_length_or_all_zero_are_refused():
    with pytest.raises(InputError, match=r"sample_weight must have shape \(6,\)"):
        read_training(X, Y, LABELS, sample_weight=np.ones(5))
    with pytest.raises(InputError, match="zero for every row"):
        read_training(X, Y, LABELS, sample_weight=np.zeros(6))


def test_rows_of_weight_zero_are_dropped():
    data = read_training(X, Y, LABELS, sample_weight=[1, 0, 2, 0, 1, 1], groups=[0, 0, 1, 1, 2, 2])
    np.testing.assert_array_equal(data.X, X[[0, 2, 4, 5]])
    assert data.sample_weight.tolist() == [1, 2, 1, 1]
    assert data.groups.tolist() == [0, 1, 2, 2]
    assert data.task_names.tolist() == ["a", "b"]


def test_rows_of_weight_zero_are_dropped_from_every_column_of_a_target():
    data = read_training(X, np.column_stack([Y, -Y]), sample_weight=[1, 0, 2, 0, 1, 1])
    np.testing.assert_array_equal(data.y, np.concatenate([Y[[0, 2, 4, 5]], -Y[[0, 2, 4, 5]]]))
    assert (data.sample_weight > 0).all()


def test_groups_are_labels_too():
    assert read_training(X, Y, LABELS, groups=list("uvwuvw")).groups.tolist() == list("uvwuvw")
    with pytest.raises(InputError, match="'groups' has 1 missing"):
        read_training(X, Y, LABELS, groups=["u", None, "w", "u", "v", "w"])


# ---------------------------------------------------------------- prediction


def test_prediction_reads_features_and_tasks():
    matrix, labels = read_prediction(
        pd.DataFrame(columns()), task="school", feature_names=("age", "dose"), n_features=2
    )
    np.testing.assert_array_equal(matrix, X)
    assert labels.tolist() == LABELS


def test_prediction_refuses_other_columns_and_widths():
    frame = pd.DataFrame(columns())
    with pytest.raises(InputError, match=r"unseen at fit time:\n- dose\n.*now missing:\n- size"):
        read_prediction(frame, task="school", feature_names=("age", "size"), n_features=2)
    with pytest.raises(InputError, match="same order as they were in fit"):
        read_prediction(frame, task="school", feature_names=("dose", "age"), n_features=2)
    with pytest.raises(InputError, match="X has 2 features, but GGMTLRegressor is expecting 3"):
        read_prediction(X, n_features=3)


def test_prediction_warns_where_only_one_side_has_names():
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        read_prediction(X, feature_names=("age", "dose"), n_features=2)
    with pytest.warns(UserWarning, match="was fitted without feature names"):
        read_prediction(pd.DataFrame(X, columns=["age", "dose"]), n_features=2)
