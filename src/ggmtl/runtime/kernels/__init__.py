"""The few hot loops, each in an obvious NumPy form (``reference``) and, with numba, a compiled one (``compiled``).

In and out: plain arrays. Tests hold both forms equal. The form is chosen at the first use: compiled where numba can be
imported, else NumPy; the environment variable ``GGMTL_KERNELS`` (``numpy`` or ``numba``) decides otherwise. Importing
this package imports neither.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import importlib.util
import logging
import os
import shutil
import tempfile
from types import ModuleType
from typing import Any

import numpy as np
from scipy import sparse

from ggmtl.errors import check_choice, require
from ggmtl.runtime.kernels import reference
from ggmtl.runtime.kernels.reference import Cycle, Operator
from ggmtl.runtime.machine import number_of_threads, one_blas_thread, over_tasks
from ggmtl.runtime.sizes import SIZES, Sizes

__all__ = [
    "Cycle",
    "Operator",
    "add_edge_noise",
    "available",
    "block_product",
    "conjugate_gradient",
    "graph_product",
    "inverse_blocks",
    "nearest_in_neighbourhood",
    "neighbour_lists",
    "one_blas_thread",
    "segment_cross_products",
    "sparse_product",
    "system_product",
    "tree_kernels",
]


logger = logging.getLogger("ggmtl")

# Largest number of edge signs held in memory at a time, in the NumPy form.
_NOISE_NUMBERS = 1 << 20
# Inverses are asked for hundreds of times a fit, so that compiling them pays this many times sooner.
_INVERSES = 4


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
    try:
        return importlib.import_module("ggmtl.runtime.kernels.compiled")
    except RuntimeError as error:
        if "locator" not in str(error):
            raise
    return _compiled_with_private_cache()


def _compiled_with_private_cache() -> ModuleType:
    """Compiled kernels where neither the installation nor the home folder can be written."""
    from numba import config

    try:
        folder = tempfile.mkdtemp(prefix="ggmtl-")
    except OSError:
        logger.warning("numba has no place for its cache, so the slower NumPy kernels are used (set NUMBA_CACHE_DIR)")
        return reference
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    config.CACHE_DIR = folder
    logger.warning("numba has no lasting place for its cache: kernels are compiled again (set NUMBA_CACHE_DIR)")
    return importlib.import_module("ggmtl.runtime.kernels.compiled")


def _kernels(numbers: float = np.inf) -> ModuleType:
    """The form of a loop that reads so many numbers."""
    told = os.environ.get("GGMTL_KERNELS", "")
    return reference if not told and numbers < SIZES.compiled else _form(told)


def tree_kernels() -> ModuleType:
    """The sampler over spanning trees: :mod:`ggmtl.runtime.kernels.trees`, or the same compiled."""
    name = "trees" if _kernels() is reference else "compiled_trees"
    return importlib.import_module(f"ggmtl.runtime.kernels.{name}")


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
    return _kernels(rows.size).segment_cross_products(_input(rows), _input(segment, np.int64), n_segments)


def inverse_blocks(gram: np.ndarray, diagonal: np.ndarray, dtype: Any = np.float64) -> tuple[np.ndarray, np.ndarray]:
    """(G_i + diag(s_i))⁻¹ for G of shape (n, p, p) and s of shape (n, p), and ln|G_i + diag(s_i)|, shape (n,).

    Computed in float64 and stored in `dtype`.

    Raises ``numpy.linalg.LinAlgError`` where a block is not positive definite to working accuracy.
    """
    form = _kernels(_INVERSES * gram.size)
    is_wide = gram.shape[-1] >= SIZES.lapack
    if form is reference and not is_wide:
        inverse, log_det = reference.inverse_blocks(gram, diagonal)
        return inverse.astype(dtype, copy=False), log_det
    gram, diagonal = _input(gram), _input(diagonal)
    inverse, log_det = np.empty(gram.shape, dtype), np.zeros(len(gram))

    def rows(first: int, last: int) -> int:
        return (reference if is_wide else form).inverse_rows(gram, diagonal, inverse, log_det, first, last)

    failed = max(over_tasks(rows, len(gram), gram.size))
    if failed >= 0:
        raise np.linalg.LinAlgError(f"Block {failed} is not positive definite.")
    return inverse, log_det


def block_product(blocks: np.ndarray, values: np.ndarray) -> np.ndarray:
    """blocks_i · values_i for symmetric blocks (n, p, p) and values (n, p) or (n, p, r)."""
    form, out = _kernels(blocks.size), np.empty(values.shape)
    if values.ndim == 3 or form is reference:
        # Many columns are ordinary matrix products, which NumPy hands to BLAS.
        def rows(first: int, last: int) -> None:
            out[first:last] = reference.block_product(blocks[first:last], values[first:last])

    else:
        blocks, values = _input(blocks, blocks.dtype), _input(values)

        def rows(first: int, last: int) -> None:
            form.block_rows(blocks, values, out, first, last)

    over_tasks(rows, len(blocks), blocks.size)
    return out


def neighbour_lists(edges: np.ndarray, weights: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The symmetric weight matrix W of an edge list by rows: start (n + 1,), neighbour (2m,), weight (2m,)."""
    return _kernels(4 * len(edges)).neighbour_lists(_input(edges, np.int64), _input(weights), n)


