"""Covariance of the models where all of them together are too many for a dense inverse of A.

Each block is

    (A⁻¹)_ii = D_i⁻¹ + E δδᵀ ,     δ = z_i − D_i⁻¹(Az)_i ,     E zzᵀ = A⁻¹ ,

D_i the diagonal block of A, so that samples z estimate only the part that comes from other tasks. If that part is a
share s of a variance, S samples give its standard error to about s/√(2S). They are taken until that is 5 % over all
coefficients, in root mean square, or until a given number.

The mean of the models has Var(w̄) = BᵀA⁻¹B, B = (1 ⊗ I)/n. An approximate solution X of A X = B gives it as
XᵀB + Xᵀ(B − AX), with an error of second order: of 50,000 tasks of two rows, relative residuals of .1 leave .003.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ggmtl.evidence.sampling import posterior_noise
from ggmtl.runtime import kernels
from ggmtl.solve.preconditioners import BlockJacobi
from ggmtl.solve.solvers import Prepared
from ggmtl.solve.system import Curvature, TaskSystem

# Relative error of standard errors, in root mean square, at which no more samples are taken.
_ACCURACY = 0.05
# Samples at a time.
_BATCH = 8
# Relative residual of samples: it lowers the part that comes from other tasks by 1 to 2 %.
_SAMPLE_TOL = 3e-3
# Relative residual behind the variance of the mean.
_MEAN_TOL = 0.1


def sampled_blocks(
    system: TaskSystem, prepared: Prepared, n_samples: int, seed: int, accuracy: float = _ACCURACY
) -> np.ndarray:
    """Diagonal blocks of A⁻¹ from at most so many samples, shape (n, p, p)."""
    random = np.random.default_rng(seed)
    inverse = BlockJacobi.of(system).inverse
    n, p = system.shape
    own, total, done = np.einsum("npp->np", inverse), np.zeros((n, p, p)), 0
    while done < n_samples:
        # More columns than p would be solved together, which takes longer.
        batch = min(p, _BATCH, n_samples - done)
        noise = noise_of_precision(system, batch, random)
        rest = prepared.solve(noise, tol=_SAMPLE_TOL).require(1e-2).value - kernels.block_product(inverse, noise)
        total += rest @ rest.transpose(0, 2, 1)
        done += batch
        others = np.einsum("npp->np", total) / done
        if np.mean((others / (own + others)) ** 2) <= 2.0 * done * accuracy**2:
            break
    blocks = inverse + total / done
    return 0.5 * (blocks + blocks.transpose(0, 2, 1))


def noise_of_precision(system: TaskSystem, n_samples: int, random: np.random.Generator) -> np.ndarray:
    """ζ with E ζζᵀ = A, shape (n, p, n_samples): a root of every summand of A times white noise."""
    if system.is_separable:
        return posterior_noise(system, n_samples, random)
    n, p = system.shape
    alone = replace(system, edges=system.edges[:0], edge_weights=np.empty(0), curvature=None)
    weights = system.edge_weights if system.edge_weights.ndim == 2 else system.edge_weights[:, None]
    along = random.standard_normal((len(system.edges), p, n_samples))
    along *= np.sqrt(weights * system.coupling)[..., None]
    if system.curvature is not None:
        along -= _curvature_part(system.curvature, weights[:, 0] * system.coupling[0], along)
    edges = (system.incidence.T @ along.reshape(len(along), -1)).reshape(n, p, n_samples)
    return posterior_noise(alone, n_samples, random) + edges


def _curvature_part(curvature: Curvature, strength: np.ndarray, along: np.ndarray) -> np.ndarray:
    """The part to subtract in (aI − c uuᵀ)^½ = a^½ (I − θ uuᵀ/‖u‖²), θ = 1 − (1 − c‖u‖²/a)^½."""
    u = curvature.directions
    length = np.maximum((u**2).sum(axis=1), np.finfo(float).tiny)
    share = np.clip(curvature.factors * length / strength, 0.0, 1.0)
    factor = (1.0 - np.sqrt(1.0 - share)) / length
    inside = np.einsum("mp,mpr->mr", u, along) * factor[:, None]
    return u[:, :, None] * inside[:, None, :]


def mean_covariance(system: TaskSystem, prepared: Prepared) -> np.ndarray:
    """Var(w̄)/σ² of the mean of the models."""
    n, p = system.shape
    right = np.broadcast_to(np.eye(p) / n, (n, p, p)).copy()
    # Graph and hub vanish for equal models, which are the whole solution where tasks are tied tightly.
    pooled = system.gram.sum(axis=0) + np.diag(np.broadcast_to(system.ridge, (n, p)).sum(axis=0))
    start = np.tile(np.linalg.pinv(pooled, hermitian=True), (n, 1, 1))
    value = prepared.solve(right, start, tol=_MEAN_TOL).require(0.2).value
    mean = value.mean(axis=0) + np.tensordot(value, right - system.apply(value), ([0, 1], [0, 1]))
    return 0.5 * (mean + mean.T)
