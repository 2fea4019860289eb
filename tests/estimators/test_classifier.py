"""GGMTLClassifier: scikit-learn's contract, probabilities, and what is refused."""

import json
import os
import re

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.utils.estimator_checks import check_estimator

from ggmtl import GGMTLClassifier, load_model
from ggmtl.datasets import load_landmine, make_clusters
from ggmtl.errors import InputError, InputTypeError, ParameterError, UnseenTaskWarning
from ggmtl.fit import outcomes
from ggmtl.fit.outcome_scores import ranking
from ggmtl.inspection import edge_stability, explain_edge, transfer_report
from ggmtl.inspection.summary.collect import summarize
from ggmtl.model_selection import TaskKFold


@pytest.fixture(scope="module")
def rows():
    """Twelve tasks in two kinds; the first has one class only."""
    rng = np.random.default_rng(0)
    tasks = np.repeat(np.arange(12), 60)
    X = rng.standard_normal((len(tasks), 3))
    centre = np.where(np.arange(12)[:, None] % 2 == 0, [1.5, 0.0, -1.0], [-1.0, 1.0, 0.5])
    models = centre + 0.2 * rng.standard_normal((12, 3))
    eta = (X * models[tasks]).sum(axis=1) - 0.5
    y = np.where(rng.random(len(tasks)) < 1 / (1 + np.exp(-eta)), "yes", "no")
    y[tasks == 0] = "no"
    return X, y, tasks


@pytest.fixture(scope="module")
def model(rows):
    X, y, tasks = rows
    return GGMTLClassifier().fit(X, y, tasks=tasks)


def _words_and_numbers(text):
    """The lines of a text without its decimal numbers, and these."""
    number = re.compile(r"\d+\.\d+")
    return number.sub("…", text).splitlines(), [float(found) for found in number.findall(text)]


@pytest.mark.skipif(not os.environ.get("GGMTL_DATA_HOME"), reason="GGMTL_DATA_HOME is not set: no real data files")
def test_the_two_regions_of_landmine_are_found_and_refused_where_rows_are_few():
    """15 fields with foliage and 14 bare ones, from 160 rows of each; 20 rows do not tell."""
    data = load_landmine()
    place = np.concatenate(
        [np.random.default_rng(0).permutation(np.flatnonzero(data.tasks == k)) for k in range(1, 30)]
    )
    rank = np.concatenate([np.arange((data.tasks == k).sum()) for k in range(1, 30)])

    def links(rows):
        chosen = place[rank < rows]
        model = GGMTLClassifier(validation=None).fit(data.X[chosen], data.y[chosen], tasks=data.tasks[chosen])
        return {tuple(edge) for edge in model.graph_.edges.tolist()}

    same = {(i, j) for i in range(29) for j in range(i + 1, 29) if (i < 15) == (j < 15)}
    found = links(160)
    assert 2 * len(found & same) / (len(found) + len(same)) > 0.9
    assert not links(20)


def fresh(seed=1, n_tasks=12, n_rows=200):
    rng = np.random.default_rng(seed)
    tasks = np.repeat(np.arange(1, n_tasks), n_rows)
    X = rng.standard_normal((len(tasks), 3))
    centre = np.where(np.arange(n_tasks)[:, None] % 2 == 0, [1.5, 0.0, -1.0], [-1.0, 1.0, 0.5])
    eta = (X * centre[tasks]).sum(axis=1) - 0.5
    return X, np.where(rng.random(len(tasks)) < 1 / (1 + np.exp(-eta)), "yes", "no"), tasks


def test_it_passes_scikit_learns_checks():
    check_estimator(GGMTLClassifier(), on_skip=None)


def test_probabilities_sum_to_one_and_agree_with_classes(model, rows):
    X, _, tasks = rows
    probability = model.predict_proba(X, tasks=tasks)
    np.testing.assert_allclose(probability.sum(axis=1), 1.0)
    assert (model.predict(X, tasks=tasks) == model.classes_[probability.argmax(axis=1)]).all()
    decision = model.decision_function(X, tasks=tasks)
    np.testing.assert_allclose(1 / (1 + np.exp(-decision)), probability[:, 1])


