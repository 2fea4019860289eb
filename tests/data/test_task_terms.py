"""What is known about tasks as columns: numbers, categories, places; and what is refused."""

from datetime import date
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pytest

from ggmtl.data import task_terms
from ggmtl.data.task_features import read_task_features
from ggmtl.data.task_terms import Category, KnownTasks, Number, Surface
from ggmtl.errors import InputError, InputTypeError


def table(n=40, seed=0) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "lon": random.uniform(-120, -70, n),
            "lat": random.uniform(25, 50, n),
            "size": random.integers(1, 2000, n),
            "kind": random.choice(["rural", "town"], n),
            "opened": pd.to_datetime("2001-01-01") + pd.to_timedelta(random.integers(0, 3000, n), unit="D"),
        },
        index=[f"s{k:02d}" for k in range(n)],
    )


def test_columns_have_mean_zero_and_the_task_may_stand_in_index_or_column():
    frame = table()
    known = KnownTasks.of(read_task_features(frame), 3)
    assert np.abs(known.values.mean(axis=0)).max() < 1e-9
    assert known.values.shape == (40, len(known.groups)) == (40, len(known.owners))
    named = frame.reset_index(names="station")
    for other in (named, named.sample(frac=1.0, random_state=1), pl.from_pandas(named)):
        np.testing.assert_allclose(KnownTasks.of(read_task_features(other, "station"), 3).values, known.values)


def test_kinds_of_columns_give_their_terms():
    known = KnownTasks.of(read_task_features(table()), 3)
    kinds = {term.name: type(term) for term in known.terms}
    assert kinds == {
        "lon": Number,
        "lat": Number,
        "size": Number,
        "kind": Category,
        "opened": Number,
        "place (lon, lat)": Surface,
    }
    # A number has a strength of its own, and so has its square; categories and the surface have one each.
    assert known.groups.max() + 1 == 4 * 2 + 1 + 1


def test_a_surface_carries_the_covariance_of_its_kernel():
    random = np.random.default_rng(1)
    columns = {"x": random.normal(size=30), "y": random.normal(size=30)}
    surface = Surface.of(("x", "y"), columns, most=100)
    assert not surface.sphere
    points = (np.column_stack(list(columns.values())) - surface.origin) / surface.unit
    distance = np.linalg.norm(points[:, None] - points, axis=2)
    kernel = np.exp(-distance / task_terms._LENGTH)
    values, vectors = np.linalg.eigh(kernel)
    leading = (vectors[:, -15:] * values[-15:]) @ vectors[:, -15:].T
    told = surface.encode(columns) * surface.scale + surface.center
    np.testing.assert_allclose(told @ told.T, leading, atol=1e-10)


def test_the_date_line_divides_nothing():
    frame = pd.DataFrame({"lon": [179.0, -179.0, 170.0, -170.0], "lat": [0.0, 1.0, 2.0, 3.0]}, index=list("abcd"))
    known = KnownTasks.of(read_task_features(frame), 2)
    moved = KnownTasks.of(read_task_features(frame.assign(lon=[179.0, 181.0, 170.0, 190.0])), 2)
    np.testing.assert_allclose(known.values, moved.values, atol=1e-9)
    np.testing.assert_allclose(known.encode(moved.features), known.values, atol=1e-9)


def test_a_category_never_seen_counts_as_an_average_one():
    known = KnownTasks.of(read_task_features(table()[["kind"]]), 3)
    assert not known.encode(read_task_features(pd.DataFrame({"kind": ["city"]}, index=["new"]))).any()


def test_missing_values_doubled_tasks_and_arrays_are_refused():
    frame = table()
    frame.iloc[3, 1] = np.nan
    with pytest.raises(InputError, match=r"'lat' of task_features has 1 missing.*'s03'"):
        read_task_features(frame)
    with pytest.raises(InputError, match="2 rows for task 's00'"):
        read_task_features(pd.concat([table(), table().iloc[:1]]))
    with pytest.raises(InputTypeError, match="must be a data frame"):
        read_task_features(np.zeros((3, 2)))
    with pytest.raises(InputError, match="must have a column 'shop'"):
        read_task_features(pl.DataFrame({"a": [1, 2]}), "shop")
    with pytest.raises(InputError, match="the same for all tasks"):
        KnownTasks.of(read_task_features(pd.DataFrame({"a": [1, 1]}, index=["x", "y"])), 2)
    with pytest.raises(InputError, match="120 categories"):
        KnownTasks.of(read_task_features(pd.DataFrame({"a": [f"c{k}" for k in range(120)]}, index=range(120))), 2)


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ([[1]] * 4, "type list"),
        ([1j] * 4, "type complex"),
        ([1e300, 2e300, 1.0, 0.0], "'size of task_features' must have its largest absolute value"),
        ([1e-300, 2e-300, 0.0, 0.0], "'size of task_features' must have its largest absolute value"),
    ],
)
def test_columns_that_are_no_numbers_dates_or_categories_are_refused_by_name(values, match):
    with pytest.raises((InputError, InputTypeError), match=match):
        read_task_features(pd.DataFrame({"size": values}))


def test_numbers_and_dates_among_objects_are_numbers():
    dates = [date(2026, 1, day) for day in (1, 2, 5)]
    frame = pd.DataFrame({0: [Decimal("1.5"), 2, 3.5], "opened": dates, "mixed": [1, "a", 2.5]})
    columns = read_task_features(frame).columns
    np.testing.assert_array_equal(columns["0"], [1.5, 2.0, 3.5])
    np.testing.assert_array_equal(np.diff(columns["opened"]), [1.0, 3.0])
    assert columns["mixed"].tolist() == ["1", "a", "2.5"]
