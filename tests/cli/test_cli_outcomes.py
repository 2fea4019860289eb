"""The command line with classes and counts."""

from __future__ import annotations

import csv
import re

import numpy as np
import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")
pytest.importorskip("pyarrow")

from typer.testing import CliRunner

import ggmtl
from ggmtl.cli.app import app

COLUMNS = ("--task", "shop", "--target", "bought")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("outcomes"), np.random.default_rng(0)
    tables = {"labels": [], "numbers": [], "counts": []}
    for shop in range(5):
        for _ in range(30):
            price, hours = rng.normal(), rng.uniform(0.5, 8.0)
            bought = rng.random() < 1 / (1 + np.exp(1.5 * price))
            visits = rng.poisson(hours * np.exp(0.5 - 0.4 * price))
            for name, target in (("labels", "yes" if bought else "no"), ("numbers", int(bought)), ("counts", visits)):
                tables[name].append([f"shop {shop}", round(price, 4), round(hours, 3), target])
    for name, rows in tables.items():
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["shop", "price", "hours", "bought"], *rows])
    return folder


def run(*arguments):
    return CliRunner().invoke(app, [str(part) for part in arguments])


def standings(output):
    """Errors of the methods in the table of a comparison."""
    rows = re.findall(r"^(GGMTL|Pooled|Trees|GPBoost)\b.*?\s{2,}([\d.]+)\s{2,}[\d.]+\s{2,}[\d.]+", output, re.MULTILINE)
    return {name: float(error) for name, error in rows}


def predictions(path):
    with path.open(encoding="utf-8") as file:
        return [float(row["prediction"]) for row in csv.DictReader(file)]


def test_labels_are_fitted_and_their_probabilities_predicted(folder):
    model = folder / "labels.ggmtl"
    fitted = run("fit", folder / "labels.csv", *COLUMNS, "--loss", "binary", "--output", model)
    assert fitted.exit_code == 0, fitted.output
    assert "held-out log-loss" in fitted.output
    assert "probability of 'yes' rather than 'no'" in fitted.output.replace("\n", " ")
    page = run("report", model, "--output", folder / "page.html")
    assert page.exit_code == 0, page.output
    assert "Are the probabilities right?" in (folder / "page.html").read_text(encoding="utf-8")
    done = run("predict", model, folder / "labels.csv", "--output", folder / "probabilities.csv")
    assert done.exit_code == 0, done.output
    options = ("--output", folder / "bounds.csv", "--interval", 0.9)
    assert run("predict", model, folder / "labels.csv", *options).exit_code == 0
    with (folder / "bounds.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            assert 0 < float(row["lower"]) < float(row["prediction"]) < float(row["upper"]) < 1
    found = predictions(folder / "probabilities.csv")
    assert 0 < min(found) < max(found) < 1
    bounds = run("predict", model, folder / "labels.csv", "--interval", "0.9", "--output", folder / "bounds.csv")
    assert bounds.exit_code == 0, bounds.output
    with (folder / "bounds.csv").open(encoding="utf-8") as file:
        assert all(0 < float(row["lower"]) < float(row["upper"]) < 1 for row in csv.DictReader(file))
    assert isinstance(ggmtl.load_model(model), ggmtl.GGMTLClassifier)


def test_counts_are_fitted_and_predicted_with_their_exposure(folder):
    model = folder / "counts.ggmtl"
    options = ("--loss", "poisson", "--exposure", "hours", "--report", folder / "counts.html")
    fitted = run("fit", folder / "counts.csv", *COLUMNS, *options, "--output", model)
    assert fitted.exit_code == 0, fitted.output
    assert "Are the rates right?" in (folder / "counts.html").read_text(encoding="utf-8")
    assert "rate" in fitted.output
    one = run("predict", model, folder / "counts.csv", "--output", folder / "rates.csv")
    options = ("--exposure", "hours", "--interval", 0.8, "--output", folder / "visits.csv")
    counts = run("predict", model, folder / "counts.csv", *options)
    assert one.exit_code == counts.exit_code == 0, counts.output
    assert "rates per unit" in " ".join(one.output.split())
    assert "rates per unit" not in " ".join(counts.output.split())
    with (folder / "counts.csv").open(encoding="utf-8") as file:
        hours = [float(row["hours"]) for row in csv.DictReader(file)]
    np.testing.assert_allclose(
        predictions(folder / "visits.csv"), np.multiply(predictions(folder / "rates.csv"), hours), rtol=1e-9
    )


def test_more_than_two_labels_are_refused_before_the_fit(folder):
    (folder / "three.csv").write_text("task,x,y\n" + "".join(f"{k % 3},{k % 7},{'abc'[k % 3]}\n" for k in range(30)))
    result = run("fit", folder / "three.csv", "--task", "task", "--target", "y", "--loss", "binary")
    assert result.exit_code == 1
    assert "Got 3 different values" in " ".join(result.output.split())


def test_a_target_of_zeros_and_ones_is_recognised(folder):
    fitted = run("fit", folder / "numbers.csv", *COLUMNS)
    assert fitted.exit_code == 0, fitted.output
    assert "Use --loss binary" in fitted.output.replace("\n", " ")
    assert "Use --loss binary" not in run("fit", folder / "counts.csv", *COLUMNS).output.replace("\n", " ")


def test_a_target_of_two_labels_is_pointed_to_its_loss(folder):
    refused = run("fit", folder / "labels.csv", *COLUMNS)
    assert refused.exit_code == 1
    assert "--loss binary" in refused.output.replace("\n", " ")


@pytest.mark.parametrize(
    ("name", "options", "measure"),
    [
        ("labels", ("--loss", "binary"), "log-loss"),
        ("counts", ("--loss", "poisson", "--exposure", "hours"), "deviance"),
    ],
)
def test_labels_and_counts_are_compared(folder, name, options, measure):
    done = run("compare", folder / f"{name}.csv", *COLUMNS, *options, "--folds", 2, "--methods", "ggmtl,pooled,trees")
    assert done.exit_code == 0, done.output
    assert measure in done.output
    errors = standings(done.output)
    # All shops are alike, and the log odds are linear in the price.
    assert errors["GGMTL"] == pytest.approx(errors["Pooled"], rel=0.05)
    assert errors["GGMTL"] < errors["Trees"]


def test_a_mixed_model_of_gpboost_takes_part(folder):
    pytest.importorskip("gpboost")
    options = ("--loss", "poisson", "--exposure", "hours", "--folds", 2, "--methods", "pooled,gpboost")
    done = run("compare", folder / "counts.csv", *COLUMNS, *options)
    assert done.exit_code == 0, done.output
    errors = standings(done.output)
    assert errors["GPBoost"] == pytest.approx(errors["Pooled"], rel=0.05)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--exposure", "hours"), "--loss poisson"),
        (("--loss", "binary", "--exposure", "hours"), "--loss poisson"),
        (("--loss", "poisson", "--effects", "smooth"), "--loss squared"),
        (("--loss", "binary"), "two labels"),
    ],
)
def test_options_that_do_not_go_together_are_refused(folder, options, text):
    refused = run("fit", folder / "counts.csv", *COLUMNS, *options)
    assert refused.exit_code == 1
    assert text in refused.output.replace("\n", " ")
