"""Files as people write them: separators, decimal marks, dates, labels that look like missing values."""

from __future__ import annotations

import csv

import numpy as np
import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")
pa = pytest.importorskip("pyarrow")

import pyarrow.parquet  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from ggmtl.cli.app import app  # noqa: E402
from ggmtl.cli.columns import Encoding  # noqa: E402
from ggmtl.cli.csv_files import Reading  # noqa: E402
from ggmtl.cli.dates import Days  # noqa: E402
from ggmtl.cli.table_files import read_table  # noqa: E402
from ggmtl.cli.workflow import Columns, load, read_rows  # noqa: E402
from ggmtl.errors import InputError, ModelFileError  # noqa: E402


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def write(path, rows, separator=","):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=separator).writerows(rows)
    return path


def column(path, cells, separator=",", **reading):
    """What is read of a column with these cells, beside a column of whole numbers."""
    write(path, [["k", "x"], *([k, cell] for k, cell in enumerate(cells))], separator)
    return read_table(path, "k", Reading(**reading)).table["x"].to_pylist()


def sales_rows(n_tasks=4, n_rows=12):
    rng = np.random.default_rng(0)
    return [
        (f"shop {t}", round(float(x), 3), round(1000.0 * (3 - (2 + t % 2) * x) + rng.normal(), 2))
        for t in range(n_tasks)
        for x in rng.uniform(size=n_rows)
    ]


def german(value):
    return f"{value:,.2f}".replace(",", " ").replace(".", ",").replace(" ", ".")


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_the_separator_is_recognised_from_the_first_rows(tmp_path, separator):
    rows = [["task", "size, m", "y"], *([f"a;{k}" if separator != ";" else "a", k / 2, k] for k in range(5))]
    table = read_table(write(tmp_path / "t.csv", rows, separator), "task").table
    assert table.column_names == ["task", "size, m", "y"]
    assert table["size, m"].to_pylist() == [0.0, 0.5, 1.0, 1.5, 2.0]


def test_a_faulty_line_does_not_hide_the_separator(tmp_path):
    (tmp_path / "t.csv").write_text("a;b;c\n1;2;3\n1;2\n")
    with pytest.raises(InputError, match="Expected 3 columns, got 2"):
        read_table(tmp_path / "t.csv")


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (["1,5", "-0,25", "3"], [1.5, -0.25, 3.0]),
        (["1.234,5", "12", "1,2e3"], [1234.5, 12.0, 1200.0]),
        (["1,234.5", "12", ".5"], [1234.5, 12.0, 0.5]),
        (["1,234,567", "12"], [1234567, 12]),
        (["1 234", "1\u202f234\u00a0567", "7"], [1234, 1234567, 7]),
        (["1'234.50", "-7"], [1234.5, -7.0]),
        (["0,123", "0,5"], [0.123, 0.5]),
        (["1,5", "", "2,5"], [1.5, None, 2.5]),
        (["1.234.567", "2"], [1234567, 2]),
    ],
)
def test_numbers_are_read_as_they_are_written(tmp_path, cells, values):
    for separator in (",", ";"):
        assert column(tmp_path / "t.csv", cells, separator) == values


@pytest.mark.parametrize("cells", [["1,23,4", "2"], ["12,34,567.8", "2"], ["1,5", "x"], ["1.2.3", "4"], ["1,5", "2.5"]])
def test_what_is_no_number_stays_text(tmp_path, cells):
    assert column(tmp_path / "t.csv", cells) == cells


def test_thousands_or_decimals_follow_the_other_columns(tmp_path):
    rows = [["a", "b", "c"], ["1,5", "1.234", "2,345"], ["2,5", "4.321", "5,432"]]
    table = read_table(write(tmp_path / "t.csv", rows, ";")).table
    assert table["b"].to_pylist() == [1234, 4321]
    assert table["c"].to_pylist() == [2.345, 5.432]
    rows = [["a", "b"], ["1.25", "1,234"], ["2.5", "4,321"]]
    assert read_table(write(tmp_path / "t.csv", rows, ";")).table["b"].to_pylist() == [1234, 4321]


