"""The parameter ``validation``: which rows are held out together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ggmtl.data.folds import deal_folds, deal_holdout
from ggmtl.data.task_data import TaskData
from ggmtl.errors import ParameterError


def seed_of(random_state: Any) -> int:
    """The seed of the folds."""
    seed = 0 if random_state is None else random_state
    if not isinstance(seed, (int, np.integer)):
        raise ParameterError(f"random_state must be None or a whole number. Got {seed!r} instead.")
    return int(seed)


def deal_rows(data: TaskData, validation: Any, seed: int) -> tuple[np.ndarray | None, int]:
    """Fold of every row, None for no folds; and the first fold that is held out.

    Where some rows are never held out (a single hold-out share, a splitter that leaves rows aside), those are fold 0,
    and folds are held out from 1 on.
    """
    if validation is None:
        return None, 0
    if hasattr(validation, "split") and not isinstance(validation, str):
        folds = _folds_of_splitter(validation, data)
        first = int((folds < 0).any())
        return folds + first, first
    if isinstance(validation, (bool, np.bool_)) or not isinstance(validation, (int, float, np.integer, np.floating)):
        raise ParameterError(
            "validation must be a number of folds, a share of rows to hold out or a splitter. "
            f"Got {validation!r} instead."
        )
    if 0 < validation < 1:
        return deal_holdout(data, float(validation), seed).astype(np.int64), 1
    if not np.isfinite(validation) or validation != int(validation) or validation < 2:
        raise ParameterError(
            f"validation must be at least 2 folds or a share between 0 and 1. Got {validation!r} instead."
        )
    return deal_folds(data, int(validation), seed), 0


def group_labels(labels: np.ndarray) -> list[Any]:
    """Labels of groups that a file can hold: text and numbers as they are, times as whole numbers."""
    return (labels.view(np.int64) if labels.dtype.kind in "mM" else labels).tolist()


def _splits(splitter: Any, data: TaskData) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Training and test rows of every split; the splitter's own errors are raised again with a remedy."""
    try:
        yield from splitter.split(data.X, data.y, data.groups)
    except (TypeError, ValueError) as error:
        remedy = " Pass fit(..., groups=)." if data.groups is None and "group" in str(error) else ""
        raise ParameterError(
            f"validation: {type(splitter).__name__} cannot split these {len(data)} rows: {error}{remedy}"
        ) from error


def _folds_of_splitter(splitter: Any, data: TaskData) -> np.ndarray:
    """Number of the split whose test set each row is in, −1 for none."""
    fold = np.full(len(data), -1)
    for k, (train, test) in enumerate(_splits(splitter, data)):
        held_out = np.zeros(len(data), dtype=bool)
        held_out[test] = True
        if (fold[held_out] >= 0).any():
            raise ParameterError("validation: the splitter's test sets overlap; every row must be in at most one.")
        trained = np.zeros(len(data), dtype=bool)
        trained[train] = True
        if (trained == held_out).any():
            raise ParameterError(
                f"validation: {type(splitter).__name__} trains split {k} on {int(trained.sum())} rows and tests it on "
                f"{int(held_out.sum())} of {len(data)}; every row outside a test set must be trained on. For rows in "
                "time order use one hold-out, PredefinedSplit(np.where(is_late, 0, -1)), or KFold without shuffling."
            )
        fold[held_out] = k
    if fold.max() < 0:
        raise ParameterError("validation: the splitter gave no test rows.")
    return fold
