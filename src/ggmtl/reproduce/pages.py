"""The Markdown pages: the paper's numbers next to ours, and the figures of graphs with their Markov clusters."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ggmtl import plot
from ggmtl.data.task_data import TaskData
from ggmtl.graph.task_graph import TaskGraph
from ggmtl.reproduce.cells import Cell, CellCache, load_problem
from ggmtl.reproduce.methods import DRAWN, LABELS, NEIGHBOURS
from ggmtl.reproduce.plan import PEER_METHODS, Number, Section, Table, method_printed, published_number

MEASURE_NAMES = {"rmse": "RMSE", "accuracy": "Accuracy", "recall": "Recall", "precision": "Precision", "f1": "F1"}
_DECIMALS = 3
NO_GRAPH = "no graph"
WITHOUT_GRAPH = ("independent", "pooled", "hub", *PEER_METHODS)


def write_table(table: Table, cache: CellCache) -> str:
    """The whole page of a table, as Markdown."""
    command = f"ggmtl reproduce {table.name}{' --quick' if table.quick else ''}"
    lines = [
        f"# {table.title}\n\n{table.introduction}\n",
        f"Made by `{command}`, with the data files below `GGMTL_DATA_HOME`; {_runs_sentence(table)} "
        f"Python {platform.python_version()}.\n",
        "“ours” is mean ± standard deviation over runs, “paper” what the paper prints. "
        "Best of ours in bold, among methods with all runs: the first three splits may be easier or harder than ten.",
    ]
    if table.quick:
        lines += ["", "**A quick run**: few runs, small grids, fewer methods. Not for conclusions."]
    for section in table.sections:
        lines += ["", f"## {section.title}", "", *_section(section, cache)]
    return "\n".join(lines) + "\n"


def _runs_sentence(table: Table) -> str:
    counts = {
        section.runs(problem, method)
        for section in table.sections
        for problem in section.problems
        for method in section.methods
    }
    low, high = min(counts), max(counts)
    return f"{high} runs." if low == high else f"{low}–{high} runs per entry, as the column “runs” says."


def _section(section: Section, cache: CellCache) -> list[str]:
    lines = [section.note, ""] if section.note else []
    for measure in section.measures:
        if len(section.measures) > 1:
            lines += [f"### {MEASURE_NAMES[measure]}", ""]
        lines += _block(section, measure, cache)
        lines.append("")
    return [*lines[:-1], "", _time_sentence(section, cache)]


def _block(section: Section, measure: str, cache: CellCache) -> list[str]:
    methods = [m for m in section.methods if measure == "rmse" or m not in WITHOUT_GRAPH]
    values = {(m, p): [cache.get(cell) for cell in section.cells(p, m)] for m in methods for p in section.problems}
    best = {
        p: _best([_mean(values[m, p], measure) for m in _whole(section, p, methods)], measure) for p in section.problems
    }
    header = ["method", *(name for problem in section.problems for name in (problem, "paper")), "runs"]
    rows = [header, ["---"] * len(header)]
    for method in methods:
        row = [LABELS[method]]
        for problem in section.problems:
            entry = format_entry(values[method, problem], measure)
            mean = _mean(values[method, problem], measure)
            row += [f"**{entry}**" if mean is not None and mean == best[problem] else entry]
            row += [_paper_entry(problem, method, measure)]
        runs = {str(section.runs(problem, method)) for problem in section.problems}
        rows.append([*row, "/".join(sorted(runs))])
    return ["| " + " | ".join(row) + " |" for row in rows]


def _whole(section: Section, problem: str, methods: Sequence[str]) -> list[str]:
    """The methods with all runs: means over fewer splits are of other splits."""
    runs = {method: section.runs(problem, method) for method in methods}
    return [method for method in methods if runs[method] == max(runs.values())]


def format_entry(results: Sequence[dict[str, Any] | None], measure: str) -> str:
    """Mean ± standard deviation of a measure over runs, or the reason why there is none."""
    known = [result for result in results if result is not None]
    values = _values(known, measure)
    reasons = list(dict.fromkeys(result["error"] for result in known if "error" in result))
    if not values:
        if reasons:
            return "none: " + _cell_text(reasons[0])
        return "not computed" if not known else NO_GRAPH
    text = f"{np.mean(values):.{_DECIMALS}f}"
    if len(values) > 1:
        text += f" ± {np.std(values, ddof=1):.{_DECIMALS}f}"
    if reasons:
        text += f" ({len(values)} of {len(results)} runs; the others: {_cell_text(reasons[0])})"
    return text


def _values(results: Sequence[dict[str, Any]], measure: str) -> list[float]:
    """The measure in every run that has it."""
    return [result[measure] for result in results if measure in result]


def _mean(results: Sequence[dict[str, Any] | None], measure: str) -> float | None:
    values = _values([result for result in results if result is not None], measure)
    return float(np.mean(values)) if values else None


def _best(means: Sequence[float | None], measure: str) -> float | None:
    known = [mean for mean in means if mean is not None]
    if not known:
        return None
    return min(known) if measure == "rmse" else max(known)


def _paper_entry(problem: str, method: str, measure: str) -> str:
    number = published_number(problem, method, measure)
    if number is None:
        return "NA" if method_printed(problem, method) else "–"
    return format_number(number)


def format_number(number: Number) -> str:
    """A printed number with its deviation."""
    if number is None:
        return "–"
    mean, deviation = number
    return f"{mean:g}" if deviation is None else f"{mean:.{_DECIMALS}f} ± {deviation:.{_DECIMALS}f}"


def _time_sentence(section: Section, cache: CellCache) -> str:
    """Mean processor seconds per fit, choice of hyper-parameters included, of every method."""
    parts = []
    for method in section.methods:
        results = [cache.get(cell) or {} for p in section.problems for cell in section.cells(p, method)]
        seconds = [result["seconds"] for result in results if "seconds" in result]
        if seconds:
            parts.append(f"{LABELS[method]} {np.mean(seconds):.1f}")
    return f"Mean processor seconds per fit, choice of hyper-parameters included: {', '.join(parts)}." if parts else ""


def _cell_text(text: str) -> str:
    """Text that does not break a Markdown table."""
    return text.replace("|", "/").replace("\n", " ")


TITLES = LABELS | {"ccmtl": f"{NEIGHBOURS} nearest neighbours"}
# CCMTL takes the neighbour graph of the independent models as it is, so its cells have that graph.
PROBLEMS = ("line", "line published", "tree", "star", "parkinson r=0.6", "school r=0.5", "tmy3 h=8 every=8")
QUICK_PROBLEMS = ("line", "tree", "star", "parkinson r=0.3", "school r=0.2", "tmy3 h=8 every=48")


def figure_cells(quick: bool) -> list[Cell]:
    """The cells whose graphs are drawn; the tables have most of them too."""
    problems = QUICK_PROBLEMS if quick else PROBLEMS
    return [Cell(p, 0, m, "honest", quick) for p in problems for m in DRAWN]


def make_figures(output: Path, cache: CellCache, quick: bool) -> str:
    """Draw every figure into `output`, and return the Markdown page that shows them."""
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


def figure_row(problem: str, method: str, graphs: dict[str, TaskGraph | None], reason: str = "") -> str:
    """One line of the table: edges, the share of the neighbours' edges that are gone, and the Markov clusters."""
    graph, neighbours = graphs[method], graphs["ccmtl"]
    if graph is None:
        return f"| {problem} | {TITLES[method]} | none: {reason} | | | | |"
    removed = ""
    if method != "ccmtl" and neighbours is not None and neighbours.n_edges:
        removed = f"{1.0 - graph.n_edges / neighbours.n_edges:.0%}"
    sizes = np.bincount(graph.clusters())
    clusters = f"{(sizes > 1).sum()} | {sizes.max()} | {(sizes == 1).sum()}"
    return f"| {problem} | {TITLES[method]} | {graph.n_edges} | {removed} | {clusters} |"


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


def _page(rows: list[str], pictures: list[tuple[str, str]], quick: bool) -> str:
    command = f"ggmtl reproduce figures{' --quick' if quick else ''}"
    lines = [
        f"# Graphs\n\nMade by `{command}`, one run (seed 0) each. “removed” is the share of edges that a graph has "
        f"fewer than the {NEIGHBOURS}-nearest-neighbour graph; clusters are Markov clusters of two tasks or more.\n",
        "| data | graph | edges | removed | clusters | largest | tasks alone |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += rows
    for problem, name in pictures:
        lines += ["", f"## {problem}", "", f"![{problem}]({name})"]
    return "\n".join(lines) + "\n"