def test_each_column_is_read_by_what_it_shows_itself(tmp_path):
    rows = [["a", "b"], ["1,5", "2.5"], ["2,5", "3.25"]]
    table = read_table(write(tmp_path / "t.csv", rows, ";")).table
    assert table.to_pydict() == {"a": [1.5, 2.5], "b": [2.5, 3.25]}


def test_thousands_or_decimals_without_a_sign_of_either_are_refused(tmp_path):
    with pytest.raises(InputError, match="'1,234', which could have thousands or decimals"):
        column(tmp_path / "t.csv", ["1,234", "5"], ";")
    assert column(tmp_path / "t.csv", ["1,234", "5"], ";", decimal="comma") == [1.234, 5.0]
    assert column(tmp_path / "t.csv", ["1,234", "5"], ";", decimal="point") == [1234, 5]
    # Between commas, a comma within a cell is of thousands.
    assert column(tmp_path / "t.csv", ["1,234", "5"]) == [1234, 5]
    # As everywhere, a point is a decimal point where nothing else shows.
    assert column(tmp_path / "t.csv", ["1.234", "5"], ";") == [1.234, 5.0]


def test_a_german_file_gives_the_model_of_an_english_one(tmp_path):
    rows = sales_rows()
    english = write(tmp_path / "en.csv", [["shop", "price", "sales"], *rows])
    other = [[shop, german(1000 * price), german(sales)] for shop, price, sales in rows]
    semicolons = write(tmp_path / "de.csv", [["shop", "price", "sales"], *other], ";")
    columns = ("--task", "shop", "--target", "sales")
    for path in (english, semicolons):
        assert run("fit", path, *columns, "--output", path.with_suffix(".ggmtl")).exit_code == 0
        result = run("predict", path.with_suffix(".ggmtl"), path, "--output", path.with_suffix(".out.csv"))
        assert result.exit_code == 0, result.output
    with (tmp_path / "en.out.csv").open(newline="") as file:
        expected = [float(row[-1]) for row in list(csv.reader(file))[1:]]
    with (tmp_path / "de.out.csv").open(newline="") as file:
        header, *written = csv.reader(file, delimiter=";")
    assert header == ["shop", "price", "sales", "prediction"]
    assert [row[:3] for row in written] == other
    np.testing.assert_allclose([float(row[-1].replace(",", ".")) for row in written], expected, rtol=1e-9)


def test_new_rows_are_read_like_the_training_file(tmp_path):
    rows = [[shop, german(1000 * price), german(sales)] for shop, price, sales in sales_rows()]
    path = write(tmp_path / "de.csv", [["shop", "price", "sales"], *rows], ";")
    assert run("fit", path, "--task", "shop", "--target", "sales", "--output", tmp_path / "m.ggmtl").exit_code == 0
    new = write(tmp_path / "new.csv", [["shop", "price"], ["shop 0", "1.234"]], ";")
    same = write(tmp_path / "same.csv", [["shop", "price"], ["shop 0", "1234"]], ";")
    for file in (new, same):
        out = file.with_suffix(".out.csv")
        assert run("predict", tmp_path / "m.ggmtl", file, "--output", out).exit_code == 0
    last = [file.with_suffix(".out.csv").read_text().split(";")[-1] for file in (new, same)]
    assert last[0] == last[1]


def dated(tmp_path, cells, name="t.csv"):
    rows = [[f"t{k % 3}", cell, k % 7, k % 5] for k, cell in enumerate(cells)]
    return write(tmp_path / name, [["task", "day", "x", "y"], *rows])


@pytest.mark.parametrize(
    "form", ["2024-{m:02d}-{d:02d}", "{d}.{m}.2024", "{m}/{d}/2024", "{d:02d}/{m:02d}/2024", "2024/{m}/{d}"]
)
def test_dates_become_days_since_the_first(tmp_path, form):
    days = [(1, 31), (2, 1), (3, 1), (1, 13)] * 6
    path = dated(tmp_path, [form.format(m=m, d=d) for m, d in days])
    rows = read_rows(path, Columns("task", "y"))
    assert rows.frame["day"].to_pylist() == [18.0, 19.0, 48.0, 0.0] * 6
    assert rows.encoding.notes() == ["day: dates, as days since 2024-01-13"]


