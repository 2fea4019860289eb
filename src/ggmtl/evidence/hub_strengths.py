"""Learn the hub strengths by maximising the marginal likelihood: one per coefficient, shrunk towards their mean.

A strength is the amount of shrinkage of a coefficient towards the shared model. The evidence and its derivatives are
those of :mod:`ggmtl.evidence.hub`. The search is over the logarithms of the strengths, so that they stay positive.
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

# Bounds of the strengths, in multiples of the mean number of rows of a task. In scaled units, a coefficient is not
# shrunk at all below the lower bound, and is equal in all tasks above the upper one, to working accuracy.
LOWEST, _HIGHEST = 1e-6, 1e6
# Strength of intercepts that are practically not shrunk, in the same units. Much weaker ones cause rounding errors in
# the evidence.
_FREE = 1e-4
# Precisions of the hyper-prior that are tried, the strongest first. The search ends when one is this many nats worse
# than the best.
_SHRINKAGES, _PATIENCE = (32.0, 8.0, 2.0, 0.5, 0.125), 5.0
# Searches that only compare precisions of the hyper-prior end when a step gains less than this many nats.
_NATS = 0.05
# The same for a single search, where every step costs passes over the rows.
_LITTLE = 1e-3
# Least curvature that a Newton step assumes, for strengths that the data hardly determine.
_LEAST_CURVATURE = 0.1
# Largest number of steps of one search. Ordinary tables rarely take more. With 50 tasks of 20 rows and 300 features,
# the evidence has a flat valley, along which 150 more steps gained a few nats of 1,800 (50 s a fit instead of 13 s).
_MOST_STEPS = 12
# Largest change of a log strength in one Newton step or one run of L-BFGS, and how often a step may be halved.
_WINDOW, _HALVINGS = 2.0, 5


@dataclass(frozen=True)
class HubStrength:
    """Learned strengths h, shape (p,), their evidence, and how the search ended.

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
    under_prior: np.ndarray | None = None,
    held: np.ndarray | None = None,
    max_iter: int = 100,
    nats: float = 0.0,
) -> HubStrength:
    """Minimise f over the strengths of groups of coefficients, by Newton's method for ln h.

    Parameters
    ----------
    loss : LeastSquares
        Losses of the tasks.
    groups : array of int, shape (p,), optional
        Coefficients with the same label share a strength; one label for all by default.
    start : array of shape (p,), optional
        Strengths at which the search starts; a tenth of the mean number of rows by default.
    ridge : float
        ρ of :mod:`ggmtl.evidence.hub`.
    shrinkage : float
        Precision of a log-normal hyper-prior that shrinks the groups' strengths towards their geometric mean. Its
        penalty is ½ · shrinkage · Σ_g (ln h_g − mean)².
    under_prior : array of bool, shape (groups,), optional
        The groups to which the hyper-prior applies; all by default.
    held : array of bool, shape (p,), optional
        Coefficients whose strengths stay at the start. They must not share a group with other coefficients.
    nats : float
        The search ends when a step gains less than this; by default, when the gain is about a rounding error.
    """
    p = loss.n_features
    label = group_labels(groups, p)
    first = np.full(p, 0.1 * _rows_of_a_task(loss)) if start is None else _within_bounds(loss, start)
    # The search starts at the geometric mean of each group.
    first = np.exp(np.bincount(label, np.log(first)) / np.bincount(label))[label]
    begin = HubStrength(first, hub_evidence(loss, first, ridge), 0, False)
    return _tuned(loss, label, begin, ridge, shrinkage, under_prior, held, max_iter, nats)


def _tuned(
    loss: LeastSquares,
    label: np.ndarray,
    start: HubStrength,
    ridge: float = RIDGE,
    shrinkage: float = 0.0,
    under_prior: np.ndarray | None = None,
    held: np.ndarray | None = None,
    max_iter: int = 100,
    nats: float = 0.0,
) -> HubStrength:
    """Newton's method for ln h from strengths whose evidence is known; the other arguments are those of `learn_hub`.

    `label` is the group of every coefficient. Strengths in `start` must be equal within each group.
    """
    unit, size = _rows_of_a_task(loss), np.bincount(label)
    bounds = np.log(LOWEST * unit), np.log(_HIGHEST * unit)
    prior_precision = shrinkage * _centring(len(size), under_prior)
    fixed = np.zeros(len(size), dtype=bool)
    if held is not None:
        fixed[label[held]] = True
    nats = max(nats, 1e-9 * max(abs(start.evidence.value), 1.0))

    def at(logs: np.ndarray, near: _Point) -> _Point:
        evidence = hub_evidence(loss.near(near.evidence.start), np.exp(logs)[label], ridge)
        return _Point.of(evidence, logs, label, prior_precision)

    point = _Point.of(start.evidence, np.bincount(label, np.log(start.hub)) / size, label, prior_precision)
    steps, converged = 0, False
    while steps < max_iter and not converged:
        step = point.step(fixed, *bounds)
        predicted_gain = -0.5 * float(point.gradient @ step)
        if predicted_gain < nats:
            converged = True
            break
        new = _line_search(at, point, step, bounds)
        steps += 1
        if new is None:
            # No shorter step lowers f. This is convergence if the predicted gain is about a rounding error.
            converged = predicted_gain < 1e-6 * max(abs(point.value), 1.0)
            break
        converged, point = point.value - new.value < nats, new
    return HubStrength(np.exp(point.logs)[label], point.evidence, steps, converged)


