"""Candidate edges: nearest neighbours among models, all pairs, given pairs, or nearby places.

Candidates that depend on models must be *cross-fitted*. If they were proposed from all training rows, they would depend
on held-out rows, and the outer criterion would be too optimistic. So each fold proposes its own candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, singledispatch
from typing import Any, ClassVar

import numpy as np
from scipy.spatial import cKDTree
from sklearn.neighbors import NearestNeighbors

from ggmtl.data.labels import locate_tasks, read_labels
from ggmtl.data.task_features import on_sphere
from ggmtl.errors import InputError, ParameterError, did_you_mean
from ggmtl.runtime import kernels
from ggmtl.runtime.machine import number_of_threads
from ggmtl.runtime.sizes import SIZES, Sizes

DEFAULT_NEIGHBOURS = 10
# With many tasks, neighbours of neighbours are searched, starting from a k-d tree in the leading principal directions:
# their number, and the number of sweeps after that start.
_TREE_DIRECTIONS, _FIRST_SWEEPS = 5, 3

# ``search(points, k, near)``: as :func:`near_pairs`.
Search = Callable[[np.ndarray, int, "np.ndarray | None"], np.ndarray]


@dataclass(frozen=True)
class CandidateEdges:
    """Pairs of task positions, sorted; `fixed` marks those that must be in the graph."""

    edges: np.ndarray
    fixed: np.ndarray

    def mask_of(self, other: CandidateEdges) -> np.ndarray:
        """Mask of the edges of this set that are also in the other, shape (m,)."""
        if not len(other.edges):
            return np.zeros(len(self.edges), dtype=bool)
        size = int(max(self.edges.max(initial=0), other.edges.max(initial=0))) + 1
        return np.isin(self.edges @ [size, 1], other.edges @ [size, 1])


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """Base of the candidate rules; subclasses implement :meth:`_pairs`."""

    must_link: Sequence[tuple[Any, Any]] = ()
    forbid: Sequence[tuple[Any, Any]] = ()
    # Whether candidates depend on the models, and so on the rows.
    uses_models: ClassVar[bool] = False

    def propose(
        self,
        models: np.ndarray,
        task_names: np.ndarray,
        near: np.ndarray | None = None,
        search: Search | None = None,
    ) -> CandidateEdges:
        """Candidate edges for tasks whose models are the rows of `models`, shape (n, p).

        Distances between rows should be meaningful. The regressor multiplies the models by a root of the pooled
        covariance of the features, so that they are distances between predictions. With very many tasks, only
        neighbours of neighbours in `near`, the previous edges, are searched. `search` replaces :func:`near_pairs`.
        """
        n = len(task_names)
        pairs = _unique(self._pairs(models, task_names, partial(search or near_pairs, near=near)), n)
        required = _unique(_positions(self.must_link, task_names, "must_link"), n)
        refused = _unique(_positions(self.forbid, task_names, "forbid"), n)
        keys, must, never = (edges @ [n, 1] for edges in (pairs, required, refused))
        both = np.intersect1d(must, never)
        if len(both):
            a, b = task_names[[both[0] // n, both[0] % n]].tolist()
            raise ParameterError(f"The pair ({a!r}, {b!r}) is both in must_link and in forbid.")
        if not len(must) and not len(never):
            return CandidateEdges(pairs, np.zeros(len(pairs), dtype=bool))
        keep = np.union1d(np.setdiff1d(keys, never), must)
        return CandidateEdges(np.column_stack([keep // n, keep % n]).astype(np.int64), np.isin(keep, must))

    def _pairs(self, models: np.ndarray, task_names: np.ndarray, search: Callable) -> np.ndarray:
        raise NotImplementedError


@dataclass(frozen=True)
class KNN(Candidates):
    """Every task with the `k` tasks of the nearest models.

    Parameters
    ----------
    k : int, optional
        Number of neighbours of each task; by default 10, or all other tasks if there are at most 60 tasks.
    must_link, forbid : sequences of pairs of task labels
        Edges that must, or must not, be in the graph.

    Examples
    --------
    >>> KNN(k=1).propose(np.array([[0.0], [1.0], [5.0]]), np.arange(3)).edges.tolist()
    [[0, 1], [1, 2]]
    """

    k: int | None = None
    uses_models: ClassVar[bool] = True

    def _pairs(self, models, task_names, search):
        n = len(models)
        k = _check_neighbours(self.k) if self.k is not None else (n - 1 if n <= SIZES.all_pairs else DEFAULT_NEIGHBOURS)
        return _neighbours(models, k, search)


@dataclass(frozen=True)
class Complete(Candidates):
    """All pairs of tasks.

    Examples
    --------
    >>> import numpy as np
    >>> Complete(forbid=[("a", "c")]).propose(np.zeros((3, 1)), np.array(["a", "b", "c"])).edges.tolist()
    [[0, 1], [1, 2]]
    """

    def _pairs(self, models, task_names, search):
        return np.column_stack(np.triu_indices(len(task_names), 1))


@dataclass(frozen=True)
class Pairs(Candidates):
    """The given pairs of task labels."""

    pairs: Sequence[tuple[Any, Any]]

    def _pairs(self, models, task_names, search):
        return _positions(self.pairs, task_names, "candidates")


@dataclass(frozen=True)
class Coordinates(Candidates):
    """Every task with the `k` nearest places.

    Parameters
    ----------
    xy : array of shape (n, 2), or dict from task label to (x, y), optional
        Places; an array has the order of the sorted task labels.
    k : int
        Neighbours of each task.
    must_link, forbid : sequences of pairs of task labels
    columns : pair of str, optional
        Columns of ``task_features`` with the place of a task, instead of `xy`. Longitude and latitude in degrees are
        recognised by their names (``lon``, ``lng``, ``long``, ``longitude``; ``lat``, ``latitude``): distances are then
        those on the sphere. The shared model also gets a smooth surface over these places.
    degrees : bool
        Whether `xy` are longitudes and latitudes in degrees: distances are then those on the sphere, and the page's map
        has coastlines.

    Examples
    --------
    >>> import numpy as np
    >>> places = {"Bonn": (7.1, 50.7), "Cologne": (7.0, 50.9), "Munich": (11.6, 48.1)}
    >>> Coordinates(places, k=1).propose(np.zeros((3, 1)), np.array(["Bonn", "Cologne", "Munich"])).edges.tolist()
    [[0, 1], [0, 2]]
    """

    xy: Any = None
    k: int = DEFAULT_NEIGHBOURS
    columns: tuple[str, str] | None = None
    degrees: bool = False

    def at(self, points: np.ndarray) -> Coordinates:
        """The rule with the places themselves, in the order of the sorted task labels."""
        return replace(self, xy=points, columns=None)

    def _pairs(self, models, task_names, search):
        if self.xy is None:
            raise ParameterError(
                "Coordinates needs xy=, or columns= and fit(..., task_features=). For example "
                'Coordinates(columns=("lon", "lat")).'
            )
        if isinstance(self.xy, dict):
            missing = [name for name in task_names.tolist() if name not in self.xy]
            if missing:
                raise InputError(f"Coordinates: no place is given for task {missing[0]!r}.")
            places = np.array([self.xy[name] for name in task_names.tolist()], dtype=np.float64)
        else:
            places = np.asarray(self.xy, dtype=np.float64)
            if len(places) == len(task_names):
                places = places[np.argsort(np.argsort(task_names))]
        if places.ndim != 2 or len(places) != len(task_names) or not np.isfinite(places).all():
            raise InputError(
                f"Coordinates: xy must be finite, of shape ({len(task_names)}, 2). Got shape {places.shape} instead."
            )
        if self.degrees:
            if not (np.abs(places[:, 1]) <= 90.0).all():
                raise InputError("Coordinates: a latitude is beyond ±90 degrees. Are longitude and latitude swapped?")
            places = on_sphere(*places.T)
        return _neighbours(places, _check_neighbours(self.k), search)


def as_candidates(value: Any) -> Candidates:
    """Read the regressor's parameter `candidates`."""
    if isinstance(value, Candidates):
        return value
    if isinstance(value, str):
        if value == "knn":
            return KNN()
        if value == "complete":
            return Complete()
        raise ParameterError(f"candidates must be 'knn', 'complete', pairs or a rule such as KNN(k=10). Got {value!r}.")
    pairs = np.asarray(value)
    pairs = pairs.reshape(-1, 2) if pairs.shape == (0,) else pairs
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise ParameterError(f"candidates given as pairs must have shape (m, 2). Got shape {pairs.shape} instead.")
    rows = value if isinstance(value, (list, tuple)) else pairs
    return Pairs([tuple(pair) for pair in rows])


