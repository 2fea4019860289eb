"""Statistics of rows that are read batch by batch."""

import logging
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
from sklearn.base import clone

from ggmtl import GGMTLRegressor
from ggmtl.baselines import HubRegressor
from ggmtl.data import curves as curves_module
from ggmtl.data.curves import Curves, DistinctValues
from ggmtl.data.folds import hash_folds
from ggmtl.errors import InputError, InputTypeError, ParameterError
from ggmtl.statistics import accumulator as builder_module
from ggmtl.statistics.accumulator import StatisticsBuilder
from ggmtl.statistics.streaming import passes as streams_module
from ggmtl.statistics.task_statistics import TaskStatistics

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")
csv = pytest.importorskip("pyarrow.csv")
ds = pytest.importorskip("pyarrow.dataset")
pq = pytest.importorskip("pyarrow.parquet")

# Folds are part of what a user may have stored: these numbers must never change.
HASHES = [814, 814, 244, 177, 966, 707]
COLUMNS = {"task": "shop", "target": "sales"}


def make_frame(rows=997, n_tasks=13, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "shop": np.array([f"shop {k}" for k in rng.permutation(n_tasks)])[rng.integers(n_tasks, size=rows)],
            "price": rng.normal(100.0, 3.0, size=rows),
            "visitors": rng.integers(0, 50, size=rows),
            "holiday": rng.random(rows) < 0.2,
            "sales": rng.normal(-20.0, 5.0, size=rows),
        }
    )


def in_memory(frame, **options):
    return TaskStatistics.from_frame(frame, **{**COLUMNS, **options})


def assert_same(left, right, tolerance=1e-10):
    """Equal sums, relative to the largest of each kind."""
    assert left.task_names.tolist() == right.task_names.tolist()
    assert left.feature_names == right.feature_names
    assert left.n_folds == right.n_folds
    for name in ("gram", "moment", "target_square", "feature_sum", "target_sum", "count"):
        a, b = getattr(left, name), getattr(right, name)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * np.abs(b).max(), err_msg=name)


def assert_same_folds(left, right, tolerance=1e-10):
    assert left.n_folds == right.n_folds > 0
    for k in range(left.n_folds):
        assert_same(left.fold(k), right.fold(k), tolerance)


@pytest.fixture
def frame():
    return make_frame()


# ---------------------------------------------------------------------- the same sums from everywhere


def write_parquet(frame, folder, layout):
    """Write the frame in a layout, and say what to pass to from_parquet."""
    table = pa.Table.from_pandas(frame, preserve_index=False)
    if layout == "file":
        pq.write_table(table, folder / "all.parquet", row_group_size=100)
        return folder / "all.parquet"
    if layout == "hive":
        ds.write_dataset(table, folder, format="parquet", partitioning=["shop"], partitioning_flavor="hive")
        return folder
    for k, first in enumerate(range(0, len(frame), 300)):
        pq.write_table(table.slice(first, 300), folder / f"part-{k}.parquet")
    (folder / "_SUCCESS").write_text("")
    (folder / "README.txt").write_text("not a table")
    return {"folder": folder, "glob": str(folder / "part-*.parquet"), "list": sorted(folder.glob("*.parquet"))}[layout]


@pytest.mark.parametrize("layout", ["file", "folder", "glob", "list", "hive"])
def test_parquet_gives_the_statistics_of_the_rows_in_memory(frame, tmp_path, layout):
    path = write_parquet(frame, tmp_path, layout)
    assert_same(TaskStatistics.from_parquet(path, **COLUMNS), in_memory(frame))


def test_hive_folders_of_numbers_are_tasks_with_numbers_for_labels(frame, tmp_path):
    frame = frame.assign(shop=frame["shop"].str[5:].astype("int64"))
    path = write_parquet(frame, tmp_path, "hive")
    assert_same(TaskStatistics.from_parquet(path, **COLUMNS), in_memory(frame))


def test_an_address_is_read_like_a_path(frame, tmp_path):
    path = write_parquet(frame, tmp_path, "file")
    assert_same(TaskStatistics.from_parquet(path.as_uri(), **COLUMNS), in_memory(frame))


