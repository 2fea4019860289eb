"""Interpretable multi-task regression: every task's model, and a sparse graph of which tasks are alike."""

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
