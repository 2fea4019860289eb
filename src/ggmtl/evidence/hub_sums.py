"""Sums over tasks behind the evidence of a common model, from the blocks D_i⁻¹ or from a few rows per task.

D_i = G_i + H with H = diag(h) + ρI, and K_i = D_i⁻¹(G_i + ρI). Where tasks have far fewer rows than coefficients,
G_i = R_iᵀR_i and

    D_i⁻¹ = H⁻¹ − T_iᵀT_i ,   K_i = ρH⁻¹ + T_iᵀT_i diag(h) ,   T_i = C_i⁻¹R_iH⁻¹ ,   C_iC_iᵀ = I + R_iH⁻¹R_iᵀ .

50 tasks of 20 rows and 301 coefficients take 0.04 s in this way, and 0.4 s by blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ggmtl.runtime import kernels
from ggmtl.statistics.least_squares import LeastSquares

# So many numbers are held at a time; inverses of more numbers in all are computed twice instead of held.
_CHUNK_NUMBERS, _HELD_NUMBERS = 1 << 20, 1 << 23
# D⁻¹ = H⁻¹ − TᵀT cancels as many digits as G is larger than H.
_WORST_RATIO = 1e10


@dataclass(frozen=True)
class FirstSums:
    """Sums that do not depend on the common model μ.

    Parameters
    ----------
    inverses : array of shape (p,)
        The diagonal of Σ D_i⁻¹.
    information : array of shape (p, p)
        Σ diag(h) K_i, about μ.
    right : array of shape (p,)
        Σ D_i⁻¹ m_i.
    log_det : float
        Σ ln|D_i|.
    """

    inverses: np.ndarray
    information: np.ndarray
    right: np.ndarray
    log_det: float


@dataclass(frozen=True)
class SecondSums:
    """Models, and sums that depend on μ and its covariance S (in units of σ²).

    Parameters
    ----------
    coefficients : array of shape (n, p)
        w_i = D_i⁻¹(m_i + h∘μ).
    doubt : array of shape (p,)
        The diagonal of Σ K_i S K_iᵀ.
    squares, products : arrays of shape (p, p)
        Σ (D_i⁻¹)_kl² and Σ d_ik (D_i⁻¹)_kl d_il with d_i = w_i − μ, times h_k h_l and √(h_k h_l).
    """

    coefficients: np.ndarray
    doubt: np.ndarray
    squares: np.ndarray
    products: np.ndarray


class HubTasks(Protocol):
    """All tasks beside strengths h."""

    @property
    def first(self) -> FirstSums:
        """Sums that do not depend on the common model."""
        ...

    def models(self, common: np.ndarray) -> np.ndarray:
        """Models of all tasks beside μ, shape (n, p)."""
        ...

    def second(self, common: np.ndarray, spread: np.ndarray) -> SecondSums:
        """Models and sums for μ of shape (p,) and S of shape (p, p)."""
        ...


def hub_tasks(loss: LeastSquares, hub: np.ndarray, ridge: float | np.ndarray) -> HubTasks:
    """The cheaper way to the sums."""
    rows = loss.few_rows
    if rows is None or (np.einsum("nkk->nk", loss.gram).max(axis=0) >= _WORST_RATIO * hub).any():
        return Blocks.of(loss, hub, ridge)
    return FewRows.of(loss, hub, ridge, rows)


@dataclass(frozen=True)
class Blocks:
    """By the blocks D_i⁻¹; `held` are those of all chunks of tasks where they fit, `total` is their sum."""

    loss: LeastSquares
    hub: np.ndarray
    ridge: float | np.ndarray
    held: dict[int, np.ndarray]
    total: np.ndarray
    first: FirstSums

    @classmethod
    def of(cls, loss: LeastSquares, hub: np.ndarray, ridge: float | np.ndarray) -> Blocks:
        """Invert all blocks."""
        n, p = loss.moment.shape
        total, right, information, log_det = np.zeros((p, p)), np.zeros(p), np.zeros((p, p)), 0.0
        held, fits = {}, n * p * p <= _HELD_NUMBERS
        for rows in chunks(n, p * p, _CHUNK_NUMBERS):
            gram = loss.gram[rows]
            inverse, part = task_inverses(gram, hub + ridge)
            log_det += part
            total += inverse.sum(axis=0)
            information += block_information(gram, ridge, inverse)
            right += np.matmul(inverse, loss.moment[rows, :, None]).sum(axis=0)[:, 0]
            if fits:
                held[rows.start] = inverse
        first = FirstSums(np.diag(total), information * hub, right, log_det)
        return cls(loss, hub, ridge, held, total, first)

    def inverses(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Slices of tasks, and their D_i⁻¹."""
        n, p = self.loss.moment.shape
        for rows in chunks(n, p * p, _CHUNK_NUMBERS):
            inverse = self.held.get(rows.start)
            yield rows, task_inverses(self.loss.gram[rows], self.hub + self.ridge)[0] if inverse is None else inverse

    def models(self, common: np.ndarray) -> np.ndarray:
        """Models of all tasks beside μ."""
        moment = (self.loss.moment + self.hub * common)[..., None]
        return np.concatenate([np.matmul(inverse, moment[rows])[..., 0] for rows, inverse in self.inverses()])

    def second(self, common: np.ndarray, spread: np.ndarray) -> SecondSums:
        """Models and sums for μ and S."""
        loss, hub = self.loss, self.hub
        n, p = loss.moment.shape
        coefficients, squares, products = np.empty((n, p)), np.zeros((p, p)), np.zeros((p, p))
        # K = I − D⁻¹ diag(h), so that K S Kᵀ has three terms; two of them need only ΣD⁻¹.
        doubt = n * np.diag(spread) - 2.0 * np.einsum("ka,a,ak->k", self.total, hub, spread)
        root, pulled = np.sqrt(hub), hub[:, None] * spread * hub
        for rows, inverse in self.inverses():
            coefficients[rows] = np.matmul(inverse, (loss.moment[rows] + hub * common)[..., None])[..., 0]
            # One product of all tasks' rows with a p × p matrix.
            reach = inverse.reshape(-1, p) @ pulled
            reach *= inverse.reshape(-1, p)
            doubt += (reach @ np.ones(p)).reshape(-1, p).sum(axis=0)
            # In units of the strengths: for columns of 1e-147 the squares of inverses themselves overflow.
            inverse = inverse * np.outer(root, root)
            squares += np.square(inverse).sum(axis=0)
            apart = root * (coefficients[rows] - common)
            inverse *= apart[:, None, :]
            inverse *= apart[:, :, None]
            products += inverse.sum(axis=0)
        return SecondSums(coefficients, doubt, squares, products)


