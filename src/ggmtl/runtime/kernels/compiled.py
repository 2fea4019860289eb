"""Compiled forms of the loops in :mod:`ggmtl.runtime.kernels.reference`, function by function, under the same names.

Inner loops run along contiguous rows and add multiples of whole rows, which vectorises without reordering any sum.
Every array is float64 (or int64) and C-contiguous; :mod:`ggmtl.runtime.kernels` sees to that, so that there is one
compilation per function, kept on disk. All of them are in this file because what is kept is renewed when the file of a
function changes, not when another file does that it calls into.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def segment_cross_products(rows, segment, n_segments):
    """Σ z zᵀ over the rows z of each segment."""
    q = rows.shape[1]
    out = np.zeros((n_segments, q, q))
    # 1. Counting sort of the row numbers by segment.
    start = np.zeros(n_segments + 1, np.int64)
    for s in segment:
        start[s + 1] += 1
    longest = start.max()
    for s in range(n_segments):
        start[s + 1] += start[s]
    order = np.empty(len(segment), np.int64)
    place = start[:-1].copy()
    for row in range(len(segment)):
        order[place[segment[row]]] = row
        place[segment[row]] += 1
    # 2. Gather the rows of a segment where the cache keeps them, and multiply.
    gathered = np.empty((longest, q))
    for s in range(n_segments):
        length = start[s + 1] - start[s]
        for k in range(length):
            gathered[k] = rows[order[start[s] + k]]
        if length > 0:
            np.dot(gathered[:length].T, gathered[:length], out[s])
    return out


@njit(cache=True, nogil=True)
def _subtract_rows(target, rows, factors, column, first, last, low, high):
    """target −= Σ_k factors[k, column]·rows[k] over k = first … last − 1, in the columns low … high − 1."""
    whole = last - (last - first) % 4
    # Four rows at a time: the target is loaded and stored a quarter as often.
    for k in range(first, whole, 4):
        f0, f1, f2, f3 = factors[k, column], factors[k + 1, column], factors[k + 2, column], factors[k + 3, column]
        a0, a1, a2, a3 = rows[k], rows[k + 1], rows[k + 2], rows[k + 3]
        for j in range(low, high):
            target[j] -= (f0 * a0[j] + f1 * a1[j]) + (f2 * a2[j] + f3 * a3[j])
    for k in range(whole, last):
        f0, a0 = factors[k, column], rows[k]
        for j in range(low, high):
            target[j] -= f0 * a0[j]


@njit(cache=True, nogil=True)
def inverse_rows(gram, diagonal, out, log_det, first, last):
    """(G_i + diag(s_i))⁻¹ and ln|G_i + diag(s_i)|; the first block that is not positive definite, or −1."""
    p = diagonal.shape[1]
    upper, root, row = np.empty((p, p)), np.empty((p, p)), np.empty(p)
    for i in range(first, last):
        upper[:] = gram[i]
        root[:] = 0.0
        for k in range(p):
            upper[k, k] += diagonal[i, k]
        for k in range(p):
            # 1. Row k of U with UᵀU = G + diag(s).
            _subtract_rows(upper[k], upper, upper, k, 0, k, k, p)
            if not upper[k, k] > 0.0:
                return i
            log_det[i] += math.log(upper[k, k])
            scale = 1.0 / math.sqrt(upper[k, k])
            for j in range(k, p):
                upper[k, j] *= scale
            # 2. Row k of U⁻ᵀ, by forward substitution.
            _subtract_rows(root[k], root, upper, k, 0, k, 0, k)
            for j in range(k):
                root[k, j] *= scale
            root[k, k] = scale
        # 3. The inverse U⁻¹U⁻ᵀ: its lower triangle, mirrored.
        for k in range(p):
            row[:] = 0.0
            _subtract_rows(row, root, root, k, k, p, 0, k + 1)
            for j in range(k + 1):
                out[i, k, j] = -row[j]
                out[i, j, k] = -row[j]
    return -1


@njit(cache=True, nogil=True)
def _multiply(block, vector, out):
    """out = block · vector for a symmetric block: four of its rows at a time, each times one number."""
    p = len(vector)
    for j in range(p):
        out[j] = 0.0
    whole = p - p % 4
    for k in range(0, whole, 4):
        a0, a1, a2, a3 = block[k], block[k + 1], block[k + 2], block[k + 3]
        f0, f1, f2, f3 = vector[k], vector[k + 1], vector[k + 2], vector[k + 3]
        for j in range(p):
            out[j] += (f0 * a0[j] + f1 * a1[j]) + (f2 * a2[j] + f3 * a3[j])
    for k in range(whole, p):
        for j in range(p):
            out[j] += vector[k] * block[k, j]


@njit(cache=True, nogil=True)
def block_rows(blocks, values, out, first, last):
    """blocks_i · values_i for symmetric blocks (n, p, p) and values (n, p)."""
    for i in range(first, last):
        _multiply(blocks[i], values[i], out[i])


@njit(cache=True, nogil=True)
def neighbour_lists(edges, weights, n):
    """The symmetric weight matrix W of an edge list by rows."""
    m = len(edges)
    # 1. How many neighbours each task has; 2. where its list starts; 3. fill the lists.
    start = np.zeros(n + 1, np.int64)
    for e in range(m):
        start[edges[e, 0] + 1] += 1
        start[edges[e, 1] + 1] += 1
    for i in range(n):
        start[i + 1] += start[i]
    place = start[:-1].copy()
    neighbour, weight = np.empty(2 * m, np.int64), np.empty(2 * m)
    for side in range(2):
        for e in range(m):
            i = edges[e, side]
            neighbour[place[i]], weight[place[i]] = edges[e, 1 - side], weights[e]
            place[i] += 1
    return start, neighbour, weight


@njit(cache=True, nogil=True)
def _mixed(number):
    """64 random bits from a number, by the finaliser of SplitMix64."""
    number ^= number >> np.uint64(30)
    number *= np.uint64(0xBF58476D1CE4E5B9)
    number ^= number >> np.uint64(27)
    number *= np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(31))


@njit(cache=True, nogil=True)
def edge_noise_rows(start, neighbour, edge, root, scale, seed, out, first, last):
    """Rows of out += Σ_e ±root_e ε_e ∘ scale; the signs ε_e are those of the number of the edge, wherever it is met."""
    size = len(scale)
    words = np.uint64((size + 63) // 64)
    one, step, odd = np.uint64(1), np.uint64(0x9E3779B97F4A7C15), np.uint64(seed)
    total = np.empty(size)
    for i in range(first, last):
        total[:] = 0.0
        for a in range(start[i], start[i + 1]):
            value = root[edge[a]] if i < neighbour[a] else -root[edge[a]]
            number = np.uint64(edge[a]) * words
            for low in range(0, size, 64):
                number += one
                bits = _mixed(odd + number * step)
                for c in range(low, min(low + 64, size)):
                    total[c] += value if bits & one else -value
                    bits >>= one
        for c in range(size):
            out[i, c] += total[c] * scale[c]


@njit(cache=True, nogil=True)
def nearest_in_neighbourhood(points, start, neighbour, k, first, last):
    """The `k` nearest among the neighbours of every point first … last − 1 and their neighbours."""
    n, d = points.shape
    nearest, seen = np.empty((last - first, k), np.int64), np.full(n, -1)
    distance = np.empty(k)
    for i in range(first, last):
        row, filled, here = nearest[i - first], 0, points[i]
        seen[i] = i
        # The point itself stands at the head of its list, so that one loop sees neighbours and theirs.
        for a in range(start[i] - 1, start[i + 1]):
            middle = i if a < start[i] else neighbour[a]
            for b in range(start[middle], start[middle + 1]):
                j = neighbour[b]
                if seen[j] == i:
                    continue
                seen[j] = i
                square = 0.0
                for c in range(d):
                    apart = points[j, c] - here[c]
                    square += apart * apart
                # Insertion into a short sorted list; of equal distances the smaller number stays first.
                place = filled
                while place > 0 and (
                    square < distance[place - 1] or (square == distance[place - 1] and j < row[place - 1])
                ):
                    place -= 1
                if place == k:
                    continue
                filled = min(filled + 1, k)
                for c in range(filled - 1, place, -1):
                    distance[c], row[c] = distance[c - 1], row[c - 1]
                distance[place], row[place] = square, j
        for c in range(filled, k):
            row[c] = i
    return nearest


@njit(cache=True, nogil=True)
def common_part(operator, values):
    """The hub's part of the graph product, the same for every task, shape (p,)."""
    n, p = values.shape
    common = np.zeros(p)
    if operator.hub_share.any():
        for i in range(n):
            for k in range(p):
                common[k] += values[i, k]
        for k in range(p):
            common[k] *= operator.hub_share[k]
    return common


