"""Losses that live on a torch device, and what evidence asks of them there.

Importing this package registers their forms of :func:`ggmtl.criteria.evidence_hub.hub_evidence`,
:func:`ggmtl.criteria.evidence_neighbours.solves_for` and :func:`ggmtl.candidates.search_for`: the search for a graph is
the one of the CPU, only its linear algebra runs elsewhere.
"""

from __future__ import annotations

from ggmtl.device.loss import DeviceLoss
from ggmtl.device.neighbours import DeviceMoments, DeviceSolves
from ggmtl.device.placing import check_device, on_device
from ggmtl.device.searching import search

__all__ = ["DeviceLoss", "DeviceMoments", "DeviceSolves", "check_device", "on_device", "search"]
