"""The paper: models given a graph, and the graph that minimises the error on held-out rows.

In: training and held-out losses, candidate edges. Out: edge values and models (``Level``).
``inner`` (inner problem), ``hypergradient`` (Eq. hg), ``sparsity`` (ℓ2, ℓ1 and entropy terms), ``problem`` (outer loss
F(e) and its gradient), ``closed_form`` (Theorem hyper-edges), ``optimizers`` and ``algorithm`` (Algorithm 1).
"""

from ggmtl.bilevel.problem import BilevelProblem

__all__ = ["BilevelProblem"]
