"""A whole fit: all levels from one model for all tasks to separate models, their held-out errors, and their average.

In: scaled losses per fold, settings. Out: a ``Family``, kept in the frozen ``FittedState``. Every level is learned
again without each fold before it is scored there, so the errors include the search for candidates, strengths and edges.

- ``path``: runs the fit; decides whether all tasks have the same noise variance.
- ``levels``: learns every level on given rows; ``lines_or_curves``: levels with straight lines and with curves.
- ``held_out``: held-out errors of all levels by cross-validation, and the edges found in each fold.
- ``average``: the average of the levels, Σ_ℓ α_ℓ W^(ℓ), α ≥ 0, Σα = 1: its weights, its held-out error and gains.
- ``family``: levels by name, the best single level, the reported graph; ``state``: the record that an estimator keeps.
- ``order``: sorts tasks and columns by content, so that labels and positions do not matter.
- ``outcomes``, ``outcome_*``, ``separate_outcomes``, ``predictor_average``: the same for classes and counts.
"""
