"""Any input → rows of tasks.

In: data frames, arrays, lists of pairs, task columns, weights, groups. Out: :class:`TaskData` (long form), task labels
and the fold of every row. The only judge of what users pass in.
"""

from ggmtl.data.task_data import TaskData

__all__ = ["TaskData"]
