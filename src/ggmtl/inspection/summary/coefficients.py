"""What the coefficients show: which are shared, how effects bend, which features are redundant, a map of the tasks.

The map has the first two columns of U S, where W = U S Vᵀ are the models in scaled units, one row per task and the mean
taken out. In scaled units a coefficient counts as much as it moves predictions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmtl.fit.state import FittedState
from ggmtl.inference.uncertainty import effect_of, own_departure, own_range
from ggmtl.inspection.summary.phrases import plain

_SHARED, _OWN = 0.8, 0.35
# The word for features that no task could have a coefficient of its own for.
CONSTANT = "constant within tasks"
# An eigenvalue of the correlations below the first number is rounding: the features of its vector determine each other.
# Features whose part in the vector is below the second number do not belong to them.
_NOTHING, _NO_PART = 1e-10, 1e-4
# A coefficient whose correlation with a direction of the map is lower than this does not explain it.
_CLOSE = 0.5
_MOST_WORDS = 2
# Directions in which models differ by a smaller share than this of the largest are flat: where only intercepts differ,
# the map is a line.
_FLAT = 0.05
# A page has so many curves at most, of so many tasks, at so many values each.
_MOST_CURVES, _MOST_TASKS, _N_VALUES, _MOST_UNUSUAL = 12, 300, 31, 6
# Standard deviations of a feature about its mean within which its curves are drawn.
_REACH = 3.0


def sharing_of(model: Any, rows: np.ndarray | None) -> list[dict[str, Any]]:
    """What share of every coefficient comes from other tasks rather than from a typical task's own rows.

    share_k = (h_k + Λ_k · mean degree) / (h_k + Λ_k · mean degree + mean (X_iᵀX_i)_kk)

    A coefficient that h_k alone shrinks as much is shared by all tasks; one that needs the links, by linked tasks.
    """
    coefficients = coefficients_of(model)
    names = [*map(str, model.feature_names_), *(["intercept"] if model.fit_intercept else [])]
    share, by_all = _shares(model, rows, coefficients.shape[1])
    words = [_sharing_word(*pair) for pair in zip(share, by_all)]
    for k in constant_features(model):
        words[k] = CONSTANT
    common = getattr(model, "hub_coef_", None)
    common = coefficients.mean(axis=0) if common is None else np.append(common, model.hub_intercept_)[: len(names)]
    # What a feature varies by: times a coefficient, a difference in the target.
    units = np.append(model.scaling_.scale[: model.n_features_in_], 1.0)
    means = np.append(model.scaling_.center[: model.n_features_in_], 0.0)
    return [
        {
            "feature": name,
            "share": plain(share[k]),
            "word": words[k],
            "common": float(common[k]),
            "spread": float(coefficients[:, k].std()),
            "unit": float(units[k]),
            "mean": float(means[k]),
            "hub": plain(np.ravel(getattr(model, "hub_strength_", np.full(len(names), np.nan)))[k]),
            "coupling": plain(np.ravel(getattr(model, "coupling_", np.full(len(names), np.nan)))[k]),
        }
        for k, name in enumerate(names)
    ]


def constant_features(model: Any) -> np.ndarray:
    """Positions of the features that have one coefficient because they are constant within every task."""
    constant = getattr(getattr(model, "state_", None), "settings", None)
    return np.flatnonzero(constant.constant[: model.n_features_in_]) if constant is not None else np.arange(0)


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
    """Mean diagonal of XᵀX (of XᵀWX) in scaled units; standardised columns have a mean square of one."""
    state = getattr(model, "state_", None)
    if state is not None and state.outcome is not None:
        return state.outcome.information
    statistics = getattr(state, "statistics", None)
    if statistics is not None:
        grams = [np.einsum("npp->p", loss.gram) for loss in model.scaling_.design(statistics)]
        return np.sum(grams, axis=0)[model.scaling_.is_linear] / len(model.tasks_)
    return None if rows is None else np.full(width, rows.mean())


def _sharing_word(share: float, by_all: float) -> str | None:
    if not np.isfinite(share):
        return None
    if share >= _SHARED:
        return "shared" if by_all >= _SHARED else "shared by links"
    return "own" if share < _OWN else "partly shared"


def slopes_of(model: Any) -> np.ndarray:
    """Which coordinates are slopes: all but the intercept, which is last."""
    slopes = np.ones(model.n_features_in_ + bool(model.fit_intercept), dtype=bool)
    if model.fit_intercept:
        slopes[-1] = False
    return slopes


def coefficients_of(model: Any) -> np.ndarray:
    """Coefficients in the user's units, the intercept last, shape (n, p)."""
    return np.column_stack([model.coef_, model.intercept_]) if model.fit_intercept else np.asarray(model.coef_)


