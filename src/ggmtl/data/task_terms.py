"""Task features → columns z with mean zero, in which the common model w_0 + B z_i is linear.

A number gives itself and its square. A category gives one column per value. Two columns with the place of a task also
give the leading functions of a smooth surface: with landmarks l_1, l_2, … among the places, K = exp(−distance/ℓ) and
K_ll = U diag(κ) Uᵀ,

    φ(x) = K(x, l) U_q κ_q^-½ ,

so that independent coefficients of the same variance are a Gaussian process over the places, to rank q. Near places
then have near models, as in kriging. How much each column matters is learned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist

from ggmtl.data.task_features import TaskFeatures, on_sphere, spread_out
from ggmtl.errors import InputError, did_you_mean

MAX_CATEGORIES = 100
# Functions of the surface, and landmarks. 30 functions of 150 landmarks reach an error of 4.350 °C on 1,020 weather
# stations with four days each, 50 functions 4.339, 80 functions 4.323 at five times the time.
_FUNCTIONS, _LANDMARKS = 40, 150
# Coefficients of w_0 and B together that a dense system may have.
LARGEST = 1500
_LONGITUDES, _LATITUDES = ("lon", "lng", "long", "longitude"), ("lat", "latitude")


@dataclass(frozen=True)
class Number:
    """A column of numbers: standardised, and its square where it has more than two values.

    Beyond the range of the training values, the square stays constant.
    """

    name: str
    center: float
    scale: float
    low: float
    high: float
    square: tuple[float, float] | None

    @classmethod
    def of(cls, name: str, values: np.ndarray) -> Number | None:
        """The term for these values; None where all are equal."""
        scale = float(values.std())
        if not scale > 1e-12 * np.abs(values).max():
            return None
        center = float(values.mean())
        z = (values - center) / scale
        square = (float((z**2).mean()), float((z**2).std())) if len(np.unique(values)) > 2 else None
        if square is not None and not square[1] > 1e-9:
            square = None
        return cls(name, center, scale, float(z.min()), float(z.max()), square)

    @property
    def groups(self) -> tuple[int, ...]:
        """Columns with the same number share a strength."""
        return (0,) if self.square is None else (0, 1)

    def encode(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Columns z, shape (n, 1) or (n, 2); zero where the number is not known."""
        z = (columns[self.name] - self.center) / self.scale
        out = [z]
        if self.square is not None:
            out.append((np.clip(z, self.low, self.high) ** 2 - self.square[0]) / self.square[1])
        return np.nan_to_num(np.column_stack(out), nan=0.0)


