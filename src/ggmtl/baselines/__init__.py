"""The methods that graph-guided learning is compared with; all have the same ``fit`` and ``predict``."""

from ggmtl.baselines.bmsl import BMSLRegressor
from ggmtl.baselines.ccmtl import CCMTLRegressor
from ggmtl.baselines.hub import HubRegressor
from ggmtl.baselines.mssl import MSSLRegressor
from ggmtl.baselines.mtrl import MTRLRegressor
from ggmtl.baselines.ridge import IndependentRegressor, PooledRegressor

__all__ = [
    "BMSLRegressor",
    "CCMTLRegressor",
    "HubRegressor",
    "IndependentRegressor",
    "MSSLRegressor",
    "MTRLRegressor",
    "PooledRegressor",
]
