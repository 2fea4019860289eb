"""The linear system, its products and its solver on torch tensors, for any device.

The formulas are those of the CPU; residuals are float64. Needs the extra ``gpu``.
"""

from ggmtl.errors import require

require("torch", "gpu", "The torch form of the kernels")
