"""--task-table: what is known about the tasks, from a file."""

import csv

import numpy as np
import pytest
from typer.testing import CliRunner

from ggmtl.cli.app import app
from ggmtl.cli.table_files import read_task_table
from ggmtl.estimators.regressor import load_model

runner = CliRunner()


def _write(path, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, random = tmp_path_factory.mktemp("stations"), np.random.default_rng(0)
    height = random.normal(size=34)
    table = [["station", "name", "height", "kind", "opened"]]
    rows = [["station", "x", "y"]]
    for k in range(34):
        table.append([f"{k:02d}", f"Station no. {k}", height[k], "ab"[k % 2], f"20{k % 20 + 1:02d}-03-01"])
        for x in random.normal(size=6):
            rows.append([f"{k:02d}", x, height[k] * x + (k % 2) + 0.1 * random.normal()])
    _write(folder / "stations.csv", table)
    _write(folder / "train.csv", rows[: 1 + 30 * 6])
    _write(folder / "new.csv", rows)
    _write(folder / "few.csv", [table[0], *table[3:]])
    return folder


def _run(*arguments):
    return runner.invoke(app, [str(argument) for argument in arguments])


def _fit(folder, table="stations.csv"):
    options = ("--task", "station", "--target", "y", "--output", folder / "m.ggmtl")
    return _run("fit", folder / "train.csv", *options, "--task-table", folder / table)


def test_a_fit_with_a_task_table_predicts_stations_without_rows(folder):
    result = _fit(folder)
    assert result.exit_code == 0, result.output
    assert "Task features explain" in result.output
    assert "name: left out of the task table" in result.output
    assert "4 of 34 tasks of the task table have no rows: '30', '31', '32', '33'" in " ".join(result.output.split())
    known = load_model(folder / "m.ggmtl").state_.settings.known
    assert list(known.features.columns) == ["height", "kind", "opened"]
    told = _run("predict", folder / "m.ggmtl", folder / "new.csv", "--output", folder / "p.csv",
                "--task-table", folder / "stations.csv")  # fmt: skip
    assert told.exit_code == 0, told.output
    with (folder / "p.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["station"] >= "30"]
    error = np.array([float(row["prediction"]) - float(row["y"]) for row in rows])
    assert np.sqrt((error**2).mean()) < 0.5 * np.std([float(row["y"]) for row in rows])


def test_unknown_tasks_are_named_with_the_option_that_admits_them(folder):
    assert _fit(folder).exit_code == 0
    result = _run("predict", folder / "m.ggmtl", folder / "new.csv", "--output", folder / "p.csv")
    assert result.exit_code == 1
    assert "'30'" in result.stderr
    assert "--task-table" in result.stderr


def test_a_table_without_training_tasks_is_refused(folder):
    result = _fit(folder, "few.csv")
    assert result.exit_code == 1
    assert "no row for 2 of 30 tasks: '00', '01'" in " ".join(result.stderr.split())


def test_a_model_without_a_task_table_says_so(folder):
    options = ("--task", "station", "--target", "y", "--output", folder / "plain.ggmtl")
    assert _run("fit", folder / "train.csv", *options).exit_code == 0
    result = _run("predict", folder / "plain.ggmtl", folder / "new.csv", "--output", folder / "p.csv",
                  "--task-table", folder / "stations.csv")  # fmt: skip
    assert result.exit_code == 1
    assert "fitted without a task table" in " ".join(result.stderr.split())


def test_dates_are_days_whatever_the_first_one_is(folder):
    whole = read_task_table(folder / "stations.csv", "station").features
    part = read_task_table(folder / "few.csv", "station", wanted=["opened"]).features
    np.testing.assert_array_equal(part.columns["opened"], whole.columns["opened"][2:])
