"""User's columns ↔ coefficients of the solver.

In: sums in the user's units. Out: sums of standardised columns with the constant column last, and coefficients back in
the user's units.
"""
