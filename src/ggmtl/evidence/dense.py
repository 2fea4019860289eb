"""Exact marginal likelihood of a weighted graph with a hub, and its derivatives, by a dense factor of the whole system.

f is the negative log marginal likelihood (evidence) up to a constant. L_e is the Laplacian of the edge values e, Λ the
coupling and h the strength of the hub, each per coefficient k. N is the number of rows, p that of coefficients.

    P_k = Λ_k L_e + h_k (I − 11ᵀ/n),        ln|P_k|₊ = ln|Λ_k L_e + h_k I| − ln h_k
    f   = ½(N − p) ln Q + ½ ln|A| − ½ Σ_k ln|P_k|₊ ,        σ² = Q/(N − p)

Where the noise variance φ is known, ½Q/φ replaces ½(N − p) ln Q, and σ² = φ.

Every derivative is half the difference of a posterior and a prior expectation. For an edge with u = w_i − w_j,

    ∂f/∂e_ij   = ½ [ E(uᵀΛu)/σ² − Σ_k Λ_k R⁽ᵏ⁾_ij ] ,
    E(u_k²)/σ² = û_k²/σ² + (bᵀA⁻¹b)_kk ,        R⁽ᵏ⁾_ij = bᵀ(Λ_k L + h_k I)⁻¹b

So an edge keeps a positive value only if its two models are closer than the rest of the graph explains.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ggmtl.errors import ParameterError
from ggmtl.evidence.hub import RIDGE, misfit
from ggmtl.evidence.hub_sums import chunks
from ggmtl.runtime.sizes import SIZES, Sizes
from ggmtl.solve.system import TaskSystem, inverse_and_log_determinant
from ggmtl.statistics.least_squares import LeastSquares


@dataclass(frozen=True)
class EvidenceModel:
    """A model whose evidence can be computed once edge values are given: losses, edges, coupling and hub.

    Parameters
    ----------
    loss : LeastSquares
        Losses of the tasks.
    edges : array of shape (m, 2)
        Pairs of tasks.
    coupling : array of shape (p,)
        Λ > 0.
    hub : array of shape (p,)
        h > 0.
    ridge : float or array of shape (p,)
        ρ, a tiny ridge that keeps directions without data determined.
    sizes : Sizes
        Problem sizes at which the algorithms change.
    """

    loss: LeastSquares
    edges: np.ndarray
    coupling: np.ndarray
    hub: np.ndarray
    ridge: float | np.ndarray = RIDGE
    sizes: Sizes = SIZES

    def __post_init__(self) -> None:
        if not (np.all(np.asarray(self.hub) > 0) and np.all(np.asarray(self.coupling) > 0)):
            raise ParameterError(
                "hub and coupling must be positive: otherwise the evidence could not remove any edge. "
                f"Got hub={self.hub!r} and coupling={self.coupling!r} instead. Use hub=True."
            )

    def system(self, edge_values: np.ndarray) -> TaskSystem:
        """The linear system A for edge values of shape (m,)."""
        return TaskSystem(
            self.loss.gram,
            self.edges,
            edge_values,
            self.coupling,
            self.hub,
            np.asarray(self.ridge, dtype=float),
            sizes=self.sizes,
        )


@dataclass(frozen=True)
class Expectations:
    """Posterior and prior expectations, from which gradients and multiplicative steps are computed.

    Parameters
    ----------
    edge_posterior, edge_prior : arrays of shape (m,)
        E(uᵀΛu)/σ² after and before the data; the latter is Σ_k Λ_k R⁽ᵏ⁾.
    hub_posterior, hub_prior : arrays of shape (p,)
        E Σ_i (w_i − w̄)_k²/σ² after and before the data.
    """

    edge_posterior: np.ndarray
    edge_prior: np.ndarray
    hub_posterior: np.ndarray
    hub_prior: np.ndarray


@dataclass(frozen=True)
class EdgeEvidence:
    """Evidence of a graph, with its derivatives and the models of the tasks.

    Parameters
    ----------
    value : float
        f, the negative log evidence up to a constant.
    expectations : Expectations
    coefficients : array of shape (n, p)
        Models of the tasks.
    noise : float
        σ².
    covariance : array of shape (n, p, n, p)
        A⁻¹: the posterior covariance of all models in units of σ².
    """

    value: float
    expectations: Expectations
    coefficients: np.ndarray
    noise: float
    covariance: np.ndarray

    @property
    def edge_gradient(self) -> np.ndarray:
        """∂f/∂e, shape (m,)."""
        return 0.5 * (self.expectations.edge_posterior - self.expectations.edge_prior)

    @property
    def hub_gradient(self) -> np.ndarray:
        """∂f/∂h, shape (p,)."""
        return 0.5 * (self.expectations.hub_posterior - self.expectations.hub_prior)


@dataclass(frozen=True)
class PriorTerms:
    """Log-determinant, effective resistances and traces of the prior precisions P_k.

    Parameters
    ----------
    log_determinant : float
        Σ_k ln|P_k|₊.
    resistance : array of shape (m, p)
        R⁽ᵏ⁾ of every edge.
    trace : array of shape (p,)
        tr P_k⁺.
    """

    log_determinant: float
    resistance: np.ndarray
    trace: np.ndarray


def prior_inverses(model: EvidenceModel, edge_values: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, float]]:
    """For every distinct (Λ_k, h_k): its coefficients, (Λ_k L + h_k I)⁻¹ of shape (n, n), and ln|Λ_k L + h_k I|."""
    n = model.loss.n_tasks
    graph = _dense_laplacian(model.edges, edge_values, n)
    for columns in strength_groups(model):
        matrix = model.coupling[columns[0]] * graph
        np.einsum("kk->k", matrix)[:] += model.hub[columns[0]]
        yield columns, *inverse_and_log_determinant(matrix)


def prior_terms(model: EvidenceModel, edge_values: np.ndarray) -> PriorTerms:
    """Exact prior terms, from one n × n inverse per distinct (Λ_k, h_k)."""
    p = model.loss.n_features
    i, j = model.edges.T
    resistance, trace, total = np.empty((len(model.edges), p)), np.empty(p), 0.0
    for columns, inverse, log_det in prior_inverses(model, edge_values):
        hub, diagonal = model.hub[columns[0]], np.diagonal(inverse)
        resistance[:, columns] = (diagonal[i] + diagonal[j] - 2 * inverse[i, j])[:, None]
        trace[columns] = diagonal.sum() - 1.0 / hub
        total += len(columns) * (log_det - np.log(hub))
    return PriorTerms(float(total), resistance, trace)


def edge_evidence(model: EvidenceModel, edge_values: np.ndarray) -> EdgeEvidence:
    """Value of f with all its derivatives and the models, by dense algebra in O((np)³).

    Parameters
    ----------
    model : EvidenceModel
        Losses, edges and strengths.
    edge_values : array of shape (m,)
        e ≥ 0.
    """
    loss = model.loss
    n, p = loss.moment.shape
    i, j = model.edges.T
    system, moment = _dense_system(model, edge_values), loss.moment.ravel()
    inverse, log_det = inverse_and_log_determinant(system)
    solution = inverse @ moment
    # With nearly collinear features, an inverse is less accurate than a factor. One step of iterative refinement
    # restores the accuracy.
    solution += inverse @ (moment - system @ solution)
    coefficients = solution.reshape(n, p)
    covariance = inverse.reshape(n, p, n, p)
    per_coordinate = np.ascontiguousarray(np.einsum("ikjk->kij", covariance))
    diagonal = np.einsum("kii->ki", per_coordinate)
    edge_variance = (diagonal[:, i] + diagonal[:, j] - 2 * per_coordinate[:, i, j]).T
    hub_variance = diagonal.sum(axis=1) - per_coordinate.sum(axis=(1, 2)) / n
    twice_misfit, noise = misfit(loss, inner_quadratic(model, edge_values, coefficients))
    prior = prior_terms(model, edge_values)
    value = 0.5 * (twice_misfit + log_det - prior.log_determinant)
    expectations = _expectations(model, coefficients, noise, edge_variance, hub_variance, prior)
    return EdgeEvidence(float(value), expectations, coefficients, noise, covariance)


def inner_quadratic(model: EvidenceModel, edge_values: np.ndarray, coefficients: np.ndarray) -> float:
    """Q: twice the inner objective. An error of the coefficients changes it only to second order."""
    along_edges = 0.0
    for rows in chunks(len(model.edges), coefficients.shape[1]):
        i, j = model.edges[rows].T
        along_edges += edge_values[rows] @ ((coefficients[i] - coefficients[j]) ** 2 @ model.coupling)
    centred = coefficients - coefficients.mean(axis=0)
    spread = model.hub @ np.einsum("nk,nk->k", centred, centred)
    length = np.sum(model.ridge * np.einsum("nk,nk->k", coefficients, coefficients))
    return float(2 * model.loss.value(coefficients) + along_edges + spread + length)


def _expectations(
    model: EvidenceModel,
    coefficients: np.ndarray,
    noise: float,
    edge_variance: np.ndarray,
    hub_variance: np.ndarray,
    prior: PriorTerms,
) -> Expectations:
    """Expectations from the models, the posterior variances (in units of σ²) and the prior terms."""
    i, j = model.edges.T
    square = (coefficients[i] - coefficients[j]) ** 2 / noise + edge_variance
    centred = coefficients - coefficients.mean(axis=0)
    return Expectations(
        edge_posterior=square @ model.coupling,
        edge_prior=prior.resistance @ model.coupling,
        hub_posterior=(centred**2).sum(axis=0) / noise + hub_variance,
        hub_prior=prior.trace,
    )


def strength_groups(model: EvidenceModel) -> list[np.ndarray]:
    """Groups of coefficients with equal (Λ_k, h_k), and so equal P_k."""
    keys = np.column_stack([model.coupling, model.hub])
    label = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)
    return [np.flatnonzero(label == group) for group in range(label.max() + 1)]


def _dense_laplacian(edges: np.ndarray, values: np.ndarray, n: int) -> np.ndarray:
    weights = np.bincount(edges @ [n, 1], values, n * n).reshape(n, n)
    weights += weights.T
    return np.diag(weights.sum(axis=1)) - weights


def _dense_system(model: EvidenceModel, edge_values: np.ndarray) -> np.ndarray:
    """A as a dense matrix of shape (np, np): P_k + ρI for every coefficient k, plus the block G_i of every task."""
    n, p = model.loss.moment.shape
    graph, centring = _dense_laplacian(model.edges, edge_values, n), np.eye(n) - 1.0 / n
    matrix, tasks, index = np.zeros((n, p, n, p)), np.arange(n), np.arange(p)
    strengths = np.multiply.outer(model.coupling, graph) + np.multiply.outer(model.hub, centring)
    matrix[:, index, :, index] = strengths + np.multiply.outer(model.ridge * np.ones(p), np.eye(n))
    matrix[tasks, :, tasks, :] += model.loss.gram
    return matrix.reshape(n * p, n * p)
