"""Evidence of the common model alone (REML with independent random coefficients), and the strengths it learns.

With h > 0 and no edges, A = blockdiag(D_i) − 11ᵀ/n ⊗ diag(h), D_i = G_i + diag(h) + ρI. Write
K_i = D_i⁻¹(G_i + ρI) and M_i = diag(h) K_i, the information of task i about the common model μ. With N rows and p
coefficients,

    f(h)     = ½(N − p) ln Q + ½ Σ_i ln|D_i| + ½ ln|Σ_i M_i| − ½ n Σ_k ln h_k − ½ p ln n
    ∂f/∂h_k  = ½ Σ_i [ (w_i − μ)_k²/σ² + (D_i⁻¹)_kk + (K_i (ΣM)⁻¹ K_iᵀ)_kk ] − ½ n/h_k ,    σ² = Q/(N − p)

in O(n p³). Where the noise is known to be φ, ½Q/φ takes the place of ½(N − p) ln Q, and σ² = φ. Tasks may have no
rows, or fewer rows than coefficients. Strengths are searched on a log scale, so that they stay positive.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, singledispatch

import numpy as np
from scipy.optimize import OptimizeResult, minimize

from ggmtl import kernels
from ggmtl.runtime.sizes import SIZES, Sizes
from ggmtl.statistics.least_squares import LeastSquares

# So many numbers are held at a time; of inverses more, because those that are not held are computed twice.
_CHUNK_NUMBERS, _INVERSE_NUMBERS = 1 << 19, 1 << 20
# A difference of so small a share of its terms is taken for rounding.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class HubEvidence:
    """Evidence of a hub's strengths.

    Parameters
    ----------
    value : float
        f.
    gradient : array of shape (p,)
        ∂f/∂h.
    expected_square : array of shape (p,)
        E Σ_i (w_i − μ)_k²/σ² under the posterior; n/expected_square is the EM step for h.
    coefficients : array of shape (n, p)
        Models.
    common : array of shape (p,)
        μ, the common model.
    noise : float
        σ².
    """

    value: float
    gradient: np.ndarray
    expected_square: np.ndarray
    coefficients: np.ndarray
    common: np.ndarray
    noise: float


def degrees_of_freedom(loss: LeastSquares) -> float:
    """N − p: rows less the coefficients of the common model, on which the prior is flat; at least one."""
    return max(float(loss.count.sum()) - loss.n_features, 1.0)


def misfit(loss: LeastSquares, quadratic: float) -> tuple[float, float]:
    """Twice what Q adds to f, and σ²: (N − p) ln Q and Q/(N − p), or Q/φ and φ where the noise φ is known."""
    if loss.noise is not None:
        return quadratic / loss.noise, loss.noise
    # The target is in scaled units; one that is constant, and so all zero, still has a scale of one.
    floor = 1e-14 * (float(loss.target_square.sum()) or 1.0) + np.finfo(float).tiny
    quadratic = max(quadratic, floor)
    freedom = degrees_of_freedom(loss)
    return float(freedom * np.log(quadratic)), quadratic / freedom


def evidence_with_common_model(value: float, loss: LeastSquares) -> float:
    """−ln p(y) from f, for a common model ~ N(0, I) instead of a flat one: it compares losses of other columns, too.

    In scaled units one is a large effect. To f come the constants that depend on the number of coefficients p:
    ½(N − p)(1 + ln 2π − ln(N − p)), the density at zero, ½ p ln 2π, and ½ p ln n, because f is flat in √n μ.
    """
    freedom, constant = degrees_of_freedom(loss), np.log(2.0 * np.pi)
    scale = 1.0 + constant - np.log(freedom) if loss.noise is None else constant + np.log(loss.noise)
    return value + 0.5 * freedom * scale + 0.5 * loss.n_features * (constant + np.log(loss.n_tasks))


@singledispatch
def hub_evidence(
    loss: LeastSquares, hub: np.ndarray, ridge: float = 1e-10, common_ridge: np.ndarray | None = None
) -> HubEvidence:
    """Value and gradient of f(h), exact at any number of tasks, for h > 0 of shape (p,).

    The ridge ρ only determines what no row determines. The common model has a flat prior, or a precision
    `common_ridge` of shape (p,) about zero. Losses on a device register their own form.
    """
    n, p = loss.moment.shape
    hub = np.asarray(hub, dtype=float)
    total, right, log_det = np.zeros((p, p)), np.zeros(p), 0.0
    slices = chunks(n, p * p, _INVERSE_NUMBERS)
    for rows in slices:
        inverse, chunk_log_det = task_inverses(loss.gram[rows], hub + ridge)
        log_det += chunk_log_det
        total += inverse.sum(axis=0)
        right += hub * np.matmul(inverse, loss.moment[rows, :, None]).sum(axis=0)[:, 0]
    # K_i = I − D_i⁻¹ diag(h): sums of inverses are all that is needed of the tasks.
    pooled = n * np.diag(hub) - hub[:, None] * total * hub
    if (np.diag(pooled) <= _ROUNDING * n * hub).any():
        pooled = _information(loss.gram, hub, ridge, slices)
    pooled = 0.5 * (pooled + pooled.T)
    if common_ridge is not None:
        pooled += np.diag(common_ridge)
    spread = np.linalg.inv(pooled)
    common = spread @ right
    coefficients, pulled = np.empty((n, p)), hub[:, None] * spread * hub
    variance = np.diag(total) + n * np.diag(spread) - 2.0 * np.einsum("ka,a,ak->k", total, hub, spread)
    for rows in slices:
        if len(slices) > 1:  # A single chunk is still at hand.
            inverse, _ = task_inverses(loss.gram[rows], hub + ridge)
        coefficients[rows] = np.matmul(inverse, (loss.moment[rows] + hub * common)[..., None])[..., 0]
        # One product of all tasks' rows with a p × p matrix.
        variance += np.einsum("nka,nka->k", (inverse.reshape(-1, p) @ pulled).reshape(inverse.shape), inverse)
    deviation = ((coefficients - common) ** 2).sum(axis=0)
    quadratic = 2 * loss.value(coefficients) + hub @ deviation + ridge * float((coefficients**2).sum())
    if common_ridge is not None:
        quadratic += float(common_ridge @ common**2)
    twice_misfit, noise = misfit(loss, quadratic)
    expected = deviation / noise + variance
    value = 0.5 * (twice_misfit + log_det + np.linalg.slogdet(pooled)[1] - n * np.log(hub).sum() - p * np.log(n))
    return HubEvidence(float(value), 0.5 * (expected - n / hub), expected, coefficients, common, noise)


def _information(gram: np.ndarray, hub: np.ndarray, ridge: float, slices: list[slice]) -> np.ndarray:
    """Σ_i (G_i + ρ)D_i⁻¹ diag(h), shape (p, p), for features where nh − hΣD_i⁻¹h is all rounding (constant ones)."""
    inverses = (task_inverses(gram[rows], hub + ridge)[0] for rows in slices)
    return sum(information(gram[rows], ridge, inverse) for rows, inverse in zip(slices, inverses)) * hub


def information(gram: np.ndarray, ridge: float, inverse: np.ndarray) -> np.ndarray:
    """Σ_i (G_i + ρ)D_i⁻¹ of some tasks, shape (p, p)."""
    return (kernels.block_product(gram, inverse) + ridge * inverse).sum(axis=0)


def chunks(n: int, numbers: int, at_a_time: int = _CHUNK_NUMBERS) -> list[slice]:
    """Slices of consecutive tasks (or edges) whose blocks fit in the memory budget."""
    step = max(1, at_a_time // numbers)
    return [slice(first, min(first + step, n)) for first in range(0, n, step)]


def task_inverses(gram: np.ndarray, strength: np.ndarray) -> tuple[np.ndarray, float]:
    """Inverses and summed log-determinants of G_i + diag(h)."""
    # A Cholesky factor is as accurate as that of the same matrix scaled to a diagonal of ones, so any h is safe.
    inverse, log_det = kernels.inverse_blocks(gram, np.broadcast_to(strength, gram.shape[:2]))
    return inverse, float(log_det.sum())


# Strengths are sought between these multiples of the mean number of rows of a task: beyond them, in scaled
# units, a coefficient is free, or common to all tasks, to working accuracy.
_LOWEST, _HIGHEST = 1e-6, 1e6
# Largest strength beside edges, in the same units.
_STRONGEST = 1e3
# Tuning of the strengths of a given graph ends at steps that change f by this share, or slopes of so many nats.
_FTOL, _SLOPE, _TUNING_STEPS = 3e-6, 0.05, 12
# Precisions of the hyper-prior that are tried, strong first, and nats above the best after which no weaker one is.
_SHRINKAGES, _PATIENCE = (32.0, 8.0, 2.0, 0.5, 0.125), 5.0
# Searches that only compare precisions of the hyper-prior end at steps of so many nats.
_NATS = 0.05
# Curvature of the evidence, at the least, where the data hardly determine a strength.
_LEAST_CURVATURE = 0.1
# Largest change of a log strength in one search.
_WINDOW = 2.0


@dataclass(frozen=True)
class HubStrength:
    """Strengths h that evidence has learned, shape (p,), the evidence there, and how the quasi-Newton search ended."""

    hub: np.ndarray
    evidence: HubEvidence
    iterations: int
    converged: bool


def learn_hub(
    loss: LeastSquares,
    groups: np.ndarray | None = None,
    *,
    start: np.ndarray | None = None,
    ridge: float = 1e-10,
    shrinkage: float = 0.0,
    pulled: np.ndarray | None = None,
    max_iter: int = 100,
    nats: float = 0.0,
) -> HubStrength:
    """Minimise f over the strengths of groups of coefficients, by L-BFGS in ln h.

    Parameters
    ----------
    loss : LeastSquares
        Losses of the tasks.
    groups : array of int, shape (p,), optional
        Coefficients with the same label share a strength; one label for all by default.
    start : array of shape (p,), optional
        First strengths; a tenth of the mean number of rows by default.
    shrinkage : float
        Precision of a log-normal hyper-prior that pulls the groups' strengths to their common mean,
        ½ · shrinkage · Σ_g (ln h_g − mean)²: many strengths then cost little where the data do not tell them
        apart.
    pulled : array of bool, shape (groups,), optional
        The groups that the hyper-prior speaks of; all by default.
    nats : float
        Steps that gain less than this end the search; by default only those within rounding of nothing.
    """
    p = loss.n_features
    label = group_labels(groups, p)
    unit = max(float(loss.count.mean()), 1.0)
    first = np.full(p, 0.1 * unit) if start is None else np.clip(start, _LOWEST * unit, _HIGHEST * unit)
    size = np.bincount(label)
    # Deviations that are determined by the data, γ_k of n, give f the curvature γ²/2n in ln h_k: steps of about the
    # right length in every direction.
    at_first = hub_evidence(loss, first, ridge)
    determined = np.bincount(label, _determined(at_first, first, loss.n_tasks))
    curvature = determined**2 / (2.0 * loss.n_tasks * size) + shrinkage + _LEAST_CURVATURE

    def objective(logs: np.ndarray) -> tuple[float, np.ndarray]:
        hub = np.exp(logs)[label]
        evidence = hub_evidence(loss, hub, ridge)
        apart = _apart(logs, pulled)
        gradient = np.bincount(label, evidence.gradient * hub) + shrinkage * apart
        return evidence.value + 0.5 * shrinkage * float(apart @ apart), gradient

    found = minimize_logs(
        objective,
        np.bincount(label, np.log(first)) / size,
        (np.log(_LOWEST * unit), np.log(_HIGHEST * unit)),
        max_iter=max_iter,
        ftol=max(nats / max(abs(at_first.value), 1.0), 1e-9),
        gtol=max(np.sqrt(nats), 1e-4),
        curvature=curvature,
    )
    hub = np.exp(found.x)[label]
    return HubStrength(hub, hub_evidence(loss, hub, ridge), int(found.nit), bool(found.success))


def learn_hub_by_feature(
    loss: LeastSquares, slopes: np.ndarray, start: np.ndarray | None = None, sizes: Sizes = SIZES
) -> HubStrength:
    """One strength per coefficient, shrunk towards their mean by an amount that is estimated.

    The precision s of the slopes' hyper-prior is the one of highest evidence once the strengths are integrated out
    (Laplace): f + ½ s Σ(ln h − mean)² − ½(k − 1) ln s + ½ Σ ln(H + s), where H ≈ γ²/2n is the curvature of f in ln h_k
    and γ_k = h_k Σ_i (w_i − μ)_k²/σ² how many of the n deviations the data determine. The intercept is left to itself.

    `slopes` marks the slopes; `start` are strengths of nearly the same rows, near which the search begins.
    """
    chosen = sample_of_tasks(loss, sizes.hub_sample)
    sample = loss if chosen is None else loss.of_tasks(chosen)
    if slopes.sum() < 2:
        best = learn_hub(sample, (~slopes).astype(np.int64), start=start)
    else:
        first = learn_hub(sample, (~slopes).astype(np.int64), nats=_NATS).hub if start is None else start
        best = _by_shrinkage(sample, slopes, first)
    return best if sample is loss else replace(best, evidence=hub_evidence(loss, best.hub))


def _by_shrinkage(loss: LeastSquares, slopes: np.ndarray, start: np.ndarray) -> HubStrength:
    """One strength per coefficient under the hyper-prior of highest evidence."""
    search = partial(learn_hub, loss, np.arange(len(slopes)), pulled=slopes)
    lowest, best, chosen, here = np.inf, start, _SHRINKAGES[0], start
    for shrinkage in _SHRINKAGES:
        found = search(start=here, shrinkage=shrinkage, nats=_NATS)
        value = found.evidence.value + _strength_cost(loss.n_tasks, found, slopes, shrinkage)
        here = found.hub
        if value < lowest:
            lowest, best, chosen = value, found.hub, shrinkage
        elif value > lowest + _PATIENCE:
            break
    return search(start=best, shrinkage=chosen, nats=1e-3 * _NATS)


def sample_of_tasks(loss: LeastSquares, most: int) -> np.ndarray | None:
    """Positions of some of very many tasks, of those that have rows; the same ones every time. None for all tasks."""
    present = np.flatnonzero(loss.count > 0)
    if len(present) <= most:
        return None
    return np.sort(np.random.default_rng(0).choice(present, most, replace=False))


def _determined(evidence: HubEvidence, hub: np.ndarray, n_tasks: int) -> np.ndarray:
    """γ_k = h_k Σ_i (w_i − μ)_k²/σ²: how many of the n deviations the data determine."""
    deviation = ((evidence.coefficients - evidence.common) ** 2).sum(axis=0) / evidence.noise
    return np.clip(hub * deviation, 0.0, n_tasks)


def _strength_cost(n_tasks: int, found: HubStrength, slopes: np.ndarray, shrinkage: float) -> float:
    """What the hyper-prior of the slopes' strengths adds to f, the strengths integrated out."""
    apart = _apart(np.log(found.hub), slopes)
    curvature = _determined(found.evidence, found.hub, n_tasks)[slopes] ** 2 / (2.0 * n_tasks)
    occam = np.log(curvature + shrinkage).sum() - (slopes.sum() - 1) * np.log(shrinkage)
    return 0.5 * float(shrinkage * (apart @ apart) + occam)


