"""Data sets: generators with known relations, loaders of real files, and the paper's split of rows.

In: sizes and a seed, or files (downloaded once and checked by their hash). Out: :class:`~ggmtl.data.TaskData`.

``generators``: simulated data; ``studies``: schools, patients, stores and other studies; ``temperature``: weather
stations; ``splits``: the paper's split of rows; ``_files`` downloads and checks files.
"""

from ggmtl.datasets.generators import make_clusters, make_line, make_star, make_tree
from ggmtl.datasets.splits import split_rows
from ggmtl.datasets.studies import (
    load_computer,
    load_exam,
    load_hsb82,
    load_landmine,
    load_parkinson,
    load_sales,
    load_school,
)
from ggmtl.datasets.temperature import load_stations, load_tmy3

__all__ = [
    "load_computer",
    "load_exam",
    "load_hsb82",
    "load_landmine",
    "load_parkinson",
    "load_sales",
    "load_school",
    "load_stations",
    "load_tmy3",
    "make_clusters",
    "make_line",
    "make_star",
    "make_tree",
    "split_rows",
]
