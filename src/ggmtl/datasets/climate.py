"""The paper's climate data, which could not be had and are read from the user's own file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ggmtl.data.task_data import TaskData
from ggmtl.datasets._files import user_file
from ggmtl.datasets._series import forecast_tasks
from ggmtl.datasets._tables import numbers, read_csv, read_npz
from ggmtl.errors import InputError, ParameterError

LAGS = 30
TRAIN_SHARE = 0.2
N_PARTITIONS, TRAIN_YEARS, TEST_YEARS = 5, 50, 10
PLACE = ("location", "longitude", "latitude", "year", "month", "temperature")


def load_temperature_normals(path: str | Path, horizon: int = 8, every: int = 1) -> TaskData:
    """Hourly normals of US stations, `horizon` hours ahead from the last 30 (the paper's *Temperature*).

    The paper used NOAA's 1981–2010 hourly normals of 109 stations, 8,759 hours, cleaned by others; that file
    does not come with this package. `path` is your own:

    - ``.csv``, one line per station and hour: columns ``station, hour, temperature`` and, if known,
      ``longitude, latitude``. Hours are whole numbers; every station must have the same ones, without a gap.
    - ``.npz``: arrays ``temperature`` (stations, hours), ``station`` and, if known, ``longitude``,
      ``latitude``.

    The first 20 % of each station's rows are for training, the later ones are in `test`; `every` keeps every
    k-th.

    Examples
    --------
    >>> load_temperature_normals("normals.csv", horizon=8)  # doctest: +SKIP
    """
    path = user_file(path)
    read = {".csv": _normals_from_csv, ".npz": _normals_from_npz}.get(path.suffix.lower())
    if read is None:
        raise InputError(f"path must end in .csv or .npz. Got {path.name!r} instead.")
    names, series, coordinates = read(path)
    return forecast_tasks(series, names, LAGS, horizon, TRAIN_SHARE, every, coordinates)


def load_climate_grid(path: str | Path, partition: int | None = None) -> TaskData:
    """Monthly mean temperature of grid points from climate models' outputs (the paper's *South* and *North*).

    The paper had 250 points in South and 490 in North America, 1901–2000. `path` is your own file:

    - ``.csv``, one line per point and month: columns ``location, longitude, latitude, year, month,
      temperature``; every other column is a feature, such as the temperature that one climate model gives.
    - ``.npz``: the same names as arrays of shape (rows,), and ``features`` (rows, d), optionally
      ``feature_names`` (d,).

    Parameters
    ----------
    path : str or Path
    partition : {None, 0, 1, 2, 3, 4}
        None: all rows. k: 50 years from the first year + 10k on for training and the next ten in `test`.

    Examples
    --------
    >>> load_climate_grid("south_america.csv", partition=0)  # doctest: +SKIP
    """
    path = user_file(path)
    read = {".csv": _grid_from_csv, ".npz": _grid_from_npz}.get(path.suffix.lower())
    if read is None:
        raise InputError(f"path must end in .csv or .npz. Got {path.name!r} instead.")
    columns, features, feature_names = read(path)
    year = numbers(path, columns, "year").astype(np.int64)
    tasks = np.asarray(columns["location"])
    data = TaskData(
        X=features,
        y=numbers(path, columns, "temperature"),
        tasks=tasks,
        feature_names=feature_names,
        coordinates=_coordinates(path, columns, tasks),
    )
    return data if partition is None else _partition(data, year, partition)


def _normals_from_csv(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    columns = read_csv(path, ("station", "hour", "temperature"))
    hour = numbers(path, columns, "hour").astype(np.int64)
    names, index = np.unique(columns["station"], return_inverse=True)
    order = np.lexsort((hour, index.reshape(-1)))
    n_hours, rest = divmod(len(hour), len(names))
    expected = np.tile(hour.min() + np.arange(n_hours), len(names))
    if rest or (hour[order] != expected).any():
        raise InputError(f"{path}: every station must have the same consecutive hours, each once.")
    series = numbers(path, columns, "temperature")[order].reshape(len(names), n_hours)
    has_place = "longitude" in columns and "latitude" in columns
    return names, series, _coordinates(path, columns, columns["station"]) if has_place else None


def _normals_from_npz(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    arrays = read_npz(path, ("temperature", "station"))
    series, names = numbers(path, arrays, "temperature"), arrays["station"]
    if series.ndim != 2 or names.shape != (len(series),) or len(np.unique(names)) < len(names):
        raise InputError(
            f"{path}: temperature must be (stations, hours) and station hold as many different names. "
            f"Got {series.shape} and {names.shape} instead."
        )
    if "longitude" not in arrays or "latitude" not in arrays:
        return names, series, None
    return names, series, np.column_stack([numbers(path, arrays, name) for name in ("longitude", "latitude")])


def _grid_from_csv(path: Path) -> tuple[dict[str, np.ndarray], np.ndarray, tuple[str, ...]]:
    columns = read_csv(path, PLACE)
    names = tuple(name for name in columns if name not in PLACE)
    if not names:
        raise InputError(f"{path} must have at least one feature column besides {', '.join(PLACE)}.")
    return columns, np.column_stack([numbers(path, columns, name) for name in names]), names


def _grid_from_npz(path: Path) -> tuple[dict[str, np.ndarray], np.ndarray, tuple[str, ...] | None]:
    arrays = read_npz(path, (*PLACE, "features"))
    features = numbers(path, arrays, "features")
    if features.ndim != 2:
        raise InputError(f"{path}: features must have shape (rows, d). Got {features.shape} instead.")
    names = tuple(map(str, arrays["feature_names"])) if "feature_names" in arrays else None
    return arrays, features, names


def _coordinates(path: Path, columns: dict[str, np.ndarray], tasks: np.ndarray) -> np.ndarray:
    """Longitude and latitude of each task in the order of its sorted labels, shape (n, 2)."""
    _, first, index = np.unique(tasks, return_index=True, return_inverse=True)
    place = np.column_stack([numbers(path, columns, name) for name in ("longitude", "latitude")])
    moved = (place[first][index.reshape(-1)] != place).any(axis=1)
    if moved.any():
        raise InputError(
            f"{path}: {str(tasks[moved][0])!r} must keep one longitude and latitude in all its rows. "
            f"Got another in data row {int(moved.argmax())}."
        )
    return place[first]


def _partition(data: TaskData, year: np.ndarray, partition: int) -> TaskData:
    if partition not in range(N_PARTITIONS):
        raise ParameterError(f"partition must be None or 0 … {N_PARTITIONS - 1}. Got {partition!r} instead.")
    start = int(year.min()) + TEST_YEARS * partition
    train = (year >= start) & (year < start + TRAIN_YEARS)
    test = (year >= start + TRAIN_YEARS) & (year < start + TRAIN_YEARS + TEST_YEARS)
    parts = [data.take(train), data.take(test)]
    for name, part in zip(("training", "test"), parts):
        if len(part.task_names) < len(data.task_names):
            raise InputError(
                f"partition={partition} leaves a location without {name} rows: the years are "
                f"{year.min()}–{year.max()}, and {TRAIN_YEARS} + {TEST_YEARS} from {start} on are needed."
            )
    return TaskData(
        X=parts[0].X,
        y=parts[0].y,
        tasks=parts[0].tasks,
        feature_names=data.feature_names,
        coordinates=data.coordinates,
        test=parts[1],
    )
