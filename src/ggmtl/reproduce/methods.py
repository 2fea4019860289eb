"""The methods of the tables under two protocols, and the computation of one cell.

*paper*: where the paper says what it did, that. Hyper-parameters come from one hold-out of 20 % of the training rows;
on data made like its published files, models have no intercept and features are not scaled.

*honest*: hyper-parameters are chosen by five folds of the training rows (whole visits, where those are held out).

Test rows are used for nothing but the score under either.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import numpy as np

from ggmtl import GGMTLRegressor
from ggmtl.baselines import (
    BMSLRegressor,
    CCMTLRegressor,
    HubRegressor,
    IndependentRegressor,
    MSSLRegressor,
    MTRLRegressor,
    PooledRegressor,
)
from ggmtl.candidates import KNN
from ggmtl.datasets import split_rows
from ggmtl.errors import GGMTLError
from ggmtl.graph import TaskGraph
from ggmtl.inspection import fuzzy_graph_scores, task_rmse
from ggmtl.reproduce.cache import Cell
from ggmtl.reproduce.peers import PEERS
from ggmtl.reproduce.problems import is_published, keeps_groups, load_problem
from ggmtl.tasks import TaskData

NEIGHBOURS = 10
HOLD_OUT = 0.2
FOLDS = 5
# γ, in multiples of the outer loss per candidate edge without it.
ENTROPY_GRID = (0.0, 0.01, 0.1, 0.3)
QUICK_ENTROPY_GRID = (0.0, 0.1)

LABELS = {
    "ggmtl": "GGMTL (default)",
    "ggmtl_squared": "GGMTL (paper, ℓ2²)",
    "ggmtl_l2": "GGMTL (paper, ℓ2)",
    "independent": "Independent",
    "pooled": "Pooled",
    "hub": "Hub",
    "ccmtl": "CCMTL",
    "mtrl": "MTRL",
    "mssl": "MSSL",
    "bmsl": "BMSL",
    "ridge_per_task": "RidgeCV per task",
    "boosted_trees": "boosted trees",
    "mixedlm": "mixedlm (random slopes)",
    "gpboost": "gpboost (random slopes)",
    "statsmodels": "statsmodels (random intercept)",
}
METHODS = tuple(LABELS)
# Minutes per fit on the larger sets: they get fewer runs.
SLOW = ("mtrl", "mssl", "bmsl")


class ShellMethod:
    """A regressor of this package, fed with :class:`TaskData`."""

    def __init__(self, estimator: Any, groups: bool = False):
        self.estimator, self.groups = estimator, groups

    def fit(self, train: TaskData) -> Self:
        """Fit the regressor; groups, where they count, stay in one fold."""
        self.estimator.fit(train.X, train.y, tasks=train.tasks, groups=train.groups if self.groups else None)
        self.graph = self.estimator.graph_
        return self

    def predict(self, test: TaskData) -> np.ndarray:
        """Predictions, shape (rows,)."""
        return self.estimator.predict(test.X, tasks=test.tasks)


class PaperGGMTL:
    """GGMTL as the paper has it: no hub, 10 nearest neighbours, edges by the loss on 20 % of the training rows.

    λ is learned on those rows with the edges. γ is chosen from a grid on a second hold-out of 20 %: on the first one no
    sparsity at all always looks best, because the edges minimise that very loss. Then all training rows are used.

    Parameters
    ----------
    penalty : {"squared_l2", "l2"}
    grid : sequence of float
        γ in multiples of the outer loss per candidate edge.
    groups : bool
        Whether hold-outs keep groups whole.
    options : dict
        Further parameters of :class:`ggmtl.GGMTLRegressor`.
    """

    def __init__(self, penalty: str, grid: tuple[float, ...], groups: bool, **options: Any):
        self.penalty, self.grid, self.groups, self.options = penalty, grid, groups, options

    def fit(self, train: TaskData) -> Self:
        """Choose γ, then learn graph and models on all training rows."""
        part, rest = split_rows(train, 1.0 - HOLD_OUT, random_state=0, by="groups" if self.groups else None)
        errors = []
        base = self._fit(part, 0.0)
        unit = _outer_loss_per_edge(base)
        for level in self.grid:
            model = base if level == 0 else self._fit(part, level * unit)
            errors.append(np.mean((model.predict(rest.X, tasks=rest.tasks) - rest.y) ** 2))
        self.level = self.grid[int(np.argmin(errors))]
        self.model = self._fit(train, self.level * unit * len(train) / len(part))
        self.graph = self.model.graph_
        return self

    def predict(self, test: TaskData) -> np.ndarray:
        """Predictions, shape (rows,)."""
        return self.model.predict(test.X, tasks=test.tasks)

    def _fit(self, data: TaskData, entropy: float) -> GGMTLRegressor:
        model = GGMTLRegressor(
            penalty=self.penalty,
            criterion="validation",
            hub=False,
            candidates=KNN(NEIGHBOURS),
            validation=HOLD_OUT,
            edge_entropy=float(entropy),
            **self.options,
        )
        return model.fit(data.X, data.y, tasks=data.tasks, groups=data.groups if self.groups else None)


def _outer_loss_per_edge(model: GGMTLRegressor) -> float:
    return float(model.history_[-1]) / max(len(model.edges_), 1)


def make_method(cell: Cell) -> Any:
    """The method of a cell, with ``fit(train)`` and ``predict(test)``."""
    if cell.method in PEERS:
        return PEERS[cell.method]()
    groups = keeps_groups(cell.problem)
    bare = {"fit_intercept": False, "standardize": False} if is_published(cell.problem) else {}
    if cell.method in ("ggmtl_squared", "ggmtl_l2"):
        penalty = "l2" if cell.method == "ggmtl_l2" else "squared_l2"
        grid = QUICK_ENTROPY_GRID if cell.quick else ENTROPY_GRID
        return PaperGGMTL(penalty, grid, groups, ridge=1e-3, max_iter=60, tol=1e-4, random_state=cell.seed, **bare)
    validation = HOLD_OUT if cell.protocol == "paper" else FOLDS
    options = {"validation": validation, "random_state": cell.seed, **bare}
    return ShellMethod(_estimator(cell)(**options), groups)


def _estimator(cell: Cell) -> Callable[..., Any]:
    if cell.method == "ggmtl":
        # The default's folds are its own: it chooses by evidence, and hold-outs serve its error estimate.
        return lambda validation, **options: GGMTLRegressor(validation=FOLDS, **options)
    if cell.method == "bmsl":
        draws = {"n_warmup": 50, "n_samples": 50} if cell.quick else {}
        return lambda **options: BMSLRegressor(**draws, **options)
    return {
        "independent": IndependentRegressor,
        "pooled": PooledRegressor,
        "hub": HubRegressor,
        "ccmtl": CCMTLRegressor,
        "mtrl": MTRLRegressor,
        "mssl": MSSLRegressor,
    }[cell.method]


def compute_cell(cell: Cell) -> dict[str, Any]:
    """Fit and score one cell: plain data; where it fails, the reason under ``"error"``."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            train, test = load_problem(cell.problem, cell.seed)
            start = time.perf_counter()
            method = make_method(cell).fit(train)
            prediction = method.predict(test)
            seconds = time.perf_counter() - start
        return _scores(cell, method, train, test, prediction) | {"seconds": round(seconds, 2)}
    except GGMTLError as error:
        return {"error": str(error).split("\n")[0][:160]}
    except Exception as error:  # whatever other packages raise: one method's failure must not end the run
        return {"error": f"{type(error).__name__}: {error}".split("\n")[0][:160]}


