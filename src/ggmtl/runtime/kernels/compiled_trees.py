"""Compiled forms of the functions in :mod:`ggmtl.runtime.kernels.trees`, under the same names.

Fits that report a list of edges take 1.3 to 1.6 times as long without them (Line of 20 to 200 tasks, once compiled).
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

_kernel = njit(cache=True, nogil=True, error_model="numpy")
_inner = njit(nogil=True, error_model="numpy")


@_kernel
def sweep(links, inverse, models, pairs, density, order, uniform):
    """Draw every link anew, in place; the probabilities of all pairs on the way, added up."""
    size, width = models.shape
    total = np.zeros(len(pairs.other))
    adjacent, degree = np.empty((size, size), np.int64), np.zeros(size, np.int64)
    for number in range(len(links)):
        _join(adjacent, degree, links[number, 0], links[number, 1])
    side, stack = np.empty(size, np.bool_), np.empty(size, np.int64)
    where, ends = np.empty(len(pairs.other), np.int64), np.empty(len(pairs.other), np.int64)
    chances = np.empty(len(pairs.other))
    column, fresh, gap, apart = np.empty(size), np.empty(size), np.empty(width), np.empty(width)
    for step in range(len(order)):
        number = order[step]
        x, y = links[number, 0], links[number, 1]
        # 1. Cut the link: A⁻¹ − loose · column columnᵀ, and the models follow.
        strength = density.hub if x == size - 1 or y == size - 1 else density.strength
        for k in range(size):
            column[k] = inverse[x, k] - inverse[y, k]
        loose = -strength / (1.0 - strength * (column[x] - column[y]))
        for k in range(width):
            gap[k] = loose * (models[x, k] - models[y, k])
        _part(adjacent, degree, x, y)
        _part(adjacent, degree, y, x)
        _mark_side(adjacent, degree, x, side, stack)
        # 2. The probabilities of all links between the two parts, and a draw from them.
        found = _across(inverse, models, pairs, density, column, loose, gap, side, where, ends, chances)
        pick, cumulative = -1, 0.0
        for k in range(found):
            total[where[k]] += chances[k]
            cumulative += chances[k]
            if pick < 0 and cumulative >= uniform[step]:
                pick = k
        pick = found - 1 if pick < 0 else pick
        # 3. Link.
        a, b = ends[pick], pairs.other[where[pick]]
        _join(adjacent, degree, a, b)
        links[number, 0], links[number, 1] = a, b
        if not ((a == x and b == y) or (a == y and b == x)):
            s = density.hub if a == size - 1 or b == size - 1 else density.strength
            _replace(inverse, models, column, loose, gap, a, b, s, fresh, apart)
    return total


@_inner
def _across(inverse, models, pairs, density, column, loose, gap, side, where, ends, chances):
    """The pairs between the two parts of a cut tree, their place in the lists, and their probabilities."""
    size, width = models.shape
    found, top = 0, -np.inf
    for a in range(size):
        if not side[a]:
            continue
        for place in range(pairs.start[a], pairs.start[a + 1]):
            b = pairs.other[place]
            if side[b]:
                continue
            strength = density.hub if a == size - 1 or b == size - 1 else density.strength
            shift = column[a] - column[b]
            resistance = inverse[a, a] + inverse[b, b] - 2.0 * inverse[a, b] - loose * shift * shift
            loosened = 1.0 + strength * max(resistance, 0.0)
            square = 0.0
            for k in range(width):
                apart = models[a, k] - models[b, k] - shift * gap[k]
                square += apart * apart
            log = 0.5 * (width * math.log(strength / loosened) - strength * square / (loosened * density.noise))
            where[found], ends[found], chances[found] = place, a, log
            found, top = found + 1, max(top, log)
    whole = 0.0
    for k in range(found):
        chances[k] = math.exp(chances[k] - top)
        whole += chances[k]
    for k in range(found):
        chances[k] /= whole
    return found


@_inner
def _join(adjacent, degree, x, y):
    adjacent[x, degree[x]], adjacent[y, degree[y]] = y, x
    degree[x] += 1
    degree[y] += 1


@_inner
def _part(adjacent, degree, x, y):
    """Take y from the list of x."""
    degree[x] -= 1
    for k in range(degree[x]):
        if adjacent[x, k] == y:
            adjacent[x, k] = adjacent[x, degree[x]]
            break


@_inner
def _mark_side(adjacent, degree, x, side, stack):
    """Mark the nodes that are joined to x."""
    for k in range(len(side)):
        side[k] = False
    side[x], stack[0], height = True, x, 1
    while height > 0:
        height -= 1
        node = stack[height]
        for k in range(degree[node]):
            other = adjacent[node, k]
            if not side[other]:
                side[other], stack[height] = True, other
                height += 1


@_inner
def _replace(inverse, models, column, loose, gap, a, b, strength, fresh, apart):
    """A⁻¹ and the models once a link is cut and a–b has come in its place: a change of rank two."""
    size, width = models.shape
    shift = column[a] - column[b]
    for k in range(size):
        fresh[k] = inverse[a, k] - inverse[b, k] - loose * shift * column[k]
    for k in range(width):
        apart[k] = models[a, k] - models[b, k] - shift * gap[k]
    tight = strength / (1.0 + strength * (fresh[a] - fresh[b]))
    for i in range(size):
        for k in range(width):
            models[i, k] -= column[i] * gap[k] + tight * fresh[i] * apart[k]
        f, g = loose * column[i], tight * fresh[i]
        for j in range(size):
            inverse[i, j] -= f * column[j] + g * fresh[j]


@_kernel
def tree_densities(links, weight, right, strengths, hub):
    """ln|A| and Σ_k b_kᵀA⁻¹b_k of a tree for several strengths c, by eliminating its leaves."""
    size, width = right.shape
    parent, order = _from_the_hub(links, size)
    log_det, explained = np.zeros(len(strengths)), np.zeros(len(strengths))
    pivot, moment = np.empty(size), np.empty((size, width))
    for number in range(len(strengths)):
        for node in range(size):
            pivot[node] = weight[node]
            for k in range(width):
                moment[node, k] = right[node, k]
        for step in range(size - 1, -1, -1):
            node, up = order[step], parent[order[step]]
            link = 0.0 if up < 0 else (hub if up == size - 1 else strengths[number])
            pivot[node] += link
            log_det[number] += math.log(pivot[node])
            share = link / pivot[node]
            for k in range(width):
                explained[number] += moment[node, k] * moment[node, k] / pivot[node]
                if up >= 0:
                    moment[up, k] += share * moment[node, k]
            if up >= 0:
                pivot[up] += link * (1.0 - share)
    return log_det, explained


@_inner
def _from_the_hub(links, size):
    """The parent of every node, and the nodes in an order in which parents come first."""
    adjacent, degree = np.empty((size, size), np.int64), np.zeros(size, np.int64)
    for number in range(len(links)):
        _join(adjacent, degree, links[number, 0], links[number, 1])
    parent, order = np.empty(size, np.int64), np.empty(size, np.int64)
    for node in range(size):
        parent[node] = -1
    order[0], known = size - 1, 1
    for step in range(size):
        node = order[step]
        for k in range(degree[node]):
            other = adjacent[node, k]
            if other != parent[node]:
                parent[other], order[known] = node, other
                known += 1
    return parent, order
