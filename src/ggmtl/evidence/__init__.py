"""Marginal likelihood (evidence) of shrinkage strengths and graphs, and the search for the best ones.

In: the losses of all rows, and candidate edges. Out: strengths, edge values and graphs (``GraphFit``). The models are
integrated out. With A the system of all models, P_k the prior precision of coefficient k, and c_k components,

    f = ½(N − Σ_k c_k) ln Q + ½ ln|A| − ½ Σ_k ln|P_k|₊ ,    −f is the log evidence up to a constant

=======================  ==============================================================================================
shared model (hub)       ``hub``: f(h) and derivatives, from ``hub_sums``; ``hub_strengths`` learns h. ``laplace``: the
                         same for classes and counts; ``task_means``: with task features; ``correlated``: deviations
an edge                  ``dense``: exact ∂f/∂e of every edge, used by ``edge_steps`` to learn edge values;
                         ``spanning_trees``: posterior probability of every edge
a graph                  ``elimination``: exact f of a sparse graph; ``edge_strength`` tunes its strength; ``clusters``:
                         f of clusters, and their search; ``selection``: which graph to report
many tasks               ``sampling``: posterior samples and log-determinants; ``sampled_edges`` learns edges from them
a shared coefficient     ``shared_coefficients``; ``search_l1``: graphs for the ℓ1 penalty
one task                 ``task_noise``: its noise variance; ``separate``: ridges of separate models
all together             ``search`` (in the units of ``scaled_problem``); ``level_value``: evidence of a fitted level
on a GPU                 ``gpu``
=======================  ==============================================================================================
"""
