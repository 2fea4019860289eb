"""The summary: plain data whose numbers are those of the fit, and words that say the same."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import numpy as np
import pytest

from ggmtl import GGMTLClassifier, GGMTLRegressor, TaskGraph, load_model
from ggmtl.baselines import IndependentRegressor, PooledRegressor
from ggmtl.bilevel.level import GraphFit
from ggmtl.datasets import make_clusters
from ggmtl.fit.average import Average
from ggmtl.fit.held_out import FoldErrors
from ggmtl.graph.task_graph import name_shape
from ggmtl.inspection.levels import Levels, gain_over, task_gains
from ggmtl.inspection.summary.collect import summarize
from ggmtl.inspection.summary.phrases import one_line
from ggmtl.inspection.summary.verdict import average_verdict, verdict_of
from ggmtl.inspection.summary.words import describe, describe_meaning, error_text
from ggmtl.inspection.transfer import transfer_report


def _rows(n_tasks=6, n_rows=24, seed=0, distance=2.0):
    rng = np.random.default_rng(seed)
    models = distance * np.repeat(rng.normal(size=(2, 2)), n_tasks // 2, axis=0)
    task = np.repeat(np.arange(n_tasks), n_rows)
    X = rng.normal(size=(len(task), 2)) * [1.0, 50.0]
    y = X[:, 0] * models[task, 0] + X[:, 1] / 50.0 * models[task, 1] + rng.normal(size=len(task))
    return X, y, task


@pytest.fixture(scope="module")
def model():
    X, y, task = _rows()
    return GGMTLRegressor().fit(X, y, tasks=task)


@pytest.fixture(scope="module")
def summary(model):
    return summarize(model)


def _graph(*edges, n=None):
    n = 1 + max((max(edge) for edge in edges), default=0) if n is None else n
    return TaskGraph(np.array(edges).reshape(-1, 2), np.ones(len(edges)), np.arange(n))


@pytest.mark.parametrize(
    ("graph", "name"),
    [
        (_graph(n=4), "empty"),
        (_graph((0, 1), n=4), "pair"),
        (_graph((0, 1), (0, 2), (1, 2)), "clique"),
        (_graph((0, 1), (1, 2), (2, 3), n=6), "line"),
        (_graph((0, 1), (0, 2), (0, 3)), "star"),
        (_graph((0, 1), (0, 2), (0, 3), (3, 4)), "tree"),
        (_graph((0, 1), (1, 2), (2, 3), (0, 3)), "ring"),
        (_graph((0, 1), (0, 2), (1, 2), (3, 4), (3, 5), (4, 5)), "clusters"),
        (_graph((0, 1), (1, 2), (2, 3), (4, 5), (5, 6), (6, 7), (4, 8)), "forest"),
        (_graph((0, 1), (1, 2), (0, 2), (2, 3)), None),
    ],
)
def test_shapes_are_named(graph, name):
    assert name_shape(graph) == name


def test_shape_does_not_depend_on_the_order_of_tasks():
    order = np.random.default_rng(0).permutation(9)
    edges = np.array([(0, 1), (1, 2), (2, 3), (1, 4), (4, 5)])
    assert name_shape(_graph(*edges, n=9)) == name_shape(_graph(*order[edges], n=9)) == "tree"


def test_summary_is_plain_data(summary):
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


def test_coefficients_are_those_of_the_model_in_the_users_units(model, summary):
    stored = np.array([task["coefficients"] for task in summary["tasks"]])
    np.testing.assert_allclose(stored, np.column_stack([model.coef_, model.intercept_]))
    assert summary["features"] == [*map(str, model.feature_names_), "intercept"]


def test_task_errors_average_to_the_error_of_the_level(model, summary):
    rows = np.array([task["rows"] for task in summary["tasks"]])
    for k, level in enumerate(summary["path"]["levels"]):
        squared = np.array([task["errors"][k] for task in summary["tasks"]]) ** 2
        assert np.sqrt(np.average(squared, weights=rows)) == pytest.approx(level["error"])
    assert summary["error"] == pytest.approx(model.validation_error_)


def test_levels_are_ordered_by_density(model):
    # The level of highest evidence comes last in the path, and may be the one without edges.
    result = model.state_.family
    graphs = [name for name, fit in result.levels.items() if fit.name == "graph"]
    nothing = replace(result.levels[graphs[-1]], edges=np.empty((0, 2), int), edge_values=np.empty(0),
                      reported_weights=np.empty(0))  # fmt: skip
    levels = result.levels | {graphs[-1]: nothing}
    shuffled = replace(result, levels=levels, weights={graphs[0]: 1.0}, chosen=graphs[0], average=None)
    other = copy.copy(model)
    other.state_ = replace(model.state_, family=shuffled)
    other.path_ = shuffled.table(model.scaling_.target_scale, model.state_.settings.slopes)
    shown = summarize(other)["path"]["levels"]
    edges = [level["n_edges"] for level in shown if level["name"] == "graph"]
    assert edges == sorted(edges)
    simple = [level["name"] for level in shown if level["name"] != "graph"]
    assert simple == ["pooled", "intercepts", "hub", "hub, correlated", "independent"]
    assert shown[-1]["name"] == "independent"
    assert {level["error"] for level in shown} == {row["error"] for row in other.path_}
    assert "linked tasks, no links" in describe(summarize(other))


def test_map_puts_tasks_with_similar_models_together(model, summary):
    points = np.array(summary["map"]["points"])
    within = np.linalg.norm(points[0] - points[1])
    assert within < np.linalg.norm(points[0] - points[5])
    name, rises = summary["map"]["axes"][0][0]
    values = model.coef_[:, [*map(str, model.feature_names_)].index(name)]
    assert (np.corrcoef(values, points[:, 0])[0, 1] > 0) == rises


def test_equal_models_have_no_map():
    X, y, task = _rows()
    assert summarize(PooledRegressor().fit(X, y, tasks=task))["map"] is None


def test_a_verdict_without_links_says_what_that_means():
    X, y, task = _rows(distance=0.0)
    fitted = summarize(GGMTLRegressor().fit(X, y, tasks=task))
    assert fitted["graph"]["n_edges"] == 0
    assert describe_meaning(fitted) in describe(fitted)
    assert len(describe_meaning(fitted)) > 40


def test_edges_of_the_chosen_level_are_those_of_the_graph(model, summary):
    chosen = summary["path"]["levels"][summary["path"]["chosen"]]
    assert [edge[:2] for edge in chosen["edges"]] == model.graph_.edges.tolist()
    assert summary["graph"]["edges"] == chosen["edges"]
    assert summary["graph"]["n_edges"] == model.graph_.n_edges


def test_gain_of_a_task_is_over_separate_models_and_shrunk_to_that_of_all(summary):
    levels, chosen = summary["path"]["levels"], summary["path"]["chosen"]
    alone = next(k for k, level in enumerate(levels) if level["name"] == "independent")
    total = (levels[chosen]["error"] / levels[alone]["error"]) ** 2
    for task in summary["tasks"]:
        own = (task["errors"][chosen] / task["errors"][alone]) ** 2
        ratio = (task["rows"] * own + 10.0 * total) / (task["rows"] + 10.0)
        assert task["gain"] == pytest.approx(1.0 - np.sqrt(ratio))


def test_tasks_with_few_held_out_rows_are_not_ranked():
    squared, count = np.ones((2, 3, 2)), np.array([[2.0, 1.0], [2.0, 1.0], [2.0, 1.0]])
    gains, _ = task_gains(FoldErrors(squared, count), 0, 1)
    assert gains[0] == 0.0
    assert np.isnan(gains[1])


def test_standard_errors_of_gains_are_the_spread_of_gains_over_tasks_that_are_alike():
    rng = np.random.default_rng(0)
    count, n = np.full((10, 600), 10.0), 600
    theirs = rng.chisquare(10, size=(10, n))
    ours = 0.5 * theirs + 0.4 * rng.chisquare(10, size=(10, n))
    gains, doubt = task_gains(FoldErrors(np.stack([ours, theirs]), count), 0, 1)
    assert doubt.mean() == pytest.approx(gains.std(), rel=0.1)
    assert np.isnan(task_gains(FoldErrors(np.stack([ours, theirs])[:, :2], count[:2]), 0, 1)[1]).all()


def test_standard_errors_of_the_page_are_those_of_the_coefficients(model):
    table = model.coefficients()
    shown = summarize(model, with_standard_errors=True)["standard_errors"]
    np.testing.assert_allclose(np.ravel(shown), table["standard_error"])
    assert summarize(IndependentRegressor().fit(*_rows()[:2], tasks=_rows()[2]), True)["standard_errors"] is None


def test_fingerprint_is_that_of_the_data(model, summary):
    X, y, task = _rows()
    again = GGMTLRegressor(max_iter=3, tol=1.0).fit(X, y, tasks=task)
    assert summarize(again)["fingerprint"] == summary["fingerprint"]
    y[0] += 1e-6
    other = GGMTLRegressor(max_iter=3, tol=1.0).fit(X, y, tasks=task)
    assert summarize(other)["fingerprint"] != summary["fingerprint"]


def test_text_has_the_verdict_counts_and_errors(summary):
    text = describe(summary)
    assert summary["verdict"]["text"] in text
    assert "6 tasks, 144 rows, 2 features" in text
    assert text.count("← the model") == 1
    assert all(error_text(level) in text for level in summary["path"]["levels"])


def test_model_gives_its_summary_as_text(model, summary):
    assert model.summary() == describe(summary)


def _errors(*levels, n=40, seed=0):
    """Errors of levels whose tasks' mean squares are the given numbers, up to noise that all levels share."""
    noise = 1.0 + 0.2 * np.random.default_rng(seed).normal(size=n)
    return FoldErrors(np.array([[value * noise] for value in levels]), np.ones((1, n)))


