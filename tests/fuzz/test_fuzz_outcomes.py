"""Classes, counts, curves, what is known about tasks: finite models no worse than the base rate, or words."""

import datetime
import warnings
from decimal import Decimal

import numpy as np
from harness import assert_finite, attempt, fuzz
from hypothesis import strategies as st
from inputs import tables
from sklearn.exceptions import DataConversionWarning

from ggmtl import GGMTLClassifier, GGMTLRegressor
from ggmtl.data.frames import as_table
from ggmtl.errors import UnseenTaskWarning
from ggmtl.losses.rowwise import LOSSES

OPTIONS = [{}, {"validation": None}, {"validation": 2}, {"blend": False}, {"standardize": False}, {"validation": 0.3}]
CODES = ("target", "noise", "one", "separated", "per_task", "rare")


def two_classes(table, kind, rng):
    """Labels 0 and 1, from pure noise to a perfect rule."""
    return {
        "target": table.y > np.median(table.y),
        "noise": rng.random(len(table)) < 0.5,
        "one": np.ones(len(table)),
        "separated": table.X[:, 0] > np.median(table.X[:, 0]),
        "per_task": np.unique(table.tasks, return_inverse=True)[1] % 2,
        "rare": np.arange(len(table)) == rng.integers(len(table)),
    }[kind].astype(float)


def check_outcome(model, table, loss, target, log_exposure=0.0):
    """Finite models whose training loss is not much above that of the base rate, at which all penalties vanish.

    Coefficients are posterior means, at which the loss is higher than at the mode where rows are few.
    """
    assert_finite(model.coef_, model.intercept_, model.graph_.weights)
    assert sum(model.blend_.values()) == 1 or abs(sum(model.blend_.values()) - 1.0) < 1e-9
    rows = np.searchsorted(model.tasks_, table.tasks)
    predictor = np.einsum("rd,rd->r", table.X, model.coef_[rows]) + model.intercept_[rows] + log_exposure
    rate = target.sum() / np.exp(log_exposure + np.zeros(len(table))).sum()
    null = LOSSES[loss].link(np.float64(rate)) + log_exposure + np.zeros(len(table))
    found, base = (float(LOSSES[loss].value(each, target).sum()) for each in (predictor, null))
    assert found <= 1.1 * base + 0.1 * len(model.tasks_)


@fuzz(
    ci=12,
    long=900,
    table=tables(max_rows=10),
    kind=st.sampled_from(CODES),
    options=st.sampled_from(OPTIONS),
    seed=st.integers(0, 99),
)
def test_classes(table, kind, options, seed):
    code = two_classes(table, kind, np.random.default_rng(seed))
    model = attempt(GGMTLClassifier(**options).fit, table.X, code, tasks=table.tasks)
    if model is None:
        return
    check_outcome(model, table, "logistic", code)
    probability = model.predict_proba(table.X, tasks=table.tasks)
    assert ((probability >= 0) & (probability <= 1)).all()
    np.testing.assert_allclose(probability.sum(axis=1), 1.0)
    if model.validation_error_ is not None:
        assert np.isfinite(model.validation_error_)


WHOLE = st.integers(-3, 3) | st.sampled_from([2**53, 2**53 + 1, 2**63, 2**64 - 1, -(2**63)])
ONE_KIND = (WHOLE, st.booleans(), st.text(max_size=3), st.dates(), st.sampled_from([0.0, 1.0, 2.0, 2.0**53]))
LABELS = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([2**53, 2**53 + 1, 2**63, 2**64, -(2**63)]),
    st.floats(), st.text(max_size=3), st.just(Decimal("1.5")), st.just(datetime.date(2026, 1, 2)), st.just(b"a"),
    st.just(np.nan), st.just((1,)), st.just(np.datetime64("NaT")),
)  # fmt: skip


