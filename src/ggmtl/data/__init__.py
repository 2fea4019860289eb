"""Any input → rows of tasks.

In: data frames, arrays, lists of pairs, task columns, weights, groups. Out: :class:`TaskData` (rows in long form), task
labels and the fold of every row. All checks of users' input are here.

===================  =======================================================================
``reading``          what ``fit`` and ``predict`` are given → rows; the target, weights and groups
``columns``          columns of a frame or array → numbers, in the order of the fit
``frames``           tables of any data-frame library, and tables in the user's own kind
``labels``           task labels: compared exactly, sorted, found again
``folds``            ``validation=`` → the fold of every row, whatever the order of rows or the names of tasks
``curves``           features → columns of cubic splines, added to their straight lines
``task_features``    descriptors of the tasks: one row per task
``task_terms``       the columns z of that table in which the shared model w_0 + B z_i is linear
``task_data``        the record of rows, and the form in which they were given
===================  =======================================================================
"""

from ggmtl.data.task_data import TaskData

__all__ = ["TaskData"]