def test_a_column_may_be_whole_in_one_file_and_fractional_in_the_next(frame, tmp_path):
    frame.loc[500:, "visitors"] = frame.loc[500:, "visitors"] + 1
    halves = frame[:500], frame[500:].assign(visitors=frame.loc[500:, "visitors"] + 0.5)
    for name, half in zip("ab", halves):
        half.to_parquet(tmp_path / f"{name}.parquet")
    assert_same(TaskStatistics.from_parquet(tmp_path, **COLUMNS), in_memory(pd.concat(halves)))


def test_a_column_that_is_missing_from_a_later_file_is_missing_in_its_rows(frame, tmp_path):
    frame[:500].to_parquet(tmp_path / "a.parquet")
    frame[500:].drop(columns="price").to_parquet(tmp_path / "b.parquet")
    with pytest.raises(InputError, match=r"b.parquet: column 'price' has 497 missing"):
        TaskStatistics.from_parquet(tmp_path, **COLUMNS)


def test_a_column_that_is_text_in_a_later_file_is_named(frame, tmp_path):
    frame[:500].to_parquet(tmp_path / "a.parquet")
    frame[500:].assign(price="cheap").to_parquet(tmp_path / "b.parquet")
    with pytest.raises(InputError, match=r"b.parquet cannot be read: .*cheap"):
        TaskStatistics.from_parquet(tmp_path, **COLUMNS)


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_csv_gives_the_statistics_of_the_rows_in_memory(frame, tmp_path, suffix):
    frame.to_csv(tmp_path / f"all{suffix}", index=False)
    assert_same(TaskStatistics.from_csv(tmp_path, **COLUMNS), in_memory(frame))


def test_a_csv_column_may_begin_with_whole_numbers_and_go_on_with_fractions(tmp_path):
    rows = 200_000
    x = np.arange(rows).astype(float)
    x[-1] = 0.5
    lines = [f"a,{value:g},1" for value in x]
    (tmp_path / "long.csv").write_text("\n".join(["shop,x,sales", *lines]) + "\n")
    assert TaskStatistics.from_csv(tmp_path / "long.csv", **COLUMNS).feature_sum[0, 0] == pytest.approx(
        np.array([float(f"{v:g}") for v in x]).sum(), rel=1e-12
    )


def arrow_streams(frame):
    table = pa.Table.from_pandas(frame, preserve_index=False)
    coded = table.set_column(0, "shop", table["shop"].dictionary_encode())
    return {
        "table": table,
        "reader": table.to_reader(max_chunksize=77),
        "polars": pl.from_pandas(frame),
        "dictionary": coded,
    }


@pytest.mark.parametrize("kind", ["table", "reader", "polars", "dictionary"])
def test_an_arrow_stream_gives_the_statistics_of_the_rows_in_memory(frame, kind):
    assert_same(TaskStatistics.from_arrow_stream(arrow_streams(frame)[kind], **COLUMNS), in_memory(frame))


def test_a_duckdb_relation_gives_the_statistics_of_the_rows_in_memory(frame, tmp_path):
    duckdb = pytest.importorskip("duckdb")
    path = write_parquet(frame, tmp_path, "file")
    with duckdb.connect() as connection:
        relation = connection.sql(f"select shop, price, sales from '{path}' where holiday")
        expected = in_memory(frame[frame["holiday"]][["shop", "price", "sales"]])
        assert_same(TaskStatistics.from_arrow_stream(relation, **COLUMNS), expected)


def test_chosen_features_weights_and_zero_weights_are_those_of_memory(frame, tmp_path):
    frame["weight"] = np.arange(len(frame)) % 4
    path = write_parquet(frame, tmp_path, "folder")
    options = {"features": ["visitors", "price"], "sample_weight": "weight"}
    assert_same(TaskStatistics.from_parquet(path, **COLUMNS, **options), in_memory(frame, **options))


