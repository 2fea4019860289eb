"""Labels of tasks: read, compared and joined exactly, so that two labels are one task only if they are equal."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ggmtl.data.frames import is_missing, plain, series_to_numpy
from ggmtl.errors import InputError, InputTypeError, did_you_mean

_UNSEEN_REMEDY = 'Use unseen="hub" to predict them with the shared model, or add_task() to attach them.'


# Text that would take more bytes in an array of fixed width is kept as Python objects.
_MOST_BYTES = 1 << 26
# Surrogates, halves of characters in UTF-16, are not valid text by themselves.
_SURROGATES = 0xD800, 0xDFFF
# From here on, several whole numbers have the same float64.
_LARGEST_WHOLE = 2**53
# Letters that a label must have for another spelling to be offered.
_WORD = 5
_WHOLE_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.0*)?")


def read_labels(values: Any, name: str, n_rows: int) -> np.ndarray:
    """Read task (or group) labels: strings, integers, categories; one per row, none missing."""
    # NumPy alone would turn 1 and NaN among strings into the strings "1" and "nan".
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
        several = [kind.__name__ for kind in kinds if issubclass(kind, (tuple, list, set, dict, np.ndarray))]
        if several:
            raise InputTypeError(f"Column {name!r} has labels of type {several[0]}. Make them text, numbers or dates.")
        if len({issubclass(kind, str) for kind in kinds}) > 1:
            raise InputTypeError(
                f"Column {name!r} mixes labels of type {', '.join(sorted(kind.__name__ for kind in kinds))}. "
                "Make them all strings or all numbers."
            )
        return _exactly(labels.tolist(), name)
    if labels.dtype.kind == "U":
        letters = np.ascontiguousarray(labels, dtype=labels.dtype.newbyteorder("=")).view(np.uint32)
        if ((letters >= _SURROGATES[0]) & (letters <= _SURROGATES[1])).any():
            _check_text(labels.tolist(), name)
    return labels


def _exactly(given: list[Any], name: str) -> np.ndarray:
    """The labels in a NumPy type that keeps all of them distinct; refused where there is none.

    Text stays an array of objects where NumPy, which gives every label the room of the longest, would take much memory.
    """
    if given and isinstance(given[0], str):
        distinct = set(given)
        _check_text(distinct, name)
        if 4 * max(map(len, distinct)) * len(given) > _MOST_BYTES:
            # Equal labels are one object.
            same = {label: _as_array([label], name).item() for label in distinct}
            return np.array([same[label] for label in given], dtype=object)
    return _as_array(given, name)


def _check_text(labels: Iterable[str], name: str) -> None:
    """Refuse labels that cannot be encoded, such as half of a pair of surrogates."""
    for label in labels:
        try:
            label.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"Column {name!r}: the label {label!r} is not valid text ({error.reason}). Read the file with its own "
                "encoding, or replace these characters."
            ) from error


def _as_array(given: list[Any], name: str) -> np.ndarray:
    converted = np.array(given, dtype=_number_type(given))
    if converted.tolist() == given:
        return converted
    changed, became = next(pair for pair in zip(given, converted.tolist()) if pair[0] != pair[1])
    remedy = "Leave out the zero characters at its end." if isinstance(changed, str) else "Write the labels as text."
    raise InputError(f"Column {name!r}: the label {changed!r} would be read as {became!r}. {remedy}")


def _number_type(given: list[Any]) -> Any:
    """The NumPy type for numbers (NumPy itself would make large ones floats or objects); None for other labels."""
    kinds = (int, float, np.integer, np.floating)
    if not given or not all(isinstance(label, kinds) and not isinstance(label, bool) for label in given):
        return None
    if not all(isinstance(label, (int, np.integer)) for label in given):
        return np.float64
    lowest, highest = min(given), max(given)
    if lowest >= -(2**63) and highest < 2**63:
        return np.int64
    return np.uint64 if lowest >= 0 and highest < 2**64 else np.float64


def join_labels(parts: Sequence[np.ndarray]) -> np.ndarray:
    """All labels in one array whose type holds each of them exactly."""
    if len({part.dtype for part in parts}) == 1 or not all(part.dtype.kind in "biuf" for part in parts):
        return np.concatenate(parts)
    return _exactly([label for part in parts for label in part.tolist()], "task labels")


def numbers_in_text(labels: np.ndarray) -> np.ndarray:
    """Labels read as text, as whole numbers where each is written as one and no two mean the same number."""
    found = [_WHOLE_NUMBER.fullmatch(label) for label in labels.tolist()]
    numbers = [int(match[0].partition(".")[0]) for match in found if match]
    distinct = set(numbers)
    if len(distinct) < len(labels) or max(distinct) >= 2**63 or min(distinct) < -(2**63):
        return labels
    return np.array(numbers, dtype=np.int64)


def locate_tasks(tasks: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Position of each label among the sorted tasks, −1 where it is not among them."""
    if labels.dtype == object and tasks.dtype != object:
        names, index = np.unique(labels, return_inverse=True)
        plain = np.array(names.tolist())
        if plain.dtype == object:
            # Dates have become objects; labels of several kinds are compared as text.
            plain = np.array(names.tolist(), dtype=tasks.dtype if tasks.dtype.kind in "mM" else str)
        return locate_tasks(tasks, plain)[index.reshape(-1)]
    if _sort(tasks) != _sort(labels):
        # One label that is not a number turns a whole column into text, so numbers are compared as they are written.
        written = tasks.astype(str)
        order = np.argsort(written)
        found = locate_tasks(written[order], labels.astype(str))
        return np.where(found >= 0, order[found], -1)
    if _sort(tasks) == "number" and tasks.dtype != labels.dtype:
        return _locate_numbers(tasks, labels)
    position = np.minimum(np.searchsorted(tasks, labels), len(tasks) - 1)
    return np.where(tasks[position] == labels, position, -1)


