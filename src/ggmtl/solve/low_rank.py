"""Tasks of far fewer rows than coefficients: G_i = R_iᵀR_i with R_i of r rows, r well below p.

Products G v = Rᵀ(R v) take 2rp numbers per task instead of p², and so does the inverse of a diagonal block of A, whose
graph, hub and ridge part D is diagonal (Woodbury):

    (RᵀR + D)⁻¹ = D⁻¹ − TᵀT,    T = C⁻¹ R D⁻¹,    C Cᵀ = I + R D⁻¹Rᵀ .
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np

from ggmtl.solve.preconditioners import GraphLevel, TwoLevel
from ggmtl.solve.system import TaskSystem

# Milliseconds to prepare and to solve twice to 1e-8, one thread, six neighbours in the plane, here and in general:
#     n, p, rows        weak coupling (0.1)     strong (100)
#     500, 200, 10      317 against 3,414       511 against 3,082
#     200, 500, 20      416 against 10,071      881 against 11,860
#     300, 200, 60      765 against 1,341       908 against 1,534
#     2,000, 50, 5      132 against 265         440 against 1,380
#     1,000, 40, 8      59 against 62           204 against 170
# Blocks of fewer numbers in all are solved in a few milliseconds in any way. Processor seconds of a default fit, with
# and without: 200 tasks, 200 features, 20 rows 13.9 and 17.3; 300, 100, 15: 5.5 and 6.5; 500, 60, 10: 2.6 and 3.0.
# r is at most this share of p; R and T then hold two thirds of the numbers of one block, G and its inverse two blocks.
_RANK_SHARE = 1 / 3
# Hub and ridge alone hold the directions that the rows leave open. Up to this ratio of graph to hub and ridge, B alone
# takes at most 60 steps, each a third of the cost of a cycle.
_WEAK_COUPLING = 20.0
# Share of a diagonal entry that may be left after r steps: rounding.
_ROUNDING = 1e-14
_GLANCE = 4
# D⁻¹ − TᵀT cancels as many digits as G is larger than D.
_WORST_RATIO = 1e10


@dataclass(frozen=True)
class LowRankSystem(TaskSystem):
    """A with its data part applied by factors.

    Parameters
    ----------
    rows : array of shape (n, r, p)
        R.
    """

    rows: np.ndarray = field(kw_only=True)

    @property
    def stores_blocks(self) -> bool:
        """No: the data part is applied by its factors."""
        return False

    @classmethod
    def of(cls, system: TaskSystem, rows: np.ndarray) -> LowRankSystem:
        """The same system, and the factors of its blocks."""
        return cls(**{part.name: getattr(system, part.name) for part in fields(TaskSystem)}, rows=rows)

    def multiply_blocks(self, values: np.ndarray) -> np.ndarray:
        """G_i · values_i by the factors, for values of shape (n, p, r)."""
        return gram_product(self.rows, values)


@dataclass(frozen=True)
class LowRankJacobi:
    """B = D⁻¹ − TᵀT: the exact inverse of the diagonal blocks of A."""

    inverse_diagonal: np.ndarray
    rows: np.ndarray

    @classmethod
    def of(cls, system: TaskSystem, rows: np.ndarray) -> LowRankJacobi | None:
        """Factorise I + R D⁻¹Rᵀ; None where D is too small compared with the data for the formula to be accurate."""
        diagonal = system.block_diagonal()
        data = np.einsum("nrp,nrp->np", rows, rows)
        if (diagonal * _WORST_RATIO <= data.max(axis=1, keepdims=True)).any():
            return None
        scaled = rows / diagonal[:, None, :]
        inner = np.matmul(scaled, rows.transpose(0, 2, 1)) + np.eye(rows.shape[1])
        return cls(1.0 / diagonal, np.linalg.solve(np.linalg.cholesky(inner), scaled))

    def __call__(self, residual: np.ndarray) -> np.ndarray:
        """B · residual."""
        stacked = residual[..., None] if residual.ndim == 2 else residual
        out = self.inverse_diagonal[..., None] * stacked
        out -= gram_product(self.rows, stacked)
        return out[..., 0] if residual.ndim == 2 else out


def gram_product(rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """R_iᵀ(R_i values_i) for rows (n, r, p) and values (n, p, c)."""
    return np.matmul(rows.transpose(0, 2, 1), np.matmul(rows, values))


def applies(system: TaskSystem) -> bool:
    """Whether the blocks are large and a few of them have low rank; the others are seen when they are factorised."""
    n, p = system.shape
    if not system.stores_blocks or system.curvature is not None:
        return False
    if p < system.sizes.low_rank_width or system.gram.size < system.sizes.low_rank_numbers:
        return False
    few = system.gram[:: max(1, n // _GLANCE)]
    trace, square = np.einsum("npp->n", few), np.einsum("npq,npq->n", few, few)
    # The rank is at least (tr G)²/tr G², so most data of full rank are recognised without a factor.
    if (trace**2 > _RANK_SHARE * p * square).any():
        return False
    return factor_rows(few, int(_RANK_SHARE * p)) is not None


def factor_rows(gram: np.ndarray, most: int) -> np.ndarray | None:
    """R of shape (n, r, p) with RᵀR = G to rounding, by Cholesky steps with pivots; None where r would exceed `most`.

    Each task takes its own pivots: in every step the coordinate of which the largest share is still unexplained.
    """
    n, p = gram.shape[:2]
    task, scale = np.arange(n), np.einsum("npp->np", gram)
    scale = np.where(scale > 0, scale, np.inf)
    left = np.einsum("npp->np", gram).copy()
    rows = np.zeros((n, 8, p))
    for step in range(most + 1):
        pivot = np.argmax(left / scale, axis=1)
        height = left[task, pivot]
        # A task that is fully factorised gets a row of zeros.
        going = height > _ROUNDING * p * scale[task, pivot]
        if not going.any():
            return np.ascontiguousarray(rows[:, : max(step, 1)])
        if step == most:
            return None
        if step == rows.shape[1]:
            rows = np.concatenate([rows, np.zeros_like(rows)], axis=1)
        known = rows[:, :step]
        row = gram[task, pivot] - np.matmul(known[task, :, pivot][:, None, :], known)[:, 0]
        row *= np.where(going, 1.0 / np.sqrt(np.where(going, height, 1.0)), 0.0)[:, None]
        rows[:, step] = row
        left -= row**2
        # Exactly explained, whatever rounding says; else it might be chosen again.
        left[task[going], pivot[going]] = 0.0
    return None


def prepare(system: TaskSystem) -> tuple[LowRankSystem, LowRankJacobi | TwoLevel] | None:
    """A by factors and its preconditioner, for conjugate gradients; None where some task has too large a rank."""
    rows = factor_rows(system.gram, int(_RANK_SHARE * system.shape[1])) if applies(system) else None
    smoother = None if rows is None else LowRankJacobi.of(system, rows)
    if rows is None or smoother is None:
        return None
    narrow = LowRankSystem.of(system, rows)
    if (system.degrees() <= 0.5 * _WEAK_COUPLING * (system.hub + system.ridge)).all():
        return narrow, smoother
    # One sweep, not two: here it took fewer than 1.4 times the cycles, and two thirds of the time.
    return narrow, TwoLevel(narrow, smoother, GraphLevel.of(system))  # pyright: ignore[reportArgumentType]
