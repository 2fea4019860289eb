"""Parkinson: motor score of 42 patients from voice recordings, one task per patient."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ggmtl.data.task_data import TaskData
from ggmtl.datasets._files import DataFile, find_file, numbers, read_csv

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
        notes=(
            "age and sex are constant within a task",
            "rows of one visit (see groups) are near-duplicates",
        ),
    )


def _visits(subject: np.ndarray, time: np.ndarray) -> np.ndarray:
    """Number of the visit of each row, shape (rows,); no two subjects share a visit."""
    order = np.lexsort((time, subject))
    starts = (np.diff(subject[order]) != 0) | (np.diff(time[order]) > VISIT_GAP_DAYS)
    visit = np.empty(len(time), dtype=np.int64)
    visit[order] = np.concatenate([[0], np.cumsum(starts)])
    return visit
