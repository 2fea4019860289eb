"""The few hot loops, each in an obvious NumPy form (``reference``) and, with numba, a compiled one (``compiled``).

In and out: plain arrays. Tests hold both forms equal. ``forms`` says which of them runs: importing this package imports
neither. ``passes`` has conjugate gradients in compiled passes, ``trees`` and ``compiled_trees`` the sampler over
spanning trees, ``segments`` sums over the rows of tasks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from ggmtl.runtime.kernels import passes, reference
from ggmtl.runtime.kernels.forms import as_input, available, form_for, is_shared, tree_kernels
from ggmtl.runtime.kernels.reference import Cycle, Operator
from ggmtl.runtime.kernels.segments import segment_cross_products
from ggmtl.runtime.machine import number_of_threads, one_blas_thread, over_tasks
from ggmtl.runtime.sizes import SIZES, Sizes

__all__ = [
    "Cycle",
    "Operator",
    "add_edge_noise",
    "available",
    "block_product",
    "conjugate_gradient",
    "inverse_blocks",
    "is_shared",
    "nearest_in_neighbourhood",
    "one_blas_thread",
    "segment_cross_products",
    "sparse_product",
    "symmetric_matrix",
    "system_product",
    "tree_kernels",
]

# Largest number of edge signs held in memory at a time, in the NumPy form.
_NOISE_NUMBERS = 1 << 20
# Inverses are asked for a thousand times a fit, so that compiling them pays this many times sooner.
_INVERSES = 16


def inverse_blocks(gram: np.ndarray, diagonal: np.ndarray, dtype: Any = np.float64) -> tuple[np.ndarray, np.ndarray]:
    """(G_i + diag(s_i))⁻¹ for G of shape (n, p, p) and s of shape (n, p), and ln|G_i + diag(s_i)|, shape (n,).

    Computed in float64 and stored in `dtype`.

    Raises ``numpy.linalg.LinAlgError`` where a block is not positive definite to working accuracy.
    """
    form = form_for(_INVERSES * gram.size)
    is_wide = gram.shape[-1] >= SIZES.lapack
    if form is reference and not is_wide:
        inverse, log_det = reference.inverse_blocks(gram, diagonal)
        return inverse.astype(dtype, copy=False), log_det
    gram, diagonal = as_input(gram), as_input(diagonal)
    inverse, log_det = np.empty(gram.shape, dtype), np.zeros(len(gram))

    def rows(first: int, last: int) -> int:
        return (reference if is_wide else form).inverse_rows(gram, diagonal, inverse, log_det, first, last)

    failed = max(over_tasks(rows, len(gram), gram.size))
    if failed >= 0:
        raise np.linalg.LinAlgError(f"Block {failed} is not positive definite.")
    return inverse, log_det


def block_product(blocks: np.ndarray, values: np.ndarray) -> np.ndarray:
    """blocks_i · values_i for symmetric blocks (n, p, p) and values (n, p) or (n, p, r)."""
    form, out = form_for(blocks.size), np.empty(values.shape)
    if values.ndim == 3 or form is reference:
        # Many columns are ordinary matrix products, which NumPy hands to BLAS.
        def rows(first: int, last: int) -> None:
            out[first:last] = reference.block_product(blocks[first:last], values[first:last])

    else:
        blocks, values = as_input(blocks, blocks.dtype), as_input(values)

        def rows(first: int, last: int) -> None:
            form.block_rows(blocks, values, out, first, last)

    over_tasks(rows, len(blocks), blocks.size)
    return out


def symmetric_matrix(edges: np.ndarray, values: np.ndarray, n: int) -> sparse.csr_array:
    """The symmetric matrix by rows that has the value of every edge (i, j) at (i, j) and (j, i), shape (n, n).

    An edge given twice stands there twice.
    """
    i, j = edges.T
    places = (np.concatenate([i, j]), np.concatenate([j, i]))
    matrix = sparse.coo_array((np.concatenate([values, values]), places), shape=(n, n))
    # Neither sorted nor summed, which would take longer than the rest.
    matrix.has_canonical_format = True
    return matrix.tocsr()


def add_edge_noise(
    out: np.ndarray, edges: np.ndarray, weights: np.ndarray, scale: np.ndarray, seed: int, sizes: Sizes = SIZES
) -> None:
    """Add Σ_e b_e √w_e ε_e ∘ scale to `out` (n, q), in place; ε_e are q random signs of edge e, b_e = d_i − d_j.

    What is added has the covariance L ⊗ diag(scale²). Signs follow from `seed` and the number of the edge alone, so
    that none is kept.
    """
    form, n, root = form_for(len(edges) * len(scale)), len(out), np.sqrt(weights)
    if form is reference:
        i, j = edges.T
        step = max(1, _NOISE_NUMBERS // len(scale))
        for first in range(0, len(edges), step):
            rows = slice(first, min(first + step, len(edges)))
            along = root[rows, None] * reference.edge_signs(np.arange(rows.start, rows.stop), len(scale), seed) * scale
            np.add.at(out, i[rows], along)
            np.subtract.at(out, j[rows], along)
        return
    numbers = symmetric_matrix(edges, np.arange(len(edges)), n)
    lists = [as_input(part, np.int64) for part in (numbers.indptr, numbers.indices, numbers.data)]
    root, scale = as_input(root), as_input(scale)

    def rows_of(first: int, last: int) -> None:
        form.edge_noise_rows(*lists, root, scale, seed, out, first, last)

    over_tasks(rows_of, n, len(edges) * len(scale), sizes.threads)


def nearest_in_neighbourhood(points: np.ndarray, edges: np.ndarray, k: int) -> np.ndarray:
    """The `k` nearest of the neighbours of every point and their neighbours, shape (n, k).

    Where there are fewer than `k`, the point itself fills the row.
    """
    form, joined = form_for(), symmetric_matrix(edges, np.ones(len(edges)), len(points))
    points, start, neighbour = as_input(points), as_input(joined.indptr, np.int64), as_input(joined.indices, np.int64)

    def rows(first: int, last: int) -> np.ndarray:
        return form.nearest_in_neighbourhood(points, start, neighbour, int(k), first, last)

    return np.concatenate(over_tasks(rows, len(points), points.size * 100))


def system_product(operator: Operator, values: np.ndarray) -> np.ndarray:
    """A · values for values of shape (n, p)."""
    out = block_product(operator.gram, values)
    out += operator.diagonal * values
    out -= sparse_product(operator.weights, values) * operator.coupling + operator.hub_share * values.sum(axis=0)
    return out


def sparse_product(matrix: sparse.csr_array, columns: np.ndarray) -> np.ndarray:
    """matrix · columns for a square sparse matrix by rows and a matrix of columns."""
    numbers = matrix.nnz * columns.shape[1]
    if number_of_threads() == 1 or numbers < SIZES.threads:
        return matrix @ columns
    out = np.empty(columns.shape)

    def rows(first: int, last: int) -> None:
        part = slice(int(matrix.indptr[first]), int(matrix.indptr[last]))
        shape = (last - first, len(columns))
        start = matrix.indptr[first : last + 1] - matrix.indptr[first]
        block = sparse.csr_array((matrix.data[part], matrix.indices[part], start), shape=shape)
        out[first:last] = block @ columns

    over_tasks(rows, len(columns), numbers)
    return out


def conjugate_gradient(
    operator: Operator,
    cycle: Cycle,
    value: np.ndarray,
    residual: np.ndarray,
    goal: float,
    max_iter: int,
    patience: int,
    sizes: Sizes = SIZES,
) -> int:
    """Preconditioned conjugate gradients in place (C-contiguous float64 `value` and `residual`); number of steps."""
    form, last = form_for(operator.gram.size), (float(goal), int(max_iter), int(patience))
    if form is reference or len(cycle.levels):
        return reference.conjugate_gradient(operator, cycle, value, residual, *last)
    return passes.conjugate_gradient(form, operator, cycle, value, residual, *last, sizes.threads)
