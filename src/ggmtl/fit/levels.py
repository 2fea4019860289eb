"""Learn all levels on given rows: one model for all, shared model and its variants, graphs, separate models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ggmtl.bilevel.algorithm import learn_by_validation
from ggmtl.bilevel.level import NEGLIGIBLE_RIDGE, OTHER_NOISE, GraphFit, Settings, TaskMeans, refit
from ggmtl.data.task_terms import KnownTasks
from ggmtl.evidence.correlated import correlated_models
from ggmtl.evidence.hub import hub_evidence
from ggmtl.evidence.hub_strengths import learn_hub_by_feature, learn_hub_of_slopes, sample_of_tasks
from ggmtl.evidence.search import learn_by_evidence
from ggmtl.evidence.search_l1 import learn_by_coordinates
from ggmtl.evidence.separate import separate_ridges
from ggmtl.evidence.task_means import learn_means
from ggmtl.evidence.task_noise import task_precisions
from ggmtl.fit.family import by_name, last_graph
from ggmtl.graph.candidates import CandidateEdges, search_for
from ggmtl.runtime.journal import Journal
from ggmtl.statistics.least_squares import FoldedLoss, LeastSquares

# Values of the entropy weight γ that are tried, in units of the outer loss per candidate edge.
ENTROPY_LEVELS = (0.0, 0.03, 0.1, 0.3)
# Name of the hub with correlated deviations of the coefficients.
CORRELATED = "hub, correlated"


def learn_levels(
    folded: FoldedLoss,
    settings: Settings,
    task_names: np.ndarray,
    criterion: str,
    choose_entropy: bool,
    journal: Journal | None = None,
    start: Mapping[str, GraphFit] | None = None,
    with_graphs_too: bool = True,
    skipped: frozenset[str] = frozenset(),
) -> dict[str, GraphFit]:
    """All levels on the given rows by name, simplest first.

    `start` are levels learned on most of these rows, from which very many tasks continue. `skipped` are kinds of
    search for graphs that are left out.
    """
    journal = journal or Journal()
    total, precisions = folded.total, None
    if len(task_names) == 1:
        return {"independent": independent_level(total, settings)}
    simple = journal.once("simple", lambda: simple_levels(total, settings, start))
    if settings.noise == "per_task" or settings.both_noises:
        hub = journal.once("weighed", lambda: reweighted_hub(total, settings, simple.get("hub")))
        others = journal.once("others", lambda: _reweighted_variants(total, settings, simple, hub))
        simple, precisions = _with_both_noises(simple, {"hub": hub, **others}, settings)
        if precisions is not None:
            folded, total = folded.weighted(precisions), total.weighted(precisions)
    known, means = settings.known, None
    if known is not None:
        described = journal.once("described", lambda: described_level(total, settings, known, simple["hub"].hub))
        simple = simple | {"described": replace(_with_equal_constants(described, settings), precisions=precisions)}
        means = described.means
    if means is not None:
        # Graphs link deviations from the mean that task features predict.
        folded, total = folded.shifted(means.models), total.shifted(means.models)
    if not with_graphs_too:
        return with_graphs(simple, ())
    if criterion == "evidence":
        first = None if start is None else start[last_graph(start)].centred
        shared = simple["hub" if means is None else "described"].centred
        graphs = _by_evidence(total, settings, task_names, shared, journal, first, skipped)
    else:
        graphs = learn_by_validation(
            folded,
            settings,
            task_names,
            simple["hub" if means is None else "described"].hub if settings.hub else np.zeros(total.n_features),
            partial(candidate_models, settings=settings),
            ENTROPY_LEVELS if choose_entropy else (),
            journal,
        )[:: -1 if choose_entropy else 1]
    graphs = [replace(fit, precisions=precisions, means=means).with_deviations(fit.coefficients) for fit in graphs]
    graphs = [_with_equal_constants(fit, settings) for fit in graphs]
    if criterion == "validation" and not choose_entropy:
        return by_name(graphs)
    return with_graphs(simple, graphs)


def _with_both_noises(
    simple: Mapping[str, GraphFit], reweighted: Mapping[str, GraphFit], settings: Settings
) -> tuple[dict[str, GraphFit], np.ndarray | None]:
    """The simple levels under the noise model of the settings, and the precisions of the tasks' rows, shape (n,).

    The precisions are None if all rows have the same weight. With ``settings.both_noises``, the variants of the hub
    under the other noise model are further levels.
    """
    own = settings.noise == "per_task"
    if not settings.hub:
        return dict(simple), reweighted["hub"].precisions if own else None
    out: dict[str, GraphFit] = {}
    for name, level in simple.items():
        first, other = level, reweighted.get(name)
        if own and other is not None:
            first, other = other, level
        out[name] = first
        if settings.both_noises and other is not None and name != "hub":
            out[name + OTHER_NOISE] = replace(other, name=name + OTHER_NOISE)
    return out, reweighted["hub"].precisions if own else None


def _by_evidence(
    total: LeastSquares,
    settings: Settings,
    task_names: np.ndarray,
    hub: GraphFit,
    journal: Journal,
    start: GraphFit | None,
    skipped: frozenset[str],
) -> Sequence[GraphFit]:
    root = covariance_root(total)

    def propose(models: np.ndarray, near: np.ndarray | None = None, order: np.ndarray | None = None) -> CandidateEdges:
        names = task_names if order is None else task_names[order]
        return settings.candidates.propose(models @ root, names, near, search_for(total))

    if settings.penalty == "l1":
        return learn_by_coordinates(total, settings, propose, hub, journal=journal, start=start)
    return learn_by_evidence(total, settings, propose, hub, journal=journal, start=start, skipped=skipped)


def with_graphs(simple: Mapping[str, GraphFit], graphs: Iterable[GraphFit]) -> dict[str, GraphFit]:
    """The simple levels and the graphs; independent models stay last."""
    common = [fit for name, fit in simple.items() if name != "independent"]
    return by_name([*common, *graphs, simple["independent"]])


def learn_pooled(folded: FoldedLoss, settings: Settings, **_: object) -> dict[str, GraphFit]:
    """One model for all tasks: the only level if no task has two rows."""
    return {"pooled": pooled_level(folded.total, settings)}


def simple_levels(
    loss: LeastSquares, settings: Settings, start: Mapping[str, GraphFit] | None = None
) -> dict[str, GraphFit]:
    """The levels without edges: pooled, hub, own intercepts, correlated deviations, and independent models.

    Without a hub in the settings, only independent models. `start` are levels of very many tasks that were learned on
    most of the rows; their strengths are kept.
    """
    levels = (
        [pooled_level(loss, settings), hub_level(loss, settings, start["hub"] if start else None)]
        if settings.hub
        else []
    )
    if levels and settings.varying.any() and not settings.slopes.all():
        levels.append(intercept_level(loss, settings, levels[1].hub, start["intercepts"] if start else None))
    shrunk = settings.ridge <= NEGLIGIBLE_RIDGE
    if levels and settings.blend and shrunk and not settings.sizes.is_large(loss.n_tasks, loss.n_features):
        levels.append(correlated_level(loss, settings, levels[1].hub))
    return by_name([*(_with_equal_constants(fit, settings) for fit in levels), independent_level(loss, settings)])


def _with_equal_constants(fit: GraphFit, settings: Settings) -> GraphFit:
    """The fit with exactly equal coefficients in all tasks for columns that are constant within tasks."""
    if not len(settings.constant) or not settings.constant.any():
        return fit
    models = fit.coefficients.copy()
    models[:, settings.constant] = models[:, settings.constant].mean(axis=0)
    return replace(fit, coefficients=models)


def pooled_level(loss: LeastSquares, settings: Settings) -> GraphFit:
    """One model for all tasks, which is a hub of infinite strength."""
    gram, moment = loss.pooled()
    model = np.linalg.lstsq(gram + np.diag(np.where(settings.slopes, settings.ridge, 0.0)), moment, rcond=None)[0]
    coefficients = np.tile(model, (loss.n_tasks, 1))
    return _without_edges("pooled", loss, settings, np.full(len(model), np.inf), coefficients)


def independent_level(loss: LeastSquares, settings: Settings) -> GraphFit:
    """Separate models; a task without rows predicts the mean of all rows.

    Columns that are constant within every task are left out: in a single task, they cannot be distinguished from the
    intercept.
    """
    if len(settings.constant) and settings.constant.any():
        columns = np.flatnonzero(~settings.constant)
        alone = independent_level(loss.of_columns(columns), settings.of_columns(columns))
        return alone.on_columns(columns, loss.n_features)
    coefficients, ridge = separate_models(loss, settings)
    empty = loss.count <= 0
    if empty.any():
        # Targets are centred on the mean of all rows, so an intercept of zero would use held-out rows.
        mean = loss.pooled()[1] / max(float(loss.count.sum()), 1.0)
        coefficients[empty] = np.where(settings.slopes, 0.0, mean)
    fit = _without_edges("independent", loss, settings, np.zeros(loss.n_features), coefficients)
    return replace(fit, ridge=ridge)


def separate_models(loss: LeastSquares, settings: Settings) -> tuple[np.ndarray, np.ndarray]:
    """Separate models and their ridges, both of shape (n, p).

    With a hub, the ridges are learned from each task's own rows. Without one, the ridge is that of the settings, as in
    the paper.
    """
    ridge = settings.ridge_for(loss)
    if settings.hub and settings.ridge <= NEGLIGIBLE_RIDGE:
        ridge = np.maximum(ridge, _learned_ridges(loss, settings))
    return loss.alone(ridge), ridge


def _learned_ridges(loss: LeastSquares, settings: Settings) -> np.ndarray:
    """Ridges of all tasks, shape (n, p); with very many tasks the median ridges of a sample, shape (p,)."""
    if not settings.sizes.is_large(loss.n_tasks, loss.n_features):
        return separate_ridges(loss, settings.slopes)
    chosen = sample_of_tasks(loss, settings.sizes.hub_sample)
    # A loss on a GPU returns its sample as a loss on the CPU.
    sample = loss.of_tasks(np.arange(loss.n_tasks) if chosen is None else chosen)
    return np.median(separate_ridges(sample, settings.slopes), axis=0)


def hub_level(
    loss: LeastSquares, settings: Settings, start: GraphFit | None = None, near: np.ndarray | None = None
) -> GraphFit:
    """Every task shrunk towards the shared model, with the strength per coefficient that maximises the evidence.

    The strengths are those of `start` where it is given; `near` are strengths at which the search begins.
    """
    if start is not None:
        found = hub_evidence(loss, start.hub)
        return replace(start, coefficients=found.coefficients, value=found.value)
    learned = learn_hub_by_feature(loss, settings.slopes, near, settings.sizes, settings.varying)
    found, status = learned.evidence, "converged" if learned.converged else "flat"
    fit = _without_edges("hub", loss, settings, learned.hub, found.coefficients, found.value)
    return _ridged(replace(fit, iterations=learned.iterations, status=status, history=(found.value,)), loss, settings)


def described_level(loss: LeastSquares, settings: Settings, known: KnownTasks, hub: np.ndarray) -> GraphFit:
    """Every task shrunk to w_0 + B z_i, the mean that its task features z_i predict.

    The search begins at the strengths `hub` of the model without task features.
    """
    common = settings.slopes & ~settings.varying
    learned = learn_means(loss, known.values, known.groups, hub, most=settings.sizes.hub_sample, common=common)
    found = learned.evidence
    fit = _without_edges("described", loss, settings, learned.hub, found.coefficients, found.value)
    fit = replace(fit, means=TaskMeans(found.effects, learned.strength, known.values))
    status = "converged" if learned.converged else "flat"
    fit = replace(fit, iterations=learned.iterations, status=status, history=(found.value,))
    return _ridged(fit, loss, settings)


def _ridged(fit: GraphFit, loss: LeastSquares, settings: Settings) -> GraphFit:
    """The fit with models that use the ridge of the settings; strengths are learned without it."""
    return refit(fit, loss, settings) if settings.ridge > NEGLIGIBLE_RIDGE else fit


def correlated_level(loss: LeastSquares, settings: Settings, hub: np.ndarray) -> GraphFit:
    """Every task shrunk towards the shared model, with correlated deviations of its coefficients."""
    models, precision = correlated_models(loss, hub, settings.varying | ~settings.slopes)
    strength = 1.0 / np.diag(np.linalg.inv(precision))
    return replace(_without_edges(CORRELATED, loss, settings, strength, models), precision=precision)


def intercept_level(loss: LeastSquares, settings: Settings, hub: np.ndarray, start: GraphFit | None = None) -> GraphFit:
    """Slopes shrunk towards common slopes, and a separate intercept for every task that is not shrunk.

    `hub` are strengths at which the search starts. `start` is the level learned on most of the rows, if any; its
    strengths are kept.
    """
    strength = learn_hub_of_slopes(loss, settings.varying, hub, settings.sizes) if start is None else start.hub
    found = hub_evidence(loss, strength)
    fit = _without_edges("intercepts", loss, settings, strength, found.coefficients, found.value)
    return _ridged(fit, loss, settings)


def reweighted_hub(loss: LeastSquares, settings: Settings, hub: GraphFit | None) -> GraphFit:
    """The hub with every row weighted by the precision of its task; `hub` itself if the noise does not differ.

    The precisions come from the residuals of `hub`.
    """
    hub = hub or hub_level(loss, settings)
    precisions = task_precisions(loss, hub.hub)
    if precisions is None:
        return hub
    level = hub_level(loss.weighted(precisions), settings, near=hub.hub)
    return replace(_with_equal_constants(level, settings), precisions=precisions)


def _reweighted_variants(
    loss: LeastSquares, settings: Settings, simple: Mapping[str, GraphFit], hub: GraphFit
) -> dict[str, GraphFit]:
    """The variants of the hub on rows weighted as for `hub`; those of `simple` if all rows have equal weight."""
    found = {name: level for name, level in simple.items() if name in _VARIANTS}
    if hub.precisions is None:
        return found
    rows = loss.weighted(hub.precisions)
    again = {name: _with_equal_constants(_VARIANTS[name](rows, settings, hub.hub), settings) for name in found}
    return {name: replace(level, precisions=hub.precisions) for name, level in again.items()}


# Variants of the hub, by name.
_VARIANTS = {"intercepts": intercept_level, CORRELATED: correlated_level}


def _without_edges(
    name: str,
    loss: LeastSquares,
    settings: Settings,
    hub: np.ndarray,
    coefficients: np.ndarray,
    value: float = float("nan"),
) -> GraphFit:
    width = loss.n_features
    coupling = np.zeros(width) if settings.coupling is None else settings.coupling
    return GraphFit(name, np.empty((0, 2), dtype=np.int64), np.empty(0), coupling, hub, coefficients, value)


def candidate_models(loss: LeastSquares, settings: Settings, fit: GraphFit | None = None) -> np.ndarray:
    """Models times a root of the pooled covariance, shape (n, p); their distances are distances of predictions."""
    if fit is None:
        fit = hub_level(loss, settings) if settings.hub else independent_level(loss, settings)
    return fit.coefficients @ covariance_root(loss)


def covariance_root(loss: LeastSquares) -> np.ndarray:
    """A root of the pooled covariance of the columns, shape (p, p), leading directions first."""
    values, vectors = np.linalg.eigh(loss.pooled()[0] / max(loss.count.sum(), 1.0))
    return (vectors * np.sqrt(np.maximum(values, 0.0)))[:, ::-1]
