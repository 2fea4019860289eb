"""Regressors whose predictions have intervals."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import norm
from sklearn.utils.validation import check_is_fitted

from ggmtl.errors import check_choice, check_share
from ggmtl.estimators.outcomes import check_loss_options, count_intervals
from ggmtl.estimators.state_estimator import StateRegressor
from ggmtl.inference.intervals import calibration, check_intervals, typical_deviations


class IntervalRegressor(StateRegressor):
    """Base of the regressors whose predictions have intervals."""

    def predict_interval(
        self,
        X: Any,
        coverage: float = 0.9,
        tasks: Any = None,
        *,
        of: str = "target",
        task_features: Any = None,
        unseen: str | None = None,
        exposure: Any = None,
    ) -> np.ndarray:
        """Intervals that hold the targets of new rows, as often as asked for.

        Their length follows the posterior, as ``predict(..., return_std=True)`` does. It is calibrated on the rows that
        were held out, for each task as far as it has enough of them. Tails heavier than those of a normal distribution
        are allowed for. A model that was saved without its statistics has one length per task.

        Parameters
        ----------
        X, tasks
            As in ``predict``.
        coverage : float
            Share of the new rows that should lie in their intervals, between 0 and 1.
        of : {"target", "mean"}
            What lies in the intervals: the targets of new rows, or their means (of counts: rates times the exposure),
            which have no noise. The latter are not calibrated on held-out rows.
        task_features, unseen, exposure
            As in ``predict``. Tasks that were not in the training data have the mean calibration of all tasks.

        Returns
        -------
        array of shape (rows, 2), or (rows, n_tasks, 2) where ``fit`` was given one task per column of y
            Lower and upper bounds.

        Examples
        --------
        >>> from ggmtl import GGMTLRegressor
        >>> from ggmtl.datasets import make_clusters
        >>> data = make_clusters(2, n_tasks=10, n_features=3, n_samples=30, random_state=0)
        >>> model = GGMTLRegressor().fit(data.X, data.y, tasks=data.tasks)
        >>> low, high = model.predict_interval(data.test.X, 0.9, tasks=data.test.tasks).T
        >>> bool(0.86 < ((low < data.test.y) & (data.test.y < high)).mean() < 0.94)
        True
        """
        check_is_fitted(self, "coef_")
        check_share("coverage", coverage)
        check_choice("of", of, ("target", "mean"))
        check_loss_options(self._fitted_loss(), exposure, task_features)
        if self._fitted_loss() != "squared":
            return count_intervals(self, X, tasks, coverage, of, unseen, exposure)
        check_intervals(self.state_)
        known = self._read_known(task_features)
        values = self._predict(X, tasks, unseen, **known)
        state, position = self.state_, self._located(X, tasks)[2]
        if of == "mean":
            reach = norm.ppf(0.5 + 0.5 * coverage) * self._deviations(X, tasks, known, of_mean=True)
            reach = reach.reshape(np.shape(values))
            return np.stack([values - reach, values + reach], axis=-1)
        if state.statistics is None:
            deviations = typical_deviations(state)[position] * self.scaling_.target_scale
        else:
            deviations = self._deviations(X, tasks, known)
        # The calibration of tasks never seen is the last.
        reach = (calibration(state).reach(coverage)[position] * deviations).reshape(np.shape(values))
        return np.stack([values - reach, values + reach], axis=-1)
