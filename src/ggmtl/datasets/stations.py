"""Daily temperatures of 1,020 weather stations, which come with the package."""

from __future__ import annotations

from importlib.resources import as_file, files

import numpy as np

from ggmtl.data.frames import as_table
from ggmtl.data.task_data import TaskData
from ggmtl.datasets._files import read_npz
from ggmtl.errors import ParameterError

_ARRAYS = ("station", "change_decic", "latitude", "longitude", "elevation")
_FEATURES = ("cos_year", "sin_year", "cos_half_year", "sin_half_year")


def load_stations(days: int = 8, random_state: int | None = 0) -> TaskData:
    """Mean temperature (°C) of a day at 1,020 US weather stations, from a few days of each: 4 features.

    A typical year of each station (TMY3), of which `days` days, drawn for each station by itself, are for training. All
    other days are in `test`. The features are two annual harmonics: the cosine and sine of the time of the year, with
    periods of a year and of half a year. The file comes with the package; its NOTICE names the source.

    Parameters
    ----------
    days : int, default 8
        Training days of each station, from 1 to 364.
    random_state : int, optional
        Seed of the draw; None is 0.

    Returns
    -------
    TaskData
        Tasks are names of stations. `coordinates` are (longitude, latitude), with longitudes below −180 for the
        stations across the date line. `task_features` is a table with the columns ``task``, ``longitude``,
        ``latitude``, ``elevation`` (m) and ``state``.

    Examples
    --------
    >>> data = load_stations(days=8)
    >>> data.X.shape, len(data.task_names), len(data.test)
    ((8160, 4), 1020, 364140)
    """
    with as_file(files("ggmtl.datasets") / "files" / "stations.npz") as path:
        arrays = read_npz(path, _ARRAYS)
    temperature = np.cumsum(arrays["change_decic"], axis=1, dtype=np.int64) / 10.0
    n_stations, n_days = temperature.shape
    if not isinstance(days, (int, np.integer)) or not 1 <= days < n_days:
        raise ParameterError(f"days must be a whole number from 1 to {n_days - 1}. Got {days!r} instead.")
    order = np.random.default_rng(random_state or 0).random((n_stations, n_days)).argsort(axis=1)
    is_training = np.zeros((n_stations, n_days), dtype=bool)
    np.put_along_axis(is_training, order[:, :days], True, axis=1)
    station = arrays["station"]
    known = {
        "task": station,
        "longitude": arrays["longitude"].astype(np.float64),
        "latitude": arrays["latitude"].astype(np.float64),
        "elevation": arrays["elevation"].astype(np.float64),
        "state": np.array([name[-2:] for name in station]),
    }

    # East of the date line counted on from the west, so that Guam is near Hawaii and not near Puerto Rico.
    longitude = np.where(known["longitude"] > 0, known["longitude"] - 360.0, known["longitude"])

    def part(rows: np.ndarray, test: TaskData | None = None) -> TaskData:
        place, day = np.nonzero(rows)
        return TaskData(
            X=harmonics(day, n_days),
            y=temperature[rows],
            tasks=station[place],
            feature_names=_FEATURES,
            coordinates=np.column_stack([longitude, known["latitude"]]),
            task_features=as_table(known, None),
            test=test,
            notes=("A few stations have faulty readings, such as HYDABURG SEAPLANE, AK, with days above 50 °C.",),
        )

    return part(is_training, part(~is_training))


def harmonics(day: np.ndarray, n_days: int = 365) -> np.ndarray:
    """Cosine and sine of the time of the year, for periods of a year and of half a year, shape (days, 4).

    Examples
    --------
    >>> harmonics(np.array([0])).tolist()
    [[1.0, 0.0, 1.0, 0.0]]
    """
    angle = 2.0 * np.pi * np.asarray(day) / n_days
    return np.column_stack([np.cos(angle), np.sin(angle), np.cos(2 * angle), np.sin(2 * angle)])
