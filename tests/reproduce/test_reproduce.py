"""The paper's tables: cells are computed once, pages say what they show, and what the paper's numbers really are."""

import json
from dataclasses import replace

import numpy as np
import pytest

from ggmtl.data.task_data import TaskData
from ggmtl.datasets import make_line, make_star, make_tree
from ggmtl.datasets.splits import forecast_tasks
from ggmtl.errors import InputError, MissingExtraError, ParameterError
from ggmtl.graph import TaskGraph
from ggmtl.graph.candidates import KNN
from ggmtl.inspection import fuzzy_graph_scores, task_rmse
from ggmtl.reproduce import Cell, CellCache, cells, compute_missing, pages, run
from ggmtl.reproduce.cells import load_problem
from ggmtl.reproduce.methods import (
    LABELS,
    PaperGGMTL,
    compute_cell,
    distance_weighted,
    independent_models,
    make_method,
)
from ggmtl.reproduce.pages import figure_row, format_entry, write_table
from ggmtl.reproduce.peers import PEERS, BoostedTrees, RidgePerTask, peer_package
from ggmtl.reproduce.plan import PROTOCOL_FREE, Section, make_table, published_number

MAKERS = {"line": make_line, "tree": make_tree, "star": make_star}


# ---------------------------------------------------------------- what the paper's numbers are


def minimum_norm_error(maker, seed):
    data = maker(published=True, random_state=seed)
    models = independent_models(data)
    prediction = np.einsum("rd,rd->r", data.test.X, models[data.test.task_index])
    return task_rmse(data.test.y, prediction, data.test.tasks)


@pytest.mark.parametrize("shape", ["line", "tree"])
def test_printed_errors_of_line_and_tree_are_those_of_independent_minimum_norm_least_squares(shape):
    errors = [minimum_norm_error(MAKERS[shape], seed) for seed in range(40)]
    for method in ("ggmtl", "ccmtl"):
        mean, deviation = published_number(shape, method)
        # The mean of ten printed runs, and ours of forty, differ by less than two standard errors.
        assert abs(np.mean(errors) - mean) < 2 * deviation * np.sqrt(1 / 10 + 1 / 40)
        assert np.std(errors, ddof=1) == pytest.approx(deviation, rel=0.5)


def test_published_star_is_solved_exactly_by_independent_least_squares():
    # 20 noise-free rows determine 20 coefficients; the paper prints 0.3 and 0.5.
    assert max(minimum_norm_error(make_star, seed) for seed in range(5)) < 1e-8


def test_published_files_share_one_design_and_have_no_noise():
    data = make_line(published=True, random_state=0)
    rows = data.X.reshape(20, 20, 30)
    assert (rows == rows[0]).all()
    np.testing.assert_allclose(np.einsum("rd,rd->r", data.X, data.coefficients[data.task_index]), data.y, atol=1e-12)
    text = make_line(random_state=0)
    rows = text.X.reshape(20, 20, 30)
    assert not (rows[1] == rows[0]).any()


def neighbour_scores(maker, seed, weighted):
    data = maker(published=True, random_state=seed)
    models = independent_models(data)
    edges = KNN(10).propose(models, data.task_names).edges
    graph = TaskGraph(edges, np.ones(len(edges)), data.task_names)
    scores = fuzzy_graph_scores(data.graph, distance_weighted(graph, models) if weighted else graph)
    return [scores.accuracy, scores.recall, scores.precision, scores.f1]


@pytest.mark.parametrize("shape", ["line", "tree", "star"])
def test_printed_graph_scores_of_ccmtl_are_those_of_neighbours_weighted_by_distance(shape):
    measures = ("accuracy", "recall", "precision", "f1")
    printed = np.array([published_number(shape, "ccmtl", measure)[0] for measure in measures])
    by_distance = np.mean([neighbour_scores(MAKERS[shape], seed, True) for seed in range(20)], axis=0)
    equal = np.mean([neighbour_scores(MAKERS[shape], seed, False) for seed in range(20)], axis=0)
    assert np.abs(by_distance - printed).max() < 0.03
    assert np.abs(equal - printed).max() > 0.1


