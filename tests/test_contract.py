"""Promises about folds, intercepts and repeated runs that a small slip in the mathematics would break."""

import os
import subprocess
import sys

import numpy as np
import pytest

from ggmtl import GGMTLRegressor
from ggmtl.bilevel.algorithm import learn_by_validation
from ggmtl.bilevel.level import Settings
from ggmtl.graph.candidates import KNN
from ggmtl.statistics.least_squares import FoldedLoss
from ggmtl.statistics.scaling import Scaling
from ggmtl.statistics.task_statistics import TaskStatistics


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(5)
    X, tasks = rng.normal(size=(72, 2)), np.repeat(np.arange(6), 12)
    level = np.array([5.0, 5.5, -3.0, -3.5, 0.0, 9.0])
    y = (X * rng.normal(size=(6, 2))[tasks]).sum(axis=1) + level[tasks] + 0.3 * rng.normal(size=72)
    return X, y, tasks


def folded_loss(rows, n_folds=4):
    statistics = TaskStatistics.from_arrays(*rows, folds=n_folds)
    scaling = Scaling.from_statistics(statistics, intercept=True, standardize=True)
    return FoldedLoss(tuple(scaling.design(statistics)))


def test_the_candidates_of_a_fold_come_from_its_training_rows_alone(rows):
    folded, seen = folded_loss(rows), []
    settings = Settings("squared_l2", KNN(k=2), np.ones(3), True, np.array([True, True, False]), max_iter=2)

    def models(loss):
        seen.append(loss)
        return loss.moment / loss.count[:, None]

    learn_by_validation(folded, settings, np.arange(6), np.ones(3), models)
    assert len(seen) == 4
    for k, loss in enumerate(seen):
        np.testing.assert_allclose(loss.gram, folded.total.gram - folded.parts[k].gram, atol=1e-12)
        np.testing.assert_allclose(loss.moment, folded.total.moment - folded.parts[k].moment, atol=1e-12)


def test_a_training_part_and_its_fold_are_the_whole(rows):
    folded = folded_loss(rows)
    for k in folded.scored:
        np.testing.assert_allclose(folded.training(k).gram + folded.parts[k].gram, folded.total.gram, atol=1e-12)


def test_the_intercept_is_never_ridged(rows):
    X, y, tasks = rows
    options = {"criterion": "validation", "coupling": 0.0, "hub": False, "edge_entropy": 0.0, "ridge": 1e9}
    model = GGMTLRegressor(**options).fit(X, y, tasks=tasks)
    means = np.bincount(tasks, y) / np.bincount(tasks)
    np.testing.assert_allclose(model.predict(X, tasks=tasks), means[tasks], atol=1e-5)


# ---------------------------------------------------------------- repeated runs, threads, kernels

SCRIPT = """
import sys
import numpy as np
from ggmtl import GGMTLRegressor
from ggmtl.datasets import make_clusters
data = make_clusters(2, n_tasks=6, n_features=2, n_samples=8, random_state=0)
# To the optimum: on the way there, rounding decides which steps are taken.
single = {"edge_entropy": 0.0, "validation": 0.25, "coupling": 1.0, "max_iter": 500, "tol": 1e-9}
parts = []
for options in ({"validation": 2}, {"criterion": "validation"} | single, {"penalty": "l2"} | single):
    model = GGMTLRegressor(**options).fit(data.X, data.y, tasks=data.tasks)
    parts += [model.coef_.ravel(), model.intercept_, model.graph_.edges.ravel().astype(float), model.graph_.weights]
sys.stdout.buffer.write(np.concatenate(parts).tobytes())
"""


def run_fits(threads, kernels):
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "MKL_NUM_THREADS")
    environment = os.environ | dict.fromkeys(names, str(threads)) | {"GGMTL_KERNELS": kernels}
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT]
    return np.frombuffer(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)


@pytest.fixture(scope="module")
def first():
    return run_fits(1, "numpy")


def test_the_same_seed_and_kernel_give_the_same_bits(first):
    np.testing.assert_array_equal(run_fits(1, "numpy"), first)


def test_one_and_two_threads_agree(first):
    np.testing.assert_allclose(run_fits(2, "numpy"), first, rtol=1e-6, atol=1e-8)


def test_numpy_and_numba_agree(first):
    # Near its optimum the criterion is flat to rounding, so that edge values are known to about its square root.
    pytest.importorskip("numba")
    np.testing.assert_allclose(run_fits(1, "numba"), first, rtol=2e-5, atol=1e-8)
