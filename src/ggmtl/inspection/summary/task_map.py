"""A map of the tasks by their models: near means alike.

With W the models in scaled units, one row per task and the mean taken out, W = U S Vᵀ; the map has the first two
columns of U S. In scaled units a coefficient counts as much as it moves predictions, so what all tasks share hardly
counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

# Coefficients that follow a direction less closely than this do not explain it.
_CLOSE = 0.5
_MOST_WORDS = 2
# Directions in which models differ by a smaller share than this of the largest are flat.
_FLAT = 1e-6


def landscape_of(model: Any, names: list[str]) -> dict[str, Any] | None:
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
