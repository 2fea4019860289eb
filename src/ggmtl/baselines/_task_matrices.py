"""Dense n × n matrices between tasks: solve with them, estimate a sparse precision, read them as a graph.

    A W = M ,     (A W)_i = B_i w_i + Σ_j K_ij w_j ,     B_i ⪰ 0 (d × d),  K ≻ 0 (n × n),

is the stationary point of ½ Σ_i w_iᵀB_i w_i + ½ tr(K W Wᵀ) − ⟨M, W⟩; rows of W are tasks. The sparse precision is

    min_{Ω ≻ 0}  tr(SΩ) − ln|Ω| + α Σ_ij |Ω_ij| ,

diagonal included, by proximal gradient steps Ω ← soft(Ω − t(S − Ω⁻¹), tα) with the Barzilai–Borwein step t, halved
until the matrix is positive definite and the quadratic bound holds (after Rolfs et al., 2012). Unlike block-coordinate
graphical lassos it starts from a given Ω, lowers the objective at every step and works where S has low rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve, lapack
from scipy.sparse.linalg import LinearOperator, cg

from ggmtl.graph.task_graph import TaskGraph

# Below this many unknowns one Cholesky factor is quicker than iterating.
_DIRECT = 400


def apply_coupled(blocks: np.ndarray, coupling: np.ndarray, models: np.ndarray) -> np.ndarray:
    """A W, shape (n, d)."""
    return np.matmul(blocks, models[..., None])[..., 0] + coupling @ models


def solve_coupled(
    blocks: np.ndarray,
    coupling: np.ndarray,
    moments: np.ndarray,
    start: np.ndarray | None = None,
    tol: float = 1e-8,
    max_iter: int = 500,
) -> np.ndarray:
    """Solve A W = M, shape (n, d).

    Conjugate gradients lower the quadratic at every step, so an early stop still improves on `start`.
    """
    if moments.size <= _DIRECT:
        return _solve_directly(blocks, coupling, moments)
    n, d = moments.shape
    size = n * d

    def product(vector: np.ndarray) -> np.ndarray:
        return apply_coupled(blocks, coupling, vector.reshape(n, d)).ravel()

    operator = _operator(size, product)
    preconditioner = _operator(size, _preconditioner(blocks, coupling))
    guess = None if start is None else start.ravel()
    value, _ = cg(operator, moments.ravel(), x0=guess, rtol=tol, maxiter=max_iter, M=preconditioner)
    return value.reshape(n, d)


def _operator(size: int, product: Callable[[np.ndarray], np.ndarray]) -> Any:
    # The stubs describe the class that this constructor returns, not the constructor.
    return LinearOperator((size, size), matvec=product, dtype=np.float64)  # pyright: ignore[reportCallIssue]


def _solve_directly(blocks: np.ndarray, coupling: np.ndarray, moments: np.ndarray) -> np.ndarray:
    n, d = moments.shape
    matrix = np.einsum("ij,kl->ikjl", coupling, np.eye(d))
    tasks = np.arange(n)
    matrix[tasks, :, tasks, :] += blocks
    factor = cho_factor(matrix.reshape(n * d, n * d), lower=True)
    return cho_solve(factor, moments.ravel()).reshape(n, d)


def _preconditioner(blocks: np.ndarray, coupling: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Inverse of A with every B_i replaced by their mean B̄: diagonal in the eigenvectors of K and B̄.

    Suits an ill-conditioned K of moderate or strong coupling; for weak coupling block-Jacobi would need fewer
    iterations.
    """
    task_values, task_vectors = np.linalg.eigh(coupling)
    feature_values, feature_vectors = np.linalg.eigh(blocks.mean(axis=0))
    n, d = len(coupling), len(feature_values)
    shifted = task_values[:, None] + feature_values

    def apply(vector: np.ndarray) -> np.ndarray:
        rotated = task_vectors.T @ vector.reshape(n, d) @ feature_vectors
        return (task_vectors @ (rotated / shifted) @ feature_vectors.T).ravel()

    return apply


def covariance_to_graph(matrix: np.ndarray, task_names: Any) -> TaskGraph:
    """The graph of the positive off-diagonal entries, divided by the largest."""
    names = np.asarray(task_names)
    i, j = np.triu_indices(len(names), k=1)
    weights = 0.5 * (matrix[i, j] + matrix[j, i])
    keep = weights > 0
    if not keep.any():
        return TaskGraph.empty(names)
    edges = np.column_stack([i[keep], j[keep]])
    return TaskGraph(edges, weights[keep] / weights[keep].max(), names)


