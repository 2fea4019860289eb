"""Curves: cubic splines of the features, in addition to their straight lines.

A feature with more than eight distinct values gets three columns g_j(x), the leading directions in which a cubic spline
differs from a straight line. Over the training rows,

    Σ g_j = 0 ,   Σ x g_j = 0 ,   Σ g_j g_l = N if j = l, else 0 .

The spline has its knots at quantiles of the training rows, and continues as a straight line beyond their range. It does
not depend on the target. With c the coefficients of the columns and β that of x,

    f(x) = βx + Σ_j c_j g_j(x) = (β + Σ_j c_j s_j) x + Σ_j c_j b_j(x) ,   b_j(x) = g_j(x) − s_j (x − x̄) ,

where s_j is the mean slope of g_j over the training rows: b_j has neither mean nor mean slope there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from scipy.interpolate import BSpline

from ggmtl.data.task_data import TaskData

DEGREE, N_COLUMNS = 3, 3
# Features with no more distinct values than this are straight lines.
FEWEST_VALUES = 8
# Quantiles between which the cubic pieces lie.
_QUANTILES = np.linspace(0.0, 1.0, 4)
# Directions with a smaller share of the largest singular value differ from a straight line in a few rows only.
_LEAST_SHARE = 1e-3
# Distinct values of a feature that a stream keeps; beyond these, neighbouring values are merged.
_MOST_DISTINCT = 1 << 16
# Narrower pieces, as a share of the range, have slopes so large that those of other pieces are lost to rounding.
_NARROWEST = 1e-6


@dataclass(frozen=True)
class Curves:
    """Curves of some features.

    Parameters
    ----------
    features : array of int, shape (q,)
        Positions of the features that have a curve.
    knots : array of shape (q, 4)
        Where the cubic pieces of each meet, the ends of the training rows included.
    coefficients : array of shape (q, 6, 3)
        Of the B-splines behind the columns of each.
    slopes : array of shape (q, 3)
        s: mean slope of each column over the training rows.
    means : array of shape (q,)
        x̄ of each feature.
    """

    features: np.ndarray
    knots: np.ndarray
    coefficients: np.ndarray
    slopes: np.ndarray
    means: np.ndarray

    @classmethod
    def of_rows(cls, X: np.ndarray, weight: np.ndarray | None = None) -> Curves:
        """Curves of all features with enough values; `weight` is that of the rows."""
        weight = np.ones(len(X)) if weight is None else weight
        return cls.of_values(DistinctValues([_distinct(column, weight) for column in X.T]))

    @classmethod
    def of_values(cls, counted: DistinctValues) -> Curves:
        """Curves of all features with enough distinct values."""
        several = [k for k, (values, _) in enumerate(counted.found) if len(values) > FEWEST_VALUES]
        found = {k: curve for k in several if (curve := _curve(*counted.found[k])) is not None}
        if not found:
            return cls.none()
        parts = [np.stack(part) for part in zip(*found.values())]
        return cls(np.array(list(found)), *parts)

    @classmethod
    def none(cls) -> Curves:
        """No feature has a curve."""
        empty = np.empty((0, N_COLUMNS))
        knots, coefficients = np.empty((0, len(_QUANTILES))), np.empty((0, _n_splines(), N_COLUMNS))
        return cls(np.empty(0, dtype=np.int64), knots, coefficients, empty, np.empty(0))

    @property
    def n_columns(self) -> int:
        """Number of columns of all curves."""
        return self.slopes.size

    @property
    def feature_of_column(self) -> np.ndarray:
        """Position of the feature behind every column."""
        return np.repeat(self.features, N_COLUMNS)

    def mean_slopes(self, n_features: int) -> np.ndarray:
        """Mean slope of every column in every feature, shape (columns, features)."""
        out = np.zeros((self.n_columns, n_features))
        out[np.arange(self.n_columns), self.feature_of_column] = self.slopes.ravel()
        return out

    def columns(self, X: np.ndarray) -> np.ndarray:
        """g(x) of every row, shape (rows, columns)."""
        parts = [self._values(k, X[:, feature]) for k, feature in enumerate(self.features)]
        return np.concatenate(parts, axis=1) if parts else np.empty((len(X), 0))

    def bends(self, X: np.ndarray) -> np.ndarray:
        """b(x) of every row: the columns without their mean slope, shape (rows, columns)."""
        lines = (X[:, self.features] - self.means)[:, :, None] * self.slopes
        return self.columns(X) - lines.reshape(len(X), -1)

    def column_of(self, feature: int, values: np.ndarray) -> np.ndarray:
        """g of one feature, shape (values, columns), zero in the columns of other features."""
        out = np.zeros((len(values), self.n_columns))
        for k in np.flatnonzero(self.features == feature).tolist():
            out[:, N_COLUMNS * k : N_COLUMNS * (k + 1)] = self._values(k, values)
        return out

    def names(self, features: tuple[str, ...]) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(f"{features[k]} (curve {j + 1})" for k in self.features for j in range(N_COLUMNS))

    def expanded(self, data: TaskData) -> TaskData:
        """Rows with the columns of the curves after the features."""
        if not self.n_columns:
            return data
        X = np.concatenate([data.X, self.columns(data.X)], axis=1)
        return replace(data, X=X, feature_names=data.columns + self.names(data.columns))

    def is_same(self, other: Curves) -> bool:
        """Whether the columns are the same."""
        return all(np.array_equal(getattr(self, part.name), getattr(other, part.name)) for part in fields(self))

    def _values(self, k: int, x: np.ndarray) -> np.ndarray:
        low, high = self.knots[k, [0, -1]]
        spline = _spline(self.knots[k], self.coefficients[k])
        return _on_line(spline, (x - low) / (high - low))


@dataclass
class DistinctValues:
    """Distinct values of every feature and their weights, of rows that come in pieces.

    Where a feature has very many, neighbouring values are merged, except the smallest and the largest.
    """

    found: list[tuple[np.ndarray, np.ndarray]]

    @classmethod
    def none(cls, n_features: int) -> DistinctValues:
        """No values yet."""
        return cls([(np.empty(0), np.empty(0))] * n_features)

    def add(self, columns: Sequence[np.ndarray], weight: np.ndarray | None = None) -> None:
        """Count the rows, one array per feature, and a weight each."""
        for k, column in enumerate(columns):
            values, count = _distinct(column, np.ones(len(column)) if weight is None else weight)
            self._join(k, values, count)

    def __add__(self, other: DistinctValues) -> DistinctValues:
        """The values of both."""
        out = DistinctValues(list(self.found))
        for k, (values, count) in enumerate(other.found):
            out._join(k, values, count)
        return out

    def _join(self, k: int, values: np.ndarray, count: np.ndarray) -> None:
        known, weight = self.found[k]
        values, weight = _distinct(np.concatenate([known, values]), np.concatenate([weight, count]))
        self.found[k] = (values, weight) if len(values) <= _MOST_DISTINCT else _thinned(values, weight)


def _distinct(x: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct values in rising order, and their weights."""
    values, place = np.unique(x, return_inverse=True)
    return values, np.bincount(place.reshape(-1), weights=weight, minlength=len(values))


