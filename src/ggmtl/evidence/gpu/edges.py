"""Learn the edges of very many tasks on a GPU: nearest models, posterior samples, and the expectations of a round.

The formulas are those of :mod:`ggmtl.evidence.sampled_edges` and :mod:`ggmtl.evidence.sampling`. Samples and sums over
them stay on the device. The models and one number per edge are copied back.
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
    """Pairs of points of which one is among the `k` nearest neighbours of the other, sorted, shape (m, 2).

    With very many points and previous edges `near`, shape (pairs, 2), only neighbours of neighbours in `near` are
    searched. Otherwise the result is exact.
    """
    on_gpu = torch.as_tensor(points).to(device)
    # Distances are computed in float32. Centring makes them more accurate.
    centred = (on_gpu - on_gpu.mean(0)).float()
    if near is None or not len(near) or len(points) <= sizes.exact_neighbours_gpu:
        return host(joined_pairs(nearest_neighbours(centred, k)))
    graph = TensorGraph.of(torch.as_tensor(near).to(device), len(points))
    return host(joined_pairs(nearest_in_neighbourhood(centred, graph, k)))


@search_for.register(DeviceLoss)
def _(loss: DeviceLoss) -> Search:
    """The search for nearest neighbours on the device of the loss."""
    return partial(find_pairs, device=loss.moment.device)


# As on the CPU: where hub plus edges are less than this multiple of the hub, prior terms are computed to first order.
_FIRST_ORDER = 1.3
# Strengths that agree to this many digits count as equal.
_DIGITS = 9
# Diagonal that is added to singular matrices before their Cholesky factorisation, relative to the trace.
_JITTER = 1e-11


@dataclass(frozen=True)
class PriorMoments:
    """Prior expectations: effective resistances and traces.

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
    """Effective resistances and traces, estimated from `n_samples` samples of N(0, (L + h_k I)⁻¹) per distinct h_k."""
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
    """R of every edge, shape (m,), and tr P⁺ for one strength of the hub."""
    n, pull = graph.n, degree + hub
    if float(pull.kthvalue(max(1, round(0.9 * n))).values) < _FIRST_ORDER * hub:
        # The hub is much stronger than the edges, so (L + h I)⁻¹ is its diagonal to first order.
        inverse = pull.reciprocal()
        return inverse[graph.edges].sum(1), float(inverse.sum()) * (1.0 - 1.0 / n)
    one = weights.new_ones(1)
    system = TensorSystem(weights.new_zeros(n, 1, 1), graph, weights, one, 0.0 * one, (hub * one).view(1, 1))
    noise = posterior_noise(system, n_samples, generator)
    samples = TensorSolver.of(system).solve(noise, tol=tol).require(2 * tol).value[:, 0]
    centred = samples - samples.mean(0)
    return squared_distances(samples, graph.edges) / n_samples, float(centred.square().sum()) / n_samples


def squared_distances(values: Tensor, edges: Tensor) -> Tensor:
    """‖v_i − v_j‖² for pairs (i, j) of rows of `values`, shape (pairs,)."""
    out = values.new_empty(len(edges))
    for rows in chunks(len(edges), 2 * values.shape[1]):
        i, j = edges[rows].unbind(1)
        out[rows] = (values[i] - values[j]).square_().sum(1)
    return out


def _signs(shape: tuple[int, ...], system: TensorSystem, generator: torch.Generator) -> Tensor:
    """Independent random signs, 1 or −1."""
    bits = torch.randint(0, 2, shape, generator=generator, dtype=system.dtype, device=system.gram.device)
    return bits.mul_(2).sub_(1)


def _roots(gram: Tensor, dtype: torch.dtype) -> Tensor:
    """Lower triangular roots of the G_i, shape (n, p, p), with a tiny diagonal added for singular G_i."""
    wide = gram.to(dtype)
    # Storage in float32 may have made zero eigenvalues negative.
    jitter = max(_JITTER, 4.0 * torch.finfo(gram.dtype).eps) * wide.diagonal(dim1=1, dim2=2).sum(1, keepdim=True)
    return torch.linalg.cholesky(shifted(wide, (jitter + torch.finfo(dtype).tiny).expand(-1, gram.shape[1])))


def _incidence(graph: TensorGraph, roots: Tensor) -> Tensor:
    """The matrix of columns b_ij √w_ij, shape (n, m), in compressed sparse rows."""
    owner = torch.arange(graph.n, device=roots.device).repeat_interleave(graph.start.diff().long())
    first = graph.edges[graph.position, 0] == owner
    values = torch.where(first, 1.0, -1.0) * roots[graph.position]
    return compressed_rows(graph.start, graph.position.to(graph.start.dtype), values, len(graph.edges))


def _equal_strengths(hub: np.ndarray) -> list[np.ndarray]:
    """Groups of coefficients whose strengths are equal up to rounding."""
    label = np.unique(np.round(np.log(hub), _DIGITS), return_inverse=True)[1].reshape(-1)
    return [np.flatnonzero(label == group) for group in range(label.max() + 1)]


# As on the CPU: relative residuals of models and samples within a round.
_TOL, _SAMPLE_TOL = 1e-4, 1e-2


@dataclass(frozen=True)
class DeviceMoments:
    """Models and expectations of one round; fields as in :class:`ggmtl.evidence.sampled_edges.Moments`.

    Parameters
    ----------
    deviations : tensor of shape (n, p (S + 1))
        The models divided by σ, and S samples divided by S^½. Squared distances between rows are E(uᵀu)/σ².
    """

    coefficients: np.ndarray
    posterior: np.ndarray
    prior: np.ndarray
    hub_prior: np.ndarray
    hub_posterior: np.ndarray
    deviations: Tensor

    def expected_squares(self, edges: np.ndarray) -> np.ndarray:
        """Posterior expectation of uᵀu/σ² for any pairs of tasks, shape (pairs,)."""
        return host(squared_distances(self.deviations, torch.as_tensor(edges).to(self.deviations.device)))


@dataclass(frozen=True)
class DeviceSolves:
    """The linear algebra of the rounds on a device, with float32 iterations and float64 residuals."""

    loss: DeviceLoss
    sizes: Sizes = SIZES

    def moments(self, state: Neighbours, random: np.random.Generator) -> DeviceMoments:
        """Models and expectations for the edges and hub of `state`."""
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
        """The models for the edges and hub of `state`, shape (n, p), to a relative residual of a tenth of `tol`."""
        solver, start = TensorSolver.of(self._system(state)), self.loss.there(state.coefficients)
        return host(solver.solve(self.loss.moment, start, tol=0.1 * tol).require(100 * tol).value)

    def _models_and_samples(
        self, system: TensorSystem, start: np.ndarray, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Models, shape (n, p), and S samples, shape (n, p, S).

        The preconditioner is freed on return, before other memory is allocated.
        """
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
        along_edges = squared_distances(models, system.graph.edges) @ system.weights
        spread = (models - models.mean(0)).square_().sum(0) @ system.hub
        fit = 2 * self.loss.tensors.task_values(models).sum()
        quadratic = fit + along_edges + spread + SAMPLED_RIDGE * models.square().sum()
        return misfit(self.loss, float(quadratic))[1]  # pyright: ignore[reportArgumentType]


@solves_for.register(DeviceLoss)
def _(loss: DeviceLoss, sizes: Sizes = SIZES) -> DeviceSolves:
    """The linear algebra on the device of the loss."""
    return DeviceSolves(loss, sizes)
