"""Strategies: tables of tasks, from ordinary to degenerate."""

from dataclasses import dataclass
from decimal import Decimal

import numpy as np
from hypothesis import strategies as st

COLUMNS = ("normal", "constant", "zero", "duplicate", "collinear", "binary", "whole", "heavy", "shifted", "sparse")
TARGETS = ("linear", "linear", "noise", "constant", "zero", "heavy", "exact", "per_task", "binary")
LAYOUTS = ("plain", "fortran", "strided", "reversed", "float32", "list")
ODD_NAMES = (
    "a", "B", "=1+1", "@cmd", "+x", "-2", "<script>alert(1)</script>", "\x1b[31mred\x1b[0m", "naïve", "日本", "",
    " ", "a,b", 'quo"te', "line\nbreak", "\u202eright", "'", "None", "nan", "\x00nul", "../..", "😀", "x" * 300,
)  # fmt: skip


@dataclass(frozen=True)
class Table:
    """Rows of a generated problem."""

    X: np.ndarray
    y: np.ndarray
    tasks: np.ndarray
    is_ordinary: bool

    def __len__(self):
        return len(self.y)


@st.composite
def tables(draw, max_tasks=5, max_rows=8, max_features=4, ordinary=False, scales=True):
    """Tasks of unequal size; columns and targets of every kind; scales over 300 decades."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = draw(st.integers(1, max_tasks))
    low = 3 if ordinary else 1
    sizes = draw(st.lists(st.integers(low, max_rows), min_size=n, max_size=n))
    d = draw(st.integers(1, max_features))
    kinds = ["normal"] * d if ordinary else draw(st.lists(st.sampled_from(COLUMNS), min_size=d, max_size=d))
    target = "linear" if ordinary else draw(st.sampled_from(TARGETS))
    tasks = rng.permutation(np.repeat(np.arange(n), sizes))
    X = np.empty((len(tasks), d))
    for k, kind in enumerate(kinds):
        X[:, k] = _column(kind, X[:, :k], rng, len(tasks))
    y = _target(target, X, tasks, rng)
    if scales and not ordinary:
        exponent = draw(st.sampled_from([st.just(0), st.just(0), st.integers(-8, 8), st.integers(-150, 150), _outside]))
        X = X * 10.0 ** np.array(draw(st.lists(exponent, min_size=d, max_size=d)))
        y = y * 10.0 ** draw(exponent)
    return Table(X, y, draw(labels(n))[tasks], ordinary)


_outside = st.one_of(st.just(0), st.just(0), st.just(0), st.sampled_from([-300, -160, 160, 290]))


def _column(kind, before, rng, rows):
    noise = rng.normal(size=rows)
    if kind in ("duplicate", "collinear") and before.shape[1]:
        return before[:, 0] if kind == "duplicate" else before @ rng.normal(size=before.shape[1])
    return {
        "constant": np.full(rows, rng.choice([1.0, -3.7, 1e-9, 1e12])),
        "zero": np.zeros(rows),
        "binary": (noise > 0).astype(float),
        "whole": np.round(3.0 * noise),
        "heavy": rng.standard_cauchy(rows) ** 3,
        "shifted": noise + rng.choice([1e3, 1e7, -1e5]),
        "sparse": np.where(rng.uniform(size=rows) < 0.2, noise, 0.0),
    }.get(kind, noise)


def _target(kind, X, tasks, rng):
    size = np.abs(X).max(axis=0, initial=0.0)
    Z = X / np.where(size > 0, size, 1.0)
    models = rng.normal(size=(tasks.max() + 1, X.shape[1]))
    noise = rng.normal(size=len(tasks))
    return {
        "noise": noise,
        "constant": np.full(len(tasks), rng.choice([2.0, -1e5])),
        "zero": np.zeros(len(tasks)),
        "heavy": rng.standard_cauchy(len(tasks)) ** 3,
        "exact": Z @ models[0],
        "per_task": tasks.astype(float),
        "binary": (noise > 0).astype(float),
    }.get(kind, np.einsum("rd,rd->r", Z, models[tasks]) + 0.3 * noise)


@st.composite
def labels(draw, n):
    """Distinct task labels: numbers, dates or text that means something elsewhere."""
    kind = draw(st.sampled_from(["int", "negative", "float", "bool", "date", "odd", "text", "large", "unsigned"]))
    if kind == "odd":
        return np.array(draw(st.permutations(ODD_NAMES))[:n])
    if kind == "text":
        text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
        return np.array(draw(st.lists(text, min_size=n, max_size=n, unique_by=lambda name: name.rstrip("\x00"))))
    if kind == "bool" and n <= 2:
        return np.array([False, True])[:n]
    if kind == "large":
        return 2**53 + np.array(draw(st.permutations(range(n))), dtype=np.int64)
    if kind == "unsigned":
        return (2**63 - 1 + np.arange(n).astype(object)).astype(np.uint64)
    if kind == "date":
        return np.datetime64("2026-01-30", "D") + np.arange(n)
    return np.arange(n) * {"int": 1, "negative": -7, "float": 0.5}.get(kind, 3)


def as_layout(X, layout):
    """The same numbers (to the accuracy of the type) in another memory layout or type."""
    if layout == "fortran":
        return np.asfortranarray(X)
    if layout == "strided":
        return np.repeat(np.repeat(X, 2, axis=0), 2, axis=1)[::2, ::2]
    if layout == "reversed":
        return X[::-1].copy()[::-1]
    if layout == "list":
        return X.tolist()
    if layout == "float32":
        with np.errstate(over="ignore", under="ignore"):
            return X.astype(np.float32)
    return X


def as_decimals(X):
    """An object array of Decimal."""
    return np.array([[Decimal(repr(float(value))) for value in row] for row in X], dtype=object)
