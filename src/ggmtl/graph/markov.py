"""Markov clustering of the task graph (van Dongen, 2000): groups of tasks that a random walk rarely leaves.

With M the column-stochastic matrix of the walk, repeat until convergence

    expansion  M ← Mᵃ                            (flow spreads; a = 2)
    inflation  M_ij ← M_ij^r / Σ_k M_kj^r        (strong flow grows, weak flow dies; r = 2)

In the limit every task flows to a few attractors; tasks that share one are a cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Integral

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from sklearn.exceptions import ConvergenceWarning

from ggmtl.errors import ParameterError, warn_user
from ggmtl.graph.task_graph import TaskGraph

# Number of products computed at a time. It bounds memory where tasks with many edges make the expansion dense.
_BLOCK_PRODUCTS = 20_000_000
# The mantissa is rounded to 36 bits. Sums in another order differ in the last bits, and inflation doubles the
# difference in every step; rounding removes it, so the clusters do not depend on the order of the tasks.
_MANTISSA = 2.0**36
_TIE = 1.0 - 1e-9


def markov_clusters(
    graph: TaskGraph,
    inflation: float = 2.0,
    expansion: int = 2,
    max_iter: int = 100,
    prune: float = 1e-3,
    max_entries: int = 100,
    tol: float = 1e-6,
) -> np.ndarray:
    """Cluster number of each task, from the fixed point of M ← inflate(Mᵃ), M the random walk on the graph.

    The walk has a loop at every task, with the weight of its heaviest edge. Each connected part of the flow is iterated
    until it converges, so the clusters of a component do not depend on the other components.

    Parameters
    ----------
    graph : TaskGraph
        Edges of weight zero are no edges.
    inflation : float
        Above 1; larger gives more and smaller clusters.
    expansion : int
        Steps of the walk between two inflations, at least 2; larger gives fewer and larger clusters.
    max_iter : int
        Largest number of rounds; reaching it gives a ``ConvergenceWarning``.
    prune : float
        Flow below this share of the task's largest flow is dropped, and the rest scaled up to one.
    max_entries : int
        Largest number of flows out of a task that are kept (more only where all of them are equal).
    tol : float
        A part has converged when no flow in it changes by more than this.

    Returns
    -------
    array of shape (n,)
        0 is the largest cluster; of two clusters of equal size, the one with the smaller first member comes first. A
        task whose flow is divided equally between two groups joins them into one. Symmetry is never broken: inside a
        very long line or ring of equal weights all tasks are equivalent, and each is a cluster of its own.

    Examples
    --------
    >>> from ggmtl.graph import TaskGraph
    >>> graph = TaskGraph([[0, 1], [2, 3], [3, 4], [2, 4], [1, 2]], [1, 1, 1, 1, 0.1], list("abcde"))
    >>> markov_clusters(graph).tolist()
    [1, 1, 0, 0, 0]
    """
    _check(inflation, expansion, max_iter, prune, max_entries, tol)
    if graph.n_tasks == 0:
        return np.empty(0, dtype=np.int64)
    limit = _limit(_walk(graph), inflation, expansion, max_iter, prune, max_entries, tol)
    # At convergence, the entries of a column are equal. The threshold of one half also works without convergence.
    strong = limit.data >= 0.5 * np.repeat(_column_max(limit), np.diff(limit.indptr))
    return by_size(connected_components(_select(limit, strong), directed=False)[1])


def by_size(labels: np.ndarray) -> np.ndarray:
    """Renumber clusters: the largest is 0, equal sizes in the order of their first members."""
    _, first, inverse, size = np.unique(labels, return_index=True, return_inverse=True, return_counts=True)
    order = np.lexsort((first, -size))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return rank[inverse]


def _check(inflation, expansion, max_iter, prune, max_entries, tol) -> None:
    if not 1.0 < inflation < np.inf:
        raise ParameterError(f"inflation must be a number above 1. Got {inflation!r} instead.")
    if not 0.0 <= prune < 1.0:
        raise ParameterError(f"prune must be in [0, 1). Got {prune!r} instead.")
    if not tol >= 0.0:
        raise ParameterError(f"tol must not be negative. Got {tol!r} instead.")
    counts = (("expansion", expansion, 2), ("max_iter", max_iter, 1), ("max_entries", max_entries, 1))
    for name, value, least in counts:
        if not isinstance(value, Integral) or value < least:
            raise ParameterError(f"{name} must be an integer of at least {least}. Got {value!r} instead.")


def _walk(graph: TaskGraph) -> sparse.csc_array:
    """Column-stochastic matrix of the walk, with a loop of weight one at tasks without edges."""
    positive = graph.threshold(0.0)
    # Only ratios matter. Division by the heaviest edge prevents underflow of products of tiny weights.
    weights = positive.weights / positive.weights.max(initial=np.finfo(float).tiny)
    heaviest = np.zeros(graph.n_tasks)
    np.maximum.at(heaviest, positive.edges.ravel(), np.repeat(weights, 2))
    loops = np.where(heaviest > 0, heaviest, 1.0)
    adjacency = TaskGraph(positive.edges, weights, positive.task_names).adjacency()
    matrix = sparse.csc_array(adjacency + sparse.diags_array(loops))
    matrix.eliminate_zeros()
    return _normalize(matrix, 1.0)


def _limit(matrix, inflation, expansion, max_iter, prune, max_entries, tol) -> sparse.csc_array:
    """Iterate until every part has converged; converged parts leave the iteration."""
    n = matrix.shape[0]
    active = np.arange(n)
    finished: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for _ in range(max_iter):
        new = _expand(matrix, expansion, prune, max_entries)
        new = _normalize(new, inflation)
        moving = _moving(matrix, new, tol)
        finished.append(_triplets(new[:, ~moving], active, active[~moving]))
        active, matrix = active[moving], sparse.csc_array(new[moving][:, moving])
        if len(active) == 0:
            break
    else:
        warn_user(
            f"Markov clustering did not converge in {max_iter} rounds ({len(active)} of {n} tasks still change): "
            "the clusters are those of the last round. Raise max_iter, or inflation.",
            ConvergenceWarning,
        )
        finished.append(_triplets(matrix, active, active))
    data, row, column = (np.concatenate(parts) for parts in zip(*finished))
    return sparse.csc_array((data, (row, column)), shape=(n, n))


def _moving(old, new, tol) -> np.ndarray:
    """Mask of the tasks whose connected part of the flow has not converged, shape (n,)."""
    change = abs(new - old).max(axis=0).toarray().ravel()
    n_parts, part = connected_components(new, directed=False)
    largest = np.zeros(n_parts)
    np.maximum.at(largest, part, change)
    return largest[part] > tol


def _triplets(matrix, rows, columns) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Entries of a submatrix, with their rows and columns in the whole matrix."""
    entries = sparse.coo_array(matrix)
    return entries.data, rows[entries.row], columns[entries.col]


