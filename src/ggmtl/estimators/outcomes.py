"""Fits of classes and counts: rows in, fitted state out; and what the state shows and predicts.

What is particular to a loss that is not squared stands here, so that the estimators only say which loss they have.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
from scipy.special import logsumexp
from scipy.stats import nbinom, norm
from sklearn.exceptions import DataConversionWarning
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from ggmtl.bilevel.level import GraphFit, Settings
from ggmtl.data.columns import read_numbers
from ggmtl.data.folds import deal_rows, seed_of
from ggmtl.data.frames import from_tensor, series_to_numpy
from ggmtl.data.labels import locate_tasks, read_labels
from ggmtl.data.task_data import InputForm, TaskData
from ggmtl.errors import InputError, InputTypeError, ParameterError, UnavailableError, check_choice
from ggmtl.estimators.learning import fingerprint, new_label, read_one_task
from ggmtl.estimators.parameters import check_parameters, criterion_used, settings_of
from ggmtl.fit.family import Family
from ggmtl.fit.outcomes import OutcomeFamily, OutcomeFold, fit_outcomes
from ggmtl.fit.separate_outcomes import OutcomeLevel
from ggmtl.fit.state import FittedState
from ggmtl.inference.growth import with_outcome_task
from ggmtl.losses.rowwise import LOSSES
from ggmtl.losses.task_rows import FoldedRows, TaskRows, row_quadratics, sorted_rows
from ggmtl.runtime.journal import Journal, open_journal, verbose_logging
from ggmtl.runtime.machine import one_blas_thread
from ggmtl.statistics.scaling import Scaling
from ggmtl.statistics.task_statistics import TaskStatistics

# Larger counts are not told apart as float64.
LARGEST_COUNT = 1e15


@dataclass(frozen=True)
class OutcomeRows:
    """Rows as they are learned from, and how they were given.

    Parameters
    ----------
    folded : FoldedRows
        Scaled, sorted by task, and the folds that are held out.
    task_names : array of shape (n,)
    features : tuple of str
    form : InputForm
    scaling : Scaling
    """

    folded: FoldedRows
    task_names: np.ndarray
    features: tuple[str, ...]
    form: InputForm
    scaling: Scaling

    @property
    def rows(self) -> TaskRows:
        """All rows."""
        return self.folded.rows


def read_outcomes(
    model: Any, X: Any, y: Any, tasks: Any, sample_weight: Any, groups: Any, exposure: Any = None
) -> OutcomeRows:
    """The rows given to an estimator whose loss is not squared."""
    data = model._read_data(X, y, tasks, sample_weight, groups)
    form = InputForm.of_rows(X, y, tasks, model.task, data)
    if form.target_is_matrix:
        raise InputError(
            f"y must be one-dimensional under the {model.loss} loss. Got one task per column instead: put the columns "
            "below each other, and pass tasks=."
        )
    check_target(data.y, model.loss)
    offset, rate = centred_exposure(log_exposure(exposure, data, sample_weight), data, model)
    folds, scored_from = deal_rows(data, model.validation, seed_of(model.random_state), discrete=True)
    statistics = TaskStatistics.from_data(data)
    scaling = Scaling.from_statistics(statistics, model.fit_intercept, model.standardize)
    # The linear predictor is that of the target as it is.
    scaling = replace(scaling, target_center=rate, target_scale=1.0)
    rows, order = sorted_rows(
        scaling.design_rows(data.X), data.y, data.task_index, len(data.task_names), offset, data.sample_weight
    )
    return OutcomeRows(
        FoldedRows(rows, None if folds is None else folds[order], scored_from),
        data.task_names,
        tuple(statistics.feature_names),
        replace(form, scored_from=scored_from),
        scaling,
    )


@one_blas_thread()
def learn_outcomes(
    model: Any, X: Any, y: Any, tasks: Any, sample_weight: Any, groups: Any, exposure: Any = None
) -> FittedState:
    """The state of an estimator with these parameters, fitted to rows under a loss that is not squared."""
    check_outcome_parameters(model)
    given = read_outcomes(model, X, y, tasks, sample_weight, groups, exposure)
    settings = settings_of(model, given.rows.n_features)
    journal = _journal(model, given)
    with verbose_logging(model.verbose):
        outcome = fit_outcomes(
            given.rows,
            LOSSES[model.loss],
            settings,
            given.task_names,
            given.folded.folds,
            given.folded.first_scored,
            n_jobs=model.n_jobs,
            journal=journal,
        )
    return state_of_outcome(outcome, given, settings)


def _journal(model: Any, read: OutcomeRows) -> Journal:
    """What an interrupted fit of the same rows has left in the checkpoint; a journal in memory without one."""
    if model.checkpoint is None:
        return Journal()
    rows, folds, names = read.rows, read.folded.folds, read.task_names
    parts = [rows] if folds is None else [read.folded.part(k) for k in range(int(folds.max()) + 1)]
    nothing = np.zeros((rows.n_tasks, rows.n_features))
    sums = [part.working_sums(LOSSES["squared"], nothing) for part in parts]
    mark = fingerprint(model, names, read.features, sums, read.scaling, read.form.scored_from)
    return open_journal(model.checkpoint, mark, (GraphFit, OutcomeLevel, OutcomeFold))


def state_of_outcome(outcome: OutcomeFamily, read: OutcomeRows, settings: Settings) -> FittedState:
    """The fitted state of learned levels."""
    names, scaling = read.task_names, read.scaling
    fits = {name: level.fit for name, level in outcome.levels.items()}
    family = Family(fits, dict(outcome.weights), outcome.errors, "evidence", outcome.preferred, outcome.average)
    T = scaling.user_map()
    variance = np.einsum("ap,npq,aq->na", T, outcome.covariance, T, optimize=True)
    given = {
        "noise": outcome.dispersion,
        "noise_ratios": None,
        "standard_errors": np.sqrt(np.maximum(variance, 0.0)),
        "count": read.rows.count,
    }
    graph, path = family.graph(names, settings.slopes), family.table(1.0, settings.slopes)
    fields = {"given": given, "outcome": outcome, "outcome_rows": read.folded}
    return FittedState(names, read.features, read.form, scaling, settings, family, graph, path, None, **fields)


def outcome_predictor(model: Any, X: Any, tasks: Any, unseen: str | None) -> tuple[np.ndarray, np.ndarray]:
    """η and its variance τ of rows, without the exposure."""
    matrix, labels = model._read_rows(X, tasks)
    labels = np.full(len(matrix), model.tasks_[0]) if labels is None else labels
    coef, intercept = model._models_of(labels, model.unseen if unseen is None else unseen)
    outcome, position = model.state_.outcome, locate_tasks(model.tasks_, labels)
    blocks = np.concatenate([outcome.covariance, outcome.new_task[None]])
    place = np.where(position < 0, len(blocks) - 1, position)
    variance = row_quadratics(model.scaling_.design_rows(matrix), blocks, place)
    return np.einsum("rd,rd->r", matrix, coef) + intercept, variance


def expected_counts(predictor: np.ndarray, exposure: Any) -> np.ndarray:
    """Means of rows: rates times the exposure, which may be out of the range of floats apart."""
    if exposure is not None:
        predictor = predictor + np.log(checked_exposure(exposure, len(predictor)))
    return LOSSES["poisson"].mean(predictor)


def count_intervals(
    model: Any, X: Any, tasks: Any, coverage: float, of: str, unseen: str | None, exposure: Any
) -> np.ndarray:
    """Intervals of new counts, or of their means, shape (rows, 2).

    Counts have a variance of φμ + μ²τ: their quantiles are those of a negative binomial distribution.
    """
    predictor, variance = outcome_predictor(model, X, tasks, unseen)
    tail = 0.5 - 0.5 * coverage
    reach = norm.ppf(1.0 - tail) * np.sqrt(variance)
    if of == "mean":
        return np.column_stack([expected_counts(each, exposure) for each in (predictor - reach, predictor + reach)])
    mean = expected_counts(predictor, exposure)
    ratio = model.dispersion_ + mean * variance
    # Without excess variance the counts are Poisson's.
    excess = np.maximum(ratio - 1.0, 1e-9)
    return np.column_stack([nbinom.ppf(share, mean / excess, 1.0 / (1.0 + excess)) for share in (tail, 1.0 - tail)])


def probability_intervals(model: Any, X: Any, tasks: Any, coverage: float, unseen: str | None) -> np.ndarray:
    """Intervals of the probability of the second class, shape (rows, 2)."""
    predictor, variance = outcome_predictor(model, X, tasks, unseen)
    reach = norm.ppf(0.5 + 0.5 * coverage) * np.sqrt(variance)
    return LOSSES["logistic"].mean(np.column_stack([predictor - reach, predictor + reach]))


@one_blas_thread()
def one_more_outcome(model: Any, name: Any, X: Any = None, y: Any = None, exposure: Any = None) -> FittedState:
    """The state with one more task, from its rows if there are some; `y` holds zeros and ones, or counts."""
    state = model.state_
    label = new_label(state, name)
    width = state.level.coefficients.shape[1]
    nothing = np.empty(0)
    rows = TaskRows(np.empty((0, width)), nothing, nothing, nothing, nothing.astype(np.int64), 1)
    if X is not None and len(X):
        data = read_one_task(model, label, X, y)
        check_counts(data.y, state.outcome.loss)
        offset = np.full(len(data), state.scaling.target_center)
        if exposure is not None:
            offset += np.log(checked_exposure(exposure, len(data)))
        task = np.zeros(len(data), dtype=np.int64)
        rows, _ = sorted_rows(state.scaling.design_rows(data.X), data.y, task, 1, offset)
    return with_outcome_task(state, label, rows)


def explained_deviance(y: Any, predicted: np.ndarray, sample_weight: Any, exposure: Any) -> float:
    """1 − deviance of the predicted counts over that of one rate for all rows."""
    loss, target = LOSSES["poisson"], read_numbers(y, "y")
    check_counts(target, "poisson")
    weight = np.ones(len(target)) if sample_weight is None else read_numbers(sample_weight, "sample_weight")
    time = np.ones(len(target)) if exposure is None else checked_exposure(exposure, len(target))
    if not weight @ target > 0:
        raise InputError("y is zero in every row that has weight, so there is no deviance to explain.")
    rate = float(weight @ target) / float(weight @ time)
    ours, theirs = (weight @ loss.value(np.log(mean), target) for mean in (predicted, rate * time))
    return float(1.0 - ours / theirs) if theirs > 0 else float(ours <= 0)


# ---------------------------------------------------------------------- checks


def check_loss_options(loss: str, exposure: Any = None, task_features: Any = None) -> None:
    """Refuse what has no meaning for a loss."""
    if loss == "squared" and exposure is not None:
        raise ParameterError('exposure= is for loss="poisson". Got loss="squared" instead.')
    if loss != "squared" and task_features is not None:
        raise ParameterError(f'task_features= is for loss="squared". Got loss="{loss}" instead.')


def read_classes(y: Any, sample_weight: Any, estimator: str) -> tuple[np.ndarray, np.ndarray]:
    """Classes, sorted, and the position of every row's."""
    if y is None:
        raise InputError(f"This {estimator} estimator requires y to be passed, but the target y is None")
    labels = _class_labels(from_tensor(y))
    try:
        # Labels beyond 2⁶³ warn on their way to int64, which only asks whether they are whole numbers.
        with np.errstate(invalid="ignore"):
            check_classification_targets(labels)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"y must hold the labels of classes, such as text or a few whole numbers. {error} For numbers with noise, "
            "use GGMTLRegressor."
        ) from error
    weight = None if sample_weight is None else read_numbers(sample_weight, "sample_weight")
    present = labels if weight is None or weight.shape != labels.shape else labels[weight > 0]
    # Where no row has a weight, the reader says so.
    classes = np.unique(present if len(present) else labels)
    if len(classes) < 2:
        raise InputError(
            f"y must have at least two classes. Got one class instead: {classes.tolist()[:1]}. There is nothing to "
            "tell apart."
        )
    return classes, np.clip(np.searchsorted(classes, labels), 0, len(classes) - 1)


