"""The family of levels from pooled to separate, their held-out errors, and the choice among them.

In: scaled losses per fold, settings. Out: one fitted result. Every level is learned again without each fold before it
is scored there, so the errors include the search for candidates, strengths and edges.
"""
