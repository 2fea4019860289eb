"""Which arrays a model file may have: their shapes, and the values that a fit can give.

Every array that is read is checked against this table before anything is made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

Arrays = dict[str, np.ndarray]
# The squares of larger values overflow.
_LARGEST = 1e154


@dataclass(frozen=True)
class Rule:
    """What an array may be.

    Parameters
    ----------
    shape : str
        One word per dimension. A number is a length; equal letters are equal lengths, in all arrays of a file.
    kind : str
        Letters of NumPy's kinds of types.
    least, above, most : float
        Bounds of floating-point values: least ≤ value, above < value, |value| < most.
    also : callable, optional
        Which values are allowed beyond the bounds.
    """

    shape: str
    kind: str = "f"
    least: float = -np.inf
    above: float = -np.inf
    most: float = _LARGEST
    also: Callable[[np.ndarray], np.ndarray] | None = None


def _not_finite(values: np.ndarray) -> np.ndarray:
    return ~np.isfinite(values)


# n tasks, n+1 with one more that is new, d features, c columns (features and curves), p coefficients of a task, s of
# them shown to users, l levels, o = c + 1 and z = c + 2 columns of sums; "half_p" entries are those on and above the
# diagonal of a p × p matrix. All other letters take the length that the file gives them first.
_RULES = {
    # The level whose graph is shown, and the averaged ones.
    "coefficients": Rule("n p"),
    "coupling": Rule("p", least=0),
    # An infinite strength of the shared model leaves no deviations: one model for all.
    "hub": Rule("p", least=0, also=np.isposinf),
    "precisions": Rule("n", above=0),
    "constant": Rule("p", kind="bif"),
    "edges": Rule("m 2", kind="i"),
    "edge_values": Rule("m", least=0),
    "graph.shown": Rule("m", kind="b"),
    "level[0-9]*.coefficients": Rule("n p"),
    "level[0-9]*.hub": Rule("p", least=0, also=np.isposinf),
    "level[0-9]*.precisions": Rule("n", above=0),
    "level[0-9]*.precision": Rule("p p"),
    # Held-out errors. Losses by level, and the variance of their gains between folds.
    "errors.squared": Rule("l k n", least=0),
    "errors.count": Rule("k n", least=0),
    "average.squared": Rule("a n", least=0),
    "losses.*": Rule("n", least=0),
    "fold_variance.*": Rule("1", least=0),
    # Units, standard errors and intervals.
    "center": Rule("c"),
    "scale": Rule("c", above=0, most=np.inf),
    "standard_errors": Rule("n s", least=0, also=_not_finite),
    "noise_ratios": Rule("n", above=0),
    "interval.factor": Rule("n+1", above=0),
    "interval.freedom": Rule("n+1", above=2),
    "interval.deviation": Rule("n+1", above=0),
    # Curves and task features.
    "curves.features": Rule("f", kind="i"),
    "curves.knots": Rule("f 4"),
    "curves.coefficients": Rule("f 6 3"),
    "curves.slopes": Rule("f 3"),
    "curves.means": Rule("f"),
    "known.effects": Rule("q p"),
    "known.strength": Rule("q p", above=0),
    "known.[0-9]*": Rule("n", kind="fi", also=np.isnan),
    "surface.origin": Rule("w"),
    "surface.landmarks": Rule("g w"),
    "surface.basis": Rule("g h"),
    "surface.center": Rule("h"),
    # Sums of rows.
    "cross": Rule("x n half_z", most=np.inf),
    "origin": Rule("o"),
    # Classes and counts, and their rows.
    "level [0-9]*.new_task": Rule("p p"),
    "level [0-9]*.ridge": Rule("p"),
    "covariance": Rule("n half_p"),
    "common": Rule("p p"),
    "information": Rule("p"),
    "count": Rule("n", kind="fi"),
    "null": Rule("n", least=0),
    "limits": Rule("2 p"),
    "scores.groups": Rule("y 4", also=_not_finite),
    # A task whose held-out rows have one class has no AUC.
    "scores.*": Rule("n", also=_not_finite),
    "rows.design": Rule("r p"),
    "rows.task": Rule("r", kind="i"),
    "rows.folds": Rule("r", kind="i"),
    "rows.*": Rule("r"),
}


def check_arrays(arrays: Arrays, lengths: Mapping[str, int]) -> None:
    """Refuse arrays of another shape or kind than the table has, and values that no fit can give."""
    known = dict(lengths)
    for name, array in arrays.items():
        rule = next((rule for pattern, rule in _RULES.items() if fnmatchcase(name, pattern)), None)
        if rule is None:
            continue
        words = rule.shape.split()
        wanted = [int(word) if word.isdigit() else known.get(word, size) for word, size in zip(words, array.shape)]
        if array.ndim != len(words) or list(array.shape) != wanted:
            raise ValueError(f"{name} has shape {array.shape}, not {tuple(wanted)}")
        known |= {word: size for word, size in zip(words, array.shape) if not word.isdigit()}
        if array.dtype.kind not in rule.kind:
            raise ValueError(f"{name} holds values of type {array.dtype}")
        if array.dtype.kind == "f" and not _allowed(array, rule).all():
            raise ValueError(f"{name} has an entry that no fit can give")


def _allowed(array: np.ndarray, rule: Rule) -> np.ndarray:
    values = array.astype(np.float64, copy=False)
    inside = (values >= rule.least) & (values > rule.above) & (np.abs(values) < rule.most)
    return inside if rule.also is None else inside | rule.also(values)


def packed(prefix: str, record: object, names: tuple[str, ...]) -> Arrays:
    """Fields of a record as arrays under a prefix; those that are None are left out."""
    values = {name: getattr(record, name) for name in names}
    return {f"{prefix}{name}": value for name, value in values.items() if value is not None}


def under(prefix: str, arrays: Arrays) -> Arrays:
    """The arrays whose names begin with the prefix, without it."""
    return {name.removeprefix(prefix): values for name, values in arrays.items() if name.startswith(prefix)}


def upper(matrices: np.ndarray) -> np.ndarray:
    """Entries on and above the diagonal of symmetric matrices, shape (…, half)."""
    rows, columns = np.triu_indices(matrices.shape[-1])
    return np.ascontiguousarray(matrices[..., rows, columns])


def symmetric(entries: np.ndarray, size: int) -> np.ndarray:
    """The inverse of :func:`upper`."""
    rows, columns = np.triu_indices(size)
    out = np.empty((*entries.shape[:-1], size, size))
    out[..., rows, columns] = out[..., columns, rows] = entries
    return out
