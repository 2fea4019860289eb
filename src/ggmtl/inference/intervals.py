"""Intervals of predictions, calibrated on held-out rows.

By the posterior, the prediction of a new row z of task i has the variance v_i(z) = σ_i² + σ²zᵀC_iz. Held-out rows
correct it by a factor c_i² per task. With Q_i the squared error on the N_i held-out rows of the task,

    r_i = Q_i / Σ v_i ,     c_i² = (k c² + N_i r_i)/(k + N_i) ,     c² = Σ N_i r_i / Σ N_i .

- v_i is that of models without the fold. With G_if the sums of its rows, let μ be the eigenvalues of (σ²/σ_i²)C_iG_if.
  Without these rows, σ² tr(C_iG_if) is σ_i² Σ μ/(1 − μ). The spread between averaged levels is added to it.
- The relative variance of r_i is κ/N_i, with κ = 2 for normal errors and more for heavy tails. κ is estimated from the
  differences between the folds of a task. It gives the degrees of freedom of a scaled Student's t, whose kurtosis is
  κ + 1.
- κc⁴/k is the variance of c_i² between tasks, by the method of moments (empirical Bayes).
- Where tasks have a noise of their own, σ_i² is known with ν_i degrees of freedom and has the relative variance 2/ν_i.
  It lengthens intervals and makes the tails of Student's t heavier.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import t

from ggmtl.errors import InputError
from ggmtl.evidence.task_noise import noise_freedom
from ggmtl.fit.state import FittedState
from ggmtl.inference.uncertainty import deviations_of_levels, noise_ratios, posterior, posterior_within

# κ of normal errors, and its weight as a prior, in pairs of folds.
_NORMAL, _PRIOR_PAIRS = 2.0, 10.0
# Least k.
_FEWEST_PRIOR_ROWS = 4.0
# A fold decides at most this share of a direction.
_MOST_DECIDED = 0.9
# Least ν_i.
_FEWEST_FREEDOM = 4.0
# Degrees of freedom of Student's t: at least, so that its variance and kurtosis exist, and where it counts as normal.
_LEAST_FREEDOM, _MOST_FREEDOM = 4.1, 1e6


@dataclass(frozen=True)
class Calibration:
    """Correction of the posterior's standard deviations, and the tails of the errors.

    Parameters
    ----------
    factor : array of shape (n + 1,)
        Factor of the standard deviations of every task; the last is for tasks without rows.
    freedom : array of shape (n + 1,)
        Degrees of freedom of Student's t, scaled to variance one.
    """

    factor: np.ndarray
    freedom: np.ndarray

    def reach(self, coverage: float) -> np.ndarray:
        """Half the length of an interval in units of the posterior's standard deviation, shape (n + 1,)."""
        unit = np.sqrt((self.freedom - 2.0) / self.freedom)
        return self.factor * unit * t.ppf(0.5 + 0.5 * coverage, self.freedom)


def calibration(state: FittedState) -> Calibration:
    """Calibration on the rows that were held out; factors of one where none were."""
    return state.once("calibration", lambda: _calibration(state))


def typical_deviations(state: FittedState) -> np.ndarray:
    """Root of the mean of v_i over rows, in scaled units, shape (n + 1,); the last is for tasks without rows.

    A model file keeps them. A model without statistics uses them for all rows of a task.
    """

    def compute() -> np.ndarray:
        check_intervals(state)
        variance, count = _held_out_variance(state)
        rows = count.sum(axis=0)
        joint, total = posterior(state), state.folded().total
        mean = total.gram.sum(axis=0) / max(float(total.count.sum()), 1.0)
        # For a task without rows, the mean over the rows of all tasks.
        elsewhere = _own_noise(state) + joint.noise * np.einsum("npq,pq->n", joint.covariance, mean)
        own = np.where(rows > 0, variance.sum(axis=0) / np.where(rows > 0, rows, 1.0), elsewhere)
        # The noise comes first: of targets without noise, the other factor is too large for a number.
        return np.sqrt(np.append(own, joint.noise + float((joint.noise * joint.new_task * mean).sum())))

    return state.once("typical_deviations", compute)


def check_intervals(state: FittedState) -> None:
    """Raise an error for a model that was saved with neither statistics nor calibration."""
    if state.statistics is None and "calibration" not in state.given:
        raise InputError(
            "predict_interval needs the statistics of the rows or a calibration, and the model was saved with neither. "
            "Fit it again, or save it with keep_statistics=True."
        )


def intervals_with_task(state: FittedState, position: int) -> dict[str, object]:
    """The calibration that a file brought, with a task at `position` that gets that of tasks without rows."""
    if "calibration" not in state.given:
        return {}
    found, deviation = calibration(state), typical_deviations(state)
    factor, freedom, deviation = (np.insert(x, position, x[-1]) for x in (found.factor, found.freedom, deviation))
    return {"calibration": Calibration(factor, freedom), "typical_deviations": deviation}


def _own_noise(state: FittedState) -> np.ndarray:
    """σ_i² in scaled units, shape (n,)."""
    ratios = noise_ratios(state)
    return posterior(state).noise * (np.ones(len(state.task_names)) if ratios is None else ratios)


