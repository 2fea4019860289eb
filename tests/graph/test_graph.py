"""The task graph: its matrices, its refusals, and exports that hostile names cannot break."""

import csv
import json
import os
from xml.etree import ElementTree

import numpy as np
import pytest
from scipy import sparse

from ggmtl.errors import InputError, ParameterError
from ggmtl.graph import TaskGraph
from ggmtl.runtime.files import write_whole

HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "=cmd()",
    "a\x00b\x1fc",
    "quote \" & '",
    "naïve ☃",
    "+1",
    "@SUM(A1)",
    "\tx",
    "-2",
]


@pytest.fixture
def graph():
    """A triangle and a pair, with a task alone."""
    return TaskGraph([[2, 1], [0, 1], [0, 2], [4, 3]], [2.0, 1.0, 4.0, 0.25], list("abcdef"))


@pytest.fixture
def hostile():
    n = len(HOSTILE)
    return TaskGraph([[i, i + 1] for i in range(n - 1)], np.linspace(0.1, 1, n - 1), HOSTILE)


def test_edges_are_kept_in_lexicographic_order_with_their_weights(graph):
    assert graph.edges.tolist() == [[0, 1], [0, 2], [1, 2], [3, 4]]
    assert graph.weights.tolist() == [1.0, 4.0, 2.0, 0.25]
    assert repr(graph) == "TaskGraph(6 tasks, 4 edges)"


def test_edges_and_weights_cannot_be_changed_in_place(graph):
    with pytest.raises(ValueError, match="read-only"):
        graph.weights[0] = 3.0


def test_laplacian_is_the_sum_over_edges_of_squared_differences(graph):
    x = np.random.default_rng(0).normal(size=6)
    expected = sum(w * (x[i] - x[j]) ** 2 for (i, j), w in zip(graph.edges, graph.weights))
    assert x @ graph.laplacian() @ x == pytest.approx(expected)
    assert np.allclose(graph.laplacian() @ np.ones(6), 0)


def test_degrees_are_the_row_sums_of_the_adjacency(graph):
    assert np.allclose(graph.degrees(), graph.adjacency().sum(axis=1))
    assert graph.degrees()[5] == 0


def test_adjacency_is_symmetric_and_reads_back(graph):
    again = TaskGraph.from_adjacency(graph.adjacency(), graph.task_names)
    assert again.edges.tolist() == graph.edges.tolist()
    assert again.weights.tolist() == graph.weights.tolist()


def test_components_and_edges_of_weight_zero(graph):
    component = graph.components()
    assert len(set(component[:3])) == 1
    assert component[3] == component[4]
    assert len(set(component)) == 3
    assert len(set(TaskGraph([[0, 1]], [0.0], ["a", "b"]).components())) == 2


def test_clusters_by_component_have_the_largest_first():
    graph = TaskGraph([[2, 3], [3, 4]], [1.0, 1.0], list("abcde"))
    assert graph.clusters("components").tolist() == [1, 2, 0, 0, 0]
    with pytest.raises(ParameterError, match="method must be"):
        graph.clusters("louvain")


def test_threshold_keeps_heavier_edges_and_every_task(graph):
    kept = graph.threshold(1.0)
    assert kept.weights.tolist() == [4.0, 2.0]
    assert kept.n_tasks == 6


@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e300])
def test_normalized_weights_are_in_the_unit_interval_whatever_the_scale(graph, scale):
    scaled = TaskGraph(graph.edges, scale * graph.weights, graph.task_names).normalized()
    assert np.allclose(scaled.weights, [1 / np.sqrt(4 * 2), 1.0, 2 / np.sqrt(4 * 2), 1.0])


def test_normalized_of_a_graph_of_zero_weights_is_zero():
    assert TaskGraph([[0, 1]], [0.0], ["a", "b"]).normalized().weights.tolist() == [0.0]


@pytest.mark.parametrize(
    ("edges", "weights", "message"),
    [
        ([[0, 0]], [1.0], "different"),
        ([[0, 3]], [1.0], "positions"),
        ([[0, 1], [1, 0]], [1.0, 1.0], "twice"),
        ([[0, 1]], [-1.0], "negative"),
        ([[0, 1]], [np.nan], "finite"),
        ([[0, 1]], [1.0, 2.0], "weights"),
    ],
)
def test_malformed_edges_are_refused(edges, weights, message):
    with pytest.raises(InputError, match=message):
        TaskGraph(edges, weights, list("abc"))


