"""The commands. Each imports what it needs when it runs, so that help comes at once."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer

import ggmtl
from ggmtl.cli.options import (
    Categorical,
    DropMissing,
    Effects,
    Exclude,
    Exposure,
    Features,
    Groups,
    Input,
    Known,
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
    def wrapped(*arguments: object, **options: object) -> None:
        from ggmtl.cli import terminal

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
        typer.echo(f"ggmtl {ggmtl.__version__}")
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
    from ggmtl.cli import table_files, terminal
    from ggmtl.cli.demo import load_demo

    table_files.check_page("--output", output)
    shown = load_demo(what)
    terminal.say(shown.question)
    with terminal.fitting(shown.frame, shown.task):
        model = ggmtl.GGMTLRegressor(task=shown.task, candidates=shown.candidates).fit(shown.frame, shown.data.y)
    terminal.show_model(model)
    _exit_if_interrupted(model.status_)
    with terminal.working("Comparing"):
        checks = shown.checks(model)
    for check in checks:
        terminal.show_check(check)
    terminal.write_page(model, output, shown.title)


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
        Effects,
        typer.Option(
            help="Effects of numeric columns. linear: straight lines; smooth: curves; auto: what predicts held-out "
            "rows better. Curves are for --loss squared only."
        ),
    ] = Effects.linear,
    task_table: Known = None,
    loss: Outcome = Loss.squared,
    exposure: Exposure = None,
    output: Annotated[Path | None, typer.Option(help="Model file to write, for example model.ggmtl.")] = None,
    keep_statistics: Annotated[
        bool,
        typer.Option(
            "--keep-statistics",
            help="Keep the sums of the rows in the model file (for labels and counts: the rows), so that intervals of "
            "predictions differ from row to row.",
        ),
    ] = False,
    report: Annotated[Path | None, typer.Option(help="Page to write, for example report.html.")] = None,
) -> None:
    """Fit every task's model and the graph, and say what was found."""
    from ggmtl.cli import table_files, terminal, workflow

    table_files.check_output("--output", output, table_files.MODELS, [data])
    table_files.check_page("--report", report)
    workflow.check_options(loss, exposure, effects, task_table)
    split, classes = workflow.split_names, loss is Loss.binary
    columns = workflow.Columns(
        task, target, split(features), split(exclude), split(categorical), groups, weights, exposure, classes
    )
    reading = workflow.reading_of(decimal, na_values)
    rows = workflow.read_rows(data, columns, drop_missing, reading)
    terminal.note(*rows.notes())
    known = None if task_table is None else workflow.read_known(task_table, rows, reading)
    if known is not None:
        terminal.note(*known.notes)
    with terminal.fitting(rows.frame, task):
        model = workflow.fit(rows, loss, None if known is None else known.features, seed, effects)
    if loss is Loss.squared and workflow.holds_zeros_and_ones(rows.target):
        terminal.note(f"{target!r} holds 0 and 1 only and was fitted as a number. Use --loss binary for probabilities.")
    if loss is Loss.squared and workflow.holds_counts(rows.target):
        terminal.note(f"{target!r} holds whole numbers, many of them zero. Counts are fitted better by --loss poisson.")
    if loss is Loss.poisson and not workflow.holds_whole_numbers(rows.target):
        terminal.note(f"{target!r} holds numbers that are not whole. --loss poisson is for counts and rates of counts.")
    if output is not None:
        # Save before printing: printing fails if the reader of a pipe has gone.
        with terminal.working("Saving the model"):
            workflow.save(model, output, rows.encoding, keep_statistics)
    terminal.show_model(model)
    if output is not None:
        terminal.say(f"Model: {output}", "dim")
    if report is not None:
        terminal.write_page(model, report, f"{target} by {task}")
    _exit_if_interrupted(model.status_)


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
        Unseen,
        typer.Option(help="Tasks without training rows. error: refuse them; hub: predict them with the shared model."),
    ] = Unseen.error,
    task_table: Known = None,
    interval: Annotated[
        float | None,
        typer.Option(
            help="Also write the columns lower and upper: intervals that hold this share of the targets (for two "
            "labels: of the probabilities), such as 0.9."
        ),
    ] = None,
) -> None:
    """Predict new rows. The output has the columns of the file and one more, prediction.

    Where the target has two labels, it is the probability of the one that comes second in the alphabet.
    """
    from ggmtl.cli import table_files, terminal, workflow
    from ggmtl.inspection.summary.phrases import count

    table_files.check_output("--output", output, table_files.TABLES, [data, model])
    fitted, encoding = workflow.load(model)
    if not isinstance(fitted.task, str):
        raise InputError(f"{model} was not fitted to a table with a task column; use Python to predict with it.")
    fitted.set_params(unseen=str(unseen))
    reading = workflow.reading_of(decimal, na_values)
    if interval is not None and not 0.0 < interval < 1.0:
        raise InputError(f"--interval must be between 0 and 1, such as 0.9. Got {interval:g} instead.")
    if exposure is not None and fitted.loss != "poisson":
        raise InputError(f"--exposure is for models of counts. {model} was fitted with the {fitted.loss} loss.")
    rows = workflow.read_new_rows(data, fitted, encoding, drop_missing, reading, exposure)
    known = None if task_table is None else workflow.read_known_again(task_table, fitted, reading)
    if unseen is Unseen.error:
        workflow.check_tasks(fitted, rows.frame, known)
    with terminal.warnings_as_notes():
        columns = workflow.predictions(fitted, rows, known, interval)
    workflow.write_predictions(output, data, rows, columns)
    terminal.note(*rows.notes(), *workflow.rate_note(fitted, exposure))
    if interval is not None and fitted.state_.statistics is None and fitted.state_.outcome is None:
        terminal.note("All intervals of a task have one length. Fit with --keep-statistics for one length per row.")
    terminal.say(f"{count(len(rows.kept), 'prediction')}: {output}")


