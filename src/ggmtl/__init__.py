"""Interpretable multi-task regression: every task's model, and a sparse graph of which tasks are alike."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ggmtl.bilevel.problem import BilevelProblem
    from ggmtl.estimators.classifier import GGMTLClassifier
    from ggmtl.estimators.regressor import GGMTLRegressor, load_model
    from ggmtl.graph.candidates import KNN, Complete, Coordinates
    from ggmtl.graph.task_graph import TaskGraph
    from ggmtl.statistics.task_statistics import TaskStatistics

__version__ = "0.1.0"

__all__ = [
    "KNN",
    "BilevelProblem",
    "Complete",
    "Coordinates",
    "GGMTLClassifier",
    "GGMTLRegressor",
    "TaskGraph",
    "TaskStatistics",
    "__version__",
    "load_model",
]

_HOMES = {
    "KNN": "graph.candidates",
    "BilevelProblem": "bilevel.problem",
    "Complete": "graph.candidates",
    "Coordinates": "graph.candidates",
    "GGMTLClassifier": "estimators.classifier",
    "GGMTLRegressor": "estimators.regressor",
    "TaskGraph": "graph.task_graph",
    "TaskStatistics": "statistics.task_statistics",
    "load_model": "estimators.regressor",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use, so that the command line starts quickly."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
