"""Models of tasks coupled by a dense n × n matrix.

    A W = M ,     (A W)_i = B_i w_i + Σ_j K_ij w_j ,     B_i ⪰ 0 (d × d),  K ≻ 0 (n × n),

the stationary point of ½ Σ_i w_iᵀB_i w_i + ½ tr(K W Wᵀ) − ⟨M, W⟩, rows of W being tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse.linalg import LinearOperator, cg

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