def _class_labels(y: Any) -> np.ndarray:
    """Labels that tell all classes apart; one per row, none missing."""
    # NumPy alone would turn 1 among strings into the string "1".
    if not isinstance(y, (list, tuple)) or any(isinstance(label, (list, tuple, np.ndarray)) for label in y):
        try:
            y = series_to_numpy(y, "y")
            if np.ndim(y) == 2 and y.shape[1] == 1:
                message = "A column-vector y was passed when a 1d array was expected."
                warnings.warn(message, DataConversionWarning, stacklevel=5)
            y = column_or_1d(y)
        except ValueError as error:
            raise InputError(f"y must be one-dimensional, with a label per row. {error}") from error
        if y.dtype.kind == "f" and not np.isfinite(y).all():
            raise InputError(f"Input y contains NaN or infinity in {int((~np.isfinite(y)).sum())} rows.")
    if not len(y):
        raise InputError("y must have a label per row. Found array with 0 sample(s) while a minimum of 1 is required.")
    labels = read_labels(y, "y", len(y))
    if labels.dtype == object and len(kinds := {type(label).__name__ for label in labels.tolist()}) > 1:
        raise InputTypeError(f"y mixes labels of type {', '.join(sorted(kinds))}. Make them all text or all numbers.")
    return labels