@dataclass(frozen=True)
class Category:
    """A column of text: one 0/1 column per value less its share, all in units of their common spread."""

    name: str
    values: tuple[str, ...]
    shares: tuple[float, ...]

    @classmethod
    def of(cls, name: str, values: np.ndarray) -> Category | None:
        """The term for these values; None where all are equal. Very many values are refused."""
        found, count = np.unique(values, return_counts=True)
        if len(found) > MAX_CATEGORIES:
            raise InputError(
                f"Column {name!r} of task_features has {len(found):,} categories; at most {MAX_CATEGORIES} can be "
                "used. Join rare ones, or leave the column out."
            )
        return cls(name, tuple(found.tolist()), tuple((count / len(values)).tolist())) if len(found) > 1 else None

    @property
    def groups(self) -> tuple[int, ...]:
        """All values share a strength."""
        return (0,) * len(self.values)

    def encode(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Columns z; zero, which is the average, for a value that was not in the training table."""
        shares = np.array(self.shares)
        here = columns[self.name][:, None] == np.array(self.values)
        spread = np.sqrt((shares * (1.0 - shares)).sum())
        return np.where(here.any(axis=1, keepdims=True), here - shares, 0.0) / spread


@dataclass(frozen=True)
class Surface:
    """A smooth function of the place of a task, given by two columns, on the sphere or in the plane."""

    columns: tuple[str, str]
    sphere: bool
    origin: np.ndarray
    unit: float
    landmarks: np.ndarray
    basis: np.ndarray
    center: np.ndarray
    scale: float

    @classmethod
    def of(cls, names: tuple[str, str], columns: Mapping[str, np.ndarray], most: int) -> Surface | None:
        """The surface over these places with at most `most` functions; None where all places are the same."""
        sphere = is_on_sphere(names, columns)
        points = places(names, columns, sphere)
        origin, distinct = points.mean(axis=0), np.unique(points, axis=0)
        unit = float(np.sqrt(((points - origin) ** 2).sum(axis=1).mean()))
        if len(distinct) < 3 or not unit > 0:
            return None
        scaled = (distinct - origin) / unit
        landmarks = scaled[spread_out(scaled, min(_LANDMARKS, len(distinct)))]
        # A length scale beyond the extent of the places makes no measurable difference.
        values, vectors = np.linalg.eigh(np.exp(-cdist(landmarks, landmarks) / _LENGTH))
        # Half of the tasks at most: with a function for every task, effects could not be distinguished from chance.
        kept = max(1, min(most, len(distinct) // 2))
        basis = vectors[:, ::-1][:, :kept] / np.sqrt(values[::-1][:kept])
        rough = cls(names, sphere, origin, unit, landmarks, basis, np.zeros(kept), 1.0)
        z = rough.encode(columns)
        center = z.mean(axis=0)
        scale = float(np.sqrt(((z - center) ** 2).sum(axis=1).mean()))
        return cls(names, sphere, origin, unit, landmarks, basis, center, scale)

    @property
    def name(self) -> str:
        """The name that is shown to users."""
        return f"place ({', '.join(self.columns)})"

    @property
    def groups(self) -> tuple[int, ...]:
        """All functions share a strength: their variances are in the basis."""
        return (0,) * self.basis.shape[1]

    def encode(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Columns z, shape (n, functions); zero where the place is not known."""
        points = (places(self.columns, columns, self.sphere) - self.origin) / self.unit
        z = np.exp(-cdist(np.nan_to_num(points), self.landmarks) / _LENGTH) @ self.basis
        known = np.isfinite(points).all(axis=1, keepdims=True)
        return np.where(known, (z - self.center) / self.scale, 0.0)


# Length scale of the surface, in root mean square distances from the mean place.
_LENGTH = 2.0
Term = Number | Category | Surface


@dataclass(frozen=True)
class KnownTasks:
    """The task features of a model, and the terms made of them.

    Parameters
    ----------
    features : TaskFeatures
        One row per task, in the order of the tasks.
    terms : tuple of Number, Category and Surface
        How the columns become z.
    """

    features: TaskFeatures
    terms: tuple[Term, ...]

    @classmethod
    def of(cls, features: TaskFeatures, n_coefficients: int, where: tuple[str, str] | None = None) -> KnownTasks:
        """Terms for the columns of a table.

        `where` names the columns of a place. By default those named as longitude and latitude are, if there are any.
        """
        columns = dict(features.columns)
        where = _named_places(columns) if where is None else where
        if where is not None:
            _check_places(where, columns)
            if is_on_sphere(where, columns):
                columns[where[0]] = _unwrapped(columns[where[0]])
        terms: list[Term | None] = [
            (Number if values.dtype.kind == "f" else Category).of(name, values) for name, values in columns.items()
        ]
        width = sum(len(term.groups) for term in terms if term is not None)
        room = LARGEST // n_coefficients - 1 - width
        if room < 0:
            raise InputError(
                f"task_features gives {width} columns, which with {n_coefficients} coefficients of a task is more than "
                f"{LARGEST:,} effects. Leave columns out, or join categories."
            )
        if where is not None and room > 0:
            terms.append(Surface.of(where, features.columns, min(_FUNCTIONS, room)))
        found = tuple(term for term in terms if term is not None)
        if not found:
            raise InputError("Every column of task_features is the same for all tasks. Give columns that vary.")
        return cls(features, found)

    @cached_property
    def values(self) -> np.ndarray:
        """z of every task, shape (n, q)."""
        return self.encode(self.features)

    def encode(self, features: TaskFeatures) -> np.ndarray:
        """z of tasks with the same columns, shape (m, q)."""
        return np.column_stack([term.encode(self._unwrapped(features.columns, term)) for term in self.terms])

    def with_task(self, label: np.ndarray, row: TaskFeatures | None) -> KnownTasks:
        """The same with one more task; all its values are missing where there is no row."""
        return KnownTasks(self.features.with_task(label, row), self.terms)

    def _unwrapped(self, columns: Mapping[str, np.ndarray], term: Term) -> Mapping[str, np.ndarray]:
        surface = self.surface
        if surface is None or not surface.sphere or not isinstance(term, Number) or term.name != surface.columns[0]:
            return columns
        return {term.name: (columns[term.name] - term.center + 180.0) % 360.0 - 180.0 + term.center}

    @property
    def surface(self) -> Surface | None:
        """The term of the places."""
        return next((term for term in self.terms if isinstance(term, Surface)), None)

    @property
    def groups(self) -> np.ndarray:
        """Number of the strength of every column, shape (q,)."""
        parts, first = [], 0
        for term in self.terms:
            parts.append(np.array(term.groups) + first)
            first = int(parts[-1].max()) + 1
        return np.concatenate(parts)

    @property
    def owners(self) -> list[str]:
        """Name of the descriptor of every column of z; the two columns of a place are one."""
        surface = self.surface
        own = {} if surface is None else dict.fromkeys(surface.columns, surface.name)
        return [own.get(term.name, term.name) for term in self.terms for _ in term.groups]

    def places(self, names: tuple[str, str]) -> np.ndarray:
        """Places of the tasks in coordinates whose Euclidean distances are those between the places."""
        columns = self.features.columns
        return places(names, columns, is_on_sphere(names, columns))


def is_on_sphere(names: tuple[str, str], columns: Mapping[str, np.ndarray]) -> bool:
    """Whether two columns are longitude and latitude in degrees, by their names and values."""
    (first, second), (x, y) = names, (columns[names[0]], columns[names[1]])
    named = first.lower() in _LONGITUDES and second.lower() in _LATITUDES
    return named and bool((np.abs(np.nan_to_num(x)) <= 360).all() and (np.abs(np.nan_to_num(y)) <= 90).all())


def places(names: tuple[str, str], columns: Mapping[str, np.ndarray], sphere: bool) -> np.ndarray:
    """Points of the plane, shape (n, 2), or of the unit sphere, shape (n, 3), from degrees."""
    x, y = columns[names[0]], columns[names[1]]
    return on_sphere(x, y) if sphere else np.column_stack([x, y])


def _named_places(columns: Mapping[str, Any]) -> tuple[str, str] | None:
    """The columns named as longitude and latitude, where there is one of each."""
    x = [name for name in columns if name.lower() in _LONGITUDES and columns[name].dtype.kind == "f"]
    y = [name for name in columns if name.lower() in _LATITUDES and columns[name].dtype.kind == "f"]
    if len(x) == len(y) == 1 and is_on_sphere((x[0], y[0]), columns):
        return x[0], y[0]
    return None


def _check_places(names: tuple[str, str], columns: Mapping[str, np.ndarray]) -> None:
    for name in names:
        if name not in columns:
            raise InputError(f"Coordinates: task_features has no column {name!r}.{did_you_mean(name, columns)}")
        if columns[name].dtype.kind != "f":
            raise InputError(f"Coordinates: column {name!r} of task_features must hold numbers.")


def _unwrapped(longitude: np.ndarray) -> np.ndarray:
    """Longitudes within 180° of their mean direction, so that the date line does not divide neighbours."""
    angle = np.radians(longitude)
    middle = np.degrees(np.arctan2(np.sin(angle).mean(), np.cos(angle).mean()))
    return (longitude - middle + 180.0) % 360.0 - 180.0 + middle
