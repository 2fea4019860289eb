"""The task graph: who may be linked, who is, and which clusters follow.

In: models or places of tasks, edges and weights. Out: candidate edges, :class:`TaskGraph`, clusters, files.

================  ====================================================================
``candidates``    candidate edges: k nearest neighbours (kNN) among models, all pairs, given pairs, near places
``task_graph``    ``TaskGraph``: adjacency, Laplacian, degrees, components, display weights
``markov``        Markov clusters (the paper's clustering of a learned graph)
``exports``       GraphML, Cytoscape, networkx, CSV
``shapes``        the name of a graph's shape (line, tree, star, …), where it has one
================  ====================================================================
"""

from ggmtl.graph.markov import markov_clusters
from ggmtl.graph.task_graph import TaskGraph, beside_heaviest

__all__ = ["TaskGraph", "beside_heaviest", "markov_clusters"]
