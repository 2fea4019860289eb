"""Baseline methods for comparison; all have the same ``fit`` and ``predict``.

In: rows, as in ``GGMTLRegressor``. Out: ``coef_``, ``intercept_`` and ``graph_`` (empty where a method has none).

``ridge`` (independent, pooled, and hub: a shared model and deviations), ``classifiers`` (these three for classes),
``ccmtl``, ``mtrl``, ``mssl``, ``bmsl``: each module states its objective. ``_shared`` eliminates intercepts, chooses
strengths by cross-validation and solves with matrices between tasks. ``_row_models`` fits classes and counts; the
draws of ``bmsl`` are in ``_gibbs``.
"""

from ggmtl.baselines.bmsl import BMSLRegressor
from ggmtl.baselines.ccmtl import CCMTLRegressor
from ggmtl.baselines.classifiers import HubClassifier, IndependentClassifier, PooledClassifier
from ggmtl.baselines.mssl import MSSLRegressor
from ggmtl.baselines.mtrl import MTRLRegressor
from ggmtl.baselines.ridge import HubRegressor, IndependentRegressor, PooledRegressor

__all__ = [
    "BMSLRegressor",
    "CCMTLRegressor",
    "HubClassifier",
    "HubRegressor",
    "IndependentClassifier",
    "IndependentRegressor",
    "MSSLRegressor",
    "MTRLRegressor",
    "PooledClassifier",
    "PooledRegressor",
]
