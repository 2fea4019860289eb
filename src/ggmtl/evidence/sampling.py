"""Evidence of many tasks from random signs ε: samples of the posterior, of the prior, and log-determinants.

Samples solve A z = ζ with E ζζᵀ = A, so that E zzᵀ = A⁻¹:

    ζ = G_i^{1/2} ε₁ + Σ_ij b_ij (e_ij Λ)^{1/2} ε₂ + (I − 11ᵀ/n) h^{1/2} ε₃ + ρ^{1/2} ε₄ .

E(uᵀΛu) averages over the p coefficients as well: S samples have a relative error of about √(2/(S p)).

Log-determinants use stochastic Lanczos quadrature. With D the diagonal blocks of A and F Fᵀ = D,
ln|A| = ln|D| + tr ln Ã, where Ã = F⁻¹A F⁻ᵀ has its spectrum near one, and the trace is the mean of εᵀ ln(Ã) ε. Two
parts of that are exact, which removes most of the variance: the best quadratic approximation of ln, from the traces
of Ã and Ã², and the hub, which has low rank. Without edges the result is exact.

ln|P_k|₊ comes from a sparse factor where the graph has little fill (a line, a surface, clusters). Elsewhere the graph
expands and its Laplacian is well conditioned, so Lanczos is accurate; the zero eigenvalues of L, one per component,
are known and shifted away.
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

# Up to this ratio of hub and edges to the hub alone the prior of a coordinate is that of the hub.
_FIRST_ORDER = 1.3


def posterior_noise(system: TaskSystem, n_samples: int, random: np.random.Generator) -> np.ndarray:
    """ζ with E ζζᵀ = A, shape (n, p, n_samples); made of random signs, whose squares have no noise of their own."""
    n, p = system.shape
    noise = np.empty((n, p, n_samples))
    for rows in chunks(n, p * p):
        signs = _signs(random, (rows.stop - rows.start, p, n_samples))
        np.matmul(_square_roots(system.gram[rows]), signs, out=noise[rows])
    # In place throughout: arrays of this size may fill much of the memory.
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
    """Σ_k Λ_k R⁽ᵏ⁾ of every edge, shape (m,), and tr P_k⁺, shape (p,), from samples of N(0, (Λ_k L + h_k I)⁻¹)."""
    n, p = model.loss.moment.shape
    i, j = model.edges.T
    resistance, trace = np.zeros(len(model.edges)), np.empty(p)
    for columns in strength_groups(model):
        coupling, hub = model.coupling[columns[0]], model.hub[columns[0]]
        pull = hub + coupling * np.bincount(model.edges.ravel(), np.repeat(edge_values, 2), n)
        if np.quantile(pull, 0.9) < _FIRST_ORDER * hub:
            # So strong a hub leaves next to nothing to the edges: (Λ L + h I)⁻¹ is its diagonal, to first order.
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
    """Independent numbers, each 1 or −1."""
    size = int(np.prod(shape))
    bits = np.unpackbits(np.frombuffer(random.bytes(-(-size // 8)), np.uint8), count=size)
    signs = bits.astype(np.float64)
    signs *= 2.0
    signs -= 1.0
    return signs.reshape(shape)


def _square_roots(gram: np.ndarray) -> np.ndarray:
    """G_i^{1/2}, lower triangular, a trifle added so that singular G_i have one too."""
    trifle = 1e-11 * np.einsum("nkk->n", gram) + np.finfo(float).tiny
    return np.linalg.cholesky(gram + trifle[:, None, None] * np.eye(gram.shape[-1]))


# Steps of Lanczos at most, and between looks at what they changed; they end when that is this share of the error.
_STEPS, _LOOK, _SETTLED = 40, 4, 0.1


# ---------------------------------------------------------------------- traces of logarithms


@dataclass(frozen=True)
class _Scaled:
    """Ã = F⁻¹A F⁻ᵀ, by the products with A and with D⁻¹ = F⁻ᵀF⁻¹; `moments` are the traces of I, Ã and Ã²."""

    product: Callable[[np.ndarray], np.ndarray]
    divide: Callable[[np.ndarray], np.ndarray]
    moments: np.ndarray


@dataclass(frozen=True)
class Traces:
    """One estimate per column, shape (r,), and what the last steps changed in their mean."""

    values: np.ndarray
    unsettled: float


@dataclass(frozen=True)
class _LowRank:
    """I − VVᵀ, near Ã: eigenvalues s of VVᵀ, shape (q,), and squares of ε along their vectors, shape (q, r)."""

    eigenvalues: np.ndarray
    squares: np.ndarray


def _log_traces(scaled: _Scaled, start: np.ndarray, n_columns: int, near: _LowRank | None = None) -> Traces:
    """One estimate of tr ln Ã per column Fε of `start`, for ε of signs; `n_columns` such will be averaged.

    Lanczos in the pair (u, D⁻¹u) with u = Fv needs no product with F. Without reorthogonalisation the rule repeats
    nodes that have converged, which divides their weights and leaves the integral as it is.
    """
    dual = start / np.sqrt(scaled.moments[0])
    primal, behind = scaled.divide(dual), np.zeros_like(dual)
    beta, alive = np.zeros(start.shape[-1]), np.ones(start.shape[-1], dtype=bool)
    diagonal, beside, values, changed = [], [], np.empty(0), np.inf
    for step in range(1, _STEPS + 1):
        ahead = scaled.product(primal)
        ahead -= np.multiply(behind, beta, out=behind)
        alpha = _dots(primal, ahead)
        ahead -= alpha * dual
        image = scaled.divide(ahead)
        # A column whose Krylov space is exhausted goes on with nodes at one, of weight zero.
        diagonal.append(np.where(alive, alpha, 1.0))
        beta = np.sqrt(np.maximum(_dots(ahead, image), 0.0))
        alive &= beta > 1e-12
        beta = np.where(alive, beta, 0.0)
        beside.append(beta)
        scale = np.where(alive, 1.0 / np.where(alive, beta, 1.0), 0.0)
        behind, dual, primal = dual, np.multiply(ahead, scale, out=ahead), np.multiply(image, scale, out=image)
        if step % _LOOK == 0 or not alive.any():
            before, values = values, _integrals(np.array(diagonal), np.array(beside[:-1]), scaled.moments, near)
            if not alive.any():
                return Traces(values, 0.0)
            changed = abs(float((values - before).mean())) if len(before) else np.inf
            if changed <= _SETTLED * values.std(ddof=1) / np.sqrt(n_columns):
                break
    return Traces(values, changed)


def _integrals(diagonal: np.ndarray, beside: np.ndarray, moments: np.ndarray, near: _LowRank | None) -> np.ndarray:
    """tr q(Ã) + εᵀ(ln − q)(Ã)ε by the Gauss rule of every column; q is the quadratic next to ln under all the rules."""
    steps, columns = diagonal.shape
    matrix, index = np.zeros((columns, steps, steps)), np.arange(steps)
    matrix[:, index, index] = diagonal.T
    matrix[:, index[1:], index[:-1]] = beside.T
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
    columns = a.shape[-1]
    return np.einsum("nr,nr->r", a.reshape(-1, columns), b.reshape(-1, columns))


# ---------------------------------------------------------------------- ln|A|


def system_log_determinants(model: EvidenceModel, edge_values: np.ndarray, signs: np.ndarray) -> Traces:
    """Estimates of ln|A|, one per probe; D_i = G_i + diag(h + ρ + degrees), the hub's −11ᵀ/n ⊗ diag(h) apart."""
    n, _, n_probes = signs.shape
    system, gram = model.system(edge_values), model.loss.gram
    shift = system.degrees() + (model.hub + model.ridge)
    try:
        inverse, log_det = kernels.inverse_blocks(gram, shift)
    except np.linalg.LinAlgError:
        raise SingularSystemError(
            "The evidence is not defined: a task's block is singular to working accuracy. Use a larger ridge."
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
        # Vᵀε for V = F⁻¹(1 ⊗ (h/n)^½).
        along = hub_vectors.T @ (root[:, None] * scaled.divide(start).sum(axis=0))
        near = _LowRank(hub_values, along**2 / np.maximum(hub_values, np.finfo(float).tiny)[:, None])
        parts.append(_log_traces(scaled, start, n_probes, near))
    values = float(log_det.sum()) + np.concatenate([part.values for part in parts])
    return Traces(values, max(part.unsettled for part in parts))


def _rooted(gram: np.ndarray, shift: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """F ε for the Cholesky factors F_i of G_i + diag(s_i), in the place of the signs."""
    index = np.arange(gram.shape[-1])
    for rows in chunks(len(gram), gram.shape[-1] ** 2):
        blocks = gram[rows].copy()
        blocks[:, index, index] += shift[rows]
        signs[rows] = np.matmul(np.linalg.cholesky(blocks), signs[rows])
    return signs


def _system_moments(
    model: EvidenceModel, edge_values: np.ndarray, inverse: np.ndarray, hub_values: np.ndarray
) -> np.ndarray:
    """tr I, tr Ã and tr Ã² for Ã = I − VVᵀ + Ẽ: the edges' part Ẽ has no diagonal blocks.

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
    beside_hub = float(np.outer(model.hub, model.coupling).ravel() @ across) / n
    first = n * p - hub_values.sum()
    return np.array([n * p, first, first - hub_values.sum() + (hub_values**2).sum() + edge_square + 2.0 * beside_hub])


# ---------------------------------------------------------------------- ln|P_k|₊


def prior_log_determinants(model: EvidenceModel, edge_values: np.ndarray, signs: np.ndarray) -> Traces:
    """Estimates of Σ_k ln|P_k|₊, one per probe: exact, and all the same, where a sparse factor pays."""
    n, _, n_probes = signs.shape
    total, unsettled = np.zeros(n_probes), 0.0
    for columns in strength_groups(model):
        coupling, hub = float(model.coupling[columns[0]]), float(model.hub[columns[0]])
        matrix = laplacian(model.edges, coupling * edge_values, n, hub)
        if _envelope_work(matrix) <= model.sizes.factor_speed * _STEPS * matrix.nnz * len(columns) * n_probes:
            total += len(columns) * (_factored_log_determinant(matrix) - np.log(hub))
            continue
        found = _laplacian_log_determinants(matrix, hub, signs[:, columns].reshape(n, -1))
        total += (found.values - np.log(hub)).reshape(len(columns), n_probes).sum(axis=0)
        unsettled += len(columns) * found.unsettled
    return Traces(total, unsettled)


def _envelope_work(matrix: sparse.csr_array) -> float:
    """Products of an envelope factor after Cuthill and McKee: Σ of squared row widths, for next to no time."""
    n = matrix.shape[0]  # pyright: ignore[reportOptionalSubscript]
    places = (matrix.indices.astype(np.int32), matrix.indptr.astype(np.int32))
    order = reverse_cuthill_mckee(sparse.csr_matrix((matrix.data, *places), shape=matrix.shape), symmetric_mode=True)
    place = np.empty(n, dtype=np.int64)
    place[order] = np.arange(n)
    # Every row has a diagonal entry, so none of the segments is empty.
    first = np.minimum.reduceat(place[matrix.indices], matrix.indptr[:-1])
    return float(np.square((place - first).astype(float)).sum())


def _factored_log_determinant(matrix: sparse.csr_array) -> float:
    """ln|K| of a sparse positive definite M-matrix, whose factor needs no pivots."""
    options = {"SymmetricMode": True}
    factor = splu(sparse.csc_array(matrix), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options)
    return float(np.log(factor.U.diagonal()).sum())


def _laplacian_log_determinants(matrix: sparse.csr_array, hub: float, signs: np.ndarray) -> Traces:
    """Estimates of ln|K| for K = Λ L + h I, one per column, by Lanczos on K' = K + Σ_C τ_C 1_C1_Cᵀ/|C|.

    K 1_C = h 1_C for every component C, so that ln|K| = ln|K'| − Σ_C ln((h + τ_C)/h), whatever τ; the mean diagonal of
    the component moves its lowest eigenvalue, which may be next to nothing, among the others.
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
