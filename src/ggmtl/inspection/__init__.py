"""Questions after a fit: why an edge is there, how stable it is, which tasks sharing helps, how good a graph is.

In: a fitted model or its state. Out: frozen records with ``describe()`` and tables. The model is not changed.

===============  =====================================================================
``explain``      ``explain_edge``: held-out error with and without an edge; ``shared_features``: which coefficients
                 two tasks share
``stability``    ``edge_stability``: how often edges are found again in resampled rows (``resampling``)
``transfer``     ``transfer_report``: held-out errors of the tasks with and without sharing
``levels``       the levels of a fit in order, their names, and differences of their held-out errors
``differences``  outlying tasks, and how much of the differences between tasks their descriptors explain
``metrics``      scores of a graph against a true one, errors by task
``summary``      the model as plain data, and the words of the verdict
===============  =====================================================================
"""

from ggmtl.graph.markov import markov_clusters
from ggmtl.inspection.differences import explained_differences
from ggmtl.inspection.explain import EdgeExplanation, explain_edge, shared_features
from ggmtl.inspection.metrics import (
    GraphScores,
    covariance_to_graph,
    fuzzy_graph_scores,
    per_task_table,
    pooled_rmse,
    task_rmse,
)
from ggmtl.inspection.stability import EdgeStability, edge_stability
from ggmtl.inspection.transfer import TransferReport, transfer_report

__all__ = [
    "EdgeExplanation",
    "EdgeStability",
    "GraphScores",
    "TransferReport",
    "covariance_to_graph",
    "edge_stability",
    "explain_edge",
    "explained_differences",
    "fuzzy_graph_scores",
    "markov_clusters",
    "per_task_table",
    "pooled_rmse",
    "shared_features",
    "task_rmse",
    "transfer_report",
]
