"""What a notebook shows of a model, tables of it, and a forgotten task column."""

import re
import warnings
from xml.etree import ElementTree

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ggmtl import Coordinates, GGMTLRegressor
from ggmtl.baselines import PooledRegressor
from ggmtl.datasets import make_clusters
from ggmtl.errors import InputTypeError, ParameterError
from ggmtl.inspection.summary.collect import summarize
from ggmtl.inspection.summary.words import notebook_html


@pytest.fixture(scope="module")
def clusters():
    return make_clusters(3, n_tasks=12, n_features=4, n_samples=20, noise=0.3, random_state=0)


@pytest.fixture(scope="module")
def model(clusters):
    return GGMTLRegressor().fit(clusters.X, clusters.y, tasks=clusters.tasks)


def test_a_notebook_shows_verdict_picture_and_errors_without_a_script(model):
    html = notebook_html(summarize(model))
    page = ElementTree.fromstring(html)
    assert page.find(".//b").text == summarize(model)["verdict"]["text"]
    assert len(page.findall(".//circle")) == 12
    assert len(page.findall(".//line")) == model.graph_.n_edges > 0
    assert len(page.findall(".//tbody/tr")) == len(model.path_) + 1
    assert "<script" not in html
    # scikit-learn's own view of the parameters is there as well.
    assert html in model._repr_html_()
    assert "<details><summary>Parameters</summary>" in model._repr_html_()
    assert html in model._repr_mimebundle_()["text/html"]


def test_before_the_fit_and_in_pipelines_a_notebook_shows_what_scikit_learn_shows():
    assert "<svg role" not in GGMTLRegressor()._repr_html_()
    assert "GGMTLRegressor" in make_pipeline(StandardScaler(), GGMTLRegressor())._repr_html_()


def test_names_cannot_end_an_element(clusters):
    names = np.array([f"<script>alert({k})</script>\x1b" for k in clusters.tasks])
    html = notebook_html(summarize(GGMTLRegressor().fit(clusters.X, clusters.y, tasks=names)))
    assert "<script" not in html
    assert "\x1b" not in html
    ElementTree.fromstring(html)


def test_places_are_drawn_where_they_are(clusters):
    places = np.column_stack([np.arange(12.0), np.zeros(12)])
    model = GGMTLRegressor(candidates=Coordinates(places, k=2)).fit(clusters.X, clusters.y, tasks=clusters.tasks)
    page = ElementTree.fromstring(notebook_html(summarize(model)))
    x = [float(circle.get("cx")) for circle in page.findall(".//circle")]
    np.testing.assert_allclose(np.diff(x), x[1] - x[0], atol=0.11)


def test_one_task_and_models_without_a_path_have_no_picture_or_table():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    html = notebook_html(summarize(GGMTLRegressor().fit(X, X[:, 0])))
    assert "<svg" not in html
    pooled = notebook_html(summarize(PooledRegressor().fit(X, X[:, 0], tasks=np.arange(30) % 3)))
    assert "<table>" not in pooled


def test_the_path_as_a_table_has_the_rows_of_the_path(model, clusters):
    pandas = pytest.importorskip("pandas")
    table = model.path_table()
    assert isinstance(table, pandas.DataFrame)
    np.testing.assert_equal(table.to_dict("records"), model.path_)
    unmeasured = GGMTLRegressor(validation=None).fit(clusters.X, clusters.y, tasks=clusters.tasks).path_table()
    assert unmeasured["error"].isna().all()
    assert unmeasured["chosen"].dtype == bool


def test_intervals_are_as_wide_as_the_standard_errors_ask_for(model):
    pytest.importorskip("pandas")
    table, wide = model.conf_int(), model.conf_int(0.99)
    errors = model.coefficients()["standard_error"]
    np.testing.assert_allclose(table["high"] - table["coefficient"], 1.959964 * errors, rtol=1e-6)
    np.testing.assert_allclose(wide["coefficient"] - wide["low"], 2.575829 * errors, rtol=1e-6)
    assert table.columns.tolist() == ["task", "feature", "coefficient", "low", "high"]
    with pytest.raises(ParameterError, match="level must be between 0 and 1"):
        model.conf_int(95)


# ---------------------------------------------------------------- a forgotten task column


def frame_with(name, values):
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    return pandas.DataFrame({"x": rng.normal(size=len(values)), name: values})


