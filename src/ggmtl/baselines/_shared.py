"""What several baselines need: losses without intercepts, strengths by cross-validation, matrices between tasks.

Intercepts are eliminated: minimising ‖y_i − X_i w_i − b_i‖² over b_i gives b_i = ȳ_i − x̄_iᵀ w_i, and leaves the same
loss in rows centred about their task's mean. So a penalty on slopes alone never needs the constant column.

Strengths c are chosen by error(c) = Σ_k ‖y_k − X_k V_{−k}(c)‖² / Σ_k N_k, with V_{−k}(c) fitted to all folds but k.

With K ≻ 0 (n × n, between tasks) and B_i ⪰ 0 (d × d), the stationary point of ½ Σ_i w_iᵀB_i w_i + ½ tr(K W Wᵀ) − ⟨M, W⟩
solves (A W)_i = B_i w_i + Σ_j K_ij w_j = M_i; rows of W are tasks. The sparse precision is

    min_{Ω ≻ 0}  tr(SΩ) − ln|Ω| + α Σ_ij |Ω_ij| ,

diagonal included, by proximal gradient steps Ω ← soft(Ω − t(S − Ω⁻¹), tα) with the Barzilai–Borwein step t, halved
until the matrix is positive definite and the quadratic bound holds (after Rolfs et al., 2012). Unlike block-coordinate
graphical lassos it starts from a given Ω, lowers the objective at every step and works where S has low rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve, lapack
from scipy.sparse.linalg import LinearOperator, cg

from ggmtl.errors import ParameterError
from ggmtl.estimators.base import TaskRegressor
from ggmtl.graph.task_graph import TaskGraph
from ggmtl.statistics.least_squares import FoldedLoss, LeastSquares
from ggmtl.statistics.task_statistics import TaskStatistics


@dataclass(frozen=True)
class CentredLoss:
    """Σ_i ‖y_i − X_i w_i − b_i‖² minimised over the intercepts, as a quadratic in the slopes.

    Parameters
    ----------
    gram, moment, target_square : arrays of shape (n, d, d), (n, d), (n,)
        X_iᵀX_i, X_iᵀy_i and y_iᵀy_i of the centred rows.
    count : array of shape (n,)
        Rows (sum of weights) of each task.
    feature_mean, target_mean : arrays of shape (n, d), (n,)
        x̄_i and ȳ_i; zero where there is no intercept.
    magnitude : array of shape (n,)
        Trace of X_iᵀX_i before centring: what rounding errors in `gram` are relative to.
    has_intercept : bool
        Whether coefficients carry an intercept.
    """

    gram: np.ndarray
    moment: np.ndarray
    target_square: np.ndarray
    count: np.ndarray
    feature_mean: np.ndarray
    target_mean: np.ndarray
    magnitude: np.ndarray
    has_intercept: bool

    @property
    def shape(self) -> tuple[int, int]:
        """Number of tasks and of slopes."""
        return self.moment.shape

    @property
    def degrees_of_freedom(self) -> np.ndarray:
        """Rows of each task less one for its intercept, shape (n,)."""
        return np.maximum(self.count - self.has_intercept, 0.0)

    def with_intercepts(self, slopes: np.ndarray) -> np.ndarray:
        """Append b_i = ȳ_i − x̄_iᵀ w_i, shape (n, p)."""
        if not self.has_intercept:
            return slopes
        intercept = self.target_mean - np.einsum("nd,nd->n", self.feature_mean, slopes)
        return np.column_stack([slopes, intercept])

    def averaged(self) -> CentredLoss:
        """The loss Σ_i (1/N_i)‖·‖²: that of every task divided by its rows."""
        share = 1.0 / np.where(self.count > 0, self.count, 1.0)
        return replace(
            self,
            gram=self.gram * share[:, None, None],
            moment=self.moment * share[:, None],
            target_square=self.target_square * share,
        )

    def squares(self, slopes: np.ndarray) -> np.ndarray:
        """‖y_i − X_i w_i − b_i‖² of every task at its best intercept, shape (n,)."""
        fitted = np.matmul(self.gram, slopes[..., None])[..., 0] - 2.0 * self.moment
        return np.maximum(self.target_square + np.einsum("nd,nd->n", fitted, slopes), 0.0)


def centre(loss: LeastSquares, intercept: bool) -> CentredLoss:
    """Eliminate the intercepts of a loss whose last column is the constant, if there is one."""
    n, p = loss.moment.shape
    d = p - 1 if intercept else p
    gram, moment = loss.gram[:, :d, :d], loss.moment[:, :d]
    magnitude = np.trace(gram, axis1=1, axis2=2)
    if not intercept:
        zero = np.zeros(n)
        return CentredLoss(gram, moment, loss.target_square, loss.count, np.zeros((n, d)), zero, magnitude, False)
    rows = np.where(loss.count > 0, loss.count, 1.0)
    feature_sum, target_sum = loss.gram[:, :d, d], loss.moment[:, d]
    mean, target_mean = feature_sum / rows[:, None], target_sum / rows
    return CentredLoss(
        gram - feature_sum[:, :, None] * mean[:, None, :],
        moment - mean * target_sum[:, None],
        np.maximum(loss.target_square - target_mean * target_sum, 0.0),
        loss.count,
        mean,
        target_mean,
        magnitude,
        True,
    )


# Candidates whose errors differ by less than this share count as equal; the stronger one is taken.
_TIE = 1e-9


def select_by_paths(
    folded: FoldedLoss, grid: Sequence[Any], fit_path: Callable[[LeastSquares, Sequence[Any]], Iterable[np.ndarray]]
) -> tuple[Any, np.ndarray]:
    """The candidate with the smallest held-out error, and the mean squared errors of all, in scaled units.

    Parameters
    ----------
    folded : FoldedLoss
    grid : sequence
        Candidates, strongest regularisation first: the first wins a tie.
    fit_path : callable
        ``fit_path(loss, grid)`` yields the coefficients, shape (n, p), of every candidate in order.
    """
    errors, rows = np.zeros(len(grid)), 0.0
    for k in folded.scored:
        held_out = folded.parts[k]
        rows += held_out.count.sum()
        errors += [2.0 * held_out.value(coefficients) for coefficients in fit_path(folded.training(k), grid)]
    best, errors = least_of(errors / max(rows, np.finfo(float).tiny))
    return grid[best], errors


def least_of(errors: np.ndarray) -> tuple[int, np.ndarray]:
    """Position of the smallest error, the first of those within a tie, and the errors."""
    # A candidate whose solver broke down has no finite error and must not win.
    errors = np.where(np.isfinite(errors), errors, np.inf)
    return int(np.flatnonzero(errors <= errors.min() * (1.0 + _TIE))[0]), errors


def held_out_rmse(errors: np.ndarray | None, target_scale: float) -> float | None:
    """Root mean squared error of the chosen candidate in the user's units; None where nothing was held out."""
    return None if errors is None else float(np.sqrt(errors.min())) * target_scale


