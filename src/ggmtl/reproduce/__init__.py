"""The paper's tables and figures, computed: ``run("table1", quick=True)`` writes ``results/table1.md``.

Results of single cells are kept beside the pages, so a run that was stopped continues where it stopped, and pages can
be written again without computing. Quick pages lie in the folder ``quick``, so that they never replace full ones.
"""

from __future__ import annotations

from pathlib import Path

from ggmtl.errors import check_choice
from ggmtl.reproduce.cache import CACHE_NAME, Cell, CellCache, Progress, compute_missing

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

    Parameters
    ----------
    what : {"table1", "table2", "table3", "table4", "figures", "all"}
        Table 1: synthetic graphs; 2: Parkinson; 3: School; 4: temperature; figures: graphs and their clusters.
    quick : bool
        Two runs, small grids, fewer methods: minutes instead of hours. Pages go to ``output/quick``.
    output : str or Path
        Folder of the pages (``table1.md``, …, ``figures.md``, PNG files) and of the results kept (``*.jsonl``).
    progress : callable, optional
        Called with (cells done, cells to do, text).
    n_jobs : int, optional
        Processes; as many as there are processors unless told.
    """
    check_choice("what", what, TARGETS)
    folder = Path(output) / "quick" if quick else Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    for name in TARGETS[:-1] if what == "all" else (what,):
        page = _figures(folder, quick, progress, n_jobs) if name == "figures" else _table(
            name, folder, quick, progress, n_jobs
        )  # fmt: skip
        (folder / f"{name}.md").write_text(page, encoding="utf-8")


def _table(name: str, folder: Path, quick: bool, progress: Progress | None, n_jobs: int | None) -> str:
    # Estimators and data sets are loaded here, so that asking for help on the command line stays fast.
    from ggmtl.reproduce.markdown import write_table
    from ggmtl.reproduce.methods import compute_cell
    from ggmtl.reproduce.plan import make_table

    table = make_table(name, quick)
    cache = CellCache(folder / CACHE_NAME)
    cells = [cell for section in table.sections for cell in section.all_cells(quick)]
    compute_missing(cache, cells, compute_cell, progress, n_jobs)
    return write_table(table, cache, quick)


def _figures(folder: Path, quick: bool, progress: Progress | None, n_jobs: int | None) -> str:
    from ggmtl.reproduce.figures import make_figures

    return make_figures(folder, quick, progress, n_jobs)