@pytest.mark.parametrize("kind", ["int32", "uint8", "float32", "bool", "datetime64[us]"])
def test_labels_of_any_kind_come_out_sorted(frame, kind):
    frame["shop"] = frame["shop"].str[5:].astype("int64").astype(kind)
    assert_same(TaskStatistics.from_arrow_stream(pa.Table.from_pandas(frame), **COLUMNS), in_memory(frame))


def test_numbers_of_any_kind_are_read_as_floats(frame):
    table = pa.Table.from_pandas(frame, preserve_index=False)
    table = table.set_column(2, "visitors", pa.array([Decimal(int(v)) for v in frame["visitors"]], pa.decimal128(9, 2)))
    table = table.set_column(1, "price", table["price"].cast(pa.float32()).dictionary_encode())
    expected = in_memory(frame.assign(price=frame["price"].astype("float32")))
    assert_same(TaskStatistics.from_arrow_stream(table, **COLUMNS), expected)


def test_large_means_lose_no_digits(frame):
    frame["price"] += 1e7
    streamed = TaskStatistics.from_arrow_stream(pa.Table.from_pandas(frame), **COLUMNS)
    center = np.array([1e7, 0.0, 0.0])
    shifted = frame.assign(price=frame["price"] - 1e7)
    assert_same(streamed.transformed(center, np.ones(3), 0.0, 1.0), in_memory(shifted))


# ---------------------------------------------------------------------- batches and folds


@pytest.mark.parametrize("batch_rows", [1, 7, 100, 996, 10_000])
def test_batch_borders_do_not_matter(frame, batch_rows):
    table = pa.Table.from_pandas(frame)
    streamed = TaskStatistics.from_arrow_stream(table, **COLUMNS, batch_rows=batch_rows, folds=3)
    assert_same(streamed.total(), in_memory(frame))
    assert_same_folds(streamed, TaskStatistics.from_arrow_stream(table, **COLUMNS, folds=3))


def test_the_pieces_that_rows_arrive_in_change_no_bit(frame):
    table = pa.Table.from_pandas(frame)
    whole = TaskStatistics.from_arrow_stream(table, **COLUMNS, folds=3)
    pieces = TaskStatistics.from_arrow_stream(table.to_reader(max_chunksize=10), **COLUMNS, folds=3)
    np.testing.assert_array_equal(whole.cross, pieces.cross)


def test_folds_agree_between_runs_formats_and_orders_of_rows(frame, tmp_path):
    first = TaskStatistics.from_parquet(write_parquet(frame, tmp_path, "folder"), **COLUMNS, folds=4)
    frame.sample(frac=1, random_state=1).to_csv(tmp_path / "shuffled.csv", index=False)
    assert_same_folds(TaskStatistics.from_csv(tmp_path / "shuffled.csv", **COLUMNS, folds=4), first)
    halves = [
        TaskStatistics.from_arrow_stream(pl.from_pandas(half), **COLUMNS, folds=4)
        for half in (frame[:500], frame[500:])
    ]
    assert_same_folds(halves[0] + halves[1], first)


def test_folds_are_near_equal_and_equal_rows_share_one(frame):
    double = pd.concat([frame, frame])
    sizes = [TaskStatistics.from_arrow_stream(pa.Table.from_pandas(f), **COLUMNS, folds=4) for f in (frame, double)]
    counts = [np.array([s.fold(k).count.sum() for k in range(4)]) for s in sizes]
    np.testing.assert_array_equal(counts[1], 2 * counts[0])
    # Each fold's size is binomial with mean 249 and deviation 14.
    assert np.abs(counts[0] - len(frame) / 4).max() < 4 * 14


def test_the_hash_of_a_row_is_fixed_for_all_time():
    columns = [np.array([0.0, -0.0, 1.5, 2.0, 3.0, 1e300]), np.array([1.0, 1.0, -2.0, 7.0, 7.0, 1e-300])]
    assert hash_folds(columns, 6, 1000).tolist() == HASHES
    assert HASHES[0] == HASHES[1]