def cross_fit(
    rule: Candidates, models: Sequence[np.ndarray], task_names: np.ndarray
) -> tuple[CandidateEdges, list[np.ndarray | None]]:
    """The union of the candidates of all folds, and for each fold the mask of its own candidates.

    A mask is None if the candidates do not depend on the models.
    """
    if not rule.uses_models:
        return rule.propose(models[0], task_names), [None] * len(models)
    own = [rule.propose(model, task_names) for model in models]
    n = len(task_names)
    keys = np.unique(np.concatenate([part.edges @ [n, 1] for part in own]))
    fixed = np.unique(np.concatenate([part.edges[part.fixed] @ [n, 1] for part in own]))
    union = CandidateEdges(np.column_stack([keys // n, keys % n]).astype(np.int64), np.isin(keys, fixed))
    return union, [union.mask_of(part) for part in own]


@singledispatch
def search_for(loss: Any) -> Search:
    """The search for nearest neighbours for a loss: on the CPU, unless the type of the loss has registered another."""
    return near_pairs


def _check_neighbours(k: int) -> int:
    if k != int(k) or k < 1:
        raise ParameterError(f"k must be a whole number of at least 1. Got {k!r} instead.")
    return int(k)


def _neighbours(points: np.ndarray, k: int, search: Callable) -> np.ndarray:
    n = len(points)
    if n < 2:
        return np.empty((0, 2), dtype=np.int64)
    if k >= n - 1:
        return np.column_stack(np.triu_indices(n, 1))
    return search(points, int(k))


def near_pairs(points: np.ndarray, k: int, near: np.ndarray | None = None) -> np.ndarray:
    """Pairs (i, j) with j among the `k` nearest of i, shape (m, 2), as :func:`nearest` finds them."""
    found = nearest(points, k, near)
    pairs = np.column_stack([np.repeat(np.arange(len(points)), found.shape[1]), found.ravel()])
    return pairs[pairs[:, 0] != pairs[:, 1]]


def nearest(points: np.ndarray, k: int, near: np.ndarray | None = None, sizes: Sizes = SIZES) -> np.ndarray:
    """The `k` nearest neighbours of every point, shape (n, k); missing ones are replaced by the point itself.

    Exact up to ``sizes.exact_neighbours`` points. With more points, only neighbours of neighbours in the edges `near`
    are searched.
    """
    if len(points) <= sizes.exact_neighbours:
        return NearestNeighbors(n_neighbors=k).fit(points).kneighbors(return_distance=False)
    return _approximate_neighbours(points, k, near)


def _approximate_neighbours(points: np.ndarray, k: int, near: np.ndarray | None) -> np.ndarray:
    """Approximate neighbours, shape (n, k), by repeated search among neighbours of neighbours.

    Without `near`, the search starts from a k-d tree in the leading principal directions.
    """
    n, sweeps, found = len(points), 1, np.empty((len(points), k), dtype=np.int64)
    if near is None or not len(near):
        centred = points - points.mean(axis=0)
        leading = np.linalg.eigh(centred.T @ centred)[1][:, -_TREE_DIRECTIONS:]
        found = cKDTree(centred @ leading).query(centred @ leading, k=k + 1, workers=number_of_threads())[1][:, 1:]
        near, sweeps = np.column_stack([np.repeat(np.arange(n), k), found.ravel()]), _FIRST_SWEEPS
        near = near[near[:, 0] != near[:, 1]]
    for _ in range(sweeps):
        found = kernels.nearest_in_neighbourhood(points, _unique(near, n), k)
        near = np.column_stack([np.repeat(np.arange(n), k), found.ravel()])
        near = near[near[:, 0] != near[:, 1]]
    return found


def _positions(pairs: Any, task_names: np.ndarray, parameter: str) -> np.ndarray:
    pairs = [tuple(pair) for pair in pairs]
    if not pairs:
        return np.empty((0, 2), dtype=np.int64)
    labels = read_labels([label for pair in pairs for label in pair], parameter, 2 * len(pairs))
    order = np.argsort(task_names, kind="stable")
    found = locate_tasks(task_names[order], labels)
    position = np.where(found >= 0, order[found], -1)
    if (position < 0).any():
        unknown = labels[position < 0][0]
        raise ParameterError(
            f"{parameter} names task {unknown.item()!r}, which is not in the data.{did_you_mean(unknown, task_names)}"
        )
    return position.reshape(-1, 2)


def _unique(pairs: np.ndarray, n: int) -> np.ndarray:
    """The distinct pairs, each with the smaller position first, sorted."""
    pairs = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    a, b = pairs.T
    if (a < b).all() and (np.diff(a * n + b) > 0).all():
        return pairs
    if (a == b).any():
        raise ParameterError("A candidate edge joins a task with itself.")
    # Sorting beats np.unique, whose hash tables are slow at millions of keys.
    keys = np.sort(np.minimum(a, b) * n + np.maximum(a, b))
    keys = keys[np.diff(keys, prepend=-1) > 0]
    return np.column_stack([keys // n, keys % n])
