"""Statistics of Spark data frames."""

import os
import shutil
import sys

import numpy as np
import pytest

from ggmtl.errors import InputError, InputTypeError
from ggmtl.statistics.streaming.sources import from_bytes, to_bytes
from ggmtl.statistics.task_statistics import TaskStatistics

pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

pytestmark = [
    pytest.mark.skipif(
        shutil.which("java") is None and "JAVA_HOME" not in os.environ,
        reason="Spark needs Java",
    ),
    # Spark's own code warns of sockets and of other packages' versions.
    pytest.mark.filterwarnings("ignore"),
]

COLUMNS = {"task": "shop", "target": "sales"}


def make_frame(rows=600, n_tasks=11, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "shop": np.array([f"shop {k}" for k in range(n_tasks)])[rng.integers(n_tasks, size=rows)],
            "price": rng.normal(100.0, 3.0, size=rows),
            "visitors": rng.integers(0, 50, size=rows),
            "kind": np.array(["big", "online", "small"])[rng.integers(3, size=rows)],
            "sales": rng.normal(-20.0, 5.0, size=rows),
        }
    )


def assert_same(left, right, tolerance=1e-10):
    assert left.task_names.tolist() == right.task_names.tolist()
    assert left.feature_names == right.feature_names
    for name in ("gram", "moment", "target_square", "feature_sum", "target_sum", "count"):
        a, b = getattr(left, name), getattr(right, name)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * np.abs(b).max(), err_msg=name)


@pytest.fixture(scope="module")
def spark():
    from pyspark.sql import SparkSession

    options = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": "2",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        # Workers are started afresh: without numba they start in half the time.
        patch.setenv("GGMTL_KERNELS", "numpy")
        session = SparkSession.builder.master("local[2]").config(map=options).getOrCreate()
        yield session
        session.stop()


@pytest.fixture(scope="module")
def frame():
    return make_frame()


@pytest.fixture(scope="module")
def table(spark, frame, tmp_path_factory):
    """The frame as Spark reads it from Parquet files."""
    import pyarrow.parquet as pq

    folder = tmp_path_factory.mktemp("spark")
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), folder / "all.parquet")
    return spark.read.parquet(str(folder))


def test_bytes_keep_every_number(frame):
    numbers = frame.drop(columns="kind")
    statistics = TaskStatistics.from_frame(numbers, **COLUMNS, folds=3)
    again = from_bytes(to_bytes(statistics))
    np.testing.assert_array_equal(again.cross, statistics.cross)
    assert again.task_names.tolist() == statistics.task_names.tolist()
    assert again.feature_names == statistics.feature_names
    assert again.n_folds == 3


def test_partitions_added_in_two_rounds_give_the_statistics_of_one_machine(table, frame):
    there = TaskStatistics.from_spark(table.drop("kind").repartition(10), **COLUMNS)
    assert_same(there, TaskStatistics.from_frame(frame.drop(columns="kind"), **COLUMNS))


def test_folds_and_categories_are_those_of_a_stream(table, frame):
    options = {**COLUMNS, "folds": 3, "categories": "auto"}
    there = TaskStatistics.from_spark(table, **options)
    here = TaskStatistics.from_arrow_stream(pa.Table.from_pandas(frame, preserve_index=False), **options)
    assert there.n_folds == here.n_folds == 3
    for k in range(3):
        assert_same(there.fold(k), here.fold(k))


def test_curves_are_placed_by_all_partitions(table, frame):
    here = TaskStatistics.from_frame(frame.drop(columns="kind"), **COLUMNS, curves="auto")
    there = TaskStatistics.from_spark(table.drop("kind"), **COLUMNS, curves="auto")
    assert_same(there, here)
    assert there.curves.n_columns == here.curves.n_columns > 0


def test_wrong_input_is_refused_before_a_job_starts(table, frame):
    with pytest.raises(InputError, match=r"has no column 'shp'. Did you mean 'shop'"):
        TaskStatistics.from_spark(table, task="shp", target="sales")
    with pytest.raises(InputTypeError, match=r"'kind' is of type .*Pass categories="):
        TaskStatistics.from_spark(table, **COLUMNS)
    with pytest.raises(InputTypeError, match="Got DataFrame instead"):
        TaskStatistics.from_spark(frame, **COLUMNS)


def test_a_table_without_rows_is_refused(table):
    with pytest.raises(InputError, match="has no rows"):
        TaskStatistics.from_spark(table.drop("kind").where("visitors < 0"), **COLUMNS)


def test_missing_values_stop_the_job_with_the_column_and_the_count(table):
    broken = table.drop("kind").selectExpr("shop", "sales", "case when visitors > 45 then null else price end as price")
    with pytest.raises(Exception, match=r"column 'price' has .* missing or infinite values"):
        TaskStatistics.from_spark(broken, **COLUMNS)