def check_outcome_parameters(model: Any) -> None:
    """Refuse what is known for squared loss only, with the reason."""
    check_parameters(model)
    check_choice("unseen", model.unseen, ("error", "hub"))
    name = "GGMTLClassifier" if model.loss == "logistic" else f'loss="{model.loss}"'
    if model.penalty != "squared_l2" or criterion_used(model) != "evidence":
        raise ParameterError(
            f'{name} needs penalty="squared_l2" and graphs by evidence: hub=True and coupling, edge_entropy, edge_l1, '
            f"edge_l2, edge_solver and ridge at their defaults. Got penalty={model.penalty!r} and "
            f"criterion={criterion_used(model)!r} instead."
        )
    if model.noise == "per_task":
        raise ParameterError(f'{name} has no noise variance: leave noise at "auto". Got noise="per_task" instead.')
    if model.device != "cpu":
        raise ParameterError(
            f"{name} is computed on the CPU only: its rows are needed in every step. Got device={model.device!r} "
            'instead. Use device="cpu".'
        )
    if model.effects != "linear":
        raise ParameterError(
            f'{name} has straight lines only. Got effects={model.effects!r} instead. Leave effects at "linear". Where '
            "an effect bends, add columns such as the square of the feature."
        )


def check_counts(target: np.ndarray, loss: str) -> None:
    """Refuse counts that are negative."""
    if loss == "poisson" and (target < 0).any():
        row = int(np.flatnonzero(target < 0)[0])
        raise InputError(
            f'y must hold counts or rates, not negative, for loss="poisson". Got {target[row]:g} in row {row} instead.'
        )


