"""Losses and settings that the tests of several rooms share."""

import numpy as np

from ggmtl import KNN
from ggmtl.bilevel.level import Settings
from ggmtl.runtime.sizes import Sizes
from ggmtl.statistics.least_squares import FoldedLoss, LeastSquares
from ggmtl.statistics.scaling import Scaling
from ggmtl.statistics.task_statistics import TaskStatistics

# Sizes for which every linear system is solved directly, or by conjugate gradients.
SOLVED = {"direct": Sizes(direct=1 << 30), "pcg": Sizes(direct=0)}


def folded_of(data, folds=2) -> FoldedLoss:
    statistics = TaskStatistics.from_data(data, folds)
    return FoldedLoss(tuple(Scaling.from_statistics(statistics, True, True).design(statistics)))


def settings_of(folded: FoldedLoss, **changes) -> Settings:
    p = folded.total.n_features
    slopes = np.arange(p) < p - 1
    defaults = {"candidates": KNN(k=5), "coupling": np.ones(p), "hub": False, "max_iter": 60}
    return Settings("squared_l2", slopes=slopes, **{**defaults, **changes})


def sums_of(X: np.ndarray, y: np.ndarray) -> LeastSquares:
    """Sums of rows of shape (tasks, rows, features): as many rows in every task."""
    gram = np.matmul(X.transpose(0, 2, 1), X)
    return LeastSquares(gram, np.einsum("nrp,nr->np", X, y), (y**2).sum(axis=1), np.full(len(X), float(X.shape[1])))


def losses(models: np.ndarray, n_rows: int, seed: int = 0) -> LeastSquares:
    """Sums of rows of the given models, with standard normal features and noise."""
    random = np.random.default_rng(seed)
    X = random.standard_normal((len(models), n_rows, models.shape[1]))
    return sums_of(X, np.einsum("nrp,np->nr", X, models) + random.standard_normal((len(models), n_rows)))
