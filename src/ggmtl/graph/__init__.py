"""The task graph, its exports and its clusters."""

from ggmtl.graph.task_graph import TaskGraph

__all__ = ["TaskGraph"]
