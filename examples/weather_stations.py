"""Weather: which stations behave alike?
======================================

109 weather stations in the contiguous United States. Every station is a task: forecast the temperature eight hours
ahead from the last thirty hours. The learned graph says which stations share a forecast model. On a map, it should look
like geography and climate; the models know nothing of either, except that only the six nearest places may be linked.

Needs the TMY3 file (see :func:`ggmtl.datasets.load_tmy3`). To draw the map with twice the rows:
``python examples/weather_stations.py 4 map.png``.
"""

import sys

import numpy as np
import pandas as pd

from ggmtl import Coordinates, GGMTLRegressor, plot
from ggmtl.baselines import IndependentRegressor, PooledRegressor
from ggmtl.data.task_data import TaskData
from ggmtl.datasets import load_tmy3, split_rows
from ggmtl.inspection import explain_edge, task_rmse

# %%
# Data
# ----
# Every eighth hour as a row keeps this page quick to build. The first fifth of the year is for learning.

every = int(sys.argv[1]) if len(sys.argv) > 1 else 8
winter = load_tmy3(109, horizon=8, every=every)
rest, places = winter.test, winter.coordinates
assert rest is not None
assert places is not None
print(f"{len(winter.task_names)} stations, {len(winter):,} rows to learn from, {len(rest):,} to be judged by")

# %%
# Fit
# ---
# ``Coordinates`` limits the possible edges to near places. The features are hours: ``t`` is now, ``t-1`` an hour ago.


def hours(part: TaskData) -> pd.DataFrame:
    """The last thirty hours, by name."""
    return pd.DataFrame(part.X, columns=list(part.columns))


nearby = Coordinates(places, k=6)
model = GGMTLRegressor(candidates=nearby).fit(hours(winter), winter.y, tasks=winter.tasks)
print(model.summary())

# %%
# The map
# -------
# Lines are edges, colours are Markov clusters of the graph.

axes = plot.map(model, places)
if len(sys.argv) > 2:
    axes.figure.savefig(sys.argv[2], dpi=110, bbox_inches="tight")

# %%
# Why is an edge there?
# ---------------------
# The heaviest edge, explained: what the two stations agree on without it, and what removing the edge would cost.

graph = model.graph_
if graph.n_edges:
    first, second = graph.task_names[graph.edges[graph.weights.argmax()]]
    print(explain_edge(model, first, second).describe())
else:
    print("The fit found no edge.")

# %%
# The rest of the year
# --------------------
# Mean over stations of the error in °C.


def compare(fitted: GGMTLRegressor, train: TaskData, test: TaskData) -> None:
    """Print the error of the fitted model and of the two simple ones."""
    rivals = {"one model for all": PooledRegressor(), "a model per station": IndependentRegressor()}
    for name, rival in rivals.items():
        rival.fit(hours(train), train.y, tasks=train.tasks)
        error = task_rmse(test.y, rival.predict(hours(test), tasks=test.tasks), test.tasks)
        print(f"{name:>20}: {error:.3f}")
    error = task_rmse(test.y, fitted.predict(hours(test), tasks=test.tasks), test.tasks)
    print(f"{'GGMTL':>20}: {error:.3f}")


compare(model, winter, rest)

# %%
# One model for all wins, and by a lot. Cross-validation said otherwise, and it was not wrong: it spoke of *winter*. The
# first fifth of the year ends in March. What a station's own model learns about winter need not hold in July; one
# model for all climates seems less bound to it. No error measured on winter rows can foresee that. **Judge on rows like
# those you will predict.**
#
# A fifth of every season
# -----------------------
# The same stations, with weeks drawn over the whole year: whole weeks, so that neighbouring hours are not on both
# sides.

time = np.concatenate([np.arange(np.sum(part.tasks == name)) for part in (winter, rest) for name in part.task_names])
time[len(winter) :] += len(winter) // len(winter.task_names)
year = TaskData(
    X=np.concatenate([winter.X, rest.X]),
    y=np.concatenate([winter.y, rest.y]),
    tasks=np.concatenate([winter.tasks, rest.tasks]),
    feature_names=winter.feature_names,
    groups=time * every // (7 * 24),
)
train, test = split_rows(year, 0.2, random_state=0, by="groups")
model = GGMTLRegressor(candidates=nearby).fit(hours(train), train.y, tasks=train.tasks, groups=train.groups)
print(model.summary())

# %%
compare(model, train, test)
