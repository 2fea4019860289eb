"""Patients: a motor score from the voice
=======================================

42 people with Parkinson's disease recorded their voice at home for six months (UCI archive, data set 189). We predict
the motor score from 16 voice measures, age and sex. Every patient is a task.

This data set punishes careless evaluation: about six recordings belong to one visit and have all but the same score. A
random split puts twins on both sides. We split by visit.
"""

import numpy as np
import pandas as pd

from ggmtl import GGMTLRegressor, plot
from ggmtl.baselines import HubRegressor, IndependentRegressor, PooledRegressor
from ggmtl.datasets import load_parkinson, split_rows
from ggmtl.inspection import task_rmse, transfer_report

# %%
# Thirty percent of the visits
# ----------------------------
# ``groups`` numbers the visits. ``by="groups"`` keeps a visit whole, and ``fit(groups=...)`` keeps it in one fold.

data = load_parkinson()
train, test = split_rows(data, 0.3, random_state=0, by="groups")
print(f"{len(train.task_names)} patients, {len(train):,} rows to learn from, {len(test):,} to be judged by")
for note in data.notes:
    print("note:", note)

# %%
# Fit
# ---

X = pd.DataFrame(train.X, columns=list(train.columns))
model = GGMTLRegressor().fit(X, train.y, tasks=train.tasks, groups=train.groups)
print(model.summary())

# %%
# Against the simple models
# -------------------------
# Mean over patients of the error on visits not seen.


def error_of(fitted) -> float:
    """Task-mean root mean square error on the test visits."""
    features = pd.DataFrame(test.X, columns=list(test.columns))
    return task_rmse(test.y, fitted.predict(features, tasks=test.tasks), test.tasks)


rivals = {
    "one model for all": PooledRegressor(),
    "a model per patient": IndependentRegressor(),
    "common model + deviation": HubRegressor(),
}
for name, rival in rivals.items():
    print(f"{name:>25}: {error_of(rival.fit(X, train.y, tasks=train.tasks, groups=train.groups)):.3f}")
print(f"{'GGMTL':>25}: {error_of(model):.3f}")

# %%
# Shared or personal?
# -------------------
# The hub has one strength per coefficient: how strongly a patient's coefficient is drawn to that of all. A strong pull
# means a shared effect. A weak pull means a personal one.

names = [*train.columns, "(intercept)"]
for position in np.argsort(model.hub_strength_):
    print(f"{names[position]:>14}  {model.hub_strength_[position]:12.3g}")

# %%
axes = plot.coefficients(model)
axes.figure.set_size_inches(6.8, 7.2)

# %%
# Whom does sharing help?
# -----------------------

report = transfer_report(model)
print(report.describe())
gains = np.array([gain.share for gain in report.task_gains])
axes = plot.gain(np.array([f"patient {label}" for label in report.tasks]), gains)

# %%
# How sure is a prediction?
# -------------------------
# ``return_std=True`` gives the standard deviation of a new observation. About 95 % of the scores should lie within two
# of them. We count.

values, deviation = model.predict(pd.DataFrame(test.X, columns=list(test.columns)), tasks=test.tasks, return_std=True)
inside = np.abs(test.y - values) <= 2 * deviation
print(f"{inside.mean():.1%} of the scores lie within two standard deviations")