def test_times_of_day_are_fractions_of_days(tmp_path):
    path = dated(tmp_path, ["2024-01-01 00:00", "2024-01-01 06:00", "2024-01-02 12:00"] * 4)
    assert read_rows(path, Columns("task", "y")).frame["day"].to_pylist() == [0.0, 0.25, 1.5] * 4


def test_dates_of_new_rows_count_from_the_first_of_the_training_rows(tmp_path):
    path = dated(tmp_path, [f"{1 + k}.2.2024" for k in range(24)])
    options = ("--task", "task", "--target", "y", "--output", tmp_path / "m.ggmtl")
    result = run("fit", path, *options)
    assert result.exit_code == 0, result.output
    assert "Note: day: dates, as days since 2024-02-01." in result.output
    model, encoding = load(tmp_path / "m.ggmtl")
    assert encoding.columns[0] == ("day", Days("2024-02-01", "DD.MM.YYYY"))
    new = write(tmp_path / "new.csv", [["task", "day", "x"], ["t0", "05/03/2024", 2]])
    assert run("predict", tmp_path / "m.ggmtl", new, "--output", tmp_path / "p.csv").exit_code == 0
    expected = model.predict(pa.table({"task": ["t0"], "day": [33.0], "x": [2.0]}))[0]
    assert float((tmp_path / "p.csv").read_text().split(",")[-1]) == pytest.approx(expected)
    bad = write(tmp_path / "bad.csv", [["task", "day", "x"], ["t0", "2024-31-05", 2]])
    result = run("predict", tmp_path / "m.ggmtl", bad, "--output", tmp_path / "p.csv")
    assert "must hold dates written DD.MM.YYYY, as in training. Got '2024-31-05' instead" in result.stderr


def test_dates_of_a_parquet_file_become_days_too(tmp_path):
    import datetime

    day = [datetime.date(2024, 1, 1 + k) for k in range(12)]
    table = pa.table({"task": ["a", "b"] * 6, "day": day, "y": np.arange(12.0)})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    rows = read_rows(tmp_path / "t.parquet", Columns("task", "y"))
    assert rows.frame["day"].to_pylist() == list(map(float, range(12)))


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["1.2.2024", "31.2.2024"] * 6, "but '31.2.2024' is not one"),
        (["1.2.2024", "2024-02-03"] * 6, "written in several ways"),
        (["1/2/2024", "3/4/2024"] * 6, "whether the day or the month comes first"),
        (["1/2/24", "13/4/24"] * 6, "'1/2/24' is not one"),
    ],
)
def test_dates_that_cannot_be_read_say_why(tmp_path, cells, message):
    with pytest.raises(InputError, match=message):
        read_rows(dated(tmp_path, cells), Columns("task", "y"))


def test_na_is_a_label_with_the_option_na_values(tmp_path):
    rows = [[["NA", "DE", "FR"][k % 3], k % 4 if k != 5 else "-99", k % 5] for k in range(30)]
    path = write(tmp_path / "t.csv", [["country", "x", "y"], *rows])
    options = ("--task", "country", "--target", "y")
    result = run("fit", path, *options)
    assert result.exit_code == 1
    assert "If cells such as NA are values in this file, use --na-values." in result.stderr
    output = ("--output", tmp_path / "m.ggmtl")
    result = run("fit", path, *options, *output, "--na-values", "-99", "--drop-missing")
    assert result.exit_code == 0, result.output
    assert "1 row with missing values left out" in result.output
    model, encoding = load(tmp_path / "m.ggmtl")
    assert model.tasks_.tolist() == ["DE", "FR", "NA"]
    assert encoding.missing == ("-99",)
    # The model file remembers: the label is none of the missing values at predict.
    assert run("predict", tmp_path / "m.ggmtl", path, "--drop-missing", "--output", tmp_path / "p.csv").exit_code == 0
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 30
    assert read_rows(path, Columns("country", "y"), reading=Reading(missing=())).labels.tolist()[:1] == ["NA"]


