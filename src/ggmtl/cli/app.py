"""The commands."""

from __future__ import annotations

import csv
import functools
import warnings
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import typer

from ggmtl import __version__
from ggmtl.cli import comparison, workflow
from ggmtl.cli.csv_files import Reading
from ggmtl.cli.demo import Which, load_demo
from ggmtl.cli.table_files import MODELS, TABLES, check_output, check_page
from ggmtl.cli.terminal import (
    complain,
    describe_standing,
    say,
    show_check,
    show_comparison,
    show_summary,
    use_ascii_where_needed,
    working,
)
from ggmtl.errors import GGMTLError, InputError
from ggmtl.estimators.regressor import GGMTLRegressor
from ggmtl.inspection.summary.collect import summarize
from ggmtl.inspection.summary.phrases import count
from ggmtl.report.page import write_report

app = typer.Typer(
    name="ggmtl",
    help="Regression for many related tasks: every task's model, and which tasks are alike.",
    epilog="Exit codes: 0 done, 1 data or model refused, 2 the command was not understood, 130 stopped by Ctrl-C.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Input = Annotated[Path, typer.Argument(help="CSV or Parquet file.", exists=True, dir_okay=False, readable=True)]
Model = Annotated[Path, typer.Argument(help="File written by fit.", exists=True, dir_okay=False, readable=True)]
Task = Annotated[str, typer.Option(help="Column that says which task a row belongs to.")]
Target = Annotated[str, typer.Option(help="Column to predict.")]
Features = Annotated[
    str | None,
    typer.Option(
        help="Columns to learn from, separated by commas (a name that has one: in double quotes). Default: all others."
    ),
]
Exclude = Annotated[str | None, typer.Option(help="Columns not to learn from, separated by commas.")]
Categorical = Annotated[
    str | None, typer.Option(help="Columns that are categories even where they look like numbers, separated by commas.")
]
Methods = Annotated[
    str | None, typer.Option(help=f"Any of {', '.join(comparison.methods())}, separated by commas. Default: all.")
]
DropMissing = Annotated[bool, typer.Option("--drop-missing", help="Leave out rows that miss a value.")]
Missing = Annotated[
    str | None,
    typer.Option(
        "--na-values",
        help="Cells of a CSV file that stand for a missing value, separated by commas, besides the empty cell. "
        'Default: NA, NaN, null and the like. "" for none, where NA is a label.',
    ),
]
Groups = Annotated[str | None, typer.Option(help="Column of groups: rows of one group stay in one fold.")]
Weights = Annotated[str | None, typer.Option(help="Column of row weights: a weight of 2 counts a row twice.")]
Seed = Annotated[int | None, typer.Option(help="Seed of everything random, folds among it.", min=0)]


class Decimal(StrEnum):
    """The decimal mark of numbers such as 1,234."""

    point = "point"
    comma = "comma"


Mark = Annotated[
    Decimal | None,
    typer.Option("--decimal", help="Decimal mark of a CSV file, for numbers such as 1,234 that could have either."),
]


class Unseen(StrEnum):
    """What to do with tasks that were not in the training data."""

    error = "error"
    hub = "hub"


def run() -> None:
    """Entry point."""
    use_ascii_where_needed()
    app()


def friendly(command: Callable[..., None]) -> Callable[..., None]:
    """Turn errors that have a message for the user into that message and exit code 1."""

    @functools.wraps(command)
    def wrapped(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
        except GGMTLError as error:
            complain(error)
            raise typer.Exit(1) from None
        except OSError as error:
            complain(f"{error.filename or 'A file'}: {error.strerror or error}.")
            raise typer.Exit(1) from None

    return wrapped


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Regression for many related tasks: every task's model, and which tasks are alike."""
    if version:
        say(f"ggmtl {__version__}")
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
    check_page("--output", output)
    shown = load_demo(what)
    say(shown.question)
    model = _fit(shown.frame, shown.data.y, shown.task, candidates=shown.candidates)
    show_summary(summarize(model))
    with working("Comparing"):
        checks = shown.checks(model)
    for check in checks:
        show_check(check)
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
    output: Annotated[Path | None, typer.Option(help="Model file to write, for example model.ggmtl.")] = None,
    report: Annotated[Path | None, typer.Option(help="Page to write, for example report.html.")] = None,
) -> None:
    """Fit every task's model and the graph, and say what was found."""
    check_output("--output", output, MODELS, [data])
    check_page("--report", report)
    columns = _columns(task, target, features, exclude, categorical, groups, weights)
    rows = _read(data, columns, drop_missing, _reading(decimal, na_values))
    model = _fit(rows.frame, rows.target, task, rows.groups, rows.weights, random_state=seed)
    if output is not None:
        # Save before printing: printing fails if the reader of a pipe has gone.
        with working("Saving the model"):
            workflow.save(model, output, rows.encoding)
    show_summary(summarize(model))
    if output is not None:
        say(f"Model: {output}", "dim")
    if report is not None:
        _write_report(model, report, f"{target} by {task}")


@app.command()
@friendly
def predict(
    model: Model,
    data: Input,
    output: Annotated[Path, typer.Option(help="CSV or Parquet file to write.")],
    drop_missing: DropMissing = False,
    na_values: Missing = None,
    decimal: Mark = None,
    unseen: Annotated[
        Unseen, typer.Option(help="For tasks not seen in training: error, or hub (the common model).")
    ] = Unseen.error,
) -> None:
    """Predict new rows: the file's columns and one more, prediction."""
    check_output("--output", output, TABLES, [data, model])
    fitted, encoding = workflow.load(model)
    if not isinstance(fitted.task, str):
        raise InputError(f"{model} was not fitted to a table with a task column; use Python to predict with it.")
    fitted.set_params(unseen=unseen.value)
    reading = _reading(decimal, na_values)
    source, kept, frame = workflow.read_new_rows(data, fitted, encoding, drop_missing, reading)
    if unseen is Unseen.error:
        workflow.check_tasks(fitted, frame)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        values = np.asarray(fitted.predict(frame))
    _say_warnings(caught)
    workflow.write_predictions(output, data, source, kept, values)
    _say_dropped(source.table.num_rows - len(kept))
    say(f"{count(len(values), 'prediction')}: {output}")


@app.command()
@friendly
def report(
    model: Model,
    output: Annotated[Path, typer.Option(help="Page to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Heading of the page.")] = None,
) -> None:
    """Write the page about a saved model."""
    check_page("--output", output)
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
    folds: Annotated[int, typer.Option(help="Folds of the comparison.", min=2)] = 5,
    methods: Methods = None,
) -> None:
    """Compare every method on the same folds."""
    chosen = comparison.choose_methods(_split(methods))
    columns = _columns(task, target, features, exclude, categorical, groups, weights)
    rows = _read(data, columns, drop_missing, _reading(decimal, na_values))
    with working("Comparing") as step:
        result = comparison.compare(
            rows, chosen, folds, seed, step.change, lambda standing: step.tell(describe_standing(standing))
        )
    show_comparison(result)


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

    with working(f"Computing {what}") as step:
        paper.run(what, quick, output, lambda done, total, text: step.change(f"{done}/{total} {text}"), jobs)
    say(f"Pages: {output / 'quick' if quick else output}")


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
    with working(f"Fitting {tasks:,} tasks"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = GGMTLRegressor().fit(data.X, data.y, tasks=data.tasks)
    fitted = perf_counter()
    model.predict(data.X, tasks=data.tasks)
    done = perf_counter()
    say(f"{tasks:,} tasks, {len(data.y):,} rows, {count(features, 'feature')}")
    say(f"fit      {fitted - start:.3f} s")
    say(f"predict  {done - fitted:.3f} s")


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


def _reading(decimal: Decimal | None, na_values: str | None) -> Reading:
    missing = None if na_values is None else tuple(_split(na_values) or [])
    return Reading(None if decimal is None else decimal.value, missing)


def _read(data: Path, columns: workflow.Columns, drop_missing: bool, reading: Reading) -> workflow.Rows:
    rows = workflow.read_rows(data, columns, drop_missing, reading)
    _say_dropped(rows.n_dropped)
    for note in rows.encoding.notes():
        say(f"Note: {note}.", "dim")
    return rows


def _fit(
    frame: pa.Table,
    target: np.ndarray,
    task: str,
    groups: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    **options: Any,
) -> GGMTLRegressor:
    n_tasks = len(frame[task].unique())
    with warnings.catch_warnings(record=True) as caught, working(f"Fitting {count(n_tasks, 'task')}"):
        warnings.simplefilter("always")
        model = GGMTLRegressor(task=task, **options).fit(frame, target, groups=groups, sample_weight=weights)
    _say_warnings(caught)
    return model


def _say_warnings(caught: list[warnings.WarningMessage]) -> None:
    for text in dict.fromkeys(str(entry.message) for entry in caught if issubclass(entry.category, UserWarning)):
        say(f"Note: {text}", "dim")


def _write_report(model: GGMTLRegressor, output: Path, title: str | None) -> None:
    with working("Writing the report"):
        write_report(model, output, title)
    say(f"Report: {output}", "dim")


def _say_dropped(number: int) -> None:
    if number:
        say(f"Note: {count(number, 'row')} with missing values left out.", "dim")


def _split(names: str | None) -> list[str] | None:
    """Names separated by commas; a name that has a comma stands in double quotes."""
    if names is None:
        return None
    parts = next(csv.reader([names], skipinitialspace=True), [])
    return [name.strip() for name in parts if name.strip()]
