"""Two labels are one task only if they are equal, whatever type or file they come in."""

import numpy as np
import pytest

from ggmtl import GGMTLRegressor, TaskStatistics
from ggmtl.baselines import PooledRegressor
from ggmtl.data.labels import join_labels, locate_tasks, numbers_in_text, read_labels
from ggmtl.data.task_data import TaskData
from ggmtl.errors import InputError, InputTypeError, ParameterError, UnseenTaskWarning

LARGE = 2**53


def make_model(labels, **parameters):
    """One model y = k + x for the k-th of the labels."""
    rng = np.random.default_rng(0)
    X, index = rng.normal(size=(10 * len(labels), 1)), np.repeat(np.arange(len(labels)), 10)
    y = 100.0 * index + X[:, 0] + 0.01 * rng.normal(size=len(X))
    return GGMTLRegressor(**parameters).fit(X, y, tasks=np.asarray(labels)[index])


# ---------------------------------------------------------------- in memory


def test_labels_that_no_number_type_can_distinguish_are_refused_with_an_example():
    with pytest.raises(InputError, match=r"'tasks': the label 9223372036854775809 would be read as .*as text"):
        GGMTLRegressor().fit(np.arange(4.0)[:, None], np.arange(4.0), tasks=[2**63, 2**63 + 1, -1, 0])
    with pytest.raises(InputError, match="9007199254740993"):
        read_labels([LARGE + 1, 0.5], "tasks", 2)
    with pytest.raises(InputError, match="12345678901234567891"):
        read_labels([12345678901234567891, 10**19, 10**20], "tasks", 3)
    with pytest.raises(InputError, match="9223372036854775809"):
        TaskData(np.zeros((3, 1)), np.zeros(3), [2**63 + 1, 2**63, -1])


def test_large_labels_of_one_kind_are_kept():
    assert read_labels([2**63, 2**63 + 1, 0], "tasks", 3).tolist() == [2**63, 2**63 + 1, 0]
    assert read_labels([2**62 + 1, -1], "tasks", 2).tolist() == [2**62 + 1, -1]


def test_a_label_that_ends_in_a_zero_character_is_refused():
    with pytest.raises(InputError, match=r"'a\\x00' would be read as 'a'"):
        read_labels(["a\0", "a"], "tasks", 2)
    assert read_labels(["\0a", "a"], "tasks", 2).tolist() == ["\0a", "a"]


def test_floats_cannot_stand_for_large_whole_numbers():
    model = make_model([LARGE, LARGE + 1, LARGE + 2])
    np.testing.assert_allclose(model.predict(np.zeros((1, 1)), tasks=[LARGE + 1]), 100.0, atol=0.5)
    with pytest.raises(InputError, match=r"float64 here and were int64 in fit: 9007199254740992.0 may stand"):
        model.predict(np.zeros((1, 1)), tasks=np.array([float(LARGE)]))


def test_floats_find_small_whole_numbers():
    tasks = np.array([1, 2, 7])
    assert locate_tasks(tasks, np.array([7.0, 1.5, 1.0, 2.0**60, -np.inf])).tolist() == [2, -1, 0, -1, -1]


def test_whole_numbers_find_floats_only_if_they_are_equal():
    tasks = np.array([0.5, 1.0, float(LARGE)])
    assert locate_tasks(tasks, np.array([1, LARGE, LARGE + 1])).tolist() == [1, 2, -1]


def test_signed_and_unsigned_labels_are_compared_exactly():
    signed = np.array([-1, 0, 2**63 - 1])
    unsigned = np.array([0, 2**63 - 1, 2**63, 2**64 - 1], dtype=np.uint64)
    assert locate_tasks(signed, unsigned).tolist() == [1, 2, -1, -1]
    assert locate_tasks(unsigned, signed).tolist() == [-1, 0, 1]
    assert locate_tasks(np.array([1, 2], dtype=np.uint8), np.array([2, 257, -254])).tolist() == [1, -1, -1]


