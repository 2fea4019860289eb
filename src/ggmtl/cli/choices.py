"""What an option of the command line may be, by name. Imports nothing else: help texts must come at once."""

from __future__ import annotations

from enum import StrEnum

# The methods of a comparison; a test holds them equal to those of :mod:`ggmtl.cli.comparison`.
METHODS = ("GGMTL", "BMSL", "CCMTL", "Hub", "Independent", "MSSL", "MTRL", "Pooled")


class Which(StrEnum):
    """The demonstrations."""

    stations = "stations"
    countries = "countries"
    schools = "schools"


class Decimal(StrEnum):
    """The decimal mark of numbers such as 1,234."""

    point = "point"
    comma = "comma"


class Effects(StrEnum):
    """Form of the effects of numeric columns."""

    linear = "linear"
    smooth = "smooth"
    auto = "auto"


class Loss(StrEnum):
    """What the target holds."""

    squared = "squared"
    binary = "binary"
    poisson = "poisson"


class Unseen(StrEnum):
    """What to do with tasks that were not in the training data."""

    error = "error"
    hub = "hub"
