"""Weather: which stations behave alike?
======================================

109 weather stations in the contiguous United States. Every station is a task: forecast the temperature eight hours ahead
from the last thirty hours. The learned graph says which stations share a forecast model. On a map, it should look like
geography and climate; the models know nothing of either, except that only the six nearest places may be linked.

Needs the TMY3 file (see :func:`ggmtl.datasets.load_tmy3`). To draw the picture of the README, with twice the rows:
``python examples/weather_stations.py 4 docs/images/weather_stations.png``.
"""

import sys

from ggmtl import Coordinates, GGMTLRegressor, plot
from ggmtl.baselines import IndependentRegressor, PooledRegressor
from ggmtl.datasets import load_tmy3
from ggmtl.inspection import explain_edge, task_rmse

# %%
# Data
# ----
# Every eighth hour as a row keeps this page quick to build. The first fifth of the year is for learning.

every = int(sys.argv[1]) if len(sys.argv) > 1 else 8
data = load_tmy3(109, horizon=8, every=every)
test = data.test
assert test is not None and data.coordinates is not None
print(f"{len(data.task_names)} stations, {len(data):,} rows to learn from, {len(test):,} to be judged by")

# %%
# Fit
# ---
# ``Coordinates`` limits the possible edges to near places.

nearby = Coordinates(data.coordinates, k=6)
model = GGMTLRegressor(candidates=nearby).fit(data.X, data.y, tasks=data.tasks)
print(model.summary())

# %%
# The rest of the year
# --------------------
# Mean over stations of the error in °C.

rivals = {"one model for all": PooledRegressor(), "a model per station": IndependentRegressor()}
for name, rival in rivals.items():
    rival.fit(data.X, data.y, tasks=data.tasks)
    print(f"{name:>20}: {task_rmse(test.y, rival.predict(test.X, tasks=test.tasks), test.tasks):.3f}")
print(f"{'GGMTL':>20}: {task_rmse(test.y, model.predict(test.X, tasks=test.tasks), test.tasks):.3f}")

# %%
# The map
# -------
# Lines are edges, colours are Markov clusters of the graph.

axes = plot.map(model, data.coordinates)
if len(sys.argv) > 2:
    axes.figure.savefig(sys.argv[2], dpi=110, bbox_inches="tight")

# %%
# Why is an edge there?
# ---------------------
# The heaviest edge, explained: what the two stations agree on by themselves, and what removing the edge would cost.

graph = model.graph_
if graph.n_edges:
    first, second = graph.task_names[graph.edges[graph.weights.argmax()]]
    print(explain_edge(model, first, second).describe())
else:
    print("The fit found no edge.")
