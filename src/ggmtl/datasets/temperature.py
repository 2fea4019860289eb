"""Temperatures of US weather stations: hourly forecasts (TMY3), and daily means that come with the package."""

from __future__ import annotations

import logging
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np

from ggmtl.data.frames import as_table
from ggmtl.data.task_data import TaskData
from ggmtl.data.task_features import on_sphere, spread_out
from ggmtl.datasets._files import DataFile, find_file, numbers, read_npz
from ggmtl.datasets.splits import forecast_tasks
from ggmtl.errors import InputError, ParameterError

HOME = (
    "NREL, National Solar Radiation Data Base, 1991–2005 update: Typical Meteorological Year 3 (hourly "
    "dry-bulb temperatures of its stations, gathered in one NPZ file)"
)
TMY3_109 = DataFile(
    "tmy3/tmy3_drybulb_109.npz", "6033196f4647821e2be9e5ca2fba3b9be93c5e634a9aa1a55509c628fdf2e108", HOME
)
TMY3_ALL = DataFile(
    "tmy3/tmy3_drybulb_all.npz", "4287e0c773e15a6be1e7067960c3401d809684233f52c69d93a32ce7c7c25a08", HOME
)
ARRAYS = ("temp_decic", "name", "lat", "lon")
STATION_COUNTS = (109, 490, 1020)
LAGS = 30
TRAIN_SHARE = 0.2
# Degrees, and degrees per hour, beyond which a reading is taken for a fault rather than for weather.
HOTTEST, FASTEST = 54.0, 30.0

logger = logging.getLogger("ggmtl")


def load_tmy3(
    n_stations: int = 109, horizon: int = 8, every: int = 1, path: str | Path | None = None, download: bool = False
) -> TaskData:
    """Dry-bulb temperature (°C) `horizon` hours ahead from the last 30 hours: 109, 490 or 1,020 tasks.

    The year has 8,760 hours. The first 20 % of each station's rows are for training, the later ones are in
    `test`. Faulty readings (above 54 °C, or a change of more than 30 °C within an hour) are kept, listed in
    `notes`, and logged as a warning on the logger ``ggmtl``.

    Parameters
    ----------
    n_stations : {109, 490, 1020}
        A selection that comes as a file of its own; a farthest-point choice among all; all of them.
    horizon : int
        Hours ahead; the paper has 8 and 16.
    every : int
        Use every k-th hour as a row (its 30 features stay hourly). All 1,020 stations with ``every=1`` take
        about 4 GB.
    path : str or Path, optional
        A file with the arrays ``temp_decic`` (stations, hours; tenths of °C), ``name``, ``lat``, ``lon``;
        all of its stations are used, and `n_stations` is not. Not hash-checked.
    download : bool
        As for the other loaders; this file has no stable address yet, so True only says where to get it.

    Returns
    -------
    TaskData
        Tasks are station names; `coordinates` are (longitude, latitude).

    Examples
    --------
    >>> data = load_tmy3(109, horizon=8, every=8)  # doctest: +SKIP
    >>> len(data.task_names), data.X.shape[1]  # doctest: +SKIP
    (109, 30)
    """
    if n_stations not in STATION_COUNTS:
        raise ParameterError(f"n_stations must be 109, 490 or 1020. Got {n_stations!r} instead.")
    found = find_file(TMY3_109 if n_stations == 109 else TMY3_ALL, path, download)
    arrays = read_npz(found, ARRAYS)
    names = arrays["name"]
    position = np.column_stack([numbers(found, arrays, "lon"), numbers(found, arrays, "lat")])
    series = numbers(found, arrays, "temp_decic") / 10.0
    if series.shape != (len(names), series.shape[-1]) or len(position) != len(names):
        raise InputError(
            f"{found}: temp_decic must have one row per name. Got {series.shape} and {names.shape} instead."
        )
    keep = np.arange(len(names))
    if path is None and n_stations == 490:
        points = on_sphere(*position.T)
        keep = np.sort(spread_out(points - points.mean(axis=0), n_stations))
    notes = _faults(series[keep], names[keep])
    if notes:
        logger.warning(
            "TMY3: %d stations have faulty readings, kept as they are (see notes): %s, …", len(notes), notes[0]
        )
    return forecast_tasks(series[keep], names[keep], LAGS, horizon, TRAIN_SHARE, every, position[keep], notes)


def _faults(series: np.ndarray, names: np.ndarray) -> tuple[str, ...]:
    """One sentence for each station with a fault: the hottest first, then the greatest leaps."""
    hottest, leap = series.max(axis=1), np.abs(np.diff(series, axis=1)).max(axis=1)
    hot = [k for k in np.argsort(-hottest, kind="stable") if hottest[k] > HOTTEST]
    fast = [k for k in np.argsort(-leap, kind="stable") if leap[k] > FASTEST and k not in hot]
    return (
        *(
            f"station {names[k]} has {int((series[k] > HOTTEST).sum())} readings above {HOTTEST:.0f} °C, "
            f"up to {hottest[k]:.1f} °C"
            for k in hot
        ),
        *(f"station {names[k]} changes by {leap[k]:.1f} °C within an hour" for k in fast),
    )


_PLACE = ("longitude", "latitude", "elevation")
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
        arrays = read_npz(path, ("station", "change_decic", *_PLACE))
    temperature = np.cumsum(arrays["change_decic"], axis=1, dtype=np.int64) / 10.0
    n_stations, n_days = temperature.shape
    if not isinstance(days, (int, np.integer)) or not 1 <= days < n_days:
        raise ParameterError(f"days must be a whole number from 1 to {n_days - 1}. Got {days!r} instead.")
    order = np.random.default_rng(random_state or 0).random((n_stations, n_days)).argsort(axis=1)
    is_training = np.zeros((n_stations, n_days), dtype=bool)
    np.put_along_axis(is_training, order[:, :days], True, axis=1)
    station = arrays["station"]
    known = {"task": station} | {name: arrays[name].astype(np.float64) for name in _PLACE}
    known["state"] = np.array([name[-2:] for name in station])

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
