"""Sufficient statistics of tasks, their folds, their readers, and the quadratic losses they define."""

from ggmtl.statistics.builder import StatisticsBuilder
from ggmtl.statistics.folds import deal_folds, deal_holdout
from ggmtl.statistics.moments import TaskStatistics
from ggmtl.statistics.quadratic import FoldedLoss, LeastSquares, single_rows, sum_of
from ggmtl.statistics.scaling import Scaling

__all__ = [
    "FoldedLoss",
    "LeastSquares",
    "Scaling",
    "StatisticsBuilder",
    "TaskStatistics",
    "deal_folds",
    "deal_holdout",
    "single_rows",
    "sum_of",
]
