"""Statistics of Dask data frames."""

import os
import signal
import threading
import time

import numpy as np
import pytest

from ggmtl.errors import InputError, InputTypeError, ParameterError
from ggmtl.statistics.task_statistics import TaskStatistics

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")
dask = pytest.importorskip("dask")
dd = pytest.importorskip("dask.dataframe")
distributed = pytest.importorskip("distributed")

COLUMNS = {"task": "shop", "target": "sales"}


def make_frame(rows=2000, n_tasks=17, seed=0):
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


@pytest.fixture
def frame():
    return make_frame()


@pytest.fixture(autouse=True)
def in_this_process():
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.mark.parametrize("n_partitions", [1, 3, 30])
def test_partitions_give_the_statistics_of_one_machine(frame, n_partitions):
    numbers = frame.drop(columns="kind")
    ddf = dd.from_pandas(numbers, npartitions=n_partitions)
    assert_same(TaskStatistics.from_dask(ddf, **COLUMNS), TaskStatistics.from_frame(numbers, **COLUMNS))


def test_folds_weights_and_categories_are_those_of_a_stream(frame):
    import pyarrow as pa

    options = {**COLUMNS, "folds": 4, "categories": "auto", "sample_weight": "weight"}
    frame["weight"] = np.arange(len(frame)) % 3
    there = TaskStatistics.from_dask(dd.from_pandas(frame, npartitions=7), **options)
    here = TaskStatistics.from_arrow_stream(pa.Table.from_pandas(frame, preserve_index=False), **options)
    assert there.n_folds == here.n_folds == 4
    assert there.feature_names == ("price", "visitors", "kind=online", "kind=small")
    for k in range(4):
        assert_same(there.fold(k), here.fold(k))


def test_tasks_that_only_some_partitions_have_and_empty_partitions_do_no_harm(frame):
    numbers = frame.drop(columns="kind").sort_values("shop")
    ddf = dd.from_pandas(numbers, npartitions=9, sort=False)
    expected = numbers[numbers["shop"] < "shop 12"]
    streamed = TaskStatistics.from_dask(ddf[ddf["shop"] < "shop 12"], **COLUMNS)
    assert_same(streamed, TaskStatistics.from_frame(expected, **COLUMNS))


def test_wrong_input_is_refused_early_or_with_its_place(frame):
    ddf = dd.from_pandas(frame, npartitions=4)
    with pytest.raises(InputError, match=r"has no column 'shp'. Did you mean 'shop'"):
        TaskStatistics.from_dask(ddf, task="shp", target="sales")
    with pytest.raises(InputTypeError, match=r"'kind' is of type .*Pass categories="):
        TaskStatistics.from_dask(ddf, **COLUMNS)
    with pytest.raises(InputTypeError, match="Got DataFrame instead"):
        TaskStatistics.from_dask(frame, **COLUMNS)
    frame.loc[1999, "price"] = np.nan
    broken = dd.from_pandas(frame.drop(columns="kind"), npartitions=4)
    with pytest.raises(InputError, match="Partition 3: column 'price' has 1 missing"):
        TaskStatistics.from_dask(broken, **COLUMNS)
    with pytest.raises(InputError, match="has no rows"):
        TaskStatistics.from_dask(broken[broken["visitors"] < 0], **COLUMNS)
    clean = TaskStatistics.from_dask(broken, **COLUMNS, drop_missing=True)
    assert clean.count.sum() == 1999


def test_progress_is_refused_since_it_cannot_be_reported(frame):
    with pytest.raises(ParameterError, match="progress= is for files and streams"):
        TaskStatistics.from_dask(dd.from_pandas(frame, npartitions=2), **COLUMNS, progress=print)


def slow_part(number, folder):
    """Rows of one partition, which take a while, and a note that they were made."""
    (folder / f"{number}-{os.getpid()}-{time.monotonic_ns()}").touch()
    time.sleep(0.2)
    return make_frame(rows=100, seed=number).drop(columns="kind")


def kill_when_busy(cluster, folder, killed):
    """Kill the first worker as soon as it has made a partition."""
    pid = cluster.workers[0].pid
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        if len([file for file in folder.iterdir() if f"-{pid}-" in file.name]) >= 2:
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
            return
        time.sleep(0.01)


@pytest.mark.filterwarnings("ignore")
def test_a_worker_killed_in_the_middle_changes_nothing(tmp_path, monkeypatch):
    # Workers are started afresh: without numba they start sooner.
    monkeypatch.setenv("GGMTL_KERNELS", "numpy")
    meta = make_frame(rows=1).drop(columns="kind")
    ddf = dd.from_map(slow_part, range(16), folder=tmp_path, meta=meta)
    killed = []
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs="CRITICAL"
        ) as cluster,
        distributed.Client(cluster),
        dask.config.set(scheduler="dask.distributed"),
    ):
        killer = threading.Thread(target=kill_when_busy, args=(cluster, tmp_path, killed))
        killer.start()
        statistics = TaskStatistics.from_dask(ddf, **COLUMNS)
        killer.join()
    assert len(killed) == 1
    made = [file.name.split("-")[0] for file in tmp_path.iterdir()]
    assert len(made) > len(set(made)) == 16
    whole = pd.concat([make_frame(rows=100, seed=k) for k in range(16)]).drop(columns="kind")
    assert_same(statistics, TaskStatistics.from_frame(whole, **COLUMNS))


@pytest.mark.parametrize("n_partitions", [1, 7])
def test_curves_are_placed_by_all_partitions(frame, n_partitions):
    numbers = frame.drop(columns="kind")
    ddf = dd.from_pandas(numbers, npartitions=n_partitions)
    here = TaskStatistics.from_dask(ddf, **COLUMNS, folds=3, curves="auto")
    there = TaskStatistics.from_frame(numbers, **COLUMNS, curves="auto")
    assert_same(here, there)
    assert_same(TaskStatistics.from_dask(ddf, **COLUMNS, curves=there.curves), there)