def test_probabilities_are_moderated_by_the_doubt_about_the_models(model, rows):
    X, _, tasks = rows
    plain = 1 / (1 + np.exp(-((X * model.coef_[tasks]).sum(axis=1) + model.intercept_[tasks])))
    moderated = model.predict_proba(X, tasks=tasks)[:, 1]
    assert (np.abs(moderated - 0.5) <= np.abs(plain - 0.5) + 1e-12).all()
    assert np.abs(moderated - plain).max() > 1e-3


def test_it_predicts_better_than_one_model_and_than_separate_ones(model, rows):
    X, y, tasks = rows
    X_new, y_new, tasks_new = fresh()
    ours = log_loss(y_new, model.predict_proba(X_new, tasks=tasks_new))
    pooled = LogisticRegression().fit(X, y)
    assert ours < log_loss(y_new, pooled.predict_proba(X_new))
    alone = [LogisticRegression().fit(X[tasks == i], y[tasks == i]) for i in range(1, 12)]
    separate = np.concatenate([alone[i - 1].predict_proba(X_new[tasks_new == i]) for i in range(1, 12)])
    assert ours < log_loss(y_new, separate)


def test_tasks_of_one_kind_are_linked(model):
    assert model.graph_.n_edges > 0
    assert (model.graph_.edges.sum(axis=1) % 2 == 0).mean() > 0.9
    assert model.blend_["graph"] > 0


def test_a_task_with_one_class_has_a_finite_model(model):
    assert np.isfinite(model.coef_).all()
    assert np.abs(model.coef_[0]).max() < 5
    errors = model.coefficients()["standard_error"]
    assert np.isfinite(np.asarray(errors)).all()


def test_the_weights_of_the_levels_sum_to_one(model):
    assert sum(model.blend_.values()) == pytest.approx(1.0)
    shared = ["common slopes", "hub", "hub, correlated"]
    assert [row["level"] for row in model.path_] == ["pooled", *shared, "graph", "independent"]
    assert model.validation_error_ <= min(row["error"] for row in model.path_) * 1.02
    single = GGMTLClassifier(blend=False, random_state=0)
    assert single.fit(*fresh()[:2], tasks=fresh()[2]).blend_ in ({"graph": 1.0}, {"hub": 1.0})


def test_renaming_classes_and_tasks_changes_nothing(model, rows):
    X, y, tasks = rows
    other = GGMTLClassifier().fit(X, np.where(y == "yes", 7, -3), tasks=100 + tasks)
    np.testing.assert_allclose(other.coef_, model.coef_)
    assert other.classes_.tolist() == [-3, 7]


def test_units_do_not_matter(model, rows):
    X, y, tasks = rows
    scale = np.array([1000.0, 1.0, 0.01])
    other = GGMTLClassifier().fit(X * scale + 5.0, y, tasks=tasks)
    np.testing.assert_allclose(
        other.predict_proba(X * scale + 5.0, tasks=tasks), model.predict_proba(X, tasks=tasks), atol=1e-5
    )


def test_whole_weights_are_repetitions():
    X, y, tasks = fresh(n_tasks=5, n_rows=30)
    times = np.random.default_rng(0).integers(1, 3, len(y))
    weighed = GGMTLClassifier(validation=None).fit(X, y, tasks=tasks, sample_weight=times)
    copied = GGMTLClassifier(validation=None).fit(np.repeat(X, times, 0), np.repeat(y, times), np.repeat(tasks, times))
    np.testing.assert_allclose(weighed.coef_, copied.coef_, atol=1e-5)


def test_tools_of_scikit_learn_take_the_task_column(rows):
    X, y, tasks = rows
    frame = pd.DataFrame(X, columns=list("abc")).assign(school=tasks)
    base, split = GGMTLClassifier(task="school", validation=2), TaskKFold(2, task="school")
    assert cross_val_predict(base, frame, y, method="predict_proba", cv=split).shape == (len(y), 2)
    search = GridSearchCV(base, {"blend": [True, False]}, scoring="roc_auc", cv=split).fit(frame, y)
    assert search.best_score_ > 0.7
    calibrated = CalibratedClassifierCV(base, cv=split).fit(frame, y)
    assert calibrated.predict_proba(frame).shape == (len(y), 2)


