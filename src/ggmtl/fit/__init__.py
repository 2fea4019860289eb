"""The family of levels from one model for all tasks to separate models, their held-out errors, and their average.

In: scaled losses per fold, settings. Out: a ``Family``, kept in the frozen ``FittedState``. Every level is learned
again without each fold before it is scored there, so the errors include the search for candidates, strengths and edges.

- ``path``: the whole fit, with one noise variance or one per task.
- ``levels``: every level on given rows; ``lines_or_curves``: levels of straight lines next to those of curves.
- ``held_out``: cross-validation of all levels; ``average``: their convex weights Σ_ℓ α_ℓ W^(ℓ), α ≥ 0, Σα = 1.
- ``family``: levels by name, weights, the choice; ``state``: the record that the estimator holds.
- ``order``: tasks and columns by content, so that labels and positions do not matter.
- ``outcomes``, ``outcome_levels``, ``separate_outcomes``, ``predictor_average``: the same for classes and counts.
"""
