"""task_features= of the estimator: better models, tasks never seen, growth, files, refusals."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.metrics.pairwise import haversine_distances

from ggmtl import Coordinates, GGMTLRegressor, load_model
from ggmtl.errors import InputError, ParameterError


def stations(n=60, rows=6, seed=0, held_out=10):
    """Rows of places whose models are a smooth function of where they are; the last places have no rows."""
    random = np.random.default_rng(seed)
    names = np.array([f"s{k:03d}" for k in range(n + held_out)])
    table = pd.DataFrame(
        {
            "lon": random.uniform(-120, -70, n + held_out),
            "lat": random.uniform(25, 50, n + held_out),
            "kind": random.choice(["a", "b"], n + held_out),
        },
        index=names,
    )
    smooth = np.column_stack([np.sin(table["lon"] / 12), np.cos(table["lat"] / 6)])
    models = np.column_stack([smooth, smooth.sum(axis=1) + (table["kind"] == "a")])
    models += 0.1 * random.standard_normal(models.shape)
    X = random.standard_normal((n + held_out, rows, 2))
    y = np.einsum("nrp,np->nr", X, models[:, :2]) + models[:, 2:] + 0.7 * random.standard_normal((n + held_out, rows))
    frame = pd.DataFrame(X.reshape(-1, 2), columns=["u", "v"]).assign(task=names.repeat(rows))
    old = slice(0, n * rows)
    return frame.iloc[old], y.ravel()[old], table, frame.iloc[n * rows :], y.ravel()[n * rows :], models


@pytest.fixture(scope="module")
def fitted():
    X, y, table, new, target, models = stations()
    model = GGMTLRegressor(task="task", random_state=0).fit(X, y, task_features=table)
    return model, X, y, table, new, target, models


def error(model, models):
    found = np.column_stack([model.coef_, model.intercept_])
    return np.sqrt(((found - models[: len(found)]) ** 2).mean())


def test_descriptors_bring_models_closer_to_the_truth(fitted):
    model, X, y, _, _, _, models = fitted
    plain = GGMTLRegressor(task="task", random_state=0).fit(X, y)
    assert error(model, models) < 0.8 * error(plain, models)
    assert "described" in {row["level"] for row in model.path_}


def test_statistics_and_rows_give_the_same_models(fitted):
    model, _, _, table, *_ = fitted
    streamed = GGMTLRegressor(task="task").fit_statistics(model.state_.statistics, task_features=table)
    np.testing.assert_allclose(streamed.coef_, model.coef_, atol=1e-8)


def test_order_of_the_table_and_more_tasks_in_it_change_nothing(fitted):
    model, X, y, table, *_ = fitted
    shuffled = table.sample(frac=1.0, random_state=3).reset_index(names="task")
    other = GGMTLRegressor(task="task", random_state=0).fit(X, y, task_features=shuffled)
    np.testing.assert_allclose(other.coef_, model.coef_, atol=1e-10)


def test_tasks_never_seen_get_the_model_that_is_known_of_them(fitted):
    model, _, _, table, new, target, _ = fitted
    told, spread = model.predict(new, task_features=table, return_std=True)
    with pytest.warns(UserWarning, match="shared model"):
        common = model.predict(new, unseen="hub")
    assert np.mean((told - target) ** 2) < 0.7 * np.mean((common - target) ** 2)
    assert (np.abs(told - target) < 1.645 * spread).mean() > 0.75
    seen = model.predict(new.assign(task="s000"))
    others = [model.predict(new.assign(task=name), return_std=True)[1].mean() for name in model.tasks_[:20]]
    assert spread.mean() > np.mean(others)
    both = pd.concat([new, new.assign(task="s000")])
    np.testing.assert_allclose(model.predict(both, task_features=table), np.append(told, seen))


def test_intervals_of_seen_tasks_hold_what_they_promise(fitted):
    model, *_, models = fitted
    random = np.random.default_rng(9)
    rows = pd.DataFrame(random.standard_normal((60 * 40, 2)), columns=["u", "v"]).assign(task=model.tasks_.repeat(40))
    truth = np.einsum("rp,rp->r", rows[["u", "v"]], models[:60, :2].repeat(40, axis=0)) + models[:60, 2].repeat(40)
    target = truth + 0.7 * random.standard_normal(len(truth))
    told, spread = model.predict(rows, return_std=True)
    assert 0.85 < (np.abs(told - target) < 1.645 * spread).mean() < 0.95


def test_an_added_task_starts_from_what_is_known_of_it(fitted):
    model, X, y, table, new, target, models = fitted
    label = "s060"
    rows = new[new["task"] == label]
    empty = clone(model).fit(X, y, task_features=table)
    told = empty.predict(rows, task_features=table)
    empty.add_task(label, task_features=table)
    np.testing.assert_allclose(empty.predict(rows), told, rtol=1e-6)
    grown = clone(model).fit(X, y, task_features=table)
    grown.add_task(label, rows[["u", "v"]], target[: len(rows)], task_features=table)
    blind = clone(model).fit(X, y, task_features=table)
    blind.add_task(label, rows[["u", "v"]], target[: len(rows)])
    place = list(grown.tasks_).index(label)
    wrong = [
        np.linalg.norm(np.append(each.coef_[place], each.intercept_[place]) - models[60]) for each in (grown, blind)
    ]
    assert wrong[0] < wrong[1]
    np.testing.assert_allclose(np.delete(grown.coef_, place, axis=0), model.coef_)


def test_more_rows_keep_what_is_known_and_new_tasks_need_a_row(fitted):
    model, X, y, table, new, target, _ = fitted
    more = clone(model).fit(X, y, task_features=table.iloc[:60])
    with pytest.raises(InputError, match="no row for 10 of 70 tasks"):
        more.partial_fit(new, target)
    more.partial_fit(new, target, task_features=table)
    assert len(more.tasks_) == 70
    assert len(more.state_.settings.known.features.task_names) == 70
    followed = clone(model).fit(X, y, task_features=table)
    followed.partial_fit(new, target, relearn=False, task_features=table)
    assert len(followed.tasks_) == 70


@pytest.mark.parametrize("keep", [False, True])
def test_a_file_keeps_what_is_known(fitted, tmp_path, keep):
    model, _, _, table, new, _, _ = fitted
    model.save(tmp_path / "m.ggmtl", keep_statistics=keep)
    copy = load_model(tmp_path / "m.ggmtl")
    np.testing.assert_array_equal(copy.coef_, model.coef_)
    np.testing.assert_allclose(copy.predict(new, task_features=table), model.predict(new, task_features=table))
    if keep:
        for mine, theirs in zip(
            model.predict(new, task_features=table, return_std=True),
            copy.predict(new, task_features=table, return_std=True),
        ):
            np.testing.assert_allclose(mine, theirs, rtol=1e-6)
    assert copy.summary() == model.summary()


def test_places_may_be_candidates(fitted):
    _, X, y, table, *_ = fitted
    near = Coordinates(columns=("lon", "lat"), k=3)
    model = GGMTLRegressor(task="task", candidates=near, validation=None).fit(X, y, task_features=table)
    pairs = {tuple(edge) for level in model.state_.family.levels.values() for edge in level.edges.tolist()}
    radians = np.radians(table[["lat", "lon"]].to_numpy()[:60])
    distance = haversine_distances(radians)
    np.fill_diagonal(distance, np.inf)
    nearest = np.argsort(distance, axis=1)[:, :3]
    allowed = {(min(i, j), max(i, j)) for i in range(60) for j in nearest[i]}
    assert pairs <= allowed
    with pytest.raises(ParameterError, match="needs fit"):
        GGMTLRegressor(task="task", candidates=near).fit(X, y)
    with pytest.raises(InputError, match="no column 'long'"):
        GGMTLRegressor(task="task", candidates=Coordinates(columns=("long", "lat"))).fit(X, y, task_features=table)


def test_what_does_not_fit_together_is_refused(fitted):
    model, X, y, table, new, *_ = fitted
    with pytest.raises(InputError, match=r"no row for 2 of 60 tasks: 's000', 's001'.*do not select its rows"):
        GGMTLRegressor(task="task").fit(X, y, task_features=table.iloc[2:])
    with pytest.raises(ParameterError, match="hub=True"):
        GGMTLRegressor(task="task", hub=False).fit(X, y, task_features=table)
    plain = GGMTLRegressor(task="task").fit(X, y)
    with pytest.raises(InputError, match="fitted without them"):
        plain.predict(new, task_features=table)
    with pytest.raises(InputError, match="not fitted with"):
        model.predict(new, task_features=table.iloc[:60])
    with pytest.raises(InputError, match="no column 'kind'"):
        model.predict(new, task_features=table[["lon", "lat"]])


def test_a_checkpoint_belongs_to_what_was_known(tmp_path):
    X, y, table, *_ = stations(n=12, held_out=0)
    model = GGMTLRegressor(task="task", checkpoint=tmp_path / "fit.checkpoint").fit(X, y, task_features=table)
    again = clone(model).fit(X, y, task_features=table)
    np.testing.assert_array_equal(again.coef_, model.coef_)
    other = table.assign(lat=table["lat"].to_numpy()[::-1])
    fresh = GGMTLRegressor(task="task").fit(X, y, task_features=other)
    np.testing.assert_array_equal(clone(model).fit(X, y, task_features=other).coef_, fresh.coef_)
    assert not np.array_equal(fresh.coef_, model.coef_)


def test_counts_refuse_what_they_cannot_use(fitted):
    _, X, y, table, *_ = fitted
    with pytest.raises(ParameterError, match='loss="squared"'):
        GGMTLRegressor(task="task", loss="poisson").fit(X, np.round(np.abs(y)), task_features=table)