def _thinned(values: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means of groups of neighbouring values of about equal weights, half as many as are kept."""
    share = (np.cumsum(weight) - 0.5 * weight) / weight.sum()
    group = 1 + (share * (_MOST_DISTINCT // 2)).astype(np.int64)
    group[0], group[-1] = 0, group[-1] + 1
    total = np.bincount(group, weights=weight)
    kept = total > 0
    return np.bincount(group, weights=weight * values)[kept] / total[kept], total[kept]


def _n_splines() -> int:
    return len(_QUANTILES) + DEGREE - 1


def _curve(values: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
    """Knots, coefficients, mean slopes and the mean of one feature; None where it is spread over too many decades."""
    # Where most rows share a few values, knots at quantiles of the distinct values are tried next.
    candidates = [_quantiles(values, weight), _quantiles(values, np.ones(len(values)))]
    found = None
    for knots in candidates:
        if np.diff(knots).min() > _NARROWEST * (knots[-1] - knots[0]):
            coefficients, slopes, is_clear = _leading(values, weight, knots)
            found = knots, coefficients, slopes, np.average(values, weights=weight)
            if is_clear:
                break
    return found


def _quantiles(values: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Values at the quantiles, the smallest and the largest included; a weight of two counts a value twice."""
    total = np.cumsum(weight)
    return values[np.minimum(np.searchsorted(total, _QUANTILES * total[-1] * (1 - 1e-12)), len(values) - 1)]


def _leading(values: np.ndarray, weight: np.ndarray, knots: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
    """Coefficients and mean slopes of the leading columns, and whether they clearly differ from a straight line."""
    low, high = knots[[0, -1]]
    u = (values - low) / (high - low)
    basis, share = _spline(knots, np.eye(_n_splines()))(u), weight / weight.sum()
    line, root = np.column_stack([np.ones(len(u)), u]), np.sqrt(share)[:, None]
    fitted = np.linalg.lstsq(root * line, root * basis, rcond=None)[0]
    _, strength, directions = np.linalg.svd(root * (basis - line @ fitted), full_matrices=False)
    combined = directions[:N_COLUMNS].T / strength[:N_COLUMNS]
    # The sign of a singular vector is arbitrary; fixing it keeps results the same on every machine.
    combined *= np.where(combined[np.abs(combined).argmax(axis=0), range(N_COLUMNS)] < 0, -1.0, 1.0)
    # 1 and u are splines themselves, so the remainder is a spline, too.
    lines = np.column_stack([np.ones(_n_splines()), _greville(knots)])
    coefficients = combined - lines @ fitted @ combined
    slopes = share @ _spline(knots, coefficients).derivative()(u) / (high - low)
    return coefficients, slopes, bool(strength[N_COLUMNS - 1] > _LEAST_SHARE * strength[0])


def _spline(knots: np.ndarray, coefficients: np.ndarray) -> BSpline:
    """The spline over (x − low)/(high − low)."""
    u = (knots - knots[0]) / (knots[-1] - knots[0])
    return BSpline(np.pad(u, DEGREE, mode="edge"), coefficients, DEGREE)


def _greville(knots: np.ndarray) -> np.ndarray:
    """Coefficients of u itself: means of neighbouring knots."""
    t = np.pad((knots - knots[0]) / (knots[-1] - knots[0]), DEGREE, mode="edge")
    return np.array([t[k + 1 : k + 1 + DEGREE].mean() for k in range(len(t) - DEGREE - 1)])


def _on_line(spline: BSpline, u: np.ndarray) -> np.ndarray:
    """The spline inside [0, 1], and its tangents beyond."""
    inside = np.clip(u, 0.0, 1.0)
    ends = spline.derivative()(np.array([0.0, 1.0]))
    beyond = (u - inside)[:, None]
    return spline(inside) + beyond * np.where(beyond < 0, ends[0], ends[1])