def _apart(logs: np.ndarray, pulled: np.ndarray | None) -> np.ndarray:
    """Deviations from the mean among the strengths that are pulled together, zero elsewhere."""
    if pulled is None:
        return logs - logs.mean()
    return np.where(pulled, logs - logs[pulled].mean(), 0.0)


def group_labels(groups: np.ndarray | None, n_features: int) -> np.ndarray:
    """Labels 0, 1, … of the groups of coefficients; one group by default."""
    if groups is None:
        return np.zeros(n_features, dtype=np.int64)
    return np.unique(groups, return_inverse=True)[1].reshape(-1)


def minimize_logs(
    objective: Callable[[np.ndarray], tuple[float, np.ndarray]],
    start: np.ndarray,
    bounds: tuple[float, float] | np.ndarray,
    *,
    max_iter: int = 100,
    ftol: float = 1e-9,
    gtol: float = 1e-4,
    curvature: np.ndarray | None = None,
) -> OptimizeResult:
    """L-BFGS-B over logarithms of strengths, a window at a time.

    Evidence is flat where a strength is very large or very small; a long first step would land there and
    stay. No strength may therefore change by more than a fixed factor before the search starts afresh.
    The search is in units of curvature^-½, about one for every direction.
    """
    unit = np.ones(len(start)) if curvature is None else curvature**-0.5

    def scaled(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = objective(x * unit)
        return value, gradient * unit

    low, high = np.broadcast_to(np.asarray(bounds, dtype=float).T.reshape(2, -1), (2, len(start)))
    here, steps = np.clip(start, low, high), 0
    while True:
        window = np.column_stack([np.maximum(here - _WINDOW, low), np.minimum(here + _WINDOW, high)])
        options = {"maxiter": max(max_iter - steps, 1), "ftol": ftol, "gtol": gtol}
        window /= unit[:, None]
        found = minimize(scaled, here / unit, jac=True, method="L-BFGS-B", bounds=window, options=options)
        found.x = found.x * unit
        steps += max(found.nit, 1)
        stuck = np.abs(found.x - here) > _WINDOW - 1e-9
        here = found.x
        found.nit = steps
        if steps >= max_iter or not stuck.any():
            return found


@dataclass(frozen=True)
class StrengthEvidence:
    """Evidence of a graph with one strength c for all its edges, beside a hub.

    Parameters
    ----------
    value : float
        f.
    strength_gradient : float
        ∂f/∂c.
    hub_gradient : array of shape (p,)
        ∂f/∂h.
    coefficients : array of shape (n, p)
        Models.
    noise : float
        σ².
    """

    value: float
    strength_gradient: float
    hub_gradient: np.ndarray
    coefficients: np.ndarray
    noise: float


def tune_strengths(
    evaluate: Callable[[float, np.ndarray], StrengthEvidence],
    loss: LeastSquares,
    strength: float,
    hub: np.ndarray,
    label: np.ndarray,
    offset: float,
) -> tuple[float, np.ndarray, StrengthEvidence]:
    """Minimise f(c, h) over c and the hub's strength in the largest group of coefficients; and f there.

    The search is over ln c and ln(h + `offset`): beside a connected graph a hub is often worth nothing, and h = 0
    must not be infinitely far.
    """
    unit = max(float(loss.count.mean()), 1.0)
    main = label == np.bincount(label).argmax()
    seen: dict[bytes, tuple[float, np.ndarray, StrengthEvidence]] = {}
    # About the second derivative in the logarithms, so that the first step has about the right length.
    curvature = 0.05 * loss.moment.size

    def objective(logs: np.ndarray) -> tuple[float, np.ndarray]:
        c, h = float(np.exp(logs[0])), np.where(main, np.exp(logs[1]) - offset, hub)
        evidence = evaluate(c, h)
        seen[logs.tobytes()] = c, h, evidence
        slopes = c * evidence.strength_gradient, np.exp(logs[1]) * float(evidence.hub_gradient[main].sum())
        return evidence.value / curvature, np.array(slopes) / curvature

    bounds = np.array([[1e-3, _STRONGEST], [_LOWEST, _STRONGEST]]) * unit + [[0.0], [offset]]
    first = np.log([strength, float(np.median(hub[main])) + offset])
    minimize_logs(objective, first, np.log(bounds), max_iter=_TUNING_STEPS, ftol=_FTOL, gtol=_SLOPE / curvature)
    return min(seen.values(), key=lambda point: point[2].value)
