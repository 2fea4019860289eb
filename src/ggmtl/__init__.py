"""Interpretable multi-task regression: every task's model, and a sparse graph of which tasks are alike."""

__version__ = "0.1.0"
