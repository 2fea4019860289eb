"""The linear algebra of the rounds that learn neighbours, on a torch device.

What every number must be is said in :mod:`ggmtl.evidence.sampled_edges`; models, samples and edge reductions stay
on the device, numbers per edge and the models come back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ggmtl.evidence.dense import EvidenceModel, prior_terms
from ggmtl.evidence.gpu.loss import DeviceLoss, host
from ggmtl.evidence.gpu.samples import posterior_noise, prior_moments, squared_distances
from ggmtl.evidence.hub import profiled_noise
from ggmtl.evidence.sampled_edges import PRIOR_SAMPLES, RESULT_TOL, Neighbours, number_of_samples, solves_for
from ggmtl.runtime.sizes import SIZES, Sizes
from ggmtl.solve.gpu.products import TensorGraph
from ggmtl.solve.gpu.solver import TensorSolver
from ggmtl.solve.gpu.system import TensorSystem

# As on the CPU: accuracy of models and samples within a round, and the ridge that determines what no row does.
_TOL, _SAMPLE_TOL = 1e-4, 1e-2
_RIDGE = 1e-10


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
        hub, ridge = there(state.hub), there(np.full((1, 1), _RIDGE))
        return TensorSystem(self.loss.tensors.gram, graph, there(state.edge_values), torch.ones_like(hub), hub, ridge)

    def _noise(self, system: TensorSystem, models: Tensor) -> float:
        """σ², from twice the inner objective."""
        apart = squared_distances(models, system.graph.edges) @ system.weights
        spread = (models - models.mean(0)).square_().sum(0) @ system.hub
        quadratic = 2 * self.loss.tensors.task_values(models).sum() + apart + spread + _RIDGE * models.square().sum()
        return profiled_noise(self.loss, float(quadratic))[1]  # pyright: ignore[reportArgumentType]


@solves_for.register(DeviceLoss)
def _(loss: DeviceLoss, sizes: Sizes = SIZES) -> DeviceSolves:
    """Solves on the device."""
    return DeviceSolves(loss, sizes)
