"""The methods that graph-guided learning is compared with; all have the same ``fit`` and ``predict``.

In: rows, as in ``GGMTLRegressor``. Out: ``coef_``, ``intercept_`` and ``graph_`` (empty where a method has none).

``ridge`` (independent and pooled), ``hub`` (common model and deviations), ``classifiers`` (these three for classes),
``ccmtl``, ``mtrl``, ``mssl``, ``bmsl``: each module states its objective. ``_selection`` chooses strengths by
cross-validation; ``_centred`` eliminates intercepts. ``_row_models`` fits classes and counts.
"""

from ggmtl.baselines.bmsl import BMSLRegressor
from ggmtl.baselines.ccmtl import CCMTLRegressor
from ggmtl.baselines.classifiers import HubClassifier, IndependentClassifier, PooledClassifier
from ggmtl.baselines.hub import HubRegressor
from ggmtl.baselines.mssl import MSSLRegressor
from ggmtl.baselines.mtrl import MTRLRegressor
from ggmtl.baselines.ridge import IndependentRegressor, PooledRegressor

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
