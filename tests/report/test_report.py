"""The page: self-contained, safe with any name, and working in a browser."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from ggmtl import Coordinates, GGMTLRegressor, report
from ggmtl.baselines import IndependentRegressor
from ggmtl.inspection.levels import title_of
from ggmtl.inspection.summary.collect import summarize
from ggmtl.inspection.summary.words import explained_rows, level_title
from ggmtl.report import render_report, write_report
from ggmtl.report.payload import graphs_of, page_data
from ggmtl.report.placing import place_tasks

pytest.importorskip("jinja2")

EVIL = "<img src=x onerror=alert(1)>"
BREAKOUT = "</script><script>alert(2)</script>"


def _rows(n_tasks=8, n_groups=3, n_rows=15, seed=0):
    rng = np.random.default_rng(seed)
    centres = 2.0 * rng.normal(size=(n_groups, 3))
    models = centres[np.arange(n_tasks) % n_groups] + 0.05 * rng.normal(size=(n_tasks, 3))
    task = np.repeat(np.arange(n_tasks), n_rows)
    X = rng.normal(size=(len(task), 3))
    return X, (X * models[task]).sum(axis=1) + 0.7 * rng.normal(size=len(task)), task


@pytest.fixture(scope="module")
def model():
    pandas = pytest.importorskip("pandas")
    X, y, task = _rows()
    names = np.array([EVIL, BREAKOUT, *[f"shop {k}" for k in range(2, 8)]])
    frame = pandas.DataFrame(X, columns=["price", "<b>size</b>", "a\u2028b"])
    return GGMTLRegressor().fit(frame, y, tasks=names[task])


@pytest.fixture(scope="module")
def page(model, tmp_path_factory):
    # Links of clusters weigh the same; here they differ, so that all controls are there.
    summary = summarize(model)
    for level in [summary["graph"], *summary["path"]["levels"]]:
        share = np.linspace(0.3, 1.0, len(level["edges"] or []))
        level["edges"] = level["edges"] and [
            [i, j, weight] for (i, j, *_), weight in zip(level["edges"], share.tolist())
        ]
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render_report(summary, "Shops & <more>"), encoding="utf-8")
    return path


def test_page_needs_no_network(page):
    text = page.read_text(encoding="utf-8")
    links = set(re.findall(r'\s(?:src|href)="([^"]*)"', text.split('id="data"')[0]))
    assert all(link.startswith(("#", "data:")) for link in links)
    assert "default-src 'none'" in text


def test_names_cannot_become_markup(page):
    text = page.read_text(encoding="utf-8")
    assert "<img" not in text
    assert text.count("<script") == text.count("</script>") == 2
    assert "Shops &amp; &lt;more&gt;" in text
    assert "\u2028" not in text


def test_names_survive_as_text(page):
    text = page.read_text(encoding="utf-8")
    stored = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert {EVIL, BREAKOUT} <= {task["label"] for task in stored["tasks"]}
    assert "<b>size</b>" in stored["features"]


def test_data_of_the_page_are_those_of_the_summary(model):
    summary = summarize(model)
    summary["tasks"][0]["label"] = "<script>&'\u2028é"
    text = render_report(summary)
    stored = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert stored == json.loads(json.dumps(page_data(summary)))


def test_page_is_written_whole_or_not_at_all(model, tmp_path):
    with pytest.raises(FileNotFoundError):
        write_report(model, tmp_path / "missing" / "report.html")
    write_report(model, tmp_path / "report.html")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_method_without_path_has_a_page():
    X, y, task = _rows(4)
    text = render_report(summarize(IndependentRegressor().fit(X, y, tasks=task)))
    assert "4 tasks" in text
    assert 'href="#path"' not in text


def test_noise_and_a_fixed_number_of_steps_are_explained_in_words(model):
    summary = summarize(model)
    assert 'href="#path"' in render_report(summary)
    assert "Tasks differ in noise" not in render_report({**summary, "noise": None})
    noise = {"low": 0.5, "high": 2.0, "quietest": EVIL, "noisiest": "shop 2", "weighed": True}
    ended = {"status": "stopped", "n_iter": 10, "converged": False}
    text = render_report({**summary, "noise": noise, "outcome": ended})
    assert "from 0.5 (&lt;img src=x onerror=alert(1)&gt;) to 2 (shop 2)" in text
    assert "<img" not in text
    assert "finished after its fixed number of steps" in text
    assert "<dt>converged</dt>" not in text


def test_unlinked_tasks_with_equal_models_have_the_same_place_side_by_side():
    X, y, task = _rows(12, 2, 60)
    model = IndependentRegressor().fit(X, y, tasks=task)
    placing = place_tasks(summarize(model))
    points = np.array(placing.points)
    assert placing.by == "models"
    within = np.linalg.norm(points[0] - points[2])
    assert within < np.linalg.norm(points[0] - points[1])


def test_where_only_intercepts_differ_the_map_has_one_direction():
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(20), 30)
    X = rng.normal(size=(600, 2))
    summary = summarize(GGMTLRegressor().fit(X, X @ [1.0, -1.0] + task / 2.0 + rng.normal(size=600), tasks=task))
    assert [len(words) for words in summary["map"]["axes"]] == [1, 0]
    points = np.array(place_tasks(summary).points)
    assert np.ptp(points[:, 1]) < 0.4 * np.ptp(points[:, 0])
    assert abs(np.corrcoef(points[:, 1], np.arange(20))[0, 1]) < 0.3


def test_many_tasks_are_placed_without_overlap():
    n = 900
    tasks = [{"cluster": i // 9, "coefficients": [0.0]} for i in range(n)]
    edges = [[i, i + 1, 1.0] for i in range(n - 1) if i % 9 != 8]
    summary = {
        "n_tasks": n,
        "tasks": tasks,
        "graph": {"edges": edges},
        "path": {"levels": []},
        "map": None,
        "places": None,
    }
    points = np.array(place_tasks(summary).points)
    distance = np.linalg.norm(points[:, None] - points, axis=2) + 9.0 * np.eye(n)
    assert distance.min() > 0.2


def test_tasks_whose_places_are_known_are_drawn_there():
    X, y, task = _rows(4, 1, 40)
    corners = {0: (0.0, 60.0), 1: (1.0, 60.0), 2: (0.0, 60.5), 3: (1.0, 60.5)}
    for xy in (corners, np.array(list(corners.values()))):
        model = GGMTLRegressor(candidates=Coordinates(xy, k=2)).fit(X, y, tasks=task)
        placing = place_tasks(summarize(model))
        points = np.array(placing.points)
        assert placing.by == "places"
        # At 60 degrees of latitude, a degree of longitude is about half as long as one of latitude.
        across, up = points[1] - points[0], points[2] - points[0]
        assert across[0] == pytest.approx(up[1], rel=0.02)
        assert abs(across[1]) + abs(up[0]) < 1e-9
        assert placing.outlines == []
    told = GGMTLRegressor(candidates=Coordinates(corners, k=2, degrees=True)).fit(X, y, tasks=task)
    summary = summarize(told)
    assert summary["on_globe"]
    # Out at sea there is no coast.
    assert not place_tasks(summary).outlines


def test_places_among_what_is_known_about_the_tasks_are_drawn_too():
    pandas = pytest.importorskip("pandas")
    X, y, task = _rows(6, 1, 60)
    known = pandas.DataFrame({"task": range(6), "lon": [0.0, 1.0, 2.0, 0.0, 1.0, 2.0], "lat": [50.0] * 3 + [51.0] * 3})
    model = GGMTLRegressor().fit(X, y, tasks=task, task_features=known)
    summary = summarize(model)
    assert summary["places"] == known[["lon", "lat"]].to_numpy().tolist()
    placing = place_tasks(summary)
    assert placing.by == "places"
    # By their names these are degrees, and near Normandy; columns of other names may be metres in a hall.
    assert placing.outlines
    plan = known.rename(columns={"lon": "x", "lat": "y"})
    model = GGMTLRegressor(candidates=Coordinates(columns=("x", "y"))).fit(X, y, tasks=task, task_features=plan)
    placing = place_tasks(summarize(model))
    assert (placing.by, placing.outlines) == ("places", [])


def test_a_map_across_the_date_line_is_in_one_piece_and_far_places_are_outside_the_first_view():
    near = np.random.default_rng(0).uniform([-120.0, 30.0], [-80.0, 48.0], (60, 2))
    places = np.concatenate([near, [[-176.0, 52.0], [145.0, 13.0]]])
    placing = place_tasks({"places": places.tolist(), "on_globe": True, "graph": {"edges": []}})
    # In the units of the points: the coast of Florida lies where its longitude and latitude are.
    here, there = np.array(placing.points[:2])
    unit = (there - here) / (places[1] - places[0])
    drawn = (np.concatenate([np.reshape(line, (-1, 2)) for line in placing.outlines]) - here) / unit + places[0]
    assert np.linalg.norm(drawn - [-80.1, 25.8], axis=1).min() < 0.3
    points, (low, high) = np.array(placing.points), np.array(placing.frame)
    # The one west of the date line is drawn west of the others.
    assert points[:, 0].argsort()[:2].tolist() == [61, 60]
    assert ((points[:60] >= low - 1e-3) & (points[:60] <= high + 1e-3)).all()
    assert (points[60:, 0] < low[0]).all()


@pytest.fixture(scope="module")
def bent():
    """A model with curves and descriptors whose unusual task is known: the effect of task 3 is turned over."""
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(12), 30)
    size = rng.normal(size=12)
    X = np.column_stack([rng.uniform(0.0, 6.0, len(task)), rng.normal(size=len(task))])
    y = np.where(task == 3, -1.0, 1.0) * np.sin(X[:, 0]) + size[task] + X[:, 1] + 0.1 * rng.normal(size=len(task))
    frame = pandas.DataFrame(X, columns=["hour", EVIL])
    known = pandas.DataFrame({"size": size, BREAKOUT: rng.normal(size=12)}, index=range(12))
    model = GGMTLRegressor(effects="smooth", validation=3).fit(frame, y, tasks=task, task_features=known)
    return model, frame, task


def test_curves_of_the_page_are_those_of_the_model(bent):
    model, frame, task = bent
    curves = summarize(model)["curves"]
    # The straight effect of one standard deviation is 1, that of the sine .7.
    assert [curve["feature"] for curve in curves["features"]] == [EVIL, "hour"]
    first = curves["features"][1]
    table = model.effect("hour", first["grid"])
    np.testing.assert_allclose(first["common"], table["effect"], rtol=1e-9)
    np.testing.assert_allclose(first["error"], table["standard_error"], rtol=1e-9)
    for place, position in enumerate(curves["tasks"]):
        own = np.array(first["basis"]) @ np.array(first["coefficients"][place])
        np.testing.assert_allclose(own, model.effect("hour", first["grid"], task=position)["effect"], atol=1e-9)
        hours = frame["hour"].to_numpy()[task == position]
        low, high = first["ranges"][place]
        assert ((hours >= low - 0.5) & (hours <= high + 0.5)).mean() > 0.9
    most = curves["unusual"][0]
    assert (most["task"], most["feature"]) == (3, "hour")
    np.testing.assert_allclose(most["own"], model.effect("hour", most["grid"], task=3)["effect"], atol=1e-9)


def test_shares_of_descriptors_and_the_unexplained_rest_add_up(bent):
    summary = summarize(bent[0])
    rows = explained_rows(summary)
    assert [row["name"] for row in rows] == ["hour", EVIL, "intercept (average row)"]
    of_size = {row["name"]: row["parts"][0] for row in rows}["intercept (average row)"]
    assert of_size["name"] == "size"
    assert of_size["width"] > 80.0
    assert all(part["width"] >= 0.0 for row in rows for part in row["parts"])
    assert all(sum(part["width"] for part in row["parts"]) <= 100.0 + 1e-9 for row in rows)
    # Beyond six, descriptors are one part.
    many = [{"name": f"d{k}", "share": 0.1, "of_coefficients": [0.05, -0.01, 0.1]} for k in range(9)]
    grouped = explained_rows(summary | {"known": {"descriptors": many}})
    assert [part["name"] for part in grouped[0]["parts"]] == [*(f"d{k}" for k in range(6)), "3 others"]
    assert grouped[0]["parts"][-1]["width"] == pytest.approx(15.0)
    straight = render_report(summary | {"known": None, "curves": None})
    assert 'id="curves"' not in straight
    assert 'id="known"' not in straight


def test_names_of_levels_come_from_the_summary(model):
    summary = summarize(model)
    data = page_data(summary)
    assert [level["title"] for level in data["levels"]] == [level_title(level) for level in summary["path"]["levels"]]
    scripts = Path(report.__file__).parent / "scripts"
    text = "".join(script.read_text(encoding="utf-8") for script in scripts.glob("*.js"))
    assert not [title_of(name) for name in ("pooled", "hub", "intercepts", "independent") if title_of(name) in text]


def test_the_slider_goes_through_each_graph_once_and_says_what_it_is(model):
    summary = _with_support(summarize(model))
    stops = graphs_of(summary)
    sizes = [len(stop["edges"]) for stop in stops]
    assert sizes == sorted(sizes)
    assert len({tuple(map(tuple, np.array(stop["edges"])[:, :2])) if stop["edges"] else () for stop in stops}) == len(
        stops
    )
    own = [stop for stop in stops if stop["chosen"]]
    assert [stop["edges"] for stop in own] == [summary["graph"]["edges"]]
    others = [stop["words"] for stop in stops if not stop["chosen"]]
    assert others
    assert all("On its own, its held-out error is" in words for words in others)


def _with_support(summary):
    """The same with a graph of four links, the last found in fewer folds."""
    edges = [[0, 1, 1.0, 1.0], [0, 2, 1.0, 1.0], [1, 2, 1.0, 0.8], [3, 4, 1.0, 0.2]]
    clusters = [0, 0, 0, 1, 1, 2, 3, 4]
    tasks = [{**task, "cluster": cluster} for task, cluster in zip(summary["tasks"], clusters)]
    tasks[5] = {**tasks[5], "gain": None}
    graph = {**summary["graph"], "edges": edges, "n_edges": 4, "n_clusters": 2, "n_alone": 3, "support": 3}
    return {**summary, "tasks": tasks, "graph": graph}


# ---------------------------------------------------------------------- in a browser


def _browser_path():
    found = next((shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")), None)
    return found


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = _browser_path()
    if path is None:
        pytest.skip("there is no Chromium on this machine")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def tab(browser, page):
    tab = browser.new_page(viewport={"width": 1300, "height": 1000})
    tab.problems, tab.requests = [], []
    tab.on("console", lambda message: tab.problems.append(message.text) if message.type == "error" else None)
    tab.on("pageerror", lambda error: tab.problems.append(str(error)))
    tab.on("dialog", lambda dialog: (tab.problems.append(dialog.message), dialog.dismiss()))
    tab.on("request", lambda request: tab.requests.append(request.url))
    tab.goto(Path(page).as_uri())
    tab.wait_for_selector("body[data-ready]")
    yield tab
    assert tab.problems == []
    assert [url for url in tab.requests if not url.startswith(("file:", "data:"))] == []
    tab.close()


def _click_task(tab, position):
    box = tab.locator("#drawing").bounding_box()
    x, y = tab.evaluate(f"ggmtlReport.pointOf({position})")
    tab.mouse.click(box["x"] + x, box["y"] + y)


def test_slider_changes_the_drawn_edges(tab):
    drawn = set()
    tab.focus("#level")
    tab.keyboard.press("Home")
    for _ in range(int(tab.get_attribute("#level", "max")) + 1):
        drawn.add(tab.get_attribute("#drawing", "data-edges"))
        tab.keyboard.press("ArrowRight")
    assert len(drawn) > 1


def test_first_level_drawn_is_the_chosen_one(tab, model):
    assert int(tab.get_attribute("#drawing", "data-edges")) == model.graph_.n_edges


def test_heavier_links_only(tab):
    before = int(tab.get_attribute("#drawing", "data-edges"))
    tab.focus("#weight")
    tab.keyboard.press("End")
    assert int(tab.get_attribute("#drawing", "data-edges")) < before


def test_clicking_a_task_shows_its_details(tab, model):
    _click_task(tab, 4)
    assert tab.text_content("#panel h3.name") == str(model.tasks_[4])
    assert "price" in tab.text_content("#panel")


def test_clicking_a_link_explains_it(tab):
    tab.locator("#panel .links button").last.click()
    assert "Weight" in tab.text_content("#panel")
    assert "Both models" in tab.text_content("#panel")


def test_search_finds_a_task_and_enter_opens_it(tab):
    tab.fill("#search", "shop 7")
    assert tab.text_content("#found button") == "shop 7"
    tab.keyboard.press("Enter")
    assert tab.text_content("#panel h3.name") == "shop 7"


def test_a_task_named_like_markup_is_shown_as_text(tab):
    tab.fill("#search", "<img")
    tab.keyboard.press("Enter")
    assert tab.text_content("#panel h3.name") == EVIL
    assert tab.locator("img").count() == 0


def test_table_sorts_filters_and_opens_by_keyboard(tab):
    tab.locator("#table").get_by_role("button", name="price").click()
    values = [
        float(text.replace("−", "-"))
        for text in tab.locator("#table tbody tr td:nth-last-child(4)").all_text_contents()
    ]
    assert values == sorted(values, reverse=True)
    tab.fill("#filter", "shop 3")
    row = tab.locator("#table tbody tr")
    assert row.count() == 1
    row.focus()
    tab.keyboard.press("Enter")
    assert tab.text_content("#panel h3.name") == "shop 3"


def test_arrow_keys_and_enter_work_on_the_drawing(tab):
    tab.focus("#drawing")
    for key in ("ArrowRight", "ArrowRight", "Enter"):
        tab.keyboard.press(key)
    assert tab.locator("#panel h3.name").count() == 1
    assert tab.text_content("#panel h3.name") != "Overview"
    tab.keyboard.press("Escape")
    assert tab.text_content("#panel h3.name") == "Overview"


def test_theme_follows_the_system_and_the_button(tab):
    tab.emulate_media(color_scheme="dark")
    tab.wait_for_selector("html[data-theme=dark]")
    tab.click("#theme")
    tab.wait_for_selector("html[data-theme=light]")


def test_a_page_without_links_says_so(browser, tmp_path):
    X, y, task = _rows(5)
    path = write_report(IndependentRegressor().fit(X, y, tasks=task), tmp_path / "empty.html")
    tab = browser.new_page()
    tab.goto(path.as_uri())
    tab.wait_for_selector("body[data-ready]")
    assert "No links" in tab.text_content("#hint")
    assert tab.text_content("#graph-title") == "A map of the tasks"
    assert "No links" in tab.text_content("#panel")
    tab.close()


def test_a_narrow_page_has_no_sideways_scroll_and_a_readable_chart(browser, page):
    tab = browser.new_page(viewport={"width": 390, "height": 800})
    tab.goto(Path(page).as_uri())
    tab.wait_for_selector("body[data-ready]")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    box = tab.locator("#path-chart svg").first.bounding_box()
    scale = tab.evaluate("document.querySelector('#path-chart svg').viewBox.baseVal.width") / box["width"]
    assert scale == pytest.approx(1.0, abs=0.05)
    tab.close()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1300), ("dark", 390)])
def test_curves_and_descriptors_are_drawn(browser, bent, tmp_path, scheme, width):
    path = write_report(bent[0], tmp_path / "bent.html")
    tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    problems = []
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.on("dialog", lambda dialog: (problems.append(dialog.message), dialog.dismiss()))
    tab.goto(path.as_uri())
    tab.wait_for_selector("body[data-ready]")
    assert tab.locator("#curve-charts figure").count() == 2
    assert EVIL in tab.locator("#curve-charts").text_content()
    assert tab.locator("#known .explained-row").count() == 3
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    chart = tab.locator("#curve-charts canvas").first
    before = chart.evaluate("box => box.toDataURL()")
    empty = (
        "box => Object.assign(document.createElement('canvas'), { width: box.width, height: box.height }).toDataURL()"
    )
    assert before != chart.evaluate(empty)
    # An unusual task, once chosen, stands out among the others.
    tab.locator("#unusual-charts button").first.click()
    assert tab.text_content("#panel h3.name") == "3"
    assert chart.evaluate("box => box.toDataURL()") != before
    assert problems == []
    tab.close()


def test_on_a_phone_no_number_touches_what_stands_beside_it(browser, model, tmp_path):
    """Errors are bold in the row of the model, and standard errors of gains may have two digits."""
    summary = summarize(model)
    for task in summary["tasks"]:
        task |= {"gain": -0.123, "gain_error": 0.104}
    for level in summary["path"]["levels"]:
        level |= {"error": 12.345, "standard_error": 0.123}
    path = tmp_path / "phone.html"
    path.write_text(render_report(summary), encoding="utf-8")
    tab = browser.new_page(viewport={"width": 360, "height": 800})
    tab.goto(path.as_uri())
    tab.wait_for_selector("body[data-ready]")
    tab.select_option("#colour", "gain")
    assert "−12 % ± 10" in tab.text_content("#panel")
    # Widths of the words themselves, which a box may be too narrow for.
    measure = """rows => rows.map(row => { const range = document.createRange(), last = row.lastElementChild;
        range.selectNodeContents(row.querySelector('.value')); const words = range.getBoundingClientRect();
        return [last.getBoundingClientRect().left, words.right, row.getBoundingClientRect().right]; })"""
    for _, words, end in tab.locator("#panel .links.wide button").evaluate_all(measure):
        assert words <= end - 4
    for share, words, _ in tab.locator("#path-chart .level-row:not(.head)").evaluate_all(measure):
        assert words <= share - 8
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360
    tab.close()


def test_clusters_say_who_is_in_them(tab, model):
    about = tab.locator("#panel .about")
    if model.graph_.clusters().max() + 1 > 1 and about.count():
        assert "shop" in about.first.text_content()


def test_equal_weights_have_no_slider(browser, model, tmp_path):
    summary = summarize(model)
    for level in [summary["graph"], *summary["path"]["levels"]]:
        level["edges"] = level["edges"] and [[i, j, 1.0] for i, j, *_ in level["edges"]]
    path = tmp_path / "equal.html"
    path.write_text(render_report(summary), encoding="utf-8")
    tab = browser.new_page()
    tab.goto(path.as_uri())
    tab.wait_for_selector("body[data-ready]")
    assert not tab.locator("#weight-row").is_visible()
    assert "Strongest links" not in tab.text_content("#panel")
    tab.close()


@pytest.fixture
def supported_tab(browser, model, tmp_path):
    path = tmp_path / "supported.html"
    path.write_text(render_report(_with_support(summarize(model, with_standard_errors=True))), encoding="utf-8")
    tab = browser.new_page(viewport={"width": 1300, "height": 1000}, accept_downloads=True)
    tab.goto(path.as_uri())
    tab.wait_for_selector("body[data-ready]")
    yield tab
    tab.close()


def test_links_are_ranked_by_support(supported_tab, model):
    panel = supported_tab.locator("#panel")
    assert "Best supported links (found in … of the folds)" in panel.text_content()
    values = panel.locator(".links").last.locator(".value").all_text_contents()
    assert values == ["100 %", "100 %", "80 %", "20 %"]
    supported_tab.focus("#weight")
    supported_tab.keyboard.press("End")
    assert supported_tab.get_attribute("#drawing", "data-edges") == "2"


def test_the_text_follows_the_slider(supported_tab):
    words = set()
    for k in range(int(supported_tab.get_attribute("#level", "max")) + 1):
        supported_tab.evaluate(f"level => {{ level.value = {k}; level.dispatchEvent(new Event('input')); }}",
                               supported_tab.query_selector("#level"))  # fmt: skip
        words.add(supported_tab.text_content("#graph-words"))
    assert len(words) == k + 1


def test_tasks_that_are_not_ranked_are_counted(supported_tab):
    supported_tab.select_option("#colour", "gain")
    assert "1 task with too few held-out rows" in supported_tab.text_content("#panel")


def test_a_chosen_row_brings_the_graph_into_view(supported_tab):
    supported_tab.locator("#table tbody tr").nth(5).click()
    supported_tab.wait_for_timeout(800)
    assert supported_tab.evaluate("document.querySelector('#graph').getBoundingClientRect().top") < 200


def test_coefficients_and_gains_stand_with_their_standard_errors(supported_tab):
    cells = supported_tab.locator("#table tbody tr").first.locator("td").all_text_contents()
    assert sum("±" in cell for cell in cells) == 5
    supported_tab.locator("#table tbody tr").nth(2).click()
    assert "± s.e." in supported_tab.text_content("#panel")


def _download(tab, name):
    with tab.expect_download() as caught:
        tab.locator(".saves").get_by_role("button", name=name).click()
    return Path(caught.value.path()).read_bytes()


def _download_text(tab, name):
    return _download(tab, name).decode("utf-8")


def test_tables_and_picture_are_saved_without_a_network(supported_tab, model):
    rows = list(csv.reader(_download_text(supported_tab, "Coefficients").split("\r\n")[:-1]))
    names = ["price", "<b>size</b>", "a\u2028b", "intercept"]
    assert rows[0] == ["task", "rows", *names, *[f"{name} (standard error)" for name in names]]
    assert [row[0] for row in rows[1:]] == [str(task) for task in model.tasks_]
    values = np.array([row[2:] for row in rows[1:]], dtype=float)
    np.testing.assert_allclose(values[:, :4], np.column_stack([model.coef_, model.intercept_]), rtol=1e-5)
    np.testing.assert_allclose(values[:, 4:].ravel(), model.coefficients()["standard_error"], rtol=1e-5)
    links = list(csv.reader(_download_text(supported_tab, "Links").split("\r\n")[:-1]))
    assert links[0] == ["task", "other_task", "weight", "support"]
    assert [row[3] for row in links[1:]] == ["1", "1", "0.8", "0.2"]
    errors = list(csv.reader(_download_text(supported_tab, "Errors").split("\r\n")[:-1]))
    assert {len(row) for row in errors} == {len(errors[0])}
    picture = ElementTree.fromstring(_download_text(supported_tab, "SVG"))
    shown = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert EVIL[:25] + "…" in shown


def test_the_picture_saved_as_png_is_that_of_the_screen_with_the_background_of_the_page(supported_tab):
    image = pytest.importorskip("PIL.Image")
    saved = image.open(io.BytesIO(_download(supported_tab, "PNG")))
    canvas = "document.querySelector('#drawing')"
    assert saved.size == tuple(supported_tab.evaluate(f"[{canvas}.width, {canvas}.height]"))
    pixels = np.asarray(saved.convert("RGBA"))
    assert (pixels[..., 3] == 255).all()
    assert len(np.unique(pixels.reshape(-1, 4), axis=0)) > 20


def test_no_two_clusters_have_the_same_colour(browser, model, tmp_path):
    base = summarize(model)
    tasks = [{**base["tasks"][0], "label": f"shop {k}", "cluster": k // 2} for k in range(40)]
    edges = [[2 * k, 2 * k + 1, 1.0] for k in range(20)]
    for n_clusters in (12, 20):
        n = 2 * n_clusters
        kept = {"tasks": tasks[:n], "n_tasks": n, "map": None, "noise": None}
        levels = [{**level, "edges": None} for level in base["path"]["levels"]]
        graph = {**base["graph"], "edges": edges[:n_clusters], "n_edges": n_clusters, "n_clusters": n_clusters}
        path = tmp_path / f"{n_clusters}.html"
        summary = {**base, **kept, "graph": graph, "path": {**base["path"], "levels": levels}}
        path.write_text(render_report(summary), encoding="utf-8")
        tab = browser.new_page()
        tab.goto(path.as_uri())
        tab.wait_for_selector("body[data-ready]")
        swatches = tab.locator("#panel .links").first.locator(".swatch")
        colours = swatches.evaluate_all("all => all.map(one => getComputedStyle(one).backgroundColor)")
        assert len(set(colours)) == (n_clusters if n_clusters <= 12 else 1)
        tab.locator("#panel .links button").nth(3).click()
        colours = swatches.evaluate_all("all => all.map(one => getComputedStyle(one).backgroundColor)")
        assert len(set(colours)) == (n_clusters if n_clusters <= 12 else 2)
        tab.close()
