"""Learn edge values and hub strengths by maximising the marginal likelihood, in multiplicative steps.

ln|A| and ln Q are concave in (e, h), and ln|P_k| is convex in (ln e, ln h). Replacing each by its tangent gives an
upper bound of f, which is smallest at

    e_ij ← e_ij · [Σ_k Λ_k R⁽ᵏ⁾_ij] / [E(uᵀΛu)/σ²] ,        h_k ← h_k · [tr P_k⁺] / [E Σ_i (w_i − w̄)_k²/σ²] ,

so every step lowers f, without a line search. Steps raised to a power between one and two have the same fixed points
and converge faster. If such a step does not lower f, the plain step is taken.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ggmtl.evidence.dense import EdgeEvidence, EvidenceModel, edge_evidence
from ggmtl.evidence.hub import RIDGE
from ggmtl.evidence.hub_strengths import group_labels
from ggmtl.runtime.journal import Journal
from ggmtl.statistics.least_squares import LeastSquares

# Power to which the steps are raised.
_POWER = 1.7
# Share of the hub's strength that the hub keeps at the start; the rest is spread evenly over the edges.
_HUB_SHARE = 0.1
# Largest number of steps. More steps sharpen the edge values beyond what the data support, and change neither the graph
# that is selected nor its report.
STEPS = 20
# Edge values are kept above this share of the largest one, at which an edge has no effect.
_FLOOR = 1e-9
# Bounds of the hub's strengths, in units of the mean number of rows of a task.
_LOWEST, _HIGHEST = 1e-6, 1e6


@dataclass(frozen=True)
class EvidenceResult:
    """Learned edge values and strengths, with their evidence and the course of the search.

    Parameters
    ----------
    edge_values : array of shape (m,)
        e.
    coupling, hub : arrays of shape (p,)
        Λ and h.
    leverage : array of shape (m,)
        Mean over coefficients of e_ij Λ_k R⁽ᵏ⁾_ij, in [0, 1]: the share of the edge itself in the connection between i
        and j. In a weighted graph it is the probability that a random spanning tree contains the edge.
    evidence : EdgeEvidence
        Evidence at the result.
    gain : float
        Log evidence at the result minus log evidence at the start, in nats.
    history : array of shape (iterations,)
        Gain after every step.
    status : {"converged", "stopped", "max_iter", "interrupted"}
        ``"stopped"``: all ``STEPS`` steps were taken; ``"max_iter"``: the user's smaller limit was reached.
    """

    edge_values: np.ndarray
    coupling: np.ndarray
    hub: np.ndarray
    leverage: np.ndarray
    evidence: EdgeEvidence
    gain: float
    history: np.ndarray
    status: str

    @property
    def coefficients(self) -> np.ndarray:
        """Models of the tasks, shape (n, p)."""
        return self.evidence.coefficients

    @property
    def converged(self) -> bool:
        """Whether the last step gained less than the tolerance."""
        return self.status == "converged"

    def criterion(self) -> tuple[float, ...]:
        """f at the start and after every step."""
        first = self.evidence.value + self.gain
        return (first, *(first - self.history).tolist())


def learn_edges(
    loss: LeastSquares,
    edges: np.ndarray,
    hub: np.ndarray,
    *,
    coupling: np.ndarray | None = None,
    groups: np.ndarray | None = None,
    ridge: float | np.ndarray = RIDGE,
    max_iter: int = STEPS,
    tol: float = 0.1,
    journal: Journal | None = None,
) -> EvidenceResult:
    """Minimise f over edge values and hub strengths.

    Parameters
    ----------
    loss : LeastSquares
        Losses of the tasks.
    edges : array of shape (m, 2)
        Candidate edges.
    hub : array of shape (p,)
        Best hub strengths without edges (:func:`~ggmtl.evidence.hub_strengths.learn_hub`).
    coupling : array of shape (p,), optional
        Λ, held fixed; ones by default.
    groups : array of int, shape (p,), optional
        Coefficients with the same label share a hub strength; one group by default.
    tol : float
        Stop when a step raises the log evidence by less than this many nats.
    journal : Journal, optional
        Records every step, so that an interrupted search can continue.
    """
    journal = journal or Journal()
    n, p = loss.moment.shape
    label = group_labels(groups, p)
    values, first_hub = spread_over_edges(np.asarray(hub, dtype=float), label, len(edges), n)
    model = EvidenceModel(loss, edges, np.ones(p) if coupling is None else coupling, first_hub, ridge)
    model, values, history = _resume(journal, model, values)
    evidence = edge_evidence(model, values)
    try:
        while len(history) <= max_iter and not _has_converged(history, tol):
            model, values, evidence, gain = _advance(model, values, evidence, label)
            history = [*history, history[-1] + gain]
            journal.step("edges", values=values, hub=model.hub, coupling=model.coupling, history=history)
    except KeyboardInterrupt:
        journal.note("edges", _result(model, values, evidence, history, "interrupted"))
        raise
    ended = "stopped" if max_iter >= STEPS else "max_iter"
    result = _result(model, values, evidence, history, "converged" if _has_converged(history, tol) else ended)
    journal.note("edges", result)
    return result


def _advance(
    model: EvidenceModel,
    values: np.ndarray,
    evidence: EdgeEvidence,
    label: np.ndarray,
) -> tuple[EvidenceModel, np.ndarray, EdgeEvidence, float]:
    """One step and its gain in nats. The plain step is taken if the step raised to the power does not lower f."""
    for power in (_POWER, 1.0):
        new_model, new_values = _step(model, values, evidence, label, power)
        new_evidence = edge_evidence(new_model, new_values)
        gain = evidence.value - new_evidence.value
        if gain >= 0:
            break
    return new_model, new_values, new_evidence, float(gain)


def _result(
    model: EvidenceModel, values: np.ndarray, evidence: EdgeEvidence, history: list[float], status: str
) -> EvidenceResult:
    leverage, track = _leverage(model, values, evidence), np.array(history[1:])
    return EvidenceResult(values, model.coupling, model.hub, leverage, evidence, history[-1], track, status)


def _resume(
    journal: Journal, model: EvidenceModel, values: np.ndarray
) -> tuple[EvidenceModel, np.ndarray, list[float]]:
    """Strengths, edge values and gains from the journal, or those given if the journal has none."""
    state = journal.resume("edges")
    if state is None:
        return model, values, [0.0]
    return replace(model, hub=state["hub"], coupling=state["coupling"]), state["values"], state["history"]


def _has_converged(history: list[float], tol: float) -> bool:
    return len(history) > 1 and abs(history[-1] - history[-2]) < tol


def spread_over_edges(hub: np.ndarray, label: np.ndarray, n_edges: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Starting values: equal edge values, shape (m,), and hub strengths, shape (p,).

    Most of the hub strength of the largest group of coefficients moves to the edges. The two are exchangeable: a
    complete graph with all edges h/n is the same as a hub of strength h.
    """
    main = np.bincount(label).argmax()
    strength = float(np.exp(np.log(hub[label == main]).mean()))
    degree = max(2.0 * n_edges / n + 1.0, 2.0)
    first = np.where(label == main, _HUB_SHARE * hub, hub)
    return np.full(n_edges, (1.0 - _HUB_SHARE) * strength / degree), first


