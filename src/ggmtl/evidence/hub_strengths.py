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

from ggmtl.evidence.hub import RIDGE, HubEvidence, hub_evidence
from ggmtl.runtime.sizes import SIZES, Sizes
from ggmtl.statistics.least_squares import LeastSquares

# Strengths are sought between these multiples of the mean number of rows of a task: beyond them, in scaled
# units, a coefficient is free, or common to all tasks, to working accuracy.
_LOWEST, _HIGHEST = 1e-6, 1e6
# Strength of intercepts that are as good as free, in the same units: one much weaker leaves rounding in the evidence.
_FREE = 1e-4
# Largest strength beside edges, in the same units.
_STRONGEST = 1e3
# Tuning of the strengths of a given graph ends at steps that change f by this share, or slopes of so many nats.
_FTOL, _SLOPE, _TUNING_STEPS = 3e-6, 0.05, 12
# Precisions of the hyper-prior that are tried, strong first, and nats above the best after which no weaker one is.
_SHRINKAGES, _PATIENCE = (32.0, 8.0, 2.0, 0.5, 0.125), 5.0
# Searches that only compare precisions of the hyper-prior end at steps of so many nats.
_NATS = 0.05
# The same of a single search, where every step costs passes over the rows.
_LITTLE = 1e-3
# Curvature of the evidence, at the least, where the data hardly determine a strength.
_LEAST_CURVATURE = 0.1
# Most steps of one search. Ordinary tables rarely take more. With 50 tasks of 20 rows and 300 features the evidence
# has a flat valley, along which 150 more steps gained a few nats of 1,800 (50 s a fit instead of 13 s).
_MOST_STEPS = 12
# Largest change of a log strength in one step, or in one search of L-BFGS; and how often a step is halved.
_WINDOW, _HALVINGS = 2.0, 5


@dataclass(frozen=True)
class HubStrength:
    """Strengths h that evidence has learned, shape (p,), the evidence there, and how the search ended.

    `shrinkage` is the precision of the hyper-prior of the slopes' strengths.
    """

    hub: np.ndarray
    evidence: HubEvidence
    iterations: int
    converged: bool
    shrinkage: float = 0.0


def learn_hub(
    loss: LeastSquares,
    groups: np.ndarray | None = None,
    *,
    start: np.ndarray | None = None,
    ridge: float = RIDGE,
    shrinkage: float = 0.0,
    pulled: np.ndarray | None = None,
    held: np.ndarray | None = None,
    max_iter: int = 100,
    nats: float = 0.0,
) -> HubStrength:
    """Minimise f over the strengths of groups of coefficients, by Newton's method in ln h.

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
    first = np.full(p, 0.1 * _rows_of_a_task(loss)) if start is None else _within_bounds(loss, start)
    # Groups begin at the geometric mean of their strengths.
    first = np.exp(np.bincount(label, np.log(first)) / np.bincount(label))[label]
    at_first = HubStrength(first, hub_evidence(loss, first, ridge), 0, False)
    return _tuned(loss, label, at_first, ridge, shrinkage, pulled, held, max_iter, nats)


def _tuned(
    loss: LeastSquares,
    label: np.ndarray,
    start: HubStrength,
    ridge: float = RIDGE,
    shrinkage: float = 0.0,
    pulled: np.ndarray | None = None,
    held: np.ndarray | None = None,
    max_iter: int = 100,
    nats: float = 0.0,
) -> HubStrength:
    """Newton's method in ln h, from strengths whose evidence is known; strengths of a group are equal."""
    unit, size = _rows_of_a_task(loss), np.bincount(label)
    bounds = np.log(_LOWEST * unit), np.log(_HIGHEST * unit)
    pull = shrinkage * _centring(len(size), pulled)
    fixed = np.zeros(len(size), dtype=bool)
    if held is not None:
        fixed[label[held]] = True
    nats = max(nats, 1e-9 * max(abs(start.evidence.value), 1.0))

    def at(logs: np.ndarray, near: _Point) -> _Point:
        evidence = hub_evidence(loss.near(near.evidence.start), np.exp(logs)[label], ridge)
        return _Point.of(evidence, logs, label, pull)

    here = _Point.of(start.evidence, np.bincount(label, np.log(start.hub)) / size, label, pull)
    steps, settled = 0, False
    while steps < max_iter and not settled:
        step = here.step(fixed, *bounds)
        promised = -0.5 * float(here.gradient @ step)
        if promised < nats:
            settled = True
            break
        there = _descend(at, here, step, bounds)
        steps += 1
        if there is None:
            # Rounding hides what is left to gain.
            settled = promised < 1e-6 * max(abs(here.value), 1.0)
            break
        settled, here = here.value - there.value < nats, there
    return HubStrength(np.exp(here.logs)[label], here.evidence, steps, settled)


