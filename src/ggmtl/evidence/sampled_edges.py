"""Learn the edges of very many tasks from posterior samples, with new candidate edges as the models improve.

Every round solves for the models and for a few posterior samples with the current edges, and multiplies

    e_ij ← e_ij · (r_ij/r̄)^a · r̄^b ,      r_ij = [Σ_k R⁽ᵏ⁾_ij] / [E(uᵀu)/σ²] ,      r̄ = Σ e·prior / Σ e·posterior ,

The fixed points are those of the evidence (see :mod:`ggmtl.evidence.edge_steps`). The mean ratio r̄ is estimated well
from few samples but converges slowly, so it gets the larger power: b > a. In the first rounds, the edges are then
replaced by the nearest pairs among the new models. These are much better candidates than pairs of models that were
fitted separately, and cost one nearest-neighbour search. A new edge starts with the median e_ij E(uᵀu) of the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import singledispatch
from time import perf_counter
from typing import Protocol

import numpy as np

from ggmtl.evidence.dense import EvidenceModel, inner_quadratic, prior_terms
from ggmtl.evidence.hub import misfit
from ggmtl.evidence.hub_strengths import group_labels
from ggmtl.evidence.hub_sums import chunks
from ggmtl.evidence.sampling import posterior_noise, sampled_prior_terms
from ggmtl.graph.candidates import CandidateEdges
from ggmtl.runtime.journal import Journal
from ggmtl.runtime.sizes import SIZES, Sizes
from ggmtl.solve.solvers import Prepared, prepare
from ggmtl.statistics.least_squares import LeastSquares

logger = logging.getLogger("ggmtl")
# Seconds between two log messages about progress.
_PAUSE = 2.0
# Number of rounds, and the number of first rounds after which new candidates are proposed.
ROUNDS, RENEWED = 6, 4
# The powers a and b.
_POWER, _COMMON_POWER = 1.5, 3.0
# Largest factor in one round, both of a single edge relative to the others and of all edges together.
_LARGEST_STEP = 30.0
# The number of posterior samples times that of coefficients is about 84, which gives a relative error of one sixth per
# edge and round. The next two numbers are the fewest and the most samples.
_SAMPLED_NUMBERS, _FEWEST, _MOST = 84, 4, 32
PRIOR_SAMPLES = 32
# Relative residuals of the models of a result, of the models within a round, and of samples. The sampling error is far
# larger than an error of one percent.
RESULT_TOL, ROUND_TOL, _SAMPLE_TOL = 1e-6, 1e-4, 1e-2
# ρ. Coefficients are scaled so that their strengths are equal. A ridge as large as that of exact evidence could then
# shrink a coefficient that all tasks share. Samples and iterative solvers do not have the rounding errors for which
# exact evidence needs the larger ridge.
SAMPLED_RIDGE = 1e-10
# Edge values are kept above this share of the largest one, at which an edge has no effect.
_FLOOR = 1e-9

Propose = Callable[..., CandidateEdges]


@dataclass(frozen=True)
class Neighbours:
    """A weighted graph of neighbouring tasks, the hub strengths, and the models for both.

    Parameters
    ----------
    edges, edge_values : arrays of shape (m, 2) and (m,)
        Pairs of tasks, and e.
    fixed : array of bool, shape (m,)
        Edges that must be in the graph.
    hub : array of shape (p,)
        h.
    leverage : array of shape (m,)
        Mean over coefficients of e_ij R⁽ᵏ⁾_ij, in [0, 1]: the share of the edge itself in the connection between i and
        j.
    coefficients : array of shape (n, p)
        Models of the tasks.
    common_steps : tuple of float
        r̄ of every round; it tends to one as the strengths converge.
    """

    edges: np.ndarray
    edge_values: np.ndarray
    fixed: np.ndarray
    hub: np.ndarray
    leverage: np.ndarray
    coefficients: np.ndarray
    common_steps: tuple[float, ...] = ()

    def strongest(self, size: int) -> Neighbours:
        """The graph of the `size` edges with the largest leverage; fixed edges are always among them."""
        size = min(max(size, int(self.fixed.sum())), len(self.edges))
        if size == len(self.edges):
            return self.only(np.arange(size))
        keep = np.argpartition(-(self.leverage + self.fixed), size)[:size]
        return self.only(np.sort(keep))

    def only(self, keep: np.ndarray) -> Neighbours:
        """The graph of some of the edges, given by their positions."""
        return Neighbours(
            self.edges[keep], self.edge_values[keep], self.fixed[keep], self.hub, self.leverage[keep], self.coefficients
        )


class Moments(Protocol):
    """Models and expectations of one round: for the current edges, and on request for other pairs."""

    @property
    def coefficients(self) -> np.ndarray:
        """Models of the tasks, shape (n, p)."""
        ...

    @property
    def posterior(self) -> np.ndarray:
        """The denominator of r_ij, shape (m,)."""
        ...

    @property
    def prior(self) -> np.ndarray:
        """The numerator of r_ij, shape (m,)."""
        ...

    @property
    def hub_prior(self) -> np.ndarray:
        """Prior expectation of Σ_i (w_i − w̄)_k²/σ², shape (p,)."""
        ...

    @property
    def hub_posterior(self) -> np.ndarray:
        """Posterior expectation of Σ_i (w_i − w̄)_k²/σ², shape (p,)."""
        ...

    def expected_squares(self, edges: np.ndarray) -> np.ndarray:
        """Posterior expectation of uᵀu/σ² for any pairs of tasks, shape (pairs,)."""
        ...


class Solves(Protocol):
    """The linear algebra of the rounds."""

    def moments(self, state: Neighbours, random: np.random.Generator) -> Moments:
        """Models and expectations for the edges and hub of `state`."""
        ...

    def models(self, state: Neighbours, tol: float = RESULT_TOL) -> np.ndarray:
        """The models for the edges and hub of `state`, shape (n, p), to a relative residual of `tol`."""
        ...


@singledispatch
def solves_for(loss: LeastSquares, sizes: Sizes = SIZES) -> Solves:
    """The linear algebra for a loss: on the CPU, unless the type of the loss has registered another implementation."""
    return _Solves(loss, sizes)


def learn_neighbours(
    loss: LeastSquares,
    start: Neighbours,
    groups: np.ndarray,
    *,
    propose: Propose | None = None,
    rounds: int = ROUNDS,
    renewed: int = RENEWED,
    seed: int = 0,
    journal: Journal | None = None,
    tol: float = RESULT_TOL,
    sizes: Sizes = SIZES,
) -> Neighbours:
    """Run the rounds from `start`. The result has accurate models for the last edges.

    Parameters
    ----------
    loss : LeastSquares
        Losses of the tasks, with coefficients scaled so that Λ = 1.
    start : Neighbours
    groups : array of int, shape (p,)
        Coefficients with the same label share a hub strength.
    propose : callable, optional
        ``propose(models, edges)`` returns candidate edges for these models; `edges` are the current ones. If None, the
        edges are never replaced.
    rounds, renewed : int
        Number of rounds, and the number of first rounds after which new candidates are proposed.
    seed : int
        Seed of the samples.
    journal : Journal, optional
        Records every round, so that an interrupted search can continue.
    tol : float
        Relative residual of the models of the result.
    sizes : Sizes
        Problem sizes at which the algorithms change.
    """
    journal = journal or Journal()
    solves, label = solves_for(loss, sizes), group_labels(groups, loss.n_features)
    known = journal.resume("rounds")
    state = start if known is None else Neighbours(**known)
    last = perf_counter()
    for number in range(len(state.common_steps), rounds):
        if perf_counter() - last >= _PAUSE:
            last = perf_counter()
            logger.info("evidence: round %d of %d, %d edges", number + 1, rounds, len(state.edges))
        moments = solves.moments(state, np.random.default_rng([seed, number]))
        state = _step(state, moments, label, max(float(loss.count.mean()), 1.0))
        if propose is not None and number < renewed:
            state = _with_candidates(state, moments, propose(moments.coefficients, state.edges))
        journal.step("rounds", **vars(state))
    return replace(state, coefficients=solves.models(state, tol))


def _step(state: Neighbours, moments: Moments, label: np.ndarray, unit: float) -> Neighbours:
    """The state after one multiplicative step of edge values and hub; `unit` is the mean number of rows of a task."""
    values, posterior, tiny = state.edge_values, moments.posterior, np.finfo(float).tiny
    common = float((values * moments.prior).sum() / max((values * posterior).sum(), tiny)) or 1.0
    ratio = moments.prior / np.maximum(posterior, tiny) / common
    factor = np.clip(ratio, 1 / _LARGEST_STEP, _LARGEST_STEP) ** _POWER
    changed = values * factor * np.clip(common**_COMMON_POWER, 1 / _LARGEST_STEP, _LARGEST_STEP)
    changed = np.maximum(changed, _FLOOR * changed.max(initial=0.0))
    if state.fixed.any():
        changed = np.where(state.fixed, np.maximum(changed, np.median(changed)), changed)
    hub_ratio = (np.bincount(label, moments.hub_prior) / np.bincount(label, moments.hub_posterior))[label]
    hub = np.clip(state.hub * np.clip(hub_ratio, 0.1, 10.0) ** _POWER, 1e-6 * unit, 1e6 * unit)
    leverage = np.clip(values * moments.prior / len(state.hub), 0.0, 1.0)
    steps = (*state.common_steps, common)
    return Neighbours(state.edges, changed, state.fixed, hub, leverage, moments.coefficients, steps)


def _with_candidates(state: Neighbours, moments: Moments, candidates: CandidateEdges) -> Neighbours:
    """Replace the edges by the candidates. Edges that stay keep their values; new ones get a typical value."""
    n, edges = len(state.coefficients), candidates.edges
    if not len(state.edges):
        return state
    keys, wanted = state.edges @ [n, 1], edges @ [n, 1]
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    kept = keys[place] == wanted
    typical = float(np.median(state.edge_values * moments.posterior))
    fresh = typical / np.maximum(moments.expected_squares(edges), np.finfo(float).tiny)
    values = np.where(kept, state.edge_values[place], fresh)
    leverage = np.where(kept, state.leverage[place], 0.0)
    return replace(state, edges=edges, edge_values=values, fixed=candidates.fixed, leverage=leverage)


# ---------------------------------------------------------------------- by NumPy and the kernels


@dataclass(frozen=True)
class _Moments:
    coefficients: np.ndarray
    samples: np.ndarray
    noise: float
    prior: np.ndarray
    hub_prior: np.ndarray
    hub_posterior: np.ndarray
    posterior: np.ndarray

    def expected_squares(self, edges: np.ndarray) -> np.ndarray:
        return _expected_squares(self.coefficients, self.samples, self.noise, edges)


def _expected_squares(models: np.ndarray, samples: np.ndarray, noise: float, edges: np.ndarray) -> np.ndarray:
    """Posterior expectation of uᵀu/σ² for pairs of tasks, from the models and samples, shape (pairs,)."""
    n, p, number = samples.shape
    both = np.empty((n, p, number + 1))
    np.divide(models, np.sqrt(noise), out=both[..., 0])
    np.divide(samples, np.sqrt(number), out=both[..., 1:])
    everything = both.reshape(n, -1)
    squares = np.empty(len(edges))
    for rows in chunks(len(edges), 8 * everything.shape[1]):
        i, j = edges[rows].T
        gap = everything[i] - everything[j]
        squares[rows] = np.einsum("ek,ek->e", gap, gap)
    return squares


def _solve_samples(solver: Prepared, right: np.ndarray, largest: int) -> np.ndarray:
    """Samples for the right-hand sides, which they overwrite. With very many tasks, two at a time to save memory."""
    together = right.shape[2] if right.size <= largest else 2
    for first in range(0, right.shape[2], together):
        columns = slice(first, first + together)
        part = np.ascontiguousarray(right[..., columns])
        right[..., columns] = solver.solve(part, tol=_SAMPLE_TOL).require(2 * _SAMPLE_TOL).value
    return right


@dataclass(frozen=True)
class _Solves:
    loss: LeastSquares
    sizes: Sizes = SIZES

    def moments(self, state: Neighbours, random: np.random.Generator) -> _Moments:
        loss, model = self.loss, self._model(state)
        system = model.system(state.edge_values)
        solver = prepare(system)
        models = solver.solve(loss.moment, start=state.coefficients, tol=ROUND_TOL).require(1e-2).value
        zeta = posterior_noise(system, number_of_samples(loss.n_features), random)
        samples = _solve_samples(solver, zeta, self.sizes.samples_together)
        noise = misfit(loss, inner_quadratic(model, state.edge_values, models))[1]
        if loss.n_tasks <= self.sizes.exact_prior:
            exact = prior_terms(model, state.edge_values)
            prior, trace = exact.resistance.sum(axis=1), exact.trace
        else:
            prior, trace = sampled_prior_terms(model, state.edge_values, PRIOR_SAMPLES, random, _SAMPLE_TOL)
        spread = np.square(models - models.mean(axis=0)).sum(axis=0) / noise
        spread += np.square(samples - samples.mean(axis=0)).sum(axis=0).mean(axis=1)
        posterior = _expected_squares(models, samples, noise, state.edges)
        return _Moments(models, samples, noise, prior, trace, spread, posterior)

    def models(self, state: Neighbours, tol: float = RESULT_TOL) -> np.ndarray:
        solver = prepare(self._model(state).system(state.edge_values))
        return solver.solve(self.loss.moment, start=state.coefficients, tol=tol).require(100 * tol).value

    def _model(self, state: Neighbours) -> EvidenceModel:
        p = self.loss.n_features
        return EvidenceModel(self.loss, state.edges, np.ones(p), state.hub, SAMPLED_RIDGE, self.sizes)


def number_of_samples(n_features: int) -> int:
    """Number of posterior samples per round."""
    return int(np.clip(-(-_SAMPLED_NUMBERS // n_features), _FEWEST, _MOST))