def test_joined_labels_keep_their_values():
    signed, unsigned = np.array([-1, LARGE + 1]), np.array([LARGE + 1, LARGE], dtype=np.uint64)
    assert join_labels([signed, unsigned]).tolist() == [-1, LARGE + 1, LARGE + 1, LARGE]
    assert join_labels([signed[1:], np.array([2**63], dtype=np.uint64)]).tolist() == [LARGE + 1, 2**63]
    with pytest.raises(InputError, match="as text"):
        join_labels([signed, np.array([2**63 + 1], dtype=np.uint64)])
    with pytest.raises(InputError, match="as text"):
        join_labels([signed, np.array([0.5])])


def test_statistics_of_signed_and_unsigned_labels_add_up_exactly():
    def statistics(labels, dtype):
        return TaskStatistics.from_arrays(np.ones((2, 1)), np.ones(2), np.array(labels, dtype=dtype))

    both = statistics([LARGE, LARGE + 1], np.int64) + statistics([LARGE + 1, LARGE + 2], np.uint64)
    assert both.task_names.tolist() == [LARGE, LARGE + 1, LARGE + 2]
    assert both.count.tolist() == [1, 2, 1]
    assert (both - statistics([LARGE + 1, LARGE + 2], np.uint64)).count.tolist() == [1, 1, 0]


def test_a_new_task_keeps_the_labels_of_the_others():
    model = make_model([LARGE, LARGE + 1, LARGE + 2]).add_task(2**63 - 1, [[0.0]], [1.0])
    assert model.tasks_.tolist() == [LARGE, LARGE + 1, LARGE + 2, 2**63 - 1]
    with pytest.raises(InputError, match="as text"):
        model.add_task(0.5, [[0.0]], [1.0])


def test_text_is_a_number_only_if_every_label_is_and_no_two_are_the_same():
    assert numbers_in_text(np.array(["10", "2", "-3"])).tolist() == [10, 2, -3]
    assert numbers_in_text(np.array(["1.0", "2"])).tolist() == [1, 2]
    for labels in (["007", "8"], ["1", "1.0"], ["0", "-0"], ["1e3", "5"], ["12345678901234567890"], ["", "1"]):
        assert numbers_in_text(np.array(labels)).tolist() == labels


# ---------------------------------------------------------------- files


LABELS = {
    "digits": ["12345678901234567890", "12345678901234567891"],
    "zeros": ["007", "7"],
    "exponents": ["1e3", "1000"],
    "truth": ["true", "TRUE"],
    "fractions": ["1.5", "1.50"],
}


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_text_stays_text_in_csv_files(tmp_path, labels):
    pytest.importorskip("pyarrow")
    rows = "".join(f"{label},{k},{k}\n" for k, label in enumerate(labels))
    (tmp_path / "a.csv").write_text("shop,x,y\n" + rows)
    statistics = TaskStatistics.from_csv(tmp_path / "a.csv", task="shop", target="y")
    assert statistics.task_names.tolist() == sorted(labels)
    assert statistics.count.tolist() == [1, 1]


def test_whole_numbers_of_csv_files_are_numbers(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "a.csv").write_text("shop,x,y\n10,1,2\n9,1,2\n")
    (tmp_path / "b.csv").write_text("shop,x,y\n-3,1,2\n10,1,2\n")
    statistics = TaskStatistics.from_csv(tmp_path, task="shop", target="y")
    assert statistics.task_names.tolist() == [-3, 9, 10]
    assert statistics.count.tolist() == [1, 1, 2]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("labels", [["01", "1"], ["1", "2", "10"], ["a%2Fb", "c"]])