@dataclass(frozen=True)
class _Point:
    """f plus the hyper-prior's penalty at given ln h of every group, with its gradient and curvature."""

    logs: np.ndarray
    evidence: HubEvidence
    value: float
    gradient: np.ndarray
    curvature: np.ndarray

    @classmethod
    def of(cls, evidence: HubEvidence, logs: np.ndarray, label: np.ndarray, prior_precision: np.ndarray) -> _Point:
        hub = np.exp(logs)[label]
        value = evidence.value + 0.5 * float(logs @ prior_precision @ logs)
        gradient = np.bincount(label, evidence.gradient * hub) + prior_precision @ logs
        return cls(
            logs, evidence, value, gradient, _curvature(evidence, hub, np.eye(len(logs))[label], prior_precision)
        )

    def step(self, fixed: np.ndarray, low: float, high: float) -> np.ndarray:
        """Newton step of limited length; zero for `fixed` groups and for those held at a bound.

        The evidence is flat where a strength is very large or very small. A long step could end there, and the search
        could not return.
        """
        at_bound = (self.logs <= low) & (self.gradient > 0) | (self.logs >= high) & (self.gradient < 0)
        free, step = np.flatnonzero(~(at_bound | fixed)), np.zeros(len(self.logs))
        step[free] = -np.linalg.solve(self.curvature[np.ix_(free, free)], self.gradient[free])
        return step * min(1.0, _WINDOW / max(float(np.abs(step).max()), 1e-300))


def _curvature(evidence: HubEvidence, hub: np.ndarray, member: np.ndarray, prior_precision: np.ndarray) -> np.ndarray:
    """Second derivatives with respect to ln h of every group, shape (groups, groups), made positive definite.

    These are the observed ones if they are convex, else the expected ones. `member`, shape (p, groups), is one where a
    coefficient is in a group and zero elsewhere. `prior_precision` is the part of the hyper-prior.
    """
    least = _LEAST_CURVATURE * np.eye(len(prior_precision))
    if evidence.observed is None or evidence.expected is None:
        # If the data determine γ_k of the n deviations of a coefficient, the curvature of f is about γ_k²/2n.
        n = len(evidence.coefficients)
        return member.T @ np.diag(_determined(evidence, hub, n) ** 2 / (2.0 * n)) @ member + prior_precision + least
    observed = member.T @ evidence.observed @ member + prior_precision
    lowest = float(np.linalg.eigvalsh(observed)[0])
    # The threshold is not zero: strengths at their bounds have zero curvature up to rounding, of either sign.
    if lowest <= -0.5 * _LEAST_CURVATURE:
        return member.T @ evidence.expected @ member + prior_precision + least
    return observed if lowest >= _LEAST_CURVATURE else observed + least


def _line_search(
    at: Callable[[np.ndarray, _Point], _Point], point: _Point, step: np.ndarray, bounds: tuple[float, float]
) -> _Point | None:
    """Backtracking line search: the first point that satisfies the Armijo condition; None if no trial does."""
    for _ in range(_HALVINGS):
        trial = at(np.clip(point.logs + step, *bounds), point)
        slope = float(point.gradient @ (point.logs - trial.logs))
        if point.value - trial.value > max(1e-4 * slope, 0.0):
            return trial
        step = 0.5 * step
    return None


def _centring(size: int, under_prior: np.ndarray | None) -> np.ndarray:
    """Centring matrix I − 11ᵀ/m of the m groups under the hyper-prior, zero for the others, shape (groups, groups)."""
    among = np.ones(size) if under_prior is None else under_prior.astype(float)
    return np.diag(among) - np.outer(among, among) / max(among.sum(), 1.0)


def _within_bounds(loss: LeastSquares, hub: np.ndarray) -> np.ndarray:
    """The strengths clipped to the bounds of the search."""
    unit = _rows_of_a_task(loss)
    return np.clip(hub, LOWEST * unit, _HIGHEST * unit)


def _rows_of_a_task(loss: LeastSquares) -> float:
    """Mean number of rows of a task, at least one: the unit of strengths."""
    return max(float(loss.count.mean()), 1.0)


