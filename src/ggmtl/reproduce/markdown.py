"""Cells → Markdown: the paper's numbers beside ours, mean ± standard deviation over runs."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

import numpy as np

from ggmtl.reproduce.cache import CellCache
from ggmtl.reproduce.methods import LABELS
from ggmtl.reproduce.plan import PEER_METHODS, Section, Table
from ggmtl.reproduce.published import Number, method_printed, published_number

MEASURE_NAMES = {
    "rmse": "RMSE",
    "accuracy": "Accuracy",
    "recall": "Recall",
    "precision": "Precision",
    "f1": "F1",
}
_DECIMALS = 3
NO_GRAPH = "no graph"
WITHOUT_GRAPH = ("independent", "pooled", "hub", *PEER_METHODS)


def write_table(table: Table, cache: CellCache, quick: bool) -> str:
    """The whole page of a table, as Markdown."""
    command = f"ggmtl reproduce {table.name}{' --quick' if quick else ''}"
    lines = [f"# {table.title}", "", table.introduction, "", f"Made by `{command}`, with the data files below "]
    lines[-1] += f"`GGMTL_DATA_HOME`; {_runs_sentence(table, quick)} Python {platform.python_version()}."
    lines += [
        "",
        "“ours” is mean ± standard deviation over runs, “paper” what the paper prints. Best of ours in bold, ",
    ]
    lines[-1] += "among methods with all runs: the first three splits may be easier or harder than ten."
    if quick:
        lines += ["", "**A quick run**: few runs, small grids, fewer methods. Not for conclusions."]
    for section in table.sections:
        lines += ["", f"## {section.title}", "", *_section(section, cache, quick)]
    return "\n".join(lines) + "\n"


def _runs_sentence(table: Table, quick: bool) -> str:
    counts = {
        section.runs(problem, method, quick)
        for section in table.sections
        for problem in section.problems
        for method in section.methods
    }
    low, high = min(counts), max(counts)
    return f"{high} runs." if low == high else f"{low}–{high} runs per entry, as the column “runs” says."


def _section(section: Section, cache: CellCache, quick: bool) -> list[str]:
    lines = [section.note, ""] if section.note else []
    for measure in section.measures:
        if len(section.measures) > 1:
            lines += [f"### {MEASURE_NAMES[measure]}", ""]
        lines += _block(section, measure, cache, quick)
        lines.append("")
    return [*lines[:-1], "", _time_sentence(section, cache, quick)]


def _block(section: Section, measure: str, cache: CellCache, quick: bool) -> list[str]:
    methods = [m for m in section.methods if measure == "rmse" or m not in WITHOUT_GRAPH]
    values = {
        (m, p): [cache.get(cell) for cell in section.cells(p, m, quick)] for m in methods for p in section.problems
    }
    best = {
        p: _best([_mean(values[m, p], measure) for m in _whole(section, p, methods, quick)], measure)
        for p in section.problems
    }
    header = ["method"]
    for problem in section.problems:
        header += [problem, "paper"]
    rows = [[*header, "runs"], ["---"] * (len(header) + 1)]
    for method in methods:
        row = [LABELS[method]]
        for problem in section.problems:
            entry = format_entry(values[method, problem], measure)
            mean = _mean(values[method, problem], measure)
            row += [f"**{entry}**" if mean is not None and mean == best[problem] else entry]
            row += [_paper_entry(problem, method, measure)]
        runs = {str(section.runs(problem, method, quick)) for problem in section.problems}
        rows.append([*row, "/".join(sorted(runs))])
    return ["| " + " | ".join(row) + " |" for row in rows]


def _whole(section: Section, problem: str, methods: Sequence[str], quick: bool) -> list[str]:
    """The methods with all runs: means over fewer splits are of other splits."""
    runs = {method: section.runs(problem, method, quick) for method in methods}
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


def _time_sentence(section: Section, cache: CellCache, quick: bool) -> str:
    """Mean processor seconds per fit, choice of hyper-parameters included, of every method."""
    parts = []
    for method in section.methods:
        results = [cache.get(cell) or {} for p in section.problems for cell in section.cells(p, method, quick)]
        seconds = [result["seconds"] for result in results if "seconds" in result]
        if seconds:
            parts.append(f"{LABELS[method]} {np.mean(seconds):.1f}")
    return f"Mean processor seconds per fit, choice of hyper-parameters included: {', '.join(parts)}." if parts else ""


def _cell_text(text: str) -> str:
    """Text that does not break a Markdown table."""
    return text.replace("|", "/").replace("\n", " ")
