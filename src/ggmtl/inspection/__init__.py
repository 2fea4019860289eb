"""Judge a fit: scores of graphs, errors of predictions, why an edge is there, how stable it is, whom sharing helps."""

from ggmtl.graph.markov import markov_clusters
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
    "fuzzy_graph_scores",
    "markov_clusters",
    "per_task_table",
    "pooled_rmse",
    "shared_features",
    "task_rmse",
    "transfer_report",
]
