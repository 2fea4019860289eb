"""The marginal likelihood of graphs and strengths, with the models integrated out.

In: the losses of all rows, and candidate edges. Out: strengths, edge values and graphs (``GraphFit``).

    f = ½(N − Σ_k c_k) ln Q + ½ ln|A| − ½ Σ_k ln|P_k|₊ ,    −f is the log evidence up to a constant

- ``hub``: the common model alone; ``hub_strengths``: its strengths; ``separate``: ridges of separate models.
- ``task_noise``: a noise variance and a scale of deviations for every task.
- ``dense``: f and its derivatives for a weighted graph, exact; ``edge_steps`` learns edge values with them.
- ``clusters``, ``selection``: which graph to report; ``spanning_trees``: how probable every edge is.
- ``sampling``: samples and log-determinants for many tasks; ``sampled_edges`` learns edges with them.
- ``shared_coefficients``, ``search_l1``: tasks that share single coefficients (ℓ1 penalty).
- ``search`` runs all of this (``scaled_problem``: in which units); ``level_value`` gives the evidence of a result.
- ``gpu``: the same for losses on a device.
"""
