"""Statistics add up whatever the rows; graphs, scores and clusters keep their promises whatever the weights."""

import numpy as np
from harness import assert_finite, attempt, fuzz
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from inputs import ODD_NAMES, tables

from ggmtl import BilevelProblem, TaskGraph, TaskStatistics, datasets
from ggmtl.data.folds import deal_folds
from ggmtl.data.labels import join_labels, locate_tasks, numbers_in_text, read_labels
from ggmtl.data.task_data import TaskData
from ggmtl.inspection import fuzzy_graph_scores, markov_clusters, task_rmse

SUMS = ("gram", "moment", "target_square", "feature_sum", "target_sum", "count")


def assert_close(a, b, table):
    """Equal sums, to the accuracy that sums of products of the largest values have."""
    x, y = np.abs(table.X).max(axis=0), np.abs(table.y).max()
    scales = (np.outer(x, x), x * y, y * y, x, y, 1.0)
    for name, scale in zip(SUMS, scales):
        difference = np.abs(getattr(a, name) - getattr(b, name))
        assert (difference <= 1e-13 * len(table) * scale).all(), name


@fuzz(ci=60, long=3000, table=tables(), seed=st.integers(0, 2**32 - 1))
def test_statistics_do_not_depend_on_the_order_of_rows_and_add_up(table, seed):
    whole = attempt(TaskStatistics.from_arrays, table.X, table.y, table.tasks)
    if whole is None:
        return
    assert_finite(*(getattr(whole, name) for name in SUMS))
    order = np.random.default_rng(seed).permutation(len(table))
    assert_close(TaskStatistics.from_arrays(table.X[order], table.y[order], table.tasks[order]), whole, table)
    cut = seed % (len(table) + 1)
    if 0 < cut < len(table):
        parts = [
            attempt(TaskStatistics.from_arrays, table.X[rows], table.y[rows], table.tasks[rows])
            for rows in (slice(cut), slice(cut, None))
        ]
        if None not in parts:
            assert_close(parts[0] + parts[1], whole, table)
            back = (parts[0] + parts[1]) - parts[1]
            assert np.abs(back.count.sum() - cut) < 1e-9 * len(table)


@fuzz(ci=40, long=1500, table=tables(scales=False), k=st.integers(2, 7), seed=st.integers(0, 99))
def test_folds_are_balanced_and_follow_their_rows(table, k, seed):
    data = TaskData(table.X, table.y, table.tasks)
    folds = deal_folds(data, k, seed)
    assert ((folds >= 0) & (folds < k)).all()
    order = np.random.default_rng(seed).permutation(len(table))
    again = deal_folds(TaskData(table.X[order], table.y[order], table.tasks[order]), k, seed)
    rows, moved = (
        np.column_stack([table.X[by], table.y[by], data.task_index[by], fold])
        for by, fold in ((np.arange(len(table)), folds), (order, again))
    )
    # Equal rows may change places.
    np.testing.assert_array_equal(moved[np.lexsort(moved.T)], rows[np.lexsort(rows.T)])
    statistics = attempt(TaskStatistics.from_arrays, table.X, table.y, table.tasks, folds=k)
    if statistics is not None:
        np.testing.assert_allclose(sum(statistics.fold(j).count for j in range(k)), statistics.count)


WHOLE = st.one_of(st.integers(-3, 3), st.sampled_from([2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1]))
NUMBERS = st.one_of(WHOLE, st.sampled_from([2**63, 2**63 + 1, 2**64 - 1, 2**64, 0.5, 1.0, 2.0**53, 2.0**63]))