@pytest.mark.parametrize("shape", ["line", "tree", "star"])
def test_an_empty_graph_has_a_higher_fuzzy_accuracy_than_any_printed_one(shape):
    truth = MAKERS[shape](random_state=0).graph
    empty = fuzzy_graph_scores(truth, TaskGraph.empty(truth.task_names))
    printed = [published_number(shape, method, "accuracy")[0] for method in ("bmsl", "mssl", "ccmtl", "ggmtl")]
    assert empty.accuracy > max(printed)
    assert empty.f1 == 0


# ---------------------------------------------------------------- the cache


def test_cache_returns_what_was_put_and_survives_a_line_cut_short(tmp_path):
    path = tmp_path / "cells.jsonl"
    cache = CellCache(path)
    first, second = Cell("line", 0, "hub"), Cell("line", 1, "hub")
    cache.put(first, {"rmse": 1.5, "seconds": 0.1})
    with path.open("a") as stream:
        stream.write('{"cell": {"problem": "li')
    CellCache(path).put(second, {"rmse": 2.5, "seconds": 0.1})
    again = CellCache(path)
    assert len(again) == 2
    assert again.get(first) == {"rmse": 1.5, "seconds": 0.1}
    assert again.get(second)["rmse"] == 2.5
    assert again.get(Cell("line", 0, "hub", quick=True)) is None


def test_cache_refuses_a_foreign_file(tmp_path):
    path = tmp_path / "cells.jsonl"
    path.write_text(json.dumps({"name": "something else"}) + "\n")
    with pytest.raises(InputError, match="not a cache of results"):
        CellCache(path)


def test_cells_are_computed_once_but_failures_again(tmp_path):
    calls = []

    def compute(cell):
        calls.append(cell.seed)
        return {"error": "no luck"} if cell.seed == 1 and len(calls) < 3 else {"rmse": 1.0, "seconds": 0.0}

    cells = [Cell("line", seed, "hub") for seed in (0, 1, 0)]
    told = []
    cache = CellCache(tmp_path / "c.jsonl")
    compute_missing(cache, cells, compute, lambda done, total, text: told.append((done, total, text)), n_jobs=1)
    assert calls == [0, 1]
    assert told[-1][:2] == (2, 2)
    assert "no luck" in told[-1][2]
    cache = CellCache(tmp_path / "c.jsonl")
    compute_missing(cache, cells, compute, n_jobs=1)
    assert calls == [0, 1, 1]
    compute_missing(cache, cells, compute, n_jobs=1)
    assert len(calls) == 3


# ---------------------------------------------------------------- problems and methods


def test_problems_are_read_from_their_names():
    train, test = load_problem("line published", 3)
    np.testing.assert_array_equal(train.X, make_line(published=True, random_state=3).X)
    assert len(test) == 1600
    with pytest.raises(ParameterError, match="no problem 'moon"):
        load_problem("moon r=0.3", 0)


@pytest.mark.data
def test_held_out_visits_share_no_visit_with_training(monkeypatch):
    try:
        train, test = load_problem("parkinson r=0.3 time visit", 0)
    except InputError as error:
        pytest.skip(str(error))
    assert train.X.shape[1] == 19
    assert not np.intersect1d(train.groups, test.groups).size


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "rows", "weeks"), [("sales weeks r=0.5", 1, 24), ("tmy3 every=24 weeks r=0.2", 7, 10)]
)
def test_held_out_weeks_share_no_week_with_training(name, rows, weeks):
    try:
        (train, test), (given, later) = (load_problem(text, 0) for text in (name, name.split(" weeks")[0]))
    except InputError as error:
        pytest.skip(str(error))
    assert not np.intersect1d(train.groups, test.groups).size
    assert len(np.unique(train.groups)) == weeks
    one = train.tasks == train.tasks[0]
    assert np.bincount(train.groups[one]).max() == rows
    # The rows are those of the given split, drawn otherwise.
    pooled, known = (
        np.vstack([np.column_stack([part.X, part.y]) for part in parts]) for parts in ((train, test), (given, later))
    )
    np.testing.assert_array_equal(pooled[np.lexsort(pooled.T)], known[np.lexsort(known.T)])
    other = load_problem(name, 1)[0]
    assert not np.array_equal(np.unique(other.groups), np.unique(train.groups))


def forget_series():
    cells._given.cache_clear()
    cells._by_week.cache_clear()


