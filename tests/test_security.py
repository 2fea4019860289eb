"""Nothing that a user can be sent is executed, leaves its folder, or speaks to a terminal, a page or a spreadsheet."""

import ast
import csv
import hashlib
import importlib
import io
import os
import pickle
import pkgutil
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path, PurePosixPath

import numpy as np
import pytest

import ggmtl
from ggmtl import GGMTLRegressor, TaskGraph, load_model
from ggmtl.datasets import _files, make_clusters
from ggmtl.datasets._files import read_npz
from ggmtl.errors import InputError, ModelFileError
from ggmtl.inspection import explain_edge
from ggmtl.statistics.streaming.sources import from_bytes

SOURCE = Path(ggmtl.__file__).parent
# Modules that run what they read, start programs or listen to a network.
FORBIDDEN = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "subprocess", "socket", "socketserver"}
FORBIDDEN |= {"http.server", "xmlrpc", "ftplib", "telnetlib", "tarfile", "code", "pty"}


class Trap:
    """An object whose unpickling leaves a mark."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return (Path.touch, (self.mark,))


def trees():
    for file in sorted(SOURCE.rglob("*.py")):
        yield file, ast.parse(file.read_text(encoding="utf-8"))


def test_no_module_imports_what_runs_code_or_listens():
    for file, tree in trees():
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name not in FORBIDDEN, f"{file}:{node.lineno}"
                assert name.split(".")[0] not in FORBIDDEN, f"{file}:{node.lineno}"


def test_no_module_evaluates_text_or_loads_pickles():
    for file, tree in trees():
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            name = ast.unparse(call.func)
            assert name not in ("eval", "exec", "compile", "__import__", "os.system", "os.popen"), (
                f"{file}:{call.lineno}"
            )
            if name in ("np.load", "numpy.load"):
                keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
                assert keywords.get("allow_pickle") == "False", f"{file}:{call.lineno}"
            assert name not in ("joblib.load", "pd.read_pickle", "torch.load"), f"{file}:{call.lineno}"


def test_a_pickle_is_no_model_and_is_not_run(tmp_path):
    mark = tmp_path / "executed"
    (tmp_path / "m.ggmtl").write_bytes(pickle.dumps(Trap(mark)))
    with pytest.raises(ModelFileError, match="not a ggmtl model file"):
        load_model(tmp_path / "m.ggmtl")
    assert not mark.exists()


def test_pickled_arrays_are_refused_and_not_run(tmp_path):
    mark = tmp_path / "executed"
    np.savez(tmp_path / "a.npz", feature_names=np.array([Trap(mark)], dtype=object))
    with pytest.raises(InputError, match="plain arrays"):
        read_npz(tmp_path / "a.npz", ())
    with pytest.raises(ValueError, match="pickle"):
        from_bytes((tmp_path / "a.npz").read_bytes())
    assert not mark.exists()


# ---------------------------------------------------------------- downloads and archives


def known_files():
    """Every data file that the package knows of."""
    for entry in pkgutil.iter_modules([str(SOURCE / "datasets")]):
        module = importlib.import_module(f"ggmtl.datasets.{entry.name}")
        for value in vars(module).values():
            if isinstance(value, _files.DataFile):
                yield value


def test_every_known_file_has_a_checksum_a_place_below_the_cache_and_an_https_address():
    files = list(known_files())
    assert len(files) >= 5
    for file in files:
        assert re.fullmatch("[0-9a-f]{64}", file.sha256)
        place = PurePosixPath(file.path)
        assert not place.is_absolute()
        assert ".." not in place.parts
        assert file.url is None or file.url.startswith("https://")


def archive_of(member, content):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as writer:
        writer.writestr(member, content)
    return packed.getvalue()


@pytest.fixture
def served(tmp_path, monkeypatch):
    """Serve bytes as the download of a file with the given member; everything is written below `tmp_path`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a" / "b" / "cache"))
    monkeypatch.delenv("GGMTL_DATA_HOME", raising=False)

    def find(packed, member, content):
        monkeypatch.setattr(_files, "_fetch", lambda file, url: packed)
        digest = hashlib.sha256(content).hexdigest()
        file = _files.DataFile("set/file.bin", digest, "home", "https://example.org/x.zip", member)
        return _files.find_file(file, download=True)

    return find


