"""Weights are counts of rows, or they only compare rows; numbers of rows are never negative."""

from dataclasses import replace

import numpy as np
import pytest

from ggmtl import GGMTLRegressor, TaskStatistics
from ggmtl.datasets import make_clusters
from ggmtl.errors import InputError


def make_rows(seed=0):
    data = make_clusters(2, n_tasks=4, n_features=2, n_samples=15, random_state=seed)
    return data.X, data.y, data.tasks, np.random.default_rng(seed).uniform(0.5, 2.0, size=len(data))


@pytest.mark.parametrize("scale", [1e-3, 77.7])
def test_the_scale_of_weights_that_are_no_counts_does_not_matter(scale):
    X, y, tasks, weight = make_rows()
    with pytest.warns(UserWarning, match="has fractions"):
        first = GGMTLRegressor().fit(X, y, tasks=tasks, sample_weight=weight / weight.sum())
    with pytest.warns(UserWarning, match="has fractions"):
        second = GGMTLRegressor().fit(X, y, tasks=tasks, sample_weight=scale * weight)
    np.testing.assert_allclose(second.coef_, first.coef_, rtol=1e-6)
    np.testing.assert_allclose(second.noise_, first.noise_, rtol=1e-6)
    assert second.state_.statistics.count.sum() == pytest.approx(len(y))


def test_rows_of_weight_zero_do_not_count_in_the_mean():
    X, y, tasks, weight = make_rows()
    with pytest.warns(UserWarning, match="has fractions"):
        statistics = TaskStatistics.from_arrays(X, y, tasks, np.where(np.arange(len(y)) < 20, 0.0, weight))
    assert statistics.count.sum() == pytest.approx(len(y) - 20)


def test_whole_weights_count_rows():
    X, y, tasks, _ = make_rows()
    assert TaskStatistics.from_arrays(X, y, tasks, np.full(len(y), 3.0)).count.sum() == pytest.approx(3 * len(y))


def test_streams_refuse_weights_that_are_no_counts():
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"shop": ["u", "v"], "x": [1.0, 2.0], "w": [1.0, 0.25], "y": [1.0, 2.0]})
    with pytest.raises(InputError, match=r"column 'w' has the weight 0.25\. .*whole numbers"):
        TaskStatistics.from_arrow_stream(table, task="shop", target="y", sample_weight="w")


def test_rows_that_were_never_added_cannot_be_subtracted():
    X, y, tasks, _ = make_rows()
    some = TaskStatistics.from_arrays(X[:20], y[:20], tasks[:20])
    with pytest.raises(InputError, match="cannot be negative"):
        some - (some + some)
    assert (some - some).count.sum() == 0


def test_statistics_without_rows_are_refused():
    X, y, tasks, _ = make_rows()
    statistics = TaskStatistics.from_arrays(X, y, tasks)
    with pytest.raises(InputError, match="have no rows"):
        GGMTLRegressor().fit_statistics(statistics - statistics)
    with pytest.raises(InputError, match=r"-15 rows of task 0"):
        GGMTLRegressor().fit_statistics(replace(statistics, cross=-statistics.cross))
