"""Tune the strength of the edges of a given graph, together with that of the hub.

All edges have the same strength c, so a graph has two parameters: c and the hub strength h of the slopes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ggmtl.evidence.hub_strengths import LOWEST, minimize_logs
from ggmtl.statistics.least_squares import LeastSquares

# Largest strength of the edges and of the hub, in multiples of the mean number of rows of a task.
_STRONGEST = 1e3
# The search ends when a step changes f by less than this share, when slopes are below this many nats, or after this
# many steps.
_FTOL, _SLOPE, _TUNING_STEPS = 3e-6, 0.05, 12


@dataclass(frozen=True)
class StrengthEvidence:
    """Evidence of a graph with one strength c for all its edges, and a hub.

    Parameters
    ----------
    value : float
        f, the negative log evidence up to a constant.
    strength_gradient : float
        ∂f/∂c.
    hub_gradient : array of shape (p,)
        ∂f/∂h.
    coefficients : array of shape (n, p)
        Models of the tasks.
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
    """Minimise f(c, h) over c and the hub strength of the largest group of coefficients.

    The search is over ln c and ln(h + `offset`). With a connected graph the best hub strength is often zero, and the
    offset keeps zero at a finite distance.

    Parameters
    ----------
    evaluate : callable
        The function (c, h) → evidence.
    loss : LeastSquares
    strength : float
        c, at which the search starts.
    hub : array of shape (p,)
        h, at which the search starts.
    label : array of int, shape (p,)
        Group of every coefficient. Only the hub strength of the largest group is tuned.
    offset : float

    Returns
    -------
    strength, hub, evidence
        c, h of shape (p,), and the evidence there: the best of all points visited.
    """
    unit = max(float(loss.count.mean()), 1.0)
    main = label == np.bincount(label).argmax()
    seen: dict[bytes, tuple[float, np.ndarray, StrengthEvidence]] = {}
    # A rough second derivative with respect to the logarithms, so that the first step has about the right length.
    curvature = 0.05 * loss.moment.size

    def objective(logs: np.ndarray) -> tuple[float, np.ndarray]:
        c, h = float(np.exp(logs[0])), np.where(main, np.exp(logs[1]) - offset, hub)
        evidence = evaluate(c, h)
        seen[logs.tobytes()] = c, h, evidence
        slopes = c * evidence.strength_gradient, np.exp(logs[1]) * float(evidence.hub_gradient[main].sum())
        return evidence.value / curvature, np.array(slopes) / curvature

    bounds = np.array([[1e-3, _STRONGEST], [LOWEST, _STRONGEST]]) * unit + [[0.0], [offset]]
    first = np.log([strength, float(np.median(hub[main])) + offset])
    minimize_logs(objective, first, np.log(bounds), max_iter=_TUNING_STEPS, ftol=_FTOL, gtol=_SLOPE / curvature)
    return min(seen.values(), key=lambda point: point[2].value)
