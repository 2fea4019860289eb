"""Multi-task sparse structure learning: models and a sparse precision of tasks together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from ggmtl.baselines._shared import (
    CentredLoss,
    JointFit,
    TunedRegressor,
    centre,
    check_strength,
    covariance_to_graph,
    partial_correlation,
    solve_coupled,
    sparse_precision,
)
from ggmtl.errors import ParameterError, warn_user
from ggmtl.estimators.base import LearnedModels
from ggmtl.statistics.least_squares import LeastSquares, sum_of
from ggmtl.statistics.task_statistics import TaskStatistics

# Multiples of 2/N̄, which λ₁ would be if the noise had the variance of the target …
_STRENGTHS = (1.0, 0.3, 0.1, 0.03, 0.01)
# … and α as a multiple of the variance that coefficients would have if they explained the whole target.
_PENALTIES = (1.0, 0.3, 0.1, 0.03, 0.01)


def learn_structure(
    loss: CentredLoss, strength: float, sparsity: float, max_iter: int = 100, tol: float = 1e-3, inner_steps: int = 30
) -> JointFit:
    """Minimise the problem of :class:`MSSLRegressor` by alternating its two steps.

    1. W from (blockdiag(2G_i/N_i) + λ₁Ω ⊗ I) W = 2M/N.
    2. Ω from min tr(SΩ) − ln|Ω| + α‖Ω‖₁ with S = WᵀW/d and α = 2λ₂/(λ₁d), by at most `inner_steps` steps from
       the Ω before, so that the objective falls however early they stop.
    """
    mean = loss.averaged()
    d = max(loss.shape[1], 1)
    penalty = 2.0 * sparsity / (strength * d)
    precision = np.eye(loss.shape[0]) / (_coefficient_variance(loss) + penalty)
    slopes = solve_coupled(2.0 * mean.gram, strength * precision, 2.0 * mean.moment)
    history: list[float] = []
    converged = False
    for _ in range(max_iter):
        step = sparse_precision(slopes @ slopes.T / d, penalty, precision, tol, inner_steps)
        precision = step.precision
        slopes = solve_coupled(2.0 * mean.gram, strength * precision, 2.0 * mean.moment, slopes)
        error = mean.squares(slopes).sum()
        relation = np.vdot(slopes, precision @ slopes) - d * step.log_determinant
        history.append(float(error + 0.5 * strength * relation + sparsity * np.abs(precision).sum()))
        # Relative to the size of the log-determinant: the objective itself may pass through zero.
        if len(history) > 1 and history[-2] - history[-1] <= tol * strength * d * len(slopes):
            converged = True
            break
    return JointFit(slopes, precision, np.array(history), converged)


def _coefficient_variance(loss: CentredLoss) -> float:
    """1/mean_i tr(G_i/N_i): the mean square of slopes that would explain a target of variance one."""
    trace = float(np.trace(loss.averaged().gram, axis1=1, axis2=2).mean())
    return 1.0 / trace if trace > 0 else 1.0


@dataclass(eq=False, repr=False, kw_only=True)
class MSSLRegressor(TunedRegressor):
    """Multi-task sparse structure learning:

        min  Σ_i (1/N_i)‖y_i − X_i w_i − b_i‖² + (λ₁/2)[tr(W Ω Wᵀ) − d ln|Ω|] + λ₂‖Ω‖₁
        over W (d × n), b and the precision Ω ≻ 0,

    after Gonçalves, Von Zuben and Banerjee, "Multi-task sparse structure learning with Gaussian copula
    models", 2016. The norm includes the diagonal: without it the problem is unbounded below (w_i = 0 and
    Ω_ii → ∞). Convex in W and in Ω but not jointly, so the minimum found is a local one, reached from
    independent models. The objective (`history_`) never rises. Costs O(n³) per iteration.

    Parameters
    ----------
    task : str or int, optional
        Column of X that holds the task.
    strength : float or "auto"
        λ₁ > 0, in units where features and target have spread one; ``"auto"``: by cross-validation.
    sparsity : float or "auto"
        λ₂ > 0, likewise.
    max_iter, tol
        Alternations at most, and the fall of the objective per coefficient, as a share of λ₁, that ends them.
    validation, fit_intercept, standardize, unseen, random_state
        As in :class:`ggmtl.GGMTLRegressor`. Intercepts are not penalised.

    Attributes
    ----------
    coef_, intercept_ : arrays of shape (n, d), (n,)
        Models in the user's units.
    precision_ : array of shape (n, n)
        Ω.
    graph_ : TaskGraph
        Positive partial correlations −Ω_ij/√(Ω_iiΩ_jj), divided by the largest.
    strength_, sparsity_ : float
        λ₁ and λ₂.
    history_ : array
        Objective after every iteration.
    n_iter_, converged_, validation_error_
        Iterations, whether they settled, and the root mean squared error on held-out rows (None if none were).

    Examples
    --------
    >>> from ggmtl.datasets import make_clusters
    >>> data = make_clusters(2, n_tasks=6, n_features=2, n_samples=10, random_state=0)
    >>> model = MSSLRegressor(strength=0.1, sparsity=0.01).fit(data.X, data.y, tasks=data.tasks)
    >>> model.coef_.shape, model.graph_.n_tasks
    ((6, 2), 6)
    """

    strength: float | str = "auto"
    sparsity: float | str = "auto"
    max_iter: int = 100
    tol: float = 1e-3

    def _learn(self, folds: list[LeastSquares], statistics: TaskStatistics) -> LearnedModels:
        loss = centre(sum_of(folds), self.fit_intercept)
        given = {name: check_strength(name, getattr(self, name)) for name in ("strength", "sparsity")}
        for name, value in given.items():
            if value == 0:
                raise ParameterError(f"{name} must be above 0, or the problem has no minimum. Got 0 instead.")
        (strength, sparsity), error = self._choose(folds, statistics, "strength and sparsity", _grid(loss, **given))
        fit = learn_structure(loss, strength, sparsity, self.max_iter, self.tol)
        if not fit.converged:
            warn_user(
                f"MSSLRegressor stopped at max_iter={self.max_iter} before the objective settled: raise it.",
                ConvergenceWarning,
            )
        attributes = {
            "strength_": strength,
            "sparsity_": sparsity,
            "precision_": fit.relation,
            "history_": fit.history,
            "n_iter_": len(fit.history),
            "converged_": fit.converged,
            "validation_error_": error,
        }
        graph = covariance_to_graph(partial_correlation(fit.relation), statistics.task_names)
        return LearnedModels(loss.with_intercepts(fit.slopes), graph, attributes=attributes)

    def _fit_path(self, loss: LeastSquares, grid: Sequence[tuple[float, float]]) -> Iterator[np.ndarray]:
        """Coefficients along the grid, all from the start of the final fit, as the problem is not convex."""
        centred = centre(loss, self.fit_intercept)
        for strength, sparsity in grid:
            fit = learn_structure(centred, strength, sparsity, self.max_iter, self.tol)
            yield centred.with_intercepts(fit.slopes)


def _grid(loss: CentredLoss, strength: float | None, sparsity: float | None) -> list[tuple[float, float]]:
    """Pairs (λ₁, λ₂), strongest first, with λ₂ = αλ₁d/2 where it is not given."""
    reference = 2.0 / max(float(loss.count.mean()), np.finfo(float).tiny)
    strengths = [reference * factor for factor in _STRENGTHS] if strength is None else [strength]
    if sparsity is not None:
        return [(value, sparsity) for value in strengths]
    half = 0.5 * max(loss.shape[1], 1) * _coefficient_variance(loss)
    return [(value, factor * half * value) for value in strengths for factor in _PENALTIES]
