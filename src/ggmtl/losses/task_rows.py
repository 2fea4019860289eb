"""Rows of all tasks in memory, sorted by task, their working sums, and Newton's method.

With weights ω, W = ωℓ'' and z = (η − offset) − ℓ'/ℓ'' at the models V,

    G = XᵀWX ,   m = XᵀWz = XᵀW(η − offset) − Xᵀωℓ' ,   t = zᵀWz :

½(wᵀGw − 2mᵀw + t) has the gradient and the curvature of Σωℓ at V, and is a sum of squares. Each step of Newton's method
for Σωℓ + a quadratic penalty is one least-squares problem on these sums. A step that does not lower the objective is
halved. The objective is convex, so the method converges.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ggmtl.losses.rowwise import RowLoss
from ggmtl.runtime import kernels
from ggmtl.statistics.least_squares import LeastSquares

# Least curvature of a row: where a probability is 0 or 1 to so many digits, the row says nothing about the slope.
_FLATTEST = 1e-10
# Trends go on for so many times the range of the training rows, at each end.
_BEYOND = 0.5


@dataclass(frozen=True)
class Mode:
    """Models, the working sums there and Σωℓ; and, at the end of a search, its steps and whether they arrived."""

    coefficients: np.ndarray
    sums: LeastSquares
    loss: float
    steps: int = 0
    converged: bool = False


@dataclass(frozen=True)
class TaskRows:
    """Rows of all tasks, those of a task together.

    Parameters
    ----------
    design : array of shape (rows, p)
        X.
    target, offset, weight : arrays of shape (rows,)
        y, what is added to Xw, and ω.
    task : array of int, shape (rows,)
        Position of each row's task, not falling.
    n_tasks : int
    """

    design: np.ndarray
    target: np.ndarray
    offset: np.ndarray
    weight: np.ndarray
    task: np.ndarray
    n_tasks: int

    @property
    def n_features(self) -> int:
        """Number of coefficients of a task."""
        return self.design.shape[1]

    @property
    def count(self) -> np.ndarray:
        """Sum of weights of every task, shape (n,)."""
        return np.bincount(self.task, self.weight, self.n_tasks)

    def take(self, rows: np.ndarray) -> TaskRows:
        """Some of the rows, a mask or positions in rising order, of the same tasks."""
        names = ("design", "target", "offset", "weight", "task")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})

    def of_tasks(self, tasks: np.ndarray) -> TaskRows:
        """The rows of some tasks, given in rising order."""
        place = np.full(self.n_tasks, -1)
        place[tasks] = np.arange(len(tasks))
        found = self.take(place[self.task] >= 0)
        return replace(found, task=place[found.task], n_tasks=len(tasks))

    def as_one_task(self) -> TaskRows:
        """All rows as those of one task."""
        return replace(self, task=np.zeros(len(self.task), dtype=np.int64), n_tasks=1)

    def limits(self) -> np.ndarray:
        """Lowest and highest value of every column, widened by half of their distance at each end, shape (2, p)."""
        if not len(self.design):
            return np.repeat([[-np.inf], [np.inf]], self.n_features, axis=1)
        low, high = self.design.min(axis=0), self.design.max(axis=0)
        return np.stack([low - _BEYOND * (high - low), high + _BEYOND * (high - low)])

    def seen_from(self, training: TaskRows, loss: RowLoss) -> TaskRows:
        """These rows as models of the training rows predict them: a value far outside their range counts as its end.

        Only where means grow exponentially: there a single wrong entry would outweigh all other rows.
        """
        return replace(self, design=np.clip(self.design, *training.limits())) if loss.exponential else self

    def predictor(self, coefficients: np.ndarray) -> np.ndarray:
        """η = Xw + offset of every row, for models of shape (n, p)."""
        return np.einsum("rp,rp->r", self.design, coefficients[self.task]) + self.offset

    def value(self, loss: RowLoss, coefficients: np.ndarray) -> float:
        """Σωℓ over all rows."""
        return float(self.weight @ loss.value(self.predictor(coefficients), self.target))

    def gradient(self, loss: RowLoss, coefficients: np.ndarray) -> np.ndarray:
        """∂Σωℓ/∂w of every task, shape (n, p)."""
        residual = self.weight * (loss.mean(self.predictor(coefficients)) - self.target)
        return self.sums_by_task(residual[:, None] * self.design)

    def sums_by_task(self, values: np.ndarray) -> np.ndarray:
        """Sums over the rows of every task, shape (n, columns)."""
        out = np.zeros((self.n_tasks, values.shape[1]))
        present, first = np.unique(self.task, return_index=True)
        if len(present):
            out[present] = np.add.reduceat(values, first, axis=0)
        return out

    def at(self, loss: RowLoss, coefficients: np.ndarray, noise: float | None = 1.0) -> Mode:
        """Σωℓ at these models and the quadratic that has its gradient and curvature there, in one pass over the rows.

        `noise` is the dispersion φ where it is known; None where it is to be profiled.
        """
        predictor = self.predictor(coefficients)
        curvature = np.maximum(loss.curvature(predictor), _FLATTEST)
        working = predictor - self.offset - (loss.mean(predictor) - self.target) / curvature
        rows = np.column_stack([self.design, working]) * np.sqrt(self.weight * curvature)[:, None]
        cross = kernels.segment_cross_products(rows, self.task, self.n_tasks)
        sums = LeastSquares(
            cross[:, :-1, :-1].copy(), cross[:, :-1, -1].copy(), cross[:, -1, -1].copy(), self.count, noise
        )
        return Mode(coefficients, sums, float(self.weight @ loss.value(predictor, self.target)))

    def working_sums(self, loss: RowLoss, coefficients: np.ndarray, noise: float | None = 1.0) -> LeastSquares:
        """The quadratic of :meth:`at`."""
        return self.at(loss, coefficients, noise).sums


@dataclass(frozen=True)
class FoldedRows:
    """Rows, and the folds that are held out in turn.

    Parameters
    ----------
    rows : TaskRows
    folds : array of int, optional
        Fold of every row; None where none is held out.
    first_scored : int
        Folds below it are never held out.
    """

    rows: TaskRows
    folds: np.ndarray | None
    first_scored: int = 0

    @property
    def scored(self) -> list[int]:
        """Numbers of the folds that are held out in turn."""
        if self.folds is None:
            return []
        return [int(k) for k in np.unique(self.folds) if k >= self.first_scored and (self.folds != k).any()]

    def training(self, k: int) -> TaskRows:
        """The rows without fold k."""
        return self.rows.take(self.folds != k)

    def part(self, k: int) -> TaskRows:
        """The rows of fold k."""
        return self.rows.take(self.folds == k)

    def with_task(self, position: int, more: TaskRows) -> FoldedRows:
        """The same with the rows of one more task, dealt into the folds in turn."""
        task = self.rows.task + (self.rows.task >= position)
        place = int(np.searchsorted(task, position))
        new = {"task": np.full(len(more.task), position)}
        names = ("design", "target", "offset", "weight", "task")
        parts: dict[str, Any] = {name: new.get(name, getattr(more, name)) for name in names}
        old: dict[str, Any] = {name: getattr(self.rows, name) for name in names} | {"task": task}
        joined: dict[str, Any] = {
            name: np.concatenate([old[name][:place], parts[name], old[name][place:]]) for name in names
        }
        rows, folds = TaskRows(**joined, n_tasks=self.rows.n_tasks + 1), self.folds
        if folds is not None:
            dealt = np.arange(len(more.task)) % (int(folds.max()) + 1)
            folds = np.concatenate([folds[:place], dealt, folds[place:]])
        return FoldedRows(rows, folds, self.first_scored)


def row_quadratics(design: np.ndarray, blocks: np.ndarray, task: np.ndarray) -> np.ndarray:
    """xᵀB_i x of every row, not below zero; `blocks` has shape (n, p, p), and rows may stand in any order."""
    order, out = np.argsort(task, kind="stable"), np.empty(len(design))
    tasks, first, count = np.unique(task[order], return_index=True, return_counts=True)
    # Tasks with the same number of rows go through one product of stacked matrices.
    for size in np.unique(count):
        same = count == size
        rows = order[first[same][:, None] + np.arange(size)]
        X = design[rows]
        out[rows] = np.einsum("trp,trp->tr", X @ blocks[tasks[same]], X)
    return np.maximum(out, 0.0)


def sorted_rows(
    design: np.ndarray,
    target: np.ndarray,
    task: np.ndarray,
    n_tasks: int,
    offset: np.ndarray | None = None,
    weight: np.ndarray | None = None,
) -> tuple[TaskRows, np.ndarray]:
    """Rows in any order as :class:`TaskRows`, and the order in which they stand there."""
    order = np.argsort(task, kind="stable")
    offset = np.zeros(len(target)) if offset is None else offset
    weight = np.ones(len(target)) if weight is None else weight
    return TaskRows(design[order], target[order], offset[order], weight[order], task[order], n_tasks), order


# Newton's steps at the most, and halvings of a step.
_STEPS, _HALVINGS = 50, 30
# Share of the tolerance below which a step is not taken.
_PROMISE = 1e-5


def newton(
    rows: TaskRows,
    loss: RowLoss,
    start: np.ndarray | Mode,
    solve: Callable[[LeastSquares], np.ndarray],
    penalty: Callable[[np.ndarray], float],
    *,
    noise: float | None = 1.0,
    tol: float = 1e-9,
    max_steps: int = _STEPS,
) -> Mode:
    """Minimise Σωℓ(V) + penalty(V), with one pass over the rows for each step.

    Parameters
    ----------
    rows, loss
        The rows and their loss.
    start : array of shape (n, p), or Mode
        Models to start from; as a mode, they are not evaluated again.
    solve : callable
        Models that minimise the quadratic of working sums plus the penalty.
    penalty : callable
        Value of the penalty at models.
    noise : float or None
        Dispersion that the working sums carry.
    tol : float
        Steps end where one lowers the objective by less than this share, or promises next to nothing.
    """
    here = rows.at(loss, start, noise) if isinstance(start, np.ndarray) else start
    here = replace(here, sums=replace(here.sums, noise=noise))
    objective = here.loss + penalty(here.coefficients)
    for step in range(1, max_steps + 1):
        models = here.coefficients
        aim = solve(here.sums)
        change = aim - models
        # ½ΔᵀAΔ: what the quadratic would fall by. The penalty is quadratic, so three values give its part.
        promised = 0.5 * float(np.einsum("np,npq,nq->", change, here.sums.gram, change, optimize=True))
        promised += 2.0 * (penalty(models) + penalty(aim)) - 4.0 * penalty(0.5 * (models + aim))
        if promised <= _PROMISE * tol * (1.0 + abs(objective)):
            return replace(here, steps=step, converged=True)
        for _ in range(_HALVINGS):
            there = rows.at(loss, models + change, noise)
            value = there.loss + penalty(there.coefficients)
            if value <= objective + 1e-12 * abs(objective):
                break
            change = 0.5 * change
        else:
            return replace(here, steps=step, converged=True)
        gained, here, objective = objective - value, there, value
        if gained <= tol * (1.0 + abs(objective)):
            return replace(here, steps=step, converged=True)
    return replace(here, steps=max_steps, converged=False)
