"""The constructors of :class:`TaskStatistics` for rows that are on disk, in a stream or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from ggmtl.errors import InputTypeError, did_you_mean, require

if TYPE_CHECKING:
    from ggmtl.data.curves import Curves
    from ggmtl.statistics.streaming.sources import BatchSource
    from ggmtl.statistics.task_statistics import TaskStatistics

# pyarrow, dask and pyspark are optional, so the modules that need them are imported in the constructors.


class StreamKeywords(TypedDict, total=False):
    """Keywords that all constructors take, described in :meth:`StreamReaders.from_parquet`."""

    features: Iterable[str] | None
    sample_weight: str | None
    folds: int | None
    batch_rows: int | None
    progress: Callable[[Any], object] | None
    categories: Mapping[str, Sequence[Any]] | str | None
    drop_missing: bool
    curves: Curves | str | None


class StreamReaders:
    """Constructors of :class:`TaskStatistics` that never hold the rows: statistics of parts add up."""

    @classmethod
    def from_parquet(cls, path: Any, *, task: str, target: str, **options: Unpack[StreamKeywords]) -> TaskStatistics:
        """Collect the statistics of Parquet files that need not fit in memory.

        Memory: the statistics, 8·K·n·(d+2)² bytes for n tasks, d features and K folds; one batch and its floats,
        about twice 32 MB unless `batch_rows` says otherwise; and the reader's buffers, a few times 16 MB and a page
        of every column read. Tasks are discovered as they appear.

        Parameters
        ----------
        path : path, or list of paths
            A file, a folder, a glob pattern or a remote address; ``key=value`` folders (Hive) become columns.
        task, target : str
            Columns of the task labels and of the target.
        features : list of str, optional
            Feature columns; by default all others.
        sample_weight : str, optional
            Column of weights: two counts a row twice, zero leaves it out.
        folds : int, optional
            Number of folds K. The fold of a row is a hash of its features and target modulo K, so that another
            run, batch size, order of rows or machine puts it in the same fold.
        batch_rows : int, optional
            Rows summed at a time; by default as many as fill 32 MB. Changes the sums by rounding only.
        progress : callable, optional
            Called about every two seconds, and at the end, with an object that has ``rows``, ``tasks``,
            ``seconds``, ``rows_per_second`` and ``source``. The same is logged to "ggmtl" at level INFO.
        categories : dict or "auto", optional
            ``{column: values}``: such a column becomes a 0/1 feature ``"column=value"`` for each value but the
            first, which the others are compared with. "auto" finds the values of every text column in a first
            pass, in sorted order, 200 at most.
        drop_missing : bool
            Leave out rows with missing or infinite values, and log how many, instead of refusing them. A missing
            task label is always refused.
        curves : "auto" or the ``curves`` of statistics, optional
            Also collect the sums of curves, for ``GGMTLRegressor(effects="smooth").fit_statistics``. "auto" places the
            knots in a first pass over the rows. Statistics add up where their curves are the same: read more rows with
            ``curves=statistics.curves``.
        """
        require("pyarrow", "cli", "Reading Parquet files")
        from ggmtl.statistics.streaming.sources import FileSource

        return _read(lambda: FileSource(path, "parquet"), task, target, options)

    @classmethod
    def from_csv(cls, path: Any, *, task: str, target: str, **options: Unpack[StreamKeywords]) -> TaskStatistics:
        """Collect the statistics of CSV files that need not fit in memory.

        Everything as in :meth:`from_parquet`. Whole numbers in feature and target columns are read as floats. Task
        labels are read as text, and become whole numbers where all are written as such, without leading zeros. An
        empty field is a missing value.
        """
        require("pyarrow", "cli", "Reading CSV files")
        from ggmtl.statistics.streaming.sources import FileSource

        return _read(lambda: FileSource(path, "csv"), task, target, options)

    @classmethod
    def from_arrow_stream(
        cls, stream: Any, *, task: str, target: str, **options: Unpack[StreamKeywords]
    ) -> TaskStatistics:
        """Collect the statistics of any object with ``__arrow_c_stream__``.

        Such are a DuckDB relation (the query is run and its result never held), a Polars data frame, a pyarrow
        ``RecordBatchReader`` or ``Table``. Everything as in :meth:`from_parquet`; memory besides the statistics
        and a batch is what the object itself holds.

        Examples
        --------
        >>> import pyarrow as pa
        >>> table = pa.table({"shop": ["u", "v", "v"], "x": [1.0, 2.0, 4.0], "y": [1.0, 3.0, 5.0]})
        >>> from ggmtl import TaskStatistics
        >>> TaskStatistics.from_arrow_stream(table, task="shop", target="y").gram.ravel().tolist()
        [1.0, 20.0]
        """
        require("pyarrow", "cli", "Reading Arrow streams")
        from ggmtl.statistics.streaming.sources import StreamSource

        return _read(lambda: StreamSource(stream), task, target, options)

    @classmethod
    def from_dask(cls, frame: Any, *, task: str, target: str, **options: Unpack[StreamKeywords]) -> TaskStatistics:
        """Collect the statistics of a Dask data frame where its rows are.

        Every partition is reduced to its sums on a worker, eight sums at a time are added on the workers, and the
        total comes back. Partitions of a lost worker are computed again by Dask. Parameters as in
        :meth:`from_parquet`; for progress see Dask's dashboard.
        """
        require("pyarrow", "dask", "TaskStatistics.from_dask")
        from ggmtl.statistics.streaming.sources import DaskSource

        return _read(lambda: DaskSource(frame), task, target, options)

    @classmethod
    def from_spark(cls, frame: Any, *, task: str, target: str, **options: Unpack[StreamKeywords]) -> TaskStatistics:
        """Collect the statistics of a Spark data frame where its rows are.

        Every partition becomes one binary row with its sums (``mapInArrow``; ``ggmtl`` must be installed on the
        executors), the rows are added eight at a time in rounds, and one comes back: statistics of at most two
        gigabytes. Lost tasks are computed again by Spark. Parameters as in :meth:`from_parquet`; for progress
        see Spark's pages.
        """
        require("pyarrow", "spark", "TaskStatistics.from_spark")
        from ggmtl.statistics.streaming.sources import SparkSource

        return _read(lambda: SparkSource(frame), task, target, options)


def _read(open_source: Callable[[], BatchSource], task: str, target: str, options: Any) -> TaskStatistics:
    from ggmtl.statistics.streaming.batches import StreamOptions
    from ggmtl.statistics.streaming.passes import read_source

    known = StreamKeywords.__annotations__
    for name in options:
        if name not in known:
            raise InputTypeError(
                f"There is no option {name!r}.{did_you_mean(name, known)} The options are {', '.join(known)}."
            )
    checked = StreamOptions(task, target, **options)
    return read_source(open_source(), checked)
