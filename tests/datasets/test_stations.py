"""The temperatures that come with the package."""

import numpy as np
import pytest

from ggmtl.datasets import load_stations
from ggmtl.datasets.temperature import TMY3_ALL, harmonics
from ggmtl.errors import InputError, ParameterError


@pytest.fixture(scope="module")
def stations():
    return load_stations(days=8, random_state=0)


def test_every_station_has_its_training_days_and_all_others_for_testing(stations):
    assert stations.X.shape == (8160, 4)
    assert (np.bincount(stations.task_index) == 8).all()
    assert (np.bincount(stations.test.task_index) == 357).all()
    both = np.concatenate([stations.X, stations.test.X])
    tasks = np.concatenate([stations.tasks, stations.test.tasks])
    # No day of a station is in both parts.
    assert len(np.unique(np.column_stack([np.unique(tasks, return_inverse=True)[1], both.round(9)]), axis=0)) == 372300


def test_the_seed_decides_the_days(stations):
    np.testing.assert_array_equal(load_stations(8).X, stations.X)
    assert (load_stations(8, random_state=1).X != stations.X).any()
    with pytest.raises(ParameterError, match="days must be a whole number from 1 to 364"):
        load_stations(365)


def test_features_of_the_stations_follow_their_order(stations):
    pytest.importorskip("pandas")
    known = stations.task_features
    assert known["task"].tolist() == stations.task_names.tolist()
    turned = known["longitude"].where(known["longitude"] < 0, known["longitude"] - 360.0)
    np.testing.assert_array_equal(np.column_stack([turned, known["latitude"]]), stations.coordinates)
    # Guam is nearer to Hawaii than to Puerto Rico.
    assert -220 < stations.coordinates[:, 0].min() < -210
    anchorage = known[known["task"] == "ANCHORAGE INTL AP, AK"].iloc[0]
    assert (anchorage["latitude"], anchorage["state"]) == (pytest.approx(61.18, abs=0.02), "AK")


def test_harmonics_have_periods_of_a_year_and_half_a_year():
    day = np.arange(365)
    basis = harmonics(day)
    np.testing.assert_allclose(harmonics(day + 365), basis, atol=1e-12)
    np.testing.assert_allclose(basis.T @ basis, 182.5 * np.eye(4), atol=1e-9)


@pytest.mark.data
def test_the_file_has_the_daily_means_of_the_hourly_source(stations):
    from ggmtl.datasets._files import find_file

    try:
        path = find_file(TMY3_ALL, None, False)
    except InputError:
        pytest.skip("the hourly file is not there")
    with np.load(path) as source:
        names = np.char.add(np.char.add(source["name"], ", "), source["state"])
        hourly = source["temp_decic"].astype(float)[np.argsort(names)]
    mean = hourly.reshape(1020, 365, 24).mean(axis=2) / 10.0
    whole = load_stations(days=364)
    day = np.rint(np.arctan2(whole.X[:, 1], whole.X[:, 0]) / (2 * np.pi) * 365).astype(int) % 365
    np.testing.assert_allclose(whole.y, mean[whole.task_index, day], atol=0.0501)