def test_more_than_two_classes_are_fitted_one_against_the_rest():
    rng = np.random.default_rng(0)
    tasks, X = np.repeat(np.arange(4), 60), rng.standard_normal((240, 2))
    y = np.where(X[:, 0] > 0.5, "high", np.where(X[:, 1] > 0, "middle", "low"))
    model = GGMTLClassifier().fit(X, y, tasks=tasks)
    assert model.predict_proba(X, tasks=tasks).shape == (240, 3)
    np.testing.assert_allclose(model.predict_proba(X, tasks=tasks).sum(axis=1), 1.0)
    assert model.score(X, y, tasks=tasks) > 0.8
    assert len(model.estimators_) == 3
    for what in (model.summary, model.coefficients):
        with pytest.raises(InputError, match="two classes"):
            what()


def test_tasks_not_seen_get_the_common_model(model, rows):
    X = rows[0][:4]
    with pytest.raises(InputError, match="99"):
        model.predict(X, tasks=np.full(4, 99))
    with pytest.warns(UnseenTaskWarning):
        probability = model.predict_proba(X, tasks=np.full(4, 99), unseen="hub")
    assert ((probability > 0) & (probability < 1)).all()


def test_a_saved_model_predicts_the_same(model, rows, tmp_path):
    X, _, tasks = rows
    model.save(tmp_path / "model.ggmtl")
    copy = load_model(tmp_path / "model.ggmtl")
    assert isinstance(copy, GGMTLClassifier)
    assert copy.classes_.tolist() == ["no", "yes"]
    np.testing.assert_allclose(copy.predict_proba(X, tasks=tasks), model.predict_proba(X, tasks=tasks), atol=1e-6)
    assert copy.blend_ == model.blend_
    # A file keeps held-out losses to three digits, so a number may be rounded the other way.
    (ours, numbers), (theirs, others) = (_words_and_numbers(each.summary()) for each in (copy, model))
    assert ours[1:] == theirs[1:]
    np.testing.assert_allclose(numbers, others, atol=0.11)
    assert copy.get_params() == model.get_params()


def test_a_task_may_be_added(model, rows, tmp_path):
    X, y, tasks = rows
    model.save(tmp_path / "model.ggmtl")
    for grown in (GGMTLClassifier().fit(X, y, tasks=tasks), load_model(tmp_path / "model.ggmtl")):
        X_new, y_new, tasks_new = fresh()
        own = tasks_new == 4
        grown.add_task(50, X_new[own], y_new[own]).add_task(60)
        assert grown.coef_.shape == (14, 3)
        np.testing.assert_allclose(grown.coef_[:12], model.coef_, atol=1e-12)
        # Even tasks have the coefficients 1.5, 0 and −1.
        assert np.abs(grown.coef_[12] - [1.5, 0.0, -1.0]).max() < 0.7
        assert grown.predict_proba(X_new[:3], tasks=np.full(3, 60)).shape == (3, 2)
        with pytest.raises(InputError, match="maybe"):
            grown.add_task(70, X_new[:2], ["yes", "maybe"])


def test_what_rows_are_needed_for_is_refused_with_the_reason(model, rows):
    X, y, _ = rows
    with pytest.raises(InputError, match="sums of the rows"):
        model.partial_fit(X, y)
    assert not hasattr(model, "partial_fit")
    with pytest.raises(InputError, match="sums of the rows"):
        GGMTLClassifier().fit_statistics(None)
    with pytest.raises(InputError, match="squared loss only"):
        model.evidence()


@pytest.mark.parametrize(
    ("parameters", "match"),
    [
        ({"device": "cuda"}, "CPU"),
        ({"penalty": "l1"}, "squared_l2"),
        ({"coupling": 1.0}, "evidence"),
        ({"hub": False}, "hub=True"),
        ({"effects": "smooth"}, "straight lines only.*the square of the feature"),
    ],
)
def test_parameters_without_meaning_are_refused(parameters, match, rows):
    with pytest.raises(ParameterError, match=match):
        GGMTLClassifier(**parameters).fit(rows[0], rows[1], tasks=rows[2])


