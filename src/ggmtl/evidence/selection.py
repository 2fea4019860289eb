"""Which graph to report: the hub alone, trees of single edges, or clusters, by penalised evidence.

A graph S with one strength c for all its edges has few parameters. What counts against it is how many graphs there are
that it could have been; what counts for it is how many others are about as good, as each of them adds to the evidence:

    score = f(hub) − min_{c,h} f(S, c, h) − description + multiplicity

with −ln of the prior probability of S as its description and −ln of its posterior probability among graphs of its kind
as its multiplicity. For S the likeliest graph, this is the evidence of the kind (ln of a Bayes factor against the hub):

- trees over tasks and hub (:mod:`ggmtl.evidence.spanning_trees`), a list of edges; all trees are equally likely before
  the data. The edges that are shown follow from their probabilities, averaged over all trees;
- K clusters, each a clique: n ln K − ln K! nats. They are cuts of an average-linkage tree of the distances E(uᵀΛu).

By the score of the best graph alone, clusters win where tasks lie on a line, because one line of twenty tasks takes
three times as many nats to describe, while very many lines are about as good.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import gammaln

from ggmtl.errors import SingularSystemError
from ggmtl.evidence.clusters import HUB_SHARE, ClusterChoice, search_clusters
from ggmtl.evidence.dense import EdgeEvidence, EvidenceModel, edge_evidence
from ggmtl.evidence.edge_steps import EvidenceResult
from ggmtl.evidence.elimination import SparseGraph, strength_evidence
from ggmtl.evidence.hub import hub_evidence
from ggmtl.evidence.hub_strengths import StrengthEvidence, group_labels, tune_strengths
from ggmtl.evidence.sampled_edges import Neighbours
from ggmtl.evidence.spanning_trees import average_over_trees, log_number_of_trees

# What was learned beside all candidates.
Learned = EvidenceResult | Neighbours
# Nats by which a graph must beat the hub to be believed without a vote: odds of twenty to one.
_MARGIN = 3.0
# Nats a task up to which the evidence of trees and clusters is about the same: a tenth of the multiplicity of trees.
_TIE = 0.2
# Share of its multiplicity that is credited to a graph. It is known to about a tenth.
_CREDITED = 0.9
# Nats, and nats a task, below which a first look at trees leaves no hope. A second look changed their score by at most
# 40 nats, and by .25 a task where that is more, on the ten panels of ``benchmarks/panels.py`` and on chains and trees.
_HOPELESS, _HOPELESS_PER_TASK = 50.0, 0.5
# Links of trees that are drawn: beside the strengths of all candidates, then beside those of the likeliest tree.
_LINKS = (500, 1500)


@dataclass(frozen=True)
class GraphChoice:
    """A graph, and what evidence says of its kind.

    Parameters
    ----------
    edges : array of shape (m, 2)
        The candidates; for clusters, the pairs inside them.
    selected : array of bool, shape (m,)
        Its edges.
    edge_values : array of shape (m,)
        e: the common strength on the selected edges (over the size of the cluster, for clusters), else zero.
    hub : array of shape (p,)
        Strengths of the hub beside them.
    gain : float
        ln evidence of the best graph of the kind over that of the hub alone.
    description, multiplicity : float
        −ln of its prior and of its posterior probability among the graphs of its kind.
    coefficients : array of shape (n, p)
        Models.
    probabilities : array of shape (m,), optional
        Of the edges, where trees were averaged.
    """

    edges: np.ndarray
    selected: np.ndarray
    edge_values: np.ndarray
    hub: np.ndarray
    gain: float
    description: float
    coefficients: np.ndarray
    multiplicity: float = 0.0
    probabilities: np.ndarray | None = None

    @property
    def score(self) -> float:
        """ln of the Bayes factor of all graphs of the kind against the hub."""
        return self.gain - self.description + _CREDITED * self.multiplicity

    @property
    def supported(self) -> bool:
        """Whether the score is beyond doubt."""
        return self.score > _MARGIN


def tied(n_tasks: int) -> float:
    """Nats up to which the evidence of two graphs is about the same."""
    return max(_MARGIN, _TIE * n_tasks)


def search_trees(
    model: EvidenceModel,
    learned: Learned,
    groups: np.ndarray | None = None,
    *,
    fixed: np.ndarray | None = None,
) -> GraphChoice | None:
    """The edges that trees over tasks and hub have in common; None where the hub alone is far more probable.

    With q the probabilities of the edges, the K likeliest edges are taken that maximise the expected F1,
    2 Σ_{top K} q / (K + Σ q): where the evidence is clear these are the edges of the likeliest tree, else others about
    as likely join them.

    Parameters
    ----------
    model : EvidenceModel
        Losses, candidate edges, coupling, and the hub that is best without edges.
    learned : EvidenceResult or Neighbours
        Edge values, hub, leverages and models that were learned beside all candidates: they say where to search.
    groups : array of int, shape (p,), optional
        Coefficients that share a hub strength.
    fixed : array of bool, shape (m,), optional
        Edges that must be selected.
    """
    label = group_labels(groups, len(model.coupling))
    main = label == np.bincount(label).argmax()
    fixed = np.zeros(len(model.edges), dtype=bool) if fixed is None else fixed
    # Learned beside all candidates, the hub is far too weak beside n edges.
    beside = replace(model, hub=np.maximum(learned.hub, HUB_SHARE * model.hub))
    n, models, values, likely = model.loss.n_tasks, learned.coefficients, learned.edge_values, learned.leverage
    for links in _LINKS:
        try:
            found = average_over_trees(beside, models, values, likely, main, links)
        except SingularSystemError:
            # Targets without noise that rows do not determine: strengths span what a matrix can hold.
            return None
        tree, multiplicity = found.likeliest_tree()
        if not (tree | fixed).any():
            # Every task hangs on the hub alone.
            return None
        best = _tuned(model, learned, tree | fixed, label)
        best = replace(best, description=log_number_of_trees(n), multiplicity=multiplicity)
        if best.score < -max(_HOPELESS, _HOPELESS_PER_TASK * n) and not fixed.any():
            return None
        beside = replace(model, hub=np.maximum(best.hub, HUB_SHARE * model.hub))
        models, values, likely = best.coefficients, best.edge_values, found.between
    shown = fixed | largest_expected_f1(likely)
    return replace(
        _tuned(model, learned, shown, label),
        gain=best.gain,
        description=best.description,
        multiplicity=best.multiplicity,
        probabilities=likely,
    )


def strongest_edges(
    model: EvidenceModel, learned: Learned, rank: np.ndarray, size: int, groups: np.ndarray | None = None
) -> GraphChoice:
    """The `size` edges of highest rank, with one strength, tuned along with the hub's."""
    selected = np.zeros(len(model.edges), dtype=bool)
    selected[np.argsort(-rank, kind="stable")[:size]] = True
    return _tuned(model, learned, selected, group_labels(groups, len(model.coupling)))