def curves_of(model: Any) -> dict[str, Any] | None:
    """Effects that bend: the common curve with its standard errors, and those of tasks; None of straight lines.

    The curve of a task is ``basis`` times its ``coefficients``. Features whose effect is largest come first. Tasks are
    unusual by the distance of their curve from the common one, where they have rows.
    """
    state = getattr(model, "state_", None)
    if state is None or state.outcome is not None or not state.scaling.curves.n_columns:
        return None
    features, n = state.scaling.curves.features.tolist(), len(state.task_names)
    departure = np.column_stack([own_departure(state, feature) for feature in features])
    size = [_size(state, feature) for feature in features] + np.mean(departure**2, axis=0)
    order = np.argsort(-size, kind="stable")[:_MOST_CURVES]
    unusual = _unusual(departure[:, order]) if n > 2 else []
    shown = np.union1d(np.linspace(0, n - 1, min(n, _MOST_TASKS)).round().astype(np.int64), [i for i, _ in unusual])
    return {
        "tasks": shown.tolist(),
        "features": [_curve(state, features[k], shown) for k in order.tolist()],
        "unusual": [_unusual_curve(state, task, features[order[place]]) for task, place in unusual],
        "n_more": len(features) - len(order),
    }


def _size(state: FittedState, feature: int) -> float:
    """Mean square of the common effect over quantiles of the training rows."""
    values = _quantiles(_knots(state, feature))
    return float(np.mean((state.scaling.effect_rows(feature, values) @ state.common_model()) ** 2))


def _knots(state: FittedState, feature: int) -> np.ndarray:
    curves = state.scaling.curves
    return curves.knots[np.flatnonzero(curves.features == feature)[0]]


def _curve(state: FittedState, feature: int, shown: np.ndarray) -> dict[str, Any]:
    """One feature: what its curves are made of."""
    scaling, knots = state.scaling, _knots(state, feature)
    # A few far rows would leave no room for the rest.
    reach = scaling.center[feature] + _REACH * scaling.scale[feature] * np.array([-1.0, 1.0])
    low, high = np.clip(knots[[0, -1]], *reach)
    # Even in the picture, and dense where the rows are.
    grid = np.union1d(np.linspace(low, high, _N_VALUES), np.clip(_quantiles(knots), low, high))
    rows = scaling.effect_rows(feature, grid)
    used = np.flatnonzero(rows.any(axis=0))
    # The band takes the posterior of all models, which is sampled, and slow, where there are very many.
    banded = state.statistics is not None and not state.settings.sizes.is_large(*state.coefficients.shape)
    common, error = effect_of(state, feature, grid, None) if banded else (rows @ state.common_model(), None)
    ranges = own_range(state, feature)
    own = np.full((len(shown), 2), [low, high])
    if ranges is not None:
        own = np.where(np.isfinite(ranges[shown]), np.clip(ranges[shown], low, high), own)
    return {
        "feature": str(state.feature_names[feature]),
        "grid": plain(grid),
        "common": plain(common),
        "error": None if error is None else plain(error),
        "basis": plain(rows[:, used]),
        "coefficients": plain(state.coefficients[np.ix_(shown, used)]),
        "ranges": plain(own),
    }


def _quantiles(knots: np.ndarray) -> np.ndarray:
    """Values of a feature about as dense as its rows, from the quantiles where its knots are."""
    return np.interp(np.linspace(0, len(knots) - 1, _N_VALUES), range(len(knots)), knots)


def _unusual_curve(state: FittedState, task: int, feature: int) -> dict[str, Any]:
    """The curve of a task and the common one, where the task has most of its rows."""
    ends, ranges = state.scaling.default_grid(feature)[[0, -1]], own_range(state, feature)
    if ranges is not None and np.isfinite(ranges[task]).all():
        ends = np.clip(ranges[task], *ends)
    grid = np.linspace(float(ends[0]), float(ends[1]), _N_VALUES)
    rows = state.scaling.effect_rows(feature, grid)
    return {
        "task": task,
        "feature": str(state.feature_names[feature]),
        "grid": plain(grid),
        "common": plain(rows @ state.common_model()),
        "own": plain(rows @ state.coefficients[task]),
    }


