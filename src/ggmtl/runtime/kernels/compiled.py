"""Compiled forms of hot loops, for ranges of tasks that may be shared among threads.

Inner loops run along contiguous rows and add multiples of whole rows, which vectorises without reordering any sum.
Every array is C-contiguous; :mod:`ggmtl.runtime.kernels` sees to that, so that there is one compilation per function,
kept on disk. All of them are in this file because what is kept is renewed when the file of a function changes, not when
another file does that it calls into.

Loops over scalars compile soonest. An assignment of an array to a slice takes numba 1.4 s, most of them for the words
of an error message, and a product by BLAS 0.3 s.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

# What Python calls, and what only other loops call.
_kernel = njit(cache=True, nogil=True, error_model="numpy")
_inner = njit(nogil=True, error_model="numpy")


@_inner
def _subtract_rows(target, rows, factors, low, high):
    """target −= Σ_k factors[k]·rows[k] in the columns low … high − 1."""
    count = len(rows)
    whole = count - count % 4
    # Four rows at a time: the target is loaded and stored a quarter as often.
    for k in range(0, whole, 4):
        f0, f1, f2, f3 = factors[k], factors[k + 1], factors[k + 2], factors[k + 3]
        a0, a1, a2, a3 = rows[k], rows[k + 1], rows[k + 2], rows[k + 3]
        for j in range(low, high):
            target[j] -= (f0 * a0[j] + f1 * a1[j]) + (f2 * a2[j] + f3 * a3[j])
    for k in range(whole, count):
        f0, a0 = factors[k], rows[k]
        for j in range(low, high):
            target[j] -= f0 * a0[j]


@_kernel
def inverse_rows(gram, diagonal, out, log_det, first, last):
    """(G_i + diag(s_i))⁻¹ and ln|G_i + diag(s_i)|; the first block that is not positive definite, or −1."""
    p = diagonal.shape[1]
    # Elimination turns [G + diag(s), I] into [U, U⁻ᵀ] with UᵀU = G + diag(s).
    both, row = np.empty((p, 2 * p)), np.empty(2 * p)
    for i in range(first, last):
        for k in range(p):
            for j in range(p):
                both[k, j], both[k, p + j] = gram[i, k, j], 0.0
            both[k, k] += diagonal[i, k]
        for k in range(p):
            _subtract_rows(both[k], both[:k], both[:k, k], k, p + k)
            if not both[k, k] > 0.0:
                return i
            log_det[i] += math.log(both[k, k])
            scale = 1.0 / math.sqrt(both[k, k])
            for j in range(k, p + k):
                both[k, j] *= scale
            both[k, p + k] = scale
        # The inverse U⁻¹U⁻ᵀ: its lower triangle, mirrored.
        for k in range(p):
            for j in range(p, p + k + 1):
                row[j] = 0.0
            _subtract_rows(row, both[k:], both[k:, p + k], p, p + k + 1)
            for j in range(k + 1):
                out[i, k, j] = -row[p + j]
                out[i, j, k] = -row[p + j]
    return -1


@_inner
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


@_kernel
def block_rows(blocks, values, out, first, last):
    """blocks_i · values_i for symmetric blocks (n, p, p) and values (n, p)."""
    for i in range(first, last):
        _multiply(blocks[i], values[i], out[i])


@_inner
def _mixed(number):
    """64 random bits from a number, by the finaliser of SplitMix64."""
    number ^= number >> np.uint64(30)
    number *= np.uint64(0xBF58476D1CE4E5B9)
    number ^= number >> np.uint64(27)
    number *= np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(31))


@_kernel
def edge_noise_rows(start, neighbour, edge, root, scale, seed, out, first, last):
    """Rows of out += Σ_e ±root_e ε_e ∘ scale; the signs ε_e are those of the number of the edge, wherever it is met."""
    size = len(scale)
    words = np.uint64((size + 63) // 64)
    one, step, odd = np.uint64(1), np.uint64(0x9E3779B97F4A7C15), np.uint64(seed)
    total = np.empty(size)
    for i in range(first, last):
        for c in range(size):
            total[c] = 0.0
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


@_kernel
def nearest_in_neighbourhood(points, start, neighbour, k, first, last):
    """The `k` nearest among the neighbours of every point first … last − 1 and their neighbours."""
    n, d = points.shape
    nearest, seen = np.empty((last - first, k), np.int64), np.zeros(n, np.int64)
    distance = np.empty(k)
    for i in range(first, last):
        row, filled, here = nearest[i - first], 0, points[i]
        seen[i] = i + 1
        # The point itself stands at the head of its list, so that one loop sees neighbours and theirs.
        for a in range(start[i] - 1, start[i + 1]):
            middle = i if a < start[i] else neighbour[a]
            for b in range(start[middle], start[middle + 1]):
                j = neighbour[b]
                if seen[j] == i + 1:
                    continue
                seen[j] = i + 1
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


@_kernel
def descend_rows(inverse, alpha, direction, image, value, residual, correction, products, squares, first, last):
    """Rows of value += α·direction, residual −= α·image and correction = B·residual, and their two inner products."""
    for i in range(first, last):
        for k in range(value.shape[1]):
            value[i, k] += alpha * direction[i, k]
            residual[i, k] -= alpha * image[i, k]
        _multiply(inverse[i], residual[i], correction[i])
        product, square = 0.0, 0.0
        for k in range(value.shape[1]):
            product += residual[i, k] * correction[i, k]
            square += residual[i, k] * residual[i, k]
        products[i], squares[i] = product, square


@_kernel
def follow_rows(system, exact, common, beta, correction, residual, direction, image, products, first, last):
    """Rows of direction = z + β·direction and image = A·z + β·image for the correction z, and their inner product.

    An exact z = D⁻¹·residual, with the diagonal blocks D of A, has A·z = residual − (D − A)·z.
    """
    gram, diagonal, start, neighbour, weight, coupling, hub_share = system
    p = len(coupling)
    own, linked = np.empty(p), np.empty(p)
    for i in range(first, last):
        for k in range(p):
            linked[k] = 0.0
        for e in range(start[i], start[i + 1]):
            other, each = correction[neighbour[e]], weight[e]
            for k in range(p):
                linked[k] += each * other[k]
        if exact:
            for k in range(p):
                own[k] = residual[i, k] + hub_share[k] * correction[i, k]
        else:
            _multiply(gram[i], correction[i], own)
            for k in range(p):
                own[k] += diagonal[i, k] * correction[i, k]
        product = 0.0
        for k in range(p):
            direction[i, k] = correction[i, k] + beta * direction[i, k]
            image[i, k] = own[k] - (linked[k] * coupling[k] + common[k]) + beta * image[i, k]
            product += direction[i, k] * image[i, k]
        products[i] = product
