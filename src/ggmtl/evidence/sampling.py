"""Stochastic estimates for many tasks, from random signs ε: posterior and prior samples, and log-determinants.

A sample z solves A z = ζ with E ζζᵀ = A, so that E zzᵀ = A⁻¹:

    ζ = G_i^{1/2} ε₁ + Σ_ij b_ij (e_ij Λ)^{1/2} ε₂ + (I − 11ᵀ/n) h^{1/2} ε₃ + ρ^{1/2} ε₄ .

E(uᵀΛu) is also an average over the p coefficients, so S samples give it a relative error of about √(2/(S p)).

Log-determinants use stochastic Lanczos quadrature. With D the diagonal blocks of A and F Fᵀ = D,
ln|A| = ln|D| + tr ln Ã. The eigenvalues of Ã = F⁻¹A F⁻ᵀ are near one, and the trace is the mean of εᵀ ln(Ã) ε. Two
parts of it are computed exactly, which removes most of the variance: a quadratic approximation of ln, from the traces
of Ã and Ã², and the hub, which has low rank. Without edges the result is exact.

ln|P_k|₊ is computed from a sparse factor if that has little fill-in (a line, a surface, clusters). Other graphs are
expanders with a well-conditioned Laplacian, for which Lanczos is accurate. The zero eigenvalues of L, one per
component, are known and are shifted away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components, reverse_cuthill_mckee
from scipy.sparse.linalg import splu

from ggmtl.errors import SingularSystemError
from ggmtl.evidence.dense import EvidenceModel, strength_groups
from ggmtl.evidence.hub_sums import chunks
from ggmtl.runtime import kernels
from ggmtl.solve.solvers import prepare
from ggmtl.solve.system import TaskSystem, laplacian

# Where hub plus edges are less than this multiple of the hub, prior terms are computed to first order in the edges.
_FIRST_ORDER = 1.3


def posterior_noise(system: TaskSystem, n_samples: int, random: np.random.Generator) -> np.ndarray:
    """ζ with E ζζᵀ = A, shape (n, p, n_samples). It is made of random signs, because their squares do not vary."""
    n, p = system.shape
    noise = np.empty((n, p, n_samples))
    for rows in chunks(n, p * p):
        signs = _signs(random, (rows.stop - rows.start, p, n_samples))
        np.matmul(_square_roots(system.gram[rows]), signs, out=noise[rows])
    # All operations are in place: arrays of this size may fill much of the memory.
    if system.hub.any():
        pull = _signs(random, noise.shape)
        pull -= pull.mean(axis=0)
        pull *= np.sqrt(system.hub)[:, None]
        noise += pull
    if np.any(system.ridge):
        signs = _signs(random, noise.shape)
        signs *= np.sqrt(np.broadcast_to(system.ridge, (n, p)))[..., None]
        noise += signs
    seed, scale = int(random.integers(2**63)), np.repeat(np.sqrt(system.coupling), n_samples)
    kernels.add_edge_noise(noise.reshape(n, -1), system.edges, system.edge_weights, scale, seed)
    return noise


def sampled_prior_terms(
    model: EvidenceModel,
    edge_values: np.ndarray,
    n_samples: int,
    random: np.random.Generator,
    tol: float = 1e-2,
) -> tuple[np.ndarray, np.ndarray]:
    """Estimates of Σ_k Λ_k R⁽ᵏ⁾ for every edge, shape (m,), and of tr P_k⁺, shape (p,), from samples of the prior."""
    n, p = model.loss.moment.shape
    i, j = model.edges.T
    resistance, trace = np.zeros(len(model.edges)), np.empty(p)
    for columns in strength_groups(model):
        coupling, hub = model.coupling[columns[0]], model.hub[columns[0]]
        pull = hub + coupling * np.bincount(model.edges.ravel(), np.repeat(edge_values, 2), n)
        if np.quantile(pull, 0.9) < _FIRST_ORDER * hub:
            # The hub is much stronger than the edges, so (Λ L + h I)⁻¹ is its diagonal to first order.
            resistance += coupling * len(columns) * (1.0 / pull[i] + 1.0 / pull[j])
            trace[columns] = (1.0 / pull).sum() * (1.0 - 1.0 / n)
            continue
        none, one, shift = np.zeros((n, 1, 1)), np.array([coupling]), np.array(hub)
        system = TaskSystem(none, model.edges, edge_values, one, np.zeros(1), shift, sizes=model.sizes)
        solution = prepare(system).solve(posterior_noise(system, n_samples, random), tol=tol)
        samples = solution.require(2 * tol).value[:, 0]
        for rows in chunks(len(i), 4 * n_samples):
            gap = samples[i[rows]] - samples[j[rows]]
            resistance[rows] += coupling * len(columns) / n_samples * np.einsum("es,es->e", gap, gap)
        trace[columns] = ((samples - samples.mean(axis=0)) ** 2).sum(axis=0).mean()
    return resistance, trace


def _signs(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Independent random signs, 1 or −1."""
    size = int(np.prod(shape))
    bits = np.unpackbits(np.frombuffer(random.bytes(-(-size // 8)), np.uint8), count=size)
    signs = bits.astype(np.float64)
    signs *= 2.0
    signs -= 1.0
    return signs.reshape(shape)


def _square_roots(gram: np.ndarray) -> np.ndarray:
    """Lower triangular roots of the G_i, shape (n, p, p), with a tiny diagonal added for singular G_i."""
    jitter = 1e-11 * np.einsum("nkk->n", gram) + np.finfo(float).tiny
    return np.linalg.cholesky(gram + jitter[:, None, None] * np.eye(gram.shape[-1]))


# Largest number of Lanczos steps. Every `_CHECKED` steps the estimate is updated. The iteration ends when that changes
# the estimate by less than this share of its standard error.
_STEPS, _CHECKED, _SETTLED = 40, 4, 0.1


# ---------------------------------------------------------------------- traces of logarithms


@dataclass(frozen=True)
class _Scaled:
    """The matrix Ã = F⁻¹A F⁻ᵀ, given by its factors and traces.

    `product` multiplies by A, and `divide` by D⁻¹ = F⁻ᵀF⁻¹. `moments`, shape (3,), are the traces of I, Ã and Ã².
    """

    product: Callable[[np.ndarray], np.ndarray]
    divide: Callable[[np.ndarray], np.ndarray]
    moments: np.ndarray


@dataclass(frozen=True)
class Traces:
    """Estimates of a trace, one per probe, shape (r,), and the change of their mean by the last Lanczos steps."""

    values: np.ndarray
    last_change: float


@dataclass(frozen=True)
class _LowRank:
    """The approximation I − VVᵀ of Ã by the hub alone.

    `eigenvalues`, shape (q,), are those of VVᵀ. `squares`, shape (q, r), are the squared components of each probe ε
    along the eigenvectors.
    """

    eigenvalues: np.ndarray
    squares: np.ndarray


def _log_traces(scaled: _Scaled, start: np.ndarray, n_columns: int, near: _LowRank | None = None) -> Traces:
    """One estimate of tr ln Ã for each column Fε of `start`, where ε are random signs.

    `n_columns` is the number of estimates that the caller averages. The Lanczos iteration keeps the pairs u and D⁻¹u
    with u = Fv, so it needs no product with F. Without reorthogonalisation, the Gauss rule repeats converged nodes.
    This only divides their weights and does not change the integral.
    """
    dual = start / np.sqrt(scaled.moments[0])
    primal, behind = scaled.divide(dual), np.zeros_like(dual)
    beta, alive = np.zeros(start.shape[-1]), np.ones(start.shape[-1], dtype=bool)
    diagonal, off_diagonal, values, changed = [], [], np.empty(0), np.inf
    for step in range(1, _STEPS + 1):
        ahead = scaled.product(primal)
        ahead -= np.multiply(behind, beta, out=behind)
        alpha = _dots(primal, ahead)
        ahead -= alpha * dual
        image = scaled.divide(ahead)
        # If the Krylov space of a column is exhausted, the column continues with nodes at one of weight zero.
        diagonal.append(np.where(alive, alpha, 1.0))
        beta = np.sqrt(np.maximum(_dots(ahead, image), 0.0))
        alive &= beta > 1e-12
        beta = np.where(alive, beta, 0.0)
        off_diagonal.append(beta)
        scale = np.where(alive, 1.0 / np.where(alive, beta, 1.0), 0.0)
        behind, dual, primal = dual, np.multiply(ahead, scale, out=ahead), np.multiply(image, scale, out=image)
        if step % _CHECKED == 0 or not alive.any():
            before, values = values, _integrals(np.array(diagonal), np.array(off_diagonal[:-1]), scaled.moments, near)
            if not alive.any():
                return Traces(values, 0.0)
            changed = abs(float((values - before).mean())) if len(before) else np.inf
            if changed <= _SETTLED * values.std(ddof=1) / np.sqrt(n_columns):
                break
    return Traces(values, changed)


def _integrals(
    diagonal: np.ndarray, off_diagonal: np.ndarray, moments: np.ndarray, near: _LowRank | None
) -> np.ndarray:
    """Estimates tr q(Ã) + εᵀ(ln − q)(Ã)ε of tr ln Ã from the Gauss rule of every column, shape (columns,).

    q is the quadratic that approximates ln best, by least squares over the nodes and weights of all the rules. The
    tridiagonal Lanczos matrices are given by `diagonal`, shape (steps, columns), and `off_diagonal`.
    """
    steps, columns = diagonal.shape
    matrix, index = np.zeros((columns, steps, steps)), np.arange(steps)
    matrix[:, index, index] = diagonal.T
    matrix[:, index[1:], index[:-1]] = off_diagonal.T
    nodes, vectors = np.linalg.eigh(matrix)
    nodes, weights = np.maximum(nodes, np.finfo(float).tiny), vectors[:, 0] ** 2
    root = np.sqrt(weights)
    powers = np.stack([root, root * nodes, root * nodes**2], axis=-1).reshape(-1, 3)
    quadratic = np.linalg.lstsq(powers, (root * np.log(nodes)).ravel(), rcond=None)[0]

    def rest(x: np.ndarray) -> np.ndarray:
        return np.log(x) - (quadratic[0] + quadratic[1] * x + quadratic[2] * x**2)

    values = quadratic @ moments + moments[0] * (weights * rest(nodes)).sum(axis=1)
    if near is not None:
        excess = rest(1.0 - near.eigenvalues) - rest(np.ones(1))
        values += excess.sum() - excess @ near.squares
    return values


def _dots(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Inner products of corresponding columns (entries of the last axis), shape (columns,)."""
    columns = a.shape[-1]
    return np.einsum("nr,nr->r", a.reshape(-1, columns), b.reshape(-1, columns))


# ---------------------------------------------------------------------- ln|A|


def system_log_determinants(model: EvidenceModel, edge_values: np.ndarray, signs: np.ndarray) -> Traces:
    """Estimates of ln|A|, one per probe; `signs` are the probes, shape (n, p, probes).

    D_i = G_i + diag(h + ρ + degrees). The low-rank part −11ᵀ/n ⊗ diag(h) of the hub is treated exactly.
    """
    n, _, n_probes = signs.shape
    system, gram = model.system(edge_values), model.loss.gram
    shift = system.degrees() + (model.hub + model.ridge)
    try:
        inverse, log_det = kernels.inverse_blocks(gram, shift)
    except np.linalg.LinAlgError:
        raise SingularSystemError(
            "The evidence cannot be computed: the matrix of a task is singular to working accuracy. Use a larger ridge."
        ) from None
    root = np.sqrt(model.hub / n)
    hub_values, hub_vectors = np.linalg.eigh(root[:, None] * inverse.sum(axis=0) * root)
    moments = _system_moments(model, edge_values, inverse, hub_values)
    scaled = _Scaled(system.apply, partial(kernels.block_product, inverse), moments)
    parts = []
    for columns in np.array_split(
        np.arange(n_probes), 1 if signs.size <= model.sizes.probes_together else n_probes // 2
    ):
        start = _rooted(gram, shift, np.ascontiguousarray(signs[..., columns]))
        # Vᵀε for V = F⁻¹(1 ⊗ (h/n)^½), in the basis of eigenvectors.
        along = hub_vectors.T @ (root[:, None] * scaled.divide(start).sum(axis=0))
        near = _LowRank(hub_values, along**2 / np.maximum(hub_values, np.finfo(float).tiny)[:, None])
        parts.append(_log_traces(scaled, start, n_probes, near))
    values = float(log_det.sum()) + np.concatenate([part.values for part in parts])
    return Traces(values, max(part.last_change for part in parts))


def _rooted(gram: np.ndarray, shift: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """F ε for the Cholesky factors F_i of G_i + diag(s_i), shape (n, p, probes); it overwrites `signs`."""
    index = np.arange(gram.shape[-1])
    for rows in chunks(len(gram), gram.shape[-1] ** 2):
        blocks = gram[rows].copy()
        blocks[:, index, index] += shift[rows]
        signs[rows] = np.matmul(np.linalg.cholesky(blocks), signs[rows])
    return signs


def _system_moments(
    model: EvidenceModel, edge_values: np.ndarray, inverse: np.ndarray, hub_values: np.ndarray
) -> np.ndarray:
    """tr I, tr Ã and tr Ã², shape (3,), for Ã = I − VVᵀ + Ẽ. The part Ẽ of the edges has no diagonal blocks.

    tr Ẽ² = Σ_ij w_ij² tr(B_iΛB_jΛ) and tr VᵀẼV = −Σ_ij w_ij tr(diag(h) B_iΛB_j)/n, over ordered pairs, B_i = D_i⁻¹.
    """
    n, p = model.loss.moment.shape
    i, j = model.edges.T
    places = (np.concatenate([i, j]), np.concatenate([j, i]))
    graph = sparse.csr_array((np.tile(edge_values, 2), places), shape=(n, n))
    squared = sparse.csr_array((graph.data**2, graph.indices, graph.indptr), shape=(n, n))
    flat, within, across = inverse.reshape(n, p * p), np.zeros(p * p), np.zeros(p * p)
    for rows in chunks(n, p * p):
        within += np.einsum("nk,nk->k", squared[rows] @ flat, flat[rows])
        across += np.einsum("nk,nk->k", graph[rows] @ flat, flat[rows])
    edge_square = float(np.outer(model.coupling, model.coupling).ravel() @ within)
    hub_edge = float(np.outer(model.hub, model.coupling).ravel() @ across) / n
    first = n * p - hub_values.sum()
    return np.array([n * p, first, first - hub_values.sum() + (hub_values**2).sum() + edge_square + 2.0 * hub_edge])


# ---------------------------------------------------------------------- ln|P_k|₊


def prior_log_determinants(model: EvidenceModel, edge_values: np.ndarray, signs: np.ndarray) -> Traces:
    """Estimates of Σ_k ln|P_k|₊, one per probe. Where a sparse factor is cheaper, they are exact and all equal."""
    n, _, n_probes = signs.shape
    total, last_change = np.zeros(n_probes), 0.0
    for columns in strength_groups(model):
        coupling, hub = float(model.coupling[columns[0]]), float(model.hub[columns[0]])
        matrix = laplacian(model.edges, coupling * edge_values, n, hub)
        if _envelope_work(matrix) <= model.sizes.factor_speed * _STEPS * matrix.nnz * len(columns) * n_probes:
            total += len(columns) * (_factored_log_determinant(matrix) - np.log(hub))
            continue
        found = _laplacian_log_determinants(matrix, hub, signs[:, columns].reshape(n, -1))
        total += (found.values - np.log(hub)).reshape(len(columns), n_probes).sum(axis=0)
        last_change += len(columns) * found.last_change
    return Traces(total, last_change)


def _envelope_work(matrix: sparse.csr_array) -> float:
    """Multiplications of an envelope factorisation in reverse Cuthill–McKee order: the sum of squared row widths."""
    n = matrix.shape[0]  # pyright: ignore[reportOptionalSubscript]
    places = (matrix.indices.astype(np.int32), matrix.indptr.astype(np.int32))
    order = reverse_cuthill_mckee(sparse.csr_matrix((matrix.data, *places), shape=matrix.shape), symmetric_mode=True)
    place = np.empty(n, dtype=np.int64)
    place[order] = np.arange(n)
    # Every row has a diagonal entry, so none of the segments is empty.
    first = np.minimum.reduceat(place[matrix.indices], matrix.indptr[:-1])
    return float(np.square((place - first).astype(float)).sum())


def _factored_log_determinant(matrix: sparse.csr_array) -> float:
    """ln|K| of a sparse positive definite M-matrix; its factorisation needs no pivoting."""
    options = {"SymmetricMode": True}
    factor = splu(sparse.csc_array(matrix), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options)
    return float(np.log(factor.U.diagonal()).sum())


def _laplacian_log_determinants(matrix: sparse.csr_array, hub: float, signs: np.ndarray) -> Traces:
    """Estimates of ln|K| for K = Λ L + h I, one per column of `signs`, by Lanczos on K' = K + Σ_C τ_C 1_C1_Cᵀ/|C|.

    K 1_C = h 1_C for every component C, so that ln|K| = ln|K'| − Σ_C ln((h + τ_C)/h) for any τ. With τ_C the mean
    diagonal of the component, its lowest eigenvalue, which may be close to zero, becomes one of medium size.
    """
    n, columns = signs.shape
    n_components, label = connected_components(matrix, directed=False)
    diagonal = matrix.diagonal()
    size = np.bincount(label, minlength=n_components)
    lift = np.bincount(label, diagonal, n_components) / size
    members = sparse.csr_array((np.ones(n), (label, np.arange(n))), shape=(n_components, n))
    inverse, each = np.reciprocal(diagonal), (lift / size)[label]

    def product(values: np.ndarray) -> np.ndarray:
        return kernels.sparse_product(matrix, values) + each[:, None] * (members @ values)[label]

    squared = sparse.csr_array((matrix.data**2, matrix.indices, matrix.indptr), shape=matrix.shape)
    second = inverse @ (squared @ inverse) + 2.0 * (each * inverse) @ (matrix @ inverse)
    second += np.square(lift / size * np.bincount(label, inverse, n_components)).sum()
    moments = np.array([n, n + each @ inverse, second])
    scaled = _Scaled(product, lambda values: inverse[:, None] * values, moments)
    traces = _log_traces(scaled, np.sqrt(diagonal)[:, None] * signs, columns)
    return replace(traces, values=traces.values + np.log(diagonal).sum() - np.log1p(lift / hub).sum())