def test_a_stream_of_discrete_rows_warns_that_equal_rows_share_a_fold():
    rng = np.random.default_rng(0)
    x, tasks = rng.integers(2, size=400).astype(float), np.repeat(["a", "b"], 200)
    table = pa.table({"shop": tasks, "x": x, "sales": (rng.random(400) < 0.5).astype(float)})
    with pytest.warns(UserWarning, match="repeat another row of their task") as caught:
        TaskStatistics.from_arrow_stream(table, **COLUMNS, folds=4)
    assert len(caught) == 1
    # No folds, no error of held-out rows.
    TaskStatistics.from_arrow_stream(table, **COLUMNS)


def test_whole_numbers_are_spread_over_the_folds():
    columns = [np.repeat(np.arange(100.0), 100), np.tile(np.arange(100.0), 100)]
    counts = np.bincount(hash_folds(columns, 10_000, 5), minlength=5)
    assert np.abs(counts - 2000).max() < 4 * 40


def test_folds_take_the_bytes_that_the_formula_says(frame):
    streamed = TaskStatistics.from_arrow_stream(pa.Table.from_pandas(frame), **COLUMNS, folds=5)
    assert streamed.cross.nbytes == 8 * 5 * 13 * (3 + 2) ** 2


def test_many_tasks_are_summed_a_few_at_a_time(monkeypatch):
    # A buffer of 4 kB makes every limit bind: products in slices, growth by an eighth, sorting in place.
    monkeypatch.setattr(builder_module, "_BUFFER_BYTES", 4096)
    monkeypatch.setattr(builder_module, "_PRODUCT_BYTES", 4096)
    frame = make_frame(rows=2500, n_tasks=400)
    builder = StatisticsBuilder(["price", "visitors", "holiday"], folds=2, batch_rows=900)
    for first in range(0, len(frame), 130):
        part = frame[first : first + 130]
        X = part[["price", "visitors", "holiday"]].to_numpy(dtype=float)
        labels, codes = np.unique(part["shop"].to_numpy(dtype=str), return_inverse=True)
        builder.add(X.T, part["sales"].to_numpy(), labels, codes)
    assert builder.n_rows == 2500
    assert builder.n_tasks == frame["shop"].nunique()
    assert_same(builder.statistics().total(), in_memory(frame))
    with pytest.raises(InputError, match="no rows"):
        builder.statistics()


def test_a_builder_refuses_labels_of_two_kinds_and_other_columns():
    builder = StatisticsBuilder(["x"])
    first = np.zeros(1, dtype=int)
    builder.add([np.ones(1)], np.ones(1), np.array(["a"]), first)
    with pytest.raises(InputTypeError, match="all strings or all numbers"):
        builder.add([np.ones(1)], np.ones(1), np.array([1]), first)
    with pytest.raises(InputError, match="must be the 1 features"):
        builder.add([np.ones(1)] * 2, np.ones(1), np.array(["a"]), first)


# ---------------------------------------------------------------------- categories


@pytest.fixture
def mixed(frame):
    frame["kind"] = np.array(["small", "big", "online"])[np.arange(len(frame)) % 3]
    return frame


def one_hot(frame, values):
    """The oracle: pandas' own 0/1 columns."""
    columns = {f"kind={value}": (frame["kind"] == value).astype(float) for value in values}
    return frame.drop(columns="kind").assign(**columns)


def test_text_becomes_one_column_for_every_category_but_the_first(mixed, tmp_path):
    path = write_parquet(mixed, tmp_path, "folder")
    streamed = TaskStatistics.from_parquet(path, **COLUMNS, categories={"kind": ["small", "online", "big"]})
    assert_same(streamed, in_memory(one_hot(mixed, ["online", "big"])))


@pytest.mark.parametrize("coded", [False, True])
def test_auto_finds_the_categories_in_sorted_order(mixed, coded):
    table = pa.Table.from_pandas(mixed, preserve_index=False)
    if coded:
        table = table.set_column(5, "kind", table["kind"].dictionary_encode())
    streamed = TaskStatistics.from_arrow_stream(table, **COLUMNS, categories="auto")
    assert streamed.feature_names == ("price", "visitors", "holiday", "kind=online", "kind=small")
    assert_same(streamed, in_memory(one_hot(mixed, ["online", "small"])))


