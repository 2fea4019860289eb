"""Models of tasks without rows, predicted from their task features z, and their covariance.

Given z of the task, w ~ N(w_0 + B z, σ²(diag(1/h) + (z̃ᵀ ⊗ I) S⁻¹ (z̃ ⊗ I))) with the S of
:mod:`ggmtl.evidence.task_means`: the variance between tasks, and the error of w_0 and B. Near places have similar z, so
B z carries over from near tasks.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ggmtl.bilevel.level import GraphFit
from ggmtl.data.task_features import TaskFeatures
from ggmtl.data.task_terms import KnownTasks
from ggmtl.errors import InputError
from ggmtl.evidence.task_means import effect_covariance
from ggmtl.fit.state import FittedState
from ggmtl.inference.attachment import among
from ggmtl.inference.posterior import Posterior, embedded, pull_of
from ggmtl.statistics.least_squares import LeastSquares


def mean_doubt(fit: GraphFit, loss: LeastSquares, noise: float, z: np.ndarray, constant: float = 1.0) -> np.ndarray:
    """Cov(w_0 + B z)/σ² for tasks with features z, shape (m, p, p); of B z alone with ``constant=0``."""
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
    """The posterior of tasks with rows, with the error of B added.

    The rows of a task correct most of the error of its mean B z_i. The share K_i = I − (A⁻¹)_ii G_i remains.
    """
    if fit.means is None:
        return joint
    kept = np.eye(loss.n_features) - joint.covariance @ replace(fit, means=None).weighed(loss).gram
    doubt = mean_doubt(fit, loss, joint.noise, fit.means.known, constant=0.0)
    return replace(joint, covariance=joint.covariance + kept @ doubt @ kept.transpose(0, 2, 1))


def known_of(state: FittedState, purpose: str) -> KnownTasks:
    """The task features of a model; an error that names `purpose` if the model was fitted without them."""
    if state.settings.known is None:
        raise InputError(
            f"{purpose} was given task_features, but the model was fitted without them. Fit it with task_features=."
        )
    return state.settings.known


def encode_row(state: FittedState, row: TaskFeatures | None) -> np.ndarray | None:
    """z of a single task, shape (q,); None without task features."""
    known = state.settings.known
    if known is None or row is None:
        return None
    return known.encode(known.features.same_columns(row))[0]


def unseen_models(state: FittedState, z: np.ndarray) -> np.ndarray:
    """Models of tasks without rows, shape (m, p), in scaled units; z has shape (m, q)."""
    return np.sum([weight * models for weight, models in _by_level(state, z)], axis=0)


def _by_level(state: FittedState, z: np.ndarray) -> list[tuple[float, np.ndarray]]:
    """Weight and models of every averaged level, the latter of shape (m, p)."""
    out, fitted = [], state.fitted_tasks
    for name, weight in state.family.weights.items():
        fit = among(state.family.levels[name], fitted)
        mean = np.zeros((len(z), 1)) if fit.means is None else z @ fit.means.effects
        out.append((weight, fit.common_model() + mean))
    return out


def with_unseen(
    state: FittedState, joint: Posterior, ratios: np.ndarray | None, z: np.ndarray
) -> tuple[Posterior, np.ndarray | None]:
    """The posterior and the noise ratios, with unseen tasks appended to those of the model."""
    fit = among(state.level, state.fitted_tasks)
    if fit.means is None:
        blocks = np.broadcast_to(joint.new_task, (len(z), *joint.new_task.shape))
    else:
        loss = state.folded().total.of_tasks(state.fitted_tasks)
        blocks = np.diag(1.0 / pull_of(fit, joint.noise)) + mean_doubt(fit, loss, joint.noise, z)
    levels, average = _by_level(state, z), unseen_models(state, z)
    apart = sum(weight * np.einsum("mp,mq->mpq", models - average, models - average) for weight, models in levels)
    blocks = blocks + apart / joint.noise
    more = replace(joint, covariance=np.concatenate([joint.covariance, blocks]))
    return more, None if ratios is None else np.append(ratios, np.ones(len(z)))
