"""The task graph, its exports and its clusters."""

from ggmtl.graph.markov import markov_clusters
from ggmtl.graph.task_graph import TaskGraph

__all__ = ["TaskGraph", "markov_clusters"]
