"""Uncertainty of a fitted model, and changes to it that need no new fit.

In: a fitted level and the losses of its rows. Out: covariances, standard deviations, changed models.

======================  ==================================================================
``posterior``           covariance σ²(A⁻¹)_ii of every model
``sampled_covariance``  the same from samples, for very many models
``uncertainty``         noise, standard errors, effects and evidence of a fitted state
``intervals``           prediction intervals, calibrated on held-out rows
``noise_variance``      σ² = Q/(N − tr(A⁻¹G))
``removal``             models, errors and covariance without one edge: A' = A − w·bbᵀ
``attachment``          a new task: its neighbours and model by the evidence of its own rows
``growth``              a state with one more task, or with more rows
``unseen``              models of tasks without rows, by task features, and their covariance
======================  ==================================================================
"""
