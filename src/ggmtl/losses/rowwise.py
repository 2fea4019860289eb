"""The loss of one row as a function of its linear predictor η, with three derivatives and the link.

    squared    ℓ = ½(y − η)²                       μ = η              ℓ' = μ − y   ℓ'' = 1          ℓ''' = 0
    logistic   ℓ = ln(1 + e^η) − yη                μ = 1/(1 + e^−η)   ℓ' = μ − y   ℓ'' = μ(1 − μ)   ℓ''' = ℓ''(1 − 2μ)
    Poisson    ℓ = e^η − y − y(η − ln y)           μ = e^η            ℓ' = μ − y   ℓ'' = μ          ℓ''' = μ

Every ℓ is half the deviance: zero where the prediction is perfect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy.special import expit, logit, xlogy

# Means of counts stay finite, and probabilities differ from zero and one.
_LARGEST = 300.0


@dataclass(frozen=True)
class Measure:
    """How the loss of held-out rows is told: (unit · mean of ℓ)^power.

    Parameters
    ----------
    name, short : str
        As in a heading, and as in "the held-out …".
    unit, power : float
    """

    name: str
    short: str
    unit: float
    power: float

    def of(self, mean: Any) -> Any:
        """The error for a mean of unit · ℓ."""
        return np.sqrt(mean) if self.power == 0.5 else mean

    def deviation(self, mean: Any, deviation: Any) -> Any:
        """The standard error of the error, by the delta method."""
        if self.power == 1.0:
            return deviation
        error = self.of(mean)
        return deviation / (2.0 * np.where(error > 0, error, 1.0))

    def gain(self, ratio: Any) -> Any:
        """By what share an error is lower than another, for the ratio of the means."""
        return 1.0 - self.of(np.maximum(ratio, 0.0))


SQUARED_ERROR = Measure("root mean square error", "error", 2.0, 0.5)


class RowLoss(Protocol):
    """A loss whose gradient in η is μ − y."""

    name: str
    measure: Measure
    # Whether the mean grows exponentially with η, so that no row may be far outside the range of the training rows.
    exponential: bool

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
    measure = SQUARED_ERROR
    exponential = False

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
    measure = Measure("log-loss", "log-loss", 1.0, 1.0)
    exponential = False

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
    measure = Measure("mean Poisson deviance", "deviance", 2.0, 1.0)
    exponential = True

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
