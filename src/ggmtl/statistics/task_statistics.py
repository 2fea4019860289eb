"""Per-task sufficient statistics: XᵀX, Xᵀy, yᵀy, sums and counts, which add and subtract."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ggmtl.data.curves import Curves
from ggmtl.data.folds import deal_folds
from ggmtl.data.frames import as_frame
from ggmtl.data.labels import join_labels, locate_tasks
from ggmtl.data.reading import read_training
from ggmtl.data.task_data import TaskData
from ggmtl.errors import InputError, InputTypeError, ParameterError, did_you_mean, warn_user
from ggmtl.runtime.kernels import segment_cross_products
from ggmtl.runtime.machine import require_memory
from ggmtl.statistics.least_squares import LeastSquares, least_squares
from ggmtl.statistics.streaming.readers import StreamReaders

# Tasks whose sums are moved at a time: few enough to stay in the processor's cache.
_CHUNK_TASKS = 256


@dataclass(frozen=True, repr=False)
class TaskStatistics(StreamReaders):
    """Sums of the rows, from which all models are computed.

    Held as ``cross``: for every fold and task the matrix Σ_r z_r z_rᵀ of z = (x − origin, 1, y − target origin).
    All sums are entries of it, and any centring, scaling or intercept column is one congruence T · T ᵀ.

    Build one with :meth:`from_arrays` or :meth:`from_frame`, or, where the rows are not in memory, with
    :meth:`from_parquet`, :meth:`from_csv`, :meth:`from_arrow_stream`, :meth:`from_dask` or :meth:`from_spark`; the
    public sums are those of exactly the columns given.

    Examples
    --------
    >>> a = TaskStatistics.from_arrays([[1.0], [2.0]], [1.0, 3.0], ["u", "v"])
    >>> b = TaskStatistics.from_arrays([[4.0]], [5.0], ["v"])
    >>> (a + b).gram.ravel().tolist(), (a + b).moment.ravel().tolist()
    ([1.0, 20.0], [1.0, 26.0])
    """

    cross: np.ndarray
    origin: np.ndarray
    task_names: np.ndarray
    feature_names: tuple[str, ...]
    has_folds: bool = False
    curves: Curves | None = None

    # ------------------------------------------------------------------ making

    @classmethod
    def from_arrays(
        cls,
        X: Any,
        y: Any,
        tasks: Any,
        sample_weight: Any = None,
        folds: Any = None,
        curves: Curves | str | None = None,
    ) -> TaskStatistics:
        """Collect the statistics of rows in memory.

        Parameters
        ----------
        X, y, tasks : arrays of shape (rows, d), (rows,), (rows,)
            Features, target and task label of each row.
        sample_weight : array of shape (rows,), optional
            Whole numbers count rows: two counts a row twice. Weights with fractions are divided by their mean, so
            that statistics of parts with such weights do not add up.
        folds : int or array of shape (rows,), optional
            Fold number of each row (0, 1, …), or how many folds to deal the rows into.
        curves : "auto" or the ``curves`` of other statistics, optional
            Also collect the sums of curves, for ``effects="smooth"`` or ``"auto"``.
        """
        data = read_training(X, y, tasks, sample_weight=sample_weight)
        return cls.from_data(data, _folds_of_present(folds, sample_weight), curves)

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        task: str,
        target: str,
        features: Iterable[str] | None = None,
        sample_weight: str | None = None,
        folds: Any = None,
        curves: Curves | str | None = None,
    ) -> TaskStatistics:
        """Collect the statistics of a pandas, polars or pyarrow table."""
        import narwhals.stable.v1 as nw

        table = nw.from_native(as_frame(frame, "The table"), eager_only=True)
        known = list(table.columns)
        chosen = [c for c in known if c not in (task, target, sample_weight)] if features is None else list(features)
        for column in [task, target, *chosen, *([sample_weight] if sample_weight else [])]:
            if column not in known:
                raise InputError(f"The table has no column {column!r}.{did_you_mean(column, known)}")
        if len({*chosen, task, target}) < len(chosen) + 2:
            raise InputError(
                f"features must be different columns, neither the task nor the target. Got {chosen} instead."
            )
        weight = table[sample_weight].to_numpy() if sample_weight else None
        data = read_training(
            table.select([task, *chosen]).to_native(), table[target].to_native(), task=task, sample_weight=weight
        )
        return cls.from_data(data, _folds_of_present(folds, weight), curves)

    @classmethod
    def from_data(cls, data: TaskData, folds: Any = None, curves: Curves | str | None = None) -> TaskStatistics:
        """Collect the statistics of rows already read."""
        if curves is not None:
            curves = Curves.of_rows(data.X, data.sample_weight) if isinstance(curves, str) else curves
            folds = deal_folds(data, int(folds)) if folds is not None and np.ndim(folds) == 0 else folds
            return replace(cls.from_data(curves.expanded(data), folds), curves=curves)
        if folds is None:
            fold, n_folds = np.zeros(len(data), dtype=np.int64), 1
        elif np.ndim(folds) == 0:
            fold, n_folds = deal_folds(data, int(folds)), int(folds)
        else:
            fold = np.asarray(folds)
            if fold.shape != (len(data),) or fold.dtype.kind not in "iu" or fold.min() < 0:
                raise ParameterError(f"folds must be whole numbers from 0, one per row ({len(data)} of them).")
            n_folds = int(fold.max()) + 1
        width = data.X.shape[1] + 2
        require_memory(
            8.0 * (n_folds * len(data.task_names) * width**2 + len(data) * width),
            f"the statistics of {len(data.task_names):,} tasks, {width - 2} features and {n_folds} fold(s)",
            "Use fewer folds or features, or add up statistics of parts of the rows.",
        )
        weight = data.sample_weight
        origin = np.append(np.average(data.X, axis=0, weights=weight), np.average(data.y, weights=weight))
        rows = np.empty((len(data), data.X.shape[1] + 2))
        rows[:, :-2] = data.X - origin[:-1]
        rows[:, -2] = 1.0
        rows[:, -1] = data.y - origin[-1]
        if weight is not None:
            rows *= np.sqrt(weight)[:, None]
        n = len(data.task_names)
        cross = segment_cross_products(rows, fold * n + data.task_index, n_folds * n)
        return cls(
            cross.reshape(n_folds, n, *cross.shape[1:]), origin, data.task_names, data.columns, folds is not None
        )

    # ------------------------------------------------------------------ reading

    def __repr__(self) -> str:
        rows = float(self.cross[..., -2, -2].sum())
        folds = f", {self.n_folds} folds" if self.has_folds else ""
        return f"TaskStatistics({self.n_tasks} tasks, {self.n_features} features, {rows:.12g} rows{folds})"

    @property
    def n_tasks(self) -> int:
        """Number of tasks."""
        return len(self.task_names)

    @property
    def n_features(self) -> int:
        """Number of feature columns."""
        return len(self.feature_names)

    @property
    def n_folds(self) -> int:
        """Number of folds; zero when the rows were not dealt into folds."""
        return len(self.cross) if self.has_folds else 0

    @cached_property
    def _raw(self) -> np.ndarray:
        """Cross products of (x, 1, y) themselves, summed over folds, shape (n, d+2, d+2)."""
        raw = self.transformed(np.zeros(self.n_features), np.ones(self.n_features), 0.0, 1.0).cross.sum(axis=0)
        raw.flags.writeable = False
        return raw

    @property
    def gram(self) -> np.ndarray:
        """XᵀX of every task, shape (n, d, d)."""
        return self._raw[:, :-2, :-2]

    @property
    def moment(self) -> np.ndarray:
        """Xᵀy of every task, shape (n, d)."""
        return self._raw[:, :-2, -1]

    @property
    def target_square(self) -> np.ndarray:
        """yᵀy of every task, shape (n,)."""
        return self._raw[:, -1, -1]

    @property
    def feature_sum(self) -> np.ndarray:
        """Σ x of every task, shape (n, d)."""
        return self._raw[:, :-2, -2]

    @property
    def target_sum(self) -> np.ndarray:
        """Σ y of every task, shape (n,)."""
        return self._raw[:, -1, -2]

    @property
    def count(self) -> np.ndarray:
        """Rows (sum of weights) of every task, shape (n,)."""
        return self.cross[:, :, -2, -2].sum(axis=0)

    def fold(self, k: int) -> TaskStatistics:
        """Statistics of the rows of fold `k`."""
        self._check_fold(k)
        return replace(self, cross=self.cross[k : k + 1], has_folds=False)

    def total(self) -> TaskStatistics:
        """Statistics of all rows, without folds."""
        return replace(self, cross=self.cross.sum(axis=0, keepdims=True), has_folds=False)

    def take(self, tasks: np.ndarray) -> TaskStatistics:
        """Statistics of the tasks at the given positions."""
        return replace(self, cross=self.cross[:, tasks], task_names=self.task_names[tasks])

    def without_curves(self) -> TaskStatistics:
        """Statistics of the features alone, as of rows read without ``curves``."""
        if self.curves is None:
            return self
        names = self.feature_names[: self.n_features - self.curves.n_columns]
        kept = np.r_[: len(names), -2, -1] % (self.n_features + 2)
        origin = np.append(self.origin[: len(names)], self.origin[-1])
        cross = self.cross[:, :, kept[:, None], kept]
        return replace(self, cross=cross, origin=origin, feature_names=names, curves=None)

    def least_squares(self, intercept: bool = False) -> LeastSquares:
        """The squared loss over all folds, of the columns as given, or with a constant column appended."""
        cross = self.transformed(np.zeros(self.n_features), np.ones(self.n_features), 0.0, 1.0).cross.sum(axis=0)
        return least_squares(cross, intercept)

    def _check_fold(self, k: int) -> None:
        if not 0 <= k < self.n_folds:
            raise ParameterError(f"fold must be in 0 … {self.n_folds - 1}. Got {k} instead.")

    # ------------------------------------------------------------------ algebra

    def transformed(
        self, center: np.ndarray, scale: np.ndarray, target_center: float, target_scale: float
    ) -> TaskStatistics:
        """Statistics of (x − center)/scale and (y − target_center)/target_scale, held about zero."""
        shift = self.origin - np.append(center, target_center)
        unit = np.append(scale, target_scale)
        cross = _congruence(self.cross, shift, unit)
        return TaskStatistics(cross, np.zeros_like(self.origin), self.task_names, self.feature_names, self.has_folds)

    def _about(self, origin: np.ndarray) -> np.ndarray:
        return _congruence(self.cross, self.origin - origin, np.ones_like(origin))

    def __add__(self, other: TaskStatistics) -> TaskStatistics:
        return self._combine(other, 1.0)

    def __sub__(self, other: TaskStatistics) -> TaskStatistics:
        if not isinstance(other, TaskStatistics):
            return self._combine(other, -1.0)
        unknown = other.task_names[locate_tasks(self.task_names, other.task_names) < 0]
        if len(unknown):
            raise InputError(f"Cannot subtract task {unknown[0]!r}: it is not among the tasks subtracted from.")
        rest = self._combine(other, -1.0)
        rest.check_counts()
        return rest

    def check_counts(self) -> None:
        """Refuse a negative number of rows in a task or fold, as after subtracting rows that were never added."""
        count = self.cross[:, :, -2, -2]
        negative = ~(count >= -1e-9 * np.abs(count).max(initial=0.0))
        if negative.any():
            task = int(negative.any(axis=0).argmax())
            name = self.task_names[task].item()
            raise InputError(
                f"The statistics have {count[:, task].min():.6g} rows of task {name!r}. A count cannot be "
                "negative. Subtract only rows that were added, to the same folds."
            )

    def _combine(self, other: TaskStatistics, sign: float) -> TaskStatistics:
        if not isinstance(other, TaskStatistics):
            raise InputTypeError(f"Only TaskStatistics can be added or subtracted. Got {type(other).__name__} instead.")
        if other.feature_names != self.feature_names:
            raise InputError(
                f"Statistics of different features do not add up: {list(self.feature_names)} and "
                f"{list(other.feature_names)}."
            )
        if (self.curves is None) != (other.curves is None) or (
            self.curves is not None and other.curves is not None and not self.curves.is_same(other.curves)
        ):
            raise InputError(
                "Statistics with different curves do not add up. Read the second rows with curves= the first "
                "statistics' .curves."
            )
        if (self.task_names.dtype.kind in "US") != (other.task_names.dtype.kind in "US"):
            raise InputTypeError(
                f"Task labels must be all strings or all numbers. Got {self.task_names[0]!r} and "
                f"{other.task_names[0]!r} instead."
            )
        keep_folds = self.has_folds and other.has_folds and len(self.cross) == len(other.cross)
        if self.has_folds and other.has_folds and not keep_folds:
            warn_user(
                f"The statistics have {len(self.cross)} and {len(other.cross)} folds, so their sum has none. A model "
                "of it has no error on held-out rows. Read both with the same number of folds."
            )
        left, right = (self, other) if keep_folds else (self.total(), other.total())
        names, position = np.unique(join_labels([left.task_names, right.task_names]), return_inverse=True)
        here, there = np.split(position.reshape(-1), [left.n_tasks])
        cross = np.zeros((len(left.cross), len(names), *left.cross.shape[2:]))
        cross[:, here] += left.cross
        cross[:, there] += sign * right._about(left.origin)
        return replace(left, cross=cross, task_names=names, has_folds=keep_folds)


def _folds_of_present(folds: Any, sample_weight: Any) -> Any:
    """The folds given, without those of rows of weight zero."""
    if folds is None or sample_weight is None or np.ndim(folds) != 1:
        return folds
    folds, weight = np.asarray(folds), np.ravel(sample_weight)
    return folds[weight > 0] if len(weight) == len(folds) else folds


def _congruence(cross: np.ndarray, shift: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """T cross Tᵀ where T maps (x, 1, y) to ((x + shift)/unit, 1, (y + target shift)/target unit)."""
    if not shift.any() and (unit == 1).all():
        return cross
    one = cross.shape[-1] - 2
    move, factor = np.insert(shift, one, 0.0), np.insert(1.0 / unit, one, 1.0)
    out = np.empty_like(cross)
    for fold in range(len(cross)):
        for first in range(0, cross.shape[1], _CHUNK_TASKS):
            part, here = cross[fold, first : first + _CHUNK_TASKS], out[fold, first : first + _CHUNK_TASKS]
            # Add shift times the row of ones, then the same for columns; scaling last.
            np.add(part, move[:, None] * part[:, one, None, :], out=here)
            here += move * here[:, :, one, None]
            here *= factor[:, None]
            here *= factor
    return out