def _held_out_variance(state: FittedState) -> tuple[np.ndarray, np.ndarray]:
    """Sum of v_i over the rows of every fold that was held out, and their number, shape (folds, n) each."""
    folded, joint, noise = state.folded(), posterior_within(state), _own_noise(state)
    parts = [folded.parts[k] for k in folded.scored] or [folded.total]
    root = np.linalg.cholesky(joint.covariance + 1e-12 * _scales(joint.covariance))
    root *= np.sqrt(joint.noise / noise)[:, None, None]
    variance = np.empty((len(parts), len(noise)))
    for values, part in zip(variance, parts):
        share = np.clip(np.linalg.eigvalsh(root.transpose(0, 2, 1) @ part.gram @ root), 0.0, _MOST_DECIDED)
        if folded.scored:
            share = share / (1.0 - share)
        values[:] = noise * (part.count + share.sum(axis=1))
        for weight, apart in deviations_of_levels(state):
            values += weight * np.einsum("np,npq,nq->n", apart, part.gram, apart, optimize=True)
    return variance, np.array([part.count for part in parts])


def _scales(covariance: np.ndarray) -> np.ndarray:
    """Diagonal matrices in the scale of the covariances, positive even where these have zeros on the diagonal."""
    diagonal = np.einsum("npp->np", covariance)
    diagonal = np.maximum(diagonal, np.maximum(diagonal.max(axis=1, keepdims=True), np.finfo(float).tiny))
    return diagonal[:, :, None] * np.eye(covariance.shape[1])


def _calibration(state: FittedState) -> Calibration:
    check_intervals(state)
    squared, n = state.family.squared_errors(), len(state.task_names)
    if squared is None or state.family.errors is None or not state.folded().scored:
        return Calibration(np.ones(n + 1), np.full(n + 1, _MOST_FREEDOM))
    variance, rows = (values.sum(axis=0) for values in _held_out_variance(state))
    predicted = np.where(rows > 0, variance / np.where(rows > 0, rows, 1.0), 1.0)
    return _from_blocks(squared / predicted, state.family.errors.count, _noise_freedom(state))


def _noise_freedom(state: FittedState) -> np.ndarray:
    """ν_i of every task, shape (n + 1,), the last for tasks without rows; infinite where all tasks have one σ²."""
    ratios, fitted = noise_ratios(state), state.fitted_tasks
    out = np.full(len(state.task_names) + 1, np.inf)
    if ratios is not None and np.isfinite(state.level.hub).all():
        total = state.folded().total.of_tasks(fitted)
        own, prior = noise_freedom(total, state.level.hub, 1.0 / ratios[fitted])
        out[:] = prior
        out[fitted] = own
    return out


def _from_blocks(ratio: np.ndarray, count: np.ndarray, noise_freedom: np.ndarray) -> Calibration:
    """From squared errors over the variance that is predicted for a row, and rows, shape (folds, n) each.

    `noise_freedom` are the degrees of freedom behind the predicted noise, shape (n + 1,).
    """
    rows = count.sum(axis=0)
    seen = rows > 0
    r = ratio.sum(axis=0)[seen] / rows[seen]
    pooled, kappa = float(np.average(r, weights=rows[seen])), _kappa(ratio[:, seen], count[:, seen])
    if not pooled > 0:
        # Without noise every prediction is exact.
        return Calibration(np.ones(len(rows) + 1), np.full(len(rows) + 1, _MOST_FREEDOM))
    between = _variance_between(r / pooled, rows[seen], kappa)
    prior = max(kappa / between, _FEWEST_PRIOR_ROWS) if between > 0 else np.inf
    weight = np.zeros(len(rows) + 1)
    weight[:-1] = rows / (rows + prior)
    own = np.ones(len(rows) + 1)
    own[np.flatnonzero(seen)] = r / pooled
    # Relative variance of c_i²σ_i²: from the spread between tasks, from the common factor, and from σ_i².
    doubt = (1.0 - weight) * between + kappa / rows.sum() + 2.0 / np.maximum(noise_freedom, _FEWEST_FREEDOM)
    excess = 3.0 * doubt + (kappa - _NORMAL) * (1.0 + doubt)
    freedom = np.clip(4.0 + 6.0 / np.maximum(excess, 6.0 / _MOST_FREEDOM), _LEAST_FREEDOM, _MOST_FREEDOM)
    return Calibration(np.sqrt(pooled * (1.0 + weight * (own - 1.0)) * (1.0 + doubt)), freedom)


def _kappa(ratio: np.ndarray, count: np.ndarray) -> float:
    """κ from the folds of each task: E Σ_f N_f(r_f − r)² = κ(F − 1) and E r² = 1 + κ/N, all in units of c⁴."""
    rows, used = count.sum(axis=0), count > 0
    pairs = np.maximum(used.sum(axis=0) - 1.0, 0.0)
    if not pairs.any():
        return _NORMAL
    mean = ratio.sum(axis=0) / rows
    apart = np.where(used, ratio / np.where(used, count, 1.0) - mean, 0.0)
    unit = float((pairs * mean**2).sum())
    if not unit > 0:
        return _NORMAL
    found = float((count * apart**2).sum()) / unit
    found /= max(1.0 - found * float((pairs / rows).sum() / pairs.sum()), 0.1)
    total = float(pairs.sum())
    return max((total * found + _PRIOR_PAIRS * _NORMAL) / (total + _PRIOR_PAIRS), _NORMAL)


def _variance_between(r: np.ndarray, rows: np.ndarray, kappa: float) -> float:
    """Variance between tasks of what the r_i estimate, with Var(r_i) = κ/N_i beyond it (DerSimonian and Laird)."""
    if len(r) < 2:
        return 0.0
    total = float(rows.sum())
    size = total - float((rows**2).sum()) / total
    excess = float((rows * (r - 1.0) ** 2).sum()) - kappa * (len(r) - 1)
    return max(excess / size, 0.0) if size > 0 else 0.0
