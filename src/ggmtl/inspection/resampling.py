"""Resamples of the rows, and the graph that each of them gives.

The rows of every task are dealt once into small blocks. A bootstrap resample draws, per task, as many blocks as there
are, with replacement; its statistics are a weighted sum of the blocks' statistics, so no row is read twice. With the
validation criterion, strengths are held at the fitted ones and the edges relearned from where the fit left them; with
evidence, the edges are learned again from the hub, whose strength is held, among the candidates of the fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ggmtl.bilevel.level import GraphFit, Settings
from ggmtl.bilevel.optimizers import Box, quasi_newton
from ggmtl.bilevel.problem import HoldOut, Sparsity, evaluate_folds, outer_value
from ggmtl.data.folds import deal_folds
from ggmtl.data.reading import read_training
from ggmtl.errors import InputError
from ggmtl.evidence.search import densest, learn_by_evidence
from ggmtl.fit.held_out import reported_graph
from ggmtl.fit.levels import candidate_models, hub_level
from ggmtl.fit.state import outcome_of
from ggmtl.graph.candidates import CandidateEdges, cross_fit
from ggmtl.graph.task_graph import TaskGraph
from ggmtl.inspection.metrics import edges_of_all
from ggmtl.losses.rowwise import LOSSES
from ggmtl.runtime.machine import one_blas_thread
from ggmtl.statistics.least_squares import FoldedLoss, LeastSquares
from ggmtl.statistics.task_statistics import TaskStatistics

if TYPE_CHECKING:
    from ggmtl.estimators.classifier import GGMTLClassifier
    from ggmtl.estimators.regressor import GGMTLRegressor

_BLOCKS = 20
# Outer steps per resample: the edges start where the fit left them.
_STEPS = 15


@dataclass(frozen=True)
class Plan:
    """What all resamples share.

    Parameters
    ----------
    start : GraphFit
        The fitted graph on the candidate edges.
    settings : Settings
    sparsity : Sparsity
        Of the outer problem at the fit.
    fixed : array of bool, shape (m,)
        Edges that must be there.
    masks : list of arrays of bool
        Per held-out fold, the edges that its training rows propose.
    fold : array of shape (blocks,)
        Fold of each block.
    first_scored : int
    hub : GraphFit, optional
        Where evidence is the criterion: the hub without edges, from which it starts.
    """

    start: GraphFit
    settings: Settings
    sparsity: Sparsity
    fixed: np.ndarray
    masks: list[np.ndarray]
    fold: np.ndarray
    first_scored: int
    hub: GraphFit | None = None


# ---------------------------------------------------------------------- blocks


def blocks_of(
    model: Any, X: Any, y: Any, tasks: Any, sample_weight: Any = None, groups: Any = None
) -> tuple[list[LeastSquares], int]:
    """The scaled loss of every block of rows."""
    check_is_fitted(model, "coef_")
    data = read_training(
        X, y, tasks, task=model.task, sample_weight=sample_weight, groups=groups, estimator=type(model).__name__
    )
    if not np.array_equal(data.task_names, model.tasks_):
        raise InputError("edge_stability needs rows of exactly the tasks that the model was fitted on.")
    data = model.state_.expanded(data, type(model).__name__)
    seed = 0 if model.random_state is None else int(model.random_state)
    statistics = TaskStatistics.from_data(data, deal_folds(data, _BLOCKS, seed))
    fit = model.state_.level
    parts = [fit.weighed(block) for block in model.scaling_.design(statistics)]
    return [part if fit.columns is None else part.of_columns(fit.columns) for part in parts], seed


def blocks_of_outcome(model: GGMTLClassifier | GGMTLRegressor) -> tuple[list[LeastSquares], int]:
    """Working sums of every block of the rows that a model of classes or counts keeps, at its models."""
    state, seed = model.state_, 0 if model.random_state is None else int(model.random_state)
    rows, outcome = state.rows_of_outcome("edge_stability").rows, outcome_of(state)
    shuffled = np.lexsort((np.random.default_rng(seed).random(len(rows.task)), rows.task))
    block = np.empty(len(rows.task), dtype=np.int64)
    first = np.searchsorted(rows.task, np.arange(rows.n_tasks))
    block[shuffled] = (np.arange(len(block)) - first[rows.task]) % _BLOCKS
    loss = LOSSES[outcome.loss]
    sums = [
        rows.take(block == k).working_sums(loss, state.coefficients, outcome.dispersion)
        for k in range(int(block.max()) + 1)
    ]
    return sums, seed


def draw(blocks: Sequence[LeastSquares], random: np.random.Generator) -> np.ndarray:
    """How often each block of each task is drawn, shape (blocks, n); as many draws as a task has blocks."""
    filled = np.array([block.count > 0 for block in blocks]).T
    number = filled.sum(axis=1)
    return random.multinomial(number, filled / number[:, None]).T.astype(float)


def weighted(blocks: Sequence[LeastSquares], weights: np.ndarray) -> LeastSquares:
    """Σ_b weight_b · block_b, weights of shape (blocks, n)."""
    first = blocks[0]
    total = [np.zeros_like(part) for part in (first.gram, first.moment, first.target_square, first.count)]
    for weight, block in zip(weights, blocks):
        if not weight.any():
            continue
        for out, part in zip(total, (block.gram, block.moment, block.target_square, block.count)):
            out += (part.T * weight).T
    return LeastSquares(total[0], total[1], total[2], total[3], first.noise)


def _folded(plan: Plan, blocks: Sequence[LeastSquares], weights: np.ndarray) -> FoldedLoss:
    folds = range(int(plan.fold.max()) + 1)
    parts = tuple(weighted(blocks, np.where(plan.fold[:, None] == k, weights, 0.0)) for k in folds)
    return FoldedLoss(parts, plan.first_scored)


# ---------------------------------------------------------------------- what resamples share


@one_blas_thread()
def plan_of(model: Any, blocks: list[LeastSquares]) -> Plan:
    """What all resamples of these blocks share."""
    settings, fit = model.state_.settings, model.state_.level
    if fit.columns is not None:
        settings, fit = settings.of_columns(fit.columns), fit.on_its_columns()
    fit = replace(fit.centred, reported_weights=None)
    folds, first_scored = _folds_of_blocks(model)
    # Few rows fill fewer blocks.
    folds = folds[: len(blocks)]
    plan = Plan(fit, settings, settings.sparsity, np.zeros(0, dtype=bool), [], folds, first_scored)
    folded = _folded(plan, blocks, np.ones((len(blocks), len(model.tasks_))))
    if model.criterion_ == "evidence":
        hub = hub_level(folded.total, settings)
        proposed = settings.candidates.propose(candidate_models(folded.total, settings, hub), model.tasks_)
        # Edges that a level of the fit has used are candidates, too.
        used = (level.edges for level in model.state_.family.levels.values())
        edges, (position, *_) = edges_of_all(len(model.tasks_), proposed.edges, *used)
        fixed = np.zeros(len(edges), dtype=bool)
        fixed[position] = proposed.fixed
        return replace(plan, start=replace(fit, edges=edges), fixed=fixed, hub=hub)
    if not np.isfinite(fit.hub).all() or not (fit.coupling > 0).any():
        # No edge has a strength, so there is none to learn again.
        return replace(plan, start=replace(fit, edges=fit.edges[:0], edge_values=fit.edge_values[:0]))
    models = [candidate_models(folded.training(k), settings) for k in folded.scored]
    proposed, masks = cross_fit(settings.candidates, models, model.tasks_)
    edges, (own, new) = edges_of_all(len(model.tasks_), fit.edges, proposed.edges)
    values, fixed = np.zeros(len(edges)), np.zeros(len(edges), dtype=bool)
    values[own], fixed[new] = fit.edge_values, proposed.fixed
    plan = replace(plan, start=replace(fit, edges=edges, edge_values=values), fixed=fixed)
    plan = replace(plan, masks=[_spread(mask, new, len(edges)) for mask in masks])
    return replace(plan, sparsity=_sparsity_at(plan, folded))


def _folds_of_blocks(model: GGMTLRegressor) -> tuple[np.ndarray, int]:
    if model.state_.form.scored_from and not hasattr(model.validation, "split"):
        held = max(1, round(float(model.validation) * _BLOCKS))
        return (np.arange(_BLOCKS) < held).astype(np.int64), 1
    statistics = model.state_.statistics
    number = statistics.n_folds if statistics is not None and statistics.n_folds > 1 else 5
    return np.arange(_BLOCKS) % min(number, _BLOCKS), 0


def _spread(mask: np.ndarray | None, position: np.ndarray, n_edges: int) -> np.ndarray:
    out = np.zeros(n_edges, dtype=bool)
    out[position] = True if mask is None else mask
    return out


def _sparsity_at(plan: Plan, folded: FoldedLoss) -> Sparsity:
    """The entropy weight γ at which the fit is stationary: ∂loss/∂e + ξe + η = γ ln e on its free edges."""
    sparsity = plan.settings.sparsity
    free = (plan.start.edge_values > 1e-4) & (plan.start.edge_values < 1 - 1e-4)
    if sparsity.edge_entropy or not free.any():
        return sparsity
    e = plan.start.edge_values
    parts = evaluate_folds(_hold_outs(plan, folded), e, tol=1e-6)
    slope = np.sum([part.edges for part in parts], axis=0) + sparsity.value_and_gradient(e)[1]
    log = np.log(e[free])
    gamma = float(slope[free] @ log / (log @ log))
    return replace(sparsity, edge_entropy=max(gamma, 0.0))


def _hold_outs(plan: Plan, folded: FoldedLoss) -> list[HoldOut]:
    start, settings = plan.start, plan.settings
    return [
        HoldOut(
            settings.problem(folded.training(k), start.edges, start.coupling, start.hub),
            folded.parts[k],
            mask,
            settings.hypergradient,
        )
        for k, mask in zip(folded.scored, plan.masks)
    ]


# ---------------------------------------------------------------------- one resample


@one_blas_thread()
def resample(plan: Plan, blocks: list[LeastSquares], weights: np.ndarray) -> TaskGraph:
    """The graph that a resample would have reported."""
    names = np.arange(weights.shape[1])
    if not len(plan.start.edges):
        return TaskGraph.empty(names)
    if plan.hub is not None:
        candidates = CandidateEdges(plan.start.edges, plan.fixed)
        graphs = learn_by_evidence(weighted(blocks, weights), plan.settings, lambda *_: candidates, plan.hub)
        fit = next((graph for graph in graphs if graph.search == plan.start.search), densest(graphs))
    else:
        values = _relearn_by_validation(plan, _folded(plan, blocks, weights))
        fit = replace(plan.start, edge_values=values)
    return reported_graph(fit, names, plan.settings.slopes)


def _relearn_by_validation(plan: Plan, folded: FoldedLoss) -> np.ndarray:
    """Minimise F over e, strengths held."""
    parts = _hold_outs(plan, folded)
    scale = max(sum(part.validation.value(np.zeros_like(part.validation.moment)) for part in parts), 1e-300)
    warm = None

    def objective(e: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal warm
        warm = evaluate_folds(parts, e, warm=warm, tol=1e-6)
        outer = outer_value(warm, plan.sparsity, e)
        return outer.value / scale, outer.edges / scale

    box = Box(plan.fixed.astype(float), np.ones(len(plan.fixed)))
    proposed, values = np.any(plan.masks, axis=0), plan.start.edge_values
    typical = float(np.median(values[values > 0])) if values.any() else 0.5
    # The entropy's slope at zero is infinite, so that an edge at zero stays there: start inside instead.
    start = np.where(proposed, np.maximum(values, 0.1 * typical), 0.0)
    found = quasi_newton(objective, box.project(start), box, max_iter=_STEPS, tol=plan.settings.tol)
    return np.where(proposed, found.x, 0.0)
