"""GGMTLClassifier: the shell of the regressor for labels instead of numbers; no algebra."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import ClassifierMixin, clone
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_is_fitted, column_or_1d

from ggmtl.data.columns import is_list_of_pairs, join_pairs
from ggmtl.data.frames import from_tensor, series_to_numpy
from ggmtl.data.labels import locate_tasks, read_labels
from ggmtl.errors import InputError, UnavailableError, check_share
from ggmtl.estimators.base import all_or_nothing
from ggmtl.estimators.outcomes import (
    learn_outcomes,
    one_more_outcome,
    outcome_predictor,
    probability_intervals,
    read_classes,
    refuse,
)
from ggmtl.estimators.state_estimator import StateEstimator
from ggmtl.fit.outcomes import moderated
from ggmtl.fit.state import FittedState
from ggmtl.losses.rowwise import LOSSES


class GGMTLClassifier(ClassifierMixin, StateEstimator):
    """Graph-guided multi-task classification: every task's logistic model, and which tasks are alike.

    With y in {0, 1} and η = xᵀw_i, the models minimise

        Σ_rows [ln(1 + e^η) − yη] + ½ Σ_ij e_ij (w_i − w_j)ᵀ Λ (w_i − w_j) + ½ Σ_i (w_i − w_0)ᵀ H (w_i − w_0)

    with strengths and graph by Laplace's evidence. One model for all tasks, a shared model with deviations, linked
    tasks and separate models are averaged by their log-loss on held-out rows. Tasks may have one class only: their
    models come from the others. More than two classes are fitted one against the rest.

    The parameters are those of :class:`GGMTLRegressor`, without ``loss`` and ``noise``; ``fit`` takes neither
    ``exposure`` nor ``task_features``.

    Parameters
    ----------
    task : str or int, optional
        Name (or index) of the column of X that holds the task. Alternatively pass ``tasks=`` to ``fit``.
    penalty, criterion, coupling, hub, edge_l2, edge_l1, edge_entropy, edge_solver, step, hypergradient, ridge
        As in :class:`GGMTLRegressor`; other values than the defaults are refused, since evidence learns all strengths.
    effects : "linear"
        Curves are for :class:`GGMTLRegressor`; other values are refused. A feature that bends needs columns of its own,
        such as its square.
    candidates : "knn", "complete", array of pairs, or KNN(), Complete(), Coordinates()
        Which edges may exist.
    validation : int, float, splitter or None
        How rows are held out, as in :class:`GGMTLRegressor`.
    blend : bool
        Whether to average the levels. ``False`` takes the one that evidence prefers.
    fit_intercept, standardize : bool
    unseen : {"error", "hub"}
        What to do with a task that was not in the training data.
    max_iter, tol, checkpoint, device, n_jobs, random_state, verbose
        As in :class:`GGMTLRegressor`; ``device`` is the CPU. An interrupted fit raises; with a checkpoint it
        goes on from the levels and folds that were done.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        Labels, sorted; ``coef_`` is for the log odds of the second.
    coef_, intercept_ : arrays of shape (n_tasks, d) and (n_tasks,)
        Models, in the units of the data; two classes only, as all that follows but ``tasks_``.
    tasks_ : array of shape (n_tasks,)
        Task labels, sorted.
    graph_ : TaskGraph
        The selected edges; empty where the evidence supports none.
    hub_coef_, hub_intercept_ : array of shape (d,) and float
        The shared model.
    blend_ : dict
        Share of every level in the model.
    path_ : list of dict
        One entry per level; errors are log-losses on held-out rows.
    validation_error_ : float or None
        Log-loss of the average on held-out rows, everything relearned without them.
    estimators_ : list
        More than two classes: one classifier per class.

    Examples
    --------
    >>> import numpy as np
    >>> from ggmtl import GGMTLClassifier
    >>> rng = np.random.default_rng(0)
    >>> X, tasks = rng.normal(size=(300, 2)), np.repeat(["a", "b", "c"], 100)
    >>> bought = X[:, 0] + rng.logistic(size=300) > 0
    >>> model = GGMTLClassifier().fit(X, np.where(bought, "yes", "no"), tasks=tasks)
    >>> model.classes_.tolist(), model.predict_proba(X, tasks=tasks).shape
    (['no', 'yes'], (300, 2))
    """

    # Fixed by the kind of target, so they are not parameters.
    loss: ClassVar[str] = "logistic"
    noise: ClassVar[str] = "auto"
    elsewhere: ClassVar[dict[str, str]] = {
        "loss": ' It always has the log-loss. For counts, use GGMTLRegressor(loss="poisson").',
        "noise": " Labels have no noise of their own: it follows from their probability. Leave it out.",
    }

    # ------------------------------------------------------------------ fitting

    def _show(self, state: FittedState) -> Self:
        super()._show(state)
        if state.form.classes is not None:
            self.classes_ = np.array(state.form.classes)
        return self

    @all_or_nothing
    def fit(self, X: Any, y: Any = None, tasks: Any = None, *, sample_weight: Any = None, groups: Any = None):
        """Fit every task's model.

        Parameters
        ----------
        X : data frame or array of shape (rows, columns)
            Features in long form, with the task column if `task` names one; or a list of pairs ``(X_i, y_i)``.
        y : array of shape (rows,)
            Labels, text or numbers, of two classes or more.
        tasks : array of shape (rows,), optional
            Task labels, instead of a task column in `X`.
        sample_weight : array of shape (rows,), optional
            Weights of the rows. Whole numbers count rows; weights with fractions are divided by their mean. Weights
            that balance classes spoil the evidence and the calibration of probabilities: compare ``predict_proba``
            with a threshold instead.
        groups : array of shape (rows,), optional
            Rows of one group stay in one fold.

        Returns
        -------
        self
        """
        if is_list_of_pairs(X, y):
            X, y, tasks = join_pairs(X)
        classes, code = read_classes(y, sample_weight, type(self).__name__)
        for name in ("estimators_", "state_", "coef_", "intercept_", "graph_", "blend_", "path_"):
            vars(self).pop(name, None)
        if len(classes) == 2:
            state = learn_outcomes(self, X, code.astype(np.float64), tasks, sample_weight, groups)
            # Dates have no plain form that keeps their unit.
            labels = tuple(classes if classes.dtype.kind in "mM" else classes.tolist())
            self._show(replace(state, form=replace(state.form, classes=labels)))
        else:
            self._fit_one_against_rest(X, code, len(classes), tasks, sample_weight, groups)
        self.classes_ = classes
        return self

    def _fit_one_against_rest(
        self, X: Any, code: np.ndarray, n_classes: int, tasks: Any, sample_weight: Any, groups: Any
    ) -> None:
        self.estimators_ = [
            clone(self).fit(X, (code == k).astype(int), tasks, sample_weight=sample_weight, groups=groups)
            for k in range(n_classes)
        ]
        first = self.estimators_[0]
        self.n_iter_ = max(one.n_iter_ for one in self.estimators_)
        self._form, self.scaling_ = first._form, first.scaling_
        self._set_names(first.tasks_, first.feature_names_)

    @all_or_nothing
    def add_task(self, name: Any, X: Any = None, y: Any = None):
        """Attach a new task without refitting the others, as :meth:`GGMTLRegressor.add_task` does.

        Its model is found on every level from its own rows, in which one class may be missing. The doubt about the
        shared model and the neighbours is left out of its standard errors.
        """
        check_is_fitted(self, "classes_")
        if len(self.classes_) > 2:
            raise UnavailableError("add_task is available for two classes. Call fit with all rows.")
        code = None if y is None else self._codes_of(y)
        return self._show(one_more_outcome(self, name, X, code))

    def _codes_of(self, y: Any) -> np.ndarray:
        """Zero and one for the labels of fitted classes."""
        labels = column_or_1d(series_to_numpy(from_tensor(y), "y"))
        position = locate_tasks(self.classes_, read_labels(labels, "y", len(labels)))
        if (position < 0).any():
            got = labels[position < 0].tolist()[0]
            raise InputError(f"y must hold {self.classes_.tolist()}. Got {got!r} instead.")
        return position.astype(np.float64)

    def _check_fitted(self, method: str) -> None:
        check_is_fitted(self, "classes_")
        if len(self.classes_) > 2:
            raise UnavailableError(
                f"{method} is available for two classes. Got {len(self.classes_)} instead: ask one of estimators_, "
                "which tells one class from the rest."
            )

    def fit_statistics(self, statistics: Any):
        """Refused: sums of rows do not determine models of classes."""
        refuse(self, "fit_statistics")

    @property
    def partial_fit(self) -> Any:
        """Refused: the rows of earlier calls would be needed again."""
        refuse(self, "partial_fit")

    # ------------------------------------------------------------------ predicting

    def predict_interval(
        self, X: Any, coverage: float = 0.9, tasks: Any = None, *, unseen: str | None = None
    ) -> np.ndarray:
        """Intervals of the probability of the second class, shape (rows, 2): how well the models are known.

        They are those of a normal distribution of the log odds, given the strengths and the graph as learned.

        Parameters
        ----------
        X, tasks, unseen
            As in :meth:`GGMTLRegressor.predict`.
        coverage : float
            Share of the true probabilities that should lie in their intervals, between 0 and 1.
        """
        self._check_fitted("predict_interval")
        check_share("coverage", coverage)
        return probability_intervals(self, X, tasks, coverage, unseen)

    def decision_function(self, X: Any, tasks: Any = None, *, unseen: str | None = None) -> np.ndarray:
        """Log odds of ``predict_proba``: of the second class, (rows,), or of each of more than two, (rows, n_classes).

        Parameters
        ----------
        X, tasks, unseen
            As in :meth:`GGMTLRegressor.predict`.
        """
        check_is_fitted(self, "classes_")
        if len(self.classes_) > 2:
            return np.column_stack([one.decision_function(X, tasks, unseen=unseen) for one in self.estimators_])
        return moderated(LOSSES["logistic"], *outcome_predictor(self, X, tasks, unseen))

    def predict_proba(self, X: Any, tasks: Any = None, *, unseen: str | None = None) -> np.ndarray:
        """Probability of every class, shape (rows, n_classes).

        They are averaged over the doubt about the models, σ(η/√(1 + πτ/8)) with τ the variance of η, and so nearer to
        one half where a task has few rows.

        Parameters
        ----------
        X, tasks, unseen
            As in :meth:`GGMTLRegressor.predict`.
        """
        check_is_fitted(self, "classes_")
        if len(self.classes_) > 2:
            each = np.column_stack([one.predict_proba(X, tasks, unseen=unseen)[:, 1] for one in self.estimators_])
            return each / each.sum(axis=1, keepdims=True)
        second = LOSSES["logistic"].mean(self.decision_function(X, tasks, unseen=unseen))
        return np.column_stack([1.0 - second, second])

    def predict(self, X: Any, tasks: Any = None, *, unseen: str | None = None) -> np.ndarray:
        """The likeliest class of every row.

        Parameters
        ----------
        X, tasks, unseen
            As in :meth:`GGMTLRegressor.predict`.
        """
        check_is_fitted(self, "classes_")
        return self.classes_[self.predict_proba(X, tasks, unseen=unseen).argmax(axis=1)]

    def score(self, X: Any, y: Any, sample_weight: Any = None, tasks: Any = None) -> float:
        """Share of rows whose class is predicted."""
        return float(accuracy_score(y, self.predict(X, tasks), sample_weight=sample_weight))