@fuzz(
    ci=60, long=3000, fitted=st.lists(NUMBERS, min_size=1, max_size=4), asked=st.lists(NUMBERS, min_size=1, max_size=4)
)
def test_number_labels_are_compared_exactly_or_refused(fitted, asked):
    tasks = attempt(read_labels, fitted, "tasks", len(fitted))
    labels = attempt(read_labels, asked, "tasks", len(asked))
    if tasks is None or labels is None:
        return
    assert tasks.tolist() == fitted
    known = np.unique(tasks)
    assert len(known) == len(set(fitted))
    position = attempt(locate_tasks, known, labels)
    if position is not None:
        names = known.tolist()
        assert [names[k] if k >= 0 else None for k in position] == [a if a in fitted else None for a in asked]
    both = attempt(join_labels, [tasks, labels])
    if both is not None:
        assert both.tolist() == fitted + asked


TEXT = st.one_of(st.text("01.-e ", max_size=4), st.sampled_from(["007", "7", "1e3", "1000", "true", "TRUE", "1" * 20]))


@fuzz(ci=60, long=2000, labels=st.lists(TEXT, min_size=1, max_size=4, unique=True))
def test_text_that_means_numbers_keeps_labels_apart(labels):
    read = numbers_in_text(np.array(labels))
    assert len(set(read.tolist())) == len(labels)


@st.composite
def graphs(draw, max_tasks=9, largest=1e3):
    n = draw(st.integers(1, max_tasks))
    pairs = np.column_stack(np.triu_indices(n, 1))
    chosen = draw(arrays(bool, len(pairs)))
    weight = st.one_of(st.sampled_from([0.0, 1.0, 0.5, 1e-300]), st.floats(0, largest))
    weights = draw(st.lists(weight, min_size=int(chosen.sum()), max_size=int(chosen.sum())))
    names = np.array(draw(st.permutations(ODD_NAMES))[:n])
    return TaskGraph(pairs[chosen], weights, names)


@fuzz(ci=60, long=2500, graph=graphs())
def test_a_graph_is_its_adjacency_matrix(graph):
    matrix = graph.adjacency().toarray()
    np.testing.assert_array_equal(matrix, matrix.T)
    np.testing.assert_allclose(matrix.sum(axis=1), graph.degrees())
    np.testing.assert_allclose(graph.laplacian().toarray().sum(axis=1), 0.0, atol=1e-9)
    assert len(np.unique(graph.components())) == graph.components().max() + 1
    normalized = graph.normalized()
    assert ((normalized.weights >= 0) & (normalized.weights <= 1)).all()
    positive = graph.threshold(0.0)
    back = TaskGraph.from_adjacency(matrix, graph.task_names)
    np.testing.assert_array_equal(back.edges, positive.edges)
    assert "<script" not in graph._repr_html_()


@fuzz(
    ci=60,
    long=1500,
    edges=st.lists(st.tuples(st.integers(-3, 6), st.integers(-3, 6)), max_size=5),
    weights=st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=5),
    n=st.integers(0, 5),
)
def test_a_wrong_graph_is_refused(edges, weights, n):
    graph = attempt(TaskGraph, edges, weights, np.arange(n))
    if graph is not None:
        assert graph.n_edges == len(weights)
        assert_finite(graph.weights, graph.degrees())


@fuzz(ci=60, long=2500, data=st.data())
def test_clusters_are_numbered_by_size_and_stay_inside_components(data):
    graph = data.draw(graphs())
    inflation = data.draw(st.floats(1.05, 20.0))
    clusters = attempt(markov_clusters, graph, inflation=inflation)
    if clusters is not None:
        sizes = np.bincount(clusters)
        assert (np.diff(sizes) <= 0).all()
        assert (sizes > 0).all()
        component = graph.components()
        for k in range(len(sizes)):
            assert len(np.unique(component[clusters == k])) == 1


