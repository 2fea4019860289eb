"""Files from anywhere: a model file, a table or a command line is read rightly or refused in words."""

import copy
import csv
import io
import struct
import warnings

import numpy as np
import pytest
from harness import assert_finite, attempt, fuzz
from hypothesis import strategies as st
from inputs import ODD_NAMES, tables

from ggmtl import GGMTLClassifier, GGMTLRegressor, TaskStatistics, load_model
from ggmtl.data.frames import as_table
from ggmtl.datasets import make_clusters
from ggmtl.graph import TaskGraph
from ggmtl.runtime.files import read_file, write_file

HEADER = struct.calcsize("<8sIIQ32s")


@pytest.fixture(scope="module")
def model_bytes(tmp_path_factory):
    rng = np.random.default_rng(0)
    X, tasks = rng.normal(size=(40, 2)), np.repeat(["a", "b", "c", "d"], 10)
    path = tmp_path_factory.mktemp("models") / "m.ggmtl"
    GGMTLRegressor(validation=None).fit(X, X.sum(axis=1) + rng.normal(size=40), tasks=tasks).save(path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


edits = st.lists(
    st.tuples(st.sampled_from(["flip", "cut", "insert", "zero", "swap"]), st.integers(0, 2**20), st.binary(max_size=9)),
    max_size=4,
)


def mutate(content, steps):
    for kind, where, extra in steps:
        where %= max(len(content), 1)
        if kind == "flip" and content:
            content = content[:where] + bytes([content[where] ^ (1 + len(extra))]) + content[where + 1 :]
        elif kind == "cut":
            content = content[:where]
        elif kind == "insert":
            content = content[:where] + extra + content[where:]
        elif kind == "zero":
            content = content[:where] + b"\0" * len(extra) + content[where + len(extra) :]
        else:
            content = content[where:] + content[:where]
    return content


@fuzz(ci=150, long=3000, steps=edits, resign=st.booleans())
def test_a_mutated_model_file_is_refused_or_the_same_model(model_bytes, folder, steps, resign):
    content = mutate(model_bytes, steps)
    if resign:
        content = signed(content)
    path = folder / "model.ggmtl"
    path.write_bytes(content)
    model = attempt(load_model, path)
    if model is not None:
        predicted = attempt(model.predict, np.ones((1, 2)), tasks=np.array([model.tasks_[0]]))
        if content == model_bytes:
            assert_finite(predicted)


def signed(content):
    """The same file with length and checksum set right, so that the damage reaches the parser."""
    import hashlib

    if len(content) < HEADER:
        return content
    magic, version, header, _, _ = struct.unpack_from("<8sIIQ32s", content)
    body = content[HEADER:]
    return struct.pack("<8sIIQ32s", magic, version, header, len(content), hashlib.sha256(body).digest()) + body


def made_models():
    """A small model of every kind that a file may hold."""
    data = make_clusters(2, n_tasks=6, n_features=3, n_samples=12, noise=0.3, random_state=0)
    known = {
        "task": np.unique(data.tasks),
        "lon": [0, 4, 9, 1, 5, 8],
        "lat": [3, 1, 5, 0, 9, 2],
        "kind": list("aabbab"),
    }
    y = data.y
    yield "plain", GGMTLRegressor().fit(data.X, y, tasks=data.tasks)
    yield "curves", GGMTLRegressor(effects="auto", validation=3).fit(data.X, y, tasks=data.tasks)
    yield "described", GGMTLRegressor().fit(data.X, y, tasks=data.tasks, task_features=as_table(known, None))
    yield "classes", GGMTLClassifier(validation=3).fit(data.X, np.where(y > 0, "yes", "no"), tasks=data.tasks)
    yield "counts", GGMTLRegressor(loss="poisson", validation=3).fit(data.X, np.floor(y**2), tasks=data.tasks)


class Contents(list):
    """A list that is short in reports."""

    def __repr__(self):
        return "contents"


@pytest.fixture(scope="module")
def contents(tmp_path_factory):
    """Plain data and arrays of the files of all kinds, with and without statistics."""
    path, found = tmp_path_factory.mktemp("contents") / "m.ggmtl", Contents()
    for name, model in made_models():
        for keep in (False, True)[: 1 + (name in ("plain", "curves", "described"))]:
            model.save(path, keep_statistics=keep)
            found.append(read_file(path))
    return found


VALUES = (
    None, -1, 0, 1, 2.5, 1e308, -1e308, 1e-320, "x", "", [], {}, True, 10**30, [1, 2], "graph", "squared",
    {"$float": "nan"}, {"$float": "inf"}, {"$tuple": [1]}, {"$array": [1], "shape": [5]}, {"$time": ["<M8[D]", 5]},
    {"$rule": "KNN", "fields": {"$dict": []}},
)  # fmt: skip
CHANGES = ("nan", "inf", "negative", "zero", "huge", "int", "bool", "drop", "short", "long", "empty", "flat", "other")


def places_in(content, before=()):
    """Where every value of nested plain data is."""
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield (*before, key)
        yield from places_in(value, (*before, key))


def one_of(rng, values):
    return values[rng.integers(len(values))]


def with_other_value(content, rng):
    *above, last = one_of(rng, list(places_in(content)))
    inner = content
    for key in above:
        inner = inner[key]
    if rng.random() < 0.2:
        inner.pop(last)
    else:
        inner[last] = copy.deepcopy(one_of(rng, VALUES))


def with_other_array(arrays, rng):
    name, kind = one_of(rng, sorted(arrays)), one_of(rng, CHANGES)
    values = np.array(arrays[name])
    if kind == "drop":
        del arrays[name]
        return
    if kind in ("nan", "inf", "huge") and values.size and values.dtype.kind == "f":
        largest = 0.4 * float(np.finfo(values.dtype).max)
        values.flat[rng.integers(values.size)] = {"nan": np.nan, "inf": np.inf, "huge": largest}[kind]
    elif kind in ("int", "bool"):
        values = values.astype({"int": np.int32, "bool": bool}[kind])
    elif values.ndim and kind in ("short", "long", "empty"):
        values = {"short": values[:-1], "long": np.concatenate([values, values[:1]]), "empty": values[:0]}[kind]
    elif kind == "negative" and values.dtype.kind in "if":
        values = -values
    elif kind == "zero":
        values = np.zeros_like(values)
    elif kind == "other":
        values = arrays[one_of(rng, sorted(arrays))]
    else:
        values = values.ravel()
    arrays[name] = values


@fuzz(ci=60, long=6000, seed=st.integers(0, 2**63 - 1))
def test_a_file_with_other_parts_is_refused_or_a_model_that_answers(contents, folder, seed):
    rng = np.random.default_rng(seed)
    content, arrays = copy.deepcopy(one_of(rng, contents))
    warnings.simplefilter("ignore")
    for _ in range(rng.integers(1, 3)):
        change, part = (with_other_value, content) if rng.random() < 0.5 else (with_other_array, arrays)
        change(part, rng)
    path = folder / "parts.ggmtl"
    write_file(path, content, arrays)
    model = attempt(load_model, path)
    if model is None:
        return
    X, tasks = np.ones((2, model.n_features_in_)), model.tasks_[:2]
    attempt(model.predict, X, tasks=tasks)
    for method in ("coefficients", "conf_int", "path_table", "summary"):
        attempt(getattr(model, method))
    attempt(model.effect, 0)
    attempt(model.save, folder / "again.ggmtl")
    target = [1.0, 2.0]
    if isinstance(model, GGMTLClassifier):
        attempt(model.predict_proba, X, tasks=tasks)
        target = model.classes_[:2]
    elif model.state_.outcome is None:
        attempt(model.predict_interval, X, tasks=tasks)
    attempt(model.add_task, "zz" if model.tasks_.dtype.kind == "U" else 10**6, X, target)


@fuzz(ci=60, long=1500, content=st.binary(max_size=200))
def test_noise_is_no_model_file(folder, content):
    path = folder / "noise.ggmtl"
    path.write_bytes(content)
    assert attempt(load_model, path) is None


# ---------------------------------------------------------------- tables

cells = st.one_of(
    st.sampled_from(
        ["1", "2.5", "-3e2", "", "NA", "nan", "inf", "1e400", "0x10", "1,5", "TRUE", "2026-01-01", *ODD_NAMES]
    ),
    st.floats().map(repr),
    st.text(max_size=5),
)


@st.composite
def csv_files(draw):
    """Bytes that are more or less a CSV file with the columns t, x and y."""
    names = draw(st.sampled_from([["t", "x", "y"], ["t", "x", "y", "z"], ["t", "x", "x"], ["y"], ["t", "x", "y", ""]]))
    usual = st.one_of(st.sampled_from("abc"), st.integers(0, 3).map(str))
    number = st.floats(-1e3, 1e3).map(repr)
    rows = draw(st.lists(st.tuples(usual, number, number), max_size=12))
    table = [list(row) + ["0"] * (len(names) - 3) for row in rows]
    for _ in range(draw(st.sampled_from([0, 0, 1, 3]))):
        if table:
            row = table[draw(st.integers(0, len(table) - 1))]
            row[draw(st.integers(0, len(row) - 1))] = draw(cells)
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=draw(st.sampled_from(["\n", "\r\n"]))).writerows([names, *table])
    content = text.getvalue().encode("utf-8", errors="surrogatepass")
    mark = draw(st.sampled_from([b"", b"", b"\xef\xbb\xbf"]))
    return mark + mutate(content, draw(st.one_of(st.just([]), st.just([]), edits)))