@pytest.mark.parametrize("name", ["school", "store_id", "Patient", "subject no"])
def test_a_forgotten_task_column_is_pointed_out(name):
    frame = frame_with(name, np.arange(60) % 6)
    with pytest.warns(UserWarning, match=re.escape(f"PooledRegressor(task={name!r})")):
        PooledRegressor().fit(frame, 2.0 * frame["x"])


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("rooms", np.arange(60) % 6),
        ("grade", np.arange(60) % 6),
        ("school", np.arange(60) % 2),
        ("state", np.linspace(0.0, 1.0, 60)),
        ("width", np.arange(60) % 6),
    ],
)
def test_features_that_only_might_be_tasks_are_left_in_peace(name, values):
    frame = frame_with(name, values)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PooledRegressor().fit(frame, 2.0 * frame["x"])
        PooledRegressor().fit(frame, 2.0 * frame["x"], tasks=np.arange(60) % 3)


def test_a_column_that_counts_the_rows_is_pointed_out_where_there_are_tasks():
    frame = frame_with("Unnamed: 0", np.random.default_rng(0).permutation(60))
    with pytest.warns(UserWarning, match="'Unnamed: 0' only counts the rows, from 0 to 59. Drop it"):
        PooledRegressor().fit(frame, 2.0 * frame["x"], tasks=np.arange(60) % 3)
    # In a single task it may be the time, and days of every task start again.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PooledRegressor().fit(frame, 2.0 * frame["x"])
        PooledRegressor().fit(frame_with("day", np.arange(60) // 3), 2.0 * frame["x"], tasks=np.arange(60) % 3)


def test_text_that_is_different_in_every_row_is_refused_as_a_name():
    frame = frame_with("pupil", [f"p{k}" for k in range(60)])
    with pytest.raises(InputTypeError, match="'pupil' holds text that is different in every row, such as 'p0': a name"):
        GGMTLRegressor().fit(frame, frame["x"], tasks=np.arange(60) % 3)
    with pytest.raises(InputTypeError, match="Encode it first"):
        GGMTLRegressor().fit(frame_with("kind", ["a", "b"] * 30), frame["x"], tasks=np.arange(60) % 3)


def test_text_that_may_be_the_task_is_refused_with_that_hint():
    frame = frame_with("school", list("abc") * 20)
    with pytest.raises(InputTypeError, match=r"If it says which task a row belongs to, name it: task='school'\."):
        PooledRegressor().fit(frame, frame["x"])
    with pytest.raises(InputTypeError, match=r"or drop it\.$"):
        PooledRegressor().fit(frame, frame["x"], tasks=np.arange(60) % 3)


def test_the_errors_in_a_notebook_stand_beside_the_shares_of_the_levels(model):
    summary = summarize(model)
    page = ElementTree.fromstring(notebook_html(summary))
    marks = [row.findall("td")[2].text or "" for row in page.findall(".//tbody/tr")]
    shares = [level["weight"] for level in summary["path"]["levels"]]
    assert marks[-1] == "← the model"
    assert [mark != "" for mark in marks[:-1]] == [share > 0 for share in shares[:-1]]


def test_links_found_in_fewer_folds_are_fainter_and_no_two_clusters_have_one_colour(model):
    summary = summarize(model)
    tasks = [{**summary["tasks"][0], "label": str(k), "cluster": k // 2} for k in range(14)]
    summary = {**summary, "tasks": tasks, "n_tasks": 14, "map": None, "places": None}
    for n_clusters in (6, 7):
        edges = [[2 * k, 2 * k + 1, 1.0, 1.0 - 0.1 * k] for k in range(n_clusters)]
        shown = {**summary, "tasks": tasks[: 2 * n_clusters], "n_tasks": 2 * n_clusters}
        page = ElementTree.fromstring(notebook_html({**shown, "graph": {**summary["graph"], "edges": edges}}))
        opacity = [float(line.get("stroke-opacity")) for line in page.findall(".//line")]
        assert opacity == sorted(opacity, reverse=True)
        assert len(set(opacity)) == n_clusters
        assert len({circle.get("fill") for circle in page.findall(".//circle")}) == (6 if n_clusters == 6 else 1)


def test_a_table_that_holds_its_own_target_is_pointed_out():
    table = frame_with("shop", np.repeat([1, 2, 3], 8))
    with pytest.warns(UserWarning, match="Column 'x' of X equals y in every row"):
        GGMTLRegressor(task="shop", validation=3).fit(table, table["x"])
