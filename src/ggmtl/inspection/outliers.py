"""Outlying tasks: those unlike all others.

Clusters of three tasks or more (or all tasks, where there are none) have centres c_g, the medians of their models, and
a spread s_k about them. A task outside of all clusters is unlike all others when

    min_g Σ_k (w_ik − c_gk)² / (s_k² + Var w_ik)

is larger than chance explains among n tasks: the χ² quantile of 1 − 0.05/n.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import chi2

from ggmtl.inference.uncertainty import posterior, standard_errors

if TYPE_CHECKING:
    from ggmtl.estimators.regressor import GGMTLRegressor


_SMALLEST_GROUP = 3
_FEWEST_TASKS = 5
# The median absolute deviation of a normal variable, as a share of its standard deviation.
_MAD = 0.6745
_NUMBERS_AT_ONCE = 4_000_000


def unlike_others(model: GGMTLRegressor) -> np.ndarray:
    """Which tasks are unlike all others, array of bool of shape (n,); none among fewer than five tasks.

    Examples
    --------
    >>> from ggmtl.datasets import make_clusters
    >>> data = make_clusters(2, n_tasks=8, n_features=2, random_state=0)
    >>> model = GGMTLRegressor().fit(data.X, data.y, tasks=data.tasks)
    >>> int(unlike_others(model).sum())
    0
    """
    models = model.state_.coefficients
    n, width = models.shape
    if n < _FEWEST_TASKS:
        return np.zeros(n, dtype=bool)
    group, alone = _groups(model)
    order = np.argsort(group, kind="stable")
    members = np.split(order, np.searchsorted(group[order], np.arange(group.max() + 1)))[1:]
    centres = np.array([np.median(models[each], axis=0) for each in members])
    spread = np.median(np.abs(models - centres[group])[group >= 0], axis=0) / _MAD
    variance = spread**2 + _variances(model)
    unlike, judged = np.zeros(n, dtype=bool), np.flatnonzero(alone)
    for some in np.array_split(judged, max(1, len(judged) * centres.size // _NUMBERS_AT_ONCE)):
        offset = (models[some, None] - centres) ** 2
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(offset > 0, offset / variance[some, None], 0.0)
        unlike[some] = ratio.sum(axis=2).min(axis=1) > chi2.ppf(1.0 - 0.05 / n, df=width)
    return unlike


def _groups(model: GGMTLRegressor) -> tuple[np.ndarray, np.ndarray]:
    """Group of every task, −1 for none, and which tasks are judged."""
    clusters = model.graph_.clusters()
    sizes = np.bincount(clusters)
    kept = sizes >= _SMALLEST_GROUP
    if kept[clusters].mean() < 0.5:
        return np.zeros(len(clusters), dtype=np.int64), np.ones(len(clusters), dtype=bool)
    number = np.where(kept, np.cumsum(kept) - 1, -1)
    return number[clusters], ~kept[clusters]


def _variances(model: GGMTLRegressor) -> np.ndarray:
    """Posterior variance of every coefficient in scaled units, shape (n, p)."""
    if model.state_.statistics is not None:
        joint = posterior(model.state_)
        return joint.noise * np.einsum("npp->np", joint.covariance)
    # A file keeps standard errors in the units of the data, where that of an intercept depends on the slopes: leave
    # intercepts out.
    scaling = model.scaling_
    d = scaling.n_features
    errors = standard_errors(model.state_)[:, :d] * scaling.scale[:d] / scaling.target_scale
    return np.pad(
        errors**2, ((0, 0), (0, model.state_.coefficients.shape[1] - errors.shape[1])), constant_values=np.inf
    )
