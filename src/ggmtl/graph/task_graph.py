"""The learned relations: a weighted, undirected graph over named tasks, the name of its shape, and its export to files.

Formats are GraphML, Cytoscape and CSV. Task names may be any text. They are escaped in every format, so that they are
never read as markup or as a formula. Files are written completely or not at all.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from ggmtl.errors import InputError, check_choice, require
from ggmtl.runtime.files import write_csv, write_whole

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
_GRAPHML_ATTRIBUTES = (("name", "node", "string"), ("weight", "edge", "double"))


@dataclass(frozen=True, eq=False)
class TaskGraph:
    """A weighted, undirected graph without loops or double edges.

    Parameters
    ----------
    edges : array of shape (m, 2)
        Positions of the two tasks of each edge; kept with the smaller first, in lexicographic order.
    weights : array of shape (m,)
        Not negative.
    task_names : array of shape (n,)
        Labels of the tasks.
    support : array of shape (m,), optional
        Share of the folds of a fit whose own graph has the edge, in [0, 1]; None where this is unknown.

    Examples
    --------
    >>> graph = TaskGraph([[1, 0], [1, 2]], [0.5, 1.0], ["a", "b", "c"])
    >>> graph.edges.tolist(), graph.degrees().tolist()
    ([[0, 1], [1, 2]], [0.5, 1.5, 1.0])
    """

    edges: np.ndarray
    weights: np.ndarray
    task_names: np.ndarray
    support: np.ndarray | None = None

    def __post_init__(self):
        names = np.asarray(self.task_names)
        edges = np.asarray(self.edges, dtype=np.int64).reshape(-1, 2)
        weights = np.asarray(self.weights, dtype=np.float64).reshape(-1)
        if len(weights) != len(edges):
            raise InputError(f"There are {len(edges)} edges but {len(weights)} weights.")
        if len(edges):
            if edges.min() < 0 or edges.max() >= len(names):
                raise InputError(f"Edges must join positions 0 … {len(names) - 1}. Got {edges.min()} … {edges.max()}.")
            if (edges[:, 0] == edges[:, 1]).any():
                raise InputError("An edge must join two different tasks.")
            if not np.isfinite(weights).all() or (weights < 0).any():
                raise InputError("Edge weights must be finite and not negative.")
        edges = np.sort(edges, axis=1)
        order = np.lexsort((edges[:, 1], edges[:, 0]))
        edges, weights = edges[order], weights[order]
        support = None if self.support is None else np.asarray(self.support, dtype=np.float64).reshape(-1)
        if support is not None:
            if len(support) != len(edges):
                raise InputError(f"There are {len(edges)} edges but {len(support)} values of support.")
            support = support[order]
            support.setflags(write=False)
        if len(edges) > 1 and (np.diff(edges, axis=0) == 0).all(axis=1).any():
            raise InputError("An edge is given twice.")
        for array in (edges, weights):
            array.setflags(write=False)
        object.__setattr__(self, "edges", edges)
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "task_names", names)
        object.__setattr__(self, "support", support)

    @classmethod
    def empty(cls, task_names: Sequence[Any] | np.ndarray) -> TaskGraph:
        """A graph without edges."""
        return cls(np.empty((0, 2), dtype=np.int64), np.empty(0), np.asarray(task_names))

    @classmethod
    def from_adjacency(cls, adjacency: Any, task_names: Sequence[Any] | np.ndarray | None = None) -> TaskGraph:
        """The graph of a symmetric matrix of weights; the diagonal is ignored, and zeros are no edges."""
        matrix: Any = sparse.coo_array(adjacency)
        if matrix.shape[0] != matrix.shape[1]:
            raise InputError(f"An adjacency matrix must be square. Got shape {matrix.shape} instead.")
        if abs(matrix - matrix.T).max() > 1e-10 * max(1.0, abs(matrix).max()):
            raise InputError("The adjacency matrix must be symmetric: the graph has no directions.")
        upper = (matrix.row < matrix.col) & (matrix.data != 0)
        edges = np.column_stack([matrix.row[upper], matrix.col[upper]])
        names = np.arange(matrix.shape[0]) if task_names is None else np.asarray(task_names)
        return cls(edges, matrix.data[upper], names)

    @property
    def n_tasks(self) -> int:
        """Number of tasks."""
        return len(self.task_names)

    @property
    def n_edges(self) -> int:
        """Number of edges."""
        return len(self.edges)

    def adjacency(self) -> sparse.csr_array:
        """Symmetric sparse matrix of weights, shape (n, n)."""
        i, j = self.edges.T
        shape = (self.n_tasks, self.n_tasks)
        half = sparse.coo_array((self.weights, (i, j)), shape=shape)
        return sparse.csr_array(half + half.T)

    def laplacian(self) -> sparse.csr_array:
        """L = diag(degrees) − adjacency, shape (n, n)."""
        return sparse.csr_array(sparse.diags_array(self.degrees()) - self.adjacency())

    def degrees(self) -> np.ndarray:
        """Sum of the weights at each task, shape (n,)."""
        # Without edges, bincount would return integers.
        return np.bincount(self.edges.ravel(), np.repeat(self.weights, 2), self.n_tasks).astype(np.float64)

    def components(self) -> np.ndarray:
        """Number of the connected component of each task, shape (n,); edges of weight zero do not connect."""
        return connected_components(self.threshold(0.0).adjacency(), directed=False)[1]

    def threshold(self, t: float) -> TaskGraph:
        """The graph of the edges heavier than `t`."""
        keep = self.weights > t
        support = None if self.support is None else self.support[keep]
        return TaskGraph(self.edges[keep], self.weights[keep], self.task_names, support)

    def normalized(self) -> TaskGraph:
        """Weights w_ij/√(max_i · max_j) in [0, 1], where max_i is the heaviest edge at task i."""
        weights = relative_to_heaviest(self.edges, self.weights, self.n_tasks)
        return TaskGraph(self.edges, weights, self.task_names, self.support)

    def clusters(self, method: str = "markov", **options: Any) -> np.ndarray:
        """Cluster number of each task, shape (n,); 0 is the largest cluster.

        `method` is ``"markov"`` (flow simulation, see :func:`ggmtl.inspection.markov_clusters`) or
        ``"components"``.
        """
        check_choice("method", method, ("markov", "components"))
        from ggmtl.graph.markov import by_size, markov_clusters

        return by_size(self.components()) if method == "components" else markov_clusters(self, **options)

    def plain_names(self) -> list[Any]:
        """Task names as plain Python values; dates as text."""
        names = self.task_names
        return [str(name) for name in names] if names.dtype.kind in "mM" else names.tolist()

    def to_networkx(self) -> Any:
        """A ``networkx.Graph``: nodes are the task names in their order, edges have the attribute ``weight``."""
        networkx = require("networkx", "plot", "to_networkx")
        names = self.plain_names()
        if len(set(names)) < len(names):
            repeated = next(name for name in names if names.count(name) > 1)
            raise InputError(f"networkx needs task names that differ. Got {repeated!r} more than once.")
        result = networkx.Graph()
        result.add_nodes_from(names)
        result.add_weighted_edges_from((names[i], names[j], weight) for i, j, weight in self._plain_edges())
        return result

    def to_graphml(self, path: str | Path) -> None:
        """Write a GraphML file (Gephi, yEd, Cytoscape, igraph read it).

        Nodes have the attribute ``name``, undirected edges the attribute ``weight``. Characters that XML cannot hold
        become U+FFFD.
        """
        root = ElementTree.Element("graphml", xmlns="http://graphml.graphdrawing.org/xmlns")
        for attribute, owner, kind in _GRAPHML_ATTRIBUTES:
            key = {"id": attribute, "for": owner, "attr.name": attribute, "attr.type": kind}
            ElementTree.SubElement(root, "key", key)
        body = ElementTree.SubElement(root, "graph", id="tasks", edgedefault="undirected")
        for position, name in enumerate(self.plain_names()):
            node = ElementTree.SubElement(body, "node", id=f"n{position}")
            ElementTree.SubElement(node, "data", key="name").text = _legal(name)
        for i, j, weight in self._plain_edges():
            edge = ElementTree.SubElement(body, "edge", source=f"n{i}", target=f"n{j}")
            ElementTree.SubElement(edge, "data", key="weight").text = repr(weight)
        ElementTree.indent(root)
        write_whole(path, ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))

    def to_cytoscape(self) -> dict[str, Any]:
        """Cytoscape.js elements: plain lists, dicts, text and numbers that ``json.dumps`` takes as they are."""
        nodes = [{"data": {"id": f"n{i}", "label": str(name)}} for i, name in enumerate(self.plain_names())]
        edges = [
            {"data": {"id": f"e{k}", "source": f"n{i}", "target": f"n{j}", "weight": weight}}
            for k, (i, j, weight) in enumerate(self._plain_edges())
        ]
        return {"elements": {"nodes": nodes, "edges": edges}}

    def to_csv(self, path: str | Path) -> None:
        """Write the edges as a table with the columns task_a, task_b and weight.

        Text that a spreadsheet would run as a formula gets a leading apostrophe; numbers stay numbers.
        """
        names = [_cell(name) for name in self.plain_names()]
        rows = ([names[i], names[j], repr(weight)] for i, j, weight in self._plain_edges())
        write_csv(path, [["task_a", "task_b", "weight"], *rows])

    def _plain_edges(self) -> list[tuple[int, int, float]]:
        """Positions and weight of every edge as plain Python values."""
        return [(i, j, weight) for (i, j), weight in zip(self.edges.tolist(), self.weights.tolist())]

    def __repr__(self) -> str:
        return f"TaskGraph({self.n_tasks} tasks, {self.n_edges} edges)"

    def _repr_html_(self, n_heaviest: int = 10) -> str:
        """For notebooks: counts and the heaviest edges; names are escaped."""
        names = [html.escape(_legal(name)) for name in self.plain_names()]
        n_components = len(np.unique(self.components()))
        head = (
            f"<p><b>TaskGraph</b>: {_count(self.n_tasks, 'task')}, {_count(self.n_edges, 'edge')}, "
            f"{_count(n_components, 'connected component')}</p>"
        )
        if self.n_edges == 0:
            return f"<div>{head}<p>no edges</p></div>"
        heaviest = np.argsort(-self.weights, kind="stable")[:n_heaviest]
        rows = "".join(
            f"<tr><td>{names[i]}</td><td>{names[j]}</td><td>{weight:.4g}</td></tr>"
            for (i, j), weight in zip(self.edges[heaviest], self.weights[heaviest])
        )
        caption = "the edges" if self.n_edges <= n_heaviest else f"the {n_heaviest} heaviest edges"
        return (
            f"<div>{head}<table><caption>{caption}</caption>"
            f"<thead><tr><th>task</th><th>task</th><th>weight</th></tr></thead><tbody>{rows}</tbody></table></div>"
        )


def relative_to_heaviest(edges: np.ndarray, weights: np.ndarray, n_tasks: int) -> np.ndarray:
    """Edge weights relative to the heaviest edges of both tasks, w_ij/√(max_i · max_j), in [0, 1], shape (m,).

    max_i is the weight of the heaviest edge at task i.
    """
    heaviest = np.zeros(n_tasks)
    np.maximum.at(heaviest, edges.ravel(), np.repeat(weights, 2))
    # Square roots before the product: the product of two tiny weights would underflow.
    root = np.sqrt(heaviest[edges])
    with np.errstate(invalid="ignore", divide="ignore"):
        scaled = weights / root[:, 0] / root[:, 1]
    return np.where(weights > 0, np.clip(np.nan_to_num(scaled), 0.0, 1.0), 0.0)


# A component with at least this share of all its possible edges is a dense group.
_DENSE = 0.6


def name_shape(graph: TaskGraph) -> str | None:
    """Name the shape of the linked tasks; tasks without an edge are ignored.

    Returns
    -------
    {"empty", "pair", "clique", "star", "line", "ring", "tree", "forest", "clusters"} or None
        ``"clusters"``: several components, each with most of its possible edges. None: no simple name.

    Examples
    --------
    >>> name_shape(TaskGraph([[0, 1], [1, 2], [2, 3]], [1, 1, 1], list("abcde")))
    'line'
    """
    graph = graph.threshold(0.0)
    if graph.n_edges == 0:
        return "empty"
    component = graph.components()
    linked = np.unique(graph.edges)
    sizes = np.bincount(component[linked])
    edges = np.bincount(component[graph.edges[:, 0]], minlength=len(sizes))[sizes > 0]
    sizes = sizes[sizes > 0]
    if len(sizes) == 1:
        return _name_connected(int(sizes[0]), int(edges[0]), np.bincount(graph.edges.ravel())[linked])
    if (edges >= _DENSE * sizes * (sizes - 1) / 2).all():
        return "clusters"
    return "forest" if (edges == sizes - 1).all() else None


def _name_connected(size: int, n_edges: int, neighbours: np.ndarray) -> str | None:
    """Name a connected graph of `size` tasks by its counts."""
    if size == 2:
        return "pair"
    if n_edges == size * (size - 1) // 2:
        return "clique"
    if n_edges == size - 1:
        if neighbours.max() <= 2:
            return "line"
        return "star" if neighbours.max() == size - 1 else "tree"
    return "ring" if n_edges == size and neighbours.max() == 2 else None


def _legal(name: Any) -> str:
    """Text without the control characters and lone surrogates that neither XML nor a page can hold."""
    return _NOT_XML.sub("\ufffd", str(name))


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def _cell(name: Any) -> Any:
    """Text that a spreadsheet would run as a formula, made harmless by an apostrophe."""
    return f"'{name}" if isinstance(name, str) and name.startswith(_FORMULA_STARTS) else name
