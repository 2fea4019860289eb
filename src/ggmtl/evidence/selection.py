"""Choose the graph to report, by its penalised evidence: the hub alone, trees of single edges, or clusters.

A graph S with one strength c for all its edges has few parameters, but there are very many graphs of its kind. The
score compares all graphs of one kind with the hub alone:

    score = f(hub) − min_{c,h} f(S, c, h) − description + multiplicity

The description of S is −ln of its prior probability. Its multiplicity is −ln of its posterior probability among the
graphs of its kind; it is large if many other graphs are about as good. For the most probable graph S, the score is the
log Bayes factor of the kind against the hub. The kinds are

- trees over tasks and hub (:mod:`ggmtl.evidence.spanning_trees`), all with the same prior probability. The edges that
  are shown follow from their probabilities, averaged over all trees;
- K clusters, each a clique, with a description of n ln K − ln K! nats. They are cuts of an average-linkage tree of the
  distances E(uᵀΛu).

Without the multiplicity, clusters would be chosen for tasks on a line: one line of twenty tasks has a description three
times as long, but very many lines are about as good.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import gammaln

from ggmtl.errors import SingularSystemError
from ggmtl.evidence.clusters import HUB_SHARE, ClusterChoice, search_clusters
from ggmtl.evidence.dense import EdgeEvidence, EvidenceModel, edge_evidence
from ggmtl.evidence.edge_steps import EvidenceResult
from ggmtl.evidence.edge_strength import StrengthEvidence, tune_strengths
from ggmtl.evidence.elimination import SparseGraph, strength_evidence
from ggmtl.evidence.hub import hub_evidence
from ggmtl.evidence.hub_strengths import group_labels
from ggmtl.evidence.sampled_edges import Neighbours
from ggmtl.evidence.spanning_trees import average_over_trees, log_number_of_trees

# Edge values, hub and models that were learned with all candidate edges.
Learned = EvidenceResult | Neighbours
# A graph is supported by the evidence if its score is above this many nats: odds of twenty to one against the hub.
_MARGIN = 3.0
# Evidence of two graphs counts as equal up to this many nats per task: a tenth of the multiplicity of trees.
_TIE = 0.2
# Share of the multiplicity that enters the score, because the multiplicity has an error of about a tenth.
_CREDITED = 0.9
# The search for trees ends after a first short run if their score is below minus this many nats, and minus this many
# nats per task. The second run changed the score by at most 40 nats, or .25 nats per task where that is more, on the
# ten panels of ``benchmarks/panels.py`` and on chains and trees.
_HOPELESS, _HOPELESS_PER_TASK = 50.0, 0.5
# Numbers of links that are sampled in the two runs. The first run uses the strengths learned with all candidates, the
# second those of the likeliest tree.
_LINKS = (500, 1500)


@dataclass(frozen=True)
class GraphChoice:
    """A graph with its strengths and models, and the evidence of its kind.

    Parameters
    ----------
    edges : array of shape (m, 2)
        The candidate edges; for clusters, all pairs of tasks in the same cluster.
    selected : array of bool, shape (m,)
        The candidates that are edges of the graph.
    edge_values : array of shape (m,)
        e. The selected edges have the same strength, in a cluster divided by its size. The others have zero.
    hub : array of shape (p,)
        Strengths of the hub in the model with these edges.
    gain : float
        Log evidence of the best graph of the kind minus that of the hub alone, in nats.
    description, multiplicity : float
        −ln of the prior, and of the posterior, probability of the graph among those of its kind.
    coefficients : array of shape (n, p)
        Models of the tasks.
    probabilities : array of shape (m,), optional
        Posterior probabilities of the edges, for an average over trees.
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
        """Log Bayes factor of all graphs of the kind against the hub, in nats."""
        return self.gain - self.description + _CREDITED * self.multiplicity

    @property
    def supported(self) -> bool:
        """Whether the evidence clearly prefers the kind of graph to the hub."""
        return self.score > _MARGIN


def tied(n_tasks: int) -> float:
    """Largest difference, in nats, at which the evidence of two graphs counts as equal."""
    return max(_MARGIN, _TIE * n_tasks)