@pytest.mark.parametrize(
    ("parameters", "match"),
    [
        ({"noise": "per_task"}, "no parameter 'noise'. Labels have no noise of their own"),
        ({"loss": "poisson"}, 'use GGMTLRegressor\\(loss="poisson"\\)'),
        ({"canditates": "complete"}, "Did you mean 'candidates'?"),
        ({"alpha": 1.0}, "GGMTLClassifier has no parameter 'alpha'. It has blend, candidates"),
    ],
)
def test_parameters_that_a_classifier_does_not_have_are_refused_with_what_to_do(parameters, match):
    with pytest.raises(TypeError, match=match):
        GGMTLClassifier(**parameters)


def test_targets_that_are_no_classes_are_refused(rows):
    X, y, tasks = rows
    with pytest.raises(InputError, match="two classes"):
        GGMTLClassifier().fit(X, np.full(len(y), "no"), tasks=tasks)
    with pytest.raises(ValueError, match="Unknown label type"):
        GGMTLClassifier().fit(X, X[:, 0], tasks=tasks)


@pytest.mark.parametrize(
    ("labels", "match"),
    [
        (["a", 1], "mixes labels"),
        (["a", None], "missing labels"),
        ([True, None], "missing labels"),
        (pd.Categorical(["a", None]), "missing labels"),
        (pd.array(["a", pd.NA], dtype="string"), "missing labels"),
        ([0.5, 0.25], "Unknown label type: continuous"),
        ([0.5, np.nan], "NaN"),
        ([[0, 1], [1, 0]], "one-dimensional"),
        (["a", "a\x00"], "zero characters"),
    ],
)
def test_labels_without_one_meaning_are_refused_in_words(rows, labels, match):
    X, _, tasks = rows
    y = (
        pd.Series(labels).repeat(30)
        if isinstance(labels, pd.Categorical)
        else np.repeat(np.array(labels, object), 30, 0)
    )
    with pytest.raises((InputError, InputTypeError), match=match):
        GGMTLClassifier().fit(X[:60], y.astype(float) if match == "NaN" else y, tasks=tasks[:60])


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["2026-01-01", "2026-01-02"], dtype="datetime64[D]"),
        np.array([False, True]),
        np.array([2**63, 2**63 + 1], dtype=np.uint64),
        pd.Categorical(["z", "a"]),
        np.array([1.0, 2.0], dtype=np.float32),
    ],
)
def test_labels_of_any_kind_survive_a_file_and_another_task(rows, labels, tmp_path):
    X, y, tasks = rows
    y = np.asarray(labels)[(y == "yes").astype(int)]
    model = GGMTLClassifier(validation=None).fit(X, y, tasks=tasks)
    model.save(tmp_path / "labels.ggmtl")
    copy = load_model(tmp_path / "labels.ggmtl")
    for each in (model, copy):
        each.add_task(99, X[:40], y[:40])
        assert each.classes_.tolist() == sorted(set(y.tolist()))
        assert set(each.predict(X[:40], tasks=np.full(40, 99)).tolist()) <= set(y.tolist())


def test_the_summary_speaks_of_odds_and_log_loss(model):
    text = model.summary()
    assert "odds" in text
    assert "Log-loss on held-out rows" in text
    assert "linked tasks" in text


def test_the_data_of_the_page_say_how_good_probabilities_are(model, rows):
    y = rows[1]
    found = summarize(model)
    target = found["target"]
    assert target["classes"] == ["no", "yes"]
    assert target["one_class"] == ["0"]
    assert target["n_both"] == 11
    assert target["base"] == pytest.approx((y == "yes").mean())
    assert found["error"] == pytest.approx(model.validation_error_)
    assert found["error"] < target["null"]
    assert sum(task["observed"] for task in found["tasks"]) == (y == "yes").sum()
    assert target["expected"] == pytest.approx(target["observed"], rel=0.1)
    low, high = np.array(target["groups"])[:, 2:].T
    assert (low <= np.array(target["groups"])[:, 1]).all()
    assert (high >= np.array(target["groups"])[:, 1]).all()
    json.dumps(found, allow_nan=False)


