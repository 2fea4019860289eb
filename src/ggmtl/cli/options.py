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
# Those whose time grows with the cube of the number of tasks: they run only where they are asked for.
SLOW = ("BMSL", "MSSL", "MTRL")

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
        help="Columns to learn from, separated by commas; a name that contains a comma stands in double quotes. "
        "Default: all others."
    ),
]
Exclude = Annotated[str | None, typer.Option(help="Columns not to learn from, separated by commas.")]
Categorical = Annotated[
    str | None, typer.Option(help="Columns that are categories even where they look like numbers, separated by commas.")
]
Methods = Annotated[
    str | None,
    typer.Option(
        help=f"Any of {', '.join(METHODS)}, separated by commas, or all. Default: all but {', '.join(SLOW)}, which can "
        "take minutes. For labels and counts: any of GGMTL, Hub, Independent, Pooled, Trees and, where it is "
        "installed, GPBoost; default: all."
    ),
]
Outcome = Annotated[
    Loss, typer.Option(help="What the target holds. squared: numbers; binary: one of two labels; poisson: counts.")
]
DropMissing = Annotated[bool, typer.Option("--drop-missing", help="Leave out rows with missing values.")]
Missing = Annotated[
    str | None,
    typer.Option(
        "--na-values",
        help="What stands for a missing value in a CSV file besides the empty cell, separated by commas. "
        'Default: NA, NaN, null and the like. Give "" where these are labels.',
    ),
]
Known = Annotated[
    Path | None,
    typer.Option(
        "--task-table",
        help="CSV or Parquet file with one row per task and the task column: what is known about the tasks. For "
        "--loss squared only.",
        **_FILE,
    ),
]
Groups = Annotated[
    str | None, typer.Option(help="Column of groups, such as visits: rows of one group are held out together.")
]
Weights = Annotated[str | None, typer.Option(help="Column of row weights; a weight of 2 counts a row twice.")]
Exposure = Annotated[
    str | None,
    typer.Option(help="For --loss poisson: column that counts are proportional to, such as time or population."),
]
Seed = Annotated[int | None, typer.Option(help="Seed of the folds and of all random draws.", min=0)]
Mark = Annotated[
    Decimal | None,
    typer.Option(
        "--decimal",
        help="Decimal mark of a CSV file. Needed only for numbers such as 1,234 that can be read in two ways.",
    ),
]