def test_from_adjacency_refuses_directions_and_rectangles():
    with pytest.raises(InputError, match="symmetric"):
        TaskGraph.from_adjacency([[0, 1.0], [0.5, 0]])
    with pytest.raises(InputError, match="square"):
        TaskGraph.from_adjacency(np.zeros((2, 3)))


def test_from_adjacency_ignores_the_diagonal_and_takes_sparse_matrices():
    matrix = sparse.csr_array(np.array([[5.0, 0.5, 0], [0.5, 5, 0], [0, 0, 5]]))
    assert TaskGraph.from_adjacency(matrix).edges.tolist() == [[0, 1]]


def test_networkx_has_the_names_and_weights(graph):
    pytest.importorskip("networkx")
    converted = graph.to_networkx()
    assert list(converted) == list("abcdef")
    assert converted["a"]["c"]["weight"] == 4.0
    assert converted.number_of_edges() == 4
    with pytest.raises(InputError, match="more than once"):
        TaskGraph.empty(["a", "a"]).to_networkx()


def test_networkx_reads_the_graphml(hostile, tmp_path):
    networkx = pytest.importorskip("networkx")
    hostile.to_graphml(tmp_path / "g.graphml")
    read = networkx.read_graphml(tmp_path / "g.graphml")
    names = [read.nodes[f"n{i}"]["name"] for i in range(len(HOSTILE))]
    assert not read.is_directed()
    assert names == [name.replace("\x00", "\ufffd").replace("\x1f", "\ufffd") for name in HOSTILE]
    for (i, j), weight in zip(hostile.edges, hostile.weights):
        assert read[f"n{i}"][f"n{j}"]["weight"] == weight


def test_graphml_is_plain_xml_without_markup_from_names(hostile, tmp_path):
    hostile.to_graphml(tmp_path / "g.graphml")
    root = ElementTree.parse(tmp_path / "g.graphml").getroot()
    assert {element.tag.rpartition("}")[2] for element in root.iter()} == {
        "graphml",
        "key",
        "graph",
        "node",
        "edge",
        "data",
    }


def test_a_failed_write_leaves_the_old_file_and_nothing_else(graph, tmp_path, monkeypatch):
    target = tmp_path / "g.graphml"
    target.write_text("old")

    def fail(*args):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        graph.to_graphml(target)
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["g.graphml"]


def test_a_write_replaces_the_file(tmp_path):
    write_whole(tmp_path / "f", b"one")
    write_whole(tmp_path / "f", b"two")
    assert (tmp_path / "f").read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["f"]


def test_cytoscape_elements_survive_json_and_refer_to_nodes(hostile):
    elements = json.loads(json.dumps(hostile.to_cytoscape()))["elements"]
    ids = {node["data"]["id"] for node in elements["nodes"]}
    assert [node["data"]["label"] for node in elements["nodes"]] == HOSTILE
    assert all(edge["data"]["source"] in ids and edge["data"]["target"] in ids for edge in elements["edges"])
    assert [edge["data"]["weight"] for edge in elements["edges"]] == hostile.weights.tolist()


def test_no_cell_of_the_csv_is_a_formula(hostile, tmp_path):
    hostile.to_csv(tmp_path / "e.csv")
    with open(tmp_path / "e.csv", newline="", encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    assert head == ["task_a", "task_b", "weight"]
    assert not any(cell[:1] in tuple("=+-@\t") for row in rows for cell in row)
    plain = [cell.removeprefix("'") for row in rows for cell in row[:2]]
    assert plain == [HOSTILE[i] for i in hostile.edges.ravel()]
    assert [float(row[2]) for row in rows] == hostile.weights.tolist()


def test_numbers_as_names_stay_numbers_in_the_csv(tmp_path):
    TaskGraph([[0, 1]], [0.5], np.array([-3, 7])).to_csv(tmp_path / "e.csv")
    assert (tmp_path / "e.csv").read_text() == "task_a,task_b,weight\n-3,7,0.5\n"


def test_html_escapes_names_and_shows_ten_edges(hostile):
    page = TaskGraph.empty(HOSTILE)._repr_html_()
    assert "no edges" in page
    page = hostile._repr_html_()
    assert "<img" not in page
    assert "&lt;img" in page
    assert "9 tasks, 8 edges, 1 connected component<" in page
    many = TaskGraph([[0, i] for i in range(1, 31)], np.arange(1.0, 31), np.arange(31))._repr_html_()
    assert many.count("<tr>") == 11
    assert "<td>30</td><td>30</td>" in many