def check_target(target: np.ndarray, loss: str) -> None:
    """Refuse counts that are negative, all zero, or of a size that no count has."""
    check_counts(target, loss)
    if loss != "poisson":
        return
    largest = float(target.max(initial=0.0))
    if largest == 0.0:
        raise InputError('y is zero in every row, so loss="poisson" has no rate to learn.')
    if not 1.0 / LARGEST_COUNT < largest < LARGEST_COUNT:
        raise InputError(
            f"y must have its largest value between {1.0 / LARGEST_COUNT:.0e} and {LARGEST_COUNT:.0e} for "
            f'loss="poisson". Got {largest:.3g} instead. Use other units, and exposure= for what counts are '
            "proportional to."
        )


def centred_exposure(offset: np.ndarray | None, data: TaskData, model: Any) -> tuple[np.ndarray | None, float]:
    """ln exposure about that at which one event is expected, and ln of the mean rate.

    So models are departures from the mean rate, and units of counts and exposures change nothing but its logarithm.
    Without an intercept, or for classes, nothing can be moved.
    """
    if model.loss != "poisson" or not model.fit_intercept:
        return offset, 0.0
    weight = np.ones(len(data)) if data.sample_weight is None else data.sample_weight
    offset = np.zeros(len(data)) if offset is None else offset
    rate = float(np.log(weight @ data.y) - logsumexp(offset, b=weight))
    return offset + rate, rate


def log_exposure(exposure: Any, data: TaskData, sample_weight: Any) -> np.ndarray | None:
    """ln exposure of the rows of `data`, from which those of weight zero have been left out."""
    if exposure is None:
        return None
    weight = None if np.ndim(sample_weight) == 0 else read_numbers(sample_weight, "sample_weight")
    if weight is None:
        return np.log(checked_exposure(exposure, len(data)))
    return np.log(checked_exposure(exposure, len(weight))[weight > 0])


def checked_exposure(exposure: Any, n_rows: int) -> np.ndarray:
    """Positive numbers, one per row."""
    values = read_numbers(exposure, "exposure")
    if values.shape != (n_rows,):
        raise InputError(f"exposure must have one entry per row, shape ({n_rows},). Got shape {values.shape} instead.")
    bad = ~(np.isfinite(values) & (values > 0))
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise InputError(f"exposure must be positive and finite. Got {values[row]:g} in row {row} instead.")
    if len(values) and np.log(values.max()) - np.log(values.min()) > 2.0 * np.log(LARGEST_COUNT):
        raise InputError(f"exposure must not vary so much. Got values from {values.min():.3g} to {values.max():.3g}.")
    return values


def refuse(model: Any, what: str) -> NoReturn:
    """Say why sums of rows do not suffice for this loss."""
    raise UnavailableError(
        f"{what} is not available for {type(model).__name__} under the {model.loss} loss: sums of the rows do not "
        "determine its models, so the rows are needed in every step. Call fit with all rows."
    )