def to_rows(content):
    """The rows of a plain file, by the csv module; None where it is not plain."""
    try:
        rows = list(csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline="")))
        return [(row["t"], float(row["x"]), float(row["y"])) for row in rows]
    except (UnicodeDecodeError, KeyError, ValueError, TypeError, csv.Error):
        return None


@fuzz(ci=80, long=2000, content=csv_files(), folds=st.sampled_from([None, 2]), drop=st.booleans())
def test_the_csv_reader(folder, content, folds, drop):
    pytest.importorskip("pyarrow")
    path = folder / "rows.csv"
    path.write_bytes(content)
    options = {"task": "t", "target": "y", "features": ["x"], "folds": folds, "drop_missing": drop}
    # Rows that repeat with other targets are to be pointed out.
    warnings.filterwarnings("ignore", "About .* of the rows")
    statistics = attempt(TaskStatistics.from_csv, path, **options)
    if statistics is None:
        return
    assert_finite(statistics.gram, statistics.moment, statistics.count)
    rows = to_rows(content)
    if rows is not None and not drop and statistics.count.sum() == len(rows):
        x = np.array([row[1] for row in rows])
        np.testing.assert_allclose(statistics.feature_sum.sum(), x.sum(), atol=1e-9 * max(np.abs(x).sum(), 1.0))


