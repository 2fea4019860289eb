"""Statistics of rows that are read once and never held.

In: Parquet and CSV files, anything that streams Arrow data, Dask and Spark data frames. Out: ``TaskStatistics``.

- ``readers``: the entry points (``from_parquet``, ``from_csv``, ``from_arrow_stream``, ``from_dask``, ``from_spark``).
- ``sources``: files and streams → Arrow batches; ``batches``: batches → numbers and labels, with their checks.
- ``single_pass``: batches → sums; ``partials``: sums of one partition as bytes; ``dask``, ``spark``: partitions.
"""