def check_strength(name: str, value: Any) -> float | None:
    """Read a strength: a finite number, not negative, or None for ``"auto"``."""
    if isinstance(value, str) and value == "auto":
        return None
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    number = float(value) if is_number else np.nan
    if not 0 <= number < np.inf:
        raise ParameterError(f'{name} must be a number not below 0 or "auto". Got {value!r} instead.')
    return number


class TunedRegressor(TaskRegressor):
    """Base of the regressors whose strengths are given or chosen by cross-validation."""

    def _fit_path(self, loss: LeastSquares, grid: Sequence[Any]) -> Iterator[np.ndarray]:
        """Coefficients of every candidate in order."""
        raise NotImplementedError

    def _choose(
        self, folds: list[LeastSquares], statistics: TaskStatistics, names: str, grid: Sequence[Any]
    ) -> tuple[Any, float | None]:
        """The best candidate and its held-out error in the user's units; a single candidate is not validated."""
        if len(grid) == 1:
            return grid[0], None
        if statistics.n_folds == 0:
            raise ParameterError(
                f'{type(self).__name__} chooses {names}="auto" by cross-validation, but the rows have no folds. '
                "Give numbers, validation=5, or statistics with folds (TaskStatistics.from_arrays(..., folds=5))."
            )
        best, errors = select_by_paths(self._folded(folds), grid, self._fit_path)
        return best, held_out_rmse(errors, self.scaling_.target_scale)


