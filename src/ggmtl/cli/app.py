"""The commands."""

from __future__ import annotations

import csv
import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

import ggmtl
from ggmtl.cli.options import (
    Categorical,
    Decimal,
    DropMissing,
    Effects,
    Exclude,
    Exposure,
    Features,
    Groups,
    Input,
    Known,
    Later,
    Loss,
    Mark,
    Methods,
    Missing,
    Model,
    Outcome,
    Seed,
    Target,
    Task,
    Unseen,
    Weights,
    Which,
)
from ggmtl.errors import GGMTLError, InputError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from ggmtl.cli import comparison, csv_files, table_files, terminal, workflow
    from ggmtl.cli import demo as demos
    from ggmtl.data.task_features import TaskFeatures
    from ggmtl.inspection.summary import collect, phrases
    from ggmtl.report import page
else:
    comparison, csv_files, demos = Later("ggmtl.cli.comparison"), Later("ggmtl.cli.csv_files"), Later("ggmtl.cli.demo")
    table_files, terminal, workflow = map(Later, ("ggmtl.cli.table_files", "ggmtl.cli.terminal", "ggmtl.cli.workflow"))
    collect, phrases = Later("ggmtl.inspection.summary.collect"), Later("ggmtl.inspection.summary.phrases")
    page = Later("ggmtl.report.page")

# As shells do it: 128 and the number of the signal.
_INTERRUPTED = 130