def _scores(cell: Cell, method: Any, train: TaskData, test: TaskData, prediction: np.ndarray) -> dict[str, Any]:
    out: dict[str, Any] = {"rmse": task_rmse(test.y, prediction, test.tasks)}
    graph = getattr(method, "graph", None)
    if graph is None:
        return out
    out["edges"] = graph.n_edges
    if train.graph is None or not graph.n_edges:
        return out
    if cell.method == "ccmtl" and cell.protocol == "paper":
        graph = distance_weighted(graph, independent_models(replace(train, test=None)))
    scores = fuzzy_graph_scores(train.graph, graph)
    return out | {name: getattr(scores, name) for name in ("accuracy", "recall", "precision", "f1")}


def independent_models(train: TaskData) -> np.ndarray:
    """Minimum-norm least squares of every task alone, without intercept, shape (n, d)."""
    models = []
    for k in range(len(train.task_names)):
        rows = train.task_index == k
        models.append(np.linalg.lstsq(train.X[rows], train.y[rows], rcond=None)[0])
    return np.stack(models)


def distance_weighted(graph: TaskGraph, models: np.ndarray) -> TaskGraph:
    """The graph with weights ‖w_i − w_j‖/max, with which the paper's scores of CCMTL agree: far neighbours count most."""
    i, j = graph.edges.T
    distance = np.linalg.norm(models[i] - models[j], axis=1)
    return TaskGraph(graph.edges, distance / max(distance.max(initial=0.0), np.finfo(float).tiny), graph.task_names)
