"""The calibration of prediction intervals as arrays of a model file, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmtl.estimators.file_format import round_mantissa
from ggmtl.fit.state import FittedState
from ggmtl.inference.intervals import Calibration, calibration, typical_deviations

_NAMES = ("factor", "freedom", "deviation")


def pack_intervals(state: FittedState) -> dict[str, np.ndarray]:
    """Three numbers per task; nothing where the model has no intervals."""
    if state.outcome is not None or (state.statistics is None and "calibration" not in state.given):
        return {}
    found = calibration(state)
    values = (found.factor, found.freedom, typical_deviations(state))
    return {f"interval.{name}": round_mantissa(value, bits=12) for name, value in zip(_NAMES, values)}


def unpack_intervals(arrays: dict[str, np.ndarray], n: int) -> dict[str, Any]:
    """What the state is given; files of earlier versions have none."""
    if not {f"interval.{name}" for name in _NAMES} & arrays.keys():
        return {}
    values = [arrays[f"interval.{name}"].astype(np.float64) for name in _NAMES]
    for name, value, least in zip(_NAMES, values, (0.0, 2.0, 0.0)):
        if value.shape != (n + 1,) or not (np.isfinite(value).all() and (value > least).all()):
            raise ValueError(f"interval.{name} is not what it can be")
    factor, freedom, deviation = values
    return {"calibration": Calibration(factor, freedom), "typical_deviations": deviation}
