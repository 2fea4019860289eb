"""σ², the variance of the noise, without the covariance of every model.

A learned graph fits its own rows too well, so σ² = Q/(N − c) from the same rows is too small. With edges, σ² is
therefore at least an estimate from the residuals of separate models and, where they are known, the errors on held-out
rows. The latter need the share of the noise that the models take up, tr(A⁻¹G) with A on the training rows of a fold.
Without its hub A falls into the components of the graph, A = B − (1/n)(1⊗H)(1ᵀ⊗I), and with Y = B⁻¹(1⊗I)

    tr(A⁻¹G) = Σ_components tr(B⁻¹G) + tr[(Σ_i Y_iᵀ(G_i + ρ))⁻¹ H Σ_i Y_iᵀG_iY_i] .

Where components are too large to be inverted, tr(A⁻¹G) = tr(D⁻¹G) + E ξᵀ(A⁻¹ − D⁻¹)Gξ, D the diagonal blocks of A and ξ
random signs. With that many coefficients a few draws of ξ give it to a percent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from ggmtl.bilevel.inner import InnerProblem
from ggmtl.evidence.separate import without_intercept
from ggmtl.runtime import kernels
from ggmtl.solve.preconditioners import BlockJacobi
from ggmtl.solve.solvers import ConjugateGradient
from ggmtl.solve.structured import component_systems, component_tasks, information
from ggmtl.solve.system import TaskSystem, inverse_and_log_determinant
from ggmtl.statistics.least_squares import LeastSquares, few_rows, spectra

# Mean square of scaled columns up to which they are constant.
_VANISHING = 1e-200
# Least degrees of freedom for which a residual variance is used.
_ENOUGH = 20.0
# Largest condition number of a task's matrix for which residuals are computed from its inverse.
_WELL_CONDITIONED = 1e6
# Where a component of the graph is too large to be inverted: how many random signs in all give the trace well enough,
# the most draws of them, and the relative residual of their solves.
_SIGNS, _MOST_DRAWS, _DRAW_TOL = 20_000, 8, 1e-2
# Steps after which the preconditioner with the graph level takes over.
_TRIAL = 400


@dataclass(frozen=True)
class HeldOut:
    """Mean squared error on held-out rows, weighted as in the fit, and the share of rows used for fitting."""

    error: float
    share: float


def squared_noise(problem: InnerProblem, values: np.ndarray, models: np.ndarray, held_out: HeldOut | None) -> float:
    """σ² of the squared penalty."""
    loss = problem.loss
    freedom = float(loss.count.sum()) - _flat_directions(problem)
    noise = floored(2 * problem.objective(models, values) / max(freedom, 1.0), loss)
    if not len(problem.edges):
        return noise
    system = problem.system(values)

    def taken(share: float) -> float:
        return noise_taken(replace(system, gram=share * system.gram), loss.gram)

    return max(noise, honest_noise(loss, held_out, taken))


def separate_scales(loss: LeastSquares, slopes: np.ndarray) -> tuple[float, float]:
    """σ² of separate models, and τ²/σ² for the variance τ² of their slopes about zero.

    Where tasks have rows to spare, σ² is that of their residuals. Otherwise a model fits its own rows whatever the
    noise is. Then σ² and τ² are the mode of the restricted likelihood of y_i ~ N(1 b_i, σ²I + τ²X_iX_iᵀ), all tasks
    together,

        ν ln Q(κ) + Σ_i [ln|G_i + κI| − p ln κ] − ln h(1 − h) ,   κ = σ²/τ² ,   h = κ/(κ + tr G/N) ,

    with G_i and Q after the intercepts b_i are fitted. The last term is a weak prior, Beta(1.5, 1.5) on the share h of
    the noise. Without it σ² would be zero in one of ten sets of 8 tasks × 10 rows × 20 features.
    """
    gram, moment, squares, freedoms = without_intercept(loss, slopes)
    square, freedom = float(squares.sum()), float(freedoms.sum())
    spectrum, along = spectra(gram, moment, few_rows(gram))
    spectrum = np.maximum(spectrum, 0.0)
    rows = max(float(loss.count.sum()), 1.0)
    signal = float(np.einsum("npp->", gram)) / rows
    # Where no slope is determined, any unit of κ will do.
    signal = signal if signal > _VANISHING else 1.0

    def misfit(kappa: float) -> float:
        return max(square - float((along / (spectrum + kappa)).sum()), 1e-14 * square + np.finfo(float).tiny)

    def criterion(kappa: float) -> float:
        prior = np.log(kappa * signal) - 2.0 * np.log(kappa + signal)
        return freedom * np.log(misfit(kappa)) + float(np.log1p(spectrum / kappa).sum()) - prior

    grid = signal * np.geomspace(1e-6, 1e6, 241)
    # Every eighth value first, then all about the best of these.
    near = 8 * int(np.argmin([criterion(value) for value in grid[::8]]))
    near = grid[max(near - 7, 0) : near + 8]
    kappa = float(near[np.argmin([criterion(value) for value in near])])
    noise = misfit(kappa) / max(freedom, 1.0)
    own, spare = _own_error(loss)
    if spare < _ENOUGH:
        return floored(noise, loss), 1.0 / kappa
    return floored(own / spare, loss), noise / kappa / floored(own / spare, loss)


def honest_noise(loss: LeastSquares, held_out: HeldOut | None, taken: Callable[[float], float]) -> float:
    """σ² that the search for a graph cannot bias, zero where there are too few degrees of freedom.

    It is the mean, weighted by degrees of freedom, of the residual variance of separate models and of the σ² that
    explains the error on held-out rows. `taken` is tr(A⁻¹G) with A on a share of the rows.
    """
    square, freedom = _own_error(loss)
    if held_out is not None:
        rows = float(loss.count.sum())
        spread = taken(held_out.share) / max(rows, 1.0)
        square, freedom = square + rows * held_out.error / (1.0 + spread), freedom + rows
    return square / freedom if freedom >= _ENOUGH else 0.0


def floored(noise: float, loss: LeastSquares) -> float:
    """The variance, kept above rounding."""
    mean_square = float(loss.target_square.sum()) / max(float(loss.count.sum()), 1.0)
    return max(noise, 1e-14 * mean_square + np.finfo(float).tiny)


def _own_error(loss: LeastSquares) -> tuple[float, float]:
    """Squared residuals of separate models and their degrees of freedom; cheaper if every task has enough rows."""
    try:
        inverse = kernels.inverse_blocks(loss.gram, np.zeros_like(loss.moment))[0]
    except np.linalg.LinAlgError:
        return _pure_error(loss)
    condition = np.einsum("npq,npq->n", inverse, inverse) * np.einsum("npq,npq->n", loss.gram, loss.gram)
    if condition.max() > _WELL_CONDITIONED**2:
        return _pure_error(loss)
    explained = (loss.moment * kernels.block_product(inverse, loss.moment)).sum(axis=1)
    square = float(np.maximum(loss.target_square - explained, 0.0).sum())
    return square, max(float(loss.count.sum()) - loss.moment.size, 0.0)


def _pure_error(loss: LeastSquares) -> tuple[float, float]:
    """Residuals of separate models: Σ_i ‖residual_i‖² and its degrees of freedom N − Σ_i rank X_i."""
    spectrum, along = spectra(loss.gram, loss.moment, few_rows(loss.gram))
    used = spectrum > 1e-10 * np.maximum(spectrum[:, -1:], np.finfo(float).tiny)
    explained = np.where(used, along / np.where(used, spectrum, 1.0), 0.0).sum(axis=1)
    square = float(np.maximum(loss.target_square - explained, 0.0).sum())
    return square, max(float(loss.count.sum() - used.sum()), 0.0)


def _flat_directions(problem: InnerProblem) -> int:
    """c: directions on which the prior is flat and the rows are not; p for each part that nothing else ties."""
    n, p = problem.loss.moment.shape
    if (problem.hub > 0).all():
        return p
    edges = problem.edges if (problem.coupling > 0).any() else problem.edges[:0]
    links = coo_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(n, n))
    part = connected_components(links, directed=False)[1]
    total = np.zeros((part.max() + 1, p, p))
    np.add.at(total, part, problem.loss.gram)
    return int(np.linalg.matrix_rank(total, hermitian=True).sum())


def noise_taken(system: TaskSystem, gram: np.ndarray) -> float:
    """tr(A⁻¹G) for the block-diagonal G of all rows; exact where every component of the graph is small enough."""
    components = component_tasks(system)
    n, p = system.shape
    if n * p > system.sizes.exact_covariance or max(map(len, components)) * p > system.sizes.exact_component:
        return _estimated(system, gram)
    inside, answer = 0.0, np.zeros_like(system.gram)
    for tasks, own in zip(components, component_systems(system, components)):
        inverse = _inverse_of(own)
        inside += float(np.einsum("ipiq,ipq->", inverse, gram[tasks]))
        answer[tasks] = inverse.sum(axis=2)
    if not system.hub.any():
        return inside
    taken = np.tensordot(answer, gram @ answer, axes=([0, 1], [0, 1]))
    return inside + float(
        np.trace(np.linalg.solve(information(system.gram, system.ridge, answer).T, taken * system.hub))
    )


def _inverse_of(system: TaskSystem) -> np.ndarray:
    """The inverse of a small system, shape (k, p, k, p)."""
    return inverse_and_log_determinant(system.dense().T)[0].reshape(*system.shape, *system.shape)


def _estimated(system: TaskSystem, gram: np.ndarray) -> float:
    """The same from a few draws of random signs."""
    random, blocks = np.random.default_rng(0), BlockJacobi.of(system)
    solver = ConjugateGradient(system, blocks, trial=_TRIAL)
    draws = int(np.clip(_SIGNS // gram[..., 0].size, 1, _MOST_DRAWS))
    rest = 0.0
    for _ in range(draws):
        signs = random.choice([-1.0, 1.0], size=system.shape)
        right = kernels.block_product(gram, signs)
        own = blocks(right)
        rest += float((signs * (solver.solve(right, own, _DRAW_TOL).require(1e-1).value - own)).sum())
    return float(np.einsum("npq,npq->", blocks.inverse, gram)) + rest / draws
