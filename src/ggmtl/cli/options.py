"""Arguments and options that several commands share, and the values that some of them may have.

Help texts must come at once, so this module imports no arrays and no tables.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

# The methods of a comparison; a test holds them equal to those of :mod:`ggmtl.cli.comparison`.
METHODS = ("GGMTL", "BMSL", "CCMTL", "Hub", "Independent", "MSSL", "MTRL", "Pooled")

Which = StrEnum("Which", ["stations", "countries", "schools"])
Decimal = StrEnum("Decimal", ["point", "comma"])
Effects = StrEnum("Effects", ["linear", "smooth", "auto"])
Loss = StrEnum("Loss", ["squared", "binary", "poisson"])
Unseen = StrEnum("Unseen", ["error", "hub"])

_FILE: dict[str, Any] = {"exists": True, "dir_okay": False, "readable": True}
Input = Annotated[Path, typer.Argument(help="CSV or Parquet file.", **_FILE)]
Model = Annotated[Path, typer.Argument(help="File written by fit.", **_FILE)]
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
    str | None,
    typer.Option(
        help=f"Any of {', '.join(METHODS)}, separated by commas; for labels and counts of GGMTL, Hub, Independent, "
        "Pooled, Trees and, where it is installed, GPBoost. Default: all."
    ),
]
Outcome = Annotated[
    Loss, typer.Option(help="What the target holds. squared: numbers; binary: one of two labels; poisson: counts.")
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
Known = Annotated[
    Path | None,
    typer.Option(
        "--task-table",
        help="CSV or Parquet file with one row per task, joined by the task column: what is known about the tasks.",
        **_FILE,
    ),
]
Groups = Annotated[str | None, typer.Option(help="Column of groups: rows of one group stay in one fold.")]
Weights = Annotated[str | None, typer.Option(help="Column of row weights: a weight of 2 counts a row twice.")]
Exposure = Annotated[
    str | None,
    typer.Option(help="Column that counts are proportional to, such as time (--loss poisson)."),
]
Seed = Annotated[int | None, typer.Option(help="Seed of everything random, the folds included.", min=0)]
Mark = Annotated[
    Decimal | None,
    typer.Option("--decimal", help="Decimal mark of a CSV file, for numbers such as 1,234 that could have either."),
]
