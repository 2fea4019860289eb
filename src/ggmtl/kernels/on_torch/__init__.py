"""The hot loops as plain functions on torch tensors, for any device; needs numpy and torch only.

Everything is exact algebra of the same formulas as on the CPU: products, block inverses, conjugate gradients with
float64 residuals, the hyper-gradient of the validation criterion, nearest neighbours and the evidence of a hub.
"""

from __future__ import annotations

from ggmtl.errors import require

require("torch", "gpu", "The torch form of the kernels")

from ggmtl.kernels.on_torch.blocks import inverse_and_log_determinant, inverse_blocks  # noqa: E402
from ggmtl.kernels.on_torch.hub import TensorHubEvidence, hub_evidence  # noqa: E402
from ggmtl.kernels.on_torch.hypergradient import TensorEvaluation, evaluate_hold_out  # noqa: E402
from ggmtl.kernels.on_torch.neighbours import (  # noqa: E402
    joined_pairs,
    nearest_in_neighbourhood,
    nearest_neighbours,
    neighbour_edges,
)
from ggmtl.kernels.on_torch.products import (  # noqa: E402
    TensorGraph,
    block_product,
    edge_distances,
    edge_products,
    row_sums,
)
from ggmtl.kernels.on_torch.solver import Cycle, TensorSolution, TensorSolver  # noqa: E402
from ggmtl.kernels.on_torch.system import TensorLoss, TensorSystem  # noqa: E402

__all__ = [
    "Cycle",
    "TensorEvaluation",
    "TensorGraph",
    "TensorHubEvidence",
    "TensorLoss",
    "TensorSolution",
    "TensorSolver",
    "TensorSystem",
    "block_product",
    "edge_distances",
    "edge_products",
    "evaluate_hold_out",
    "hub_evidence",
    "inverse_and_log_determinant",
    "inverse_blocks",
    "joined_pairs",
    "nearest_in_neighbourhood",
    "nearest_neighbours",
    "neighbour_edges",
    "row_sums",
]