def test_a_category_may_not_have_the_name_of_a_column(mixed):
    mixed["kind=online"] = 1.0
    with pytest.raises(InputError, match="Two features would have the name 'kind=online'"):
        TaskStatistics.from_arrow_stream(pl.from_pandas(mixed), **COLUMNS, categories="auto")


def test_numbers_may_be_categories_too(mixed):
    mixed["kind"] = np.arange(len(mixed)) % 3
    streamed = TaskStatistics.from_arrow_stream(pl.from_pandas(mixed), **COLUMNS, categories={"kind": [0, 1, 2]})
    assert_same(streamed, in_memory(one_hot(mixed, [1, 2])))


def test_auto_reads_csv_and_duckdb_twice(mixed, tmp_path):
    duckdb = pytest.importorskip("duckdb")
    mixed.to_csv(tmp_path / "mixed.csv", index=False)
    expected = in_memory(one_hot(mixed, ["online", "small"]))
    assert_same(TaskStatistics.from_csv(tmp_path / "mixed.csv", **COLUMNS, categories="auto"), expected)
    with duckdb.connect() as connection:
        relation = connection.from_arrow(pa.Table.from_pandas(mixed, preserve_index=False))
        assert_same(TaskStatistics.from_arrow_stream(relation, **COLUMNS, categories="auto"), expected)


def test_text_without_categories_is_refused_with_the_remedy(mixed):
    with pytest.raises(InputTypeError, match=r"'kind' is of type .*string; features must be numeric. Pass categories="):
        TaskStatistics.from_arrow_stream(pa.Table.from_pandas(mixed), **COLUMNS)


def test_a_value_outside_the_categories_is_named(mixed, tmp_path):
    path = write_parquet(mixed, tmp_path, "file")
    with pytest.raises(InputError, match=r"all.parquet: column 'kind' has the value 'big' \(row 1\), which is not"):
        TaskStatistics.from_parquet(path, **COLUMNS, categories={"kind": ["small", "online", "bigger"]})


def test_too_many_categories_are_refused(frame):
    frame["kind"] = [f"k{k % 201}" for k in range(len(frame))]
    with pytest.raises(InputError, match="'kind' has more than 200 different values"):
        TaskStatistics.from_arrow_stream(pa.Table.from_pandas(frame), **COLUMNS, categories="auto")


def test_categories_that_cannot_be_are_refused(mixed):
    table = pa.Table.from_pandas(mixed, preserve_index=False)
    for categories, message in [
        ({"kid": ["a"]}, "Did you mean 'kind'"),
        ({"kind": ["a", "a"]}, "one or more different values"),
        ({"kind": []}, "one or more different values"),
        ("all", "must be a dictionary"),
    ]:
        with pytest.raises((InputError, ParameterError), match=message):
            TaskStatistics.from_arrow_stream(table, **COLUMNS, categories=categories)
    with pytest.raises(InputError, match="reads the rows twice"):
        TaskStatistics.from_arrow_stream(table.to_reader(), **COLUMNS, categories="auto")


# ---------------------------------------------------------------------- what is refused, what is dropped


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_missing_values_are_refused_with_file_column_count_and_row(frame, tmp_path, bad):
    frame.loc[[310, 320], "price"] = bad
    path = write_parquet(frame, tmp_path, "folder")
    with pytest.raises(InputError, match=r"part-1.parquet: column 'price' has 2 missing .* \(first in row 10\)"):
        TaskStatistics.from_parquet(path, **COLUMNS)


@pytest.mark.parametrize("column", ["price", "sales", "weight", "kind"])
def test_rows_with_missing_values_can_be_dropped_and_are_counted(mixed, column, caplog):
    mixed["weight"] = 1.0 + np.arange(len(mixed)) % 2
    mixed[column] = mixed[column].astype(object).where(np.arange(len(mixed)) % 10 != 0, None)
    table = pa.Table.from_pandas(mixed, preserve_index=False)
    options = {**COLUMNS, "sample_weight": "weight", "categories": "auto"}
    dropped = TaskStatistics.from_arrow_stream(table, **options, drop_missing=True)
    assert f"100 of 997 rows were left out because of missing values ('{column}': 100)" in caplog.text
    rest = pa.Table.from_pandas(mixed.dropna(), preserve_index=False)
    assert_same(dropped, TaskStatistics.from_arrow_stream(rest, **options))
    with pytest.raises(InputError, match=f"'{column}' has 100 missing"):
        TaskStatistics.from_arrow_stream(table, **options)


