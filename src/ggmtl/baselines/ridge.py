"""Ridge regression: every task on its own, one model for all tasks, or a shared model with deviations.

w_i(ρ) = argmin ½‖y_i − X_i w − b‖² + ½ρ‖w‖² = U_i (Λ_i + ρ)⁻¹ U_iᵀ m_i ,     G_i = U_i Λ_i U_iᵀ
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ggmtl.baselines._row_models import CountRegressor, hub_models, pooled_models, separate_models
from ggmtl.baselines._shared import CentredLoss, centre, check_strength, held_out_rmse, select_by_paths
from ggmtl.estimators.base import LearnedModels
from ggmtl.estimators.outcomes import OutcomeRows
from ggmtl.evidence.hub import hub_evidence, shrunk_models
from ggmtl.evidence.hub_strengths import learn_hub
from ggmtl.graph.task_graph import TaskGraph
from ggmtl.statistics.least_squares import FoldedLoss, LeastSquares
from ggmtl.statistics.task_statistics import TaskStatistics

# Eigenvalues of a gram matrix below this share of its trace are rounding noise.
_NULL = 1e-13
_DECADES = np.linspace(3.0, -5.0, 17)


@dataclass(frozen=True)
class RidgeFactor:
    """Eigenvalues, eigenvectors and rotated moments of every task; `solve` then costs O(n d²)."""

    loss: CentredLoss
    eigenvalues: np.ndarray
    eigenvectors: np.ndarray
    rotated: np.ndarray

    @classmethod
    def of(cls, loss: CentredLoss) -> RidgeFactor:
        """Factorise the gram matrices."""
        eigenvalues, eigenvectors = np.linalg.eigh(loss.gram)
        null = eigenvalues <= _NULL * loss.magnitude[:, None]
        rotated = np.einsum("nkj,nk->nj", eigenvectors, loss.moment)
        return cls(loss, np.where(null, 0.0, eigenvalues), eigenvectors, np.where(null, 0.0, rotated))

    def solve(self, ridge: float) -> np.ndarray:
        """Coefficients with intercepts, shape (n, p); the minimum-norm solution for a ridge of zero."""
        shifted = self.eigenvalues + ridge
        scaled = self.rotated / np.where(shifted > 0, shifted, 1.0)
        return self.loss.with_intercepts(np.einsum("nkj,nj->nk", self.eigenvectors, scaled))

    def evidence(self, ridge: float) -> float:
        """−ln p(y), σ² profiled: ½ν ln Q + ½ Σ ln|I + G_i/ρ|, ν = rows less intercepts, Q = 2 · minimum."""
        explained = (self.rotated**2 / (self.eigenvalues + ridge)).sum()
        quadratic = max(self.loss.target_square.sum() - explained, np.finfo(float).tiny)
        freedom = self.loss.degrees_of_freedom.sum()
        return 0.5 * (freedom * np.log(quadratic) + np.log1p(self.eigenvalues / ridge).sum())


def ridge_grid(loss: LeastSquares, intercept: bool) -> list[float]:
    """Penalties around the mean curvature of a task, strongest first; free of units and of row counts."""
    reference = float(np.trace(centre(loss, intercept).gram, axis1=1, axis2=2).mean())
    reference /= max(loss.n_features - intercept, 1)
    return [(reference if reference > 0 else 1.0) * 10.0**power for power in _DECADES.tolist()]


def choose_ridge(folded: FoldedLoss, intercept: bool, by_evidence: bool) -> tuple[float, np.ndarray | None]:
    """Ridge by cross-validation, or by evidence where the statistics have no folds."""
    grid = ridge_grid(folded.total, intercept)
    if by_evidence:
        factor = RidgeFactor.of(centre(folded.total, intercept))
        return min(grid, key=factor.evidence), None

    def fit_path(loss: LeastSquares, path: Sequence[float]):
        factor = RidgeFactor.of(centre(loss, intercept))
        return (factor.solve(ridge) for ridge in path)

    return select_by_paths(folded, grid, fit_path)


@dataclass(eq=False, repr=False, kw_only=True)
class _RidgeRegressor(CountRegressor):
    """Parameters and the choice of ρ, which both ridge regressors share."""

    ridge: float | str = "auto"
    loss: str = "squared"

    def _ridge(self, folds: list[LeastSquares], statistics: TaskStatistics) -> tuple[np.ndarray, dict[str, Any]]:
        """Models of the folds' tasks, shape (n, p), and the fitted attributes."""
        folded, ridge, errors = self._folded(folds), check_strength("ridge", self.ridge), None
        if ridge is None:
            ridge, errors = choose_ridge(folded, self.fit_intercept, by_evidence=statistics.n_folds == 0)
        coefficients = RidgeFactor.of(centre(folded.total, self.fit_intercept)).solve(ridge)
        error = held_out_rmse(errors, self.scaling_.target_scale)
        return coefficients, {"ridge_": ridge, "strength_": ridge, "validation_error_": error}


