"""Conjugate gradients with block-Jacobi in two compiled passes over the tasks, each shared among threads."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np

from ggmtl.runtime.kernels.forms import as_input
from ggmtl.runtime.kernels.reference import Cycle, Operator
from ggmtl.runtime.machine import over_tasks


def conjugate_gradient(
    form: ModuleType,
    operator: Operator,
    cycle: Cycle,
    value: np.ndarray,
    residual: np.ndarray,
    goal: float,
    max_iter: int,
    patience: int,
    least: int,
) -> int:
    """The same as :func:`ggmtl.runtime.kernels.reference.conjugate_gradient`, for a cycle without levels.

    Every pass reads one matrix per task: the step and the correction B of what it leaves; the next direction and its
    image.
    """
    inverse, system, hub_share = as_input(cycle.inverse, cycle.inverse.dtype), _arrays(operator), operator.hub_share
    direction, image, correction = np.zeros_like(value), np.zeros_like(value), np.empty_like(value)
    # One number per task, so that their sums do not depend on the number of threads.
    products, squares = np.empty(len(value)), np.empty(len(value))

    def share(rows: Callable[[int, int], None]) -> None:
        over_tasks(rows, len(value), operator.gram.size, least)

    def descend(alpha: float) -> tuple[float, float]:
        vectors = (direction, image, value, residual, correction, products, squares)
        share(lambda first, last: form.descend_rows(inverse, alpha, *vectors, first, last))
        return float(products.sum()), float(np.sqrt(squares.sum()))

    def follow(beta: float) -> float:
        common = hub_share * correction.sum(axis=0) if hub_share.any() else hub_share
        vectors = (correction, residual, direction, image, products)
        share(lambda first, last: form.follow_rows(system, cycle.exact, common, beta, *vectors, first, last))
        return float(products.sum())

    product, _ = descend(0.0)
    beta, best, since_best = 0.0, np.inf, 0
    for step in range(max_iter):
        # A block may no longer be positive definite in float32; the direction is then no descent direction.
        if product <= 0:
            return step
        curvature = follow(beta)
        following, norm = descend(product / curvature if curvature > 0 else 0.0)
        since_best = 0 if norm < 0.99 * best else since_best + 1
        best = norm if since_best == 0 else best
        if norm <= goal or since_best >= patience:
            return step + 1
        beta, product = following / product, following
    return max_iter


def _arrays(operator: Operator) -> tuple[np.ndarray, ...]:
    """A as plain arrays of one type each."""
    weights = operator.weights
    lists = (as_input(weights.indptr, np.int64), as_input(weights.indices, np.int64), as_input(weights.data))
    rest = (as_input(operator.coupling), as_input(operator.hub_share))
    return as_input(operator.gram), as_input(operator.diagonal), *lists, *rest
