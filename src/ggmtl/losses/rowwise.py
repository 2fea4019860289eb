"""The loss of one row as a function of its linear predictor η, with three derivatives and the link.

    squared    ℓ = ½(y − η)²                       μ = η              ℓ' = μ − y   ℓ'' = 1          ℓ''' = 0
    logistic   ℓ = ln(1 + e^η) − yη                μ = 1/(1 + e^−η)   ℓ' = μ − y   ℓ'' = μ(1 − μ)   ℓ''' = ℓ''(1 − 2μ)
    Poisson    ℓ = e^η − y − y(η − ln y)           μ = e^η            ℓ' = μ − y   ℓ'' = μ          ℓ''' = μ

Every ℓ is half the deviance: zero where the prediction is perfect.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from scipy.special import expit, logit, xlogy

# Means of counts stay finite, and probabilities differ from zero and one.
_LARGEST = 300.0


class RowLoss(Protocol):
    """A loss whose gradient in η is μ − y."""

    name: str

    def value(self, predictor: np.ndarray, target: np.ndarray) -> np.ndarray:
        """ℓ of every row."""
        ...

    def mean(self, predictor: np.ndarray) -> np.ndarray:
        """μ, the inverse link."""
        ...

    def link(self, mean: np.ndarray) -> np.ndarray:
        """η for a mean."""
        ...

    def curvature(self, predictor: np.ndarray) -> np.ndarray:
        """ℓ''."""
        ...

    def third(self, predictor: np.ndarray) -> np.ndarray:
        """ℓ'''."""
        ...


class Squared:
    """½(y − η)²."""

    name = "squared"

    def value(self, predictor: np.ndarray, target: np.ndarray) -> np.ndarray:
        """ℓ of every row."""
        return 0.5 * (predictor - target) ** 2

    def mean(self, predictor: np.ndarray) -> np.ndarray:
        """μ = η."""
        return predictor

    def link(self, mean: np.ndarray) -> np.ndarray:
        """η = μ."""
        return mean

    def curvature(self, predictor: np.ndarray) -> np.ndarray:
        """ℓ'' = 1."""
        return np.ones_like(predictor)

    def third(self, predictor: np.ndarray) -> np.ndarray:
        """ℓ''' = 0."""
        return np.zeros_like(predictor)


class Logistic:
    """ln(1 + e^η) − yη for y in [0, 1]."""

    name = "logistic"

    def value(self, predictor: np.ndarray, target: np.ndarray) -> np.ndarray:
        """ℓ of every row."""
        return np.logaddexp(0.0, predictor) - target * predictor

    def mean(self, predictor: np.ndarray) -> np.ndarray:
        """The probability of class one."""
        return expit(predictor)

    def link(self, mean: np.ndarray) -> np.ndarray:
        """Log odds."""
        return logit(mean)

    def curvature(self, predictor: np.ndarray) -> np.ndarray:
        """ℓ'' = μ(1 − μ)."""
        return expit(predictor) * expit(-predictor)

    def third(self, predictor: np.ndarray) -> np.ndarray:
        """ℓ''' = ℓ''(1 − 2μ)."""
        return self.curvature(predictor) * (1.0 - 2.0 * expit(predictor))


class Poisson:
    """e^η − y − y(η − ln y) for counts y ≥ 0."""

    name = "poisson"

    def value(self, predictor: np.ndarray, target: np.ndarray) -> np.ndarray:
        """ℓ of every row."""
        return self.mean(predictor) - target - target * predictor + xlogy(target, target)

    def mean(self, predictor: np.ndarray) -> np.ndarray:
        """The expected count."""
        return np.exp(np.clip(predictor, -_LARGEST, _LARGEST))

    def link(self, mean: np.ndarray) -> np.ndarray:
        """The logarithm of the expected count."""
        return np.log(mean)

    def curvature(self, predictor: np.ndarray) -> np.ndarray:
        """ℓ'' = μ."""
        return self.mean(predictor)

    def third(self, predictor: np.ndarray) -> np.ndarray:
        """ℓ''' = μ."""
        return self.mean(predictor)


LOSSES: dict[str, RowLoss] = {loss.name: loss for loss in (Squared(), Logistic(), Poisson())}
