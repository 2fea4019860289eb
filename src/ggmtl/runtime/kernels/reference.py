"""NumPy forms of the hot loops: the reference that every faster form is tested against."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.linalg.lapack import dpotrf, dpotri


class Operator(NamedTuple):
    """A = blockdiag(G_i + diag(s_i)) − W ⊗ diag(Λ) − (11ᵀ/n) ⊗ diag(h), with one weight per edge in W.

    Parameters
    ----------
    gram : array of shape (n, p, p)
        G, symmetric.
    diagonal : array of shape (n, p)
        s.
    weights : sparse array of shape (n, n), by rows
        W.
    coupling : array of shape (p,)
        Λ.
    hub_share : array of shape (p,)
        h/n.
    """

    gram: np.ndarray
    diagonal: np.ndarray
    weights: sparse.csr_array
    coupling: np.ndarray
    hub_share: np.ndarray


class Cycle(NamedTuple):
    """Block-Jacobi sweeps B, a graph-level solve C, the same sweeps; without levels, one sweep B alone.

    Parameters
    ----------
    inverse : array of shape (n, p, p)
        B, the inverse of the diagonal blocks of A.
    levels : array of shape (g, n, n)
        C for each group of coordinates.
    columns : array of int, shape (p,)
        Coordinates, group by group.
    bounds : array of int, shape (g + 1,)
        Group k holds columns[bounds[k]:bounds[k + 1]].
    sweeps : int
        Sweeps before and after C.
    exact : bool
        Whether B inverts the blocks so accurately that their product may be taken for the identity.
    """

    inverse: np.ndarray
    levels: np.ndarray
    columns: np.ndarray
    bounds: np.ndarray
    sweeps: int
    exact: bool


def inverse_blocks(gram: np.ndarray, diagonal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(G_i + diag(s_i))⁻¹ = L⁻ᵀL⁻¹ from the Cholesky factor L, shape (n, p, p), and the log-determinants, shape (n,).

    Raises ``numpy.linalg.LinAlgError`` where a block is not positive definite to working accuracy.
    """
    blocks = gram.copy()
    index = np.arange(gram.shape[1])
    blocks[:, index, index] += diagonal
    factor = np.linalg.cholesky(blocks)
    if not np.isfinite(factor).all():
        raise np.linalg.LinAlgError("A block is not positive definite.")
    root = np.linalg.inv(factor)
    log_det = 2.0 * np.log(np.einsum("nkk->nk", factor)).sum(axis=1)
    return np.matmul(root.transpose(0, 2, 1), root), log_det


def inverse_rows(
    gram: np.ndarray, diagonal: np.ndarray, out: np.ndarray, log_det: np.ndarray, first: int, last: int
) -> int:
    """The same by LAPACK, one large block after the other; the first that is not positive definite, or −1."""
    for i in range(first, last):
        # Symmetric, so that its transpose is in the order that LAPACK wants.
        factor, failed = dpotrf((gram[i] + np.diag(diagonal[i])).T, lower=1, overwrite_a=1, clean=1)
        roots = np.diagonal(factor)
        if failed or not np.isfinite(roots).all():
            return i
        log_det[i] = 2.0 * np.log(roots).sum()
        half = dpotri(factor, lower=1, overwrite_c=1)[0]
        out[i] = half + np.tril(half, -1).T
    return -1


def block_product(blocks: np.ndarray, values: np.ndarray) -> np.ndarray:
    """blocks_i · values_i for symmetric blocks (n, p, p) and values (n, p) or (n, p, r)."""
    if values.ndim == 2:
        return np.matmul(blocks, values[..., None])[..., 0]
    return np.matmul(blocks, values)


