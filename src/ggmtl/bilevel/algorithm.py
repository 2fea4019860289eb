"""The graph that predicts held-out rows best: the paper's bilevel program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ggmtl.bilevel.closed_form import closed_form_edges
from ggmtl.bilevel.level import GraphFit, Settings, refit
from ggmtl.bilevel.optimizers import (
    Box,
    Optimum,
    projected_gradient,
    quasi_newton,
    reached_so_far,
    recorded,
    trial_steps,
)
from ggmtl.bilevel.problem import Evaluation, HoldOut, WarmStart, evaluate_folds
from ggmtl.bilevel.sparsity import Sparsity
from ggmtl.errors import ParameterError
from ggmtl.graph.candidates import CandidateEdges, cross_fit
from ggmtl.runtime.journal import Journal
from ggmtl.statistics.least_squares import FoldedLoss, LeastSquares

EDGE_SOLVERS = ("quasi_newton", "projected_gradient", "closed_form")
# Strengths are searched over this many e-folds on either side of their start, and not beyond so many times the mean
# number of rows of a task: there, tasks are one to working accuracy, and the system of the models nearly singular.
_STRENGTH_RANGE, _STRONGEST = 14.0, 1e7
# Linear solves follow the outer progress: rough until that stage has converged, then fine.
_ROUGH, _FINE = 1e-4, 1e-8
_START = 0.5
# How many times what all candidates carry together a graph of n edges may carry. Ten times as much finds clusters yet
# better, but follows chance where there is no structure.
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
    """F(e, log strengths) over all hold-out parts, divided by its value at the start.

    The one object here with a memory: optimisers know nothing of models, so the models of the last point, which
    start the solves of the next, are kept where the two meet.
    """

    def __init__(self, parts: Sequence[HoldOut], strengths: Strengths, sparsity: Sparsity, n_edges: int):
        self.parts, self.strengths, self.sparsity, self.n_edges = parts, strengths, sparsity, n_edges
        self.scale, self.first_value = 1.0, _START
        self.accuracy = _FINE
        self._warm: list[WarmStart] | None = None

    @property
    def rows_per_task(self) -> float:
        """Mean number of training rows of a task, at least one."""
        return max(float(self.parts[0].problem.loss.count.mean()), 1.0)

    def start(self, candidates: CandidateEdges) -> float:
        """Set the scale to the outer loss at the start, and return it."""
        loss = sum(part.value for part in self.evaluations(self.first_point(candidates)))
        self.scale = max(loss, np.finfo(float).tiny)
        return self.scale

    def first_point(self, candidates: CandidateEdges) -> np.ndarray:
        """All edges alike, strengths as they are."""
        return np.append(np.where(candidates.fixed, 1.0, self.first_value), np.zeros(self.strengths.size))

    def settle_coupling(self, candidates: CandidateEdges, settings: Settings, journal: Journal) -> float:
        """Learn λ and the hub for the uniform graph, then hold λ, and return the new scale.

        Only w = λe matters, so λ and e cannot both be free. Wrong candidates keep the strength of the uniform graph
        low, so λ is set such that a graph of n edges could carry many times what all candidates carry together.
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
        room = max(m / len(self.parts[0].problem.loss.gram), 2.0) * (_ROOM if settings.penalty == "squared_l2" else 1.0)
        held = np.full(len(coupling), -1)
        free = np.where(self.strengths.hub_group >= 0, self.strengths.hub_group - self.strengths.hub_group.min(), -1)
        self.strengths = Strengths(coupling * self.first_value * room, hub, held, free if settings.hub else held)
        self.first_value = 1.0 / room
        return self.start(candidates)

    def evaluations(self, x: np.ndarray) -> list[Evaluation]:
        """Every part's outer loss and derivatives at x; the models found start the next evaluation."""
        coupling, hub = self.strengths.at(x[self.n_edges :])
        result = evaluate_folds(self.parts, x[: self.n_edges], coupling, hub, warm=self._warm, tol=self.accuracy)
        self._warm = [part.warm for part in result]
        return result

    def __call__(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """Value and gradient."""
        parts = self.evaluations(x)
        coupling, hub = self.strengths.at(x[self.n_edges :])
        value, gradient = self.sparsity.value_and_gradient(x[: self.n_edges])
        value += sum(part.value for part in parts)
        edges = gradient + np.sum([part.edges for part in parts], axis=0)
        slopes = (np.sum([part.coupling for part in parts], axis=0), np.sum([part.hub for part in parts], axis=0))
        strengths = self.strengths.chain(*slopes, coupling, hub)
        return value / self.scale, np.concatenate([edges, strengths]) / self.scale


def learn_by_validation(
    folded: FoldedLoss,
    settings: Settings,
    task_names: np.ndarray,
    hub_start: np.ndarray,
    models: Callable[[LeastSquares], np.ndarray],
    entropies: Sequence[float] = (),
    progress: Callable[[int, float], None] | None = None,
    journal: Journal | None = None,
) -> list[GraphFit]:
    """The paper's bilevel program: edges (and strengths not given) that predict the held-out rows best.

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
        Levels of γ to walk through, each started from the one before, in units of the outer loss per candidate
        edge; by default only the γ of ``settings.sparsity``, taken as it is.
    progress : callable, optional
        Called with (iteration, objective).
    journal : Journal, optional
        Where candidates and steps are recorded, and taken up again. Its note ``"graphs"`` makes the graphs so far.
    """
    journal = journal or Journal()
    scored = folded.scored
    if not scored:
        raise ParameterError(
            'criterion="validation" needs rows to validate on, but the statistics were collected without folds. '
            'Collect them with folds=, or use criterion="evidence".'
        )
    trainings = [folded.training(k) for k in scored]
    candidates, masks = journal.once(
        "candidates", lambda: cross_fit(settings.candidates, [models(loss) for loss in trainings], task_names)
    )
    strengths = _first_strengths(settings, candidates, hub_start, folded.total)
    parts = [
        HoldOut(
            settings.problem(loss, candidates.edges, strengths.coupling, strengths.hub),
            folded.parts[k],
            mask,
            settings.hypergradient,
        )
        for k, loss, mask in zip(scored, trainings, masks)
    ]
    objective = ValidationObjective(parts, strengths, settings.sparsity, len(candidates.edges))
    unit = objective.start(candidates) / max(len(candidates.edges), 1)
    if settings.coupling is None:
        unit = objective.settle_coupling(candidates, settings, journal) / max(len(candidates.edges), 1)
    fits: list[GraphFit] = []
    start = None
    for level, sparsity in enumerate(
        [replace(settings.sparsity, edge_entropy=entropy * unit) for entropy in entropies] or [settings.sparsity]
    ):
        objective.sparsity = sparsity
        inside = journal.inside(f"level {level}")
        finish = partial(_finish, objective=objective, candidates=candidates, loss=folded.total, settings=settings)
        journal.note("graphs", partial(_graphs_so_far, tuple(fits), inside, finish))
        optimise = partial(_optimise, objective, candidates, settings, start, progress, inside)
        optimum = journal.once(f"level {level}", optimise)
        start = optimum.x
        fits.append(finish(optimum))
    return fits


def _finish(
    optimum: Optimum,
    objective: ValidationObjective,
    candidates: CandidateEdges,
    loss: LeastSquares,
    settings: Settings,
) -> GraphFit:
    return refit(_as_fit(optimum, objective, candidates), loss, settings)


def _graphs_so_far(fits: Sequence[GraphFit], journal: Journal, finish: Callable[[Optimum], GraphFit]) -> list[GraphFit]:
    """Finished graphs and the one in progress, densest last."""
    reached = reached_so_far(journal, "fine") or reached_so_far(journal, "rough")
    return [*([] if reached is None else [finish(reached)]), *reversed(fits)]


def _as_fit(optimum: Optimum, objective: ValidationObjective, candidates: CandidateEdges) -> GraphFit:
    m = objective.n_edges
    coupling, hub = objective.strengths.at(optimum.x[m:])
    return GraphFit(
        "graph",
        candidates.edges,
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


def _first_strengths(
    settings: Settings, candidates: CandidateEdges, hub_start: np.ndarray, loss: LeastSquares
) -> Strengths:
    """Where the search starts: together, the edges pull as hard as the hub does."""
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


def _optimise(
    objective: ValidationObjective,
    candidates: CandidateEdges,
    settings: Settings,
    start: np.ndarray | None,
    progress: Callable[[int, float], None] | None,
    journal: Journal,
) -> Optimum:
    lower, upper = objective.strengths.bounds(objective.rows_per_task)
    box = Box(
        np.concatenate([candidates.fixed.astype(float), lower]),
        np.concatenate([np.ones(len(candidates.edges)), upper]),
    )
    start = box.project(objective.first_point(candidates) if start is None else start)
    objective.accuracy = _FINE
    first, rough_steps = objective(start)[0], 0
    loss = objective.parts[0].problem.loss
    # Steps of a given length may raise the objective, so those of rough solves could not be judged.
    if settings.step is None and loss.n_tasks * loss.n_features > settings.sizes.rough_first:
        objective.accuracy = _ROUGH
        rough = _run(objective, start, box, settings, 0, progress, journal)
        objective.accuracy = _FINE
        # Where the loss itself is tiny, rough solves may mislead; what they found must stand at full accuracy.
        if objective(rough.x)[0] < first:
            start, rough_steps = rough.x, rough.iterations
    fine = _run(objective, start, box, settings, rough_steps, progress, journal)
    # Values from rough solves are not comparable: the history has the start and the last stage, at full accuracy.
    history = (first, *fine.history) if rough_steps else fine.history
    return replace(fine, iterations=rough_steps + fine.iterations, history=history)


def _run(
    objective: ValidationObjective,
    start: np.ndarray,
    box: Box,
    settings: Settings,
    done: int,
    progress: Callable[[int, float], None] | None,
    journal: Journal,
) -> Optimum:
    """One stage at the objective's accuracy, which also bounds what its gradient can certify."""

    def report(iteration: int, value: float, _: np.ndarray) -> None:
        if progress and iteration:
            progress(done + iteration, value * objective.scale)

    rough = objective.accuracy != _FINE
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
        progress=report,
    )


def _closed_form(objective: ValidationObjective, start: np.ndarray, box: Box, **options: Any) -> Optimum:
    """The theorem's edges as trial steps."""
    return trial_steps(objective, partial(closed_form_edges, objective), start, box, **options)


_OPTIMISERS = {
    "quasi_newton": quasi_newton,
    "projected_gradient": projected_gradient,
    "closed_form": _closed_form,
}