def _locate_numbers(tasks: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The same for numbers of two types. Python compares them exactly, and NumPy does not."""
    large = labels[np.abs(labels) >= _LARGEST_WHOLE] if labels.dtype.kind == "f" else labels[:0]
    if len(large) and tasks.dtype.kind != "f" and max(abs(int(tasks[0])), abs(int(tasks[-1]))) >= _LARGEST_WHOLE:
        raise InputError(
            f"The task labels are {labels.dtype} here and were {tasks.dtype} in fit: {large[0].item()!r} "
            f"may stand for several whole numbers. Pass them as {tasks.dtype}, or use text in both places."
        )
    values, index = np.unique(labels, return_inverse=True)
    place = {task: k for k, task in enumerate(tasks.tolist())}
    return np.array([place.get(value, -1) for value in values.tolist()], dtype=np.int64)[index.reshape(-1)]


def task_position(label: Any, tasks: np.ndarray) -> int:
    """Position of one task among the sorted tasks; an error where it is not among them."""
    position = int(locate_tasks(tasks, np.array([label]))[0])
    if position < 0:
        raise InputError(f"There is no task {plain(label)!r} in the model.{_nearest(label, tasks)}")
    return position


def _nearest(label: Any, known: np.ndarray) -> str:
    """A similar name; for numbers, which are no misspellings of each other, the range."""
    if known.dtype.kind in "US":
        return did_you_mean(label, known)
    first, last = known.min().item(), known.max().item()
    return f" It has {len(known):,} tasks, from {first!r} to {last!r}."


def unknown_tasks_message(unknown: Sequence[object], known: np.ndarray, remedy: str = _UNSEEN_REMEDY) -> str:
    """Message that names the tasks without training rows, and the remedy."""
    shown = ", ".join(repr(plain(label)) for label in unknown[:5])
    more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
    near = did_you_mean(unknown[0], known) if len(unknown) == 1 else ""
    if len(unknown) > 1 and remedy is _UNSEEN_REMEDY:
        remedy += " In cross-validation, split with ggmtl.model_selection.TaskKFold: every task needs training rows."
    return f"X has tasks that the model was not fitted with: {shown}{more}.{near} {remedy}"


def unseen_message(labels: np.ndarray, unseen: np.ndarray, known: np.ndarray) -> str:
    """Message with the number of rows of tasks without training rows, these tasks, and similar names."""
    names, rows = np.unique(labels[unseen], return_counts=True)
    order = np.argsort(-rows, kind="stable")[:5]
    pairs = zip(names[order].tolist(), rows[order].tolist())
    shown = ", ".join(f"{name!r} ({n} row{'' if n == 1 else 's'}{_near(name, known)})" for name, n in pairs)
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return (
        f"{int(unseen.sum())} of {len(labels)} rows have tasks that the model was not fitted with: {shown}{more}. "
        "They are predicted with the shared model."
    )


def _near(label: Any, known: np.ndarray) -> str:
    # Short labels, such as codes of airports, are alike by chance.
    is_word = isinstance(label, str) and len(label) >= _WORD
    close = difflib.get_close_matches(label, map(str, known.tolist()), n=1, cutoff=0.8) if is_word else []
    return f"; spelled like {close[0]!r}" if close else ""


def _sort(labels: np.ndarray) -> str:
    """The kind of the labels; labels of one kind can be compared."""
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
