"""Methods of this and of other packages behind one interface: ``fit(train)`` and ``predict(test)`` of task data.

Mixed models have random intercepts and, but for statsmodels, independent random slopes for all features. A method that
needs a package which is not installed, or that cannot take the data, raises :class:`~ggmtl.errors.GGMTLError`.
Predictions are means: for two classes the probability of the second. Counts may come with an exposure.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, Self

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ggmtl.data.task_data import TaskData
from ggmtl.errors import InputError, MissingExtraError

# Largest number of categories that scikit-learn's boosted trees take.
MAX_CATEGORIES = 255
# Settings of boosted trees, and the numbers of leaves to choose from; fewer rounds where probabilities saturate.
_TREES: dict[str, tuple[dict[str, Any], list[int]]] = {
    "squared": ({"max_iter": 400, "n_iter_no_change": 20, "early_stopping": True}, [4, 15]),
    "logistic": ({"max_iter": 150}, [4, 16]),
    "poisson": ({"max_iter": 150, "loss": "poisson"}, [4, 16]),
}
_LIKELIHOODS = {"squared": "gaussian", "logistic": "bernoulli_logit", "poisson": "poisson"}


def peer_package(name: str) -> ModuleType:
    """Import a package that only comparisons need."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError(f"package {name!r} is not installed (pip install {name})") from error


class ShellMethod:
    """An estimator of this package.

    Parameters
    ----------
    estimator : regressor or classifier
    groups : bool
        Whether its folds keep the groups of the training rows whole.
    """

    def __init__(self, estimator: Any, groups: bool = False):
        self.estimator, self.groups = estimator, groups

    def fit(self, train: TaskData, exposure: np.ndarray | None = None) -> Self:
        """Fit the estimator."""
        options = {} if exposure is None else {"exposure": exposure}
        options |= {"sample_weight": train.sample_weight, "groups": train.groups if self.groups else None}
        self.estimator.fit(train.X, train.y, tasks=train.tasks, **options)
        self.graph = self.estimator.graph_
        return self

    def predict(self, test: TaskData, exposure: np.ndarray | None = None) -> np.ndarray:
        """Predictions, shape (rows,)."""
        if hasattr(self.estimator, "classes_"):
            return self.estimator.predict_proba(test.X, tasks=test.tasks)[:, 1]
        options = {} if exposure is None else {"exposure": exposure}
        return self.estimator.predict(test.X, tasks=test.tasks, **options)


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
    """scikit-learn's boosted trees with the task as a category; the size of the trees by three folds."""

    def __init__(self, loss: str = "squared", random_state: int | None = None):
        self.loss, self.random_state = loss, random_state

    def fit(self, train: TaskData, exposure: np.ndarray | None = None) -> Self:
        """Fit one ensemble on the rows of all tasks."""
        if len(train.task_names) > MAX_CATEGORIES:
            raise InputError(
                f"boosted trees take {MAX_CATEGORIES} categories at most; there are {len(train.task_names)} tasks"
            )
        self.names = train.task_names
        options, leaves = _TREES[self.loss]
        kind: Any = HistGradientBoostingClassifier if self.loss == "logistic" else HistGradientBoostingRegressor
        trees = kind(
            learning_rate=0.05, categorical_features=[train.X.shape[1]], random_state=self.random_state or 0, **options
        )
        # For log-loss and deviance, scikit-learn's own scores are the ones to choose by.
        scoring = "neg_mean_squared_error" if self.loss == "squared" else None
        search = GridSearchCV(trees, {"max_leaf_nodes": leaves}, cv=3, scoring=scoring)
        target, weight = train.y, train.sample_weight
        if exposure is not None:
            # A rate counts as much as the exposure that it was observed over.
            target, weight = target / exposure, exposure if weight is None else weight * exposure
        weight = None if weight is None else weight / weight.mean()
        self.model = search.fit(self._table(train), target, sample_weight=weight)
        return self

    def predict(self, test: TaskData, exposure: np.ndarray | None = None) -> np.ndarray:
        """Predictions, shape (rows,)."""
        if self.loss == "logistic":
            return self.model.predict_proba(self._table(test))[:, 1]
        return self.model.predict(self._table(test)) * (1.0 if exposure is None else exposure)

    def _table(self, data: TaskData) -> np.ndarray:
        return np.column_stack([data.X, np.searchsorted(self.names, data.tasks)])


class _Mixed:
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


class MixedLm(_Mixed):
    """Package ``mixedlm``, by restricted maximum likelihood."""

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


class GpBoost(_Mixed):
    """Package ``gpboost``: linear, logistic or Poisson mixed models."""

    def __init__(self, loss: str = "squared", random_state: int | None = None):
        self.loss = loss

    def fit(self, train: TaskData, exposure: np.ndarray | None = None) -> Self:
        """Maximise the likelihood."""
        package = peer_package("gpboost")
        if train.sample_weight is not None:
            raise InputError("gpboost's mixed models take no weights.")
        self._scale(train)
        X = self._features(train)
        self.model = package.GPModel(
            group_data=train.tasks.astype(str),
            group_rand_coef_data=X,
            ind_effect_group_rand_coef=[1] * X.shape[1],
            likelihood=_LIKELIHOODS[self.loss],
            num_parallel_threads=1,
        )
        offset = None if exposure is None else np.log(exposure)
        self.model.fit(y=train.y, X=with_constant(X), offset=offset, params={"trace": False})
        return self

    def predict(self, test: TaskData, exposure: np.ndarray | None = None) -> np.ndarray:
        """Predictions with every task's own effects, shape (rows,)."""
        X = self._features(test)
        options = {} if exposure is None else {"offset_pred": np.log(exposure)}
        result = self.model.predict(
            group_data_pred=test.tasks.astype(str),
            group_rand_coef_data_pred=X,
            X_pred=with_constant(X),
            predict_response=True,
            **options,
        )
        return np.asarray(result["mu"])


class StatsmodelsIntercept(_Mixed):
    """Package ``statsmodels``, MixedLM with a random intercept only: with random slopes it needs minutes per fit."""

    def fit(self, train: TaskData) -> Self:
        """Maximise the restricted likelihood."""
        api = peer_package("statsmodels.regression.mixed_linear_model")
        self._scale(train)
        design = with_constant(self._features(train))
        self.columns = independent_columns(design)
        self.result = api.MixedLM(train.y, design[:, self.columns], groups=train.tasks.astype(str)).fit(reml=True)
        self.shift = {name: float(effect.iloc[0]) for name, effect in self.result.random_effects.items()}
        return self

    def predict(self, test: TaskData) -> np.ndarray:
        """Predictions with every task's own intercept, shape (rows,)."""
        design = with_constant(self._features(test))[:, self.columns]
        return design @ np.asarray(self.result.fe_params) + np.array([self.shift[t] for t in test.tasks.astype(str)])


def with_constant(X: np.ndarray) -> np.ndarray:
    """The columns after one of ones."""
    return np.column_stack([np.ones(len(X)), X])


def independent_columns(X: np.ndarray) -> np.ndarray:
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