@dataclass(frozen=True)
class JointFit:
    """Models and the relation between tasks, each learned given the other in turn.

    Parameters
    ----------
    slopes : array of shape (n, d)
        Wᵀ: the slopes of every task.
    relation : array of shape (n, n)
        Ω: their covariance (MTRL) or precision (MSSL).
    history : array
        Objective after every pair of steps; never rises.
    converged : bool
        Whether the objective settled before the last iteration allowed.
    """

    slopes: np.ndarray
    relation: np.ndarray
    history: np.ndarray
    converged: bool


# Below this many unknowns one Cholesky factor is quicker than iterating.
_DIRECT = 400


def apply_coupled(blocks: np.ndarray, coupling: np.ndarray, models: np.ndarray) -> np.ndarray:
    """A W, shape (n, d)."""
    return np.matmul(blocks, models[..., None])[..., 0] + coupling @ models


def solve_coupled(
    blocks: np.ndarray, coupling: np.ndarray, moments: np.ndarray, start: np.ndarray | None = None, tol: float = 1e-8
) -> np.ndarray:
    """Solve A W = M, shape (n, d).

    Conjugate gradients lower the quadratic at every step, so an early stop still improves on `start`.
    """
    if moments.size <= _DIRECT:
        return _solve_directly(blocks, coupling, moments)
    n, d = moments.shape
    size = n * d

    def product(vector: np.ndarray) -> np.ndarray:
        return apply_coupled(blocks, coupling, vector.reshape(n, d)).ravel()

    operator = _operator(size, product)
    preconditioner = _operator(size, _preconditioner(blocks, coupling))
    guess = None if start is None else start.ravel()
    value, _ = cg(operator, moments.ravel(), x0=guess, rtol=tol, maxiter=500, M=preconditioner)
    return value.reshape(n, d)


def _operator(size: int, product: Callable[[np.ndarray], np.ndarray]) -> Any:
    # The stubs describe the class that this constructor returns, not the constructor.
    return LinearOperator((size, size), matvec=product, dtype=np.float64)  # pyright: ignore[reportCallIssue]


def _solve_directly(blocks: np.ndarray, coupling: np.ndarray, moments: np.ndarray) -> np.ndarray:
    n, d = moments.shape
    matrix = np.einsum("ij,kl->ikjl", coupling, np.eye(d))
    tasks = np.arange(n)
    matrix[tasks, :, tasks, :] += blocks
    factor = cho_factor(matrix.reshape(n * d, n * d), lower=True)
    return cho_solve(factor, moments.ravel()).reshape(n, d)


