"""Any input → :class:`TaskData`, and the labels of tasks."""

from ggmtl.tasks.data import TaskData
from ggmtl.tasks.labels import locate_tasks, read_labels, unknown_tasks_message
from ggmtl.tasks.reading import LARGEST, SINGLE_TASK, SMALLEST, check_range, read_prediction, read_training
from ggmtl.tasks.tables import as_frame

__all__ = [
    "LARGEST",
    "SINGLE_TASK",
    "SMALLEST",
    "TaskData",
    "as_frame",
    "check_range",
    "locate_tasks",
    "read_labels",
    "read_prediction",
    "read_training",
    "unknown_tasks_message",
]
