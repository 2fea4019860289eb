"""The paper's tables and figures, computed: ``run("table1", quick=True)`` writes ``results/quick/table1.md``.

In: names of tables. Out: Markdown pages with the paper's numbers next to ours. ``plan`` (which cells make a table),
``cells`` (rows and kept results), ``methods`` (the paper's and this package's), ``peers`` (those of other packages),
``pages``.
"""

from __future__ import annotations

from pathlib import Path

from ggmtl.errors import check_choice, require
from ggmtl.reproduce.cells import CACHE_NAME, Cell, CellCache, Progress, compute_missing

TABLES = ("table1", "table2", "table3", "table4")
TARGETS = (*TABLES, "figures", "all")

__all__ = ["TABLES", "TARGETS", "Cell", "CellCache", "compute_missing", "run"]


def run(
    what: str,
    quick: bool = False,
    output: str | Path = "results",
    progress: Progress | None = None,
    n_jobs: int | None = None,
) -> None:
    """Compute what is missing and write the pages.

    Results of single cells are kept in ``cells.jsonl`` next to the pages, so a run that was stopped continues where it
    stopped. Quick pages go to the folder ``quick``, so that they never replace full ones.

    Parameters
    ----------
    what : {"table1", "table2", "table3", "table4", "figures", "all"}
        Table 1: synthetic graphs; 2: Parkinson; 3: School; 4: temperature; figures: graphs and their clusters.
    quick : bool
        Two runs, small grids, fewer methods: minutes instead of hours. Pages go to ``output/quick``.
    output : str or Path
        Folder of the pages (``table1.md``, …, ``figures.md``, PNG files) and of ``cells.jsonl``.
    progress : callable, optional
        Called with (cells done, cells to do, text).
    n_jobs : int, optional
        Processes; by default one per processor.
    """
    check_choice("what", what, TARGETS)
    # Estimators, data sets and plots are loaded here, so that asking for help on the command line stays fast.
    from ggmtl.reproduce.methods import compute_cell
    from ggmtl.reproduce.pages import figure_cells, make_figures, write_table
    from ggmtl.reproduce.plan import make_table

    folder = Path(output) / "quick" if quick else Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    cache = CellCache(folder / CACHE_NAME)
    for name in TARGETS[:-1] if what == "all" else (what,):
        table = None if name == "figures" else make_table(name, quick)
        if table is None:
            require("matplotlib", "plot", "Drawing the figures")
        cells = figure_cells(quick) if table is None else table.cells()
        compute_missing(cache, cells, compute_cell, progress, n_jobs)
        page = make_figures(folder, cache, quick) if table is None else write_table(table, cache)
        (folder / f"{name}.md").write_text(page, encoding="utf-8")