def test_the_error_of_the_shared_model_is_that_of_the_dense_inverse():
    """Where all tasks have the same weight on the hub's level, Σ_ij (A⁻¹)_ij/n² of the whole matrix."""
    X, y, tasks = fresh(n_tasks=7, n_rows=40)
    model = GGMTLClassifier(blend=False, candidates=np.array([[1, 2]])).fit(X, y, tasks=tasks)
    assert model.blend_ == {"hub": 1.0}
    state = model.state_
    level, n = state.outcome.levels["hub"], 6
    p, hub, ridge = 4, state.outcome.levels["hub"].fit.hub, state.outcome.levels["pooled"].ridge
    design = state.scaling.design_rows(X)
    eta = (design * level.fit.coefficients[tasks - 1]).sum(axis=1)
    weight = np.exp(-eta) / (1 + np.exp(-eta)) ** 2
    whole = np.zeros((n + 1, p, n + 1, p))
    for i in range(n):
        own = tasks == i + 1
        whole[i, :, i] = (design[own] * weight[own, None]).T @ design[own] + np.diag(hub)
        whole[i, :, n] = whole[n, :, i] = -np.diag(hub)
    whole[n, :, n] = np.diag(n * hub + ridge)
    inverse = np.linalg.inv(whole.reshape((n + 1) * p, -1)).reshape(n + 1, p, n + 1, p)[:n, :, :n]
    np.testing.assert_allclose(state.outcome.common, inverse.sum(axis=(0, 2)) / n**2, rtol=1e-4)


def test_an_explained_edge_is_a_refit_without_it(model):
    """Newton's method against a general minimiser of the same objective, on all rows and without each fold."""
    state, (i, j) = model.state_, model.graph_.edges[0]
    fit, kept = state.level, state.outcome_rows
    gone = ~((fit.edges == [i, j]).all(axis=1))

    def refitted(rows, some=gone):
        edges, values = fit.edges[some], fit.edge_values[some]

        def objective(flat):
            models = flat.reshape(fit.coefficients.shape)
            apart, centred = models[edges[:, 0]] - models[edges[:, 1]], models - models.mean(axis=0)
            eta = (rows.design * models[rows.task]).sum(axis=1)
            loss = (np.logaddexp(0, eta) - rows.target * eta).sum()
            return loss + 0.5 * (values @ (apart**2 @ fit.coupling) + (centred**2 @ fit.hub).sum())

        found = minimize(
            objective, fit.coefficients.ravel(), method="L-BFGS-B", options={"maxfun": 10**6, "ftol": 1e-13}
        )
        return found.x.reshape(fit.coefficients.shape)

    explanation = explain_edge(model, *model.tasks_[[i, j]])
    assert explanation.linked
    moved = (refitted(kept.rows, gone | True) - refitted(kept.rows))[[i, j]]
    shares = np.array([agreement.moved for agreement in explanation.features])[:3]
    expected = model.blend_["graph"] * moved[:, :3] / model.scaling_.scale[:3]
    np.testing.assert_allclose(shares.T, expected, atol=2e-4)
    total = number = 0.0
    for k in kept.scored:
        models, part = refitted(kept.training(k)), kept.part(k)
        eta = (part.design * models[part.task]).sum(axis=1)
        pair = np.isin(part.task, [i, j])
        total += (np.logaddexp(0, eta) - part.target * eta)[pair].sum()
        number += pair.sum()
    assert explanation.error_without == pytest.approx(total / number, rel=1e-4)
    assert "their log-loss on held-out rows" in explanation.describe()


def test_stable_edges_are_those_of_one_kind(model):
    stability = edge_stability(model, n_resamples=4, verbose=0)
    often = stability.edges[stability.frequency >= 0.75]
    # Task 0 has one class, and may go with any.
    often = often[(often > 0).all(axis=1)]
    assert len(often) > 5
    assert (often.sum(axis=1) % 2 == 0).mean() > 0.9
    with pytest.raises(ParameterError, match="Give none"):
        edge_stability(model, np.zeros((3, 3)), n_resamples=1)


