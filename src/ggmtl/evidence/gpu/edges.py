"""Learning neighbours on a torch device: nearest models, samples, and the expectations of a round.

Formulas are those of :mod:`ggmtl.evidence.sampled_edges` and :mod:`ggmtl.evidence.sampling`. Models, samples and edge
reductions stay on the device; one number per edge and the models come back.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ggmtl.evidence.dense import EvidenceModel, prior_terms
from ggmtl.evidence.gpu.kernels import joined_pairs, nearest_in_neighbourhood, nearest_neighbours
from ggmtl.evidence.gpu.loss import DeviceLoss, host
from ggmtl.evidence.hub import misfit
from ggmtl.evidence.sampled_edges import (
    PRIOR_SAMPLES,
    RESULT_TOL,
    SAMPLED_RIDGE,
    Neighbours,
    number_of_samples,
    solves_for,
)
from ggmtl.graph.candidates import Search, search_for
from ggmtl.runtime.sizes import SIZES, Sizes
from ggmtl.solve.gpu.solver import TensorSolver
from ggmtl.solve.gpu.system import TensorGraph, TensorSystem, chunks, compressed_rows, shifted


def find_pairs(
    points: np.ndarray,
    k: int,
    near: np.ndarray | None = None,
    *,
    device: torch.device | str,
    sizes: Sizes = SIZES,
) -> np.ndarray:
    """Pairs of which one is among the `k` nearest of the other: exact, or among neighbours of neighbours in `near`.

    The latter only for very many points. Every pair comes once, in order: sorting millions is work for the device.
    """
    there = torch.as_tensor(points).to(device)
    # Distances are taken in float32, hence from the mean.
    centred = (there - there.mean(0)).float()
    if near is None or not len(near) or len(points) <= sizes.exact_neighbours_gpu:
        return host(joined_pairs(nearest_neighbours(centred, k)))
    graph = TensorGraph.of(torch.as_tensor(near).to(device), len(points))
    return host(joined_pairs(nearest_in_neighbourhood(centred, graph, k)))


@search_for.register(DeviceLoss)
def _(loss: DeviceLoss) -> Search:
    """The search on the device of the loss."""
    return partial(find_pairs, device=loss.moment.device)


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


# As on the CPU: accuracy of models and samples within a round.
_TOL, _SAMPLE_TOL = 1e-4, 1e-2


@dataclass(frozen=True)
class DeviceMoments:
    """What a round learns; fields as in :class:`ggmtl.evidence.sampled_edges.Moments`.

    Parameters
    ----------
    deviations : tensor of shape (n, p (S + 1))
        Models in units of σ and S samples in units of S^½: squared distances between rows are E(uᵀu)/σ².
    """

    coefficients: np.ndarray
    posterior: np.ndarray
    prior: np.ndarray
    hub_prior: np.ndarray
    hub_posterior: np.ndarray
    deviations: Tensor

    def expected_squares(self, edges: np.ndarray) -> np.ndarray:
        """E(uᵀu)/σ² of any pairs of tasks, shape (pairs,)."""
        return host(squared_distances(self.deviations, torch.as_tensor(edges).to(self.deviations.device)))


@dataclass(frozen=True)
class DeviceSolves:
    """Solves for losses on a device: float32 iterations, float64 residuals."""

    loss: DeviceLoss
    sizes: Sizes = SIZES

    def moments(self, state: Neighbours, random: np.random.Generator) -> DeviceMoments:
        """Models, samples and expectations beside the present edges."""
        n, p = self.loss.n_tasks, self.loss.n_features
        system = self._system(state)
        generator = torch.Generator(system.gram.device).manual_seed(int(random.integers(2**63)))
        models, samples = self._models_and_samples(system, state.coefficients, generator)
        variance = self._noise(system, models)
        deviations = torch.cat([models.unsqueeze(2) / variance**0.5, samples / samples.shape[2] ** 0.5], dim=2)
        spread = (deviations - deviations.mean(0)).square_().sum((0, 2))
        if n <= self.sizes.exact_prior:
            exact = prior_terms(EvidenceModel(self.loss, state.edges, np.ones(p), state.hub), state.edge_values)  # pyright: ignore[reportArgumentType]
            prior, trace = exact.resistance.sum(axis=1), exact.trace
        else:
            sampled = prior_moments(system.graph, system.weights, state.hub, PRIOR_SAMPLES, generator, _SAMPLE_TOL)
            prior, trace = host(sampled.resistance), sampled.trace
        rows = deviations.view(n, -1)
        posterior = host(squared_distances(rows, system.graph.edges))
        return DeviceMoments(host(models), posterior, prior, trace, host(spread), rows)

    def models(self, state: Neighbours, tol: float = RESULT_TOL) -> np.ndarray:
        """The models beside the present edges, shape (n, p), to a tenth of the relative residual asked for."""
        solver, start = TensorSolver.of(self._system(state)), self.loss.there(state.coefficients)
        return host(solver.solve(self.loss.moment, start, tol=0.1 * tol).require(100 * tol).value)

    def _models_and_samples(
        self, system: TensorSystem, start: np.ndarray, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Shapes (n, p) and (n, p, S); the preconditioner is given up before anything else is asked for."""
        solver = TensorSolver.of(system)
        models = solver.solve(self.loss.moment, self.loss.there(start), tol=_TOL).require(1e-2).value
        noise = posterior_noise(system, number_of_samples(self.loss.n_features), generator)
        return models, solver.solve(noise, tol=_SAMPLE_TOL).require(2 * _SAMPLE_TOL).value

    def _system(self, state: Neighbours) -> TensorSystem:
        there = self.loss.there
        graph = TensorGraph.of(torch.as_tensor(state.edges).to(self.loss.moment.device), self.loss.n_tasks)
        hub, ridge = there(state.hub), there(np.full((1, 1), SAMPLED_RIDGE))
        return TensorSystem(self.loss.tensors.gram, graph, there(state.edge_values), torch.ones_like(hub), hub, ridge)

    def _noise(self, system: TensorSystem, models: Tensor) -> float:
        """σ², from twice the inner objective."""
        apart = squared_distances(models, system.graph.edges) @ system.weights
        spread = (models - models.mean(0)).square_().sum(0) @ system.hub
        quadratic = (
            2 * self.loss.tensors.task_values(models).sum() + apart + spread + SAMPLED_RIDGE * models.square().sum()
        )
        return misfit(self.loss, float(quadratic))[1]  # pyright: ignore[reportArgumentType]


@solves_for.register(DeviceLoss)
def _(loss: DeviceLoss, sizes: Sizes = SIZES) -> DeviceSolves:
    """Solves on the device."""
    return DeviceSolves(loss, sizes)