@fuzz(
    ci=40,
    long=2500,
    values=st.one_of(st.lists(each, min_size=1, max_size=4, unique=True) for each in ONE_KIND)
    | st.lists(LABELS, min_size=1, max_size=4),
    as_object=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_labels_of_classes_are_kept_as_they_are_or_refused(values, as_object, seed):
    rng = np.random.default_rng(seed)
    chosen = [values[k] for k in rng.permutation(np.arange(12) % len(values))]
    y = chosen
    if as_object:
        y = np.empty(12, dtype=object)
        y[:] = chosen
    X = rng.normal(size=(12, 1))
    warnings.simplefilter("ignore", DataConversionWarning)
    model = attempt(GGMTLClassifier(validation=None).fit, X, y, tasks=np.arange(12) % 3)
    if model is not None:
        assert set(model.classes_.tolist()) == set(values)
        assert len(model.classes_) == len(set(values))
        assert set(model.predict(X, tasks=np.arange(12) % 3).tolist()) <= set(values)


@fuzz(
    ci=12,
    long=900,
    table=tables(max_rows=10),
    options=st.sampled_from(OPTIONS),
    seed=st.integers(0, 99),
    size=st.sampled_from([0.0, 0.1, 1.0, 30.0, 1e6, 1e12]),
    decades=st.sampled_from([None, 0, 3, 9, 300]),
)
def test_counts(table, options, seed, size, decades):
    rng = np.random.default_rng(seed)
    exposure = None if decades is None else 10.0 ** (decades * rng.uniform(-1, 1)) * rng.uniform(0.5, 2, len(table))
    given = 1.0 if exposure is None else exposure / np.median(exposure)
    y = rng.poisson(size * given * rng.gamma(1.0, size=len(table))).astype(float)
    fit = GGMTLRegressor(loss="poisson", **options).fit
    model = attempt(fit, table.X, y, tasks=table.tasks, exposure=exposure)
    if model is not None:
        check_outcome(model, table, "poisson", y, 0.0 if exposure is None else np.log(exposure))
        mean, deviation = model.predict(table.X, tasks=table.tasks, exposure=exposure, return_std=True)
        assert_finite(mean, deviation)
        assert (mean >= 0).all()
        assert model.dispersion_ > 0


@fuzz(ci=3, long=150, table=tables(max_rows=6, scales=False), k=st.integers(3, 5), seed=st.integers(0, 99))
def test_more_than_two_classes(table, k, seed):
    code = np.random.default_rng(seed).integers(0, k, len(table))
    model = attempt(GGMTLClassifier(validation=None).fit, table.X, code, tasks=table.tasks)
    if model is not None:
        probability = model.predict_proba(table.X, tasks=table.tasks)
        assert_finite(probability)
        np.testing.assert_allclose(probability.sum(axis=1), 1.0)


@fuzz(
    ci=4,
    long=400,
    table=tables(ordinary=True),
    counts=st.booleans(),
    seed=st.integers(0, 99),
    times=st.integers(2, 8),
    rows=st.integers(0, 4),
)
def test_outcome_tasks_that_are_added_leave_the_fitted_ones_alone(table, counts, seed, times, rows):
    rng = np.random.default_rng(seed)
    y = rng.poisson(2.0, len(table)) if counts else two_classes(table, "target", rng)
    model = GGMTLRegressor(loss="poisson", validation=3) if counts else GGMTLClassifier(validation=3)
    model = attempt(model.fit, table.X, y, tasks=table.tasks)
    if model is None:
        return
    known, ask = model.tasks_, model.predict if counts else model.predict_proba
    before = ask(table.X, tasks=table.tasks)
    for k in range(times):
        label = f"zz{k}" if known.dtype.kind in "US" else known.max() + 1 + k
        X, more = rng.normal(size=(rows, table.X.shape[1])), rng.integers(0, 2, rows)
        model.add_task(label, X, more)
        assert_finite(ask(table.X[:1], tasks=np.array([label])))
    np.testing.assert_allclose(ask(table.X, tasks=table.tasks), before, rtol=1e-6, atol=1e-12)
    assert len(model.tasks_) == len(known) + times


@fuzz(ci=15, long=600, table=tables(max_rows=14), effects=st.sampled_from(["smooth", "auto"]))
def test_curves(table, effects):
    model = attempt(GGMTLRegressor(effects=effects, validation=3).fit, table.X, table.y, tasks=table.tasks)
    if model is None:
        return
    predicted = model.predict(table.X, tasks=table.tasks)
    assert_finite(model.coef_, model.intercept_, predicted)
    # Effects are about their means over the rows, so the mean prediction and all effects add up to a prediction.
    unit = max(float(np.abs(table.y).max()), np.finfo(float).tiny)
    task = table.tasks[0]
    parts = [np.asarray(model.effect(k, table.X[:3, k], task=task)["effect"]) for k in range(table.X.shape[1])]
    each = model.predict(table.X[:3], tasks=np.repeat(table.tasks[:1], 3)[: len(table.X[:3])])
    rest = each - np.sum(parts, axis=0)
    assert np.ptp(rest) <= 1e-5 * (unit + np.abs(parts).max() + np.abs(each).max())


KINDS = ("number", "constant", "category", "unique", "date", "truth", "large", "tiny", "gap", "mixed", "list", "object")


def described(n, kinds, rng):
    """Columns that say something, or nothing, about n tasks."""
    numbers = rng.normal(size=n)
    made = {
        "number": numbers,
        "constant": np.ones(n),
        "category": rng.choice(["a", "b", "c"], n),
        "unique": np.array([f"name {k}" for k in range(n)]),
        "date": np.datetime64("2026-01-01") + rng.integers(0, 999, n).astype("timedelta64[D]"),
        "truth": numbers > 0,
        "large": numbers * 1e200,
        "tiny": numbers * 1e-200,
        "gap": np.where(np.arange(n) == 0, np.nan, numbers),
        "mixed": [1 if k % 2 else "one" for k in range(n)],
        "list": [[k] for k in range(n)],
        "object": [Decimal(k) for k in range(n)],
    }
    columns = {f"{kind} {k}": made[kind] for k, kind in enumerate(kinds)}
    if rng.random() < 0.3:
        columns |= {"lon": rng.uniform(-180, 180, n), "lat": rng.uniform(-90, 90, n)}
    return columns


@fuzz(
    ci=15,
    long=600,
    table=tables(scales=False, max_rows=6),
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=3),
    seed=st.integers(0, 2**32 - 1),
    change=st.sampled_from(["none", "none", "none", "lack", "twice", "more", "order"]),
)
def test_what_is_known_about_tasks(table, kinds, seed, change):
    rng = np.random.default_rng(seed)
    names = np.unique(table.tasks)
    rows = {
        "lack": np.arange(len(names) - 1),
        "twice": np.arange(len(names) + 1) % len(names),
        "order": rng.permutation(len(names)),
    }.get(change, np.arange(len(names)))
    columns = described(len(names), kinds, rng)
    objects = [[columns[name][k] for k in rows] for name in columns]
    frame = table_of({"task": names[rows], **dict(zip(columns, objects))})
    model = attempt(GGMTLRegressor(validation=3).fit, table.X, table.y, tasks=table.tasks, task_features=frame)
    if model is None:
        return
    assert change not in ("lack", "twice") or len(rows) == 0
    assert_finite(model.coef_, model.predict(table.X, tasks=table.tasks))
    unseen = frame.iloc[:1].assign(task=["a task never seen" if names.dtype.kind in "US" else "77777"])
    warnings.simplefilter("ignore", UnseenTaskWarning)
    new = {"tasks": np.array(unseen["task"].tolist()), "unseen": "hub", "task_features": unseen}
    assert_finite(model.predict(table.X[:1], **new))
    interval = attempt(model.predict_interval, table.X[:1], **new)
    if interval is not None:
        assert interval[0, 0] <= interval[0, 1]


