"""Which coefficients are shared, and which are personal."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmtl.inspection.summary.provenance import plain

_SHARED, _PERSONAL = 0.8, 0.35


def sharing_of(model: Any, rows: np.ndarray | None) -> list[dict[str, Any]]:
    """How far every coefficient is shared: pull of the others beside the pull of a typical task's own rows.

    share_k = (h_k + Λ_k · mean degree) / (h_k + Λ_k · mean degree + mean (X_iᵀX_i)_kk)

    What h_k alone does is shared by all tasks; what it takes links to do, by those that are linked.
    """
    coefficients = coefficients_of(model)
    names = [*map(str, model.feature_names_), *(["intercept"] if model.fit_intercept else [])]
    share, by_all = _shares(model, rows, coefficients.shape[1])
    common = getattr(model, "hub_coef_", None)
    common = coefficients.mean(axis=0) if common is None else np.append(common, model.hub_intercept_)[: len(names)]
    # What a feature varies by: times a coefficient, a difference in the target.
    units = np.append(model.scaling_.scale, 1.0)
    return [
        {
            "feature": name,
            "share": plain(share[k]),
            "word": _sharing_word(share[k], by_all[k]),
            "common": float(common[k]),
            "spread": float(coefficients[:, k].std()),
            "unit": float(units[k]),
            "hub": plain(np.ravel(getattr(model, "hub_strength_", np.full(len(names), np.nan)))[k]),
            "coupling": plain(np.ravel(getattr(model, "coupling_", np.full(len(names), np.nan)))[k]),
        }
        for k, name in enumerate(names)
    ]


def _shares(model: Any, rows: np.ndarray | None, width: int) -> tuple[np.ndarray, np.ndarray]:
    """The share of every coefficient that comes from other tasks, and what it would be without links."""
    hub, coupling = getattr(model, "hub_strength_", None), getattr(model, "coupling_", None)
    own = _own_pull(model, rows, width)
    if hub is None or coupling is None or own is None or len(model.tasks_) == 1:
        return np.full(width, np.nan), np.full(width, np.nan)
    # No row says anything about the coefficient of a constant column.
    own = np.where(own > 1e-9 * own.max(initial=0.0), own, np.nan)
    weights = np.asarray(model.edge_weights_)
    # Only the squared penalty's strengths are on the scale of XᵀX.
    if getattr(model, "penalty", "squared_l2") != "squared_l2" and weights.any():
        return np.full(width, np.nan), np.full(width, np.nan)
    used = coupling[slopes_of(model)] if slopes_of(model).any() else coupling
    unit = np.exp(np.log(used[used > 0]).mean()) if (used > 0).any() else 1.0
    pull = hub + coupling * 2.0 * weights.sum() / unit / len(model.tasks_)
    with np.errstate(invalid="ignore"):
        share, by_all = (np.where(np.isposinf(each), 1.0 + 0.0 * own, each / (each + own)) for each in (pull, hub))
    return share, by_all


def _own_pull(model: Any, rows: np.ndarray | None, width: int) -> np.ndarray | None:
    """Mean diagonal of XᵀX in scaled units; standardised columns have a mean square of one."""
    statistics = getattr(getattr(model, "state_", None), "statistics", None)
    if statistics is not None:
        grams = [np.einsum("npp->p", loss.gram) for loss in model.scaling_.design(statistics)]
        return np.sum(grams, axis=0) / len(model.tasks_)
    return None if rows is None else np.full(width, rows.mean())


def _sharing_word(share: float, by_all: float) -> str | None:
    if not np.isfinite(share):
        return None
    if share >= _SHARED:
        return "shared" if by_all >= _SHARED else "shared by links"
    return "personal" if share < _PERSONAL else "partly shared"


def slopes_of(model: Any) -> np.ndarray:
    """Which coordinates are slopes: all but the intercept, which is last."""
    slopes = np.ones(model.n_features_in_ + bool(model.fit_intercept), dtype=bool)
    if model.fit_intercept:
        slopes[-1] = False
    return slopes


def coefficients_of(model: Any) -> np.ndarray:
    """Coefficients in the user's units, the intercept last, shape (n, p)."""
    return np.column_stack([model.coef_, model.intercept_]) if model.fit_intercept else np.asarray(model.coef_)
