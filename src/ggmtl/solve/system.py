"""The linear system of the inner problem.

    A = blockdiag(G_i) + Σ_ij (d_i − d_j)(d_i − d_j)ᵀ ⊗ diag(w_ij) + (I − 11ᵀ/n) ⊗ diag(h) + diag(ρ)

with w_ij = e_ij Λ for the squared penalty. A is never formed: it is applied to arrays of shape (n, p) or, for many
right-hand sides, (n, p, r).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy import sparse
from scipy.linalg.lapack import dpotrf, dpotri
from scipy.sparse.csgraph import connected_components

from ggmtl.errors import SingularSystemError, SolverError
from ggmtl.runtime import kernels
from ggmtl.runtime.sizes import SIZES, Sizes


@dataclass(frozen=True)
class Curvature:
    """The term − Σ_e c_e (b_e b_eᵀ) ⊗ (u_e u_eᵀ): directions u of shape (m, p), factors c of shape (m,)."""

    directions: np.ndarray
    factors: np.ndarray

    def blocks(self) -> np.ndarray:
        """c_e u_e u_eᵀ, shape (m, p, p)."""
        return np.einsum("m,mp,mq->mpq", self.factors, self.directions, self.directions)


@dataclass(frozen=True)
class TaskSystem:
    """The operator A.

    Parameters
    ----------
    gram : array of shape (n, p, p)
        G_i = X_iᵀX_i.
    edges : array of shape (m, 2)
        Pairs of tasks.
    edge_weights : array of shape (m,) or (m, p)
        Strength of each edge, or of each coordinate of each edge; multiplied by `coupling`.
    coupling : array of shape (p,)
        Λ.
    hub : array of shape (p,)
        h, the pull of every task to the common model; zeros for none.
    ridge : array that broadcasts to (n, p)
        ρ.
    curvature : Curvature, optional
        What the Hessian of the ℓ2 penalty has less than its majoriser.
    sizes : Sizes
        Which way of solving is taken.
    """

    gram: np.ndarray
    edges: np.ndarray
    edge_weights: np.ndarray
    coupling: np.ndarray
    hub: np.ndarray
    ridge: np.ndarray
    curvature: Curvature | None = None
    sizes: Sizes = SIZES

    @property
    def stores_blocks(self) -> bool:
        """Whether A is applied with the blocks in `gram` as they are; fused kernels and special forms need that."""
        return True

    @property
    def shape(self) -> tuple[int, int]:
        """(n, p): tasks and coefficients per task."""
        return self.gram.shape[0], self.gram.shape[1]

    @cached_property
    def incidence(self) -> sparse.csr_array:
        """Row e of this (m, n) matrix is d_i − d_j."""
        m, n = len(self.edges), self.shape[0]
        data = np.tile([1.0, -1.0], m)
        return sparse.csr_array((data, self.edges.ravel(), np.arange(0, 2 * m + 1, 2)), shape=(m, n))

    @cached_property
    def laplacian(self) -> sparse.csr_array:
        """Σ_e w_e b_e b_eᵀ for one weight per edge, shape (n, n)."""
        return laplacian(self.edges, self.edge_weights, self.shape[0])

    @property
    def is_separable(self) -> bool:
        """Whether edges have one weight each and no curvature, so that the edge part of A is L ⊗ Λ."""
        return self.edge_weights.ndim == 1 and self.curvature is None

    @cached_property
    def operator(self) -> kernels.Operator:
        """A as the kernels take it; for a separable system."""
        n = self.shape[0]
        weights = kernels.symmetric_matrix(self.edges, self.edge_weights, n)
        diagonal = self._degrees + self._diagonal_part
        return kernels.Operator(self.gram, diagonal, weights, self.coupling, self.hub / n)

    def apply(self, values: np.ndarray) -> np.ndarray:
        """A · values for values of shape (n, p) or (n, p, r)."""
        if values.ndim == 2 and self.stores_blocks and self.is_separable:
            return kernels.system_product(self.operator, values)
        stacked = values[..., None] if values.ndim == 2 else values
        out = self.multiply_blocks(stacked)
        out += self._diagonal_part[..., None] * stacked
        if self.hub.any():
            out -= self.hub[:, None] * stacked.mean(axis=0)
        if len(self.edges):
            out += self._apply_edges(stacked)
        return out[..., 0] if values.ndim == 2 else out

    def multiply_blocks(self, values: np.ndarray) -> np.ndarray:
        """G_i · values_i for values of shape (n, p, r)."""
        return kernels.block_product(self.gram, values)

    @cached_property
    def _diagonal_part(self) -> np.ndarray:
        return np.broadcast_to(self.hub + self.ridge, self.shape)

    def _apply_edges(self, values: np.ndarray) -> np.ndarray:
        n, p, r = values.shape
        flat = values.reshape(n, p * r)
        if self.edge_weights.ndim == 1:
            out = kernels.sparse_product(self.laplacian, flat).reshape(n, p, r) * self.coupling[:, None]
        else:
            difference = (self.incidence @ flat).reshape(-1, p, r)
            difference *= (self.edge_weights * self.coupling)[..., None]
            out = (self.incidence.T @ difference.reshape(-1, p * r)).reshape(n, p, r)
        if self.curvature is not None:
            difference = (self.incidence @ flat).reshape(-1, p, r)
            along = np.einsum("mp,mpr->mr", self.curvature.directions, difference) * self.curvature.factors[:, None]
            back = self.curvature.directions[:, :, None] * along[:, None, :]
            out -= (self.incidence.T @ back.reshape(-1, p * r)).reshape(n, p, r)
        return out

    def degrees(self) -> np.ndarray:
        """Σ_j w_ij of every task and coordinate, coupling included, shape (n, p)."""
        return self._degrees.copy()

    @cached_property
    def _degrees(self) -> np.ndarray:
        n, p = self.shape
        if self.edge_weights.ndim == 1:
            total = np.bincount(self.edges.ravel(), np.repeat(self.edge_weights, 2), n)
            return total[:, None] * self.coupling
        total = np.zeros((n, p))
        np.add.at(total, self.edges[:, 0], self.edge_weights)
        np.add.at(total, self.edges[:, 1], self.edge_weights)
        return total * self.coupling

    def block_diagonal(self) -> np.ndarray:
        """What graph, hub and ridge add to the diagonals of the G_i, shape (n, p)."""
        return self._degrees + (self.hub * (1.0 - 1.0 / self.shape[0]) + self.ridge)

    def diagonal_blocks(self) -> np.ndarray:
        """The p × p diagonal blocks of A, shape (n, p, p)."""
        blocks = self.gram.copy()
        index = np.arange(self.shape[1])
        blocks[:, index, index] += self.block_diagonal()
        if self.curvature is not None:
            outer = self.curvature.blocks()
            np.subtract.at(blocks, self.edges[:, 0], outer)
            np.subtract.at(blocks, self.edges[:, 1], outer)
        return blocks

    def dense(self) -> np.ndarray:
        """A as an (np, np) matrix; for small systems."""
        n, p = self.shape
        matrix = np.zeros((n, p, n, p))
        tasks, index = np.arange(n), np.arange(p)
        matrix[:, index, :, index] -= (self.hub / n)[:, None, None]
        matrix[tasks, :, tasks, :] += self.diagonal_blocks()
        matrix[tasks[:, None], index, tasks[:, None], index] += self.hub / n
        if len(self.edges):
            i, j = self.edges.T
            weights = self.edge_weights[:, None] if self.edge_weights.ndim == 1 else self.edge_weights
            # Not -=, which would count an edge given twice only once.
            for first, second in ((i, j), (j, i)):
                np.subtract.at(matrix, (first[:, None], index, second[:, None], index), weights * self.coupling)
                if self.curvature is not None:
                    np.add.at(matrix.transpose(0, 2, 1, 3), (first, second), self.curvature.blocks())
        return matrix.reshape(n * p, n * p)

    def without_curvature(self) -> TaskSystem:
        """The majoriser of this system."""
        return self if self.curvature is None else replace(self, curvature=None)

    def check_determined(self) -> None:
        """Refuse a singular A, naming the tasks.

        With positive Λ the null space of A consists of vectors that are constant on each connected component
        and in the null space of the component's summed gram matrix; so only that sum has to be checked.
        """
        ridge = np.broadcast_to(self.ridge, self.shape)
        coupled = self.edge_weights > 0 if self.edge_weights.ndim == 1 else (self.edge_weights > 0).all(axis=1)
        if (ridge > 0).all() or not (self.coupling > 0).all():
            return
        n, p = self.shape
        if (self.hub > 0).all():
            component, total, ridges = np.zeros(n, dtype=np.int64), self.gram.sum(axis=0)[None], ridge.sum(axis=0)[None]
        elif not self.hub.any():
            edges = self.edges[coupled]
            links = sparse.coo_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(n, n))
            number, component = connected_components(links, directed=False)
            within = sparse.csr_array((np.ones(n), (component, np.arange(n))), shape=(number, n))
            total, ridges = (within @ self.gram.reshape(n, p * p)).reshape(-1, p, p), within @ ridge
        else:
            return
        index = np.arange(p)
        total[:, index, index] += ridges
        spectrum = np.linalg.eigvalsh(total)
        bad = np.flatnonzero(spectrum[:, 0] <= 1e-14 * np.maximum(spectrum[:, -1], np.finfo(float).tiny))
        if len(bad):
            members = np.flatnonzero(component == bad[0])
            shown = ", ".join(map(str, members[:5])) + (" …" if len(members) > 5 else "")
            raise SingularSystemError(
                f"The data do not determine the models: task(s) at position {shown} "
                f"({'linked to no other task' if len(members) == 1 else 'linked to one another'}) have "
                f"collinear or too few rows. Use a positive ridge, a hub, or link them to other tasks."
            )


def laplacian(edges: np.ndarray, weights: np.ndarray, n: int, shift: np.ndarray | float = 0.0) -> sparse.csr_array:
    """Σ_e w_e (d_i − d_j)(d_i − d_j)ᵀ + diag(shift), shape (n, n)."""
    i, j = edges.T
    degree = np.bincount(edges.ravel(), np.repeat(weights, 2), n) + shift
    nodes = np.arange(n)
    rows, columns = np.concatenate([i, j, nodes]), np.concatenate([j, i, nodes])
    return sparse.csr_array((np.concatenate([-weights, -weights, degree]), (rows, columns)), shape=(n, n))


def edge_between(edges: np.ndarray, i: int, j: int) -> np.ndarray:
    """Which of the edges ties i and j, shape (m,)."""
    i, j = sorted((i, j))
    return (edges[:, 0] == i) & (edges[:, 1] == j)


def inverse_and_log_determinant(matrix: np.ndarray) -> tuple[np.ndarray, float]:
    """Inverse and log-determinant of a symmetric positive definite matrix, by its Cholesky factor."""
    factor, failed = dpotrf(matrix, lower=1, clean=1)
    if failed:
        raise SingularSystemError(
            "A matrix of the models or of the graph is singular to working accuracy. Use a larger ridge or weaker "
            "coupling."
        )
    log_det = 2.0 * float(np.log(np.diagonal(factor)).sum())
    # LAPACK fills one triangle.
    half = dpotri(factor, lower=1, overwrite_c=1)[0]
    inverse = half + half.T
    np.einsum("kk->k", inverse)[:] *= 0.5
    return inverse, log_det


# ---------------------------------------------------------------------- solutions


def norms(values: np.ndarray) -> np.ndarray:
    """Norm of every right-hand side of shape (n, p), or (n, p, r) for r of them."""
    return np.sqrt(np.einsum("np...,np...->...", values, values))


def relative_residual(residual: np.ndarray, right: np.ndarray) -> float:
    """The largest ‖R − A V‖/‖R‖ over right-hand sides."""
    scale = norms(right)
    return float(np.max(norms(residual) / np.where(scale > 0, scale, 1.0)))


@dataclass(frozen=True)
class Solution:
    """What a solver returns.

    Parameters
    ----------
    value : array of shape (n, p) or (n, p, r)
        The solution.
    iterations : int
        Iterations taken; zero for the direct solver.
    residual : float
        Largest ‖R − A V‖/‖R‖ over right-hand sides, computed from the solution itself.
    status : str
        ``"direct"``, ``"converged"``, ``"stalled"`` or ``"max_iter"``.
    applications : int
        How often A was applied, preconditioner included; what the fused kernel saves is not deducted.
    """

    value: np.ndarray
    iterations: int
    residual: float
    status: str
    applications: int = 0

    @property
    def succeeded(self) -> bool:
        """Whether the tolerance was reached."""
        return self.status in ("direct", "converged")

    def require(self, accuracy: float) -> Solution:
        """Return self, or refuse a solution worse than `accuracy`."""
        if self.succeeded or self.residual <= accuracy:
            return self
        raise SolverError(
            f"The linear system was solved only to a relative residual of {self.residual:.1e} after "
            f"{self.iterations} iterations ({self.status}). The problem is badly conditioned: use a larger ridge, "
            "weaker coupling, or remove (nearly) collinear features."
        )


@dataclass
class Experience:
    """What earlier right-hand sides of a system have shown, so that later ones do not try it again.

    Parameters
    ----------
    trial_failed : bool
        Block-Jacobi alone took too many steps.
    steps_failed : bool
        Conjugate gradients did not reach a good residual with any preconditioner.
    """

    trial_failed: bool = False
    steps_failed: bool = False