def _verdict(names, errors, chosen, graph):
    return verdict_of(Levels(names, names, (0,) * len(names), errors, chosen), graph)


def test_verdict_gives_gain_and_interval_over_the_best_simple_model():
    names, errors = ("pooled", "hub", "graph"), _errors(2.0, 1.0, 0.81)
    verdict = _verdict(names, errors, 2, _graph((0, 1), n=40))
    # √0.81 = 0.9: ten per cent below.
    assert verdict["gain"] == pytest.approx(0.1, abs=0.02)
    assert verdict["low"] < verdict["gain"] < verdict["high"]
    assert verdict["against"] == "hub"
    assert verdict["text"].startswith("Links between tasks lower the held-out error by 10 %")
    assert verdict["text"].endswith("against the best simpler model, shared model + own deviations.")


def test_interval_covers_the_true_gain():
    truth, hits = 0.1, 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        squared = np.stack([rng.exponential(1.0, (1, 60)), rng.exponential(0.81, (1, 60))])
        gain = gain_over(FoldErrors(squared, np.ones((1, 60))), 1, 0)
        hits += gain.low <= truth <= gain.high
    assert 0.88 <= hits / 200 <= 0.99


def test_verdicts_of_the_simple_levels():
    names, errors = ("pooled", "hub", "independent"), _errors(1.0, 0.9, 1.2)
    texts = [_verdict(names, errors, k, _graph(n=40))["text"] for k in range(3)]
    assert texts[1] == "The tasks differ. No links between tasks were kept."
    assert "One model serves all tasks" in texts[0]
    assert "Separate models predict best" in texts[2]


