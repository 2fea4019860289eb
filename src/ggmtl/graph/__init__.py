"""The task graph: who may be linked, who is, and which clusters follow.

In: models or places of tasks, edges and weights. Out: candidate edges, :class:`TaskGraph`, clusters, files.

================  ====================================================================
``candidates``    candidate edges: k nearest neighbours (kNN) among models, all pairs, given pairs, near places
``task_graph``    ``TaskGraph``: adjacency, Laplacian, components, display weights, shape (line, tree, star, …);
                  GraphML, Cytoscape, networkx, CSV
``markov``        Markov clusters (the paper's clustering of a learned graph)
================  ====================================================================
"""

from ggmtl.graph.markov import markov_clusters
from ggmtl.graph.task_graph import TaskGraph, beside_heaviest

__all__ = ["TaskGraph", "beside_heaviest", "markov_clusters"]
