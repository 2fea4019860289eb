"""One sweep of the Gibbs sampler over spanning trees, and the exact density of a tree, in NumPy.

:mod:`ggmtl.runtime.kernels.compiled_trees` has the same functions compiled. Node n is the hub, which is the last.
:mod:`ggmtl.evidence.spanning_trees` has the mathematics.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Pairs(NamedTuple):
    """All pairs of nodes that may be linked, by rows: every pair stands in the lists of both its nodes.

    Parameters
    ----------
    start : array of int, shape (n + 2,)
        The list of node x is ``other[start[x]:start[x + 1]]``.
    other : array of int, shape (2m,)
        Nodes, sorted within a list.
    """

    start: np.ndarray
    other: np.ndarray


class Density(NamedTuple):
    """What links have to do with the data: strengths c between tasks and h to the hub, and σ²."""

    strength: float
    hub: float
    noise: float


def sweep(
    links: np.ndarray,
    inverse: np.ndarray,
    models: np.ndarray,
    pairs: Pairs,
    density: Density,
    order: np.ndarray,
    uniform: np.ndarray,
) -> np.ndarray:
    """Draw every link anew, in place; the probabilities of all pairs on the way, added up, shape (2m,).

    Parameters
    ----------
    links : array of int, shape (n, 2)
        The tree.
    inverse, models : arrays of shape (n + 1, n + 1) and (n + 1, p)
        A⁻¹ and the models under the tree.
    pairs : Pairs
    density : Density
    order : array of int, shape (n,)
        Which link is drawn when.
    uniform : array of shape (n,)
        Random numbers between 0 and 1, one for each draw.
    """
    first, last = np.repeat(np.arange(len(models)), np.diff(pairs.start)), len(models) - 1
    total, width = np.zeros(len(pairs.other)), models.shape[1]
    strengths = np.where((first == last) | (pairs.other == last), density.hub, density.strength)
    neighbours: list[set[int]] = [set() for _ in range(len(models))]
    for x, y in links.tolist():
        neighbours[x].add(y)
        neighbours[y].add(x)
    for number, chance in zip(order.tolist(), uniform.tolist()):
        x, y = links[number].tolist()
        # 1. Cut the link: A⁻¹ − loose · column columnᵀ, and the models follow.
        strength = density.hub if last in (x, y) else density.strength
        column = inverse[:, x] - inverse[:, y]
        loose = float(-strength / (1.0 - strength * (column[x] - column[y])))
        gap = loose * (models[x] - models[y])
        neighbours[x].discard(y)
        neighbours[y].discard(x)
        side = _side(neighbours, x)
        # 2. The probabilities of all links between the two parts.
        across = np.flatnonzero(side[first] & ~side[pairs.other])
        a, b, s = first[across], pairs.other[across], strengths[across]
        shift = column[a] - column[b]
        resistance = inverse[a, a] + inverse[b, b] - 2.0 * inverse[a, b] - loose * shift**2
        loosened = 1.0 + s * np.maximum(resistance, 0.0)
        apart = ((models[a] - models[b] - np.outer(shift, gap)) ** 2).sum(axis=1)
        logs = 0.5 * (width * np.log(s / loosened) - s * apart / (loosened * density.noise))
        weights = np.exp(logs - logs.max())
        cumulative = weights.cumsum()
        total[across] += weights / cumulative[-1]
        # 3. Draw one of them, and link.
        pick = min(int(np.searchsorted(cumulative, chance * cumulative[-1])), len(across) - 1)
        a, b = int(a[pick]), int(b[pick])
        neighbours[a].add(b)
        neighbours[b].add(a)
        links[number] = a, b
        if {a, b} != {x, y}:
            _replace(inverse, models, column, loose, gap, a, b, float(s[pick]))
    return total


def _side(neighbours: list[set[int]], x: int) -> np.ndarray:
    """The nodes that are joined to x."""
    side, stack = np.zeros(len(neighbours), dtype=bool), [x]
    side[x] = True
    while stack:
        for node in neighbours[stack.pop()]:
            if not side[node]:
                side[node] = True
                stack.append(node)
    return side


def _replace(
    inverse: np.ndarray,
    models: np.ndarray,
    column: np.ndarray,
    loose: float,
    gap: np.ndarray,
    a: int,
    b: int,
    strength: float,
) -> None:
    """A⁻¹ and the models once a link is cut and a–b has come in its place: a change of rank two."""
    shift = column[a] - column[b]
    fresh = inverse[:, a] - inverse[:, b] - loose * shift * column
    apart = models[a] - models[b] - shift * gap
    tight = strength / (1.0 + strength * (fresh[a] - fresh[b]))
    models -= np.outer(column, gap) + np.outer(tight * fresh, apart)
    inverse -= np.outer(loose * column, column) + np.outer(tight * fresh, fresh)


def tree_densities(
    links: np.ndarray, weight: np.ndarray, right: np.ndarray, strengths: np.ndarray, hub: float
) -> tuple[np.ndarray, np.ndarray]:
    """ln|A| and Σ_k b_kᵀA⁻¹b_k of a tree for several strengths c, by eliminating its leaves, both of shape (len(c),).

    Parameters
    ----------
    links : array of int, shape (n, 2)
    weight, right : arrays of shape (n + 1,) and (n + 1, p)
        g and b.
    strengths : array
        c.
    hub : float
        h.
    """
    parent, order = _from_the_hub(links, len(weight))
    last, number = len(weight) - 1, len(strengths)
    link = np.where(parent[:, None] == last, hub, strengths)
    link[last] = 0.0
    pivot = weight[:, None] + link
    moment, log_det, explained = np.repeat(right[:, None, :], number, axis=1), np.zeros(number), np.zeros(number)
    for node in order[::-1]:
        log_det += np.log(pivot[node])
        explained += (moment[node] ** 2).sum(axis=1) / pivot[node]
        if node != last:
            share = link[node] / pivot[node]
            pivot[parent[node]] += link[node] * (1.0 - share)
            moment[parent[node]] += share[:, None] * moment[node]
    return log_det, explained


def _from_the_hub(links: np.ndarray, size: int) -> tuple[np.ndarray, list[int]]:
    """The parent of every node, and the nodes in an order in which parents come first."""
    neighbours: list[list[int]] = [[] for _ in range(size)]
    for x, y in links.tolist():
        neighbours[x].append(y)
        neighbours[y].append(x)
    parent, order = np.full(size, -1), [size - 1]
    for node in order:
        for other in neighbours[node]:
            if other != parent[node]:
                parent[other] = node
                order.append(other)
    return parent, order
