"""Rows → per-task sums.

In: rows in memory (:class:`TaskData`) or anywhere else (``streaming``). Out: :class:`TaskStatistics` (XᵀX, Xᵀy, yᵀy,
sums and counts per task and fold, which add and subtract) and the losses ½‖X_i w − y_i‖² that they define
(``least_squares``).
"""

from ggmtl.statistics.task_statistics import TaskStatistics

__all__ = ["TaskStatistics"]
