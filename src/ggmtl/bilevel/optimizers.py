"""Minimise F on a box, from its value and gradient: the paper's update (Eq. 6) and faster ones.

Convergence is judged by the projected gradient P(x − ∇F(x)) − x; its largest entry is the certificate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import OptimizeResult, minimize

from ggmtl.runtime.journal import Journal

ValueAndGradient = Callable[[np.ndarray], tuple[float, np.ndarray]]
# Called with (iteration, objective, point): at the start, with iteration 0, and after every step.
Progress = Callable[[int, float, np.ndarray], None]


@dataclass(frozen=True)
class Optimum:
    """Where an optimiser stopped.

    Parameters
    ----------
    x : array
    value : float
    certificate : float
        Largest entry of the projected gradient.
    iterations : int
    status : {"converged", "flat", "max_iter", "interrupted"}
        ``"flat"``: further decreases are within rounding, but the certificate is above `tol`.
    history : tuple of float
        Objective after each step, the start first.
    """

    x: np.ndarray
    value: float
    certificate: float
    iterations: int
    status: str
    history: tuple[float, ...]


@dataclass(frozen=True)
class Box:
    """Bounds lower ≤ x ≤ upper."""

    lower: np.ndarray
    upper: np.ndarray

    def project(self, x: np.ndarray) -> np.ndarray:
        """The nearest point of the box."""
        return np.clip(x, self.lower, self.upper)

    def certificate(self, x: np.ndarray, gradient: np.ndarray) -> float:
        """Largest entry of P(x − g) − x."""
        return float(np.abs(self.project(x - gradient) - x).max(initial=0.0))


Point = tuple[np.ndarray, float, np.ndarray]


def _follow(
    function: ValueAndGradient,
    start: np.ndarray,
    box: Box,
    move: Callable[[np.ndarray, float, np.ndarray], Point | None],
    max_iter: int,
    tol: float,
    progress: Progress | None,
) -> Optimum:
    """Go from point to point, each with value and gradient, until `move` finds no other or the point is converged."""
    x = box.project(start)
    value, gradient = function(x)
    history: list[float] = [value]
    if progress:
        progress(0, value, x)
    while box.certificate(x, gradient) > tol and len(history) <= max_iter:
        moved = move(x, value, gradient)
        if moved is None:
            break
        x, value, gradient = moved
        history.append(value)
        if progress:
            progress(len(history) - 1, value, x)
    certificate, steps = box.certificate(x, gradient), len(history) - 1
    status = "converged" if certificate <= tol else ("max_iter" if steps >= max_iter else "flat")
    return Optimum(x, value, certificate, steps, status, tuple(history))


def projected_gradient(
    function: ValueAndGradient,
    start: np.ndarray,
    box: Box,
    *,
    step: float | None = None,
    max_iter: int = 200,
    tol: float = 1e-5,
    progress: Progress | None = None,
) -> Optimum:
    """The update of Algorithm 1 (Eq. 6) with the sign that descends: e ← P(e − ν ∇F(e)).

    A `step` is ν of every iteration, as in the paper; the objective may then rise. By default ν starts from the
    Barzilai–Borwein length and is halved until the objective falls (Armijo along the projection arc).
    """
    length = 0.0

    def move(x: np.ndarray, value: float, gradient: np.ndarray) -> Point | None:
        nonlocal length
        if step is not None:
            point = box.project(x - step * gradient)
            return point, *function(point)
        if not length:
            length = 0.1 / max(np.abs(gradient).max(initial=0.0), np.finfo(float).tiny)
        trial = _backtrack(function, box, x, value, gradient, length)
        if trial is not None:
            moved, turned = trial[0] - x, trial[2] - gradient
            curvature = float(moved @ turned)
            length = float(moved @ moved) / curvature if curvature > 0 else 10.0 * length
        return trial

    return _follow(function, start, box, move, max_iter, tol, progress)


def quasi_newton(
    function: ValueAndGradient,
    start: np.ndarray,
    box: Box,
    *,
    max_iter: int = 200,
    tol: float = 1e-5,
    progress: Progress | None = None,
) -> Optimum:
    """Bound-constrained limited-memory BFGS (L-BFGS-B)."""
    x = box.project(start)
    history: list[float] = []

    def after_step(intermediate_result: OptimizeResult) -> None:
        history.append(float(intermediate_result.fun))
        if progress:
            progress(len(history), history[-1], intermediate_result.x)

    first, gradient = function(x)
    if progress:
        progress(0, first, x)
    if not len(x) or box.certificate(x, gradient) <= tol:
        return Optimum(x, first, box.certificate(x, gradient), 0, "converged", (first,))
    result = minimize(
        function,
        x,
        jac=True,
        method="L-BFGS-B",
        bounds=list(zip(box.lower, box.upper)),
        callback=after_step,
        options={"maxiter": max_iter, "gtol": tol, "ftol": 1e-2 * tol, "maxls": 30, "maxcor": 20},
    )
    x = box.project(result.x)
    certificate = box.certificate(x, np.asarray(result.jac))
    status = "converged" if certificate <= tol else ("max_iter" if result.nit >= max_iter else "flat")
    return Optimum(x, float(result.fun), certificate, int(result.nit), status, (first, *history))


def trial_steps(
    function: ValueAndGradient,
    propose: Callable[[np.ndarray], np.ndarray | None],
    start: np.ndarray,
    box: Box,
    *,
    max_iter: int = 200,
    tol: float = 1e-5,
    progress: Progress | None = None,
) -> Optimum:
    """Accept proposed points while they lower the objective, then finish with quasi-Newton steps."""

    def move(x: np.ndarray, value: float, gradient: np.ndarray) -> Point | None:
        candidate = propose(x)
        if candidate is None:
            return None
        candidate = box.project(candidate)
        new_value, new_gradient = function(candidate)
        return (candidate, new_value, new_gradient) if new_value < value else None

    first = _follow(function, start, box, move, max_iter, tol, progress)

    def go_on(step: int, value: float, point: np.ndarray) -> None:
        if progress and step:
            progress(first.iterations + step, value, point)

    left = max(max_iter - first.iterations, 1)
    rest = quasi_newton(function, first.x, box, max_iter=left, tol=tol, progress=go_on)
    history = (*first.history, *rest.history[1:])
    return replace(rest, iterations=first.iterations + rest.iterations, history=history)


def recorded(
    optimiser: Callable[..., Optimum],
    function: ValueAndGradient,
    start: np.ndarray,
    box: Box,
    *,
    max_iter: int,
    tol: float,
    journal: Journal,
    name: str,
) -> Optimum:
    """Run an optimiser with every step recorded in a journal; a stopped run continues from its last step.

    Quasi-Newton then starts with an empty memory, so its steps may differ from those of an uninterrupted run. The
    optimum is the same to the tolerance.
    """
    state = journal.resume(name)
    before = state["history"] if state else []
    history, done = list(before), max(len(before) - 1, 0)

    def record(iteration: int, value: float, x: np.ndarray) -> None:
        if iteration or not before:
            history.append(float(value))
            journal.step(name, x=x.copy(), history=list(history))

    def compute() -> Optimum:
        first = state["x"] if state else start
        found = optimiser(function, first, box, max_iter=max(max_iter - done, 1), tol=tol, progress=record)
        return replace(found, iterations=done + found.iterations, history=(*before[:-1], *found.history))

    return journal.once(name, compute)


def reached_so_far(journal: Journal, name: str) -> Optimum | None:
    """The last step of a recorded run, with status "interrupted"; None if there is none."""
    state = journal.resume(name)
    if state is None:
        return None
    history = tuple(state["history"])
    return Optimum(state["x"], history[-1], float("nan"), len(history) - 1, "interrupted", history)


def _backtrack(
    function: ValueAndGradient, box: Box, x: np.ndarray, value: float, gradient: np.ndarray, step: float
) -> Point | None:
    """The first point along the projection arc that lowers the value enough; None if there is none."""
    for _ in range(40):
        candidate = box.project(x - step * gradient)
        new_value, new_gradient = function(candidate)
        if new_value <= value + 1e-4 * float(gradient @ (candidate - x)) and new_value < value:
            return candidate, new_value, new_gradient
        step *= 0.5
    return None
