"""Outer criterion: the evidence of a graph, the models integrated out.

The parts: :mod:`~ggmtl.criteria.evidence_hub` (the hub alone, any size), :mod:`~ggmtl.criteria.evidence_edges` (exact value and
derivatives), :mod:`~ggmtl.criteria.evidence_sampling` (the same estimated, large systems),
:mod:`~ggmtl.criteria.evidence_learning` (edge values and strengths) and :mod:`~ggmtl.criteria.evidence_selection` (which graph to report).
"""

from ggmtl.criteria.evidence_edges import EdgeEvidence, EvidenceModel, Expectations, edge_evidence
from ggmtl.criteria.evidence_hub import HubEvidence, HubStrength, hub_evidence, learn_hub
from ggmtl.criteria.evidence_learning import EvidenceResult, learn_edges
from ggmtl.criteria.evidence_sampling import SampledEvidence
from ggmtl.criteria.evidence_selection import GraphChoice, report_weights, select_graph

__all__ = [
    "EdgeEvidence",
    "EvidenceModel",
    "EvidenceResult",
    "Expectations",
    "GraphChoice",
    "HubEvidence",
    "HubStrength",
    "SampledEvidence",
    "edge_evidence",
    "hub_evidence",
    "learn_edges",
    "learn_hub",
    "report_weights",
    "select_graph",
]
