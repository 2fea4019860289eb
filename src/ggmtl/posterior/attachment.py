"""Attach a new task to models that are held fixed, from as little as one row."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ggmtl.bilevel import GraphFit
from ggmtl.posterior.uncertainty import pull_of
from ggmtl.statistics import LeastSquares

# Strengths tried for the edges of a new task, in units of those that the graph has.
_STRENGTHS = np.geomspace(0.1, 30.0, 6)
_MOST_NEIGHBOURS = 5


@dataclass(frozen=True)
class AttachedTask:
    """A new task's model, and what it was tied to.

    Parameters
    ----------
    coefficients : array of shape (p,)
        Its model.
    neighbours : array of int
        Positions of the tasks it is linked to; empty for the hub alone.
    edge_value : float
        e of every one of those edges.
    coupling : array of shape (p,)
        Λ for which `edge_value` holds.
    covariance : array of shape (p, p)
        Of its coefficients, in units of σ².
    """

    coefficients: np.ndarray
    neighbours: np.ndarray
    edge_value: float
    coupling: np.ndarray
    covariance: np.ndarray


def attach(fit: GraphFit, rows: LeastSquares, noise: float) -> AttachedTask:
    """Model of one new task, the others' held fixed.

    Linked to k tasks with strength e each, the prior of its model has precision P = H + keΛ (over σ²) and mean
    P⁻¹(Hw_0 + eΛΣw_j). Neighbours are added while the evidence of the task's own rows gains more than it takes to
    say which neighbours; without rows there is nothing to gain, and the common model is the answer.
    """
    common = fit.common_model()
    none = np.empty(0, dtype=np.int64)
    pull = pull_of(fit, noise)
    if not np.isfinite(fit.hub).all() or rows.count[0] == 0:
        return AttachedTask(common, none, 0.0, fit.coupling, np.diag(1.0 / pull))
    coupling, unit = _edge_unit(fit, pull)
    gram, moment, square = rows.gram[0], rows.moment[0], float(rows.target_square[0])
    task = _NewTask(gram, moment, square, noise, pull, common, coupling)
    best, chosen = task.evidence(common[None], pull)[0], (none, 0.0)
    neighbours = none
    for k in range(1, min(_MOST_NEIGHBOURS, len(fit.coefficients)) + 1):
        scores = np.array([task.with_one_more(fit.coefficients, neighbours, unit * s) for s in _STRENGTHS])
        strength, added = np.unravel_index(np.argmax(scores), scores.shape)
        neighbours = np.append(neighbours, added)
        cost = _log_choose(len(fit.coefficients), k) + np.log(len(_STRENGTHS))
        if scores[strength, added] - cost <= best:
            break
        best, chosen = (
            scores[strength, added] - cost,
            (np.sort(neighbours), float(unit * _STRENGTHS[strength])),
        )
    neighbours, value = chosen
    mean, precision = task.prior(fit.coefficients[neighbours].sum(axis=0), len(neighbours), value)
    covariance = np.linalg.inv(gram + np.diag(precision))
    coefficients = covariance @ (moment + precision * mean)
    used = coupling if len(neighbours) else fit.coupling
    return AttachedTask(coefficients, neighbours, value, used, covariance)


@dataclass(frozen=True)
class _NewTask:
    gram: np.ndarray
    moment: np.ndarray
    square: float
    noise: float
    pull: np.ndarray
    common: np.ndarray
    coupling: np.ndarray

    def prior(self, total: np.ndarray, k: int, value: float) -> tuple[np.ndarray, np.ndarray]:
        """Mean(s) and diagonal precision, given the sum(s) of k neighbours' models."""
        precision = self.pull + k * value * self.coupling
        return (self.pull * self.common + value * self.coupling * total) / precision, precision

    def evidence(self, means: np.ndarray, precision: np.ndarray) -> np.ndarray:
        """ln p(y) up to a constant for every prior mean, shape (r,), the precision being shared.

        −½ [ (rᵀr − bᵀ(G + P)⁻¹b)/σ² + ln|G + P| − ln|P| ] with r = y − Zm and b = Zᵀr.
        """
        b = self.moment - means @ self.gram
        residual = self.square - np.einsum("rp,rp->r", means, self.moment + b)
        matrix = self.gram + np.diag(precision)
        explained = np.einsum("rp,rp->r", b, np.linalg.solve(matrix, b.T).T)
        log_det = np.linalg.slogdet(matrix)[1] - np.log(precision).sum()
        return -0.5 * ((residual - explained) / self.noise + log_det)

    def with_one_more(self, models: np.ndarray, neighbours: np.ndarray, value: float) -> np.ndarray:
        """Evidence with every task in turn as one more neighbour, shape (n,); −∞ for those already there."""
        means, precision = self.prior(models + models[neighbours].sum(axis=0), len(neighbours) + 1, value)
        out = self.evidence(means, precision)
        out[neighbours] = -np.inf
        return out


def _edge_unit(fit: GraphFit, pull: np.ndarray) -> tuple[np.ndarray, float]:
    """Λ and a typical edge value; where the graph has no edges, an edge that pulls as the hub does."""
    present = fit.edge_values[fit.edge_values > 0]
    if len(present) and (fit.coupling > 0).any():
        return fit.coupling, float(np.median(present))
    return pull, 1.0


def _log_choose(n: int, k: int) -> float:
    return float(np.log(np.arange(n - k + 1, n + 1)).sum() - np.log(np.arange(1, k + 1)).sum())


def insert_task(fit: GraphFit, attached: AttachedTask, position: int) -> GraphFit:
    """The fit with the new task at `position`."""
    edges = fit.edges + (fit.edges >= position)
    others = attached.neighbours + (attached.neighbours >= position)
    new = np.sort(np.column_stack([others, np.full(len(others), position)]).reshape(-1, 2), axis=1)
    values = np.append(fit.edge_values, np.full(len(new), attached.edge_value))
    joined = np.concatenate([edges, new]).astype(np.int64)
    shown = fit.reported_weights
    return replace(
        fit,
        edges=joined,
        edge_values=values,
        reported_weights=None if shown is None else np.append(shown, new_weights(joined, values, len(new))),
        coupling=attached.coupling,
        coefficients=np.insert(fit.coefficients, position, attached.coefficients, axis=0),
    )


def new_weights(edges: np.ndarray, edge_values: np.ndarray, number: int) -> np.ndarray:
    """e_ij/√(max_i · max_j) of the last `number` edges, shape (number,)."""
    heaviest = np.zeros(int(edges.max(initial=0)) + 1)
    np.maximum.at(heaviest, edges.ravel(), np.repeat(edge_values, 2))
    last = slice(len(edges) - number, None)
    return edge_values[last] / np.sqrt(heaviest[edges[last]]).prod(axis=1)
