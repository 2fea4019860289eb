"""Sufficient statistics of tasks, their folds, and the quadratic losses they define."""

from ggmtl.statistics.folds import deal_folds, deal_holdout
from ggmtl.statistics.moments import Scaling, TaskStatistics
from ggmtl.statistics.quadratic import FoldedLoss, LeastSquares, sum_of

__all__ = ["FoldedLoss", "LeastSquares", "Scaling", "TaskStatistics", "deal_folds", "deal_holdout", "sum_of"]
