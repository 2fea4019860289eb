"""How certain w_0 + B z is: covariances from S⁻¹ of :mod:`ggmtl.evidence.task_means`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ggmtl.bilevel.level import GraphFit
from ggmtl.evidence.task_means import effect_covariance
from ggmtl.inference.posterior import Posterior, embedded, pull_of
from ggmtl.statistics.least_squares import LeastSquares


def mean_doubt(fit: GraphFit, loss: LeastSquares, noise: float, z: np.ndarray, constant: float = 1.0) -> np.ndarray:
    """Cov(w_0 + B z)/σ² for tasks of which z is known, shape (m, p, p); of B z alone with ``constant=0``."""
    if fit.means is None:
        return np.zeros((len(z), loss.n_features, loss.n_features))
    if fit.columns is not None:
        own = mean_doubt(fit.on_its_columns(), loss.of_columns(fit.columns), noise, z, constant)
        return embedded(own, fit.columns, loss.n_features)
    rows, means = replace(fit, means=None).weighed(loss), fit.means
    covariance = effect_covariance(rows, means.known, pull_of(fit, noise), means.strength)
    known = np.column_stack([np.full(len(z), constant), z])
    width = known.shape[1]
    blocks = covariance.reshape(width, loss.n_features, width, loss.n_features)
    return np.einsum("ma,akbl,mb->mkl", known, blocks, known, optimize=True)


def with_mean_doubt(joint: Posterior, fit: GraphFit, loss: LeastSquares) -> Posterior:
    """The posterior of tasks with rows, the error of B included.

    A task's model is its mean B z_i and a deviation that its rows correct: K_i = I − (A⁻¹)_ii G_i of the error stays.
    """
    if fit.means is None:
        return joint
    kept = np.eye(loss.n_features) - joint.covariance @ replace(fit, means=None).weighed(loss).gram
    doubt = mean_doubt(fit, loss, joint.noise, fit.means.known, constant=0.0)
    return replace(joint, covariance=joint.covariance + kept @ doubt @ kept.transpose(0, 2, 1))
