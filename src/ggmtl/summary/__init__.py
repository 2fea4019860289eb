"""A fitted model as plain data, and as words: verdict, tasks, graph, path, what is shared."""

from ggmtl.summary.collect import summarize
from ggmtl.summary.phrases import count, number, one_line, percent
from ggmtl.summary.words import (
    describe,
    describe_gain,
    describe_graph,
    describe_meaning,
    error_text,
    level_title,
    note_lines,
    sharing_lines,
    task_line,
)

__all__ = [
    "count",
    "describe",
    "describe_gain",
    "describe_graph",
    "describe_meaning",
    "error_text",
    "level_title",
    "note_lines",
    "number",
    "one_line",
    "percent",
    "sharing_lines",
    "summarize",
    "task_line",
]
