"""Sums behind the evidence of a common model: a few rows per task give those of the blocks; rounding stays small."""

import numpy as np
import pytest

from ggmtl.evidence import hub
from ggmtl.evidence.hub import hub_evidence, shrunk_models
from ggmtl.evidence.hub_sums import Blocks, FewRows, hub_tasks
from ggmtl.statistics.least_squares import LeastSquares


def of_rows(X, y):
    """Sums of X of shape (n, rows, p) and y of shape (n, rows)."""
    gram, moment = np.einsum("nra,nrb->nab", X, X), np.einsum("nra,nr->na", X, y)
    return LeastSquares(gram, moment, (y**2).sum(axis=1), np.full(len(X), float(X.shape[1])))


def wide(seed=0, n=20, rows=6, p=240):
    """Tasks with far fewer rows than coefficients, one of them without rows, and a constant column."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, rows, p))
    X[..., -1], X[3] = 1.0, 0.0
    return of_rows(X, X[..., 0] + random.normal(size=(n, rows)))


@pytest.mark.parametrize("known", [None, 2.0])
@pytest.mark.parametrize("common_ridge", [None, 0.3])
def test_few_rows_give_the_evidence_of_the_blocks(monkeypatch, known, common_ridge):
    loss, random = wide(), np.random.default_rng(1)
    loss = LeastSquares(loss.gram, loss.moment, loss.target_square, loss.count, known)
    strengths = 6.0 * np.exp(3.0 * random.normal(size=loss.n_features))
    common = None if common_ridge is None else np.full(loss.n_features, common_ridge)
    assert isinstance(hub_tasks(loss, strengths, 1e-6), FewRows)
    found = hub_evidence(loss, strengths, 1e-6, common)
    monkeypatch.setattr(hub, "hub_tasks", Blocks.of)
    exact = hub_evidence(loss, strengths, 1e-6, common)
    assert found.value == pytest.approx(exact.value, rel=1e-9)
    assert found.noise == pytest.approx(exact.noise, rel=1e-9)
    for name in ("gradient", "coefficients", "common"):
        one, other = getattr(found, name), getattr(exact, name)
        np.testing.assert_allclose(one, other, atol=1e-8 * np.abs(other).max(), err_msg=name)
    # The gradient is half the difference of the expected squared deviations and n/h.
    one, other = (loss.n_tasks / strengths + 2.0 * each.gradient for each in (found, exact))
    np.testing.assert_allclose(one, other, atol=1e-8 * np.abs(other).max())
    # Differences of numbers of the size of n, where 120 directions are determined by the ridge alone.
    for name in ("observed", "expected"):
        np.testing.assert_allclose(getattr(found, name), getattr(exact, name), atol=1e-6 * loss.n_tasks, err_msg=name)


def test_blocks_are_taken_where_rows_are_many_or_strengths_too_weak():
    assert isinstance(hub_tasks(wide(rows=120), np.ones(240), 1e-8), Blocks)
    assert isinstance(hub_tasks(wide(p=40), np.ones(40), 1e-8), Blocks)
    assert isinstance(hub_tasks(wide(), np.full(240, 1e-12), 1e-8), Blocks)


@pytest.mark.parametrize(("design", "rounding"), [("normal", 1e-12), ("collinear", 1e-9)])
def test_inverses_that_are_not_held_give_the_same_evidence(monkeypatch, design, rounding):
    """Two directions of the collinear design have the ridge of 1e-8 alone, which magnifies what rounding does."""
    X, y = _indicators()
    if design == "normal":
        X = np.random.default_rng(1).normal(size=X.shape)
    loss, strengths = of_rows(X, y), np.linspace(1.0, 9.0, 9)
    held = hub_evidence(loss, strengths)
    monkeypatch.setattr("ggmtl.evidence.hub_sums._HELD_NUMBERS", 0)
    monkeypatch.setattr("ggmtl.evidence.hub_sums._CHUNK_NUMBERS", 700)
    again = hub_evidence(loss, strengths)
    assert again.value == pytest.approx(held.value, rel=rounding)
    np.testing.assert_allclose(again.gradient, held.gradient, rtol=1e-7)


def _indicators(n=60, rows=40):
    """All indicators of two factors and a constant column: two directions that no row determines."""
    random = np.random.default_rng(0)
    first, second = random.integers(4, size=(n, rows)), random.integers(4, size=(n, rows))
    X = np.concatenate([np.eye(4)[first], np.eye(4)[second], np.ones((n, rows, 1))], axis=2)
    return X, first + 0.3 * random.normal(size=(n, 1)) + random.normal(size=(n, rows))


@pytest.mark.parametrize("strongest", [1e3, 1e5, 4e7])
def test_evidence_of_collinear_columns_is_smooth(strongest):
    loss = of_rows(*_indicators())
    strengths = np.full(9, 30.0)
    strengths[[1, 5]] = strongest
    values = [hub_evidence(loss, strengths * (1.0 + step)).value for step in (0.0, 1e-10, 2e-10, 3e-10)]
    assert np.ptp(values) < 1e-4


@pytest.mark.parametrize("common_ridge", [None, np.linspace(0.1, 2.0, 240)])
@pytest.mark.parametrize("rows", [5, 120])
def test_models_alone_are_those_of_the_evidence(rows, common_ridge):
    loss, strengths = wide(rows=rows), np.linspace(1.0, 9.0, 240)
    evidence = hub_evidence(loss, strengths, 1e-6, common_ridge)
    np.testing.assert_array_equal(shrunk_models(loss, strengths, 1e-6, common_ridge), evidence.coefficients)