@pytest.mark.parametrize("name", ["hub, correlated", "hub, other noise", "common slopes", "intercepts, straight"])
def test_variants_of_the_simple_levels_have_a_verdict_too(name):
    verdict = _verdict(("pooled", name), _errors(1.0, 0.9), 1, _graph(n=40))
    assert verdict["kind"] in ("hub", "common slopes", "intercepts")
    assert verdict["gain"] > 0


def test_a_graph_that_does_not_help_is_not_praised():
    names, graph = ("hub", "graph"), _graph((0, 1), n=40)
    verdict = _verdict(names, _errors(1.0, 1.0), 1, graph)
    assert "lower" not in verdict["text"]
    assert "Treat the links as hints" in verdict["text"]
    worse = _verdict(names, _errors(1.0, 1.21), 1, graph)
    assert worse["text"].startswith("Links between tasks raise the held-out error by 10 %")


def _average(**shares):
    """An average of 40 tasks over two folds; `shares` are the mean losses of other levels, and how far tasks spread."""
    rng, ours = np.random.default_rng(0), np.ones(40)
    losses = {name: mean * np.exp(spread * rng.normal(size=40)) for name, (mean, spread) in shares.items()}
    return Average({"hub": 1.0}, np.ones((2, 40)), {"average": ours, **losses}, dict.fromkeys(losses, 0.0))