def test_the_transfer_report_speaks_of_log_loss(model, rows):
    report = transfer_report(model)
    assert report.total[-1] == pytest.approx(model.validation_error_)
    assert "Log-loss on held-out rows" in report.describe()
    assert report.gain_over_alone.share > 0
    assert report.verdict.split(".")[0] in model.summary()
    again = transfer_report(model, rows[0], rows[1], rows[2])
    np.testing.assert_allclose(again.total, report.total)


def test_intervals_hold_the_true_probabilities():
    inside = []
    for seed in range(6):
        data = make_clusters(12, n_tasks=12, n_features=3, n_samples=60, family="logistic", random_state=seed)
        model = GGMTLClassifier(random_state=0).fit(data.X, data.y, tasks=data.tasks)
        low, high = model.predict_interval(data.test.X, 0.9, tasks=data.test.tasks).T
        truth = 1 / (1 + np.exp(-(data.test.X * data.coefficients[data.test.tasks]).sum(axis=1)))
        inside.append(((low < truth) & (truth < high)).mean())
    assert 0.84 < np.mean(inside) < 0.95


def test_a_file_with_the_rows_answers_the_same_questions(model, tmp_path):
    model.save(tmp_path / "small")
    small = load_model(tmp_path / "small")
    with pytest.raises(InputError, match="keep_statistics=True"):
        explain_edge(small, 2, 4)
    target = summarize(model)["target"]
    rounded = {
        name: pytest.approx(target[name], rel=1e-4) for name in ("explained", "null", "base", "task_auc", "expected")
    }
    loaded = summarize(small)["target"]
    np.testing.assert_allclose(loaded.pop("groups"), target.pop("groups"), rtol=1e-6)
    assert loaded == {**target, **rounded}
    model.save(tmp_path / "whole", keep_statistics=True)
    whole = load_model(tmp_path / "whole")
    assert explain_edge(whole, 2, 4).error_without == pytest.approx(explain_edge(model, 2, 4).error_without)
    grown = whole.add_task(99, np.zeros((4, 3)), ["no", "no", "yes", "no"])
    assert np.isfinite(explain_edge(grown, 2, 99).error)
    assert transfer_report(small).verdict == transfer_report(model).verdict


def test_ranking_within_tasks_uses_pairs_of_one_fold():
    rng = np.random.default_rng(0)
    task, fold = np.repeat(np.arange(4), 60), rng.integers(3, size=240)
    score, target = rng.normal(size=240).round(1), rng.integers(2, size=240).astype(float)
    found = ranking(score, target, np.ones(240), task, 4, fold)
    for k in range(4):
        groups = [(task == k) & (fold == f) for f in range(3)]
        pairs = [target[rows].sum() * (1 - target[rows]).sum() for rows in groups]
        areas = [roc_auc_score(target[rows], score[rows]) for rows in groups]
        assert found[k] == pytest.approx(np.average(areas, weights=pairs))


def test_an_interrupted_fit_goes_on_from_its_checkpoint(rows, tmp_path, monkeypatch):
    X, y, tasks = rows
    expected = GGMTLClassifier(random_state=0).fit(X, y, tasks=tasks)
    learn, learned = outcomes.learn_outcome_levels, []

    def stopped(*given, **options):
        learned.append(1)
        if len(learned) == 4:
            raise KeyboardInterrupt
        return learn(*given, **options)

    monkeypatch.setattr(outcomes, "learn_outcome_levels", stopped)
    model = GGMTLClassifier(random_state=0, checkpoint=tmp_path / "fit.ckpt")
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y, tasks=tasks)
    with pytest.raises(ParameterError, match="unfinished"):
        clone(model).fit(X, y[::-1], tasks=tasks)
    model.fit(X, y, tasks=tasks)
    # Levels on all rows and without five folds; the one that was interrupted begins again.
    assert len(learned) == 7
    np.testing.assert_array_equal(model.coef_, expected.coef_)
    np.testing.assert_array_equal(model.predict_proba(X, tasks=tasks), expected.predict_proba(X, tasks=tasks))


def test_folds_are_shared_among_workers(rows, model):
    X, y, tasks = rows
    other = clone(model).set_params(n_jobs=2).fit(X, y, tasks=tasks)
    np.testing.assert_allclose(other.coef_, model.coef_, rtol=1e-9)
    assert other.blend_ == pytest.approx(model.blend_)
