"""Random right-hand sides and priors, for systems too large for a dense inverse.

Posterior variances come from samples: A z = ζ with E ζζᵀ = A, built from random signs ε,

    ζ = G_i^{1/2} ε₁ + Σ_ij b_ij (e_ij Λ)^{1/2} ε₂ + (I − 11ᵀ/n) h^{1/2} ε₃ + ρ^{1/2} ε₄ ,     E zzᵀ = A⁻¹ ,

one solve per sample, all at once. E(uᵀΛu) averages over the p coefficients as well, so S samples give a
relative error of about √(2/(S p)). Effective resistances come from the same samples of the prior alone.
"""

from __future__ import annotations

import numpy as np

from ggmtl import kernels
from ggmtl.evidence.dense import EvidenceModel, strength_groups
from ggmtl.evidence.hub import chunks
from ggmtl.solve.solvers import prepare
from ggmtl.solve.system import TaskSystem

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
