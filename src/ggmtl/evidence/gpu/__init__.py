"""Losses on a torch device and the linear algebra that the search by evidence needs there.

Importing this package registers the device forms of :func:`ggmtl.evidence.hub.hub_evidence`,
:func:`ggmtl.evidence.sampled_edges.solves_for` and :func:`ggmtl.graph.candidates.search_for`. The search itself is
the one of the CPU.
"""

from ggmtl.evidence.gpu import edges, loss, nearest, placement, search

__all__ = ["edges", "loss", "nearest", "placement", "search"]
