"""Solve A V = R, A = blockdiag(X_iᵀX_i) + L_e ⊗ Λ + L_hub ⊗ Λ_hub + ρI (the matrix of the paper's Eq. 5).

In: a ``TaskSystem`` (``system``) and right-hand sides. Out: a ``Solution`` with its residual. ``solvers`` picks the
way: direct, special forms (``shared_design``, ``low_rank``, ``components``) or conjugate gradients with the
``preconditioners``. ``gpu`` is the same algebra on torch tensors.
"""