def search_trees(
    model: EvidenceModel,
    learned: Learned,
    groups: np.ndarray | None = None,
    *,
    fixed: np.ndarray | None = None,
) -> GraphChoice | None:
    """The most probable edges of trees over tasks and hub; None if the hub alone is far more probable.

    With q the posterior probabilities of the edges, the graph has the K most probable edges, where K maximises the
    expected F1, 2 Σ_{top K} q / (K + Σ q). If the evidence is clear, these are the edges of the most probable tree.
    Otherwise they include others of similar probability.

    Parameters
    ----------
    model : EvidenceModel
        Losses, candidate edges, coupling, and the hub that is best without edges.
    learned : EvidenceResult or Neighbours
        Edge values, hub, leverages and models that were learned with all candidates. The search starts from them.
    groups : array of int, shape (p,), optional
        Coefficients with the same label share a hub strength.
    fixed : array of bool, shape (m,), optional
        Edges that must be selected.
    """
    label = group_labels(groups, len(model.coupling))
    main = label == np.bincount(label).argmax()
    fixed = np.zeros(len(model.edges), dtype=bool) if fixed is None else fixed
    # The hub was learned with all candidates and is far too weak for a tree of n edges.
    with_hub = replace(model, hub=np.maximum(learned.hub, HUB_SHARE * model.hub))
    n, models, values, likely = model.loss.n_tasks, learned.coefficients, learned.edge_values, learned.leverage
    for links in _LINKS:
        try:
            found = average_over_trees(with_hub, models, values, likely, main, links)
        except SingularSystemError:
            # With targets without noise, strengths may differ by more orders of magnitude than float64 can represent.
            return None
        tree, multiplicity = found.likeliest_tree()
        if not (tree | fixed).any():
            # The most probable tree links every task to the hub only.
            return None
        best = _tuned(model, learned, tree | fixed, label)
        best = replace(best, description=log_number_of_trees(n), multiplicity=multiplicity)
        if best.score < -max(_HOPELESS, _HOPELESS_PER_TASK * n) and not fixed.any():
            return None
        with_hub = replace(model, hub=np.maximum(best.hub, HUB_SHARE * model.hub))
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
    """The graph of the `size` edges with the highest `rank`, shape (m,); its strength and the hub's are tuned."""
    selected = np.zeros(len(model.edges), dtype=bool)
    selected[np.argsort(-rank, kind="stable")[:size]] = True
    return _tuned(model, learned, selected, group_labels(groups, len(model.coupling)))


def _tuned(model: EvidenceModel, learned: Learned, selected: np.ndarray, label: np.ndarray) -> GraphChoice:
    """The graph of the selected edges, with the edge and hub strengths of highest evidence."""
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
    """ln of the number of graphs with this many tasks and edges."""
    total = 0.5 * n_tasks * (n_tasks - 1)
    return float(gammaln(total + 1) - gammaln(n_edges + 1) - gammaln(total - n_edges + 1))


def largest_expected_f1(score: np.ndarray) -> np.ndarray:
    """The set of edges with the largest expected F1, a mask of shape (m,); `score` are their probabilities."""
    order = np.argsort(-score, kind="stable")
    expected = 2 * np.cumsum(score[order]) / (np.arange(1, len(score) + 1) + score.sum() + np.finfo(float).tiny)
    chosen = np.zeros(len(score), dtype=bool)
    chosen[order[: int(expected.argmax()) + 1]] = True
    return chosen


def _tune(
    model: EvidenceModel, selected: np.ndarray, strength: float, label: np.ndarray, offset: float
) -> tuple[EvidenceModel, float, StrengthEvidence]:
    """Minimise f over the strengths of the selected edges and of the hub.

    Returns the model with the tuned hub, the strength of the edges, and the evidence.
    """
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
    """The best clusters as a graph; None if no clusters are allowed.

    Parameters
    ----------
    model : EvidenceModel
    distances : array of shape (n, n)
        Expected squared distances between models.
    groups : array of int, shape (p,), optional
        Coefficients with the same label share a hub strength.
    fixed : array of bool, shape (m,)
        Candidate edges that must be in the graph.
    any_pair : bool
        Whether clusters may contain pairs of tasks that are no candidate edges.
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
    """Posterior expectation of uᵀΛu/σ² for all pairs of tasks, shape (n, n), with u = w_i − w_j."""
    scaled = evidence.coefficients * np.sqrt(model.coupling / evidence.noise)
    products = scaled @ scaled.T + np.einsum("ikjk,k->ij", evidence.covariance, model.coupling)
    square = np.diagonal(products)
    distances = np.maximum(square[:, None] + square - 2 * products, 0.0)
    np.fill_diagonal(distances, 0.0)
    return 0.5 * (distances + distances.T)
