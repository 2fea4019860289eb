"""The paper: models for a given graph, and the graph that minimises the error on held-out rows.

In: training and held-out losses, candidate edges. Out: edge values and models (:class:`~ggmtl.bilevel.level.GraphFit`).

==================  ================================================================
``problem``         the bilevel problem, the outer loss F(e), the sparsity terms ξ, η, γ: Eq. 2, 2a, 4, 5
``inner``           the inner problem and its penalties: Eq. 2b, 3, 7, 8, 9
``hypergradient``   d_e F: Theorem 1, Eq. 10
``closed_form``     closed-form edges: Theorem 2, Eq. 11
``algorithm``       Algorithm 1 (both variants)
``optimizers``      the update of the edges, Eq. 6, and faster ones
``objective``       F with learned strengths (not in the paper)
``level``           settings, the result of a fit, and the refit on all rows
==================  ================================================================
"""

from ggmtl.bilevel.problem import BilevelProblem

__all__ = ["BilevelProblem"]
