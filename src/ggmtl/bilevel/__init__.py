"""Learn the graph: join candidates, inner problem, criterion and optimiser, then refit on all rows."""

from ggmtl.bilevel.by_coordinates import learn_by_coordinates, probability_of_sharing
from ggmtl.bilevel.by_evidence import learn_by_evidence
from ggmtl.bilevel.by_samples import with_accurate_models
from ggmtl.bilevel.by_validation import EDGE_SOLVERS, learn_by_validation
from ggmtl.bilevel.fit import GraphFit, Settings, present_problem, refit
from ggmtl.bilevel.level_evidence import LevelEvidence, level_evidence
from ggmtl.bilevel.scaled import is_vast

__all__ = [
    "EDGE_SOLVERS",
    "GraphFit",
    "LevelEvidence",
    "Settings",
    "is_vast",
    "learn_by_coordinates",
    "learn_by_evidence",
    "learn_by_validation",
    "level_evidence",
    "present_problem",
    "probability_of_sharing",
    "refit",
    "with_accurate_models",
]
