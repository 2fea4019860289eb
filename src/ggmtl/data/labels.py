"""Labels of tasks: reading them, and finding them again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ggmtl.data.frames import is_missing, plain, series_to_numpy
from ggmtl.errors import InputError, InputTypeError, did_you_mean

_UNSEEN_REMEDY = 'Use unseen="hub" to predict them with the common model, or add_task() to attach them.'


def read_labels(values: Any, name: str, n_rows: int) -> np.ndarray:
    """Read task (or group) labels: strings, integers, categories; one per row, none missing."""
    # Left to itself NumPy would turn 1 and NaN beside strings into the strings "1" and "nan".
    is_plain = isinstance(values, (list, tuple)) and not any(np.ndim(value) for value in values)
    labels = np.array(values, dtype=object) if is_plain else series_to_numpy(values, name)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape != (n_rows,):
        raise InputError(f"{name} must have one label per row, shape ({n_rows},). Got shape {labels.shape} instead.")
    missing = _missing(labels)
    if missing.any():
        raise InputError(
            f"Column {name!r} has {int(missing.sum())} missing labels (first in row {int(missing.argmax())}). "
            "Drop those rows or give them a label of their own."
        )
    if labels.dtype == object:
        kinds = {type(label) for label in labels}
        if all(issubclass(kind, str) for kind in kinds):
            return labels.astype(str)
        if len(kinds) > 1 and any(issubclass(kind, str) for kind in kinds):
            raise InputTypeError(
                f"Column {name!r} mixes labels of type {', '.join(sorted(kind.__name__ for kind in kinds))}. "
                "Make them all strings or all numbers."
            )
        return np.array(labels.tolist())
    return labels


def locate_tasks(tasks: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Position of each label among the sorted tasks, −1 where it is not among them."""
    if _sort(tasks) != _sort(labels):
        # One label that is no number turns a whole column into text: numbers are then known by how they are written.
        written = tasks.astype(str)
        order = np.argsort(written)
        found = locate_tasks(written[order], labels.astype(str))
        return np.where(found >= 0, order[found], -1)
    position = np.minimum(np.searchsorted(tasks, labels), len(tasks) - 1)
    return np.where(tasks[position] == labels, position, -1)


def unknown_tasks_message(unknown: Sequence[object], known: np.ndarray, remedy: str = _UNSEEN_REMEDY) -> str:
    """Say which tasks were never seen, and what can be done."""
    shown = ", ".join(repr(plain(label)) for label in unknown[:5])
    more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
    near = did_you_mean(unknown[0], known) if len(unknown) == 1 else ""
    if len(unknown) > 1 and remedy is _UNSEEN_REMEDY:
        remedy += " In cross-validation, shuffle: every task needs rows in every training part."
    return f"X has tasks that the model was not fitted with: {shown}{more}.{near} {remedy}"


def _sort(labels: np.ndarray) -> str:
    """What kind of labels these are: labels of one kind can be compared."""
    kind = labels.dtype.kind
    return "number" if kind in "biuf" else "text" if kind in "US" else kind


def _missing(labels: np.ndarray) -> np.ndarray:
    if labels.dtype.kind == "f":
        return np.isnan(labels)
    if labels.dtype.kind == "M":
        return np.isnat(labels)
    if labels.dtype == object:
        return np.array([is_missing(label) for label in labels.ravel()], dtype=bool).reshape(labels.shape)
    return np.zeros(labels.shape, dtype=bool)