def _preconditioner(blocks: np.ndarray, coupling: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Inverse of A with every B_i replaced by their mean B̄: diagonal in the eigenvectors of K and B̄.

    Suits an ill-conditioned K of moderate or strong coupling; for weak coupling block-Jacobi would need fewer
    iterations.
    """
    task_values, task_vectors = np.linalg.eigh(coupling)
    feature_values, feature_vectors = np.linalg.eigh(blocks.mean(axis=0))
    n, d = len(coupling), len(feature_values)
    shifted = task_values[:, None] + feature_values

    def apply(vector: np.ndarray) -> np.ndarray:
        rotated = task_vectors.T @ vector.reshape(n, d) @ feature_vectors
        return (task_vectors @ (rotated / shifted) @ feature_vectors.T).ravel()

    return apply


def covariance_to_graph(matrix: np.ndarray, task_names: Any) -> TaskGraph:
    """The graph of the positive off-diagonal entries, divided by the largest."""
    names = np.asarray(task_names)
    i, j = np.triu_indices(len(names), k=1)
    weights = 0.5 * (matrix[i, j] + matrix[j, i])
    keep = weights > 0
    if not keep.any():
        return TaskGraph.empty(names)
    edges = np.column_stack([i[keep], j[keep]])
    return TaskGraph(edges, weights[keep] / weights[keep].max(), names)


def correlation(covariance: np.ndarray) -> np.ndarray:
    """C_ij/√(C_ii C_jj)."""
    root = np.sqrt(np.diag(covariance))
    return covariance / np.outer(root, root)


def partial_correlation(precision: np.ndarray) -> np.ndarray:
    """−Ω_ij/√(Ω_ii Ω_jj), and one on the diagonal."""
    partial = -correlation(precision)
    np.fill_diagonal(partial, 1.0)
    return partial


@dataclass(frozen=True)
class SparsePrecision:
    """Ω, ln|Ω|, and a bound on how far the objective is above its minimum."""

    precision: np.ndarray
    log_determinant: float
    gap: float


def sparse_precision(
    covariance: np.ndarray, penalty: float, start: np.ndarray | None = None, tol: float = 1e-5, max_iter: int = 100
) -> SparsePrecision:
    """Minimise until the duality gap is below ``tol · n``, or for `max_iter` steps.

    Parameters
    ----------
    covariance : array of shape (n, n)
        S.
    penalty : float
        α, positive.
    start : array of shape (n, n), optional
        Positive definite; the diagonal solution unless given.
    """
    precision = np.diag(1.0 / (np.diag(covariance) + penalty)) if start is None else start
    log_determinant, inverse = invert(precision)
    step = 1.0 / np.linalg.norm(inverse, 2) ** 2
    gap = np.inf
    for k in range(max_iter + 1):
        if k % 5 == 0:
            gap = _duality_gap(precision, inverse, log_determinant, covariance, penalty)
            if gap <= tol * len(covariance):
                break
        moved = _proximal_step(precision, inverse, log_determinant, covariance, penalty, step)
        if moved is None:
            break
        change, gradient_change = moved[0] - precision, inverse - moved[2]
        precision, log_determinant, inverse = moved
        curvature = np.vdot(change, gradient_change)
        step = np.vdot(change, change) / curvature if curvature > 0 else step
    return SparsePrecision(precision, log_determinant, gap)


def invert(matrix: np.ndarray) -> tuple[float, np.ndarray]:
    """ln|A| and A⁻¹; −∞ and A where A is not positive definite."""
    factor, info = lapack.dpotrf(matrix, lower=1)
    if info:
        return -np.inf, matrix
    lower, _ = lapack.dpotri(factor, lower=1)
    inverse = np.tril(lower)
    return 2.0 * float(np.log(np.diag(factor)).sum()), inverse + np.tril(inverse, -1).T


def _proximal_step(precision, inverse, log_determinant, covariance, penalty, step):
    """Next (Ω, ln|Ω|, Ω⁻¹), or None when no step lowers the objective beyond rounding."""
    gradient = covariance - inverse
    rounding = 1e-15 * (len(covariance) + abs(log_determinant))
    for _ in range(60):
        target = precision - step * gradient
        moved = np.sign(target) * np.maximum(np.abs(target) - step * penalty, 0.0)
        moved_log, moved_inverse = invert(moved)
        change = moved - precision
        size = np.vdot(change, change)
        if size <= 1e-24 * np.vdot(precision, precision):
            return None
        # Convexity part of −ln|Ω|: −ln|Ω⁺| + ln|Ω| + tr(Ω⁻¹ change) must not exceed ‖change‖²/2t.
        if log_determinant - moved_log + np.vdot(inverse, change) <= size / (2.0 * step) + rounding:
            return moved, moved_log, moved_inverse
        step *= 0.5
    return None


def _duality_gap(precision, inverse, log_determinant, covariance, penalty) -> float:
    """Objective less ln|Σ| + n, where Σ = clip(Ω⁻¹, S ± α) is feasible in the dual."""
    feasible = np.clip(inverse, covariance - penalty, covariance + penalty)
    # The clipped diagonal may fall short of S_ii + α, which is the best value it can take.
    np.fill_diagonal(feasible, np.diag(covariance) + penalty)
    bound, _ = invert(feasible)
    value = np.vdot(covariance, precision) - log_determinant + penalty * np.abs(precision).sum()
    return float(value - bound - len(covariance))
