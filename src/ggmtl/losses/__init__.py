"""Losses per row: squared, logistic, Poisson; and the quadratics by which Newton's method replaces them.

In: rows sorted by task, and a linear predictor per row. Out: values, derivatives, and working sums: the same
:class:`~ggmtl.statistics.least_squares.LeastSquares` that squared loss gives, so that a Newton step is one call of the
least-squares machinery.

``rowwise``: the losses and their derivatives; ``task_rows``: rows by task, their working sums, and Newton's method.
"""
