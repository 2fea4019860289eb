"""Fits that are killed go on to the same result, those interrupted return the best graph so far."""

from __future__ import annotations

import errno
import json
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from joblib import parallel_config
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from ggmtl import GGMTLRegressor, load_model
from ggmtl.errors import ModelFileError, ParameterError
from ggmtl.runtime import journal as checkpoint
from ggmtl.runtime.files import read_file
from ggmtl.runtime.journal import Journal, open_journal, sketch
from ggmtl.runtime.sizes import Sizes

EVIDENCE = {"validation": 3}
VALIDATION = {"criterion": "validation", "validation": 3, "edge_entropy": 0.01, "tol": 1e-7}
PATH = {"criterion": "validation", "validation": 3, "max_iter": 8}
OPTIONS = {"evidence": EVIDENCE, "validation": VALIDATION}


def make(n=8, rows=15, d=3):
    rng = np.random.default_rng(0)
    W = np.cumsum(0.5 * rng.normal(size=(n, d)), axis=0)
    X, tasks = rng.normal(size=(n * rows, d)), np.repeat(np.arange(n), rows)
    return X, (X * W[tasks]).sum(axis=1) + 0.5 * rng.normal(size=n * rows), tasks


def fit(**options):
    X, y, tasks = make()
    return GGMTLRegressor(**options).fit(X, y, tasks=tasks)


@cache
def undisturbed(name: str) -> tuple[GGMTLRegressor, Recorder]:
    """A fit in one go, and its steps."""
    with pytest.MonkeyPatch.context() as patch:
        recorder = Recorder(patch)
        return fit(**OPTIONS[name]), recorder


@pytest.fixture(autouse=True)
def write_every_step(monkeypatch):
    monkeypatch.setattr(checkpoint, "INTERVAL", 0.0)


class Recorder:
    """Counts the outer steps of all searches, remembers the points evaluated, and acts after a given step."""

    def __init__(self, monkeypatch, act=None, at=None):
        from ggmtl.bilevel import algorithm as by_validation
        from ggmtl.evidence import edge_steps as evidence_learning

        self.steps, self.points = [], []
        step, move, evaluate = Journal.step, evidence_learning._step, by_validation.ValidationObjective.__call__

        def recorded(journal, name, **state):
            step(journal, name, **state)
            self.steps.append((journal.prefix + name, len(state.get("history") or state["common_steps"])))
            if len(self.steps) == at:
                act()

        def moved(model, values, *rest):
            self.points.append(values.tobytes().hex())
            return move(model, values, *rest)

        def evaluated(objective, x):
            coupling, hub = objective.strengths.at(x[objective.n_edges :])
            self.points.append(np.concatenate([x[: objective.n_edges], coupling, hub]).tobytes().hex())
            return evaluate(objective, x)

        monkeypatch.setattr(Journal, "step", recorded)
        monkeypatch.setattr(evidence_learning, "_step", moved)
        monkeypatch.setattr(by_validation.ValidationObjective, "__call__", evaluated)


SCRIPT = """
    import json, os, signal, sys
    sys.path.insert(0, {folder!r})
    import pytest
    import test_checkpoint as tests

    def die():
        with open({log!r}, "w") as file:
            json.dump([recorder.steps, recorder.points], file)
        os.kill(os.getpid(), signal.SIGKILL)

    tests.checkpoint.INTERVAL = 0.0
    recorder = tests.Recorder(pytest.MonkeyPatch(), die, {at})
    tests.fit(checkpoint={path!r}, **tests.OPTIONS[{name!r}])
"""


@dataclass
class Killed:
    steps: list
    points: list


