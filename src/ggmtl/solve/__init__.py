"""Solve A V = R, A = blockdiag(X_iᵀX_i) + L_e ⊗ Λ + L_hub ⊗ Λ_hub + ρI (the matrix of the paper's Eq. 5).

In: a ``TaskSystem`` and right-hand sides. Out: a ``Solution`` with its residual.

===================  ================================================================================
``system``           A as an operator, and its dense form; ``Solution``
``solvers``          ``prepare`` chooses a dense Cholesky factor or preconditioned conjugate gradients (PCG)
``preconditioners``  block-Jacobi, the graph level, and both in one cycle
``structured``       tasks with far fewer rows than coefficients, by factors; a factor per component, the reserve
``gpu``              the same algebra on torch tensors
===================  ================================================================================
"""
