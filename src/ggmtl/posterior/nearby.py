"""What taking an edge away does, from the tasks near it alone.

With N the tasks near, all others held and the common model moving by m, δ = B_N'⁻¹(b ⊗ wu + 1 ⊗ Hm), B_N' being A' on N
with the common model held, and m follows from δ at the two tasks: a system of as many unknowns as there are coordinates
in which the common model matters. What that leaves over of A'δ = b ⊗ wu is what the edges that leave N pass on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ggmtl import kernels
from ggmtl.posterior.common_model import CommonModel
from ggmtl.posterior.few_solves import MODEL_TOL, FewSolves
from ggmtl.posterior.neighbourhood import Near
from ggmtl.posterior.removal import CHANGE_TOL, edge_between, improved, pull_of_edge, solve_columns
from ggmtl.posterior.survey import FarAway, Overview
from ggmtl.solvers import DIRECT_SIZE, Direct
from ggmtl.statistics import LeastSquares
from ggmtl.system import TaskSystem

# What may be left over of a change, beside the moments of the two tasks; and what edges that leave the tasks near may
# pass on, beside the pull of the edge. That comes back to the two by the way it went: its square is what they feel.
_LEFT_OVER, _PASSED_ON = 2e-6, 5e-4
# Relative residual of a change that must be right to a thousandth; and, whatever may be left over, of all tasks, and of
# those near.
_ROUGH, _LOOSEST, _NEAR_TOL = 1e-4, 0.1, 1e-5


@dataclass(frozen=True)
class Change:
    """What an edge changes.

    Parameters
    ----------
    models : array of shape (k, p)
        δ of the tasks near the edge.
    tol : float
        Relative residual that is small enough where all tasks are asked.
    is_enough : bool
        Whether the tasks near are enough.
    """

    models: np.ndarray
    tol: float
    is_enough: bool


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
    moment : array of shape (k, p)
        Their right-hand sides.
    """

    near: Near
    first: int
    second: int
    part: TaskSystem
    moment: np.ndarray

    def change(self, overview: Overview) -> Change:
        """V' − V of rows whose errors are asked for."""
        models, far = overview.models[self.near.tasks], overview.far
        right = pull_of_edge(models, self.first, self.second, self._weight)
        size = float(np.linalg.norm(right))
        if size == 0.0:
            return Change(np.zeros_like(right), CHANGE_TOL, True)
        allowed = _LEFT_OVER * float(np.linalg.norm(self.moment[[self.first, self.second]]))
        tol = float(np.clip(max(allowed, MODEL_TOL * overview.moment) / size, CHANGE_TOL, _LOOSEST))
        own = float(np.clip(0.1 * tol, CHANGE_TOL, _NEAR_TOL))
        found = self._solver.solve(right, tol=own)
        if far is None:
            return Change(found, tol, False)
        passed = float(np.linalg.norm(self.near.passed_on(found) * self.part.coupling))
        if len(far.felt):
            found = found + self._follow(found, models, far)
        return Change(found, tol, passed <= _PASSED_ON * size)

    def rough_change(self, models: np.ndarray) -> np.ndarray:
        """δ of all rows to some thousandths, shape (k, p), given the models of the tasks near: others stay."""
        right = pull_of_edge(models, self.first, self.second, self._weight)
        return self._solver.solve(right, tol=_ROUGH) if right.any() else right

    def gained(self, change: Change, overview: Overview, scored: LeastSquares) -> float:
        """By how much the squared errors of all tasks change, 2gᵀδ + Σ_i ‖X_i δ_i‖².

        Given are the rows scored of the tasks near. Others move too little for their squares to matter.
        """
        if overview.far is None or not change.models.any():
            return 0.0
        slope = self._across(overview.far.errors) @ self._moved(change.models, overview.models[self.near.tasks])
        return float(2.0 * slope + (change.models * kernels.block_product(scored.gram, change.models)).sum())

    def covariance(self, common: CommonModel | None) -> np.ndarray | None:
        """S', shape (p, p); None where the part of the common model in it is not known well enough.

        Where edges leave these tasks, what the others would add is left out, and so is the common model.
        """
        p = self.part.shape[1]
        right = np.zeros((len(self.near.tasks), p, p))
        right[self.first], right[self.second] = np.eye(p), -np.eye(p)
        small = self._without_edge.gram[..., 0].size <= DIRECT_SIZE
        response = Direct.of(self._without_edge).solve(right).value if small else solve_columns(self._solver, right)
        covariance = improved(response, right, self._without_edge, self.first, self.second)
        if not self.part.hub.any() or not self.near.is_closed:
            return covariance
        added = None if common is None else common.within(response.sum(axis=0), np.diag(covariance))
        return None if added is None else covariance + added

    def _follow(self, found: np.ndarray, models: np.ndarray, far: FarAway) -> np.ndarray:
        """B_N'⁻¹(1 ⊗ Hm), shape (k, p), given δ while the common model is held.

        All tasks follow the common model, so no edge to another task holds one of these back.
        """
        system = self._without_edge
        free = FewSolves(replace(system, ridge=system.ridge - self.near.outside[:, None] * system.coupling))
        responses = []
        for k in far.felt:
            pulled = np.zeros_like(found)
            pulled[:, k] = self.part.hub[k]
            responses.append(free.solve(pulled, tol=_NEAR_TOL))
        across = np.array([self._across(column) for column in far.common])
        apart = np.array([each[self.first] - each[self.second] for each in responses])
        moved = np.linalg.solve(
            np.eye(len(far.felt)) - across @ (self._weight * apart).T, across @ self._moved(found, models)
        )
        return np.tensordot(moved, responses, axes=1)

    def _across(self, values: np.ndarray) -> np.ndarray:
        """v_i − v_j of values of all tasks."""
        i, j = self.near.tasks[[self.first, self.second]]
        return values[i] - values[j]

    def _moved(self, change: np.ndarray, models: np.ndarray) -> np.ndarray:
        """w(u + δ_i − δ_j)."""
        after = models + change
        return self._weight * (after[self.first] - after[self.second])

    @cached_property
    def _weight(self) -> np.ndarray:
        edge = edge_between(self.part.edges, self.first, self.second)
        return self.part.edge_weights[edge].sum() * self.part.coupling

    @cached_property
    def _without_edge(self) -> TaskSystem:
        """A' on these tasks, all others and the common model held."""
        edge = edge_between(self.part.edges, self.first, self.second)
        return self.near.held(replace(self.part, edge_weights=np.where(edge, 0.0, self.part.edge_weights)))

    @cached_property
    def _solver(self) -> FewSolves:
        return FewSolves(self._without_edge)
