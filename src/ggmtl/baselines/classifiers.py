"""Logistic regression with a task in every row: one model for all, one per task, or a shared model and deviations."""

from __future__ import annotations

from dataclasses import dataclass

from ggmtl.baselines._row_models import TwoClassClassifier, hub_models, pooled_models, separate_models
from ggmtl.baselines._shared import check_strength
from ggmtl.estimators.base import LearnedModels
from ggmtl.estimators.outcomes import OutcomeRows


@dataclass(eq=False, repr=False, kw_only=True)
class _RidgeClassifier(TwoClassClassifier):
    """Parameters of both classifiers with a ridge."""

    ridge: float | str = "auto"


class IndependentClassifier(_RidgeClassifier):
    """One logistic regression per task, with one penalty for all:

        min  Σ_rows [ln(1 + e^η) − yη] + ½ρ Σ_i (‖w_i‖² + (b_i − b)²) ,    η = xᵀw_i + b_i .

    Intercepts are drawn to b, the log odds of all rows, so that a task with one class has a finite model.

    Parameters
    ----------
    task : str or int, optional
        Column of X that holds the task.
    ridge : float or "auto"
        ρ, in units where features have spread one. ``"auto"``: the one of least log-loss in cross-validation (by
        evidence with ``validation=None``).
    validation, fit_intercept, standardize, unseen, random_state
        As in :class:`ggmtl.GGMTLClassifier`.

    Attributes
    ----------
    classes_ : array of shape (2,)
        Labels, sorted.
    coef_, intercept_ : arrays of shape (n, d), (n,)
        Models of the log odds of the second class, in the user's units.
    ridge_, strength_ : float
        ρ.
    validation_error_ : float or None
        Log-loss on held-out rows at ρ, where it was chosen by cross-validation.

    Examples
    --------
    >>> X, y = [[0.0], [1.0], [0.0], [1.0]], ["no", "yes", "yes", "no"]
    >>> model = IndependentClassifier(ridge=0.1).fit(X, y, tasks=list("aabb"))
    >>> model.predict(X, tasks=list("aabb")).tolist()
    ['no', 'yes', 'yes', 'no']
    """

    def _learn_rows(self, given: OutcomeRows) -> LearnedModels:
        return separate_models(given, self.loss, check_strength("ridge", self.ridge))


class PooledClassifier(_RidgeClassifier):
    """One logistic regression on the rows of all tasks together:

        min  Σ_rows [ln(1 + e^η) − yη] + ½ρ‖w‖² ,    η = xᵀw + b .

    Its model is the shared model, so ``unseen="hub"`` predicts for any task.

    Parameters
    ----------
    task : str or int, optional
        Column of X that holds the task.
    ridge : float or "auto"
        ρ, in units where features have spread one. ``"auto"``: the one of least log-loss in cross-validation (by
        evidence with ``validation=None``). The intercept is free.
    validation, fit_intercept, standardize, unseen, random_state
        As in :class:`ggmtl.GGMTLClassifier`.

    Attributes
    ----------
    classes_ : array of shape (2,)
        Labels, sorted.
    coef_, intercept_ : arrays of shape (n, d), (n,)
        The model of the log odds of the second class, once per task, in the user's units.
    hub_coef_, hub_intercept_ : array of shape (d,), float
        The model.
    ridge_, strength_ : float
        ρ.
    validation_error_ : float or None
        Log-loss on held-out rows at ρ, where it was chosen by cross-validation.

    Examples
    --------
    >>> X, y = [[0.0], [1.0], [0.0], [1.0]], [0, 1, 0, 1]
    >>> model = PooledClassifier(ridge=1.0).fit(X, y, tasks=list("aabb"))
    >>> bool((model.coef_[0] == model.coef_[1]).all())
    True
    """

    def _learn_rows(self, given: OutcomeRows) -> LearnedModels:
        return pooled_models(given, self.loss, check_strength("ridge", self.ridge))


@dataclass(eq=False, repr=False, kw_only=True)
class HubClassifier(TwoClassClassifier):
    """Every task's logistic model as a shared model plus a deviation:

        min  Σ_rows [ln(1 + e^η) − yη] + ½h Σ_i ‖w_i − w_0‖² + ½h_b Σ_i (b_i − b_0)² ,    η = xᵀw_i + b_i .

    The common slopes have a ridge of their own, learned from all rows.

    Parameters
    ----------
    task : str or int, optional
        Column of X that holds the task.
    strength, intercept_strength : float or "auto"
        h and h_b, in units where features have spread one. ``"auto"``: those of least log-loss in cross-validation (by
        evidence with ``validation=None``).
    validation, fit_intercept, standardize, unseen, random_state
        As in :class:`ggmtl.GGMTLClassifier`.

    Attributes
    ----------
    classes_ : array of shape (2,)
        Labels, sorted.
    coef_, intercept_ : arrays of shape (n, d), (n,)
        Models of the log odds of the second class, in the user's units.
    hub_coef_, hub_intercept_ : array of shape (d,), float
        The shared model.
    strength_ : array of shape (d + 1,)
        The strength of every coefficient, intercept last.
    validation_error_ : float or None
        Log-loss on held-out rows, where strengths were chosen by cross-validation.

    Examples
    --------
    >>> X, y = [[0.0], [1.0], [0.0], [1.0]], [0, 1, 1, 0]
    >>> model = HubClassifier(strength=1.0, intercept_strength=1.0).fit(X, y, tasks=list("aabb"))
    >>> bool(model.coef_[0, 0] > 0 > model.coef_[1, 0])
    True
    """

    strength: float | str = "auto"
    intercept_strength: float | str = "auto"

    def _learn_rows(self, given: OutcomeRows) -> LearnedModels:
        slope, intercept = (check_strength(name, getattr(self, name)) for name in ("strength", "intercept_strength"))
        return hub_models(given, self.loss, slope, intercept)
