"""The outer objective as a function of edges and, where they are not given, of learned strengths (ours).

    F(e, ln λ, ln h) / F at the start ,      ∂F/∂ln λ = λ ∂F/∂λ

The paper takes λ as given. Here λ and the hub's strength can be learned with the same hyper-gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ggmtl.bilevel.level import Settings
from ggmtl.bilevel.optimizers import Box, quasi_newton, recorded
from ggmtl.bilevel.problem import Evaluation, HoldOut, Sparsity, evaluate_folds, outer_value
from ggmtl.graph.candidates import CandidateEdges
from ggmtl.runtime.journal import Journal
from ggmtl.statistics.least_squares import LeastSquares

# Strengths are searched over this many e-folds on either side of their start, but not beyond this many times the mean
# number of rows of a task. There, tasks are equal to working accuracy, and the system is nearly singular.
_STRENGTH_RANGE, _STRONGEST = 14.0, 1e7
# Default accuracy of the linear solves.
FINE = 1e-8
# All edge values start here: inside (0, 1), because the slope of the entropy term at 0 is infinite.
_START = 0.5
# A graph of n edges may weigh this many times as much as all candidates do together. Ten times more finds clusters
# better still, but overfits where there is no structure.
_ROOM = 10.0


@dataclass(frozen=True)
class Strengths:
    """Positive strengths as exponentials of a few free logarithms, one per group of coordinates.

    A group number of −1 holds the coordinate's strength fixed.
    """

    coupling: np.ndarray
    hub: np.ndarray
    coupling_group: np.ndarray
    hub_group: np.ndarray

    @property
    def size(self) -> int:
        """Number of free logarithms."""
        return int(max(self.coupling_group.max(initial=-1), self.hub_group.max(initial=-1))) + 1

    def at(self, logarithms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Coupling and hub at the given shifts of the logarithms."""
        factors = np.append(np.exp(logarithms), 1.0)
        return self.coupling * factors[self.coupling_group], self.hub * factors[self.hub_group]

    def bounds(self, unit: float) -> tuple[np.ndarray, np.ndarray]:
        """Lowest and highest shifts of the logarithms, around zero; `unit` is the mean number of rows of a task."""
        upper = np.full(self.size + 1, _STRENGTH_RANGE)
        for strength, group in ((self.coupling, self.coupling_group), (self.hub, self.hub_group)):
            room = np.log(_STRONGEST * unit) - np.log(np.maximum(strength, np.finfo(float).tiny))
            np.minimum.at(upper, group, np.maximum(room, 0.0))
        return np.full(self.size, -_STRENGTH_RANGE), upper[:-1]

    def chain(
        self, coupling_slope: np.ndarray, hub_slope: np.ndarray, coupling: np.ndarray, hub: np.ndarray
    ) -> np.ndarray:
        """Derivative for the logarithms from those for the strengths."""
        out = np.zeros(self.size + 1)
        np.add.at(out, self.coupling_group, coupling_slope * coupling)
        np.add.at(out, self.hub_group, hub_slope * hub)
        return out[:-1]