@njit(cache=True, nogil=True)
def _multiply_graph_rows(operator, values, common, out, first, last):
    """Rows of out = (W ⊗ diag(Λ) + (11ᵀ/n) ⊗ diag(h)) · values."""
    p = values.shape[1]
    for i in range(first, last):
        row = out[i]
        for k in range(p):
            row[k] = 0.0
        for e in range(operator.start[i], operator.start[i + 1]):
            other, weight = values[operator.neighbour[e]], operator.weight[e]
            for k in range(p):
                row[k] += weight * other[k]
        for k in range(p):
            row[k] = row[k] * operator.coupling[k] + common[k]


@njit(cache=True, nogil=True)
def _multiply_graph(operator, values, out):
    """out = (W ⊗ diag(Λ) + (11ᵀ/n) ⊗ diag(h)) · values."""
    _multiply_graph_rows(operator, values, common_part(operator, values), out, 0, len(values))


@njit(cache=True, nogil=True)
def system_rows(operator, values, common, out, first, last):
    """Rows of out = A · values, and their part of the inner product of values and out."""
    p = values.shape[1]
    scratch, total = np.empty(p), 0.0
    _multiply_graph_rows(operator, values, common, out, first, last)
    for i in range(first, last):
        _multiply(operator.gram[i], values[i], scratch)
        for k in range(p):
            out[i, k] = scratch[k] + operator.diagonal[i, k] * values[i, k] - out[i, k]
            total += out[i, k] * values[i, k]
    return total


