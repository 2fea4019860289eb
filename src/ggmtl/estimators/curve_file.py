"""Curves as arrays of a model file, and back."""

from __future__ import annotations

import numpy as np

from ggmtl.design.curves import Curves


def pack_curves(curves: Curves) -> dict[str, np.ndarray]:
    """The arrays of curves, where there are any."""
    return {f"curves.{name}": value for name, value in vars(curves).items()} if curves.n_columns else {}


def unpack_curves(arrays: dict[str, np.ndarray], n_features: int) -> Curves:
    """The curves of these arrays, or an error that says why they are none."""
    if "curves.features" not in arrays:
        return Curves.none()
    curves = Curves(**{name: arrays[f"curves.{name}"] for name in vars(Curves.none())})
    for name, empty in vars(Curves.none()).items():
        shape, array = (len(curves.features), *empty.shape[1:]), getattr(curves, name)
        if array.shape != shape or not np.isfinite(array).all():
            raise ValueError(f"curves.{name} has shape {array.shape}, not {shape}, or is not finite")
    features = curves.features
    if features.dtype.kind != "i" or not ((features >= 0) & (features < n_features)).all():
        raise ValueError("a curve is that of no feature")
    if not (np.diff(curves.knots, axis=1) > 0).all():
        raise ValueError("the knots of a curve do not rise")
    return curves
