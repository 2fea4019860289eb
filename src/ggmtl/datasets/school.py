"""School: exam scores of pupils of 139 Inner London schools, one task per school."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ggmtl.data.task_data import TaskData
from ggmtl.datasets._files import DataFile, find_file
from ggmtl.datasets._tables import read_mat
from ggmtl.errors import InputError

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
