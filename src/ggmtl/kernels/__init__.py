"""The few hot loops, each in an obvious NumPy form and, where numba is installed, a compiled one.

The form is chosen at the first use: compiled where numba can be imported, else NumPy; the environment variable
``GGMTL_KERNELS`` (``numpy`` or ``numba``) decides otherwise. Importing this package imports neither.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from types import ModuleType
from typing import Any

import numpy as np

from ggmtl.errors import check_choice, require
from ggmtl.kernels import reference
from ggmtl.kernels.reference import Cycle, Operator

__all__ = [
    "Cycle",
    "Operator",
    "available",
    "block_product",
    "conjugate_gradient",
    "graph_product",
    "inverse_blocks",
    "nearest_in_neighbourhood",
    "neighbour_lists",
    "segment_cross_products",
    "system_product",
]


def available() -> tuple[str, ...]:
    """Names of the forms that can be used here, the preferred one first."""
    return ("numba", "numpy") if importlib.util.find_spec("numba") is not None else ("numpy",)


@functools.cache
def _form(name: str) -> ModuleType:
    if name:
        check_choice("GGMTL_KERNELS", name, ("numpy", "numba"))
    if name == "numpy":
        return reference
    try:
        require("numba", "fast", "GGMTL_KERNELS=numba")
    except ImportError:
        if name:
            raise
        return reference
    return importlib.import_module("ggmtl.kernels.compiled")


def _kernels() -> ModuleType:
    return _form(os.environ.get("GGMTL_KERNELS", ""))


def _input(array: Any, dtype: Any = np.float64) -> np.ndarray:
    """A contiguous read-only view: one type of argument, hence one compilation per kernel."""
    view = np.ascontiguousarray(array, dtype).view()
    view.flags.writeable = False
    return view


def _inputs(record: Any) -> Any:
    """The same for every array of a record."""
    parts = (
        _input(part, np.int64 if part.dtype.kind in "iu" else np.float64) if isinstance(part, np.ndarray) else part
        for part in record
    )
    return type(record)(*parts)


def segment_cross_products(rows: np.ndarray, segment: np.ndarray, n_segments: int) -> np.ndarray:
    """Σ z zᵀ over the rows z of each segment, shape (n_segments, q, q), for rows in any order."""
    return _kernels().segment_cross_products(_input(rows), _input(segment, np.int64), n_segments)


def inverse_blocks(gram: np.ndarray, diagonal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(G_i + diag(s_i))⁻¹ for G of shape (n, p, p) and s of shape (n, p), and ln|G_i + diag(s_i)|, shape (n,).

    Raises ``numpy.linalg.LinAlgError`` where a block is not positive definite to working accuracy.
    """
    form = _kernels()
    if form is reference:
        return reference.inverse_blocks(gram, diagonal)
    inverse, log_det, failed = form.inverse_blocks(_input(gram), _input(diagonal))
    if failed >= 0:
        raise np.linalg.LinAlgError(f"Block {failed} is not positive definite.")
    return inverse, log_det


def block_product(blocks: np.ndarray, values: np.ndarray) -> np.ndarray:
    """blocks_i · values_i for symmetric blocks (n, p, p) and values (n, p) or (n, p, r)."""
    # Many columns are ordinary matrix products, which NumPy hands to BLAS.
    if values.ndim == 3:
        return reference.block_product(blocks, values)
    return _kernels().block_product(_input(blocks), _input(values))


def neighbour_lists(edges: np.ndarray, weights: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The symmetric weight matrix W of an edge list by rows: start (n + 1,), neighbour (2m,), weight (2m,)."""
    return _kernels().neighbour_lists(_input(edges, np.int64), _input(weights), n)


def nearest_in_neighbourhood(points: np.ndarray, start: np.ndarray, neighbour: np.ndarray, k: int) -> np.ndarray:
    """The `k` nearest of the neighbours of every point and their neighbours, shape (n, k); lists as above.

    Where there are fewer than `k`, the point itself fills the row.
    """
    lists = (_input(start, np.int64), _input(neighbour, np.int64))
    return _kernels().nearest_in_neighbourhood(_input(points), *lists, int(k))


def graph_product(operator: Operator, values: np.ndarray) -> np.ndarray:
    """(W ⊗ diag(Λ) + (11ᵀ/n) ⊗ diag(h)) · values for values of shape (n, p)."""
    return _kernels().graph_product(_inputs(operator), _input(values))


def system_product(operator: Operator, values: np.ndarray) -> np.ndarray:
    """A · values for values of shape (n, p)."""
    return _kernels().system_product(_inputs(operator), _input(values))


def conjugate_gradient(
    operator: Operator,
    cycle: Cycle,
    value: np.ndarray,
    residual: np.ndarray,
    goal: float,
    max_iter: int,
    patience: int,
) -> int:
    """Preconditioned conjugate gradients in place (C-contiguous float64 `value` and `residual`); number of steps."""
    arguments = (value, residual, float(goal), int(max_iter), int(patience))
    return _kernels().conjugate_gradient(_inputs(operator), _inputs(cycle), *arguments)
