"""Output in the terminal. Names come from files, so they are printed as text, never as markup or control codes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from time import perf_counter
from typing import Any, Literal

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ggmtl.cli.comparison import OWN, Comparison, Standing
from ggmtl.cli.demo import Check
from ggmtl.inspection.summary.outcomes import outcome_lines
from ggmtl.inspection.summary.phrases import count, number, one_line
from ggmtl.inspection.summary.verdict import LEVEL_NAMES
from ggmtl.inspection.summary.words import (
    cut_short,
    describe_blend,
    describe_gain,
    describe_graph,
    describe_meaning,
    error_text,
    level_title,
    note_lines,
    share_text,
    sharing_lines,
    task_line,
)

_GOOD, _QUIET = "green", "dim"
# Seconds until the first line of progress in a log, and between lines.
FIRST_LINE, NEXT_LINE = 2.0, 5.0


def console(error: bool = False) -> Console:
    """A console on standard output, or on standard error."""
    return Console(stderr=error, highlight=False, soft_wrap=True)


def plain(text: Any, style: str = "") -> Text:
    """Text whose control characters are replaced, line by line."""
    return Text("\n".join(one_line(line) for line in str(text).split("\n")), style=style)


def say(text: Any, style: str = "") -> None:
    """Print a line."""
    console().print(plain(text, style))


def complain(text: Any) -> None:
    """Print what went wrong on standard error."""
    message = Text("Error: ", style="bold red")
    console(error=True).print(message.append_text(plain(text)))


@dataclass(frozen=True)
class Step:
    """What runs: `change` alters the text that is shown, `tell` writes a line that stays."""

    change: Callable[[str], Any]
    tell: Callable[[str], Any]


@contextmanager
def working(what: str) -> Iterator[Step]:
    """Show that a step is running and for how long.

    In a terminal the line is redrawn and removed at the end. Elsewhere a line is written every few seconds.
    """
    out = console(error=True)
    if not out.is_terminal:
        with _log_lines(what) as change:
            yield Step(change, lambda text: out.print(plain(text)))
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=out, transient=True) as progress:
        job = progress.add_task(one_line(what), total=None)
        yield Step(
            lambda text: progress.update(job, description=one_line(text)),
            lambda text: progress.console.print(plain(text, _QUIET)),
        )


@contextmanager
def _log_lines(what: str) -> Iterator[Callable[[str], None]]:
    start, done, words = perf_counter(), Event(), [what]

    def write() -> None:
        pause = FIRST_LINE
        while not done.wait(pause):
            console(error=True).print(plain(f"{words[0]} … {perf_counter() - start:.0f} s"))
            pause = NEXT_LINE

    writer = Thread(target=write, daemon=True)
    writer.start()
    try:
        yield lambda text: words.__setitem__(0, text)
    finally:
        done.set()
        writer.join()


def describe_standing(entry: Standing) -> str:
    """One line about a method that has finished."""
    title = _method_title(entry.name)
    if entry.failure is not None:
        return f"{title}: {entry.failure}"
    return f"{title}: error {number(entry.error)} ± {number(entry.standard_error)}, {entry.seconds:.1f} s"


def _method_title(name: str) -> str:
    """A method with what it is called elsewhere: 'Pooled (one model for all)'."""
    level = {"Pooled": "pooled", "Hub": "hub", "Independent": "independent"}.get(name)
    return f"{name} ({LEVEL_NAMES[level]})" if level else name


def show_summary(summary: dict[str, Any]) -> None:
    """Verdict, accuracy of every level, graph, what is shared."""
    out = console()
    if warning := cut_short(summary):
        out.print(plain(warning, "bold red"))
    tasks = count(summary["n_tasks"], "task")
    rows = "" if summary["n_rows"] is None else f" · {summary['n_rows']:,.0f} rows"
    out.print(Text(f"{tasks}{rows} · {count(summary['n_features'], 'feature')}", style=_QUIET))
    out.print(plain(summary["verdict"]["text"], "bold"))
    for line in filter(None, [describe_meaning(summary), describe_gain(summary), describe_blend(summary)]):
        out.print(plain(line))
    levels = [level for level in summary["path"]["levels"] if level.get("error") is not None]
    if levels:
        out.print()
        out.print(_level_table(levels, summary["measure"]["short"]))
    out.print()
    for line in outcome_lines(summary):
        out.print(plain(line))
    out.print(plain(f"Graph: {describe_graph(summary)}."))
    for line in [*sharing_lines(summary), *note_lines(summary), *task_line(summary)]:
        out.print(plain(line))


def _level_table(levels: list[dict[str, Any]], error: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=_QUIET)
    table.add_column("level")
    table.add_column(f"held-out {error} ± s.e.")
    table.add_column("share" if any(level.get("weight") for level in levels) else "")
    for level in levels:
        style = f"bold {_GOOD}" if level["chosen"] else ""
        table.add_row(
            plain(level_title(level)),
            error_text(level),
            share_text(level),
            style=style,
        )
    return table


def show_comparison(comparison: Comparison) -> None:
    """Methods, best first, and the verdict."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=_QUIET)
    columns: tuple[tuple[str, Literal["left", "right"]], ...] = (
        ("method", "left"),
        (comparison.measure.short, "right"),
        ("± s.e.", "right"),
        ("seconds", "right"),
        ("", "left"),
    )
    for name, justify in columns:
        table.add_column(name, justify=justify)
    for entry in comparison.standings:
        failed = entry.failure is not None
        table.add_row(
            _method_title(entry.name),
            "–" if failed else number(entry.error),
            "–" if failed else number(entry.standard_error),
            f"{entry.seconds:.1f}",
            plain(entry.failure, "red") if failed else "",
            style="bold" if entry.name == OWN else "",
        )
    out = console()
    out.print(table)
    out.print()
    out.print(plain(comparison.verdict, "bold"))
    if comparison.measure.short == "error" and any(entry.name == "Hub" for entry in comparison.standings):
        note = "Hub shrinks the slopes of all features by the same amount; GGMTL estimates the amount for each feature."
        out.print(plain(note, _QUIET))
    if comparison.n_unscored:
        out.print(plain(f"Not scored: {count(comparison.n_unscored, 'row')} of tasks with a single fold.", _QUIET))


def show_check(check: Check) -> None:
    """Errors of several methods on the same rows, this package's in bold."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, error in check.errors.items():
        table.add_row(plain(name), f"{error:.3f}", style="bold" if name.startswith(OWN) else "")
    out = console()
    out.print()
    out.print(plain(f"Error on {check.rows}:"))
    out.print(table)
