"""Interpretable multi-task regression: every task's model, and a sparse graph of which tasks are alike."""

from ggmtl.candidates import KNN, Complete, Coordinates
from ggmtl.criteria import BilevelProblem
from ggmtl.graph import TaskGraph
from ggmtl.regressor import GGMTLRegressor, load_model
from ggmtl.statistics import TaskStatistics

__version__ = "0.1.0"

__all__ = [
    "KNN",
    "BilevelProblem",
    "Complete",
    "Coordinates",
    "GGMTLRegressor",
    "TaskGraph",
    "TaskStatistics",
    "__version__",
    "load_model",
]