class ValidationObjective:
    """F(e, log strengths) over all hold-outs, divided by its value at the start.

    Optimisers call it with a point. The evaluations of the last point are kept as warm starts of the next one.
    """

    def __init__(self, hold_outs: Sequence[HoldOut], strengths: Strengths, sparsity: Sparsity, n_edges: int):
        self.hold_outs, self.strengths, self.sparsity, self.n_edges = hold_outs, strengths, sparsity, n_edges
        self.scale, self.first_value = 1.0, _START
        self.accuracy = FINE
        self._latest: list[Evaluation] | None = None

    @property
    def rows_per_task(self) -> float:
        """Mean number of training rows of a task, at least one."""
        return max(float(self.hold_outs[0].problem.loss.count.mean()), 1.0)

    def start(self, candidates: CandidateEdges) -> float:
        """Set the scale to the outer loss at the start, and return it."""
        loss = sum(evaluation.value for evaluation in self.evaluations(self.first_point(candidates)))
        self.scale = max(loss, np.finfo(float).tiny)
        return self.scale

    def first_point(self, candidates: CandidateEdges) -> np.ndarray:
        """All edges alike, strengths as they are."""
        return np.append(np.where(candidates.fixed, 1.0, self.first_value), np.zeros(self.strengths.size))

    def settle_coupling(self, candidates: CandidateEdges, settings: Settings, journal: Journal) -> float:
        """Learn λ and the hub for the uniform graph, then fix λ, and return the new scale.

        Only w = λe matters, so λ and e cannot both be free. Wrong candidates keep the strength of the uniform graph
        low. So λ is set such that n edges may weigh several times as much as all candidates do together.
        """
        m, size = self.n_edges, self.strengths.size
        uniform = self.first_point(candidates)[:m]
        box = Box(*self.strengths.bounds(self.rows_per_task))

        def restricted(logarithms: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = self(np.concatenate([uniform, logarithms]))
            return value, gradient[m:]

        optimum = recorded(
            quasi_newton, restricted, np.zeros(size), box, max_iter=30, tol=1e-3, journal=journal, name="strengths"
        )
        coupling, hub = self.strengths.at(optimum.x)
        room = max(m / self.hold_outs[0].problem.loss.n_tasks, 2.0)
        room *= _ROOM if settings.penalty == "squared_l2" else 1.0
        held = np.full(len(coupling), -1)
        free = np.where(self.strengths.hub_group >= 0, self.strengths.hub_group - self.strengths.hub_group.min(), -1)
        self.strengths = Strengths(coupling * self.first_value * room, hub, held, free if settings.hub else held)
        self.first_value = 1.0 / room
        return self.start(candidates)

    def evaluations(self, x: np.ndarray) -> list[Evaluation]:
        """Outer loss and derivatives of every hold-out at x."""
        coupling, hub = self.strengths.at(x[self.n_edges :])
        self._latest = evaluate_folds(
            self.hold_outs, x[: self.n_edges], coupling, hub, warm=self._latest, tol=self.accuracy
        )
        return self._latest

    def __call__(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """Value and gradient."""
        outer = outer_value(self.evaluations(x), self.sparsity, x[: self.n_edges])
        slopes = self.strengths.chain(outer.coupling, outer.hub, *self.strengths.at(x[self.n_edges :]))
        return outer.value / self.scale, np.concatenate([outer.edges, slopes]) / self.scale


def first_strengths(
    settings: Settings, candidates: CandidateEdges, hub_start: np.ndarray, loss: LeastSquares
) -> Strengths:
    """Start of the search: all edges of a task together are as strong as the hub."""
    p = len(settings.slopes)
    fixed = np.full(p, -1)
    group = np.where(settings.slopes, 0, 1)
    if settings.penalty != "squared_l2":
        group = np.zeros(p, dtype=np.int64)
    if settings.coupling is not None:
        coupling, coupling_group = settings.coupling, fixed
    else:
        degree = max(2.0 * len(candidates.edges) / loss.n_tasks, 1.0) * _START
        own = np.maximum(np.einsum("npp->p", loss.gram) / loss.n_tasks, 1e-3)
        pull = hub_start if settings.hub else 0.1 * own
        coupling = np.array([np.exp(np.log(pull[group == g]).mean()) for g in group]) / degree
        coupling_group = group
    free = coupling_group.max(initial=-1) + 1
    # Groups are numbered without gaps, so that every logarithm has a strength behind it.
    _, hub_numbers = np.unique(np.where(settings.slopes, 0, 1), return_inverse=True)
    hub_group = free + hub_numbers.reshape(-1) if settings.hub else fixed
    if settings.coupling is None:
        _, numbers = np.unique(coupling_group, return_inverse=True)
        coupling_group = numbers.reshape(-1)
    return Strengths(np.asarray(coupling, dtype=np.float64), hub_start, coupling_group, hub_group)
