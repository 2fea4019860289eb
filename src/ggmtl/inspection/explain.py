"""Why two tasks are linked, what the link does, and which coefficients the two share.

The effect of an edge on the models, and on the error at held-out rows, is that of a full refit without it. The rest of
the graph and all strengths are held. See :mod:`ggmtl.inference.removal` for how it is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ggmtl.bilevel.level import on_its_columns
from ggmtl.data.frames import as_table, plain
from ggmtl.data.labels import locate_tasks, task_position
from ggmtl.errors import ParameterError
from ggmtl.evidence.search_l1 import probability_of_sharing
from ggmtl.fit.state import FittedState, state_of
from ggmtl.inference.removal import EdgeEffect, EdgeRemovals
from ggmtl.inference.uncertainty import hub_alone, noise_ratios, noise_variance
from ggmtl.inspection.summary.phrases import listing, one_line
from ggmtl.losses.rowwise import LOSSES
from ggmtl.runtime.journal import logger, verbose_logging
from ggmtl.solve.system import edge_between

if TYPE_CHECKING:
    from ggmtl.estimators.regressor import GGMTLRegressor

# Name of the intercept where it is the prediction at the mean of all features.
AT_AVERAGE_ROW = "(intercept at the average row)"


@dataclass(frozen=True)
class FeatureAgreement:
    """One coefficient of two tasks, in the units of the data.

    Parameters
    ----------
    feature : str
        The last is the intercept, read at the mean of all features.
    coefficients : tuple of two floats
        Of the two tasks, in the fitted model.
    difference, standard_error : float
        Between the two without the edge, and its standard error: whether they differ without this link. From 300
        tasks on, the standard error comes from the tasks near the two and is right to a few tenths of a percent.
    moved : tuple of two floats
        By how much the edge moved each.
    """

    feature: str
    coefficients: tuple[float, float]
    difference: float
    standard_error: float
    moved: tuple[float, float]

    @property
    def agrees(self) -> bool:
        """Whether the difference is within two standard errors."""
        return abs(self.difference) <= 2.0 * self.standard_error


@dataclass(frozen=True, repr=False)
class EdgeExplanation:
    """Why two tasks are linked, or that they are not.

    Parameters
    ----------
    tasks : tuple
        The two labels.
    linked : bool
        Whether the fitted graph has the edge.
    weight, reported_weight : float
        w = λe of the final solve, and the weight in ``graph_``; zero for none.
    error, error_without : float
        Root mean squared error of the two tasks with and without the edge, on held-out rows where `held_out`. Where
        levels are averaged, these are errors of the level with links.
    total_error, total_error_without : float
        The same over all tasks.
    held_out : bool
        Whether each error is that of models fitted without the fold (edge and strengths as learned from all rows);
        else it is that of the final models on their own rows.
    features : tuple of FeatureAgreement
    common_neighbours : tuple
        Tasks linked to both.
    any_links : bool
        Whether the fitted graph links any tasks at all.
    share : float
        Weight in the model of the level with links: the models move by that share of its change.
    support : float, optional
        Share of the folds whose own graph has the edge; None where that is not known.
    measure : str
        What errors are: "error" (root mean squared), "log-loss" or "deviance" (means). The latter two are those of the
        models themselves; ``predict_proba`` averages over their uncertainty.

    Examples
    --------
    >>> from ggmtl import GGMTLRegressor
    >>> from ggmtl.datasets import make_clusters
    >>> data = make_clusters(3, n_tasks=12, n_features=4, random_state=0)
    >>> model = GGMTLRegressor().fit(data.X, data.y, tasks=data.tasks)
    >>> explanation = explain_edge(model, 0, 1)
    >>> explanation.linked, explanation.held_out, len(explanation.features)
    (True, True, 5)
    """

    tasks: tuple[Any, Any]
    linked: bool
    weight: float
    reported_weight: float
    error: float
    error_without: float
    total_error: float
    total_error_without: float
    held_out: bool
    features: tuple[FeatureAgreement, ...]
    common_neighbours: tuple[Any, ...]
    any_links: bool = True
    share: float = 1.0
    support: float | None = None
    measure: str = "error"

    def __repr__(self) -> str:
        a, b = map(plain, self.tasks)
        link = f"linked, {self.measure} {self.error:.4g}, without the link {self.error_without:.4g}"
        return f"EdgeExplanation({a!r} and {b!r}: {link if self.linked else 'not linked'})"

    def describe(self) -> str:
        """The explanation in words."""
        a, b = self.tasks
        facts = f"weight {self.reported_weight:.2f}; strength {self.weight:.3g}"
        if self.support is not None:
            facts = f"{facts}; found in {100 * self.support:.0f} % of the folds"
        if self.linked and self.reported_weight > 0:
            lines = [f"{a} and {b} are linked ({facts})."]
        elif self.linked:
            lines = [
                f"{a} and {b} are linked so weakly (strength {self.weight:.3g}) that the graph does not show the link."
            ]
        elif self.any_links:
            lines = [f"{a} and {b} are not linked."]
        else:
            lines = [f"{a} and {b} are not linked: the model has no links, only the shared model of all tasks."]
        if self.linked:
            lines.append(self._effect())
        near = listing([item.feature for item in self.features if item.agrees])
        apart = listing([item.feature for item in self.features if not item.agrees])
        parts = [f"at most two standard errors in {near}"] if near else []
        parts += [f"more than two standard errors in {apart}"] if apart else []
        lines.append(f"{'Without the link, they' if self.linked else 'They'} differ by {' and by '.join(parts)}.")
        if self.common_neighbours:
            lines.append(f"Both are linked to {listing(list(self.common_neighbours), 5)}.")
        return one_line(" ".join(lines))

    def _effect(self) -> str:
        change = (self.error_without - self.error) / self.error if self.error > 0 else 0.0
        where = "on held-out rows" if self.held_out else "on their own rows"
        if self.share < 1.0:
            where = f"{where}, in the level of linked tasks ({100 * self.share:.0f} % of the model),"
        if abs(change) < 5e-4:
            return f"Without the link their {self.measure} {where} would stay at {self.error:.4g}."
        verb = "rise" if change > 0 else "fall"
        return (
            f"Without the link their {self.measure} {where} would {verb} by {100 * abs(change):.1f} %, "
            f"from {self.error:.4g} to {self.error_without:.4g}."
        )


def explain_edge(model: GGMTLRegressor, a: Any, b: Any) -> EdgeExplanation:
    """Explain the edge between two tasks, or why there is none.

    The first question about a model solves for the models without each held-out fold, and keeps them. The effect of an
    edge then takes one solve with all tasks for every fold.

    Parameters
    ----------
    model : GGMTLRegressor
        Fitted, with its statistics (a loaded model: saved with ``keep_statistics=True``).
    a, b
        Labels of two tasks.

    Examples
    --------
    >>> from ggmtl import GGMTLRegressor
    >>> from ggmtl.datasets import make_clusters
    >>> data = make_clusters(3, n_tasks=12, n_features=4, random_state=0)
    >>> model = GGMTLRegressor().fit(data.X, data.y, tasks=data.tasks)
    >>> explain_edge(model, 0, 1).describe().startswith("0 and 1 are linked")
    True
    >>> explain_edge(model, 0, 11).linked
    False
    """
    state = state_of(model, "explain_edge", any_loss=True)
    i, j = _positions(model, a, b)
    fit, removals = state.level, removals_of(state)
    effect = removals.of_edge(i, j)
    present = fit.edge_values > 0
    here = edge_between(fit.edges[present], i, j)
    errors = state.measure.of(np.maximum([effect.pair_errors, effect.errors], 0.0)) * model.scaling_.target_scale
    (error, without), (total, total_without) = errors.tolist()
    weights = fit.edge_weights(model.state_.settings.slopes)[present]
    return EdgeExplanation(
        (a, b),
        bool(here.any()),
        float(weights[here].sum()),
        float(model.graph_.weights[edge_between(model.graph_.edges, i, j)].sum()),
        error,
        without,
        total,
        total_without,
        removals.held_out,
        _agreements(model, effect, noise_variance(model.state_), *locate_tasks(model.tasks_, np.array([a, b]))),
        _common_neighbours(model, i, j),
        bool(present.any()),
        state.family.weights.get(state.family.main, 0.0),
        _support(model, i, j),
        state.measure.short,
    )


def _support(model: GGMTLRegressor, i: int, j: int) -> float | None:
    """Share of the folds whose own graph has the edge, where it is reported and that is known."""
    graph = model.graph_
    here = edge_between(graph.edges, i, j)
    return float(graph.support[here][0]) if graph.support is not None and here.any() else None


def removals_of(state: FittedState) -> EdgeRemovals:
    """What removing the edges of a model does, prepared at the first question and kept with the state."""

    def prepare() -> EdgeRemovals:
        fit = state.level
        with verbose_logging(int(state.settings.sizes.is_vast(*fit.coefficients.shape))):
            logger.info("explaining edges: solving for %d tasks, once for this model", len(fit.coefficients))
            if state.outcome is not None:
                rows, loss = state.rows_of_outcome("explain_edge"), LOSSES[state.outcome.loss]
                return EdgeRemovals.of_rows(fit, rows, loss, state.outcome.dispersion, state.settings)
            folded = state.folded()
            noise_variance(state, folded)
            return EdgeRemovals.of(fit, folded, state.settings, noise_ratios(state, folded))

    return state.once("removals", prepare)


def _positions(model: GGMTLRegressor, a: Any, b: Any) -> tuple[int, int]:
    positions = [task_position(label, model.tasks_) for label in (a, b)]
    if positions[0] == positions[1]:
        raise ParameterError(f"explain_edge takes two different tasks. Got {plain(a)!r} twice.")
    return min(positions), max(positions)


def _agreements(
    model: GGMTLRegressor, effect: EdgeEffect, noise: float, a: int, b: int
) -> tuple[FeatureAgreement, ...]:
    T, names = model.scaling_.user_map(), list(model.feature_names_)
    current = model.coef_[[a, b]]
    if model.scaling_.intercept:
        # Where all features are zero there may be no row anywhere near.
        names.append(AT_AVERAGE_ROW)
        average = model.intercept_[[a, b]] + current @ model.scaling_.center[: len(names) - 1]
        current = np.column_stack([current, average])
        T[-1, :-1] = 0.0
    # In the effect the two tasks are in the order of their positions.
    order = [0, 1] if a < b else [1, 0]
    before, after = effect.before[order] @ T.T, effect.after[order] @ T.T
    # The models are an average: the edge moves them by the share of its level.
    family = model.state_.family
    moved = family.weights.get(family.main, 0.0) * (before - after)
    difference = current[0] - moved[0] - (current[1] - moved[1])
    error = np.sqrt(np.maximum(noise * np.diag(T @ effect.covariance @ T.T), 0.0))
    # Features that are constant within every task have one coefficient for all tasks.
    constant = model.state_.settings.constant
    return tuple(
        FeatureAgreement(
            str(name),
            (float(current[0, k]), float(current[1, k])),
            float(difference[k]),
            float(error[k]),
            (float(moved[0, k]), float(moved[1, k])),
        )
        for k, name in enumerate(names)
        if k >= len(constant) or name == AT_AVERAGE_ROW or not constant[k]
    )


def _common_neighbours(model: GGMTLRegressor, i: int, j: int) -> tuple[Any, ...]:
    edges = model.graph_.edges
    first, second = (edges[(edges[:, 0] == task) | (edges[:, 1] == task)] for task in (i, j))
    both = np.setdiff1d(np.intersect1d(first, second), [i, j])
    return tuple(model.tasks_[both].tolist())


def shared_features(model: Any) -> Any:
    """How likely it is that two linked tasks share a coefficient, edge by edge and feature by feature, as a tidy table.

    Meant for ``penalty="l1"``, whose edges may be about a few coefficients only; it works for any graph. The columns
    are task, other, feature and probability, the likeliest features of an edge first. Intercepts are left out.

    Parameters
    ----------
    model : GGMTLRegressor
        Fitted with a hub, with its statistics (a loaded model: saved with ``keep_statistics=True``).

    Examples
    --------
    >>> from ggmtl import GGMTLRegressor
    >>> from ggmtl.datasets import make_clusters
    >>> data = make_clusters(2, n_tasks=6, n_features=2, random_state=0)
    >>> model = GGMTLRegressor(penalty="l1").fit(data.X, data.y, tasks=data.tasks)
    >>> len(shared_features(model)["feature"]) == 2 * model.graph_.n_edges
    True
    """
    state = state_of(model, "shared_features")
    state.rows("shared_features")
    fit = state.level
    edges, names = model.graph_.edges, np.array(model.feature_names_, dtype=str)
    share = np.zeros((len(edges), len(names)))
    if len(edges) and "hub" in state.family.levels:
        own, loss, settings = on_its_columns(fit, state.folded().total, state.settings)
        hub = hub_alone(state, fit, state.folded().total)
        share = probability_of_sharing(own.weighed(loss), settings, hub, edges)[:, : len(names)]
    order = np.argsort(-share, axis=1, kind="stable")
    return as_table(
        {
            "task": np.repeat(model.tasks_[edges[:, 0]], len(names)),
            "other": np.repeat(model.tasks_[edges[:, 1]], len(names)),
            "feature": names[order].ravel(),
            "probability": np.take_along_axis(share, order, axis=1).ravel(),
        },
        state.form.table_kind,
    )
