"""The few hot loops, each with an obvious NumPy form."""

from ggmtl.kernels.reference import segment_cross_products

__all__ = ["segment_cross_products"]
