"""Samples behind the expectations of the evidence, drawn on a torch device.

As in :mod:`ggmtl.evidence.samples`,

    ζ = G_i^{1/2} ε₁ + Σ_ij b_ij (w_ij Λ)^{1/2} ε₂ + (I − 11ᵀ/n) h^{1/2} ε₃ + ρ^{1/2} ε₄ ,     E ζζᵀ = A ,

with random signs ε; A z = ζ then has E zzᵀ = A⁻¹.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ggmtl.solve.gpu.blocks import shifted
from ggmtl.solve.gpu.products import TensorGraph, chunks, compressed_rows
from ggmtl.solve.gpu.solver import TensorSolver
from ggmtl.solve.gpu.system import TensorSystem

# As on the CPU: up to this ratio of hub and edges to the hub alone the prior of a coordinate is that of the hub.
_FIRST_ORDER = 1.3
# Strengths that agree to so many digits are the same.
_DIGITS = 9
# A trifle, relative to the trace, so that singular matrices have a root too.
_TRIFLE = 1e-11


@dataclass(frozen=True)
class PriorMoments:
    """What the prior alone expects.

    Parameters
    ----------
    resistance : tensor of shape (m,)
        Σ_k R⁽ᵏ⁾ of every edge.
    trace : array of shape (p,)
        tr P_k⁺.
    """

    resistance: Tensor
    trace: np.ndarray


def posterior_noise(system: TensorSystem, n_samples: int, generator: torch.Generator) -> Tensor:
    """ζ with E ζζᵀ = A, shape (n, p, n_samples)."""
    n, p = system.shape
    noise = torch.empty((n, p, n_samples), dtype=system.dtype, device=system.gram.device)
    for rows in chunks(n, 4 * p * p):
        noise[rows] = torch.bmm(_roots(system.gram[rows], system.dtype), _signs(noise[rows].shape, system, generator))
    if bool(system.hub.any()):
        pull = _signs(noise.shape, system, generator)
        noise += system.hub.sqrt().unsqueeze(1) * (pull - pull.mean(0))
    if bool(system.ridge.any()):
        noise += system.ridge.sqrt().unsqueeze(-1) * _signs(noise.shape, system, generator)
    m = len(system.graph.edges)
    if m:
        incidence, flat = _incidence(system.graph, system.weights.sqrt()), noise.view(n, -1)
        scale = system.coupling.sqrt().repeat_interleave(n_samples)
        for columns in chunks(flat.shape[1], m):
            along = _signs((m, columns.stop - columns.start), system, generator)
            flat[:, columns] += (incidence @ along) * scale[columns]
    return noise


def prior_moments(
    graph: TensorGraph, weights: Tensor, hub: np.ndarray, n_samples: int, generator: torch.Generator, tol: float
) -> PriorMoments:
    """Effective resistances and traces from samples of N(0, (L + h_k I)⁻¹), one set for each distinct h_k."""
    resistance, trace = torch.zeros_like(weights), np.empty(len(hub))
    degree = (graph.adjacency(weights) @ weights.new_ones(graph.n, 1))[:, 0]
    for columns in _equal_strengths(hub):
        strength = float(hub[columns[0]])
        one, trace[columns] = _prior_of(graph, weights, degree, strength, n_samples, generator, tol)
        resistance.add_(one, alpha=len(columns))
    return PriorMoments(resistance, trace)


def _prior_of(
    graph: TensorGraph,
    weights: Tensor,
    degree: Tensor,
    hub: float,
    n_samples: int,
    generator: torch.Generator,
    tol: float,
) -> tuple[Tensor, float]:
    """R of every edge and tr P⁺ for one strength of the hub."""
    n, pull = graph.n, degree + hub
    if float(pull.kthvalue(max(1, round(0.9 * n))).values) < _FIRST_ORDER * hub:
        # So strong a hub leaves next to nothing to the edges: (L + h I)⁻¹ is its diagonal, to first order.
        inverse = pull.reciprocal()
        return inverse[graph.edges].sum(1), float(inverse.sum()) * (1.0 - 1.0 / n)
    one = weights.new_ones(1)
    system = TensorSystem(weights.new_zeros(n, 1, 1), graph, weights, one, 0.0 * one, (hub * one).view(1, 1))
    noise = posterior_noise(system, n_samples, generator)
    samples = TensorSolver.of(system).solve(noise, tol=tol).require(2 * tol).value[:, 0]
    centred = samples - samples.mean(0)
    return squared_distances(samples, graph.edges) / n_samples, float(centred.square().sum()) / n_samples


def squared_distances(values: Tensor, edges: Tensor) -> Tensor:
    """‖v_i − v_j‖² of pairs of rows, shape (pairs,)."""
    out = values.new_empty(len(edges))
    for rows in chunks(len(edges), 2 * values.shape[1]):
        i, j = edges[rows].unbind(1)
        out[rows] = (values[i] - values[j]).square_().sum(1)
    return out


def _signs(shape: tuple[int, ...], system: TensorSystem, generator: torch.Generator) -> Tensor:
    """Independent numbers, each 1 or −1."""
    bits = torch.randint(0, 2, shape, generator=generator, dtype=system.dtype, device=system.gram.device)
    return bits.mul_(2).sub_(1)


def _roots(gram: Tensor, dtype: torch.dtype) -> Tensor:
    """G_i^{1/2}, lower triangular."""
    wide = gram.to(dtype)
    # Rounding to the type of storage may have made zero eigenvalues negative.
    trifle = max(_TRIFLE, 4.0 * torch.finfo(gram.dtype).eps) * wide.diagonal(dim1=1, dim2=2).sum(1, keepdim=True)
    return torch.linalg.cholesky(shifted(wide, (trifle + torch.finfo(dtype).tiny).expand(-1, gram.shape[1])))


def _incidence(graph: TensorGraph, roots: Tensor) -> Tensor:
    """Columns b_ij √w_ij, in compressed rows of shape (n, m)."""
    owner = torch.arange(graph.n, device=roots.device).repeat_interleave(graph.start.diff().long())
    first = graph.edges[graph.position, 0] == owner
    values = torch.where(first, 1.0, -1.0) * roots[graph.position]
    return compressed_rows(graph.start, graph.position.to(graph.start.dtype), values, len(graph.edges))


def _equal_strengths(hub: np.ndarray) -> list[np.ndarray]:
    """Coordinates whose strengths agree but for rounding."""
    label = np.unique(np.round(np.log(hub), _DIGITS), return_inverse=True)[1].reshape(-1)
    return [np.flatnonzero(label == group) for group in range(label.max() + 1)]