def add_edge_noise(
    out: np.ndarray, edges: np.ndarray, weights: np.ndarray, scale: np.ndarray, seed: int, sizes: Sizes = SIZES
) -> None:
    """Add Σ_e b_e √w_e ε_e ∘ scale to `out` (n, q), in place; ε_e are q random signs of edge e, b_e = d_i − d_j.

    What is added has the covariance L ⊗ diag(scale²). Signs follow from `seed` and the number of the edge alone, so
    that none is kept.
    """
    form, n, root = _kernels(len(edges) * len(scale)), len(out), np.sqrt(weights)
    if form is reference:
        i, j = edges.T
        step = max(1, _NOISE_NUMBERS // len(scale))
        for first in range(0, len(edges), step):
            rows = slice(first, min(first + step, len(edges)))
            along = root[rows, None] * reference.edge_signs(np.arange(rows.start, rows.stop), len(scale), seed) * scale
            np.add.at(out, i[rows], along)
            np.subtract.at(out, j[rows], along)
        return
    start, neighbour, number = neighbour_lists(edges, np.arange(len(edges), dtype=np.float64), n)
    lists = (_input(start, np.int64), _input(neighbour, np.int64), _input(number, np.int64))
    root, scale = _input(root), _input(scale)

    def rows_of(first: int, last: int) -> None:
        form.edge_noise_rows(*lists, root, scale, seed, out, first, last)

    over_tasks(rows_of, n, len(edges) * len(scale), sizes.threads)


def nearest_in_neighbourhood(points: np.ndarray, start: np.ndarray, neighbour: np.ndarray, k: int) -> np.ndarray:
    """The `k` nearest of the neighbours of every point and their neighbours, shape (n, k); lists as above.

    Where there are fewer than `k`, the point itself fills the row.
    """
    form = _kernels()
    if form is reference:
        return reference.nearest_in_neighbourhood(points, start, neighbour, k)
    points, start, neighbour = _input(points), _input(start, np.int64), _input(neighbour, np.int64)

    def rows(first: int, last: int) -> np.ndarray:
        return form.nearest_in_neighbourhood(points, start, neighbour, int(k), first, last)

    return np.concatenate(over_tasks(rows, len(points), points.size * 100))


def graph_product(operator: Operator, values: np.ndarray) -> np.ndarray:
    """(W ⊗ diag(Λ) + (11ᵀ/n) ⊗ diag(h)) · values for values of shape (n, p)."""
    return _kernels(operator.gram.size).graph_product(_inputs(operator), _input(values))


def system_product(operator: Operator, values: np.ndarray) -> np.ndarray:
    """A · values for values of shape (n, p)."""
    form = _kernels(operator.gram.size)
    if form is reference:
        return reference.system_product(operator, values)
    operator, values, out = _inputs(operator), _input(values), np.empty(values.shape)
    common = form.common_part(operator, values)
    over_tasks(
        lambda first, last: form.system_rows(operator, values, common, out, first, last),
        len(values),
        operator.gram.size,
    )
    return out


def sparse_product(matrix: sparse.csr_array, columns: np.ndarray) -> np.ndarray:
    """matrix · columns for a square sparse matrix by rows and a matrix of columns."""
    if number_of_threads() == 1:
        return matrix @ columns
    out = np.empty(columns.shape)

    def rows(first: int, last: int) -> None:
        part = slice(int(matrix.indptr[first]), int(matrix.indptr[last]))
        shape = (last - first, len(columns))
        start = matrix.indptr[first : last + 1] - matrix.indptr[first]
        block = sparse.csr_array((matrix.data[part], matrix.indices[part], start), shape=shape)
        out[first:last] = block @ columns

    over_tasks(rows, len(columns), matrix.nnz * columns.shape[1])
    return out


def is_shared(n_numbers: int, sizes: Sizes = SIZES) -> bool:
    """Whether conjugate gradients on matrices of `n_numbers` entries share every pass among threads.

    Such passes wait for memory, so block-Jacobi may then come in float32.
    """
    return _kernels(n_numbers) is not reference and n_numbers >= sizes.shared_passes


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
    form, arguments = _kernels(operator.gram.size), (value, residual, float(goal), int(max_iter), int(patience))
    if not len(cycle.levels) and is_shared(operator.gram.size, sizes):
        inverse = _input(cycle.inverse, cycle.inverse.dtype)
        return _shared_conjugate_gradient(form, _inputs(operator), inverse, *arguments, sizes.threads)
    return form.conjugate_gradient(_inputs(operator), _inputs(cycle), *arguments)


def conjugate_gradients(
    operator: Operator,
    cycle: Cycle,
    values: np.ndarray,
    residuals: np.ndarray,
    goals: np.ndarray,
    max_iter: int,
    patience: int,
) -> list[int]:
    """The same for many right-hand sides of a small system, shapes (r, n, p); none where a goal is infinite."""
    form, operator, cycle = _kernels(operator.gram.size), _inputs(operator), _inputs(cycle)
    return [
        form.conjugate_gradient(operator, cycle, value, residual, float(goal), max_iter, patience)
        if np.isfinite(goal)
        else 0
        for value, residual, goal in zip(values, residuals, goals)
    ]


def _shared_conjugate_gradient(
    form: ModuleType,
    operator: Operator,
    inverse: np.ndarray,
    value: np.ndarray,
    residual: np.ndarray,
    goal: float,
    max_iter: int,
    patience: int,
    least: int,
) -> int:
    """Conjugate gradients with block-Jacobi, every pass over the tasks shared among threads.

    Three passes per step read every matrix once: the image of the direction; the step with the correction of its
    residual; the next direction.
    """
    n, size = len(value), operator.gram.size
    correction, image = np.empty_like(value), np.empty_like(value)

    def total(function: Any, *arguments: Any) -> Any:
        parts = over_tasks(lambda first, last: function(*arguments, first, last), n, size, least)
        return np.sum(parts, axis=0)

    image[:] = 0.0
    product, _ = total(form.descend_rows, inverse, 0.0, image, image, value, residual, correction)
    direction = correction.copy()
    steps, best, since_best = 0, np.inf, 0
    # A block may no longer be positive definite in float32; the direction is then no descent direction.
    while steps < max_iter and product > 0:
        common = form.common_part(operator, _input(direction))
        curvature = total(form.system_rows, operator, _input(direction), common, image)
        alpha = product / curvature if curvature > 0 else 0.0
        following, square = total(form.descend_rows, inverse, alpha, direction, image, value, residual, correction)
        steps += 1
        norm = float(np.sqrt(square))
        if norm <= goal:
            break
        best, since_best = (norm, 0) if norm < 0.99 * best else (best, since_best + 1)
        if since_best >= patience:
            break
        beta = following / product
        over_tasks(lambda a, b, beta=beta: form.direct_rows(beta, correction, direction, a, b), n, size, least)
        product = following
    return steps