@njit(cache=True, nogil=True)
def descend_rows(inverse, alpha, direction, image, value, residual, correction, first, last):
    """Rows of value += α·direction, residual −= α·image and correction = B·residual; their two inner products."""
    p = value.shape[1]
    product, square = 0.0, 0.0
    for i in range(first, last):
        for k in range(p):
            value[i, k] += alpha * direction[i, k]
            residual[i, k] -= alpha * image[i, k]
        _multiply(inverse[i], residual[i], correction[i])
        for k in range(p):
            product += residual[i, k] * correction[i, k]
            square += residual[i, k] * residual[i, k]
    return product, square


@njit(cache=True, nogil=True)
def direct_rows(beta, correction, direction, first, last):
    """Rows of direction = correction + β·direction."""
    for i in range(first, last):
        for k in range(direction.shape[1]):
            direction[i, k] = correction[i, k] + beta * direction[i, k]


@njit(cache=True, nogil=True)
def graph_product(operator, values):
    """(W ⊗ diag(Λ) + (11ᵀ/n) ⊗ diag(h)) · values."""
    out = np.empty(values.shape)
    _multiply_graph(operator, values, out)
    return out


@njit(cache=True, nogil=True)
def _subtract_product(operator, step, left, scratch):
    """left −= A·step."""
    system_rows(operator, step, common_part(operator, step), scratch, 0, len(step))
    for i in range(left.shape[0]):
        for k in range(left.shape[1]):
            left[i, k] -= scratch[i, k]


