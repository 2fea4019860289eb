"""The effect of one feature: a line, or a curve, with its standard error."""

from __future__ import annotations

import numpy as np

from ggmtl.fit.state import FittedState
from ggmtl.inference.uncertainty import posterior


def effect_of(
    state: FittedState, feature: int, values: np.ndarray, position: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Effect and standard error at values of a feature, in the units of the target.

    The effect is zero on average over the training rows, so that a prediction is the mean prediction for these and the
    sum of all effects. `position` is that of a task; None asks for the common model. Standard errors are NaN where the
    model was saved without statistics.
    """
    rows = state.scaling.effect_rows(feature, values)
    model = state.common_model() if position is None else state.coefficients[position]
    if state.statistics is None:
        return rows @ model, np.full(len(values), np.nan)
    joint = posterior(state)
    covariance = joint.common if position is None else joint.covariance[position]
    variance = joint.noise * np.einsum("rp,pq,rq->r", rows, covariance, rows)
    return rows @ model, np.sqrt(np.maximum(variance, 0.0))
