"""Markov clusters against graphs solved by hand and a dense iteration without pruning."""

import warnings

import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components
from sklearn.exceptions import ConvergenceWarning

from ggmtl.errors import ParameterError
from ggmtl.graph import TaskGraph, markov_clusters
from ggmtl.graph.markov import by_size


def clique_edges(n_cliques, size):
    pairs = np.column_stack(np.triu_indices(size, 1))
    return np.vstack([pairs + size * k for k in range(n_cliques)])


def unweighted(edges, n):
    edges = np.reshape(edges, (-1, 2))
    return TaskGraph(edges, np.ones(len(edges)), np.arange(n))


def random_graph(seed, weighted=True):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 40))
    pairs = np.column_stack(np.triu_indices(n, 1))
    edges = pairs[rng.random(len(pairs)) < rng.uniform(0.03, 0.5)]
    weights = rng.uniform(0.01, 1, len(edges)) if weighted else np.ones(len(edges))
    return TaskGraph(edges, weights, np.arange(n))


def dense_markov_clusters(graph, inflation=2.0, expansion=2):
    """The textbook iteration on a full matrix: no pruning, no cap, no rounding."""
    weights = graph.adjacency().toarray()
    heaviest = weights.max(axis=0)
    flow = weights + np.diag(np.where(heaviest > 0, heaviest, 1.0))
    flow /= flow.sum(axis=0)
    for _ in range(300):
        new = np.linalg.matrix_power(flow, expansion) ** inflation
        new /= new.sum(axis=0)
        if np.abs(new - flow).max() < 1e-8:
            break
        flow = new
    return by_size(connected_components(new > 0.5 * new.max(axis=0), directed=False)[1])


def same_partition(a, b):
    return np.array_equal(a[:, None] == a, b[:, None] == b)


@pytest.mark.parametrize("inflation", [1.4, 2.0, 3.0])
@pytest.mark.parametrize("weighted", [True, False])
def test_sparse_pruned_iteration_matches_the_dense_one(inflation, weighted):
    for seed in range(25):
        graph = random_graph(seed, weighted)
        expected = dense_markov_clusters(graph, inflation)
        assert markov_clusters(graph, inflation=inflation).tolist() == expected.tolist()


def test_expansion_by_three_matches_the_dense_one():
    for seed in range(10):
        graph = random_graph(seed)
        assert markov_clusters(graph, expansion=3).tolist() == dense_markov_clusters(graph, expansion=3).tolist()


def test_two_cliques_with_a_bridge_are_two_clusters():
    graph = unweighted(np.vstack([clique_edges(2, 5), [[4, 5]]]), 10)
    assert markov_clusters(graph).tolist() == [0] * 5 + [1] * 5


def test_disconnected_cliques_are_the_clusters_exactly():
    assert markov_clusters(unweighted(clique_edges(7, 4), 28)).tolist() == np.repeat(np.arange(7), 4).tolist()


def test_a_line_of_two_is_one_cluster():
    assert markov_clusters(unweighted([[0, 1]], 2)).tolist() == [0, 0]


@pytest.mark.parametrize("n", [3, 10, 200])
def test_a_star_is_one_cluster_around_its_hub(n):
    assert markov_clusters(unweighted([[0, leaf] for leaf in range(1, n)], n)).tolist() == [0] * n


def test_isolated_tasks_are_their_own_clusters_and_come_last():
    assert markov_clusters(unweighted([[1, 3]], 5)).tolist() == [1, 0, 2, 0, 3]


def test_empty_graphs_and_a_single_task():
    assert markov_clusters(TaskGraph.empty([])).tolist() == []
    assert markov_clusters(TaskGraph.empty(["a"])).tolist() == [0]
    assert markov_clusters(TaskGraph.empty(["a", "b", "c"])).tolist() == [0, 1, 2]


def test_edges_of_weight_zero_do_not_join():
    assert markov_clusters(TaskGraph([[0, 1], [1, 2]], [0.0, 1.0], list("abc"))).tolist() == [1, 0, 0]


def test_zero_is_the_largest_cluster_and_ties_go_by_first_member():
    edges = np.vstack([[[0, 1]], clique_edges(1, 4) + 2, [[6, 7]]])
    assert markov_clusters(unweighted(edges, 8)).tolist() == [1, 1, 0, 0, 0, 0, 2, 2]


def test_larger_inflation_gives_no_fewer_clusters_on_a_chain_of_cliques():
    graph = unweighted(np.vstack([clique_edges(4, 5), [[4, 5], [9, 10], [14, 15]]]), 20)
    counts = [markov_clusters(graph, inflation=r).max() for r in (1.2, 2.0, 6.0)]
    assert counts == sorted(counts)


@pytest.mark.parametrize("scale", [1e-200, 3.7, 1e12])
def test_scaling_every_weight_changes_nothing(scale):
    for seed in range(10):
        graph = random_graph(seed)
        scaled = TaskGraph(graph.edges, scale * graph.weights, graph.task_names)
        assert markov_clusters(scaled).tolist() == markov_clusters(graph).tolist()


def symmetric_graphs():
    line = [[i, i + 1] for i in range(19)]
    grid = [[6 * r + c, 6 * r + c + 1] for r in range(6) for c in range(5)]
    grid += [[6 * r + c, 6 * r + c + 6] for r in range(5) for c in range(6)]
    return [unweighted(line, 20), unweighted([*line, [0, 19]], 20), unweighted(grid, 36)]


def test_relabelling_tasks_changes_nothing_even_where_symmetry_makes_ties():
    graphs = [*symmetric_graphs(), *(random_graph(seed, seed % 2 == 0) for seed in range(20))]
    rng = np.random.default_rng(0)
    for graph in graphs:
        order = rng.permutation(graph.n_tasks)
        relabelled = TaskGraph(order[graph.edges], graph.weights, graph.task_names)
        assert same_partition(markov_clusters(relabelled)[order], markov_clusters(graph))


def test_a_components_clusters_do_not_depend_on_the_other_components():
    first, second = random_graph(3), random_graph(8)
    n = first.n_tasks
    union = TaskGraph(
        np.vstack([first.edges, second.edges + n]),
        np.concatenate([first.weights, second.weights]),
        np.arange(n + second.n_tasks),
    )
    both = markov_clusters(union)
    assert same_partition(both[:n], markov_clusters(first))
    assert same_partition(both[n:], markov_clusters(second))


def test_the_cap_on_entries_keeps_equal_flows_together():
    graph = unweighted(np.vstack([clique_edges(2, 30), [[29, 30]]]), 60)
    assert markov_clusters(graph, max_entries=5).tolist() == [0] * 30 + [1] * 30


def test_ten_thousand_tasks_stay_sparse():
    graph = unweighted(clique_edges(1000, 10), 10_000)
    assert markov_clusters(graph).tolist() == np.repeat(np.arange(1000), 10).tolist()


def test_reaching_max_iter_warns_and_still_answers():
    graph = unweighted(np.vstack([clique_edges(2, 5), [[4, 5]]]), 10)
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        assert len(markov_clusters(graph, max_iter=1)) == 10
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        markov_clusters(graph)


@pytest.mark.parametrize(
    "options",
    [
        {"inflation": 1.0},
        {"expansion": 1},
        {"expansion": 2.5},
        {"max_iter": 0},
        {"prune": 1.0},
        {"tol": -1.0},
        {"max_entries": 0},
    ],
)
def test_parameters_out_of_range_are_named(options):
    with pytest.raises(ParameterError, match=next(iter(options))):
        markov_clusters(TaskGraph.empty(["a"]), **options)
