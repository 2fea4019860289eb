"""Linear algebra of the evidence on a GPU; the search for graphs is the code of the CPU.

In: a ``LeastSquares`` copied to a torch device (``loss.DeviceLoss``). Out: NumPy arrays, as on the CPU. Importing this
package registers the GPU implementations of :func:`ggmtl.evidence.hub.hub_evidence`,
:func:`ggmtl.evidence.sampled_edges.solves_for` and :func:`ggmtl.graph.candidates.search_for`. With ``device="cuda"`` a
fit of a million tasks with 30 coefficients takes 37–41 s on an H200.

- ``loss``: the loss on the device, its hub evidence, and the choice of float32 or float64.
- ``edges``: candidate edges, posterior samples, and the expectations of a round.
- ``kernels``: hub evidence and nearest neighbours on torch tensors.
"""

from ggmtl.evidence.gpu import edges, loss

__all__ = ["edges", "loss"]