def test_names_with_commas_can_be_asked_for(tmp_path):
    rows = [["task", "price, EUR", "size", "y"], *([f"t{k % 3}", k % 4, k % 7, k % 5] for k in range(30))]
    path = write(tmp_path / "t.csv", rows)
    options = ("--task", "task", "--target", "y", "--output", tmp_path / "m.ggmtl")
    assert run("fit", path, *options, "--features", '"price, EUR", size').exit_code == 0
    assert load(tmp_path / "m.ggmtl")[1].feature_names == ["price, EUR", "size"]
    assert run("fit", path, *options, "--exclude", '"price, EUR"').exit_code == 0
    assert load(tmp_path / "m.ggmtl")[1].feature_names == ["size"]


def test_groups_weights_and_seed_reach_the_fit(tmp_path, monkeypatch):
    from ggmtl import GGMTLRegressor

    rows = [[f"t{k % 3}", k % 7, k // 2, 1 + k % 2, k % 5] for k in range(36)]
    path = write(tmp_path / "t.csv", [["task", "x", "visit", "n", "y"], *rows])
    seen = {}
    real = GGMTLRegressor.fit

    def fit(self, X, y, **options):
        seen.update(options, columns=X.column_names, seed=self.random_state)
        return real(self, X, y, **options)

    monkeypatch.setattr(GGMTLRegressor, "fit", fit)
    options = ("--task", "task", "--target", "y", "--groups", "visit", "--weights", "n", "--seed", 7)
    result = run("fit", path, *options)
    assert result.exit_code == 0, result.output
    assert seen["columns"] == ["task", "x"]
    assert seen["groups"].tolist() == [k // 2 for k in range(36)]
    assert seen["sample_weight"].tolist() == [1.0 + k % 2 for k in range(36)]
    assert seen["seed"] == 7
    assert run("compare", path, *options, "--methods", "pooled,independent", "--folds", "2").exit_code == 0


def test_effects_reach_the_fit_and_the_model_file(tmp_path):
    rows = [[f"t{k % 3}", k % 30 / 10, round(float(np.sin(k % 30 / 10)) + k % 3, 4)] for k in range(180)]
    path = write(tmp_path / "t.csv", [["task", "x", "y"], *rows])
    options = ("--task", "task", "--target", "y", "--output", tmp_path / "m.ggmtl")
    assert run("fit", path, *options, "--effects", "smooth").exit_code == 0
    model = load(tmp_path / "m.ggmtl")[0]
    assert model.effects == "smooth"
    assert model.scaling_.curves.n_columns == 3
    assert run("fit", path, *options, "--effects", "cubic").exit_code == 2


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--groups", "vist"), "Did you mean 'visit'?"),
        (("--weights", "y"), "columns of their own"),
        (("--weights", "visit"), "must be a column of numbers"),
        (("--weights", "x", "--features", "x"), "columns of their own"),
    ],
)
def test_groups_and_weights_that_cannot_be_used_say_why(tmp_path, option, message):
    rows = [[f"t{k % 3}", k % 7, f"v{k}", k % 5] for k in range(12)]
    path = write(tmp_path / "t.csv", [["task", "x", "visit", "y"], *rows])
    result = run("fit", path, "--task", "task", "--target", "y", *option)
    assert result.exit_code == 1
    assert message in result.stderr


@pytest.mark.parametrize(
    "change",
    [
        {"columns": [["day", {"days_since": "yesterday", "order": None}]]},
        {"columns": [["day", {"days_since": "2024-01-01", "order": "odd"}]]},
        {"columns": [["day", {}]]},
        {"decimal": "dot"},
        {"missing": 3},
    ],
)
def test_a_damaged_note_on_columns_is_refused(change):
    plain = Encoding("y", (("day", Days("2024-01-01")), ("x", None), ("c", ("a", "b"))), "comma", ("NA",)).to_plain()
    assert Encoding.from_plain(plain).to_plain() == plain
    with pytest.raises(ModelFileError):
        Encoding.from_plain(plain | change)
