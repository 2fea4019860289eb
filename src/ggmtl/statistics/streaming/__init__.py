"""Statistics of rows that are read once and never held.

In: Parquet and CSV files, anything that streams Arrow data, Dask and Spark data frames. Out: ``TaskStatistics``.
"""