def test_one_model_for_all_is_as_good_only_where_the_interval_says_so():
    near = average_verdict(_average(pooled=(1.0, 0.01), independent=(2.0, 0.1)), _graph(n=40))
    assert (near["kind"], near["text"]) == ("pooled", "One model for all tasks predicts about as well as any other.")
    wide = average_verdict(_average(pooled=(0.65, 1.0), independent=(2.0, 0.1)), _graph(n=40))
    assert wide["kind"] == "pooled unclear"
    assert wide["low"] <= 0 < 0.02 <= wide["high"]
    assert wide["against"] == "pooled"
    assert "not clear whether the tasks differ" in wide["text"]
    differ = average_verdict(_average(pooled=(2.0, 0.1), independent=(1.5, 0.1)), _graph(n=40))
    assert differ["kind"] == "shared"


def test_tasks_of_one_outcome_are_not_ranked():
    rng = np.random.default_rng(0)
    tasks = np.repeat(np.arange(8), 20)
    X, y = rng.normal(size=(160, 2)), rng.random(160) < 0.4
    y[tasks == 3] = False
    model = GGMTLClassifier(random_state=0).fit(X, y, tasks=tasks)
    found = summarize(model)["tasks"]
    assert [task["gain"] is None for task in found] == [label == 3 for label in range(8)]
    report = transfer_report(model)
    assert 3 not in report.hurt
    assert np.isnan(report.task_gains[3].share)


def test_tasks_are_counted_by_their_own_errors(summary):
    chosen = next(k for k, level in enumerate(summary["path"]["levels"]) if level["chosen"])
    names = [level["name"] for level in summary["path"]["levels"]]
    alone = names.index(summary["gain_against"])
    lower = sum(task["errors"][chosen] < task["errors"][alone] for task in summary["tasks"])
    assert f"lower than that of separate models in {lower} of" in describe(summary)


def test_without_folds_no_gain_is_reported():
    X, y, task = _rows()
    options = {"criterion": "validation", "edge_entropy": 0.0, "coupling": 1.0, "validation": 0.25}
    summary = summarize(GGMTLRegressor(**options).fit(X, y, tasks=task))
    assert "gain" not in summary["verdict"]
    assert all(task["gain"] is None and task["errors"] is None for task in summary["tasks"])
    assert "lowers" not in describe(summary)


def test_pooled_coefficients_are_shared_and_separate_ones_differ():
    X, y, task = _rows(distance=0.0)
    shared = {entry["word"] for entry in summarize(GGMTLRegressor().fit(X, y, tasks=task))["sharing"]}
    assert shared == {"shared"}
    X, y, task = _rows(distance=40.0)
    fitted = summarize(GGMTLRegressor().fit(X, y, tasks=task))
    shares = {entry["feature"]: entry["share"] for entry in fitted["sharing"]}
    assert shares["x0"] < shares["intercept"]