@app.command()
@friendly
def report(
    model: Model,
    output: Annotated[Path, typer.Option(help="Page to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Heading of the page.")] = None,
) -> None:
    """Write the page about a saved model."""
    from ggmtl.cli import table_files, terminal, workflow

    table_files.check_page("--output", output)
    fitted, encoding = workflow.load(model)
    terminal.write_page(fitted, output, title or (f"{encoding.target} by {fitted.task}" if fitted.task else None))


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
    folds: Annotated[int, typer.Option(help="Number of folds.", min=2)] = 5,
    methods: Methods = None,
) -> None:
    """Compare methods on the same folds. Each is printed as it finishes."""
    from ggmtl.cli import comparison, terminal, workflow

    workflow.check_options(loss, exposure)
    name, wanted = workflow.LOSS_NAMES[loss], workflow.split_names(methods)
    chosen = comparison.choose_methods(wanted, name)
    split, classes = workflow.split_names, loss is Loss.binary
    columns = workflow.Columns(
        task, target, split(features), split(exclude), split(categorical), groups, weights, exposure, classes
    )
    rows = workflow.read_rows(data, columns, drop_missing, workflow.reading_of(decimal, na_values))
    terminal.note(*rows.notes(), *comparison.skipped_note(wanted, name))
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
    from ggmtl.cli import terminal

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
    from ggmtl.cli import terminal
    from ggmtl.datasets.generators import make_clusters

    data = make_clusters(min(5, tasks), tasks, features, rows, noise=1.0, random_state=0)
    start = perf_counter()
    with terminal.working(f"Fitting {tasks:,} tasks"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = ggmtl.GGMTLRegressor().fit(data.X, data.y, tasks=data.tasks)
    fitted = perf_counter()
    model.predict(data.X, tasks=data.tasks)
    done = perf_counter()
    terminal.say(f"{tasks:,} tasks, {len(data.y):,} rows, features: {features:,}")
    terminal.say(f"fit      {fitted - start:.3f} s")
    terminal.say(f"predict  {done - fitted:.3f} s")


def _exit_if_interrupted(status: str) -> None:
    """After Ctrl-C a fit hands out the best model so far; what called the command must be told all the same."""
    if status == "interrupted":
        raise typer.Exit(_INTERRUPTED)
