"""What descriptors explain of the differences between tasks."""

import numpy as np
import pandas as pd
import pytest

from ggmtl import GGMTLRegressor, load_model
from ggmtl.errors import InputError
from ggmtl.inspection import explained_differences


@pytest.fixture(scope="module")
def model():
    random = np.random.default_rng(0)
    n = 200
    known = pd.DataFrame({"size": random.normal(size=n), "noise": random.normal(size=n)}, index=np.arange(n))
    # Half of the variance of the slope of u is explained, all of that of the slope of v, nothing of the intercept.
    slopes = np.column_stack([known["size"], -2.0 * known["size"]]) + np.outer(random.normal(size=n), [1.0, 0.0])
    tasks = np.arange(n).repeat(12)
    X = random.normal(size=(len(tasks), 2))
    y = (X * slopes[tasks]).sum(axis=1) + random.normal(size=n)[tasks] + 0.3 * random.normal(size=len(tasks))
    frame = pd.DataFrame(X, columns=["u", "v"]).assign(task=tasks)
    return GGMTLRegressor(task="task", validation=None).fit(frame, y, task_features=known)


def test_shares_are_those_of_the_models_that_were_drawn(model):
    table = explained_differences(model).pivot(index="feature", columns="descriptor", values="share")
    assert table.sum(axis=1).to_numpy() == pytest.approx(np.ones(3))
    assert table["size"].to_dict() == pytest.approx({"u": 0.5, "v": 1.0, "(intercept)": 0.0}, abs=0.12)
    assert table["noise"].abs().max() < 0.05


def test_the_summary_says_what_is_explained(model, tmp_path):
    text = model.summary()
    assert "Task features explain" in text
    assert "of the differences between tasks: size" in text
    assert "They explain most for v" in text
    # A coefficient that follows a task feature differs between tasks, though all rows tell how.
    assert "Shared by all tasks:" not in text
    model.save(tmp_path / "m.ggmtl", keep_statistics=True)
    assert load_model(tmp_path / "m.ggmtl").summary() == text


def test_a_model_without_descriptors_is_refused():
    random = np.random.default_rng(0)
    X, tasks = random.normal(size=(30, 1)), np.arange(5).repeat(6)
    plain = GGMTLRegressor().fit(X, X[:, 0] * tasks + random.normal(size=30), tasks=tasks)
    with pytest.raises(InputError, match="fitted with task_features="):
        explained_differences(plain)


def test_curves_leave_shares_of_the_straight_parts():
    random = np.random.default_rng(1)
    size, tasks = random.normal(size=40), np.arange(40).repeat(12)
    X = random.normal(size=(480, 1))
    y = size[tasks] * X[:, 0] + np.sin(2 * X[:, 0]) + 0.2 * random.normal(size=480)
    known = pd.DataFrame({"size": size})
    curved = GGMTLRegressor(validation=None, effects="smooth").fit(X, y, tasks=tasks, task_features=known)
    shares = explained_differences(curved)
    assert len(shares["share"]) == 2 * 2
    assert shares["share"][0] > 0.9
