"""A covariance or precision of tasks, read as a graph.

The paper's footnote: zero the diagonal and the negative entries, divide by the largest.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmtl.graph.task_graph import TaskGraph


def covariance_to_graph(matrix: np.ndarray, task_names: Any) -> TaskGraph:
    """The graph of the positive off-diagonal entries, divided by the largest."""
    names = np.asarray(task_names)
    i, j = np.triu_indices(len(names), k=1)
    weights = 0.5 * (matrix[i, j] + matrix[j, i])
    keep = weights > 0
    if not keep.any():
        return TaskGraph.empty(names)
    edges = np.column_stack([i[keep], j[keep]])
    return TaskGraph(edges, weights[keep] / weights[keep].max(), names)


def correlation(covariance: np.ndarray) -> np.ndarray:
    """C_ij/√(C_ii C_jj)."""
    root = np.sqrt(np.diag(covariance))
    return covariance / np.outer(root, root)


def partial_correlation(precision: np.ndarray) -> np.ndarray:
    """−Ω_ij/√(Ω_ii Ω_jj), and one on the diagonal."""
    partial = -correlation(precision)
    np.fill_diagonal(partial, 1.0)
    return partial