def _expand(matrix, expansion, prune, max_entries) -> sparse.csc_array:
    """M ← Mᵃ, pruned, in blocks of columns of bounded cost."""
    blocks = []
    for columns in _blocks(matrix):
        block = matrix[:, columns]
        for _ in range(expansion - 1):
            block = _prune(sparse.csc_array(matrix @ block), prune, max_entries)
        blocks.append(block)
    return sparse.csc_array(sparse.hstack(blocks, format="csc"))


def _blocks(matrix) -> Iterator[slice]:
    """Ranges of columns whose products with the matrix have a bounded number of terms."""
    entries = np.diff(matrix.indptr)
    cost = np.add.reduceat(entries[matrix.indices], matrix.indptr[:-1])
    number = np.cumsum(cost) // _BLOCK_PRODUCTS
    starts = np.flatnonzero(np.diff(number, prepend=-1))
    for start, stop in zip(starts, [*starts[1:], len(cost)]):
        yield slice(int(start), int(stop))


def _prune(matrix, prune, max_entries) -> sparse.csc_array:
    """Drop small entries of every column, keep at most the `max_entries` largest, and normalise the columns."""
    bound = prune * _column_max(matrix)
    matrix = _select(matrix, matrix.data >= _TIE * np.repeat(bound, np.diff(matrix.indptr)))
    if np.diff(matrix.indptr).max() > max_entries:
        matrix = _select(matrix, _among_largest(matrix, max_entries))
    return _normalize(matrix, 1.0)


def _among_largest(matrix, max_entries) -> np.ndarray:
    """Mask of the `max_entries` largest entries of every column.

    Equal entries are all kept or all dropped, so that the choice does not depend on the order of the tasks. If they
    are on both sides of the limit, they are dropped, unless they are the largest of the column.
    """
    entries = np.diff(matrix.indptr)
    column = np.repeat(np.arange(len(entries)), entries)
    descending = matrix.data[np.lexsort((-matrix.data, column))]
    last = matrix.indptr[:-1] + np.minimum(entries, max_entries) - 1
    kept, dropped = descending[last], descending[np.minimum(last + 1, matrix.indptr[1:] - 1)]
    straddle = (entries > max_entries) & (dropped >= _TIE * kept) & (_TIE * _column_max(matrix) > kept)
    return matrix.data >= np.where(straddle, kept / _TIE, _TIE * kept)[column]


def _normalize(matrix, power) -> sparse.csc_array:
    """M_ij^power with columns normalised to sum one, rounded so that the order of the tasks does not matter."""
    entries = np.diff(matrix.indptr)
    # Division by the largest entry first: powers of small entries would underflow.
    data = (matrix.data / np.repeat(_column_max(matrix), entries)) ** power
    data /= np.repeat(np.add.reduceat(data, matrix.indptr[:-1]), entries)
    mantissa, exponent = np.frexp(data)
    data = np.ldexp(np.round(mantissa * _MANTISSA) / _MANTISSA, exponent)
    return sparse.csc_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)


def _column_max(matrix) -> np.ndarray:
    """Largest entry of every column; none is empty."""
    return np.maximum.reduceat(matrix.data, matrix.indptr[:-1])


def _select(matrix, keep) -> sparse.csc_array:
    """The sparse matrix with only the entries that are marked by `keep`."""
    before = np.concatenate([[0], np.cumsum(keep)])
    return sparse.csc_array((matrix.data[keep], matrix.indices[keep], before[matrix.indptr]), shape=matrix.shape)
