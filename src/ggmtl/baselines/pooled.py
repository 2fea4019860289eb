"""One model for all tasks."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmtl.baselines._centred import centre
from ggmtl.baselines._ridge import RidgeFactor, choose_ridge
from ggmtl.baselines._selection import check_strength
from ggmtl.estimators.base import LearnedModels, TaskRegressor
from ggmtl.graph.task_graph import TaskGraph
from ggmtl.statistics.least_squares import LeastSquares, sum_of
from ggmtl.statistics.task_statistics import TaskStatistics


class PooledRegressor(TaskRegressor):
    """One ridge regression on the rows of all tasks together:

        min_{w, b}  ½ Σ_i ‖y_i − X_i w − b‖² + ½ρ‖w‖².

    The other end from independent models (ridge regression: Hoerl and Kennard, 1970). Its model is the common
    model, so ``unseen="hub"`` predicts for any task.

    Parameters
    ----------
    task : str or int, optional
        Column of X that holds the task.
    ridge : float or "auto"
        ρ, in units where features and target have spread one. ``"auto"``: by cross-validation on the training
        rows (by evidence where statistics come without folds). Zero: minimum-norm least squares.
    validation, fit_intercept, standardize, unseen, random_state
        As in :class:`ggmtl.GGMTLRegressor`. The intercept is not penalised.

    Attributes
    ----------
    coef_, intercept_ : arrays of shape (n, d), (n,)
        The model, once per task, in the user's units.
    hub_coef_, hub_intercept_ : array of shape (d,), float
        The model.
    ridge_, strength_ : float
        ρ.
    validation_error_ : float or None
        Root mean squared error on held-out rows at ρ, where it was chosen by cross-validation.

    Examples
    --------
    >>> X, y = [[0.0], [1.0], [0.0], [1.0]], [0, 1, 5, 3]
    >>> model = PooledRegressor(ridge=0.0).fit(X, y, tasks=list("aabb"))
    >>> model.coef_.round(6).ravel().tolist(), round(model.hub_intercept_, 6)
    ([-0.5, -0.5], 2.5)
    """

    def __init__(
        self,
        task: str | int | None = None,
        *,
        ridge: float | str = "auto",
        validation: Any = 5,
        fit_intercept: bool = True,
        standardize: bool = True,
        unseen: str = "error",
        random_state: int | None = None,
    ):
        self.task = task
        self.ridge = ridge
        self.validation = validation
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.unseen = unseen
        self.random_state = random_state

    def _learn(self, folds: list[LeastSquares], statistics: TaskStatistics) -> LearnedModels:
        ridge, table = check_strength("ridge", self.ridge), None
        merged = [_merge(fold) for fold in folds]
        if ridge is None:
            ridge, table = choose_ridge(merged, statistics, self.fit_intercept, self._scored(folds))
        model = RidgeFactor.of(centre(sum_of(merged), self.fit_intercept)).solve(ridge)
        error = None if table is None else float(np.sqrt(table.smallest)) * self.scaling_.target_scale
        return LearnedModels(
            np.repeat(model, statistics.n_tasks, axis=0),
            TaskGraph.empty(statistics.task_names),
            common=model[0],
            attributes={"ridge_": ridge, "strength_": ridge, "validation_error_": error},
        )


def _merge(loss: LeastSquares) -> LeastSquares:
    """The loss of all rows as a single task's."""
    return LeastSquares(
        loss.gram.sum(axis=0, keepdims=True),
        loss.moment.sum(axis=0, keepdims=True),
        loss.target_square.sum(keepdims=True),
        loss.count.sum(keepdims=True),
    )
