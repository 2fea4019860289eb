"""Eliminating tasks a few at a time gives the evidence of the dense factor."""

from dataclasses import replace

import numpy as np
import pytest

from ggmtl.evidence.dense import EvidenceModel, edge_evidence
from ggmtl.evidence.elimination import SparseGraph, strength_evidence
from ggmtl.statistics.least_squares import LeastSquares


def tasks(n, p, rows=12, seed=0):
    random = np.random.default_rng(seed)
    X, y = random.standard_normal((n, rows, p)), random.standard_normal((n, rows))
    moment = np.einsum("nrp,nr->np", X, y)
    return LeastSquares(np.matmul(X.transpose(0, 2, 1), X), moment, (y**2).sum(axis=1), np.full(n, float(rows)))


def random_edges(n, m, seed=0):
    pairs = np.column_stack(np.triu_indices(n, 1))
    return pairs[np.sort(np.random.default_rng(seed).choice(len(pairs), m, replace=False))]


def line(n):
    return np.column_stack([np.arange(n - 1), np.arange(1, n)])


GRAPHS = {
    "line": (60, 3, line(60)),
    "single edge among many": (80, 2, np.array([[3, 40]])),
    "two edges a task": (90, 4, random_edges(90, 180)),
    "star": (70, 2, np.column_stack([np.zeros(69, dtype=int), np.arange(1, 70)])),
    "wide tasks on a line": (9, 31, line(9)),
    "few enough for one factor": (6, 2, random_edges(6, 7)),
}


@pytest.mark.parametrize("noise", [None, 2.0])
@pytest.mark.parametrize("name", GRAPHS)
def test_evidence_by_elimination_equals_that_of_a_dense_factor(name, noise):
    n, p, edges = GRAPHS[name]
    strengths = np.where(np.arange(p) < p - 1, 3.0, 0.5)
    model = EvidenceModel(replace(tasks(n, p), noise=noise), edges, np.linspace(1.0, 2.0, p), strengths)
    graph = SparseGraph(edges, n, p)
    found, dense = strength_evidence(model, graph, 2.0), edge_evidence(model, np.full(len(edges), 2.0))
    assert found is not None
    assert found.value == pytest.approx(dense.value, rel=1e-12)
    assert found.strength_gradient == pytest.approx(dense.edge_gradient.sum(), rel=1e-8, abs=1e-9)
    np.testing.assert_allclose(found.hub_gradient, dense.hub_gradient, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(found.coefficients, dense.coefficients, atol=1e-10)
    assert found.noise == pytest.approx(dense.noise, rel=1e-10)


def test_a_line_is_eliminated_almost_whole():
    assert SparseGraph(line(100), 100, 4).n_eliminated >= 70


def test_common_model_that_no_row_determines_is_left_to_the_dense_factor():
    loss = tasks(30, 3)
    gram = loss.gram.copy()
    gram[:, 2, :] = gram[:, :, 2] = 0.0
    model = EvidenceModel(replace(loss, gram=gram), line(30), np.ones(3), np.full(3, 20.0))
    assert strength_evidence(model, SparseGraph(line(30), 30, 3), 1.0) is None
