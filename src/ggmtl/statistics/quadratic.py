"""The squared loss of every task as a quadratic in its coefficients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class LeastSquares:
    """½ Σ_i ‖X_i w_i − y_i‖² = ½ Σ_i (wᵢᵀ G_i wᵢ − 2 m_iᵀ wᵢ + t_i), without the rows.

    Parameters
    ----------
    gram : array of shape (n, p, p)
        G_i = X_iᵀ X_i.
    moment : array of shape (n, p)
        m_i = X_iᵀ y_i.
    target_square : array of shape (n,)
        t_i = y_iᵀ y_i.
    count : array of shape (n,)
        Rows (sum of weights) of each task.
    """

    gram: np.ndarray
    moment: np.ndarray
    target_square: np.ndarray
    count: np.ndarray

    @property
    def n_tasks(self) -> int:
        """Number of tasks."""
        return len(self.gram)

    @property
    def n_features(self) -> int:
        """Number of coefficients of a task."""
        return self.gram.shape[-1]

    def gradient(self, coefficients: np.ndarray) -> np.ndarray:
        """X_iᵀ(X_i w_i − y_i) of every task, shape (n, p)."""
        return np.matmul(self.gram, coefficients[..., None])[..., 0] - self.moment

    def task_values(self, coefficients: np.ndarray) -> np.ndarray:
        """½‖X_i w_i − y_i‖² of every task, shape (n,)."""
        cross = np.einsum("np,np->n", self.gradient(coefficients) - self.moment, coefficients)
        return np.maximum(0.5 * (cross + self.target_square), 0.0)

    def value(self, coefficients: np.ndarray) -> float:
        """½ Σ_i ‖X_i w_i − y_i‖²."""
        return float(self.task_values(coefficients).sum())