def correlation(covariance: np.ndarray) -> np.ndarray:
    """C_ij/√(C_ii C_jj)."""
    root = np.sqrt(np.diag(covariance))
    return covariance / np.outer(root, root)


def partial_correlation(precision: np.ndarray) -> np.ndarray:
    """−Ω_ij/√(Ω_ii Ω_jj), and one on the diagonal."""
    partial = -correlation(precision)
    np.fill_diagonal(partial, 1.0)
    return partial


@dataclass(frozen=True)
class SparsePrecision:
    """Minimiser found.

    Parameters
    ----------
    precision : array of shape (n, n)
        Ω.
    log_determinant : float
        ln|Ω|.
    gap : float
        Bound on how far the objective is above its minimum.
    n_iter : int
        Steps taken.
    """

    precision: np.ndarray
    log_determinant: float
    gap: float
    n_iter: int


def sparse_precision(
    covariance: np.ndarray,
    penalty: float,
    start: np.ndarray | None = None,
    tol: float = 1e-5,
    max_iter: int = 100,
) -> SparsePrecision:
    """Minimise until the duality gap is below ``tol · n``, or for `max_iter` steps.

    Parameters
    ----------
    covariance : array of shape (n, n)
        S.
    penalty : float
        α, positive.
    start : array of shape (n, n), optional
        Positive definite; the diagonal solution unless given.
    """
    precision = np.diag(1.0 / (np.diag(covariance) + penalty)) if start is None else start
    log_determinant, inverse = invert(precision)
    step = 1.0 / np.linalg.norm(inverse, 2) ** 2
    gap, k = np.inf, 0
    for k in range(max_iter + 1):
        if k % 5 == 0:
            gap = _duality_gap(precision, inverse, log_determinant, covariance, penalty)
            if gap <= tol * len(covariance):
                break
        moved = _proximal_step(precision, inverse, log_determinant, covariance, penalty, step)
        if moved is None:
            break
        change, gradient_change = moved[0] - precision, inverse - moved[2]
        precision, log_determinant, inverse = moved
        curvature = np.vdot(change, gradient_change)
        step = np.vdot(change, change) / curvature if curvature > 0 else step
    return SparsePrecision(precision, log_determinant, gap, k)


def invert(matrix: np.ndarray) -> tuple[float, np.ndarray]:
    """ln|A| and A⁻¹; −∞ and A where A is not positive definite."""
    factor, info = lapack.dpotrf(matrix, lower=1)
    if info:
        return -np.inf, matrix
    lower, _ = lapack.dpotri(factor, lower=1)
    inverse = np.tril(lower)
    return 2.0 * float(np.log(np.diag(factor)).sum()), inverse + np.tril(inverse, -1).T


def _proximal_step(precision, inverse, log_determinant, covariance, penalty, step):
    """Next (Ω, ln|Ω|, Ω⁻¹), or None when no step lowers the objective beyond rounding."""
    gradient = covariance - inverse
    rounding = 1e-15 * (len(covariance) + abs(log_determinant))
    for _ in range(60):
        target = precision - step * gradient
        moved = np.sign(target) * np.maximum(np.abs(target) - step * penalty, 0.0)
        moved_log, moved_inverse = invert(moved)
        change = moved - precision
        size = np.vdot(change, change)
        if size <= 1e-24 * np.vdot(precision, precision):
            return None
        # Convexity part of −ln|Ω|: −ln|Ω⁺| + ln|Ω| + tr(Ω⁻¹ change) must not exceed ‖change‖²/2t.
        if log_determinant - moved_log + np.vdot(inverse, change) <= size / (2.0 * step) + rounding:
            return moved, moved_log, moved_inverse
        step *= 0.5
    return None


def _duality_gap(precision, inverse, log_determinant, covariance, penalty) -> float:
    """Objective less ln|Σ| + n, where Σ = clip(Ω⁻¹, S ± α) is feasible in the dual."""
    feasible = np.clip(inverse, covariance - penalty, covariance + penalty)
    # The clipped diagonal may fall short of S_ii + α, which is the best value it can take.
    np.fill_diagonal(feasible, np.diag(covariance) + penalty)
    bound, _ = invert(feasible)
    value = np.vdot(covariance, precision) - log_determinant + penalty * np.abs(precision).sum()
    return float(value - bound - len(covariance))