@pytest.mark.parametrize("drop_missing", [False, True])
def test_rows_without_a_task_are_always_refused(frame, tmp_path, drop_missing):
    frame.loc[[5, 6], "shop"] = None
    path = write_parquet(frame, tmp_path, "file")
    with pytest.raises(InputError, match=r"all.parquet: column 'shop' has 2 missing task labels \(first in row 5\)"):
        TaskStatistics.from_parquet(path, **COLUMNS, drop_missing=drop_missing)


def test_an_empty_field_of_a_csv_file_is_missing(tmp_path):
    (tmp_path / "a.csv").write_text("shop,x,sales\na,1,2\n,1,2\n")
    with pytest.raises(InputError, match=r"a.csv: column 'shop' has 1 missing task labels"):
        TaskStatistics.from_csv(tmp_path / "a.csv", **COLUMNS)


def test_a_misspelt_column_is_answered_with_the_right_one(frame, tmp_path):
    path = write_parquet(frame, tmp_path, "file")
    for wrong in ({"task": "shp"}, {"target": "sale"}, {"features": ["prise"]}, {"sample_weight": "prize"}):
        with pytest.raises(InputError, match=r"all.parquet has no column .* Did you mean '(shop|sales|price)'"):
            TaskStatistics.from_parquet(path, **{**COLUMNS, **wrong})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": ["price", "price"]}, "must be different columns"),
        ({"features": ["sales"]}, "none of them the target"),
        ({"features": []}, "no feature column"),
        ({"features": "price"}, "must be a list"),
        ({"folds": 1}, "at least 2"),
        ({"batch_rows": 0}, "batch_rows must be at least 1"),
    ],
)
def test_options_that_cannot_be_are_refused(frame, options, message):
    with pytest.raises((InputError, ParameterError), match=message):
        TaskStatistics.from_arrow_stream(pa.Table.from_pandas(frame, preserve_index=False), **{**COLUMNS, **options})


def test_an_unknown_option_is_answered_with_the_right_one(frame):
    with pytest.raises(InputTypeError, match=r"no option 'feature'. Did you mean 'features'"):
        TaskStatistics.from_arrow_stream(pa.Table.from_pandas(frame), **COLUMNS, feature=["price"])


def test_negative_weights_are_refused(frame):
    with pytest.raises(InputError, match="'sales' has a negative weight"):
        TaskStatistics.from_arrow_stream(pl.from_pandas(frame), task="shop", target="price", sample_weight="sales")


def test_columns_that_are_no_numbers_are_refused(frame):
    dates = frame.assign(day=pd.Timestamp("2020-01-01"))
    with pytest.raises(InputTypeError, match=r"'day' is of type timestamp.*; features must be numeric. Turn it"):
        TaskStatistics.from_arrow_stream(pa.Table.from_pandas(dates, preserve_index=False), **COLUMNS)
    with pytest.raises(InputTypeError, match="the target must be numeric"):
        TaskStatistics.from_arrow_stream(pl.from_pandas(frame), task="visitors", target="shop")
    empty = frame.assign(nothing=None)
    with pytest.raises(InputError, match="'nothing' is empty"):
        TaskStatistics.from_arrow_stream(pa.Table.from_pandas(empty, preserve_index=False), **COLUMNS)


def test_files_that_are_not_there_or_not_tables_are_named(tmp_path):
    for path in (tmp_path / "none.parquet", str(tmp_path / "*.parquet")):
        with pytest.raises(InputError, match="There is no file"):
            TaskStatistics.from_parquet(path, **COLUMNS)
    with pytest.raises(InputError, match=r"has no file that ends in .parquet"):
        TaskStatistics.from_parquet(tmp_path, **COLUMNS)
    with pytest.raises(InputError, match="at least one parquet file"):
        TaskStatistics.from_parquet([], **COLUMNS)
    (tmp_path / "broken.parquet").write_text("not a table")
    with pytest.raises(InputError, match=r"broken.parquet cannot be read"):
        TaskStatistics.from_parquet(tmp_path / "broken.parquet", **COLUMNS)


