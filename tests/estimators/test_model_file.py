"""Model files: what goes in comes out, and nothing that is not a whole, unchanged file is believed."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import zlib
from pathlib import Path

import numpy as np
import pytest
from sklearn.model_selection import KFold

from ggmtl import KNN, Complete, Coordinates, GGMTLRegressor, load_model
from ggmtl.bilevel.level import GraphFit
from ggmtl.data.task_data import InputForm
from ggmtl.datasets import make_clusters
from ggmtl.errors import InputError, ModelFileError, ParameterError
from ggmtl.estimators.file_format import decode, encode, round_mantissa
from ggmtl.estimators.model_file import write_model
from ggmtl.estimators.parameters import settings_of
from ggmtl.fit.family import Family, by_name
from ggmtl.fit.held_out import FoldErrors
from ggmtl.fit.state import FittedState
from ggmtl.graph import TaskGraph
from ggmtl.runtime import files
from ggmtl.runtime.files import _PREFIX, read_file, write_file
from ggmtl.statistics.scaling import Scaling

FAST = {"criterion": "validation", "edge_entropy": 0.0, "coupling": 1.0, "validation": 0.25}


def make(rng, n=6, rows=10, d=2, labels=None):
    X, index = rng.normal(size=(n * rows, d)), np.repeat(np.arange(n), rows)
    y = (X * rng.normal(size=(n, d))[index]).sum(axis=1) + 0.3 * rng.normal(size=n * rows)
    return X, y, index if labels is None else labels[index]


@pytest.fixture(scope="module")
def fitted():
    X, y, tasks = make(np.random.default_rng(0), labels=np.array(["ä", "b", "c c", "d", "ee", "f\n"]))
    return GGMTLRegressor(**FAST, random_state=1).fit(X, y, tasks=tasks), X, tasks


@pytest.fixture(scope="module")
def raw(fitted, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "m.ggmtl"
    fitted[0].save(path)
    return path.read_bytes()


def signed(header, payload):
    """A file with a valid checksum, whatever it says."""
    body = header + payload
    return (
        _PREFIX.pack(b"\x89GGMTL\r\n", 1, len(header), _PREFIX.size + len(body), hashlib.sha256(body).digest()) + body
    )


def parts(raw):
    _, _, size, _, _ = _PREFIX.unpack_from(raw)
    return json.loads(raw[_PREFIX.size : _PREFIX.size + size]), raw[_PREFIX.size + size :]


# ---------------------------------------------------------------------- what goes in comes out


def test_a_loaded_model_is_the_saved_one(fitted, tmp_path):
    model, X, tasks = fitted
    model.save(tmp_path / "m.ggmtl")
    loaded = load_model(tmp_path / "m.ggmtl")
    np.testing.assert_array_equal(loaded.predict(X, tasks=tasks), model.predict(X, tasks=tasks))
    for name in ("coef_", "intercept_", "tasks_", "hub_coef_", "coupling_", "hub_strength_"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(model, name))
    order = np.lexsort(model.edges_.T[::-1])
    np.testing.assert_array_equal(loaded.edges_, model.edges_[order])
    np.testing.assert_array_equal(loaded.edge_weights_, model.edge_weights_[order])
    np.testing.assert_array_equal(loaded.graph_.edges, model.graph_.edges)
    np.testing.assert_array_equal(loaded.graph_.weights, model.graph_.weights)
    assert loaded.get_params() == model.get_params()
    assert repr(loaded.path_) == repr(model.path_)
    for name in ("history_", "n_iter_", "status_", "converged_", "validation_error_", "criterion_", "feature_names_"):
        assert getattr(loaded, name) == getattr(model, name)
    saved, back = model.coefficients(), loaded.coefficients()
    np.testing.assert_allclose(back["standard_error"], saved["standard_error"], rtol=3e-3)
    assert pickle.loads(pickle.dumps(loaded)).tasks_.tolist() == model.tasks_.tolist()


def test_levels_of_some_columns_come_back(tmp_path):
    rng = np.random.default_rng(0)
    x, tasks = rng.uniform(0, 6, (160, 2)), np.repeat(np.arange(8), 20)
    y = np.sin(x[:, 0]) + 0.1 * tasks * x[:, 1] + 0.1 * rng.standard_normal(160)
    model = GGMTLRegressor(effects="auto", random_state=0).fit(x, y, tasks=tasks)
    model.save(tmp_path / "m.ggmtl")
    averaged = [model.state_.family.levels[name] for name in model.state_.family.weights]
    assert any(level.columns is not None and level.precision is not None for level in averaged)
    np.testing.assert_array_equal(load_model(tmp_path / "m.ggmtl").predict(x, tasks), model.predict(x, tasks))


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["", "a", "aa", "é", "名", "\U0001f600"]),
        np.array([-5, 0, 3, 7, 2**40, 2**62]),
        np.array([0, 1, 2, 3, 4, 5], dtype=np.uint8),
        np.array([-1.5, 0.0, 0.1, 1e300, 2e300, 3e300]),
        np.array(["2020-01-01", "2020-01-02", "2021", "2022", "2023", "2024"], dtype="M8[ns]"),
        np.array([1, 2, 3, 4, 5, 6], dtype="m8[s]"),
    ],
    ids=lambda labels: labels.dtype.str,
)
def test_task_labels_of_every_kind_come_back(labels, tmp_path):
    X, y, tasks = make(np.random.default_rng(1), labels=labels)
    model = GGMTLRegressor(candidates=np.empty((0, 2)), validation=None).fit(X, y, tasks=tasks)
    model.save(tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    assert loaded.tasks_.dtype == model.tasks_.dtype
    np.testing.assert_array_equal(loaded.tasks_, model.tasks_)
    np.testing.assert_array_equal(loaded.predict(X, tasks=tasks), model.predict(X, tasks=tasks))


def test_with_statistics_everything_can_be_asked_of_a_loaded_model(fitted, tmp_path):
    model, X, tasks = fitted
    model.save(tmp_path / "m", keep_statistics=True)
    loaded = load_model(tmp_path / "m")
    np.testing.assert_array_equal(loaded.state_.statistics.cross, model.state_.statistics.cross)
    deviations = [m.predict(X, tasks=tasks, return_std=True)[1] for m in (model, loaded)]
    np.testing.assert_allclose(deviations[1], deviations[0], rtol=1e-9)


def test_without_statistics_what_needs_them_says_so(fitted, tmp_path):
    model, X, tasks = fitted
    model.save(tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    with pytest.raises(InputError, match="keep_statistics=True"):
        loaded.partial_fit(X, X[:, 0], tasks=tasks)
    with pytest.raises(InputError, match="keep_statistics=True"):
        loaded.predict(X, tasks=tasks, return_std=True)
    with pytest.raises(InputError, match="keep_statistics=True"):
        loaded.save(tmp_path / "m2", keep_statistics=True)
    loaded.add_task("new", X[:3], X[:3, 0])
    assert "new" in loaded.tasks_
    loaded.save(tmp_path / "m3")
    assert "new" in load_model(tmp_path / "m3").tasks_


@pytest.mark.parametrize(
    "candidates",
    [
        KNN(k=3, must_link=[(0, 1)], forbid=((2, 3),)),
        Complete(),
        Coordinates(np.arange(12.0).reshape(6, 2), k=2),
        Coordinates({i: (float(i), 0.5) for i in range(6)}, k=1),
        np.array([[0, 1], [2, 3]]),
        [(0, 1), (1, 5)],
        "complete",
    ],
    ids=lambda rule: type(rule).__name__,
)
def test_candidate_rules_come_back(candidates, tmp_path):
    X, y, tasks = make(np.random.default_rng(2))
    model = GGMTLRegressor(**FAST, candidates=candidates).fit(X, y, tasks=tasks)
    model.save(tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    assert repr(loaded.candidates) == repr(candidates)
    refitted = loaded.fit(X, y, tasks=tasks)
    np.testing.assert_allclose(refitted.coef_, model.coef_)


def test_parameters_without_a_plain_form_are_refused_by_name(tmp_path):
    X, y, tasks = make(np.random.default_rng(3))
    options = {**FAST, "validation": KFold(4)}
    model = GGMTLRegressor(**options).fit(X, y, tasks=tasks)
    with pytest.raises(ParameterError, match=r"validation holds an object of type KFold"):
        model.save(tmp_path / "m")
    assert not (tmp_path / "m").exists()
    model.set_params(validation=4).save(tmp_path / "m")


@pytest.mark.parametrize(
    "value",
    [None, True, 3, 2.5, float("inf"), "text", (1, "a"), [1, (2,)], {1: [2], "a": None}, np.float64(0.1), np.int8(3)],
)
def test_plain_values_survive(value):
    assert decode(json.loads(json.dumps(encode(value, "x")))) == value
    assert np.isnan(decode(encode(float("nan"), "x")))


def test_few_bits_keep_a_thousandth():
    values = np.array([1e-20, 0.3, -7.0, 1e20, np.inf, -np.inf, np.nan, 0.0])
    rounded = round_mantissa(values, 8)
    np.testing.assert_allclose(rounded, values, rtol=2e-3)


# ---------------------------------------------------------------------- small and quick


def thousand_tasks(n_edges=4000):
    """All that a model of 1,000 tasks and 30 features is, made of noise, which does not compress."""
    rng = np.random.default_rng(4)
    n, d = 1000, 30
    names, p = np.array([f"store {k:04d}" for k in range(n)]), d + 1
    keys = rng.choice(n * (n - 1) // 2, n_edges, replace=False)
    edges = np.column_stack(np.triu_indices(n, 1))[np.sort(keys)]
    graph = TaskGraph(edges, rng.random(n_edges), names)
    arrays = (edges, rng.random(n_edges), rng.random(p), rng.random(p), rng.normal(size=(n, p)))
    nothing = (edges[:0], np.empty(0), np.zeros(p), np.zeros(p), np.empty((0, p)))
    simple = [GraphFit(name, *nothing, float("nan")) for name in ("pooled", "hub", "independent")]
    fit = GraphFit("graph", *arrays, -1.5, reported_weights=graph.weights, supported=True)
    errors = FoldErrors(rng.random((4, 5, n)), np.full((5, n), 3.0))
    given = {"noise": 0.5, "standard_errors": rng.random((n, p)), "noise_ratios": None}
    family = Family.choosing(by_name([*simple, fit]), errors, "graph", "evidence")
    return FittedState(
        names,
        tuple(f"feature {k}" for k in range(d)),
        InputForm(),
        Scaling(rng.normal(size=d), 1.0 + rng.random(d), 0.3, 2.0, True),
        settings_of(GGMTLRegressor(), p),
        family,
        graph,
        family.table(1.0, np.ones(p, dtype=bool)),
        None,
        given=given,
    )


def test_a_thousand_tasks_fit_in_four_hundred_kilobytes(tmp_path):
    state = thousand_tasks()
    write_model(tmp_path / "m", GGMTLRegressor().get_params(), state)
    assert os.path.getsize(tmp_path / "m") < 400_000
    loaded = load_model(tmp_path / "m")
    np.testing.assert_array_equal(loaded.state_.coefficients, state.level.coefficients)
    np.testing.assert_array_equal(loaded.graph_.weights, state.graph.weights)
    np.testing.assert_array_equal(loaded.state_.level.reported_weights, state.graph.weights)
    np.testing.assert_allclose(loaded.state_.family.errors.task_mean(), state.family.errors.task_mean(), rtol=1e-3)


# ---------------------------------------------------------------------- whole or not at all


def test_a_failed_write_leaves_the_old_file(fitted, tmp_path, monkeypatch):
    model = fitted[0]
    model.save(tmp_path / "m")
    before = (tmp_path / "m").read_bytes()

    def fail(*_):
        raise OSError(28, "disk full")

    monkeypatch.setattr(files.os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        model.save(tmp_path / "m")
    assert (tmp_path / "m").read_bytes() == before
    assert os.listdir(tmp_path) == ["m"]


def test_no_pickle_is_ever_loaded(fitted, tmp_path, monkeypatch):
    fitted[0].save(tmp_path / "m")

    def refuse(*_, **__):
        raise AssertionError("pickle")

    monkeypatch.setattr(pickle, "loads", refuse)
    monkeypatch.setattr(pickle, "load", refuse)
    load_model(tmp_path / "m")


# ---------------------------------------------------------------------- damaged files


def load_bytes(raw, tmp_path):
    (tmp_path / "x").write_bytes(raw)
    return load_model(tmp_path / "x")


def test_missing_foreign_truncated_longer_and_newer_files_have_messages_of_their_own(raw, tmp_path):
    with pytest.raises(ModelFileError, match="cannot be read"):
        load_model(tmp_path / "nowhere")
    for foreign in (b"", b"PK\x03\x04 a zip file", b"\x89PNG\r\n\x1a\n" + bytes(100)):
        with pytest.raises(ModelFileError, match="not a ggmtl model file"):
            load_bytes(foreign, tmp_path)
    for size in (4, 30, 60, len(raw) // 2, len(raw) - 1):
        with pytest.raises(ModelFileError, match="truncated"):
            load_bytes(raw[:size], tmp_path)
    with pytest.raises(ModelFileError, match="longer"):
        load_bytes(raw + b"x", tmp_path)
    with pytest.raises(ModelFileError, match=r"format 2.*Upgrade"):
        load_bytes(raw[:8] + b"\x02\x00\x00\x00" + raw[12:], tmp_path)
    flipped = bytearray(raw)
    flipped[-10] ^= 1
    with pytest.raises(ModelFileError, match="checksum"):
        load_bytes(bytes(flipped), tmp_path)


def test_declared_sizes_are_not_believed(raw, tmp_path):
    header, payload = parts(raw)

    def with_entry(**change):
        table = {**header["arrays"], "coefficients": {**header["arrays"]["coefficients"], **change}}
        return signed(json.dumps({**header, "arrays": table}).encode(), payload)

    for change in (
        {"shape": [10**12, 10**6]},
        {"shape": [-1, 3]},
        {"shape": [6.0, 3]},
        {"shape": [6, 4]},
        {"shape": "big"},
        {"offset": 10**9},
        {"offset": -5},
        {"stored": 10**15},
        {"dtype": "|O"},
        {"dtype": ["<f8"]},
    ):
        with pytest.raises(ModelFileError, match="damaged"):
            load_bytes(with_entry(**change), tmp_path)


def test_a_compressed_bomb_is_refused(raw, tmp_path):
    header, _ = parts(raw)
    bomb = zlib.compress(bytes(10_000_000))
    header["arrays"]["coefficients"] |= {"offset": 0, "stored": len(bomb), "shape": [6, 3]}
    header["arrays"] = {"coefficients": header["arrays"]["coefficients"]}
    with pytest.raises(ModelFileError, match="size declared"):
        load_bytes(signed(json.dumps(header).encode(), bomb), tmp_path)


def test_arrays_that_overlap_or_leave_gaps_are_refused(raw, tmp_path):
    header, payload = parts(raw)
    zeros = zlib.compress(bytes(8 * 10**5))
    place = {"dtype": "<f8", "shape": [10**5], "offset": len(payload), "stored": len(zeros)}
    # Many names for the same bytes: a small file that would fill the memory.
    copies = {f"copy {k}": place for k in range(100)}
    for more, behind in (
        (copies, zeros),
        ({}, b"rest"),
        ({"late": place | {"offset": len(payload) + 1}}, b"-" + zeros),
    ):
        table = json.dumps({**header, "arrays": header["arrays"] | more}).encode()
        with pytest.raises(ModelFileError, match=r"overlap|do not fill"):
            load_bytes(signed(table, payload + behind), tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("noise", -1.0),
        ("noise", None),
        ("target", [0.0, 0.0, True]),
        ("target", [0.0, -1.0, True]),
        ("scale", 0.0),
        ("scale", -1.0),
        ("coupling", -1.0),
        ("hub", -1.0),
        ("standard_errors", -1.0),
    ],
)
def test_noise_and_scales_that_cannot_be_are_refused(fitted, tmp_path, name, value):
    fitted[0].save(tmp_path / "m")
    content, arrays = read_file(tmp_path / "m")
    if name in arrays:
        arrays[name] = np.full_like(arrays[name], value)
    else:
        content[name] = value
    write_file(tmp_path / "m", content, arrays)
    with pytest.raises(ModelFileError, match="damaged"):
        load_model(tmp_path / "m")


@pytest.mark.parametrize("name", ["errors.squared", "average.squared"])
def test_negative_sums_of_squares_are_refused(tmp_path, name):
    X, y, tasks = make(np.random.default_rng(0))
    GGMTLRegressor(random_state=1).fit(X, y, tasks=tasks).save(tmp_path / "m")
    content, arrays = read_file(tmp_path / "m")
    write_file(tmp_path / "m", content, arrays | {name: -arrays[name]})
    with pytest.raises(ModelFileError, match="damaged"):
        load_model(tmp_path / "m")


def test_a_path_without_some_of_the_levels_is_refused(fitted, tmp_path):
    fitted[0].save(tmp_path / "m")
    content, arrays = read_file(tmp_path / "m")
    facts = decode(content["facts"])
    content["facts"] = encode(facts | {"path_": facts["path_"][:-1]}, "facts")
    write_file(tmp_path / "m", content, arrays)
    with pytest.raises(ModelFileError, match="number of rows"):
        load_model(tmp_path / "m")


def test_a_file_says_nothing_about_the_machine_that_reads_it(fitted, tmp_path):
    model = fitted[0]
    session = {"checkpoint": str(tmp_path / "elsewhere"), "n_jobs": 64, "device": "cuda", "verbose": 3}
    write_model(tmp_path / "m", model.get_params() | session, model.state_)
    content, arrays = read_file(tmp_path / "m")
    assert not session.keys() & content["parameters"].keys()
    content["parameters"] |= session
    write_file(tmp_path / "m", content, arrays)
    assert load_model(tmp_path / "m").get_params() == model.get_params()


# ---------------------------------------------------------------------- where a file goes


@pytest.mark.skipif(os.name == "nt", reason="links and modes of POSIX")
def test_a_link_is_followed_and_the_mode_is_kept(fitted, tmp_path):
    target, link = tmp_path / "folder" / "real.ggmtl", tmp_path / "link.ggmtl"
    target.parent.mkdir()
    link.symlink_to(target)
    fitted[0].save(link)
    assert link.is_symlink()
    target.chmod(0o640)
    fitted[0].save(link)
    assert target.stat().st_mode & 0o777 == 0o640
    assert load_model(link).tasks_.tolist() == fitted[0].tasks_.tolist()
    assert [file.name for file in target.parent.iterdir()] == ["real.ggmtl"]


@pytest.mark.skipif(os.name == "nt", reason="pipes of POSIX")
def test_what_is_no_regular_file_is_refused_and_left_alone(fitted, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match=r"Not a regular file.*pipe"):
        fitted[0].save(pipe)
    with pytest.raises(IsADirectoryError):
        fitted[0].save(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["pipe"]


def test_deep_or_senseless_headers_are_refused(tmp_path):
    for header in (b"[" * 100_000, b"{}", b"null", b"\xff\xfe", b'{"content": {}, "arrays": []}', b'{"content": NaN}'):
        with pytest.raises(ModelFileError):
            load_bytes(signed(header, b""), tmp_path)
    write_file(tmp_path / "other", {"kind": "cake"}, {"a": np.arange(3)})
    with pytest.raises(ModelFileError, match="holds no GGMTLRegressor"):
        load_model(tmp_path / "other")
    assert read_file(tmp_path / "other")[1]["a"].tolist() == [0, 1, 2]


def test_unknown_parameters_are_refused(raw, tmp_path):
    header, payload = parts(raw)
    header["content"]["parameters"]["flavour"] = "sweet"
    with pytest.raises(ModelFileError, match="does not know: 'flavour'"):
        load_bytes(signed(json.dumps(header).encode(), payload), tmp_path)


def mutate(raw, rng):
    """One of: flipped bits, a cut, a piece doubled or dropped, another length field."""
    data = bytearray(raw)
    kind = rng.integers(5)
    if kind == 0:
        for _ in range(rng.integers(1, 4)):
            data[rng.integers(len(data))] ^= 1 << rng.integers(8)
    elif kind == 1:
        del data[rng.integers(len(data)) :]
    elif kind == 2:
        a = rng.integers(len(data))
        del data[a : a + rng.integers(1, 50)]
    elif kind == 3:
        a = rng.integers(len(data))
        data[a:a] = data[a : a + rng.integers(1, 50)]
    else:
        data[12:24] = rng.bytes(12)
    return bytes(data)


def mutate_inside(raw, rng):
    """A change of header or arrays under a checksum that is right."""
    _, _, size, _, _ = _PREFIX.unpack_from(raw)
    header, payload = bytearray(raw[_PREFIX.size : _PREFIX.size + size]), bytearray(raw[_PREFIX.size + size :])
    target = header if rng.random() < 0.8 else payload
    for _ in range(rng.integers(1, 3)):
        a = rng.integers(len(target))
        if rng.random() < 0.5:
            target[a] = rng.integers(256) if target is payload else rng.choice(list(b'0123456789,:"[]{}-.e$tfn'))
        else:
            del target[a : a + rng.integers(1, 6)]
    return signed(bytes(header), bytes(payload))


def fuzz(raw, model, X, tasks, path, number, seed):
    """How many mutated files were refused; any other end than refusal or the right answer raises."""
    rng, expected, refused = np.random.default_rng(seed), model.predict(X, tasks=tasks), 0
    for k in range(number):
        data = mutate(raw, rng) if k % 2 else mutate_inside(raw, rng)
        path.write_bytes(data)
        try:
            loaded = load_model(path)
        except ModelFileError:
            refused += 1
            continue
        if data == raw or k % 2:
            np.testing.assert_array_equal(loaded.predict(X, tasks=tasks), expected)
    return refused


def test_mutated_files_are_refused_or_give_the_right_answer(raw, fitted, tmp_path):
    model, X, tasks = fitted
    count = 10_000 if os.environ.get("HYPOTHESIS_PROFILE") == "long" else 1_000
    assert fuzz(raw, model, X, tasks, tmp_path / "x", count, seed=0) > 0.7 * count


EARLIER = Path(__file__).parent / "earlier"


@pytest.mark.parametrize("name", ["6a7a0e2_plain", "35f8f2b_curves"])
def test_files_of_earlier_versions_predict_the_same(name):
    data = make_clusters(2, n_tasks=6, n_features=3, n_samples=12, noise=0.3, random_state=0)
    model = load_model(EARLIER / f"{name}.ggmtl")
    np.testing.assert_allclose(model.predict(data.X, tasks=data.tasks), np.load(EARLIER / f"{name}.npy"), rtol=1e-12)
    assert model.add_task(99, data.X[:5], data.y[:5]).summary()


def test_files_of_classes_of_earlier_versions_are_refused_with_the_remedy():
    with pytest.raises(ModelFileError, match=r"earlier version.*Fit it again"):
        load_model(EARLIER / "35f8f2b_cls.ggmtl")