@dataclass(frozen=True)
class _Point:
    """f with its hyper-prior at ln h of every group, its gradient and its curvature."""

    logs: np.ndarray
    evidence: HubEvidence
    value: float
    gradient: np.ndarray
    curvature: np.ndarray

    @classmethod
    def of(cls, evidence: HubEvidence, logs: np.ndarray, label: np.ndarray, pull: np.ndarray) -> _Point:
        hub = np.exp(logs)[label]
        value = evidence.value + 0.5 * float(logs @ pull @ logs)
        gradient = np.bincount(label, evidence.gradient * hub) + pull @ logs
        return cls(logs, evidence, value, gradient, _curvature(evidence, hub, np.eye(len(logs))[label], pull))

    def step(self, fixed: np.ndarray, low: float, high: float) -> np.ndarray:
        """Newton's step for the strengths that may still move, of limited length.

        Evidence is flat where a strength is very large or very small: a long step would land there and stay.
        """
        stuck = (self.logs <= low) & (self.gradient > 0) | (self.logs >= high) & (self.gradient < 0)
        free, step = np.flatnonzero(~(stuck | fixed)), np.zeros(len(self.logs))
        step[free] = -np.linalg.solve(self.curvature[np.ix_(free, free)], self.gradient[free])
        return step * min(1.0, _WINDOW / max(float(np.abs(step).max()), 1e-300))


def _curvature(evidence: HubEvidence, hub: np.ndarray, member: np.ndarray, pull: np.ndarray) -> np.ndarray:
    """Second derivatives in ln h of every group: observed where that is convex, else expected; never next to nothing.

    `member` tells the groups of coefficients, shape (p, groups); `pull` is the hyper-prior's part.
    """
    least = _LEAST_CURVATURE * np.eye(len(pull))
    if evidence.observed is None or evidence.expected is None:
        # Deviations that are determined by the data, γ_k of n, give f about the curvature γ²/2n.
        n = len(evidence.coefficients)
        return member.T @ np.diag(_determined(evidence, hub, n) ** 2 / (2.0 * n)) @ member + pull + least
    observed = member.T @ evidence.observed @ member + pull
    lowest = float(np.linalg.eigvalsh(observed)[0])
    # Not zero: along strengths at their bounds the curvature is zero but for rounding, whose sign must not matter.
    if lowest <= -0.5 * _LEAST_CURVATURE:
        return member.T @ evidence.expected @ member + pull + least
    return observed if lowest >= _LEAST_CURVATURE else observed + least


def _descend(
    at: Callable[[np.ndarray, _Point], _Point], here: _Point, step: np.ndarray, bounds: tuple[float, float]
) -> _Point | None:
    """The first of ever shorter steps that lowers f as its slope promises; None where none does."""
    for _ in range(_HALVINGS):
        there = at(np.clip(here.logs + step, *bounds), here)
        promised = float(here.gradient @ (here.logs - there.logs))
        if here.value - there.value > max(1e-4 * promised, 0.0):
            return there
        step = 0.5 * step
    return None


def _centring(size: int, pulled: np.ndarray | None) -> np.ndarray:
    """I − 11ᵀ/m among the strengths that are pulled together, zero elsewhere."""
    among = np.ones(size) if pulled is None else pulled.astype(float)
    return np.diag(among) - np.outer(among, among) / max(among.sum(), 1.0)


def _within_bounds(loss: LeastSquares, hub: np.ndarray) -> np.ndarray:
    unit = _rows_of_a_task(loss)
    return np.clip(hub, _LOWEST * unit, _HIGHEST * unit)


def _rows_of_a_task(loss: LeastSquares) -> float:
    return max(float(loss.count.mean()), 1.0)