def edge_signs(edges: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Random signs of edges given by their numbers, shape (m, size): bits of SplitMix64."""
    words, step = np.uint64(-(-size // 64)), np.uint64(0x9E3779B97F4A7C15)
    number = edges.astype(np.uint64)[:, None] * words + np.arange(1, words + np.uint64(1), dtype=np.uint64)
    with np.errstate(over="ignore"):
        bits = np.uint64(seed) + number * step
        bits ^= bits >> np.uint64(30)
        bits *= np.uint64(0xBF58476D1CE4E5B9)
        bits ^= bits >> np.uint64(27)
        bits *= np.uint64(0x94D049BB133111EB)
        bits ^= bits >> np.uint64(31)
    # The lowest bit of a word comes first.
    each = (bits[..., None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    return 2.0 * each.reshape(len(edges), -1)[:, :size] - 1.0


def nearest_in_neighbourhood(
    points: np.ndarray, start: np.ndarray, neighbour: np.ndarray, k: int, first: int, last: int
) -> np.ndarray:
    """The `k` nearest among the neighbours of every point first … last − 1 and their neighbours."""
    nearest = np.empty((last - first, k), dtype=np.int64)
    for i in range(first, last):
        own = neighbour[start[i] : start[i + 1]]
        reach = np.unique(np.concatenate([own, *(neighbour[start[j] : start[j + 1]] for j in own)]))
        reach = reach[reach != i]
        distance = np.square(points[reach] - points[i]).sum(axis=1)
        found = reach[np.argsort(distance, kind="stable")[:k]]
        nearest[i - first] = np.concatenate([found, np.full(k - len(found), i)])
    return nearest


def graph_product(operator: Operator, values: np.ndarray) -> np.ndarray:
    """(W ⊗ diag(Λ) + (11ᵀ/n) ⊗ diag(h)) · values for values of shape (n, p)."""
    return (operator.weights @ values) * operator.coupling + operator.hub_share * values.sum(axis=0)


def system_product(operator: Operator, values: np.ndarray) -> np.ndarray:
    """A · values for values of shape (n, p)."""
    own = block_product(operator.gram, values) + operator.diagonal * values
    return own - graph_product(operator, values)


def smooth(operator: Operator, cycle: Cycle, residual: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One block-Jacobi sweep z = Bq from a zero start, and what it leaves, q − Az.

    With D = B⁻¹ the diagonal blocks of A, q − Az = (D − A)z needs no product with them.
    """
    value = block_product(cycle.inverse, residual)
    if cycle.exact:
        return value, graph_product(operator, value) - operator.hub_share * value
    return value, residual - system_product(operator, value)


def graph_solve(cycle: Cycle, residual: np.ndarray) -> np.ndarray:
    """C · residual, group by group of coordinates."""
    out = np.zeros_like(residual)
    for matrix, first, last in zip(cycle.levels, cycle.bounds[:-1], cycle.bounds[1:]):
        columns = cycle.columns[first:last]
        out[:, columns] = matrix @ residual[:, columns]
    return out


def run_cycle(operator: Operator, cycle: Cycle, residual: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The preconditioner z = M⁻¹q, and q − Az, which comes for free."""
    value, left = smooth(operator, cycle, residual)
    if not len(cycle.levels):
        return value, left
    for _ in range(cycle.sweeps - 1):
        step, left = smooth(operator, cycle, left)
        value += step
    step = graph_solve(cycle, left)
    value += step
    left -= system_product(operator, step)
    for _ in range(cycle.sweeps):
        step, left = smooth(operator, cycle, left)
        value += step
    return value, left


def conjugate_gradient(
    operator: Operator, cycle: Cycle, value: np.ndarray, residual: np.ndarray, goal: float, max_iter: int, patience: int
) -> int:
    """Preconditioned conjugate gradients on A·correction = residual; adds to `value` and lowers `residual` in place.

    Ends at ‖residual‖ ≤ goal, after `max_iter` steps, or `patience` steps after the last progress; returns the
    number of steps. The product of A with the direction follows the recurrence of the direction,

        z = M⁻¹r,  d ← z + βd,  Ad ← Az + βAd,

    because the cycle returns z and r − Az.
    """
    direction, image = np.zeros_like(value), np.zeros_like(value)
    previous, best, since_best = 0.0, np.inf, 0
    for step in range(max_iter):
        correction, left = run_cycle(operator, cycle, residual)
        product = np.vdot(residual, correction)
        beta = product / previous if previous > 0 else 0.0
        direction = correction + beta * direction
        image = residual - left + beta * image
        curvature = np.vdot(direction, image)
        alpha = product / curvature if curvature > 0 else 0.0
        value += alpha * direction
        residual -= alpha * image
        previous = product
        norm = np.linalg.norm(residual)
        since_best = 0 if norm < 0.99 * best else since_best + 1
        best = norm if since_best == 0 else best
        if norm <= goal or since_best >= patience:
            return step + 1
    return max_iter
