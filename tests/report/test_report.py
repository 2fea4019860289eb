"""The page: self-contained, safe with any name, and working in a browser."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from ggmtl import Coordinates, GGMTLRegressor
from ggmtl.baselines import IndependentRegressor
from ggmtl.inspection.summary.collect import summarize
from ggmtl.report import render_report, write_report
from ggmtl.report.page import script_json
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
    return X, (X * models[task]).sum(axis=1) + rng.normal(size=len(task)), task


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


def test_script_json_is_the_same_data():
    value = {"a": ["<", ">", "&", "\u2028\u2029", "é", 1.5, None]}
    assert json.loads(script_json(value)) == value
    assert not set("<>&\u2028\u2029") & set(script_json(value))


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


def test_noise_and_a_stop_by_design_are_told_in_words(model):
    summary = summarize(model)
    assert 'href="#path"' in render_report(summary)
    assert "Tasks differ in noise" not in render_report({**summary, "noise": None})
    noise = {"low": 0.5, "high": 2.0, "quietest": EVIL, "noisiest": "shop 2", "weighed": True}
    ended = {"status": "stopped", "n_iter": 10, "converged": False}
    text = render_report({**summary, "noise": noise, "outcome": ended})
    assert "Tasks differ in noise, from 0.5 (&lt;img src=x onerror=alert(1)&gt;) to 2 (shop 2)" in text
    assert "<img" not in text
    assert "stopped: evidence took the steps that it takes by design" in text
    assert "<dt>converged</dt>" not in text


def test_unlinked_tasks_with_equal_models_have_the_same_place_side_by_side():
    X, y, task = _rows(12, 2, 60)
    model = IndependentRegressor().fit(X, y, tasks=task)
    placing = place_tasks(summarize(model))
    points = np.array(placing.points)
    assert placing.by == "models"
    within = np.linalg.norm(points[0] - points[2])
    assert within < np.linalg.norm(points[0] - points[1])


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


def test_places_among_what_is_known_about_the_tasks_are_drawn_too():
    pandas = pytest.importorskip("pandas")
    X, y, task = _rows(6, 1, 60)
    known = pandas.DataFrame({"task": range(6), "lon": [0.0, 1.0, 2.0, 0.0, 1.0, 2.0], "lat": [50.0] * 3 + [51.0] * 3})
    model = GGMTLRegressor().fit(X, y, tasks=task, task_features=known)
    summary = summarize(model)
    assert summary["places"] == known[["lon", "lat"]].to_numpy().tolist()
    assert place_tasks(summary).by == "places"


def test_a_map_across_the_date_line_is_in_one_piece_and_far_places_are_outside_the_first_view():
    near = np.random.default_rng(0).uniform([-120.0, 30.0], [-80.0, 48.0], (60, 2))
    places = np.concatenate([near, [[-176.0, 52.0], [145.0, 13.0]]])
    placing = place_tasks({"places": places.tolist(), "graph": {"edges": []}})
    points, (low, high) = np.array(placing.points), np.array(placing.frame)
    # The one west of the date line is drawn west of the others.
    assert points[:, 0].argsort()[:2].tolist() == [61, 60]
    assert ((points[:60] >= low - 1e-3) & (points[:60] <= high + 1e-3)).all()
    assert (points[60:, 0] < low[0]).all()


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
    box = tab.locator("#path-chart svg").bounding_box()
    scale = tab.evaluate("document.querySelector('#path-chart svg').viewBox.baseVal.width") / box["width"]
    assert scale == pytest.approx(1.0, abs=0.05)
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
