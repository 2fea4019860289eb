"""Coefficients, their intervals and the path as columns of tables."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import norm

from ggmtl.errors import check_share
from ggmtl.inference.uncertainty import standard_errors


def coefficient_columns(model: Any) -> dict[str, np.ndarray]:
    """Task, feature, coefficient and standard error of every coefficient of a fitted model."""
    names = [*model.feature_names_, *(["(intercept)"] if model.fit_intercept else [])]
    values = np.column_stack([model.coef_, model.intercept_]) if model.fit_intercept else model.coef_
    return {
        "task": np.repeat(model.tasks_, len(names)),
        "feature": np.tile(np.array(names, dtype=str), len(model.tasks_)),
        "coefficient": values.ravel(),
        "standard_error": standard_errors(model.state_).ravel(),
    }


def interval_columns(model: Any, level: float) -> dict[str, np.ndarray]:
    """Task, feature, coefficient and the bounds of its interval."""
    check_share("level", level)
    columns = coefficient_columns(model)
    reach, value = norm.ppf(0.5 + 0.5 * level) * columns.pop("standard_error"), columns["coefficient"]
    return columns | {"low": value - reach, "high": value + reach}


def path_columns(path: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """``path_`` by columns; a number that is not known, such as an error where nothing was held out, is NaN."""
    columns = {name: [row.get(name) for row in path] for name in dict.fromkeys(name for row in path for name in row)}
    numeric = {name for name, values in columns.items() if not any(isinstance(value, (str, bool)) for value in values)}
    return {
        name: np.array([np.nan if value is None and name in numeric else value for value in values])
        for name, values in columns.items()
    }
