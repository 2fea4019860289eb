"""Odd but legal input ends in a right answer or a clear error."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.model_selection import GroupKFold, KFold, PredefinedSplit, RepeatedKFold, ShuffleSplit, TimeSeriesSplit

from ggmtl import KNN, GGMTLRegressor, TaskGraph, TaskStatistics, load_model
from ggmtl.baselines import HubRegressor
from ggmtl.errors import InputError, InputTypeError, ParameterError, SingularSystemError, UnseenTaskWarning
from ggmtl.inspection import edge_stability

SINGLE = {"criterion": "validation", "edge_entropy": 0.0, "coupling": 1.0}


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X, tasks = rng.normal(size=(60, 3)), np.repeat(np.arange(5), 12)
    models = np.repeat(rng.normal(size=(2, 3)), [2, 3], axis=0) + 0.1 * rng.normal(size=(5, 3))
    return X, (X * models[tasks]).sum(axis=1) + 0.5 * rng.normal(size=60) + 2.0, tasks


@pytest.mark.parametrize("value", [0.0, 3.0, -1e9])
def test_a_constant_target_is_predicted_as_it_is(rows, value):
    X, _, tasks = rows
    model = GGMTLRegressor().fit(X, np.full(60, value), tasks=tasks)
    np.testing.assert_allclose(model.predict(X, tasks=tasks), value)
    assert model.graph_.n_edges == 0


@pytest.mark.parametrize("options", [{}, SINGLE, SINGLE | {"hub": False}])
def test_edges_that_must_be_there_are_reported(rows, options):
    X, y, tasks = rows
    model = GGMTLRegressor(candidates=KNN(must_link=[(4, 0)]), **options).fit(X, y, tasks=tasks)
    assert [0, 4] in model.graph_.edges.tolist()


def test_a_ridge_of_ones_own_goes_with_validation_only(rows):
    X, y, tasks = rows
    with pytest.raises(ParameterError, match="ridge=1"):
        GGMTLRegressor(criterion="evidence", ridge=1.0).fit(X, y, tasks=tasks)
    model = GGMTLRegressor(ridge=1.0, coupling=1.0, edge_entropy=0.0).fit(X, y, tasks=tasks)
    assert model.criterion_ == "validation"


def test_no_ridge_and_too_few_rows(rows):
    X, y, _ = rows
    model = GGMTLRegressor(ridge=0).fit(X[:8], y[:8], tasks=np.arange(8))
    assert np.isfinite(model.coef_).all()


def test_all_rows_in_one_group_leave_nothing_to_validate_on(rows):
    X, y, tasks = rows
    assert GGMTLRegressor().fit(X, y, tasks=tasks, groups=np.zeros(60)).validation_error_ is None


def test_pairs_may_come_as_a_table_or_not_at_all(rows):
    X, y, tasks = rows
    table = pytest.importorskip("pandas").DataFrame({"a": [0, 1], "b": [1, 2]})
    given = GGMTLRegressor(candidates=table, **SINGLE).fit(X, y, tasks=tasks)
    assert {tuple(edge) for edge in given.edges_.tolist()} <= {(0, 1), (1, 2)}
    assert GGMTLRegressor(candidates=[]).fit(X, y, tasks=tasks).graph_.n_edges == 0


def test_no_steps_at_all_are_refused(rows):
    X, y, tasks = rows
    with pytest.raises(ParameterError, match="max_iter"):
        GGMTLRegressor(max_iter=0).fit(X, y, tasks=tasks)


def test_number_labels_that_come_back_as_text_are_known(rows):
    X, y, tasks = rows
    model = GGMTLRegressor(unseen="hub", validation=None).fit(X, y, tasks=tasks)
    mixed = np.array([*map(str, tasks[:-1]), "new"])
    with pytest.warns(UnseenTaskWarning):
        predicted = model.predict(X, tasks=mixed)
    np.testing.assert_allclose(predicted[:-1], model.predict(X, tasks=tasks)[:-1])
    assert predicted[-1] == pytest.approx(model.hub_intercept_ + X[-1] @ model.hub_coef_)


@pytest.mark.parametrize("n_tasks", [1, 2])
def test_stability_of_very_few_tasks(rows, n_tasks):
    X, y, tasks = (part[rows[2] < n_tasks] for part in rows)
    model = GGMTLRegressor().fit(X, y, tasks=tasks)
    assert len(edge_stability(model, X, y, tasks=tasks, n_resamples=3).edges) <= 1


def test_a_verbose_fit_tells_how_far_it_is(rows, caplog):
    X, y, tasks = rows
    with caplog.at_level("INFO", logger="ggmtl"):
        GGMTLRegressor(verbose=1, validation=3).fit(X, y, tasks=tasks)
    assert sum("without fold" in message for message in caplog.messages) == 3


# ---------------------------------------------------------------- splitters


@pytest.mark.parametrize(
    ("splitter", "reason"),
    [
        (TimeSeriesSplit(3), "every row outside a test set must be trained on"),
        (ShuffleSplit(1, train_size=0.5, test_size=0.2, random_state=0), "every row outside a test set"),
        (RepeatedKFold(n_splits=3, n_repeats=2, random_state=0), "overlap"),
        (GroupKFold(3), r"groups=\)"),
        (KFold(99), "cannot split these 60 rows"),
    ],
)
def test_splitters_that_would_leak_or_cannot_split_are_refused(rows, splitter, reason):
    X, y, tasks = rows
    with pytest.raises(ParameterError, match=reason):
        GGMTLRegressor(validation=splitter).fit(X, y, tasks=tasks)


def test_a_splitter_may_hold_out_the_late_rows_once(rows):
    X, y, tasks = rows
    late = PredefinedSplit(np.where(np.arange(60) % 12 >= 9, 0, -1))
    model = GGMTLRegressor(validation=late, **SINGLE).fit(X, y, tasks=tasks)
    assert np.isfinite(model.coef_).all()


# ---------------------------------------------------------------- numbers at the ends of the range


@pytest.mark.parametrize("unit", [1e150, 1e-150])
def test_units_near_the_ends_of_the_range_change_nothing(rows, unit):
    X, y, tasks = rows
    plain = GGMTLRegressor(validation=None).fit(X, y, tasks=tasks).predict(X, tasks=tasks)
    model = GGMTLRegressor(validation=None).fit(X * unit, y / unit, tasks=tasks)
    np.testing.assert_allclose(model.predict(X * unit, tasks=tasks) * unit, plain, rtol=1e-6)


@pytest.mark.parametrize("unit", [1e160, 1e-160, 1e300, 1e-300])
def test_numbers_whose_squares_leave_the_range_are_refused_by_name(rows, unit):
    X, y, tasks = rows
    with pytest.raises(InputError, match=r"Column 'x0' must have its largest absolute value between .* other units"):
        GGMTLRegressor().fit(X * unit, y, tasks=tasks)
    with pytest.raises(InputError, match=r"y must have its largest absolute value"):
        GGMTLRegressor().fit(X, y * unit, tasks=tasks)
    if unit > 1:
        model = GGMTLRegressor(validation=None).fit(X, y, tasks=tasks)
        with pytest.raises(InputError, match="Column 0 must have"):
            model.predict(X * unit, tasks=tasks)


@pytest.mark.parametrize("unit", [1e160, 1e-160])
def test_streams_of_such_numbers_are_refused_by_name(rows, unit):
    arrow = pytest.importorskip("pyarrow")
    X, y, tasks = rows
    table = arrow.table({"task": tasks, "y": y, "fine": X[:, 0], "far": X[:, 1] * unit})
    with pytest.raises(InputError, match="Column 'far' must have"):
        TaskStatistics.from_arrow_stream(table, task="task", target="y")


# ---------------------------------------------------------------- parameters and folds


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hub", "no"),
        ("n_jobs", "many"),
        ("n_jobs", 0),
        ("random_state", "a"),
        ("validation", float("nan")),
        ("coupling", [1.0, "a"]),
        ("candidates", 3),
        ("candidates", None),
    ],
)
def test_parameters_of_the_wrong_kind_are_named(rows, name, value):
    X, y, tasks = rows
    with pytest.raises(ParameterError, match=name):
        GGMTLRegressor(**{name: value}).fit(X, y, tasks=tasks)


def test_a_table_with_weights_of_zero_takes_folds_of_all_its_rows(rows):
    pandas = pytest.importorskip("pandas")
    X, y, tasks = rows
    frame = pandas.DataFrame(X, columns=list("abc")).assign(task=tasks, y=y, w=np.arange(60) % 7)
    folds = np.arange(60) % 3
    whole = TaskStatistics.from_frame(frame, task="task", target="y", sample_weight="w", folds=folds)
    present = frame["w"] > 0
    part = TaskStatistics.from_frame(
        frame[present], task="task", target="y", sample_weight="w", folds=folds[present.to_numpy()]
    )
    np.testing.assert_array_equal(whole.fold(1).count, part.fold(1).count)


def test_a_graph_without_edges_has_a_laplacian_of_zeros():
    laplacian = TaskGraph.empty(["a", "b"]).laplacian()
    assert laplacian.dtype == np.float64
    assert not laplacian.toarray().any()


# ---------------------------------------------------------------- found by generated cases


def test_rounding_noise_of_a_constant_column_gets_no_slope():
    rng = np.random.default_rng(0)
    X, tasks = rng.normal(size=(22, 2)), np.tile([0, 1], 11)
    constant = np.full(22, 1e12)
    columns = np.column_stack([X, constant, 0.27499 * constant + X @ [0.3, 0.2]])
    y = X[:, 0] + rng.normal(size=22)
    model = GGMTLRegressor(validation=None).fit(columns, y, tasks=tasks)
    zeros = np.column_stack([X, np.zeros((22, 2))])
    plain = GGMTLRegressor(validation=None).fit(zeros, y, tasks=tasks)
    assert np.abs(model.coef_[:, 2:]).max() < 1e-20
    np.testing.assert_allclose(model.predict(columns, tasks=tasks), plain.predict(zeros, tasks=tasks), atol=1e-6)


def test_labels_of_another_kind_are_unknown_not_a_crash(rows):
    X, y, tasks = rows
    model = GGMTLRegressor(validation=None).fit(X, y, tasks=tasks)
    with pytest.raises(InputError, match="not fitted with"):
        model.predict(X[:1], tasks=np.array(["2026-01-30"], dtype="datetime64[D]"))


def test_standard_errors_beyond_single_precision_survive_a_file(rows, tmp_path):
    X, y, tasks = rows
    model = GGMTLRegressor(validation=None).fit(X * 1e-52, y, tasks=tasks)
    model.save(tmp_path / "m.ggmtl")
    errors = load_model(tmp_path / "m.ggmtl").coefficients()["standard_error"]
    np.testing.assert_allclose(errors, model.coefficients()["standard_error"], rtol=1e-2)


def test_a_matrix_that_cannot_be_factored_is_named_with_remedies(rows, monkeypatch):
    X, y, tasks = rows

    def fail(*arguments):
        raise np.linalg.LinAlgError("3-th leading minor not positive definite")

    monkeypatch.setattr(HubRegressor, "_learn", fail)
    with pytest.raises(SingularSystemError, match="positive ridge"):
        HubRegressor().fit(X, y, tasks=tasks)


def test_column_names_that_are_not_utf8_are_refused(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "rows.csv").write_bytes(b"t,x,\x80y\na,1,2\n")
    with pytest.raises(InputError, match="UTF-8"):
        TaskStatistics.from_csv(tmp_path / "rows.csv", task="t", target="y")


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("slope", [0.0, 2.0])
def test_a_constant_column_and_a_target_without_noise(seed, slope):
    rng = np.random.default_rng(seed)
    tasks = rng.integers(0, 20, 600)
    dummies = np.eye(3)[rng.integers(0, 3, 600)]
    X = np.column_stack([rng.normal(10, 2, 600), np.full(600, 3.0), rng.integers(0, 2, 600), dummies[:, 1:]])
    y = 5.0 + slope * X[:, 0]
    np.testing.assert_allclose(GGMTLRegressor().fit(X, y, tasks=tasks).predict(X, tasks=tasks), y, rtol=1e-5)


def test_arrays_are_refused_with_the_column_and_the_count(rows):
    X, y, tasks = rows
    gaps, text = X.copy(), X.astype(object)
    gaps[[3, 5], 1], text[4, 2] = np.nan, "four"
    with pytest.raises(InputError, match=r"Column 'x1' has 2 missing values \(first in row 3\)"):
        GGMTLRegressor().fit(gaps, y, tasks=tasks)
    with pytest.raises(InputError, match=r"X must be an array of numbers.*'four'"):
        GGMTLRegressor().fit(text, y, tasks=tasks)
    with pytest.raises(InputTypeError, match="Sparse data"):
        GGMTLRegressor().fit(csr_matrix(X), y, tasks=tasks)
    with pytest.raises(InputError, match="sample_weight must be an array of numbers"):
        GGMTLRegressor().fit(X, y, tasks=tasks, sample_weight=["one"] * len(y))


@pytest.mark.parametrize("value", [None, "most", "0.9", 0, 1, -0.1, np.nan, [0.9]])
def test_a_share_is_a_number_between_zero_and_one(rows, value):
    X, y, tasks = rows
    model = GGMTLRegressor().fit(X, y, tasks=tasks)
    with pytest.raises(ParameterError, match="coverage must be between 0 and 1"):
        model.predict_interval(X, coverage=value, tasks=tasks)
    with pytest.raises(ParameterError, match="level must be between 0 and 1"):
        model.conf_int(value)


def test_a_feature_over_three_hundred_decades_stays_a_straight_line(rows):
    X, y, tasks = rows
    X = X.copy()
    X[:, 0] = 10.0 ** np.linspace(-150, 150, len(X))
    for effects in ("smooth", "auto"):
        model = GGMTLRegressor(effects=effects).fit(X, y, tasks=tasks)
        predicted = model.predict(X, tasks=tasks)
        assert np.mean((predicted - y) ** 2) <= np.var(y)
        assert 0 not in model.scaling_.curves.features


@pytest.mark.parametrize("values", [["far"], [], [np.nan]])
def test_a_grid_holds_numbers(rows, values):
    X, y, tasks = rows
    with pytest.raises(InputError, match="grid must"):
        GGMTLRegressor(validation=None).fit(X, y, tasks=tasks).effect(0, values)


def test_tiny_columns_that_are_not_scaled_have_finite_curvatures(rows):
    X, y, tasks = rows
    model = GGMTLRegressor(standardize=False).fit(1e-147 * X, y, tasks=tasks)
    assert np.isfinite(model.coef_).all()
    assert np.isfinite(model.intercept_).all()