@pytest.mark.parametrize("method", [PooledRegressor, IndependentRegressor])
def test_other_methods_have_a_summary_without_path(method):
    X, y, task = _rows()
    summary = summarize(method().fit(X, y, tasks=task))
    assert json.dumps(summary, allow_nan=False)
    assert summary["path"]["levels"] == []
    assert "no links" in describe(summary)


def test_a_single_task_is_reported_as_such():
    X, y, _ = _rows()
    text = describe(summarize(GGMTLRegressor().fit(X, y)))
    assert "nothing can be shared" in text
    assert "task=" in text
    assert "--task" in text


def test_without_held_out_rows_the_shared_model_is_explained_by_evidence_only(summary):
    found = {**summary, "verdict": {"kind": "hub"}, "graph": {"n_edges": 0}}
    assert "held-out" in describe_meaning(found)
    unmeasured = describe_meaning({**found, "error": None})
    assert "evidence supports no links" in unmeasured
    assert "held-out" not in unmeasured


def test_saved_and_attached_models_still_have_a_summary(model, tmp_path):
    model.save(tmp_path / "m.ggmtl")
    loaded = load_model(tmp_path / "m.ggmtl")
    text = describe(summarize(loaded))
    assert summarize(model)["verdict"]["text"] in text
    loaded.add_task(99)
    grown = summarize(loaded)
    assert grown["n_tasks"] == 7
    assert json.dumps(grown, allow_nan=False)


def test_names_cannot_steer_a_terminal():
    assert one_line("a\x1b[31mb\nc\u202e") == "a\ufffd[31mb\ufffdc\ufffd"


def test_level_without_models_has_no_edges_to_draw(model):
    # What a file keeps of the levels that were not chosen: the name.
    nothing = GraphFit("graph", np.empty((0, 2), int), np.empty(0), np.zeros(3), np.zeros(3), np.empty((0, 3)), 0.0)
    result = model.state_.family
    levels = {name: fit if name == result.chosen else nothing for name, fit in result.levels.items()}
    alone = replace(result, levels=levels, weights={result.chosen: 1.0}, average=None)
    other = copy.copy(model)
    other.state_ = replace(model.state_, family=alone)
    stored = summarize(other)["path"]["levels"]
    assert [level["edges"] is None for level in stored] == [not level["chosen"] for level in stored]


def test_redundant_features_are_named(tmp_path):
    X, y, task = _rows()
    rng = np.random.default_rng(3)
    near = X[:, 0] + 1e-3 * rng.normal(size=len(X))
    constant = np.full(len(X), 7.0)
    frame = {"own": X[:, 1], "euro": X[:, 0], "dollar": 1e6 + 1.1 * X[:, 0], "near": near, "constant": constant}

    def fitted(*names):
        columns = np.column_stack([frame[name] for name in names])
        model = GGMTLRegressor().fit(columns, y, tasks=task)
        model.feature_names_ = names
        return model

    assert summarize(fitted("own", "euro", "near", "constant"))["redundant"] == []
    model = fitted("own", "euro", "dollar", "near")
    assert summarize(model)["redundant"] == ["euro", "dollar"]
    assert "Each of euro, dollar can be computed from the others in this list" in describe(summarize(model))
    frame["both"] = frame["euro"] - 3.0 * frame["own"]
    assert summarize(fitted("own", "euro", "both", "near"))["redundant"] == ["own", "euro", "both"]
    model.save(tmp_path / "model.ggmtl")
    assert summarize(load_model(tmp_path / "model.ggmtl"))["redundant"] == []


