"""Statistics of rows that are read once and never held.

In: Parquet and CSV files, anything that streams Arrow data, Dask and Spark data frames. Out: ``TaskStatistics``.

===============  ==========================================================================================
``readers``      the constructors ``from_parquet``, ``from_csv``, ``from_arrow_stream``, ``from_dask``, ``from_spark``
``passes``       the passes over a source: categories, distinct values for curves, sums
``sources``      files and streams → Arrow batches; Dask and Spark: a pass over every partition where it lies
``batches``      batches → columns of numbers and task labels, with their checks
===============  ==========================================================================================
"""