@njit(cache=True, nogil=True)
def _graph_solve(cycle, left, step):
    """step = C·left, group by group of coordinates."""
    n = len(left)
    if len(cycle.levels) == 1:
        np.dot(cycle.levels[0], left, step)
        return
    for g in range(len(cycle.levels)):
        columns = cycle.columns[cycle.bounds[g] : cycle.bounds[g + 1]]
        part = np.empty((n, len(columns)))
        for i in range(n):
            for c in range(len(columns)):
                part[i, c] = left[i, columns[c]]
        solved = np.dot(cycle.levels[g], part)
        for i in range(n):
            for c in range(len(columns)):
                step[i, columns[c]] = solved[i, c]


@njit(cache=True, nogil=True)
def _run_cycle(operator, cycle, residual, value, left, step, scratch):
    """value = M⁻¹·residual and left = residual − A·value."""
    n, p = value.shape
    value[:] = 0.0
    left[:] = residual
    middle = cycle.sweeps if len(cycle.levels) > 0 else -1
    # One loop over the stages, rather than three calls, because each call would be compiled anew.
    for stage in range(1 if middle < 0 else 2 * cycle.sweeps + 1):
        # 1. Correct on the graph in the middle, sweep before and after.
        if stage == middle:
            _graph_solve(cycle, left, step)
        else:
            for i in range(n):
                _multiply(cycle.inverse[i], left[i], step[i])
        for i in range(n):
            for k in range(p):
                value[i, k] += step[i, k]
        # 2. What is left, left − A·step; after a sweep (D − A)·step.
        if cycle.exact and stage != middle:
            _multiply_graph(operator, step, left)
            for i in range(n):
                for k in range(p):
                    left[i, k] -= operator.hub_share[k] * step[i, k]
        else:
            _subtract_product(operator, step, left, scratch)


@njit(cache=True, nogil=True)
def _dot(a, b):
    """Σ a∘b in eight partial sums, which vectorise."""
    x, y = a.ravel(), b.ravel()
    sums = np.zeros(8)
    whole = len(x) - len(x) % 8
    for first in range(0, whole, 8):
        for lane in range(8):
            sums[lane] += x[first + lane] * y[first + lane]
    total = sums.sum()
    for rest in range(whole, len(x)):
        total += x[rest] * y[rest]
    return total


@njit(cache=True, nogil=True)
def conjugate_gradient(operator, cycle, value, residual, goal, max_iter, patience):
    """Preconditioned conjugate gradients in place; the number of steps."""
    n, p = value.shape
    direction, image = np.zeros((n, p)), np.zeros((n, p))
    correction, left, step, scratch = np.empty((n, p)), np.empty((n, p)), np.empty((n, p)), np.empty((n, p))
    previous, best, since_best = 0.0, np.inf, 0
    for steps in range(max_iter):
        # 1. z = M⁻¹r and r − Az.
        _run_cycle(operator, cycle, residual, correction, left, step, scratch)
        # 2. d ← z + βd, Ad ← Az + βAd.
        product = _dot(residual, correction)
        beta = product / previous if previous > 0.0 else 0.0
        for i in range(n):
            for k in range(p):
                direction[i, k] = correction[i, k] + beta * direction[i, k]
                image[i, k] = residual[i, k] - left[i, k] + beta * image[i, k]
        # 3. The step that minimises the energy along d.
        curvature = _dot(direction, image)
        alpha = product / curvature if curvature > 0.0 else 0.0
        for i in range(n):
            for k in range(p):
                value[i, k] += alpha * direction[i, k]
                residual[i, k] -= alpha * image[i, k]
        previous = product
        # 4. Stop at the goal, or where rounding allows no progress.
        norm = math.sqrt(_dot(residual, residual))
        if norm < 0.99 * best:
            best, since_best = norm, 0
        else:
            since_best += 1
        if norm <= goal or since_best >= patience:
            return steps + 1
    return max_iter