@pytest.mark.parametrize("member", ["../../../evil", "/tmp/evil", "..\\evil", "a/../../evil"])
def test_a_member_with_a_path_is_written_to_the_cache_and_nowhere_else(served, tmp_path, member):
    path = served(archive_of(member, b"content"), zipfile.ZipInfo(member).filename, b"content")
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [path]
    assert path == tmp_path / "a" / "b" / "cache" / "ggmtl" / "set" / "file.bin"


def test_an_archive_that_unpacks_to_more_than_it_may_is_refused(served, monkeypatch):
    monkeypatch.setattr(_files, "MAX_UNPACKED", 1000)
    with pytest.raises(InputError, match="unpacks to more than"):
        served(archive_of("inside", b"0" * 100_000), "inside", b"0" * 100_000)


# ---------------------------------------------------------------- names

HOSTILE = ['=HYPERLINK("http://x")', "+1", "-1+2", "@SUM(A1)", "\tTAB", "<b onclick=x>", "\x1b[2J", "\u202etxt"]


def test_names_stay_text_in_tables_pages_and_graph_files(tmp_path):
    n = len(HOSTILE)
    graph = TaskGraph(np.column_stack([np.arange(n - 1), np.arange(1, n)]), np.ones(n - 1), np.array(HOSTILE))
    graph.to_csv(tmp_path / "g.csv")
    for line in (tmp_path / "g.csv").read_text(encoding="utf-8").splitlines()[1:]:
        assert line.lstrip('"')[0] not in "=+-@\t"
    page = graph._repr_html_()
    assert "<b onclick" not in page
    assert "\x1b" not in page
    graph.to_graphml(tmp_path / "g.graphml")
    assert b"\x1b" not in (tmp_path / "g.graphml").read_bytes()


def test_names_with_carriage_returns_stay_in_one_cell(tmp_path):
    TaskGraph([[0, 1]], [0.5], np.array(["a\r=1+1", "b"])).to_csv(tmp_path / "g.csv")
    with (tmp_path / "g.csv").open(newline="", encoding="utf-8") as stream:
        assert len(stream.read().replace('"a\r=1+1"', "x").splitlines()) == 2
    with (tmp_path / "g.csv").open(newline="", encoding="utf-8") as stream:
        assert list(csv.reader(stream))[1][:2] == ["a\r=1+1", "b"]


def test_explanations_print_no_control_characters():
    data = make_clusters(3, n_tasks=6, n_features=2, n_samples=20, random_state=0)
    names = np.array([f"\x1b[31m{task}" for task in data.tasks.tolist()])
    model = GGMTLRegressor().fit(data.X, data.y, tasks=names)
    assert "\x1b" not in explain_edge(model, model.tasks_[0], model.tasks_[1]).describe()
    assert "\x1b" not in str(model.summary())


def test_fit_without_a_writable_place_for_the_kernels_cache(tmp_path):
    pytest.importorskip("numba")
    copy = tmp_path / "ggmtl"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    # A file where the folder would be: as root, a folder without permissions can still be written.
    (copy / "runtime" / "kernels" / "__pycache__").touch()
    code = (
        "import logging; logging.basicConfig()\n"
        "import numpy as np; from ggmtl.runtime.kernels import inverse_blocks\n"
        # So many that compiled kernels are taken.
        "found = inverse_blocks(np.repeat(np.eye(2)[None], 300_000, axis=0), np.ones((300_000, 2)))[0]\n"
        "print(found[-1].round(9).tolist() == [[0.5, 0.0], [0.0, 0.5]])"
    )
    nowhere = {"HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null", "PYTHONPATH": str(tmp_path), "GGMTL_KERNELS": ""}
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | nowhere, capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr
    assert done.stderr.count("cache") == 1
