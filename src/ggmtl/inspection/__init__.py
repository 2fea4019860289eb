"""Judge a fit: scores of graphs and errors of predictions."""

from ggmtl.inspection.metrics import (
    GraphScores,
    covariance_to_graph,
    fuzzy_graph_scores,
    per_task_table,
    pooled_rmse,
    task_rmse,
)

__all__ = [
    "GraphScores",
    "covariance_to_graph",
    "fuzzy_graph_scores",
    "per_task_table",
    "pooled_rmse",
    "task_rmse",
]
