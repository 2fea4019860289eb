"""Computer: ratings by 190 people. Sales: weekly sales of 811 products."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ggmtl.data.task_data import TaskData
from ggmtl.datasets._files import DataFile, find_file, numbers, read_csv, read_mat
from ggmtl.datasets.splits import forecast_tasks
from ggmtl.errors import InputError

COMPUTER = DataFile(
    path="computer/conjointAnalysisComputerBuyers.mat",
    sha256="6e6b5f98f438c7d15ed6c7adab44322c9345f52263a4f3026322019f184679b5",
    home="Lenk et al. 1996, 'Hierarchical Bayes conjoint analysis'; the file goes round with several multi-task papers",
)
SALES = DataFile(
    path="sales/Sales_Transactions_Dataset_Weekly.csv",
    sha256="c406378a12fd93d4ac6c3751bca8bc345554461e000d3708759cef26e0bb8cc1",
    home="UCI archive, data set 396 (https://archive.ics.uci.edu/dataset/396/sales+transactions+dataset+weekly)",
    url="https://archive.ics.uci.edu/static/public/396/sales+transactions+dataset+weekly.zip",
    member="Sales_Transactions_Dataset_Weekly.csv",
)
WEEKS = 52
SALES_TRAIN_SHARE = 0.6


def load_computer(path: str | Path | None = None, download: bool = False) -> TaskData:
    """How likely a person would buy a computer (0–10) from its properties: 190 tasks × 20 rows, 13 features.

    All people rate the same 20 computers, so every task has the same X. The design's first column is a
    constant 1 and is dropped; the other 13 are −1/1 codings (``designMarix``, as the file spells it), named
    ``f1, …, f13``.

    Parameters
    ----------
    path : str or Path, optional
        A MATLAB 5 file with ``likeBuy`` (people, rows) and ``designMarix`` (rows, columns). Not hash-checked.
    download : bool
        As for the other loaders; this file has no stable address, so True only says where to get it.

    Examples
    --------
    >>> data = load_computer()  # doctest: +SKIP
    >>> data.X.shape, len(data.task_names)  # doctest: +SKIP
    ((3800, 13), 190)
    """
    found = find_file(COMPUTER, path, download)
    variables = read_mat(found, ("likeBuy", "designMarix"))
    design = variables["designMarix"].astype(np.float64)
    ratings = variables["likeBuy"].astype(np.float64)
    if ratings.ndim != 2 or ratings.shape[1] != len(design):
        raise InputError(f"{found}: likeBuy must be (people, {len(design)}). Got {ratings.shape} instead.")
    names = tuple(f"f{k}" for k in range(design.shape[1]))
    if (design[:, 0] == 1.0).all():
        design, names = design[:, 1:], names[1:]
    n_people, n_rows = ratings.shape
    tasks = np.repeat(np.arange(1, n_people + 1), n_rows)
    notes = ("all tasks share one design matrix",)
    return TaskData(np.tile(design, (n_people, 1)), ratings.ravel(), tasks, feature_names=names, notes=notes)


def load_sales(lags: int = 5, path: str | Path | None = None, download: bool = False) -> TaskData:
    """Sales of a product next week from the last `lags` weeks: 811 tasks, 52 weeks, counts as they are.

    With 5 lags there are 47 rows per product: the first 60 % (28) for training, the later ones in `test`. The
    file's own normalised columns use each product's minimum and maximum over the whole year and would leak
    the test weeks, so they are not read.

    Parameters
    ----------
    lags : int
        Weeks used as features; five leave 28 training rows per product.
    path : str or Path, optional
        A comma-separated file with columns ``Product_Code, W0, …, W51``. Not hash-checked.
    download : bool
        Fetch the file when it is neither below ``GGMTL_DATA_HOME`` nor in the cache.

    Examples
    --------
    >>> data = load_sales()  # doctest: +SKIP
    >>> len(data.task_names), data.X.shape[1]  # doctest: +SKIP
    (811, 5)
    """
    found = find_file(SALES, path, download)
    weeks = tuple(f"W{k}" for k in range(WEEKS))
    columns = read_csv(found, ("Product_Code", *weeks))
    series = np.column_stack([numbers(found, columns, week) for week in weeks])
    return forecast_tasks(series, columns["Product_Code"], lags, horizon=1, train_share=SALES_TRAIN_SHARE)