def test_coefficients_shared_by_links_are_not_called_shared_by_all():
    data = make_clusters(5, n_tasks=50, n_features=10, random_state=0)
    summary = summarize(GGMTLRegressor().fit(data.X, data.y, tasks=data.tasks))
    words = {entry["feature"]: entry["word"] for entry in summary["sharing"]}
    apart = data.coefficients.std(axis=0) > 0.5
    assert apart.sum() > 5
    assert {words[f"x{k}"] for k in np.flatnonzero(apart)} <= {"shared by links", "partly shared"}
    assert "Shared by linked tasks: x" in describe(summary)


def test_a_constant_column_is_neither_shared_nor_own():
    X, y, task = _rows()
    summary = summarize(GGMTLRegressor().fit(np.column_stack([X, np.full(len(X), 3.0)]), y, tasks=task))
    assert summary["sharing"][X.shape[1]]["word"] is None


@pytest.mark.parametrize("estimator", [GGMTLRegressor, GGMTLClassifier])
def test_columns_with_one_value_are_named_with_what_to_do(estimator):
    X, y, task = _rows()
    target = y > np.median(y) if estimator is GGMTLClassifier else y
    constant = np.full(len(X), 1e6)
    summary = summarize(estimator().fit(np.column_stack([X, constant]), target, tasks=task))
    name = f"x{X.shape[1]}"
    assert summary["single_valued"] == [name]
    assert f"{name} has the same value in every row" in describe(summary)
    if estimator is GGMTLClassifier:
        # Its interval would be that of the prior.
        assert f"{name} 1.0" not in describe(summary)
    two = summarize(estimator().fit(np.column_stack([X, constant, 0 * constant]), target, tasks=task))
    assert "have the same value in every row, so nothing can be learned from them" in describe(two)
    # Without an intercept, a constant column takes its place.
    alone = estimator(fit_intercept=False).fit(np.column_stack([X, constant]), target, tasks=task)
    assert summarize(alone)["single_valued"] == []


def test_a_column_that_varies_little_about_a_large_mean_is_not_called_constant():
    X, y, task = _rows()
    model = GGMTLRegressor().fit(np.column_stack([X, 1e8 + X[:, 0] ** 2]), y, tasks=task)
    assert summarize(model)["single_valued"] == []


def test_levels_of_curves_are_called_so_beside_those_of_straight_lines():
    rng = np.random.default_rng(0)
    x, task = rng.uniform(0, 6, size=(200, 1)), np.repeat(np.arange(10), 20)
    y = np.sin(x[:, 0]) + 0.1 * rng.normal(size=200)
    both, curves = (GGMTLRegressor(effects=name).fit(x, y, tasks=task).summary() for name in ("auto", "smooth"))
    assert "separate models, straight lines" in both
    assert "separate models, curves" in both
    assert "the average of all levels, curves" not in both
    assert "separate models  " in curves
    assert "curves" not in curves


def test_one_row_per_task_says_nothing_about_tasks():
    X, y, _ = _rows()
    model = GGMTLRegressor().fit(X, y, tasks=np.arange(len(y)))
    assert "nothing can be said about how tasks differ" in model.summary()


def test_one_row_in_all():
    assert "1 task, 1 row, 2 features" in GGMTLRegressor().fit([[1.0, 2.0]], [3.0]).summary()


def test_a_standard_error_that_is_rounding_is_not_shown():
    assert error_text({"error": 1.25, "standard_error": 1e-17}) == "1.25"
    assert error_text({"error": 1.25, "standard_error": 0.031}) == "1.250 ± 0.031"


def test_coefficients_under_other_penalties_have_no_sharing_word():
    data = make_clusters(3, n_tasks=12, n_features=4, n_samples=14, noise=0.3, random_state=0)
    model = GGMTLRegressor(penalty="l1").fit(data.X, data.y, tasks=data.tasks)
    assert model.graph_.n_edges
    assert {entry["word"] for entry in summarize(model)["sharing"]} == {None}
