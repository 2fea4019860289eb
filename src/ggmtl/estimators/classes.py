"""Labels of classes as a user gives them: the classes, and the class of every row."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import DataConversionWarning
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from ggmtl.data.frames import from_tensor, series_to_numpy
from ggmtl.errors import InputError


def read_classes(y: Any, sample_weight: Any, estimator: str) -> tuple[np.ndarray, np.ndarray]:
    """Classes, sorted, and the position of every row's."""
    if y is None:
        raise InputError(f"This {estimator} estimator requires y to be passed, but the target y is None")
    labels = series_to_numpy(from_tensor(y), "y")
    if np.ndim(labels) == 2 and labels.shape[1] == 1:
        warnings.warn("A column-vector y was passed when a 1d array was expected.", DataConversionWarning, stacklevel=4)
    try:
        labels = column_or_1d(labels)
    except ValueError as error:
        raise InputError(f"y must be one-dimensional, with a label per row. {error}") from error
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise InputError(f"Input y contains NaN or infinity in {int((~np.isfinite(labels)).sum())} rows.")
    check_classification_targets(labels)
    weight = None if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
    present = labels if weight is None or weight.shape != labels.shape else labels[weight > 0]
    # Where no row has a weight, the reader says so.
    classes = np.unique(present if len(present) else labels)
    if len(classes) < 2:
        raise InputError(
            f"y must have at least two classes. Got one class instead: {classes.tolist()[:1]}. There is nothing to "
            "tell apart."
        )
    return classes, np.clip(np.searchsorted(classes, labels), 0, len(classes) - 1)
