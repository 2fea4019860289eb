"""Uncertainty of a fitted level: standard errors, noise, removing an edge, adding a task.

In: a fitted level and its losses. Out: covariances, standard deviations, changed models.
"""