def _step(
    model: EvidenceModel,
    values: np.ndarray,
    evidence: EdgeEvidence,
    label: np.ndarray,
    power: float,
) -> tuple[EvidenceModel, np.ndarray]:
    """One multiplicative step of the edge values and hub strengths, raised to `power`."""
    moments = evidence.expectations
    unit = max(float(model.loss.count.mean()), 1.0)
    prior, posterior = np.bincount(label, moments.hub_prior), np.bincount(label, moments.hub_posterior)
    hub = model.hub * _ratio(prior, posterior)[label] ** power
    changed = values * _ratio(moments.edge_prior, moments.edge_posterior) ** power
    changed = np.maximum(changed, _FLOOR * changed.max(initial=0.0))
    return replace(model, hub=np.clip(hub, _LOWEST * unit, _HIGHEST * unit)), changed


def _ratio(prior: np.ndarray, posterior: np.ndarray) -> np.ndarray:
    """Prior over posterior expectation, limited to a factor of 10⁴. Rounding may make an expectation negative."""
    tiny = np.finfo(float).tiny
    return np.clip(np.maximum(prior, tiny) / np.maximum(posterior, tiny), 1e-4, 1e4)


def _leverage(model: EvidenceModel, values: np.ndarray, evidence: EdgeEvidence) -> np.ndarray:
    """Leverage of every edge as in :class:`EvidenceResult`, shape (m,)."""
    return np.clip(values * evidence.expectations.edge_prior / len(model.coupling), 0.0, 1.0)