def learn_hub_by_feature(
    loss: LeastSquares,
    slopes: np.ndarray,
    start: np.ndarray | None = None,
    sizes: Sizes = SIZES,
    varying: np.ndarray | None = None,
    shrinkage: float | None = None,
) -> HubStrength:
    """Learn one strength per coefficient, shrunk towards their mean by an estimated amount.

    The precision s of the hyper-prior of the slopes minimises the negative log evidence with the strengths integrated
    out by Laplace's approximation, f + ½ s Σ(ln h − mean)² − ½(k − 1) ln s + ½ Σ ln(H + s). Here H ≈ γ²/2n is the
    curvature of f with respect to ln h_k, and γ_k = h_k Σ_i (w_i − μ)_k²/σ² is the number of the n deviations that the
    data determine. The hyper-prior does not apply to the intercept.

    `slopes` marks the slopes, shape (p,), and `varying` those of them that may differ between tasks (all by default).
    `start` are strengths learned from nearly the same rows, at which the search starts. `shrinkage` is s, if known.
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
    """Learn strengths, shape (p,), for a model in which the intercepts of the tasks are not shrunk.

    The search starts at `hub`. The last coefficient is the intercept. `free` is its strength in multiples of the mean
    number of rows of a task; None keeps that of the hub. The hub assumes that intercepts are independent of the
    features. If they are correlated (the lag of a series contains its level), only differences between rows of the same
    task should determine the slopes.
    """
    start, shrinkage = hub.copy(), _SHRINKAGES[len(_SHRINKAGES) // 2]
    if free is not None:
        start[-1] = free * _rows_of_a_task(loss)
    learn = partial(learn_hub, _sampled(loss, sizes.hub_sample), np.arange(len(hub)), start=start, nats=_NATS)
    return learn(shrinkage=shrinkage, under_prior=varying, held=~varying, max_iter=_MOST_STEPS).hub


def _sampled(loss: LeastSquares, most: int) -> LeastSquares:
    """The loss of at most `most` tasks. A loss on a GPU is copied to the CPU, where second derivatives are computed."""
    chosen = sample_of_tasks(loss, most)
    if chosen is None:
        return loss.of_tasks(np.arange(loss.n_tasks)) if loss.on_device else loss
    return loss.of_tasks(chosen)


def _by_shrinkage(
    loss: LeastSquares, varying: np.ndarray, common: np.ndarray, start: HubStrength, shrinkages: tuple[float, ...]
) -> HubStrength:
    """One strength per coefficient, with that of the `shrinkages` s which has the highest evidence."""
    search = partial(_tuned, loss, np.arange(len(varying)), under_prior=varying, held=common, max_iter=_MOST_STEPS)
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
    """Positions of `most` random tasks that have rows, with a fixed seed; None if there are no more than `most`."""
    present = np.flatnonzero(loss.count > 0)
    if len(present) <= most:
        return None
    return np.sort(np.random.default_rng(0).choice(present, most, replace=False))


def _determined(evidence: HubEvidence, hub: np.ndarray, n_tasks: int) -> np.ndarray:
    """γ_k = h_k Σ_i (w_i − μ)_k²/σ², shape (p,): the number of the n deviations that the data determine."""
    deviation = ((evidence.coefficients - evidence.common) ** 2).sum(axis=0) / evidence.noise
    return np.clip(hub * deviation, 0.0, n_tasks)


def _strength_cost(n_tasks: int, found: HubStrength, slopes: np.ndarray, shrinkage: float) -> float:
    """The term that is added to f for the hyper-prior, with the strengths of the slopes integrated out, in nats."""
    logs = np.log(found.hub[slopes])
    centred = logs - logs.mean()
    curvature = _determined(found.evidence, found.hub, n_tasks)[slopes] ** 2 / (2.0 * n_tasks)
    occam = np.log(curvature + shrinkage).sum() - (slopes.sum() - 1) * np.log(shrinkage)
    return 0.5 * float(shrinkage * (centred @ centred) + occam)


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
    """Minimise an objective over logarithms of strengths by L-BFGS-B, restarted in windows of limited size.

    The evidence is flat where a strength is very large or very small. A long first step could end there, and the search
    could not return. So no strength may change by more than a fixed factor before L-BFGS-B is restarted. Variables are
    scaled by curvature^½, so that the curvature is about one in all directions.
    """
    unit = np.ones(len(start)) if curvature is None else curvature**-0.5

    def scaled(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = objective(x * unit)
        return value, gradient * unit

    low, high = np.broadcast_to(np.asarray(bounds, dtype=float).T.reshape(2, -1), (2, len(start)))
    current, steps = np.clip(start, low, high), 0
    while True:
        window = np.column_stack([np.maximum(current - _WINDOW, low), np.minimum(current + _WINDOW, high)])
        options = {"maxiter": max(max_iter - steps, 1), "ftol": ftol, "gtol": gtol}
        window /= unit[:, None]
        found = minimize(scaled, current / unit, jac=True, method="L-BFGS-B", bounds=window, options=options)
        found.x = found.x * unit
        steps += max(found.nit, 1)
        at_window = np.abs(found.x - current) > _WINDOW - 1e-9
        current = found.x
        found.nit = steps
        if steps >= max_iter or not at_window.any():
            return found
