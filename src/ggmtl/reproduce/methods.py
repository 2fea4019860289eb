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
from functools import partial
from typing import Any, Self

import numpy as np
from threadpoolctl import threadpool_limits

from ggmtl import baselines
from ggmtl.data.task_data import TaskData
from ggmtl.datasets.splits import split_rows
from ggmtl.errors import GGMTLError
from ggmtl.estimators.regressor import GGMTLRegressor
from ggmtl.graph.task_graph import TaskGraph
from ggmtl.inspection.metrics import fuzzy_graph_scores, task_rmse
from ggmtl.reproduce.cells import Cell, is_published, keeps_groups, load_problem
from ggmtl.reproduce.peers import PEERS, ShellMethod

NEIGHBOURS = 10
HOLD_OUT = 0.2
FOLDS = 5
# λ in multiples of the mean rows of a task; γ in multiples of the outer loss per candidate edge without it.
COUPLING_GRID, QUICK_COUPLING_GRID = (0.001, 0.01, 0.1, 1.0, 10.0), (0.01, 1.0)
ENTROPY_GRID, QUICK_ENTROPY_GRID = (0.0, 0.01, 0.1, 0.3), (0.0, 0.1)

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
# Methods whose graph of the first run is kept, for the figures.
DRAWN = ("ccmtl", "ggmtl_squared", "ggmtl")


class PaperGGMTL:
    """GGMTL as in the paper (:meth:`ggmtl.GGMTLRegressor.paper`), with λ and γ chosen from grids.

    λ and then γ are chosen on a second hold-out of 20 %. On the first one, no sparsity always looks best, because the
    edges minimise that loss. Then all training rows are used.

    Parameters
    ----------
    penalty : {"squared_l2", "l2"}
    couplings : sequence of float
        λ in multiples of the mean number of rows of a task, the scale of the tasks' own losses.
    entropies : sequence of float
        γ in multiples of the outer loss per candidate edge.
    groups : bool
        Whether hold-outs keep groups whole.
    options : dict
        Further parameters of :class:`ggmtl.GGMTLRegressor`.
    """

    def __init__(
        self, penalty: str, couplings: tuple[float, ...], entropies: tuple[float, ...], groups: bool, **options: Any
    ):
        self.penalty, self.couplings, self.entropies = penalty, couplings, entropies
        self.groups, self.options = groups, options

    def fit(self, train: TaskData) -> Self:
        """Choose λ and γ, then learn graph and models on all training rows."""
        part, rest = split_rows(train, 1.0 - HOLD_OUT, random_state=0, by="groups" if self.groups else None)

        def error(model: GGMTLRegressor) -> float:
            return float(np.mean((model.predict(rest.X, tasks=rest.tasks) - rest.y) ** 2))

        first = {level: self._fit(part, level, 0.0) for level in self.couplings}
        self.coupling = min(first, key=lambda level: error(first[level]))
        unit = _outer_loss_per_edge(first[self.coupling])
        second = {
            level: self._fit(part, self.coupling, level * unit) if level else first[self.coupling]
            for level in self.entropies
        }
        self.entropy = min(second, key=lambda level: error(second[level]))
        self.model = self._fit(train, self.coupling, self.entropy * unit * len(train) / len(part))
        self.graph = self.model.graph_
        return self

    def predict(self, test: TaskData) -> np.ndarray:
        """Predictions, shape (rows,)."""
        return self.model.predict(test.X, tasks=test.tasks)

    def _fit(self, data: TaskData, coupling: float, entropy: float) -> GGMTLRegressor:
        strength = coupling * len(data) / len(data.task_names)
        # The same minimum as by projected gradient, in fewer steps.
        model = GGMTLRegressor.paper(
            self.penalty, strength, NEIGHBOURS, float(entropy), edge_solver="quasi_newton", **self.options
        )
        return model.fit(data.X, data.y, tasks=data.tasks, groups=data.groups if self.groups else None)


def _outer_loss_per_edge(model: GGMTLRegressor) -> float:
    return float(model.history_[-1]) / max(len(model.edges_), 1)


_PENALTIES = {"ggmtl_squared": "squared_l2", "ggmtl_l2": "l2"}
_ESTIMATORS: dict[str, Callable[..., Any]] = {
    "ggmtl": GGMTLRegressor,
    "ggmtl_auto": partial(GGMTLRegressor, effects="auto"),
    "independent": baselines.IndependentRegressor,
    "pooled": baselines.PooledRegressor,
    "hub": baselines.HubRegressor,
    "ccmtl": baselines.CCMTLRegressor,
    "mtrl": baselines.MTRLRegressor,
    "mssl": baselines.MSSLRegressor,
    "bmsl": baselines.BMSLRegressor,
}


def make_method(cell: Cell) -> Any:
    """The method of a cell, with ``fit(train)`` and ``predict(test)``."""
    if cell.method in PEERS:
        return PEERS[cell.method]()
    groups = keeps_groups(cell.problem)
    options: dict[str, Any] = {"random_state": cell.seed}
    if is_published(cell.problem):
        options |= {"fit_intercept": False, "standardize": False}
    if cell.method in _PENALTIES:
        # Each step with the unsquared penalty is a sequence of solves: several times the cost of a squared one.
        small = cell.quick or cell.method == "ggmtl_l2"
        couplings, entropies = (QUICK_COUPLING_GRID, QUICK_ENTROPY_GRID) if small else (COUPLING_GRID, ENTROPY_GRID)
        options |= {"max_iter": 30 if small else 60, "tol": 1e-4}
        return PaperGGMTL(_PENALTIES[cell.method], couplings, entropies, groups, **options)
    # The default's folds are its own: it chooses by evidence, and hold-outs serve its error estimate.
    options["validation"] = HOLD_OUT if cell.protocol == "paper" and cell.method != "ggmtl" else FOLDS
    if cell.method == "bmsl" and cell.quick:
        options |= {"n_warmup": 50, "n_samples": 50}
    return ShellMethod(_ESTIMATORS[cell.method](**options), groups)


def compute_cell(cell: Cell) -> dict[str, Any]:
    """Fit and score one cell: plain data; where it fails, the reason under ``"error"``."""
    try:
        # One thread: the matrices are small, and cells run in parallel.
        with warnings.catch_warnings(), threadpool_limits(1):
            warnings.simplefilter("ignore")
            train, test = load_problem(cell.problem, cell.seed)
            start = time.process_time()
            method = make_method(cell).fit(train)
            prediction = method.predict(test)
            seconds = time.process_time() - start
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
    if cell.seed == 0 and cell.method in DRAWN:
        out["graph"] = {"edges": graph.edges.tolist(), "weights": graph.weights.tolist()}
    if train.graph is None:
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
    """The graph with weights ‖w_i − w_j‖/max, as the paper's scores of CCMTL imply: far neighbours count most."""
    i, j = graph.edges.T
    distance = np.linalg.norm(models[i] - models[j], axis=1)
    return TaskGraph(graph.edges, distance / max(distance.max(initial=0.0), np.finfo(float).tiny), graph.task_names)
