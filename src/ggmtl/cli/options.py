"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ggmtl.cli.choices import METHODS, Decimal

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
Methods = Annotated[str | None, typer.Option(help=f"Any of {', '.join(METHODS)}, separated by commas. Default: all.")]
DropMissing = Annotated[bool, typer.Option("--drop-missing", help="Leave out rows that miss a value.")]
Missing = Annotated[
    str | None,
    typer.Option(
        "--na-values",
        help="Cells of a CSV file that stand for a missing value, separated by commas, besides the empty cell. "
        'Default: NA, NaN, null and the like. "" for none, where NA is a label.',
    ),
]
Known = Annotated[
    Path | None,
    typer.Option(
        "--task-table",
        help="CSV or Parquet file with one row per task, joined by the task column: what is known about the tasks.",
        exists=True,
        dir_okay=False,
        readable=True,
    ),
]
Groups = Annotated[str | None, typer.Option(help="Column of groups: rows of one group stay in one fold.")]
Weights = Annotated[str | None, typer.Option(help="Column of row weights: a weight of 2 counts a row twice.")]
Exposure = Annotated[
    str | None,
    typer.Option(help="Column that counts are proportional to, such as time (--loss poisson)."),
]
Seed = Annotated[int | None, typer.Option(help="Seed of everything random, folds among it.", min=0)]


Mark = Annotated[
    Decimal | None,
    typer.Option("--decimal", help="Decimal mark of a CSV file, for numbers such as 1,234 that could have either."),
]
