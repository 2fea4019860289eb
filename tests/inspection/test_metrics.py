"""Scores of graphs and errors of predictions, against values worked out by hand."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.metrics import average_precision_score

from ggmtl.errors import InputError
from ggmtl.graph import TaskGraph
from ggmtl.inspection import covariance_to_graph, fuzzy_graph_scores, per_task_table, pooled_rmse, task_rmse


def matrix(n, **weights):
    """Symmetric matrix from keywords such as ``e01=0.5``."""
    result = np.zeros((n, n))
    for edge, weight in weights.items():
        i, j = int(edge[1]), int(edge[2])
        result[i, j] = result[j, i] = weight
    return result


def random_graph(rng, n, density):
    values = np.triu(rng.uniform(size=(n, n)) * (rng.uniform(size=(n, n)) < density), 1)
    return values + values.T


def dense_scores(a, b):
    """The definitions on full matrices, spelt out entry by entry."""
    n, both, wrong = len(a), 0.0, 0.0
    for i in range(n):
        for j in range(n):
            conjunction = max(a[i, j] + b[i, j] - 1, 0)
            disjunction = min(a[i, j] + b[i, j], 1)
            both += conjunction
            wrong += max(disjunction + (1 - conjunction) - 1, 0)
    recall, precision = both / a.sum(), both / b.sum()
    return 1 - wrong / n**2, recall, precision, 2 * precision * recall / (precision + recall)


def test_scores_of_a_case_worked_by_hand():
    # T: 0.8 on edge 01, 0 elsewhere. XOR: 0.2 on 01, 1 on 12 (missed), 0.5 on 02 (invented).
    true, learned = matrix(3, e01=1.0, e12=1.0), matrix(3, e01=0.8, e02=0.5)
    scores = fuzzy_graph_scores(true, learned)
    assert scores.recall == pytest.approx(0.8 / 2)
    assert scores.precision == pytest.approx(0.8 / 1.3)
    assert scores.accuracy == pytest.approx(1 - 2 * (0.2 + 1.0 + 0.5) / 9)
    assert scores.f1 == pytest.approx(2 * 0.4 * (0.8 / 1.3) / (0.4 + 0.8 / 1.3))
    # Found at rank 1 (precision 1), then the other among all three pairs (precision 2/3).
    assert scores.average_precision == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)


@pytest.mark.parametrize("seed", range(5))
def test_scores_equal_the_definition_on_full_matrices(seed):
    rng = np.random.default_rng(seed)
    a, b = random_graph(rng, 9, 0.4), random_graph(rng, 9, 0.6)
    scores = fuzzy_graph_scores(a, b)
    got = scores.accuracy, scores.recall, scores.precision, scores.f1
    assert got == pytest.approx(dense_scores(a, b), abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_average_precision_equals_scikit_learn_with_ties(seed):
    rng = np.random.default_rng(seed)
    a, b = random_graph(rng, 12, 0.3), np.round(random_graph(rng, 12, 0.5), 1)
    upper = np.triu_indices(12, 1)
    expected = average_precision_score(a[upper] > 0, b[upper])
    assert fuzzy_graph_scores(a, b).average_precision == pytest.approx(expected, abs=1e-12)


def test_a_binary_graph_agrees_fully_with_itself():
    graph = matrix(4, e01=1.0, e23=1.0)
    scores = fuzzy_graph_scores(graph, graph)
    assert (scores.accuracy, scores.recall, scores.precision, scores.f1, scores.average_precision) == (1,) * 5


def test_xor_of_two_halves_is_one_so_equal_weighted_graphs_are_not_accurate():
    graph = matrix(2, e01=0.5)
    scores = fuzzy_graph_scores(graph, graph)
    assert scores.accuracy == 1 - 2 * 1.0 / 4
    assert (scores.recall, scores.precision) == (0.0, 0.0)


def test_xor_of_one_and_zero_is_one():
    scores = fuzzy_graph_scores(matrix(2, e01=1.0), matrix(2))
    assert scores.accuracy == 1 - 2 / 4


def test_exchanging_the_graphs_exchanges_recall_and_precision():
    rng = np.random.default_rng(0)
    a, b = random_graph(rng, 8, 0.5), random_graph(rng, 8, 0.5)
    there, back = fuzzy_graph_scores(a, b), fuzzy_graph_scores(b, a)
    assert there.accuracy == pytest.approx(back.accuracy)
    assert there.f1 == pytest.approx(back.f1)
    assert (there.recall, there.precision) == pytest.approx((back.precision, back.recall))


def test_an_empty_learned_graph_has_precision_zero_and_an_empty_truth_recall_zero():
    learned_empty = fuzzy_graph_scores(matrix(3, e01=1.0), TaskGraph.empty(range(3)).adjacency())
    assert (learned_empty.precision, learned_empty.recall, learned_empty.f1) == (0.0, 0.0, 0.0)
    assert learned_empty.average_precision == pytest.approx(1 / 3)
    true_empty = fuzzy_graph_scores(matrix(3), matrix(3, e01=1.0))
    assert (true_empty.precision, true_empty.recall, true_empty.average_precision) == (0.0, 0.0, 0.0)
    assert fuzzy_graph_scores(matrix(3), matrix(3)).accuracy == 1.0


def test_graphs_and_matrices_and_sparse_matrices_score_alike_and_the_diagonal_is_ignored():
    rng = np.random.default_rng(1)
    a, b = random_graph(rng, 7, 0.5), random_graph(rng, 7, 0.5)
    expected = fuzzy_graph_scores(a, b)
    assert fuzzy_graph_scores(TaskGraph.from_adjacency(a), TaskGraph.from_adjacency(b)) == expected
    assert fuzzy_graph_scores(sparse.csr_array(a), b) == expected
    assert fuzzy_graph_scores(a, b + 5 * np.eye(7)) == expected


def test_graphs_are_matched_by_task_name():
    true = TaskGraph([[0, 1]], [1.0], ["a", "b", "c"])
    learned = TaskGraph([[1, 2]], [1.0], ["c", "b", "a"])
    assert fuzzy_graph_scores(true, learned).f1 == 1.0


@pytest.mark.parametrize(
    ("true", "learned", "message"),
    [
        (matrix(3, e01=1.0), matrix(3, e01=1.5), r"learned must have weights in \[0, 1\]"),
        (matrix(3, e01=-0.1), matrix(3), r"true must have weights in \[0, 1\]"),
        (matrix(3), matrix(4), "same tasks"),
        (matrix(3), np.zeros((3, 2)), "square"),
        (matrix(3), np.triu(matrix(3, e01=1.0)), "symmetric"),
        (matrix(3), np.full((3, 3), np.nan), "finite"),
        (TaskGraph.empty(["a", "b"]), TaskGraph.empty(["a", "z"]), "'z'"),
        (TaskGraph.empty([0, 1]), TaskGraph.empty(["0", "1"]), "same task names"),
        (TaskGraph([[0, 1]], [3.0], [0, 1]), TaskGraph.empty([0, 1]), "normalized"),
    ],
)
def test_graphs_that_cannot_be_compared_are_refused(true, learned, message):
    with pytest.raises(InputError, match=message):
        fuzzy_graph_scores(true, learned)


def test_covariance_to_graph_drops_diagonal_and_negatives_and_divides_by_the_largest():
    covariance = [[9.0, 2.0, -3.0], [2.0, 9.0, 0.5], [-3.0, 0.5, 9.0]]
    graph = covariance_to_graph(covariance, ["x", "y", "z"])
    assert graph.edges.tolist() == [[0, 1], [1, 2]]
    assert graph.weights.tolist() == [1.0, 0.25]
    assert graph.task_names.tolist() == ["x", "y", "z"]
    assert covariance_to_graph(-np.ones((3, 3))).n_edges == 0
    with pytest.raises(InputError, match="task_names must have 3"):
        covariance_to_graph(covariance, ["x"])


def test_task_rmse_averages_over_tasks_and_pooled_rmse_over_rows():
    y, predicted = [0.0, 0.0, 0.0, 0.0], [3.0, 1.0, -1.0, 1.0]
    tasks = ["b", "a", "a", "a"]
    assert task_rmse(y, predicted, tasks) == pytest.approx((3 + 1) / 2)
    assert pooled_rmse(y, predicted) == pytest.approx(np.sqrt(12 / 4))
    table = per_task_table(y, predicted, tasks)
    assert table["task"].tolist() == ["a", "b"]
    assert table["rows"].tolist() == [3, 1]
    assert table["rmse"].tolist() == [1.0, 3.0]
    assert table["mae"].tolist() == [1.0, 3.0]
    assert table["bias"] == pytest.approx([1 / 3, 3.0])


def test_rmse_does_not_depend_on_row_order():
    rng = np.random.default_rng(0)
    y, predicted, tasks = rng.normal(size=50), rng.normal(size=50), rng.integers(0, 5, 50)
    order = rng.permutation(50)
    assert task_rmse(y[order], predicted[order], tasks[order]) == pytest.approx(task_rmse(y, predicted, tasks))


def test_predictions_of_another_length_or_with_nan_are_refused():
    with pytest.raises(InputError, match="same shape"):
        pooled_rmse([1.0, 2.0], [1.0])
    with pytest.raises(InputError, match="finite"):
        pooled_rmse([1.0, 2.0], [1.0, np.nan])
    with pytest.raises(InputError, match="tasks must have one label per row"):
        task_rmse([1.0, 2.0], [1.0, 2.0], ["a"])