@dataclass(frozen=True)
class FewRows:
    """By T_i, shape (n, r, p)."""

    loss: LeastSquares
    hub: np.ndarray
    ridge: float | np.ndarray
    rows: np.ndarray
    first: FirstSums

    @classmethod
    def of(cls, loss: LeastSquares, hub: np.ndarray, ridge: float | np.ndarray, rows: np.ndarray) -> FewRows:
        """Factorise I + R H⁻¹Rᵀ."""
        n, p = loss.moment.shape
        strength = hub + ridge
        scaled = rows / strength
        factor = np.linalg.cholesky(np.matmul(scaled, rows.transpose(0, 2, 1)) + np.eye(rows.shape[1]))
        rows = np.linalg.solve(factor, scaled)
        flat = rows.reshape(-1, p)
        sums = flat.T @ flat
        log_det = n * np.log(strength).sum() + 2.0 * np.log(np.einsum("nrr->nr", factor)).sum()
        right = loss.moment.sum(axis=0) / strength - _twice(rows, loss.moment).sum(axis=0)
        information = np.diag(n * ridge * hub / strength) + hub[:, None] * sums * hub
        first = FirstSums(n / strength - np.diag(sums), information, right, float(log_det))
        return cls(loss, hub, ridge, rows, first)

    def models(self, common: np.ndarray) -> np.ndarray:
        """Models of all tasks beside μ."""
        moment = self.loss.moment + self.hub * common
        return moment / (self.hub + self.ridge) - _twice(self.rows, moment)

    def second(self, common: np.ndarray, spread: np.ndarray) -> SecondSums:
        """Models and sums for μ and S."""
        hub, rows, n = self.hub, self.rows, self.loss.n_tasks
        strength, p = hub + self.ridge, len(hub)
        coefficients = self.models(common)
        # K S Kᵀ with K = ρH⁻¹ + TᵀV and V = T diag(h).
        flat, along, share = rows.reshape(-1, p), rows * hub, self.ridge / strength
        middle = np.matmul((along.reshape(-1, p) @ spread).reshape(rows.shape), along.transpose(0, 2, 1))
        doubt = n * share**2 * np.diag(spread)
        doubt += 2.0 * share * np.einsum("ka,a,ak->k", flat.T @ flat, hub, spread)
        doubt += np.einsum("nrk,nrk->k", rows, np.matmul(middle, rows))
        # In units of the strengths, D⁻¹ is h/H − ZᵀZ.
        scaled = rows * np.sqrt(hub)
        squares = np.zeros((p, p))
        for part in chunks(n, p * p, _CHUNK_NUMBERS):
            squares += np.square(np.matmul(scaled[part].transpose(0, 2, 1), scaled[part])).sum(axis=0)
        np.fill_diagonal(squares, np.square(hub / strength - np.square(scaled).sum(axis=1)).sum(axis=0))
        apart = np.sqrt(hub) * (coefficients - common)
        moved = (scaled * apart[:, None, :]).reshape(-1, p)
        products = np.diag(hub / strength * np.square(apart).sum(axis=0)) - moved.T @ moved
        return SecondSums(coefficients, doubt, squares, products)


def _twice(rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """T_iᵀ(T_i v_i), shape (n, p)."""
    return np.matmul(rows.transpose(0, 2, 1), np.matmul(rows, values[..., None]))[..., 0]


def block_information(gram: np.ndarray, ridge: float | np.ndarray, inverse: np.ndarray) -> np.ndarray:
    """Σ_i (G_i + ρ)D_i⁻¹ of some tasks, shape (p, p), by one product of matrices."""
    p = gram.shape[1]
    return gram.reshape(-1, p).T @ inverse.reshape(-1, p) + np.reshape(ridge, (-1, 1)) * inverse.sum(axis=0)


def chunks(n: int, numbers: int, at_a_time: int = _CHUNK_NUMBERS // 2) -> list[slice]:
    """Slices of consecutive tasks (or edges) whose blocks fit in the memory budget."""
    step = max(1, at_a_time // numbers)
    return [slice(first, min(first + step, n)) for first in range(0, n, step)]


def task_inverses(gram: np.ndarray, strength: np.ndarray) -> tuple[np.ndarray, float]:
    """Inverses and summed log-determinants of G_i + diag(h)."""
    # A Cholesky factor is as accurate as that of the same matrix scaled to a diagonal of ones, so any h is safe.
    inverse, log_det = kernels.inverse_blocks(gram, np.broadcast_to(strength, gram.shape[:2]))
    return inverse, float(log_det.sum())
