"""The scikit-learn estimators: parameters, fitted attributes, the model file.

In: what users pass to ``fit`` and ``predict``. Out: fitted attributes in the user's units. No algebra.
"""

from ggmtl.estimators.regressor import GGMTLRegressor, load_model

__all__ = ["GGMTLRegressor", "load_model"]
