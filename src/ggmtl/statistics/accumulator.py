"""Statistics of rows that arrive in pieces: Σ_r z_r z_rᵀ per task and fold, in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ggmtl.data.curves import Curves
from ggmtl.data.folds import check_fold_number, hash_folds, share_of_repetitions
from ggmtl.data.labels import join_labels, numbers_in_text
from ggmtl.data.reading import check_range
from ggmtl.errors import InputError, InputTypeError, ParameterError
from ggmtl.runtime.kernels import segment_cross_products
from ggmtl.statistics.task_statistics import TaskStatistics

# Bytes of the row buffer.
_BUFFER_BYTES = 2**25
# Bytes of the cross products computed at a time, few enough to stay in the cache until they are added.
_PRODUCT_BYTES = 2**20
# First rows that are searched for repetitions.
_SEARCHED_ROWS = 2**16
# Rows copied at a time from columns into the row-major buffer, few enough to stay in the cache.
_TILE = 512


class StatisticsBuilder:
    """Collect Σ z zᵀ of z = (x − origin, 1, y − target origin) per task and fold, from pieces of any size.

    Rows wait in a buffer of fixed size. When it is full, a hash of each row gives its fold, cross products are added to
    those of the tasks, and the rows are dropped. The origin is the mean of the first
    full buffer. Since the buffer fills up regardless of how the rows arrive, the sums do not depend on the borders
    of the pieces at all; with another `batch_rows` they differ by rounding.

    Memory: the statistics, 8·K·n·(d+2)² bytes (while growing up to an eighth more), and about twice the
    buffer. Where the C library cannot extend a block in place (not Linux), growing holds the statistics twice.

    Parameters
    ----------
    feature_names : sequence of str
        Names of the d features.
    folds : int, optional
        Number of folds K; the fold of a row is a hash of its features and target, modulo K.
    batch_rows : int, optional
        Rows of the buffer; by default as many as fill 32 MB.
    numbers_in_text : bool
        Whether labels come as text that may be whole numbers, as from a CSV file.
    curves : Curves, optional
        Columns of curves that are appended to the features of every row. Folds do not depend on them.

    Examples
    --------
    >>> builder = StatisticsBuilder(["x"])
    >>> labels = np.array(["u", "v"])
    >>> builder.add([np.array([1.0, 2.0])], np.array([1.0, 3.0]), labels, np.array([0, 1]))
    >>> builder.add([np.array([4.0])], np.array([5.0]), labels, np.array([1]))
    >>> builder.statistics().gram.ravel().tolist()
    [1.0, 20.0]
    """

    def __init__(
        self,
        feature_names: Sequence[str],
        folds: int | None = None,
        batch_rows: int | None = None,
        numbers_in_text: bool = False,
        curves: Curves | None = None,
    ):
        if folds is not None:
            check_fold_number(folds)
        if batch_rows is not None and batch_rows < 1:
            raise ParameterError(f"batch_rows must be at least 1. Got {batch_rows} instead.")
        names = tuple(feature_names)
        self._n_given, self._curves = len(names), curves
        self.feature_names = names if curves is None else names + curves.names(names)
        self.n_folds = folds
        self._numbers_in_text = numbers_in_text
        width = len(self.feature_names) + 2
        size = batch_rows or max(_BUFFER_BYTES // (8 * width), 1024)
        self._rows = np.empty((size, width))
        self._task = np.empty(size, dtype=np.int64)
        self._weight: np.ndarray | None = None
        # Share of the first rows that equal other rows, where the same x also comes with another y.
        self.repeated = 0.0
        self._start()

    def _start(self) -> None:
        self.n_rows = 0
        self._filled = 0
        self._origin: np.ndarray | None = None
        self._position: dict[object, int] = {}
        self._labels: list[np.ndarray] = []
        width = self._rows.shape[1]
        self._cross = np.zeros((0, self.n_folds or 1, width, width))

    @property
    def n_tasks(self) -> int:
        """Number of tasks seen so far."""
        return len(self._position)

    # ------------------------------------------------------------------ adding rows

    def add(
        self,
        columns: Sequence[np.ndarray] | np.ndarray,
        target: np.ndarray,
        labels: np.ndarray,
        codes: np.ndarray,
        sample_weight: np.ndarray | None = None,
    ) -> None:
        """Add rows.

        Parameters
        ----------
        columns : sequence of arrays of shape (rows,)
            One finite float array per feature.
        target : array of shape (rows,)
        labels, codes : arrays of shape (tasks,) and (rows,)
            The task of row r is ``labels[codes[r]]``; labels are distinct.
        sample_weight : array of shape (rows,), optional
            Positive.
        """
        if len(columns) != self._n_given:
            raise InputError(f"columns must be the {self._n_given} features. Got {len(columns)} instead.")
        if self._curves is not None:
            columns = [*columns, *self._curves.columns(np.column_stack(list(columns))).T]
        task = self._positions(labels)[codes]
        first = 0
        while first < len(target):
            count = min(len(target) - first, len(self._rows) - self._filled)
            piece = slice(first, first + count)
            self._fill(columns, target, piece)
            self._task[self._filled : self._filled + count] = task[piece]
            self._fill_weight(sample_weight, piece)
            self._filled += count
            self.n_rows += count
            first += count
            if self._filled == len(self._rows):
                self._flush()

    def _positions(self, labels: np.ndarray) -> np.ndarray:
        """Row of each label in the statistics; labels not seen before get the next rows."""
        if self._labels and (labels.dtype.kind in "US") != (self._labels[0].dtype.kind in "US"):
            raise InputTypeError(
                f"Task labels must be all strings or all numbers. Got {self._labels[0][0]!r} and {labels[0]!r} instead."
            )
        known, wanted = self._position, labels.tolist()
        found = list(map(known.get, wanted))
        if None in found:
            new = [k for k, place in enumerate(found) if place is None]
            self._labels.append(labels[new])
            for k in new:
                found[k] = known[wanted[k]] = len(known)
        return np.array(found, dtype=np.int64)

    def _fill(self, columns: Sequence[np.ndarray] | np.ndarray, target: np.ndarray, piece: slice) -> None:
        for start in range(piece.start, piece.stop, _TILE):
            stop = min(start + _TILE, piece.stop)
            place = self._filled + start - piece.start
            tile = self._rows[place : place + stop - start]
            for k, column in enumerate(columns):
                tile[:, k] = column[start:stop]
            tile[:, -2] = 1.0
            tile[:, -1] = target[start:stop]

    def _fill_weight(self, weight: np.ndarray | None, piece: slice) -> None:
        count = piece.stop - piece.start
        if weight is not None and self._weight is None:
            self._weight = np.ones(len(self._rows))
        if self._weight is not None:
            self._weight[self._filled : self._filled + count] = 1.0 if weight is None else weight[piece]

    # ------------------------------------------------------------------ summing

    @np.errstate(over="ignore", invalid="ignore")  # checked once, after the last row
    def _flush(self) -> None:
        """Add the cross products of the waiting rows to those of their tasks."""
        rows, weight = self._rows[: self._filled], None if self._weight is None else self._weight[: self._filled]
        values, given = np.delete(np.arange(rows.shape[1]), -2), np.append(np.arange(self._n_given), rows.shape[1] - 1)
        n_folds = self.n_folds or 1
        segment = self._task[: self._filled] * n_folds
        if self.n_folds:
            segment += hash_folds((rows[:, k].copy() for k in given), len(rows), n_folds)
            if self._origin is None:
                first = slice(_SEARCHED_ROWS)
                self.repeated = share_of_repetitions(self._task[: self._filled][first], rows[first, given].T.copy())
        origin = np.average(rows, axis=0, weights=weight)[values] if self._origin is None else self._origin
        self._origin = origin
        rows[:, :-2] -= origin[:-1]
        rows[:, -1] -= origin[-1]
        if weight is not None:
            rows *= np.sqrt(weight)[:, None]
        self._grow()
        self._sum(rows, segment)
        self._filled = 0

    def _sum(self, rows: np.ndarray, segment: np.ndarray) -> None:
        """Σ z zᵀ of every segment, a few segments at a time, so that the products take less memory than the buffer."""
        width = rows.shape[1]
        total = self._cross.reshape(-1, width, width)
        present = np.flatnonzero(np.bincount(segment))
        code = np.empty(len(total), dtype=np.int64)
        code[present] = np.arange(len(present))
        code = code[segment]
        at_a_time = max(_PRODUCT_BYTES // (8 * width**2), 1)
        if len(present) <= at_a_time:
            total[present] += segment_cross_products(rows, code, len(present))
            return
        # Group the rows by slice only; numbers of 16 bits are sorted without comparisons.
        n_slices = -(-len(present) // at_a_time)
        number = (code // at_a_time).astype(np.uint16 if n_slices <= 2**16 else np.int64)
        order = np.argsort(number, kind="stable")
        cuts = np.concatenate([[0], np.cumsum(np.bincount(number, minlength=n_slices))])
        for k in range(n_slices):
            chosen, places = order[cuts[k] : cuts[k + 1]], present[k * at_a_time : (k + 1) * at_a_time]
            is_run = places[-1] - places[0] == len(places) - 1
            where = slice(places[0], places[-1] + 1) if is_run else places
            local = code.take(chosen) - k * at_a_time
            total[where] += segment_cross_products(rows.take(chosen, axis=0), local, len(places))

    def _grow(self) -> None:
        """Make room for every task seen: doubling while small, by an eighth once the sums are large."""
        capacity = len(self._cross)
        if self.n_tasks > capacity:
            step = capacity if self._cross.nbytes < _BUFFER_BYTES else capacity // 8
            self._resize(max(self.n_tasks, capacity + step))

    def _resize(self, n_tasks: int) -> None:
        # In place, where a new array and a copy would hold the sums twice; no view of them is alive here.
        self._cross.resize((n_tasks, *self._cross.shape[1:]), refcheck=False)

    # ------------------------------------------------------------------ the result

    def statistics(self) -> TaskStatistics:
        """The statistics of all rows added, tasks sorted by label. The builder is empty afterwards."""
        if self._filled:
            self._flush()
        if self._origin is None:
            raise InputError("There are no rows to collect statistics from.")
        self._check_range()
        self._resize(self.n_tasks)
        names = join_labels(self._labels)
        if self._numbers_in_text:
            names = numbers_in_text(names)
        order = np.argsort(names, kind="stable")
        cross, origin = _permuted(self._cross, order), self._origin
        self._start()
        cross = cross.transpose(1, 0, 2, 3)
        return TaskStatistics(
            cross, origin, names[order], self.feature_names, self.n_folds is not None, curves=self._curves
        )

    def _check_range(self) -> None:
        """Refuse columns whose squares have overflowed, or have underflowed to zero."""
        square = np.einsum("nkpp->p", self._cross[: self.n_tasks])
        largest = np.maximum(
            np.sqrt(np.delete(square, -2)), np.abs(np.asarray(self._origin, dtype=float)) * np.sqrt(self.n_rows)
        )
        for name, value in zip([*self.feature_names, None], largest.tolist()):
            check_range(name, value if np.isfinite(value) else np.inf)


def _permuted(blocks: np.ndarray, order: np.ndarray) -> np.ndarray:
    """``blocks[order]``; in place along the cycles of the permutation where a copy would be large."""
    if blocks.nbytes <= _BUFFER_BYTES:
        return blocks[order]
    source = order.tolist()
    for start in range(len(source)):
        if source[start] == start:
            continue
        saved, place = blocks[start].copy(), start
        while source[place] != start:
            blocks[place] = blocks[source[place]]
            source[place], place = place, source[place]
        blocks[place] = saved
        source[place] = place
    return blocks
