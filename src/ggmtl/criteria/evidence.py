"""Outer criterion: the evidence of a graph, the models integrated out.

The parts: ``evidence_hub`` (the hub alone, at any size), ``evidence_clusters`` (clusters beside it, likewise),
``evidence_edges`` (any edges, exact value and derivatives), ``evidence_sampling`` (the same estimated, for large
systems), ``evidence_value`` and ``evidence_sampled_gradient`` (value and gradient of those, with standard errors),
``evidence_lanczos`` (their log-determinants), ``evidence_learning`` (edge values and strengths) and
``evidence_selection`` (which graph to report).
"""

from ggmtl.criteria.evidence_clusters import cluster_evidence
from ggmtl.criteria.evidence_edges import EdgeEvidence, EvidenceModel, Expectations, edge_evidence
from ggmtl.criteria.evidence_hub import HubEvidence, hub_evidence
from ggmtl.criteria.evidence_learning import STEPS, EvidenceResult, learn_edges, spread_over_edges
from ggmtl.criteria.evidence_neighbours import RENEWED, ROUNDS, Neighbours, Propose, learn_neighbours
from ggmtl.criteria.evidence_sampled_gradient import Estimate, SampledGradient
from ggmtl.criteria.evidence_selection import (
    GraphChoice,
    choose_clusters,
    largest_expected_f1,
    ranked_list,
    select_graph,
)
from ggmtl.criteria.evidence_strengths import HubStrength, group_labels, learn_hub, learn_hub_by_feature
from ggmtl.criteria.evidence_trees import average_over_trees
from ggmtl.criteria.evidence_value import PROBES, SampledEvidence, evidence_gain, sampled_evidence

__all__ = [
    "PROBES",
    "RENEWED",
    "ROUNDS",
    "STEPS",
    "EdgeEvidence",
    "Estimate",
    "EvidenceModel",
    "EvidenceResult",
    "Expectations",
    "GraphChoice",
    "HubEvidence",
    "HubStrength",
    "Neighbours",
    "Propose",
    "SampledEvidence",
    "SampledGradient",
    "average_over_trees",
    "choose_clusters",
    "cluster_evidence",
    "edge_evidence",
    "evidence_gain",
    "group_labels",
    "hub_evidence",
    "largest_expected_f1",
    "learn_edges",
    "learn_hub",
    "learn_hub_by_feature",
    "learn_neighbours",
    "ranked_list",
    "sampled_evidence",
    "select_graph",
    "spread_over_edges",
]
