"""How close a learned graph is to the true one, and how large the errors of prediction are.

For weights a (true) and b (learned) in [0, 1], Łukasiewicz' fuzzy logic has

    T(a, b) = max(a + b − 1, 0)  (and),   S(a, b) = min(a + b, 1)  (or),   XOR(a, b) = T(S(a, b), 1 − T(a,
    b)),

    recall = Σ T / Σ a,   precision = Σ T / Σ b,   accuracy = 1 − Σ XOR / n²,   F1 = their harmonic mean,

with sums over all n² ordered pairs of tasks. The paper prints S(a, b) = min(a, b), with which XOR(1, 0)
would be 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from ggmtl.data.labels import read_labels
from ggmtl.errors import InputError
from ggmtl.graph.task_graph import TaskGraph


@dataclass(frozen=True)
class GraphScores:
    """Agreement of a learned graph with the true one; each score is in [0, 1], and more is better.

    Examples
    --------
    >>> GraphScores(accuracy=1.0, recall=1.0, precision=0.5, f1=2 / 3, average_precision=1.0).precision
    0.5
    """

    accuracy: float
    recall: float
    precision: float
    f1: float
    average_precision: float


def fuzzy_graph_scores(true: Any, learned: Any) -> GraphScores:
    """Fuzzy accuracy, recall, precision, F1 of a weighted graph; average precision of its edge ranking.

    Parameters
    ----------
    true, learned : TaskGraph or symmetric matrix of shape (n, n)
        Weights in [0, 1]; a diagonal is ignored. Two graphs must have the same task names, in any order.

    Returns
    -------
    GraphScores
        `average_precision` is the area below the precision–recall steps when all pairs of tasks are ranked by
        their learned weight and the true edges (weight > 0) are to be found.

    Notes
    -----
    A learned graph without edges has precision 0, a true graph without edges recall 0 and average precision
    0; F1 is 0 where precision and recall both are. XOR(½, ½) = 1, so a graph with weights strictly between 0
    and 1 does not have accuracy 1 with itself, and neither recall nor precision 1: only 0/1 graphs do.

    Examples
    --------
    >>> truth = [[0, 1, 0], [1, 0, 1], [0, 1, 0]]
    >>> fuzzy_graph_scores(truth, truth)
    GraphScores(accuracy=1.0, recall=1.0, precision=1.0, f1=1.0, average_precision=1.0)
    """
    true, learned = _matched(true, learned)
    # On all pairs that are an edge of neither, T and XOR are 0.
    _, (a, b) = weights_on_all(true.n_tasks, true, learned)
    both = float(_t_norm(a, b).sum())
    recall, precision = _ratio(both, a.sum()), _ratio(both, b.sum())
    return GraphScores(
        # Each edge stands for two ordered pairs.
        accuracy=1.0 - _ratio(2.0 * float(_exclusive_or(a, b).sum()), true.n_tasks**2),
        recall=recall,
        precision=precision,
        f1=_ratio(2.0 * precision * recall, precision + recall),
        average_precision=_average_precision(a > 0, b, true.n_tasks),
    )


def covariance_to_graph(matrix: Any, task_names: Sequence[Any] | np.ndarray | None = None) -> TaskGraph:
    """Read a covariance of tasks as a graph, as the paper does: B = max(Σ, 0), B_ii = 0, B / max B.

    Without a positive entry off the diagonal, the graph has no edge.

    Examples
    --------
    >>> graph = covariance_to_graph([[2.0, 1.0, -1.0], [1.0, 2.0, 0.5], [-1.0, 0.5, 2.0]])
    >>> graph.edges.tolist(), graph.weights.tolist()
    ([[0, 1], [1, 2]], [1.0, 0.5])
    """
    values = np.array(_square(matrix, "matrix"), dtype=np.float64)
    np.fill_diagonal(values, 0.0)
    values = np.maximum(values, 0.0)
    largest = values.max(initial=0.0)
    names = np.arange(len(values)) if task_names is None else np.asarray(task_names)
    if len(names) != len(values):
        raise InputError(f"task_names must have {len(values)} names, one per row of matrix. Got {len(names)} instead.")
    return TaskGraph.from_adjacency(values / largest if largest > 0 else values, names)


def task_rmse(y_true: Any, y_pred: Any, tasks: Any) -> float:
    """Mean over tasks of the root mean square error within a task: (1/n) Σ_i √(‖y_i − ŷ_i‖²/N_i).

    Examples
    --------
    >>> task_rmse([0, 0, 0], [1, 1, 3], ["a", "a", "b"])
    2.0
    """
    return float(per_task_table(y_true, y_pred, tasks)["rmse"].mean())


def pooled_rmse(y_true: Any, y_pred: Any) -> float:
    """Root mean square error over all rows, whatever their task: √(‖y − ŷ‖²/N).

    Examples
    --------
    >>> pooled_rmse([0, 0, 0, 0], [1, 1, 1, 5])
    2.6457513110645907
    """
    return float(np.sqrt(np.mean(_errors(y_true, y_pred) ** 2)))


def per_task_table(y_true: Any, y_pred: Any, tasks: Any) -> dict[str, np.ndarray]:
    """Errors ŷ − y of each task, as columns of equal length, in the order of the sorted task labels.

    Returns
    -------
    dict of arrays of shape (n,)
        ``task``, ``rows`` (their number), ``rmse``, ``mae`` (mean absolute error), ``bias`` (mean error).

    Examples
    --------
    >>> table = per_task_table([0, 0, 0], [1, -1, 3], ["a", "a", "b"])
    >>> {name: column.tolist() for name, column in table.items() if name in ("task", "rmse", "bias")}
    {'task': ['a', 'b'], 'rmse': [1.0, 3.0], 'bias': [0.0, 3.0]}
    """
    error = _errors(y_true, y_pred)
    names, index = np.unique(read_labels(tasks, "tasks", len(error)), return_inverse=True)
    index = index.reshape(-1)
    rows = np.bincount(index)
    return {
        "task": names,
        "rows": rows,
        "rmse": np.sqrt(np.bincount(index, error**2) / rows),
        "mae": np.bincount(index, np.abs(error)) / rows,
        "bias": np.bincount(index, error) / rows,
    }


def _t_norm(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    # a + b − 1, in the order in which no digit of the smaller is lost.
    return np.maximum(np.minimum(a, b) - (1.0 - np.maximum(a, b)), 0.0)


def _t_conorm(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.minimum(a + b, 1.0)


def _exclusive_or(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return _t_norm(_t_conorm(a, b), 1.0 - _t_norm(a, b))


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else 0.0


def _average_precision(relevant: np.ndarray, score: np.ndarray, n_tasks: int) -> float:
    """Σ_k (R_k − R_{k−1}) P_k over the distinct scores; pairs that are not listed have score 0."""
    n_relevant, n_pairs = int(relevant.sum()), n_tasks * (n_tasks - 1) // 2
    if n_relevant == 0:
        return 0.0
    listed = score > 0
    order = np.argsort(-score[listed], kind="stable")
    score, hit = score[listed][order], relevant[listed][order]
    # Equal scores share one threshold, which ends at the last of them.
    ends = np.flatnonzero(np.diff(score, append=-1.0))
    found = np.append(np.cumsum(hit)[ends], n_relevant)
    ranked = np.append(ends + 1, n_pairs)
    return float(np.sum(np.diff(found, prepend=0) / n_relevant * found / ranked))


def edges_of_all(n_tasks: int, *lists: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """The edges that stand in any of some lists, in lexicographic order, and where those of each list are."""
    keys = [np.sort(edges, axis=1) @ [n_tasks, 1] for edges in lists]
    union = np.unique(np.concatenate(keys)).astype(np.int64)
    return np.column_stack(np.divmod(union, n_tasks)), [np.searchsorted(union, own) for own in keys]


def weights_on_all(n_tasks: int, *graphs: TaskGraph) -> tuple[np.ndarray, np.ndarray]:
    """The edges of any of some graphs, and the weights of each graph on them, shape (graphs, edges)."""
    edges, places = edges_of_all(n_tasks, *(graph.edges for graph in graphs))
    weights = np.zeros((len(graphs), len(edges)))
    for row, place, graph in zip(weights, places, graphs):
        row[place] = graph.weights
    return edges, weights


def _matched(true: Any, learned: Any) -> tuple[TaskGraph, TaskGraph]:
    """Both as graphs with weights in [0, 1] over the same tasks in the same order."""
    named = isinstance(true, TaskGraph) and isinstance(learned, TaskGraph)
    true, learned = _graph(true, "true"), _graph(learned, "learned")
    if true.n_tasks != learned.n_tasks:
        raise InputError(
            f"true and learned must have the same tasks. Got {true.n_tasks} and {learned.n_tasks} of them instead."
        )
    if named and true.task_names.tolist() != learned.task_names.tolist():
        learned = _reordered(learned, true)
    return true, learned


def _reordered(learned: TaskGraph, true: TaskGraph) -> TaskGraph:
    position = {name: k for k, name in enumerate(true.task_names.tolist())}
    foreign = [name for name in learned.task_names.tolist() if name not in position]
    if foreign:
        raise InputError(
            f"true and learned must have the same task names. Got {foreign[0]!r} in learned, which true has "
            f"not; its first names are {', '.join(repr(name) for name in list(position)[:3])}."
        )
    order = np.array([position[name] for name in learned.task_names.tolist()], dtype=np.int64)
    return TaskGraph(order[learned.edges], learned.weights, true.task_names)


def _graph(value: Any, name: str) -> TaskGraph:
    if not isinstance(value, TaskGraph):
        matrix = _square(value, name)
        _check_unit_interval(matrix[~np.eye(len(matrix), dtype=bool)], name)
        return TaskGraph.from_adjacency(matrix)
    _check_unit_interval(value.weights, name)
    return value


def _square(value: Any, name: str) -> np.ndarray:
    matrix = np.asarray(value.toarray() if sparse.issparse(value) else value, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"{name} must be a TaskGraph or a square matrix. Got shape {matrix.shape} instead.")
    if not np.isfinite(matrix).all():
        raise InputError(f"{name} must have finite entries only. Got {int((~np.isfinite(matrix)).sum())} others.")
    return matrix


def _check_unit_interval(weights: np.ndarray, name: str) -> None:
    if len(weights) and (weights.min() < 0.0 or weights.max() > 1.0):
        raise InputError(
            f"{name} must have weights in [0, 1]. Got {weights.min():.6g} … {weights.max():.6g} instead. Use "
            "TaskGraph.normalized(), or covariance_to_graph() for a covariance."
        )


def _errors(y_true: Any, y_pred: Any) -> np.ndarray:
    y_true, y_pred = np.asarray(y_true, dtype=np.float64), np.asarray(y_pred, dtype=np.float64)
    if y_true.ndim != 1 or y_true.shape != y_pred.shape or not len(y_true):
        raise InputError(
            "y_true and y_pred must have the same shape (rows,), with at least one row. "
            f"Got {y_true.shape} and {y_pred.shape} instead."
        )
    error = y_pred - y_true
    if not np.isfinite(error).all():
        raise InputError(f"y_true and y_pred must be finite. Got {int((~np.isfinite(error)).sum())} rows that are not.")
    return error
