"""A common model, and every task's deviation from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ggmtl.baselines._centred import centre
from ggmtl.baselines._row_models import CountRegressor, hub_models
from ggmtl.baselines._selection import check_strength, held_out_rmse, select_by_paths
from ggmtl.baselines.ridge import RidgeFactor
from ggmtl.estimators.base import LearnedModels
from ggmtl.estimators.outcomes import OutcomeRows
from ggmtl.evidence.hub import hub_evidence
from ggmtl.evidence.hub_strengths import learn_hub
from ggmtl.graph.task_graph import TaskGraph
from ggmtl.statistics.least_squares import LeastSquares, sum_of
from ggmtl.statistics.task_statistics import TaskStatistics

# Strengths tried, in multiples of the mean number of rows of a task; strongest first.
_GRID = tuple(10.0**power for power in np.arange(2.0, -4.5, -0.5))


class HubRegressor(CountRegressor):
    """Every task's model as a common model plus a deviation:

        min  ½ Σ_i ‖y_i − X_i w_i − b_i‖² + ½h Σ_i ‖w_i − w_0‖² + ½h_b Σ_i (b_i − b_0)²

    over all w_i, b_i and the common w_0, b_0. With h, h_b → ∞ it is the pooled model, with h, h_b → 0 the
    independent ones.

    Parameters
    ----------
    task : str or int, optional
        Column of X that holds the task.
    strength, intercept_strength : float or "auto"
        h and h_b, in units where features and target have spread one. ``"auto"``: by cross-validation on the training
        rows (by evidence where statistics come without folds).
    loss : {"squared", "poisson"}
        ``"poisson"`` is for counts, as in :class:`ggmtl.GGMTLRegressor`: ``fit``, ``predict`` and ``score`` then take
        ``exposure=``.
    validation, fit_intercept, standardize, unseen, random_state
        As in :class:`ggmtl.GGMTLRegressor`.

    Attributes
    ----------
    coef_, intercept_ : arrays of shape (n, d), (n,)
        Models in the user's units.
    hub_coef_, hub_intercept_ : array of shape (d,), float
        The common model.
    strength_ : array of shape (d + 1,)
        The strength of every coefficient, intercept last.
    validation_error_ : float or None
        Root mean squared error (mean deviance of counts) on held-out rows, where strengths were chosen by
        cross-validation.

    Examples
    --------
    >>> X, y = [[0.0], [1.0], [0.0], [1.0]], [0, 1, 5, 6]
    >>> model = HubRegressor(strength=1e6, intercept_strength=1e-6).fit(X, y, tasks=list("aabb"))
    >>> model.coef_.round(3).ravel().tolist()
    [1.0, 1.0]
    """

    def __init__(
        self,
        task: str | int | None = None,
        *,
        strength: float | str = "auto",
        intercept_strength: float | str = "auto",
        loss: str = "squared",
        validation: Any = 5,
        fit_intercept: bool = True,
        standardize: bool = True,
        unseen: str = "error",
        random_state: int | None = None,
    ):
        self.task = task
        self.strength = strength
        self.intercept_strength = intercept_strength
        self.loss = loss
        self.validation = validation
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.unseen = unseen
        self.random_state = random_state

    def _learn(self, folds: list[LeastSquares], statistics: TaskStatistics) -> LearnedModels:
        strengths, errors = self._choose(folds)
        total, graph = sum_of(folds), TaskGraph.empty(statistics.task_names)
        attributes = {"strength_": strengths, "validation_error_": held_out_rmse(errors, self.scaling_.target_scale)}
        if total.n_tasks == 1:
            # The common model is the task's own: least squares, of the smallest norm where that is not unique.
            models = RidgeFactor.of(centre(total, self.fit_intercept)).solve(0.0)
            return LearnedModels(models, graph, models[0], attributes)
        fit = hub_evidence(total, strengths)
        return LearnedModels(fit.coefficients, graph, fit.common, attributes)

    def _learn_rows(self, given: OutcomeRows) -> LearnedModels:
        return hub_models(given, self.loss, *self._given())

    def _choose(self, folds: list[LeastSquares]) -> tuple[np.ndarray, np.ndarray | None]:
        slope, intercept = self._given()
        total = sum_of(folds)
        unit = max(float(total.count.mean()), 1.0)
        if slope is not None and intercept is not None:
            return self._spread(total, slope, intercept), None
        if total.n_tasks == 1:
            return self._spread(total, 1.0, 1.0), None
        if not self._scored(folds):
            learned = learn_hub(total, (~self._slopes(total)).astype(int)).hub
            return self._spread(total, slope or learned[0], intercept or learned[-1]), None
        grid = [
            (a, b)
            for a in ([slope] if slope is not None else [unit * g for g in _GRID])
            for b in ([intercept] if intercept is not None else [unit * g for g in _GRID])
        ]
        best, errors = select_by_paths(folds, grid, self._fit_path, self._scored(folds))
        return self._spread(total, *best), errors

    def _given(self) -> tuple[float | None, float | None]:
        slope = check_strength("strength", self.strength)
        if not self.fit_intercept:
            return slope, 1.0
        return slope, check_strength("intercept_strength", self.intercept_strength)

    def _slopes(self, loss: LeastSquares) -> np.ndarray:
        slopes = np.ones(loss.n_features, dtype=bool)
        slopes[-1] = not self.fit_intercept
        return slopes

    def _spread(self, loss: LeastSquares, slope: float, intercept: float) -> np.ndarray:
        """One strength per coefficient, kept positive so that every model is determined."""
        return np.maximum(np.where(self._slopes(loss), slope, intercept), 1e-8)

    def _fit_path(self, loss: LeastSquares, grid: Sequence[tuple[float, float]]) -> Iterator[np.ndarray]:
        return (hub_evidence(loss, self._spread(loss, *strengths)).coefficients for strengths in grid)
