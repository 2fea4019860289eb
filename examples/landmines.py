"""Landmines: two kinds of fields
===============================

Radar images of 29 mine fields. Every spot has nine features, and is a mine (6 % of them) or clutter. Fields 1 to 15
have foliage, fields 16 to 29 are bare or desert. The model is not told. Every field is a task, with 160 spots to learn
from.

The file ``landmine/LandmineData.mat`` is that of Xue, Liao, Carin and Krishnapuram (JMLR 8, 2007).
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import log_loss, roc_auc_score

from ggmtl import GGMTLClassifier
from ggmtl.baselines import IndependentClassifier, PooledClassifier
from ggmtl.datasets import load_landmine

data = load_landmine()
rng = np.random.default_rng(0)
kept = [rng.permutation(np.flatnonzero(data.tasks == field))[:160] for field in np.unique(data.tasks)]
train = np.zeros(len(data), dtype=bool)
train[np.concatenate(kept)] = True
label = np.where(data.y > 0, "mine", "clutter")

# %%
# Fit
# ---

model = GGMTLClassifier(random_state=0).fit(data.X[train], label[train], tasks=data.tasks[train])
print(model.summary())

# %%
# Which fields are alike
# ----------------------
# Where links were found, clusters should be the two kinds of fields.

clusters = model.graph_.clusters()
for number in np.unique(clusters):
    members = model.tasks_[clusters == number]
    print(f"cluster {number + 1}: {int((members <= 15).sum())} with foliage, {int((members > 15).sum())} bare")

# %%
# Does it predict?
# ----------------
# Log-loss and area under the curve of the spots that no model has seen.

new = ~train
methods = {
    "one model for all": PooledClassifier(),
    "one model per field": IndependentClassifier(),
    "GGMTL": model,
}
for name, method in methods.items():
    if method is not model:
        method.fit(data.X[train], label[train], tasks=data.tasks[train])
    chance = method.predict_proba(data.X[new], tasks=data.tasks[new])[:, 1]
    print(f"{name:>20}: log-loss {log_loss(data.y[new], chance):.4f}, AUC {roc_auc_score(data.y[new], chance):.3f}")

# %%
# How sure is a probability?
# --------------------------
# ``predict_interval`` says how well the models are known. Here for some spots of field 20.

spots = np.flatnonzero(new & (data.tasks == 20))[:40]
chance = model.predict_proba(data.X[spots], tasks=data.tasks[spots])[:, 1]
bounds = model.predict_interval(data.X[spots], 0.9, tasks=data.tasks[spots])
order = np.argsort(chance)
figure, axes = plt.subplots(figsize=(6.4, 3.2))
axes.vlines(np.arange(len(spots)), *bounds[order].T, color="#999999", lw=2)
axes.plot(np.arange(len(spots)), chance[order], "o", ms=4, color="#0072B2")
axes.set(xlabel="spots of field 20, ordered", ylabel="probability of a mine")
axes.spines[["top", "right"]].set_visible(False)
