"""Multi-task relationship learning: models and the covariance of tasks together, a convex problem."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ggmtl.baselines._shared import (
    CentredLoss,
    JointFit,
    TunedRegressor,
    centre,
    check_strength,
    correlation,
    covariance_to_graph,
    solve_coupled,
)
from ggmtl.estimators.base import LearnedModels
from ggmtl.statistics.least_squares import LeastSquares, sum_of
from ggmtl.statistics.task_statistics import TaskStatistics

_RIDGES = (0.1, 0.01, 0.001, 0.00001)
_STRENGTHS = tuple(10.0**power for power in (0.5, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0))


def learn_relationship(
    loss: CentredLoss,
    strength: float,
    ridge: float,
    smoothing: float = 1e-3,
    start: np.ndarray | None = None,
    max_iter: int = 500,
    tol: float = 1e-5,
) -> JointFit:
    """Minimise the perturbed problem of :class:`MTRLRegressor` by alternating its two exact steps.

    1. Ω = R/tr R with R = (WᵀW + εI)^½, which minimises tr((WᵀW + εI) Ω⁻¹) over tr Ω = 1.
    2. W from (blockdiag(2G_i/N_i) + (λ₁I + λ₂Ω⁻¹) ⊗ I) W = 2M/N.
    """
    mean = loss.averaged()
    slopes = np.zeros(loss.shape) if start is None else start
    values, vectors = _task_spectrum(slopes, smoothing)
    history = [_objective(mean, slopes, values, strength, ridge)]
    converged = False
    for _ in range(max_iter):
        inverse = values.sum() / values
        coupling = (vectors * (ridge + strength * inverse)) @ vectors.T
        slopes = solve_coupled(2.0 * mean.gram, coupling, 2.0 * mean.moment, slopes)
        values, vectors = _task_spectrum(slopes, smoothing)
        history.append(_objective(mean, slopes, values, strength, ridge))
        if history[-2] - history[-1] <= tol * abs(history[-1]):
            converged = True
            break
    covariance = (vectors * (values / values.sum())) @ vectors.T
    return JointFit(slopes, covariance, np.array(history), converged)


def _task_spectrum(slopes: np.ndarray, smoothing: float) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues and eigenvectors of (WᵀW + εI)^½."""
    values, vectors = np.linalg.eigh(slopes @ slopes.T)
    return np.sqrt(np.maximum(values, 0.0) + smoothing), vectors


def _objective(mean: CentredLoss, slopes: np.ndarray, values: np.ndarray, strength: float, ridge: float) -> float:
    """The objective at the best Ω for `slopes`, where tr((WᵀW + εI)Ω⁻¹) = (tr (WᵀW + εI)^½)²."""
    error = mean.squares(slopes).sum()
    return float(error + 0.5 * ridge * (slopes**2).sum() + 0.5 * strength * values.sum() ** 2)


@dataclass(eq=False, repr=False, kw_only=True)
class MTRLRegressor(TunedRegressor):
    """Multi-task relationship learning:

        min  Σ_i (1/N_i)‖y_i − X_i w_i − b_i‖² + (λ₁/2) tr(WWᵀ) + (λ₂/2) tr(W Ω⁻¹ Wᵀ)
        over W (d × n), b and Ω ⪰ 0 with tr Ω = 1,

    jointly convex; after Zhang and Yeung, "A convex formulation for learning task relationships in multi-task
    learning", 2010. The exact Ω is singular when d < n, so W is given n more rows √ε I in the last term: with
    ε > 0 the problem solved has tr((WᵀW + εI) Ω⁻¹) there. It is convex too, both steps of the alternation are
    exact minimisers of it, and its objective (`history_`) never rises. Costs O(n³) per iteration.

    Parameters
    ----------
    task : str or int, optional
        Column of X that holds the task.
    strength : float or "auto"
        λ₂, in units where features and target have spread one; ``"auto"``: by cross-validation.
    ridge : float or "auto"
        λ₁, likewise.
    smoothing : float
        ε.
    max_iter, tol
        Alternations at most, and the relative fall of the objective that ends them.
    validation, fit_intercept, standardize, unseen, random_state
        As in :class:`ggmtl.GGMTLRegressor`. Intercepts are not penalised.

    Attributes
    ----------
    coef_, intercept_ : arrays of shape (n, d), (n,)
        Models in the user's units.
    covariance_ : array of shape (n, n)
        Ω.
    graph_ : TaskGraph
        Positive correlations of Ω, divided by the largest.
    strength_, ridge_ : float
        λ₂ and λ₁.
    history_ : array
        Objective after every iteration.
    n_iter_, converged_, validation_error_
        Iterations, whether they settled, and the root mean squared error on held-out rows (None if none were).

    Examples
    --------
    >>> from ggmtl.datasets import make_clusters
    >>> data = make_clusters(2, n_tasks=6, n_features=2, n_samples=10, random_state=0)
    >>> model = MTRLRegressor(strength=0.1, ridge=0.01).fit(data.X, data.y, tasks=data.tasks)
    >>> model.coef_.shape, model.graph_.n_tasks
    ((6, 2), 6)
    """

    strength: float | str = "auto"
    ridge: float | str = "auto"
    smoothing: float = 1e-3
    max_iter: int = 500
    tol: float = 1e-5

    def _learn(self, folds: list[LeastSquares], statistics: TaskStatistics) -> LearnedModels:
        strength, ridge = check_strength("strength", self.strength), check_strength("ridge", self.ridge)
        ridges = _RIDGES if ridge is None else (ridge,)
        strengths = _STRENGTHS if strength is None else (strength,)
        grid = [(a, b) for a in ridges for b in strengths]
        (ridge, strength), error = self._choose(folds, statistics, "strength and ridge", grid)
        loss = centre(sum_of(folds), self.fit_intercept)
        fit = self._minimise(loss, strength, ridge, None)
        attributes = {
            "strength_": strength,
            "ridge_": ridge,
            "covariance_": fit.relation,
            "history_": fit.history,
            "n_iter_": len(fit.history) - 1,
            "converged_": fit.converged,
            "validation_error_": error,
        }
        graph = covariance_to_graph(correlation(fit.relation), statistics.task_names)
        return LearnedModels(loss.with_intercepts(fit.slopes), graph, attributes=attributes)

    def _fit_path(self, loss: LeastSquares, grid: Sequence[tuple[float, float]]) -> Iterator[np.ndarray]:
        """Coefficients along the grid, each fit started from the one before."""
        centred, slopes = centre(loss, self.fit_intercept), None
        for ridge, strength in grid:
            slopes = self._minimise(centred, strength, ridge, slopes).slopes
            yield centred.with_intercepts(slopes)

    def _minimise(self, loss: CentredLoss, strength: float, ridge: float, start: np.ndarray | None):
        return learn_relationship(loss, strength, ridge, self.smoothing, start, self.max_iter, self.tol)
