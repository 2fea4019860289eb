"""A fit of straight lines says when a curve would help, and of which feature."""

from __future__ import annotations

import numpy as np
import pytest

from ggmtl import GGMTLRegressor, load_model
from ggmtl.data.curves import Curves
from ggmtl.data.task_data import TaskData
from ggmtl.fit.lines_or_curves import curve_gain
from ggmtl.statistics.least_squares import FoldedLoss
from ggmtl.statistics.scaling import Scaling


def rows(bent: float, own: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    tasks = np.repeat(np.arange(20), 25)
    X = np.column_stack([rng.normal(size=500), rng.uniform(0.0, 6.0, 500)])
    height = bent + own * rng.normal(size=20)[tasks]
    y = rng.normal(size=20)[tasks] + X @ [1.0, 0.3] + height * np.sin(X[:, 1]) + 0.3 * rng.normal(size=500)
    return X, y, tasks


@pytest.mark.parametrize(("bent", "own"), [(1.0, 0.0), (0.0, 1.0)])
def test_the_gain_is_about_that_of_curves(bent, own):
    X, y, tasks = rows(bent, own)
    line, curve = (GGMTLRegressor(effects=e, random_state=0).fit(X, y, tasks=tasks) for e in ("linear", "smooth"))
    gain = line.state_.curve_gain
    assert gain.feature == 1
    truth = 1.0 - curve.validation_error_ / line.validation_error_
    assert 0.6 * truth < gain.gain < 1.1 * truth
    assert "The effect of x1 is not a straight line" in line.summary()
    assert curve.state_.curve_gain is None


def test_nothing_is_said_where_nothing_bends():
    X, y, tasks = rows(bent=0.0)
    model = GGMTLRegressor(random_state=0).fit(X, y, tasks=tasks)
    assert model.state_.curve_gain is None
    assert "straight line" not in model.summary()


def test_the_gain_is_that_of_models_fitted_to_rows():
    """A line, a curve common to all tasks and own curves: their errors by dense solves with the rows themselves."""
    X, y, tasks = rows(bent=1.0)
    model = GGMTLRegressor(random_state=0, noise="common").fit(X, y, tasks=tasks)
    trial = model._curve_trial(*_data_and_folds(X, y, tasks))
    wide = trial.statistics

    scaling = Scaling.from_statistics(wide, True, True, trial.curves)
    folded = FoldedLoss(tuple(scaling.design(wide)))
    hub = model.state_.family.levels["hub"]
    found = curve_gain(folded, trial.curves.feature_of_column, hub)
    folds = _data_and_folds(X, y, tasks)[1]
    design, target = scaling.design_rows(X), (y - scaling.target_center) / scaling.target_scale
    line, curve, errors = [0, 1, 8], [0, 1, 5, 6, 7, 8], np.zeros(3)
    for k in range(2):
        errors[0] += _dense_errors(design[:, line], target, tasks, folds == k, hub.hub)
        errors[1] += _dense_errors(design[:, curve], target, tasks, folds == k, hub.hub, [1e5 * 12.5] * 3)
        errors[2] += _dense_errors(design[:, curve], target, tasks, folds == k, hub.hub, [hub.hub[1]] * 3)
    assert found.gain == pytest.approx(1.0 - np.sqrt(errors[1:].min() / errors[0]), rel=1e-5)


def _data_and_folds(X, y, tasks):

    return TaskData(X, y, tasks), np.arange(len(X)) % 2


def _dense_errors(Z, y, tasks, held_out, hub, ties=()):
    """Squared error on held-out rows of the posterior mean with flat common model; curve columns are common."""
    strength = np.concatenate([hub[:2], ties, hub[2:]])
    same = tasks[:, None] == tasks
    prior = same * ((Z / strength) @ Z.T)
    train = ~held_out
    inverse = np.linalg.inv(np.eye(train.sum()) + prior[np.ix_(train, train)])
    common = np.linalg.solve(Z[train].T @ inverse @ Z[train], Z[train].T @ inverse @ y[train])
    rest = inverse @ (y[train] - Z[train] @ common)
    predicted = Z[held_out] @ common + prior[np.ix_(held_out, train)] @ rest
    return ((y[held_out] - predicted) ** 2).sum()


def test_the_gain_is_kept_in_files(tmp_path):
    X, y, tasks = rows(bent=1.0)
    model = GGMTLRegressor(random_state=0).fit(X, y, tasks=tasks)
    model.save(tmp_path / "m.ggmtl")
    assert load_model(tmp_path / "m.ggmtl").state_.curve_gain == model.state_.curve_gain


def test_without_folds_nothing_is_asked():
    X, y, tasks = rows(bent=1.0)
    assert GGMTLRegressor(validation=None).fit(X, y, tasks=tasks).state_.curve_gain is None
    assert Curves.of_rows(X).n_columns == 6
