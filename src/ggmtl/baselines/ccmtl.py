"""Convex clustering of models on a fixed neighbour graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ggmtl.baselines._shared import TunedRegressor, check_strength
from ggmtl.bilevel.inner import DEFAULT_SMOOTHING, InnerProblem, solve_inner
from ggmtl.estimators.base import LearnedModels
from ggmtl.graph.candidates import KNN
from ggmtl.graph.task_graph import TaskGraph
from ggmtl.statistics.least_squares import LeastSquares, sum_of
from ggmtl.statistics.task_statistics import TaskStatistics

# Strengths tried, in multiples of the mean number of rows of a task; strongest first.
_GRID = tuple(10.0**power for power in np.arange(1.0, -4.5, -0.5))
_TOL = 1e-6


@dataclass(eq=False, repr=False, kw_only=True)
class CCMTLRegressor(TunedRegressor):
    """Convex-clustering multi-task regression on a fixed graph:

        min  ½ Σ_i ‖y_i − X_i w_i‖² + ½λ Σ_ij √(‖w_i − w_j‖² + ε²) + ½ρ Σ_i ‖w_i‖²

    over the k-nearest-neighbour graph of the independent models; after He et al., "Efficient and scalable multi-task
    regression on massive number of tasks", 2019. Relations are given, not learned.

    Parameters
    ----------
    task : str or int, optional
        Column of X that holds the task.
    strength : float or "auto"
        λ, in units where features and target have spread one; ``"auto"``: by cross-validation on the training rows.
    n_neighbors : int
        k.
    ridge : float
        ρ, for the slopes; also of the independent models.
    smoothing : float
        ε.
    validation, fit_intercept, standardize, unseen, random_state
        As in :class:`ggmtl.GGMTLRegressor`.

    Attributes
    ----------
    coef_, intercept_ : arrays of shape (n, d), (n,)
        Models in the user's units.
    graph_ : TaskGraph
        The neighbour graph, all weights one.
    strength_ : float
        λ.
    validation_error_ : float or None
        Root mean squared error on held-out rows, where λ was chosen by cross-validation.

    Examples
    --------
    >>> from ggmtl.datasets import make_clusters
    >>> data = make_clusters(2, n_tasks=6, n_features=2, n_samples=10, random_state=0)
    >>> model = CCMTLRegressor(strength=1.0, n_neighbors=2).fit(data.X, data.y, tasks=data.tasks)
    >>> model.coef_.shape, model.graph_.n_tasks
    ((6, 2), 6)
    """

    strength: float | str = "auto"
    n_neighbors: int = 10
    ridge: float = 1e-3
    smoothing: float = DEFAULT_SMOOTHING

    def _learn(self, folds: list[LeastSquares], statistics: TaskStatistics) -> LearnedModels:
        total, given = sum_of(folds), check_strength("strength", self.strength)
        unit = max(float(total.count.mean()), 1.0)
        grid = [unit * power for power in _GRID] if given is None else [given]
        strength, error = self._choose(folds, statistics, "strength", grid)
        edges = self._neighbours(total)
        (coefficients,) = self._fit_path(total, [strength])
        graph = TaskGraph(edges, np.ones(len(edges)), statistics.task_names)
        attributes = {"strength_": strength, "validation_error_": error}
        return LearnedModels(coefficients, graph, attributes=attributes)

    def _neighbours(self, loss: LeastSquares) -> np.ndarray:
        """Edges of the neighbour graph of the independent models."""
        blocks = loss.gram + self._ridge_of(loss)[:, :, None] * np.eye(loss.n_features)
        models = np.linalg.solve(blocks, loss.moment[..., None])[..., 0]
        return KNN(k=self.n_neighbors).propose(models, np.arange(loss.n_tasks)).edges

    def _ridge_of(self, loss: LeastSquares) -> np.ndarray:
        """ρ on the slopes; on the intercept only where a task has no row at all."""
        ridge = np.full((loss.n_tasks, loss.n_features), max(float(self.ridge), 1e-10))
        if self.fit_intercept:
            ridge[loss.count > 0, -1] = 0.0
        return ridge

    def _fit_path(self, loss: LeastSquares, grid: Sequence[float]) -> Iterator[np.ndarray]:
        """Coefficients at every λ, each solve started from the one before."""
        edges, width = self._neighbours(loss), loss.n_features
        start = None
        for strength in grid:
            problem = InnerProblem(
                loss, edges, np.full(width, strength), np.zeros(width), self._ridge_of(loss), "l2", self.smoothing
            )
            start = solve_inner(problem, np.ones(len(edges)), start, _TOL).coefficients
            yield start