def killed(name: str, at: int, path: Path, folder: Path) -> Killed:
    """Steps of a fit in a process of its own that is killed right after its step number `at`."""
    log = folder / "log.json"
    script = textwrap.dedent(SCRIPT).format(
        folder=str(Path(__file__).parent), log=str(log), at=at, path=str(path), name=name
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    steps, points = json.loads(log.read_text())
    return Killed([tuple(step) for step in steps], points)


# ---------------------------------------------------------------------- killed


def test_a_fit_by_evidence_killed_among_the_folds_goes_on_as_if_nothing_had_happened(tmp_path, monkeypatch):
    expected, whole = undisturbed("evidence")
    path = tmp_path / "fit.ggmtl"
    before = killed("evidence", int(0.6 * len(whole.steps)), path, tmp_path)
    after = Recorder(monkeypatch)
    model = fit(checkpoint=path, **EVIDENCE)
    assert before.steps[-1][0].startswith("fold")
    assert before.steps + after.steps == whole.steps
    assert before.points + after.points == whole.points
    np.testing.assert_array_equal(model.coef_, expected.coef_)
    assert model.history_ == expected.history_


def test_a_fit_by_validation_killed_on_all_rows_reaches_the_same_objective_and_repeats_no_step(tmp_path, monkeypatch):
    expected, whole = undisturbed("validation")
    path = tmp_path / "fit.ggmtl"
    # Near the end of a search. Earlier, one that goes on may find another optimum: its curvature is learned anew.
    last = max(k for k, (name, _) in enumerate(whole.steps) if name.startswith("levels/level"))
    before = killed("validation", last - 3, path, tmp_path)
    after = Recorder(monkeypatch)
    model = fit(checkpoint=path, **VALIDATION)
    assert before.steps[-1][0].startswith("levels/level")
    assert not set(before.steps) & set(after.steps)
    again = set(before.points) & set(after.points)
    # The point of the checkpoint itself is evaluated again, by the search that goes on and to set its scale.
    assert len(again) <= 2
    assert model.history_[-1] == pytest.approx(expected.history_[-1], rel=VALIDATION["tol"])
    np.testing.assert_allclose(model.predict(*make()[::2]), expected.predict(*make()[::2]), atol=1e-2)
    np.testing.assert_allclose(model.validation_error_, expected.validation_error_, rtol=1e-3)


def test_a_finished_fit_is_read_back_without_a_step(tmp_path, monkeypatch):
    path = tmp_path / "fit.ggmtl"
    first = fit(checkpoint=path, **EVIDENCE)
    recorder = Recorder(monkeypatch)
    second = fit(checkpoint=path, **EVIDENCE)
    assert not recorder.steps
    assert not recorder.points
    np.testing.assert_array_equal(first.coef_, second.coef_)
    assert first.validation_error_ == second.validation_error_


def test_folds_learned_at_the_same_time_are_kept_too(tmp_path):
    path = tmp_path / "fit.ggmtl"
    expected = undisturbed("evidence")[0]
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        interrupt_after(second_fold(), checkpoint=path, **EVIDENCE)
    with parallel_config(backend="threading", n_jobs=2):
        model = fit(checkpoint=path, **EVIDENCE)
    assert model.validation_error_ == pytest.approx(expected.validation_error_, rel=1e-12)


def test_a_checkpoint_changes_nothing_else(tmp_path):
    path = tmp_path / "fit.ggmtl"
    model = fit(checkpoint=path, **EVIDENCE)
    np.testing.assert_array_equal(model.coef_, undisturbed("evidence")[0].coef_)
    assert clone(model).get_params()["checkpoint"] == path
    assert [file.name for file in tmp_path.iterdir()] == ["fit.ggmtl"]
    model.save(tmp_path / "model.ggmtl")
    assert load_model(tmp_path / "model.ggmtl").checkpoint is None


# ---------------------------------------------------------------------- refused


def unfinished(path, **options):
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        return interrupt_after(2, checkpoint=path, **options)


def test_other_data_or_parameters_are_refused_by_name(tmp_path):
    path = tmp_path / "fit.ggmtl"
    unfinished(path, **EVIDENCE)
    X, y, tasks = make()
    with pytest.raises(ParameterError, match=r"unfinished fit with other max_iter \(200 then, 7 now\)\."):
        fit(checkpoint=path, max_iter=7, **EVIDENCE)
    with pytest.raises(ParameterError, match=r"with other means, rows\."):
        GGMTLRegressor(checkpoint=path, **EVIDENCE).fit(X, y + (np.arange(len(y)) == 3), tasks=tasks)
    with pytest.raises(ParameterError, match=r"with other tasks\."):
        GGMTLRegressor(checkpoint=path, **EVIDENCE).fit(X, y, tasks=tasks + 1)
    with pytest.raises(ParameterError, match="validation"):
        fit(checkpoint=path, validation=4)


def test_the_finished_file_of_another_fit_is_overwritten(tmp_path):
    path = tmp_path / "fit.ggmtl"
    fit(checkpoint=path, **EVIDENCE)
    other = fit(checkpoint=path, max_iter=5, tol=0.1, **EVIDENCE)
    assert other.max_iter == 5
    assert read_file(path)[0]["fingerprint"]["max_iter"] == 5


def test_rows_in_another_order_are_the_same_data(tmp_path):
    path = tmp_path / "fit.ggmtl"
    unfinished(path, **EVIDENCE)
    X, y, tasks = make()
    order = np.random.default_rng(1).permutation(len(y))
    model = GGMTLRegressor(checkpoint=path, **EVIDENCE).fit(X[order], y[order], tasks=tasks[order])
    np.testing.assert_allclose(model.coef_, undisturbed("evidence")[0].coef_, rtol=1e-6)


def test_a_damaged_or_foreign_file_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "fit.ggmtl"
    unfinished(path, **EVIDENCE)
    raw = path.read_bytes()
    path.write_bytes(raw[:-7])
    with pytest.raises(ModelFileError, match=r"truncated.*start afresh"):
        fit(checkpoint=path, **EVIDENCE)
    undisturbed("evidence")[0].save(path)
    with pytest.raises(ModelFileError, match="is no checkpoint"):
        fit(checkpoint=path, **EVIDENCE)
    load_model(path)
    with pytest.raises(ParameterError, match="checkpoint must be None or the name of a file"):
        fit(checkpoint=3)


# ---------------------------------------------------------------------- interrupted


def interrupt_after(at, **options):
    """A fit that gets the signal of Ctrl-C right after its step number `at`."""
    # A test run in the background is started with the signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.MonkeyPatch.context() as patch:
            Recorder(patch, lambda: signal.raise_signal(signal.SIGINT), at)
            return fit(**options)
    finally:
        signal.signal(signal.SIGINT, before)


def second_fold() -> int:
    """Number of the first step without the second fold, by evidence."""
    steps = undisturbed("evidence")[1].steps
    return 1 + next(k for k, (name, _) in enumerate(steps) if name.startswith("fold 1"))


@pytest.mark.parametrize("options", [EVIDENCE, VALIDATION, PATH], ids=["evidence", "validation", "path"])
def test_an_interruption_returns_the_graph_of_the_last_step(options):
    with pytest.warns(ConvergenceWarning, match="interrupted: the graph is the best found so far"):
        model = interrupt_after(12 if "criterion" in options else 3, **options)
    assert model.status_ == "interrupted"
    assert not model.converged_
    assert model.validation_error_ is None
    assert len(model.edges_)
    X, y, tasks = make()
    assert model.score(X, y, tasks=tasks) > 0.5
    value, deviation = model.predict(X, tasks=tasks, return_std=True)
    assert np.isfinite(value).all()
    assert (deviation > 0).all()
    assert isinstance(model.summary(), str)


def test_the_criterion_of_an_interrupted_fit_is_its_evidence():
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        model = interrupt_after(3, **EVIDENCE)
    level = next(level for level in model.path_ if level["chosen"])
    assert level["level"] == "graph"
    assert level["criterion"] == pytest.approx(-model.evidence().value, rel=1e-6)


def test_an_interruption_of_the_folds_chooses_by_those_done():
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        model = interrupt_after(second_fold(), **EVIDENCE)
    whole = undisturbed("evidence")[0]
    assert model.status_ == "interrupted"
    assert model.validation_error_ != whole.validation_error_
    np.testing.assert_array_equal(model.hub_coef_.shape, whole.hub_coef_.shape)


def test_an_interruption_before_the_first_level_is_passed_on(monkeypatch):
    from ggmtl.fit import levels

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(levels, "hub_level", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit(**EVIDENCE)


def test_an_interrupted_fit_goes_on_from_its_checkpoint(tmp_path):
    path = tmp_path / "fit.ggmtl"
    unfinished(path, **EVIDENCE)
    model = fit(checkpoint=path, **EVIDENCE)
    np.testing.assert_array_equal(model.coef_, undisturbed("evidence")[0].coef_)
    assert model.status_ != "interrupted"


@pytest.mark.parametrize("at", [2, 9])
def test_sampled_evidence_goes_on_from_its_checkpoint_too(at, tmp_path, monkeypatch):
    monkeypatch.setattr(GGMTLRegressor, "sizes", Sizes(exact_evidence=0))
    with pytest.MonkeyPatch.context() as patch:
        whole = Recorder(patch)
        expected = fit(**EVIDENCE)
    path = tmp_path / "fit.ggmtl"
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        model = interrupt_after(at, checkpoint=path, **EVIDENCE)
    assert model.status_ == "interrupted"
    after = Recorder(monkeypatch)
    np.testing.assert_allclose(fit(checkpoint=path, **EVIDENCE).coef_, expected.coef_, rtol=1e-3, atol=1e-4)
    assert after.steps == whole.steps[at:]


# ---------------------------------------------------------------------- the journal itself


@dataclass(frozen=True)
class Piece:
    name: str
    table: np.ndarray
    value: float
    history: tuple[float, ...]
    nothing: None = None


def test_parts_and_steps_come_back_from_the_file(tmp_path):
    path = tmp_path / "journal"
    piece = Piece("a", np.arange(6).reshape(2, 3), float("nan"), (1.0, float("inf")))
    journal = open_journal(path, {"x": 1}, (Piece,))
    inside = journal.inside("part")
    assert journal.once("part", lambda: inside.once("small", lambda: 3)) == 3
    assert inside.known("small") is None
    journal.once("pieces", lambda: [piece, True, (2, "b")])
    journal.step("search", x=np.ones(2), history=[0.5])
    again = open_journal(path, {"x": 1}, (Piece,))
    back, flag, pair = again.known("pieces")
    np.testing.assert_array_equal(back.table, piece.table)
    assert (back.name, back.history, back.nothing, flag, pair) == ("a", (1.0, float("inf")), None, True, (2, "b"))
    assert np.isnan(back.value)
    assert again.resume("search")["history"] == [0.5]
    with pytest.raises(ModelFileError, match="damaged"):
        open_journal(path, {"x": 1}, ())


def test_a_sketch_sees_every_number_and_no_order_of_summation():
    rng = np.random.default_rng(0)
    table = rng.normal(size=(50, 4, 4))
    changed = table.copy()
    changed[17, 2, 1] += 1e-3
    assert np.abs(sketch(table) - sketch(changed)).max() > 1e-8
    assert np.abs(sketch(table) - sketch(table[rng.permutation(50)])).max() > 1e-4
    parts = rng.normal(size=(100, 50, 4, 4))
    np.testing.assert_allclose(sketch(parts.sum(axis=0)), sketch(parts[::-1].cumsum(axis=0)[-1]), atol=1e-12)


def test_writing_takes_a_small_share_of_the_time(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "INTERVAL", 1e-9)
    clock = [0.0]
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: clock[0])
    writes = []

    def slow(*_):
        writes.append(clock[0])
        clock[0] += 5.0

    monkeypatch.setattr(checkpoint, "write_file", slow)
    journal = open_journal(tmp_path / "journal", {}, ())
    for _ in range(1000):
        clock[0] += 1.0
        journal.step("search", x=1)
    assert len(writes) * 5.0 < 0.12 * clock[0]


def test_a_full_disk_ends_the_record_and_not_the_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "INTERVAL", 0.0)
    calls = []

    def full(*_):
        calls.append(None)
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "c.ckpt"))

    monkeypatch.setattr(checkpoint, "write_file", full)
    with pytest.warns(UserWarning, match="cannot be written .*No space left on device") as told:
        model = fit(checkpoint=tmp_path / "c.ckpt", **EVIDENCE)
    assert len(calls) > 1
    assert sum("cannot be written" in str(entry.message) for entry in told) == 1
    np.testing.assert_array_equal(model.coef_, undisturbed("evidence")[0].coef_)


def test_a_checkpoint_that_can_never_be_written_is_an_error(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        fit(checkpoint=tmp_path / "absent" / "c.ckpt", **EVIDENCE)
