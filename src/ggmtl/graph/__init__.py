"""The task graph: which tasks may be linked, which are, and the clusters of a graph.

In: models or places of tasks, edges and weights. Out: candidate edges, :class:`TaskGraph`, clusters, files. Edges are
learned in ``evidence`` and ``bilevel``; clusters of highest evidence are in ``evidence.clusters``.

================  ====================================================================
``candidates``    candidate edges: k nearest neighbours (kNN) among models, all pairs, given pairs, near places
``task_graph``    ``TaskGraph``: adjacency, Laplacian, components, display weights, shape (line, tree, star, …);
                  GraphML, Cytoscape, networkx, CSV
``markov``        Markov clusters (the paper's clustering of a learned graph)
================  ====================================================================
"""

from ggmtl.graph.markov import markov_clusters
from ggmtl.graph.task_graph import TaskGraph, relative_to_heaviest

__all__ = ["TaskGraph", "markov_clusters", "relative_to_heaviest"]