app = typer.Typer(
    name="ggmtl",
    help="Regression for many related tasks: every task's model, and which tasks are alike.",
    epilog="Exit codes: 0 done, 1 data or model refused, 2 the command was not understood, 130 stopped by Ctrl-C.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def friendly(command: Callable[..., None]) -> Callable[..., None]:
    """Turn errors that have a message for the user into that message and exit code 1."""

    @functools.wraps(command)
    def wrapped(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
        except GGMTLError as error:
            terminal.complain(error)
            raise typer.Exit(1) from None
        except OSError as error:
            terminal.complain(f"{error.filename or 'A file'}: {error.strerror or error}.")
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            terminal.complain("Stopped by Ctrl-C.")
            raise typer.Exit(_INTERRUPTED) from None

    return wrapped


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Regression for many related tasks: every task's model, and which tasks are alike."""
    if version:
        terminal.say(f"ggmtl {ggmtl.__version__}")
        raise typer.Exit()


@app.command()
@friendly
def demo(
    what: Annotated[Which, typer.Argument(help="Which demonstration.")] = Which.stations,
    output: Annotated[Path, typer.Option(help="Page to write.")] = Path("report.html"),
) -> None:
    """Fit data that come with the package, check the fit on rows set aside, and write a report.

    stations: a year of temperatures at 1,020 places from eight days of each. countries: life expectancy since 1952.
    schools: exam scores. The last two need the extra "data".
    """
    table_files.check_page("--output", output)
    shown = demos.load_demo(what)
    terminal.say(shown.question)
    with _fitting(shown.frame, shown.task):
        model = ggmtl.GGMTLRegressor(task=shown.task, candidates=shown.candidates).fit(shown.frame, shown.data.y)
    terminal.show_summary(collect.summarize(model))
    _exit_if_interrupted(model)
    with terminal.working("Comparing"):
        checks = shown.checks(model)
    for check in checks:
        terminal.show_check(check)
    _write_report(model, output, shown.title)


@app.command()
@friendly
def fit(
    data: Input,
    task: Task,
    target: Target,
    features: Features = None,
    exclude: Exclude = None,
    categorical: Categorical = None,
    drop_missing: DropMissing = False,
    na_values: Missing = None,
    decimal: Mark = None,
    groups: Groups = None,
    weights: Weights = None,
    seed: Seed = None,
    effects: Annotated[
        Effects, typer.Option(help="Effects of numeric columns: lines, smooth curves, or both, as held-out rows say.")
    ] = Effects.linear,
    task_table: Known = None,
    loss: Outcome = Loss.squared,
    exposure: Exposure = None,
    output: Annotated[Path | None, typer.Option(help="Model file to write, for example model.ggmtl.")] = None,
    report: Annotated[Path | None, typer.Option(help="Page to write, for example report.html.")] = None,
) -> None:
    """Fit every task's model and the graph, and say what was found."""
    table_files.check_output("--output", output, table_files.MODELS, [data])
    table_files.check_page("--report", report)
    workflow.check_options(loss, exposure, effects, task_table)
    columns = _columns(task, target, features, exclude, categorical, groups, weights)
    columns = replace(columns, exposure=exposure, classes=loss is Loss.binary)
    reading = _reading(decimal, na_values)
    rows = _read(data, columns, drop_missing, reading)
    known = None if task_table is None else _read_known(task_table, rows, reading)
    with _fitting(rows.frame, task):
        model = workflow.fit(rows, loss, known, seed, effects)
    if loss is Loss.squared:
        _say_classes(rows.target, target)
    if output is not None:
        # Save before printing: printing fails if the reader of a pipe has gone.
        with terminal.working("Saving the model"):
            workflow.save(model, output, rows.encoding)
    terminal.show_summary(collect.summarize(model))
    if output is not None:
        terminal.say(f"Model: {output}", "dim")
    if report is not None:
        _write_report(model, report, f"{target} by {task}")
    _exit_if_interrupted(model)


@app.command()
@friendly
def predict(
    model: Model,
    data: Input,
    output: Annotated[Path, typer.Option(help="CSV or Parquet file to write.")],
    drop_missing: DropMissing = False,
    na_values: Missing = None,
    decimal: Mark = None,
    exposure: Exposure = None,
    unseen: Annotated[
        Unseen, typer.Option(help="For tasks not seen in training: error, or hub (use the shared model).")
    ] = Unseen.error,
    task_table: Known = None,
    interval: Annotated[
        float | None,
        typer.Option(
            help="Also write intervals that hold this share of the targets (for two labels: of the probabilities), "
            "such as 0.9: lower and upper."
        ),
    ] = None,
) -> None:
    """Predict new rows: the file's columns and one more, prediction.

    For a model of two labels it is the probability of the second, in the order of their sorting.
    """
    table_files.check_output("--output", output, table_files.TABLES, [data, model])
    fitted, encoding = workflow.load(model)
    if not isinstance(fitted.task, str):
        raise InputError(f"{model} was not fitted to a table with a task column; use Python to predict with it.")
    fitted.set_params(unseen=unseen.value)
    reading = _reading(decimal, na_values)
    if exposure is not None and fitted.loss != "poisson":
        raise InputError(f"--exposure is for models of counts. {model} was fitted with the {fitted.loss} loss.")
    source, kept, frame, time = workflow.read_new_rows(data, fitted, encoding, drop_missing, reading, exposure)
    known = None if task_table is None else workflow.read_known_again(task_table, fitted, reading)
    if unseen is Unseen.error:
        workflow.check_tasks(fitted, frame, known)
    with _notes():
        columns = {"prediction": workflow.predicted(fitted, frame, time, known)}
        if interval is not None:
            columns |= workflow.intervals(fitted, frame, interval, time, known)
    workflow.write_predictions(output, data, source, kept, columns)
    _say_dropped(source.table.num_rows - len(kept))
    terminal.say(f"{phrases.count(len(kept), 'prediction')}: {output}")


@app.command()
@friendly
def report(
    model: Model,
    output: Annotated[Path, typer.Option(help="Page to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Heading of the page.")] = None,
) -> None:
    """Write the page about a saved model."""
    table_files.check_page("--output", output)
    fitted, encoding = workflow.load(model)
    _write_report(fitted, output, title or (f"{encoding.target} by {fitted.task}" if fitted.task else None))


@app.command()
@friendly
def compare(
    data: Input,
    task: Task,
    target: Target,
    features: Features = None,
    exclude: Exclude = None,
    categorical: Categorical = None,
    drop_missing: DropMissing = False,
    na_values: Missing = None,
    decimal: Mark = None,
    groups: Groups = None,
    weights: Weights = None,
    seed: Seed = None,
    loss: Outcome = Loss.squared,
    exposure: Exposure = None,
    folds: Annotated[int, typer.Option(help="Folds of the comparison.", min=2)] = 5,
    methods: Methods = None,
) -> None:
    """Compare every method on the same folds."""
    workflow.check_options(loss, exposure)
    name = workflow.LOSS_NAMES[loss]
    chosen = comparison.choose_methods(_split(methods), name)
    columns = _columns(task, target, features, exclude, categorical, groups, weights)
    columns = replace(columns, exposure=exposure, classes=loss is Loss.binary)
    rows = _read(data, columns, drop_missing, _reading(decimal, na_values))
    with terminal.working("Comparing") as step:
        result = comparison.compare(
            rows,
            chosen,
            folds,
            seed,
            name,
            step.change,
            lambda standing: step.tell(terminal.describe_standing(standing)),
        )
    terminal.show_comparison(result)


@app.command()
@friendly
def reproduce(
    what: Annotated[str, typer.Argument(help="table1, table2, table3, table4, figures or all.")],
    quick: Annotated[bool, typer.Option("--quick", help="Two runs, small grids, fewer methods.")] = False,
    output: Annotated[Path, typer.Option(help="Folder of the pages and of the results kept.")] = Path("results"),
    jobs: Annotated[int | None, typer.Option(help="Processes. Default: one per processor.", min=1)] = None,
) -> None:
    """Compute the paper's tables and figures; a run that was stopped continues where it stopped."""
    from ggmtl import reproduce as paper

    with terminal.working(f"Computing {what}") as step:
        paper.run(what, quick, output, lambda done, total, text: step.change(f"{done}/{total} {text}"), jobs)
    terminal.say(f"Pages: {output / 'quick' if quick else output}")


@app.command()
@friendly
def bench(
    tasks: Annotated[int, typer.Option(min=2, help="Number of tasks.")] = 50,
    rows: Annotated[int, typer.Option(min=5, help="Rows of each task.")] = 20,
    features: Annotated[int, typer.Option(min=1, help="Number of features.")] = 5,
) -> None:
    """Time a fit and a prediction on made-up clusters of tasks on this machine."""
    from ggmtl.datasets.generators import make_clusters

    data = make_clusters(min(5, tasks), tasks, features, rows, noise=1.0, random_state=0)
    start = perf_counter()
    with terminal.working(f"Fitting {tasks:,} tasks"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = ggmtl.GGMTLRegressor().fit(data.X, data.y, tasks=data.tasks)
    fitted = perf_counter()
    model.predict(data.X, tasks=data.tasks)
    done = perf_counter()
    terminal.say(f"{tasks:,} tasks, {len(data.y):,} rows, {phrases.count(features, 'feature')}")
    terminal.say(f"fit      {fitted - start:.3f} s")
    terminal.say(f"predict  {done - fitted:.3f} s")


def _columns(
    task: str,
    target: str,
    features: str | None,
    exclude: str | None,
    categorical: str | None,
    groups: str | None,
    weights: str | None,
) -> workflow.Columns:
    lists = _split(features), _split(exclude) or [], _split(categorical) or []
    return workflow.Columns(task, target, *lists, groups, weights)


def _reading(decimal: Decimal | None, na_values: str | None) -> csv_files.Reading:
    missing = None if na_values is None else tuple(_split(na_values) or [])
    return csv_files.Reading(None if decimal is None else decimal.value, missing)


def _read(data: Path, columns: workflow.Columns, drop_missing: bool, reading: csv_files.Reading) -> workflow.Rows:
    rows = workflow.read_rows(data, columns, drop_missing, reading)
    _say_dropped(rows.n_dropped)
    for note in rows.encoding.notes():
        terminal.say(f"Note: {note}.", "dim")
    return rows


def _read_known(path: Path, rows: workflow.Rows, reading: csv_files.Reading) -> TaskFeatures:
    table = workflow.read_known(path, rows, reading)
    for note in table.notes:
        terminal.say(f"Note: {note}.", "dim")
    return table.features


@contextmanager
def _fitting(frame: pa.Table, task: str) -> Iterator[None]:
    """Show that a fit is in progress, and its warnings once it is done."""
    with _notes(), terminal.working(f"Fitting {phrases.count(len(frame[task].unique()), 'task')}"):
        yield


def _exit_if_interrupted(model: ggmtl.GGMTLRegressor | ggmtl.GGMTLClassifier) -> None:
    """After Ctrl-C a fit hands out the best model so far; what called the command must be told all the same."""
    if model.status_ == "interrupted":
        raise typer.Exit(_INTERRUPTED)


def _say_classes(target: np.ndarray, name: str) -> None:
    """Say what a target of zeros and ones was taken for."""
    if workflow.holds_zeros_and_ones(target):
        note = f"Note: {name!r} holds 0 and 1 only and was fitted as a number. Use --loss binary for probabilities."
        terminal.say(note, "dim")


@contextmanager
def _notes() -> Iterator[None]:
    """Turn the warnings of a block into notes, each once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for text in dict.fromkeys(str(entry.message) for entry in caught if issubclass(entry.category, UserWarning)):
        terminal.say(f"Note: {text}", "dim")


def _write_report(model: ggmtl.GGMTLRegressor | ggmtl.GGMTLClassifier, output: Path, title: str | None) -> None:
    with terminal.working("Writing the report"):
        page.write_report(model, output, title)
    terminal.say(f"Report: {output}", "dim")


def _say_dropped(number: int) -> None:
    if number:
        terminal.say(f"Note: {phrases.count(number, 'row')} with missing values left out.", "dim")


def _split(names: str | None) -> list[str] | None:
    """Names separated by commas; a name that has a comma stands in double quotes."""
    if names is None:
        return None
    parts = next(csv.reader([names], skipinitialspace=True), [])
    return [name.strip() for name in parts if name.strip()]
