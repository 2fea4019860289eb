"""The task graph for other programs: networkx, GraphML, Cytoscape and spreadsheets.

Task names come from users' files and may hold anything; every format gets them in a form that it cannot
mistake for markup or for a formula. Files appear whole or not at all.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np

from ggmtl.errors import InputError, require
from ggmtl.runtime.files import write_csv, write_whole

if TYPE_CHECKING:
    from ggmtl.graph.task_graph import TaskGraph

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
_GRAPHML_ATTRIBUTES = (("name", "node", "string"), ("weight", "edge", "double"))


def plain_names(graph: TaskGraph) -> list[Any]:
    """Task names as plain Python values; dates as text."""
    names = graph.task_names
    if names.dtype.kind in "mM":
        return [str(name) for name in names]
    return names.tolist()


def to_networkx(graph: TaskGraph) -> Any:
    """A ``networkx.Graph``: nodes are the task names in their order, edges have the attribute ``weight``."""
    networkx = require("networkx", "plot", "to_networkx")
    names = plain_names(graph)
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise InputError(f"networkx needs task names that differ. Got {repeated!r} more than once.")
    result = networkx.Graph()
    result.add_nodes_from(names)
    result.add_weighted_edges_from((names[i], names[j], weight) for i, j, weight in _edges(graph))
    return result


def to_cytoscape(graph: TaskGraph) -> dict[str, Any]:
    """Cytoscape.js elements: plain lists, dicts, text and numbers that ``json.dumps`` takes as they are."""
    nodes = [{"data": {"id": f"n{i}", "label": str(name)}} for i, name in enumerate(plain_names(graph))]
    edges = [
        {"data": {"id": f"e{k}", "source": f"n{i}", "target": f"n{j}", "weight": weight}}
        for k, (i, j, weight) in enumerate(_edges(graph))
    ]
    return {"elements": {"nodes": nodes, "edges": edges}}


def to_graphml(graph: TaskGraph, path: str | Path) -> None:
    """Write GraphML: nodes with the attribute ``name``, undirected edges with the attribute ``weight``.

    Characters that XML cannot hold become U+FFFD.
    """
    root = ElementTree.Element("graphml", xmlns="http://graphml.graphdrawing.org/xmlns")
    for attribute, owner, kind in _GRAPHML_ATTRIBUTES:
        key = {"id": attribute, "for": owner, "attr.name": attribute, "attr.type": kind}
        ElementTree.SubElement(root, "key", key)
    body = ElementTree.SubElement(root, "graph", id="tasks", edgedefault="undirected")
    for position, name in enumerate(plain_names(graph)):
        node = ElementTree.SubElement(body, "node", id=f"n{position}")
        ElementTree.SubElement(node, "data", key="name").text = _legal(name)
    for i, j, weight in _edges(graph):
        edge = ElementTree.SubElement(body, "edge", source=f"n{i}", target=f"n{j}")
        ElementTree.SubElement(edge, "data", key="weight").text = repr(weight)
    ElementTree.indent(root)
    write_whole(path, ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))


def to_edge_list_csv(graph: TaskGraph, path: str | Path) -> None:
    """Write the columns task_a, task_b, weight, one row per edge.

    Text that a spreadsheet would run as a formula gets a leading apostrophe; numbers stay numbers.
    """
    names = [_cell(name) for name in plain_names(graph)]
    rows = ([names[i], names[j], repr(weight)] for i, j, weight in _edges(graph))
    write_csv(path, [["task_a", "task_b", "weight"], *rows])


def to_html(graph: TaskGraph, n_heaviest: int = 10) -> str:
    """A small page part: counts and the heaviest edges; names are escaped."""
    names = [html.escape(_legal(name)) for name in plain_names(graph)]
    n_components = len(np.unique(graph.components()))
    head = (
        f"<p><b>TaskGraph</b>: {_count(graph.n_tasks, 'task')}, {_count(graph.n_edges, 'edge')}, "
        f"{_count(n_components, 'connected component')}</p>"
    )
    if graph.n_edges == 0:
        return f"<div>{head}<p>no edges</p></div>"
    heaviest = np.argsort(-graph.weights, kind="stable")[:n_heaviest]
    rows = "".join(
        f"<tr><td>{names[i]}</td><td>{names[j]}</td><td>{weight:.4g}</td></tr>"
        for (i, j), weight in zip(graph.edges[heaviest], graph.weights[heaviest])
    )
    caption = "the edges" if graph.n_edges <= n_heaviest else f"the {n_heaviest} heaviest edges"
    return (
        f"<div>{head}<table><caption>{caption}</caption>"
        f"<thead><tr><th>task</th><th>task</th><th>weight</th></tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _legal(name: Any) -> str:
    """Text without the control characters and lone surrogates that neither XML nor a page can hold."""
    return _NOT_XML.sub("\ufffd", str(name))


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def _cell(name: Any) -> Any:
    """Take the power from text that a spreadsheet would run."""
    return f"'{name}" if isinstance(name, str) and name.startswith(_FORMULA_STARTS) else name


def _edges(graph: TaskGraph) -> list[tuple[int, int, float]]:
    i, j = np.asarray(graph.edges).T.tolist() if graph.n_edges else ([], [])
    return list(zip(i, j, graph.weights.tolist()))
