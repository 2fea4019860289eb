"""Solve A V = R, A = blockdiag(X_iᵀX_i) + L_e ⊗ Λ + L_hub ⊗ Λ_hub + ρI (the matrix of the paper's Eq. 5).

In: a ``TaskSystem`` (``system``) and right-hand sides. Out: a ``Solution`` with its residual.

- ``solvers``: chooses the way; a dense Cholesky factor, or preconditioned conjugate gradients (PCG).
- ``preconditioners``: block-Jacobi, the graph level, and both in one cycle.
- ``components``: one Cholesky factor per connected component, and the effect of removing an edge in closed form.
- ``shared_design``, ``low_rank``: special forms that are cheaper; each has the table of what it saves.
- ``gpu``: the same algebra on torch tensors.
"""