class IndependentRegressor(_RidgeRegressor):
    """One ridge regression per task, with one penalty for all:

        min_{w_i, b_i}  ½‖y_i − X_i w_i − b_i‖² + ½ρ‖w_i‖²     for every i.

    The baseline that shares nothing between tasks (ridge regression: Hoerl and Kennard, 1970).

    Parameters
    ----------
    task : str or int, optional
        Column of X that holds the task.
    ridge : float or "auto"
        ρ, in units where features and target have spread one. ``"auto"``: by cross-validation on the training
        rows (by evidence where statistics come without folds). Zero: minimum-norm least squares.
    loss : {"squared", "poisson"}
        ``"poisson"`` is for counts, as in :class:`ggmtl.GGMTLRegressor`: ``fit``, ``predict`` and ``score`` then take
        ``exposure=``, and intercepts are drawn to the rate of all rows by the same ρ.
    validation, fit_intercept, standardize, unseen, random_state
        As in :class:`ggmtl.GGMTLRegressor`. Intercepts are not penalised.

    Attributes
    ----------
    coef_, intercept_ : arrays of shape (n, d), (n,)
        Models in the user's units.
    ridge_, strength_ : float
        ρ.
    validation_error_ : float or None
        Root mean squared error (mean deviance of counts) on held-out rows at ρ, where it was chosen by
        cross-validation.

    Examples
    --------
    >>> X, y = [[0.0], [1.0], [0.0], [1.0]], [1, 2, 5, 3]
    >>> model = IndependentRegressor(ridge=0.0).fit(X, y, tasks=list("aabb"))
    >>> model.coef_.round(6).ravel().tolist(), model.intercept_.round(6).tolist()
    ([1.0, -2.0], [1.0, 5.0])
    """

    def _learn(self, folds: list[LeastSquares], statistics: TaskStatistics) -> LearnedModels:
        coefficients, attributes = self._ridge(folds, statistics)
        return LearnedModels(coefficients, TaskGraph.empty(statistics.task_names), attributes=attributes)

    def _learn_rows(self, given: OutcomeRows) -> LearnedModels:
        return separate_models(given, self.loss, check_strength("ridge", self.ridge))


