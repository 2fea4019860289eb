"""Features that say the same thing."""

from __future__ import annotations

from typing import Any

import numpy as np

# Correlations with an eigenvalue below this tell the features of its vector apart by rounding only; features with less
# than this part in the vector have none.
_NOTHING, _NO_PART = 1e-10, 1e-4


def redundant_features(model: Any) -> list[str]:
    """Features that the others determine, over all rows; none where the statistics are not at hand."""
    statistics = getattr(getattr(model, "state_", None), "statistics", None)
    if statistics is None:
        return []
    width = len(model.feature_names_)
    pooled = statistics.cross.sum(axis=(0, 1))
    mean = pooled[:width, width] / pooled[width, width]
    covariance = pooled[:width, :width] / pooled[width, width] - np.outer(mean, mean)
    spread = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    varies = np.flatnonzero(spread > 1e-7 * np.sqrt(np.maximum(np.diag(pooled)[:width] / pooled[width, width], 0.0)))
    if len(varies) < 2:
        return []
    values, vectors = np.linalg.eigh(covariance[np.ix_(varies, varies)] / np.outer(spread[varies], spread[varies]))
    part = np.abs(vectors[:, values < _NOTHING * len(varies)]).max(axis=1, initial=0.0)
    return [str(model.feature_names_[k]) for k in varies[part > _NO_PART]]