def _tuned(model: EvidenceModel, learned: Learned, selected: np.ndarray, label: np.ndarray) -> GraphChoice:
    """The selected edges with the strength of highest evidence, the hub's strength tuned along with it."""
    if not selected.any():
        alone = hub_evidence(model.loss, model.hub, model.ridge)
        return GraphChoice(model.edges, selected, np.zeros(len(selected)), model.hub, 0.0, 0.0, alone.coefficients)
    state = replace(model, hub=np.maximum(learned.hub, HUB_SHARE * model.hub))
    first, offset = float(np.median(learned.edge_values[selected])), HUB_SHARE * float(np.median(model.hub))
    state, strength, evidence = _tune(state, selected, first, label, offset)
    gain = hub_evidence(model.loss, model.hub, model.ridge).value - evidence.value
    description = list_description(model.loss.n_tasks, int(selected.sum()))
    return GraphChoice(model.edges, selected, strength * selected, state.hub, gain, description, evidence.coefficients)


def list_description(n_tasks: int, n_edges: int) -> float:
    """ln of the number of graphs with so many edges."""
    total = 0.5 * n_tasks * (n_tasks - 1)
    return float(gammaln(total + 1) - gammaln(n_edges + 1) - gammaln(total - n_edges + 1))


def largest_expected_f1(score: np.ndarray) -> np.ndarray:
    """The set of edges with the largest expected F1 when `score` are the probabilities of the edges."""
    order = np.argsort(-score, kind="stable")
    expected = 2 * np.cumsum(score[order]) / (np.arange(1, len(score) + 1) + score.sum() + np.finfo(float).tiny)
    chosen = np.zeros(len(score), dtype=bool)
    chosen[order[: int(expected.argmax()) + 1]] = True
    return chosen


def _tune(
    model: EvidenceModel, selected: np.ndarray, strength: float, label: np.ndarray, offset: float
) -> tuple[EvidenceModel, float, StrengthEvidence]:
    """Minimise f over the strength of the selected edges and that of the hub; and f there."""
    n, p = model.loss.moment.shape
    part = replace(model, edges=model.edges[selected])
    graph = SparseGraph(part.edges, n, p)

    def evaluate(strength: float, hub: np.ndarray) -> StrengthEvidence:
        state = replace(part, hub=hub)
        found = strength_evidence(state, graph, strength)
        if found is not None:
            return found
        dense = edge_evidence(state, np.full(len(part.edges), strength))
        slope = float(dense.edge_gradient.sum())
        return StrengthEvidence(dense.value, slope, dense.hub_gradient, dense.coefficients, dense.noise)

    strength, hub, evidence = tune_strengths(evaluate, model.loss, strength, model.hub, label, offset)
    return replace(model, hub=hub), strength, evidence


# ---------------------------------------------------------------------- clusters


def choose_clusters(
    model: EvidenceModel,
    distances: np.ndarray,
    groups: np.ndarray | None = None,
    *,
    fixed: np.ndarray,
    any_pair: bool = True,
) -> GraphChoice | None:
    """The best clusters as a graph; None where no clusters are allowed.

    Parameters
    ----------
    model : EvidenceModel
    distances : array of shape (n, n)
        Between models.
    groups : array of int, shape (p,), optional
        Coefficients that share a hub strength.
    fixed : array of bool, shape (m,)
        Candidates that must be in the graph.
    any_pair : bool
        Whether clusters may join tasks that are no candidate edge.
    """
    found: ClusterChoice | None = search_clusters(
        model.loss,
        distances,
        model.coupling,
        model.hub,
        group_labels(groups, len(model.coupling)),
        together=model.edges[fixed],
        allowed=None if any_pair else model.edges,
        ridge=model.ridge,
    )
    if found is None:
        return None
    edges, values = found.edges()
    gain = hub_evidence(model.loss, model.hub, model.ridge).value - found.value
    return GraphChoice(
        edges, values > 0, values, found.hub, gain, found.description, found.coefficients, found.multiplicity
    )


def expected_distances(model: EvidenceModel, evidence: EdgeEvidence) -> np.ndarray:
    """E(uᵀΛu)/σ² of all pairs, shape (n, n)."""
    scaled = evidence.coefficients * np.sqrt(model.coupling / evidence.noise)
    products = scaled @ scaled.T + np.einsum("ikjk,k->ij", evidence.covariance, model.coupling)
    square = np.diagonal(products)
    distances = np.maximum(square[:, None] + square - 2 * products, 0.0)
    np.fill_diagonal(distances, 0.0)
    return 0.5 * (distances + distances.T)