@fuzz(ci=60, long=2500, data=st.data(), n=st.integers(1, 7))
def test_scores_are_between_zero_and_one(data, n):
    weights = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1))
    half = [data.draw(arrays(float, (n, n), elements=weights)) for _ in range(2)]
    true, learned = (np.triu(part, 1) + np.triu(part, 1).T for part in half)
    scores = fuzzy_graph_scores(true, learned)
    values = [scores.accuracy, scores.recall, scores.precision, scores.f1, scores.average_precision]
    # T(1, b) = (1 + b) − 1 has an absolute error of one rounding, which Σ T / Σ b shows relative to b.
    rounding = 1e-15 / max(1e-300, min(part[part > 0].min(initial=1.0) for part in (true, learned)))
    assert all(-1e-12 <= value <= 1 + 1e-12 + rounding for value in values)
    order = np.random.default_rng(n).permutation(n)
    again = fuzzy_graph_scores(true[np.ix_(order, order)], learned[np.ix_(order, order)])
    np.testing.assert_allclose([again.accuracy, again.f1], [scores.accuracy, scores.f1], atol=1e-12)
    if ((true == 0) | (true == 1)).all() and true.any():
        itself = fuzzy_graph_scores(true, true)
        assert (itself.accuracy, itself.f1) == (1.0, 1.0)


@fuzz(
    ci=30, long=1000, true=arrays(float, (3, 3)), learned=arrays(float, st.sampled_from([(3, 3), (2, 2), (3,), (3, 2)]))
)
def test_matrices_that_are_no_graphs_are_refused(true, learned):
    attempt(fuzzy_graph_scores, true, learned)


@fuzz(
    ci=40,
    long=1000,
    y=arrays(float, st.integers(0, 6)),
    shift=st.floats(),
    tasks=st.lists(st.integers(0, 2), max_size=6),
)
def test_errors_per_task(y, shift, tasks):
    with np.errstate(over="ignore", invalid="ignore"):
        predicted = y + shift
        value = attempt(task_rmse, y, predicted, tasks)
    if value is not None:
        assert value >= 0


@fuzz(
    ci=50,
    long=2000,
    table=tables(ordinary=True, max_tasks=4, max_features=3),
    exponents=st.tuples(st.integers(-10, 10), st.integers(-10, 10), st.integers(-10, 3)),
    penalty=st.sampled_from(["squared_l2", "l2", "l1"]),
    value=st.sampled_from([0.0, 1e-9, 0.3, 1.0]),
)
def test_the_hypergradient_is_finite_and_zero_coupling_has_none(table, exponents, penalty, value):
    coupling, hub, ridge = (10.0**k for k in exponents)
    statistics = TaskStatistics.from_arrays(table.X, table.y, table.tasks, folds=2)
    edges = np.column_stack(np.triu_indices(statistics.n_tasks, 1))
    parts = statistics.fold(0), statistics.fold(1)

    def evaluate(strength):
        problem = BilevelProblem(*parts, edges, strength, penalty=penalty, hub_strength=hub, ridge=ridge)
        return problem.value_and_gradient(np.full(len(edges), value))

    result = attempt(evaluate, coupling)
    if result is not None:
        assert_finite(*result)
        assert result[0] >= 0
    none = attempt(evaluate, 0.0)
    if none is not None:
        np.testing.assert_array_equal(none[1], 0.0)


SIZES = st.one_of(st.integers(-2, 8), st.sampled_from([2.0, "3", None]))


@fuzz(
    ci=40,
    long=1200,
    make=st.sampled_from(["make_line", "make_tree", "make_star", "make_clusters"]),
    sizes=st.fixed_dictionaries({"n_features": SIZES, "n_samples": SIZES, "n_test": st.integers(-1, 4)}),
    noise=st.sampled_from([None, 0.0, 2.0, -1.0, np.nan]),
    seed=st.integers(0, 2**32 - 1),
)
def test_generators_make_what_they_say_or_refuse(make, sizes, noise, seed):
    def build():
        return getattr(datasets, make)(**sizes, noise=noise, random_state=seed)

    data = attempt(build)
    if data is not None:
        assert_finite(data.X, data.y, data.coefficients)
        assert data.X.shape == (len(data.task_names) * sizes["n_samples"], sizes["n_features"])
        np.testing.assert_array_equal(build().X, data.X)
        if noise == 0.0:
            np.testing.assert_allclose(data.y, np.einsum("rd,rd->r", data.X, data.coefficients[data.task_index]))
