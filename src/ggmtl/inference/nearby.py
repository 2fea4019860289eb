"""What taking an edge away does, from the tasks near it alone, and whether they are enough.

With N the tasks near, all others held and the common model moving by m, δ = B_N'⁻¹(b ⊗ wu + 1 ⊗ Hm), B_N' being A' on N
with the common model held. In the coordinates that matter most m follows from δ at the two tasks, and these follow m in
turn, by far less. Forces f that this leaves out (what the common model does in other coordinates) change errors by aᵀf,
a = A'⁻¹g with g their gradient. Edges that leave N hold its tasks back, O, more than the tasks there would, which move
themselves; if those moved freely, δ' = (A'_N − O)⁻¹(b ⊗ wu), errors would be off by aᵀOδ'. So a of the errors of the
two tasks, and z of those of all, tell about how far off N leaves them: Σ|a∘Oδ'| has been twice that and more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ggmtl import kernels
from ggmtl.inference.common_model import CommonModel
from ggmtl.inference.few_solves import FewSolves
from ggmtl.inference.neighbourhood import Near
from ggmtl.inference.removal import covariance_of, pull_of_edge, response_to_pair
from ggmtl.inference.survey import FarAway, Overview
from ggmtl.solve.system import TaskSystem, edge_between
from ggmtl.statistics.least_squares import LeastSquares

# Relative residual of solves in the tasks near; where they only say which way coefficients move; and where they only
# tell how much is in doubt.
_NEAR_TOL, _ROUGH_TOL, _DOUBT_TOL = 1e-9, 1e-4, 1e-4
# How often the common model may follow the two tasks, and they it.
_ROUNDS = 8
# The share of the squared errors of the two tasks or of all, and of a variance, that may be in doubt.
_DOUBT, _VARIANCE_DOUBT = 1e-6, 4e-2


@dataclass(frozen=True)
class Change:
    """What an edge changes; no more than a start where that is not enough.

    Parameters
    ----------
    models : array of shape (k, p)
        δ of the tasks near the edge.
    pull : array of shape (p,)
        Hm, by which the common model pulls all tasks.
    followed : array of shape (p,)
        What tasks do that only follow the common model, as those near do on average.
    beyond : float
        Σ_i ‖X_i δ_i‖² of all such tasks.
    doubt : float
        How much is in doubt beside what may be; infinite where more tasks near are no remedy.
    """

    models: np.ndarray
    pull: np.ndarray
    followed: np.ndarray
    beyond: float
    doubt: float

    @property
    def is_enough(self) -> bool:
        """Whether that tells the errors."""
        return self.doubt <= 1.0


@dataclass(frozen=True)
class Nearby:
    """The tasks near i and j among all.

    Parameters
    ----------
    near : Near
    first, second : int
        Where i and j are among these tasks.
    part : TaskSystem
        Their matrices and edges, with the edge (i, j) and the hub of all tasks.
    """

    near: Near
    first: int
    second: int
    part: TaskSystem

    def change(self, overview: Overview, far: FarAway, scored: LeastSquares) -> Change:
        """V' − V of rows whose errors are asked for, given the rows scored of the tasks near."""
        models = overview.models[self.near.tasks]
        right = pull_of_edge(models, self.first, self.second, self._weight)
        size, nothing = float(np.linalg.norm(right)), np.zeros(right.shape[1])
        if size == 0.0:
            return Change(right, nothing, nothing, 0.0, 0.0)
        # 1. A rough change tells whether these tasks are enough.
        rough, doubt = None, 0.0
        if not self.near.is_closed or far.leaves_open:
            rough = self._solver.solve(right, tol=_DOUBT_TOL)
            doubt = self._doubt(rough, right, overview, far, scored)
            if doubt > 1.0:
                return Change(rough, nothing, nothing, 0.0, doubt)
        # 2. The change, the common model held and then not.
        held = self._solver.solve(right, rough, _NEAR_TOL)
        pull, followed, is_settled = self._follow(held, models, far, _NEAR_TOL * size)
        beyond, is_all = far.beyond(pull, followed, self.near.tasks, scored.gram)
        if not is_settled or not (is_all or abs(beyond) <= _DOUBT * overview.error):
            doubt = np.inf
        return Change(held + followed, pull, followed.mean(axis=0), beyond, doubt)

    def gained(self, change: Change, overview: Overview, far: FarAway, scored: LeastSquares) -> float:
        """By how much the squared errors of all tasks change, 2gᵀδ + Σ_i ‖X_i δ_i‖²."""
        if not change.models.any():
            return 0.0
        force = self._force(overview.models[self.near.tasks] + change.models)
        slope = far.slopes(self._pair, force, far.follow(change.pull), change.models, self.near.tasks)[0]
        square = (change.models * kernels.block_product(scored.gram, change.models)).sum()
        return float(2.0 * slope + square + change.beyond)

    def rough_change(self, models: np.ndarray, common: CommonModel) -> np.ndarray:
        """δ of rows that are not scored, shape (k, p), given the models of the tasks near."""
        right = pull_of_edge(models, self.first, self.second, self._weight)
        if not right.any():
            return right
        held = self._solver.solve(right, tol=_ROUGH_TOL)
        return held + self._answer(common.middle @ held.sum(axis=0), _ROUGH_TOL * float(np.linalg.norm(right)))

    def covariance(self, common: CommonModel) -> np.ndarray | None:
        """S', shape (p, p); None where these tasks do not tell it to a small share."""
        p = self.part.shape[1]
        response, right = response_to_pair(self.without_edge, self.first, self.second, self._solver)
        covariance = covariance_of(response, right, self.without_edge, self.first, self.second)
        flat = response.reshape(len(response), p * p)
        lost = (self.near.passed_on(flat) * self.near.average(flat)).reshape(-1, p, p).sum(axis=0)
        scale = np.diag(covariance)
        if (self.part.coupling @ lost > _VARIANCE_DOUBT * scale).any():
            return None
        added = common.within(response.sum(axis=0), scale)
        return None if added is None else covariance + added

    def _doubt(
        self, held: np.ndarray, right: np.ndarray, overview: Overview, far: FarAway, scored: LeastSquares
    ) -> float:
        """How much is in doubt of the squared errors of the two and of all tasks, beside what may be."""
        pair, models = [self.first, self.second], overview.models[self.near.tasks]
        own, after = scored.of_tasks(np.array(pair)), (models + held)[pair]
        gradient = np.zeros_like(held)
        gradient[pair] = 2.0 * own.gradient(after)
        adjoint = self._solver.solve(gradient, tol=_DOUBT_TOL) if gradient.any() else gradient
        free = held if self.near.is_closed else self._free.solve(right, held, _DOUBT_TOL)
        unknown = far.bounds.doubt(held.sum(axis=0))
        unknown[far.felt] = 0.0
        # Of the two; of all, the adjoint is known.
        errors = ((2.0 * own.value(after), adjoint), (overview.error, 2.0 * far.errors[self.near.tasks]))
        doubt = 0.0
        for error, each in errors:
            common = float(np.abs(each.sum(axis=0)) @ unknown)
            passed = float(self.near.outside @ (np.abs(each * free) @ self.part.coupling))
            if common > _DOUBT * error:
                return np.inf
            doubt = max(doubt, (common + passed) / max(_DOUBT * error, np.finfo(float).tiny))
        return doubt

    def _follow(
        self, held: np.ndarray, models: np.ndarray, far: FarAway, goal: float
    ) -> tuple[np.ndarray, np.ndarray, bool]:
        """Hm and B_N'⁻¹(1 ⊗ Hm), shapes (p,) and (k, p), given δ while the common model is held.

        In the coordinates that matter most m follows from δ, until no more than `goal` is left; whether that was
        reached comes last. In the others Hm = Cs is taken from the middle of its bounds.
        """
        hub, felt, tasks = self.part.hub[far.felt], far.felt, self.near.tasks
        pull, change, step = np.zeros(held.shape[1]), held, far.bounds.middle @ held.sum(axis=0)
        # In the other coordinates the first step is all.
        for _ in range(_ROUNDS):
            force = self._force(models + change)
            step[felt] = hub * far.slopes(self._pair, force, far.follow(pull), change, tasks)[1:] - pull[felt]
            if np.sqrt(len(held)) * np.linalg.norm(step) <= goal:
                return pull, change - held, True
            known = far.common[tasks] @ far.follow(step)
            change, pull = change + self._answer(step, goal, known), pull + step
            step = np.zeros_like(step)
        return pull, change - held, False

    def _answer(self, pull: np.ndarray, goal: float, start: np.ndarray | None = None) -> np.ndarray:
        """What these tasks do when the common model pulls all tasks alike, shape (k, p), to a residual of `goal`."""
        right = np.tile(pull, (len(self.near.tasks), 1))
        size = float(np.linalg.norm(right))
        return self._free.solve(right, start, goal / size) if size > goal else np.zeros_like(right)

    def _force(self, after: np.ndarray) -> np.ndarray:
        """f, given the models of the tasks near without the edge."""
        return self._weight * (after[self.first] - after[self.second])

    @property
    def _pair(self) -> np.ndarray:
        """i and j among all tasks."""
        return self.near.tasks[[self.first, self.second]]

    @cached_property
    def _weight(self) -> np.ndarray:
        edge = edge_between(self.part.edges, self.first, self.second)
        return self.part.edge_weights[edge].sum() * self.part.coupling

    @cached_property
    def without_edge(self) -> TaskSystem:
        """A' on these tasks, all others and the common model held."""
        edge = edge_between(self.part.edges, self.first, self.second)
        return self.near.held(replace(self.part, edge_weights=np.where(edge, 0.0, self.part.edge_weights)))

    @cached_property
    def _solver(self) -> FewSolves:
        return FewSolves(self.without_edge)

    @cached_property
    def _free(self) -> FewSolves:
        """Where all tasks follow the common model, no edge to another holds one of these back."""
        if self.near.is_closed:
            return self._solver
        system = self.without_edge
        free = replace(system, ridge=system.ridge - self.near.outside[:, None] * system.coupling)
        return FewSolves(free, self._solver, tuple(np.flatnonzero(self.near.outside).tolist()))
