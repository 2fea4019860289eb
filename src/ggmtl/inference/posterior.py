"""Covariance of the models.

Given graph, strengths and noise σ², the models are Gaussian:

    V ~ N(A⁻¹XᵀY, σ²A⁻¹) ,     σ² = Q/(N − c)

with Q twice the inner minimum, N rows and c directions on which the prior is flat (p with a hub). For the
penalties that are not squared, A is the Hessian at the models and σ² = ‖residual‖²/(N − tr A⁻¹G).

With edges, σ² is larger than that where the graph was searched for: see :mod:`ggmtl.inference.noise_variance`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from ggmtl.bilevel.inner import InnerProblem
from ggmtl.bilevel.level import GraphFit, Settings, on_its_columns, present_problem
from ggmtl.inference.noise_variance import HeldOut, floored, honest_noise, separate_scales, squared_noise
from ggmtl.inference.sampled_covariance import mean_covariance, sampled_blocks
from ggmtl.solve.solvers import prepare
from ggmtl.solve.system import TaskSystem
from ggmtl.statistics.least_squares import LeastSquares, few_rows
from ggmtl.statistics.scaling import Scaling

# D⁻¹ = H⁻¹ − TᵀT cancels as many digits as G is larger than H.
_WORST_RATIO = 1e10


@dataclass(frozen=True)
class Posterior:
    """Uncertainty of every task's model, in scaled units.

    Parameters
    ----------
    covariance : array of shape (n, p, p)
        Diagonal blocks of A⁻¹; times σ², the covariance of each task's coefficients.
    new_task : array of shape (p, p)
        The same for a task without rows, predicted by the common model.
    common : array of shape (p, p)
        Of the mean of the models.
    noise : float
        σ².
    exact : bool
        Whether the blocks are exact; otherwise they are estimated from posterior samples.
    """

    covariance: np.ndarray
    new_task: np.ndarray
    common: np.ndarray
    noise: float
    exact: bool

    def standard_deviations(
        self, rows: np.ndarray, position: np.ndarray, ratios: np.ndarray | None = None, *, of_mean: bool = False
    ) -> np.ndarray:
        """√(σ_i² + σ² zᵀ(A⁻¹)_ii z) for design rows z of the tasks at `position`; −1 is a task without rows.

        `ratios` are σ_i²/σ² of the tasks, shape (n,), ones by default. `of_mean` leaves out σ_i².
        """
        blocks = np.concatenate([self.covariance, self.new_task[None]])
        spread = np.empty(len(rows))
        # Task by task, so that no row gets a matrix of its own.
        order = np.argsort(position, kind="stable")
        tasks, first = np.unique(position[order], return_index=True)
        for task, members in zip(tasks, np.split(order, first[1:])):
            spread[members] = np.einsum("rp,pq,rq->r", rows[members], blocks[task], rows[members])
        own = 1.0 if ratios is None else np.append(ratios, 1.0)[position]
        return np.sqrt(self.noise * (spread if of_mean else own + spread))

    def with_spread(self, levels: Sequence[tuple[float, np.ndarray]]) -> Posterior:
        """The same with the spread between averaged levels, given as weights and deviations from the average.

        Law of total variance: Var w = E Var(w | level) + Var E(w | level), of which this is the first term.
        """
        if not levels:
            return self
        between = sum(share * deviation[:, :, None] * deviation[:, None, :] for share, deviation in levels)
        return replace(self, covariance=self.covariance + between / self.noise)

    def on_columns(self, columns: np.ndarray, width: int) -> Posterior:
        """The same with `width` columns, where the coefficients of all other columns are zero without error."""
        wide = {name: embedded(getattr(self, name), columns, width) for name in ("covariance", "new_task", "common")}
        return replace(self, **wide)

    def standard_errors(self, scaling: Scaling) -> np.ndarray:
        """Standard errors in the units of the data, intercept last, shape (n, p)."""
        T = scaling.user_map()
        variance = np.einsum("ap,npq,aq->na", T, self.covariance, T, optimize=True)
        return np.sqrt(self.noise * np.maximum(variance, 0.0))


def embedded(covariance: np.ndarray, columns: np.ndarray, width: int) -> np.ndarray:
    """Covariances of some columns, filled up with zeros to shape (…, width, width)."""
    wide = np.zeros((*covariance.shape[:-2], width, width))
    wide[..., columns[:, None], columns] = covariance
    return wide


def posterior_of(
    fit: GraphFit,
    loss: LeastSquares,
    settings: Settings,
    *,
    held_out: HeldOut | None = None,
    ratios: np.ndarray | None = None,
    n_samples: int = 64,
    seed: int = 0,
) -> Posterior:
    """Posterior of all models on the given rows.

    `ratios` are σ_i²/σ² of the tasks where their rows counted alike though their noise differs, shape (n,).

    Exact without edges and up to ``sizes.exact_covariance`` coefficients in all models together; above, by at most
    `n_samples` samples, see :mod:`ggmtl.inference.sampled_covariance`.
    """
    if fit.columns is not None:
        narrow = on_its_columns(fit, loss, settings)
        own = posterior_of(*narrow, held_out=held_out, ratios=ratios, n_samples=n_samples, seed=seed)
        return own.on_columns(fit.columns, loss.n_features)
    if not np.isfinite(fit.hub).all():
        return _pooled_posterior(fit, loss, settings)
    problem, values = present_problem(fit, loss, settings)
    if _is_separate(problem):
        return _separate_posterior(fit, problem, settings, ratios)
    system, loss = problem.hessian(fit.deviations, values), problem.loss
    if len(system.edges):
        blocks, common, exact = _linked_blocks(system, n_samples, seed)
    else:
        (blocks, common), exact = _hub_blocks(system), True
    if problem.penalty == "squared_l2":
        noise = squared_noise(problem, values, fit.deviations, held_out)
    else:
        noise = _noise_by_blocks(problem, system, fit.deviations, blocks, held_out, seed)
    if ratios is not None:
        # A model is (A⁻¹)_ii times its own moments, and more: the noise of these is not σ² but ratio_i·σ².
        blocks = blocks + (ratios - 1.0)[:, None, None] * (blocks @ loss.gram @ blocks)
    return Posterior(blocks, common + _between(fit, noise, blocks), common, noise, exact)


def _linked_blocks(system: TaskSystem, n_samples: int, seed: int) -> tuple[np.ndarray, np.ndarray, bool]:
    """Diagonal blocks of A⁻¹, the covariance of the mean of the models, and whether the blocks are exact."""
    if system.gram[..., 0].size <= system.sizes.exact_covariance:
        inverse = _dense_inverse(system)
        return _symmetric(np.einsum("ipiq->ipq", inverse)), inverse.mean(axis=(0, 2)), True
    prepared = prepare(system)
    return sampled_blocks(system, prepared, n_samples, seed), mean_covariance(system, prepared), False


def _blocks(system: TaskSystem, n_samples: int, seed: int) -> np.ndarray:
    """Diagonal blocks of A⁻¹ alone."""
    if system.gram[..., 0].size <= system.sizes.exact_covariance:
        return np.einsum("ipiq->ipq", _dense_inverse(system))
    return sampled_blocks(system, prepare(system), n_samples, seed)


def noise_of(fit: GraphFit, loss: LeastSquares, settings: Settings, *, held_out: HeldOut | None = None) -> float:
    """σ² of :func:`posterior_of` alone; for the squared penalty without the covariance of every model."""
    fit, loss, settings = on_its_columns(fit, loss, settings)
    if not np.isfinite(fit.hub).all():
        return posterior_of(fit, loss, settings, held_out=held_out).noise
    problem, values = present_problem(fit, loss, settings)
    if _is_separate(problem):
        return separate_scales(problem.loss, settings.slopes)[0]
    if settings.penalty != "squared_l2":
        return posterior_of(fit, loss, settings, held_out=held_out).noise
    return squared_noise(problem, values, fit.deviations, held_out)


def _noise_by_blocks(
    problem: InnerProblem,
    system: TaskSystem,
    models: np.ndarray,
    blocks: np.ndarray,
    held_out: HeldOut | None,
    seed: int,
) -> float:
    """σ² of the penalties that are not squared: tr(A⁻¹G) from the blocks of A⁻¹."""
    loss = problem.loss

    def taken(blocks: np.ndarray) -> float:
        return float(np.einsum("npq,npq->", blocks, loss.gram))

    noise = floored(2 * loss.value(models) / max(float(loss.count.sum()) - taken(blocks), 1.0), loss)
    if not len(system.edges):
        return noise

    def taken_of_share(share: float) -> float:
        return taken(_blocks(replace(system, gram=share * system.gram), 16, seed))

    return max(noise, honest_noise(loss, held_out, taken_of_share))


def _pooled_posterior(fit: GraphFit, loss: LeastSquares, settings: Settings) -> Posterior:
    """One model for all tasks: (ΣG_i + ρI)⁻¹."""
    p = loss.n_features
    inverse = np.linalg.pinv(
        loss.gram.sum(axis=0) + np.diag(np.where(settings.slopes, settings.ridge, 0.0)), hermitian=True
    )
    noise = 2 * loss.value(fit.coefficients) / max(float(loss.count.sum()) - p, 1.0)
    blocks = np.broadcast_to(inverse, loss.gram.shape)
    return Posterior(blocks, inverse, inverse, floored(noise, loss), True)


def _is_separate(problem: InnerProblem) -> bool:
    """Whether the tasks are independent: no edges and no hub."""
    return not len(problem.edges) and not problem.hub.any()


def _separate_posterior(
    fit: GraphFit, problem: InnerProblem, settings: Settings, ratios: np.ndarray | None
) -> Posterior:
    """Mean squared error of every task's own ridge model, D = ρI on the slopes and A = G + D:

        A⁻¹((σ_i²/σ²)G + (τ²/σ²)D²)A⁻¹ σ² .

    The second term is the bias. In directions that no row of the task determines it is the whole error, while σ²A⁻¹
    would be σ²/ρ, which depends on the choice of a tiny ρ.
    """
    loss = problem.loss
    noise, ratio = separate_scales(loss, settings.slopes)
    index = np.arange(loss.n_features)
    ridge = np.broadcast_to(problem.ridge, loss.moment.shape)
    # Makes the block invertible where the ridge is zero and the task has too few rows.
    ridge = np.maximum(ridge, np.where(settings.slopes, 1e-10 * np.einsum("npp->n", loss.gram)[:, None], 0.0))
    A, inside = loss.gram.copy(), loss.gram.copy()
    if ratios is not None:
        inside *= ratios[:, None, None]
    A[:, index, index] += ridge
    inside[:, index, index] += ratio * ridge**2
    rows = few_rows(loss.gram)
    if rows is None:
        inverse = np.linalg.inv(A)
        blocks = _symmetric(inverse @ inside @ inverse)
    else:
        blocks = _separate_by_rows(rows, A, ratio, np.ones(len(A)) if ratios is None else ratios)
    common = blocks.mean(axis=0) / loss.n_tasks
    return Posterior(blocks, common + _between(fit, noise, blocks), common, noise, True)


def _separate_by_rows(rows: np.ndarray, A: np.ndarray, ratio: float, ratios: np.ndarray) -> np.ndarray:
    """A⁻¹(qG + tD²)A⁻¹ for G = RᵀR and D = A − G, q the `ratios` and t the `ratio`.

    With Z = A⁻¹Rᵀ it is tI + ZN + (ZN)ᵀ, where N = ½(qI + tRRᵀ)Zᵀ − tR, because A⁻¹D = I − ZR.
    """
    Z = np.linalg.solve(A, rows.transpose(0, 2, 1))
    middle = ratio * (rows @ rows.transpose(0, 2, 1)) + ratios[:, None, None] * np.eye(rows.shape[1])
    blocks = Z @ (0.5 * (middle @ Z.transpose(0, 2, 1)) - ratio * rows)
    return blocks + blocks.transpose(0, 2, 1) + ratio * np.eye(A.shape[1])


def _hub_blocks_by_rows(system: TaskSystem, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """:func:`_hub_blocks` for G_i = RᵀR of few rows, a ridge ρ that all tasks share and P = (HN)⁻¹.

    D⁻¹ = C − TᵀT with C = (H + ρ)⁻¹ and D⁻¹H = E − TᵀV, V = TH, E = CH. Hence

        (A⁻¹)_ii = C + EPE − TᵀY − YᵀT ,     Y = ½T + VPE − ½VPVᵀT .
    """
    hub, ridge = system.hub, np.broadcast_to(system.ridge, system.shape)[0]
    n, p = system.shape
    strength = hub + ridge
    scaled = rows / strength
    factor = np.linalg.cholesky(scaled @ rows.transpose(0, 2, 1) + np.eye(rows.shape[1]))
    T = np.linalg.solve(factor, scaled)
    sums = np.tensordot(T, T, ([0, 1], [0, 1]))
    kept = np.diag(n * ridge / strength) + sums * hub
    mean = np.linalg.solve(kept, np.diag(1.0 / strength) - sums / n)
    precision = np.linalg.inv(0.5 * (hub[:, None] * kept + (hub[:, None] * kept).T))
    V, share = T * hub, hub / strength
    VP = (V.reshape(-1, p) @ precision).reshape(T.shape)
    Y = 0.5 * T + VP * share - 0.5 * (VP @ V.transpose(0, 2, 1)) @ T
    blocks = T.transpose(0, 2, 1) @ Y
    blocks = np.diag(1.0 / strength) + share[:, None] * precision * share - blocks - blocks.transpose(0, 2, 1)
    return blocks, 0.5 * (mean + mean.T)


def _hub_blocks(system: TaskSystem) -> tuple[np.ndarray, np.ndarray]:
    """Diagonal blocks of A⁻¹ without edges, and the covariance of the mean of the models, both in units of σ².

    With D_i = G_i + H + ρ and N = Σ_j D_j⁻¹(G_j + ρ),

        (A⁻¹)_ii = D_i⁻¹ + D_i⁻¹H (HN)⁻¹ H D_i⁻¹ ,     Var(w̄) = N⁻¹ Σ_j D_j⁻¹ / n .
    """
    rows = few_rows(system.gram, system.sizes)
    if rows is not None and (np.einsum("nkk->nk", system.gram).max(axis=0) < _WORST_RATIO * system.hub).all():
        ridge = np.broadcast_to(system.ridge, system.shape)
        if (ridge == ridge[0]).all():
            return _hub_blocks_by_rows(system, rows)
    index = np.arange(len(system.hub))
    own = system.gram.copy()
    own[:, index, index] += system.ridge
    inverse = own.copy()
    inverse[:, index, index] += system.hub
    inverse = np.linalg.inv(inverse)
    kept = np.tensordot(inverse, own, ([0, 2], [0, 1]))
    mean = np.linalg.solve(kept, inverse.mean(axis=0))
    pulled = np.flatnonzero(system.hub > 0)
    if not len(pulled):
        return _symmetric(inverse), 0.5 * (mean + mean.T)
    reach = inverse[:, :, pulled] * system.hub[pulled]
    precision = system.hub[pulled, None] * kept[np.ix_(pulled, pulled)]
    precision = np.linalg.inv(0.5 * (precision + precision.T))
    return _symmetric(inverse + reach @ precision @ reach.transpose(0, 2, 1)), 0.5 * (mean + mean.T)


def _dense_inverse(system: TaskSystem) -> np.ndarray:
    """A⁻¹, shape (n, p, n, p)."""
    n, p = system.shape
    factor = cho_factor(system.dense(), lower=True, overwrite_a=True, check_finite=False)
    return cho_solve(factor, np.eye(n * p), overwrite_b=True, check_finite=False).reshape(n, p, n, p)


def _between(fit: GraphFit, noise: float, blocks: np.ndarray) -> np.ndarray:
    """(1 + 1/n)H⁻¹, H as in :func:`pull_of`: variance of a new task's deviation from the mean of the models."""
    n = len(blocks)
    doubt = noise * np.einsum("npp->p", blocks) / n
    return np.diag((1.0 + 1.0 / n) / pull_of(fit, noise, doubt))


def pull_of(fit: GraphFit, noise: float, doubt: np.ndarray | float = 0.0) -> np.ndarray:
    """Strength H of the shrinkage of a task without links, shape (p,).

    Without edges, tasks vary as N(w_0, σ²H⁻¹) with the strengths of the hub. With edges the hub may be weak although
    the tasks are alike. Then σ²H⁻¹ is at most the variance of the models plus their mean own variance, `doubt`.
    """
    if (fit.hub > 0).all() and not (fit.edge_values > 0).any():
        return fit.hub
    spread = fit.deviations.var(axis=0, ddof=1) if len(fit.coefficients) > 1 else np.ones(len(fit.hub))
    return np.maximum(fit.hub, noise / np.maximum(spread + doubt, 1e-8 * noise + np.finfo(float).tiny))


def _symmetric(blocks: np.ndarray) -> np.ndarray:
    return 0.5 * (blocks + blocks.transpose(0, 2, 1))
