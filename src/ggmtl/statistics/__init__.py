"""Rows → per-task sums.

In: rows in memory (:class:`~ggmtl.data.TaskData`), or files, streams, Dask and Spark frames (``streaming``). Out:
:class:`TaskStatistics`, and the losses that they define:

    ½‖X_i w − y_i‖² = ½(wᵀG_i w − 2m_iᵀw + t_i) ,    G = XᵀX,  m = Xᵀy,  t = yᵀy

Sums add and subtract: a training part is the total minus a fold, and a second file is one addition.

===================  =====================================================================
``task_statistics``  the sums per task and fold
``least_squares``    the loss above and its gradient; ``FoldedLoss``: one per fold; rows that have the sums of a task
``scaling``          sums of standardised columns, and models back in the user's units
``accumulator``      sums of batches of rows that are not held
``streaming``        reading Parquet and CSV files, Arrow streams, Dask and Spark frames
===================  =====================================================================
"""

from ggmtl.statistics.task_statistics import TaskStatistics

__all__ = ["TaskStatistics"]
