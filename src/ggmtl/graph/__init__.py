"""The task graph, its exports and its clusters."""

from ggmtl.graph.markov import markov_clusters
from ggmtl.graph.task_graph import TaskGraph, beside_heaviest

__all__ = ["TaskGraph", "beside_heaviest", "markov_clusters"]
