"""Newton's method for Σωℓ + a quadratic penalty, each step one least-squares problem on working sums.

A step that does not lower the objective is halved. The objective is convex, and so the method arrives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ggmtl.losses.rowwise import RowLoss
from ggmtl.losses.task_rows import TaskRows
from ggmtl.statistics.least_squares import LeastSquares

# Newton's steps at the most, and halvings of a step.
_STEPS, _HALVINGS = 50, 30


@dataclass(frozen=True)
class Mode:
    """Where Σωℓ + penalty is least: the models, the working sums there, Σωℓ, and whether the steps arrived."""

    coefficients: np.ndarray
    sums: LeastSquares
    loss: float
    steps: int
    converged: bool


def newton(
    rows: TaskRows,
    loss: RowLoss,
    start: np.ndarray,
    solve: Callable[[LeastSquares], np.ndarray],
    penalty: Callable[[np.ndarray], float],
    *,
    noise: float | None = 1.0,
    tol: float = 1e-9,
    max_steps: int = _STEPS,
) -> Mode:
    """Minimise Σωℓ(V) + penalty(V).

    Parameters
    ----------
    rows, loss
        The rows and their loss.
    start : array of shape (n, p)
        Models to start from.
    solve : callable
        Models that minimise the quadratic of working sums plus the penalty.
    penalty : callable
        Value of the penalty at models.
    noise : float or None
        Dispersion that the working sums carry.
    tol : float
        Steps end where one lowers the objective by less than this share.
    """
    here = start
    value = rows.value(loss, here)
    objective = value + penalty(here)
    for step in range(1, max_steps + 1):
        change = solve(rows.working_sums(loss, here, noise)) - here
        for _ in range(_HALVINGS):
            candidate = here + change
            value_there = rows.value(loss, candidate)
            there = value_there + penalty(candidate)
            if there <= objective + 1e-12 * abs(objective):
                break
            change = 0.5 * change
        else:
            return Mode(here, rows.working_sums(loss, here, noise), value, step, True)
        gained = objective - there
        here, value, objective = candidate, value_there, there
        if gained <= tol * (1.0 + abs(objective)):
            return Mode(here, rows.working_sums(loss, here, noise), value, step, True)
    return Mode(here, rows.working_sums(loss, here, noise), value, max_steps, False)