def test_weeks_follow_the_rows_of_each_series(monkeypatch):
    series = forecast_tasks(np.arange(3 * 700.0).reshape(3, 700), np.array(list("cab")), 30, 8, 0.2, every=24)
    monkeypatch.setattr("ggmtl.reproduce.cells.load_tmy3", lambda *_, **__: series)
    forget_series()
    try:
        train, test = load_problem("tmy3 h=8 every=24 weeks r=0.5", 0)
    finally:
        forget_series()
    for part in (train, test):
        # The first value of a row's window says the hour that it stands at.
        np.testing.assert_array_equal(part.groups, (part.X[:, 0] % 700) // 168)
    assert cells.keeps_groups("tmy3 weeks")
    assert cells.is_given("tmy3 h=8")
    assert not cells.is_given("tmy3 h=8 weeks")


def small_data(seed=0):
    data = make_line(n_tasks=5, n_features=3, n_samples=15, n_test=30, random_state=seed)
    return data, data.test


@pytest.mark.parametrize("method", ["ggmtl_squared", "ggmtl_l2", "independent", "pooled", "hub", "ccmtl", "bmsl"])
def test_every_method_of_the_tables_predicts(method):
    train, test = small_data()
    model = make_method(Cell("line", 0, method, "honest", quick=True))
    prediction = _quietly(model.fit, train).predict(test)
    assert prediction.shape == test.y.shape
    assert task_rmse(test.y, prediction, test.tasks) < 3.0


def _quietly(function, *arguments):
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*arguments)


def test_paper_variant_without_a_grid_is_the_recipe_of_the_regressor():
    from ggmtl import GGMTLRegressor

    train, test = small_data()
    options = {"max_iter": 30, "random_state": 0}
    chosen = _quietly(PaperGGMTL("squared_l2", (0.1,), (0.0,), False, **options).fit, train)
    plain = GGMTLRegressor.paper(coupling=1.5, edge_entropy=0.0, edge_solver="quasi_newton", **options)
    _quietly(lambda: plain.fit(train.X, train.y, tasks=train.tasks))
    np.testing.assert_allclose(chosen.predict(test), plain.predict(test.X, tasks=test.tasks))


@pytest.mark.parametrize("name", sorted(PEERS))
def test_peers_find_the_models_of_noise_free_tasks(name):
    data = make_line(n_tasks=6, n_features=2, n_samples=40, n_test=20, noise=0.1, random_state=0)
    try:
        prediction = _quietly(PEERS[name]().fit, data).predict(data.test)
    except MissingExtraError as error:
        pytest.skip(str(error))
    assert prediction.shape == data.test.y.shape
    assert task_rmse(data.test.y, prediction, data.test.tasks) < (1.2 if name == "boosted_trees" else 0.2)


def test_missing_peer_says_how_to_get_it():
    with pytest.raises(MissingExtraError, match="pip install no_such_package"):
        peer_package("no_such_package")


def test_boosted_trees_refuse_too_many_tasks_with_the_reason():
    n = 300
    data = TaskData(np.zeros((n, 1)), np.zeros(n), np.arange(n))
    with pytest.raises(InputError, match="300 tasks"):
        BoostedTrees().fit(data)


def test_ridge_per_task_does_not_see_other_tasks():
    train, test = small_data()
    one = train.take(train.task_index == 0)
    own = test.take(test.task_index == 0)
    together = RidgePerTask().fit(train).predict(test)[test.task_index == 0]
    np.testing.assert_allclose(together, RidgePerTask().fit(one).predict(own))


def test_failed_cell_has_its_reason():
    result = compute_cell(Cell("moon", 0, "hub"))
    assert set(result) == {"error"}
    assert "no problem 'moon'" in result["error"]


def test_computed_cell_has_scores_where_the_graph_is_known():
    result = compute_cell(Cell("star", 0, "ccmtl"))
    assert {"rmse", "seconds", "edges", "accuracy", "recall", "precision", "f1"} <= set(result)
    json.dumps(result, allow_nan=False)


# ---------------------------------------------------------------- pages