def test_a_file_that_breaks_off_is_named(frame, tmp_path):
    path = write_parquet(frame, tmp_path, "folder")
    content = (path / "part-2.parquet").read_bytes()
    (path / "part-2.parquet").write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match=r"part-2.parquet cannot be read"):
        TaskStatistics.from_parquet(path, **COLUMNS)


def test_a_task_label_that_is_no_number_later_in_a_csv_file_makes_all_of_them_text(tmp_path):
    (tmp_path / "a.csv").write_text("shop,x,sales\n1,1,2\n")
    (tmp_path / "b.csv").write_text("shop,x,sales\nx,1,2\n")
    assert TaskStatistics.from_csv(tmp_path, **COLUMNS).task_names.tolist() == ["1", "x"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("shop,x,sales\nMüller,1,2\n", "column 'shop'"),
        ("shop,x,sales\na,é,2\n", "column 'x'"),
        ("shop,größe,sales\na,1,2\n", "UTF-8 text"),
        # Beyond the first block, types are settled.
        ("shop,x,sales\n" + "Muller,1,2\n" * 200_000 + "Müller,1,2\n", "UTF-8 text"),
    ],
)
def test_a_csv_file_in_another_encoding_is_named_with_the_remedy(tmp_path, text, what):
    (tmp_path / "old.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=r"old.csv is not UTF-8 text.* Save it as UTF-8") as caught:
        TaskStatistics.from_csv(tmp_path / "old.csv", **COLUMNS)
    assert what in str(caught.value)


def test_no_rows_are_refused(frame):
    with pytest.raises(InputError, match="has no rows"):
        TaskStatistics.from_arrow_stream(pa.Table.from_pandas(frame[:0], preserve_index=False), **COLUMNS)


def test_an_object_that_does_not_stream_is_refused():
    with pytest.raises(InputTypeError, match="must offer __arrow_c_stream__"):
        TaskStatistics.from_arrow_stream([1, 2], **COLUMNS)


def test_statistics_of_text_and_number_labels_do_not_add(frame):
    numbered = in_memory(frame.assign(shop=frame["visitors"]))
    with pytest.raises(InputTypeError, match="all strings or all numbers"):
        in_memory(frame) + numbered


# ---------------------------------------------------------------------- progress


def test_progress_is_logged_and_told(frame, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(streams_module, "INTERVAL", 0.0)
    caplog.set_level(logging.INFO, logger="ggmtl")
    told = []
    path = write_parquet(frame, tmp_path, "folder")
    TaskStatistics.from_parquet(path, **COLUMNS, progress=told.append)
    assert [state.rows for state in told] == [300, 600, 900, 997, 997]
    assert told[-1].tasks == 13
    assert told[-1].rows_per_second > 0
    assert told[0].source.endswith("part-0.parquet")
    assert "997 rows of 13 tasks read" in caplog.text
    assert "rows/s" in caplog.text


# ---------------------------------------------------------------------- curves


def curved_rows():
    rng = np.random.default_rng(0)
    rows = 900
    return pd.DataFrame(
        {
            "shop": np.array([f"shop {k}" for k in range(9)])[rng.integers(9, size=rows)],
            "price": rng.gamma(2.0, 3.0, size=rows),
            "holiday": rng.integers(2, size=rows).astype(float),
            "visitors": rng.integers(0, 40, size=rows).astype(float),
            "times": rng.integers(0, 3, size=rows).astype(float),
        }
    ).assign(sales=lambda t: np.sin(t["price"] / 3) + 0.01 * t["visitors"] ** 2 + 0.1 * rng.normal(size=rows))


def test_a_stream_with_curves_gives_the_model_of_rows_in_memory(tmp_path):
    frame = curved_rows()
    weighed = {**COLUMNS, "sample_weight": "times"}
    frame.iloc[:400].to_parquet(tmp_path / "1.parquet")
    frame.iloc[400:].to_parquet(tmp_path / "2.parquet")
    read = TaskStatistics.from_parquet(tmp_path, **weighed, curves="auto", batch_rows=70)
    assert_same(read, TaskStatistics.from_frame(frame, **weighed, curves="auto"))
    streamed = GGMTLRegressor(effects="smooth", validation=None).fit_statistics(read)
    model = GGMTLRegressor(effects="smooth", validation=None, task="shop").fit(
        frame[["shop", "price", "holiday", "visitors"]], frame["sales"], sample_weight=frame["times"]
    )
    X = frame[["price", "holiday", "visitors"]]
    ours, theirs = streamed.predict(X, tasks=frame["shop"]), model.predict(frame.drop(columns=["sales", "times"]))
    np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(streamed.effect("price")["effect"], model.effect("price")["effect"], atol=1e-8)
    # Straight lines need nothing of the curves.
    plain = TaskStatistics.from_parquet(tmp_path, **weighed)
    assert_same(read.without_curves(), plain)
    for estimator in (GGMTLRegressor(validation=None), HubRegressor(validation=None)):
        lines = [clone(estimator).fit_statistics(statistics).coef_ for statistics in (read, plain)]
        np.testing.assert_allclose(*lines, rtol=1e-8, atol=1e-10)


def test_folds_do_not_depend_on_curves_and_statistics_of_the_same_curves_add_up():
    frame = curved_rows()
    table = pa.Table.from_pandas(frame.drop(columns="times"))
    whole = TaskStatistics.from_arrow_stream(table, **COLUMNS, folds=4, curves="auto")
    plain = TaskStatistics.from_arrow_stream(table, **COLUMNS, folds=4)
    for k in range(4):
        assert_same(whole.fold(k).without_curves(), plain.fold(k))
    # The rest of the rows, and a reader that can be read once, take the knots as given.
    first = TaskStatistics.from_arrow_stream(table.slice(0, 500), **COLUMNS, folds=4, curves=whole.curves)
    rest = TaskStatistics.from_arrow_stream(
        table.slice(500).to_reader(), **COLUMNS, folds=4, curves=whole.curves, batch_rows=64
    )
    assert_same(first + rest, whole)
    assert_same((whole - rest).take(np.arange(9)), first)
    assert GGMTLRegressor(effects="auto").fit_statistics(first + rest).validation_error_ < 0.3
    other = TaskStatistics.from_arrow_stream(table.slice(500), **COLUMNS, folds=4, curves="auto")
    for one in (other, replace(first, curves=None)):
        with pytest.raises(InputError, match="different curves"):
            first + one
    with pytest.raises(InputError, match="RecordBatchReader cannot"):
        TaskStatistics.from_arrow_stream(table.to_reader(), **COLUMNS, curves="auto")
    with pytest.raises(InputError, match="more features than the 1"):
        TaskStatistics.from_arrow_stream(table, **COLUMNS, features=["price"], curves=whole.curves)
    with pytest.raises(ParameterError, match="curves must be"):
        TaskStatistics.from_arrow_stream(table, **COLUMNS, curves="knots")


def test_very_many_distinct_values_are_joined_and_the_curve_hardly_moves(monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.gamma(2.0, 3.0, size=(20_000, 1))
    exact = Curves.of_rows(x)
    monkeypatch.setattr(curves_module, "_MOST_DISTINCT", 600)
    counted = DistinctValues.none(1)
    for part in np.split(x, 40):
        counted.add(part.T)
    values, weight = counted.found[0]
    assert len(values) <= 600
    assert weight.sum() == pytest.approx(20_000.0)
    assert (values @ weight) / 20_000 == pytest.approx(x.mean())
    joined = Curves.of_values(counted)
    np.testing.assert_array_equal(joined.knots[:, [0, -1]], exact.knots[:, [0, -1]])
    np.testing.assert_allclose(joined.knots, exact.knots, rtol=0.02)
    gap = joined.columns(x) - exact.columns(x)
    assert np.sqrt((gap**2).mean(axis=0)).max() < 0.05