def learn_hub_by_feature(
    loss: LeastSquares,
    slopes: np.ndarray,
    start: np.ndarray | None = None,
    sizes: Sizes = SIZES,
    varying: np.ndarray | None = None,
    shrinkage: float | None = None,
) -> HubStrength:
    """One strength per coefficient, shrunk towards their mean by an amount that is estimated.

    The precision s of the slopes' hyper-prior is the one of highest evidence once the strengths are integrated out
    (Laplace): f + ½ s Σ(ln h − mean)² − ½(k − 1) ln s + ½ Σ ln(H + s), where H ≈ γ²/2n is the curvature of f in ln h_k
    and γ_k = h_k Σ_i (w_i − μ)_k²/σ² how many of the n deviations the data determine. The intercept is left to itself.

    `slopes` marks the slopes, `varying` those of them that may differ between tasks (all by default); `start` are
    strengths of nearly the same rows, near which the search begins. `shrinkage` is s where it is known.
    """
    varying = slopes if varying is None else varying
    common, groups = slopes & ~varying, np.where(slopes, np.where(varying, 0, 2), 1)
    first = np.full(len(slopes), 0.1 * _rows_of_a_task(loss)) if start is None else start
    first = _within_bounds(loss, np.where(common, np.inf, first))
    sample = _sampled(loss, sizes.hub_sample)
    if varying.sum() < 2:
        best = learn_hub(sample, groups, start=first, held=common)
    else:
        if start is None:
            near = learn_hub(sample, groups, start=first, held=common, nats=_NATS)
        else:
            near = HubStrength(first, hub_evidence(sample, first), 0, False)
        best = _by_shrinkage(sample, varying, common, near, _SHRINKAGES if shrinkage is None else (shrinkage,))
    return best if sample is loss else replace(best, evidence=hub_evidence(loss, best.hub))


def learn_hub_of_slopes(
    loss: LeastSquares, varying: np.ndarray, hub: np.ndarray, sizes: Sizes = SIZES, free: float | None = _FREE
) -> np.ndarray:
    """Strengths, shape (p,), where every task has an intercept of its own, from those of the hub.

    The last coefficient is the intercept: `free` is its strength in units of the rows of a task; None leaves that of
    the hub. Evidence takes intercepts for drawn whatever the features are; where they go with the features (a lag
    carries the level of its series), only rows of the same task tell the slopes.
    """
    start, shrinkage = hub.copy(), _SHRINKAGES[len(_SHRINKAGES) // 2]
    if free is not None:
        start[-1] = free * _rows_of_a_task(loss)
    learn = partial(learn_hub, _sampled(loss, sizes.hub_sample), np.arange(len(hub)), start=start, nats=_NATS)
    return learn(shrinkage=shrinkage, pulled=varying, held=~varying, max_iter=_MOST_STEPS).hub


def _sampled(loss: LeastSquares, most: int) -> LeastSquares:
    """The loss of so many tasks; all of a device's tasks come back to the host, where second derivatives are known."""
    chosen = sample_of_tasks(loss, most)
    if chosen is None:
        return loss.of_tasks(np.arange(loss.n_tasks)) if loss.on_device else loss
    return loss.of_tasks(chosen)


def _by_shrinkage(
    loss: LeastSquares, varying: np.ndarray, common: np.ndarray, start: HubStrength, shrinkages: tuple[float, ...]
) -> HubStrength:
    """One strength per coefficient under the hyper-prior of highest evidence; its precisions are tried in turn."""
    search = partial(_tuned, loss, np.arange(len(varying)), pulled=varying, held=common, max_iter=_MOST_STEPS)
    if len(shrinkages) == 1:
        return replace(search(start, shrinkage=shrinkages[0], nats=_LITTLE), shrinkage=shrinkages[0])
    lowest, best, chosen, here = np.inf, start, shrinkages[0], start
    for shrinkage in shrinkages:
        here = search(here, shrinkage=shrinkage, nats=_NATS)
        value = here.evidence.value + _strength_cost(loss.n_tasks, here, varying, shrinkage)
        if value < lowest:
            lowest, best, chosen = value, here, shrinkage
        elif value > lowest + _PATIENCE:
            break
    return replace(search(best, shrinkage=chosen, nats=1e-4 * _NATS), shrinkage=chosen)


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
    logs = np.log(found.hub[slopes])
    apart = logs - logs.mean()
    curvature = _determined(found.evidence, found.hub, n_tasks)[slopes] ** 2 / (2.0 * n_tasks)
    occam = np.log(curvature + shrinkage).sum() - (slopes.sum() - 1) * np.log(shrinkage)
    return 0.5 * float(shrinkage * (apart @ apart) + occam)


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
