"""Time series of many places → forecasting tasks.

With hourly (or any other) values s_t of one place, a row is (s_{t−lags+1}, …, s_t) and its target
s_{t+horizon}.
"""

from __future__ import annotations

import numpy as np

from ggmtl.data.task_data import TaskData
from ggmtl.errors import InputError, ParameterError


def forecast_tasks(
    series: np.ndarray,
    names: np.ndarray,
    lags: int,
    horizon: int,
    train_share: float,
    every: int = 1,
    coordinates: np.ndarray | None = None,
    notes: tuple[str, ...] = (),
) -> TaskData:
    """Rows of each series, shape (n, times); the first share of them for training, the rest in `test`."""
    _check_window(series, lags, horizon, every)
    # Task data order their tasks by label, and coordinates go with that order.
    order = np.argsort(names)
    series, names = series[order], np.asarray(names)[order]
    n_starts = series.shape[1] - lags - horizon + 1
    n_rows = len(range(0, n_starts, every))
    n_train = int(train_share * n_rows)
    if not 0 < n_train < n_rows:
        raise InputError(f"{n_rows} rows per task are too few to train on the first {train_share:.0%} of them.")
    first_test = n_train * every
    common = {
        "feature_names": tuple(f"t-{lag}" if lag else "t" for lag in range(lags - 1, -1, -1)),
        "coordinates": None if coordinates is None else np.asarray(coordinates)[order],
        "notes": notes,
    }
    test = TaskData(*_windows(series, names, slice(first_test, n_starts, every), lags, horizon), **common)
    train = _windows(series, names, slice(0, first_test, every), lags, horizon)
    return TaskData(*train, **common, test=test)


def _windows(
    series: np.ndarray, names: np.ndarray, starts: slice, lags: int, horizon: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, targets and labels of the rows whose first value stands at the given times."""
    n_starts = series.shape[1] - lags - horizon + 1
    view = np.lib.stride_tricks.sliding_window_view(series, lags, axis=1)
    X = np.ascontiguousarray(view[:, :n_starts][:, starts])
    y = series[:, lags - 1 + horizon :][:, starts]
    return X.reshape(-1, lags), y.ravel(), np.repeat(names, y.shape[1])


def _check_window(series: np.ndarray, lags: int, horizon: int, every: int) -> None:
    for name, value in (("lags", lags), ("horizon", horizon), ("every", every)):
        if not isinstance(value, (int, np.integer)) or value < 1:
            raise ParameterError(f"{name} must be a whole number of at least 1. Got {value!r} instead.")
    if series.shape[1] < lags + horizon:
        raise InputError(
            f"Each series must have at least lags + horizon = {lags + horizon} values. Got {series.shape[1]} instead."
        )
