"""What is drawn, counted: marks, lines, labels and colours, at 5, 50, 500 and 2,000 tasks."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

matplotlib = pytest.importorskip("matplotlib")
pytest.importorskip("networkx")
matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402
from matplotlib.collections import LineCollection, PathCollection  # noqa: E402
from matplotlib.patches import Rectangle  # noqa: E402

from ggmtl import GGMTLRegressor, plot  # noqa: E402
from ggmtl.baselines import HubRegressor  # noqa: E402
from ggmtl.datasets import make_clusters  # noqa: E402
from ggmtl.errors import InputError, InputTypeError  # noqa: E402
from ggmtl.graph import TaskGraph  # noqa: E402
from ggmtl.inspection import transfer_report  # noqa: E402
from ggmtl.inspection.summary.collect import summarize  # noqa: E402
from ggmtl.plot import geography  # noqa: E402
from ggmtl.plot.geography import outlines_within  # noqa: E402
from ggmtl.plot.network import heaviest_links, positions  # noqa: E402
from ggmtl.plot.style import GREY, OKABE_ITO, cluster_styles  # noqa: E402


@pytest.fixture(autouse=True)
def close_figures():
    yield
    pyplot.close("all")


def cliques(number, size, alone=0, bridges=True):
    pairs = np.column_stack(np.triu_indices(size, 1))
    edges = [pairs + size * k for k in range(number)]
    weights = [np.ones(len(pairs))] * number
    if bridges:
        edges.append(np.array([[size * k - 1, size * k] for k in range(1, number)]).reshape(-1, 2))
        weights.append(np.full(number - 1, 0.05))
    names = np.array([f"task {i}" for i in range(number * size + alone)])
    return TaskGraph(np.vstack(edges), np.concatenate(weights), names)


def model_of(graph, d=3, scales=1.0):
    coef = np.random.default_rng(0).normal(size=(graph.n_tasks, d)) * scales
    names = [f"x{k}" for k in range(d)]
    scaling = SimpleNamespace(scale=1.0 / np.maximum(np.broadcast_to(scales, d), 1e-9))
    return SimpleNamespace(graph_=graph, coef_=coef, tasks_=graph.task_names, feature_names_=names, scaling_=scaling)


def marks(ax):
    return sum(len(c.get_offsets()) for c in ax.collections if isinstance(c, PathCollection))


def lines(ax):
    return sum(len(c.get_segments()) for c in ax.collections if isinstance(c, LineCollection))


def texts(ax):
    return [text.get_text() for text in ax.texts]


@pytest.mark.parametrize(("number", "size", "alone"), [(1, 5, 0), (5, 8, 10), (40, 11, 60)])
def test_up_to_500_tasks_every_task_is_a_mark_and_every_edge_a_line(number, size, alone):
    graph = cliques(number, size, alone)
    ax = plot.graph(model_of(graph))
    assert marks(ax) == graph.n_tasks
    assert lines(ax) == graph.n_edges
    assert f"{graph.n_tasks:,} tasks" in ax.get_title()


def test_above_500_tasks_marks_are_clusters_sized_by_their_members():
    sizes = [400, 100, 50, 2]
    edges = np.vstack([[[s, s + k] for k in range(1, n)] for s, n in zip(np.cumsum([0, *sizes]), sizes)])
    graph = TaskGraph(edges, np.ones(len(edges)), np.arange(600))
    ax = plot.graph(graph)
    assert marks(ax) == 4
    assert {"400", "100", "50", "2"} <= set(texts(ax))
    area = {
        round(size) for c in ax.collections if isinstance(c, PathCollection) for size in 400 * c.get_sizes() / 34**2
    }
    assert area == set(sizes)
    assert "48 alone" in ax.get_title()


def test_many_clusters_are_cut_to_the_largest_and_the_picture_says_so():
    ax = plot.graph(cliques(200, 10))
    assert marks(ax) == 60
    assert any("60 largest of 200" in text for text in texts(ax))


def test_links_left_out_never_cut_off_a_cluster():
    rng = np.random.default_rng(0)
    edges = np.column_stack(np.triu_indices(30, 1))
    links = TaskGraph(edges, rng.random(len(edges)), np.arange(30))
    kept = heaviest_links(links)
    assert kept.n_edges <= 60
    assert (np.bincount(kept.edges.ravel(), minlength=30) >= 2).all()


def test_all_labels_fit_at_five_tasks_and_few_are_written_at_500():
    assert sorted(texts(plot.graph(cliques(1, 5)))) == [f"task {i}" for i in range(5)]
    assert len(texts(plot.graph(cliques(40, 11, 60)))) <= 20


def test_labels_do_not_overlap_each_other_nor_leave_the_picture():
    ax = plot.graph(cliques(5, 8, 10))
    boxes = np.array([text.get_window_extent().extents for text in ax.texts])
    apart = (boxes[:, None, :2] >= boxes[None, :, 2:]) | (boxes[:, None, 2:] <= boxes[None, :, :2])
    assert (apart.any(axis=2) | np.eye(len(boxes), dtype=bool)).all()
    assert len(boxes) >= 20
    assert (boxes >= np.tile(ax.bbox.extents[:2], 2)).all()
    assert (boxes <= np.tile(ax.bbox.extents[2:], 2)).all()


@pytest.mark.parametrize("n", [12, 600])
def test_an_empty_graph_says_so(n):
    graph = TaskGraph.empty(np.arange(n))
    assert "no links" in plot.graph(graph).get_title()
    assert "no links" in texts(plot.adjacency(graph))


@pytest.mark.parametrize("n", [0, 1, 2])
def test_the_smallest_graphs_are_drawn(n):
    graph = TaskGraph.empty(np.arange(n))
    assert marks(plot.graph(graph)) == n
    plot.adjacency(graph)
    if n == 2:
        assert lines(plot.graph(TaskGraph([[0, 1]], [1.0], ["a", "b"]))) == 1


def test_names_are_written_as_they_are_not_as_formulas_or_control_characters():
    names = ["$\\frac{", "<b>", "a\x00\nb", "x" * 80]
    ax = plot.graph(TaskGraph([[0, 1], [2, 3]], [1.0, 1.0], names))
    ax.figure.canvas.draw()
    assert {"$\\frac{", "<b>", "a b"} <= set(texts(ax))
    assert max(map(len, texts(ax))) <= 24
    plot.adjacency(TaskGraph([[0, 1], [2, 3]], [1.0, 1.0], names)).figure.canvas.draw()


def test_support_sets_the_opacity_of_edges():
    graph = TaskGraph([[0, 1], [1, 2]], [1.0, 1.0], list("abc"), support=np.array([0.1, 1.0]))
    ax = plot.graph(graph)
    opacity = next(c for c in ax.collections if isinstance(c, LineCollection)).get_colors()[:, 3]
    assert opacity[0] < 0.3 < 0.8 < opacity[1]


def test_a_drawing_is_the_same_twice_and_stays_on_the_axes_given():
    graph = cliques(5, 8, 10)
    assert np.array_equal(positions(graph), positions(graph))
    figure = matplotlib.figure.Figure()
    ax = figure.subplots()
    assert plot.graph(graph, ax=ax) is ax
    assert pyplot.get_fignums() == []


@pytest.mark.parametrize("size", [3, 28, 41, 60])
def test_tasks_of_cliques_of_any_size_do_not_overlap(size):
    edges = np.column_stack(np.triu_indices(size, 1))
    points = positions(TaskGraph(edges, np.ones(len(edges)), np.arange(size)))
    assert points.shape == (size, 2)
    gaps = np.linalg.norm(points[:, None] - points, axis=2)[np.triu_indices(size, 1)]
    assert gaps.min() > 0.02 * gaps.max()


def test_components_do_not_overlap_and_single_tasks_lie_below():
    graph = cliques(4, 6, 7, bridges=False)
    points = positions(graph)
    boxes = [(points[6 * k : 6 * k + 6].min(axis=0), points[6 * k : 6 * k + 6].max(axis=0)) for k in range(4)]
    for a in range(4):
        for b in range(a):
            assert (boxes[a][0] > boxes[b][1]).any() or (boxes[b][0] > boxes[a][1]).any()
    assert points[24:, 1].max() < points[:24, 1].min()
    assert len(np.unique(points.round(6), axis=0)) == graph.n_tasks


def test_a_line_is_laid_out_as_a_line():
    graph = TaskGraph([[i, i + 1] for i in range(29)], np.ones(29), np.arange(30))
    points = positions(graph)
    steps = np.diff(points[:, 0])
    assert (steps > 0).all() or (steps < 0).all()
    assert np.ptp(points[:, 1]) < 0.1 * np.ptp(points[:, 0])


def test_points_given_are_used_and_wrong_ones_are_refused():
    graph = TaskGraph([[0, 1]], [1.0], ["a", "b"])
    given = np.array([[0.0, 1.0], [2.0, 3.0]])
    assert np.array_equal(positions(graph, given), given)
    assert np.array_equal(positions(graph, {"a": (0, 1), "b": (2, 3)}), given)
    with pytest.raises(InputError, match="'b'"):
        positions(graph, {"a": (0, 1)})


def test_clusters_have_distinct_styles_until_markers_run_out_and_single_tasks_are_grey():
    clusters = np.concatenate([np.repeat(np.arange(56), 2), [56, 57]])
    styles = cluster_styles(clusters)
    assert len(set(styles[:56])) == 56
    assert {color for color, _ in styles[:7]} == set(OKABE_ITO)
    assert styles[56:] == [(GREY, "o")] * 2


def test_only_graphs_and_fitted_models_are_drawn():
    with pytest.raises(InputTypeError, match="TaskGraph or a fitted model"):
        plot.graph("graph")
    with pytest.raises(InputError, match="clusters must have shape"):
        plot.graph(cliques(1, 5), clusters=[0, 1])


@pytest.mark.parametrize(("number", "size"), [(1, 5), (5, 10), (50, 10), (200, 10)])
def test_adjacency_is_ordered_by_cluster_with_a_frame_each(number, size):
    graph = cliques(number, size, bridges=False)
    order = np.random.default_rng(0).permutation(graph.n_tasks)
    shuffled = TaskGraph(order[graph.edges], graph.weights, graph.task_names)
    ax = plot.adjacency(shuffled)
    assert sum(isinstance(patch, Rectangle) for patch in ax.patches) == number
    cells = np.asarray(ax.images[0].get_array())
    assert len(cells) == min(graph.n_tasks, 250)
    if graph.n_tasks <= 250:
        assert np.array_equal(cells, graph.adjacency().toarray())
    assert len(ax.get_yticks()) == (graph.n_tasks if graph.n_tasks <= 60 else 0)


@pytest.mark.parametrize("n_cliques", [1, 10, 100, 400])
def test_coefficients_have_a_row_per_task_ordered_by_cluster(n_cliques):
    model = model_of(cliques(n_cliques, 5, bridges=False))
    model.coef_[:] = np.arange(len(model.coef_))[:, None] // 5 + 1.0
    ax = plot.coefficients(model)
    rows = np.asarray(ax.images[0].get_array())
    assert rows.shape == model.coef_.shape
    assert np.array_equal(rows[::5], rows[4::5])
    low, high = ax.images[0].get_clim()
    assert low == -high
    assert [label.get_text().split("\n")[0] for label in ax.get_xticklabels()] == ["x0", "x1", "x2"]


def test_colours_are_differences_from_the_mean_whatever_the_units_and_the_size_of_the_mean():
    graph = cliques(2, 5)
    model, other = model_of(graph), model_of(graph, scales=np.array([1e-3, 1.0, 1e4]))
    other.coef_[:, 1] += 1e3
    ax = plot.coefficients(other)
    shown = np.asarray(ax.images[0].get_array())
    np.testing.assert_allclose(shown, model.coef_ - model.coef_.mean(axis=0), atol=1e-9)
    assert f"mean {other.coef_[:, 1].mean():.3g}" in ax.get_xticklabels()[1].get_text()
    # Nothing is as dark as the darkest but the largest difference.
    assert ax.images[0].get_clim()[1] == np.abs(shown).max()


def test_a_few_very_large_differences_do_not_make_the_others_pale():
    model = model_of(cliques(10, 5))
    model.coef_[3, 1] = 1e6
    ax = plot.coefficients(model)
    assert ax.images[0].get_clim()[1] < 1e5
    assert ax.figure.axes[-1]._colorbar.extend == "both"


def test_coefficients_that_are_all_zero_are_drawn():
    model = model_of(cliques(1, 5), scales=0.0)
    assert plot.coefficients(model).images[0].get_clim() == (-1.0, 1.0)


@pytest.fixture
def rows():
    return [
        {"level": level, "n_edges": n, "error": error, "standard_error": 0.1, "chosen": n == 12}
        for level, n, error in [("hub", 0, 2.0), ("graph", 12, 1.0), ("graph", 900, 1.2)]
    ]


def test_path_has_a_row_per_level_and_rings_the_chosen(rows):
    ax = plot.path(SimpleNamespace(path_=rows))
    ring = next(line for line in ax.lines if line.get_label() == "the model")
    assert ring.get_xydata().tolist() == [[1.0, 1.0]]
    assert len(ax.lines[0].get_xydata()) == 3
    words = ["shared model + own deviations", "linked tasks, 12 links", "linked tasks, 900 links"]
    assert [label.get_text() for label in ax.get_yticklabels()] == words


def test_names_of_levels_do_not_overlap_and_the_average_is_the_model():
    data = make_clusters(3, n_tasks=12, n_features=3, random_state=0)
    model = GGMTLRegressor().fit(data.X, data.y, tasks=data.tasks)
    ax = plot.path(model)
    ax.figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in ax.get_yticklabels()]
    assert len(boxes) == len(summarize(model)["path"]["levels"])
    assert not any(one.overlaps(other) for k, one in enumerate(boxes) for other in boxes[:k])
    ring = next(line for line in ax.lines if line.get_label() == "the model")
    np.testing.assert_allclose(ring.get_xdata(), summarize(model)["error"])
    shares = [label.get_text() for label in ax.get_yticklabels() if label.get_text().endswith(" %)")]
    assert len(shares) == len(model.blend_)


def test_path_takes_rows_without_standard_errors(rows):
    assert len(plot.path([{**row, "standard_error": None} for row in rows]).lines[0].get_xydata()) == 3


def test_gain_takes_a_model_or_a_report():
    data = make_clusters(2, n_tasks=6, n_features=2, random_state=0)
    model = GGMTLRegressor(candidates=np.empty((0, 2))).fit(data.X, data.y, tasks=data.tasks)
    report = transfer_report(model)
    drawn = sorted(patch.get_width() for patch in plot.gain(report).patches)
    np.testing.assert_allclose(drawn, sorted(entry.share for entry in report.task_gains))
    shares = sorted(task["gain"] for task in summarize(model)["tasks"])
    np.testing.assert_allclose(sorted(patch.get_width() for patch in plot.gain(model).patches), shares)
    with pytest.raises(InputTypeError, match="a fitted model, a transfer report"):
        plot.gain(["a", "b"])


def test_gain_has_a_named_bar_per_task_largest_first():
    ax = plot.gain(["a", "b", "c"], [0.1, -0.2, 0.3])
    assert [bar.get_width() for bar in ax.patches] == [0.3, 0.1, -0.2]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["c", "a", "b"]
    assert ax.patches[0].get_facecolor() != ax.patches[2].get_facecolor()
    assert ax.get_title() == "2 of 3 tasks gain"


@pytest.mark.parametrize("n", [61, 500])
def test_many_gains_have_no_names(n):
    ax = plot.gain(np.arange(n), np.linspace(-1, 1, n))
    assert "ordered by gain" in ax.get_xlabel()
    assert len(ax.patches) == 0


def test_gains_that_are_missing_or_too_few_are_refused():
    with pytest.raises(InputError, match="one number per task"):
        plot.gain(["a", "b"], [1.0])
    with pytest.raises(InputError, match="'b'"):
        plot.gain(["a", "b"], [1.0, np.nan])


@pytest.mark.parametrize("n_cliques", [1, 10, 100, 400])
def test_map_puts_every_task_at_its_place(n_cliques):
    graph = cliques(n_cliques, 5)
    places = np.random.default_rng(0).uniform([-120, 30], [-70, 48], (graph.n_tasks, 2))
    ax = plot.map(graph, places)
    drawn = np.vstack([c.get_offsets() for c in ax.collections if isinstance(c, PathCollection)])
    assert {tuple(row) for row in np.asarray(drawn)} == {tuple(row) for row in places}
    assert lines(ax) == graph.n_edges
    assert ax.get_aspect() > 1.0


def test_a_map_has_coastlines_behind_the_tasks():
    graph = cliques(10, 5)
    places = np.random.default_rng(0).uniform([-120, 30], [-70, 48], (graph.n_tasks, 2))
    ax = plot.map(graph, places)
    coast = np.concatenate([line.get_xydata() for line in ax.lines])
    # The Four Corners, Cape Hatteras and the southern end of Lake Michigan.
    for place in ((-109.05, 37.0), (-75.5, 35.25), (-87.2, 41.65)):
        assert np.linalg.norm(coast - place, axis=1).min() < 0.25
    assert max(line.get_zorder() for line in ax.lines) < min(c.get_zorder() for c in ax.collections)
    bare = plot.map(graph, places, outlines=False)
    assert not bare.lines
    assert (bare.get_xlim(), bare.get_ylim()) == (ax.get_xlim(), ax.get_ylim())
    # Lines thinned for a continent say nothing about a town.
    assert not plot.map(graph, 0.001 * places + [-80.0, 25.0]).lines


def test_coastlines_go_on_across_the_date_line():
    here, there = outlines_within((170.0, -50.0), (180.0, -30.0)), outlines_within((-190.0, -50.0), (-180.0, -30.0))
    assert here
    for one, other in zip(here, there, strict=True):
        np.testing.assert_allclose(one - [360.0, 0.0], other, atol=1e-9)
    assert outlines_within((-150.0, -20.0), (-145.0, -15.0)) == []
    assert Path(geography.__file__).with_name("outlines.npz").stat().st_size < 60_000


def test_map_refuses_swapped_missing_and_infinite_coordinates():
    graph = TaskGraph([[0, 1]], [1.0], ["a", "b"])
    with pytest.raises(InputError, match="swapped"):
        plot.map(graph, [[40.0, -100.0], [41.0, -101.0]])
    with pytest.raises(InputError, match="'b'"):
        plot.map(graph, {"a": (0.0, 0.0)})
    with pytest.raises(InputError, match="'b'"):
        plot.map(graph, [[0.0, 0.0], [np.nan, 0.0]])


def test_an_effect_has_a_line_per_task_a_common_one_and_a_band():
    rng = np.random.default_rng(0)
    x, tasks = rng.uniform(0, 6, size=(240, 2)), np.repeat(np.arange(12), 20)
    model = GGMTLRegressor(effects="smooth").fit(x, np.sin(x[:, 0]) + rng.normal(size=12)[tasks], tasks=tasks)
    grid = np.linspace(0.0, 6.0, 7)
    ax = plot.effect(model, "x0", grid)
    curves = [line for line in ax.lines if len(line.get_xdata()) == 7]
    assert len(curves) == 13
    np.testing.assert_allclose(curves[-1].get_ydata(), np.asarray(model.effect("x0", grid)["effect"]))
    np.testing.assert_allclose(curves[3].get_ydata(), np.asarray(model.effect("x0", grid, task=3)["effect"]))
    assert len(ax.collections) == 1
    assert ax.get_title() == "12 tasks"
    # Where a task has no rows, it has no line.
    x[tasks == 3, 0] = rng.uniform(0, 2, size=20)
    model = GGMTLRegressor(effects="smooth").fit(x, np.sin(x[:, 0]) + rng.normal(size=12)[tasks], tasks=tasks)
    places, values = plot.effect(model, "x0").lines[3].get_data()
    assert np.isfinite(values[places < 1.8]).all()
    assert np.isnan(values[places > 2.6]).all()
    with pytest.raises(InputError, match="fitted GGMTLRegressor"):
        plot.effect(HubRegressor().fit(x, x[:, 0], tasks=tasks), 0)