def test_labels_in_the_names_of_folders_stay_as_they_are_written(tmp_path, labels, suffix):
    pytest.importorskip("pyarrow")
    pd = pytest.importorskip("pandas")
    for k, label in enumerate(labels):
        folder = tmp_path / f"year={2000 + k}" / f"region={label}"
        folder.mkdir(parents=True)
        frame = pd.DataFrame({"x": [0.5 * k, 1.0], "y": [1.0, 2.0]})
        frame.to_csv(folder / "a.csv", index=False) if suffix == "csv" else frame.to_parquet(folder / "a.parquet")
    read = TaskStatistics.from_csv if suffix == "csv" else TaskStatistics.from_parquet
    statistics = read(tmp_path, task="region", target="y")
    expected = {"01": ["01", "1"], "1": [1, 2, 10], "a%2Fb": ["a/b", "c"]}[labels[0]]
    assert statistics.task_names.tolist() == expected
    assert statistics.feature_names == ("x", "year")
    np.testing.assert_allclose(statistics.feature_sum[:, 1], 2.0 * (2000 + np.arange(len(labels))))


def test_text_of_a_stream_that_ends_in_a_zero_character_is_refused():
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"shop": ["a\0", "a"], "x": [1.0, 2.0], "y": [1.0, 2.0]})
    with pytest.raises(InputError, match="zero character"):
        TaskStatistics.from_arrow_stream(table, task="shop", target="y")


def test_a_number_written_in_two_ways_is_two_labels_on_the_command_line(tmp_path):
    pytest.importorskip("pyarrow")
    from ggmtl.cli.table_files import read_table

    (tmp_path / "a.csv").write_text("shop,x\n1,0\n1.0,0\n2,0\n")
    assert read_table(tmp_path / "a.csv", "shop").table["shop"].to_pylist() == ["1", "1.0", "2"]


# ---------------------------------------------------------------- tasks never seen


def test_a_prediction_with_the_common_model_says_which_rows_have_it():
    model = make_model(["North", "South", "West"])
    asked = ["North", "Nroth", "Nroth", "South", "island"]
    with pytest.raises(InputError, match="Nroth"):
        model.predict(np.zeros((5, 1)), tasks=asked)
    with pytest.warns(
        UnseenTaskWarning, match=r"3 of 5 rows .*'Nroth' \(2 rows; spelled like 'North'\), 'island' \(1 row\)\."
    ):
        values = model.predict(np.zeros((5, 1)), tasks=asked, unseen="hub")
    np.testing.assert_array_equal(values[[1, 2, 4]], model.hub_intercept_)
    assert model.unseen == "error"
    with pytest.raises(ParameterError, match="unseen must be one of"):
        model.predict(np.zeros((5, 1)), tasks=asked, unseen="guess")


def test_only_the_most_frequent_unseen_tasks_are_listed():
    model = make_model([1, 2, 3], unseen="hub")
    with pytest.warns(UnseenTaskWarning, match=r"8 of 8 rows .*7 \(2 rows\).* and 2 more\."):
        model.predict(np.zeros((8, 1)), tasks=[4, 5, 6, 7, 7, 8, 9, 10])


def test_one_long_label_does_not_take_its_room_in_every_row():
    long = "x" * 5000
    labels = [long if k % 100 == 0 else f"t{k % 10}" for k in range(4000)]
    read = read_labels(labels, "task", len(labels))
    assert read.nbytes == 8 * len(labels)
    assert read.tolist() == labels
    X = np.random.default_rng(0).normal(size=(len(labels), 2))
    model = PooledRegressor().fit(X, X[:, 0], tasks=labels)
    assert model.tasks_.tolist() == sorted(set(labels))
    assert model.predict(X, tasks=labels).shape == (4000,)


@pytest.mark.parametrize("kind", [list, np.array])
def test_half_a_surrogate_is_no_label(kind):
    with pytest.raises(InputError, match="is not valid text"):
        read_labels(kind(["a", "b\ud800"]), "task", 2)


@pytest.mark.parametrize("label", [(1, 2), (1,), [1], {"a": 1}, {1}])
def test_labels_of_several_parts_are_refused(label):
    labels = np.empty(3, dtype=object)
    labels[:] = [1.5, label, label]
    with pytest.raises(InputTypeError, match=f"labels of type {type(label).__name__}"):
        read_labels(labels, "task", 3)
