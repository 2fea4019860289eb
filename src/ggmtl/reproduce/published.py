"""The numbers that the paper prints, (mean, standard deviation); None where it prints no deviation or no number."""

from __future__ import annotations

Number = tuple[float, float | None] | None

# Columns: BMSL, MSSL, CCMTL, GGMTL. The paper has one GGMTL column and does not say with which penalty.
_TABLE1_METHODS = ("bmsl", "mssl", "ccmtl", "ggmtl")
_TABLE1 = {
    ("line", "accuracy"): ((0.384, 4.1e-2), (0.180, 1.1e-2), (0.631, 2.1e-2), (0.648, 3.3e-2)),
    ("tree", "accuracy"): ((0.388, 5.2e-2), (0.141, 1.1e-2), (0.722, 1.6e-2), (0.770, 1.2e-2)),
    ("star", "accuracy"): ((0.581, 8.4e-2), (0.726, 2.9e-2), (0.405, 3.1e-2), (0.460, 7.8e-2)),
    ("line", "recall"): ((0.688, 5.6e-2), (0.958, 1.5e-2), (0.288, 4.4e-2), (0.726, 1.0e-1)),
    ("tree", "recall"): ((0.653, 6.3e-2), (0.946, 1.3e-2), (0.390, 2.5e-2), (0.790, 7.8e-2)),
    ("star", "recall"): ((0.318, 1.3e-1), (0.311, 1.1e-1), (0.706, 7.2e-2), (0.664, 1.6e-1)),
    ("line", "precision"): ((0.100, 8.1e-4), (0.100, 1.5e-4), (0.083, 7.1e-3), (0.175, 2.7e-2)),
    ("tree", "precision"): ((0.065, 8.4e-4), (0.065, 9.9e-5), (0.092, 2.6e-3), (0.185, 1.6e-2)),
    ("star", "precision"): ((0.149, 4.7e-2), (0.238, 5.4e-2), (0.176, 1.2e-2), (0.185, 3.1e-2)),
    ("line", "f1"): ((0.175, 2.6e-3), (0.182, 3.4e-4), (0.129, 1.3e-2), (0.282, 4.3e-2)),
    ("tree", "f1"): ((0.117, 1.9e-3), (0.121, 1.8e-4), (0.149, 4.0e-3), (0.300, 2.6e-2)),
    ("star", "f1"): ((0.199, 6.7e-2), (0.266, 7.3e-2), (0.281, 2.1e-2), (0.288, 5.0e-2)),
    ("line", "rmse"): ((6.968, 1.5), (4.838, 7.6e-1), (4.342, 7.21e-1), (4.342, 7.21e-1)),
    ("tree", "rmse"): ((7.444, 1.4), (4.879, 1.3), (4.207, 1.141), (4.207, 1.141)),
    ("star", "rmse"): ((4.784, 2.4e-1), (1.616, 2.7e-1), (0.507, 2.25e-1), (0.300, 2.11e-1)),
}

# Columns: MTRL, MSSL, BMSL, CCMTL, GGMTL.
_REAL_METHODS = ("mtrl", "mssl", "bmsl", "ccmtl", "ggmtl")
_REAL = {
    "parkinson r=0.3": ((4.147, 3.038), (1.144, 0.007), (1.221, 0.11), (1.037, 0.013), (1.037, 0.012)),
    "parkinson r=0.4": ((3.202, 2.587), (1.129, 0.011), (1.150, 0.1), (1.017, 0.008), (1.019, 0.01)),
    "parkinson r=0.5": ((1.761, 0.85), (1.130, 0.009), (1.110, 0.085), (1.010, 0.008), (1.010, 0.008)),
    "parkinson r=0.6": ((1.045, 0.05), (1.123, 0.013), (1.068, 0.036), (0.998, 0.017), (1.000, 0.017)),
    "school r=0.2": ((11.276, 0.103), (11.727, 0.137), (10.430, 0.056), (10.129, 0.038), (10.137, 0.034)),
    "school r=0.3": ((10.761, 0.045), (11.060, 0.045), (10.223, 0.044), (10.078, 0.038), (10.072, 0.037)),
    "school r=0.4": ((10.440, 0.069), (10.632, 0.076), (10.084, 0.067), (10.059, 0.067), (10.056, 0.068)),
    "school r=0.5": ((10.267, 0.065), (10.437, 0.040), (10.048, 0.043), (9.994, 0.052), (9.996, 0.051)),
    "tmy3 h=8": (None, (1.794, None), (0.489, None), (0.101, None), (0.101, None)),
    "tmy3 h=16": (None, (1.643, None), (0.606, None), (0.0975, None), (0.0973, None)),
}


def published_number(problem: str, method: str, measure: str = "rmse") -> Number:
    """What the paper prints for a method on a problem; variants of GGMTL share its one column."""
    column = "ggmtl" if method.startswith("ggmtl") else method
    words = problem.split()
    if words[0] in ("line", "tree", "star"):
        row, methods = _TABLE1.get((words[0], measure)), _TABLE1_METHODS
    else:
        row, methods = _REAL.get(" ".join(words[:2])), _REAL_METHODS
    if row is None or column not in methods:
        return None
    return row[methods.index(column)]


def method_printed(problem: str, method: str) -> bool:
    """Whether the paper has a column for the method in the table of this problem."""
    column = "ggmtl" if method.startswith("ggmtl") else method
    return column in (_TABLE1_METHODS if problem.split()[0] in ("line", "tree", "star") else _REAL_METHODS)
