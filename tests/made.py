"""Losses and settings that the tests of several rooms share."""

import numpy as np

from ggmtl import KNN
from ggmtl.bilevel.level import Settings
from ggmtl.design.scaling import Scaling
from ggmtl.statistics.least_squares import FoldedLoss
from ggmtl.statistics.task_statistics import TaskStatistics


def folded_of(data, folds=2) -> FoldedLoss:
    statistics = TaskStatistics.from_data(data, folds)
    return FoldedLoss(tuple(Scaling.from_statistics(statistics, True, True).design(statistics)))


def settings_of(folded: FoldedLoss, **changes) -> Settings:
    p = folded.total.n_features
    slopes = np.arange(p) < p - 1
    defaults = {"candidates": KNN(k=5), "coupling": np.ones(p), "hub": False, "max_iter": 60}
    return Settings("squared_l2", slopes=slopes, **{**defaults, **changes})
