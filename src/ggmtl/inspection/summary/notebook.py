"""The summary as a piece of HTML for notebooks: verdict, a small picture, errors. No script; names are untrusted."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from ggmtl.inspection.summary.outcomes import outcome_lines
from ggmtl.inspection.summary.phrases import count, one_line
from ggmtl.inspection.summary.words import (
    describe_blend,
    describe_gain,
    describe_graph,
    describe_meaning,
    error_text,
    level_title,
    share_text,
)

# More tasks or links than these make a picture that is slow and says nothing.
_MOST_TASKS, _MOST_EDGES = 300, 2000
_WIDTH, _HEIGHT, _MARGIN = 320.0, 220.0, 14.0
# Told apart by people with any kind of colour vision (Okabe and Ito). With more clusters, all have the first one:
# no colour stands for two of them.
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
_ALONE = "#999999"


def notebook_html(summary: dict[str, Any]) -> str:
    """Verdict, picture and errors of a summary."""
    rows = "" if summary["n_rows"] is None else f" · {summary['n_rows']:,.0f} rows"
    size = f"{count(summary['n_tasks'], 'task')}{rows} · {count(summary['n_features'], 'feature')}"
    words = [describe_meaning(summary), describe_gain(summary), describe_blend(summary)]
    words += [*outcome_lines(summary), f"Graph: {describe_graph(summary)}."]
    paragraphs = "".join(f'<p style="margin:4px 0">{_safe(text)}</p>' for text in words if text)
    return (
        '<div style="max-width:72em">'
        f'<p style="margin:4px 0;opacity:.7">{_safe(summary["method"])} · {size}</p>'
        f'<p style="margin:4px 0"><b>{_safe(summary["verdict"]["text"])}</b></p>{paragraphs}'
        '<div style="display:flex;flex-wrap:wrap;gap:24px;align-items:flex-start">'
        f"{_errors(summary)}{_picture(summary)}</div></div>"
    )


def _safe(text: Any) -> str:
    return escape(one_line(text))


def _errors(summary: dict[str, Any]) -> str:
    levels = [level for level in summary["path"]["levels"] if level.get("error") is not None]
    if not levels:
        return ""
    lines = []
    for level in levels:
        style = ' style="font-weight:bold"' if level["chosen"] else ""
        cells = (_safe(level_title(level)), error_text(level), share_text(level))
        lines.append(f"<tr{style}>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    error = summary["measure"]["short"]
    head = f"<tr><th>level</th><th>held-out {error} ± s.e.</th><th>share</th></tr>"
    return f"<table><thead>{head}</thead><tbody>{''.join(lines)}</tbody></table>"


def _picture(summary: dict[str, Any]) -> str:
    """Tasks where they lie, or by what their models are like, with their links; nothing where there are too many."""
    tasks, edges = summary["tasks"], summary["graph"]["edges"]
    if not 2 <= len(tasks) <= _MOST_TASKS or len(edges) > _MOST_EDGES:
        return ""
    points = _points(summary)
    lines = "".join(
        f'<line x1="{points[i, 0]:.1f}" y1="{points[i, 1]:.1f}" x2="{points[j, 0]:.1f}" y2="{points[j, 1]:.1f}" '
        f'stroke-opacity="{0.15 + 0.65 * weight * (support[0] if support else 1.0):.2f}"/>'
        for i, j, weight, *support in edges
    )
    sizes = np.bincount([task["cluster"] for task in tasks])
    circles = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{4.5 if len(tasks) <= 100 else 3}" fill="{_colour(task, sizes)}">'
        f"<title>{_safe(task['label'])}</title></circle>"
        for (x, y), task in zip(points.tolist(), tasks)
    )
    caption = "the tasks where they lie" if summary["places"] is not None else "near each other: tasks with like models"
    return (
        f'<figure style="margin:0"><svg role="img" aria-label="Tasks and links" width="{_WIDTH:.0f}" '
        f'height="{_HEIGHT:.0f}" viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}">'
        f'<g stroke="currentColor" stroke-width="1">{lines}</g>{circles}</svg>'
        f'<figcaption style="opacity:.7">Lines are links; {caption}.</figcaption></figure>'
    )


def _colour(task: dict[str, Any], sizes: np.ndarray) -> str:
    if sizes[task["cluster"]] < 2:
        return _ALONE
    return _COLOURS[task["cluster"] if (sizes > 1).sum() <= len(_COLOURS) else 0]


def _points(summary: dict[str, Any]) -> np.ndarray:
    """Points inside the frame, y downwards, shape (n, 2)."""
    n = summary["n_tasks"]
    angle = 2.0 * np.pi * np.arange(n) / n
    found = summary["places"] or (summary["map"] and summary["map"]["points"])
    points = np.array(found, dtype=float) if found else np.column_stack([np.cos(angle), np.sin(angle)])
    span = np.ptp(points, axis=0)
    share = np.where(span > 0, (points - points.min(axis=0)) / np.where(span > 0, span, 1.0), 0.5)
    share[:, 1] = 1.0 - share[:, 1]
    return _MARGIN + share * (np.array([_WIDTH, _HEIGHT]) - 2 * _MARGIN)
