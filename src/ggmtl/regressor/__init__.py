"""The scikit-learn estimator and its file."""

from ggmtl.regressor.estimator import GGMTLRegressor, load_model

__all__ = ["GGMTLRegressor", "load_model"]
