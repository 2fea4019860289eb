"""Every task on its own."""

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


class IndependentRegressor(TaskRegressor):
    """One ridge regression per task, with one penalty for all:

        min_{w_i, b_i}  ½‖y_i − X_i w_i − b_i‖² + ½ρ‖w_i‖²     for every i.

    What multi-task learning has to beat (ridge regression: Hoerl and Kennard, 1970).

    Parameters
    ----------
    task : str or int, optional
        Column of X that holds the task.
    ridge : float or "auto"
        ρ, in units where features and target have spread one. ``"auto"``: by cross-validation on the training
        rows (by evidence where statistics come without folds). Zero: minimum-norm least squares.
    validation, fit_intercept, standardize, unseen, random_state
        As in :class:`ggmtl.GGMTLRegressor`. Intercepts are not penalised.

    Attributes
    ----------
    coef_, intercept_ : arrays of shape (n, d), (n,)
        Models in the user's units.
    ridge_, strength_ : float
        ρ.
    validation_error_ : float or None
        Root mean squared error on held-out rows at ρ, where it was chosen by cross-validation.

    Examples
    --------
    >>> X, y = [[0.0], [1.0], [0.0], [1.0]], [1, 2, 5, 3]
    >>> model = IndependentRegressor(ridge=0.0).fit(X, y, tasks=list("aabb"))
    >>> model.coef_.round(6).ravel().tolist(), model.intercept_.round(6).tolist()
    ([1.0, -2.0], [1.0, 5.0])
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
        if ridge is None:
            ridge, table = choose_ridge(folds, statistics, self.fit_intercept, self._scored(folds))
        coefficients = RidgeFactor.of(centre(sum_of(folds), self.fit_intercept)).solve(ridge)
        error = None if table is None else float(np.sqrt(table.smallest)) * self.scaling_.target_scale
        attributes = {"ridge_": ridge, "strength_": ridge, "validation_error_": error}
        return LearnedModels(coefficients, TaskGraph.empty(statistics.task_names), attributes=attributes)
