"""Pictures of a fitted model: its graph, its coefficients, the sparsity path, the gain of every task.

In: a fitted model. Out: matplotlib Axes: those given, or of a new figure. matplotlib and networkx are loaded at the
first call.

- ``network``: the graph, where its tasks lie, and its adjacency matrix; ``geography``: tasks on a map.
- ``charts``: coefficients, effects of features, the path of levels, gains; ``style``: colours, markers and labels.
"""

from ggmtl.plot.charts import coefficients, effect, gain, path
from ggmtl.plot.geography import map
from ggmtl.plot.network import adjacency, graph

__all__ = ["adjacency", "coefficients", "effect", "gain", "graph", "map", "path"]
