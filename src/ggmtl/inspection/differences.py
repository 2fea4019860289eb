"""Differences between tasks: which tasks are unlike all others, and how much descriptors explain.

Clusters of three tasks or more (or all tasks, where there are none) have centres c_g, the medians of their models, and
a spread s_k about them. A task outside of all clusters is unlike all others when

    min_g Σ_k (w_ik − c_gk)² / (s_k² + Var w_ik)

is larger than chance explains among n tasks: the χ² quantile of 1 − 0.05/n.

With models w_i = w_0 + Σ_g B_g z_ig + v_i, descriptor g explains of coefficient k the share

    Cov_i(B_g z_ig, B z_i)_k / (Var_i(B z_i)_k + Var(v)_k) ,

so that the shares of all descriptors add up to what B z explains. Var(v) is the variance of the prior of deviations,
which rows do not blur.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import chi2

from ggmtl.bilevel.level import GraphFit
from ggmtl.data.frames import as_table
from ggmtl.errors import InputError
from ggmtl.fit.state import FittedState, state_of
from ggmtl.inference.attachment import among
from ggmtl.inference.posterior import pull_of
from ggmtl.inference.uncertainty import noise_variance, posterior, standard_errors

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
    if model.state_.outcome is not None:
        return np.einsum("npp->np", model.state_.outcome.covariance)
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


NOT_EXPLAINED = "(not explained)"


def explained_differences(model: GGMTLRegressor) -> Any:
    """Share of the differences between tasks that each descriptor explains, per coefficient.

    Parameters
    ----------
    model : GGMTLRegressor
        Fitted with ``task_features``.

    Returns
    -------
    table
        With the columns feature, descriptor and share, of the kind given to ``fit``. The descriptors of a coefficient
        and ``"(not explained)"`` add up to one; a share may be slightly negative where descriptors are correlated. The
        columns of a place count as one descriptor. The intercept is the prediction at the mean of all features.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from ggmtl import GGMTLRegressor
    >>> rng = np.random.default_rng(0)
    >>> size, tasks = rng.normal(size=30), np.arange(30).repeat(8)
    >>> X = rng.normal(size=(240, 1))
    >>> y = size[tasks] * X[:, 0] + 0.1 * rng.normal(size=240)
    >>> known = pd.DataFrame({"size": size}, index=range(30))
    >>> model = GGMTLRegressor(validation=None).fit(X, y, tasks=tasks, task_features=known)
    >>> bool(explained_differences(model)["share"][0] > 0.95)
    True
    """
    state = state_of(model, "explained_differences")
    if state.settings.known is None:
        raise InputError("explained_differences needs a model that was fitted with task_features=.")
    names, shares, _ = shares_of(state)
    features = [*map(str, model.feature_names_), *(["(intercept)"] if model.fit_intercept else [])]
    names = [*names, NOT_EXPLAINED]
    whole = np.vstack([shares, 1.0 - shares.sum(axis=0)])
    return as_table(
        {
            "feature": np.repeat(np.array(features), len(names)),
            "descriptor": np.tile(np.array(names), len(features)),
            "share": whole.T.ravel(),
        },
        state.form.table_kind,
    )


def shares_of(state: FittedState) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Descriptors, their shares of every coefficient, shape (descriptors, p), and of all coefficients together.

    In scaled units a coefficient counts as much as it moves predictions. Columns of curves are left out: straight
    parts of effects are compared.
    """
    known, fit = state.settings.known, _described(state)
    owners = [] if known is None else known.owners
    names = list(dict.fromkeys(owners))
    bends = state.settings.bends
    straight = ~bends if len(bends) else np.ones(state.coefficients.shape[1], dtype=bool)
    p = int(straight.sum())
    if fit is None or fit.means is None:
        return names, np.zeros((len(names), p)), np.zeros(len(names))
    means = fit.means
    own = np.array([[owner == name for owner in owners] for name in names], dtype=float)
    parts = np.einsum("gq,nq,qp->gnp", own, means.known, means.effects[:, straight], optimize=True)
    total = parts.sum(axis=0) - parts.sum(axis=0).mean(axis=0)
    covariance = np.einsum("gnp,np->gp", parts - parts.mean(axis=1, keepdims=True), total) / len(total)
    noise = noise_variance(state)
    variance = (total**2).mean(axis=0) + (noise / pull_of(fit, noise))[straight]
    tiny = np.finfo(float).tiny
    # Where a part is smaller than its rounding, or cancels another, its share may be below zero.
    share, overall = covariance / np.maximum(variance, tiny), covariance.sum(axis=1) / max(float(variance.sum()), tiny)
    return names, np.maximum(share, 0.0), np.maximum(overall, 0.0)


def _described(state: FittedState) -> GraphFit | None:
    """The level in use, or else another one that uses what is known; the tasks fitted together only."""
    levels = [state.level, *state.family.levels.values()]
    found = next((fit for fit in levels if fit.means is not None and len(fit.coefficients)), None)
    return None if found is None else among(found, state.fitted_tasks)
