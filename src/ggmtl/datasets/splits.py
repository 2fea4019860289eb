"""Training and test rows: a random share of every task, or the first part of every time series.

With values s_t of one place, a row is (s_{t−lags+1}, …, s_t) and its target s_{t+horizon}.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ggmtl.data.task_data import TaskData
from ggmtl.errors import InputError, ParameterError, check_share


def split_rows(
    data: TaskData, share: float, random_state: int | np.random.Generator | None = 0, by: str | None = None
) -> tuple[TaskData, TaskData]:
    """Draw a share of each task's rows for training; the rest are for testing.

    Of N_i rows, ``round(share · N_i)`` are drawn without replacement: at least one, and not all where there
    are two or more. This is the paper's protocol with r = `share`.

    Parameters
    ----------
    data : TaskData
    share : float
        Share of the rows of each task that goes to training, between 0 and 1.
    random_state : int, Generator or None
        Seed of the draw.
    by : {None, "groups"}
        ``"groups"`` draws whole groups of ``data.groups`` instead of rows: within each task where every group
        lies in one task, else over all tasks together, so that no group is ever on both sides.

    Returns
    -------
    train, test : TaskData
        Rows keep their order. True graph, models and coordinates stay with a part that has every task.

    Examples
    --------
    >>> data = TaskData(X=[[0.0]] * 10, y=[0.0] * 10, tasks=["a"] * 5 + ["b"] * 5)
    >>> train, test = split_rows(data, 0.2)
    >>> len(train), len(test)
    (2, 8)
    """
    check_share("share", share)
    if by not in (None, "groups"):
        raise ParameterError(f"by must be None or 'groups'. Got {by!r} instead.")
    rng = np.random.default_rng(random_state)
    train = _draw_groups(data, share, rng) if by == "groups" else _draw_units(data.task_index, share, rng)
    return _part(data, train), _part(data, ~train)


def _draw_units(block: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Mask of the drawn units: ``round(share · size)`` of each block, shape (units,)."""
    size = np.bincount(block)
    quota = np.clip(np.round(share * size), 1, np.maximum(size - 1, 1)).astype(np.int64)
    order = np.lexsort((rng.random(len(block)), block))
    rank = np.empty(len(block), dtype=np.int64)
    rank[order] = np.arange(len(block)) - np.repeat(np.cumsum(size) - size, size)
    return rank < quota[block]


def _draw_groups(data: TaskData, share: float, rng: np.random.Generator) -> np.ndarray:
    if data.groups is None:
        raise InputError("by='groups' needs data with groups, but data.groups is None. Use by=None instead.")
    _, first, group = np.unique(data.groups, return_index=True, return_inverse=True)
    group = group.reshape(-1)
    task_of_group = data.task_index[first]
    if (task_of_group[group] != data.task_index).any():
        # A group that spans tasks can only be kept whole by drawing over all tasks at once.
        task_of_group = np.zeros_like(task_of_group)
    train = _draw_units(task_of_group, share, rng)[group]
    without = np.bincount(data.task_index[train], minlength=len(data.task_names)) == 0
    if without.any():
        raise InputError(
            f"Task {data.task_names.tolist()[without.argmax()]!r} has no row in the groups drawn for "
            "training. Use a larger share or another random_state."
        )
    return train


def _part(data: TaskData, mask: np.ndarray) -> TaskData:
    part = data.take(mask)
    if len(part.task_names) == len(data.task_names):
        return part
    return replace(part, graph=None, coefficients=None, coordinates=None)


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
