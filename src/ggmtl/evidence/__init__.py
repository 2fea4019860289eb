"""The marginal likelihood of hubs, edges and clusters, with the models integrated out.

In: the losses of all rows, candidate edges. Out: strengths, edge values and graphs (``Level``).
f = ½(N − Σ_k c_k) ln Q + ½ ln|A| − ½ Σ_k ln|P_k|₊ is exact in ``hub``, ``clusters`` and ``dense``, and sampled in
``samples``, ``log_determinants`` and ``sampled_value``. ``search`` decides which graph to report.
"""
