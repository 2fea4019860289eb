"""Output in the terminal. Names come from files, so they are printed as text, never as markup or control codes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from time import perf_counter
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ggmtl.cli.comparison import OWN, Comparison, Standing
from ggmtl.cli.demo import Check
from ggmtl.inspection.levels import title_of
from ggmtl.inspection.summary.collect import summarize
from ggmtl.inspection.summary.phrases import count, number, one_line
from ggmtl.inspection.summary.words import (
    cut_short,
    details,
    findings,
    level_cells,
    measured_levels,
    sizes,
    weighing_note,
)
from ggmtl.report.page import write_report

_QUIET = "dim"
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


def note(*texts: str) -> None:
    """Print what a reader should know, one line each."""
    for text in texts:
        say(f"Note: {text}", _QUIET)


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Print the warnings of a block once it is done, each once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    note(*dict.fromkeys(str(entry.message) for entry in caught if issubclass(entry.category, UserWarning)))


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
def fitting(frame: pa.Table, task: str) -> Iterator[None]:
    """Show that a fit is in progress, and its warnings once it is done."""
    with warnings_as_notes(), working(f"Fitting {count(len(frame[task].unique()), 'task')}"):
        yield


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
    return f"{name} ({title_of(level)})" if level else name


def show_model(model: Any) -> None:
    """What a fitted model has found."""
    show_summary(summarize(model))


def write_page(model: Any, output: Path, title: str | None) -> None:
    """Write the page about a model, and say where it is."""
    with working("Writing the report"):
        write_report(model, output, title)
    say(f"Report: {output}", _QUIET)


def show_summary(summary: dict[str, Any]) -> None:
    """Verdict, accuracy of every level, graph, what is shared."""
    out = console()
    if warning := cut_short(summary):
        out.print(plain(warning, "bold red"))
    out.print(Text(" · ".join(sizes(summary)), style=_QUIET))
    out.print(plain(summary["verdict"]["text"], "bold"))
    for line in details(summary):
        out.print(plain(line))
    levels = measured_levels(summary)
    if levels:
        share = "share" if any(level.get("weight") for level in levels) else ""
        table = _table("level", f"held-out {summary['measure']['short']} ± s.e.", share)
        for level in levels:
            table.add_row(*map(plain, level_cells(level)), style="bold green" if level["chosen"] else "")
        out.print()
        out.print(table)
        if note := weighing_note(summary):
            out.print(plain(note, _QUIET))
    out.print()
    for line in findings(summary):
        out.print(plain(line))


def _table(*columns: str, right: Collection[str] = (), header: bool = True) -> Table:
    """A table without lines, whose columns named in `right` are set to the right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=_QUIET, show_header=header)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left")
    return table


def show_comparison(comparison: Comparison) -> None:
    """Methods, best first, and the verdict."""
    measure = comparison.measure.short
    table = _table("method", measure, "± s.e.", "seconds", "", right=(measure, "± s.e.", "seconds"))
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
    if measure == "error" and any(entry.name == "Hub" for entry in comparison.standings):
        note = "Hub shrinks the slopes of all features by the same amount; GGMTL estimates the amount for each feature."
        out.print(plain(note, _QUIET))
    if comparison.n_unscored:
        out.print(plain(f"Not scored: {count(comparison.n_unscored, 'row')} of tasks with a single fold.", _QUIET))


def show_check(check: Check) -> None:
    """Errors of several methods on the same rows, this package's in bold."""
    table = _table("method", "error", right=("error",), header=False)
    for name, error in check.errors.items():
        table.add_row(plain(name), f"{error:.3f}", style="bold" if name.startswith(OWN) else "")
    out = console()
    out.print()
    out.print(plain(f"Error on {check.rows}:"))
    out.print(table)
