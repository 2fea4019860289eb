"""What people use today: mixed models, boosted trees, one ridge regression per task.

Each has ``fit(train)`` and ``predict(test)`` for :class:`~ggmtl.data.TaskData`; one that needs a package which is not
installed, or that cannot take the data, says so with :class:`~ggmtl.errors.GGMTLError`.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, Self

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ggmtl.data.task_data import TaskData
from ggmtl.errors import InputError, MissingExtraError

# Largest number of categories that scikit-learn's boosted trees take.
MAX_CATEGORIES = 255


def peer_package(name: str) -> ModuleType:
    """Import a package that only comparisons need."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError(f"package {name!r} is not installed (pip install {name})") from error


class RidgePerTask:
    """scikit-learn's RidgeCV for every task alone, features scaled within the task."""

    def fit(self, train: TaskData) -> Self:
        """Fit every task's ridge regression."""
        alphas = np.logspace(-3, 4, 22)
        self.models = {}
        for k, name in enumerate(train.task_names.tolist()):
            rows = train.task_index == k
            self.models[name] = make_pipeline(StandardScaler(), RidgeCV(alphas)).fit(train.X[rows], train.y[rows])
        return self

    def predict(self, test: TaskData) -> np.ndarray:
        """Predictions, shape (rows,)."""
        out = np.empty(len(test))
        for k, name in enumerate(test.task_names.tolist()):
            rows = test.task_index == k
            out[rows] = self.models[name].predict(test.X[rows])
        return out


class BoostedTrees:
    """scikit-learn's boosted trees with the task as a category; size of trees by 3 folds, rounds by early stopping."""

    def fit(self, train: TaskData) -> Self:
        """Fit one ensemble on the rows of all tasks."""
        if len(train.task_names) > MAX_CATEGORIES:
            raise InputError(f"boosted trees take {MAX_CATEGORIES} categories at most; there are "
                             f"{len(train.task_names)} tasks")  # fmt: skip
        self.names = train.task_names
        options: dict[str, Any] = {"early_stopping": True, "categorical_features": [train.X.shape[1]]}
        trees = HistGradientBoostingRegressor(
            learning_rate=0.05, max_iter=400, n_iter_no_change=20, random_state=0, **options
        )
        self.model = GridSearchCV(trees, {"max_leaf_nodes": [4, 15]}, cv=3, scoring="neg_mean_squared_error")
        self.model.fit(self._table(train), train.y)
        return self

    def predict(self, test: TaskData) -> np.ndarray:
        """Predictions, shape (rows,)."""
        return self.model.predict(self._table(test))

    def _table(self, data: TaskData) -> np.ndarray:
        return np.column_stack([data.X, np.searchsorted(self.names, data.tasks)])


class _RandomSlopes:
    """What the mixed models share: features scaled by pooled totals, columns without spread left out."""

    def _scale(self, train: TaskData) -> None:
        self.mean, spread = train.X.mean(axis=0), train.X.std(axis=0)
        self.used = spread > 1e-12 * np.maximum(np.abs(self.mean), 1.0)
        self.spread = spread[self.used]

    def _features(self, data: TaskData) -> np.ndarray:
        return (data.X - self.mean)[:, self.used] / self.spread

    def _frame(self, data: TaskData) -> tuple[Any, list[str]]:
        pandas = peer_package("pandas")
        names = [f"x{k}" for k in range(int(self.used.sum()))]
        frame = pandas.DataFrame(self._features(data), columns=names)
        return frame.assign(y=data.y, task=data.tasks.astype(str)), names


class MixedLm(_RandomSlopes):
    """Package ``mixedlm``: REML, a random intercept and independent random slopes for all features."""

    def fit(self, train: TaskData) -> Self:
        """Maximise the restricted likelihood."""
        package = peer_package("mixedlm")
        self._scale(train)
        frame, names = self._frame(train)
        terms = " + ".join(names)
        self.model = package.lmer(f"y ~ {terms} + (1 + {terms} || task)", frame)
        return self

    def predict(self, test: TaskData) -> np.ndarray:
        """Predictions with every task's own effects, shape (rows,)."""
        return np.asarray(self.model.predict(self._frame(test)[0]), dtype=float)


class GpBoost(_RandomSlopes):
    """Package ``gpboost``: a linear mixed model with a random intercept and independent random slopes."""

    def fit(self, train: TaskData) -> Self:
        """Maximise the likelihood."""
        package = peer_package("gpboost")
        self._scale(train)
        X = self._features(train)
        self.model = package.GPModel(
            group_data=train.tasks.astype(str),
            group_rand_coef_data=X,
            ind_effect_group_rand_coef=[1] * X.shape[1],
            likelihood="gaussian",
            num_parallel_threads=1,
        )
        self.model.fit(y=train.y, X=_with_constant(X), params={"trace": False})
        return self

    def predict(self, test: TaskData) -> np.ndarray:
        """Predictions with every task's own effects, shape (rows,)."""
        X = self._features(test)
        result = self.model.predict(
            group_data_pred=test.tasks.astype(str), group_rand_coef_data_pred=X, X_pred=_with_constant(X)
        )
        return np.asarray(result["mu"])


class StatsmodelsIntercept(_RandomSlopes):
    """Package ``statsmodels``, MixedLM with a random intercept only: with random slopes it needs minutes per fit."""

    def fit(self, train: TaskData) -> Self:
        """Maximise the restricted likelihood."""
        api = peer_package("statsmodels.regression.mixed_linear_model")
        self._scale(train)
        X = _independent_columns(_with_constant(self._features(train)))
        self.columns = X
        design = _with_constant(self._features(train))[:, X]
        self.result = api.MixedLM(train.y, design, groups=train.tasks.astype(str)).fit(reml=True)
        self.shift = {name: float(effect.iloc[0]) for name, effect in self.result.random_effects.items()}
        return self

    def predict(self, test: TaskData) -> np.ndarray:
        """Predictions with every task's own intercept, shape (rows,)."""
        design = _with_constant(self._features(test))[:, self.columns]
        return design @ np.asarray(self.result.fe_params) + np.array([self.shift[t] for t in test.tasks.astype(str)])


def _with_constant(X: np.ndarray) -> np.ndarray:
    return np.column_stack([np.ones(len(X)), X])


def _independent_columns(X: np.ndarray) -> np.ndarray:
    """Columns that are not combinations of those before them, as MixedLM refuses a singular design."""
    factor = np.linalg.qr(X, mode="r")
    size = np.abs(np.diag(factor))
    return np.flatnonzero(size > 1e-8 * size.max())


PEERS = {
    "ridge_per_task": RidgePerTask,
    "boosted_trees": BoostedTrees,
    "mixedlm": MixedLm,
    "gpboost": GpBoost,
    "statsmodels": StatsmodelsIntercept,
}