class PooledRegressor(_RidgeRegressor):
    """One ridge regression on the rows of all tasks together:

        min_{w, b}  ½ Σ_i ‖y_i − X_i w − b‖² + ½ρ‖w‖².

    The baseline that shares everything (ridge regression: Hoerl and Kennard, 1970). Its model is the common
    model, so ``unseen="hub"`` predicts for any task.

    Parameters
    ----------
    task : str or int, optional
        Column of X that holds the task.
    ridge : float or "auto"
        ρ, in units where features and target have spread one. ``"auto"``: by cross-validation on the training
        rows (by evidence where statistics come without folds). Zero: minimum-norm least squares.
    loss : {"squared", "poisson"}
        ``"poisson"`` is for counts, as in :class:`ggmtl.GGMTLRegressor`: ``fit``, ``predict`` and ``score`` then take
        ``exposure=``.
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
        Root mean squared error (mean deviance of counts) on held-out rows at ρ, where it was chosen by
        cross-validation.

    Examples
    --------
    >>> X, y = [[0.0], [1.0], [0.0], [1.0]], [0, 1, 5, 3]
    >>> model = PooledRegressor(ridge=0.0).fit(X, y, tasks=list("aabb"))
    >>> model.coef_.round(6).ravel().tolist(), round(model.hub_intercept_, 6)
    ([-0.5, -0.5], 2.5)
    """

    def _learn(self, folds: list[LeastSquares], statistics: TaskStatistics) -> LearnedModels:
        model, attributes = self._ridge([_merge(fold) for fold in folds], statistics)
        models = np.repeat(model, statistics.n_tasks, axis=0)
        return LearnedModels(models, TaskGraph.empty(statistics.task_names), model[0], attributes)

    def _learn_rows(self, given: OutcomeRows) -> LearnedModels:
        return pooled_models(given, self.loss, check_strength("ridge", self.ridge))


def _merge(loss: LeastSquares) -> LeastSquares:
    """The rows of all tasks as one task."""
    return LeastSquares(
        loss.gram.sum(axis=0, keepdims=True),
        loss.moment.sum(axis=0, keepdims=True),
        loss.target_square.sum(keepdims=True),
        loss.count.sum(keepdims=True),
    )


# Strengths tried, in multiples of the mean number of rows of a task; strongest first.
_GRID = tuple(10.0**power for power in np.arange(2.0, -4.5, -0.5))


@dataclass(eq=False, repr=False, kw_only=True)
class HubRegressor(CountRegressor):
    """Every task's model as a shared model plus a deviation:

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
        The shared model.
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

    strength: float | str = "auto"
    intercept_strength: float | str = "auto"
    loss: str = "squared"

    def _learn(self, folds: list[LeastSquares], statistics: TaskStatistics) -> LearnedModels:
        folded, graph = self._folded(folds), TaskGraph.empty(statistics.task_names)
        strengths, errors = self._choose(folded)
        total = folded.total
        attributes = {"strength_": strengths, "validation_error_": held_out_rmse(errors, self.scaling_.target_scale)}
        if total.n_tasks == 1:
            # The shared model is the task's own: least squares, of the smallest norm where that is not unique.
            models = RidgeFactor.of(centre(total, self.fit_intercept)).solve(0.0)
            return LearnedModels(models, graph, models[0], attributes)
        fit = hub_evidence(total, strengths)
        return LearnedModels(fit.coefficients, graph, fit.common, attributes)

    def _learn_rows(self, given: OutcomeRows) -> LearnedModels:
        return hub_models(given, self.loss, *self._given())

    def _choose(self, folded: FoldedLoss) -> tuple[np.ndarray, np.ndarray | None]:
        (slope, intercept), total = self._given(), folded.total
        unit = max(float(total.count.mean()), 1.0)
        if slope is not None and intercept is not None:
            return self._spread(total, slope, intercept), None
        if total.n_tasks == 1:
            return self._spread(total, 1.0, 1.0), None
        if not folded.scored:
            learned = learn_hub(total, (~self._slopes(total)).astype(int)).hub
            return self._spread(total, slope or learned[0], intercept or learned[-1]), None
        grid = [
            (a, b)
            for a in ([slope] if slope is not None else [unit * g for g in _GRID])
            for b in ([intercept] if intercept is not None else [unit * g for g in _GRID])
        ]
        best, errors = select_by_paths(folded, grid, self._fit_path)
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
        return (shrunk_models(loss, self._spread(loss, *strengths)) for strengths in grid)
