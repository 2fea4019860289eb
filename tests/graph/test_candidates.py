"""Which edges may exist."""

import numpy as np
import pytest

from ggmtl import KNN, Complete, Coordinates
from ggmtl.errors import InputError, ParameterError
from ggmtl.graph.candidates import Pairs, as_candidates, cross_fit
from ggmtl.runtime.sizes import SIZES

NAMES = np.array(["a", "b", "c", "d"])
LINE = np.array([[0.0], [1.0], [2.5], [7.0]])


def edges(rule, models=LINE, names=NAMES):
    return rule.propose(models, names).edges.tolist()


def test_neighbours_are_mutual_or_not():
    assert edges(KNN(k=1)) == [[0, 1], [1, 2], [2, 3]]
    assert edges(KNN(k=3)) == edges(Complete())


def test_few_tasks_get_all_pairs_many_get_neighbours():
    rng = np.random.default_rng(0)
    few, many = rng.normal(size=(SIZES.all_pairs, 2)), rng.normal(size=(SIZES.all_pairs + 1, 2))
    assert len(edges(KNN(), few, np.arange(len(few)))) == len(few) * (len(few) - 1) // 2
    assert len(edges(KNN(), many, np.arange(len(many)))) < len(many) * 10


def test_neighbours_equal_brute_force():
    points = np.random.default_rng(1).normal(size=(40, 3))
    distance = np.linalg.norm(points[:, None] - points, axis=2) + np.eye(40) * 1e9
    expected = {tuple(sorted((i, j))) for i in range(40) for j in np.argsort(distance[i])[:4]}
    assert {tuple(edge) for edge in edges(KNN(k=4), points, np.arange(40))} == expected


def test_must_link_and_forbid():
    rule = KNN(k=1, must_link=[("d", "a")], forbid=[("a", "b")])
    proposed = rule.propose(LINE, NAMES)
    assert proposed.edges.tolist() == [[0, 3], [1, 2], [2, 3]]
    assert proposed.fixed.tolist() == [True, False, False]


def test_all_edges_forbidden_is_an_empty_graph():
    pairs = [(a, b) for i, a in enumerate("abcd") for b in "abcd"[i + 1 :]]
    assert edges(Complete(forbid=pairs)) == []


def test_given_pairs_by_label_in_any_order():
    assert edges(as_candidates([("c", "a"), ("a", "c"), ("b", "d")])) == [[0, 2], [1, 3]]
    assert isinstance(as_candidates(np.array([["a", "b"]])), Pairs)


def test_places_by_array_or_by_label():
    places = np.array([[0.0, 0], [0, 1], [5, 5], [5, 6]])
    by_label = dict(zip("dcba", places))
    assert edges(Coordinates(places, k=1)) == [[0, 1], [2, 3]]
    assert edges(Coordinates(by_label, k=1)) == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: edges(KNN(k=0)), "at least 1"),
        (lambda: edges(KNN(must_link=[("a", "z")])), "'z'"),
        (lambda: edges(KNN(must_link=[("a", "b")], forbid=[("b", "a")])), "both in must_link and in forbid"),
        (lambda: as_candidates("nearest"), "Got 'nearest'"),
        (lambda: as_candidates([1, 2, 3]), "shape"),
        (lambda: edges(as_candidates([("a", "a")])), "itself"),
        (lambda: edges(Coordinates(np.zeros((3, 2)))), "shape"),
        (lambda: edges(Coordinates({"a": (0, 0)})), "'b'"),
    ],
)
def test_bad_rules_are_refused_with_the_reason(make, words):
    with pytest.raises((ParameterError, InputError), match=words):
        make()


def test_cross_fitting_keeps_each_fold_to_its_own_proposals():
    first, second = LINE, LINE[[0, 2, 1, 3]]
    union, masks = cross_fit(KNN(k=1), [first, second], NAMES)
    for models, mask in zip((first, second), masks):
        assert union.edges[mask].tolist() == edges(KNN(k=1), models)
    assert all(mask.any() and not mask.all() for mask in masks)


def test_places_in_degrees_are_on_a_sphere():
    # Fiji on either side of the date line; two places near the pole, a quarter of a turn apart.
    places = np.array([[179.5, -17.0], [-179.5, -17.0], [0.0, 89.0], [90.0, 89.0]])
    assert edges(Coordinates(places, k=1, degrees=True)) == [[0, 1], [2, 3]]
    assert edges(Coordinates(places, k=1)) != [[0, 1], [2, 3]]
    with pytest.raises(InputError, match="swapped"):
        edges(Coordinates(places[:, ::-1], k=1, degrees=True))


def test_rules_that_use_no_models_need_no_cross_fitting():
    union, masks = cross_fit(Complete(), [LINE, LINE], NAMES)
    assert len(union.edges) == 6
    assert masks == [None, None]


def test_one_task_has_no_edges():
    for rule in (KNN(), Complete()):
        assert edges(rule, LINE[:1], NAMES[:1]) == []