def test_entries_show_mean_deviation_failures_and_absences():
    good = [{"rmse": 1.0}, {"rmse": 2.0}]
    assert format_entry(good, "rmse") == "1.500 ± 0.707"
    assert format_entry(good[:1], "rmse") == "1.000"
    assert format_entry([None, None], "rmse") == "not computed"
    assert format_entry([{"error": "a|b"}], "rmse") == "none: a/b"
    assert "2 of 3 runs; the others: broken" in format_entry([*good, {"error": "broken"}], "rmse")
    assert format_entry([{"rmse": 1.0}], "f1") == "no graph"


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", ["table1", "table2", "table3", "table4"])
def test_every_table_has_a_page_with_its_command_and_no_blank_entry(name, quick, tmp_path):
    table = make_table(name, quick)
    page = write_table(table, CellCache(tmp_path / "none.jsonl"))
    assert f"`ggmtl reproduce {name}{' --quick' if quick else ''}`" in page
    assert "run" in page
    rows = [line for line in page.splitlines() if line.startswith("| ") and "---" not in line]
    for row in rows:
        assert all(entry.strip() for entry in row.strip("|").split("|"))
    methods = {method for section in table.sections for method in section.methods}
    assert methods <= set(LABELS)


def test_full_tables_have_ten_runs_and_slow_methods_three():
    section = Section("t", ("school r=0.2",), "honest", ("hub", "bmsl"), slow=("bmsl",))
    assert len(section.cells("school r=0.2", "hub")) == 10
    assert len(section.cells("school r=0.2", "bmsl")) == 3
    assert len(section.cells("tmy3 h=8 every=8", "hub")) == 1
    assert len(replace(section, quick=True).cells("school r=0.2", "hub")) == 2


def test_methods_without_protocol_are_shared_between_sections():
    paper = Section("t", ("line",), "paper", PROTOCOL_FREE)
    assert {cell.protocol for cell in paper.all_cells()} == {"honest"}
    assert paper.cells("line", "ccmtl")[0].protocol == "paper"


def test_printed_numbers_of_variants_are_those_of_their_data_set():
    assert published_number("parkinson r=0.3 time visit", "ggmtl_l2") == (1.037, 0.012)
    assert published_number("tmy3 h=8 every=8", "mtrl") is None
    assert published_number("school r=0.2", "pooled") is None
    assert published_number("line published", "mssl", "f1") == (0.182, 3.4e-4)


def test_share_of_edges_removed_is_relative_to_the_neighbours():
    names = np.arange(4)
    full = TaskGraph([[0, 1], [0, 2], [1, 2], [2, 3]], np.ones(4), names)
    row = figure_row("x", "ggmtl", {"ccmtl": full, "ggmtl": TaskGraph([[0, 1]], [1.0], names)})
    assert row == "| x | GGMTL (default) | 1 | 75% | 1 | 2 | 2 |"


def test_figures_are_drawn_from_kept_graphs(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    pytest.importorskip("networkx")
    monkeypatch.setattr(pages, "QUICK_PROBLEMS", ("star",))
    cache = CellCache(tmp_path / "quick" / "cells.jsonl")
    for cell, n_edges in zip(pages.figure_cells(True), (10, 5, 0)):
        edges = [[0, k] for k in range(1, n_edges + 1)]
        graph = {"edges": edges, "weights": [1.0] * n_edges}
        cache.put(cell, {"rmse": 1.0, "seconds": 0.0, "edges": n_edges, "graph": graph})
    run("figures", True, tmp_path)
    assert (tmp_path / "quick" / "star.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "quick" / "figures.md").read_text()
    assert "![star](star.png)" in page
    assert "| 5 | 50% |" in page


def test_unknown_target_is_refused(tmp_path):
    with pytest.raises(ParameterError, match="what must be one of"):
        run("table9", True, tmp_path)


def test_run_writes_the_page_from_kept_results_without_computing(tmp_path):
    cache = CellCache(tmp_path / "quick" / "cells.jsonl")
    for section in make_table("table3", True).sections:
        for cell in section.all_cells():
            cache.put(cell, {"rmse": 10.0 + cell.seed, "seconds": 1.0, "edges": 3})
    run("table3", True, tmp_path)
    page = (tmp_path / "quick" / "table3.md").read_text()
    assert "10.500 ± 0.707" in page
    assert "10.129 ± 0.038" in page
