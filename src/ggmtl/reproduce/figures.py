"""The paper's figures: the neighbour graph and the learned ones, with their Markov clusters, and the edges removed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ggmtl import plot
from ggmtl.data.task_data import TaskData
from ggmtl.errors import require
from ggmtl.graph.task_graph import TaskGraph
from ggmtl.reproduce.cache import CACHE_NAME, Cell, CellCache, compute_missing
from ggmtl.reproduce.methods import DRAWN, LABELS, NEIGHBOURS, compute_cell
from ggmtl.reproduce.problems import load_problem

TITLES = LABELS | {"ccmtl": f"{NEIGHBOURS} nearest neighbours"}
# CCMTL takes the neighbour graph of the independent models as it is, so its cells have that graph.
PROBLEMS = ("line", "line published", "tree", "star", "parkinson r=0.6", "school r=0.5", "tmy3 h=8 every=8")
QUICK_PROBLEMS = ("line", "tree", "star", "parkinson r=0.3", "school r=0.2", "tmy3 h=8 every=48")


@dataclass(frozen=True)
class FigureRow:
    """One line of the table of graphs."""

    problem: str
    method: str
    n_edges: int | None
    removed: float | None
    n_clusters: int | None
    largest: int | None
    alone: int | None
    reason: str = ""


def figure_cells(quick: bool) -> list[Cell]:
    """The cells whose graphs are drawn; the tables have most of them too."""
    problems = QUICK_PROBLEMS if quick else PROBLEMS
    return [Cell(p, 0, m, "honest", quick) for p in problems for m in DRAWN]


def make_figures(output: Path, quick: bool, progress: Any = None, n_jobs: int | None = None) -> str:
    """Draw every figure into `output`, and return the Markdown page that shows them."""
    require("matplotlib", "plot", "Drawing the figures")
    cache = CellCache(output / CACHE_NAME)
    compute_missing(cache, figure_cells(quick), compute_cell, progress, n_jobs)
    rows, pictures = [], []
    for problem in QUICK_PROBLEMS if quick else PROBLEMS:
        train, _ = load_problem(problem, 0)
        results = {m: cache.get(Cell(problem, 0, m, "honest", quick)) or {} for m in DRAWN}
        graphs = {m: _graph(result, train) for m, result in results.items()}
        name = problem.split()[0] + ("_published" if "published" in problem else "") + ".png"
        _draw(output / name, problem, train, graphs)
        pictures.append((problem, name))
        rows += [figure_row(problem, m, graphs, str(results[m].get("error", ""))) for m in DRAWN]
    return _page(rows, pictures, quick)


def _graph(result: dict[str, Any], train: TaskData) -> TaskGraph | None:
    if "graph" not in result:
        return None
    edges, weights = result["graph"]["edges"], result["graph"]["weights"]
    return TaskGraph(np.array(edges, dtype=np.int64).reshape(-1, 2), np.array(weights), train.task_names)


def figure_row(problem: str, method: str, graphs: dict[str, TaskGraph | None], reason: str = "") -> FigureRow:
    """Edges, the share of the neighbours' edges that are gone, and the Markov clusters of a graph."""
    graph, neighbours = graphs[method], graphs["ccmtl"]
    if graph is None:
        return FigureRow(problem, method, None, None, None, None, None, reason)
    sizes = np.bincount(graph.clusters())
    removed = None if neighbours is None or not neighbours.n_edges else 1.0 - graph.n_edges / neighbours.n_edges
    return FigureRow(
        problem,
        method,
        graph.n_edges,
        removed,
        int((sizes > 1).sum()),
        int(sizes.max()),
        int((sizes == 1).sum()),
    )


def _draw(path: Path, problem: str, train: TaskData, graphs: dict[str, TaskGraph | None]) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    on_map = train.coordinates is not None
    figure = Figure(figsize=(8.0, 13.5) if on_map else (15.0, 5.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = np.ravel(figure.subplots(len(DRAWN) if on_map else 1, 1 if on_map else len(DRAWN)))
    for ax, method in zip(axes, DRAWN):
        graph = graphs[method]
        if graph is None:
            ax.set_axis_off()
            ax.set_title(f"{TITLES[method]}: no result", fontsize=10)
            continue
        if on_map:
            plot.map(graph, train.coordinates, ax=ax)
        else:
            plot.graph(graph, ax=ax)
        ax.set_title(f"{TITLES[method]}\n{ax.get_title()}", fontsize=10)
    figure.suptitle(problem, fontsize=12)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def _page(rows: list[FigureRow], pictures: list[tuple[str, str]], quick: bool) -> str:
    command = f"ggmtl reproduce figures{' --quick' if quick else ''}"
    lines = [
        "# Graphs",
        "",
        f"Made by `{command}`, one run (seed 0) each. “removed” is the share of edges that a graph has fewer than the "
        f"{NEIGHBOURS}-nearest-neighbour graph; clusters are Markov clusters of two tasks or more.",
        "",
        "| data | graph | edges | removed | clusters | largest | tasks alone |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        if row.n_edges is None:
            lines.append(f"| {row.problem} | {TITLES[row.method]} | none: {row.reason} | | | | |")
            continue
        removed = "" if row.removed is None or row.method == "ccmtl" else f"{row.removed:.0%}"
        lines.append(
            f"| {row.problem} | {TITLES[row.method]} | {row.n_edges} | {removed} | {row.n_clusters} | {row.largest} "
            f"| {row.alone} |"
        )
    for problem, name in pictures:
        lines += ["", f"## {problem}", "", f"![{problem}]({name})"]
    return "\n".join(lines) + "\n"
