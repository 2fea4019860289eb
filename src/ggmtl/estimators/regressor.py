"""GGMTLRegressor: its parameters and attributes, the paper's recipe, and reading a model file."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from ggmtl.errors import GGMTLError, ModelFileError
from ggmtl.estimators.classifier import GGMTLClassifier
from ggmtl.estimators.model_file import DAMAGED, read_model
from ggmtl.estimators.parameters import check_parameters, settings_of
from ggmtl.estimators.state_regressor import StateRegressor
from ggmtl.fit.state import FittedState
from ggmtl.graph.candidates import KNN


class GGMTLRegressor(StateRegressor):
    """Graph-guided multi-task regression: every task's linear model, and which tasks are alike.

    The models V minimise, given edge values e ∈ [0, 1],

        ½ Σ_i ‖X_i w_i − y_i‖² + ½ Σ_ij e_ij (w_i − w_j)ᵀ Λ (w_i − w_j)
            + ½ Σ_i (w_i − w_0)ᵀ H (w_i − w_0) + ½ρ Σ_i ‖w_i‖²

    (w_0 is the shared model, the *hub*), and the graph e, with the strengths Λ and H where they are not given,
    minimises an outer criterion. X and y are scaled by pooled totals first, so units do not matter; all results are in
    the units of the data.

    Parameters
    ----------
    task : str or int, optional
        Name (or index) of the column of X that holds the task. Alternatively pass ``tasks=`` to ``fit``.
    penalty : {"squared_l2", "l2", "l1"}
        How differences between linked models are penalised: squared; by their length (robust to a wrong edge);
        coordinate by coordinate (tasks may share some coefficients only).
    criterion : {"auto", "validation", "evidence"}
        What a good graph is: one that predicts held-out rows (the paper), or one with the highest marginal
        likelihood. ``"auto"`` takes evidence wherever it is defined (``"squared_l2"`` or ``"l1"`` with a hub) and may
        learn all strengths (coupling, edge terms and ridge at their defaults).
    coupling : "auto", float or array of shape (d + 1,)
        Λ: learned, one number, or one per feature with the intercept last.
    hub : bool
        Whether all tasks are also shrunk towards a shared model. ``False`` is the paper.
    edge_l2, edge_l1 : float
        ξ and η, sparsity terms of the outer problem.
    edge_entropy : "auto" or float
        γ. ``"auto"`` chooses along a sparsity path.
    candidates : "knn", "complete", array of pairs, or KNN(), Complete(), Coordinates()
        Which edges may exist.
    validation : int, float, splitter or None
        Folds, one share of rows to hold out (the paper: 0.2), or a scikit-learn splitter. By evidence, very many tasks
        (n·(d + 1)² > 2¹⁸) hold out one of the folds only: their mean error is precise enough. None holds
        out nothing: there is no ``validation_error_``, and evidence is the only criterion.
    noise : {"auto", "common", "per_task"}
        Whether all tasks have the same noise variance, or each its own, by whose inverse its rows are weighted.
        Variances per task are shrunk towards each other. ``"auto"``, by evidence and for n·(d + 1)² ≤ 2¹⁸: per task
        if residuals show different variances and held-out rows do not contradict this.
    edge_solver : {"quasi_newton", "projected_gradient", "closed_form"}
        How the validation criterion is minimised.
    step : float, optional
        ν, the length of every step of ``edge_solver="projected_gradient"``, for the outer problem in scaled units. None
        chooses a length at every step such that the criterion falls.
    hypergradient : {"exact", "frozen"}
        For the penalties that are not squared.
    blend : bool
        Whether to average the levels (one model for all, a shared model with deviations, linked tasks, separate
        models) by their errors on held-out rows. ``False`` takes the best supported one.
    loss : {"squared", "poisson"}
        ``"poisson"`` is for counts: ``predict`` gives e^(xᵀw_i) times the exposure, and ``fit``, ``predict`` and
        ``score`` take ``exposure=``. Counts that vary more than Poisson's get a dispersion, where held-out rows are
        predicted no worse with it. Classes are for :class:`GGMTLClassifier`.
    effects : {"linear", "smooth", "auto"}
        ``"smooth"``: the effect of every feature with more than eight distinct values is a curve, a cubic spline that
        continues as a straight line beyond the range of the training rows. The curvature of the shared curve and of
        the deviations is learned. ``"auto"``: straight lines and curves are both levels. Curves need
        ``fit_intercept=True`` and the CPU.
    fit_intercept, standardize : bool
    ridge : float
        ρ, on the slopes of every level. Evidence learns the shrinkage itself and takes no more than the default.
    unseen : {"error", "hub"}
        What ``predict`` does with a task that was not in the training data.
    max_iter : int
        Maximum number of outer steps. Evidence takes at most 20 (6 where it is sampled): with more steps, strengths
        become overconfident.
    tol : float
        Outer tolerance: largest entry of the projected gradient, relative to the criterion. By evidence, steps end when
        one gains less than 10⁴ · `tol` nats, where the evidence is exact.
    checkpoint : str or Path, optional
        A file in which ``fit`` records its progress every few seconds. A fit that was killed continues from there
        when it is started again with the same data and parameters; a finished one is read back at once.
    device : {"cpu", "cuda", "cuda:0", …}
        Where very many tasks are fitted by evidence: on the CPU, or on a GPU through torch. Few tasks are fitted on the
        CPU in any case, where they are faster. Results agree up to the noise of the samples that evidence draws.
    n_jobs : int, optional
        Processes for cross-validation.
    random_state : int, optional
        Seed of the folds.
    verbose : int
        1: progress through the logger ``ggmtl``.

    Attributes
    ----------
    coef_, intercept_ : arrays of shape (n_tasks, d) and (n_tasks,)
        Models, in the units of the data. Where effects are curves, ``coef_`` has their mean slopes over the training
        rows, and ``intercept_`` the mean prediction for these less ``coef_`` times their mean; see :meth:`effect`.
    tasks_ : array of shape (n_tasks,)
        Task labels, sorted.
    graph_ : TaskGraph
        The selected edges, with weights in [0, 1] that are comparable between tasks.
    edges_, edge_weights_ : arrays of shape (m, 2) and (m,)
        All edges of the final solve and their w = λe, λ the geometric mean of Λ over the slopes.
    coupling_, hub_strength_ : arrays of shape (d + 1,)
        Λ and H in scaled units, of straight lines and the intercept, which is last. An edge of weight w ties
        coefficient k by (w/λ) Λ_k.
    hub_coef_, hub_intercept_ : array of shape (d,) and float
        The shared model.
    path_ : list of dict
        One entry per level considered: name, edges, held-out error, criterion, whether chosen.
    validation_error_ : float or None
        Root mean squared error on held-out rows; all models were refitted without these rows.
    blend_ : dict
        Share of every level in the model, where ``loss="poisson"``; ``validation_error_`` is then the mean deviance.
    dispersion_ : float
        φ, the ratio of the variance of counts to their mean (``loss="poisson"``).
    noise_ : array of shape (n_tasks,)
        Standard deviation of every task's noise, in the units of the target.
    history_ : list of float
        The criterion after every outer step, the start first: the outer loss or the negative log evidence; one value
        for the hub. Where the evidence is sampled and its value unknown, the factor by which the mean strength of the
        edges would have to change, after every step; it converges to one.
    status_ : {"converged", "flat", "stopped", "max_iter", "interrupted"}
        How the outer steps behind the chosen level ended. ``"flat"``: further decreases are within rounding;
        ``"stopped"``: evidence finished after its fixed number of steps; ``"interrupted"``: by Ctrl-C.
    n_iter_, converged_ : int and bool
        Outer steps, and whether they ended as ``"converged"`` or ``"flat"``.

    Examples
    --------
    >>> import numpy as np
    >>> from ggmtl import GGMTLRegressor
    >>> rng = np.random.default_rng(0)
    >>> X, tasks = rng.normal(size=(120, 2)), np.repeat(["a", "b", "c"], 40)
    >>> slope = np.repeat([1.0, 1.1, -2.0], 40)
    >>> y = slope * X[:, 0] + 0.1 * rng.normal(size=120)
    >>> model = GGMTLRegressor().fit(X, y, tasks=tasks)
    >>> model.coef_.shape
    (3, 2)
    """

    @classmethod
    def paper(
        cls,
        penalty: str = "squared_l2",
        coupling: float = 1.0,
        k: int = 10,
        edge_entropy: float = 0.01,
        edge_l1: float = 0.0,
        edge_l2: float = 0.0,
        step: float | None = None,
        max_iter: int = 200,
        **parameters: Any,
    ) -> Self:
        """Algorithm 1 as published in "Towards Interpretable Multi-Task Learning Using Bilevel Programming".

        Every task's ridge model is linked to the `k` nearest. A fifth of every task's rows is held out, and projected
        gradient lowers their error over the edge values. Then the models are refitted on all rows with these edges.
        There is no shared model, and nothing is chosen by cross-validation: λ and the sparsity terms are given. The
        paper prints no values for them, so the defaults here are ours. ``fit`` warns (``ConvergenceWarning``) if
        `max_iter` steps were not enough.

        The paper's symbols, with halves on its squared terms, for which its gradient is exact:

        ======  =====================================================================================
        λ       `coupling`, and ``coupling_`` after a fit
        ξ, η    `edge_l2` and `edge_l1`
        γ       `edge_entropy`
        ν       `step`; None chooses it at every step such that the outer loss falls
        k       `k`, neighbours of every task among the candidate edges
        e       edge values in [0, 1]; ``edge_weights_`` are λe, ``graph_.weights`` are for display
        l       ½/‖w_i − w_j‖ of ``penalty="l2"``; inside :mod:`ggmtl.bilevel.inner`
        V       the models: ``coef_`` and ``intercept_``, in the units of the data
        B, E    incidence of the graph: ``edges_`` has one row (i, j) per edge
        A       matrix of the inner problem: :class:`ggmtl.solve.system.TaskSystem`
        ======  =====================================================================================

        Parameters
        ----------
        penalty : {"squared_l2", "l2"}
            The paper's two penalties.
        coupling, k, edge_entropy, edge_l1, edge_l2, step, max_iter
            λ, k, γ, η, ξ, ν, and the number of steps at most. Strengths are for scaled columns.
        **parameters
            Any other parameter of :class:`GGMTLRegressor`, such as ``task`` or ``random_state``.

        Returns
        -------
        GGMTLRegressor
            Not fitted.

        Examples
        --------
        >>> from ggmtl import GGMTLRegressor
        >>> from ggmtl.datasets import make_line
        >>> data = make_line(n_tasks=8, n_features=3, n_samples=30, random_state=0)
        >>> model = GGMTLRegressor.paper(k=3, random_state=0).fit(data.X, data.y, tasks=data.tasks)
        >>> model.converged_
        True
        """
        published = {
            "criterion": "validation",
            "hub": False,
            "blend": False,
            "validation": 0.2,
            "noise": "common",
            "edge_solver": "projected_gradient",
            # Without a shared model, a column that is constant within a task leaves its model undetermined.
            "ridge": 1e-3,
        }
        given = {
            "penalty": penalty,
            "coupling": coupling,
            "candidates": KNN(k),
            "edge_entropy": edge_entropy,
            "edge_l1": edge_l1,
            "edge_l2": edge_l2,
            "step": step,
            "max_iter": max_iter,
        }
        return cls(**published | given | parameters)


def load_model(path: str | Path) -> GGMTLRegressor | GGMTLClassifier:
    """Read a model that :meth:`GGMTLRegressor.save` or :meth:`GGMTLClassifier.save` wrote.

    Nothing in the file is executed. A file that is damaged, truncated, foreign or too new raises
    :class:`ggmtl.errors.ModelFileError`.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from ggmtl.datasets import make_clusters
    >>> data = make_clusters(2, n_tasks=6, n_features=2, random_state=0)
    >>> model = GGMTLRegressor().fit(data.X, data.y, tasks=data.tasks)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(Path(folder) / "model.ggmtl")
    ...     copy = load_model(Path(folder) / "model.ggmtl")
    >>> copy.tasks_.tolist(), bool((copy.coef_ == model.coef_).all())
    ([0, 1, 2, 3, 4, 5], True)
    """
    parameters, fields = read_model(path)
    kind = GGMTLRegressor if fields["form"].classes is None else GGMTLClassifier
    known = inspect.signature(kind).parameters
    unknown = [name for name in parameters if name not in known]
    if unknown:
        raise ModelFileError(f"{path} has a parameter that this version of ggmtl does not know: {unknown[0]!r}.")
    try:
        model = kind(**parameters)
        check_parameters(model)
        width = fields["family"].best.coefficients.shape[1]
        read = {name: fields.pop(name) for name in ("known", "constant")}
        settings = replace(settings_of(model, width, fields["scaling"].is_linear), **read)
        return model._show(FittedState(settings=settings, **fields))
    except (*DAMAGED, GGMTLError) as error:
        raise ModelFileError(f"{path} is damaged: its parts do not fit together ({error}).") from error
