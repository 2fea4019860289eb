"""Landmine: mine or clutter, from radar images of 29 fields in two regions."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ggmtl.data.task_data import TaskData
from ggmtl.datasets._files import DataFile, find_file, read_mat
from ggmtl.errors import InputError

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
    found = find_file(LANDMINE, path, download)
    variables = read_mat(found, ("feature", "label"))
    features = [np.asarray(cell, dtype=np.float64) for cell in variables["feature"].ravel()]
    labels = [np.asarray(cell, dtype=np.float64).ravel() for cell in variables["label"].ravel()]
    if [len(block) for block in features] != [len(part) for part in labels]:
        raise InputError(f"{found}: feature and label must have the same rows for every task.")
    tasks = np.repeat(np.arange(1, len(features) + 1), [len(part) for part in labels])
    names = tuple(f"f{k}" for k in range(1, features[0].shape[1] + 1))
    return TaskData(np.concatenate(features), np.concatenate(labels), tasks, feature_names=names)
