"""Pictures of a fitted model: its graph, its coefficients, the sparsity path, the gain of every task.

Every function draws on the Axes given, or on a new figure, and returns the Axes. matplotlib and networkx are
loaded on the first call.
"""

from ggmtl.plot.charts import coefficients, gain, path
from ggmtl.plot.geography import map
from ggmtl.plot.network import adjacency, graph

__all__ = ["adjacency", "coefficients", "gain", "graph", "map", "path"]
