"""Flip one edge at a time: what every flip would change in f, and the flip itself, both exact.

Changing the value of an edge by δ changes f, with U = b ⊗ I and B = Λ^½ UᵀA⁻¹U Λ^½, by

    ½(N − p) ln(Q'/Q) + ½ ln|I + δB| − ½ Σ_k ln(1 + δ Λ_k R⁽ᵏ⁾) ,     Q' = Q + δ uᵀΛ^½ (I + δB)⁻¹ Λ^½u ,

(½(Q' − Q)/φ in the first place where the noise is known), for all edges at once. The inverses follow by Woodbury's
formula, without a new factor, and only the columns of A⁻¹ that a flip asks for are updated:

    A'⁻¹ = A⁻¹ − δ A⁻¹U Λ^½ (I + δB)⁻¹ Λ^½ UᵀA⁻¹ .
"""

from __future__ import annotations

import numpy as np

from ggmtl.evidence.dense import EdgeEvidence, EvidenceModel, prior_inverses
from ggmtl.evidence.hub import degrees_of_freedom

_TINY = np.finfo(float).tiny


class Flips:
    """A graph whose edges change one after the other, and the evidence of all that is one change away.

    Parameters
    ----------
    model : EvidenceModel
    edge_values : array of shape (m,)
    evidence : EdgeEvidence
        That of `edge_values`.

    Attributes
    ----------
    value : float
        f.
    coefficients : array of shape (n, p)
        Models.
    """

    def __init__(self, model: EvidenceModel, edge_values: np.ndarray, evidence: EdgeEvidence):
        n, p = model.loss.moment.shape
        self.value, self.coefficients = evidence.value, evidence.coefficients.copy()
        self._edges, self._coupling, self._root = model.edges, model.coupling, np.sqrt(model.coupling)
        self._noise, self._freedom = model.loss.noise, degrees_of_freedom(model.loss)
        self._quadratic = evidence.noise * self._freedom
        # A⁻¹ as it was, and the changes since: A⁻¹ − left rightᵀ. Few of its columns are ever asked for.
        self._covariance = evidence.covariance
        self._left, self._right = np.empty((n * p, 0)), np.empty((n, p, 0))
        i, j = self._edges.T
        blocks = evidence.covariance
        blocks = blocks[i, :, i, :] + blocks[j, :, j, :] - blocks[i, :, j, :] - blocks[j, :, i, :]
        self._blocks = blocks * np.outer(self._root, self._root)
        self._priors = [(columns, inverse) for columns, inverse, _ in prior_inverses(model, edge_values)]

    def changes(self, change: np.ndarray) -> np.ndarray:
        """Change of f when the value of one edge at a time changes by `change`, shape (m,)."""
        i, j = self._edges.T
        matrix = change[:, None, None] * self._blocks
        np.einsum("ekk->ek", matrix)[:] += 1.0
        apart = (self.coefficients[i] - self.coefficients[j]) * self._root
        solved = np.linalg.solve(matrix, apart[..., None])[..., 0]
        growth = change * (apart * solved).sum(axis=1)
        if self._noise is None:
            twice_misfit = self._freedom * np.log(np.maximum(1.0 + growth / self._quadratic, _TINY))
        else:
            twice_misfit = growth / self._noise
        prior = np.zeros(len(change))
        for columns, inverse in self._priors:
            diagonal, strength = np.diagonal(inverse), self._coupling[columns[0]]
            resistance = strength * (diagonal[i] + diagonal[j] - 2.0 * inverse[i, j])
            prior += len(columns) * np.log(np.maximum(1.0 + change * resistance, _TINY))
        posterior = np.linalg.slogdet(matrix)[1]
        return 0.5 * (twice_misfit + posterior - prior)

    def flip(self, edge: int, change: float, gain: float) -> None:
        """Change the value of one edge by `change`, and f by `gain`, which `changes` has told."""
        n, p = self.coefficients.shape
        i, j = self._edges[edge]
        changed = (self._left @ (self._right[i] - self._right[j]).T).reshape(n, p, p)
        columns = ((self._covariance[i] - self._covariance[j]).transpose(1, 2, 0) - changed) * self._root
        capacitance = np.eye(p) + change * self._blocks[edge]
        half = np.linalg.solve(capacitance.T, change * columns.reshape(n * p, p).T).T.reshape(n, p, p)
        apart = (self.coefficients[i] - self.coefficients[j]) * self._root
        self._quadratic += change * float(apart @ np.linalg.solve(capacitance, apart))
        self.coefficients -= half @ apart
        first, second = self._edges.T
        left, right = half[first] - half[second], columns[first] - columns[second]
        shift = np.matmul(left, right.transpose(0, 2, 1)) * np.outer(self._root, self._root)
        self._blocks -= 0.5 * (shift + shift.transpose(0, 2, 1))
        self._left = np.hstack([self._left, half.reshape(n * p, p)])
        self._right = np.concatenate([self._right, columns], axis=2)
        for k, (group, inverse) in enumerate(self._priors):
            delta, column = change * self._coupling[group[0]], inverse[:, i] - inverse[:, j]
            scaled = delta / (1.0 + delta * (column[i] - column[j])) * column
            self._priors[k] = group, inverse - np.outer(scaled, column)
        self.value += gain