@fuzz(ci=40, long=600, table=tables(scales=False), steps=st.sampled_from([[], None]), data=st.data())
def test_the_parquet_reader(folder, table, steps, data):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    # pyarrow would cut text of a NumPy array at a null character.
    tasks = table.tasks.tolist() if table.tasks.dtype.kind == "U" else table.tasks
    columns = {"t": tasks, "y": table.y} | {f"x{k}": column for k, column in enumerate(table.X.T)}
    buffer = io.BytesIO()
    parquet.write_table(arrow.table(columns), buffer)
    content = mutate(buffer.getvalue(), data.draw(edits) if steps is None else steps)
    path = folder / "rows.parquet"
    path.write_bytes(content)
    statistics = attempt(TaskStatistics.from_parquet, path, task="t", target="y")
    if statistics is not None and steps is not None:
        expected = TaskStatistics.from_arrays(table.X, table.y, table.tasks)
        np.testing.assert_allclose(statistics.count, expected.count)
        assert statistics.task_names.tolist() == expected.task_names.tolist()


@fuzz(ci=30, long=600, names=st.permutations(ODD_NAMES), weight=st.floats(0.01, 1.0))
def test_exports_of_odd_names_can_be_read_back(folder, names, weight):
    from xml.etree import ElementTree

    graph = TaskGraph([[0, 1], [1, 2]], [weight, 1.0], np.array(names[:3]))
    graph.to_graphml(folder / "g.graphml")
    assert len(ElementTree.parse(folder / "g.graphml").getroot().findall(".//{*}edge")) == 2
    graph.to_csv(folder / "g.csv")
    with open(folder / "g.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert len(rows) == 3
    assert not any(cell.startswith(("=", "+", "-", "@")) for row in rows[1:] for cell in row[:2])


# ---------------------------------------------------------------- command line


@pytest.fixture(scope="module")
def run():
    testing = pytest.importorskip("typer.testing")
    pytest.importorskip("rich")
    pytest.importorskip("pyarrow")
    from ggmtl.cli.app import app

    return lambda *arguments: testing.CliRunner().invoke(app, [str(argument) for argument in arguments])


def check_run(result):
    """Done, or refused in words with code 1 or 2; no traceback, no control codes."""
    assert result.exit_code in (0, 1, 2), result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert not any((ord(letter) < 32 and letter not in "\n\t") or letter == "\x7f" for letter in result.output)
    if result.exit_code:
        assert len(result.output) > 10


@fuzz(ci=30, long=500, content=csv_files(), drop=st.booleans())
def test_fit_and_predict_by_command(folder, run, content, drop):
    path, model = folder / "in.csv", folder / "out.ggmtl"
    path.write_bytes(content)
    model.unlink(missing_ok=True)
    flag = ["--drop-missing"] if drop else []
    result = run("fit", path, "--task", "t", "--target", "y", "--output", model, *flag)
    check_run(result)
    assert (result.exit_code == 0) == model.exists()
    if model.exists():
        check_run(run("predict", model, path, "--output", folder / "p.csv", "--unseen", "hub", *flag))


words = st.one_of(
    st.sampled_from(
        ["fit", "predict", "report", "compare", "bench", "--task", "--target", "t", "y", "--folds", "-1", "0"]
    ),
    st.sampled_from(
        ["--output", "--features", ",", "--methods", "hub", "--help", "--version", "--", "-", "", "\x1b[2J"]
    ),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=6),
)


@fuzz(ci=60, long=1200, arguments=st.lists(words, max_size=5))
def test_any_command_line_is_answered(folder, run, arguments, monkeypatch_module):
    # Commands that take long or write to the working folder by default are tested elsewhere.
    if not {"demo", "reproduce", "bench"} & set(arguments):
        check_run(run(*arguments))


@pytest.fixture(scope="module")
def monkeypatch_module(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield patch