def table_of(columns):
    """A table of pandas; what it makes of lists and mixed columns is its own."""
    return as_table({name: _as_column(values) for name, values in columns.items()}, "pandas")


def _as_column(values):
    kinds = {type(value) for value in values}
    if len(kinds) == 1 and kinds <= {np.float64, np.bool_, np.datetime64, np.str_, np.int64, np.uint64}:
        return np.asarray(values)
    column = np.empty(len(values), dtype=object)
    for k, value in enumerate(values):
        column[k] = value
    return column


@fuzz(ci=8, long=500, table=tables(), low=st.floats(0.01, 0.5), more=st.floats(1.05, 1.9))
def test_intervals_hold_their_predictions_and_grow_with_coverage(table, low, more):
    model = attempt(GGMTLRegressor(validation=3).fit, table.X, table.y, tasks=table.tasks)
    if model is None:
        return
    predicted = model.predict(table.X, tasks=table.tasks)
    inner, outer = (attempt(model.predict_interval, table.X, share, tasks=table.tasks) for share in (low, low * more))
    assert (inner is None) == (outer is None)
    if inner is not None:
        slack = 1e-9 * np.abs(predicted)
        for interval in (inner, outer):
            assert ((interval[:, 0] <= predicted + slack) & (predicted <= interval[:, 1] + slack)).all()
        assert (outer[:, 0] <= inner[:, 0] + slack).all()
        assert (inner[:, 1] <= outer[:, 1] + slack).all()


@fuzz(
    ci=6,
    long=600,
    n=st.integers(2, 10),
    rows=st.integers(20, 60),
    d=st.integers(1, 3),
    levels=st.integers(2, 7),
    targets=st.integers(2, 7),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_held_out_error_of_discrete_noise_is_its_spread(n, rows, d, levels, targets, seed):
    """Copies of an (x, y) pair that are held out together would make the error as large as the target."""
    rng = np.random.default_rng(seed)
    X, y = rng.integers(0, levels, (n * rows, d)), rng.integers(0, targets, n * rows)
    warnings.simplefilter("ignore")
    model = GGMTLRegressor().fit(X, y, tasks=np.repeat(np.arange(n), rows))
    assert 0.75 * y.std() <= model.validation_error_ <= 1.25 * y.std() + 1e-9


@fuzz(
    ci=5,
    long=250,
    table=tables(ordinary=True),
    seed=st.integers(0, 99),
    times=st.integers(1, 4),
    effects=st.sampled_from(["linear", "linear", "smooth"]),
)
def test_rows_that_come_in_parts_add_up(table, seed, times, effects):
    rng = np.random.default_rng(seed)
    model = attempt(GGMTLRegressor(effects=effects).fit, table.X, table.y, tasks=table.tasks)
    if model is None:
        return
    for k in range(times):
        chosen = rng.integers(0, len(table), 3)
        X = table.X[chosen] + 0.1 * rng.normal(size=(3, table.X.shape[1]))
        model.partial_fit(X, rng.normal(size=3), tasks=table.tasks[chosen], relearn=bool(k % 2))
    assert_finite(model.coef_, model.intercept_, model.noise_)
    np.testing.assert_allclose(model.state_.statistics.count.sum(), len(table) + 3 * times)
