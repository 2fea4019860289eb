"""Strengths of the common model that the evidence prefers: one for each coefficient, shrunk towards their mean.

The evidence and its gradient are those of :mod:`ggmtl.evidence.hub`. Strengths are searched on a log scale, so that
they stay positive.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy.optimize import OptimizeResult, minimize

from ggmtl.evidence.hub import HubEvidence, hub_evidence
from ggmtl.runtime.sizes import SIZES, Sizes
from ggmtl.statistics.least_squares import LeastSquares

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
    held: np.ndarray | None = None,
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
    held : array of bool, shape (p,), optional
        Coefficients whose strengths stay as at the start. They share no group with others.
    nats : float
        Steps that gain less than this end the search; by default only those within rounding of nothing.
    """
    p = loss.n_features
    label = group_labels(groups, p)
    unit = max(float(loss.count.mean()), 1.0)
    first = np.full(p, 0.1 * unit) if start is None else np.clip(start, _LOWEST * unit, _HIGHEST * unit)
    size = np.bincount(label)
    bounds = np.tile(np.log([_LOWEST * unit, _HIGHEST * unit]), (len(size), 1))
    if held is not None:
        bounds[label[held]] = np.log(first[held])[:, None]
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
        bounds,
        max_iter=max_iter,
        ftol=max(nats / max(abs(at_first.value), 1.0), 1e-9),
        gtol=max(np.sqrt(nats), 1e-4),
        curvature=curvature,
    )
    hub = np.exp(found.x)[label]
    return HubStrength(hub, hub_evidence(loss, hub, ridge), int(found.nit), bool(found.success))


def learn_hub_by_feature(
    loss: LeastSquares,
    slopes: np.ndarray,
    start: np.ndarray | None = None,
    sizes: Sizes = SIZES,
    varying: np.ndarray | None = None,
) -> HubStrength:
    """One strength per coefficient, shrunk towards their mean by an amount that is estimated.

    The precision s of the slopes' hyper-prior is the one of highest evidence once the strengths are integrated out
    (Laplace): f + ½ s Σ(ln h − mean)² − ½(k − 1) ln s + ½ Σ ln(H + s), where H ≈ γ²/2n is the curvature of f in ln h_k
    and γ_k = h_k Σ_i (w_i − μ)_k²/σ² how many of the n deviations the data determine. The intercept is left to itself.

    `slopes` marks the slopes, `varying` those of them that may differ between tasks (all by default); `start` are
    strengths of nearly the same rows, near which the search begins.
    """
    varying = slopes if varying is None else varying
    common, groups = slopes & ~varying, np.where(slopes, np.where(varying, 0, 2), 1)
    unit = max(float(loss.count.mean()), 1.0)
    first = np.where(common, _HIGHEST * unit, 0.1 * unit if start is None else start)
    chosen = sample_of_tasks(loss, sizes.hub_sample)
    sample = loss if chosen is None else loss.of_tasks(chosen)
    if varying.sum() < 2:
        best = learn_hub(sample, groups, start=first, held=common)
    else:
        first = learn_hub(sample, groups, start=first, held=common, nats=_NATS).hub if start is None else first
        best = _by_shrinkage(sample, varying, common, first)
    return best if sample is loss else replace(best, evidence=hub_evidence(loss, best.hub))


def learn_hub_of_slopes(loss: LeastSquares, varying: np.ndarray, hub: np.ndarray, sizes: Sizes = SIZES) -> np.ndarray:
    """Strengths, shape (p,), where every task has an intercept of its own, from those of the hub.

    The last coefficient is the intercept. Evidence takes intercepts for drawn whatever the features are; where they go
    with the features (a lag carries the level of its series), only rows of the same task tell the slopes.
    """
    chosen = sample_of_tasks(loss, sizes.hub_sample)
    sample = loss if chosen is None else loss.of_tasks(chosen)
    start, shrinkage = hub.copy(), _SHRINKAGES[len(_SHRINKAGES) // 2]
    start[-1] = _LOWEST * max(float(loss.count.mean()), 1.0)
    groups = np.arange(len(hub))
    return learn_hub(sample, groups, start=start, shrinkage=shrinkage, pulled=varying, held=~varying, nats=_NATS).hub


def _by_shrinkage(loss: LeastSquares, varying: np.ndarray, common: np.ndarray, start: np.ndarray) -> HubStrength:
    """One strength per coefficient under the hyper-prior of highest evidence."""
    search = partial(learn_hub, loss, np.arange(len(varying)), pulled=varying, held=common)
    lowest, best, chosen, here = np.inf, start, _SHRINKAGES[0], start
    for shrinkage in _SHRINKAGES:
        found = search(start=here, shrinkage=shrinkage, nats=_NATS)
        value = found.evidence.value + _strength_cost(loss.n_tasks, found, varying, shrinkage)
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