def _unusual(departure: np.ndarray) -> list[tuple[int, int]]:
    """The most unusual tasks, each with the number of its curve that is farthest from the common one."""
    tasks = np.argsort(-departure.max(axis=1), kind="stable")[:_MOST_UNUSUAL]
    return [(int(i), int(departure[i].argmax())) for i in tasks if departure[i].max() > 0]


def _pooled_covariance(model: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """Covariance of the features over all rows, and which of them vary; None where the statistics are not at hand."""
    statistics = getattr(getattr(model, "state_", None), "statistics", None)
    if statistics is None:
        return None
    width = len(model.feature_names_)
    pooled = statistics.cross.sum(axis=(0, 1))
    mean, square = pooled[:width, -2] / pooled[-2, -2], pooled[:width, :width] / pooled[-2, -2]
    covariance = square - np.outer(mean, mean)
    spread = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    return covariance, spread > 1e-7 * np.sqrt(np.maximum(np.diag(square), 0.0))


def single_valued_features(model: Any) -> list[str]:
    """Features with one value in all rows, beside an intercept; none where this is not known."""
    outcome, found = getattr(getattr(model, "state_", None), "outcome", None), _pooled_covariance(model)
    if model.fit_intercept and outcome is not None:
        varies = outcome.information > 1e-9 * outcome.information.max(initial=0.0)
    elif model.fit_intercept and found is not None:
        varies = found[1]
    else:
        return []
    return [str(name) for name, differs in zip(model.feature_names_, varies) if not differs]


def redundant_features(model: Any) -> list[str]:
    """Features that the others determine, over all rows; none where the statistics are not at hand."""
    found = _pooled_covariance(model)
    if found is None:
        return []
    covariance, varies = found[0], np.flatnonzero(found[1])
    spread = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    if len(varies) < 2:
        return []
    values, vectors = np.linalg.eigh(covariance[np.ix_(varies, varies)] / np.outer(spread[varies], spread[varies]))
    part = np.abs(vectors[:, values < _NOTHING * len(varies)]).max(axis=1, initial=0.0)
    return [str(model.feature_names_[k]) for k in varies[part > _NO_PART]]


def task_map_of(model: Any, names: list[str]) -> dict[str, Any] | None:
    """Points of the tasks and what grows along each direction; None where the models do not differ."""
    models = model.scaling_.to_scaled_units(model.coef_, model.intercept_)
    centred = models - models.mean(axis=0)
    size = np.abs(models).max(initial=0.0)
    if len(models) < 3 or not size or np.abs(centred).max() < 1e-9 * size:
        return None
    left, strength, _ = np.linalg.svd(centred, full_matrices=False)
    points = np.zeros((len(models), 2))
    # A direction of rounding is none.
    kept = min(2, int((strength > _FLAT * strength[0]).sum()))
    points[:, :kept] = (left * strength)[:, :kept]
    # The sign of a singular vector is arbitrary; fixing it keeps the map the same on every machine.
    points *= np.where(points[np.abs(points).argmax(axis=0), [0, 1]] < 0, -1.0, 1.0)
    share = strength**2 / (strength**2).sum()
    return {
        "points": np.round(points / np.abs(points).max(), 4).tolist(),
        "share": [float(value) for value in np.pad(share[:2], (0, 2 - kept))],
        "axes": [_growing(points[:, k], centred, names) if k < kept else [] for k in (0, 1)],
    }


def _growing(along: np.ndarray, centred: np.ndarray, names: list[str]) -> list[list[Any]]:
    """The coefficients that a direction stands for, and whether they rise along it."""
    spread = np.sqrt((centred**2).sum(axis=0))
    pull = centred.T @ along
    with np.errstate(divide="ignore", invalid="ignore"):
        close = np.nan_to_num(pull / (spread * np.sqrt(along @ along)))
    order = np.argsort(-np.abs(pull), kind="stable")[:_MOST_WORDS]
    return [[names[k], bool(close[k] > 0)] for k in order if abs(close[k]) >= _CLOSE]
