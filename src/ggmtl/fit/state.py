"""The fitted state: one frozen record of all that a fit has learned.

The estimator holds it as ``state_``. Adding rows or tasks makes a new state. Inference and inspection read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ggmtl.bilevel.level import GraphFit, Settings
from ggmtl.data.labels import locate_tasks
from ggmtl.data.task_data import InputForm, TaskData
from ggmtl.errors import InputError
from ggmtl.fit.family import Family
from ggmtl.fit.lines_or_curves import CurveGain
from ggmtl.fit.outcomes import OutcomeFamily
from ggmtl.graph.task_graph import TaskGraph
from ggmtl.losses.rowwise import LOSSES, SQUARED_ERROR, Measure
from ggmtl.losses.task_rows import FoldedRows
from ggmtl.statistics.least_squares import FoldedLoss, sum_over_tasks
from ggmtl.statistics.scaling import Scaling
from ggmtl.statistics.task_statistics import TaskStatistics

T = TypeVar("T")


@dataclass(frozen=True)
class FittedState:
    """All that a fit has learned, in scaled units.

    Parameters
    ----------
    task_names : array of shape (n,)
        Sorted.
    feature_names : tuple of str
    form : InputForm
        How the rows were given and dealt into folds.
    scaling : Scaling
        Between the units of the data and the scaled ones.
    settings : Settings
    family : Family
        Levels that a file did not keep, or that lack a task added later, have a name and a criterion only.
    graph : TaskGraph
        The reported graph.
    path : list of dict
        The table of the levels, as ``path_`` shows it.
    statistics : TaskStatistics, optional
        Sums of the rows; None in a model that was saved without them.
    attached : tuple of (label, covariance)
        Tasks that were added with the others held fixed. They do not change σ², the shared model or each other.
    given : dict
        Uncertainties that were read from a model file, for a state without statistics.
    curve_gain : CurveGain, optional
        Reduction of the held-out error by a curve, for a fit with straight lines; None if it is not beyond chance.
    outcome : OutcomeFamily, optional
        The levels under a loss that is not squared; the state then has no statistics.
    outcome_rows : FoldedRows, optional
        The scaled rows of such a loss; None in a model that was saved without them.
    """

    task_names: np.ndarray
    feature_names: tuple[str, ...]
    form: InputForm
    scaling: Scaling
    settings: Settings
    family: Family
    graph: TaskGraph
    path: list[dict[str, Any]]
    statistics: TaskStatistics | None
    attached: tuple[tuple[Any, np.ndarray], ...] = ()
    given: Mapping[str, Any] = field(default_factory=dict)
    outcome: OutcomeFamily | None = None
    curve_gain: CurveGain | None = None
    outcome_rows: FoldedRows | None = None
    _kept: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def level(self) -> GraphFit:
        """The level whose graph and strengths are reported."""
        return self.family.best

    @property
    def coefficients(self) -> np.ndarray:
        """Model of every task, shape (n, p): the average of the levels."""
        return self.once("coefficients", lambda: self.family.coefficients)

    @property
    def fitted_tasks(self) -> np.ndarray:
        """Positions of the tasks that were fitted together, without those in `attached`."""
        if not self.attached:
            return np.arange(len(self.task_names))
        later = locate_tasks(self.task_names, np.array([label for label, _ in self.attached]))
        return np.setdiff1d(np.arange(len(self.task_names)), later)

    def common_model(self) -> np.ndarray:
        """The mean of the models of the fitted tasks, shape (p,)."""
        return sum_over_tasks(self.coefficients[self.fitted_tasks]) / len(self.fitted_tasks)

    def once(self, name: str, compute: Callable[[], T]) -> T:
        """A value that follows from this state, computed at the first call unless the model file contained it."""
        if name in self.given:
            return self.given[name]
        if name not in self._kept:
            self._kept[name] = compute()
        return self._kept[name]

    def rows(self, purpose: str) -> TaskStatistics:
        """The statistics of the rows; an error that names the purpose where they were not saved."""
        if self.outcome is not None:
            raise InputError(_squared_only(purpose, self.outcome.loss))
        if self.statistics is None:
            raise InputError(
                f"{purpose} needs the statistics of the rows, but the model was saved without them. "
                "Save it with keep_statistics=True."
            )
        return self.statistics

    def rows_of_outcome(self, purpose: str) -> FoldedRows:
        """The rows of a loss that is not squared; an error that names the purpose where they were not saved."""
        if self.outcome_rows is None:
            raise InputError(
                f"{purpose} needs the rows, but the model was saved without them. Save it with keep_statistics=True."
            )
        return self.outcome_rows

    @property
    def measure(self) -> Measure:
        """How held-out losses are reported."""
        return SQUARED_ERROR if self.outcome is None else LOSSES[self.outcome.loss].measure

    def folded(self) -> FoldedLoss:
        """The scaled loss of every fold."""
        return FoldedLoss(tuple(self.scaling.design(self.rows("This result"))), self.form.scored_from)

    def check_features(self, data: TaskData, estimator: str) -> TaskData:
        """The rows under the names of the features; an error where they are others than in ``fit``."""
        width, known = data.X.shape[1], self.feature_names
        if width != len(known):
            raise InputError(f"X has {width} features, but {estimator} is expecting {len(known)} features as input")
        if data.feature_names is not None and self.form.named and data.feature_names != known:
            raise InputError(
                "The feature names should match those that were passed during fit.\n"
                f"Fitted: {list(known)}\nGiven: {list(data.feature_names)}"
            )
        return replace(data, feature_names=known)

    def expanded(self, data: TaskData, estimator: str) -> TaskData:
        """The rows as the statistics hold them: with the columns of the curves after the features."""
        return self.scaling.curves.expanded(self.check_features(data, estimator))

    def __getstate__(self) -> dict[str, Any]:
        """Everything but cached values, which can be larger than the model."""
        return {**vars(self), "_kept": {}}


def outcome_of(state: FittedState) -> OutcomeFamily:
    """The part of a state for classes or counts; an error if the state has squared loss."""
    if state.outcome is None:
        raise ValueError("The state was learned under the squared loss.")
    return state.outcome


def state_of(model: Any, purpose: str, any_loss: bool = False) -> FittedState:
    """The fitted state of an estimator; an error that names `purpose` if it has none.

    Without `any_loss`, the squared loss is required.
    """
    check_is_fitted(model, "coef_")
    state = getattr(model, "state_", None)
    if state is None:
        raise InputError(f"{purpose} needs a fitted GGMTLRegressor. Got {type(model).__name__} instead.")
    if state.outcome is not None and not any_loss:
        raise InputError(_squared_only(purpose, state.outcome.loss))
    return state


def _squared_only(purpose: str, loss: str) -> str:
    return (
        f"{purpose} is available for squared loss only: it needs sums of the rows, which do not determine the models "
        f"under the {loss} loss."
    )
