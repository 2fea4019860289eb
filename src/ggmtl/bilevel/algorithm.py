"""Algorithm 1 of the paper: candidate edges, edge values by the loss on held-out rows, models refitted on all rows.

    e ← P(e − ν d_e F(V(e), e))          (Eq. 6, with the sign that descends; P projects on the box [0, 1])

The loop is an optimiser from :mod:`ggmtl.bilevel.optimizers`; ``edge_solver="projected_gradient"`` is the paper's.
Extensions of ours: several hold-outs instead of one, learned strengths, a path over γ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ggmtl.bilevel.closed_form import closed_form_edges
from ggmtl.bilevel.level import GraphFit, Settings, refit
from ggmtl.bilevel.objective import FINE, ValidationObjective, first_strengths
from ggmtl.bilevel.optimizers import (
    Box,
    Optimum,
    projected_gradient,
    quasi_newton,
    reached_so_far,
    recorded,
    trial_steps,
)
from ggmtl.bilevel.problem import HoldOut
from ggmtl.errors import ParameterError
from ggmtl.graph.candidates import CandidateEdges, cross_fit
from ggmtl.runtime.journal import Journal
from ggmtl.statistics.least_squares import FoldedLoss, LeastSquares

EDGE_SOLVERS = ("quasi_newton", "projected_gradient", "closed_form")
# Accuracy of linear solves until the first stage has converged; the last stage is accurate to FINE.
_ROUGH = 1e-4


def learn_by_validation(
    folded: FoldedLoss,
    settings: Settings,
    task_names: np.ndarray,
    hub_start: np.ndarray,
    models: Callable[[LeastSquares], np.ndarray],
    entropies: Sequence[float] = (),
    journal: Journal | None = None,
) -> list[GraphFit]:
    """Edge values, and strengths that are not given, with the smallest loss on held-out rows (Algorithm 1).

    Parameters
    ----------
    folded : FoldedLoss
        Rows; each scored fold is held out once.
    settings : Settings
    task_names : array of shape (n,)
    hub_start : array of shape (p,)
        Where the search for the hub's strength starts; zeros for no hub.
    models : callable
        First models from a loss, whose near neighbours become candidates.
    entropies : sequence of float
        Values of γ in units of the outer loss per candidate edge, each started from the solution before; by default
        only the γ of ``settings.sparsity``, in its own units.
    journal : Journal, optional
        Records candidates and steps, from which a stopped fit continues. Its note ``"graphs"`` makes the graphs
        reached so far.
    """
    journal = journal or Journal()
    scored = folded.scored
    if not scored:
        raise ParameterError(
            'criterion="validation" needs rows to validate on, but the statistics were collected without folds. '
            'Collect them with folds=, or use criterion="evidence".'
        )
    # 1. Models on each training part; their nearest neighbours are the candidate edges.
    trainings = [folded.training(k) for k in scored]
    candidates, masks = journal.once(
        "candidates", lambda: cross_fit(settings.candidates, [models(loss) for loss in trainings], task_names)
    )
    # 2. The outer problem on the rows held out.
    strengths = first_strengths(settings, candidates, hub_start, folded.total)
    hold_outs = [
        HoldOut(
            settings.problem(loss, candidates.edges, strengths.coupling, strengths.hub),
            folded.parts[k],
            mask,
            settings.hypergradient,
        )
        for k, loss, mask in zip(scored, trainings, masks)
    ]
    objective = ValidationObjective(hold_outs, strengths, settings.sparsity, len(candidates.edges))
    unit = objective.start(candidates) / max(len(candidates.edges), 1)
    if settings.coupling is None:
        unit = objective.settle_coupling(candidates, settings, journal) / max(len(candidates.edges), 1)
    # 3. Minimise over the edge values. 4. Refit the models on all rows.
    search = _Search(objective, candidates, folded.total, settings)
    fits: list[GraphFit] = []
    start = None
    for level, sparsity in enumerate(
        [replace(settings.sparsity, edge_entropy=entropy * unit) for entropy in entropies] or [settings.sparsity]
    ):
        objective.sparsity = sparsity
        inside = journal.inside(f"level {level}")
        journal.note("graphs", partial(search.graphs_so_far, tuple(fits), inside))
        optimum = journal.once(f"level {level}", partial(search.optimum, start, inside))
        start = optimum.x
        fits.append(search.finished(optimum))
    return fits


@dataclass(frozen=True)
class _Search:
    """Steps 3 and 4: the edge values that minimise the objective, and the refit on all rows."""

    objective: ValidationObjective
    candidates: CandidateEdges
    loss: LeastSquares
    settings: Settings

    def finished(self, optimum: Optimum) -> GraphFit:
        """The graph of an optimum, with models refitted on all rows."""
        objective, m = self.objective, self.objective.n_edges
        coupling, hub = objective.strengths.at(optimum.x[m:])
        fit = GraphFit(
            "graph",
            self.candidates.edges,
            optimum.x[:m],
            coupling,
            hub,
            np.empty(0),
            optimum.value * objective.scale,
            optimum.iterations,
            optimum.status,
            optimum.certificate,
            tuple(value * objective.scale for value in optimum.history),
        )
        return refit(fit, self.loss, self.settings)

    def graphs_so_far(self, fits: Sequence[GraphFit], journal: Journal) -> list[GraphFit]:
        """Finished graphs and the one in progress, densest last."""
        reached = reached_so_far(journal, "fine") or reached_so_far(journal, "rough")
        return [*([] if reached is None else [self.finished(reached)]), *reversed(fits)]

    def optimum(self, start: np.ndarray | None, journal: Journal) -> Optimum:
        """Minimise the objective; where models are many, first with rough solves."""
        objective, settings = self.objective, self.settings
        lower, upper = objective.strengths.bounds(objective.rows_per_task)
        fixed = self.candidates.fixed
        box = Box(np.concatenate([fixed.astype(float), lower]), np.concatenate([np.ones(len(fixed)), upper]))
        start = box.project(objective.first_point(self.candidates) if start is None else start)
        objective.accuracy = FINE
        first, rough_steps = objective(start)[0], 0
        # Steps of a given length may raise the objective, so those of rough solves could not be judged.
        if settings.step is None and self.loss.n_tasks * self.loss.n_features > settings.sizes.rough_first:
            objective.accuracy = _ROUGH
            rough = self._run(start, box, 0, journal)
            objective.accuracy = FINE
            # Rough solves may mislead where the loss is tiny, so their result must hold at full accuracy.
            if objective(rough.x)[0] < first:
                start, rough_steps = rough.x, rough.iterations
        fine = self._run(start, box, rough_steps, journal)
        # Values from rough solves are not comparable, so the history has the start and the last stage only.
        history = (first, *fine.history) if rough_steps else fine.history
        return replace(fine, iterations=rough_steps + fine.iterations, history=history)

    def _run(self, start: np.ndarray, box: Box, done: int, journal: Journal) -> Optimum:
        """One stage. The accuracy of the solves also limits the tolerance that the gradient can certify."""
        objective, settings = self.objective, self.settings
        rough = objective.accuracy != FINE
        optimiser = _OPTIMISERS[settings.edge_solver]
        if settings.step is not None:
            # The objective is F divided by its scale, and so is its gradient.
            optimiser = partial(optimiser, step=settings.step * objective.scale)
        return recorded(
            optimiser,
            objective,
            start,
            box,
            max_iter=max(settings.max_iter - done, 1),
            tol=max(settings.tol, 10.0 * objective.accuracy) if rough else settings.tol,
            journal=journal,
            name="rough" if rough else "fine",
        )


def _closed_form(objective: ValidationObjective, start: np.ndarray, box: Box, **options: Any) -> Optimum:
    """The edges of Theorem 2 as trial steps."""
    return trial_steps(objective, partial(closed_form_edges, objective), start, box, **options)


_OPTIMISERS = {"quasi_newton": quasi_newton, "projected_gradient": projected_gradient, "closed_form": _closed_form}
